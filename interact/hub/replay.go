package hub

import (
	"cmp"
	"slices"

	"github.com/lmosd/lmosd/interact"
)

// overhead is the approximate memory of an event without its data, in bytes.
const overhead = 512

func size(r *interact.Message) int64 { return int64(len(r.Data)) + overhead }

// addLocked counts bytes of a ring, for the topic and the hub.
func (t *topic) addLocked(n int64) {
	t.bytes += n
	t.hub.bytes.Add(n)
}

// dropLocked drops the oldest event.
func (t *topic) dropLocked() {
	t.addLocked(-size(t.events[0]))
	t.events[0] = nil
	t.events = t.events[1:]
	t.first++
}

// reclaim reduces the rings to an eighth below Memory, so that it does not run for each event. Of the rings above their share,
// those without readers are reduced first, then those that are silent for the longest time. Rings within their share lose nothing.
// The newest event of spared stays, because no subscriber has read it.
func (h *Hub) reclaim(spared *topic) {
	h.mu.Lock()
	defer h.mu.Unlock()
	type ring struct {
		*topic
		idle     bool
		sequence uint64
	}
	most := h.o.Memory - h.o.Memory/8
	share := most / int64(max(h.all, 1))
	var large []ring
	for t := range h.eachLocked {
		t.mu.Lock()
		if t.bytes > share {
			large = append(large, ring{t, t.users == 0, t.lastID})
		}
		t.mu.Unlock()
	}
	slices.SortFunc(large, func(a, b ring) int {
		if a.idle != b.idle {
			return map[bool]int{true: -1, false: 1}[a.idle]
		}
		return cmp.Compare(a.sequence, b.sequence)
	})
	for _, r := range large {
		r.shrink(share, most, r.topic == spared)
	}
}

// shrink drops the oldest events until the ring is within its share, or all rings are within most.
func (t *topic) shrink(share, most int64, spared bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	least := 0
	if spared {
		least = 1
	}
	for len(t.events) > least && t.bytes > share && t.hub.bytes.Load() > most {
		t.dropLocked()
	}
}
