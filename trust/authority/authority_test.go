package authority

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/did/proof"
	"github.com/lmosd/lmosd/did/vc"
	"github.com/lmosd/lmosd/trust/organization"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func node(n int) did.DID { return didtest.Key(n).DID() }

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A fixture is an organization with two issuers, as another node sees it.
type fixture struct {
	now           time.Time
	first, second *organization.Organization // the first has the root key
	*Authority
	folder Folder
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	x := &fixture{now: noon, folder: Folder(filepath.Join(t.TempDir(), "trust", "acme"))}
	o := organization.Options{Now: func() time.Time { return x.now }, RecoveryFile: filepath.Join(t.TempDir(), "recovery.pem")}
	x.first = must(organization.Create(filepath.Join(t.TempDir(), "org"), "acme.example", node(1), o))(t)
	noError(t, x.first.Admit(node(2), ""))
	c := must(x.first.Issue(node(2), nil, 0))(t)
	x.second = must(organization.Join(filepath.Join(t.TempDir(), "org"), x.first.Log(), c, node(2), o))(t)
	must(x.first.AddIssuer(must(x.second.NewIssuerKey())(t)))(t)
	noError(t, x.second.SetLog(x.first.Log()))
	x.Authority = New(x.first.Log())
	x.takeLists(t)
	noError(t, x.folder.WriteLog(x.Log()))
	return x
}

// take takes a list as a node does: first on the disk.
func (x *fixture) take(t testing.TB, l *vc.List) {
	t.Helper()
	r := x.AfterList(l)
	noError(t, errors.Join(x.folder.WriteRecord(x.Authority, r), x.folder.WriteList(l)))
	x.SetList(l, r, x.now)
}

func (x *fixture) takeLists(t testing.TB) {
	t.Helper()
	for _, o := range []*organization.Organization{x.first, x.second} {
		x.take(t, must(o.List(true))(t))
	}
}

func (x *fixture) takeLog(t testing.TB) {
	t.Helper()
	r := x.AfterLog(x.first.Log(), x.now)
	noError(t, errors.Join(x.folder.WriteRecord(x.Authority, r), x.folder.WriteLog(x.first.Log())))
	x.SetLog(x.first.Log(), r)
}

// restarted returns the organization as it is after a restart of the node.
func (x *fixture) restarted(t testing.TB) *Authority {
	t.Helper()
	a := New(must(x.folder.Log())(t))
	noError(t, x.folder.Load(a, x.now))
	return a
}

// Whom an issuer revoked stays excluded for 30 days, also after its key was removed and after a restart.
func TestExclusionsOfARemovedIssuer(t *testing.T) {
	t.Parallel()
	x := newFixture(t)
	must(x.second.Revoke(node(3)))(t)
	x.takeLists(t)
	noError(t, x.first.RemoveIssuer("#i2"))
	x.takeLog(t)
	for name, a := range map[string]*Authority{"before": x.Authority, "after": x.restarted(t)} {
		if len(a.Methods()) != 1 || !a.Excludes(node(3), x.now) || a.Excludes(node(4), x.now) {
			t.Errorf("%s a restart, the member is excluded: %t", name, a.Excludes(node(3), x.now))
		}
		if after := x.now.Add(organization.Exclusion); a.Excludes(node(3), after) {
			t.Errorf("%s a restart, the member is excluded after 30 days", name)
		}
	}
}

// A node that restarts with a clock that is a day behind does not forget whom an issuer revoked.
func TestRestartWithAClockThatIsBehind(t *testing.T) {
	t.Parallel()
	x := newFixture(t)
	must(x.second.Revoke(node(3)))(t)
	x.takeLists(t)
	right := x.now
	x.now = right.Add(-24 * time.Hour)
	if a := x.restarted(t); !a.Excludes(node(3), right) || len(a.Versions()) != 2 {
		t.Errorf("the lists are %v, and the member is excluded: %t", a.Versions(), a.Excludes(node(3), right))
	}
}

// What a stolen key revoked counts for nothing: another issuer revoked the key before the root removed it.
func TestExclusionsOfAStolenKey(t *testing.T) {
	t.Parallel()
	x := newFixture(t)
	must(x.second.Revoke(node(3)))(t)
	must(x.first.Revoke(x.Key(x.Methods()[1])))(t)
	x.takeLists(t)
	noError(t, x.first.RemoveIssuer("#i2"))
	x.takeLog(t)
	if x.Excludes(node(3), x.now) || x.restarted(t).Excludes(node(3), x.now) {
		t.Error("the member is excluded")
	}
}

// An entry that was set stays set, whatever a later list states, and after a restart.
func TestEntriesStaySet(t *testing.T) {
	t.Parallel()
	x := newFixture(t)
	signer, method, err := x.first.Signer()
	noError(t, err)
	issue := func(version uint64, set ...int) *vc.List {
		l := vc.NewList(organization.ListID(method), x.DID()).With(set...)
		return must(vc.IssueList(l, version, x.now, x.now.Add(time.Hour), signer, method))(t)
	}
	const version = 1 << 40
	x.take(t, issue(version, 42, 43))
	x.take(t, issue(version+1, 43))
	x.take(t, issue(version+2))
	for name, a := range map[string]*Authority{"before": x.Authority, "after": x.restarted(t)} {
		if l := a.List(method); l.Version != version+2 || !l.IsSet(42) || !l.IsSet(43) || l.IsSet(44) {
			t.Errorf("%s a restart, version %d has the entries %t, %t, %t", name, l.Version, l.IsSet(42), l.IsSet(43), l.IsSet(44))
		}
	}
	x.take(t, issue(version+3, 42, 43))
	if r := x.kept; len(r.Set) != 0 {
		t.Errorf("the newest list has all entries, and %v is kept", r.Set)
	}
}

