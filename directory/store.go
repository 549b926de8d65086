package directory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lmosd/lmosd/directory/eviction"
	"github.com/lmosd/lmosd/directory/persist"
	"github.com/lmosd/lmosd/td"
)

// savedSeq is stored for each Thing, live or removed.
type savedSeq struct {
	Seq       uint64   `cbor:"1,keyasint"`
	Until     int64    `cbor:"2,keyasint"` // Unix seconds
	Tombstone []byte   `cbor:"3,keyasint"` // the tombstone or moved record, or nothing
	Names     []string `cbor:"4,keyasint"`
	Own       bool     `cbor:"5,keyasint,omitempty"` // this node has signed the tombstone
}

// savedDesc is stored for each live Thing.
type savedDesc struct {
	Record []byte   `cbor:"1,keyasint"`
	TD     []byte   `cbor:"2,keyasint"`
	Own    bool     `cbor:"3,keyasint"`
	Used   bool     `cbor:"4,keyasint,omitempty"`
	Via    string   `cbor:"5,keyasint,omitempty"` // the share to which it is charged
	Others [][]byte `cbor:"6,keyasint,omitempty"` // the records of further hosts
}

// initialLoad is the number of descriptions that New verifies at most, at 0.3 ms each.
const initialLoad = 128

// load reads all sequence numbers, and the first descriptions; loadRest reads the others.
func (d *Directory) load(ctx context.Context) error {
	err := d.store.Each(ctx, persist.Seqs, d.restoreSeq)
	if err != nil {
		return err
	}
	if err := d.loadEquivocations(ctx); err != nil {
		return err
	}
	more, err := d.loadDescriptions(ctx, initialLoad)
	d.loading.Store(more)
	return err
}

// loadRest reads the descriptions that New did not read, until ctx ends.
func (d *Directory) loadRest(ctx context.Context) {
	if !d.loading.Load() {
		return
	}
	if d.opts.Own != nil && d.opts.Own.Await(ctx, td.Ref{}) != nil { // own Things are not verified twice
		return
	}
	defer d.loading.Store(false)
	start := time.Now()
	if _, err := d.loadDescriptions(ctx, 0); err != nil && ctx.Err() == nil {
		d.log.Error("directory load failed", "err", err)
		return
	}
	_, known := d.Len()
	d.log.Info("directory loaded", "things", known, "took", time.Since(start))
}

// isLoading reports whether the index does not have all stored Things, or all of this node.
func (d *Directory) isLoading() bool {
	return d.loading.Load() || d.opts.Own != nil && d.opts.Own.IsLoading()
}

var errLimitReached = errors.New("limit reached")

// loadDescriptions reads up to limit descriptions that are not loaded yet; 0 is no limit. It reports whether there are more.
func (d *Directory) loadDescriptions(ctx context.Context, limit int) (more bool, err error) {
	n := 0
	err = d.store.Each(ctx, persist.Descriptions, func(key [32]byte, value []byte) error {
		if d.isLive(key) {
			return nil
		}
		if n++; limit > 0 && n > limit {
			return errLimitReached
		}
		return d.restore(ctx, key, value)
	})
	if errors.Is(err, errLimitReached) {
		return true, nil
	}
	return false, err
}

// isLive reports whether the Thing of a key is live.
func (d *Directory) isLive(key [32]byte) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	e := d.entries[key]
	return e != nil && e.view != nil
}

