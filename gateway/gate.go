package gateway

import "sync"

// A gate counts running requests and closes once: then new ones are refused, and whoever waits learns when the last one
// has left. The zero value is open.
type gate struct {
	mu sync.Mutex
	// running, closed and idle are owned by mu. idle is closed when closed is set and running is zero.
	running int
	closed  bool
	idle    chan struct{}
}

// enter reports whether a request may run; if so, leave must be called after it.
func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.running++
	return true
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running--
	if g.closed && g.running == 0 {
		close(g.idle)
	}
}

// close refuses new requests and returns a channel that is closed when none runs. It is called once.
func (g *gate) close() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed, g.idle = true, make(chan struct{})
	if g.running == 0 {
		close(g.idle)
	}
	return g.idle
}

func (g *gate) isClosed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed
}
