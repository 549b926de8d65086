package directory

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/directory/index"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// tombstoneOf returns the tombstone of desc.
func tombstoneOf(desc *td.Description) *td.Description {
	tomb := with(desc, func(r *td.Record) { r.Seq, r.Kind = r.Seq+1, td.KindTombstone })
	tomb.Thing = nil
	return tomb
}

// wantEmpty checks that the index is empty.
func wantEmpty(t *testing.T, d *Directory) {
	t.Helper()
	if d.index.Bytes() != 0 || d.index.Len() != 0 || d.own.Len() != 0 {
		t.Errorf("%d bytes and %d Things in the index, %d own", d.index.Bytes(), d.index.Len(), d.own.Len())
	}
	if d.bytes != 0 || len(d.ownerBytes) != 0 {
		t.Errorf("weight %d, of owners %v: want nothing", d.bytes, d.ownerBytes)
	}
}

// A Thing with more words than the limit leaves no slot behind.
func TestManyWordsLeaveTheIndex(t *testing.T) {
	t.Parallel()
	many := plain(t, 1, "urn:many", "Many")
	many.Actions = map[string]*td.Action{}
	for i := range 2 * index.MaxWords {
		many.Actions[fmt.Sprintf("action%d", i)] = &td.Action{}
	}
	d := filled(t, Options{}, many)
	if _, err := d.put(tombstoneOf(many), received); err != nil {
		t.Fatal(err)
	}
	wantEmpty(t, d)
	for range d.FindLocal(t.Context(), td.Query{Text: "action"}) { // a slot without an entry would panic
		t.Error("found a withdrawn Thing")
	}
}

// The title in a record can change without a change of the TD.
func TestTitleOfARecordChanges(t *testing.T) {
	t.Parallel()
	first := plain(t, 1, "urn:x", "Weather")
	second := with(first, func(r *td.Record) { r.Seq, r.Title = 2, "Bank" })
	d := filled(t, Options{}, first, second)
	if desc, err := d.Get(t.Context(), "bank"); err != nil || desc != second {
		t.Errorf("got %v, %v", desc, err)
	}
	_, err := d.Get(t.Context(), "weather")
	wantCode(t, err, interact.NotFound)
	if _, err := d.put(tombstoneOf(second), received); err != nil {
		t.Fatal(err)
	}
	wantEmpty(t, d)
	_, err = d.Get(t.Context(), "weather")
	wantCode(t, err, interact.NotFound)
}

// A record with the hash of another owner's TD and an unreachable host does not block the fetch of that TD.
func TestHashOfAnotherOwner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		honest := weather(t, 1)
		honest.hosts = []td.Host{{Node: didtest.Key(3).DID()}}
		s := honest.signed(t, 1)
		body := described(t, s).Signed.TD
		r := described(t, s).Record
		thief := *r
		thief.Owner, thief.Hosts = didtest.Key(2).DID(), []td.Host{{Node: didtest.Key(4).DID()}}
		d := openDirectory(t, Options{Fetch: func(ctx context.Context, r *td.Record) ([]byte, error) {
			if r.Owner == thief.Owner {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return body, nil
		}})
		defer run(t, d)()
		// Both concurrently, and then after the fetch for the other record has failed 5 times.
		done := make(chan error, 1)
		go func() { _, err := d.fetcher.TD(t.Context(), &thief); done <- err }()
		synctest.Wait()
		if got, err := d.fetcher.TD(t.Context(), r); err != nil || string(got) != string(body) {
			t.Errorf("while the other fetch hangs: %v", err)
		}
		if err := <-done; err == nil {
			t.Error("a dead host answered")
		}
		for tries := range 4 {
			time.Sleep(5 * time.Second << (2 * tries))
			_, _ = d.fetcher.TD(t.Context(), &thief)
		}
		d.Enqueue(bare(t, s))
		synctest.Wait()
		if got := ids(d.FindLocal(t.Context(), td.Query{})); got != honest.id {
			t.Errorf("got %q, want %q", got, honest.id)
		}
	})
}

// largeDescription returns a description that takes about 2 MB, of a TD that fits into a record of 600 bytes.
func largeDescription(t testing.TB, owner byte, id string) *td.Description {
	t.Helper()
	desc := plain(t, owner, id, "")
	forms := make([]td.Form, 5000)
	desc.Actions = map[string]*td.Action{"a": {Affordance: td.Affordance{Forms: forms}}}
	desc.Raw = []byte(strings.Repeat(`{"href":"x"},`, 5000))
	return desc
}

