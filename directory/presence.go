package directory

import (
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

// A State is the reachability of a Thing, as far as this node knows.
type State string

// The states of Things. A valid record does not prove that its host is up, so the default is unknown.
const (
	StateReachable   State = "reachable"   // a host is connected, or was reached recently, and its agent answers
	StateUnknown     State = "unknown"     // not tried
	StateRefused     State = "refused"     // a policy of the hosts or of this node refuses the connection
	StateUnreachable State = "unreachable" // no host could be reached, or the agent does not answer its host
)

// A Presence is the state of a Thing with the time of the last contact.
type Presence struct {
	State State
	// LastSeen is when a host of the Thing was last reached, or when its record was issued.
	LastSeen time.Time
}

const (
	// reachedFor is how long a node without a connection counts as reachable after it was reached.
	reachedFor = 2 * time.Minute
	// awayFor is how long an agent counts as away after its host reported that it does not answer.
	awayFor = 10 * time.Minute
	// maxContacts and maxAway limit the recorded states. A dropped state is unknown, or that of the host.
	maxContacts = 8192
	maxAway     = 4096
)

// A contact is the last contact with a node.
type contact struct {
	at   time.Time
	lost bool // the connection has ended since
}

// An agentAt is a Thing at one of its hosts.
type agentAt struct {
	key  [32]byte
	host did.DID
}

// Presence returns the state of a Thing, without probing.
func (d *Directory) Presence(desc *td.Description) Presence {
	return d.presence(desc.Record, time.Now())
}

func (d *Directory) presence(r *td.Record, now time.Time) Presence {
	p := Presence{State: StateUnknown, LastSeen: r.Issued}
	if p.LastSeen.After(now) { // the clock of the issuer is ahead
		p.LastSeen = now
	}
	for i, h := range r.Hosts {
		state, seen := d.presenceAt(r, h.Node, now)
		if seen.After(p.LastSeen) {
			p.LastSeen = seen
		}
		if i == 0 || state == StateReachable || p.State == StateUnreachable {
			p.State = state
		}
	}
	return p
}

// presenceAt returns the state of a Thing at one of its hosts, with the last contact; zero: unknown.
func (d *Directory) presenceAt(r *td.Record, host did.DID, now time.Time) (State, time.Time) {
	d.reach.mu.Lock()
	c, broken := d.reach.contacts[host], d.brokenLocked(r, host, now)
	d.reach.mu.Unlock()
	connected := host == d.opts.Self || d.opts.Connected != nil && d.opts.Connected(host)
	if connected {
		c.at = now
	}
	switch {
	case broken:
		return StateUnreachable, c.at
	case connected, !c.lost && now.Sub(c.at) < reachedFor:
		return StateReachable, c.at
	}
	return StateUnknown, c.at
}

// Disconnected records that the connection to a node has ended, which does not make it unreachable.
func (d *Directory) Disconnected(node did.DID) {
	d.reach.mu.Lock()
	d.reach.contactLocked(node, contact{at: time.Now(), lost: true})
	d.reach.mu.Unlock()
	d.ConnectionChanged(node)
}

// SetAway records whether the agent of a Thing does not answer its host, as the host, node, reports.
func (d *Directory) SetAway(desc *td.Description, node did.DID, away bool) {
	if d.reach.setAway(agentAt{desc.Record.Key(), node}, away, time.Now()) {
		d.reportReachability(node)
	}
}

// Answered records that a Thing with one host has answered. It is cheap unless some agent is away.
func (d *Directory) Answered(desc *td.Description) {
	if d.reach.anyAway.Load() {
		d.SetAway(desc, desc.Record.Hosts[0].Node, false)
	}
}

// IsDown reports whether a node counts as down.
func (d *Directory) IsDown(node did.DID) bool { return d.reach.isDown(node, time.Now()) }

func (r *reach) contactLocked(node did.DID, c contact) {
	if _, known := r.contacts[node]; !known && len(r.contacts) >= maxContacts {
		for some := range r.contacts {
			delete(r.contacts, some)
			break
		}
	}
	r.contacts[node] = c
}

// setAway reports whether the state has changed.
func (r *reach) setAway(at agentAt, away bool, now time.Time) (news bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := now.Before(r.away[at])
	if !away {
		delete(r.away, at)
		r.anyAway.Store(len(r.away) > 0)
		return was
	}
	for some, until := range r.away {
		if len(r.away) < maxAway {
			break
		}
		if delete(r.away, some); now.Before(until) {
			break
		}
	}
	r.away[at] = now.Add(awayFor)
	r.anyAway.Store(true)
	return !was
}

func (r *reach) isAwayLocked(rec *td.Record, host did.DID, now time.Time) bool {
	return len(r.away) > 0 && now.Before(r.away[agentAt{rec.Key(), host}])
}
