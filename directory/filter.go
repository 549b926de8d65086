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

// matches returns the check of a candidate for q: whether it is visible and, unless the index has decided that, whether it matches.
func (r *reader) matches(q *td.Query, decided bool) func(*td.Description) bool {
	return func(desc *td.Description) bool { return (decided || fits(q, desc)) && r.sees(desc) }
}

// filter returns the first elements whose description passes a check, and whether a limit ended the search.
func filter[T any](ctx context.Context, check func(*td.Description) bool, all []T, most int, describe func(T) *td.Description) (fit []T, cut bool) {
	s := newCheckLimit(ctx)
	for _, one := range all {
		if len(fit) == most || !s.next() {
			break
		}
		if check(describe(one)) {
			fit = append(fit, one)
		}
	}
	return fit, s.cut
}
