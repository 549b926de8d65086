package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/localnet"
	"github.com/lmosd/lmosd/testnet"
)

// lab is a user with a testnet in its folder tn, which is down when the test ends.
func lab(t *testing.T, up ...string) (x *user, dir string) {
	t.Helper()
	x = newUser(t)
	dir = filepath.Join(x.home, "tn")
	t.Cleanup(func() {
		if s, err := testnet.Load(dir); err == nil {
			if err := s.Down(); err != nil {
				t.Error(err)
			}
		}
	})
	x.ok(append([]string{"testnet", "up", "--dir", dir, "-o", "json"}, up...)...)
	return x, dir
}

func TestTestnet(t *testing.T) {
	t.Parallel()
	x, dir := lab(t, "-n", "3", "--seed", "7", "--demo-agents")
	s, err := testnet.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range s.Nodes {
		key, err := testnet.Key(7, i+1)
		if err != nil {
			t.Fatal(err)
		}
		if n.DID != key.DID() || n.N != i+1 || n.PID == 0 || n.Born == "" && !gone("/proc/self/stat") {
			t.Errorf("node %d is %+v, want the DID %s", i+1, n, key.DID())
		}
	}
	if s.Network != "tn-7" || s.Seed != 7 || s.Topology != "full" || len(s.Nodes) != 3 || len(s.Agents) != 1 {
		t.Errorf("testnet.json has %+v", s)
	}

	table := strings.Split(x.ok("testnet", "ls", "--dir", dir), "\n")
	if table[0] != "NODE\tSTATE\tPEERS\tAGENTS\tRSS\tPID\tAPI\tDID" || !strings.HasPrefix(table[1], "1\tup\t2\t1\t") ||
		!strings.HasSuffix(table[1], "\t"+s.Nodes[0].API+"\t"+string(s.Nodes[0].DID)) {
		t.Errorf("the table is %q", table)
	}
	if doc := decode[localnet.NetDocument](t, x.ok("testnet", "ls", "--dir", dir, "-o", "json")); doc.Kind != "Testnet" || len(doc.Nodes) != 3 ||
		doc.Nodes[2].State != "up" || doc.Nodes[2].DID != s.Nodes[2].DID {
		t.Errorf("the document is %+v", doc)
	}
	contains(t, x.fails(cli.ExitConflict, "testnet", "up", "--dir", dir), "a testnet already runs in "+dir, "hint   lmosd testnet down --dir "+dir)
	contains(t, x.fails(cli.ExitUsage, "testnet", "exec", "4", "--dir", dir, "--", "status"), "expected a node of the testnet, 1 to 3")

	testnetExec(t, x, dir)
	testnetLogs(t, x, dir)
	testnetDown(t, x, dir, s)
}

func testnetExec(t *testing.T, x *user, dir string) {
	on := func(node string, args ...string) []string {
		return append([]string{"testnet", "exec", "--dir", dir, node, "--"}, args...)
	}
	if out := x.ok(on("3", "call", "weather", "getWeather", "question=Rain in Bonn?", "interactionMode=text")...); out != "Light rain, 12 °C, until 16:00.\n" {
		t.Errorf("the agent answers %q", out)
	}
	if out := x.ok(on("node-2", "lmosd", "status", "--jq", ".name")...); out != "node-2\n" {
		t.Errorf("the name of node 2 is %q", out)
	}
	contains(t, x.fails(cli.ExitNotFound, on("2", "show", "wether")...), `did you mean "weather"? lmosd show weather`)
	contains(t, x.fails(cli.ExitUsage, "testnet", "exec", "2", "find", "--dir", dir, "--limit", "1"), "flags of the command stand behind --")
	contains(t, x.fails(cli.ExitUsage, "testnet", "exec", "2"), "lmosd testnet exec needs a command behind --", "hint   lmosd testnet exec 2 -- find\n")
}

