// Package backoff provides pauses that end early, exponential back-off, loops with pauses, and a limit of further tries.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Sleep returns after d, or with the error of ctx as soon as that ends. If d is zero or less it returns at once.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Jitter returns d, made shorter or longer at random by at most the given part of it, so that processes that started together do not go
// on in step.
func Jitter(d time.Duration, part float64) time.Duration {
	most := time.Duration(part * float64(d))
	if most <= 0 {
		return d
	}
	return d - most + rand.N(2*most+1)
}

// A Backoff is a sequence of pauses, each twice the last. It is for one goroutine at a time.
type Backoff struct {
	// First is the first pause, and Max the longest; a Max of zero is no limit.
	First, Max time.Duration
	// Jitter is the part of each pause by which it is made shorter or longer at random, see [Jitter]; zero is none.
	Jitter float64

	last time.Duration // pause, without jitter
}

// Next returns the next pause.
func (b *Backoff) Next() time.Duration {
	b.last = max(2*b.last, b.First)
	if b.Max > 0 {
		b.last = min(b.last, b.Max)
	}
	return Jitter(b.last, b.Jitter)
}

// Sleep sleeps for the next pause, see the function [Sleep].
func (b *Backoff) Sleep(ctx context.Context) error { return Sleep(ctx, b.Next()) }

// Reset begins the sequence again, after a success.
func (b *Backoff) Reset() { b.last = 0 }
