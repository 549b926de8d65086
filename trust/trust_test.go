package trust

import (
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/poll"
)

// Nodes of one organization know each other, whichever dials, and strangers know nothing of it.
func TestMembersKnowEachOther(t *testing.T) {
	t.Parallel()
	first, second, third, stranger := newMember(t), newMember(t), newMember(t), newMember(t)
	first.founds("acme.example")
	first.admits(second, false, "customer-service")
	first.admits(third, false)
	first.becomes(second, did.Own, "customer-service")
	second.becomes(first, did.Own, "node")
	third.connect(second)
	third.becomes(second, did.Own, "customer-service")
	second.becomes(third, did.Own, "node")
	stranger.connect(first)
	stranger.connect(second)
	if p := first.Principal(stranger.did()); p.Relation != did.Untrusted || p.Pending != "" {
		t.Errorf("the stranger is %+v", p)
	}
	if p := stranger.Principal(first.did()); p.Relation != did.Untrusted || p.Org != "" {
		t.Errorf("the stranger knows %+v", p)
	}
}

// Two organizations that are partners know the roles of each other's members, also of those that joined later and of nodes that are not
// issuers.
func TestPartners(t *testing.T) {
	t.Parallel()
	acme, agent, globex, tracker := newMember(t), newMember(t), newMember(t), newMember(t)
	acme.founds("acme.example")
	globex.founds("globex.example")
	acme.admits(agent, false, "customer-service")
	globex.admits(tracker, false, "logistics")
	acme.federates(globex)
	acme.becomes(globex, did.Partner, "node")
	globex.becomes(acme, did.Partner, "node")
	agent.connect(tracker)
	agent.becomes(tracker, did.Partner, "logistics")
	tracker.becomes(agent, did.Partner, "customer-service")
	if id, ok := tracker.Named("acme"); !ok || id != acme.org.DID() {
		t.Errorf("tracker calls %s %q, %v", acme.org.DID(), id, ok)
	}
	a, g := acme.Partners(), globex.Partners()
	if len(a) != 1 || len(g) != 1 || a[0].Name != "globex" || g[0].Name != "acme" || len(a[0].Words) != 6 || a[0].Words[5] != g[0].Words[5] ||
		a[0].State != api.PartnerUnconfirmed {
		t.Errorf("the partners are %+v and %+v", a, g)
	}
	must(acme.Confirm(t.Context(), "globex", ""))(t)
	if got := acme.Partners()[0].State; got != api.PartnerActive {
		t.Errorf("the confirmed partner is %s", got)
	}
	// The end of the partnership reaches all members.
	if err := acme.RemovePartner(t.Context(), "globex"); err != nil {
		t.Fatal(err)
	}
	agent.becomesNobody(tracker)
	acme.becomesNobody(globex)
}

func (m *member) becomesNobody(other *member) {
	m.t.Helper()
	m.t.Log("waiting for the end of the relation")
	m.waits(func() bool { return m.Principal(other.did()).Relation == did.Untrusted })
}

// A revocation reaches all nodes at once, in both organizations, and a node that was away before it decides about the revoked one.
func TestRevocation(t *testing.T) {
	t.Parallel()
	acme, agent, globex, traitor := newMember(t), newMember(t), newMember(t), newMember(t)
	acme.founds("acme.example")
	globex.founds("globex.example")
	acme.admits(agent, false)
	globex.admits(traitor, false, "logistics")
	acme.federates(globex)
	agent.connect(traitor)
	agent.becomes(traitor, did.Partner, "logistics")
	agent.halt()
	if err := globex.Revoke(t.Context(), traitor.did()); err != nil {
		t.Fatal(err)
	}
	globex.bars(traitor)
	acme.waits(func() bool {
		acme.Trust.mu.RLock()
		defer acme.Trust.mu.RUnlock()
		return acme.authorities[globex.org.SCID()].Excludes(traitor.did(), time.Now())
	})
	// The agent was away. It meets the traitor first, and never takes it for a partner.
	agent = agent.restart()
	agent.connect(traitor)
	agent.waits(func() bool {
		p := agent.Principal(traitor.did())
		if p.Relation != did.Untrusted {
			t.Errorf("before it knows the state, the agent takes the traitor for %+v", p)
		}
		return p.Barred != "" || t.Failed()
	})
}

func (m *member) waits(cond func() bool) {
	m.t.Helper()
	untilTrue(m.t, cond)
}

// A member that was away gets the partners when it is back, also if the issuer is pending at first.
func TestPartnersReachAMemberThatWasAway(t *testing.T) {
	t.Parallel()
	acme, agent, globex := newMember(t), newMember(t), newMember(t)
	acme.founds("acme.example")
	globex.founds("globex.example")
	acme.admits(agent, false)
	agent.becomes(acme, did.Own, "node")
	agent.halt()
	acme.federates(globex)
	agent = agent.restart()
	agent.connect(acme)
	agent.waits(func() bool { return len(agent.Partners()) == 1 })
}

// An organization keeps its identity when its root key changes: members and the partner get the longer log, and credentials stay valid.
func TestAllNodesFollowANewRoot(t *testing.T) {
	t.Parallel()
	acme, agent, globex, tracker := newMember(t), newMember(t), newMember(t), newMember(t)
	acme.founds("acme.example")
	globex.founds("globex.example")
	acme.admits(agent, false)
	globex.admits(tracker, false)
	acme.federates(globex)
	agent.connect(tracker)
	tracker.becomes(agent, did.Partner, "")
	before := acme.org.DID()
	if err := acme.RotateRoot(t.Context()); err != nil {
		t.Fatal(err)
	}
	head := acme.org.Log().Head()
	for _, m := range []*member{agent, globex, tracker} {
		m.waits(func() bool {
			m.Trust.mu.RLock()
			defer m.Trust.mu.RUnlock()
			a := m.authorities[acme.org.SCID()]
			return a.Log().Head() == head && a.Log().DID() == before
		})
	}
	tracker.becomes(agent, did.Partner, "")
	agent.becomes(acme, did.Own, "")
}

// A peer that has started again gets a hello on the second connection, although the one to its end is still there.
func TestHelloOnASecondConnection(t *testing.T) {
	t.Parallel()
	acme, other := newMember(t), newMember(t)
	acme.founds("acme.example")
	acme.admits(other, false)
	acme.connect(other)
	dialler, dialled := acme, other
	c := acme.host.Network().ConnsToPeer(other.host.ID())[0]
	if c.Stat().Direction == network.DirInbound {
		dialler, dialled = other, acme
		c = other.host.Network().ConnsToPeer(acme.host.ID())[0]
	}
	dialled.Trust.mu.Lock()
	n := dialled.nodes[dialler.did()]
	n.hello, n.done = make(chan struct{}), false // as after a start
	dialled.Trust.mu.Unlock()
	dialler.connected(dialler.host.Network(), c)
	poll.Until(t, "the second hello", func() bool { return dialled.helloDone(dialler.did()) })
}
