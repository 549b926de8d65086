package policy

import (
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// account returns the account of id; nil if nothing is counted of that caller.
func (p *Policy) account(id did.DID) *account {
	if id == "" || p.rules.PerPeer <= 0 && p.rules.ConsumerConcurrency <= 0 && p.rules.Subscriptions <= 0 {
		return nil
	}
	return p.callers.get(id, time.Now())
}

// paced takes a token of who asks m.
func (p *Policy) paced(m *interact.Message, who *account) error {
	if who.allow() {
		return nil
	}
	return interact.Errorf(interact.RateLimited, "slow down, or ask for a higher trust.rate.per_peer",
		"%s asks more often than %g times a second", m.From.Short(), p.rules.PerPeer)
}

// pacedThing takes a token of the agent that m is for.
func (p *Policy) pacedThing(m *interact.Message, id string, what *account) error {
	if m.From == "" || what.allow() {
		return nil
	}
	return interact.Errorf(interact.RateLimited, "try again in a while; or ask for a higher trust.rate.per_thing there",
		"%s is asked more often than %g times a second", id, p.rules.PerThing)
}
