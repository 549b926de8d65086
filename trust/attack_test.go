package trust

import (
	"encoding/base64"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
)

// twoIssuers returns an organization of two issuers and a member, which are connected.
func twoIssuers(t *testing.T) (first, second, third *member) {
	t.Helper()
	first, second, third = newMember(t), newMember(t), newMember(t)
	first.founds("acme.example")
	first.admits(second, true)
	first.waits(func() bool { return second.org.IsIssuer() })
	first.admits(third, false, "agent")
	third.connect(second)
	all := []*member{first, second, third}
	untilTrue(t, func() bool {
		known := true
		for _, m := range all {
			m.maintain()
			for _, other := range all {
				known = known && (m == other || m.Principal(other.did()).Relation == did.Own)
			}
		}
		return known
	})
	return first, second, third
}

// passes lets time pass at nodes until a condition holds.
func passes(t *testing.T, cond func() bool, all ...*member) {
	t.Helper()
	untilTrue(t, func() bool {
		advances(5*time.Second, all...)
		for _, m := range all {
			m.maintain()
		}
		return cond()
	})
}

func otherIssuer(m *member) string {
	m.t.Helper()
	for _, i := range must(m.Organization())(m.t).Issuers {
		if !i.This {
			return i.Method
		}
	}
	m.t.Fatal("there is no other issuer")
	return ""
}

func validKeys(m *member) []string {
	m.Trust.mu.RLock()
	defer m.Trust.mu.RUnlock()
	return m.ownLocked().issuers(m.now())
}

// After an issuing key was removed, a member that restarts is confirmed by the remaining issuer.
func TestRemovedIssuer(t *testing.T) {
	t.Parallel()
	first, second, third := twoIssuers(t)
	if err := first.RemoveIssuer(t.Context(), otherIssuer(first)); err != nil {
		t.Fatal(err)
	}
	second.halt()
	third.waits(func() bool { return len(third.org.Issuers()) == 1 })
	third.halt()
	third = third.restart()
	third.connect(first)
	third.becomes(first, did.Own, "")
}

// The death of an issuer refuses nobody, even if the other one restarts.
func TestSurvivingIssuer(t *testing.T) {
	t.Parallel()
	first, second, third := twoIssuers(t)
	fourth := newMember(t)
	first.admits(fourth, false)
	second.halt()
	first.halt()
	first = first.restart()
	third.connect(first)
	fourth.connect(first)
	third.connect(fourth)
	own := func(m, other *member) bool { return m.Principal(other.did()).Relation == did.Own }
	passes(t, func() bool { return own(first, third) && own(third, first) }, first, third, fourth)
}

// Whoever makes an invitation for a reader may be another than the reader believes.
func TestImpostorOfAPartner(t *testing.T) {
	t.Parallel()
	acme, impostor := newMember(t), newMember(t)
	acme.founds("acme.example")
	impostor.founds("globex.example")
	i := must(impostor.Invite(t.Context(), api.InvitationRequest{Kind: api.InvitePartner, For: acme.org.DID()}))(t)
	if p := must(acme.Accept(t.Context(), api.Acceptance{Invitation: i.Text}))(t); p.State != api.PartnerUnconfirmed {
		t.Errorf("the impostor is %s", p.State)
	}
}

// A node enrolls one issuing key, and its revocation excludes the key, also by an issuer that has restarted.
func TestRevokedIssuer(t *testing.T) {
	t.Parallel()
	first, second, _ := twoIssuers(t)
	if _, err := second.ask(t.Context(), first.did(), &request{Op: opEnroll, Key: didtest.NewKey().DID().Multibase()}); err == nil {
		t.Error("a node enrolled two keys")
	}
	second.halt()
	first.halt()
	first = first.restart()
	if err := first.Revoke(t.Context(), second.did()); err != nil {
		t.Error(err)
	}
	if keys := validKeys(first); len(keys) != 1 {
		t.Errorf("after the revocation the keys %q are valid", keys)
	}
}

