package policy

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// claim says who asks for a place with m. A consumer of this node that proved nothing may be on another machine: it has no place of those
// that are kept for this one.
func (p *Policy) claim(m *interact.Message) claim {
	c := claim{node: string(m.From.Node), name: m.From.Name}
	switch {
	case m.From.Via == did.Unproven:
		c.node = string(did.Unproven)
	case m.From.Node == "":
		c.class = owner
	case p.allow[m.From.Node]:
		c.class = allowed
	case p.met.has(m.From.Node, time.Now()):
		c.class = known
	}
	return c
}

// Bound returns how long a long action of m's caller may run, and the key that says so; 0 if the caller has no bound of its own.
func (p *Policy) Bound(m *interact.Message) (most time.Duration, key string) {
	if p.rules.UntrustedRun <= 0 || p.claim(m).class != untrusted {
		return 0, ""
	}
	return p.rules.UntrustedRun, untrustedRun
}

// The keys that bound the time of an untrusted caller.
const (
	untrustedDeadline = "interact.untrusted_deadline"
	untrustedRun      = "interact.tasks.untrusted_max_duration"
)

// Limit refuses messages beyond a caller's rate, with code RateLimited. Interactions beyond the numbers that may run at once wait for
// their turn, or are refused with code Overloaded. The error names the limit and says when to try again. A deadline that is longer
// than what its caller may ask is cut.
func (p *Policy) Limit() interact.Middleware {
	return func(t interact.Thing) interact.Thing {
		return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			who := p.account(m.From.Node)
			if err := p.paced(m, who); err != nil {
				return interact.Fail(err)
			}
			switch {
			case m.Type.Long() && (who == nil || p.rules.Subscriptions <= 0):
				return t.Do(ctx, m)
			case m.Type.Long():
				return p.subscribed(ctx, t, m, who)
			case p.free:
				return t.Do(ctx, m)
			}
			return func(yield func(*interact.Message, error) bool) { p.admitted(ctx, t, m, who, yield) }
		})
	}
}

// Allows refuses what passes no place of its own, as [Policy.Gate], Limit and LimitThing would by its caller and its rates: a message
// inside a tunnel, which holds places itself. id and most are as in LimitThing.
func (p *Policy) Allows(m *interact.Message, id string, most int) error {
	if err := p.Admits(m.From.Node); err != nil {
		return err
	}
	if err := p.paced(m, p.account(m.From.Node)); err != nil {
		return err
	}
	return p.pacedThing(m, id, p.things.get(p.thing(id, most), time.Now()))
}

// subscribed counts a subscription from when its loop begins until it is left.
func (p *Policy) subscribed(ctx context.Context, t interact.Thing, m *interact.Message, who *account) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		if !who.subscribed.enter(p.rules.Subscriptions) {
			yield(nil, interact.Errorf(interact.Overloaded, "end one; or ask for a higher interact.subscriptions there",
				"%s has %d subscriptions already", m.From.Node.Short(), p.rules.Subscriptions))
			return
		}
		defer who.subscribed.leave()
		leave, ok := p.leaveSome(p.claim(m).class)
		if !ok {
			yield(nil, interact.Errorf(interact.Overloaded, "try again later; or ask the operator of that host for trust (trust.allow)",
				"this host has as many subscriptions of callers that it does not trust as it may"))
			return
		}
		defer leave()
		t.Do(ctx, m)(yield)
	}
}

// leaveSome counts a subscription of a class, until leave is called, unless it would take what is left to higher ones.
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

