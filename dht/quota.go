package dht

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"

	ds "github.com/ipfs/go-datastore"
	dsq "github.com/ipfs/go-datastore/query"
	"github.com/libp2p/go-libp2p-kad-dht/records"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/internal/heap"
)

// errFull means that a store is full of entries that are closer to this node.
var errFull = errors.New("full of closer entries")

// Sizes of both stores (G8). A node is one of the 20 closest for 20/N of the keys of a network of N nodes, so these are several
// times the needs of a network of 10,000 Things.
const (
	maxValues        = 16 << 10
	maxValueBytes    = 64 << 20
	maxProviderSets  = 32 << 10
	maxProviderBytes = 8 << 20
	// maxSample limits the providers of one key in a reply, which must stay below maxReply. The providers of a popular key are a
	// random sample.
	maxSample = 128
)

// A quota is a datastore with limited entries and bytes. When it is full, the entry farthest from this node by XOR distance is
// evicted: it is least needed here. It is safe for concurrent use.
//
// It keeps the size and distance of each key, about 300 bytes per entry, and the set of providers of each key, so that a query for
// these costs the same in a large store.
type quota struct {
	ds.Batching
	limit Usage
	self  [32]byte
	// keyOf returns the DHT key of an entry.
	keyOf func(ds.Key) []byte
	// sample limits the entries returned for the providers of one key; 0 means a store of values.
	sample int

	// closed is guarded by life, which each access read-locks.
	life   sync.RWMutex
	closed bool

	// The following fields are owned by mu, which also orders the writes to the datastore.
	mu      sync.Mutex
	entries map[ds.Key]*entry
	far     heap.Heap[*entry]     // the farthest first
	sets    map[[32]byte]siblings // by distance; only with sample
	used    Usage
}

// An entry is the account of an entry of the datastore.
type entry struct {
	key      ds.Key
	distance [32]byte
	size     int
	at       int // index in the heap
	place    int // among its siblings
}

// newValues and newProviders open the stores of the DHT's two kinds of records for the node self.
func newValues(ctx context.Context, store ds.Batching, self peer.ID) (*quota, error) {
	return newQuota(ctx, &quota{
		Batching: store, keyOf: valueKey, limit: Usage{Entries: maxValues, Bytes: maxValueBytes},
	}, self)
}

func newProviders(ctx context.Context, store ds.Batching, self peer.ID) (*quota, error) {
	return newQuota(ctx, &quota{
		Batching: store, keyOf: providerKey, sample: maxSample,
		limit: Usage{Entries: maxProviderSets, Bytes: maxProviderBytes},
	}, self)
}

func newQuota(ctx context.Context, q *quota, self peer.ID) (*quota, error) {
	q.self = sha256.Sum256([]byte(self))
	q.mu.Lock()
	defer q.mu.Unlock()
	return q, q.loadLocked(ctx)
}

// loadLocked rebuilds the accounts from the datastore.
func (q *quota) loadLocked(ctx context.Context) error {
	q.entries, q.far, q.sets = map[ds.Key]*entry{}, nil, map[[32]byte]siblings{}
	q.used.Entries, q.used.Bytes = 0, 0
	res, err := q.Batching.Query(ctx, dsq.Query{KeysOnly: true, ReturnsSizes: true})
	if err != nil {
		return fmt.Errorf("read the DHT's records: %w", err)
	}
	defer func() { _ = res.Close() }()
	for e := range res.Next() {
		if e.Error != nil {
			return fmt.Errorf("read the DHT's records: %w", e.Error)
		}
		q.setLocked(ds.RawKey(e.Key), e.Size)
	}
	return nil
}

// enter starts an access, which ends with life.RUnlock.
func (q *quota) enter() error {
	q.life.RLock()
	if q.closed {
		q.life.RUnlock()
		return errClosed
	}
	return nil
}

// close waits for running accesses and rejects new ones: the library may write after its Close, when the caller owns the datastore.
// The datastore stays open.
func (q *quota) close() {
	q.life.Lock()
	defer q.life.Unlock()
	q.closed = true
}

