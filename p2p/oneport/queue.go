package oneport

import (
	"net"
	"sync"
	"time"

	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
)

// A Queue has the connections of one protocol, of one port or several. It is a [net.Listener]; closing it closes no port.
type Queue struct {
	settles bool // the consumer calls Conn.Settle; else a connection that is accepted does not wait any more
	conns   chan *Conn
	done    chan struct{}
	close   func()

	mu   sync.Mutex
	addr net.Addr // of the first port; owned by mu
}

// NewQueue returns a queue without ports.
func NewQueue() *Queue {
	done := make(chan struct{})
	return &Queue{conns: make(chan *Conn), done: done, close: sync.OnceFunc(func() { close(done) })}
}

func (q *Queue) attach(a net.Addr) {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.addr == nil {
		q.addr = a
	}
}

// put hands c to Accept. It returns false if that takes too long, or the queue or the port is closed.
func (q *Queue) put(c *Conn, timeout time.Duration, stop <-chan struct{}) bool {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case q.conns <- c:
		return true
	case <-timer.C:
	case <-stop:
	case <-q.done:
	}
	return false
}

// Accept implements [net.Listener].
func (q *Queue) Accept() (net.Conn, error) {
	c, err := q.accept()
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (q *Queue) accept() (*Conn, error) {
	select {
	case c := <-q.conns:
		return c, nil
	case <-q.done:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener]. Connections of the protocol are then closed.
func (q *Queue) Close() error {
	q.close()
	return nil
}

// Addr returns the address of the first port; nil before.
func (q *Queue) Addr() net.Addr {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.addr
}

// Libp2p returns the listener for the raw connections of a port; closing it closes the port.
func (p *Port) Libp2p() manet.Listener { return libp2p{p} }

type libp2p struct{ p *Port }

func (l libp2p) Accept() (manet.Conn, error) {
	c, err := l.p.to.Libp2p.accept()
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (l libp2p) Close() error {
	_ = l.p.to.Libp2p.Close() // has no error
	return l.p.Close()
}

func (l libp2p) Addr() net.Addr          { return l.p.listener.Addr() }
func (l libp2p) Multiaddr() ma.Multiaddr { return l.p.listener.Multiaddr() }
