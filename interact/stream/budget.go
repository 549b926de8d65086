package stream

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/libp2p/go-libp2p/core/network"
)

// slab is the step in which memory is reserved, in bytes: asking the resource manager for each frame would cost more than
// the frame.
const slab = 64 << 10

// A reserver grants memory; a stream's scope is one.
type reserver interface {
	ReserveMemory(size int, prio uint8) error
	ReleaseMemory(size int)
}

// A budget is the memory that a session may use for what it receives. What is reserved at the end of the stream is released
// with its scope.
type budget struct {
	scope reserver
	free  atomic.Int64 // bytes that are reserved and unused; less than 0 while somebody who took asks for more
}

// take asks for n bytes before they are allocated. The error wraps errMemory. Nobody counts any more once the stream has ended:
// what is made of its frames then is made of what had arrived, which credit bounds.
func (m *budget) take(n int) error {
	short := -m.free.Add(int64(-n))
	if short <= 0 {
		return nil
	}
	more := (min(int(short), n) + slab - 1) / slab * slab // others who are short ask for themselves
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
