package trust

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/poll"
	"github.com/lmosd/lmosd/trust/exchange"
)

// Nodes that reach no issuer take each other for members at most two hours longer, the validity of a status list and its grace: until then a
// revocation may not have reached them. Then the membership is pending, and package policy answers with code StatusUnknown.
func TestIsolatedNodesDecideForTwoHours(t *testing.T) {
	t.Parallel()
	issuer, a, b, c := newMember(t), newMember(t), newMember(t), newMember(t)
	issuer.founds("acme.example")
	all := []*member{a, b, c}
	for _, m := range all {
		issuer.admits(m, false)
	}
	for i, m := range all {
		m.connect(all[(i+1)%3])
	}
	for _, m := range all {
		for _, other := range all {
			if m != other {
				m.becomes(other, did.Own, "")
			}
		}
	}
	issuer.halt()
	for _, m := range all {
		m.stopDialing()
	}
	var last time.Duration
	const step = time.Minute
	for gone := step; gone < 3*time.Hour; gone += step {
		advances(step, all...)
		for _, m := range all {
			m.maintain()
		}
		if a.Principal(b.did()).Relation == did.Own {
			last = gone
		}
	}
	if p := a.Principal(b.did()); last > 2*time.Hour || p.Pending == "" || p.Relation != did.Untrusted {
		t.Errorf("a member counts for %v without an issuer, and is then %+v", last, p)
	}
}

// A peer that never says hello, and one that begins and does not end, delay a decision about themselves for a bounded time, and nobody else.
func TestSilentPeers(t *testing.T) {
	t.Parallel()
	acme, agent, silent, stuck := newMember(t), newMember(t), newMember(t), newMember(t)
	acme.founds("acme.example")
	acme.admits(agent, false)
	silent.host.RemoveStreamHandler(exchange.Protocol("test"))
	silent.stop() // no trust: only a host
	stuck.stop()
	for _, m := range []*member{silent, stuck} {
		if err := m.host.Connect(t.Context(), peer.AddrInfo{ID: acme.host.ID(), Addrs: acme.host.Addrs()}); err != nil {
			t.Fatal(err)
		}
	}
	s, err := stuck.host.NewStream(t.Context(), acme.host.ID(), exchange.Protocol("test"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Write([]byte{0xff, 0xff, 0x03, 0xa1}); err != nil { // the length of a frame of 64 KiB, and its first byte
		t.Fatal(err)
	}
	acme.becomes(agent, did.Own, "")
	for _, m := range []*member{silent, stuck} {
		poll.Until(t, "the peer is known", func() bool {
			acme.Wait(t.Context(), m.did())
			return acme.helloDone(m.did())
		})
		if p := acme.Principal(m.did()); p.Relation != did.Untrusted || p.Pending != "" {
			t.Errorf("a silent peer is %+v", p)
		}
	}
	if err := s.Reset(); err != nil {
		t.Error(err)
	}
}

// A node whose clock is wrong takes no member for one: it cannot know who is. To join, its operator gets the code of a wrong clock, with the
// difference and its sign.
func TestWrongClocks(t *testing.T) {
	t.Parallel()
	for _, skew := range []time.Duration{10 * time.Minute, -10 * time.Minute, 24 * time.Hour, -24 * time.Hour} {
		t.Run(fmt.Sprint(skew), func(t *testing.T) {
			t.Parallel()
			acme, a, b, late := newMember(t), newMember(t), newMember(t), newMember(t)
			acme.founds("acme.example")
			acme.admits(a, false)
			acme.admits(b, false)
			a.becomes(acme, did.Own, "")
			i := must(acme.Invite(t.Context(), api.InvitationRequest{Kind: api.InviteNode}))(t)
			advances(skew, a, late)
			_, err := late.Join(t.Context(), api.Acceptance{Invitation: i.Text})
			sign := map[bool]string{true: "ahead of", false: "behind"}[skew > 0]
			if e := interact.AsError(err); e == nil || e.Code != interact.ClockSkew || !strings.Contains(e.Error(), sign) ||
				!strings.Contains(e.Error(), skew.Abs().String()[:3]) && !strings.Contains(e.Error(), (skew.Abs() - time.Second).String()[:2]) {
				t.Errorf("with a clock off by %v, joining gives %v", skew, err)
			}
			if skew == 10*time.Minute { // within the validity of what it has
				return
			}
			a.connect(b)
			for range 10 {
				a.maintain()
			}
			if p := a.Principal(b.did()); p.Relation == did.Own {
				t.Errorf("a member is %+v", p)
			}
		})
	}
}
