package policy

import (
	"context"
	"iter"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/policy/access"
	"github.com/lmosd/lmosd/policy/rules"
	"github.com/lmosd/lmosd/td"
)

const someNode = did.DID("did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH")

// A subscription of a caller that lost its right after the message was received, and before the policy could recheck the subscription, does
// not begin. A caller that only gained rights keeps those of the message.
func TestLongInteractionsBeginWithPresentRights(t *testing.T) {
	t.Parallel()
	member := &did.Principal{DID: someNode, Node: someNode, Via: did.Peer, Relation: did.Own}
	untrusted := did.NodePrincipal(someNode, "")
	for name, c := range map[string]struct {
		before, now *did.Principal
		want        bool
	}{
		"a member":        {member, member, true},
		"a former member": {member, untrusted, false},
		"a new member":    {untrusted, member, false},
	} {
		p := New(Rules{Options: rules.Options{Untrusted: access.UntrustedFind, Principal: func(did.DID) *did.Principal { return c.now }}})
		p.Recheck(someNode) // before the subscription is registered
		began := false
		thing := p.Authorize(&td.Thing{}, &access.Target{ID: "x"}, nil)(interact.Func(func(context.Context, *interact.Message) iter.Seq2[*interact.Message, error] {
			return func(func(*interact.Message, error) bool) { began = true }
		}))
		var got error
		for _, err := range thing.Do(t.Context(), &interact.Message{Type: interact.SubscribeEvent, Name: "e", From: c.before}) {
			got = err
		}
		if began != c.want || c.want != (got == nil) || !c.want && interact.AsError(got).Code != interact.Forbidden {
			t.Errorf("%s: the subscription began: %t, %v", name, began, got)
		}
	}
}

// A request stream, such as a tunnel, ends when its caller loses a role, even if the caller may go on without it: its agent has received the
// role. What does not reduce the standing ends nothing, and a role of another organization is another role.
func TestRequestStreamsEndWithTheStandingOfTheirCaller(t *testing.T) {
	t.Parallel()
	at := func(org did.DID, relation did.Relation, roles ...string) *did.Principal {
		return &did.Principal{DID: someNode, Node: someNode, Via: did.Peer, Org: org, Relation: relation, Roles: roles}
	}
	for name, c := range map[string]struct {
		now  *did.Principal
		ends bool
	}{
		"a role less":          {at("did:web:a", did.Own, "x"), true},
		"a role more":          {at("did:web:a", did.Own, "z", "y", "x"), false},
		"another organization": {at("did:web:b", did.Own, "x", "y"), true},
		"the same":             {at("did:web:a", did.Own, "x", "y"), false},
	} {
		before := at("did:web:a", did.Own, "x", "y")
		var now atomic.Pointer[did.Principal]
		now.Store(before)
		p := New(Rules{Options: rules.Options{Principal: func(did.DID) *did.Principal { return now.Load() }}})
		var ended error
		thing := p.Authorize(&td.Thing{}, &access.Target{ID: "x"}, nil)(interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			return func(func(*interact.Message, error) bool) {
				now.Store(c.now)
				p.Recheck(someNode)
				ended = ctx.Err()
			}
		}))
		var got error
		m := &interact.Message{Type: interact.InvokeAction, Name: "talk", From: narrowedTo(before, "crm"), Chunks: func(func([]byte, error) bool) {}}
		for _, err := range thing.Do(t.Context(), m) {
			got = err
		}
		if (ended != nil) != c.ends || (got != nil) != c.ends || c.ends && interact.AsError(got).Code != interact.Forbidden {
			t.Errorf("%s: %v, %v", name, ended, got)
		}
	}
}

func narrowedTo(node *did.Principal, name string) *did.Principal {
	return node.Narrowed(name, node.Relation, nil)
}

// What an agent runs by its membership in a group goes on as long as its node speaks for it in the group.
func TestAgentsInGroupsContinue(t *testing.T) {
	t.Parallel()
	const agent = did.DID("did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp")
	claims := did.Membership{Group: "g", Role: "adjuster"}
	node := did.NodePrincipal(someNode, "")
	node.Agents = []did.AgentMembership{{Agent: agent, Membership: claims}}
	before := node.WithAgent(agent, func(string) bool { return false }, time.Time{})
	if p := current(node, before); p.Agent() != agent || len(p.Groups) != 1 || p.Groups[0] != claims {
		t.Errorf("it goes on as %+v", p)
	}
	left := did.NodePrincipal(someNode, "")
	if p := current(left, before); len(p.Groups) != 0 || !p.Lost(before) {
		t.Errorf("after it left: %+v", p)
	}
}
