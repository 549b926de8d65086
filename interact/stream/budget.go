package stream

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/libp2p/go-libp2p/core/network"
)

// slab is the unit of reservations, in bytes: a reservation costs more than a frame.
const slab = 64 << 10

// A reserver grants memory; a stream's scope is one.
type reserver interface {
	ReserveMemory(size int, prio uint8) error
	ReleaseMemory(size int)
}

// A budget is the memory for received frames of a session. The scope of the stream releases the rest.
type budget struct {
	scope reserver
	free  atomic.Int64 // reserved and unused bytes; negative during a reservation
}

// take reserves n bytes before they are allocated. The error wraps errMemory. After the end of the stream it always succeeds: only
// frames that arrived before, bounded by credit, are processed.
func (m *budget) take(n int) error {
	short := -m.free.Add(int64(-n))
	if short <= 0 {
		return nil
	}
	more := (min(int(short), n) + slab - 1) / slab * slab // concurrent callers reserve for themselves
	err := m.scope.ReserveMemory(more, network.ReservationPriorityMedium)
	if err != nil && !errors.Is(err, network.ErrResourceScopeClosed) {
		m.free.Add(int64(n))
		return fmt.Errorf("%w: %w", errMemory, err)
	}
	m.free.Add(int64(more))
	return nil
}

// give returns n bytes that were taken.
func (m *budget) give(n int) {
	free := m.free.Add(int64(n))
	for free >= 4*slab {
		keep := slab + free%slab
		if m.free.CompareAndSwap(free, keep) {
			m.scope.ReleaseMemory(int(free - keep))
			return
		}
		free = m.free.Load()
	}
}
