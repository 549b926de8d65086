package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/localnet"
)

// demoSteps are what the demo has to show, in this order.
var demoSteps = []string{"three nodes up and meshed", "agent published", "found by capability", "called across", "property read",
	"tampered description refused", "record with a wrong owner key refused", "withdrawn and gone", "killed node's agent unreachable"}

func TestDemo(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	r := x.lmosd("demo")
	if r.code != 0 {
		t.Fatalf("exit code %d\n%s%s", r.code, r.out, r.errors)
	}
	lines := strings.Split(r.out, "\n")
	for i, name := range demoSteps {
		if !strings.HasPrefix(lines[i], "✓ "+name+" ") || !strings.Contains(lines[i], " ms   ") {
			t.Errorf("line %d is %q, want the step %q", i+1, lines[i], name)
		}
	}
	contains(t, r.out, "Rain in Bonn? Light rain, 12 °C, until 16:00.", "the document or its proof was changed after signing\n",
		"; console: http://127.0.0.1:", "\n\n9 of 9 steps passed in ")
	contains(t, r.errors, "next: lmosd testnet up -n 5 --demo-agents")
	nothingLeft(t, x)
}

// federationSteps are what the story of two organizations has to show, in this order.
var federationSteps = []string{"seven nodes up and meshed", "two organizations made", "members invited, with roles", "partners by one invitation",
	"agent published for a role", "found by the role", "called by the role", "another action refused", "another role refused", "outsider: find",
	"outsider: exact id", "outsider: through a third node", "outsider: DHT", "outsider: MCP list", "outsider: A2A list", "outsider: gossip",
	"outsider: call", "outsider: dial of a members' node", "issuer killed, calls continue", "revoked, its subscription ends",
	"returning node refuses the revoked one", "the audit log has it"}

func TestFederation(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	r := x.lmosd("demo", "--story", "federation", "--keep")
	if r.code != 0 {
		t.Fatalf("exit code %d\n%s%s", r.code, r.out, r.errors)
	}
	next, step := 0, ""
	explained := map[string]int{}
	for line := range strings.Lines(r.out) {
		if strings.HasPrefix(line, "    › why, at node ") {
			explained[step]++
		} else if strings.HasPrefix(line, "✓ ") && next < len(federationSteps) {
			if step = federationSteps[next]; !strings.HasPrefix(line, "✓ "+step+" ") {
				t.Errorf("got %q, want the step %q", line, step)
			}
			next++
		}
	}
	if next != len(federationSteps) {
		t.Errorf("%d steps of %d", next, len(federationSteps))
	}
	for i, name := range federationSteps[5 : len(federationSteps)-1] { // each that allows or refuses
		if explained[name] == 0 {
			t.Errorf("step %d, %s, is not explained", i+6, name)
		}
	}
	contains(t, r.out, "reroute, called by node 3: LMOS-1403", "by the id, and calls: LMOS-1404", "the agent prints who called: z6Mk", "its organization revoked the node",
		"{allow: acme/customer-service, to: invoke, on: logistics/track}", "    › node 1: deny node 7 connect LMOS-1403\n", "\n\n22 of 22 steps passed in ")
	kept, _ := filepath.Glob(filepath.Join(x.home, "lmosd-demo-*"))
	if len(kept) != 1 {
		t.Fatalf("%q is kept", kept)
	}
	noSeedLeaks(t, kept[0], r.out, r.errors)
	if err := os.RemoveAll(kept[0]); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, x)
	contains(t, x.fails(cli.ExitUsage, "demo", "--story", "x"), `unknown story "x"`)
}

// groupSteps are what the story of a group has to show, in this order.
var groupSteps = []string{"six nodes up and meshed", "two organizations are partners", "a claims group of both", "an agent for the group only",
	"outsider: find, exact id, join", "adjuster let in by a foreign credential", "adjuster finds and calls the agent",
	"one action delegated for ten minutes", "the delegator is locked out", "an event reaches all members",
	"a node of the group stops", "adjuster removed, its streams end", "what follows does not reach it", "the group is dissolved",
	"the log proves it to node 4"}

func TestGroupStory(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	r := x.lmosd("demo", "--story", "group", "--keep")
	kept, _ := filepath.Glob(filepath.Join(x.home, "lmosd-demo-*"))
	if r.code != 0 {
		t.Fatalf("exit code %d\n%s%s%s", r.code, r.out, r.errors, logsIn(kept...))
	}
	next := 0
	for line := range strings.Lines(r.out) {
		if strings.HasPrefix(line, "✓ ") && next < len(groupSteps) {
			if step := groupSteps[next]; !strings.HasPrefix(line, "✓ "+step+" ") {
				t.Errorf("got %q, want the step %q", line, step)
			}
			next++
		}
	}
	contains(t, r.out, "asks to join, and calls: LMOS-1404", "node 5 is adjuster", "by what node 3 delegated: LMOS-1425", "nothing follows", "verified without a node", "\n\n15 of 15 steps passed in ")
	if len(kept) != 1 {
		t.Fatalf("%q is kept", kept)
	}
	if err := os.RemoveAll(kept[0]); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, x)
}

