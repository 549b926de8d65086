package trust

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/trust/exchange"
)

// Two issuers confirm the organization without a tick of either, also if the second one gets the newest list of the first one before the log that
// makes it an issuer.
func TestSecondIssuerIsConfirmedAtOnce(t *testing.T) {
	t.Parallel()
	first, second := newMember(t), newMember(t)
	first.founds("acme.example")
	first.admits(second, false)
	isOwn := func(m, other *member) func() bool { // without a tick, with which the first issuer asks the second node, too
		return func() bool { return m.Principal(other.did()).Relation == did.Own }
	}
	first.waits(isOwn(first, second))
	second.waits(isOwn(second, first))
	listed := func(m *member) uint64 { // the version of the list of the first issuer
		m.Trust.mu.RLock()
		defer m.Trust.mu.RUnlock()
		a := m.ownLocked()
		if l := a.List(a.Methods()[0]); l != nil {
			return l.Version
		}
		return 0
	}
	old, late := first.org.Log().Bytes(), atomic.Bool{}
	first.speaks(func(ctx context.Context, from did.DID, q *exchange.Request) (*exchange.Response, error) {
		if q.Op == exchange.OpGet && q.Known[0].Kind == exchange.KindLog && !late.Load() {
			return &exchange.Response{Body: old}, nil
		}
		return first.serve(ctx, from, q)
	})
	noError(t, first.AddIssuer(t.Context(), second.did()))
	second.waits(func() bool { return listed(second) == listed(first) })
	if second.org.IsIssuer() || first.settled() {
		t.Fatal("the second issuer has the log already")
	}
	late.Store(true)
	first.notify(second.did())
	second.waits(second.org.IsIssuer)
	first.waits(first.settled)
	second.waits(second.settled)
}

// A node that enrolled gets the log with its key at once: the log is in force before the answer.
func TestLogIsInForceBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	first, second := newMember(t), newMember(t)
	first.founds("acme.example")
	first.speaks(func(ctx context.Context, from did.DID, q *exchange.Request) (*exchange.Response, error) {
		if q.Op == exchange.OpEnroll {
			return nil, interact.Errorf(interact.Overloaded, "", "later")
		}
		return first.serve(ctx, from, q)
	})
	i := must(first.Invite(t.Context(), api.InvitationRequest{Kind: api.InviteNode, Issuer: true}))(t)
	must(second.Join(t.Context(), api.Acceptance{Invitation: i.Text}))(t)
	first.becomes(second, did.Own, "")
	first.stop() // what the answer leaves to a goroutine does not happen
	must(first.serveEnroll(second.did(), &exchange.Request{Op: exchange.OpEnroll, Key: must(second.org.NewIssuerKey())(t)}))(t)
	if a := first.ownLocked(); a.Log().Head() != first.org.Log().Head() || len(a.Methods()) != 2 {
		t.Errorf("after the answer the issuers are %q", a.Methods())
	}
}
