package publication

import (
	"context"
	"time"

	"github.com/lmosd/lmosd/internal/heap"
)

// A Registration is the part of an Enriched TD that a directory adds (WoT Discovery §7.1). Zero times are unknown.
type Registration struct {
	Created  time.Time `json:"created,omitzero"`
	Modified time.Time `json:"modified,omitzero"`
	// Expires is when the Thing is withdrawn. Zero means never.
	Expires time.Time `json:"expires,omitzero"`
	// TTL is the life of the registration after each change, in seconds. Zero means that Expires is absolute.
	TTL float64 `json:"ttl,omitempty"`
}

// At returns r for a Thing that is registered or changed at now; was is its registration before, or zero. The directory computes
// Expires from TTL at creation and at every update, and ignores the Expires of the client.
func (r Registration) At(now time.Time, was Registration) Registration {
	r.Created, r.Modified = was.Created, now
	if r.Created.IsZero() {
		r.Created = now
	}
	if r.TTL > 0 {
		r.Expires = now.Add(time.Duration(r.TTL * float64(time.Second)))
	}
	return r
}

// Renewed is At for a Thing whose TD does not change.
func (r Registration) Renewed(now time.Time, was Registration) Registration {
	r = r.At(now, was)
	r.Modified = was.Modified
	return r
}

// HasExpired reports whether r has expired at now.
func (r Registration) HasExpired(now time.Time) bool {
	return !r.Expires.IsZero() && !now.Before(r.Expires)
}

// Limits of a pause between looks at the ends of registrations.
const (
	retryEnd = time.Second // after a withdrawal that failed
	maxPause = time.Hour
)

// endRegistrations withdraws Things when their registrations end, until ctx ends (WoT Discovery, tdd-registrationinfo-expiry-purge).
func (p *Publisher) endRegistrations(ctx context.Context) error {
	p.o.Index.ending.Loop(ctx, func() time.Duration {
		for _, thing := range p.o.Index.ended(time.Now()) {
			if err := p.endRegistration(ctx, thing); err != nil && ctx.Err() == nil {
				p.o.Log.Warn("withdrawal of an expired Thing failed", "thing", thing, "err", err)
			}
		}
		return p.o.Index.untilEnd(time.Now())
	})
	return ctx.Err()
}

// endRegistration withdraws a Thing whose registration has ended, unless it was just extended. The tombstone is announced by repeat.
func (p *Publisher) endRegistration(ctx context.Context, thing string) error {
	defer p.lock(thing)()
	if pub := p.o.Index.Get(thing); pub == nil || pub.Description == nil || !pub.Registration.HasExpired(time.Now()) {
		return nil
	}
	if _, err := p.withdrawLocked(ctx, thing, 0, ""); err != nil {
		return err
	}
	p.o.Log.Info("Thing withdrawn: its registration ended", "thing", thing)
	return nil
}

// ended returns the Things whose registrations have ended at now.
func (x *Index) ended(now time.Time) (things []string) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for e := range x.ends.queue.While(func(e *end) bool { return !now.Before(e.at) }) {
		things = append(things, e.thing)
	}
	return things
}

// untilEnd returns the time until the next end of a registration, or until a failed withdrawal is tried again.
func (x *Index) untilEnd(now time.Time) time.Duration {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if len(x.ends.queue) == 0 {
		return maxPause
	}
	if wait := x.ends.queue[0].at.Sub(now); wait > 0 {
		return min(wait, maxPause)
	}
	return retryEnd
}

// ends are the ends of registrations. The owner synchronizes them.
type ends struct {
	queue  heap.Heap[*end]
	things map[string]*end
}

// An end is the end of the registration of a Thing.
type end struct {
	thing string
	at    time.Time
	index int // in the queue
}

// Before implements [heap.Element].
func (e *end) Before(o *end) bool { return e.at.Before(o.at) }

// Position implements [heap.Element].
func (e *end) Position() *int { return &e.index }

// set sets the end of a Thing, which has none yet; the zero time is none. It reports whether this is the first end of all.
func (e *ends) set(thing string, at time.Time) (first bool) {
	if at.IsZero() {
		return false
	}
	n := &end{thing: thing, at: at}
	e.things[thing] = n
	e.queue.Add(n)
	return n.index == 0
}

func (e *ends) remove(thing string) {
	if n := e.things[thing]; n != nil {
		e.queue.Remove(n)
		delete(e.things, thing)
	}
}
