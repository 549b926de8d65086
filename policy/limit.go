package policy

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/policy/access"
)

// claim returns the claim of m. An unproven consumer of this node may be on another host, so it gets none of the places reserved for this
// one.
func (p *Policy) claim(m *interact.Message) claim {
	c := claim{node: string(m.From.Node), name: m.From.Name}
	switch {
	case m.From.Proof() == did.Unproven:
		c.node = string(did.Unproven)
	case m.From.Node == "":
		c.class = owner
	case m.From.Relation >= did.Partner:
		c.class = allowed
	case p.met.has(m.From.Node, time.Now()):
		c.class = known
	}
	return c
}

// Bound returns the maximal duration of a long action of the caller of m, and its configuration key; 0 if there is none for this caller. The key is
// empty if the duration ends with a delegation.
func (p *Policy) Bound(m *interact.Message) (most time.Duration, key string) {
	if p.rules.Load().UntrustedRun > 0 && p.claim(m).class == untrusted {
		most, key = p.rules.Load().UntrustedRun, untrustedRun
	}
	if m.From.Lent != nil {
		if left := max(time.Until(m.From.Lent.Expires), 1); most == 0 || left < most {
			return left, ""
		}
	}
	return most, key
}

// The configuration keys of the limits of untrusted callers.
const (
	untrustedDeadline = "interact.untrusted_deadline"
	untrustedRun      = "interact.tasks.untrusted_max_duration"
)

// Limit rejects messages beyond the rate of a caller, with code RateLimited. Interactions beyond the concurrency limits wait for a place,
// or are rejected with code Overloaded. The error names the limit and when to retry. A deadline beyond the limit of its caller is
// shortened. A message without a caller is Forbidden.
func (p *Policy) Limit() interact.Middleware {
	return func(t interact.Thing) interact.Thing {
		return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			if m.From == nil {
				return interact.Fail(errNoCaller)
			}
			who := p.account(m.From.Node)
			if err := p.paced(m, who); err != nil {
				return interact.Fail(err)
			}
			switch {
			case m.Type.Long() && (who == nil || p.rules.Load().Subscriptions <= 0):
				return t.Do(ctx, m)
			case m.Type.Long():
				return p.subscribed(ctx, t, m, who)
			case p.rules.Load().unlimited():
				return t.Do(ctx, m)
			}
			return func(yield func(*interact.Message, error) bool) { p.admitted(ctx, t, m, who, yield) }
		})
	}
}

// Allows checks a message inside a tunnel to the agent t, which needs no place because the tunnel holds places: it checks the caller and
// the rates as [Policy.Authorize], Limit and LimitThing do. most is as in LimitThing.
func (p *Policy) Allows(m *interact.Message, t *access.Target, most int) error {
	if _, err := p.authorize(withoutDelegation(m), t, nil); err != nil {
		return err
	}
	if err := p.paced(m, p.account(m.From.Node)); err != nil {
		return err
	}
	return p.pacedThing(m, t.ID, p.things.get(p.thing(t.ID, most), time.Now()))
}

// subscribed counts a subscription while its loop runs.
func (p *Policy) subscribed(ctx context.Context, t interact.Thing, m *interact.Message, who *account) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		if !who.subscribed.enter(p.rules.Load().Subscriptions) {
			yield(nil, interact.TooManySubscriptions(m.From.Node.Short(), p.rules.Load().Subscriptions))
			return
		}
		defer who.subscribed.leave()
		leave, ok := p.leaveSome(p.claim(m).class)
		if !ok {
			yield(nil, interact.Errorf(interact.Overloaded, "try again later; or ask the operator of that host for an invitation",
				"this host has the maximal number of subscriptions of untrusted callers"))
			return
		}
		defer leave()
		t.Do(ctx, m)(yield)
	}
}

// leaveSome counts a subscription of a class until leave is called, unless the rest is for higher classes.
func (p *Policy) leaveSome(c class) (leave func(), ok bool) {
	switch {
	case c >= allowed:
		return func() {}, true
	case !p.unverified.enter(maxUnverified):
		return nil, false
	case c == known:
		return p.unverified.leave, true
	case !p.untrusted.enter(maxUntrusted):
		p.unverified.leave()
		return nil, false
	}
	return func() { p.untrusted.leave(); p.unverified.leave() }, true
}

// admitted forwards m to t when it gets a place.
func (p *Policy) admitted(ctx context.Context, t interact.Thing, m *interact.Message, who *account, yield func(*interact.Message, error) bool) {
	all := p.peers
	if m.From.Node == "" {
		all = p.own
	}
	if who != nil && !who.running.enter(m.From.Name, p.rules.Load().CallerConcurrency) {
		yield(nil, overloaded(all, "wait for one to end; or request a higher interact.per_caller from the operator",
			"%s has the maximal number of interactions here; its node may have %d", m.From.Short(), p.rules.Load().CallerConcurrency))
		return
	}
	if who != nil {
		defer who.running.leave(m.From.Name)
	}
	c := p.claim(m)
	if all != nil {
		at, err := all.enter(ctx, earliest(inTime(m.Deadline), time.Now().Add(queueFor)), c)
		if err != nil {
			yield(nil, refusal(all, err, "try again; or raise interact.concurrency there", "%d interactions run on this host", all.places))
			return
		}
		defer all.leave(at)
	}
	if c.class != untrusted {
		t.Do(ctx, m)(yield)
		return
	}
	p.watched(ctx, t, m, yield)
}

