package trust

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/did/rotation"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/poll"
	"github.com/lmosd/lmosd/trust/exchange"
)

// states returns the statement by which m replaces its key.
func (m *member) states(to *keystore.Key) []byte {
	m.t.Helper()
	return must(rotation.Sign(rotation.Statement{Network: "test", SCID: m.org.SCID(), Created: m.now()}, m.key, to))(m.t)
}

// rotates replaces the key of m with the consent of an issuer, and returns the node with the new key, which does not work on it yet.
func (m *member) rotates(to *keystore.Key) *member {
	m.t.Helper()
	raw := m.states(to)
	p := must(rotation.Request(m.dir, raw))(m.t)
	if _, err := p.Confirm(must(m.Replace(patient(m.t), raw))(m.t)); err != nil {
		m.t.Fatal(err)
	}
	m.halt()
	return start(m.t, to, m.dir)
}

// completes waits until an issuer has revoked the old key of m.
func (m *member) completes() {
	m.t.Helper()
	m.completeRotation(patient(m.t))
	if p := must(rotation.Load(m.dir))(m.t); p != nil {
		m.t.Fatal("the rotation is not completed")
	}
}

func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// A member replaces its key: members and partners refuse the old one, and give the new one the same roles.
func TestReplacedKey(t *testing.T) {
	t.Parallel()
	acme, globex, old := newMember(t), newMember(t), newMember(t)
	acme.founds("acme.example")
	globex.founds("globex.example")
	acme.federates(globex)
	acme.admits(old, false, "agent")
	globex.connect(old)
	acme.becomes(old, did.Own, "agent")
	globex.becomes(old, did.Partner, "agent")
	before := old.key

	fresh := old.rotates(didtest.NewKey())
	for _, m := range []*member{acme, globex} {
		if m.Principal(before.DID()).Barred != "" {
			t.Errorf("%s refuses the old key before the new one is in use", m.did().Short())
		}
		fresh.connect(m)
	}
	fresh.completes()
	for _, m := range []*member{acme, globex} {
		m.bars(old)
	}
	acme.becomes(fresh, did.Own, "agent")
	globex.becomes(fresh, did.Partner, "agent")

	// A thief of the old key, its credential and the statement.
	thief := start(t, before, t.TempDir())
	thief.connect(acme)
	if p := acme.Principal(before.DID()); p.Barred == "" || p.Relation != did.Untrusted {
		t.Errorf("the old key is %+v", p)
	}
	stolen := must(rotation.Sign(rotation.Statement{Network: "test", SCID: acme.org.SCID(), Created: acme.now()}, before, didtest.NewKey()))(t)
	if _, err := thief.net.Ask(t.Context(), acme.did(), &exchange.Request{Op: exchange.OpReplace, Statement: stolen}); err == nil {
		t.Error("the old key chose another successor")
	}
	// The new key works on after a restart, and renews its credential.
	fresh.halt()
	fresh = fresh.restart()
	fresh.connect(acme)
	fresh.becomes(acme, did.Own, "")
	if o := must(fresh.Renew(t.Context()))(t); !slices.Contains(o.Roles, "agent") {
		t.Errorf("the roles are %q", o.Roles)
	}
}

// An issuer replaces its key: it stays an issuer, the members of its organization take its word, and know which node has the issuing key.
func TestReplacedKeyOfAnIssuer(t *testing.T) {
	t.Parallel()
	first, second, third := twoIssuers(t)
	old, keys := second, validKeys(first)
	second = second.rotates(didtest.NewKey())
	second.connect(first)
	third.connect(second)
	second.completes()
	first.bars(old)
	third.bars(old)
	all := []*member{first, second, third}
	passes(t, func() bool {
		first.Trust.mu.RLock()
		nodes := slices.Collect(maps.Values(first.Trust.book.IssuerNodes))
		bound := slices.Contains(nodes, second.did()) && !slices.Contains(nodes, old.did())
		first.Trust.mu.RUnlock()
		return bound && second.org.IsIssuer() && third.Principal(second.did()).Relation == did.Own
	}, all...)
	if now := validKeys(first); !slices.Equal(now, keys) {
		t.Errorf("the issuing keys were %q and are %q", keys, now)
	}
	// The revocation of the node reaches its issuing key.
	if err := first.Revoke(t.Context(), second.did()); err != nil {
		t.Error(err)
	}
	if now := validKeys(first); len(now) != len(keys)-1 {
		t.Errorf("after the revocation of the node the issuing keys are %q", now)
	}
}

