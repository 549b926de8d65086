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

// maxConcurrent is the number of results of one source that are verified, and their TDs fetched, concurrently.
const maxConcurrent = 8

// Find yields the matches of q, first those in the index, then those of the sources: each Thing once, and none of q.Except. It ends at
// q.Limit, or at twice that if the index may lack Things ([Directory.IsIncomplete]), because the caller then ranks; when all sources have
// answered; or after Options.Timeout. q.Counter then has the completeness of the result. Results of sources are verified, matched against
// q, and added to the index. A failed source is counted in q.Counter; the only error is that of ctx. The directory holds no lock while it
// yields.
func (d *Directory) Find(ctx context.Context, q td.Query) iter.Seq2[*td.Description, error] {
	return func(yield func(*td.Description, error) bool) {
		q, err := d.withMembers(ctx, q, true)
		if err != nil {
			yield(nil, err)
			return
		}
		a := answer{q: &q, yielded: map[[32]byte]bool{}, yield: yield, isLocal: true, most: q.Max(), reader: d.reader(ctx)}
		if more, ok := d.fromIndex(ctx, &a); ok && more && d.IsIncomplete() {
			// Evicted Things may be better than those in the index: the caller ranks both.
			a.most *= 2
			d.fromSources(ctx, &a)
		} else if ok && !more {
			d.fromSources(ctx, &a)
		}
	}
}

// FindLocal yields the matches of q in the index, up to q.Limit, without querying sources: an empty query yields all Things, by id; one
// with words yields the best first, see [Directory.Rank]. It uses a snapshot. The end of ctx does not end it.
func (d *Directory) FindLocal(ctx context.Context, q td.Query) iter.Seq[*td.Description] {
	return func(yield func(*td.Description) bool) {
		q, err := d.withMembers(ctx, q, false)
		if err != nil {
			return
		}
		yieldOne := func(desc *td.Description, _ error) bool { return yield(desc) }
		d.fromIndex(context.WithoutCancel(ctx), &answer{q: &q, yielded: map[[32]byte]bool{}, yield: yieldOne, most: q.Max(), reader: d.reader(ctx)})
	}
}

// An answer is the state of one query.
type answer struct {
	q       *td.Query
	yielded map[[32]byte]bool // by key
	most    int
	yield   func(*td.Description, error) bool
	isLocal bool // the caller is local
	reader  reader
}

// yieldNew yields desc if it was not yielded before. It returns false when the caller has left the loop.
func (a *answer) yieldNew(desc *td.Description) bool {
	key := desc.Record.Key()
	if a.yielded[key] || a.q.Except[key] {
		return true
	}
	a.yielded[key] = true
	a.q.Counter.NoteIssued(desc.Record.Issued)
	return a.yield(desc, nil)
}

func (a *answer) full() bool { return len(a.yielded) >= a.most }

// fromIndex yields the matches in the index. It reports whether there are more than q.Limit, and false when the caller has left the loop.
func (d *Directory) fromIndex(ctx context.Context, a *answer) (more, ok bool) {
	a.q.Counter.CountAsked(1)
	f := d.lookup(ctx, &a.reader, a.q)
	found := f.rest(a.q)
	a.q.Counter.CountAnswer()
	a.q.Counter.CountMatches(f.total)
	if f.cut || d.isLoading() {
		a.q.Counter.SetTruncated()
	}
	if more = len(found) > a.q.Max(); more {
		a.q.Counter.SetMore()
		found = found[:a.q.Max()]
	}
	for _, v := range found {
		if a.isLocal && !v.shown.Load() {
			v.shown.Store(true)
		}
		if !a.yieldNew(d.views.describe(v)) {
			return more, false
		}
	}
	if f.cut && ctx.Err() != nil {
		a.yield(nil, ctx.Err())
		return more, false
	}
	return more, true
}

// findings are the matches of a query in the index.
type findings struct {
	views []*view
	total int  // of all matches; negative: unknown
	cut   bool // the search was truncated
}

