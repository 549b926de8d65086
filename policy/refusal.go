package policy

import (
	"maps"
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/policy/access"
)

// A Refusal is a message that its caller may not send.
type Refusal struct {
	Who      *did.Principal
	Request  access.Request
	Decision access.Decision
	Hidden   bool // the caller may not find the Thing
}

// Limits of the log of refusals.
const (
	refusalInterval = time.Minute // between two lines of one caller and Thing
	maxRefusals     = 1024        // callers and Things in that time; further ones are counted
)

// refusals limit the log of refusals.
type refusals struct {
	mu      sync.Mutex // owns what follows
	last    map[refusalKey]time.Time
	omitted int
}

// A refusalKey is a caller without the name of a consumer, which its node invents, and a Thing.
type refusalKey struct{ caller, thing string }

// pass reports whether a refusal is logged at now, and how many were omitted since the last line because the log was full.
func (r *refusals) pass(k refusalKey, now time.Time) (ok bool, omitted int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if last, seen := r.last[k]; seen && now.Sub(last) < refusalInterval {
		return false, 0
	}
	if len(r.last) >= maxRefusals {
		maps.DeleteFunc(r.last, func(_ refusalKey, last time.Time) bool { return now.Sub(last) >= refusalInterval })
	}
	if len(r.last) >= maxRefusals {
		r.omitted++
		return false, 0
	}
	if r.last == nil {
		r.last = map[refusalKey]time.Time{}
	}
	r.last[k] = now
	omitted, r.omitted = r.omitted, 0
	return true, omitted
}

// logRefusal logs a refusal, once for each caller and Thing within [refusalInterval].
func (p *Policy) logRefusal(r Refusal) {
	if p.rules.Load().Log == nil {
		return
	}
	thing := access.NameOf(r.Request.Target)
	ok, omitted := p.refused.pass(refusalKey{r.Who.Base(), thing}, time.Now())
	if !ok {
		return
	}
	attributes := []any{"who", r.Who.ID(), "op", string(r.Request.Op), "thing", thing, "why", r.Decision.Why()}
	if r.Decision.Rule != "" {
		attributes = append(attributes, "rule", r.Decision.Rule)
	}
	if omitted > 0 {
		attributes = append(attributes, "omitted", omitted)
	}
	if p.rules.Load().Hint != nil {
		if hint := p.rules.Load().Hint(r); hint != "" {
			attributes = append(attributes, "hint", hint)
		}
	}
	p.rules.Load().Log.Info("call refused", attributes...)
}
