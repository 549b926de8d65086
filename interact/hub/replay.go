package hub

import (
	"cmp"
	"slices"

	"github.com/lmosd/lmosd/interact"
)

// overhead is about what an event needs beside its data, in bytes.
const overhead = 512

func size(r *interact.Message) int64 { return int64(len(r.Data)) + overhead }

// addLocked counts bytes of a ring, here and for the hub.
func (t *topic) addLocked(n int64) {
	t.bytes += n
	t.hub.bytes.Add(n)
}

// dropLocked forgets the oldest event.
func (t *topic) dropLocked() {
	t.addLocked(-size(t.events[0]))
	t.events[0] = nil
	t.events = t.events[1:]
	t.first++
}

// reclaim brings the rings below the memory that they may have together: an eighth below, so that it is not done for each event.
// Of those with more than their share the ones that nobody reads give way first, then those that were silent for the longest
// time. Who has no more than its share loses nothing. The newest event of spared stays: nobody has read it yet.
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
	var fat []ring
	for t := range h.eachLocked {
		t.mu.Lock()
		if t.bytes > share {
			fat = append(fat, ring{t, t.users == 0, t.lastID})
		}
		t.mu.Unlock()
	}
	slices.SortFunc(fat, func(a, b ring) int {
		if a.idle != b.idle {
			return map[bool]int{true: -1, false: 1}[a.idle]
		}
		return cmp.Compare(a.sequence, b.sequence)
	})
	for _, r := range fat {
		r.shrink(share, most, r.topic == spared)
	}
}

// shrink forgets the oldest events until the ring has its share, or all rings together no more than most.
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
