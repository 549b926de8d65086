// Package policy decides who may ask, and how much: rules become wraps around a thing (interact.Wrap), so that every message
// passes the same gate, whatever carried it.
//
// [Policy.Gate] looks at the DID that the transport proved (interact.Message.From); [Policy.Limit] counts. A message without
// a DID is of a caller on this machine whom the gateway has let in: no mode refuses it and no rate slows it, since that caller
// could as well use the agents themselves; the number that may run at once holds for it too.
package policy

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

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
	// Concurrency is how many interactions may run at once, of all callers; zero sets no limit. What comes on top is refused,
	// not queued: the caller knows best whether to wait.
	Concurrency int
}

// A Policy applies Rules. It is safe for concurrent use.
type Policy struct {
	rules       Rules
	allow, deny map[did.DID]bool
	running     atomic.Int64

	mu sync.Mutex
	// callers holds the bucket of each caller that was seen lately; owned by mu.
	callers map[did.DID]*caller
	swept   time.Time
}

// A caller is one caller's token bucket.
type caller struct {
	*rate.Limiter
	seen time.Time
}

// Callers that have been silent for idle have a full bucket again, so nothing is lost when they are forgotten. At most
// maxCallers are remembered; beyond that new ones share a bucket.
const (
	idle       = time.Minute
	maxCallers = 4096
)

// New returns a policy with rules r. It keeps r's lists.
func New(r Rules) *Policy {
	return &Policy{rules: r, allow: set(r.Allow), deny: set(r.Deny), callers: map[did.DID]*caller{}}
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

// Limit refuses messages beyond a caller's rate, with code RateLimited, and beyond the number that may run at once, with code
// Overloaded. Both may be tried again.
func (p *Policy) Limit() interact.Wrap {
	return func(t interact.Thing) interact.Thing {
		return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			if !p.allowed(m.From) {
				return interact.Fail(interact.Errorf(interact.RateLimited, "slow down, or ask for a higher trust.rate.per_peer",
					"%s asks more often than %g times a second", m.From.Short(), p.rules.PerPeer))
			}
			if p.rules.Concurrency <= 0 {
				return t.Do(ctx, m)
			}
			return p.bounded(ctx, t, m)
		})
	}
}

// bounded counts an interaction from when its loop begins until it is left.
func (p *Policy) bounded(ctx context.Context, t interact.Thing, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		defer p.running.Add(-1)
		if p.running.Add(1) > int64(p.rules.Concurrency) {
			yield(nil, interact.Errorf(interact.Overloaded, "try again; or raise interact.concurrency there",
				"%d interactions run already", p.rules.Concurrency))
			return
		}
		t.Do(ctx, m)(yield)
	}
}

// allowed takes a token of id's bucket.
func (p *Policy) allowed(id did.DID) bool {
	if id == "" || p.rules.PerPeer <= 0 {
		return true
	}
	now := time.Now()
	return p.bucket(id, now).AllowN(now, 1)
}

// bucket returns the bucket of id, or the one that latecomers share.
func (p *Policy) bucket(id did.DID, now time.Time) *rate.Limiter {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.callers[id]; c != nil {
		c.seen = now
		return c.Limiter
	}
	p.sweepLocked(now)
	if len(p.callers) >= maxCallers {
		id = ""
		if c := p.callers[id]; c != nil {
			c.seen = now
			return c.Limiter
		}
	}
	c := &caller{rate.NewLimiter(rate.Limit(p.rules.PerPeer), max(p.rules.Burst, 1)), now}
	p.callers[id] = c
	return c.Limiter
}

// sweepLocked forgets callers whose bucket is full again, once in a while.
func (p *Policy) sweepLocked(now time.Time) {
	if now.Sub(p.swept) < time.Second {
		return
	}
	p.swept = now
	for id, c := range p.callers {
		if now.Sub(c.seen) > idle && c.TokensAt(now) >= float64(c.Burst()) {
			delete(p.callers, id)
		}
	}
}
