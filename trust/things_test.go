package trust

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/trust/exchange"
)

// An exchangeOfThings has the records that a node gives out to some, and those that it received.
type exchangeOfThings struct {
	mu       sync.Mutex
	offered  map[did.Relation][]*td.Signed // owned by mu
	received []string                      // owned by mu
	asked    map[did.Relation]int          // owned by mu: each time, the order is another one
}

func (e *exchangeOfThings) things() Things {
	return Things{Restricted: func(ctx context.Context) []*td.Signed {
		e.mu.Lock()
		defer e.mu.Unlock()
		of := did.PrincipalOf(ctx).Relation
		if e.asked == nil {
			e.asked = map[did.Relation]int{}
		}
		all, n := e.offered[of], e.asked[of]
		e.asked[of]++
		n %= max(len(all), 1)
		return slices.Concat(all[n:], all[:n])
	}, Ingest: func(_ context.Context, s *td.Signed, _ did.DID) error {
		e.mu.Lock()
		defer e.mu.Unlock()
		if !slices.Contains(e.received, string(s.Record)) {
			e.received = append(e.received, string(s.Record))
		}
		return nil
	}}
}

func (e *exchangeOfThings) got() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Sorted(slices.Values(e.received))
}

// A host gives its restricted descriptions to members and partners that may find them: when they meet, in pages, and after a change. A
// stranger gets none.
func TestRestrictedDescriptions(t *testing.T) {
	t.Parallel()
	host, colleague, partner, stranger := newMember(t), newMember(t), newMember(t), newMember(t)
	large := make([]byte, maxThingsPage/2+1)
	for i := range large {
		large[i] = 'x'
	}
	e := &exchangeOfThings{offered: map[did.Relation][]*td.Signed{
		did.Own:     {{Record: []byte("a"), TD: large}, {Record: []byte("b"), TD: large}, {Record: []byte("c"), TD: large}, {Record: []byte("d"), TD: large}},
		did.Partner: {{Record: []byte("c")}}}}
	host.Serve(e.things())
	readers := map[*member]*exchangeOfThings{colleague: {}, partner: {}, stranger: {}}
	for m, r := range readers {
		m.Serve(r.things())
	}
	host.founds("acme.example")
	partner.founds("globex.example")
	host.admits(colleague, false)
	host.federates(partner)
	stranger.connect(host)
	colleague.becomes(host, did.Own, "")
	partner.becomes(host, did.Partner, "")
	host.becomes(colleague, did.Own, "")
	host.becomes(partner, did.Partner, "")
	colleague.waits(func() bool { return slices.Equal(readers[colleague].got(), []string{"a", "b", "c", "d"}) })
	partner.waits(func() bool { return slices.Equal(readers[partner].got(), []string{"c"}) })
	e.mu.Lock()
	e.offered[did.Partner] = append(e.offered[did.Partner], &td.Signed{Record: []byte("d")})
	e.mu.Unlock()
	host.ThingsChanged()
	partner.waits(func() bool { return slices.Equal(readers[partner].got(), []string{"c", "d"}) })
	if _, err := stranger.net.Ask(t.Context(), host.did(), &exchange.Request{Op: exchange.OpThings, Known: []exchange.Known{{Kind: exchange.KindThings}}}); err == nil || err.Error() != refused.Error() {
		t.Errorf("a stranger asks for descriptions: %v", err)
	}
	if got := readers[stranger].got(); len(got) != 0 {
		t.Errorf("the stranger has %q", got)
	}
}

// A member of a group, of no organization, knows the membership of a host before the host knows its own: its request is refused. It gets
// the restricted descriptions as soon as the host knows it.
func TestRestrictedDescriptionsOfAGroup(t *testing.T) {
	t.Parallel()
	host, reader := newMember(t), newMember(t)
	var joined atomic.Bool // the host knows the reader as a member
	members := []did.Membership{{Group: "g", Role: "member"}}
	groups := func(of func(did.DID) []did.Membership) Groups {
		return Groups{Of: func(id did.DID) ([]did.Membership, []did.AgentMembership) { return of(id), nil }, Met: func(did.DID) {}, Serve: func(context.Context, *did.Principal, []byte) ([]byte, error) { return nil, refused }}
	}
	host.ServeGroups(groups(func(did.DID) []did.Membership {
		if joined.Load() {
			return members
		}
		return nil
	}))
	reader.ServeGroups(groups(func(did.DID) []did.Membership { return members }))
	received := &exchangeOfThings{}
	host.Serve((&exchangeOfThings{offered: map[did.Relation][]*td.Signed{did.Untrusted: {{Record: []byte("a")}}}}).things())
	reader.Serve(received.things())
	reader.connect(host)
	reader.GroupsChanged([]did.DID{host.did()})
	if err := reader.fetchThings(t.Context(), host.did()); err == nil || err.Error() != refused.Error() {
		t.Fatalf("the host gives descriptions to a node that it does not know: %v", err)
	}
	reader.waits(func() bool {
		reader.Trust.mu.RLock()
		defer reader.Trust.mu.RUnlock()
		return !reader.nodes[host.did()].learning // no request is left that the host could answer
	})
	joined.Store(true)
	host.GroupsChanged([]did.DID{reader.did()})
	reader.waits(func() bool { return slices.Equal(received.got(), []string{"a"}) })
}
