package organization

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/did/vc"
	"github.com/lmosd/lmosd/interact"
)

// issuers returns two issuers of one organization.
func issuers(t testing.TB, c *clock) (a, b *Organization) {
	t.Helper()
	a = create(t, c)
	b = join(t, a, 2, c)
	must(a.AddIssuer(must(b.NewIssuerKey())(t)))(t)
	noError(t, b.SetLog(a.Log()))
	return a, b
}

// exchange gives both issuers the newest list of the other one.
func exchange(t testing.TB, a, b *Organization) {
	t.Helper()
	la, lb := must(a.List(true))(t), must(b.List(true))(t)
	must(a.MergeRevocations(lb))(t)
	must(b.MergeRevocations(la))(t)
}

// revoked reports whether a list of one of the issuers revokes a credential.
func revoked(t testing.TB, c *vc.Credential, at time.Time, of ...*Organization) bool {
	t.Helper()
	return slices.ContainsFunc(of, func(o *Organization) bool { return must(o.List(false))(t).Revokes(c, at) })
}

func TestAdmitAndIssue(t *testing.T) {
	t.Parallel()
	c := newClock()
	o := create(t, c)
	noError(t, o.Admit(node(3), "", "customer-service", "billing", "billing"))
	cred := must(o.Issue(node(3), nil, 0))(t)
	if want := []string{"billing", "customer-service", NodeRole}; !slices.Equal(cred.Roles, want) || cred.Type != vc.Node {
		t.Errorf("%s with roles %v", cred.Type, cred.Roles)
	}
	if cred := must(o.Issue(node(3), []string{"billing"}, time.Hour))(t); !slices.Equal(cred.Roles, []string{"billing"}) || cred.Until != noon.Add(time.Hour) {
		t.Errorf("roles %v until %s", cred.Roles, cred.Until)
	}
	m := must(Open(o.dir, node(1), c.options()))(t).Members()
	if len(m) != 2 {
		t.Fatalf("members %+v", m)
	}
	i := slices.IndexFunc(m, func(m Member) bool { return m.DID == node(3) })
	if m[i].Until != noon.Add(Life) || m[i].Index != cred.Status.Index || !m[i].Admitted.Equal(noon) || !m[i].Revoked.IsZero() {
		t.Errorf("member %+v", m[i])
	}
	if m[0].Index == m[1].Index {
		t.Error("two members have one entry")
	}
	agent := didtest.Key(9).DID()
	noError(t, o.Admit(agent, node(3), "billing"))
	if cred := must(o.Issue(agent, nil, 0))(t); cred.Type != vc.Agent || cred.Host != node(3) || !slices.Equal(cred.Roles, []string{"billing"}) {
		t.Errorf("agent: %+v", cred)
	}
	m = o.Members()
	m[0].Roles[0] = "changed"
	if o.Members()[0].Roles[0] == "changed" {
		t.Error("Members returns its own memory")
	}
}

func TestIssueRejects(t *testing.T) {
	t.Parallel()
	c := newClock()
	o := create(t, c)
	noError(t, o.Admit(node(3), "", "billing"))
	for name, step := range map[string]struct {
		err  error
		want any
	}{
		"another role":            {second(o.Issue(node(3), []string{"boss"}, 0)), ErrRoles},
		"not a member":            {second(o.Issue(node(4), nil, 0)), ErrNotMember},
		"too long a life":         {second(o.Issue(node(3), nil, vc.MaxLife+1)), interact.Usage},
		"a negative life":         {second(o.Issue(node(3), nil, -1)), interact.Usage},
		"an invalid role":         {o.Admit(node(4), "", "Boss"), interact.Usage},
		"a member that is no key": {o.Admit(o.DID(), ""), interact.Usage},
		"no member":               {o.Admit("", ""), interact.Usage},
		"a host that is no key":   {o.Admit(node(5), "did:web:a.example"), interact.Usage},
		"a host that is unknown":  {o.Admit(node(5), node(6)), ErrNotMember},
		"more than its host":      {o.Admit(node(5), node(3), "boss"), ErrRoles},
		"33 roles":                {o.Admit(node(4), "", strings.Split("r"+strings.Join(numbers(33), " r"), " ")...), interact.Usage},
	} {
		if code, ok := step.want.(interact.Code); ok {
			wantCode(t, step.err, code)
		} else if !errors.Is(step.err, step.want.(error)) {
			t.Errorf("%s: %v", name, step.err)
		}
	}
	if n := len(o.Members()); n != 2 {
		t.Errorf("%d members", n)
	}
	must(o.Issue(node(3), nil, vc.MaxLife))(t)
}

