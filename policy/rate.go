package policy

import (
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// account returns the account of id; nil if nothing is counted of that caller.
func (p *Policy) account(id did.DID) *account {
	if id == "" || p.rules.PerPeer <= 0 && p.rules.ReadsPerPeer <= 0 && p.rules.ConsumerConcurrency <= 0 && p.rules.Subscriptions <= 0 {
		return nil
	}
	return p.callers.get(id, time.Now())
}

// paced takes a token of who asks m.
func (p *Policy) paced(m *interact.Message, who *account) error {
	if who == nil {
		return nil
	}
	b, rate, key := who.calls, p.rules.PerPeer, "trust.rate.per_peer"
	if m.Type.Reads() && !m.Type.Long() {
		b, rate, key = who.reads, p.rules.ReadsPerPeer, "trust.rate.reads"
	}
	if wait := b.take(m.From.Name); wait > 0 {
		return limited(wait, "slow down, or ask for a higher "+key, "%s and its consumers ask more often than %g times a second",
			m.From.Node.Short(), rate)
	}
	return nil
}

// pacedThing takes a token of the agent that m is for.
func (p *Policy) pacedThing(m *interact.Message, id string, what *account) error {
	if m.From.Node == "" || what.calls == nil {
		return nil
	}
	if wait := what.calls.take(p.part(m)); wait > 0 {
		return limited(wait, "try again in a while; or ask for a higher trust.rate.per_thing there",
			"%s is asked more often than %g times a second", id, p.rules.PerThing)
	}
	return nil
}

// part names the part of an agent's rate that m uses: each node of trust.allow has its own, and all untrusted callers share one.
func (p *Policy) part(m *interact.Message) string {
	switch c := p.claim(m); c.class {
	case allowed:
		return c.node
	case known:
		return "known"
	}
	return "untrusted"
}

// limited says that a rate was passed, and how long to wait: callers' nodes do so themselves, if there is time.
func limited(wait time.Duration, hint, format string, args ...any) error {
	e := interact.Errorf(interact.RateLimited, hint, format, args...)
	e.RetryAfter = wait
	return e
}
