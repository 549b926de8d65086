package policy

import (
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
)

// Bounds of what is remembered of peers whose calls succeeded.
const (
	maxAcquaintances = 4096
	// probation is how long after the first success a peer is still untrusted: a key that was made for an attack has to wait.
	probation = time.Minute
	// forgetAfter is how long a peer that does not call is remembered.
	forgetAfter = time.Hour
)

// acquaintances are the peers whose calls succeeded before, in memory only. What anybody can earn with one harmless call must not
// be worth much: it is a lane beside that of the keys that nobody knows (see shares), not the places of those that somebody
// chose. When there is no room newcomers are not remembered, so that a flood of keys makes nobody forgotten.
type acquaintances struct {
	mu  sync.Mutex
	all map[did.DID]acquaintance // owned by mu
}

type acquaintance struct{ first, last time.Time }

// has reports whether id is known at now, and keeps it so.
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

// succeeded notes that a call of id succeeded.
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

// sweepLocked forgets who has not called for long, and reports whether there is room.
func (as *acquaintances) sweepLocked(now time.Time) bool {
	for id, a := range as.all {
		if now.Sub(a.last) > forgetAfter {
			delete(as.all, id)
		}
	}
	return len(as.all) < maxAcquaintances
}
