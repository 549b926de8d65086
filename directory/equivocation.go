package directory

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory/persist"
	"github.com/lmosd/lmosd/td"
)

// An Equivocation is two different records of one Thing with one seq, which an owner must never sign. The usual cause is two programs
// with one key.
type Equivocation struct {
	Owner did.DID
	Thing string
	Seq   uint64
	Seen  time.Time // when the second one arrived
	// Records are the two verified public records, without inline TDs: evidence that others can verify. On every node the first one has
	// precedence.
	Records [2][]byte

	key [32]byte // of the thing
}

// Limits of the evidence.
const (
	maxEquivocations      = 256 // the oldest is dropped
	equivocationsPerOwner = 8   // so that one owner cannot evict others; further ones are only counted
)

func (f *Equivocation) same(o *Equivocation) bool {
	return f.Seq == o.Seq && bytes.Equal(f.Records[0], o.Records[0]) && bytes.Equal(f.Records[1], o.Records[1])
}

// equivocations records equivocations, oldest first, one per Thing. Its user locks.
type equivocations []Equivocation

// add returns the Things whose equivocations have changed.
func (fs *equivocations) add(f Equivocation) (changed [][32]byte) {
	f.key = td.Key(f.Owner, f.Thing)
	at := slices.IndexFunc(*fs, func(o Equivocation) bool { return o.key == f.key })
	if at >= 0 && f.same(&(*fs)[at]) {
		return nil
	}
	if at >= 0 {
		*fs = slices.Delete(*fs, at, at+1)
	}
	of := 0
	for _, o := range *fs {
		if o.Owner == f.Owner {
			of++
		}
	}
	if of >= equivocationsPerOwner {
		return nil
	}
	changed = append(changed, f.key)
	if *fs = append(*fs, f); len(*fs) > maxEquivocations {
		changed = append(changed, (*fs)[0].key)
		*fs = slices.Delete(*fs, 0, 1)
	}
	return changed
}

// A savedEquivocation is the stored form of an [Equivocation].
type savedEquivocation struct {
	Seen   int64  `cbor:"1,keyasint"` // Unix seconds
	First  []byte `cbor:"2,keyasint"`
	Second []byte `cbor:"3,keyasint"`
}

// saved returns the stored form of the equivocation of a Thing; nil if there is none.
func (fs equivocations) saved(key [32]byte) any {
	for _, f := range fs {
		if f.key == key {
			return &savedEquivocation{Seen: f.Seen.Unix(), First: f.Records[0], Second: f.Records[1]}
		}
	}
	return nil
}

// loadEquivocations reads stored equivocations.
func (d *Directory) loadEquivocations(ctx context.Context) error {
	var all equivocations
	err := d.store.Each(ctx, persist.Equivocations, func(key [32]byte, value []byte) error {
		f, err := d.restoreEquivocation(key, value)
		if err == nil {
			all = append(all, *f)
		}
		return err
	})
	slices.SortStableFunc(all, func(a, b Equivocation) int { return a.Seen.Compare(b.Seen) })
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range all {
		d.equivocations.add(f)
	}
	return err
}

// restoreEquivocation verifies a stored equivocation as of when it was seen, because evidence does not expire.
func (d *Directory) restoreEquivocation(key [32]byte, value []byte) (*Equivocation, error) {
	var s savedEquivocation
	if err := persist.Unmarshal(value, &s); err != nil {
		return nil, err
	}
	f := &Equivocation{Seen: time.Unix(s.Seen, 0)}
	var both [2]*td.Record
	for i, raw := range [][]byte{s.First, s.Second} {
		r, err := d.opts.Verifier.Record(raw, f.Seen)
		if err != nil {
			return nil, fmt.Errorf("%w: equivocation: %w", persist.ErrCorrupt, err)
		}
		both[i], f.Records[i] = r, raw
	}
	f.Owner, f.Thing, f.Seq = both[0].Owner, both[0].Thing, both[0].Seq
	if both[0].Key() != key || both[1].Key() != key || both[1].Seq != f.Seq || both[0].Compare(both[1]) <= 0 {
		return nil, fmt.Errorf("%w: the two records are not an equivocation", persist.ErrCorrupt)
	}
	return f, nil
}

// Equivocations returns the recorded equivocations, oldest first: one per Thing, at most 8 per owner and 256 in all. Options.Store persists
// them. The caller must not modify the records.
func (d *Directory) Equivocations() []Equivocation {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return slices.Clone(d.equivocations)
}

// Equivocation returns the last equivocation of a Thing, if there is one.
func (d *Directory) Equivocation(owner did.DID, thing string) (Equivocation, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	for _, f := range d.equivocations {
		if f.Owner == owner && f.Thing == thing {
			return f, true
		}
	}
	return Equivocation{}, false
}

// equivocationLocked selects one of two different records with one seq, the same on every node. The error is RolledBack if it selects the
// known one.
func (d *Directory) equivocationLocked(e *entry, cur, r *td.Record) error {
	d.count.inc(&d.count.Equivocations)
	kept := cur.Compare(r) >= 0
	if r.Audience != td.Public || cur.Audience != td.Public {
		// Evidence is shown to all callers.
		if kept {
			return d.rolledBackLocked(e, r, "another record with the same seq is known; two programs may use one key")
		}
		return nil
	}
	f := Equivocation{Owner: r.Owner, Thing: r.Thing, Seq: r.Seq, Seen: time.Now(), Records: [2][]byte{r.WithoutTD(), cur.WithoutTD()}}
	if kept {
		f.Records = [2][]byte{cur.WithoutTD(), r.WithoutTD()}
	}
	for _, key := range d.equivocations.add(f) {
		d.store.Mark(persist.Equivocations, key)
	}
	if !e.equivocationLogged { // once per entry, so that equivocations cannot flood the log
		e.equivocationLogged = true
		d.log.Warn("equivocation detected", "owner", r.Owner, "thing", r.Thing, "seq", r.Seq, "kept", kept)
	}
	if kept {
		return d.rolledBackLocked(e, r, "another record with the same seq is known; two programs may use one key")
	}
	return nil
}
