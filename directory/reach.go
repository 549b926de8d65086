package directory

import (
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

const (
	// downFor is how long a node counts as down after it could not be reached. Then it gets another chance.
	downFor = 10 * time.Minute
	// maxDown bounds the nodes that are remembered as down.
	maxDown = 4096
)

// reach remembers which nodes could not be reached lately.
type reach struct {
	mu   sync.Mutex
	down map[did.DID]time.Time // until when; owned by mu
}

// Reach notes that node was reached just now, or could not be. A node counts as down for ten minutes, or until it is
// reached. Nothing is deleted by it.
func (d *Directory) Reach(node did.DID, ok bool) { d.reach.note(node, ok, time.Now()) }

// Reachable reports whether no path to the thing is known to be broken: one of its hosts is not down, or is this node,
// or the thing has no host and is reached without one.
func (d *Directory) Reachable(desc *td.Description) bool {
	now := time.Now()
	for _, h := range desc.Record.Hosts {
		if h.Node == d.opts.Self || !d.reach.isDown(h.Node, now) {
			return true
		}
	}
	return len(desc.Record.Hosts) == 0
}

func (r *reach) note(node did.DID, ok bool, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ok {
		delete(r.down, node)
		return
	}
	if r.down == nil {
		r.down = map[did.DID]time.Time{}
	}
	if _, known := r.down[node]; !known && len(r.down) >= maxDown {
		r.dropLocked(now)
	}
	r.down[node] = now.Add(downFor)
}

// dropLocked makes room: for what is over, else for anyone, who then counts as up until the next failure.
func (r *reach) dropLocked(now time.Time) {
	var some did.DID
	for node, until := range r.down {
		some = node
		if !now.Before(until) {
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
	until, ok := r.down[node]
	return ok && now.Before(until)
}

// count returns how many nodes are remembered as down, over or not.
func (r *reach) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.down)
}
