package directory

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

const (
	globex = did.DID("did:webvh:QmdwAEVCHXqxVyKA7JAeSCeTuMg2CrYXLxHHdUp8bWxTvR:globex.example")
	acme   = did.DID("did:webvh:QmYsp2NBnPN44ZSqmKKLjrWAZzWGBrPWDdBFzF4DMSEXTb:acme.example")
)

// An orgs knows two organizations: "own", and "globex". A late member is verified by the first call of VerifyMembers that has a Thing of it.
type orgs struct {
	members map[did.DID][]did.DID
	late    did.DID
	found   atomic.Bool
	asked   atomic.Int64 // Things
}

func (o *orgs) OrganizationNamed(name string) (did.DID, error) {
	switch name {
	case "globex", string(globex):
		return globex, nil
	case "own", "acme":
		return acme, nil
	}
	return "", interact.Errorf(interact.NotFound, "see the list of partners", "no organization is called %q here", name)
}

func (o *orgs) MembersOf(id did.DID) []did.DID {
	all := slices.Clone(o.members[id])
	if id == globex && o.found.Load() {
		all = append(all, o.late)
	}
	slices.Sort(all)
	return all
}

func (o *orgs) VerifyMembers(_ context.Context, things []*td.Description) {
	for _, d := range things {
		o.asked.Add(1)
		if d.Record.Owner == o.late {
			o.found.Store(true)
		}
	}
}

func (o *orgs) Affiliation(d *td.Description) *Affiliation {
	for id, members := range o.members {
		if slices.Contains(members, d.Record.Owner) {
			return &Affiliation{"verified", id, PartnerOrganization}
		}
	}
	return Claim(d)
}

