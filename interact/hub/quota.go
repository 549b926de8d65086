package hub

import (
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// A usage counts the subscriptions and topics of one kind of callers: those on this machine, or others. Each kind has a limit below the
// total, and each of the others has at most Options.SubscriptionsPerCaller.
type usage struct {
	subscriptions int
	topics        int // with a reader of this kind
}

// kind returns the index of the counter of a caller.
func kind(from *did.Principal) int {
	if from.Local() {
		return 0
	}
	return 1
}

// here is the reader of all callers on this machine.
const here = ""

// reader returns the caller that is charged: the node, because it chooses the names of its consumers.
func reader(from *did.Principal) string {
	if from.Local() {
		return here
	}
	return from.Base()
}

// portion returns the limit of one kind: three quarters of n, rounded up.
func portion(n int) int { return n - n/4 }

// mayJoinLocked returns an error if a caller has no subscription left.
func (h *Hub) mayJoinLocked(from *did.Principal) error {
	all, mine := h.used[0].subscriptions+h.used[1].subscriptions, h.used[kind(from)].subscriptions
	switch {
	case !from.Local() && h.callers[reader(from)] >= h.o.SubscriptionsPerCaller:
		return interact.TooManySubscriptions(from.Short(), h.callers[reader(from)])
	case all >= h.o.MaxSubscribers, mine >= portion(h.o.MaxSubscribers):
		return interact.Errorf(interact.Overloaded, "retry later, or subscribe at another host of the Thing",
			"the host has %d subscriptions", all)
	}
	return nil
}

// mayObserveLocked returns an error if a caller may not start an observation, and makes room for a new one.
func (h *Hub) mayObserveLocked(from *did.Principal, fresh bool) error {
	if h.used[kind(from)].topics < portion(h.o.MaxTopics) && (!fresh || h.all < h.o.MaxTopics || h.evictLocked()) {
		return nil
	}
	return interact.Errorf(interact.Overloaded, "retry later, or subscribe to an affordance with subscribers",
		"the host has %d observations", h.all)
}

// countLocked adds (1) or removes (-1) a subscription of a caller to t.
func (h *Hub) countLocked(t *topic, from *did.Principal, n int) {
	h.countTopicLocked(t, -1)
	if t.readers == nil {
		t.readers = map[string]int{}
	}
	count(t.readers, reader(from), n)
	count(h.callers, reader(from), n)
	h.used[kind(from)].subscriptions += n
	h.countTopicLocked(t, 1)
}

// countTopicLocked counts a topic for the kind of its readers.
func (h *Hub) countTopicLocked(t *topic, n int) {
	switch {
	case t.readers[here] > 0:
		h.used[0].topics += n
	case len(t.readers) > 0:
		h.used[1].topics += n
	}
}

func count(m map[string]int, from string, n int) {
	if m[from] += n; m[from] == 0 {
		delete(m, from)
	}
}

// evictLocked ends an observation without readers: the oldest of the caller with the most, so that no caller evicts those of
// others.
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
