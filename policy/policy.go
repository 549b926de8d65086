// Package policy decides who may ask, and how much: rules become wraps around a thing (interact.Wrap), so that every message
// passes the same gate, whatever carried it.
//
// [Policy.Gate] looks at the DID that the transport proved (interact.Message.From); [Policy.Limit] counts what callers ask, and
// [Policy.LimitThing] what one agent is asked. A message without a DID is of a caller on this machine whom the gateway has let
// in: no mode refuses it and no rate slows it, since that caller could as well use the agents themselves; the numbers that may
// run at once, of all callers and of one agent, hold for it too.
package policy

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// Modes of a policy.
const (
	Open      = "open"      // everyone who is not denied
	Verified  = "verified"  // whoever proved a DID and is not denied: every node of the mesh has
	Allowlist = "allowlist" // only those allowed, and not denied
)

// Rules say who may ask this node and its agents. The zero value admits everyone without a limit.
type Rules struct {
	// Mode is Open, Verified or Allowlist; empty means Open, and anything else admits nobody.
	Mode string
	// Allow names who passes the allowlist; Deny who is refused in every mode.
	Allow, Deny []did.DID
	// PerPeer is how many messages a second one caller may send in the long run, Burst how many at once. Zero PerPeer sets no
	// limit; a Burst below 1 is 1. Lower values protect agents from greedy callers, and slow honest ones in a hurry.
	PerPeer float64
	Burst   int
	// Concurrency is how many interactions may run at once, of all callers with a DID, and again as many of those on this
	// machine, and ConsumerConcurrency how many of one caller; zero sets no limit. What comes on top is refused, not queued: the
	// caller knows best whether to wait. Subscriptions and observations are counted apart: they wait most of the time, and go on
	// for days.
	Concurrency, ConsumerConcurrency int
	// Subscriptions is how many subscriptions and observations one caller may have at once; zero sets no limit.
	Subscriptions int
	// PerThing is how many messages a second one agent of this node gets in the long run, of all callers with a DID together,
	// and ThingBurst how many at once. Zero PerThing sets no limit; a ThingBurst below 1 is what a second brings.
	PerThing   float64
	ThingBurst int
	// ThingConcurrency is how many interactions may run at once with one agent of this node, of all callers; zero sets no
	// limit. It protects agents that do one thing at a time.
	ThingConcurrency int
}

// A Policy applies Rules. It is safe for concurrent use.
type Policy struct {
	rules       Rules
	allow, deny map[did.DID]bool
	running     count // of peers
	own         count // of callers on this machine
	callers     accounts[did.DID]
	things      accounts[string]
}

// At most so many callers, and agents of this node, are remembered. Beyond that new ones share an account.
const (
	maxCallers = 4096
	maxThings  = 1 << 16
)

// New returns a policy with rules r. It keeps r's lists.
func New(r Rules) *Policy {
	if r.ThingBurst < 1 {
		r.ThingBurst = int(min(max(r.PerThing, 1), 1<<30))
	}
	return &Policy{rules: r, allow: set(r.Allow), deny: set(r.Deny),
		callers: newAccounts[did.DID](r.PerPeer, r.Burst, maxCallers),
		things:  newAccounts[string](r.PerThing, r.ThingBurst, maxThings)}
}

func set(ids []did.DID) map[did.DID]bool {
	m := make(map[did.DID]bool, len(ids))
	for _, id := range ids {
		m[id] = true
	}
	return m
}

// Admits returns nil if id may take part, else an [*interact.Error] of code Forbidden that names the rule. It is what the
// gate asks for each message, and connections, gossip and the DHT for each peer. An empty id is a caller on this machine.
func (p *Policy) Admits(id did.DID) error {
	switch {
	case id == "":
		return nil
	case p.deny[id]:
		return forbidden(id, "trust.deny lists it")
	case p.rules.Mode == "" || p.rules.Mode == Open || p.rules.Mode == Verified || p.allow[id] && p.rules.Mode == Allowlist:
		return nil
	case p.rules.Mode == Allowlist:
		return forbidden(id, "trust.policy is allowlist and trust.allow does not list it")
	}
	return forbidden(id, fmt.Sprintf("trust.policy %q is unknown", p.rules.Mode))
}

// Who may call the agents of a node, as [Policy.Callers] says it.
const (
	Anyone  = "anyone"  // each peer that is not denied
	Allowed = "allowed" // peers in Rules.Allow
)

// Callers tells whom the rules admit: Anyone or Allowed. Callers on this machine are always admitted.
func (p *Policy) Callers() string {
	if p.rules.Mode == Allowlist {
		return Allowed
	}
	return Anyone
}

// Trust says how much id is trusted, 0 to 1, and by which rule, for those who rank: wholly if trust.allow lists it, not at all if it is
// not admitted, half if the rules do not know it.
func (p *Policy) Trust(id did.DID) (amount float64, why string) {
	switch {
	case p.deny[id]:
		return 0, "trust.deny"
	case p.allow[id]:
		return 1, "trust.allow"
	case p.Admits(id) != nil:
		return 0, "not in trust.allow"
	}
	return 0.5, "no rule"
}

