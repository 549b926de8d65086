package dht

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	kad "github.com/libp2p/go-libp2p-kad-dht"
	"github.com/libp2p/go-libp2p-kad-dht/records"
	kb "github.com/libp2p/go-libp2p-kbucket"
	record "github.com/libp2p/go-libp2p-record"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/td"
)

const (
	lookupTime = 15 * time.Second // of finding the closest peers
	putTime    = 10 * time.Second // of one peer's acknowledgement
	verifyTime = 3 * time.Second  // of looking for a newer record
)

// A Receipt is the result of a publication.
type Receipt struct {
	// Replicas is the number of other nodes that stored it; of several keys, the minimum.
	Replicas int
	// Wanted is the number of nodes tried: the closest K, or all if there are fewer.
	Wanted int
}

// enough reports whether at least half of the wanted nodes stored it.
func (r Receipt) enough() bool { return r.Wanted > 0 && 2*r.Replicas >= r.Wanted }

// Publish stores the record of s on this node and on the nodes closest to its key, and counts the acknowledgements. Missing ones
// are retried once.
//
// A record that is not public is refused. The error wraps one of the td errors if the record is not valid, [ErrNewer] if the mesh has a
// newer record, and [ErrNoReplicas] if no other node stored it; the receipt is valid in that case too, and the record is stored here. A
// record is kept for 24 h after its last Publish, and no longer than it is valid.
func (d *DHT) Publish(ctx context.Context, s *td.Signed) (Receipt, error) {
	raw := s.Record
	rec, err := d.o.Verifier.Record(raw, time.Now())
	if err != nil {
		return Receipt{}, fmt.Errorf("publish: %w", err)
	}
	if rec.Audience != td.Public {
		return Receipt{}, fmt.Errorf("publish %s: %w", rec.Thing, errAudience)
	}
	r, err := d.store(ctx, RecordKey(rec.CarrierKey()), raw)
	if err != nil {
		err = fmt.Errorf("publish %s: %w", rec.Thing, err)
	}
	return r, err
}

// store stores a valid value on this node and on the nodes closest to its key. The errors are those of Publish.
func (d *DHT) store(ctx context.Context, key string, raw []byte) (Receipt, error) {
	if err := d.keep(ctx, key, raw); err != nil {
		return Receipt{}, err
	}
	peers, err := d.closest(ctx, key)
	if err != nil {
		return Receipt{}, fmt.Errorf("%w: %w", ErrNoReplicas, err)
	}
	r, err := d.putAll(ctx, key, raw, peers)
	switch {
	case r.enough():
		return r, nil
	case d.isOutdated(ctx, key, raw):
		return r, ErrNewer
	case r.Replicas == 0:
		return r, fmt.Errorf("%w: %w", ErrNoReplicas, err)
	}
	return r, nil
}

// keep stores a record on this node. The library has no method for that, but both use one datastore.
func (d *DHT) keep(ctx context.Context, key string, raw []byte) error {
	err := d.values.Put(ctx, key, record.MakePutRecord(key, raw))
	switch {
	case errors.Is(err, records.ErrOldRecord):
		return ErrNewer
	case errors.Is(err, errFull):
		return nil // stored by closer nodes
	}
	return err
}

// closest returns the K closest peers of key, or all if there are fewer. The error wraps ErrNoPeers if there is none.
func (d *DHT) closest(ctx context.Context, key string) ([]peer.ID, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	peers, err := d.kad.GetClosestPeers(ctx, key)
	switch {
	case len(peers) > 0:
		return peers, nil // those found before the timeout
	case err == nil, errors.Is(err, kb.ErrLookupFailure), errors.Is(err, kad.ErrNoPeersQueried):
		return nil, ErrNoPeers
	}
	return nil, fmt.Errorf("look up the closest peers: %w", err)
}

// putAll sends the record to all peers concurrently, and once more to those that did not acknowledge it. The error is the first of
// those that failed twice.
func (d *DHT) putAll(ctx context.Context, key string, raw []byte, peers []peer.ID) (Receipt, error) {
	errs := make([]error, len(peers))
	var wg sync.WaitGroup
	for i, p := range peers {
		wg.Go(func() {
			if errs[i] = d.put(ctx, key, raw, p); errs[i] != nil && ctx.Err() == nil {
				errs[i] = d.put(ctx, key, raw, p)
			}
		})
	}
	wg.Wait()
	failed := slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	return Receipt{Replicas: len(peers) - len(failed), Wanted: len(peers)}, cmp.Or(append(failed, ErrNoPeers)...)
}

func (d *DHT) put(ctx context.Context, key string, raw []byte, p peer.ID) error {
	ctx, cancel := context.WithTimeout(ctx, putTime)
	defer cancel()
	return d.messenger.PutValue(ctx, p, record.MakePutRecord(key, raw))
}

// isOutdated reports whether the mesh has a newer record than raw. A rejected PUT_VALUE has no reply, so a publisher with an
// outdated record sees only missing acknowledgements.
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
