package directory

import (
	"context"
	"time"

	"github.com/lmosd/lmosd/td"
)

// Descriptions that the index cannot decide on are checked one by one, unpacked, at about 50 µs each: up to these limits. If they are
// exceeded, the result is truncated.
const (
	maxChecks    = 10_000
	maxCheckTime = 100 * time.Millisecond
)

// A checkLimit limits the checks of one query.
type checkLimit struct {
	ctx   context.Context
	until time.Time
	n     int  // number of checks
	cut   bool // a limit was exceeded
}

func newCheckLimit(ctx context.Context) *checkLimit {
	return &checkLimit{ctx: ctx, until: time.Now().Add(maxCheckTime)}
}

// next reports whether one more check is allowed. It reads the clock only now and then.
func (s *checkLimit) next() bool {
	if s.n++; s.n > maxChecks || s.n%16 == 0 && (s.ctx.Err() != nil || time.Now().After(s.until)) {
		s.cut = true
	}
	return !s.cut
}

// fewToKeep is the number of candidates that stay unpacked after a check, because most of so few are yielded next.
const fewToKeep = 64

// filterViews returns the first views that match q, and whether it had to stop before the last one.
func (d *Directory) filterViews(ctx context.Context, q *td.Query, views []*view, most int) (fit []*view, cut bool) {
	look := (*view).peek
	if len(views) <= fewToKeep {
		look = d.views.describe
	}
	s := newCheckLimit(ctx)
	for _, v := range views {
		if len(fit) == most || !s.next() {
			break
		}
		if fits(q, look(v)) {
			fit = append(fit, v)
		}
	}
	return fit, s.cut
}

// filterCandidates is filterViews for candidates.
func filterCandidates(ctx context.Context, q *td.Query, all []candidate, most int) (fit []candidate, cut bool) {
	s := newCheckLimit(ctx)
	for _, c := range all {
		if len(fit) == most || !s.next() {
			break
		}
		if fits(q, c.view.peek()) {
			fit = append(fit, c)
		}
	}
	return fit, s.cut
}