func testnetLogs(t *testing.T, x *user, dir string) {
	all := x.ok("testnet", "logs", "--dir", dir)
	contains(t, all, "1  api\thttp://127.0.0.1:", "2  api\thttp://127.0.0.1:", "3  ready\t", "  agent published  agent=weather  thing=urn:lmos:", "  replicas=2  gossip=2  took_ms=")
	if strings.Contains(all, "{") {
		t.Errorf("the log is for programs: %s", all)
	}
	// A node reports at any time, for example that a peer joined: the last line is one that the log got after the last line of `before`, or that line.
	before := strings.SplitAfter(x.ok("testnet", "logs", "1", "--lines", "10000", "--dir", dir), "\n")
	last := x.ok("testnet", "logs", "1", "--lines", "1", "--dir", dir)
	after := strings.SplitAfter(x.ok("testnet", "logs", "1", "--lines", "10000", "--dir", dir), "\n")
	first := len(before) - 2 // The element behind the last line is empty.
	if !strings.HasPrefix(last, "1  ") || strings.Count(last, "\n") != 1 || !slices.Contains(after[first:], last) {
		t.Errorf("the last line is %q, want one of %q", last, after[first:])
	}
}

func testnetDown(t *testing.T, x *user, dir string, s *testnet.State) {
	x.ok("testnet", "down", "--dir", dir)
	for _, n := range s.Nodes {
		if testnet.Alive(n.PID, n.Born) {
			t.Errorf("node %d still runs", n.N)
		}
	}
	if testnet.Alive(s.Agents[0].PID, s.Agents[0].Born) || lives(dir) {
		t.Error("an agent still runs")
	}
	contains(t, x.fails(cli.ExitNoNode, "testnet", "ls", "--dir", dir), "no testnet runs in "+dir, "hint   lmosd testnet up --dir "+dir)
	contains(t, x.fails(cli.ExitUsage, "testnet", "up", "-n", "1", "--seed", "8", "--dir", dir), "has the key of another seed than 8", "--purge")

	// A stopped testnet can be started again with its state.
	again := decode[testnet.State](t, x.ok("testnet", "up", "-n", "2", "--seed", "7", "--dir", dir, "-o", "json"))
	if again.Nodes[0].DID != s.Nodes[0].DID {
		t.Errorf("node 1 came back as %s", again.Nodes[0].DID)
	}
	contains(t, x.ok("testnet", "exec", "--dir", dir, "1", "--", "find", "-o", "name"), "weather")
	x.file("tn/mine", "of the user")
	x.ok("testnet", "down", "--dir", dir)
	x.ok("testnet", "down", "--purge", "--dir", dir)
	if left, _ := os.ReadDir(dir); len(left) != 1 || left[0].Name() != "mine" {
		t.Errorf("purge left %v", left)
	}
	x.ok("testnet", "down", "--purge", "--dir", filepath.Join(x.home, "nothing"))
}

func TestTopologyHolds(t *testing.T) {
	t.Parallel()
	x, dir := lab(t, "-n", "3", "--topology", "line")
	if peers := x.ok("testnet", "ls", "--dir", dir, "--jq", "[.nodes[].peers] | join(\" \")"); peers != "1 2 1\n" {
		t.Errorf("the nodes have %s peers, want 1 2 1", strings.TrimSpace(peers))
	}
}

func TestTestnetThatCannotBe(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	long := filepath.Join(x.home, strings.Repeat("d", 90))
	for name, test := range map[string]struct {
		args []string
		code int
		says string
	}{
		"no nodes":            {[]string{"up", "-n", "0"}, cli.ExitUsage, "1 to 100 nodes"},
		"an unknown mesh":     {[]string{"up", "--topology", "mesh"}, cli.ExitUsage, "use full, ring, line"},
		"no folder":           {[]string{"up", "--dir", x.file("file", "") + "/x"}, cli.ExitUsage, "the folder of the testnet cannot be made"},
		"a folder too deep":   {[]string{"up", "-n", "2", "--dir", long}, cli.ExitInternal, "the path of the socket has"},
		"an unknown command":  {[]string{"upp"}, cli.ExitUsage, `did you mean "up"?`},
		"an unknown pair":     {[]string{"nat", "--pairs", "symmetric/mesh"}, cli.ExitUsage, `unknown pair "symmetric/mesh"`},
		"an unknown scenario": {[]string{"nat", "--scenarios", "flood"}, cli.ExitUsage, "use none, or some of relay-killed"},
		"logs of nothing":     {[]string{"logs"}, cli.ExitNoNode, "no testnet runs in"},
	} {
		said := x.fails(test.code, append([]string{"testnet"}, test.args...)...)
		if !strings.Contains(said, test.says) {
			t.Errorf("%s: no %q in %s", name, test.says, said)
		}
	}
	if lives(x.home) {
		t.Error("a node was left behind")
	}
}