func forbidden(id did.DID, rule string) error {
	return interact.Errorf(interact.Forbidden, "ask the operator of that node to change its trust settings",
		"%s is refused: %s", id.Short(), rule)
}

// Gate refuses messages of callers that the policy does not admit.
func (p *Policy) Gate() interact.Wrap {
	return func(t interact.Thing) interact.Thing {
		return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			if err := p.Admits(m.From); err != nil {
				return interact.Fail(err)
			}
			return t.Do(ctx, m)
		})
	}
}

// Limit refuses messages beyond a caller's rate, with code RateLimited, and beyond the numbers that may run at once, with code
// Overloaded. The error names the limit; all may be tried again.
func (p *Policy) Limit() interact.Wrap {
	return func(t interact.Thing) interact.Thing {
		return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			who := p.account(m.From)
			if !who.allow() {
				return interact.Fail(interact.Errorf(interact.RateLimited, "slow down, or ask for a higher trust.rate.per_peer",
					"%s asks more often than %g times a second", m.From.Short(), p.rules.PerPeer))
			}
			if m.Type.Long() && (who == nil || p.rules.Subscriptions <= 0) ||
				!m.Type.Long() && p.rules.Concurrency <= 0 && (who == nil || p.rules.ConsumerConcurrency <= 0) {
				return t.Do(ctx, m)
			}
			return p.bounded(ctx, t, m, who)
		})
	}
}

// account returns the account of id; nil if nothing is counted of that caller.
func (p *Policy) account(id did.DID) *account {
	if id == "" || p.rules.PerPeer <= 0 && p.rules.ConsumerConcurrency <= 0 && p.rules.Subscriptions <= 0 {
		return nil
	}
	return p.callers.get(id, time.Now())
}

// bounded counts an interaction from when its loop begins until it is left.
func (p *Policy) bounded(ctx context.Context, t interact.Thing, m *interact.Message,
	who *account) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		if err := p.enter(m, who); err != nil {
			yield(nil, err)
			return
		}
		defer p.leave(m, who)
		t.Do(ctx, m)(yield)
	}
}

// enter counts m in, or says which limit it passes. A subscription that gets here has an account.
func (p *Policy) enter(m *interact.Message, who *account) error {
	switch {
	case m.Type.Long() && !who.subscribed.enter(p.rules.Subscriptions):
		return interact.Errorf(interact.Overloaded, "end one; or ask for a higher interact.subscriptions there",
			"%s has %d subscriptions already", m.From.Short(), p.rules.Subscriptions)
	case m.Type.Long():
		return nil
	case who != nil && !who.running.enter(p.rules.ConsumerConcurrency):
		return interact.Errorf(interact.Overloaded, "wait for one to end; or ask for a higher interact.per_caller there",
			"%s has %d interactions running already", m.From.Short(), p.rules.ConsumerConcurrency)
	case who == nil && m.From == "" && p.own.enter(p.rules.Concurrency):
		return nil // callers on this machine have places of their own, which no stranger takes
	case m.From != "" && p.running.enter(p.rules.Concurrency):
		return nil
	}
	if who != nil {
		who.running.leave()
	}
	return interact.Errorf(interact.Overloaded, "try again; or raise interact.concurrency there",
		"%d interactions run already", p.rules.Concurrency)
}

func (p *Policy) leave(m *interact.Message, who *account) {
	if m.Type.Long() {
		who.subscribed.leave()
		return
	}
	if m.From == "" {
		p.own.leave()
		return
	}
	p.running.leave()
	if who != nil {
		who.running.leave()
	}
}

// LimitThing refuses what is too much for one agent of this node: messages beyond its rate, with code RateLimited, and
// interactions beyond the number that may run with it at once, with code Overloaded. The error names the limit; both may be
// tried again. It stands around the agent itself, so that the agent is the same by whatever name it was asked for; id is the id
// of its description. An agent that is offered again keeps its account.
func (p *Policy) LimitThing(id string) interact.Wrap {
	return func(t interact.Thing) interact.Thing {
		if p.rules.PerThing <= 0 && p.rules.ThingConcurrency <= 0 {
			return t
		}
		return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			what := p.things.get(id, time.Now())
			if m.From != "" && !what.allow() {
				return interact.Fail(interact.Errorf(interact.RateLimited,
					"try again in a while; or ask for a higher trust.rate.per_thing there",
					"%s is asked more often than %g times a second", id, p.rules.PerThing))
			}
			if p.rules.ThingConcurrency <= 0 || m.Type.Long() {
				return t.Do(ctx, m)
			}
			return p.narrow(ctx, t, m, what)
		})
	}
}

// narrow counts an interaction with one agent from when its loop begins until it is left.
func (p *Policy) narrow(ctx context.Context, t interact.Thing, m *interact.Message,
	what *account) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		if !what.running.enter(p.rules.ThingConcurrency) {
			yield(nil, interact.Errorf(interact.Overloaded, "try again when it has time; or ask for a higher interact.per_thing there",
				"%s has %d interactions running already", m.Thing, p.rules.ThingConcurrency))
			return
		}
		defer what.running.leave()
		t.Do(ctx, m)(yield)
	}
}
