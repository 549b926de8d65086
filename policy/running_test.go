package policy

import (
	"context"
	"iter"
	"testing"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/policy/access"
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
		p := New(Rules{Untrusted: access.UntrustedFind, Principal: func(did.DID) *did.Principal { return c.now }})
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
