package dht

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/ipfs/go-cid"
	pb "github.com/libp2p/go-libp2p-kad-dht/pb"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/multiformats/go-multihash"
	"golang.org/x/sync/errgroup"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/internal/heap"
	"github.com/lmosd/lmosd/internal/heartbeat"
	"github.com/lmosd/lmosd/td"
)

// Times of provider records, which others keep for a day.
//
// This package renews provider records itself. The sweeping provider of the library sends about as many messages (64 keys in a
// network of 40: 176 lookups, here 154), but it does not report which peers stored a key, so that Provide could neither count nor
// wait, and it sends each key in a stream of its own, which exceeds the limits of the guard. Lookups of neighboring keys are shared
// by region.
const (
	provideEvery = providerAge * 10 / 22                        // one failed round loses nothing
	thinEvery    = 30 * time.Minute                             // for a key at fewer than K nodes: the network may have grown
	retryFirst   = time.Second                                  // after a key that no peer stored; doubles
	retryLast    = 5 * time.Minute                              // up to this
	retryAlone   = 15 * time.Second                             // without peers: a retry costs nothing
	provideBatch = 1024                                         // keys of one round
	batchPause   = requestBurst / 2 / requestRate * time.Second // between full rounds, for the rate limits of peers
	streamBatch  = 64                                           // messages on one stream
	maxProvides  = 16                                           // concurrent peers
	provideTime  = 10 * time.Minute                             // of a round, in a network whose nodes do not answer
)

// maxKeys limits the provider keys of one Thing.
const maxKeys = 64

// A provideKey is the multihash of a provider key.
type provideKey string

// capabilityKey, thingKey and nameKey return the provider keys of a capability level, of a thing id and of a name.
func capabilityKey(level string) provideKey { return newKey("cap/" + level) }
func thingKey(id string) provideKey         { return newKey("thing/" + id) }

func nameKey(name string) provideKey { return newKey("name/" + td.NameKey(name)) }

func newKey(name string) provideKey {
	sum := sha256.Sum256([]byte("/lmos/1/" + name))
	mh, err := multihash.Encode(sum[:], multihash.SHA2_256)
	if err != nil {
		panic(err) // the digest has the length of the code
	}
	return provideKey(mh)
}

func (k provideKey) cid() cid.Cid { return cid.NewCidV1(cid.Raw, multihash.Multihash(k)) }

// keysOf returns the provider keys of a record: its id, its names, and each level of its capabilities, general levels first if
// there are too many.
func keysOf(r *td.Record) []provideKey {
	keys := []provideKey{thingKey(r.Thing)}
	for _, name := range r.Names() {
		keys = append(keys, nameKey(name))
	}
	seen := map[provideKey]bool{}
	var levels [][]string
	for _, c := range r.Capabilities {
		levels = append(levels, td.Levels(c))
	}
	for depth := range 4 {
		for _, l := range levels {
			if depth >= len(l) || len(keys) == maxKeys {
				continue
			}
			if k := capabilityKey(l[depth]); !seen[k] {
				seen[k] = true
				keys = append(keys, k)
			}
		}
	}
	return keys
}

// Provide announces that this node hosts the Thing of r, under its id and each level of its capabilities, and renews that until
// [DHT.Unprovide]. Keys announced recently, also for another Thing, are not sent again. It returns when every key was sent, or
// there is no peer; [DHT.Run] retries.
//
// The error wraps [ErrNoReplicas] if no other node stored a key.
func (d *DHT) Provide(ctx context.Context, r *td.Record) (Receipt, error) {
	if r.Audience != td.Public {
		return Receipt{}, fmt.Errorf("provide %s: %w", r.Thing, errAudience)
	}
	keys := keysOf(r)
	due := d.provided.add(thingName(r.Owner, r.Thing), keys)
	if len(due) > 0 {
		d.provide(ctx, due)
	}
	receipt := d.provided.receipt(keys)
	if receipt.Replicas == 0 {
		return receipt, fmt.Errorf("provide %s: %w", r.Thing, cmp.Or(ctx.Err(), ErrNoReplicas))
	}
	return receipt, nil
}

