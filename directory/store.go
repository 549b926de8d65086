package directory

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	ds "github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/query"

	"github.com/lmosd/lmosd/directory/eviction"
	"github.com/lmosd/lmosd/internal/cbor"
	"github.com/lmosd/lmosd/td"
)

// The store has two entries for each Thing, below these keys and under the key of the Thing in hex: the small one with the sequence number,
// which must never be lost and is read first, and the description. Two more have its vector and its equivocation, if there are any.
var (
	seqKeys          = ds.NewKey("/directory/1/seq")
	descKeys         = ds.NewKey("/directory/1/desc")
	vectorKeys       = ds.NewKey("/directory/1/vector")
	equivocationKeys = ds.NewKey("/directory/1/fork")
)

// savedSeq is stored for each Thing, living or gone.
type savedSeq struct {
	Seq       uint64   `cbor:"1,keyasint"`
	Until     int64    `cbor:"2,keyasint"` // Unix seconds
	Tombstone []byte   `cbor:"3,keyasint"` // the tombstone or moved record, or nothing
	Names     []string `cbor:"4,keyasint"`
}

// savedDesc is stored for each living Thing.
type savedDesc struct {
	Record []byte `cbor:"1,keyasint"`
	TD     []byte `cbor:"2,keyasint"`
	Own    bool   `cbor:"3,keyasint"`
	Used   bool   `cbor:"4,keyasint,omitempty"`
	Via    string `cbor:"5,keyasint,omitempty"` // the share to which it is charged
}

const (
	saveEvery   = time.Second
	saveTimeout = 10 * time.Second
	saveAtOnce  = 1024 // entries of one batch
	loadAtOnce  = 256  // descriptions that New verifies, at 0.3 ms each
	maxSaved    = td.MaxRecord + td.MaxTD + 1024
)

// load reads all sequence numbers, and the first descriptions; loadRest reads the others.
func (d *Directory) load(ctx context.Context) error {
	if d.opts.Store == nil {
		return nil
	}
	err := d.each(ctx, seqKeys, func(key [32]byte, value []byte) error { return d.restoreSeq(key, value) })
	if err != nil {
		return err
	}
	if err := d.loadEquivocations(ctx); err != nil {
		return err
	}
	more, err := d.loadDescriptions(ctx, loadAtOnce)
	d.loading.Store(more)
	return err
}

