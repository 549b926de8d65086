// Package simnet is an in-memory libp2p network with simulated latency.
//
// It simulates meshes of hundreds of complete nodes in a testing/synctest bubble. A link has a delay and no loss; its throughput is limited
// only by the windows of streams. A silent stream has no goroutine, timer or buffer. As in a real network, streams have deadlines, two
// hosts have at most one connection, and dialing requires an address.
package simnet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	basichost "github.com/libp2p/go-libp2p/p2p/host/basic"
	"github.com/libp2p/go-libp2p/p2p/host/eventbus"
	"github.com/libp2p/go-libp2p/p2p/host/peerstore/pstoremem"
	"github.com/libp2p/go-libp2p/p2p/net/connmgr"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/internal/backoff"
)

// A Net is a network. Its methods are safe for concurrent use.
type Net struct {
	delay func(a, b peer.ID) time.Duration

	mu    sync.Mutex
	ports map[peer.ID]*port // owned by mu
}

// New returns a network without hosts. A message from a to b takes delay, which must be symmetric.
func New(delay func(a, b peer.ID) time.Duration) *Net {
	return &Net{delay: delay, ports: map[peer.ID]*port{}}
}

// A port is the [network.Network] of one host.
type port struct {
	net     *Net
	id      peer.ID
	key     crypto.PubKey
	addr    ma.Multiaddr
	book    peerstore.Peerstore
	changed event.Emitter

	mu        sync.Mutex // owns the rest, and is never held while another port's is
	handler   network.StreamHandler
	notifiees []network.Notifiee
	conns     map[peer.ID]*conn // also ending ones, until all are notified
	off       bool
}

var _ network.Network = (*port)(nil)

// A Host is one host of a network.
type Host struct {
	*basichost.BasicHost
	port *port
}

// Add adds a host with a key and an address, which the caller closes. It keeps as many connections as a node of the default profile.
func (n *Net) Add(key crypto.PrivKey, addr ma.Multiaddr) (*Host, error) {
	bus := eventbus.NewBus()
	p, err := n.open(key, addr, bus)
	if err != nil {
		return nil, err
	}
	cm, err := connmgr.NewConnManager(96, 128, connmgr.WithGracePeriod(30*time.Second), connmgr.WithSilencePeriod(10*time.Second))
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	h, err := basichost.NewHost(p, &basichost.HostOpts{EventBus: bus, ConnManager: cm, EnablePing: true})
	if err != nil {
		return nil, errors.Join(err, cm.Close(), p.Close())
	}
	h.Start()
	return &Host{h, p}, nil
}

// Cut removes the host from the network, as if it had been killed: its connections end, and no host reaches it.
func (h *Host) Cut() { h.port.cut() }