// Unprovide ends Provide for a Thing. The DHT has no message for removal: other nodes keep the provider records for up to a day,
// and queries to this node return no result.
func (d *DHT) Unprovide(owner did.DID, thing string) { d.provided.remove(thingName(owner, thing)) }

func thingName(owner did.DID, thing string) string { return string(owner) + "\x00" + thing }

// reprovide renews each key in time. It ends with ctx.
func (d *DHT) reprovide(ctx context.Context) {
	loop := heartbeat.Start(ctx, "dht", provideTime)
	for {
		loop.Beat()
		if d.Size() == 0 { // a round would fail for each key
			if backoff.Sleep(ctx, retryFirst) != nil {
				return
			}
			continue
		}
		keys, pause := d.provided.due(time.Now(), provideBatch)
		if len(keys) > 0 {
			d.provide(ctx, keys)
		}
		alive := true
		switch {
		case len(keys) == provideBatch:
			alive = backoff.Sleep(ctx, batchPause) == nil
		case len(keys) == 0:
			loop.Wait(pause)
			alive = d.provided.sleep(ctx, pause)
		}
		if !alive || ctx.Err() != nil {
			return
		}
	}
}

// provide sends the keys to their closest peers, and records how many stored them.
func (d *DHT) provide(ctx context.Context, keys []provideKey) {
	byPeer := d.closestOfAll(ctx, keys)
	wanted := map[provideKey]int{}
	for _, ks := range byPeer {
		for _, k := range ks {
			wanted[k]++
		}
	}
	taken := d.provideAll(ctx, byPeer)
	// One jitter for all: keys sent together are renewed together, and share lookups.
	now, factor := time.Now(), 0.9+rand.Float64()/5
	for _, k := range keys {
		// The library answers queries from its own store.
		_ = d.kad.ProviderStore().AddProvider(ctx, []byte(k), peer.AddrInfo{ID: d.host.ID()})
		d.provided.recordRound(k, taken[k], wanted[k], d.o.K, now, factor)
	}
}

// provideAll sends peers their keys, and returns how many stored each.
func (d *DHT) provideAll(ctx context.Context, targets map[peer.ID][]provideKey) map[provideKey]int {
	self := []peer.AddrInfo{{ID: d.host.ID(), Addrs: d.kad.FilteredAddrs()}}
	taken := map[provideKey]int{}
	if len(self[0].Addrs) == 0 {
		d.log.Warn("keys not provided: no public address")
		return taken
	}
	var mu sync.Mutex
	var g errgroup.Group
	g.SetLimit(maxProvides)
	for _, p := range slices.Sorted(maps.Keys(targets)) {
		keys := targets[p]
		g.Go(func() error {
			for some := range slices.Chunk(keys, streamBatch) {
				if err := d.sender.sendAll(ctx, p, addProviders(some, self)); err != nil {
					d.log.Debug("provider records not sent", "peer", did.ShortPeer(p), "keys", len(some), "err", err)
					return nil // not counted
				}
				mu.Lock()
				for _, k := range some {
					taken[k]++
				}
				mu.Unlock()
			}
			return nil
		})
	}
	_ = g.Wait()
	return taken
}

func addProviders(keys []provideKey, self []peer.AddrInfo) []*pb.Message {
	var ms []*pb.Message
	for _, k := range keys {
		m := pb.NewMessage(pb.Message_ADD_PROVIDER, []byte(k), 0)
		m.ProviderPeers = pb.RawPeerInfosToPBPeers(self)
		ms = append(ms, m)
	}
	return ms
}

// providedKeys are the provided keys of this node. It is safe for concurrent use.
type providedKeys struct {
	changed chan struct{} // wakes the loop

	// things and keys are owned by mu.
	mu     sync.Mutex
	things map[string][]provideKey
	keys   map[provideKey]*providedKey
	queue  heap.Heap[*providedKey] // all of keys
}

