package directory

import (
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

// A State says whether a thing can be reached, as far as this node knows.
type State string

// The states of things. What is neither reached nor known to be gone is unknown: that a record is still valid says nothing of its host.
const (
	StateReachable   State = "reachable"   // a host of it is connected, or was reached lately, and does not say that the agent is away
	StateUnknown     State = "unknown"     // nobody tried
	StateRefused     State = "refused"     // its hosts refuse this node by their policies, or this node the hosts
	StateUnreachable State = "unreachable" // no host of it could be reached, or the agent does not answer its host
)

// A Presence is the state of a thing, and when somebody was last known to be there.
type Presence struct {
	State State
	// LastSeen is when a host of the thing was last reached; else when its record was issued.
	LastSeen time.Time
}

const (
	// reachedFor is how long a node that was reached, and is not connected, counts as reachable.
	reachedFor = 2 * time.Minute
	// awayFor is how long an agent of which its host said that it does not answer counts as away, if nobody says it again.
	awayFor = 10 * time.Minute
	// maxContacts and maxAway bound what is remembered; beyond it something is forgotten, and so unknown, or reachable as its host.
	maxContacts = 8192
	maxAway     = 4096
)

// A contact is when a node was last there.
type contact struct {
	at   time.Time
	lost bool // the connection to it has ended since
}

// An offerAt is a thing at one of its hosts.
type offerAt struct {
	key  [32]byte
	host did.DID
}

// Presence returns the state of a thing. It asks nobody.
func (d *Directory) Presence(desc *td.Description) Presence {
	return d.presence(desc.Record, time.Now())
}

func (d *Directory) presence(r *td.Record, now time.Time) Presence {
	p := Presence{State: StateUnknown, LastSeen: r.Issued}
	if p.LastSeen.After(now) { // its clock is ahead
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

// presenceAt returns the state of a thing at one of its hosts, and when that was last there; zero: that is not known.
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

// Lose notes that the connection to a node has just ended. That says nothing of whether it can be reached again.
func (d *Directory) Lose(node did.DID) {
	d.reach.mu.Lock()
	d.reach.meetLocked(node, contact{at: time.Now(), lost: true})
	d.reach.mu.Unlock()
	d.Meet(node)
}

// Away notes whether the agent of a thing does not answer its host, as the host itself says: node is who said so, of what it hosts.
func (d *Directory) Away(desc *td.Description, node did.DID, away bool) {
	if d.reach.noteAway(offerAt{desc.Record.Key(), node}, away, time.Now()) {
		d.tellReach(node)
	}
}

// Answers notes that a thing with one host has answered. It costs next to nothing unless some agent is away.
func (d *Directory) Answers(desc *td.Description) {
	if d.reach.anyAway.Load() {
		d.Away(desc, desc.Record.Hosts[0].Node, false)
	}
}

// IsDown reports whether a node could not be reached, and has not been since.
func (d *Directory) IsDown(node did.DID) bool { return d.reach.isDown(node, time.Now()) }

func (r *reach) meetLocked(node did.DID, c contact) {
	if _, known := r.contacts[node]; !known && len(r.contacts) >= maxContacts {
		for some := range r.contacts {
			delete(r.contacts, some)
			break
		}
	}
	r.contacts[node] = c
}

// noteAway reports whether that is news.
func (r *reach) noteAway(at offerAt, away bool, now time.Time) (news bool) {
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
	return len(r.away) > 0 && now.Before(r.away[offerAt{rec.Key(), host}])
}
