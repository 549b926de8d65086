package policy

import (
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// account returns the account of id; nil without limits for that caller. The condition names each limit of [Rules] per caller: a limit that it
// lacks is not enforced.
func (p *Policy) account(id did.DID) *account {
	if r := p.rules.Load(); id == "" || r.PerPeer <= 0 && r.ReadsPerPeer <= 0 && r.CallerConcurrency <= 0 && r.Subscriptions <= 0 {
		return nil
	}
	return p.callers.get(id, time.Now())
}

// paced takes a token of the caller of m.
func (p *Policy) paced(m *interact.Message, who *account) error {
	if who == nil {
		return nil
	}
	b, rate, key := who.calls.Load(), p.rules.Load().PerPeer, "trust.rate.per_peer"
	if m.Type.Reads() && !m.Type.Long() {
		b, rate, key = who.reads.Load(), p.rules.Load().ReadsPerPeer, "trust.rate.reads"
	}
	if wait := b.take(m.From.Name); wait > 0 {
		return limited(wait, "slow down, or request a higher "+key, "%s and its consumers send more than %g messages per second",
			m.From.Node.Short(), rate)
	}
	return nil
}

// pacedThing takes a token of the agent that receives m.
func (p *Policy) pacedThing(m *interact.Message, id string, what *account) error {
	calls := what.calls.Load()
	if m.From.Node == "" || calls == nil {
		return nil
	}
	if wait := calls.take(p.part(m)); wait > 0 {
		return limited(wait, "try again later; or request a higher trust.rate.per_thing from the operator",
			"%s receives more than %g messages per second", id, p.rules.Load().PerThing)
	}
	return nil
}

// part returns the part of an agent's rate that m uses: each node of the own organization and of partners has its own, and all untrusted callers share one.
func (p *Policy) part(m *interact.Message) string {
	switch c := p.claim(m); c.class {
	case allowed:
		return c.node
	case known:
		return "known"
	}
	return "untrusted"
}

// limited returns the error of an exceeded rate, with the time to wait: nodes of callers wait, if there is time.
func limited(wait time.Duration, hint, format string, args ...any) error {
	e := interact.Errorf(interact.RateLimited, hint, format, args...)
	e.RetryAfter = wait
	return e
}