// Get returns the value of k.
func (q *quota) Get(ctx context.Context, k ds.Key) ([]byte, error) {
	if err := q.enter(); err != nil {
		return nil, err
	}
	defer q.life.RUnlock()
	return q.Batching.Get(ctx, k)
}

// Put stores v, and evicts other entries. The error wraps errFull if v itself is evicted.
func (q *quota) Put(ctx context.Context, k ds.Key, v []byte) error {
	if err := q.enter(); err != nil {
		return err
	}
	defer q.life.RUnlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	gone, full := q.admitLocked(k, len(v))
	for _, old := range gone {
		if err := q.Batching.Delete(ctx, old); err != nil {
			return errors.Join(err, q.loadLocked(ctx))
		}
	}
	if full != nil {
		return full
	}
	if err := q.Batching.Put(ctx, k, v); err != nil {
		return errors.Join(err, q.loadLocked(ctx))
	}
	return nil
}

// Delete removes k.
func (q *quota) Delete(ctx context.Context, k ds.Key) error {
	if err := q.enter(); err != nil {
		return err
	}
	defer q.life.RUnlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.dropLocked(k)
	return q.Batching.Delete(ctx, k)
}

// Query queries the datastore; of the providers of one key it returns a random sample, if there are many.
func (q *quota) Query(ctx context.Context, query dsq.Query) (dsq.Results, error) {
	if err := q.enter(); err != nil {
		return nil, err
	}
	defer q.life.RUnlock()
	if q.sample == 0 || !isOneKey(query.Prefix) {
		return q.Batching.Query(ctx, query)
	}
	var all []dsq.Entry
	for _, k := range q.someProviders(ds.NewKey(query.Prefix)) {
		v, err := q.Batching.Get(ctx, k)
		switch {
		case errors.Is(err, ds.ErrNotFound): // deleted in between
		case err != nil:
			return nil, err
		default:
			all = append(all, dsq.Entry{Key: k.String(), Value: v, Size: len(v)})
		}
	}
	return dsq.NaiveQueryApply(query, dsq.ResultsWithEntries(query, all)), nil
}

// someProviders returns a random sample of the providers of one key.
func (q *quota) someProviders(of ds.Key) []ds.Key {
	q.mu.Lock()
	defer q.mu.Unlock()
	set := q.sets[q.distance(of)]
	keys := make([]ds.Key, min(len(set), q.sample))
	for i := range keys {
		set.swap(i, i+rand.IntN(len(set)-i))
		keys[i] = set[i].key
	}
	return keys
}

// isOneKey reports whether a query is for the providers of one key, and not the sweep for expired entries, which must see all.
func isOneKey(prefix string) bool {
	key, ok := strings.CutPrefix(prefix, records.ProvidersKeyPrefix)
	return ok && key != ""
}

// Batch returns a batch of writes. Entries without room are omitted without an error.
func (q *quota) Batch(context.Context) (ds.Batch, error) { return &quotaBatch{q: q}, nil }

type quotaBatch struct {
	q   *quota
	ops []batchOp
}

type batchOp struct {
	key    ds.Key
	value  []byte
	remove bool
}

// Put adds a write.
func (b *quotaBatch) Put(_ context.Context, k ds.Key, v []byte) error {
	b.ops = append(b.ops, batchOp{key: k, value: v})
	return nil
}

// Delete adds a removal.
func (b *quotaBatch) Delete(_ context.Context, k ds.Key) error {
	b.ops = append(b.ops, batchOp{key: k, remove: true})
	return nil
}

// Commit writes the batch as one batch of the datastore.
func (b *quotaBatch) Commit(ctx context.Context) error {
	q := b.q
	if err := q.enter(); err != nil {
		return err
	}
	defer q.life.RUnlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	inner, err := q.Batching.Batch(ctx)
	if err != nil {
		return err
	}
	err = b.stageLocked(ctx, inner)
	if err == nil {
		err = inner.Commit(ctx)
	}
	if err != nil {
		return errors.Join(err, q.loadLocked(ctx))
	}
	b.ops = nil
	return nil
}

