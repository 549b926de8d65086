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