// A member that uses its invitation again keeps the roles that it has now.
func TestRolesAfterASecondRedemption(t *testing.T) {
	t.Parallel()
	first, second := newMember(t), newMember(t)
	first.founds("acme.example")
	i := must(first.Invite(t.Context(), api.InvitationRequest{Kind: api.InviteNode, Roles: []string{"admin"}}))(t)
	must(second.Join(t.Context(), api.Acceptance{Invitation: i.Text}))(t)
	if err := first.SetRoles(t.Context(), second.did(), []string{}); err != nil {
		t.Fatal(err)
	}
	if o := must(second.Join(t.Context(), api.Acceptance{Invitation: i.Text}))(t); slices.Contains(o.Roles, "admin") {
		t.Errorf("the roles are %q", o.Roles)
	}
}

// A node that claims documents of invented keys and does not deliver them delays nothing.
func TestInventedVersions(t *testing.T) {
	t.Parallel()
	acme, globex, hostile := newMember(t), newMember(t), newMember(t)
	acme.founds("acme.example")
	globex.founds("globex.example")
	globex.admits(hostile, false)
	acme.federates(globex)
	acme.becomes(globex, did.Partner, "node")
	globex.halt()
	acme.halt()
	gets := make(chan known, 16)
	org := hostile.org.DID()
	hostile.host.SetStreamHandler(Protocol("test"), func(s network.Stream) {
		defer s.Reset()
		q := new(request)
		for ; readFrame(s, maxRequest, q) == nil; q = new(request) {
			switch q.Op {
			case opStatus:
				versions := fmt.Sprintf(`"%s#x":9,"%s#i1":%d`, org, org, uint64(1)<<50)
				_ = writeFrame(s, &response{Body: fmt.Appendf(nil, `{"type":%q,"organization":%q,"node":%q,"audience":%q,"nonce":%q,"head":"","length":1,"versions":{%s},"settled":true}`,
					statusType, org, hostile.did(), acme.did(), base64.RawURLEncoding.EncodeToString(q.Nonce), versions)})
				return
			case opGet:
				gets <- q.Known[0]
				return
			default:
				r, err := hostile.serve(t.Context(), acme.did(), q)
				if err != nil {
					r = &response{}
				}
				_ = writeFrame(s, r)
			}
		}
	})
	acme = acme.restart()
	acme.connect(hostile)
	if err := acme.confirm(t.Context(), hostile.did(), hostile.org.SCID()); err == nil {
		t.Error("a member without an issuing key confirmed its organization")
	}
	select {
	case k := <-gets:
		t.Errorf("the node was asked for %+v", k)
	default:
	}
}

// What a stranger claims in a hello causes no request.
func TestStrangersCauseNoFetch(t *testing.T) {
	t.Parallel()
	acme, stranger := newMember(t), newMember(t)
	acme.founds("acme.example")
	asked := make(chan struct{}, 16)
	stranger.host.SetStreamHandler(Protocol("test"), func(s network.Stream) {
		asked <- struct{}{}
		_ = s.Reset()
	})
	if err := stranger.host.Connect(t.Context(), peer.AddrInfo{ID: acme.host.ID(), Addrs: acme.host.Addrs()}); err != nil {
		t.Fatal(err)
	}
	claim := known{SCID: acme.org.SCID(), Kind: kindList, Method: string(acme.org.DID()) + "#i1", Version: 1 << 50}
	for _, op := range []op{opHello, opHave} {
		_, _ = stranger.ask(t.Context(), acme.did(), &request{Op: op, Known: []known{claim}})
	}
	if n := acme.node(stranger.did()); n.learning || len(n.lacking) > 0 || len(asked) > 0 {
		t.Errorf("a stranger caused work: %+v", n)
	}
}

func (m *member) node(id did.DID) node {
	m.Trust.mu.RLock()
	defer m.Trust.mu.RUnlock()
	return *m.nodes[id]
}

// A machine that slept has no evidence, although its dead connections are still listed.
func TestSleepEndsEvidence(t *testing.T) {
	t.Parallel()
	first, second, _ := twoIssuers(t)
	first.Trust.mu.Lock()
	defer first.Trust.mu.Unlock()
	a, now := first.ownLocked(), first.now()
	a.contact([]did.DID{second.did()}, now)
	if len(a.evidence) == 0 {
		t.Fatal("there is no evidence before")
	}
	a.contact([]did.DID{second.did()}, now.Add(10*time.Hour))
	if len(a.evidence) != 0 {
		t.Errorf("after ten hours of sleep, %d nodes are evidence", len(a.evidence))
	}
}

