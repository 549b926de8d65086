package directory

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lmosd/lmosd/td"
)

// errKnown says that a record brings nothing: the same or a newer one is known. errUnfetched says that its TD could not be
// had.
var (
	errKnown     = errors.New("known already")
	errUnfetched = errors.New("no TD")
)

// maxQueued bounds the TDs that wait in the queue, in bytes; records are small.
const maxQueued = 16 << 20

// Offer takes what gossip brings: a record, perhaps without its TD. It never blocks. While [Directory.Run] runs, what
// is offered is verified, its TD is fetched if it is nowhere here, and it is learned; what is invalid, known, or
// cannot be fetched is counted and otherwise forgotten: the next record of the thing tries again. When more comes than
// can be verified, the oldest of it goes.
func (d *Directory) Offer(s *td.Signed) {
	if d.queued.Add(int64(len(s.TD))) > maxQueued {
		d.queued.Add(-int64(len(s.TD)))
		s = &td.Signed{Record: s.Record, From: s.From} // its TD can be fetched
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
			d.count.dropped.Add(1)
		default:
		}
	}
}

// Learn is [Directory.Offer] that returns when the record was verified and taken, or found to be of no use: who brings many at
// once waits, and none is dropped. One whose TD is nowhere here is offered, to be fetched.
func (d *Directory) Learn(ctx context.Context, s *td.Signed) {
	desc, _, err := d.open(ctx, s)
	if errors.Is(err, td.ErrNoTD) {
		d.Offer(s)
		return
	}
	d.accept(s, desc, err)
}

// Room returns how many more things of others are worth being brought at once, as far as their number goes: some, even if the index is
// full, for what comes may be worth more than what is here.
func (d *Directory) Room() int {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return max(d.room.modest, d.opts.Max-(len(d.living)-d.own.Len()))
}

// Signed returns the newest record under a key ([td.Key]) with its TD, tombstones included, or nil. The caller must not change it.
func (d *Directory) Signed(key [32]byte) *td.Signed {
	d.mu.RLock()
	defer d.mu.RUnlock()
	e := d.entries[key]
	switch {
	case e == nil:
		return nil
	case e.view != nil:
		return e.view.signed()
	case e.grave != nil:
		return &td.Signed{Record: e.grave.record.Raw}
	}
	return nil
}

// learn takes what was offered until ctx ends. It never waits for a fetch: those run in g.
func (d *Directory) learn(ctx context.Context, g *sync.WaitGroup) {
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-d.queue:
			d.queued.Add(-int64(len(s.TD)))
			desc, r, err := d.open(ctx, s)
			if !errors.Is(err, td.ErrNoTD) {
				d.accept(s, desc, err)
			} else if d.pending.Add(1) > maxFlights {
				d.pending.Add(-1)
				d.accept(s, nil, errBusy)
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

// accept ends an offer.
func (d *Directory) accept(s *td.Signed, desc *td.Description, err error) {
	if err == nil {
		_, err = d.putWith(desc, heard, d.from(s))
	}
	switch {
	case err == nil, errors.Is(err, errKnown):
	case errors.Is(err, errBusy):
		d.count.dropped.Add(1)
	default:
		d.log.Debug("offer refused", "err", err)
	}
}

// from returns whose share s is charged to.
func (d *Directory) from(s *td.Signed) arrival {
	if s.From == "" || d.opts.Share == nil {
		return arrival{via: string(s.From)}
	}
	return arrival{via: d.opts.Share(s.From)}
}

// open verifies s and returns its description. The error is errKnown if there is nothing to learn, and wraps
// td.ErrNoTD if all is well but the TD is not here; then the record is returned too.
func (d *Directory) open(ctx context.Context, s *td.Signed) (*td.Description, *td.Record, error) {
	now := time.Now()
	known := false
	var fresh *td.Description
	desc, r, err := s.VerifyNew(ctx, d.opts.Verifier, now, func(r *td.Record) bool {
		if known = d.knows(r); !known {
			fresh = d.refreshed(s, r, now)
		}
		return !known && fresh == nil
	})
	switch {
	case known:
		return nil, r, errKnown
	case fresh != nil:
		return fresh, r, nil
	case err != nil && !errors.Is(err, td.ErrNoTD):
		d.count.invalid.Add(1)
	}
	return desc, r, err
}

// refreshed returns the description with the verified record r of s, or nil if it is of another TD. Most records are refreshes: the
// TD is the one that we have, and was verified.
func (d *Directory) refreshed(s *td.Signed, r *td.Record, now time.Time) *td.Description {
	known := d.one(r.Owner, r.Thing)
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
	d.count.fetches.Add(1)
	body, err := d.fetch.body(ctx, r)
	if err != nil {
		d.count.unfetched.Add(1)
		return nil, fmt.Errorf("%w: %w", errUnfetched, err)
	}
	desc, err := (&td.Signed{Record: s.Record, TD: body}).Verify(ctx, d.opts.Verifier, time.Now())
	if err != nil {
		d.count.invalid.Add(1)
		d.fetch.failed(r)
	}
	return desc, err
}

// knows reports whether r is certainly no news.
func (d *Directory) knows(r *td.Record) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	e := d.entries[r.Key()]
	if e == nil || r.Seq > e.seq {
		return false
	}
	known := e.record()
	return r.Seq < e.seq || known != nil && sameRecord(known, r) || known == nil && r.Kind != td.KindTD
}

// overrules reports whether something newer than r is known.
func (d *Directory) overrules(r *td.Record) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	e := d.entries[r.Key()]
	return e != nil && r.Seq < e.seq
}

// Body returns the TD of a hash, if something that is known has it. The caller must not change it.
func (d *Directory) Body(hash [32]byte) ([]byte, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	e := d.hashes[hash]
	if e == nil {
		return nil, false
	}
	return e.view.body(), true
}
