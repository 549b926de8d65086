package messaging

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/pion/dtls/v3"
	dtlsnet "github.com/pion/dtls/v3/pkg/net"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td/scheme"
)

const (
	maxConns  = 256              // connections of a client
	idleAfter = time.Minute      // of an unused connection
	dialling  = 10 * time.Second // for a name, a connection and a handshake together
)

// A Target is the destination of a connection and the identity of this node there: Things share a connection only if both are the
// same.
type Target struct {
	Scheme   string // one of CoAP (td/scheme)
	Hostport string // the address to dial
	Host     string // the name in the certificate
	// Identity and Key are those of a pre-shared key, for coaps; empty without.
	Identity, Key string
}

// A Pool holds the connections of a client: at most 256. Unused ones that received nothing for one minute are
// closed. Each has one goroutine, which dials and then reads. It is safe for concurrent use.
type Pool struct {
	dial   func(ctx context.Context, network, addr string) (net.Conn, error)
	timing Timing
	limit  int // bytes of a body
	idle   time.Duration
	ctx    context.Context // ends with the pool
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu     sync.Mutex // guards the rest
	conns  map[Target]*Lease
	closed bool
}

// A Lease is one use of a connection.
type Lease struct {
	*conn // once ready is closed, if err is nil
	pool  *Pool
	to    Target
	ready chan struct{} // closed when conn or err is there
	err   error

	users int       // guarded by the pool
	last  time.Time // time of the last release; guarded by the pool
}

// NewPool returns a pool that connects with dial. limit is the size limit of a body in bytes.
func NewPool(dial func(ctx context.Context, network, addr string) (net.Conn, error), limit int) *Pool {
	p := &Pool{dial: dial, timing: Usual, limit: limit, idle: idleAfter, conns: make(map[Target]*Lease)}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// Get returns a connection to t. The caller calls [Lease.Release]. The error is a [*Loss], or means that the pool is full or
// closed.
func (p *Pool) Get(ctx context.Context, t Target) (*Lease, error) {
	e, err := p.take(t)
	if err != nil {
		return nil, err
	}
	select {
	case <-e.ready:
		err = e.err
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		e.Release()
		return nil, &Loss{Cause: err}
	}
	return e, nil
}

// take counts a use of the connection to t, and dials if there is none.
func (p *Pool) take(t Target) (*Lease, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, interact.Errorf(interact.ShuttingDown, "start the node again", "the client for CoAP is closed")
	}
	e := p.conns[t]
	if e == nil {
		if len(p.conns) >= maxConns && !p.evictLocked() {
			return nil, interact.Errorf(interact.Overloaded, "try again in a while",
				"this node has %d connections to CoAP agents, and all are in use", maxConns)
		}
		e = &Lease{pool: p, to: t, ready: make(chan struct{})}
		p.conns[t] = e
		p.work.Go(func() { p.run(e) })
	}
	e.users++
	return e, nil
}

// evictLocked closes the connection that was not in use for the longest time.
func (p *Pool) evictLocked() bool {
	var oldest *Lease
	for _, e := range p.conns {
		if e.users == 0 && e.conn != nil && (oldest == nil || e.last.Before(oldest.last)) {
			oldest = e
		}
	}
	if oldest == nil {
		return false
	}
	p.removeLocked(oldest)
	oldest.conn.close()
	return true
}

// Release returns the connection to the pool. A dropped one ends with its last user.
func (e *Lease) Release() {
	e.pool.mu.Lock()
	defer e.pool.mu.Unlock()
	e.users--
	if e.last = time.Now(); e.users == 0 && e.conn != nil && e.pool.conns[e.to] != e {
		e.close()
	}
}

// Drop makes the next user dial again, because the far end is silent or has changed.
func (e *Lease) Drop() {
	e.pool.mu.Lock()
	defer e.pool.mu.Unlock()
	e.pool.removeLocked(e)
}

func (p *Pool) removeLocked(e *Lease) {
	if p.conns[e.to] == e {
		delete(p.conns, e.to)
	}
}