// admitted asks t once there is a place for m.
func (p *Policy) admitted(ctx context.Context, t interact.Thing, m *interact.Message, who *account, yield func(*interact.Message, error) bool) {
	all := p.peers
	if m.From.Node == "" {
		all = p.own
	}
	if who != nil && !who.running.enter(m.From.Name, p.rules.ConsumerConcurrency) {
		yield(nil, overloaded(all, "wait for one to end; or ask for a higher interact.per_caller there",
			"%s has as many interactions here as it may, of the %d of its node", m.From.Short(), p.rules.ConsumerConcurrency))
		return
	}
	if who != nil {
		defer who.running.leave(m.From.Name)
	}
	c := p.claim(m)
	if all != nil {
		at, err := all.enter(ctx, earliest(inTime(m.Deadline), time.Now().Add(queueFor)), c)
		if err != nil {
			yield(nil, refusal(all, err, "try again; or raise interact.concurrency there", "%d interactions run here already", all.places))
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

// watched asks t for a caller that is untrusted: for a bounded time, and remembers it if that goes well.
func (p *Policy) watched(ctx context.Context, t interact.Thing, m *interact.Message, yield func(*interact.Message, error) bool) {
	most, key := p.rules.UntrustedDeadline, untrustedDeadline
	if m.Chunks != nil {
		most, key = p.rules.UntrustedRun, untrustedRun
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

// tooLong is err, of a call whose deadline was cut.
func tooLong(err error, most time.Duration, key string) error {
	e := interact.AsError(err)
	if e.Code != interact.Timeout && e.Code != interact.Cancelled {
		return err
	}
	long := interact.Errorf(interact.Timeout, "ask the operator of that host for trust (trust.allow for a node, a token for a client), or for a higher "+key,
		"this host gives callers that it does not trust %v", most)
	long.Started, long.Err = e.Started, err
	return long
}

// LimitThing refuses what is too much for one agent of this node: messages beyond its rate, with code RateLimited. Interactions beyond
// the number that may run with it at once wait for their turn, and are refused with code Overloaded if that does not come in time, or
// too many wait. The error names the limit and says when to try again. It stands around the agent itself, so that the agent is the
// same by whatever name it was asked for; id is the id of its description, and most how many at once it says that it takes, if that is
// not 0. Tunnels, of which one may last for long without any work, have places of their own. An agent that is offered again keeps its
// account.
func (p *Policy) LimitThing(id string, most int, tunnel func(action string) bool) interact.Middleware {
	key := p.thing(id, most)
	return func(t interact.Thing) interact.Thing {
		if p.rules.PerThing <= 0 && p.rules.ThingConcurrency <= 0 {
			return t
		}
		return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			what := p.things.get(key, time.Now())
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

// thing is the account of an agent that takes most interactions at once, if that is not 0.
func (p *Policy) thing(id string, most int) thingKey {
	k := thingKey{id: id, places: p.rules.ThingConcurrency}
	if most > 0 && k.places > 0 {
		k.places = min(k.places, most)
	}
	return k
}

// placed asks t once there is a place of its own for m.
func (p *Policy) placed(ctx context.Context, t interact.Thing, m *interact.Message, places *admission, yield func(*interact.Message, error) bool) {
	at, err := places.enter(ctx, inTime(m.Deadline), p.claim(m))
	if err != nil {
		yield(nil, refusal(places, err, "try again when it has time; or ask for a higher interact.per_thing there",
			"%s has %d interactions running already", m.Thing, places.places))
		return
	}
	defer places.leave(at)
	t.Do(ctx, m)(yield)
}

// inTime returns until when to wait for a place, if the answer is of use until by: a caller whose time is up learns nothing, and
// must think that its call may have begun.
func inTime(by time.Time) time.Time {
	if by.IsZero() {
		return by
	}
	return by.Add(-time.Until(by) / 10)
}

// tunnelsEach is how many tunnels an agent may have for each of its places.
const tunnelsEach = 4

// beginCaller makes what is counted of a caller.
func (p *Policy) beginCaller(a *account, _ did.DID) {
	a.calls = newMeter(p.rules.PerPeer, p.rules.Burst)
	a.reads = newMeter(p.rules.ReadsPerPeer, max(p.rules.Burst, int(min(p.rules.ReadsPerPeer, 1<<30))))
}

// beginThing makes what is counted of an agent.
func (p *Policy) beginThing(a *account, k thingKey) {
	a.calls = newMeter(p.rules.PerThing, p.rules.ThingBurst)
	if k.places > 0 {
		a.places, a.tunnels = newAdmission(k.places), newAdmission(tunnelsEach*k.places)
	}
}

// refusal is the error of what got no place.
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

// earliest returns the earlier of a time that may be zero, which is never, and another.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}
