package reachability

import (
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

// A State is the reachability of a Thing as known to this node.
type State string

// The states of Things. A valid record does not prove that its host is up, so the default is unknown.
const (
	Reachable   State = "reachable"   // a host is connected, or was reached recently, and its agent answers
	Unknown     State = "unknown"     // not tried
	Refused     State = "refused"     // a policy of the hosts or of this node rejects the connection
	Unreachable State = "unreachable" // no host could be reached, or the agent does not answer its host
)

// A Presence is the state of a Thing with the time of the last contact.
type Presence struct {
	State State
	// LastSeen is when a host of the Thing was last reached, or when its record was issued.
	LastSeen time.Time
}

// Presence returns the state of a Thing, without probing.
func (t *Tracker) Presence(desc *td.Description) Presence {
	r, now := desc.Record, time.Now()
	p := Presence{State: Unknown, LastSeen: r.Issued}
	if p.LastSeen.After(now) { // the clock of the issuer is ahead
		p.LastSeen = now
	}
	for i, h := range r.Hosts {
		state, seen := t.presenceAt(r, h.Node, now)
		if seen.After(p.LastSeen) {
			p.LastSeen = seen
		}
		if i == 0 || state == Reachable || p.State == Unreachable {
			p.State = state
		}
	}
	return p
}

// presenceAt returns the state of a Thing at one of its hosts, with the last contact; zero: unknown.
func (t *Tracker) presenceAt(r *td.Record, host did.DID, now time.Time) (State, time.Time) {
	t.mu.Lock()
	c, broken := t.contacts[host], t.brokenLocked(r, host, now)
	t.mu.Unlock()
	connected := host == t.o.Self || t.o.Connected != nil && t.o.Connected(host)
	if connected {
		c.at = now
	}
	switch {
	case broken:
		return Unreachable, c.at
	case connected, !c.lost && now.Sub(c.at) < reachedFor:
		return Reachable, c.at
	}
	return Unknown, c.at
}
