package directory

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory/fetch"
	"github.com/lmosd/lmosd/td"
)

var (
	errKnown     = errors.New("the record is not newer than the known one")
	errUnfetched = errors.New("the TD could not be fetched")
	errAudience  = errors.New("the record is not public")
)

// maxQueued limits the TDs in the queue, in bytes; records are small.
const maxQueued = 16 << 20

// Enqueue queues a record from gossip, with or without its TD. It never blocks. While [Directory.Run] runs, queued records are verified,
// missing TDs fetched, and the descriptions added; an invalid record, a known one, or one whose TD cannot be fetched is counted and dropped:
// the next record of the Thing tries again. When the queue is full, the oldest record is dropped.
func (d *Directory) Enqueue(s *td.Signed) {
	if d.queued.Add(int64(len(s.TD))) > maxQueued {
		d.queued.Add(-int64(len(s.TD)))
		s = &td.Signed{Record: s.Record, From: s.From} // its TD can be fetched later
	}
	for {
		select {
		case d.queue <- s:
			return
		default:
		}
		select {
		case oldest := <-d.queue:
			d.queued.Add(-int64(len(oldest.TD)))
			d.count.inc(&d.count.Dropped)
		default:
		}
	}
}

// Ingest verifies and adds a record before it returns: this slows down a caller with many records, and drops none. A record whose TD is
// missing is queued with [Directory.Enqueue].
func (d *Directory) Ingest(ctx context.Context, s *td.Signed) {
	desc, _, err := d.open(ctx, s)
	if errors.Is(err, td.ErrNoTD) {
		d.Enqueue(s)
		return
	}
	d.accept(s, desc, err)
}

// IngestRestricted verifies and adds a restricted record that a node has sent, with or without its TD, for the consumers of this node: no
// other node receives it. The sender must be the owner, the owner to which it has moved, or a host of the Thing, and the record not public and not
// private. A record that is not newer than the known one is no error.
func (d *Directory) IngestRestricted(ctx context.Context, s *td.Signed, from did.DID) error {
	s = &td.Signed{Record: s.Record, TD: s.TD, From: from}
	desc, r, err := d.openIf(ctx, s, func(r *td.Record) error { return d.checkRestricted(r, from) })
	if errors.Is(err, td.ErrNoTD) {
		desc, err = d.complete(ctx, s, r)
	}
	if err == nil {
		_, err = d.putWith(desc, received, d.arrivalFrom(s))
	}
	if errors.Is(err, errKnown) {
		return nil
	}
	return err
}

// checkRestricted checks a verified record for IngestRestricted.
func (d *Directory) checkRestricted(r *td.Record, from did.DID) error {
	hosts := r.Hosts
	if known := d.viewOf(r.Owner, r.Thing); known != nil && r.Kind != td.KindTD { // a withdrawal names no hosts
		hosts = known.record.Hosts
	}
	switch {
	case r.Audience == td.Public || r.Audience == td.Private:
		return fmt.Errorf("record of %s: expected the audience %s, %s or %s, got %s", r.Thing, td.Partners, td.Organization, td.Named, r.Audience)
	case from != r.Signer() && from != r.Successor && !slices.ContainsFunc(hosts, func(h td.Host) bool { return h.Node == from }):
		return fmt.Errorf("record of %s: %s is neither its owner nor a host", r.Thing, from.Short())
	}
	return nil
}

// Handed returns the records with which this node moved restricted Things to its present key, of those that the caller of ctx may find under that key:
// nodes that were away have the Things of the key before, which cannot send them.
func (d *Directory) Handed(ctx context.Context) (all []*td.Signed) {
	r, now := d.reader(ctx), time.Now()
	d.mu.RLock()
	defer d.mu.RUnlock()
	for e := range d.tombstones.handed {
		rec := e.tombstone.record
		if rec.Successor != d.opts.Self || rec.Audience == td.Private || !alive(rec, now) {
			continue
		}
		// Rules may name the Thing or its capabilities, which a withdrawal has not.
		next := d.entries[td.Key(d.opts.Self, rec.SuccessorRef().Name)]
		if next != nil && next.view != nil && r.seesView(next.view) || (next == nil || next.view == nil) && r.seesTombstone(rec) {
			all = append(all, &td.Signed{Record: rec.Raw})
		}
	}
	return all
}

// Room returns how many further Things of others the index can accept. It is positive even if the index is full, because new Things may be
// more valuable.
func (d *Directory) Room() int {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return max(d.room.Modest(), d.opts.Max-(len(d.live)-d.own.Len()))
}

// Signed returns the newest record under a key (td.Record.CarrierKey) with its TD, also a tombstone, or nil. It returns only public records, which other
// nodes may receive. The caller must not modify it.
func (d *Directory) Signed(key [32]byte) *td.Signed {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if h, ok := d.hostKeys[key]; ok {
		return h.signedLocked()
	}
	if r, ok := d.retired[key]; ok && time.Since(r.at) < retiredFor {
		return &td.Signed{Record: r.record}
	}
	e := d.entries[key]
	if e == nil || e.hosting != nil {
		return nil
	}
	switch r := e.record(); {
	case r != nil && r.Audience != td.Public:
		return nil
	case e.view != nil:
		return e.view.signed()
	case e.tombstone != nil:
		return &td.Signed{Record: e.tombstone.record.Raw}
	}
	return nil
}

