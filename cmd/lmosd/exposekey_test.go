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
	back.prints("owner\t"+string(was.Owner), "key file\t"+was.KeyFile, was.ID)
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
	contains(t, r.out, "exposed ", "owner\tdid:key:z6Mk")
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

// An agent with a key of its own calls an agent of a partner: that one receives the DID of the agent and its role, and its node decides by them.
func TestAgentCallsWithItsKey(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	acme, globex := x.node("acme", "--trust.untrusted", "find"), x.node("globex", "--trust.untrusted", "find", "--trust.audit.level", "denied")
	x.at(acme).ok("org", "init", "acme.example")
	x.at(globex).ok("org", "init", "globex.example")
	x.at(globex).ok("trust", "accept", strings.TrimSpace(x.at(acme).ok("trust", "invite", "-q")))
	flags := []string{"--trust.untrusted", "find", "--mesh.bootstrap", acme.P2P[0], "--mesh.bootstrap", globex.P2P[0]}
	n := x.node("desk", flags...)
	desk := x.at(n)
	desk.ok("org", "join", strings.TrimSpace(x.at(acme).ok("org", "invite", "--role", "desk", "--role", "boss", "-q")))

	who := x.script("who.sh", `read input; echo "$LMOSD_CALLER $LMOSD_CALLER_ROLES"`)
	x.at(globex).exposed(who, "--name", "who")
	agent := decode[exposure](t, desk.exposed("exec:cat", "--name", "crm", "--own-key", "--role", "desk", "-o", "json").out.String())
	x.at(globex).ok("policy", "allow", string(agent.Owner), "--to", "call", "--on", "who")
	as := *desk
	as.env = append(append([]string{}, desk.env...), "LMOSD_AS="+string(agent.Owner))
	eventually(t, "the agent is called", func() bool { return as.lmosd("call", "who", "run", "x").code == 0 })
	if out := as.ok("call", "who", "run", "x"); out != string(agent.Owner)+" desk\n" {
		t.Errorf("called by %q, want %s", out, agent.Owner)
	}
	if r := desk.lmosd("call", "who", "run", "x"); r.code != cli.ExitRefused {
		t.Errorf("the node has the rights of its agent: exit code %d\n%s%s", r.code, r.out, r.errors)
	}
	x.at(globex).ok("publish", x.weather())
	eventually(t, "the agent finds another one", func() bool { return as.lmosd("show", "weather").code == 0 })
	as.fails(cli.ExitRefused, "call", "weather", "getWeather", "question=Rain?", "interactionMode=text")
	eventually(t, "the denial names the agent", func() bool {
		return strings.Contains(x.at(globex).ok("audit", "ls", "--denied", "-o", "json"), string(agent.Owner))
	})

	// A process of the agent calls as the agent.
	desk.exposed(x.script("relay.sh", `echo "$LMOSD_AS"`), "--name", "relay", "--own-key")
	if out := desk.ok("call", "relay", "run", "x"); !strings.HasPrefix(out, "did:key:") || strings.Contains(out, string(agent.Owner)) {
		t.Errorf("LMOSD_AS is %q", out)
	}
	as.env = append(append([]string{}, desk.env...), "LMOSD_AS="+string(n.DID))
	contains(t, as.fails(cli.ExitRefused, "call", "who", "run", "x"), "no agent with the key")
	contains(t, desk.fails(cli.ExitRefused, "expose", "exec:cat", "--name", "third", "--own-key", "--role", "root"), `does not have the role "root"`)
	contains(t, desk.fails(cli.ExitUsage, "expose", "exec:cat", "--name", "third", "--role", "desk"), "with a key of its own")
}

// An agent with a key of its own is a member of a group, and its node is not: the agent calls what is for the group, and its node finds that, but does not
// call it. No organization is needed. When the agent leaves, its right and its stream of events end.
func TestAgentInAGroup(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	acme := x.node("acme", "--trust.untrusted", "find")
	n := x.node("desk", "--trust.untrusted", "find", "--mesh.bootstrap", acme.P2P[0])
	host, desk := x.at(acme), x.at(n)
	host.ok("group", "create", "claims")
	host.exposed(x.script("who.sh", `read input; echo "$LMOSD_CALLER $LMOSD_CALLER_GROUPS"`), "--name", "payout", "--for", "group:claims")
	agent := decode[exposure](t, desk.exposed("exec:cat", "--name", "crm", "--own-key", "-o", "json").out.String())
	as := *desk
	as.env = append(append([]string{}, desk.env...), "LMOSD_AS="+string(agent.Owner))
	invite := func() string { return strings.TrimSpace(host.ok("group", "invite", "claims", "--role", "adjuster")) }

	contains(t, desk.fails(cli.ExitUsage, "group", "join", invite(), "--key", "none.pem"), "there is no key at none.pem")
	contains(t, desk.ok("group", "join", invite(), "--key", agent.KeyFile), "joined claims as adjuster: 2 members")
	contains(t, host.ok("group", "show", "claims"), string(agent.Owner))
	eventually(t, "the agent calls what is for the group", func() bool { return as.lmosd("call", "payout", "run", "x").code == 0 })
	id := decode[struct{ ID string }](t, host.ok("group", "show", "claims", "-o", "json")).ID
	if out := as.ok("call", "payout", "run", "x"); out != string(agent.Owner)+" "+id+"/adjuster\n" {
		t.Errorf("the agent of the host receives %q", out)
	}
	desk.fails(cli.ExitNotFound, "call", "payout", "run", "x")
	contains(t, as.ok("group", "send", "claims", "hello"), "1")
	desk.fails(cli.ExitRefused, "group", "send", "claims", "hello")
	desk.fails(cli.ExitRefused, "group", "leave", "claims", "--yes")
	contains(t, host.fails(cli.ExitUsage, "group", "role", "claims", string(agent.Owner), "admin"), "cannot be an admin")

	desk.ok("group", "leave", "claims", "--yes", "--key", agent.KeyFile)
	eventually(t, "its right has ended", func() bool { return as.lmosd("call", "payout", "run", "x").code != 0 })
	as.fails(cli.ExitRefused, "group", "send", "claims", "hello")
}

// The key of an agent is replaced: its process ends, and references to the agent lead to that of the next key, on other nodes, too.
func TestKeysSucceed(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	n := x.node("n")
	other := x.at(x.node("other", "--mesh.bootstrap", n.P2P[0]))
	at := x.at(n)
	agent := x.script("weather.sh", sunny)
	first := at.exposed(agent, "--name", "weather", "--own-key", "-o", "json")
	was := decode[exposure](t, first.out.String())
	eventually(t, "another node knows it", func() bool { return other.lmosd("show", was.Ref).code == 0 })
	contains(t, at.fails(cli.ExitUsage, "keys", "succeed", "none.pem", "next.pem"), "there is no key")
	contains(t, at.fails(cli.ExitUsage, "keys", "succeed", was.KeyFile, was.KeyFile), "the same key")

	contains(t, at.ok("keys", "succeed", was.KeyFile, "next.pem"), "moved")
	if first.wait() == 0 {
		t.Error("the process of the old key does not say that it has ended")
	}
	second := at.exposed(agent, "--name", "weather", "--key", "next.pem", "-o", "json")
	is := decode[exposure](t, second.out.String())
	if is.Owner == was.Owner || is.ID != "urn:lmos:"+string(is.Owner)+":weather" {
		t.Errorf("got %+v", is)
	}
	eventually(t, "references follow", func() bool {
		return other.lmosd("call", was.Ref, "run", "Bonn").out == "sunny in Bonn, says weather/run\n"
	})
}