func second[T any](_ T, err error) error { return err }

func numbers(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprint(i))
	}
	return all
}

func TestALostRoleEndsTheCredential(t *testing.T) {
	t.Parallel()
	c := newClock()
	o := create(t, c)
	noError(t, o.Admit(node(3), "", "billing"))
	old := must(o.Issue(node(3), nil, 0))(t)
	noError(t, o.Admit(node(3), "", "billing", "support")) // one more: the old one stays valid
	if revoked(t, old, c.at, o) {
		t.Error("a new role revoked the credential")
	}
	noError(t, o.Admit(node(3), "", "support"))
	if !revoked(t, old, c.at, o) {
		t.Error("the credential with the lost role is valid")
	}
	if !o.IsOutdated(old) {
		t.Error("the member does not learn that it lost a role")
	}
	fresh := must(o.Renew(old.Raw, 0))(t)
	if o.IsOutdated(fresh) {
		t.Error("the renewed credential is outdated")
	}
	if revoked(t, fresh, c.at, o) || fresh.HasRole("billing") || !fresh.HasRole("support") {
		t.Errorf("roles %v", fresh.Roles)
	}
}

func TestRevoke(t *testing.T) {
	t.Parallel()
	c := newClock()
	o := create(t, c)
	agent := didtest.Key(9).DID()
	noError(t, o.Admit(node(3), ""))
	noError(t, o.Admit(agent, node(3)))
	cred, of := must(o.Issue(node(3), nil, 0))(t), must(o.Issue(agent, nil, 0))(t)
	before := must(o.List(false))(t)
	l := must(o.Revoke(node(3)))(t)
	if l.Version <= before.Version || !l.Revokes(cred, c.at) || !l.Revokes(of, c.at) || !l.IsSet(of.Status.Index) || l.Revokes(o.Credential(), c.at) {
		t.Errorf("version %d after %d", l.Version, before.Version)
	}
	must(vc.VerifyList(t.Context(), l.Raw, vc.Check{Resolver: o, Now: c.at}))(t)
	if l.Until.Sub(l.From) != ListLife || !l.Revoked[node(3)].Equal(c.at.Add(Exclusion)) {
		t.Errorf("valid for %s, excluded until %s", l.Until.Sub(l.From), l.Revoked[node(3)])
	}
	for range 2 { // also after a start
		for name, err := range map[string]error{
			"issue": second(o.Issue(node(3), nil, 0)), "issue for its agent": second(o.Issue(agent, nil, 0)), "renew": second(o.Renew(cred.Raw, 0)),
			"renew for its agent": second(o.Renew(of.Raw, 0)), "admit": o.Admit(node(3), "", "x"), "admit its agent": o.Admit(node(8), node(3)),
		} {
			if !errors.Is(err, ErrRevoked) && !(strings.Contains(name, "agent") && errors.Is(err, ErrNotMember)) {
				t.Errorf("%s: %v", name, err)
			}
		}
		o = must(Open(o.dir, node(1), c.options()))(t)
		if l := must(o.List(false))(t); !l.Revokes(cred, c.at) || !l.Excludes(node(3), c.at) {
			t.Error("the revocation is lost")
		}
	}
	_, err := o.Revoke(node(1))
	wantCode(t, err, interact.Usage, "itself")
	_, err = o.Revoke("did:web:a.example")
	wantCode(t, err, interact.Usage)

	// After 30 days the member is not excluded, its old credentials are, and it can be admitted again.
	c.add(Exclusion + time.Hour)
	if l := must(o.List(false))(t); l.Excludes(node(3), c.at) || !l.Revokes(cred, c.at) {
		t.Error("after 30 days")
	}
	_, err = o.Issue(node(3), nil, 0)
	wantError(t, err, ErrRevoked)
	noError(t, o.Admit(node(3), ""))
	if cred := must(o.Issue(node(3), nil, 0))(t); revoked(t, cred, c.at, o) {
		t.Error("the new credential is revoked")
	}
}

// A revocation is durable before the list is signed.
func TestRevocationsSurviveACrash(t *testing.T) {
	t.Parallel()
	c := newClock()
	o := create(t, c)
	noError(t, o.Admit(node(3), ""))
	cred := must(o.Issue(node(3), nil, 0))(t)
	old := must(o.List(true))(t)
	stale := must(os.ReadFile(o.path(listFile)))(t)
	must(o.Revoke(node(3)))(t)
	for name, crash := range map[string]func(){
		"the list is old":     func() { noError(t, os.WriteFile(o.path(listFile), stale, 0o600)) },
		"the list is missing": func() { noError(t, os.Remove(o.path(listFile))) },
		"the list is cut":     func() { noError(t, os.WriteFile(o.path(listFile), stale[:100], 0o600)) },
	} {
		crash()
		again := must(Open(o.dir, node(1), c.options()))(t)
		if l := must(again.List(false))(t); !l.Revokes(cred, c.at) || l.Version <= old.Version {
			t.Errorf("%s: version %d after %d", name, l.Version, old.Version)
		}
	}
}

