// Package pipenet is an in-memory network of pipes for tests in a bubble of testing/synctest.
package pipenet

import (
	"context"
	"net"
	"sync"
)

// A Listener accepts the connections of [Listener.Dial]. Each is a [net.Pipe].
type Listener struct {
	conns chan net.Conn
	done  chan struct{}
	close func()
}

// Listen returns a Listener.
func Listen() *Listener {
	done := make(chan struct{})
	return &Listener{conns: make(chan net.Conn), done: done, close: sync.OnceFunc(func() { close(done) })}
}

// Dial connects to the listener. The network and the address have no effect.
func (l *Listener) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	if err := l.Offer(ctx, far); err != nil {
		return nil, err
	}
	return near, nil
}

// Offer has Accept return c.
func (l *Listener) Offer(ctx context.Context, c net.Conn) error {
	select {
	case l.conns <- c:
		return nil
	case <-l.done:
		return net.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Accept implements [net.Listener].
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (l *Listener) Close() error {
	l.close()
	return nil
}

// Addr implements [net.Listener].
func (l *Listener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }
