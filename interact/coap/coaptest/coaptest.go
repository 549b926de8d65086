// Package coaptest provides connections for tests of CoAP that use synctest.
package coaptest

import (
	"net"
	"os"
	"slices"
	"sync"
	"time"
)

// A Conn is one end of a connection that carries datagrams within this process. Unlike a [net.Pipe], a write does not wait for the
// reader. With 10,000 datagrams queued, further ones are lost, as in a network.
type Conn struct {
	in, out  chan []byte
	done     chan struct{}
	once     sync.Once
	deadline time.Time // of the reader, which sets it
}

// Pipe returns the two ends of a connection.
func Pipe() (near, far *Conn) {
	a, b := make(chan []byte, 10000), make(chan []byte, 10000)
	return &Conn{in: a, out: b, done: make(chan struct{})}, &Conn{in: b, out: a, done: make(chan struct{})}
}

func (c *Conn) Read(b []byte) (int, error) {
	var late <-chan time.Time
	if !c.deadline.IsZero() {
		timer := time.NewTimer(time.Until(c.deadline))
		defer timer.Stop()
		late = timer.C
	}
	select {
	case d := <-c.in:
		return copy(b, d), nil
	case <-late:
		return 0, os.ErrDeadlineExceeded
	case <-c.done:
		return 0, net.ErrClosed
	}
}

func (c *Conn) Write(b []byte) (int, error) {
	select {
	case <-c.done:
		return 0, net.ErrClosed
	default:
	}
	select {
	case c.out <- slices.Clone(b):
	default:
	}
	return len(b), nil
}

func (c *Conn) Close() error {
	c.once.Do(func() { close(c.done) })
	return nil
}

func (c *Conn) SetReadDeadline(t time.Time) error { c.deadline = t; return nil }
func (*Conn) SetWriteDeadline(time.Time) error    { return nil }
func (*Conn) SetDeadline(time.Time) error         { return nil }
func (*Conn) LocalAddr() net.Addr                 { return &net.UDPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 1} }
func (*Conn) RemoteAddr() net.Addr                { return &net.UDPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 5683} }
