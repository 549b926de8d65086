package directory

import (
	"context"
	"time"

	"github.com/lmosd/lmosd/td"
)

// What lists alone cannot tell is looked at one by one, and unpacked for it, at some 50 µs each: at most so many, for so long.
// An answer for which that was not enough is truncated.
const (
	maxSifted = 10_000
	maxSift   = 100 * time.Millisecond
)

// A sieve says how long to go on.
type sieve struct {
	ctx   context.Context
	until time.Time
	n     int  // looked at
	cut   bool // that was not enough
}

func newSieve(ctx context.Context) *sieve { return &sieve{ctx: ctx, until: time.Now().Add(maxSift)} }

// next reports whether one more may be looked at. The clock is looked at now and then.
func (s *sieve) next() bool {
	if s.n++; s.n > maxSifted || s.n%16 == 0 && (s.ctx.Err() != nil || time.Now().After(s.until)) {
		s.cut = true
	}
	return !s.cut
}

// fewToKeep is how many candidates stay unpacked when they are sifted: most of so few are yielded next.
const fewToKeep = 64

// sift returns the first few of views that q asks for, and whether it had to stop before the last one.
func (d *Directory) sift(ctx context.Context, q *td.Query, views []*view, most int) (fit []*view, cut bool) {
	look := (*view).peek
	if len(views) <= fewToKeep {
		look = d.views.describe
	}
	s := newSieve(ctx)
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

// siftBest is sift of candidates.
func siftBest(ctx context.Context, q *td.Query, all []candidate, most int) (fit []candidate, cut bool) {
	s := newSieve(ctx)
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