// restoreSeq restores the highest sequence number of a Thing, and its tombstone.
func (d *Directory) restoreSeq(key [32]byte, value []byte) error {
	var s savedSeq
	if err := persist.Unmarshal(value, &s); err != nil {
		return err
	}
	now := time.Now()
	e := &entry{Item: eviction.Item{Key: key}, stored: true, seq: s.Seq, until: time.Unix(s.Until, 0)}
	if len(s.Tombstone) > 0 {
		r, err := d.opts.Verifier.Record(s.Tombstone, now)
		switch {
		case errors.Is(err, td.ErrExpired):
		case err != nil:
			return fmt.Errorf("%w: tombstone: %w", persist.ErrCorrupt, err)
		case r.Key() != key || r.Kind == td.KindTD:
			return fmt.Errorf("%w: the tombstone is that of another Thing", persist.ErrCorrupt)
		default:
			e.tombstone = newTombstone(r, s.Names, s.Own)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !now.Before(e.until) {
		d.store.Mark(persist.Seqs, key) // deletes it
		return nil
	}
	d.entries[key] = e
	d.removed.Add(e)
	if e.tombstone != nil {
		d.tombstones.add(e)
		d.notifyLocked(e)
	}
	return nil
}

// restore restores a description. It verifies it again, because other programs can modify a store.
func (d *Directory) restore(ctx context.Context, key [32]byte, value []byte) error {
	var s savedDesc
	if err := persist.Unmarshal(value, &s); err != nil {
		return err
	}
	if len(s.TD) == 0 {
		s.TD = nil
	}
	desc, err := (&td.Signed{Record: s.Record, TD: s.TD}).Verify(ctx, d.opts.Verifier, time.Now())
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, td.ErrExpired):
		d.store.Mark(persist.Seqs, key)
		return nil
	case err != nil:
		return fmt.Errorf("%w: %w", persist.ErrCorrupt, err)
	case desc.Thing == nil || desc.Record.Key() != key:
		return fmt.Errorf("%w: the description is that of another Thing", persist.ErrCorrupt)
	}
	from := restored
	if s.Own {
		from = restoredOwn
	}
	with := arrival{vector: d.loadVector(ctx, key, desc), used: s.Used, via: s.Via}
	if _, err := d.putWith(desc, from, with); err != nil {
		d.log.Debug("stored description rejected", "thing", desc.Record.Thing, "err", err)
		d.store.Mark(persist.Seqs, key)
		return nil
	}
	for _, record := range s.Others {
		if other, err := desc.Refresh(d.opts.Verifier, record, time.Now()); err == nil { // else it has expired
			_, _ = d.putWith(other, from, arrival{}) // the Thing is there without it, too
		}
	}
	return nil
}

// Flush writes pending changes to Options.Store and returns when they are durable. Run does so every second. After an error the next call
// tries again.
func (d *Directory) Flush(ctx context.Context) error { return d.store.Flush(ctx) }

// snapshot returns the state of a Thing in the store.
func (d *Directory) snapshot(k persist.Kind, key [32]byte) []persist.Entry {
	switch k {
	case persist.Vectors:
		return []persist.Entry{{Kind: k, Value: d.savedVector(key)}}
	case persist.Equivocations:
		d.mu.RLock()
		defer d.mu.RUnlock()
		return []persist.Entry{{Kind: k, Value: d.equivocations.saved(key)}}
	}
	seq, desc, v := d.saved(key)
	switch {
	case seq == nil:
		return []persist.Entry{{Kind: persist.Seqs}, {Kind: persist.Vectors}, {Kind: persist.Descriptions}}
	case desc == nil:
		return []persist.Entry{{Kind: persist.Seqs, Value: seq}, {Kind: persist.Vectors}, {Kind: persist.Descriptions}}
	case v != nil:
		desc.TD = v.body()
	}
	return []persist.Entry{{Kind: persist.Seqs, Value: seq}, {Kind: persist.Descriptions, Value: desc}}
}

// saved returns what the store keeps of a Thing but for its TD, and the view that has the TD. All are nil if nothing is known, and the last two if the
// Thing is removed.
func (d *Directory) saved(key [32]byte) (*savedSeq, *savedDesc, *view) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.entries[key]
	if e == nil {
		return nil, nil, nil
	}
	e.stored = true
	seq := &savedSeq{Seq: e.seq, Until: e.until.Unix()}
	if e.tombstone != nil {
		seq.Tombstone, seq.Names, seq.Own = e.tombstone.record.Raw, e.tombstone.names, e.tombstone.own
	}
	if e.view == nil {
		return seq, nil, nil
	}
	desc := &savedDesc{Record: e.view.record.Raw, Own: e.own, Used: e.used, Via: e.Via()}
	if e.hosting != nil {
		desc.Record, desc.Others = e.hosting.stored()
	}
	if e.hosting == nil && len(e.view.record.Inline) > 0 { // the record has the TD
		return seq, desc, nil
	}
	return seq, desc, e.view
}