// watched forwards a message of an untrusted caller to t with a limited deadline, and remembers the caller after a success.
func (p *Policy) watched(ctx context.Context, t interact.Thing, m *interact.Message, yield func(*interact.Message, error) bool) {
	most, key := p.rules.Load().UntrustedDeadline, untrustedDeadline
	if m.Chunks != nil {
		most, key = p.rules.Load().UntrustedRun, untrustedRun
	}
	cut := false
	if by := time.Now().Add(most); most > 0 && (m.Deadline.IsZero() || m.Deadline.After(by)) {
		c := *m
		c.Deadline, cut = by, true
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, by)
		defer cancel()
		m = &c
	}
	well := false
	t.Do(ctx, m)(func(r *interact.Message, err error) bool {
		if well = err == nil; cut && err != nil && !time.Now().Before(m.Deadline) {
			err = tooLong(err, most, key)
		}
		return yield(r, err)
	})
	if well && m.From.Node != "" {
		p.met.succeeded(m.From.Node, time.Now())
	}
}

// tooLong returns err for a call whose deadline was shortened.
func tooLong(err error, most time.Duration, key string) error {
	e := interact.AsError(err)
	if e.Code != interact.Timeout && e.Code != interact.Cancelled {
		return err
	}
	long := interact.Errorf(interact.Timeout, "ask the operator of that host for an invitation (or for a token, as a client), or for a higher "+key,
		"this host limits calls of untrusted callers to %v", most)
	long.Started, long.Err = e.Started, err
	return long
}

// LimitThing rejects messages beyond the rate of an agent of this node, with code RateLimited. Interactions beyond its concurrency wait for
// a place; they are rejected with code Overloaded when their time ends or the queue is full. The error names the limit and when to retry.
// The middleware wraps the agent itself, so that all names of the agent share it. id is the id of its TD, and most the concurrency that the
// TD permits, if not 0. Tunnels, which may last long without work, have places of their own. A republished agent keeps its account.
func (p *Policy) LimitThing(id string, most int, tunnel func(action string) bool) interact.Middleware {
	return func(t interact.Thing) interact.Thing {
		return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			if r := p.rules.Load(); r.PerThing <= 0 && r.ThingConcurrency <= 0 {
				return t.Do(ctx, m)
			}
			what := p.things.get(p.thing(id, most), time.Now())
			if err := p.pacedThing(m, id, what); err != nil {
				return interact.Fail(err)
			}
			places := what.places
			switch {
			case places == nil || m.Type.Long():
				return t.Do(ctx, m)
			case m.Chunks != nil && tunnel != nil && tunnel(m.Name):
				places = what.tunnels
			}
			return func(yield func(*interact.Message, error) bool) { p.placed(ctx, t, m, places, yield) }
		})
	}
}

// thing returns the key of an agent that accepts most concurrent interactions, if not 0.
func (p *Policy) thing(id string, most int) thingKey {
	k := thingKey{id: id, places: p.rules.Load().ThingConcurrency}
	if most > 0 && k.places > 0 {
		k.places = min(k.places, most)
	}
	return k
}

// placed forwards m to t when it gets a place.
func (p *Policy) placed(ctx context.Context, t interact.Thing, m *interact.Message, places *admission, yield func(*interact.Message, error) bool) {
	at, err := places.enter(ctx, inTime(m.Deadline), p.claim(m))
	if err != nil {
		yield(nil, refusal(places, err, "try again later; or request a higher interact.per_thing from the operator",
			"%s runs %d interactions already", m.Thing, places.places))
		return
	}
	defer places.leave(at)
	t.Do(ctx, m)(yield)
}

// inTime returns the end of waiting for a place of a call with the deadline by. It is earlier, so that the rejection reaches the caller in
// time; otherwise the caller must assume that its call was started.
func inTime(by time.Time) time.Time {
	if by.IsZero() {
		return by
	}
	return by.Add(-time.Until(by) / 10)
}

// tunnelsEach is the number of tunnels of an agent per place.
const tunnelsEach = 4

// beginCaller creates the counters of a caller.
func (p *Policy) beginCaller(a *account, _ did.DID) {
	r := p.rules.Load()
	a.calls.Store(newMeter(r.PerPeer, r.Burst))
	a.reads.Store(newMeter(r.ReadsPerPeer, max(r.Burst, int(min(r.ReadsPerPeer, 1<<30)))))
}

// beginThing creates the counters of an agent.
func (p *Policy) beginThing(a *account, k thingKey) {
	p.meterThing(a, k)
	if k.places > 0 {
		a.places, a.tunnels = newAdmission(k.places), newAdmission(tunnelsEach*k.places)
	}
}

// meterThing creates the rate of an agent.
func (p *Policy) meterThing(a *account, _ thingKey) {
	r := p.rules.Load()
	a.calls.Store(newMeter(r.PerThing, r.ThingBurst))
}

// refusal returns the error of an interaction without a place.
func refusal(a *admission, err error, hint, format string, args ...any) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	return overloaded(a, hint, format+": "+err.Error(), args...)
}

func overloaded(a *admission, hint, format string, args ...any) error {
	e := interact.Errorf(interact.Overloaded, hint, format, args...)
	if e.RetryAfter = minAfter; a != nil {
		e.RetryAfter = a.after()
	}
	return e
}

// earliest returns the earlier of two times; a zero a is never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}