// open adds a port. It reports peers on bus.
func (n *Net) open(key crypto.PrivKey, addr ma.Multiaddr, bus event.Bus) (*port, error) {
	id, err := peer.IDFromPrivateKey(key)
	if err != nil {
		return nil, err
	}
	p := &port{net: n, id: id, key: key.GetPublic(), addr: addr, conns: map[peer.ID]*conn{}}
	if p.book, err = pstoremem.NewPeerstore(); err != nil {
		return nil, err
	}
	p.book.AddAddr(id, addr, peerstore.PermanentAddrTTL)
	if err := errors.Join(p.book.AddPrivKey(id, key), p.book.AddPubKey(id, p.key)); err != nil {
		return nil, errors.Join(err, p.book.Close())
	}
	if p.changed, err = bus.Emitter(&event.EvtPeerConnectednessChanged{}); err != nil {
		return nil, errors.Join(err, p.book.Close())
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ports[id] = p
	return p, nil
}

func (n *Net) at(id peer.ID) *port {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ports[id]
}

func (p *port) cut() {
	p.net.mu.Lock() // no host joins
	p.mu.Lock()
	p.off = true
	p.mu.Unlock()
	p.net.mu.Unlock()
	for _, c := range p.Conns() {
		_ = c.Close()
	}
}

// Close ends all connections.
func (p *port) Close() error {
	p.cut()
	p.mu.Lock()
	ending := slices.Collect(maps.Values(p.conns))
	p.mu.Unlock()
	for _, c := range ending {
		<-c.gone // they emit events
	}
	return errors.Join(p.changed.Close(), p.book.Close())
}

// DialPeer returns the connection to a peer, or makes one after a round trip; so does the error for a missing host.
func (p *port) DialPeer(ctx context.Context, id peer.ID) (network.Conn, error) {
	if id == p.id {
		return nil, errors.New("simnet: a host does not dial itself")
	}
	if c := p.live(id); c != nil {
		return c, nil
	}
	far := p.net.at(id)
	if known := p.book.Addrs(id); far == nil || !slices.ContainsFunc(known, far.addr.Equal) {
		return nil, fmt.Errorf("simnet: dial %s: none of %d addresses is right", id, len(known))
	}
	delay := p.net.delay(p.id, id)
	if err := backoff.Sleep(ctx, 2*delay); err != nil {
		return nil, err
	}
	for {
		c, ending, err := join(p, far, delay)
		if ending == nil {
			return c, err
		}
		select { // The last connection is ending: its notifications must precede those of the new one.
		case <-ending:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// join connects two ports, or returns their connection, or a channel to wait for.
func join(near, far *port, delay time.Duration) (c *conn, ending <-chan struct{}, err error) {
	near.net.mu.Lock() // one pair joins at a time, so both can be locked
	c, ending, fresh, err := joinLocked(near, far, delay)
	near.net.mu.Unlock()
	if fresh {
		go c.far.announce()
		c.announce()
	}
	return c, ending, err
}

func joinLocked(near, far *port, delay time.Duration) (c *conn, ending <-chan struct{}, fresh bool, err error) {
	for _, p := range []*port{near, far} {
		other := far
		if p == far {
			other = near
		}
		p.mu.Lock()
		old, off := p.conns[other.id], p.off
		p.mu.Unlock()
		switch {
		case off:
			return nil, nil, false, fmt.Errorf("simnet: dial %s: no such host", far.id)
		case old != nil && old.IsClosed():
			return nil, old.gone, false, nil
		case old != nil && p == near:
			return old, nil, false, nil
		}
	}
	c = connect(near, far, delay)
	for _, c := range []*conn{c, c.far} {
		c.port.mu.Lock()
		c.port.conns[c.remote.id] = c
		c.port.mu.Unlock()
	}
	return c, nil, true, nil
}

// live returns the connection to a peer, or nil.
func (p *port) live(id peer.ID) *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.conns[id]; c != nil && !c.IsClosed() {
		return c
	}
	return nil
}

// notify notifies the current subscribers.
func (p *port) notify(id peer.ID, f func(n network.Notifiee)) {
	_ = p.changed.Emit(event.EvtPeerConnectednessChanged{Peer: id, Connectedness: p.Connectedness(id)})
	p.mu.Lock()
	notifiees := slices.Clone(p.notifiees)
	p.mu.Unlock()
	for _, n := range notifiees {
		f(n)
	}
}

// The remaining methods implement [network.Network].

// NewStream opens a stream to a peer.
func (p *port) NewStream(ctx context.Context, id peer.ID) (network.Stream, error) {
	if c := p.live(id); c != nil {
		return c.NewStream(ctx)
	}
	if without, _ := network.GetNoDial(ctx); without {
		return nil, network.ErrNoConn
	}
	c, err := p.DialPeer(ctx, id)
	if err != nil {
		return nil, err
	}
	return c.NewStream(ctx)
}

// SetStreamHandler sets the handler of streams that peers open.
func (p *port) SetStreamHandler(h network.StreamHandler) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handler = h
}

// Notify adds a subscriber to connection events.
func (p *port) Notify(n network.Notifiee) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notifiees = append(p.notifiees, n)
}

// StopNotify removes a subscriber.
func (p *port) StopNotify(n network.Notifiee) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notifiees = slices.DeleteFunc(slices.Clone(p.notifiees), func(o network.Notifiee) bool { return o == n })
}

// Conns returns the live connections.
func (p *port) Conns() []network.Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	cs := make([]network.Conn, 0, len(p.conns))
	for _, c := range p.conns {
		if !c.IsClosed() {
			cs = append(cs, c)
		}
	}
	return cs
}

// ConnsToPeer returns the live connection to a peer, if any.
func (p *port) ConnsToPeer(id peer.ID) []network.Conn {
	if c := p.live(id); c != nil {
		return []network.Conn{c}
	}
	return nil
}

// Peers returns the connected peers.
func (p *port) Peers() []peer.ID {
	var ids []peer.ID
	for _, c := range p.Conns() {
		ids = append(ids, c.RemotePeer())
	}
	return ids
}

// Connectedness reports whether a peer is connected.
func (p *port) Connectedness(id peer.ID) network.Connectedness {
	if p.live(id) != nil {
		return network.Connected
	}
	return network.NotConnected
}

// ClosePeer ends the connection to a peer.
func (p *port) ClosePeer(id peer.ID) error {
	if c := p.live(id); c != nil {
		return c.Close()
	}
	return nil
}

func (p *port) LocalPeer() peer.ID                                { return p.id }
func (p *port) Peerstore() peerstore.Peerstore                    { return p.book }
func (p *port) Listen(...ma.Multiaddr) error                      { return nil } // it always listens
func (p *port) ListenAddresses() []ma.Multiaddr                   { return []ma.Multiaddr{p.addr} }
func (p *port) InterfaceListenAddresses() ([]ma.Multiaddr, error) { return p.ListenAddresses(), nil }
func (p *port) CanDial(peer.ID, ma.Multiaddr) bool                { return true }
func (p *port) ResourceManager() network.ResourceManager          { return &network.NullResourceManager{} }