// wanted is the number of matches to look for: those of earlier pages, of this page, and one more that shows whether there is a next page.
func wanted(q *td.Query) int { return min(q.Max(), math.MaxInt-len(q.Except)-1) + len(q.Except) + 1 }

// rest returns the matches that are not in q.Except.
func (f *findings) rest(q *td.Query) []*view {
	if len(q.Except) == 0 {
		return f.views
	}
	return slices.DeleteFunc(f.views, func(v *view) bool { return q.Except[v.record.Key()] })
}

// lookup returns the first matches of q.
func (d *Directory) lookup(ctx context.Context, r *reader, q *td.Query) findings {
	if !ranks(q) {
		return d.plain(ctx, r, q)
	}
	return d.ranked(ctx, r, q)
}

// ranks reports whether q has words to rank by.
func ranks(q *td.Query) bool {
	return len(textmatch.Content(q.Text)) > 0 || slices.ContainsFunc(q.Or, func(o td.Query) bool { return o.Text != "" })
}

// fewToKeep is the number of candidates that stay unpacked after a check: most of so few are yielded next.
const fewToKeep = 64

// plain is lookup without ranking.
func (d *Directory) plain(ctx context.Context, r *reader, q *td.Query, within ...*index.List) (f findings) {
	now := time.Now()
	d.dropExpired(now)
	most := wanted(q)
	d.mu.RLock()
	c := d.index.Choose(q, within...)
	s := d.sightLocked(r)
	exact := c.Exact && s.cheap
	if exact {
		f.total = s.countLocked(&c)
	}
	for e := range d.liveEntriesLocked(c.All(), d.dueLocked(now)) {
		if exact && !s.everything && !s.has(e.at.Slot) {
			continue
		}
		if f.views = append(f.views, e.view); exact && len(f.views) == most {
			break
		}
	}
	d.mu.RUnlock()
	if !exact {
		describe := (*view).peek
		if len(f.views) <= fewToKeep {
			describe = d.views.describe
		}
		f.views, f.cut = filter(ctx, r.matches(q, c.Exact), f.views, most, describe)
		if f.total = len(f.views); f.cut || len(f.views) == most {
			f.total = -1
		}
	}
	return f
}

// liveEntriesLocked yields the entries of slots that are valid at now; a zero now means that all are.
func (d *Directory) liveEntriesLocked(slots iter.Seq[uint32], now time.Time) iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		for slot := range slots {
			if e := d.slots[slot]; (now.IsZero() || alive(e.view.record, now)) && !yield(e) {
				return
			}
		}
	}
}

// dueLocked returns now, or a zero time if no entry has expired, so that none needs to be checked.
func (d *Directory) dueLocked(now time.Time) time.Time {
	if len(d.live) == 0 || alive(d.live[0].view.record, now) {
		return time.Time{}
	}
	return now
}

// fits matches a candidate against q. The index has matched words already; only Match checks whether they belong to one alternative.
func fits(q *td.Query, desc *td.Description) bool {
	if len(q.Or) == 0 {
		return q.MatchFields(desc)
	}
	return q.Match(desc)
}

