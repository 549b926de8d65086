package render

import (
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

func TestNamesCanBeCopied(t *testing.T) {
	t.Parallel()
	const owner = did.DID("did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH")
	g := api.Agent{Name: "weather", Owner: owner, Ref: "urn:x@" + owner.Multibase()}
	if r := td.ParseRef(Name(g)); r.Name != "weather" || len(r.Owner) != ShortKey || !r.Owns(owner) {
		t.Errorf("%s is read as %+v", Name(g), r)
	}
	if got := fullName(g); got != "weather@"+owner.Multibase() {
		t.Errorf("the full name is %s", got)
	}
	g.Name = ""
	if got := Name(g); got != g.Ref {
		t.Errorf("without a name it is %s", got)
	}
	if got := Name(api.Agent{Name: "x", Owner: did.DID("did:web:example.org"), Ref: "r"}); got != "r" {
		t.Errorf("without a key it is %s", got)
	}
}

// A name that looks like another is marked wherever the state is shown.
func TestNamesThatLookAlikeAreMarked(t *testing.T) {
	t.Parallel()
	for want, g := range map[string]api.Agent{
		"reachable":                           {Name: "echo", State: api.StateReachable},
		"reachable, ≈ echo (Cyrillic \u0435)": {Name: "\u0435cho", Resembles: "echo", State: api.StateReachable},
		"unreachable, ≈ echo (0)":             {Name: "ech0", Resembles: "echo", State: api.StateUnreachable},
		"here, ≈ echo":                        {Name: "echo", Resembles: "echo", Local: true, State: api.StateReachable},
	} {
		if got := stateText(g); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestCoverageLine(t *testing.T) {
	t.Parallel()
	now := time.Now()
	hosts := []did.DID{"did:key:a"}
	for name, test := range map[string]struct {
		list api.AgentList
		want string
	}{
		"nothing known": {api.AgentList{}, "no agents · asked no other node · 0.0 ms"},
		"complete": {api.AgentList{Items: []api.Agent{{Hosts: hosts, State: api.StateReachable}, {Hosts: hosts, Local: true, State: api.StateReachable}}, Took: 14,
			Coverage: td.Coverage{Asked: 3, Answered: 3, Oldest: now.Add(-2 * time.Minute)}},
			"2 agents from 1 node · asked 3 nodes, 3 answered, oldest 2m · 14 ms"},
		"one is away": {api.AgentList{Items: []api.Agent{{Hosts: hosts, State: api.StateUnreachable}}, Coverage: td.Coverage{Asked: 1, Answered: 1}},
			"1 agent from 1 node · asked 1 node, 1 answered · 1 agent is unreachable · 0.0 ms"},
		"one is refused": {api.AgentList{Items: []api.Agent{{Hosts: hosts, State: api.StateRefused}}, Coverage: td.Coverage{Asked: 1, Answered: 1, Refused: 1}},
			"1 agent from 1 node · asked 1 node, 1 answered · 1 agent is refused to this node (LMOS-1403) · 0.0 ms"},
		"nobody knows of one": {api.AgentList{Items: []api.Agent{{Hosts: hosts, State: api.StateUnknown}}, Coverage: td.Coverage{Asked: 1, Answered: 1}},
			"1 agent from 1 node · asked 1 node, 1 answered · 1 agent was not reached yet · 0.0 ms"},
		"some did not answer": {api.AgentList{Coverage: td.Coverage{Asked: 3, Answered: 1, Unreachable: 2}},
			"no agents · asked 3 nodes, 1 answered, 2 unreachable · incomplete · 0.0 ms"},
		"cut": {api.AgentList{Coverage: td.Coverage{Asked: 1, Answered: 1, Truncated: true}},
			"no agents · asked 1 node, 1 answered · incomplete: cut at the deadline or another bound · 0.0 ms"},
		"a page": {api.AgentList{Items: []api.Agent{{}}, Total: new(40), Next: "word", Coverage: td.Coverage{Asked: 1, Answered: 1, More: true}},
			"1 of 40 agents · asked 1 node, 1 answered · 0.0 ms"},
	} {
		if got := Coverage(&test.list, now); got != test.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, test.want)
		}
	}
}

// Two agents of one owner with one name are distinguished by their ids.
func TestEqualNamesInAListAreDistinguished(t *testing.T) {
	t.Parallel()
	const key = "z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH"
	const owner = did.DID("did:key:" + key)
	items := []api.Agent{{Name: "bill", Owner: owner, Ref: "urn:x:bill@" + key}, {Name: "pay", Owner: owner, Ref: "urn:x:pay@" + key},
		{Name: "bill", Owner: owner, Ref: "urn:lmos:" + string(owner) + ":bill"}}
	name := Names(items)
	for i, want := range [][2]string{{"urn:x:bill@z6MkpTHR8VNs", items[0].Ref}, {"pay@z6MkpTHR8VNs", "pay@" + key}, {items[2].Ref, items[2].Ref}} {
		if short, full := name(items[i]); short != want[0] || full != want[1] {
			t.Errorf("got %s and %s, want %s", short, full, want)
		}
	}
}
