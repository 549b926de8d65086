package reachability

import (
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/backoff"
)

// Changes of a node's reachability are reported at most twice per flapWindow, and once more at its end.
const (
	flapWindow  = 10 * time.Second
	flapReports = 2
	maxFlaps    = 4096 // nodes; beyond it, those without delayed reports are dropped, and others are reported at once
)

// A damper limits the reports per node.
type damper struct {
	wake  backoff.Waker // for a delayed report
	mu    sync.Mutex    // owns nodes; held during Options.OnChange
	nodes map[did.DID]*flap
}

// A flap is the state of the reports of one node.
type flap struct {
	until   time.Time // end of the window
	reports int       // reports in the window
	delayed bool
}

func newDamper() damper { return damper{wake: backoff.NewWaker(), nodes: map[did.DID]*flap{}} }

// report calls Options.OnChange, now or at the end of the window.
func (t *Tracker) report(node did.DID) {
	t.damper.mu.Lock()
	defer t.damper.mu.Unlock()
	if t.damper.allowLocked(node, time.Now()) {
		t.o.OnChange(node)
		return
	}
	t.damper.wake.Wake()
}

// allowLocked reports whether a report for a node is allowed now; otherwise the report is delayed.
func (d *damper) allowLocked(node did.DID, now time.Time) bool {
	f := d.nodes[node]
	switch {
	case f == nil || !now.Before(f.until):
		if f == nil && len(d.nodes) >= maxFlaps {
			d.pruneLocked(now)
		}
		if f != nil || len(d.nodes) < maxFlaps {
			d.nodes[node] = &flap{until: now.Add(flapWindow), reports: 1}
		}
		return true
	case f.reports < flapReports:
		f.reports++
		return true
	}
	f.delayed = true
	return false
}

// pruneLocked drops nodes without delayed reports whose window has ended.
func (d *damper) pruneLocked(now time.Time) {
	for node, f := range d.nodes {
		if !f.delayed && !now.Before(f.until) {
			delete(d.nodes, node)
		}
	}
}

// reportDelayed sends the delayed reports that are due, and returns the time until the next one.
func (t *Tracker) reportDelayed() time.Duration {
	t.damper.mu.Lock()
	defer t.damper.mu.Unlock()
	now, next := time.Now(), time.Hour
	for node, f := range t.damper.nodes {
		switch {
		case !f.delayed:
		case now.Before(f.until):
			next = min(next, f.until.Sub(now))
		default:
			*f = flap{until: now.Add(flapWindow), reports: 1}
			t.o.OnChange(node)
		}
	}
	return next
}
