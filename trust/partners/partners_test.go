package partners

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/webvh"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// organization returns the DID of an organization that nobody made.
func organization(n int) did.DID {
	const scid = "QmT4z6dmPzCDBmvDWUtjmCqeeaiPFJnVgMBzQyNo8kRVqA"
	return did.DID(fmt.Sprintf("did:webvh:%s%c:globex.example", scid[:len(scid)-1], 'B'+rune(n)))
}

var own = organization(20)

func partner(n int, since time.Time, change func(*Partner)) *Partner {
	p := &Partner{Name: fmt.Sprintf("p%d", n), DID: organization(n), Since: since, Changed: since}
	if change != nil {
		change(p)
	}
	return p
}

func listOf(all ...*Partner) *List { return &List{Partners: all} }

// Two issuers that change partners at once lose none, and both changes count.
func TestMergeOfTwoIssuers(t *testing.T) {
	t.Parallel()
	common := partner(0, noon, nil)
	a, b := New(), New()
	a.Partners = []*Partner{common, partner(1, noon.Add(time.Minute), nil)}
	b.Partners = []*Partner{common, partner(2, noon.Add(2*time.Minute), nil)}
	b.Change(common, noon.Add(time.Minute), func(p *Partner) { p.Removed = noon.Add(time.Minute) })
	listA, listB := a.List(own, noon.Add(time.Hour)), b.List(own, noon.Add(time.Hour))
	if !a.Merge(listB, own) || !b.Merge(listA, own) {
		t.Error("a list that lacks a partner is not behind")
	}
	for name, book := range map[string]*Book{"first": a, "second": b} {
		if p := book.Find("p0"); len(book.Partners) != 3 || book.Find("p1") == nil || book.Find("p2") == nil || !p.IsRemoved() {
			t.Errorf("the %s issuer has %s", name, textOf(book))
		}
	}
	if a.Merge(b.List(own, noon), own) || b.Merge(a.List(own, noon), own) {
		t.Error("after both lists, one is behind")
	}
}

func textOf(b *Book) string {
	text, _ := json.Marshal(b.Partners)
	return string(text)
}

// Of one organization, the later partnership counts; in it, the end counts more than other changes, and then the later change.
func TestMergeOfOnePartner(t *testing.T) {
	t.Parallel()
	later := noon.Add(time.Hour)
	removed := func(p *Partner) { p.Removed = noon }
	confirmed := func(p *Partner) { p.Confirmed, p.Changed = true, later }
	for name, c := range map[string]struct{ have, listed, want *Partner }{
		"a later change":    {partner(1, noon, nil), partner(1, noon, confirmed), partner(1, noon, confirmed)},
		"an earlier change": {partner(1, noon, confirmed), partner(1, noon, nil), partner(1, noon, confirmed)},
		"an end":            {partner(1, noon, confirmed), partner(1, noon, removed), partner(1, noon, removed)},
		"after an end":      {partner(1, noon, removed), partner(1, noon, confirmed), partner(1, noon, removed)},
		"partners again":    {partner(1, noon, removed), partner(1, later, nil), partner(1, later, nil)},
		"the other name":    {partner(1, noon, func(p *Partner) { p.Name = "here" }), partner(1, noon, confirmed), partner(1, noon, func(p *Partner) { confirmed(p); p.Name = "here" })},
		"suspended here":    {partner(1, noon, func(p *Partner) { p.Forked, p.Other = true, "2-Qm" }), partner(1, noon, confirmed), partner(1, noon, func(p *Partner) { confirmed(p); p.Forked, p.Other = true, "2-Qm" })},
		"chosen elsewhere":  {partner(1, noon, func(p *Partner) { p.Forked, p.Other = true, "2-Qm" }), partner(1, noon, func(p *Partner) { confirmed(p); p.Chosen = "2-Qm" }), partner(1, noon, func(p *Partner) { confirmed(p); p.Chosen = "2-Qm" })},
	} {
		b := New()
		b.Partners = []*Partner{c.have}
		b.Merge(listOf(c.listed), own)
		want := New()
		want.Partners = []*Partner{c.want}
		if textOf(b) != textOf(want) {
			t.Errorf("%s: %s, want %s", name, textOf(b), textOf(want))
		}
	}
}

// A partner whose name is taken here gets another one: it is not lost.
func TestMergeWithATakenName(t *testing.T) {
	t.Parallel()
	b := New()
	b.Partners = []*Partner{partner(1, noon, nil)}
	b.Merge(listOf(partner(2, noon, func(p *Partner) { p.Name = "p1" })), own)
	if p := b.Find(webvh.SCID(organization(2))); p == nil || p.Name != "p1-2" {
		t.Errorf("got %s", textOf(b))
	}
}

