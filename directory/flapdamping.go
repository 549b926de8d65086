package directory

import (
	"context"
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory/index"
)

// A host that comes and goes is told of at most twice in flapWindow, down and up again; then once at its end, if that is news. So
// it cannot push everything else out of what is remembered of changes.
const (
	flapWindow = 10 * time.Second
	flapTells  = 2
	maxFlaps   = 4096 // hosts; of more, the steady ones are forgotten, and then all are told of at once
)

// flaps knows which hosts were told of lately.
type flaps struct {
	wake  chan struct{} // there is more to be told later
	mu    sync.Mutex    // owns the rest; taken before Directory.mu
	hosts map[did.DID]*flap
}

// A flap is what was told of one host.
type flap struct {
	until time.Time // the window's end
	tells int       // in it
	owed  bool      // something has happened since
}

func (fs *flaps) start() { fs.wake, fs.hosts = make(chan struct{}, 1), map[did.DID]*flap{} }

// tellReach tells what became of the things of a host that was found to be down, or up again, or whose agents were: now, or what it
// has come to when enough was told. It is called after the change, and not under Directory.mu.
func (d *Directory) tellReach(node did.DID) {
	fs := &d.flaps
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.mayLocked(node, time.Now()) {
		d.tellHost(node)
		return
	}
	select {
	case fs.wake <- struct{}{}:
	default:
	}
}

// mayLocked reports whether a host may be told of now; if not, that is owed.
func (fs *flaps) mayLocked(node did.DID, now time.Time) bool {
	f := fs.hosts[node]
	switch {
	case f == nil || !now.Before(f.until):
		if f == nil && len(fs.hosts) >= maxFlaps {
			fs.dropLocked(now)
		}
		if f != nil || len(fs.hosts) < maxFlaps {
			fs.hosts[node] = &flap{until: now.Add(flapWindow), tells: 1}
		}
		return true
	case f.tells < flapTells:
		f.tells++
		return true
	}
	f.owed = true
	return false
}

// dropLocked forgets the hosts of which nothing is owed and whose window is over.
func (fs *flaps) dropLocked(now time.Time) {
	for node, f := range fs.hosts {
		if !f.owed && !now.Before(f.until) {
			delete(fs.hosts, node)
		}
	}
}

// tellHost tells of the things of a host that are another than was told. The caller holds flaps.mu.
func (d *Directory) tellHost(node did.DID) {
	d.regrade(node)
	d.mu.RLock()
	defer d.mu.RUnlock()
	now := time.Now()
	for e := range d.livingLocked(d.index.List(index.Host, string(node)).All(), now) {
		up, why := d.reachable(e.view.record, now), Unreachable
		if up {
			why = Reachable
		}
		if e.dark.CompareAndSwap(up, !up) {
			d.changed.add(happening{kind: Changed, why: why, thing: e.view})
		}
	}
}

// tellLater tells what is owed of hosts that come and go, until ctx ends.
func (d *Directory) tellLater(ctx context.Context) {
	timer := time.NewTimer(flapWindow)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-d.flaps.wake:
		}
		timer.Reset(d.tellOwed(time.Now()))
	}
}

// tellOwed tells what is owed and due, and returns how long nothing will be.
func (d *Directory) tellOwed(now time.Time) time.Duration {
	fs := &d.flaps
	fs.mu.Lock()
	defer fs.mu.Unlock()
	next := aWhile
	for node, f := range fs.hosts {
		switch {
		case !f.owed:
		case now.Before(f.until):
			next = min(next, f.until.Sub(now))
		default:
			*f = flap{until: now.Add(flapWindow), tells: 1}
			d.tellHost(node)
		}
	}
	return next
}
