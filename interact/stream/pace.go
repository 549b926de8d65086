package stream

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/did"
)

// Bounds of a pacer.
const (
	maxPaces   = 4096        // hosts and things that want to be asked more slowly; of others each call waits for itself
	maxTimeout = time.Minute // for a call without a deadline
	// maxCrowded is how long a call is asked again of a host that has no place for it. An agent that calls another one holds a place
	// until then: such cycles must end before their deadlines.
	maxCrowded = 2 * time.Second
)

// A pacer asks hosts as fast as they want to be asked. A host that refuses a call by its rate says how long to wait. Calls of the same
// kind then take turns, that time apart, new ones behind those that wait: without turns all that wait would come again at once, and
// all but one in vain. The zero pacer works.
type pacer struct {
	closed <-chan struct{} // ends what waits, with errClosed; nil: nothing does

	busy atomic.Int64 // elements of next

	mu   sync.Mutex
	next map[paceKey]pace // owned by mu
}

// A paceKey is what a host may limit: its rates are for what reads and for the rest, for each thing, and for each consumer of this node.
type paceKey struct {
	host  did.DID
	thing string
	as    string
	reads bool
}

// A pace is when the next call may go, and how much later the one after it.
type pace struct {
	at  time.Time
	gap time.Duration
}

// turn waits until a call may go, if others wait already. A call that has no time for that goes at once: the host decides. The error is
// that of ctx.
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

// behind returns when a call may go that comes now; zero is at once.
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

// refused waits until a call may go again that its host told to come later, and reports false if there is no time for that. The error
// is that of ctx.
func (p *pacer) refused(ctx context.Context, k paceKey, by time.Time, after time.Duration) (again bool, err error) {
	at := p.after(k, by, after)
	if at.IsZero() {
		return false, nil
	}
	return true, p.sleep(ctx, at)
}

// after returns when a call may go that was refused now; zero is never.
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

// latestTurn is until when a call may wait for its turn that is of use until by.
func latestTurn(by, now time.Time) time.Time {
	if by.IsZero() {
		return now.Add(maxTimeout)
	}
	return by
}

// sweep forgets what is over at now.
func (p *pacer) sweep(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sweepLocked(now)
}

// sweepLocked forgets what is over, and reports whether there is room.
func (p *pacer) sweepLocked(now time.Time) bool {
	for k, n := range p.next {
		if !n.at.After(now) {
			delete(p.next, k)
			p.busy.Add(-1)
		}
	}
	return len(p.next) < maxPaces
}

// A crowded call is one whose host had no place for it. Such calls take no turns: when a place will be free is a guess, and many may
// be free then. Each waits twice as long as before instead, so that a host that stays full is asked seldom.
type crowded struct {
	until time.Time
	wait  time.Duration
}

// crowded waits until the call of c may go again, and reports false if there is no time for that. The error is that of ctx.
func (p *pacer) crowded(ctx context.Context, c *crowded, by time.Time, after time.Duration) (again bool, err error) {
	c.wait = max(after, 2*c.wait)
	at := time.Now().Add(c.wait)
	if at.After(earliest(by, c.until)) {
		return false, nil
	}
	return true, p.sleep(ctx, at)
}

// sleep returns at the time, or earlier with errClosed or the error of ctx.
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