// run dials e and reads it to its end.
func (p *Pool) run(e *Lease) {
	conn, err := p.connect(e.to)
	p.mu.Lock()
	if e.conn, e.err = conn, err; err != nil {
		p.removeLocked(e)
	}
	p.mu.Unlock()
	close(e.ready)
	if err != nil {
		return
	}
	stop := context.AfterFunc(p.ctx, conn.close)
	defer stop()
	conn.read(p.idle, func() bool { return p.wanted(e) })
	e.Drop()
}

// wanted reports whether an idle connection is in use. An unused one is removed from the pool.
func (p *Pool) wanted(e *Lease) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.users > 0 {
		return true
	}
	p.removeLocked(e)
	return false
}

// connect opens a connection.
func (p *Pool) connect(t Target) (*conn, error) {
	ctx, cancel := context.WithTimeout(p.ctx, dialling)
	defer cancel()
	s := scheme.Lookup(t.Scheme)
	raw, err := p.dial(ctx, s.Network, t.Hostport)
	if err != nil {
		return nil, err
	}
	if u, ok := raw.RemoteAddr().(*net.UDPAddr); ok && (u.IP.IsMulticast() || u.IP.Equal(net.IPv4bcast)) {
		_ = raw.Close() // nothing was sent
		return nil, interact.Errorf(interact.NotAllowed, "write the address of one agent into the form",
			"%s is an address of many", t.Host)
	}
	secured, err := secure(ctx, t, s, raw)
	if err != nil {
		_ = raw.Close() // the error of the handshake is returned
		return nil, err
	}
	stream := s.Network == "tcp"
	c := newConn(secured, stream, p.timing, p.limit)
	if stream {
		if err := c.introduce(ctx); err != nil {
			c.close()
			return nil, err
		}
	}
	return c, nil
}

// A HandshakeError means that the far end is reachable, and the handshake of a secure connection failed.
type HandshakeError struct{ Err error }

// Error implements error.
func (h *HandshakeError) Error() string { return h.Err.Error() }

// Unwrap returns the cause.
func (h *HandshakeError) Unwrap() error { return h.Err }

// secure adds DTLS or TLS to raw, if s requires it. With a key the suites are those of RFC 7252 §9.1.3.1 and stronger
// ones; without, the certificate must be for the host and trusted by the system.
func secure(ctx context.Context, t Target, s scheme.Scheme, raw net.Conn) (net.Conn, error) {
	var c interface {
		net.Conn
		HandshakeContext(ctx context.Context) error
	}
	switch {
	case !s.IsSecure:
		return raw, nil
	case s.Network == "udp":
		options := []dtls.ClientOption{dtls.WithServerName(t.Host)}
		if t.Key != "" {
			options = []dtls.ClientOption{dtls.WithPSK(func([]byte) ([]byte, error) { return []byte(t.Key), nil }),
				dtls.WithPSKIdentityHint([]byte(t.Identity)), dtls.WithCipherSuites(dtls.TLS_PSK_WITH_AES_128_GCM_SHA256,
					dtls.TLS_PSK_WITH_AES_128_CCM, dtls.TLS_PSK_WITH_AES_128_CCM_8)}
		}
		d, err := dtls.ClientWithOptions(dtlsnet.PacketConnFromConn(raw), raw.RemoteAddr(), options...)
		if err != nil {
			return nil, err
		}
		c = d
	default:
		// RFC 8323 §8.2: the protocol of ALPN is "coap".
		c = tls.Client(raw, &tls.Config{ServerName: t.Host, NextProtos: []string{"coap"}, MinVersion: tls.VersionTLS12})
	}
	if err := c.HandshakeContext(ctx); err != nil {
		_ = c.Close() // the error of the handshake is returned
		if ctx.Err() != nil || IsTimeout(err) || IsRefused(err) {
			return nil, errors.Join(err, ctx.Err())
		}
		return nil, &HandshakeError{err}
	}
	return c, nil
}

// Close ends all connections and waits for them.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	p.work.Wait()
}
