package access

import (
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

// TestGroups: rules name a group, or a role in it, by the name at this node. A Thing for named callers is found by those that a rule on it names.
func TestGroups(t *testing.T) {
	t.Parallel()
	id := did.Hash([]byte("claims"))
	o := options()
	o.Group = func(name string) (string, bool) { return id, name == "claims-2026" }
	inside := &did.Principal{DID: other, Node: other, Via: did.Peer, Groups: []did.Membership{{Group: id, Role: "adjuster"}}}
	outside := &did.Principal{DID: other, Node: other, Via: did.Peer, Groups: []did.Membership{{Group: did.Hash([]byte("x")), Role: "adjuster"}}}
	ownMember := &did.Principal{DID: other, Node: other, Via: did.Peer, Relation: did.Own, Org: o.Self}
	payout := &Target{ID: "urn:x:payout", Names: []string{"payout"}, Visibility: td.Named}
	for rules, want := range map[string][3]bool{ // inside, outside, a member of the own organization
		"": {},
		"  - {allow: 'group:claims-2026', to: [find, call], on: payout}":                                           {true, false, false},
		"  - {allow: 'group:claims-2026/adjuster', to: [find, call], on: payout}":                                  {true, false, false},
		"  - {allow: 'group:claims-2026/clerk', to: [find, call], on: payout}":                                     {},
		"  - {allow: 'group:claims-2026', to: [find, call]}":                                                       {}, // it does not name the Thing
		"  - {allow: 'group:claims-2026', to: '*', on: payout}\n  - {deny: 'group:claims-2026/adjuster', to: '*'}": {},
	} {
		s := build(t, o, rules)
		for i, p := range []*did.Principal{inside, outside, ownMember} {
			for _, op := range []Op{Find, Invoke} {
				if d := s.Decide(p, Request{Op: op, Target: payout, Affordance: "pay"}); d.Allow != want[i] {
					t.Errorf("%q: caller %d may %s: %t, want %t: %s", rules, i, op, d.Allow, want[i], d.Why())
				}
			}
			scope := s.Scope(p, time.Time{})
			if found := scope.All[td.Named] || scope.Each[td.Named] || len(scope.Except(td.Named)) > 0; want[i] && !found {
				t.Errorf("%q: the scope of caller %d leaves the Thing out: %+v", rules, i, scope)
			}
		}
		if d := s.Decide(local, Request{Op: Find, Target: payout}); !d.Allow {
			t.Errorf("%q: a consumer of this node does not find it", rules)
		}
	}
	for rule, want := range map[string]string{"  - {allow: 'group:other', to: call}": `unknown group "other"`, "  - {allow: 'group:claims-2026/', to: call}": "empty role"} {
		b := NewBuilder(o)
		if err := b.AddYAML("policy.yaml", []byte("apiVersion: lmosd/v1\nrules:\n"+rule)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", rule, err)
		}
	}
	if v, _, err := NewBuilder(o).Audience("group:claims-2026"); v != td.Named || err != nil {
		t.Errorf("audience: %s, %v", v, err)
	}
}

// The node of an agent that is in a group finds what the agent may find, and does not call it. The agent, at this node, may; consumers of the node may neither.
func TestAgentsInGroups(t *testing.T) {
	t.Parallel()
	id, agent := did.Hash([]byte("claims")), did.DID("did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp")
	o := options()
	o.Group = func(name string) (string, bool) { return id, name == "claims-2026" }
	node := &did.Principal{DID: other, Node: other, Via: did.Peer, Agents: []did.AgentMembership{{Agent: agent, Membership: did.Membership{Group: id, Role: "adjuster"}}}}
	none := func(string) bool { return false }
	payout := &Target{ID: "urn:x:payout", Names: []string{"payout"}, Visibility: td.Named}
	s := build(t, o, "  - {allow: 'group:claims-2026/adjuster', to: [find, call], on: payout}")
	for name, c := range map[string]struct {
		p          *did.Principal
		find, call bool
	}{
		"the node":      {node, true, false},
		"the agent":     {node.WithAgent(agent, none, time.Time{}), true, true},
		"another agent": {node.WithAgent(other, none, time.Time{}), false, false},
		"a consumer":    {node.Narrowed("crm", did.Own, none), false, false},
	} {
		for op, want := range map[Op]bool{Find: c.find, Invoke: c.call} {
			if d := s.Decide(c.p, Request{Op: op, Target: payout, Affordance: "pay"}); d.Allow != want {
				t.Errorf("%s: %s is allowed: %t, want %t: %s", name, op, d.Allow, want, d.Why())
			}
		}
	}
	if scope := s.Scope(node, time.Time{}); !scope.All[td.Named] && !scope.Each[td.Named] && len(scope.Except(td.Named)) == 0 {
		t.Errorf("the scope of the node leaves the Thing out: %+v", scope)
	}
	if len(node.Groups) != 0 {
		t.Error("a decision changed the principal")
	}
}