// Nodes that merge the same lists, in any order, agree.
func TestMergeInAnyOrder(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	for range 200 {
		lists := make([]*List, 6)
		for i := range lists {
			lists[i] = &List{}
			for n := range 4 {
				if random.IntN(3) == 0 {
					continue
				}
				lists[i].Partners = append(lists[i].Partners, partner(n, noon.Add(time.Duration(random.IntN(2))*time.Hour), func(p *Partner) {
					p.Changed = noon.Add(time.Duration(random.IntN(3)) * time.Hour)
					p.Confirmed = random.IntN(2) == 0
					if random.IntN(3) == 0 {
						p.Removed = p.Changed
					}
				}))
			}
		}
		var want []string
		for range 3 {
			random.Shuffle(len(lists), func(i, j int) { lists[i], lists[j] = lists[j], lists[i] })
			b := New()
			for _, l := range lists {
				b.Merge(l, own)
			}
			var got []string
			for _, p := range b.Partners {
				got = append(got, p.SCID()+string(p.stated()))
			}
			slices.Sort(got)
			if want != nil && !slices.Equal(got, want) {
				t.Fatalf("two orders: %q and %q", got, want)
			}
			want = got
		}
	}
}

// Of two lists with one version, all nodes take the same.
func TestListsOfOneVersion(t *testing.T) {
	t.Parallel()
	b := New()
	b.Shared, b.SharedHead = 7, "b"
	for _, c := range []struct {
		version uint64
		head    string
		want    bool
	}{{6, "c", false}, {7, "a", false}, {7, "b", false}, {7, "c", true}, {8, "a", true}} {
		if got := b.IsNewer(c.version, c.head); got != c.want {
			t.Errorf("%d %s: %t", c.version, c.head, got)
		}
	}
}

func TestCheckList(t *testing.T) {
	t.Parallel()
	valid := func() *List {
		b := New()
		b.Partners = []*Partner{partner(1, noon, nil)}
		return b.List(own, noon)
	}
	if err := valid().Check(own, noon); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*List){
		"another type":         func(l *List) { l.Type = "OrganizationStatus" },
		"another organization": func(l *List) { l.Organization = organization(3) },
		"no partner":           func(l *List) { l.Partners = []*Partner{nil} },
		"a wrong DID":          func(l *List) { l.Partners[0].DID = "did:web:globex.example" },
		"a wrong name":         func(l *List) { l.Partners[0].Name = "own" },
		"expired":              func(l *List) { l.ValidUntil = noon.Add(-time.Second) },
		"too many":             func(l *List) { l.Partners = make([]*Partner, MaxPartners+1) },
	} {
		l := valid()
		change(l)
		if l.Check(own, noon) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestBookOnDisk(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "trust.json")
	b := New()
	if err := b.Put(partner(1, noon, nil)); err != nil {
		t.Fatal(err)
	}
	b.Bind("did:webvh:acme#i1", "did:key:z6Mk")
	if err := b.Write(path); err != nil {
		t.Fatal(err)
	}
	again, err := Read(path)
	if err != nil || textOf(again) != textOf(b) || again.IssuerNodes["did:webvh:acme#i1"] != "did:key:z6Mk" {
		t.Errorf("%+v, %v", again, err)
	}
	if c := b.Clone(); c.Change(c.Partners[0], noon.Add(-time.Hour), func(p *Partner) { p.Confirmed = true }).Changed.Before(noon) || b.Partners[0].Confirmed {
		t.Error("a change went back in time, or into the other book")
	}
	for n := range MaxPartners + 1 {
		p := partner(0, noon, nil)
		const digits = "abcdefghijkmnopqrstuvwxyz"
		p.DID = did.DID(fmt.Sprintf("did:webvh:QmT4z6dmPzCDBmvDWUtjmCqeeaiPFJnVgMBzQyNo8k%c%cAA:globex.example", digits[n/25], digits[n%25]))
		err = b.Put(p)
	}
	if err == nil || len(b.Partners) > MaxPartners {
		t.Errorf("%d partners: %v", len(b.Partners), err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"version":1,"partners":[{"name":"globex","did":"did:webvh:QmT4z6dmPzCDBmvDWUtjmCqeeaiPFJnVgMBzQyNo8kRVqA:globex.example"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		b, err := parse(text)
		if err == nil && b.Version != bookVersion {
			t.Errorf("read version %d", b.Version)
		}
	})
}
