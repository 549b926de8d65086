package backend_test

import (
	"context"
	"io"
	"sync"
	"testing"

	"github.com/lmosd/lmosd/bridge/mcp/backend"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
)

// A brokenConn responds to each request, or fails writes; Read returns the end of the connection later.
type brokenConn struct {
	cut   bool
	asked chan *protocol.Message
	ended chan struct{}
	close func()
}

func newBrokenConn(cut bool) *brokenConn {
	c := &brokenConn{cut: cut, asked: make(chan *protocol.Message, 1), ended: make(chan struct{})}
	c.close = sync.OnceFunc(func() { close(c.ended) })
	return c
}

func (c *brokenConn) Write(_ context.Context, m *protocol.Message) error {
	if c.cut {
		return io.ErrClosedPipe
	}
	if m.IsRequest() {
		c.asked <- m
	}
	return nil
}

func (c *brokenConn) Read(context.Context) (*protocol.Message, error) {
	select {
	case m := <-c.asked:
		return protocol.Respond(m.ID(), struct{}{}), nil
	case <-c.ended:
		return nil, io.EOF
	}
}

func (c *brokenConn) Close() error {
	c.close()
	return nil
}

// The next call of a caller on a broken connection uses another connection.
func TestNextCallUsesANewConnection(t *testing.T) {
	t.Parallel()
	dials := 0
	b := open(t, backend.Options{Relay: true, Name: "relay", Dial: func(context.Context) (protocol.Conn, error) {
		dials++
		return newBrokenConn(dials == 1), nil
	}})
	call := func() error {
		_, err := b.Call(t.Context(), protocol.Request("1", "tools/list", nil), func(*protocol.Message) error { return nil })
		return err
	}
	if call() == nil {
		t.Fatal("a call over a broken connection has an answer")
	}
	if err := call(); err != nil || dials != 2 {
		t.Fatalf("over the next of %d connections: %v", dials, err)
	}
}