// An older log of a partner is not accepted with a new invitation.
func TestInvitationWithAnOldLog(t *testing.T) {
	t.Parallel()
	acme, globex, old := newMember(t), newMember(t), newMember(t)
	acme.founds("acme.example")
	globex.founds("globex.example")
	globex.admits(old, true)
	globex.waits(func() bool { return old.org.IsIssuer() })
	acme.federates(globex)
	i := must(old.Invite(t.Context(), api.InvitationRequest{Kind: api.InvitePartner, For: acme.org.DID()}))(t)
	end := must(old.fetches.begin(t.Context(), globex.did(), known{SCID: globex.org.SCID(), Kind: kindLog}))(t) // it takes no newer log
	defer end()
	if err := globex.RemoveIssuer(t.Context(), otherIssuer(globex)); err != nil {
		t.Fatal(err)
	}
	length := func() int {
		acme.Trust.mu.RLock()
		defer acme.Trust.mu.RUnlock()
		return acme.authorities[globex.org.SCID()].log.Len()
	}
	acme.waits(func() bool { return length() == globex.org.Log().Len() })
	globex.halt()
	if _, err := acme.Accept(t.Context(), api.Acceptance{Invitation: i.Text}); err == nil && old.org.Log().Len() < globex.org.Log().Len() {
		t.Error("the old log was accepted")
	}
	if length() != globex.org.Log().Len() {
		t.Errorf("the log has %d versions, had %d", length(), globex.org.Log().Len())
	}
}

// A member with whom a node was alone is confirmed again when an issuer is back.
func TestAloneWithAMember(t *testing.T) {
	t.Parallel()
	first, second, third := twoIssuers(t)
	fourth := newMember(t)
	first.admits(fourth, false)
	fourth.connect(third)
	third.becomes(fourth, did.Own, "")
	second.halt()
	_ = first.host.Network().ClosePeer(third.host.ID())
	pending := func() bool { return third.Principal(fourth.did()).Pending != "" }
	third.stopDialing()
	passes(t, pending, third, fourth)
	third.startDialing()
	advances(time.Duration(third.skew.Load()-first.skew.Load()), first)
	third.connect(first)
	passes(t, func() bool { return third.Principal(fourth.did()).Relation == did.Own }, first, third, fourth)
}

// stopDialing removes the addresses of issuers, and startDialing is its end.
func (m *member) stopDialing() {
	m.Trust.mu.Lock()
	defer m.Trust.mu.Unlock()
	m.addrsOfIssuers, m.book.Issuers = m.book.Issuers, nil
}

func (m *member) startDialing() {
	m.Trust.mu.Lock()
	defer m.Trust.mu.Unlock()
	m.book.Issuers = m.addrsOfIssuers
}

// Frames beyond the limits end the exchange: they are read only as far as permitted.
func TestLargeFrames(t *testing.T) {
	t.Parallel()
	acme, stranger := newMember(t), newMember(t)
	acme.founds("acme.example")
	stranger.connect(acme)
	s, err := stranger.openStream(t.Context(), acme.did())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Reset()
	_ = writeFrame(s, &request{Op: opHello, Secret: make([]byte, 1<<20)})
	if err := readFrame(s, maxResponse, &response{}); err == nil {
		t.Error("a frame of 1 MiB was answered")
	}
}

func FuzzRequest(f *testing.F) {
	f.Add([]byte{0xa1, 0x01, 0x01})
	f.Fuzz(func(t *testing.T, b []byte) {
		q := &request{}
		if decodeFrame(b, q) == nil && (len(q.Seeks) > maxSeeks || len(q.Known) > maxKnown) {
			t.Errorf("decoded beyond the limits: %+v", q)
		}
		_ = decodeFrame(b, &response{})
	})
}

func FuzzBook(f *testing.F) {
	f.Add([]byte(`{"version":1,"partners":[{"name":"globex","did":"did:webvh:QmT4z6dmPzCDBmvDWUtjmCqeeaiPFJnVgMBzQyNo8kRVqA:globex.example"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		b, err := parseBook(text)
		if err == nil && b.Version != bookVersion {
			t.Errorf("read version %d", b.Version)
		}
	})
}
