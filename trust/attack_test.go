package trust

import (
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/trust/authority"
	"github.com/lmosd/lmosd/trust/exchange"
	"github.com/lmosd/lmosd/trust/partners"
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
	return m.ownLocked().Issuers(m.now())
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

// Whom an issuer revoked stays excluded, even if the node crashes while it removes the issuer.
func TestCrashWhileAnIssuerIsRemoved(t *testing.T) {
	t.Parallel()
	first, second, third := twoIssuers(t)
	if err := second.Revoke(t.Context(), third.did()); err != nil {
		t.Fatal(err)
	}
	excluded := func(m *member) func() bool {
		return func() bool {
			m.Trust.mu.RLock()
			defer m.Trust.mu.RUnlock()
			return m.ownLocked().Excludes(third.did(), m.now())
		}
	}
	first.waits(excluded(first))
	second.halt()
	method := otherIssuer(first)
	if err := first.keepRevoked(method); err != nil { // RemoveIssuer ends before changed
		t.Fatal(err)
	}
	if err := first.org.RemoveIssuer(method); err != nil {
		t.Fatal(err)
	}
	first.halt()
	first = first.restart()
	if !excluded(first)() {
		t.Error("the revocation is lost")
	}
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
	if _, err := second.net.Ask(t.Context(), first.did(), &exchange.Request{Op: exchange.OpEnroll, Key: didtest.NewKey().DID().Multibase()}); err == nil {
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
	gets := make(chan exchange.Known, 16)
	org := hostile.org.DID()
	hostile.speaks(func(ctx context.Context, from did.DID, q *exchange.Request) (*exchange.Response, error) {
		switch q.Op {
		case exchange.OpStatus:
			versions := fmt.Sprintf(`"%s#x":9,"%s#i1":%d`, org, org, uint64(1)<<50)
			return &exchange.Response{Body: fmt.Appendf(nil, `{"type":%q,"organization":%q,"node":%q,"audience":%q,"nonce":%q,"head":"","length":1,"versions":{%s},"settled":true}`,
				authority.StatementType, org, hostile.did(), acme.did(), base64.RawURLEncoding.EncodeToString(q.Nonce), versions)}, nil
		case exchange.OpGet:
			gets <- q.Known[0]
			return nil, refused
		}
		return hostile.serve(ctx, from, q)
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
	stranger.speaks(func(context.Context, did.DID, *exchange.Request) (*exchange.Response, error) {
		asked <- struct{}{}
		return nil, refused
	})
	if err := stranger.host.Connect(t.Context(), peer.AddrInfo{ID: acme.host.ID(), Addrs: acme.host.Addrs()}); err != nil {
		t.Fatal(err)
	}
	claim := exchange.Known{SCID: acme.org.SCID(), Kind: exchange.KindList, Method: string(acme.org.DID()) + "#i1", Version: 1 << 50}
	for _, op := range []exchange.Op{exchange.OpHello, exchange.OpHave} {
		_, _ = stranger.net.Ask(t.Context(), acme.did(), &exchange.Request{Op: op, Known: []exchange.Known{claim}})
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
	end := must(old.fetches.begin(t.Context(), globex.did(), exchange.Known{SCID: globex.org.SCID(), Kind: exchange.KindLog}))(t) // it takes no newer log
	defer end()
	if err := globex.RemoveIssuer(t.Context(), otherIssuer(globex)); err != nil {
		t.Fatal(err)
	}
	length := func() int {
		acme.Trust.mu.RLock()
		defer acme.Trust.mu.RUnlock()
		return acme.authorities[globex.org.SCID()].Log().Len()
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
	m.addrsOfIssuers = m.dials()
}

func (m *member) startDialing() {
	m.dials(m.addrsOfIssuers...)
}

// dials replaces the addresses of issuers, and returns the old ones.
func (m *member) dials(addrs ...string) (old []string) {
	m.t.Helper()
	if err := m.edit(func(b *partners.Book) error {
		old, b.Issuers = b.Issuers, addrs
		return nil
	}); err != nil {
		m.t.Fatal(err)
	}
	return old
}

// speaks replaces what a node answers.
func (m *member) speaks(h exchange.Handler) {
	e := exchange.New(exchange.Options{Network: "test", Host: m.host, Handle: h, Now: time.Now, Log: slog.New(slog.DiscardHandler)})
	e.Start()
	m.t.Cleanup(e.Close)
}

// A list of partners counts only if its issuing key does: a thief of a revoked key cannot add a partner. Another issuer signs the list of such a
// key again, so that new members get the partners.
func TestPartnersByARevokedIssuer(t *testing.T) {
	t.Parallel()
	first, second, third := twoIssuers(t)
	globex, thief := newMember(t), newMember(t)
	globex.founds("globex.example")
	thief.founds("thief.example")
	second.federates(globex)
	first.waits(func() bool { return slices.Contains(first.Names(), "globex") })
	if err := first.Revoke(t.Context(), second.did()); err != nil {
		t.Fatal(err)
	}
	third.bars(second)
	list := &partners.List{Type: partners.ListType, Organization: second.org.DID(), Version: 1 << 52, ValidUntil: second.now().Add(time.Hour),
		Partners: []*partners.Partner{{Name: "thief", DID: thief.org.DID(), Since: second.now(), Removed: second.now()}}}
	forged := must(second.org.Sign(list))(t)
	for _, m := range []*member{first, third} {
		if changed, err := m.takePartners(t.Context(), first.did(), forged); err == nil || changed {
			t.Errorf("%s takes the list of a revoked key: %v", m.did().Short(), err)
		}
	}
	untilTrue(t, func() bool { first.maintain(); return first.Trust.isOwnIssuer(first.sharedBy()) })
	fourth := newMember(t)
	first.admits(fourth, false)
	fourth.becomes(first, did.Own, "")
	fourth.waits(func() bool { fourth.maintain(); return slices.Contains(fourth.Names(), "globex") })
}

func (m *member) sharedBy() string {
	m.Trust.mu.RLock()
	defer m.Trust.mu.RUnlock()
	return m.book.SharedBy
}

// A revocation by another issuer acts although this issuer cannot store it for its own credentials.
func TestRevocationWithAFullDisk(t *testing.T) {
	t.Parallel()
	first, second, third := twoIssuers(t)
	issued := filepath.Join(first.dir, "org", "issued.json")
	for _, err := range []error{os.Remove(issued), os.MkdirAll(filepath.Join(issued, "x"), 0o700)} { // no file can take its place
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := second.Revoke(t.Context(), third.did()); err != nil {
		t.Fatal(err)
	}
	first.bars(third)
}
