package main

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
)

// forecast is the capability of the example's agent.
const forecast = "urn:example:weather:forecast"

// What a user does on two hosts, for people.
func TestTwoNodesByHand(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	file := x.weather()
	a := x.node("a")
	b := x.node("b", "--mesh.bootstrap", a.P2P[0])
	here, there := x.at(a), x.at(b)
	eventually(t, "the nodes are meshed", func() bool { return here.lmosd("peers", "--exit-status").code == 0 })

	r := here.lmosd("publish", file)
	contains(t, r.out, "published weather@"+a.DID.Multibase()[:render.ShortKey]+" · ")
	contains(t, r.errors, "next: lmosd find --capability "+forecast+"   # on any node\n")
	eventually(t, "the other node finds the agent", func() bool {
		r = there.lmosd("find", "--capability", forecast, "--exit-status")
		return r.code == 0
	})
	contains(t, r.out, "AGENT\tCAPABILITIES\tACTIONS\tSTATE\tSEEN\n", "weather@"+a.DID.Multibase()+"\t"+forecast+"\tgetWeather,giveFeedback\treachable\t")
	contains(t, r.errors, "1 agent from 1 node · asked ", "next: lmosd show weather@")

	contains(t, there.ok("show", "weather"), "owner\t"+string(a.DID)+"\n", "host\t"+string(a.DID)+"\n", "signature\t✓ verified: signed by the owner ")
	contains(t, there.ok("show", "weather", "--verify"), "✓ record", "✓ hash", "✓ td", "✓ proof")
	sum := sha256.Sum256([]byte(there.ok("show", "weather", "--raw")))
	if hash := strings.TrimSpace(there.ok("show", "weather", "--jq", ".signature.sha256")); hash != hex.EncodeToString(sum[:]) {
		t.Errorf("--raw has the sha256 %x, the record says %s", sum, hash)
	}
	if out := there.ok("call", "weather", "getWeather", "question=Rain in Bonn?", "interactionMode=text"); out != "Light rain, 12 °C, until 16:00.\n" {
		t.Errorf("the agent answers %q", out)
	}
	contains(t, there.ok("read", "weather", "modelConfiguration"), `"modelName":"a-table"`)
	contains(t, there.ok("write", "weather", "units", "fahrenheit"), "wrote units of weather@")
	if out := there.ok("read", "weather", "units"); out != "fahrenheit\n" {
		t.Errorf("the unit is %q", out)
	}
	byHandErrors(there)
	contains(t, there.fails(cli.ExitRefused, "unpublish", "weather"), "LMOS-1403")

	contains(t, here.ok("unpublish", "weather"), "withdrawn weather@")
	eventually(t, "the agent is gone", func() bool { return there.lmosd("find", "--exit-status").code == cli.ExitNotFound })
	contains(t, there.fails(cli.ExitNotFound, "call", "weather", "getWeather"), "was withdrawn by its owner", "LMOS-1411")
}

// byHandErrors makes the mistakes that one makes.
func byHandErrors(x *user) {
	t := x.t
	contains(t, x.fails(cli.ExitNotFound, "call", "weathr", "getWeather"), `error: no agent matches "weathr"`, `did you mean "weather"? lmosd call weather getWeather`)
	contains(t, x.fails(cli.ExitNotFound, "call", "weather", "getWether"), "what it has: getWeather, giveFeedback", "LMOS-1405")
	contains(t, x.fails(cli.ExitUsage, "call", "weather", "getWeather"), `  at     "question" is missing`,
		"  hint   lmosd call weather getWeather question=… interactionMode=text\n")
	contains(t, x.fails(cli.ExitUsage, "call", "weather", "getWeather", "question=x", "interactionMode=video"), `/interactionMode: must be "text" or "voice"`)
	contains(t, x.fails(cli.ExitUsage, "call", "weather", "giveFeedback", "rating=good"), `rating is an integer, and "good" is none`)
	contains(t, x.fails(cli.ExitUsage, "call", "weather", "giveFeedback", "rating=9"), "/rating: must be at most 5, is 9")
	contains(t, x.fails(cli.ExitUsage, "write", "weather", "units", "kelvin"), `must be "celsius" or "fahrenheit"`, "hint   lmosd show weather")
	contains(t, x.fails(cli.ExitUsage, "write", "weather", "modelConfiguration", "x=1"), "is read only  LMOS-1406")
}

