package directory

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

const (
	// downFor is how long a node counts as down without probes. Then it is tried again.
	downFor = 10 * time.Minute
	// maxDown limits the recorded nodes that are down.
	maxDown = 4096
)

// reach records nodes that could not be reached.
type reach struct {
	probed  bool          // nodes are probed until they are reached
	wake    chan struct{} // signals a new node to probe
	anyAway atomic.Bool   // away is not empty

	mu       sync.Mutex // owns the following fields
	down     map[did.DID]*outage
	contacts map[did.DID]contact
	away     map[agentAt]time.Time // agents that do not answer their hosts, with the end of that state
}

// An outage is the state of a node that is down.
type outage struct {
	since          time.Time
	until          time.Time // end without probes
	next           time.Time // next probe
	broughtForward time.Time // when a new record brought a probe forward
	tries          int       // failed probes
	probing        bool
}

func (r *reach) start(probed bool) {
	r.probed, r.wake, r.down = probed, make(chan struct{}, 1), map[did.DID]*outage{}
	r.contacts, r.away = map[did.DID]contact{}, map[agentAt]time.Time{}
}

// SetReachable records that node was reached, or could not be. A node counts as down until it is reached, at the latest by a probe
// ([Options.Probe]); without probes for 10 minutes. It removes no entries.
func (d *Directory) SetReachable(node did.DID, ok bool) {
	if !d.reach.setReachable(node, ok, time.Now()) {
		d.ConnectionChanged(node)
		return
	}
	d.reportReachability(node)
	if !ok && d.opts.OnDown != nil && d.Hosts(node) {
		d.opts.OnDown(node)
	}
}

// ConnectionChanged records that a connection to a node has started or ended, as Options.Connected reports.
func (d *Directory) ConnectionChanged(node did.DID) {
	if d.linkChanged(node) {
		d.reportReachability(node)
	}
}

// Tracks reports whether node hosts known Things and does not count as down.
func (d *Directory) Tracks(node did.DID) bool {
	return d.Hosts(node) && !d.reach.isDown(node, time.Now())
}

// HostDown reports whether node hosts known Things and counts as down. It is probed.
func (d *Directory) HostDown(node did.DID) bool {
	return d.reach.isDown(node, time.Now()) && d.Hosts(node)
}

// Down returns nodes that host known Things and count as down, at most limit.
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

// Retry probes all nodes that are down within seconds, after this node itself was disconnected.
func (d *Directory) Retry() { d.reach.retry(time.Now()) }

// reachable reports whether no path to a Thing is known to be broken.
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

// brokenLocked reports whether a Thing is known to be unreachable through one of its hosts. The caller holds reach.mu.
func (d *Directory) brokenLocked(r *td.Record, host did.DID, now time.Time) bool {
	return host != d.opts.Self && d.reach.isDownLocked(d.reach.down[host], now) || d.reach.isAwayLocked(r, host, now)
}

// setReachable reports whether the state has changed.
func (r *reach) setReachable(node did.DID, ok bool, now time.Time) (news bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.down[node]
	was := r.isDownLocked(o, now)
	if ok {
		r.contactLocked(node, contact{at: now})
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

// wakeLocked makes the prober check again for the next probe.
func (r *reach) wakeLocked() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// dropLocked makes room: it drops an ended outage, or else any one, whose node then counts as up until the next failure.
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

// all returns the nodes that are down, in any order.
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

// count returns the number of recorded outages, ended or not.
func (r *reach) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.down)
}