// A damaged record is an error: revocations would be lost.
func TestDamagedRecord(t *testing.T) {
	t.Parallel()
	x := newFixture(t)
	noError(t, x.folder.Write(recordFile, []byte("{")))
	if err := x.folder.Load(New(x.Log()), x.now); err == nil {
		t.Error("it was loaded")
	}
}

// A change is reported once, and what nothing has changed is not.
func TestChanges(t *testing.T) {
	t.Parallel()
	x := newFixture(t)
	take := func() (bool, []did.DID) {
		members, nodes := x.TakeChanges(x.now)
		var all []did.DID
		for n := range nodes {
			all = append(all, n)
		}
		slices.Sort(all)
		return members, all
	}
	want := func(name string, members bool, nodes ...did.DID) {
		t.Helper()
		slices.Sort(nodes)
		if m, n := take(); m != members || !slices.Equal(n, nodes) {
			t.Errorf("%s: members %t, nodes %v; want %t, %v", name, m, n, members, nodes)
		}
	}
	want("the start", true)
	want("nothing", false)
	x.now = x.now.Add(40 * time.Minute)
	x.takeLists(t)
	want("lists that are only signed again", false)
	must(x.second.Revoke(node(3)))(t)
	x.takeLists(t)
	want("a revocation", false, node(3))
	x.Witness(node(1), x.Methods()[0], x.now)
	want("evidence", true, node(3))
	x.Witness(node(1), x.Methods()[0], x.now.Add(time.Second))
	want("the same evidence", false)
	x.Contact([]did.DID{node(1)}, x.now)
	want("a single contact", false, node(1))
	x.Witness(node(4), "", x.now)
	take()
	must(x.second.Revoke(node(4)))(t)
	x.takeLists(t)
	want("a witness that was revoked", true, node(3), node(4))
	x.now = x.now.Add(organization.ListLife + Grace)
	want("the end of the lists", true, node(3), node(4))
	x.now = x.now.Add(-organization.ListLife)
	want("a clock that was set back", true, node(3), node(4))
	x.now = noon.Add(organization.Exclusion + time.Hour)
	want("the end of the exclusion", true, node(3), node(4))
}

// A machine that slept has no evidence, although its dead connections are still listed.
func TestSleepEndsEvidence(t *testing.T) {
	t.Parallel()
	x := newFixture(t)
	connected := []did.DID{node(1)}
	x.Contact(connected, x.now)
	x.Witness(node(1), x.Methods()[0], x.now)
	if !x.IsWitness(node(1)) {
		t.Fatal("there is no evidence before")
	}
	x.Contact(connected, x.now.Add(10*time.Hour))
	if x.HasWitness("") {
		t.Error("after ten hours of sleep, there is evidence")
	}
}

// A clock that is a day wrong ends evidence, and no list counts for longer than its hour.
func TestClockADayWrong(t *testing.T) {
	t.Parallel()
	for name, by := range map[string]time.Duration{"ahead": 24 * time.Hour, "behind": -24 * time.Hour} {
		x := newFixture(t)
		c := must(x.first.Issue(node(2), nil, 48*time.Hour))(t)
		x.Contact([]did.DID{node(1)}, x.now)
		x.Witness(node(1), x.Methods()[0], x.now)
		if problem, pending := x.Check(c, node(2), "", false, x.now); problem+pending != "" {
			t.Fatal(problem, pending)
		}
		now := x.now.Add(by)
		x.Contact([]did.DID{node(1)}, now)
		if _, pending := x.Check(c, node(2), "", false, now); pending == "" {
			t.Errorf("a clock that is a day %s: the member is confirmed", name)
		}
	}
}

func statement(x *fixture) Statement {
	return Statement{Type: StatementType, Organization: x.DID(), Node: node(1), Audience: node(5), Nonce: "n", Versions: map[string]uint64{}}
}

func TestReadStatement(t *testing.T) {
	t.Parallel()
	x, other := newFixture(t), newFixture(t)
	raw := must(x.first.Sign(statement(x)))(t)
	if st, method, err := ReadStatement(t.Context(), raw, x.Log(), x.now); err != nil || method != x.Methods()[0] || st.Node != node(1) {
		t.Errorf("%+v, %q, %v", st, method, err)
	}
	if _, _, err := ReadStatement(t.Context(), raw, other.Log(), x.now); !errors.Is(err, proof.ErrProof) {
		t.Errorf("the log of another organization: %v", err)
	}
	wrong := statement(x)
	wrong.Type = "PartnerList"
	if _, _, err := ReadStatement(t.Context(), must(x.first.Sign(wrong))(t), x.Log(), x.now); err == nil {
		t.Error("another document was read")
	}
}

func FuzzReadStatement(f *testing.F) {
	x := newFixture(f)
	f.Add(must(x.first.Sign(statement(x)))(f))
	f.Add([]byte(`{"type":"OrganizationStatus","versions":{"a":1}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		st, method, err := ReadStatement(t.Context(), raw, x.Log(), x.now)
		if err == nil && (st.Type != StatementType || method != "" && method != x.Methods()[0]) {
			t.Errorf("read %+v, signed by %q", st, method)
		}
	})
}