// Seq returns the highest known sequence number of a Thing, also of a withdrawn or expired one; 0 if there is none. The next record of its
// owner must have a higher one.
func (d *Directory) Seq(owner did.DID, thing string) uint64 {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if e := d.entries[td.Key(owner, thing)]; e != nil {
		return e.seq
	}
	return 0
}

// workers returns the number of workers of the queue: two for each processor, because one may wait for the lock of the index.
func workers() int { return 2 * runtime.GOMAXPROCS(0) }

// processQueue processes the queue until ctx ends. It does not wait for fetches, which run in g.
func (d *Directory) processQueue(ctx context.Context, g *sync.WaitGroup) {
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-d.queue:
			d.queued.Add(-int64(len(s.TD)))
			desc, r, err := d.open(ctx, s)
			if !errors.Is(err, td.ErrNoTD) {
				d.accept(s, desc, err)
			} else if d.pending.Add(1) > fetch.Max {
				d.pending.Add(-1)
				d.accept(s, nil, fetch.ErrBusy)
			} else {
				g.Go(func() {
					defer d.pending.Add(-1)
					desc, err := d.complete(ctx, s, r)
					d.accept(s, desc, err)
				})
			}
		}
	}
}

// accept adds the description of a received record, or counts and logs its error.
func (d *Directory) accept(s *td.Signed, desc *td.Description, err error) {
	if err == nil {
		_, err = d.putWith(desc, received, d.arrivalFrom(s))
	}
	switch {
	case err == nil, errors.Is(err, errKnown):
	case errors.Is(err, fetch.ErrBusy):
		d.count.inc(&d.count.Dropped)
	default:
		d.log.Debug("record rejected", "err", err)
	}
}

// arrivalFrom returns an arrival with the share of s.
func (d *Directory) arrivalFrom(s *td.Signed) arrival {
	if s.From == "" || d.opts.Share == nil {
		return arrival{via: string(s.From)}
	}
	return arrival{via: d.opts.Share(s.From)}
}

// open verifies s, a public record, and returns its description and record. The error is errKnown if the record is not new, and wraps
// td.ErrNoTD if only the TD is missing; in both cases the record is returned.
func (d *Directory) open(ctx context.Context, s *td.Signed) (*td.Description, *td.Record, error) {
	return d.openIf(ctx, s, func(r *td.Record) error {
		if r.Audience != td.Public {
			return fmt.Errorf("record of %s: %w", r.Thing, errAudience)
		}
		return nil
	})
}

// openIf is open for a record that passes a check.
func (d *Directory) openIf(ctx context.Context, s *td.Signed, check func(*td.Record) error) (*td.Description, *td.Record, error) {
	now := time.Now()
	known := false
	var fresh *td.Description
	var refused error
	desc, r, err := s.VerifyNew(ctx, d.opts.Verifier, now, func(r *td.Record) bool {
		if refused = check(r); refused != nil {
			return false
		}
		if known = d.isKnown(r); !known {
			fresh = d.refreshed(s, r, now)
		}
		return !known && fresh == nil
	})
	switch {
	case refused != nil:
		d.count.inc(&d.count.Invalid)
		return nil, nil, refused
	case known:
		return nil, r, errKnown
	case fresh != nil:
		return fresh, r, nil
	case err != nil && !errors.Is(err, td.ErrNoTD):
		d.count.inc(&d.count.Invalid)
	}
	return desc, r, err
}

// refreshed returns the description with the verified record r of s, or nil if its TD is another one. Most records only extend the validity
// of a TD that was verified before.
func (d *Directory) refreshed(s *td.Signed, r *td.Record, now time.Time) *td.Description {
	known := d.viewOf(r.Owner, r.Thing)
	if known == nil || r.Kind != td.KindTD || known.record.Hash != r.Hash {
		return nil
	}
	fresh, err := known.peek().Refresh(d.opts.Verifier, s.Record, now)
	if err != nil {
		return nil
	}
	return fresh
}

// complete fetches the TD of a record that open has verified.
func (d *Directory) complete(ctx context.Context, s *td.Signed, r *td.Record) (*td.Description, error) {
	d.count.inc(&d.count.Fetches)
	body, err := d.fetcher.TD(ctx, r)
	if err != nil {
		d.count.inc(&d.count.Unfetched)
		return nil, fmt.Errorf("%w: %w", errUnfetched, err)
	}
	desc, err := (&td.Signed{Record: s.Record, TD: body}).Verify(ctx, d.opts.Verifier, time.Now())
	if err != nil {
		d.count.inc(&d.count.Invalid)
		d.fetcher.Failed(r)
	}
	return desc, err
}

// isKnown reports whether r is not newer than the known record.
func (d *Directory) isKnown(r *td.Record) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	e := d.entries[r.Key()]
	switch {
	case e == nil:
		return false
	case r.Host != "":
		return d.isKnownHostLocked(e, r)
	case r.Seq > e.seq:
		return false
	}
	known := e.record()
	return r.Seq < e.seq || known != nil && sameRecord(known, r) || known == nil && r.Kind != td.KindTD
}

// hasNewer reports whether a newer record than r is known.
func (d *Directory) hasNewer(r *td.Record) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	e := d.entries[r.Key()]
	if r.Host != "" {
		return e != nil && d.isKnownHostLocked(e, r)
	}
	return e != nil && r.Seq < e.seq
}
