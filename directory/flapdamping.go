package directory

import (
	"context"
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory/index"
)

// Changes of a host's reachability are reported at most twice per flapWindow, and once more at its end if the state differs, so that a
// flapping host cannot displace other recorded changes.
const (
	flapWindow  = 10 * time.Second
	flapReports = 2
	maxFlaps    = 4096 // hosts; beyond it, those without pending reports are dropped, and others are reported at once
)

// flaps records the reports per host.
type flaps struct {
	wake  chan struct{} // signals a pending report
	mu    sync.Mutex    // owns the other fields; acquired before Directory.mu
	hosts map[did.DID]*flap
}

// A flap is the state of the reports of one host.
type flap struct {
	until   time.Time // end of the window
	reports int       // reports in the window
	pending bool      // a report is pending
}

func (fs *flaps) start() { fs.wake, fs.hosts = make(chan struct{}, 1), map[did.DID]*flap{} }

// reportReachability reports a change of the reachability of a host or its agents to watchers, now or at the end of the window. It is called after the
// change, and without Directory.mu.
func (d *Directory) reportReachability(node did.DID) {
	fs := &d.flaps
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.mayLocked(node, time.Now()) {
		d.reportHost(node)
		return
	}
	select {
	case fs.wake <- struct{}{}:
	default:
	}
}

// mayLocked reports whether a report for a host is allowed now; otherwise the report is pending.
func (fs *flaps) mayLocked(node did.DID, now time.Time) bool {
	f := fs.hosts[node]
	switch {
	case f == nil || !now.Before(f.until):
		if f == nil && len(fs.hosts) >= maxFlaps {
			fs.dropLocked(now)
		}
		if f != nil || len(fs.hosts) < maxFlaps {
			fs.hosts[node] = &flap{until: now.Add(flapWindow), reports: 1}
		}
		return true
	case f.reports < flapReports:
		f.reports++
		return true
	}
	f.pending = true
	return false
}

// dropLocked drops hosts without pending reports whose window has ended.
func (fs *flaps) dropLocked(now time.Time) {
	for node, f := range fs.hosts {
		if !f.pending && !now.Before(f.until) {
			delete(fs.hosts, node)
		}
	}
}

// reportHost reports the Things of a host whose reachability has changed. The caller holds flaps.mu.
func (d *Directory) reportHost(node did.DID) {
	d.regrade(node)
	d.mu.RLock()
	defer d.mu.RUnlock()
	now := time.Now()
	for e := range d.livingLocked(d.index.List(index.Host, string(node)).All(), now) {
		up, why := d.reachable(e.view.record, now), Unreachable
		if up {
			why = Reachable
		}
		if e.reportedDown.CompareAndSwap(up, !up) {
			d.changed.add(logEntry{kind: Changed, reason: why, thing: e.view})
		}
	}
}

// reportLater sends pending reports until ctx ends.
func (d *Directory) reportLater(ctx context.Context) {
	timer := time.NewTimer(flapWindow)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-d.flaps.wake:
		}
		timer.Reset(d.reportPending(time.Now()))
	}
}

// reportPending sends the pending reports that are due, and returns the time until the next one.
func (d *Directory) reportPending(now time.Time) time.Duration {
	fs := &d.flaps
	fs.mu.Lock()
	defer fs.mu.Unlock()
	next := maxSleep
	for node, f := range fs.hosts {
		switch {
		case !f.pending:
		case now.Before(f.until):
			next = min(next, f.until.Sub(now))
		default:
			*f = flap{until: now.Add(flapWindow), reports: 1}
			d.reportHost(node)
		}
	}
	return next
}