// A providedKey is the state of one key.
type providedKey struct {
	key            provideKey
	index          int // in the queue
	users          int // Things with the key
	stored, wanted int // in the last round
	failures       int // consecutive rounds without a peer that stored it
	next           time.Time
}

// Before implements [heap.Element].
func (k *providedKey) Before(o *providedKey) bool { return k.next.Before(o.next) }

// Position implements [heap.Element].
func (k *providedKey) Position() *int { return &k.index }

func newProvidedKeys() *providedKeys {
	return &providedKeys{changed: make(chan struct{}, 1), things: map[string][]provideKey{}, keys: map[provideKey]*providedKey{}}
}

// add sets the keys of a Thing, and returns those to send now; the loop skips these for a while.
func (o *providedKeys) add(thing string, keys []provideKey) (due []provideKey) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, k := range keys {
		of := o.keys[k]
		if of == nil {
			of = &providedKey{key: k}
			o.keys[k] = of
			o.queue.Add(of)
		}
		of.users++
	}
	o.dropLocked(o.things[thing])
	o.things[thing] = keys
	now := time.Now()
	for _, k := range keys {
		if of := o.keys[k]; of.stored == 0 {
			o.scheduleLocked(of, now.Add(2*callTime))
			due = append(due, k)
		}
	}
	return due
}

func (o *providedKeys) remove(thing string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.dropLocked(o.things[thing])
	delete(o.things, thing)
}

func (o *providedKeys) dropLocked(keys []provideKey) {
	for _, k := range keys {
		if of := o.keys[k]; of.users > 1 {
			of.users--
		} else {
			delete(o.keys, k)
			o.queue.Remove(of)
		}
	}
}

// recordRound records a round of k: the peers that stored it, and those tried. spread is the jitter of the next round.
func (o *providedKeys) recordRound(k provideKey, taken, wanted, enough int, now time.Time, spread float64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	of := o.keys[k]
	if of == nil {
		return // removed in between
	}
	of.stored, of.wanted = taken, wanted
	pause := provideEvery
	switch {
	case taken == 0 && wanted == 0:
		pause = min(retryFirst<<min(of.failures, 16), retryAlone)
	case taken == 0:
		pause = min(retryFirst<<min(of.failures, 16), retryLast)
	case taken < enough:
		pause = thinEvery
	}
	of.failures++
	if taken > 0 {
		of.failures = 0
	}
	o.scheduleLocked(of, now.Add(time.Duration(spread*float64(pause))))
	select {
	case o.changed <- struct{}{}:
	default:
	}
}

// due returns at most limit due keys, or the time until the next one.
func (o *providedKeys) due(now time.Time, limit int) (keys []provideKey, pause time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for of := range o.queue.While(func(of *providedKey) bool { return !now.Before(of.next) && len(keys) < limit }) {
		keys = append(keys, of.key)
	}
	if len(keys) == 0 && len(o.queue) > 0 {
		return nil, min(provideEvery, o.queue[0].next.Sub(now))
	}
	return keys, provideEvery
}

func (o *providedKeys) scheduleLocked(of *providedKey, next time.Time) {
	of.next = next
	o.queue.Fix(of)
}

// sleep waits for pause or a change, and reports false if ctx ended.
func (o *providedKeys) sleep(ctx context.Context, pause time.Duration) bool {
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-t.C:
	case <-o.changed:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// receipt summarizes the last round of keys.
func (o *providedKeys) receipt(keys []provideKey) Receipt {
	o.mu.Lock()
	defer o.mu.Unlock()
	var r Receipt
	for i, k := range keys {
		of := o.keys[k]
		if of == nil {
			of = &providedKey{}
		}
		if i == 0 || of.stored < r.Replicas {
			r.Replicas, r.Wanted = of.stored, of.wanted
		}
	}
	return r
}

func (o *providedKeys) len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.keys)
}
