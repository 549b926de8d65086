package directory

import (
	"context"
	"time"

	"github.com/lmosd/lmosd/td"
)

// Limits of checks: descriptions that the index cannot match alone are unpacked and checked one by one, at about 50 µs each. Beyond the
// limits the result is truncated.
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

// next reports whether one more check is allowed. It reads the clock at every 16th check.
func (s *checkLimit) next() bool {
	if s.n++; s.n > maxChecks || s.n%16 == 0 && (s.ctx.Err() != nil || time.Now().After(s.until)) {
		s.cut = true
	}
	return !s.cut
}

// filter returns the first elements whose description matches q, and whether a limit ended the search.
func filter[T any](ctx context.Context, q *td.Query, all []T, most int, describe func(T) *td.Description) (fit []T, cut bool) {
	s := newCheckLimit(ctx)
	for _, one := range all {
		if len(fit) == most || !s.next() {
			break
		}
		if fits(q, describe(one)) {
			fit = append(fit, one)
		}
	}
	return fit, s.cut
}