// fromSources yields the matches of the sources.
func (d *Directory) fromSources(ctx context.Context, a *answer) {
	if len(d.opts.Sources) == 0 {
		return
	}
	if a.full() {
		a.q.Counter.SetMore() // there may be more matches, and no source was queried
		return
	}
	limited, cancel := context.WithTimeout(ctx, d.opts.Timeout)
	found := make(chan *td.Description)
	remote := *a.q
	remote.Limit = a.q.Max() + len(a.q.Except) // sources ignore Except
	go d.querySources(limited, &remote, found)
	// At the end of the loop, cancel the sources and wait for the last one.
	defer func() {
		cancel()
		for range found {
		}
	}()
	for desc := range found {
		before := len(a.yielded)
		if a.reader.sees(desc) && !a.yieldNew(desc) {
			return
		}
		a.q.Counter.CountMatches(len(a.yielded) - before)
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

// querySources queries all sources, sends their results to found, and closes it at the end.
func (d *Directory) querySources(ctx context.Context, q *td.Query, found chan<- *td.Description) {
	defer close(found)
	var g errgroup.Group
	for _, s := range d.opts.Sources {
		g.Go(func() error {
			d.querySource(ctx, s, q, found)
			return nil
		})
	}
	_ = g.Wait()
}

// querySource sends the results of one source to found, until ctx ends.
func (d *Directory) querySource(ctx context.Context, s Source, q *td.Query, found chan<- *td.Description) {
	var g errgroup.Group
	g.SetLimit(maxConcurrent)
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

// sourceFailed counts a failed source. The source has counted the peers that it queried before.
func (d *Directory) sourceFailed(ctx context.Context, q *td.Query, err error) {
	if ctx.Err() != nil || errors.Is(err, did.ErrNotFound) {
		return
	}
	q.Counter.CountAsked(1)
	q.Counter.CountUnreachable()
	d.log.Warn("source failed", "err", err)
}

// resolve verifies a result of a source and returns its description if it matches q, or nil.
func (d *Directory) resolve(ctx context.Context, s *td.Signed, q *td.Query) *td.Description {
	desc, r, err := d.ingestResult(ctx, s)
	if r == nil {
		return nil
	}
	if known := d.viewOf(r.Owner, r.Thing); known != nil {
		desc, err = d.views.describe(known), nil // at least as new as the result
	}
	if errors.Is(err, errUnfetched) {
		// A matching Thing may be missing: the peer with its record has answered, the host of its TD has not.
		q.Counter.CountAsked(1)
		q.Counter.CountUnreachable()
	}
	if desc == nil || !q.Match(desc) && !d.matchesVerified(ctx, q, desc) {
		return nil
	}
	return desc
}

// ingestResult verifies a result of a source and adds it. The description is nil if it is known, withdrawn or invalid; it is returned even
// if the index is full. The record is nil only if it is invalid. The error wraps errUnfetched if only the TD could not be fetched.
func (d *Directory) ingestResult(ctx context.Context, s *td.Signed) (*td.Description, *td.Record, error) {
	desc, r, err := d.open(ctx, s)
	if errors.Is(err, td.ErrNoTD) {
		desc, err = d.complete(ctx, s, r)
	}
	if err != nil {
		if !errors.Is(err, errKnown) && ctx.Err() == nil {
			d.log.Debug("result of a source rejected", "err", err)
		}
		return nil, r, err
	}
	_, err = d.putWith(desc, received, d.arrivalFrom(s))
	if desc.Thing == nil || err != nil && interact.AsError(err).Code != interact.Overloaded {
		return nil, r, err
	}
	return desc, r, nil
}

// viewOf returns the valid description of a Thing in the index, or nil.
func (d *Directory) viewOf(owner did.DID, thing string) *view {
	d.mu.RLock()
	defer d.mu.RUnlock()
	e := d.entries[td.Key(owner, thing)]
	if e == nil || e.view == nil || !alive(e.view.record, time.Now()) {
		return nil
	}
	return e.view
}

// Known is [Directory.Hosted] for all known Things, for nodes with the role index.
func (d *Directory) Known(ctx context.Context, q td.Query) []*td.Signed { return d.signed(ctx, &q) }

// Hosted returns the public matches of q that this node publishes and that the caller of ctx may see, up to q.Limit, for queries of other
// nodes: with words the best first. It truncates q.Counter if there may be more.
func (d *Directory) Hosted(ctx context.Context, q td.Query) []*td.Signed {
	return d.signed(ctx, &q, &d.own)
}

func (d *Directory) signed(ctx context.Context, q *td.Query, within ...*index.List) []*td.Signed {
	r := d.peerOf(ctx)
	f := d.forOthers(&r, q, within...)
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

func (d *Directory) forOthers(r *reader, q *td.Query, within ...*index.List) findings {
	if !ranks(q) {
		return d.plain(context.Background(), r, q, within...)
	}
	return d.rankedForOthers(r, q, within...)
}
