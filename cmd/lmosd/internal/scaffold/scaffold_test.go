package scaffold

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/testmain"
	"github.com/lmosd/lmosd/internal/testprogram"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// written writes a new agent, and returns its folder.
func written(t *testing.T, lang, version string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "agent")
	r := request{name: "hello", lang: lang, dir: dir, version: version}
	if err := r.run(cli.New(nil, strings.NewReader(""), io.Discard, io.Discard)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestGoModule(t *testing.T) {
	t.Parallel()
	ours, err := os.ReadFile("../../../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if got := regexp.MustCompile(`(?m)^go (.*)$`).FindSubmatch(ours); got == nil || string(got[1]) != goVersion {
		t.Errorf("the module requires go %s, a new agent go %s", got, goVersion)
	}
	for version, want := range map[string]string{"1.2.3": "v1.2.3", "1.2.3-rc.1": "v1.2.3-rc.1", "dev": "v0.0.0", "1.2.4-0.20261129-abc+dirty": "v0.0.0"} {
		raw, err := os.ReadFile(filepath.Join(written(t, "go", version), "go.mod"))
		if err != nil || !strings.Contains(string(raw), "require github.com/lmosd/lmosd "+want+"\n") {
			t.Errorf("%s: %v\n%s", version, err, raw)
		}
	}
}

// What a new agent has passes the strict checkers of types.
func TestTypes(t *testing.T) {
	t.Parallel()
	const interop = "../../../../interop"
	tsc, err := filepath.Abs(interop + "/node_modules/typescript/bin/tsc")
	if err != nil {
		t.Fatal(err)
	}
	for lang, args := range map[string][]string{
		"python": {"mypy", "--strict", "--cache-dir", t.TempDir(), "agent.py", "test_agent.py"},
		"js": {"node", tsc, "--noEmit", "--strict", "--allowJs", "--checkJs", "--module", "nodenext", "--target", "es2022", "--lib", "es2023,dom",
			"agent.mjs", "main.mjs"},
	} {
		t.Run(lang, func(t *testing.T) {
			t.Parallel()
			testprogram.Path(t, args[0])
			if lang == "js" {
				testprogram.Modules(t, interop)
			}
			cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
			cmd.Dir = written(t, lang, "dev")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

func TestSuggestedNames(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"Hello World": "hello-world", "../x": "x", "9lives": "lives", "": "hello", "Ä": "hello",
		"a--b": "a-b", strings.Repeat("a", 39) + "-b": strings.Repeat("a", 39)} {
		if got := slug(text); got != want || !validName().MatchString(got) {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// A folder that cannot be written is an error with its path.
func TestUnwritable(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := request{name: "hello", lang: "sh", dir: filepath.Join(file, "below")}
	err := r.run(cli.New(nil, strings.NewReader(""), io.Discard, io.Discard))
	if e := interact.AsError(err); e == nil || e.Code != interact.Usage || !strings.Contains(e.Title, file) || e.Hint == "" {
		t.Errorf("got %+v", err)
	}
}
