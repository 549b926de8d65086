package protocol

import (
	"cmp"
	"context"
	"io"
	"maps"
	"slices"
	"sync"
)

// Answered returns the connection of a session with the promise of JSON-RPC: each request that was written has one response. When the
// connection ends before, whatever ends it, [Conn.Read] returns an error for each that still waits, in the order in which they were
// written, and then the end. This is the one place where that is done; why says what ended it, for the clients.
//
// A request whose Write fails was not begun: who wrote it answers. One that its client has cancelled waits no more, and a response that
// nobody waits for is dropped.
func Answered(conn Conn, why func(error) error) Conn {
	return &answered{Conn: conn, why: why, waits: map[ID]int{}}
}

type answered struct {
	Conn
	why func(error) error

	mu    sync.Mutex
	last  int
	waits map[ID]int // requests by when they were written
	left  []ID       // those that are still to be refused
	end   error      // why the connection ended; nil: it has not
}

// Read implements [Conn].
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

// refused returns the next error for who still waits after the end, and then the end.
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

// done takes a request off those that wait, and reports whether it was one.
func (a *answered) done(id ID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, waited := a.waits[id]
	delete(a.waits, id)
	return waited
}

// Write implements [Conn].
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
		return nil // the end has answered it
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
		return Errorf(InvalidRequest, "a request with the id %s is being answered", id)
	}
	a.last++
	a.waits[id] = a.last
	return nil
}