// The only issuer replaces its key without another node; a member then renews at the address that it knew.
func TestReplacedKeyOfTheOnlyIssuer(t *testing.T) {
	t.Parallel()
	acme, other := newMember(t), newMember(t)
	acme.founds("acme.example")
	acme.admits(other, false, "agent")
	old := acme.key.DID()
	poll.Until(t, "the member knows who the issuer is", func() bool {
		other.maintain()
		other.Trust.mu.RLock()
		defer other.Trust.mu.RUnlock()
		return slices.Contains(slices.Collect(maps.Values(other.book.IssuerNodes)), old)
	})
	acme = acme.rotates(didtest.NewKey())
	acme.completes()
	if m := must(acme.Organization())(t); m.State != "confirmed" || !m.Issuer || !m.Root {
		t.Errorf("the organization is %+v", m)
	}
	acme.connect(other)
	other.becomes(acme, did.Own, "")
	poll.Until(t, "the issuer is known by its new key", func() bool {
		other.maintain()
		other.Trust.mu.RLock()
		defer other.Trust.mu.RUnlock()
		return slices.ContainsFunc(other.book.Issuers, func(a string) bool { return exchange.NodeIn(a) == acme.did() }) &&
			!slices.ContainsFunc(other.book.Issuers, func(a string) bool { return exchange.NodeIn(a) == old })
	})
	must(other.Renew(t.Context()))(t)
}

func TestRejectedReplacements(t *testing.T) {
	t.Parallel()
	acme, victim, stranger := newMember(t), newMember(t), newMember(t)
	acme.founds("acme.example")
	acme.admits(victim, false, "agent")
	next := didtest.NewKey()
	credential := victim.org.Credential().Raw
	base := rotation.Statement{Network: "test", SCID: acme.org.SCID(), Created: acme.now()}
	sign := func(change func(*rotation.Statement), from, to did.Signer) []byte {
		s := base
		change(&s)
		return must(rotation.Sign(s, from, to))(t)
	}
	none := func(*rotation.Statement) {}
	good := sign(none, victim.key, next)
	stranger.connect(acme)
	forged := slices.Clone(good)
	forged[len(forged)-1] ^= 1
	for name, c := range map[string]struct {
		by   *member
		raw  []byte
		cred []byte
		want interact.Code
	}{
		"a stranger with a stolen credential": {stranger, sign(none, stranger.key, next), credential, interact.CredentialInvalid},
		"a stranger with a stolen statement":  {stranger, good, credential, interact.Forbidden},
		"a new key that nobody proved":        {victim, forged, credential, interact.Invalid},
		"no statement":                        {victim, nil, credential, interact.Invalid},
		"another network":                     {victim, sign(func(s *rotation.Statement) { s.Network = "other" }, victim.key, next), credential, interact.Invalid},
		"another organization":                {victim, sign(func(s *rotation.Statement) { s.SCID = "Qm" }, victim.key, next), credential, interact.NotFound},
		"an old statement":                    {victim, sign(func(s *rotation.Statement) { s.Created = s.Created.Add(-rotation.Life - time.Hour) }, victim.key, next), credential, interact.CredentialExpired},
		"a statement of tomorrow":             {victim, sign(func(s *rotation.Statement) { s.Created = s.Created.Add(time.Hour) }, victim.key, next), credential, interact.CredentialExpired},
		"no credential":                       {victim, good, nil, interact.CredentialInvalid},
		"the credential of another member":    {victim, good, acme.org.Credential().Raw, interact.CredentialInvalid},
		"a member as the new key":             {victim, sign(none, victim.key, acme.key), credential, interact.Usage},
	} {
		_, err := c.by.net.Ask(t.Context(), acme.did(), &exchange.Request{Op: exchange.OpReplace, Statement: c.raw, Credential: c.cred})
		if got := interact.AsError(err); err == nil || got.Code != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := len(acme.org.Members()); n != 2 {
		t.Errorf("after the refusals there are %d members", n)
	}
	if _, err := victim.net.Ask(t.Context(), acme.did(), &exchange.Request{Op: exchange.OpReplace, Statement: good, Credential: credential}); err != nil {
		t.Fatal(err)
	}

	// Replays: by the new key it completes the replacement, and is harmless again; after its revocation it admits nobody.
	fresh := start(t, next, t.TempDir())
	fresh.connect(acme)
	for range 2 {
		if _, err := fresh.net.Ask(t.Context(), acme.did(), &exchange.Request{Op: exchange.OpReplace, Statement: good}); err != nil {
			t.Error(err)
		}
	}
	acme.bars(victim)
	if n := len(acme.org.Members()); n != 3 {
		t.Errorf("after the replays there are %d members", n)
	}
	if _, err := stranger.net.Ask(t.Context(), acme.did(), &exchange.Request{Op: exchange.OpReplace, Statement: good, Credential: credential}); err == nil {
		t.Error("a stranger replayed the statement")
	}
	if err := acme.Revoke(t.Context(), next.DID()); err != nil {
		t.Fatal(err)
	}
	for _, m := range []*member{victim, fresh} {
		if _, err := m.net.Ask(t.Context(), acme.did(), &exchange.Request{Op: exchange.OpReplace, Statement: good, Credential: credential}); err == nil {
			t.Errorf("%s used the statement after the revocation", m.did().Short())
		}
	}
}
