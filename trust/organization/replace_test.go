package organization

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/interact"
)

func memberOf(t testing.TB, o *Organization, id did.DID) Member {
	t.Helper()
	all := o.Members()
	i := slices.IndexFunc(all, func(m Member) bool { return m.DID == id })
	if i < 0 {
		t.Fatalf("%s is not a member", id.Short())
	}
	return all[i]
}

// A new key gets the roles, then the agents; the old key is revoked when the new key asks, and both steps may be repeated.
func TestReplace(t *testing.T) {
	t.Parallel()
	c := newClock()
	o := create(t, c)
	old, fresh, agent := node(3), node(4), didtest.Key(9).DID()
	noError(t, o.Admit(old, "", "billing"))
	cred := must(o.Issue(old, nil, 0))(t)
	noError(t, o.Admit(agent, old, "billing"))
	ofAgent := must(o.Issue(agent, nil, 0))(t)
	for range 2 {
		if got := must(o.Replace(old, fresh, cred, false))(t); got.Subject != fresh || !slices.Equal(got.Roles, []string{"billing", NodeRole}) {
			t.Errorf("the credential is %+v", got)
		}
	}
	if revoked(t, cred, c.now(), o) || !o.Replaced(old, fresh) || o.Replaced(fresh, old) {
		t.Error("the old key is revoked before the new key asked, or the keys are confused")
	}
	c.add(FreshAge + time.Second)
	for range 2 {
		must(o.Replace(old, fresh, nil, true))(t)
	}
	if !revoked(t, cred, c.now(), o) || !revoked(t, ofAgent, c.now(), o) {
		t.Error("the old key or the credential of its agent is valid")
	}
	if _, err := o.Renew(cred.Raw, 0); !errors.Is(err, ErrRevoked) {
		t.Errorf("the old key is renewed: %v", err)
	}
	if got := must(o.Issue(agent, nil, 0))(t); got.Host != fresh || revoked(t, got, c.now(), o) {
		t.Errorf("the agent has %+v", got)
	}
	again := must(Open(o.dir, node(1), c.options()))(t)
	if m := memberOf(t, again, fresh); m.Replaces != old || !m.Revoked.IsZero() || memberOf(t, again, old).Revoked.IsZero() {
		t.Errorf("stored: %+v", m)
	}
}

func TestReplaceRejects(t *testing.T) {
	t.Parallel()
	c := newClock()
	o, second := issuers(t, c)
	noError(t, o.Admit(node(3), "", "billing"))
	noError(t, o.Admit(node(5), ""))
	cred := must(o.Issue(node(3), nil, 0))(t)
	if _, err := o.Replace(node(7), node(8), nil, false); !errors.Is(err, ErrNotMember) {
		t.Errorf("a key that is not a member: %v", err)
	}
	if _, err := o.Replace(node(7), node(8), nil, true); !errors.Is(err, ErrNotMember) {
		t.Errorf("a key that is not a member, with an invented successor: %v", err)
	}
	if _, err := o.Replace(node(3), node(5), nil, false); interact.AsError(err).Code != interact.Usage {
		t.Errorf("by another member: %v", err)
	}
	third := create(t, c)
	if _, err := join(t, third, 6, c).Replace(node(6), node(7), nil, false); !errors.Is(err, ErrNotIssuer) {
		t.Errorf("at a node that is not an issuer: %v", err)
	}
	must(o.Replace(node(3), node(4), cred, true))(t)
	if _, err := o.Replace(node(4), node(6), nil, false); interact.AsError(err).Code != interact.Forbidden {
		t.Errorf("a second one on the same day: %v", err)
	}
	if _, err := o.Replace(node(3), node(6), cred, false); !errors.Is(err, ErrRevoked) {
		t.Errorf("the old key chooses another successor: %v", err)
	}
	exchange(t, o, second)
	if _, err := second.Replace(node(3), node(6), cred, false); !errors.Is(err, ErrRevoked) {
		t.Errorf("the old key chooses another successor at another issuer: %v", err)
	}
	c.add(ReplacePause)
	must(o.Replace(node(4), node(6), nil, true))(t)
	must(o.Revoke(node(6)))(t)
	if _, err := o.Replace(node(4), node(6), nil, true); !errors.Is(err, ErrRevoked) {
		t.Errorf("a replay after the revocation: %v", err)
	}
}

// Another issuer than the one that confirmed completes a replacement, for the credential of the new key.
func TestReplaceAtAnotherIssuer(t *testing.T) {
	t.Parallel()
	c := newClock()
	first, second := issuers(t, c)
	noError(t, first.Admit(node(3), "", "billing"))
	cred := must(first.Issue(node(3), nil, 0))(t)
	fresh := must(first.Replace(node(3), node(4), cred, false))(t)
	got := must(second.Replace(node(3), node(4), fresh, true))(t)
	if !slices.Equal(got.Roles, fresh.Roles) || !revoked(t, cred, c.now(), second) || !second.Replaced(node(3), node(4)) {
		t.Errorf("the second issuer issued %+v", got)
	}
	if _, err := second.Replace(node(5), node(4), fresh, true); interact.AsError(err).Code != interact.Usage {
		t.Errorf("a key replaces two others: %v", err)
	}
}

// Whoever revokes a member whose key is being replaced excludes the new key, too.
func TestRevokeDuringAReplacement(t *testing.T) {
	t.Parallel()
	c := newClock()
	o := create(t, c)
	noError(t, o.Admit(node(3), ""))
	fresh := must(o.Replace(node(3), node(4), nil, false))(t)
	must(o.Revoke(node(3)))(t)
	if _, err := o.Replace(node(3), node(4), nil, true); !errors.Is(err, ErrRevoked) || !revoked(t, fresh, c.now(), o) {
		t.Errorf("the new key of a revoked member: %v", err)
	}
}