// The same, for programs.
func TestTwoNodesForPrograms(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	file := x.weather()
	a := x.node("a")
	b := x.node("b", "--mesh.bootstrap", a.P2P[0])
	here, there := x.at(a), x.at(b)
	eventually(t, "the nodes are meshed", func() bool { return here.lmosd("peers", "--exit-status").code == 0 })

	p := decode[api.Publication](t, here.ok("publish", file, "-o", "json"))
	if p.Kind != "Publication" || p.Name != "weather" || p.Owner != a.DID || !p.Created || p.Took <= 0 || p.TDSize == 0 {
		t.Errorf("publish gave %+v", p)
	}
	var list api.AgentList
	eventually(t, "the other node finds the agent", func() bool {
		list = decode[api.AgentList](t, there.ok("find", "--capability", forecast, "-o", "json"))
		return len(list.Items) == 1
	})
	if g := list.Items[0]; list.Kind != "AgentList" || g.ID != p.ID || g.Ref != p.Ref || g.Local || g.State != api.StateReachable || list.Coverage.Asked == 0 {
		t.Errorf("find gave %+v", list)
	}
	if d := decode[api.AgentDetail](t, there.ok("show", p.Ref, "-o", "json")); d.Kind != "Agent" || !d.Signature.Verified || d.Signature.Seq != p.Seq {
		t.Errorf("show gave %+v", d)
	}
	c := decode[callResult](t, there.ok("call", p.Ref, "getWeather", "question=Rain in Bonn?", "interactionMode=text", "-o", "json"))
	if c.Kind != "CallResult" || c.Agent != p.ID || c.Ref != p.Ref || c.Local || c.Action != "getWeather" || c.Status != "completed" ||
		string(c.Output) != `"Light rain, 12 °C, until 16:00."` || c.Took <= 0 || c.Timings.Agent <= 0 || c.Took < c.Timings.Agent {
		t.Errorf("call gave %+v", c)
	}
	if out := there.ok("read", p.Ref, "modelConfiguration", "--jq", ".output.modelName"); out != "a-table\n" {
		t.Errorf("read gave %q", out)
	}
	if w := decode[callResult](t, there.ok("write", p.Ref, "units", "fahrenheit", "-o", "json")); w.Property != "units" || w.Status != "completed" {
		t.Errorf("write gave %+v", w)
	}
	if c := decode[callResult](t, here.ok("read", "weather", "units", "-o", "json")); !c.Local || string(c.Output) != `"fahrenheit"` {
		t.Errorf("read at the agent's node gave %+v", c)
	}
	if u := decode[api.Publication](t, here.ok("unpublish", p.Ref, "-o", "json")); !u.Withdrawn || u.Seq <= p.Seq {
		t.Errorf("unpublish gave %+v", u)
	}
	eventually(t, "the agent is gone", func() bool { return there.ok("find", "-o", "name") == "" })
}

// A name of two owners is ambiguous, except at the node of an owner, which resolves it to its own agent.
func TestOneNameOfTwoOwners(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	file := x.weather()
	a := x.node("a")
	b := x.node("b", "--mesh.bootstrap", a.P2P[0])
	c := x.node("c", "--mesh.bootstrap", a.P2P[0], "--mesh.bootstrap", b.P2P[0])
	owner, other, here := x.at(a), x.at(b), x.at(c)
	eventually(t, "the nodes are meshed", func() bool { return strings.Count(here.ok("peers", "-o", "name"), "\n") == 2 })
	owner.ok("publish", file)
	other.ok("publish", file)
	eventually(t, "both agents are known", func() bool { return strings.Count(here.ok("find", "-o", "name"), "\n") == 2 })
	one, two := "weather@"+a.DID.Multibase()[:render.ShortKey], "weather@"+b.DID.Multibase()[:render.ShortKey]
	for _, args := range [][]string{{"show", "weather"}, {"call", "weather", "getWeather", "question=x"}, {"read", "weather", "units"}, {"unpublish", "weather"}} {
		said := here.fails(cli.ExitUsage, args...)
		contains(t, said, `error: 2 agents match "weather"  LMOS-1407`, one, two, "  hint   lmosd "+args[0]+" weather@z6Mk")
	}
	contains(t, here.ok("show", two), "owner\t"+string(b.DID)+"\n")
	here.ok("read", one, "units")
	contains(t, other.ok("show", "weather"), "owner\t"+string(b.DID)+"\n")
	owner.ok("unpublish", "weather")
	eventually(t, "the other is left", func() bool { return here.lmosd("show", "weather").code == 0 })
}

func TestDescriptionsThatAreNotPublished(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	n := x.node("n")
	other := x.node("o")
	here := x.at(n)
	const ok = `"@context": "https://www.w3.org/2022/wot/td/v1.1", "securityDefinitions": {"n": {"scheme": "nosec"}}, "security": "n"`
	x.at(other).ok("publish", x.weather())
	foreign := x.at(other).ok("show", "weather", "--raw")
	for name, test := range map[string]struct {
		content string
		code    int
		says    string
	}{
		"no JSON":            {`{"title": }`, cli.ExitUsage, "line 1, column 11"},
		"a member twice":     {`{` + ok + `, "title": "a", "title": "b"}`, cli.ExitUsage, `duplicate member name "title"`},
		"a broken schema":    {`{` + ok + `, "title": 5}`, cli.ExitUsage, "/title: expected string, got number"},
		"too large":          {`{` + ok + `, "title": "` + strings.Repeat("x", 128<<10) + `"}`, cli.ExitUsage, "has more than 128 KiB"},
		"without forms":      {`{` + ok + `, "title": "a", "actions": {"x": {}}}`, cli.ExitUsage, `/actions/x: "forms" is missing`},
		"a long capability":  {`{` + ok + `, "title": "a", "lmos:capabilities": [{"id": "` + strings.Repeat("c", 10_000) + `"}]}`, cli.ExitUsage, "at most 256 bytes"},
		"with registration":  {`{` + ok + `, "title": "a", "registration": {}}`, cli.ExitUsage, "/registration: "},
		"signed by another":  {foreign, cli.ExitRefused, "signed by another key than the owner's"},
		"changed and signed": {strings.Replace(foreign, "a city", "a town", 1), cli.ExitRefused, "was changed after signing"},
	} {
		file := x.file(strings.ReplaceAll(name, " ", "-")+".json", test.content)
		r := here.lmosd("publish", file)
		if r.code != test.code || !strings.Contains(r.errors, test.says) || !strings.Contains(r.errors, "\n  hint   ") || r.out != "" {
			t.Errorf("%s: exit code %d, want %d with %q; %s%s", name, r.code, test.code, test.says, r.out, r.errors)
		}
	}
	if known := here.ok("find", "-o", "name"); known != "" {
		t.Errorf("published all the same: %s", known)
	}
}
