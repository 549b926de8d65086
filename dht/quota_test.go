package dht

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	ds "github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/namespace"
	dsq "github.com/ipfs/go-datastore/query"
	dssync "github.com/ipfs/go-datastore/sync"
	"github.com/libp2p/go-libp2p-kad-dht/records"
	"github.com/libp2p/go-libp2p/core/peer"
)

func valueEntry(key string) ds.Key {
	return ds.NewKey("/lmos-td/" + noPad.EncodeToString([]byte(key)))
}

func providerEntry(key string, p peer.ID) ds.Key {
	return ds.NewKey(records.ProvidersKeyPrefix + noPad.EncodeToString([]byte(key)) + "/" + noPad.EncodeToString([]byte(p)))
}

func smallQuota(t *testing.T, entries, bytes int) *quota {
	t.Helper()
	q, err := newQuota(t.Context(), &quota{
		Batching: dssync.MutexWrap(ds.NewMapDatastore()), keyOf: valueKey, limit: Usage{Entries: entries, Bytes: bytes},
	}, testPeer(t, 0))
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// checkQuota compares the accounts with the datastore.
func checkQuota(t *testing.T, q *quota) {
	t.Helper()
	res, err := q.Batching.Query(t.Context(), dsq.Query{})
	if err != nil {
		t.Fatal(err)
	}
	all, err := res.Rest()
	if err != nil {
		t.Fatal(err)
	}
	bytes := 0
	for _, e := range all {
		bytes += len(e.Key) + len(e.Value)
		if q.entries[ds.RawKey(e.Key)] == nil {
			t.Errorf("%s has no account", e.Key)
		}
	}
	u := q.usage()
	if u.Entries != len(all) || u.Bytes != bytes || len(q.far) != len(all) || len(q.entries) != len(all) {
		t.Errorf("the accounts have %d entries of %d bytes, the datastore %d of %d", u.Entries, u.Bytes, len(all), bytes)
	}
	if u.Entries > q.limit.Entries || u.Bytes > q.limit.Bytes {
		t.Errorf("%d entries of %d bytes are more than %+v", u.Entries, u.Bytes, q.limit)
	}
}

func TestQuotaKeepsTheClosest(t *testing.T) {
	t.Parallel()
	const keep = 50
	q := smallQuota(t, keep, 1<<20)
	self := sha256.Sum256([]byte(testPeer(t, 0)))
	type placed struct {
		key      string
		distance [32]byte
	}
	var all []placed
	for i := range 500 {
		k := fmt.Sprint("key ", i)
		p := placed{k, sha256.Sum256([]byte(k))}
		for j := range p.distance {
			p.distance[j] ^= self[j]
		}
		all = append(all, p)
		err := q.Put(t.Context(), valueEntry(k), []byte("value"))
		if err != nil && !errors.Is(err, errFull) {
			t.Fatal(err)
		}
	}
	checkQuota(t, q)
	slices.SortFunc(all, func(a, b placed) int { return slices.Compare(a.distance[:], b.distance[:]) })
	for i, p := range all {
		has, err := q.Has(t.Context(), valueEntry(p.key))
		if err != nil || has != (i < keep) {
			t.Fatalf("the entry at rank %d is kept: %v, %v", i, has, err)
		}
	}
	if u := q.usage(); u.Evicted+u.Refused != 450 || u.Refused == 0 {
		t.Errorf("%d evicted and %d refused, want 450 together", u.Evicted, u.Refused)
	}
}

func TestQuotaBoundsBytes(t *testing.T) {
	t.Parallel()
	q := smallQuota(t, 1000, 10_000)
	for i := range 100 {
		err := q.Put(t.Context(), valueEntry(fmt.Sprint(i)), make([]byte, i*20))
		if err != nil && !errors.Is(err, errFull) {
			t.Fatal(err)
		}
		checkQuota(t, q)
	}
	if err := q.Put(t.Context(), valueEntry("huge"), make([]byte, 20_000)); !errors.Is(err, errFull) {
		t.Errorf("an entry larger than all room: got %v", err)
	}
	checkQuota(t, q)
}

// TestQuotaCountsRandomWrites makes random changes, single and in batches.
func TestQuotaCountsRandomWrites(t *testing.T) {
	t.Parallel()
	q := smallQuota(t, 40, 6000)
	rnd := rand.New(rand.NewPCG(1, 2))
	ctx := t.Context()
	for range 300 {
		var w ds.Write = q
		var batch ds.Batch
		if rnd.IntN(2) == 0 {
			batch, _ = q.Batch(ctx)
		}
		for range rnd.IntN(10) {
			k := valueEntry(fmt.Sprint(rnd.IntN(100)))
			var err error
			switch {
			case batch != nil && rnd.IntN(4) == 0:
				err = batch.Delete(ctx, k)
			case batch != nil:
				err = batch.Put(ctx, k, make([]byte, rnd.IntN(300)))
			case rnd.IntN(4) == 0:
				err = w.Delete(ctx, k)
			default:
				err = w.Put(ctx, k, make([]byte, rnd.IntN(300)))
			}
			if err != nil && !errors.Is(err, errFull) {
				t.Fatal(err)
			}
		}
		if batch != nil {
			if err := batch.Commit(ctx); err != nil {
				t.Fatal(err)
			}
		}
		checkQuota(t, q)
	}
}

func TestQuotaCountsStoredEntries(t *testing.T) {
	t.Parallel()
	store := dssync.MutexWrap(ds.NewMapDatastore())
	for i := range 10 {
		if err := store.Put(t.Context(), valueEntry(fmt.Sprint(i)), []byte("value")); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.Put(t.Context(), ds.NewKey("/not/ours"), nil); err != nil {
		t.Fatal(err)
	}
	q, err := newValues(t.Context(), store, testPeer(t, 0))
	if err != nil {
		t.Fatal(err)
	}
	checkQuota(t, q)
	if u := q.usage(); u.Entries != 11 {
		t.Errorf("%d entries after opening, want 11", u.Entries)
	}
}

// brokenStore fails to write, as a full disk does.
type brokenStore struct{ ds.Batching }

var errDisk = errors.New("no space left")

func (brokenStore) Put(context.Context, ds.Key, []byte) error { return errDisk }
func (brokenStore) Batch(context.Context) (ds.Batch, error)   { return brokenBatch{}, nil }

type brokenBatch struct{}

func (brokenBatch) Put(context.Context, ds.Key, []byte) error { return nil }
func (brokenBatch) Delete(context.Context, ds.Key) error      { return nil }
func (brokenBatch) Commit(context.Context) error              { return errDisk }

func TestQuotaOverAFullDisk(t *testing.T) {
	t.Parallel()
	q := smallQuota(t, 10, 1000)
	q.Batching = brokenStore{q.Batching}
	if err := q.Put(t.Context(), valueEntry("a"), nil); !errors.Is(err, errDisk) {
		t.Errorf("got %v, want the error of the disk", err)
	}
	checkQuota(t, q)
	b, err := q.Batch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Put(t.Context(), valueEntry("a"), nil); err != nil {
		t.Fatal(err)
	}
	if err := b.Commit(t.Context()); !errors.Is(err, errDisk) {
		t.Errorf("got %v, want the error of the disk", err)
	}
	checkQuota(t, q)
}

func TestQuotaIsClosed(t *testing.T) {
	t.Parallel()
	q := smallQuota(t, 10, 1000)
	k := valueEntry("a")
	batch, err := q.Batch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	q.close()
	_, get := q.Get(t.Context(), k)
	_, query := q.Query(t.Context(), dsq.Query{})
	for name, err := range map[string]error{
		"Get": get, "Query": query, "Put": q.Put(t.Context(), k, nil), "Delete": q.Delete(t.Context(), k),
		"Commit": batch.Commit(t.Context()),
	} {
		if !errors.Is(err, errClosed) {
			t.Errorf("%s: got %v, want the error of a closed store", name, err)
		}
	}
}

func TestQuotaSamplesProviders(t *testing.T) {
	t.Parallel()
	q, err := newProviders(t.Context(), dssync.MutexWrap(ds.NewMapDatastore()), testPeer(t, 0))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 500 {
		if err := q.Put(t.Context(), providerEntry("popular", testPeer(t, i)), []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	count := func(prefix string) (n int, keys map[string]bool) {
		res, err := q.Query(t.Context(), dsq.Query{Prefix: prefix})
		if err != nil {
			t.Fatal(err)
		}
		all, err := res.Rest()
		if err != nil {
			t.Fatal(err)
		}
		keys = map[string]bool{}
		for _, e := range all {
			keys[e.Key] = true
		}
		return len(all), keys
	}
	key := records.ProvidersKeyPrefix + noPad.EncodeToString([]byte("popular"))
	n, first := count(key)
	_, second := count(key)
	if n != maxSample {
		t.Errorf("%d providers of one key, want %d", n, maxSample)
	}
	same := 0
	for k := range first {
		if second[k] {
			same++
		}
	}
	if same == maxSample {
		t.Error("the sample is always the same")
	}
	if n, _ := count(records.ProvidersKeyPrefix); n != 500 {
		t.Errorf("the sweep sees %d entries, want all 500", n)
	}
	for i := range 498 {
		if err := q.Delete(t.Context(), providerEntry("popular", testPeer(t, i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.Put(t.Context(), providerEntry("other", testPeer(t, 1)), []byte("x")); err != nil {
		t.Fatal(err)
	}
	if n, left := count(key); n != 2 || !left[providerEntry("popular", testPeer(t, 499)).String()] {
		t.Errorf("the last of one key are %d: %v", n, left)
	}
	if n, _ := count(key + "x"); n != 0 || len(q.sets) != 2 {
		t.Errorf("%d of an unknown key; there are %d keys, want 2", n, len(q.sets))
	}
}

// The time and memory of a query for the providers of one key do not depend on the size of the datastore.
func BenchmarkQuotaProviders(b *testing.B) {
	for _, others := range []int{1000, 100_000} {
		store := dssync.MutexWrap(ds.NewMapDatastore())
		for i := range others {
			if err := store.Put(b.Context(), ds.NewKey(fmt.Sprint("/directory/", i)), []byte("x")); err != nil {
				b.Fatal(err)
			}
		}
		q, err := newProviders(b.Context(), namespace.Wrap(store, ds.NewKey("dht/providers")), testPeer(b, 0))
		if err != nil {
			b.Fatal(err)
		}
		for i := range 20_000 {
			if err := q.Put(b.Context(), providerEntry(fmt.Sprint(i/4), testPeer(b, i%4)), make([]byte, 8)); err != nil {
				b.Fatal(err)
			}
		}
		key := records.ProvidersKeyPrefix + noPad.EncodeToString([]byte("77"))
		b.Run(fmt.Sprint(others), func(b *testing.B) {
			for b.Loop() {
				res, err := q.Query(b.Context(), dsq.Query{Prefix: key})
				if err != nil {
					b.Fatal(err)
				}
				if all, err := res.Rest(); err != nil || len(all) != 4 {
					b.Fatal(len(all), err)
				}
			}
		})
	}
}

func TestQuotaKeysDecode(t *testing.T) {
	t.Parallel()
	raw := "/lmos-td/\x00/\xff bytes"
	if got := valueKey(valueEntry(raw)); string(got) != raw {
		t.Errorf("value key: got %q, want %q", got, raw)
	}
	if got := providerKey(providerEntry(raw, testPeer(t, 1))); string(got) != raw {
		t.Errorf("provider key: got %q, want %q", got, raw)
	}
	for _, odd := range []string{"/", "/x", "/providers/!!!/x", "/a/b/c/d"} {
		_ = valueKey(ds.NewKey(odd))
		_ = providerKey(ds.NewKey(odd))
	}
}