// The memory of descriptions is limited, not only their number.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	self := didtest.Key(9).DID()
	d := openDirectory(t, Options{Bytes: 64 << 20, Self: self})
	put := func(desc *td.Description) error {
		_, err := d.put(desc, received)
		return err
	}
	n := 0
	for err := error(nil); err == nil; n++ {
		err = put(largeDescription(t, 1, fmt.Sprint("urn:one:", n)))
		if err != nil {
			wantCode(t, err, interact.Overloaded, "of its owner")
		}
	}
	for owner := byte(2); owner < 60; owner++ {
		for i := range 2 {
			if err := put(largeDescription(t, owner, fmt.Sprint("urn:more:", i))); err != nil {
				wantCode(t, err, interact.Overloaded, "memory")
			}
		}
	}
	if d.bytes > 64<<20 || d.bytes < 48<<20 {
		t.Errorf("descriptions of %d bytes are kept, want 48 to 64 MiB", d.bytes)
	}
	// A small Thing cannot grow beyond the limit, and keeps its last description.
	small := plain(t, 70, "urn:small", "Small")
	if err := put(small); err != nil {
		t.Fatal(err)
	}
	for range 64 { // fills the remaining memory
		_ = put(largeDescription(t, 71, fmt.Sprint("urn:fill:", n)))
		n++
	}
	big := with(largeDescription(t, 70, "urn:small"), func(r *td.Record) { r.Seq = 2 })
	wantCode(t, put(big), interact.Overloaded, "memory")
	if got, err := d.Get(t.Context(), "urn:small"); err != nil || got != small {
		t.Errorf("got %v, %v", got, err)
	}
	own := with(largeDescription(t, 9, "urn:own"), func(r *td.Record) { r.Hosts = []td.Host{{Node: self}} })
	if _, err := d.put(own, published); err != nil {
		t.Error("a publication of this node is refused:", err)
	}
	for desc := range d.FindLocal(t.Context(), td.Query{Limit: 1000}) {
		if _, err := d.put(tombstoneOf(desc), received); err != nil {
			t.Fatal(err)
		}
	}
	wantEmpty(t, d)
}

// Of a large tombstone only the seq is kept.
func TestLargeTombstones(t *testing.T) {
	t.Parallel()
	d := openDirectory(t, Options{})
	desc := plain(t, 1, "urn:x", "X")
	if _, err := d.put(desc, received); err != nil {
		t.Fatal(err)
	}
	large := with(tombstoneOf(desc), func(r *td.Record) { r.Raw = make([]byte, maxTombstone+1) })
	if changed, err := d.put(large, received); err != nil || !changed {
		t.Fatalf("got %v, %v", changed, err)
	}
	if changed, err := d.put(large, received); err != nil || changed {
		t.Errorf("again: got %v, %v", changed, err)
	}
	if !d.isKnown(large.Record) {
		t.Error("it would be verified again")
	}
	_, err := d.put(desc, received)
	wantCode(t, err, interact.RolledBack)
	_, err = d.Get(t.Context(), "urn:x")
	wantCode(t, err, interact.NotFound)
	if len(d.tombstones.byID) != 0 {
		t.Error("the tombstone is kept")
	}
}

// A record whose TD cannot be fetched counts as unreachable.
func TestFindCountsFailedFetches(t *testing.T) {
	t.Parallel()
	d := openDirectory(t, Options{
		Sources: []Source{sourceOf(bare(t, numbered(t, 1, 0).signed(t, 1)))},
		Fetch:   func(context.Context, *td.Record) ([]byte, error) { return nil, errors.New("no answer") },
	})
	tally := new(td.CoverageCounter)
	got, err := found(d.Find(t.Context(), td.Query{Capability: things, Counter: tally}))
	if err != nil || got != "" {
		t.Errorf("got %q, %v", got, err)
	}
	if c := tally.Coverage(); c.Complete() || c.Unreachable != 1 {
		t.Errorf("got %+v, want one unreachable", c)
	}
}

// A Thing of another owner with the name or the id of a Thing of this node does not hide it.
func TestOtherOwnersDoNotHideOwnThings(t *testing.T) {
	t.Parallel()
	self := didtest.Key(9).DID()
	own := with(plain(t, 9, "urn:x:weather", "Weather"), func(r *td.Record) { r.Hosts = []td.Host{{Node: self}} })
	d := filled(t, Options{Self: self}, plain(t, 1, "urn:x:weather", "Weather"))
	if _, err := d.Add(own); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{"weather", "urn:x:weather"} {
		if got, err := d.Get(t.Context(), ref); err != nil || got != own {
			t.Errorf("%s: got %v, %v", ref, got, err)
		}
	}
	second := with(plain(t, 8, "urn:y:weather", "Weather"), func(r *td.Record) { r.Hosts = []td.Host{{Node: self}} })
	if _, err := d.Add(second); err != nil {
		t.Fatal(err)
	}
	_, err := d.Get(t.Context(), "weather")
	wantCode(t, err, interact.Ambiguous, "2 agents") // the own ones
}
