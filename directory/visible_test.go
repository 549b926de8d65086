package directory

import (
	"context"
	"errors"
	"iter"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// restrictedTo returns a signed description for an audience.
func restrictedTo(t testing.TB, a agent, seq uint64, v td.Visibility) *td.Signed {
	t.Helper()
	raw := []byte(strings.Replace(string(a.json()), "{", `{"lmosd:visibility":"`+v.String()+`",`, 1))
	thing, err := td.Complete(raw, a.key.DID())
	if err != nil {
		t.Fatal(err)
	}
	s, err := td.Sign(thing, a.key, td.Lease{Seq: seq, Now: time.Now(), Lifetime: time.Hour, Hosts: a.hosts})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// as returns a context with a principal of a relation.
func as(t testing.TB, r did.Relation) context.Context {
	p := *did.Consumer(did.Loopback, "")
	p.Relation = r
	return did.WithPrincipal(t.Context(), &p)
}

// checked is a capability with more parts than the index has: each Thing is checked.
const checked = "a:b:c:d:e:f:g:h:i:j:k:l:m"

// audiences is a directory with a Thing for each visibility, of one owner: urn:public, urn:partners, urn:organization, urn:private.
func audiences(t testing.TB, o Options) *Directory {
	t.Helper()
	if o.Sees == nil {
		o.Sees = ByRelation
	}
	d := openDirectory(t, o)
	for _, v := range []td.Visibility{td.Public, td.Partners, td.Organization, td.Private} {
		a := agent{key: didtest.Key(1), id: "urn:" + v.String(), title: "Agent for " + v.String(), caps: []string{"urn:example:kettle", checked}}
		if _, err := d.Add(described(t, restrictedTo(t, a, 1, v))); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

func TestEachCallerSeesItsAudience(t *testing.T) {
	t.Parallel()
	for _, scope := range []func(*did.Principal) td.Scope{nil, ScopeByRelation} {
		testAudiences(t, audiences(t, Options{Scope: scope}))
	}
}

func testAudiences(t *testing.T, d *Directory) {
	t.Helper()
	for _, c := range []struct {
		name string
		ctx  context.Context
		want string
	}{
		{"no caller", t.Context(), "urn:public"},
		{"untrusted", as(t, did.Untrusted), "urn:public"},
		{"partner", as(t, did.Partner), "urn:public"},
		{"own", as(t, did.Own), "urn:organization urn:partners urn:public"},
		{"local", as(t, did.Local), "urn:organization urn:partners urn:private urn:public"},
		{"this process", did.AsProcess(t.Context()), "urn:organization urn:partners urn:private urn:public"},
	} {
		want := strings.Fields(c.want)
		sorted := func(all string) string { return strings.Join(slices.Sorted(slices.Values(strings.Fields(all))), " ") }
		for _, q := range []td.Query{{}, {Capability: []string{"urn:example:kettle"}}, {Text: "kettle agent"}, {Type: "agent", Version: ""},
			{Owner: didtest.Key(1).DID()}, {Not: []td.Query{{ID: "urn:x"}}}} {
			q.Counter = new(td.CoverageCounter)
			if got := sorted(ids(d.FindLocal(c.ctx, q))); got != c.want {
				t.Errorf("%s: FindLocal of %+v: got %q, want %q", c.name, q, got, c.want)
			}
			if total, ok := q.Counter.Total(); ok && total != len(want) {
				t.Errorf("%s: FindLocal of %+v counts %d", c.name, q, total)
			}
		}
		p := d.Page(c.ctx, td.Query{}, 0, 10)
		if got := paged(p); !strings.HasSuffix(got, c.want) && p.Total != len(want) || p.Total != len(want) || len(p.Items) != len(want) {
			t.Errorf("%s: Page: got %q of %d", c.name, got, p.Total)
		}
		if p := d.Page(c.ctx, td.Query{}, len(want)-1, 1); len(p.Items) != 1 || p.Items[0].Record().Thing != want[len(want)-1] {
			t.Errorf("%s: the last page: got %q", c.name, paged(p))
		}
		if _, n := d.Count(c.ctx); n != len(want) {
			t.Errorf("%s: Count: got %d", c.name, n)
		}
		for _, v := range []td.Visibility{td.Public, td.Partners, td.Organization, td.Private} {
			id := "urn:" + v.String()
			for _, ref := range []string{id, id + "@" + didtest.Key(1).DID().Multibase(), "agent-for-" + v.String()} {
				_, err := d.Get(c.ctx, ref)
				if (err == nil) != slices.Contains(want, id) {
					t.Errorf("%s: Get of %s: %v", c.name, ref, err)
				}
			}
		}
		peer := []string{}
		for _, s := range d.Known(c.ctx, td.Query{}) {
			r, err := d.opts.Verifier.Record(s.Record, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			peer = append(peer, r.Thing)
		}
		if !slices.Equal(peer, []string{"urn:public"}) {
			t.Errorf("%s: as a peer: %q", c.name, peer)
		}
	}
	for _, v := range []td.Visibility{td.Public, td.Partners, td.Organization, td.Private} {
		if s := d.Signed(td.Key(didtest.Key(1).DID(), "urn:"+v.String())); (s != nil) != (v == td.Public) {
			t.Errorf("Signed gives %s: %t", v, s != nil)
		}
	}
}

// The version of a list is that of what its reader sees.
func TestVersionOfAList(t *testing.T) {
	t.Parallel()
	d := audiences(t, Options{})
	version := func(r did.Relation) uint64 { return d.Page(as(t, r), td.Query{}, 0, 1).Version }
	untrusted, own, local := version(did.Untrusted), version(did.Own), version(did.Local)
	change := agent{key: didtest.Key(1), id: "urn:private", title: "Another title", caps: []string{"urn:example:kettle", checked}}
	if _, err := d.Add(described(t, restrictedTo(t, change, 2, td.Private))); err != nil {
		t.Fatal(err)
	}
	if version(did.Untrusted) != untrusted || version(did.Own) != own || version(did.Local) == local {
		t.Error("a change of a private Thing changes the versions of those who do not see it, or not that of those who do")
	}
	if change.id = "urn:public"; true {
		if _, err := d.Add(described(t, change.signed(t, 2))); err != nil {
			t.Fatal(err)
		}
	}
	if version(did.Untrusted) == untrusted || version(did.Own) == own {
		t.Error("a change of a public Thing does not change the versions")
	}
}

// Suggestions, ambiguous names, namesakes and withdrawals name only Things that the caller sees.
func TestErrorsNameOnlyVisibleThings(t *testing.T) {
	t.Parallel()
	d := openDirectory(t, Options{Sees: ByRelation})
	for i, v := range []td.Visibility{td.Private, td.Public, td.Private} {
		a := agent{key: didtest.Key(i + 1), id: []string{"urn:a", "urn:b", "urn:quartz"}[i], title: []string{"Kettle", "Kettle", "Quartz"}[i]}
		s := restrictedTo(t, a, 1, v)
		if _, err := d.put(described(t, s), received); err != nil {
			t.Fatal(err)
		}
	}
	untrusted, local := as(t, did.Untrusted), as(t, did.Local)
	if desc, err := d.Get(untrusted, "kettle"); err != nil || desc.Record.Owner != didtest.Key(2).DID() {
		t.Errorf("an ambiguous name that is unique for the caller: %v, %v", desc, err)
	}
	_, err := d.Get(local, "kettle")
	wantCode(t, err, interact.Ambiguous, "2 agents")
	_, err = d.Get(untrusted, "quartx")
	wantCode(t, err, interact.NotFound)
	if strings.Contains(interact.AsError(err).Hint, "quartz") || len(interact.AsError(err).Next) != len(interact.AsError(interact.NoAgent("x")).Next) {
		t.Errorf("the suggestion is %+v", interact.AsError(err))
	}
	if _, err = d.Get(local, "quartx"); !reflect.DeepEqual(interact.AsError(err).Next, interact.Next(interact.StepShow, "quartz")) {
		t.Errorf("the suggestion for a consumer of the node is %+v", interact.AsError(err).Next)
	}
	desc, _ := d.Get(untrusted, "kettle")
	if got := d.Namesakes(untrusted, "kettle", desc, 8); len(got) != 0 {
		t.Errorf("namesakes %q", got)
	}
	if got := d.Namesakes(local, "kettle", desc, 8); len(got) != 1 {
		t.Errorf("namesakes for a consumer of the node %q", got)
	}
	gone, err := td.SignTombstone(didtest.Key(3), "urn:quartz", td.Lease{Seq: 2, Now: time.Now(), Lifetime: time.Hour, Audience: td.Private}, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Add(described(t, gone)); err != nil {
		t.Fatal(err)
	}
	exact := td.ExactRef("urn:quartz", didtest.Key(3).DID())
	_, err = d.Get(untrusted, exact)
	wantCode(t, err, interact.NotFound)
	_, err = d.Get(local, exact)
	wantCode(t, err, interact.Withdrawn)
}

// A watcher gets the changes of what it sees. A Thing that becomes restricted leaves with its last public description.
func TestWatchersGetVisibleChanges(t *testing.T) {
	t.Parallel()
	d := openDirectory(t, Options{Sees: ByRelation})
	a := agent{key: didtest.Key(1), id: "urn:kettle", title: "Old"}
	start := d.Latest()
	add := func(s *td.Signed) {
		if _, err := d.Add(described(t, s)); err != nil {
			t.Fatal(err)
		}
	}
	add(a.signed(t, 1))
	a.title = "Secret"
	add(restrictedTo(t, a, 2, td.Organization))
	a.title = "Secret again"
	add(restrictedTo(t, a, 3, td.Organization))
	a.title = "New"
	add(a.signed(t, 4))
	for r, want := range map[did.Relation]string{did.Untrusted: "1 Old, 3 Old, 1 New", did.Own: "1 Old, 2 Secret, 2 Secret again, 2 New"} {
		var got []string
		next, stop := iter.Pull2(d.Watch(as(t, r), td.Query{}, start))
		for range strings.Count(want, ",") + 1 {
			c, err, _ := next()
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, strings.TrimSpace(strings.Join([]string{string(rune('0' + int(c.Kind))), c.Thing.Title}, " ")))
			if r == did.Untrusted && c.Was != nil {
				t.Errorf("a hidden description is given: %s", c.Was.Title)
			}
		}
		stop()
		if strings.Join(got, ", ") != want {
			t.Errorf("%s: got %q, want %q", r, got, want)
		}
	}
}

// With a rule that denies public Things, each is checked.
func TestPublicThingsMayBeDenied(t *testing.T) {
	t.Parallel()
	for name, scope := range map[string]td.Scope{
		"each is asked for": {Each: [td.Private + 1]bool{true, true, true, true}},
		"by name":           {All: [td.Private + 1]bool{true}, Deny: []td.Query{{Name: "agent-for-public"}}},
		"by id":             {All: [td.Private + 1]bool{true}, Deny: []td.Query{{ID: "urn:public"}, {Name: "unknown"}}},
		"none":              {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testDeniedPublicThing(t, scope)
		})
	}
}

func testDeniedPublicThing(t *testing.T, scope td.Scope) {
	t.Helper()
	d := audiences(t, Options{
		Scope: func(p *did.Principal) td.Scope {
			s := scope
			if p != nil && p.Relation == did.Local {
				return ScopeByRelation(p)
			}
			s.All[td.Partners] = p != nil && p.Relation == did.Own
			s.All[td.Organization] = s.All[td.Partners]
			return s
		},
		Sees: func(p *did.Principal, d *td.Description) bool {
			return ByRelation(p, d) && (d.ID != "urn:public" || p != nil && p.Relation == did.Local)
		}})
	for _, q := range []td.Query{{}, {Text: "kettle agent"}, {Capability: []string{checked}}} {
		if got := ids(d.FindLocal(as(t, did.Untrusted), q)); got != "" {
			t.Errorf("%+v: got %q", q, got)
		}
	}
	if p := d.Page(as(t, did.Own), td.Query{}, 0, 10); p.Total != 2 {
		t.Errorf("got %q of %d", paged(p), p.Total)
	}
	if n := len(d.Known(as(t, did.Untrusted), td.Query{})); n != 0 {
		t.Errorf("a peer gets %d records", n)
	}
	if _, err := d.Get(as(t, did.Own), "urn:public"); err == nil {
		t.Error("a denied Thing is given")
	}
	if _, n := d.Count(as(t, did.Local)); n != 4 {
		t.Errorf("a consumer of the node sees %d", n)
	}
}

// A rule that allows a Thing adds it to what the caller finds anyway.
func TestRestrictedThingsMayBeAllowed(t *testing.T) {
	t.Parallel()
	for name, named := range map[string][]td.Query{
		"by name": {{Name: "agent-for-partners"}}, "by id": {{ID: "urn:partners"}}, "with one that is visible": {{ID: "urn:partners"}, {ID: "urn:public"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := audiences(t, Options{
				Scope: func(*did.Principal) td.Scope { return td.Scope{All: [td.Private + 1]bool{true}, Allow: named} },
				Sees: func(_ *did.Principal, d *td.Description) bool {
					return d.Visibility == td.Public || d.ID == "urn:partners"
				},
			})
			ctx := as(t, did.Partner)
			for _, q := range []td.Query{{}, {Text: "kettle agent"}, {Capability: []string{checked}}} {
				got := strings.Fields(ids(d.FindLocal(ctx, q))) // in any order
				if slices.Sort(got); !slices.Equal(got, []string{"urn:partners", "urn:public"}) {
					t.Errorf("%+v: got %q", q, got)
				}
			}
			if p := d.Page(ctx, td.Query{}, 1, 10); p.Total != 2 || len(p.Items) != 1 {
				t.Errorf("got %q of %d", paged(p), p.Total)
			}
			if n := len(d.Known(ctx, td.Query{})); n != 1 {
				t.Errorf("a peer gets %d records", n)
			}
		})
	}
}

// Restricted records arrive only from their owner or a host, and public ones only by the other ways.
func TestIngestRestricted(t *testing.T) {
	t.Parallel()
	d := openDirectory(t, Options{Sees: ByRelation})
	host := didtest.Key(5).DID()
	a := agent{key: didtest.Key(1), id: "urn:kettle", title: "Kettle", hosts: []td.Host{{Node: host}}}
	s := restrictedTo(t, a, 7, td.Partners)
	d.Ingest(t.Context(), s)
	if _, n := d.Len(); n != 0 || d.Stats().Invalid != 1 {
		t.Errorf("a restricted record from anywhere: %d Things", n)
	}
	for name, c := range map[string]struct {
		s    *td.Signed
		from did.DID
	}{
		"a third node": {s, didtest.Key(6).DID()}, "a public record": {a.signed(t, 8), host}, "a private record": {restrictedTo(t, a, 9, td.Private), host},
		"garbage": {&td.Signed{Record: []byte("x")}, host},
	} {
		if err := d.IngestRestricted(t.Context(), c.s, c.from); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	for _, from := range []did.DID{host, host, a.key.DID()} { // known ones are no error
		if err := d.IngestRestricted(t.Context(), s, from); err != nil {
			t.Errorf("from %s: %v", from.Short(), err)
		}
	}
	if got := ids(d.FindLocal(as(t, did.Local), td.Query{})); got != "urn:kettle" {
		t.Errorf("got %q", got)
	}
	if d.Signed(td.Key(a.key.DID(), a.id)) != nil || len(d.Known(as(t, did.Own), td.Query{})) != 0 {
		t.Error("other nodes get it")
	}
	gone, err := td.SignTombstone(a.key, a.id, td.Lease{Seq: 8, Now: time.Now(), Lifetime: time.Hour, Audience: td.Partners}, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.IngestRestricted(t.Context(), gone, didtest.Key(6).DID()); err == nil {
		t.Error("a third node withdraws it")
	}
	if err := d.IngestRestricted(t.Context(), gone, host); err != nil {
		t.Error(err)
	}
	if _, n := d.Len(); n != 0 {
		t.Errorf("%d Things after the withdrawal", n)
	}
}

// A node that replaced its key gives out, with the new one and after restarts, how it moved restricted Things to that: nodes that were away take it from
// the new key, also if they refuse the old one by then.
func TestHandedThings(t *testing.T) {
	t.Parallel()
	before, key := didtest.Key(1), didtest.Key(2).DID()
	a := agent{key: before, id: "urn:kettle", title: "Kettle", hosts: []td.Host{{Node: before.DID()}}}
	away := openDirectory(t, Options{Sees: ByRelation, Self: didtest.Key(3).DID(), Admits: func(id did.DID) error {
		if id == before.DID() {
			return errors.New("its organization revoked the node")
		}
		return nil
	}})
	known := restrictedTo(t, a, 1, td.Partners)
	if _, err := away.put(described(t, known), restored); err != nil {
		t.Fatal(err)
	}
	store := memory()
	for _, self := range []did.DID{before.DID(), key, key} {
		d := openDirectory(t, Options{Sees: ByRelation, Self: self, Store: store})
		if self == before.DID() {
			for thing, audience := range map[string]td.Visibility{"urn:kettle": td.Partners, "urn:public": td.Public, "urn:private": td.Private} {
				moved, err := td.Move(before, thing, key, td.Lease{Seq: 2, Now: time.Now(), Lifetime: time.Hour, Audience: audience})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := d.Add(described(t, moved)); err != nil {
					t.Fatal(err)
				}
			}
			received, err := td.Move(didtest.Key(4), "urn:other", key, td.Lease{Seq: 2, Now: time.Now(), Lifetime: time.Hour, Audience: td.Partners})
			if err != nil {
				t.Fatal(err)
			}
			if err := d.IngestRestricted(t.Context(), received, didtest.Key(4).DID()); err != nil {
				t.Fatal(err)
			}
			if err := d.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		got := d.Handed(as(t, did.Own))
		if self == before.DID() {
			if len(got) != 0 { // publication.Index.Restricted has it
				t.Errorf("the key before hands %d Things to itself", len(got))
			}
			continue
		}
		if len(got) != 1 || len(d.Handed(as(t, did.Untrusted))) != 0 {
			t.Fatalf("%d moves for a member, %d for others", len(got), len(d.Handed(as(t, did.Untrusted))))
		}
		if err := away.IngestRestricted(t.Context(), got[0], didtest.Key(4).DID()); err == nil {
			t.Error("a third node withdraws it")
		}
		if err := away.IngestRestricted(t.Context(), got[0], key); err != nil {
			t.Error(err)
		}
		if _, n := away.Len(); n != 0 {
			t.Errorf("%d Things after the move", n)
		}
	}
}

// Restricted Things survive a restart, and are not compared with other nodes.
func TestRestrictedThingsAreStored(t *testing.T) {
	t.Parallel()
	store := memory()
	a := agent{key: didtest.Key(1), id: "urn:kettle", title: "Kettle", hosts: []td.Host{{Node: didtest.Key(5).DID()}}}
	for i := range 2 {
		compared := 0
		d := openDirectory(t, Options{Sees: ByRelation, Store: store, OnChange: func(_ [32]byte, _ uint64, here bool) {
			if here {
				compared++
			}
		}})
		if i == 0 {
			if err := d.IngestRestricted(t.Context(), restrictedTo(t, a, 7, td.Partners), didtest.Key(5).DID()); err != nil {
				t.Fatal(err)
			}
		}
		if _, all := d.Count(as(t, did.Local)); all != 1 || compared != 0 {
			t.Errorf("run %d: %d Things, %d compared", i, all, compared)
		}
		if _, all := d.Count(as(t, did.Untrusted)); all != 0 {
			t.Errorf("run %d: an untrusted caller sees it", i)
		}
		if err := d.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// unread are the methods of a directory that return something about Things without a caller, with the reason.
var unread = map[string]string{
	"Add":           "of the node itself: whether it changed",
	"Before":        "a number of the change log",
	"Close":         "an error of the store",
	"Equivocation":  "evidence, of public records only",
	"Equivocations": "evidence, of public records only",
	"Established":   "about a record that the caller has",
	"Fill":          "a fraction, for warnings",
	"Grant":         "of the node itself: what it hosts for others",
	"Hosts":         "of the node itself: which hosts to dial",
	"IsIncomplete":  "about the whole index",
	"Latest":        "a number of the change log",
	"Mark":          "a number before the next change",
	"More":          "a channel: when to read the change log; Watch returns what the caller may see",
	"Len":           "of the node itself: how often to announce; Count is for callers",
	"Resembles":     "a name, of public Things only",
	"Room":          "of the node itself, for reconciliation",
	"Seq":           "of the node itself: the next sequence number",
	"SeqAt":         "of the node itself: the next sequence number",
	"Signed":        "public records only, for reconciliation",
	"Stats":         "counters, for callers that see everything",
}

// Each method of the directory that returns something has a context, whose principal decides what is visible, or a reason in unread.
func TestReadersHaveACaller(t *testing.T) {
	t.Parallel()
	type none interface{}
	var tracker none = (&Directory{}).Tracker
	of, known := reflect.TypeFor[*Directory](), reflect.TypeOf(tracker)
	ctx := reflect.TypeFor[context.Context]()
	for i := range of.NumMethod() {
		m := of.Method(i)
		if _, promoted := known.MethodByName(m.Name); promoted || m.Type.NumOut() == 0 {
			continue // the reachability of hosts; no result
		}
		_, excepted := unread[m.Name]
		if has := m.Type.NumIn() > 1 && m.Type.In(1) == ctx; has == excepted {
			t.Errorf("%s: it needs a context, or a reason", m.Name)
		}
	}
}

// The number of Things at a host has those that the caller may see, and a host of none of them is not named.
func TestCountByHost(t *testing.T) {
	t.Parallel()
	d := openDirectory(t, Options{Sees: ByRelation, Scope: ScopeByRelation})
	one, two := didtest.Key(2).DID(), didtest.Key(3).DID()
	for i, v := range []td.Visibility{td.Public, td.Public, td.Organization, td.Private} {
		a := agent{key: didtest.Key(1), id: "urn:" + v.String() + strings.Repeat("x", i), title: "Agent", hosts: []td.Host{{Node: one}}}
		if v == td.Private {
			a.hosts = []td.Host{{Node: two}}
		}
		if _, err := d.Add(described(t, restrictedTo(t, a, 1, v))); err != nil {
			t.Fatal(err)
		}
	}
	for r, want := range map[did.Relation]map[did.DID]int{did.Untrusted: {one: 2}, did.Own: {one: 3}, did.Local: {one: 3, two: 1}} {
		if got := d.CountByHost(as(t, r)); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %v, want %v", r, got, want)
		}
	}
}
