package directory

import (
	"context"
	"errors"
	"iter"
	"math"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory/index"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/textmatch"
	"github.com/lmosd/lmosd/td"
)

// atOnce is how many answers of one source are verified, and their TDs fetched, at the same time.
const atOnce = 8

// Find yields the things that q asks for: those in the index at once, then what the sources add, each thing once, and none of
// q.Except. It ends at q.Limit, or at twice that if the index may lack something ([Directory.Lacks]): then the asker ranks; when all sources are done, or after Options.Timeout; q.Counter then says how complete the answer is.
// What the sources add is verified, held against q again, and learned. A source that fails is counted in q.Counter and
// ends nothing: the only error is that of ctx. The directory holds no lock while it yields.
func (d *Directory) Find(ctx context.Context, q td.Query) iter.Seq2[*td.Description, error] {
	return func(yield func(*td.Description, error) bool) {
		a := answer{q: &q, given: map[[32]byte]bool{}, yield: yield, shows: true, most: q.Max()}
		if more, ok := d.fromIndex(ctx, &a); ok && more && d.Lacks() {
			// What was pushed out of the index may be better than what is there: both are for the asker to rank.
			a.most *= 2
			d.fromSources(ctx, &a)
		} else if ok && !more {
			d.fromSources(ctx, &a)
		}
	}
}

// FindLocal yields what the index has for q, up to q.Limit, and asks nobody: a query that asks for nothing yields all
// things, by id; one with words yields the best first, see [Directory.Rank]. It works on what was known when it was called.
func (d *Directory) FindLocal(q td.Query) iter.Seq[*td.Description] {
	return func(yield func(*td.Description) bool) {
		give := func(desc *td.Description, _ error) bool { return yield(desc) }
		d.fromIndex(context.Background(), &answer{q: &q, given: map[[32]byte]bool{}, yield: give, most: q.Max()})
	}
}

// An answer is what was yielded of one query.
type answer struct {
	q     *td.Query
	given map[[32]byte]bool // by key
	most  int
	yield func(*td.Description, error) bool
	shows bool // it is somebody here who sees it
}

// give yields desc if it is new to the answer. It returns false when the loop was left.
func (a *answer) give(desc *td.Description) bool {
	key := desc.Record.Key()
	if a.given[key] || a.q.Except[key] {
		return true
	}
	a.given[key] = true
	a.q.Counter.NoteIssued(desc.Record.Issued)
	return a.yield(desc, nil)
}

func (a *answer) full() bool { return len(a.given) >= a.most }

// fromIndex gives what the index has. It reports whether there is more than q.Limit, and false when the loop was left.
func (d *Directory) fromIndex(ctx context.Context, a *answer) (more, ok bool) {
	a.q.Counter.CountAsked(1)
	f := d.lookup(ctx, a.q)
	found := f.rest(a.q)
	a.q.Counter.CountAnswer()
	a.q.Counter.CountMatches(f.total)
	if f.cut || d.loading.Load() {
		a.q.Counter.SetTruncated()
	}
	if more = len(found) > a.q.Max(); more {
		a.q.Counter.SetMore()
		found = found[:a.q.Max()]
	}
	for _, v := range found {
		if a.shows && !v.shown.Load() {
			v.shown.Store(true)
		}
		if !a.give(d.views.describe(v)) {
			return more, false
		}
	}
	if f.cut && ctx.Err() != nil {
		a.yield(nil, ctx.Err())
		return more, false
	}
	return more, true
}

// findings are what the index has for a query.
type findings struct {
	views []*view
	total int  // in all; negative: not counted
	cut   bool // not all was looked at
}

// wanted is how many of the first that fit are looked for: those of earlier pages, this one, and one that tells whether there is more.
func wanted(q *td.Query) int { return min(q.Max(), math.MaxInt-len(q.Except)-1) + len(q.Except) + 1 }

