package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/internal/testprogram"
)

// newAgents are the languages of `lmosd new agent`: the programs that each needs, and what its test prints without and with a node.
var newAgents = map[string]struct {
	needs              []string
	build, serve, test string
	without, with      string
}{
	"python": {[]string{"python3"}, "", "python3 agent.py", "python3 -m unittest", "OK (skipped=1)", "OK\n"},
	"js":     {[]string{"node", "npm"}, "", "node main.mjs", "npm test", "skipped 1", "skipped 0"},
	"sh":     {nil, "", "lmosd expose exec:./agent.sh --name hello --action greet", "sh test.sh", "skipped: the agent (no node", "ok: the agent\n"},
	"go":     {[]string{"go"}, "go build -o hello .", "./hello", "go vet . && go test .", "ok  \thello\t", "ok  \thello\t"},
}

// A new agent has a test that passes, and serves a node; the folder has all that it needs.
func TestNewAgents(t *testing.T) {
	t.Parallel()
	for lang, l := range newAgents {
		t.Run(lang, func(t *testing.T) {
			t.Parallel()
			for _, name := range l.needs {
				testprogram.Path(t, name)
			}
			x := newUser(t, "PYTHONDONTWRITEBYTECODE=1", "npm_config_update_notifier=false")
			written := x.ok("new", "agent", "hello", "--lang", lang)
			contains(t, written, "wrote hello · README.md, ")
			if lang == "go" {
				x = x.offline()
			}
			in := func(line string) string { return "cd hello && " + line }
			if l.build != "" {
				if r := x.typed(in(l.build)); r.code != 0 {
					t.Fatalf("%s: exit code %d\n%s%s", l.build, r.code, r.out, r.errors)
				}
			}
			n := x.node("n")
			for node, want := range map[string]string{filepath.Join(x.home, "none"): l.without, n.dir: l.with} {
				with := *x
				with.env = append(append([]string{}, x.env...), "LMOSD_DATA_DIR="+node, "LMOSD_NODE="+filepath.Join(node, "lmosd.sock"))
				if r := with.typed(in(l.test)); r.code != 0 || !strings.Contains(r.out+r.errors, want) {
					t.Errorf("%s at %s: exit code %d\n%s%s\nwant %s", l.test, node, r.code, r.out, r.errors, want)
				}
			}
			x = x.at(n)
			p := x.typing(in("exec " + l.serve))
			input := "name=Ada"
			if lang == "sh" {
				input = "Ada"
			}
			eventually(t, "the agent is called", func() bool {
				select {
				case <-p.ended:
					t.Fatalf("%s ended\n%s%s", l.serve, p.out.String(), p.talk.String())
				default:
				}
				return x.lmosd("call", "hello", "greet", input).out == "Hello, Ada!\n"
			})
			if lang != "sh" {
				if got := x.ok("read", "hello", "greeted"); got != "1\n" {
					t.Errorf("greeted is %s", got)
				}
			}
			p.signal(syscall.SIGINT)
			if code := p.wait(); code != 0 && code != cli.ExitInterrupted && code != -1 || lang != "sh" && p.talk.String() != "" {
				t.Errorf("Ctrl-C: exit code %d\n%s", code, p.talk.String())
			}
		})
	}
}

// offline lets the go command of x use a checkout of this module, and no network.
func (x *user) offline() *user {
	x.t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		x.t.Fatal(err)
	}
	caches, err := exec.Command("go", "env", "GOMODCACHE", "GOCACHE").Output()
	if err != nil {
		x.t.Fatal(err)
	}
	folders := strings.Fields(string(caches))
	with := *x
	with.env = append(append([]string{}, x.env...), "GOMODCACHE="+folders[0], "GOCACHE="+folders[1], "GOPROXY=off", "GOSUMDB=off", "GOTOOLCHAIN=local", "CGO_ENABLED=0")
	if r := with.typed("cd hello && go mod edit -replace github.com/lmosd/lmosd='" + root + "' && go get github.com/lmosd/lmosd/agent"); r.code != 0 {
		x.t.Fatal(r.errors)
	}
	return &with
}
