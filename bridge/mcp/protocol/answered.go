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
func Answered(conn Conn, why func(error) error) Conn {
	return &answered{Conn: conn, why: why, waits: map[ID]int{}}
}

type answered struct {
	Conn
	why func(error) error

	mu    sync.Mutex
	last  int
	waits map[ID]int // pending requests and their sequence numbers
	left  []ID       // requests that still get an error response
	end   error      // reason of the end; nil while the connection is open
}

func (a *answered) Read(ctx context.Context) (*Message, error) {
	for {
		if m, err := a.refused(); m != nil || err != nil {
			return m, err
		}
		m, err := a.Conn.Read(ctx)
		if bad, ok := err.(*Error); ok {
			if m != nil && !a.done(m.ID()) {
				continue
			}
			return m, bad
		}
		if err != nil {
			a.ended(err)
			continue
		}
		if m.IsResponse() && m.ID() != "" && !a.done(m.ID()) {
			continue
		}
		return m, nil
	}
}

// nextFailure returns the next error response after the end of the connection, and then the reason of the end.
func (a *answered) refused() (*Message, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.end == nil || len(a.left) == 0 {
		return nil, a.end
	}
	id := a.left[0]
	a.left = a.left[1:]
	return Refuse(id, Fault(a.why(a.end))), nil
}

func (a *answered) ended(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.end = err
	a.left = slices.SortedFunc(maps.Keys(a.waits), func(x, y ID) int { return cmp.Compare(a.waits[x], a.waits[y]) })
	a.waits = nil
}

// complete removes a request from the pending requests and reports whether it was pending.
func (a *answered) done(id ID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, waited := a.waits[id]
	delete(a.waits, id)
	return waited
}

func (a *answered) Write(ctx context.Context, m *Message) error {
	if m.Method() == Cancelled {
		raw, _ := m.Param("requestId")
		a.done(IDOf(raw))
	}
	if !m.IsRequest() {
		return a.Conn.Write(ctx, m)
	}
	if err := a.begin(m.ID()); err != nil {
		return err
	}
	err := a.Conn.Write(ctx, m)
	if err != nil && !a.done(m.ID()) {
		return nil // Read returns an error response for it
	}
	return err
}

func (a *answered) begin(id ID) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.end != nil {
		return io.ErrClosedPipe
	}
	if _, twice := a.waits[id]; twice {
		return Errorf(InvalidRequest, "request id %s is already in use", id)
	}
	a.last++
	a.waits[id] = a.last
	return nil
}
