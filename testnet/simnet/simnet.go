// Package simnet is an in-memory libp2p network with simulated latency.
//
// It simulates meshes of hundreds of nodes in a testing/synctest bubble. Its [Port] is the transport of a libp2p host, below the host's own network:
// dials, connections and their limits are those of a real host. A link has a delay and no loss; its throughput is limited only by the windows of
// streams. Connections are neither encrypted nor multiplexed, and a silent stream has no goroutine, timer or buffer. A host is public or behind a
// router, which nobody dials. Links can be cut, and hosts can be killed or become silent.
package simnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	"github.com/libp2p/go-libp2p/core/sec"
	"github.com/libp2p/go-libp2p/core/transport"
	basichost "github.com/libp2p/go-libp2p/p2p/host/basic"
	"github.com/libp2p/go-libp2p/p2p/host/eventbus"
	"github.com/libp2p/go-libp2p/p2p/host/peerstore/pstoremem"
	"github.com/libp2p/go-libp2p/p2p/net/connmgr"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/lmosd/lmosd/internal/backoff"
)

// silence is the time after which the two ends of a connection without a path give it up, as transports do.
const silence = 30 * time.Second

// A Net is a network. Its methods are safe for concurrent use.
type Net struct {
	delay func(a, b peer.ID) time.Duration

	mu    sync.Mutex       // owns what follows; it is the last lock that is taken
	ports map[string]*Port // by address
	conns map[*conn]bool   // the sides that dialed, until both have ended
	isCut func(a, b peer.ID) bool
}

// New returns a network without hosts. A message from a to b takes delay, which must be symmetric.
func New(delay func(a, b peer.ID) time.Duration) *Net {
	return &Net{delay: delay, ports: map[string]*Port{}, conns: map[*conn]bool{}, isCut: func(a, b peer.ID) bool { return false }}
}

// Cut removes the paths between the pairs for which isCut is true, and restores all others. What is sent without a path arrives when there is one
// again, unless the connection was given up after 30 s; a dial waits until its time ends.
func (n *Net) Cut(isCut func(a, b peer.ID) bool) {
	n.mu.Lock()
	n.isCut = isCut
	var all []*conn
	for c := range n.conns {
		all = append(all, c)
	}
	n.mu.Unlock()
	for _, c := range all {
		c.wire.set(c, !n.hasPath(c.port, c.peer))
	}
}

// hasPath reports whether messages between two hosts arrive.
func (n *Net) hasPath(a, b *Port) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !a.silent && !b.silent && !n.isCut(a.id, b.id)
}

// A Port is the place of one host in a network, and the transport of that host.
type Port struct {
	net     *Net
	id      peer.ID
	key     crypto.PubKey
	outside ma.Multiaddr // as others see it
	router  bool         // others cannot dial it
	scopes  network.ResourceManager

	inbound chan *conn
	closed  chan struct{} // with the listener
	dead    chan struct{} // by Kill
	ends    sync.Once     // of closed
	dies    sync.Once     // of dead
	inside  ma.Multiaddr  // the address of the listener; owned by mu of the network, as the next
	silent  bool
}

var _ transport.Transport = (*Port)(nil)

