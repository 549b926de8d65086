package stream

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact/stream/frame"
)

// Bounds of a pacer.
const (
	maxPaces   = 4096        // keys with turns; calls of other keys wait separately
	maxTimeout = time.Minute // for a call without a deadline
	// maxCrowded limits the retries at an overloaded host. An agent that calls another agent uses capacity until then: such cycles must
	// end before their deadlines.
	maxCrowded = 2 * time.Second
)

// A pacer limits calls to the rates of hosts. A host that rejects a call by a rate limit states the time to wait. Calls with the same key
// then take turns with this interval, in the order of arrival: without turns, all would retry at once, and all but one would fail. The
// zero pacer works.
type pacer struct {
	closed <-chan struct{} // ends waits with errClosed; may be nil

	busy atomic.Int64 // len(next)

	mu   sync.Mutex
	next map[paceKey]pace // owned by mu
}

// A paceKey identifies a rate limit of a host, which may have one per Thing and consumer, for reads and for other calls.
type paceKey struct {
	host  did.DID
	thing string
	as    frame.As
	reads bool
}

// A pace is the time of the next call and the interval to the one after it.
type pace struct {
	at  time.Time
	gap time.Duration
}

// turn waits for the turn of a call, if others wait. A call without time for this is sent at once: the host decides. The error is that of
// ctx.
func (p *pacer) turn(ctx context.Context, k paceKey, by time.Time) error {
	if p.busy.Load() == 0 {
		return nil
	}
	at := p.behind(k, by)
	if at.IsZero() {
		return nil
	}
	return p.sleep(ctx, at)
}

// behind returns the time for a new call; zero is at once.
func (p *pacer) behind(k paceKey, by time.Time) time.Time {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	n, ok := p.next[k]
	switch {
	case !ok:
		return time.Time{}
	case !n.at.After(now):
		delete(p.next, k)
		p.busy.Add(-1)
		return time.Time{}
	case n.at.After(latestTurn(by, now)):
		return time.Time{}
	}
	p.next[k] = pace{n.at.Add(n.gap), n.gap}
	return n.at
}

// refused waits for the retry of a rejected call, and reports false without time for it. The error is that of ctx.
func (p *pacer) refused(ctx context.Context, k paceKey, by time.Time, after time.Duration) (again bool, err error) {
	at := p.after(k, by, after)
	if at.IsZero() {
		return false, nil
	}
	return true, p.sleep(ctx, at)
}

// after returns the time for the retry of a rejected call; zero is never.
func (p *pacer) after(k paceKey, by time.Time, after time.Duration) time.Time {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	n, ok := p.next[k]
	at := latest(now.Add(after), n.at)
	switch {
	case at.After(latestTurn(by, now)):
		return time.Time{}
	case !ok && len(p.next) >= maxPaces && !p.sweepLocked(now):
		return at
	case !ok:
		p.busy.Add(1)
	}
	if p.next == nil {
		p.next = map[paceKey]pace{}
	}
	p.next[k] = pace{at.Add(after), after}
	return at
}

// latestTurn returns the latest turn of a call with the deadline by.
func latestTurn(by, now time.Time) time.Time {
	if by.IsZero() {
		return now.Add(maxTimeout)
	}
	return by
}

// sweep removes the entries that are over at now.
func (p *pacer) sweep(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sweepLocked(now)
}

// sweepLocked removes the entries that are over at now, and reports whether there is room.
func (p *pacer) sweepLocked(now time.Time) bool {
	for k, n := range p.next {
		if !n.at.After(now) {
			delete(p.next, k)
			p.busy.Add(-1)
		}
	}
	return len(p.next) < maxPaces
}

// A crowded call was rejected by an overloaded host. Such calls take no turns, because the time of free capacity is unknown. Each wait is
// twice the last, so that a host that stays overloaded gets few retries.
type crowded struct {
	until time.Time
	wait  time.Duration
}

// crowded waits for the retry of the call of c, and reports false without time for it. The error is that of ctx.
func (p *pacer) crowded(ctx context.Context, c *crowded, by time.Time, after time.Duration) (again bool, err error) {
	c.wait = max(after, 2*c.wait)
	at := time.Now().Add(c.wait)
	if at.After(earliest(by, c.until)) {
		return false, nil
	}
	return true, p.sleep(ctx, at)
}

// sleep waits until the time, or returns errClosed or the error of ctx.
func (p *pacer) sleep(ctx context.Context, at time.Time) error {
	t := time.NewTimer(time.Until(at))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-p.closed:
		return errClosed
	}
}