func TestRestore(t *testing.T) {
	t.Parallel()
	c := newClock()
	o := create(t, c)
	noError(t, o.Admit(node(3), "", "billing"))
	cred := must(o.Issue(node(3), nil, 0))(t)
	wantError(t, second(o.Restore(node(3), 0)), ErrNotMember)
	wantError(t, second(o.Restore(node(4), 0)), ErrNotMember)
	l := must(o.Revoke(node(3)))(t)
	after := must(o.Restore(node(3), l.Version+1000))(t)
	if after.Version != l.Version+1001 || after.Excludes(node(3), c.at) || !after.Revokes(cred, c.at) {
		t.Errorf("version %d after %d", after.Version, l.Version)
	}
	fresh := must(o.Issue(node(3), nil, 0))(t)
	if !fresh.HasRole("billing") || revoked(t, fresh, c.at, o) || fresh.Status.Index == cred.Status.Index {
		t.Errorf("restored: %+v", fresh)
	}
	o = must(Open(o.dir, node(1), c.options()))(t)
	if l := must(o.List(false))(t); l.Version <= after.Version || l.Excludes(node(3), c.at) {
		t.Errorf("version %d after a start", l.Version)
	}
}

func TestListIsSignedAgain(t *testing.T) {
	t.Parallel()
	c := newClock()
	o := create(t, c)
	first := must(o.List(false))(t)
	for _, step := range []struct {
		after time.Duration
		fresh bool
		same  bool
	}{
		{FreshAge, true, true}, {time.Second, false, true}, {0, true, false}, {29 * time.Minute, false, true}, {2 * time.Minute, false, false}, {24 * time.Hour, false, false},
	} {
		c.add(step.after)
		l := must(o.List(step.fresh))(t)
		if (l == first) != step.same || l != first && l.Version <= first.Version {
			t.Errorf("%s later, fresh %t: version %d after %d", step.after, step.fresh, l.Version, first.Version)
		}
		if must(vc.VerifyList(t.Context(), l.Raw, vc.Check{Resolver: o, Now: c.at}))(t).Version != l.Version {
			t.Error("another version in the document")
		}
		first = l
	}
}