// loadRest reads the descriptions that New did not read, until ctx ends.
func (d *Directory) loadRest(ctx context.Context) {
	if !d.loading.Load() {
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

var errEnough = errors.New("enough")

// loadDescriptions reads up to limit descriptions that are not loaded yet; 0 is no limit. It reports whether there are more.
func (d *Directory) loadDescriptions(ctx context.Context, limit int) (more bool, err error) {
	n := 0
	err = d.each(ctx, descKeys, func(key [32]byte, value []byte) error {
		if d.has(key) {
			return nil
		}
		if n++; limit > 0 && n > limit {
			return errEnough
		}
		return d.restore(ctx, key, value)
	})
	if errors.Is(err, errEnough) {
		return true, nil
	}
	return false, err
}

// has reports whether the Thing of a key is living.
func (d *Directory) has(key [32]byte) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	e := d.entries[key]
	return e != nil && e.view != nil
}

// each calls take for each entry below prefix. A corrupt entry is deleted and logged.
func (d *Directory) each(ctx context.Context, prefix ds.Key, take func(key [32]byte, value []byte) error) error {
	for entry, err := range ds.QueryIter(ctx, d.opts.Store, query.Query{Prefix: prefix.String()}) {
		if err != nil {
			return err
		}
		key, err := parseKey(prefix, entry.Key)
		if err == nil {
			err = take(key, entry.Value)
		}
		switch {
		case err == nil:
		case errors.Is(err, errCorrupt):
			d.count.inc(&d.count.Corrupt)
			d.log.Warn("corrupt directory entry deleted", "key", entry.Key, "err", err)
			if err := d.opts.Store.Delete(ctx, ds.RawKey(entry.Key)); err != nil {
				return err
			}
		default:
			return err
		}
	}
	return nil
}

// errCorrupt marks an unusable entry of the store.
var errCorrupt = errors.New("corrupt")

func parseKey(prefix ds.Key, text string) (key [32]byte, err error) {
	hexed, ok := strings.CutPrefix(text, prefix.String()+"/")
	if n, err := hex.Decode(key[:], []byte(hexed[:min(len(hexed), 64)])); !ok || err != nil || n != 32 || len(hexed) != 64 {
		return key, fmt.Errorf("%w: not the key of a thing", errCorrupt)
	}
	return key, nil
}

func storeKey(prefix ds.Key, key [32]byte) ds.Key {
	return prefix.ChildString(hex.EncodeToString(key[:]))
}

// restoreSeq restores the highest sequence number of a Thing, and its tombstone.
func (d *Directory) restoreSeq(key [32]byte, value []byte) error {
	var s savedSeq
	if err := unmarshal(value, &s); err != nil {
		return err
	}
	now := time.Now()
	e := &entry{Item: eviction.Item{Key: key}, stored: true, seq: s.Seq, until: time.Unix(s.Until, 0)}
	if len(s.Tombstone) > 0 {
		r, err := d.opts.Verifier.Record(s.Tombstone, now)
		switch {
		case errors.Is(err, td.ErrExpired):
		case err != nil:
			return fmt.Errorf("%w: tombstone: %w", errCorrupt, err)
		case r.Key() != key || r.Kind == td.KindTD:
			return fmt.Errorf("%w: the tombstone of another thing", errCorrupt)
		default:
			e.tombstone = newTombstone(r, s.Names)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !now.Before(e.until) {
		d.markLocked(key) // deletes it
		return nil
	}
	d.entries[key] = e
	d.gone.add(e)
	if e.tombstone != nil {
		d.tombstones.add(e)
		d.notifyLocked(e)
	}
	return nil
}

// restore restores a description, and verifies it again, because a store can be modified by others.
func (d *Directory) restore(ctx context.Context, key [32]byte, value []byte) error {
	var s savedDesc
	if err := unmarshal(value, &s); err != nil {
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
		d.forgetStored(key)
		return nil
	case err != nil:
		return fmt.Errorf("%w: %w", errCorrupt, err)
	case desc.Thing == nil || desc.Record.Key() != key:
		return fmt.Errorf("%w: the description of another thing", errCorrupt)
	}
	from := restored
	if s.Own {
		from = restoredOwn
	}
	with := arrival{vector: d.keptVector(ctx, key, desc), used: s.Used, via: s.Via}
	if _, err := d.putWith(desc, from, with); err != nil {
		d.log.Debug("stored description rejected", "thing", desc.Record.Thing, "err", err)
		d.forgetStored(key)
	}
	return nil
}

// forgetStored makes the next write update the store under a key.
func (d *Directory) forgetStored(key [32]byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.markLocked(key)
}

// markLocked marks a key whose entry in the store must be updated.
func (d *Directory) markLocked(key [32]byte) {
	if d.opts.Store != nil {
		d.dirty[key] = true
	}
}

// unmarshal decodes a value of the store.
func unmarshal(value []byte, v any) error {
	if len(value) > maxSaved {
		return fmt.Errorf("%w: %d bytes", errCorrupt, len(value))
	}
	if err := cbor.Unmarshal(value, v); err != nil {
		return fmt.Errorf("%w: %w", errCorrupt, err)
	}
	return nil
}

// logInterval is the shortest interval between log messages about failed writes.
const logInterval = time.Minute

// save writes changes every second until ctx ends.
func (d *Directory) save(ctx context.Context) {
	if d.opts.Store == nil {
		return
	}
	tick := time.NewTicker(saveEvery)
	defer tick.Stop()
	var lastLogged time.Time // of the last log message about a failed write
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if err := d.Flush(ctx); err != nil && ctx.Err() == nil && time.Since(lastLogged) > logInterval {
				d.log.Error("directory not stored; it stays in memory and is written later", "err", err)
				lastLogged = time.Now()
			}
		}
	}
}

// flushLast writes pending changes after ctx has ended.
func (d *Directory) flushLast() error {
	ctx, cancel := context.WithTimeout(context.Background(), saveTimeout)
	defer cancel()
	return d.Flush(ctx)
}

// Flush writes pending changes to Options.Store and returns when they are durable. Run does so every second. After an error the next call
// tries again.
func (d *Directory) Flush(ctx context.Context) error {
	if d.opts.Store == nil {
		return nil
	}
	d.saving.Lock()
	defer d.saving.Unlock()
	wrote := false
	for {
		changes := d.changes(saveAtOnce)
		if len(changes) == 0 {
			break
		}
		if err := d.write(ctx, changes); err != nil {
			d.unsaved(changes)
			return fmt.Errorf("write the directory's store: %w", err)
		}
		wrote = true
	}
	if !wrote {
		return nil
	}
	return d.opts.Store.Sync(ctx, ds.NewKey("/directory"))
}

// A change is the new state of a Thing in the store; nil deletes.
type change struct {
	of           aspect
	key          [32]byte
	seq          *savedSeq
	desc         *savedDesc
	view         *view // of the vector
	equivocation *savedEquivocation
}

// An aspect is a part of a Thing that is written separately.
type aspect int

const (
	ofThing  aspect = iota // seq and desc; deleting desc deletes the vector
	ofVector               // the vector
	ofEquivocation
)

// changes removes up to limit changes from the dirty sets.
func (d *Directory) changes(limit int) []change {
	d.mu.Lock()
	defer d.mu.Unlock()
	var cs []change
	for of, dirty := range []map[[32]byte]bool{d.dirty, d.dirtyVectors, d.dirtyEquivocations} {
		for key := range dirty {
			if len(cs) == limit {
				return cs
			}
			delete(dirty, key)
			cs = append(cs, d.changeLocked(aspect(of), key))
		}
	}
	return cs
}

func (d *Directory) changeLocked(of aspect, key [32]byte) change {
	e := d.entries[key]
	switch {
	case of == ofEquivocation:
		return change{of: of, key: key, equivocation: d.equivocations.saved(key)}
	case of == ofVector && e != nil && e.view != nil:
		return change{of: of, key: key, view: e.view}
	case of == ofVector:
		return change{of: of, key: key}
	}
	if e != nil {
		e.stored = true
	}
	return changeOf(key, e)
}

func changeOf(key [32]byte, e *entry) change {
	c := change{key: key}
	if e == nil {
		return c
	}
	c.seq = &savedSeq{Seq: e.seq, Until: e.until.Unix()}
	if e.tombstone != nil {
		c.seq.Tombstone, c.seq.Names = e.tombstone.record.Raw, e.tombstone.names
	}
	if e.view != nil {
		c.desc = &savedDesc{Record: e.view.record.Raw, Own: e.own, Used: e.used, Via: e.Via()}
		if len(e.view.record.Inline) == 0 { // otherwise the record has the TD
			c.desc.TD = e.view.body()
		}
	}
	return c
}

// unsaved marks changes again that could not be written.
func (d *Directory) unsaved(cs []change) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range cs {
		[]map[[32]byte]bool{d.dirty, d.dirtyVectors, d.dirtyEquivocations}[c.of][c.key] = true
	}
}

