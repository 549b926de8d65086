package stream

import (
	"errors"
	"fmt"
	"sync"

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

// A budget is the memory that a lane may use for what it receives. What is reserved at the end of the stream is released
// with its scope.
type budget struct {
	scope reserver
	// mu owns what follows, in bytes.
	mu   sync.Mutex
	free int // reserved and unused
}

// take asks for n bytes before they are allocated. The error wraps errMemory. Nobody counts any more once the stream has ended:
// what is made of its frames then is made of what had arrived, which credit bounds.
func (m *budget) take(n int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n > m.free {
		more := (n - m.free + slab - 1) / slab * slab
		if err := m.scope.ReserveMemory(more, network.ReservationPriorityMedium); err != nil && !errors.Is(err, network.ErrResourceScopeClosed) {
			return fmt.Errorf("%w: %w", errMemory, err)
		}
		m.free += more
	}
	m.free -= n
	return nil
}

// give returns n bytes that were taken.
func (m *budget) give(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.free += n; m.free >= 4*slab {
		rest := m.free % slab
		m.scope.ReleaseMemory(m.free - slab - rest)
		m.free = slab + rest
	}
}
