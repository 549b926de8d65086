package directory

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	ds "github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/query"
	dssync "github.com/ipfs/go-datastore/sync"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/directory/persist"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/cbor"
	"github.com/lmosd/lmosd/td"
)

func memory() ds.Batching { return dssync.MutexWrap(ds.NewMapDatastore()) }

// stored returns the keys in a store, without their prefix.
func stored(t testing.TB, store ds.Datastore, prefix persist.Kind) []string {
	t.Helper()
	var keys []string
	for e, err := range ds.QueryIter(t.Context(), store, query.Query{Prefix: string(prefix), KeysOnly: true}) {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, e.Key)
	}
	return keys
}

func TestRestart(t *testing.T) {
	t.Parallel()
	store, self := memory(), didtest.Key(9).DID()
	kept, withdrawn, mine := weather(t, 1), numbered(t, 1, 1), numbered(t, 2, 2)
	mine.hosts = []td.Host{{Node: self}}
	d := openDirectory(t, Options{Store: store, Self: self})
	for _, s := range []*td.Signed{kept.signed(t, 5), withdrawn.signed(t, 1), withdrawn.tombstone(t, 2)} {
		if _, err := d.put(described(t, s), received); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.Add(described(t, mine.signed(t, 1))); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}

	again := openDirectory(t, Options{Store: store, Self: self})
	if local, known := again.Len(); local != 1 || known != 2 {
		t.Errorf("got %d local of %d, want 1 of 2", local, known)
	}
	got, err := again.Get(t.Context(), "weather")
	if err != nil || got.Record.Seq != 5 || got.ProofMethod == "" {
		t.Errorf("got %v, %v", got, err)
	}
	if got := ids(again.FindLocal(t.Context(), td.Query{Capability: []string{"urn:example:weather:forecast"}})); got != kept.id {
		t.Errorf("by capability: got %q", got)
	}
	_, err = again.Get(t.Context(), "agent-001")
	wantCode(t, err, interact.Withdrawn)
	_, err = again.put(described(t, kept.signed(t, 4)), received)
	wantCode(t, err, interact.RolledBack)
	if n := again.store.Len(); n != 1 { // its use
		t.Errorf("%d entries would be written again, want 1", n)
	}
}

func TestRunWritesEverySecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory()
		d := openDirectory(t, Options{Store: store})
		stop := run(t, d)
		a := weather(t, 1)
		if _, err := d.put(described(t, a.signed(t, 1)), received); err != nil {
			t.Fatal(err)
		}
		time.Sleep(persist.SaveEvery)
		synctest.Wait()
		if n := len(stored(t, store, persist.Descriptions)); n != 1 {
			t.Errorf("after a second: %d descriptions in the store, want 1", n)
		}
		if _, err := d.put(described(t, a.tombstone(t, 2)), received); err != nil {
			t.Fatal(err)
		}
		stop() // writes the rest
		if n, m := len(stored(t, store, persist.Descriptions)), len(stored(t, store, persist.Seqs)); n != 0 || m != 1 {
			t.Errorf("after the tombstone: %d descriptions and %d seqs, want 0 and 1", n, m)
		}
	})
}

func TestExpiredEntriesAreDeleted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory()
		fill := func() {
			d := openDirectory(t, Options{Store: store})
			for i, s := range many(t, 1, 0, 3) {
				if _, err := d.put(described(t, s), received); err != nil {
					t.Fatal(i, err)
				}
			}
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
		}
		fill()
		time.Sleep(2 * time.Hour) // the node was off
		d := openDirectory(t, Options{Store: store})
		if s := d.Stats(); s.Known != 0 || s.Removed != 3 || s.Corrupt != 0 {
			t.Errorf("got %+v", s)
		}
		run(t, d)
		time.Sleep(persist.SaveEvery)
		synctest.Wait()
		if n, m := len(stored(t, store, persist.Descriptions)), len(stored(t, store, persist.Seqs)); n != 0 || m != 3 {
			t.Errorf("got %d descriptions and %d seqs, want 0 and 3", n, m)
		}
		time.Sleep(25 * time.Hour)
		synctest.Wait()
		if m := len(stored(t, store, persist.Seqs)); m != 0 {
			t.Errorf("got %d seqs a day later", m)
		}
	})
}

func TestExpiredSeqsAreDeletedAtStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory()
		d := openDirectory(t, Options{Store: store})
		if _, err := d.put(described(t, weather(t, 1).signed(t, 1)), received); err != nil {
			t.Fatal(err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(48 * time.Hour)
		again := openDirectory(t, Options{Store: store})
		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
		if n := len(stored(t, store, "/directory")); n != 0 || len(again.entries) != 0 {
			t.Errorf("%d entries in the store, %d here", n, len(again.entries))
		}
	})
}

// Corrupt entries are deleted; all others are loaded.
func TestCorruptEntriesAreDeleted(t *testing.T) {
	t.Parallel()
	store := memory()
	d := openDirectory(t, Options{Store: store})
	for _, s := range many(t, 1, 0, 4) {
		if _, err := d.put(described(t, s), received); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	keys := stored(t, store, persist.Descriptions)
	value := func(key string) []byte {
		v, err := store.Get(t.Context(), ds.RawKey(key))
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	flipped := append([]byte{}, value(keys[1])...)
	flipped[len(flipped)/2] ^= 1
	for key, v := range map[string][]byte{
		keys[0]: value(keys[0])[:40],
		keys[1]: flipped,
		keys[2]: value(keys[3]), // of another thing
		string(persist.Descriptions) + "/nonsense": nil,
		stored(t, store, persist.Seqs)[0]:          []byte("nonsense"),
	} {
		if err := store.Put(t.Context(), ds.RawKey(key), v); err != nil {
			t.Fatal(err)
		}
	}
	again := openDirectory(t, Options{Store: store})
	if s := again.Stats(); s.Known != 1 || s.Corrupt != 5 {
		t.Errorf("got %+v, want 1 known and 5 corrupt", s)
	}
	if n := len(stored(t, store, persist.Descriptions)); n != 1 {
		t.Errorf("%d descriptions are left in the store, want 1", n)
	}
}

func TestTombstoneOfAnotherThingIsCorrupt(t *testing.T) {
	t.Parallel()
	store := memory()
	tomb := described(t, weather(t, 1).tombstone(t, 2)).Record
	alive := described(t, weather(t, 1).signed(t, 2)).Record
	for i, s := range []savedSeq{
		{Seq: 2, Until: time.Now().Add(time.Hour).Unix(), Tombstone: tomb.Raw},
		{Seq: 2, Until: time.Now().Add(time.Hour).Unix(), Tombstone: alive.Raw},
		{Seq: 2, Until: time.Now().Add(time.Hour).Unix(), Tombstone: []byte("x")},
	} {
		raw, err := cbor.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if err := store.Put(t.Context(), persist.Seqs.Key([32]byte{byte(i)}), raw); err != nil {
			t.Fatal(err)
		}
	}
	d := openDirectory(t, Options{Store: store})
	if s := d.Stats(); s.Corrupt != 3 || s.Removed != 0 {
		t.Errorf("got %+v", s)
	}
}

// Run loads the rest of a large store. Results are truncated until then.
func TestLargeStoresLoadInTheBackground(t *testing.T) {
	t.Parallel()
	store := memory()
	verifier := td.NewVerifier(did.Keys())
	d := openDirectory(t, Options{Store: store, Verifier: verifier})
	const n = initialLoad + 50
	for i, s := range many(t, 1, 0, n) {
		if i < n-1 {
			if _, err := d.put(described(t, s), received); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	again := openDirectory(t, Options{Store: store, Verifier: verifier})
	if _, known := again.Len(); known != initialLoad {
		t.Errorf("New has loaded %d, want %d", known, initialLoad)
	}
	tally := &td.CoverageCounter{}
	_, err := found(again.Find(t.Context(), td.Query{ID: "urn:x", Counter: tally}))
	if err != nil || !tally.Coverage().Truncated {
		t.Errorf("got %v, %+v, want a truncated answer", err, tally.Coverage())
	}
	// An older record is rejected, although the description is not loaded yet.
	late := again.notLoadedYet(t)
	_, err = again.put(with(late, func(r *td.Record) { r.Seq = 0 }), received)
	wantCode(t, err, interact.RolledBack)
	again.loadRest(t.Context())
	if _, known := again.Len(); known != n-1 {
		t.Errorf("Run has loaded %d, want %d", known, n-1)
	}
	if again.loading.Load() {
		t.Error("still loading")
	}
}

// notLoadedYet returns a description that is in the store and not in d.
func (d *Directory) notLoadedYet(t *testing.T) *td.Description {
	for key, e := range d.entries {
		if e.view != nil {
			continue
		}
		raw, err := d.opts.Store.Get(t.Context(), persist.Descriptions.Key(key))
		if err != nil {
			t.Fatal(err)
		}
		var s savedDesc
		if err := persist.Unmarshal(raw, &s); err != nil {
			t.Fatal(err)
		}
		return described(t, &td.Signed{Record: s.Record, TD: s.TD})
	}
	t.Fatal("all descriptions are loaded")
	return nil
}

// failingStore is a store whose writes fail while full is set.
type failingStore struct {
	ds.Batching
	full bool
}

func (f *failingStore) Batch(ctx context.Context) (ds.Batch, error) {
	if f.full {
		return nil, errors.New("no space left on device")
	}
	return f.Batching.Batch(ctx)
}

func TestFlushRetries(t *testing.T) {
	t.Parallel()
	disk := &failingStore{memory(), true}
	d := openDirectory(t, Options{Store: disk})
	if _, err := d.put(described(t, weather(t, 1).signed(t, 1)), received); err != nil {
		t.Fatal(err)
	}
	if err := d.Flush(t.Context()); err == nil || !strings.Contains(err.Error(), "no space") {
		t.Errorf("got %v", err)
	}
	disk.full = false
	if err := d.Flush(t.Context()); err != nil {
		t.Error(err)
	}
	if n := len(stored(t, disk, persist.Descriptions)); n != 1 {
		t.Errorf("%d descriptions in the store, want 1", n)
	}
}

// unreadableStore is a store that cannot be read.
type unreadableStore struct{ ds.Batching }

func (unreadableStore) Query(context.Context, query.Query) (query.Results, error) {
	return nil, errors.New("input/output error")
}

func TestNewWithAnUnreadableStore(t *testing.T) {
	t.Parallel()
	_, err := New(Options{Store: unreadableStore{memory()}})
	wantCode(t, err, interact.StoreCorrupt, "input/output error")
}

// New succeeds with any contents of the store, and verifies all of them.
func FuzzRestore(f *testing.F) {
	a := agent{key: didtest.Key(1), id: "urn:example:weather", title: "Weather"}
	live, dead := described(f, a.signed(f, 1)), described(f, a.tombstone(f, 2))
	for _, v := range []any{
		savedDesc{Record: live.Record.Raw}, savedDesc{Record: bare(f, live.Signed).Record, TD: live.Signed.TD, Own: true},
		savedSeq{Seq: 1, Until: 1 << 40}, savedSeq{Until: -1 << 62},
		savedSeq{Seq: 2, Until: 1 << 40, Tombstone: dead.Record.Raw, Names: []string{"weather"}},
	} {
		raw, err := cbor.Marshal(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw, true)
		f.Add(raw, false)
	}
	f.Add([]byte{}, true)
	f.Fuzz(func(t *testing.T, value []byte, right bool) {
		store := memory()
		where := [32]byte{1}
		if right {
			where = live.Record.Key()
		}
		for _, prefix := range []persist.Kind{persist.Seqs, persist.Descriptions} {
			if err := store.Put(t.Context(), prefix.Key(where), value); err != nil {
				t.Fatal(err)
			}
		}
		d, err := New(Options{Store: store})
		if err != nil {
			t.Fatal(err)
		}
		for desc := range d.FindLocal(t.Context(), td.Query{}) {
			if desc.Record.Owner != a.key.DID() || desc.ProofMethod == "" {
				t.Errorf("loaded %+v", desc.Record)
			}
		}
		_, _ = d.Get(t.Context(), "weather")
		if err := d.Close(); err != nil {
			t.Error(fmt.Errorf("close: %w", err))
		}
	})
}
