package policy

import (
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
)

// Limits of the memory of peers whose calls succeeded.
const (
	maxAcquaintances = 4096
	// probation is how long a peer remains untrusted after its first success, so that a key created for an attack must wait.
	probation = time.Minute
	// forgetAfter is how long a peer that does not call is remembered.
	forgetAfter = time.Hour
)

// acquaintances are the peers whose calls succeeded before, in memory only. They get the share of known keys (see shares), and nothing of
// higher classes, because any key can earn it with one harmless call. When the table is full, new peers are not remembered, so that a flood
// of keys evicts no peer.
type acquaintances struct {
	mu  sync.Mutex
	all map[did.DID]acquaintance // owned by mu
}

type acquaintance struct{ first, last time.Time }

// has reports whether id is known at now, and renews it.
func (as *acquaintances) has(id did.DID, now time.Time) bool {
	as.mu.Lock()
	defer as.mu.Unlock()
	a, ok := as.all[id]
	if !ok || now.Sub(a.last) > forgetAfter || now.Sub(a.first) < probation {
		return false
	}
	a.last = now
	as.all[id] = a
	return true
}

// succeeded records a successful call of id.
func (as *acquaintances) succeeded(id did.DID, now time.Time) {
	as.mu.Lock()
	defer as.mu.Unlock()
	a, ok := as.all[id]
	switch {
	case ok && now.Sub(a.last) <= forgetAfter:
	case !ok && len(as.all) >= maxAcquaintances && !as.sweepLocked(now):
		return
	default:
		a.first = now
	}
	if as.all == nil {
		as.all = map[did.DID]acquaintance{}
	}
	a.last = now
	as.all[id] = a
}

// sweepLocked drops peers that have not called for long, and reports whether there is room.
func (as *acquaintances) sweepLocked(now time.Time) bool {
	for id, a := range as.all {
		if now.Sub(a.last) > forgetAfter {
			delete(as.all, id)
		}
	}
	return len(as.all) < maxAcquaintances
}
