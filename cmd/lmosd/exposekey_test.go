package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
)

// An agent with a key of its own is found and called through another node, and keeps its id when it moves there.
func TestAgentMovesWithItsKey(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	a := x.node("a")
	b := x.node("b", "--mesh.bootstrap", a.P2P[0])
	c := x.at(x.node("c", "--mesh.bootstrap", a.P2P[0]))
	agent := x.script("weather.sh", sunny)
	first := x.at(a).exposed(agent, "--name", "weather", "--own-key", "-o", "json")
	was := decode[exposure](t, first.out.String())
	if !was.Attached || was.KeyFile == "" || was.ID != "urn:lmos:"+string(was.Owner)+":weather" {
		t.Fatalf("got %+v", was)
	}
	if info, err := os.Stat(was.KeyFile); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key file: %v, %v", info, err)
	}
	eventually(t, "another node calls it", func() bool {
		r := c.lmosd("call", was.Ref, "run", "Bonn")
		return r.code == 0 && r.out == "sunny in Bonn, says weather/run\n"
	})

	moved := x.file("moved.pem", "")
	raw, err := os.ReadFile(was.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(moved, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	x.script("rain.sh", `echo "rain, says $LMOSD_AGENT"`)
	second := x.at(b).exposed("exec:./rain.sh", "--name", "weather", "--key", moved, "-o", "json")
	if is := decode[exposure](t, second.out.String()); is.ID != was.ID || is.Ref != was.Ref || is.Owner != was.Owner {
		t.Errorf("got %+v, was %+v", is, was)
	}
	if code := first.wait(); code == 0 {
		t.Error("the first expose does not say that its agent is elsewhere")
	}
	contains(t, first.talk.String(), "newer statement")
	eventually(t, "callers follow", func() bool { return c.lmosd("call", was.Ref, "run", "Bonn").out == "rain, says weather\n" })
	if out := x.at(a).ok("call", was.Ref, "run", "Bonn"); out != "rain, says weather\n" {
		t.Errorf("at the first node: %q", out)
	}
	if code := second.stop(); code != 0 {
		t.Errorf("exit code %d\n%s", code, second.talk.String())
	}
	eventually(t, "it is withdrawn", func() bool { return c.lmosd("call", was.Ref, "run", "Bonn").code == cli.ExitNotFound })

	back := x.at(a).exposed(agent, "--name", "weather", "--own-key")
	back.prints("key\t"+string(was.Owner)+" in "+was.KeyFile, was.ID)
	eventually(t, "it is back", func() bool {
		return strings.HasPrefix(c.lmosd("call", was.Ref, "run", "Bonn").out, "sunny")
	})
}

func TestOwnKeyOfTheConfiguration(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	x.script("weather.sh", sunny)
	config := x.file("lmosd.yaml", "agents: [\"exec:./weather.sh --name weather --own-key\"]\n")
	n := x.node("n", "-c", config)
	n.prints("agents\tweather of the configuration\n")
	if out := x.at(n).ok("call", "weather", "run", "Bonn"); out != "sunny in Bonn, says weather/run\n" {
		t.Errorf("the agent answers %q", out)
	}
	owner := decode[struct{ Agent struct{ Owner, Ref string } }](t, x.at(n).ok("show", "weather", "-o", "json")).Agent
	if code := n.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	again := x.node("n", "-c", config)
	if is := decode[struct{ Agent struct{ Owner, Ref string } }](t, x.at(again).ok("show", "weather", "-o", "json")).Agent; is != owner || is.Owner == "" {
		t.Errorf("got %+v, was %+v", is, owner)
	}
	if _, err := os.Stat(filepath.Join(again.dir, "agents", "weather.pem")); err != nil {
		t.Error(err)
	}
}

// A web server with a key of its own needs no process beside it, but a new grant each week.
func TestOwnKeyOfAWebServer(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	x = x.at(x.node("n"))
	x.weather()
	r := x.lmosd("expose", "http://"+x.addr, "--own-key")
	if r.code != 0 {
		t.Fatalf("exit code %d\n%s", r.code, r.errors)
	}
	contains(t, r.out, "exposed ", "key\tdid:key:z6Mk")
	contains(t, r.errors, "the grant of its key ends at")
	contains(t, x.ok("hosting", "ls"), "hosted")
}

func TestWrongKeysOfAgents(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	n := x.node("n")
	x = x.at(n)
	open := x.file("open.pem", "x")
	if err := os.Chmod(open, 0o644); err != nil {
		t.Fatal(err)
	}
	identity := filepath.Join(n.dir, "identity.pem")
	x.exposed("exec:cat", "--name", "first", "--own-key")
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"a file that others read":       {[]string{"--key", open}, cli.ExitRefused, "0644"},
		"no file":                       {[]string{"--key", "none.pem"}, cli.ExitUsage, "there is no key at none.pem"},
		"the key of the node":           {[]string{"--key", identity}, cli.ExitUsage, "the owner of"},
		"the key of another agent":      {[]string{"--key", filepath.Join(n.dir, "agents", "first.pem")}, cli.ExitUsage, "is attached to this node"},
		"both":                          {[]string{"--key", identity, "--own-key"}, cli.ExitUsage, "exclude each other"},
		"callers without an audience":   {[]string{"--own-key", "--for", "members"}, cli.ExitUsage, "--visibility is missing"},
		"an audience without a key":     {[]string{"--visibility", "partners"}, cli.ExitUsage, "with a key of its own"},
		"an audience without any nodes": {[]string{"--own-key", "--visibility", "private"}, cli.ExitUsage, "private"},
	} {
		r := x.lmosd(append([]string{"expose", "exec:cat", "--name", "second"}, c.args...)...)
		if r.code != c.code || !strings.Contains(r.errors, c.says) {
			t.Errorf("%s: exit code %d\n%s", name, r.code, r.errors)
		}
	}
}