// write writes changes as one batch.
func (d *Directory) write(ctx context.Context, cs []change) error {
	b, err := d.opts.Store.Batch(ctx)
	if err != nil {
		return err
	}
	for _, c := range cs {
		if err := d.writeChange(ctx, b, &c); err != nil {
			return err
		}
	}
	return b.Commit(ctx)
}

func (d *Directory) writeChange(ctx context.Context, b ds.Batch, c *change) error {
	switch c.of {
	case ofVector:
		return putOrDelete(ctx, b, storeKey(vectorKeys, c.key), d.savedVector(c.view))
	case ofEquivocation:
		return putOrDelete(ctx, b, storeKey(equivocationKeys, c.key), c.equivocation)
	}
	if err := putOrDelete(ctx, b, storeKey(seqKeys, c.key), c.seq); err != nil {
		return err
	}
	if c.desc == nil {
		if err := b.Delete(ctx, storeKey(vectorKeys, c.key)); err != nil {
			return err
		}
	}
	return putOrDelete(ctx, b, storeKey(descKeys, c.key), c.desc)
}

func putOrDelete[T any](ctx context.Context, b ds.Batch, key ds.Key, value *T) error {
	if value == nil {
		return b.Delete(ctx, key)
	}
	raw, err := cbor.Marshal(value)
	if err != nil {
		return err
	}
	return b.Put(ctx, key, raw)
}
