package dht

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	kad "github.com/libp2p/go-libp2p-kad-dht"
	"github.com/libp2p/go-libp2p-kad-dht/records"
	kb "github.com/libp2p/go-libp2p-kbucket"
	record "github.com/libp2p/go-libp2p-record"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

const (
	lookupTime = 15 * time.Second // of finding the closest peers
	putTime    = 10 * time.Second // of one peer's acknowledgement
	verifyTime = 3 * time.Second  // of looking for a newer record
)

// A Receipt says where something was published.
type Receipt struct {
	// Replicas is the number of other nodes that have taken it; of several keys, the least of any.
	Replicas int
	// Wanted is how many were asked: the closest K, or all if there are fewer.
	Wanted int
	Took   time.Duration
	// Deliveries tells of each node that was asked, for logs.
	Deliveries []Delivery
}

// A Delivery is what came of one node.
type Delivery struct {
	Node did.DID
	Took time.Duration
	Err  error // nil if it has taken the record
}

// Enough reports whether at least half of the wanted nodes have it: then the loss of the others at once does no harm.
func (r Receipt) Enough() bool { return r.Wanted > 0 && 2*r.Replicas >= r.Wanted }

// Publish stores the record of s on this node and on the nodes closest to its key, and counts who acknowledged it. Whoever
// did not is asked once more.
//
// The error wraps one of the td errors if the record is not valid, [ErrNewer] if the mesh has a record that wins over it,
// and [ErrNoReplicas] if no other node has taken it; the receipt is good in that case too, and the record is stored here. A
// record is kept for 24 hours from its last Publish, and no longer than it is valid.
func (d *DHT) Publish(ctx context.Context, s *td.Signed) (Receipt, error) {
	start := time.Now()
	d.stats.publishes.Add(1)
	r, err := d.publish(ctx, s.Record)
	r.Took = time.Since(start)
	if r.Replicas == 0 {
		d.stats.unpublished.Add(1)
	}
	return r, err
}

func (d *DHT) publish(ctx context.Context, raw []byte) (Receipt, error) {
	rec, err := d.o.Verifier.Record(raw, time.Now())
	if err != nil {
		return Receipt{}, fmt.Errorf("publish: %w", err)
	}
	key := valueKeyOf(rec.Owner, rec.Thing)
	if err := d.keep(ctx, key, raw); err != nil {
		return Receipt{}, fmt.Errorf("publish %s: %w", rec.Thing, err)
	}
	peers, err := d.closest(ctx, key)
	if err != nil {
		return Receipt{}, fmt.Errorf("publish %s: %w: %w", rec.Thing, ErrNoReplicas, err)
	}
	r := d.putAll(ctx, key, raw, peers)
	switch {
	case r.Enough():
		return r, nil
	case d.isOutdated(ctx, key, raw):
		return r, fmt.Errorf("publish %s: %w", rec.Thing, ErrNewer)
	case r.Replicas == 0:
		return r, fmt.Errorf("publish %s: %w: %w", rec.Thing, ErrNoReplicas, firstError(r.Deliveries))
	}
	return r, nil
}

// keep stores a record on this node, so that it serves it. The library has no method for that, but both use one datastore.
func (d *DHT) keep(ctx context.Context, key string, raw []byte) error {
	err := d.values.Put(ctx, key, record.MakePutRecord(key, raw))
	switch {
	case errors.Is(err, records.ErrOldRecord):
		return ErrNewer
	case errors.Is(err, errFull):
		return nil // others are closer to the key, and will have it
	}
	return err
}

// closest returns the peers that are to keep key: the K closest, or all if there are fewer. The error wraps ErrNoPeers if
// there is none.
func (d *DHT) closest(ctx context.Context, key string) ([]peer.ID, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	peers, err := d.kad.GetClosestPeers(ctx, key)
	switch {
	case len(peers) > 0:
		return peers, nil // those found in time, if the lookup was cut
	case err == nil, errors.Is(err, kb.ErrLookupFailure), errors.Is(err, kad.ErrNoPeersQueried):
		return nil, ErrNoPeers
	}
	return nil, fmt.Errorf("look up the closest peers: %w", err)
}

// putAll puts the record to all peers at once, and once more to those that did not acknowledge it.
func (d *DHT) putAll(ctx context.Context, key string, raw []byte, peers []peer.ID) Receipt {
	r := Receipt{Wanted: len(peers), Deliveries: make([]Delivery, len(peers))}
	var wg sync.WaitGroup
	for i, p := range peers {
		wg.Go(func() {
			r.Deliveries[i] = d.put(ctx, key, raw, p)
			if r.Deliveries[i].Err != nil && ctx.Err() == nil {
				r.Deliveries[i] = d.put(ctx, key, raw, p)
			}
		})
	}
	wg.Wait()
	for _, v := range r.Deliveries {
		if v.Err == nil {
			r.Replicas++
		}
	}
	return r
}

func (d *DHT) put(ctx context.Context, key string, raw []byte, p peer.ID) Delivery {
	ctx, cancel := context.WithTimeout(ctx, putTime)
	defer cancel()
	start := time.Now()
	err := d.messenger.PutValue(ctx, p, record.MakePutRecord(key, raw))
	node, _ := did.FromPeer([]byte(p)) // it was admitted
	return Delivery{Node: node, Took: time.Since(start), Err: err}
}

// isOutdated reports whether the mesh has a record that wins over raw. A refused PUT_VALUE has no reply, so that a
// publisher whose record is outdated sees nothing but missing acknowledgements.
func (d *DHT) isOutdated(ctx context.Context, key string, raw []byte) bool {
	ctx, cancel := context.WithTimeout(ctx, verifyTime)
	defer cancel()
	best, err := d.search(ctx, key, verifyTime)
	if err != nil || best == nil {
		return false
	}
	i, err := d.validator.Select(key, [][]byte{raw, best})
	return err == nil && i == 1
}

func firstError(ds []Delivery) error {
	for _, v := range ds {
		if v.Err != nil {
			return v.Err
		}
	}
	return ErrNoPeers
}
