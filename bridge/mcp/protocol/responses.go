package protocol

import (
	"cmp"
	"context"
	"io"
	"maps"
	"slices"
	"sync"
)

// EnsureResponses returns a connection of a session on which each request that was written gets exactly one response (JSON-RPC 2.0). When
// the connection ends, [Conn.Read] returns an error response for each request without a response, in the order of the writes, and then
// the end. The function cause converts the reason of the end for the clients.
//
// A request whose Write fails gets no response from Read: its writer reports the error. A cancelled request gets no error response, and a
// response without a pending request is dropped.
func EnsureResponses(conn Conn, cause func(error) error) Conn {
	return &responseTracker{Conn: conn, cause: cause, pending: map[ID]int{}}
}

type responseTracker struct {
	Conn
	cause func(error) error

	mu         sync.Mutex
	last       int
	pending    map[ID]int // pending requests and their sequence numbers
	unanswered []ID       // requests that still get an error response
	endErr     error      // reason of the end; nil while the connection is open
}

func (a *responseTracker) Read(ctx context.Context) (*Message, error) {
	for {
		if m, err := a.nextFailure(); m != nil || err != nil {
			return m, err
		}
		m, err := a.Conn.Read(ctx)
		if bad, ok := err.(*Error); ok {
			if m != nil && !a.complete(m.ID()) {
				continue
			}
			return m, bad
		}
		if err != nil {
			a.fail(err)
			continue
		}
		if m.IsResponse() && m.ID() != "" && !a.complete(m.ID()) {
			continue
		}
		return m, nil
	}
}

// nextFailure returns the next error response after the end of the connection, and then the reason of the end.
func (a *responseTracker) nextFailure() (*Message, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.endErr == nil || len(a.unanswered) == 0 {
		return nil, a.endErr
	}
	id := a.unanswered[0]
	a.unanswered = a.unanswered[1:]
	return RespondError(id, FromError(a.cause(a.endErr))), nil
}

func (a *responseTracker) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.endErr = err
	a.unanswered = slices.SortedFunc(maps.Keys(a.pending), func(x, y ID) int { return cmp.Compare(a.pending[x], a.pending[y]) })
	a.pending = nil
}

// complete removes a request from the pending requests and reports whether it was pending.
func (a *responseTracker) complete(id ID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, waited := a.pending[id]
	delete(a.pending, id)
	return waited
}

func (a *responseTracker) Write(ctx context.Context, m *Message) error {
	if m.Method() == Cancelled {
		raw, _ := m.Param("requestId")
		a.complete(IDOf(raw))
	}
	if !m.IsRequest() {
		return a.Conn.Write(ctx, m)
	}
	if err := a.register(m.ID()); err != nil {
		return err
	}
	err := a.Conn.Write(ctx, m)
	if err != nil && !a.complete(m.ID()) {
		return nil // Read returns an error response for it
	}
	return err
}

func (a *responseTracker) register(id ID) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.endErr != nil {
		return io.ErrClosedPipe
	}
	if _, twice := a.pending[id]; twice {
		return DuplicateID(id)
	}
	a.last++
	a.pending[id] = a.last
	return nil
}