// logsIn returns the ends of the logs of the nodes in folders of the demo.
func logsIn(folders ...string) string {
	var all strings.Builder
	for _, folder := range folders {
		logs, _ := filepath.Glob(filepath.Join(folder, "node-*", "log"))
		for _, log := range logs {
			if text, err := os.ReadFile(log); err == nil {
				fmt.Fprintf(&all, "%s:\n%s", log, lastLines(string(text), 2000))
			}
		}
	}
	return all.String()
}

func TestDemoForPrograms(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	r := x.lmosd("demo", "-o", "json")
	doc := decode[localnet.DemoReport](t, r.out)
	if r.code != 0 || r.errors != "" || doc.Kind != "Demo" || doc.APIVersion != "lmosd/v1" || !doc.OK || doc.Took <= 0 || doc.Sizes.Record == 0 {
		t.Errorf("exit code %d, %s%+v", r.code, r.errors, doc)
	}
	for i, name := range demoSteps {
		if i >= len(doc.Steps) || doc.Steps[i].Name != name || !doc.Steps[i].OK || doc.Steps[i].Detail == "" {
			t.Fatalf("step %d is not %q in %+v", i+1, name, doc.Steps)
		}
	}
	nothingLeft(t, x)
}

// A demo whose nodes cannot start reports the reason and fails: their socket paths would be too long in this folder.
func TestDemoThatFails(t *testing.T) {
	t.Parallel()
	deep := filepath.Join(folder(t), strings.Repeat("d", 80))
	if err := os.Mkdir(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	x := newUser(t, "TMPDIR="+deep)
	r := x.lmosd("demo")
	if r.code != cli.ExitInternal || !strings.HasPrefix(r.out, "✗ three nodes up and meshed ") {
		t.Errorf("exit code %d\n%s", r.code, r.out)
	}
	contains(t, r.out, "0 of 9 steps passed in ")
	contains(t, r.errors, `error: the step "three nodes up and meshed" failed`, "the path of the socket has", "hint   lmosd demo --keep")

	r = x.lmosd("demo", "-o", "json")
	if doc := decode[localnet.DemoReport](t, r.out); r.code != cli.ExitInternal || r.errors != "" || doc.OK || len(doc.Steps) != 1 || doc.Steps[0].OK ||
		!strings.Contains(doc.Steps[0].Detail, "the path of the socket has") {
		t.Errorf("exit code %d, %s%+v", r.code, r.errors, doc)
	}
	if left, _ := filepath.Glob(filepath.Join(deep, "lmosd-demo-*")); len(left) != 0 || lives(deep) {
		t.Errorf("%v is left, or a process", left)
	}

	x = newUser(t)
	x.env = append(x.env, "TMPDIR="+x.file("file", ""))
	contains(t, x.fails(cli.ExitInternal, "demo"), "the demo cannot make a folder in ", "TMPDIR=DIR lmosd demo")
}

func TestDemoKeepsItsFolder(t *testing.T) {
	t.Parallel()
	deep := filepath.Join(folder(t), strings.Repeat("d", 80))
	if err := os.Mkdir(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	x := newUser(t, "TMPDIR="+deep)
	contains(t, x.fails(cli.ExitInternal, "demo", "--keep"), "kept: "+deep)
	if logs, _ := filepath.Glob(filepath.Join(deep, "*", "node-1", "log")); len(logs) != 1 {
		t.Errorf("the log of node 1 is not there: %v", logs)
	}
}

func TestDemoCleansUpWhenItIsInterrupted(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	d := x.start("demo")
	d.prints("✓ three nodes up and meshed")
	d.signal(syscall.SIGINT)
	if code := d.wait(); code != cli.ExitInterrupted {
		t.Errorf("exit code %d\n%s%s", code, d.out.String(), d.talk.String())
	}
	contains(t, d.talk.String(), "error: interrupted  LMOS-1499")
	nothingLeft(t, x)
}

// nothingLeft reports files and processes of a demo.
func nothingLeft(t *testing.T, x *user) {
	t.Helper()
	if left, _ := filepath.Glob(filepath.Join(x.home, "lmosd-demo-*")); len(left) != 0 {
		t.Errorf("%v is left", left)
	}
	if lives(filepath.Join(x.home, "lmosd-demo-")) {
		t.Error("a process of the demo still runs")
	}
}