// rest returns what is not in q.Except.
func (f *findings) rest(q *td.Query) []*view {
	if len(q.Except) == 0 {
		return f.views
	}
	return slices.DeleteFunc(f.views, func(v *view) bool { return q.Except[v.record.Key()] })
}

// lookup returns the first that the index has for q.
func (d *Directory) lookup(ctx context.Context, q *td.Query) findings {
	if !ranks(q) {
		return d.plain(ctx, q)
	}
	return d.ranked(ctx, q)
}

// ranks reports whether q has words to rank by.
func ranks(q *td.Query) bool {
	return len(textmatch.Content(q.Text)) > 0 || slices.ContainsFunc(q.Or, func(o td.Query) bool { return o.Text != "" })
}

// plain is lookup for what nothing ranks.
func (d *Directory) plain(ctx context.Context, q *td.Query, within ...*index.List) (f findings) {
	now := time.Now()
	d.settle(now)
	most := wanted(q)
	d.mu.RLock()
	c := d.index.Choose(q, within...)
	f.total = c.Count()
	for e := range d.livingLocked(c.All(), d.dueLocked(now)) {
		if f.views = append(f.views, e.view); c.Exact && len(f.views) == most {
			break
		}
	}
	d.mu.RUnlock()
	if !c.Exact {
		f.views, f.cut = d.sift(ctx, q, f.views, most)
		if f.total = len(f.views); f.cut || len(f.views) == most {
			f.total = -1
		}
	}
	return f
}

// livingLocked yields the entries of slots that are valid at now; a zero now says that all are.
func (d *Directory) livingLocked(slots iter.Seq[uint32], now time.Time) iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		for slot := range slots {
			if e := d.slots[slot]; (now.IsZero() || alive(e.view.record, now)) && !yield(e) {
				return
			}
		}
	}
}

// dueLocked returns now, or a zero time if nothing has expired that is still here: then nothing need be looked at for that.
func (d *Directory) dueLocked(now time.Time) time.Time {
	if len(d.living) == 0 || alive(d.living[0].view.record, now) {
		return time.Time{}
	}
	return now
}

// fits holds a candidate against q. The index has looked for words already; which of the alternatives they belong to, only
// Match tells.
func fits(q *td.Query, desc *td.Description) bool {
	if len(q.Or) == 0 {
		return q.MatchFields(desc)
	}
	return q.Match(desc)
}

// fromSources gives what the sources add to an answer.
func (d *Directory) fromSources(ctx context.Context, a *answer) {
	if len(d.opts.Sources) == 0 {
		return
	}
	if a.full() {
		a.q.Counter.SetMore() // there may be more, and nobody was asked
		return
	}
	limited, cancel := context.WithTimeout(ctx, d.opts.Timeout)
	found := make(chan *td.Description)
	asked := *a.q
	asked.Limit = a.q.Max() + len(a.q.Except) // others do not know what was shown
	go d.askAll(limited, &asked, found)
	// Leaving ends the sources, and waits until the last of them is done.
	defer func() {
		cancel()
		for range found {
		}
	}()
	for desc := range found {
		before := len(a.given)
		if !a.give(desc) {
			return
		}
		a.q.Counter.CountMatches(len(a.given) - before)
		if a.full() {
			a.q.Counter.SetMore()
			return
		}
	}
	switch {
	case ctx.Err() != nil:
		a.yield(nil, ctx.Err())
	case limited.Err() != nil:
		a.q.Counter.SetTruncated()
	}
}

// askAll asks every source, sends what they add to found, and closes it when all are done.
func (d *Directory) askAll(ctx context.Context, q *td.Query, found chan<- *td.Description) {
	defer close(found)
	var g errgroup.Group
	for _, s := range d.opts.Sources {
		g.Go(func() error {
			d.ask(ctx, s, q, found)
			return nil
		})
	}
	_ = g.Wait()
}