// Open returns the port of a host with a key. The host is public at an address, or if router is true behind a router that has the address: then others
// cannot dial it, and see it there. scopes limits its connections. Open replaces an earlier port with the same address.
func (n *Net) Open(key crypto.PubKey, outside ma.Multiaddr, router bool, scopes network.ResourceManager) (*Port, error) {
	id, err := peer.IDFromPublicKey(key)
	if err != nil {
		return nil, err
	}
	p := &Port{net: n, id: id, key: key, outside: outside, inside: outside, router: router, scopes: scopes, inbound: make(chan *conn),
		closed: make(chan struct{}), dead: make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ports[string(outside.Bytes())] = p
	return p, nil
}

// Kill ends all connections of the host, as the system does for a killed process: the other ends see it after the delay, and dials are refused.
func (p *Port) Kill() {
	p.dies.Do(func() { close(p.dead) })
	for _, c := range p.all() {
		_ = c.Close()
	}
}

// Silence removes all paths to the host for ever, as if it had lost its power: the other ends of its connections notice nothing for 30 s.
func (p *Port) Silence() {
	p.net.mu.Lock()
	p.silent = true
	p.net.mu.Unlock()
	for _, c := range p.all() {
		c.wire.set(c, true)
	}
}

// all returns the sides of the connections of the host that dialed.
func (p *Port) all() (cs []*conn) {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	for c := range p.net.conns {
		switch p {
		case c.port:
			cs = append(cs, c)
		case c.peer:
			cs = append(cs, c.far)
		}
	}
	return cs
}

// Dial implements [transport.Transport]. A connection takes a round trip; so does the error for a host that is not there.
func (p *Port) Dial(ctx context.Context, at ma.Multiaddr, id peer.ID) (transport.CapableConn, error) {
	p.net.mu.Lock()
	far := p.net.ports[string(at.Bytes())]
	p.net.mu.Unlock()
	if far == nil || far.router || !p.net.hasPath(p, far) { // nothing answers
		<-ctx.Done()
		return nil, ctx.Err()
	}
	delay := p.net.delay(p.id, far.id)
	if err := backoff.Sleep(ctx, 2*delay); err != nil {
		return nil, err
	}
	if far.id != id {
		return nil, sec.ErrPeerIDMismatch{Expected: id, Actual: far.id}
	}
	if p.isDead() || far.isDead() {
		return nil, refused(at)
	}
	near, err := connect(p, far, delay)
	if err != nil {
		return nil, err
	}
	select {
	case far.inbound <- near.far:
		return near, nil
	case <-far.closed:
		err = refused(at)
	case <-ctx.Done():
		err = ctx.Err()
	}
	_ = near.Close()
	near.far.end()
	return nil, err
}

func refused(at ma.Multiaddr) error { return fmt.Errorf("simnet: dial %s: connection refused", at) }

func (p *Port) isDead() bool {
	select {
	case <-p.dead:
		return true
	default:
		return false
	}
}

// CanDial implements [transport.Transport].
func (p *Port) CanDial(a ma.Multiaddr) bool {
	_, err := a.ValueForProtocol(ma.P_CIRCUIT)
	return err != nil
}

// Listen implements [transport.Transport]. The host has one listener, whatever its address is.
func (p *Port) Listen(a ma.Multiaddr) (transport.Listener, error) {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	p.inside = a
	return &listener{p, a}, nil
}

// Protocols implements [transport.Transport].
func (p *Port) Protocols() []int { return []int{ma.P_TCP} }

// Proxy implements [transport.Transport].
func (p *Port) Proxy() bool { return false }

// A listener receives the connections of a port.
type listener struct {
	port *Port
	at   ma.Multiaddr
}

// Accept implements [transport.Listener].
func (l *listener) Accept() (transport.CapableConn, error) {
	select {
	case c := <-l.port.inbound:
		return c, nil
	case <-l.port.closed:
		return nil, transport.ErrListenerClosed
	}
}

// Close implements [transport.Listener].
func (l *listener) Close() error {
	l.port.ends.Do(func() { close(l.port.closed) })
	return nil
}

// Addr implements [transport.Listener].
func (l *listener) Addr() net.Addr {
	a, _ := manet.ToNetAddr(l.at) // addresses of TCP have one
	return a
}

// Multiaddr implements [transport.Listener].
func (l *listener) Multiaddr() ma.Multiaddr { return l.at }

// A Host is one host of a network.
type Host struct {
	*basichost.BasicHost
	port *Port
	book peerstore.Peerstore
}

// Add adds a public host with a key and an address, which the caller closes. It keeps as many connections as a node of the default profile.
func (n *Net) Add(key crypto.PrivKey, addr ma.Multiaddr) (_ *Host, err error) {
	port, err := n.Open(key.GetPublic(), addr, false, &network.NullResourceManager{})
	if err != nil {
		return nil, err
	}
	h := &Host{port: port}
	if h.book, err = pstoremem.NewPeerstore(); err != nil {
		return nil, err
	}
	if err := h.open(key, addr); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

func (h *Host) open(key crypto.PrivKey, addr ma.Multiaddr) error {
	id, bus := h.port.id, eventbus.NewBus()
	if err := errors.Join(h.book.AddPrivKey(id, key), h.book.AddPubKey(id, h.port.key)); err != nil {
		return err
	}
	s, err := swarm.NewSwarm(id, h.book, bus)
	if err != nil {
		return err
	}
	if err := errors.Join(s.AddTransport(h.port), s.Listen(addr)); err != nil {
		return errors.Join(err, s.Close())
	}
	cm, err := connmgr.NewConnManager(96, 128, connmgr.WithGracePeriod(30*time.Second), connmgr.WithSilencePeriod(10*time.Second))
	if err != nil {
		return errors.Join(err, s.Close())
	}
	if h.BasicHost, err = basichost.NewHost(s, &basichost.HostOpts{EventBus: bus, ConnManager: cm, EnablePing: true}); err != nil {
		return errors.Join(err, cm.Close(), s.Close())
	}
	h.Start()
	return nil
}

// Cut removes the host from the network, as if it had been killed: its connections end, and no host reaches it.
func (h *Host) Cut() { h.port.Kill() }

// Close ends all connections.
func (h *Host) Close() error {
	if h.BasicHost == nil {
		return h.book.Close()
	}
	return errors.Join(h.Network().Close(), h.BasicHost.Close(), h.book.Close())
}
