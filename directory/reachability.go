package directory

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

const (
	// downFor is how long a node that nobody probes counts as down after it could not be reached. Then it gets another chance.
	downFor = 10 * time.Minute
	// maxDown bounds the nodes that are remembered as down.
	maxDown = 4096
)

// reach remembers which nodes could not be reached lately.
type reach struct {
	probed  bool          // a node is down until it is reached
	wake    chan struct{} // there is another node to probe
	anyAway atomic.Bool   // away is not empty

	mu       sync.Mutex // owns what follows
	down     map[did.DID]*outage
	contacts map[did.DID]contact
	away     map[offerAt]time.Time // agents that do not answer their hosts, until when that holds
}

// An outage is what is remembered of a node that is down.
type outage struct {
	since   time.Time
	until   time.Time // if it is not probed
	next    time.Time // when to probe
	heard   time.Time // when a probe was brought forward, because of a new record
	tries   int       // probes that have failed
	probing bool
}

func (r *reach) start(probed bool) {
	r.probed, r.wake, r.down = probed, make(chan struct{}, 1), map[did.DID]*outage{}
	r.contacts, r.away = map[did.DID]contact{}, map[offerAt]time.Time{}
}

// Reach notes that node was reached just now, or could not be. A node counts as down until it is reached, by a probe at
// the latest ([Options.Probe]); or for ten minutes if none is made. Nothing is deleted by it.
func (d *Directory) Reach(node did.DID, ok bool) {
	if !d.reach.note(node, ok, time.Now()) {
		d.Meet(node)
		return
	}
	d.tellReach(node)
	if !ok && d.opts.Lost != nil && d.Hosts(node) {
		d.opts.Lost(node)
	}
}

// Meet notes that a connection to a node has begun or ended, as Options.Connected says.
func (d *Directory) Meet(node did.DID) {
	if d.linkChanged(node) {
		d.tellReach(node)
	}
}

// Expects reports whether known things are reached through node, and it does not count as down.
func (d *Directory) Expects(node did.DID) bool {
	return d.Hosts(node) && !d.reach.isDown(node, time.Now())
}

// Misses reports whether known things are reached through node, and it counts as down. It is probed, and comes back by itself.
func (d *Directory) Misses(node did.DID) bool {
	return d.reach.isDown(node, time.Now()) && d.Hosts(node)
}

// Down returns nodes that host known things and count as down, at most limit.
func (d *Directory) Down(limit int) []did.DID {
	all := d.reach.all(time.Now())
	down := all[:0]
	for _, node := range all {
		if len(down) < limit && d.Hosts(node) {
			down = append(down, node)
		}
	}
	return down
}

// Retry has all nodes that are down probed within seconds: this node was cut off itself, and what it knows of them says nothing.
func (d *Directory) Retry() { d.reach.retry(time.Now()) }

// reachable reports whether the state of a thing is not that it is unreachable: no path to it is known to be broken.
func (d *Directory) reachable(r *td.Record, now time.Time) bool {
	d.reach.mu.Lock()
	defer d.reach.mu.Unlock()
	for _, h := range r.Hosts {
		if !d.brokenLocked(r, h.Node, now) {
			return true
		}
	}
	return len(r.Hosts) == 0
}

// brokenLocked reports whether a thing is known not to be reached through one of its hosts. The caller holds reach.mu.
func (d *Directory) brokenLocked(r *td.Record, host did.DID, now time.Time) bool {
	return host != d.opts.Self && d.reach.isDownLocked(d.reach.down[host], now) || d.reach.isAwayLocked(r, host, now)
}

// note reports whether that is news.
func (r *reach) note(node did.DID, ok bool, now time.Time) (news bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.down[node]
	was := r.isDownLocked(o, now)
	if ok {
		r.meetLocked(node, contact{at: now})
		delete(r.down, node)
		return was
	}
	if o == nil {
		if len(r.down) >= maxDown {
			r.dropLocked(now)
		}
		o = &outage{since: now, next: now.Add(probeAfter(0))}
		r.down[node] = o
		r.wakeLocked()
	}
	o.until = now.Add(downFor)
	return !was
}

// wakeLocked has the probing look again for what is due first.
func (r *reach) wakeLocked() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// dropLocked makes room: for what is over, else for anyone, who then counts as up until the next failure.
func (r *reach) dropLocked(now time.Time) {
	var some did.DID
	for node, o := range r.down {
		some = node
		if !r.isDownLocked(o, now) {
			delete(r.down, node)
		}
	}
	if len(r.down) >= maxDown {
		delete(r.down, some)
	}
}

func (r *reach) isDown(node did.DID, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.isDownLocked(r.down[node], now)
}

func (r *reach) isDownLocked(o *outage, now time.Time) bool {
	return o != nil && (r.probed || now.Before(o.until))
}

// all returns the nodes that are down, in no order.
func (r *reach) all(now time.Time) []did.DID {
	r.mu.Lock()
	defer r.mu.Unlock()
	nodes := make([]did.DID, 0, len(r.down))
	for node, o := range r.down {
		if r.isDownLocked(o, now) {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// count returns how many nodes are remembered as down, over or not.
func (r *reach) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.down)
}
