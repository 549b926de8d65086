package backoff

import (
	"context"
	"time"
)

// A Waker wakes a loop before its pause ends. Create it with [NewWaker].
type Waker chan struct{}

// NewWaker returns a Waker.
func NewWaker() Waker { return make(Waker, 1) }

// Wake makes [Waker.Loop] call its function now. It never blocks.
func (w Waker) Wake() {
	select {
	case w <- struct{}{}:
	default:
	}
}

// Loop calls f until ctx ends: at once, after each pause that f returns, and after [Waker.Wake].
func (w Waker) Loop(ctx context.Context, f func() time.Duration) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w:
		case <-timer.C:
		}
		timer.Reset(f())
	}
}
