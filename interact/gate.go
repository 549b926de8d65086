package interact

import (
	"context"
	"iter"
	"sync"
)

// A Gate counts running interactions and closes once. It then rejects new ones and signals when the last one has ended. The zero
// value is open. It is safe for concurrent use.
type Gate struct {
	mu sync.Mutex
	// running, closed and idle are owned by mu. idle is closed when closed is set and running is zero.
	running int
	closed  bool
	idle    chan struct{}
}

// Enter reports whether an interaction may start; if so, the caller must call Leave.
func (g *Gate) Enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.running++
	return true
}

// Leave ends what Enter admitted.
func (g *Gate) Leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running--
	if g.closed && g.running == 0 {
		close(g.idle)
	}
}

// Hold counts a request until release is called, so that a drain waits until its response is sent. A closed gate does not count the
// request, because [Gate.Middleware] rejects its interaction. A nil gate counts nothing.
func (g *Gate) Hold() (release func()) {
	if g == nil || !g.Enter() {
		return func() {}
	}
	return g.Leave
}

// Close rejects new interactions and returns a channel that is closed when none runs. It is called once.
func (g *Gate) Close() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed, g.idle = true, make(chan struct{})
	if g.running == 0 {
		close(g.idle)
	}
	return g.idle
}

// Closed reports whether Close was called.
func (g *Gate) Closed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed
}

// Middleware counts the interactions of a Thing and rejects them with [ShuttingDown] after g is closed. Subscriptions and
// observations are rejected, too, but not counted: they have no end of their own. Queries, cancellations and inputs of a running
// action pass, because the action may require them to end.
func (g *Gate) Middleware() Middleware {
	return func(t Thing) Thing {
		return Func(func(ctx context.Context, m *Message) iter.Seq2[*Message, error] {
			return func(yield func(*Message, error) bool) {
				switch {
				case m.Type == QueryAction || m.Type == CancelAction || m.Type == ContinueAction:
				case m.Type.Long() && !g.Closed():
				case !m.Type.Long() && g.Enter():
					defer g.Leave()
				default:
					yield(nil, Errorf(ShuttingDown, "retry later, or at another host", "%s is shutting down", m.Thing))
					return
				}
				t.Do(ctx, m)(yield)
			}
		})
	}
}
