package ucan

import (
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/heap"
)

// Bounds of a [Replay].
const (
	maxUses          = 1 << 16
	maxUsesPerIssuer = 1 << 10
)

// A Replay remembers invocations that were used, until they have expired. When it is full it refuses new ones, and forgets none. The zero
// value is empty. It is safe for concurrent use.
type Replay struct {
	mu      sync.Mutex
	used    map[CID]struct{} // owned by mu, as the next two
	issuers map[did.DID]int
	queue   heap.Heap[*entry] // the first one expires first
}

// A Use is an invocation that was used.
type Use struct {
	Invocation CID       `json:"invocation"`
	Issuer     did.DID   `json:"issuer"`
	Until      time.Time `json:"until"` // when it has expired, with the skew
}

// An entry is a use in the queue.
type entry struct {
	Use
	position int
}

// Before reports whether e expires before other.
func (e *entry) Before(other *entry) bool { return e.Until.Before(other.Until) }

// Position returns the variable of the queue.
func (e *entry) Position() *int { return &e.position }

// Add records a use. The error wraps [Replayed], or [TooMany] if the issuer has 1,024 uses that have not expired or all issuers 65,536.
func (r *Replay) Add(u Use, now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dropLocked(now)
	if _, ok := r.used[u.Invocation]; ok {
		return failed(Replayed, u.Invocation, "it was used before")
	}
	if len(r.used) >= maxUses || r.issuers[u.Issuer] >= maxUsesPerIssuer {
		return failed(TooMany, u.Invocation, "%s has %d invocations that have not expired, all have %d", u.Issuer.Short(), r.issuers[u.Issuer], len(r.used))
	}
	if r.used == nil {
		r.used, r.issuers = map[CID]struct{}{}, map[did.DID]int{}
	}
	r.used[u.Invocation] = struct{}{}
	r.issuers[u.Issuer]++
	r.queue.Add(&entry{Use: u})
	return nil
}

// dropLocked drops what has expired.
func (r *Replay) dropLocked(now time.Time) {
	for len(r.queue) > 0 && !now.Before(r.queue[0].Until) {
		e := r.queue[0]
		r.queue.Remove(e)
		delete(r.used, e.Invocation)
		if r.issuers[e.Issuer]--; r.issuers[e.Issuer] == 0 {
			delete(r.issuers, e.Issuer)
		}
	}
}

// Live returns the uses that have not expired, for [Replay.Add] after a restart.
func (r *Replay) Live(now time.Time) []Use {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dropLocked(now)
	uses := make([]Use, len(r.queue))
	for i, e := range r.queue {
		uses[i] = e.Use
	}
	return uses
}

// Restore records the uses of an earlier run. Those that have expired, are known, or exceed the bounds are left out.
func (r *Replay) Restore(uses []Use, now time.Time) {
	for _, u := range uses {
		_ = r.Add(u, now) // an expired one is dropped by the next call
	}
}
