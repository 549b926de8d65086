// Package oneport serves libp2p over TCP, libp2p over WebSocket and HTTP on one TCP port.
//
// A [Port] reads the first three bytes of each connection and hands it to a [Queue]: that of libp2p, of plain HTTP, or of TLS. [WebSockets]
// takes the requests of HTTP that open a libp2p connection. Until then a connection has no place in the resource manager: clients that
// send nothing are limited here.
package oneport

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/p2p/transport/tcpreuse"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/lmosd/lmosd/internal/ratelimit"
)

// Limits of connections whose protocol is not known yet, or whose consumer has not accepted them. Above them the oldest is closed: that of
// the same address, if this address has too many. A client that sends at once is not affected by clients that send nothing.
const (
	maxWaiting    = 256
	maxPerAddress = 32 // an IPv4 address or an IPv6 /56
	waitTimeout   = 5 * time.Second
)

// acceptPause is the pause after an error of the listener that may end, as too many open files.
const acceptPause = 50 * time.Millisecond

// Queues are the consumers of a port; connections of a nil one are closed.
type Queues struct{ Libp2p, HTTP, TLS *Queue }

// A Port accepts connections and hands them to the queues of their protocols. It is safe for concurrent use.
type Port struct {
	listener manet.Listener
	to       Queues
	timeout  time.Duration
	stop     chan struct{} // closed by Close
	done     sync.WaitGroup

	mu      sync.Mutex
	waiting []*Conn // oldest first; owned by mu
	closed  bool    // owned by mu
}

// Open serves the connections of l until [Port.Close], which closes l.
func Open(l manet.Listener, to Queues) *Port { return open(l, to, waitTimeout) }

func open(l manet.Listener, to Queues, timeout time.Duration) *Port {
	p := &Port{listener: l, to: to, timeout: timeout, stop: make(chan struct{})}
	for _, q := range []*Queue{to.Libp2p, to.HTTP, to.TLS} {
		q.attach(l.Addr())
	}
	p.done.Go(p.run)
	return p
}

// Multiaddr returns the address of the port, without protocols above TCP.
func (p *Port) Multiaddr() ma.Multiaddr { return p.listener.Multiaddr() }

// Close closes the listener and the connections that no consumer has accepted.
func (p *Port) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	for _, c := range p.waiting {
		_ = c.tcpConn.Close()
	}
	p.mu.Unlock()
	close(p.stop)
	err := p.listener.Close()
	p.done.Wait()
	return err
}

func (p *Port) run() {
	for {
		m, err := p.listener.Accept()
		if err != nil {
			p.mu.Lock()
			closed := p.closed
			p.mu.Unlock()
			if closed || errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(acceptPause)
			continue
		}
		tcp, ok := m.(tcpConn)
		if !ok {
			_ = m.Close() // the listener is one of TCP
			continue
		}
		if c := p.admit(tcp); c != nil {
			p.done.Go(func() { p.handOver(c) })
		}
	}
}

// admit adds a connection to those that wait, and closes the oldest if there are too many. It returns nil if the port is closed.
func (p *Port) admit(tcp tcpConn) *Conn {
	c := &Conn{tcpConn: tcp, port: p, from: ratelimit.AddressRange(tcp.RemoteAddr())}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = tcp.Close()
		return nil
	}
	oldest, same := -1, 0
	for i, w := range p.waiting {
		if w.from == c.from {
			if same++; oldest < 0 {
				oldest = i
			}
		}
	}
	switch {
	case same >= maxPerAddress:
		p.evict(oldest)
	case len(p.waiting) >= maxWaiting:
		p.evict(0)
	}
	p.waiting = append(p.waiting, c)
	return c
}

// evict closes a connection that waits; its goroutine then ends.
func (p *Port) evict(i int) {
	_ = p.waiting[i].tcpConn.Close()
	p.waiting = slices.Delete(p.waiting, i, i+1)
}

// handOver reads the first bytes of c and hands it to its consumer.
func (p *Port) handOver(c *Conn) {
	deadline := time.Now().Add(p.timeout)
	if c.SetReadDeadline(deadline) != nil {
		_ = c.Close()
		return
	}
	if _, err := io.ReadFull(c.tcpConn, c.first[:]); err != nil || c.SetReadDeadline(time.Time{}) != nil {
		_ = c.Close()
		return
	}
	q := p.to.of(c.first)
	if q == nil || !q.put(c, time.Until(deadline), p.stop) {
		_ = c.Close()
		return
	}
	if !q.settles {
		c.Settle()
	}
}

// of returns the queue for a connection that begins with the bytes b, or nil.
func (qs Queues) of(b [3]byte) *Queue {
	switch {
	case tcpreuse.IsMultistreamSelect(b):
		return qs.Libp2p
	case tcpreuse.IsTLS(b):
		return qs.TLS
	case tcpreuse.IsHTTP(b):
		return qs.HTTP
	}
	return nil
}

// A tcpConn is a connection of TCP with the methods that the transport of libp2p uses. It has no others: ReadFrom and WriteTo of
// [net.TCPConn] would skip the bytes that were read.
type tcpConn interface {
	manet.Conn
	CloseRead() error
	CloseWrite() error
	SetLinger(sec int) error
	SetKeepAlive(on bool) error
	SetKeepAlivePeriod(d time.Duration) error
}

// A Conn is a connection of a [Port], from its first byte on.
type Conn struct {
	tcpConn
	port  *Port
	from  netip.Prefix
	first [3]byte
	read  int // of first, by the consumer
}

// Read implements [net.Conn].
func (c *Conn) Read(b []byte) (int, error) {
	if c.read < len(c.first) {
		n := copy(b, c.first[c.read:])
		c.read += n
		return n, nil
	}
	return c.tcpConn.Read(b)
}

// Settle takes c out of the connections that wait, which are limited. Close does so, too.
func (c *Conn) Settle() {
	c.port.mu.Lock()
	defer c.port.mu.Unlock()
	if i := slices.Index(c.port.waiting, c); i >= 0 {
		c.port.waiting = slices.Delete(c.port.waiting, i, i+1)
	}
}

// Close implements [net.Conn].
func (c *Conn) Close() error {
	c.Settle()
	return c.tcpConn.Close()
}