func (b *quotaBatch) stageLocked(ctx context.Context, inner ds.Batch) error {
	for _, op := range b.ops {
		if op.remove {
			b.q.dropLocked(op.key)
			if err := inner.Delete(ctx, op.key); err != nil {
				return err
			}
			continue
		}
		gone, full := b.q.admitLocked(op.key, len(op.value))
		for _, old := range gone {
			if err := inner.Delete(ctx, old); err != nil {
				return err
			}
		}
		if full != nil {
			continue // counted as refused
		}
		if err := inner.Put(ctx, op.key, op.value); err != nil {
			return err
		}
	}
	return nil
}

// admitLocked creates the account of an entry of size bytes, and returns the keys to evict. If the entry itself is evicted, it is
// one of them, because an older version may be stored, and the error wraps errFull.
func (q *quota) admitLocked(k ds.Key, size int) (gone []ds.Key, err error) {
	q.setLocked(k, size)
	for q.used.Entries > q.limit.Entries || q.used.Bytes > q.limit.Bytes {
		old := q.far[0].key
		q.dropLocked(old)
		gone = append(gone, old)
		if old == k {
			q.used.Refused++
			return gone, fmt.Errorf("store %s: %w", k, errFull)
		}
		q.used.Evicted++
	}
	return gone, nil
}

func (q *quota) setLocked(k ds.Key, size int) {
	size = max(size, 0) + len(k.String())
	if e := q.entries[k]; e != nil {
		q.used.Bytes += size - e.size
		e.size = size
		return
	}
	e := &entry{key: k, size: size, distance: q.distance(k)}
	q.entries[k] = e
	q.far.Add(e)
	if q.sample > 0 {
		set := q.sets[e.distance]
		e.place = len(set)
		q.sets[e.distance] = append(set, e)
	}
	q.used.Entries++
	q.used.Bytes += size
}

// distance returns the XOR distance of the DHT key of an entry to this node.
func (q *quota) distance(k ds.Key) [32]byte {
	d := sha256.Sum256(q.keyOf(k))
	for i := range d {
		d[i] ^= q.self[i]
	}
	return d
}

func (q *quota) dropLocked(k ds.Key) {
	e := q.entries[k]
	if e == nil {
		return
	}
	delete(q.entries, k)
	q.far.Remove(e)
	if set := q.sets[e.distance]; len(set) > 1 {
		last := len(set) - 1
		set.swap(e.place, last)
		set[last] = nil
		q.sets[e.distance] = set[:last]
	} else {
		delete(q.sets, e.distance)
	}
	q.used.Entries--
	q.used.Bytes -= e.size
}

func (q *quota) usage() Usage {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.used
}

// siblings are the entries of one DHT key, in no order. Each has its index.
type siblings []*entry

func (s siblings) swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].place, s[j].place = i, j
}

// Before orders entries by distance, the farthest first, and those of one DHT key by datastore key.
func (e *entry) Before(o *entry) bool {
	return cmp.Or(bytes.Compare(e.distance[:], o.distance[:]), strings.Compare(e.key.String(), o.key.String())) > 0
}

// Position implements [heap.Element].
func (e *entry) Position() *int { return &e.at }

// noPad is the encoding of DHT keys in datastore keys of the library.
var noPad = base32.StdEncoding.WithPadding(base32.NoPadding)

// valueKey returns the DHT key of "/<namespace>/<base32 of the key>".
func valueKey(k ds.Key) []byte { return decodeKey(k, k.BaseNamespace()) }

// providerKey returns the DHT key of "/providers/<base32 of the key>/<base32 of the peer>".
func providerKey(k ds.Key) []byte {
	parts := k.List()
	if len(parts) < 2 {
		return k.Bytes()
	}
	return decodeKey(k, parts[1])
}

// decodeKey decodes text; other entries are placed by their datastore key.
func decodeKey(k ds.Key, text string) []byte {
	b, err := noPad.DecodeString(text)
	if err != nil {
		return k.Bytes()
	}
	return b
}