// ask sends what one source adds to found, until ctx ends.
func (d *Directory) ask(ctx context.Context, s Source, q *td.Query, found chan<- *td.Description) {
	var g errgroup.Group
	g.SetLimit(atOnce)
	for signed, err := range s.Find(ctx, *q) {
		if err != nil {
			d.sourceFailed(ctx, q, err)
			break
		}
		g.Go(func() error {
			if desc := d.resolve(ctx, signed, q); desc != nil {
				select {
				case found <- desc:
				case <-ctx.Done():
				}
			}
			return nil
		})
	}
	_ = g.Wait()
}

// sourceFailed counts a source that gave an error. Whom it had asked before, it has counted itself.
func (d *Directory) sourceFailed(ctx context.Context, q *td.Query, err error) {
	if ctx.Err() != nil || errors.Is(err, did.ErrNotFound) {
		return
	}
	q.Counter.CountAsked(1)
	q.Counter.CountUnreachable()
	d.log.Warn("a source failed", "err", err)
}

// resolve makes what a source sent into what q asks for, or nil.
func (d *Directory) resolve(ctx context.Context, s *td.Signed, q *td.Query) *td.Description {
	desc, r, err := d.take(ctx, s)
	if r == nil {
		return nil
	}
	if known := d.one(r.Owner, r.Thing); known != nil {
		desc, err = d.views.describe(known), nil // as new as what was sent, or newer
	}
	if errors.Is(err, errUnfetched) {
		// The thing may fit, and the answer lacks it. Who names it has answered; who has its TD has not.
		q.Counter.CountAsked(1)
		q.Counter.CountUnreachable()
	}
	if desc == nil || !q.Match(desc) {
		return nil
	}
	return desc
}

// take verifies what a source sent and learns it. The description is nil if it is known, withdrawn or invalid, and of
// use even if there is no room to keep it. The record is nil only if it is invalid. The error wraps errUnfetched if the
// record is good and its TD could not be had.
func (d *Directory) take(ctx context.Context, s *td.Signed) (*td.Description, *td.Record, error) {
	desc, r, err := d.open(ctx, s)
	if errors.Is(err, td.ErrNoTD) {
		desc, err = d.complete(ctx, s, r)
	}
	if err != nil {
		if !errors.Is(err, errKnown) && ctx.Err() == nil {
			d.log.Debug("a source's answer is of no use", "err", err)
		}
		return nil, r, err
	}
	_, err = d.putWith(desc, heard, d.from(s))
	if desc.Thing == nil || err != nil && interact.AsError(err).Code != interact.Overloaded {
		return nil, r, err
	}
	return desc, r, nil
}

// one returns the description of a thing, if the index has one that is valid, or nil.
func (d *Directory) one(owner did.DID, thing string) *view {
	d.mu.RLock()
	defer d.mu.RUnlock()
	e := d.entries[td.Key(owner, thing)]
	if e == nil || e.view == nil || !alive(e.view.record, time.Now()) {
		return nil
	}
	return e.view
}

// Known is [Directory.Hosted] of all that is known: a node with the role index answers others from it.
func (d *Directory) Known(q td.Query) []*td.Signed { return d.signed(&q) }

// Hosted returns what this node publishes of what q asks for, up to q.Limit, for other nodes that ask: what has words best first.
// It truncates q.Counter if there may be more.
func (d *Directory) Hosted(q td.Query) []*td.Signed { return d.signed(&q, &d.own) }

func (d *Directory) signed(q *td.Query, within ...*index.List) []*td.Signed {
	f := d.forOthers(q, within...)
	if f.cut || len(f.views) > q.Max() {
		q.Counter.SetTruncated()
	}
	f.views = f.views[:min(len(f.views), q.Max())]
	signed := make([]*td.Signed, len(f.views))
	for i, v := range f.views {
		signed[i] = v.signed()
	}
	return signed
}

func (d *Directory) forOthers(q *td.Query, within ...*index.List) findings {
	if !ranks(q) {
		return d.plain(context.Background(), q, within...)
	}
	return d.rankedForOthers(q, within...)
}
