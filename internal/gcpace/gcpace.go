// Package gcpace makes the garbage collector of a process run less often under load.
package gcpace

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

const (
	idlePercent = 100
	busyPercent = 400
	busyBelow   = 100 * time.Millisecond // between two collections: the process is under load
	idleAbove   = time.Second            // between two collections: the load has ended
)

// Start sets the GC percentage of the process after each collection, until stop: 100, and up to 400 while collections follow each other
// within 100 ms. Garbage beyond that of 100 % is at most bound bytes, so that a large heap is collected as often as without Start. A
// percentage of the user, in the environment variable GOGC, stays, and a limit in GOMEMLIMIT holds.
func Start(bound int64) (stop func()) {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}
	p := &pace{bound: bound, percent: idlePercent, last: time.Now()}
	p.watch()
	return p.stop
}

type pace struct {
	bound int64

	mu      sync.Mutex
	percent int
	last    time.Time // of the last collection
	stopped bool
}

// watch calls collected after the next collection.
func (p *pace) watch() { runtime.AddCleanup(&struct{ p *pace }{}, (*pace).collected, p) }

func (p *pace) collected() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	now := time.Now()
	p.set(next(p.percent, now.Sub(p.last), int64(live[0].Value.Uint64()), p.bound))
	p.last = now
	p.watch()
}

// set stops the program for a moment if the percentage changes.
func (p *pace) set(percent int) {
	if p.percent != percent {
		p.percent = percent
		debug.SetGCPercent(percent)
	}
}

func (p *pace) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	p.set(idlePercent)
}

// next returns the percentage after a collection that left live bytes and began pause after the one before.
func next(percent int, pause time.Duration, live, bound int64) int {
	if pause > idleAbove || percent == idlePercent && pause >= busyBelow {
		return idlePercent
	}
	// Steps of 50 keep small changes of the heap from changing the percentage each time.
	return int(min(max(bound*100/max(live, 1)/50*50, idlePercent), busyPercent))
}
