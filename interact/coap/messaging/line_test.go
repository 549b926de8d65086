package messaging

import (
	"net"
	"os"
	"slices"
	"sync"
	"time"
)

// A line is one end of a connection that carries datagrams within this process, for tests in a bubble: a [net.Pipe] would make
// each side wait for the other. What nobody takes is lost, as in a network, when 10,000 datagrams wait.
type line struct {
	in, out  chan []byte
	done     chan struct{}
	once     sync.Once
	deadline time.Time // of the reader, which sets it
}

func newLine() (near, far *line) {
	a, b := make(chan []byte, 10000), make(chan []byte, 10000)
	return &line{in: a, out: b, done: make(chan struct{})}, &line{in: b, out: a, done: make(chan struct{})}
}

func (l *line) Read(b []byte) (int, error) {
	var late <-chan time.Time
	if !l.deadline.IsZero() {
		timer := time.NewTimer(time.Until(l.deadline))
		defer timer.Stop()
		late = timer.C
	}
	select {
	case d := <-l.in:
		return copy(b, d), nil
	case <-late:
		return 0, os.ErrDeadlineExceeded
	case <-l.done:
		return 0, net.ErrClosed
	}
}

func (l *line) Write(b []byte) (int, error) {
	select {
	case <-l.done:
		return 0, net.ErrClosed
	default:
	}
	select {
	case l.out <- slices.Clone(b):
	default:
	}
	return len(b), nil
}

func (l *line) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *line) SetReadDeadline(t time.Time) error { l.deadline = t; return nil }
func (*line) SetWriteDeadline(time.Time) error    { return nil }
func (*line) SetDeadline(time.Time) error         { return nil }
func (*line) LocalAddr() net.Addr                 { return &net.UDPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 1} }
func (*line) RemoteAddr() net.Addr                { return &net.UDPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 5683} }