// Any issuer renews; a revocation at one issuer holds at the other.
func TestTwoIssuers(t *testing.T) {
	t.Parallel()
	c := newClock()
	a, b := issuers(t, c)
	noError(t, a.Admit(node(3), "", "billing"))
	ofA := must(a.Issue(node(3), nil, 0))(t)
	wantError(t, second(b.Issue(node(3), nil, 0)), ErrNotMember)
	c.add(12 * time.Hour)
	ofB := must(b.Renew(ofA.Raw, 0))(t)
	if !ofB.HasRole("billing") || ofB.Method == ofA.Method || !slices.Equal(ofB.Roles, ofA.Roles) {
		t.Errorf("renewed %v by %s", ofB.Roles, ofB.Method)
	}
	// A decision about the roles counts until a later credential of another issuer.
	c.add(time.Minute)
	noError(t, b.Admit(node(3), "", "billing", "support"))
	if got := must(b.Renew(ofA.Raw, 0))(t); !got.HasRole("support") {
		t.Errorf("the older credential counts: %v", got.Roles)
	}
	c.add(time.Minute)
	if got := must(b.Renew(must(a.Issue(node(3), nil, 0))(t).Raw, 0))(t); got.HasRole("support") {
		t.Errorf("the later credential does not count: %v", got.Roles)
	}
	for name, raw := range map[string][]byte{"expired": ofA.Raw, "altered": []byte(strings.Replace(string(ofB.Raw), "billing", "chief00", 1)), "nothing": nil} {
		at := c.at
		c.add(48 * time.Hour)
		if _, err := b.Renew(raw, 0); err == nil || name == "expired" && !errors.Is(err, vc.ErrExpired) {
			t.Errorf("%s: %v", name, err)
		}
		c.at = at
	}

	agent := didtest.Key(9).DID()
	noError(t, a.Admit(agent, node(3), "billing"))
	if got := must(b.Renew(must(a.Issue(agent, nil, 0))(t).Raw, 0))(t); got.Host != node(3) || got.Type != vc.Agent {
		t.Errorf("agent: %+v", got)
	}
	noError(t, a.Admit(node(31), ""))
	noError(t, a.Admit(node(32), node(31)))
	wantError(t, second(b.Renew(must(a.Issue(node(32), nil, 0))(t).Raw, 0)), ErrNotMember)

	ofB = must(b.Issue(node(3), nil, 0))(t)
	must(a.Revoke(node(3)))(t)
	exchange(t, a, b)
	if l := must(b.List(false))(t); !l.IsSet(ofB.Status.Index) || l.Excludes(node(3), c.at) {
		t.Error("the credential of the second issuer is valid")
	}
	for range 2 {
		wantError(t, second(b.Issue(node(3), nil, 0)), ErrRevoked)
		wantError(t, second(b.Renew(ofB.Raw, 0)), ErrRevoked)
		wantError(t, second(b.Renew(ofA.Raw, 0)), ErrRevoked)
		wantError(t, b.Admit(node(3), ""), ErrRevoked)
		b = must(Open(b.dir, node(2), c.options()))(t)
	}
	wantError(t, second(b.Restore(node(3), 0)), ErrNotMember) // only the issuer that revoked it
	c.add(time.Minute)
	must(a.Restore(node(3), 0))(t)
	exchange(t, a, b)
	wantError(t, second(b.Renew(ofA.Raw, 0)), ErrRevoked) // its entry stays set
	fresh := must(b.Issue(node(3), nil, 0))(t)
	if revoked(t, fresh, c.at, a, b) {
		t.Error("the restored member has no valid credential")
	}
	// A member that this issuer does not know.
	noError(t, a.Admit(node(4), ""))
	other := must(a.Issue(node(4), nil, 0))(t)
	l := must(b.Revoke(node(4)))(t)
	if !l.Revokes(other, c.at) {
		t.Error("the other issuer's credential is valid")
	}
	exchange(t, a, b)
	wantError(t, second(a.Issue(node(4), nil, 0)), ErrRevoked)
	if !must(a.List(false))(t).IsSet(other.Status.Index) {
		t.Error("the entry of the first issuer is not set")
	}
	must(b.Restore(node(4), 0))(t)
	c.add(time.Minute)
	exchange(t, a, b)
	must(a.Issue(node(4), nil, 0))(t)
}

func TestMergeRevocationsRejects(t *testing.T) {
	t.Parallel()
	c := newClock()
	a, b := issuers(t, c)
	globex := create(t, c)
	wantError(t, second(a.MergeRevocations(must(globex.List(false))(t))), vc.ErrInvalid)
	l := *must(b.List(false))(t)
	l.ID = must(a.List(false))(t).ID // would set the entries of another issuer
	wantError(t, second(a.MergeRevocations(&l)), vc.ErrInvalid)
	if changed := must(a.MergeRevocations(must(b.List(false))(t)))(t); changed {
		t.Error("an empty list changed the own list")
	}
	m := join(t, a, 5, c)
	if changed := must(m.MergeRevocations(must(b.List(false))(t)))(t); changed {
		t.Error("a node that is not an issuer")
	}
	// An older version takes nothing back, and its exclusions do not count.
	must(b.Revoke(node(7)))(t)
	old := must(b.List(false))(t)
	c.add(time.Minute)
	must(b.Restore(node(7), 0))(t)
	noError(t, second(a.MergeRevocations(must(b.List(false))(t))))
	noError(t, second(a.MergeRevocations(old)))
	noError(t, a.Admit(node(7), ""))
}

// An issuer whose folder was restored from a backup continues above the list that its peers have, and keeps its revocations.
func TestTheFolderFromABackup(t *testing.T) {
	t.Parallel()
	c := newClock()
	o := create(t, c)
	noError(t, o.Admit(node(3), ""))
	must(o.List(false))(t)
	book, list := must(os.ReadFile(o.path(bookFile)))(t), must(os.ReadFile(o.path(listFile)))(t)
	cred := must(o.Issue(node(3), nil, 0))(t)
	c.add(time.Hour)
	must(o.Revoke(node(4)))(t)
	seen := must(o.Revoke(node(3)))(t)
	for range 50 { // the clock stands still
		must(o.Revoke(node(3)))(t)
		seen = must(o.List(false))(t)
	}
	noError(t, os.WriteFile(o.path(bookFile), book, 0o600))
	noError(t, os.WriteFile(o.path(listFile), list, 0o600))
	o = must(Open(o.dir, node(1), c.options()))(t)
	must(o.Issue(node(3), nil, 0))(t)
	if changed := must(o.MergeRevocations(seen))(t); !changed {
		t.Error("the list did not change")
	}
	l := must(o.List(false))(t)
	if l.Version <= seen.Version || !l.Revokes(cred, c.at) || !l.Excludes(node(4), c.at) {
		t.Errorf("version %d after %d", l.Version, seen.Version)
	}
	wantError(t, second(o.Issue(node(3), nil, 0)), ErrRevoked)
	if changed := must(o.MergeRevocations(seen))(t); changed {
		t.Error("an older own list changed the list")
	}
}

func TestTheStatusListIsFull(t *testing.T) {
	t.Parallel()
	o := create(t, newClock())
	o.book.Set = make([]int, maxEntries)
	for i := range o.book.Set {
		o.book.Set[i] = i
	}
	if err := o.Admit(node(3), ""); err == nil || !strings.Contains(err.Error(), "add another issuer") {
		t.Errorf("got %v", err)
	}
	if len(o.Members()) != 1 {
		t.Error("the member was admitted")
	}
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	c := newClock()
	o := create(t, c)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			id := node(100 + i)
			if err := o.Admit(id, ""); err != nil {
				t.Error(err)
			}
			if _, err := o.Issue(id, nil, 0); err != nil {
				t.Error(err)
			}
			if i%2 == 0 {
				if _, err := o.Revoke(id); err != nil {
					t.Error(err)
				}
			}
			_, _ = o.List(true)
			_, _, _ = o.Members(), o.Credential(), o.Log()
		})
	}
	wg.Wait()
	o = must(Open(o.dir, node(1), c.options()))(t)
	l := must(o.List(false))(t)
	if len(o.Members()) != 9 || len(l.Revoked) != 4 {
		t.Errorf("%d members, %d revoked", len(o.Members()), len(l.Revoked))
	}
}

func TestWritesThatFail(t *testing.T) {
	t.Parallel()
	c := newClock()
	o := create(t, c)
	noError(t, o.Admit(node(3), ""))
	must(o.List(false))(t)
	for _, name := range []string{bookFile, logFile} { // nothing replaces a folder
		noError(t, os.Remove(o.path(name)))
		noError(t, os.MkdirAll(o.path(name)+"/x", 0o700))
	}
	for name, err := range map[string]error{"admit": o.Admit(node(4), ""), "issue": second(o.Issue(node(3), nil, 0)), "revoke": second(o.Revoke(node(3))),
		"log": second(o.AddIssuer(node(7).Multibase())), "rotate": o.RotateRoot()} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if n := len(o.Members()); n != 2 || o.Log().Len() != 1 || !o.Members()[0].Revoked.IsZero() || !o.Members()[1].Revoked.IsZero() {
		t.Errorf("%d members, version %d", n, o.Log().Len())
	}
}

func BenchmarkIssue(b *testing.B) {
	o := create(b, newClock())
	noError(b, o.Admit(node(3), ""))
	for b.Loop() {
		must(o.Issue(node(3), nil, 0))(b)
	}
}

// A credential of an issuing key that an issuer has revoked proves nothing to the others: a thief of the key cannot have it renewed.
func TestRenewalOfACredentialByARevokedIssuer(t *testing.T) {
	t.Parallel()
	c := newClock()
	first, second := issuers(t, c)
	noError(t, second.Admit(node(3), "", "admin"))
	noError(t, second.Admit(node(4), ""))
	noError(t, first.Admit(node(4), ""))
	invented, member := must(second.Issue(node(3), nil, 0))(t), must(second.Issue(node(4), nil, 0))(t)
	must(first.Revoke(second.issuing.DID()))(t)
	if _, err := first.Renew(invented.Raw, 0); !errors.Is(err, ErrRevoked) {
		t.Errorf("the credential of the revoked key is renewed: %v", err)
	}
	if _, err := first.Replace(node(3), node(5), invented, false); !errors.Is(err, ErrRevoked) {
		t.Errorf("its subject replaces its key: %v", err)
	}
	if got := must(first.Renew(member.Raw, 0))(t); !slices.Equal(got.Roles, []string{NodeRole}) {
		t.Errorf("a member that this issuer admitted has %v", got.Roles)
	}
	noError(t, second.Admit(node(4), "", "admin"))
	c.add(time.Minute)
	if got := must(first.Renew(must(second.Issue(node(4), nil, 0))(t).Raw, 0))(t); !slices.Equal(got.Roles, []string{NodeRole}) {
		t.Errorf("the revoked key gives a member the roles %v", got.Roles)
	}
}