// owned returns the agent "Logistics" of owner n, which claims an organization.
func owned(t testing.TB, n byte, claims did.DID, vendor string) *td.Description {
	t.Helper()
	raw := string(agent{key: didtest.Key(int(n)), id: "urn:example:logistics-" + string('0'+n), title: "Logistics", caps: []string{"urn:example:logistics"}}.json())
	if vendor != "" {
		raw = strings.Replace(raw, "{", `{"lmos:metadata":{"lmos:vendor":{"lmos:name":"`+vendor+`"}},`, 1)
	}
	thing, err := td.Complete(td.WithMemberOf([]byte(raw), claims), didtest.Key(int(n)).DID())
	if err != nil {
		t.Fatal(err)
	}
	s, err := td.Sign(thing, didtest.Key(int(n)), td.Lease{Seq: 1, Now: time.Now(), Lifetime: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return described(t, s)
}

// partners is a directory with "Logistics" of a member of globex (1), of a claimer (2), of a vendor (3), of this node's organization (4) and of
// a member of globex that is not verified yet (5).
func partners(t *testing.T) (*Directory, *orgs) {
	o := &orgs{members: map[did.DID][]did.DID{globex: {didtest.Key(1).DID()}, acme: {didtest.Key(4).DID()}}, late: didtest.Key(5).DID()}
	return filled(t, Options{Organizations: o}, owned(t, 1, globex, ""), owned(t, 2, globex, ""), owned(t, 3, "", "Globex"), owned(t, 4, acme, ""),
		owned(t, 5, globex, "")), o
}

// findIDs returns the ids of a query, or the error.
func findIDs(ctx context.Context, d *Directory, q td.Query) (string, error) {
	var all []string
	for desc, err := range d.Find(ctx, q) {
		if err != nil {
			return "", err
		}
		all = append(all, strings.TrimPrefix(desc.ID, "urn:example:logistics-"))
	}
	slices.Sort(all)
	return strings.Join(all, " "), nil
}

func TestFindByOrganization(t *testing.T) {
	t.Parallel()
	d, o := partners(t)
	ctx := as(t, did.Local)
	if got := ids(d.FindLocal(ctx, td.Query{Organization: "globex"})); got != "urn:example:logistics-1" || o.asked.Load() != 0 {
		t.Errorf("FindLocal found %q and verified %d Things", got, o.asked.Load())
	}
	for _, tt := range []struct {
		q    td.Query
		want string
	}{
		{td.Query{Organization: "globex"}, "1 5"},
		{td.Query{Organization: string(globex), Text: "logistics"}, "1 5"},
		{td.Query{Organization: "own"}, "4"},
		{td.Query{Organization: "globex", Claimed: true}, "1 2 3 5"},
		{td.Query{Organization: "globex.example", Claimed: true}, "1 2 5"}, // a name that only claims have
		{td.Query{Organization: "globex", Or: []td.Query{{Organization: "own"}}}, "1 4 5"},
		{td.Query{Type: "agent", Not: []td.Query{{Organization: "globex"}}}, "2 3 4"},
	} {
		if got, err := findIDs(ctx, d, tt.q); got != tt.want || err != nil {
			t.Errorf("%s: got %q, %v; want %q", tt.q.String(), got, err, tt.want)
		}
	}
	_, err := findIDs(ctx, d, td.Query{Organization: "other"})
	wantCode(t, err, interact.NotFound, "no organization")
	_, err = findIDs(as(t, did.Untrusted), d, td.Query{Organization: "globex"})
	wantCode(t, err, interact.NotFound, "no organization") // names are not others' business
}

// TestClaimsDoNotRank finds a score that depends on what a description says of its organization.
func TestClaimsDoNotRank(t *testing.T) {
	t.Parallel()
	d, _ := partners(t)
	descs := []*td.Description{owned(t, 6, "", ""), owned(t, 2, globex, ""), owned(t, 3, "", "Globex")}
	for _, q := range []td.Query{{Text: "logistics"}, {Text: "globex logistics"}, {Organization: "globex", Claimed: true}} {
		ranked := d.Rank(as(t, did.Local), q, descs)
		for _, r := range ranked {
			if r.Score != ranked[0].Score {
				t.Errorf("%s: %s has %f, %s %f", q.String(), r.ID, r.Score, ranked[0].ID, ranked[0].Score)
			}
		}
	}
}

func TestReferencesWithAnOrganization(t *testing.T) {
	t.Parallel()
	d, _ := partners(t)
	ctx := as(t, did.Local)
	got := func(ref string) string {
		desc, err := d.Get(ctx, ref)
		if err != nil {
			return interact.AsError(err).Code.String() + " " + err.Error()
		}
		return strings.TrimPrefix(desc.ID, "urn:example:logistics-")
	}
	for ref, want := range map[string]string{
		"own/logistics": "4", "acme/Logistics": "4",
		"globex/logistics@" + didtest.Key(1).DID().Multibase(): "1",
		"globex/logistics@" + didtest.Key(2).DID().Multibase(): interact.NotFound.String(), // it only claims globex
		"globex/urn:example:logistics-1":                       "1",
		"globex/urn:example:logistics-2":                       interact.NotFound.String(),
		"globex/weather":                                       interact.NotFound.String(),
		"other/logistics":                                      interact.NotFound.String() + " no organization is called",
		"globex/z6Mk":                                          interact.NotFound.String(),
	} {
		if is := got(ref); is != want && !(len(want) > 1 && strings.Contains(is, want)) {
			t.Errorf("%s: got %s, want %s", ref, is, want)
		}
	}
	_, err := d.Get(ctx, "globex/logistics")
	wantCode(t, err, interact.Ambiguous, "logistics-1", "logistics-5")
	if text := err.Error() + strings.Join(steps(err), " "); strings.Contains(text, "logistics-2") || strings.Contains(text, "logistics-4") {
		t.Errorf("the error lists others: %s", text)
	}
	_, err = d.Get(ctx, "globex/logistic")
	wantCode(t, err, interact.NotFound, "globex/logistics")
	_, err = d.Get(as(t, did.Untrusted), "globex/logistics")
	wantCode(t, err, interact.NotFound, "no organization")
}

// TestAReferenceFindsOnlyWhatIsVisible finds an ambiguous reference that lists a Thing that the caller may not find.
func TestAReferenceFindsOnlyWhatIsVisible(t *testing.T) {
	t.Parallel()
	o := &orgs{members: map[did.DID][]did.DID{globex: {didtest.Key(1).DID(), didtest.Key(2).DID()}}}
	hidden := owned(t, 2, globex, "").ID
	d := filled(t, Options{Organizations: o, Sees: func(_ *did.Principal, d *td.Description) bool { return d.ID != hidden },
		Scope: func(*did.Principal) (s td.Scope) {
			for v := range s.Each {
				s.Each[v] = true
			}
			return s
		}}, owned(t, 1, globex, ""), owned(t, 2, globex, ""))
	if desc, err := d.Get(as(t, did.Local), "globex/logistics"); err != nil || desc.ID == hidden {
		t.Errorf("got %v, %v", desc, err)
	}
}

func TestAffiliationForOthers(t *testing.T) {
	t.Parallel()
	d, o := partners(t)
	member, claimer := owned(t, 1, globex, ""), owned(t, 2, globex, "")
	if a := d.Affiliation(as(t, did.Local), member); a.State != PartnerOrganization {
		t.Errorf("a consumer gets %+v", a)
	}
	if a := d.Affiliation(as(t, did.Untrusted), member); a.State != ClaimedOrganization || a.DID != globex || a.Name != "globex.example" {
		t.Errorf("an untrusted caller gets %+v", a)
	}
	if a := d.Affiliation(as(t, did.Local), claimer); a.State != ClaimedOrganization {
		t.Errorf("a claim is %+v", a)
	}
	d.VerifyMembers(as(t, did.Untrusted), member)
	if o.asked.Load() != 0 {
		t.Error("an untrusted caller causes requests")
	}
}

// steps returns the arguments of the steps of an error.
func steps(err error) (all []string) {
	for _, s := range interact.AsError(err).Next {
		all = append(all, s.Args...)
	}
	return all
}
