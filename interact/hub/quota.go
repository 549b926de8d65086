package hub

import (
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// taken is what one kind of callers has: those on this machine, or the others. Neither kind can take all, and of the others none
// more than Options.PerCaller.
type taken struct {
	subscriptions int
	topics        int // that are read: by callers on this machine, or by nobody of them
}

// kind is the index of what a caller takes from.
func kind(from *did.Principal) int {
	if from.Local() {
		return 0
	}
	return 1
}

// here is who counts for all callers on this machine.
const here = ""

// reader is who counts for a caller: its node, since the names of consumers behind it are its word, and must buy nothing.
func reader(from *did.Principal) string {
	if from.Local() {
		return here
	}
	return from.Base()
}

// portion is three quarters of n, rounded up: what one kind may have.
func portion(n int) int { return n - n/4 }

// mayJoinLocked says whether a caller may have one subscription more.
func (h *Hub) mayJoinLocked(from *did.Principal) error {
	all, mine := h.taken[0].subscriptions+h.taken[1].subscriptions, h.taken[kind(from)].subscriptions
	switch {
	case !from.Local() && h.callers[reader(from)] >= h.o.PerCaller:
		return interact.Errorf(interact.Overloaded, "end one of them; or ask for a higher interact.subscriptions there",
			"%s has %d subscriptions already", from.Short(), h.callers[reader(from)])
	case all >= h.o.MaxSubscribers, mine >= portion(h.o.MaxSubscribers):
		return interact.Errorf(interact.Overloaded, "try again in a while; or subscribe at another host of the thing",
			"%d subscriptions are served already", all)
	}
	return nil
}

// mayObserveLocked says whether a caller may have an observation that nobody reads yet, and makes room if it is a new one.
func (h *Hub) mayObserveLocked(from *did.Principal, fresh bool) error {
	if h.taken[kind(from)].topics < portion(h.o.MaxTopics) && (!fresh || h.all < h.o.MaxTopics || h.evictLocked()) {
		return nil
	}
	return interact.Errorf(interact.Overloaded, "try again in a while; or subscribe to what others have subscribed to",
		"%d affordances are observed already", h.all)
}

// countLocked counts a subscription of a caller to t in (1) or out (-1).
func (h *Hub) countLocked(t *topic, from *did.Principal, n int) {
	h.takenLocked(t, -1)
	if t.readers == nil {
		t.readers = map[string]int{}
	}
	count(t.readers, reader(from), n)
	count(h.callers, reader(from), n)
	h.taken[kind(from)].subscriptions += n
	h.takenLocked(t, 1)
}

// takenLocked counts a topic for the kind that it is read by, if it is.
func (h *Hub) takenLocked(t *topic, n int) {
	switch {
	case t.readers[here] > 0:
		h.taken[0].topics += n
	case len(t.readers) > 0:
		h.taken[1].topics += n
	}
}

func count(m map[string]int, from string, n int) {
	if m[from] += n; m[from] == 0 {
		delete(m, from)
	}
}

// evictLocked ends an observation that nobody reads: of the caller that has left the most, so that nobody takes away what others
// may come back to, the one that was left first.
func (h *Hub) evictLocked() bool {
	left := map[string]int{}
	for t := range h.eachLocked {
		if _, ok := t.idleSince(); ok {
			left[t.keeper]++
		}
	}
	var oldest *topic
	var since time.Time
	for t := range h.eachLocked {
		idle, ok := t.idleSince()
		if !ok {
			continue
		}
		if oldest == nil || left[t.keeper] > left[oldest.keeper] || left[t.keeper] == left[oldest.keeper] && idle.Before(since) {
			oldest, since = t, idle
		}
	}
	if oldest != nil {
		h.removeLocked(oldest)
	}
	return oldest != nil
}
