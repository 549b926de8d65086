package simnet

import (
	"context"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"
	ma "github.com/multiformats/go-multiaddr"
)

// A conn is one side of a connection.
type conn struct {
	port, peer *Port // this host and the other one
	far        *conn
	wire       *wire
	scope      network.ConnManagementScope
	local      ma.Multiaddr

	mu      sync.Mutex // owns what follows
	came    sync.Cond  // a stream, or the end
	streams map[*stream]bool
	inbound []*stream // not accepted yet
	isOver  bool
}

var _ transport.CapableConn = (*conn)(nil)

// connect returns the near side of a new connection.
func connect(near, far *Port, delay time.Duration) (*conn, error) {
	w := &wire{delay: delay}
	one := func(p, other *Port, dir network.Direction) (*conn, error) {
		scope, err := p.scopes.OpenConnection(dir, false, other.outside)
		if err != nil {
			return nil, err
		}
		if err := scope.SetPeer(other.id); err != nil {
			scope.Done()
			return nil, err
		}
		c := &conn{port: p, peer: other, wire: w, scope: scope, local: p.inside, streams: map[*stream]bool{}}
		c.came.L = &c.mu
		return c, nil
	}
	a, err := one(near, far, network.DirOutbound)
	if err != nil {
		return nil, err
	}
	b, err := one(far, near, network.DirInbound)
	if err != nil {
		a.scope.Done()
		return nil, err
	}
	a.far, b.far = b, a
	near.net.mu.Lock()
	near.net.conns[a] = true
	near.net.mu.Unlock()
	if !near.net.hasPath(near, far) { // meanwhile
		w.set(a, true)
	}
	return a, nil
}

// Close ends the connection here, and on the other side after the delay.
func (c *conn) Close() error {
	if c.end() {
		c.wire.deliver(func() { c.far.end() })
	}
	return nil
}

// end ends this side; it returns false if it had ended.
func (c *conn) end() bool {
	c.mu.Lock()
	if c.isOver {
		c.mu.Unlock()
		return false
	}
	c.isOver = true
	open := c.streams
	c.streams = nil
	c.came.Broadcast()
	c.mu.Unlock()
	for s := range open {
		s.fail()
	}
	c.scope.Done()
	if c.far.IsClosed() {
		c.port.net.mu.Lock()
		delete(c.port.net.conns, c)
		delete(c.port.net.conns, c.far)
		c.port.net.mu.Unlock()
		c.wire.stop()
	}
	return true
}

// OpenStream implements [network.MuxedConn]. The other side sees the stream after the delay.
func (c *conn) OpenStream(context.Context) (network.MuxedStream, error) {
	near, far := newStreams(c)
	if !c.add(near) {
		return nil, network.ErrReset
	}
	c.wire.deliver(func() {
		if !c.far.add(far) {
			far.fail()
			return
		}
		far.in.resume()
		c.far.mu.Lock()
		defer c.far.mu.Unlock()
		c.far.inbound = append(c.far.inbound, far)
		c.far.came.Signal()
	})
	return near, nil
}

// AcceptStream implements [network.MuxedConn].
func (c *conn) AcceptStream() (network.MuxedStream, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.inbound) == 0 && !c.isOver {
		c.came.Wait()
	}
	if c.isOver {
		return nil, network.ErrReset
	}
	s := c.inbound[0]
	c.inbound[0] = nil
	if c.inbound = c.inbound[1:]; len(c.inbound) == 0 {
		c.inbound = nil
	}
	return s, nil
}

func (c *conn) add(s *stream) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isOver {
		return false
	}
	c.streams[s] = true
	return true
}

func (c *conn) remove(s *stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.streams, s)
}

// open returns the open streams.
func (c *conn) open() (all []*stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.streams {
		all = append(all, s)
	}
	return all
}

// IsClosed reports whether the connection has ended on this side.
func (c *conn) IsClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.isOver
}

func (c *conn) LocalPeer() peer.ID                         { return c.port.id }
func (c *conn) RemotePeer() peer.ID                        { return c.peer.id }
func (c *conn) RemotePublicKey() crypto.PubKey             { return c.peer.key }
func (c *conn) LocalMultiaddr() ma.Multiaddr               { return c.local }
func (c *conn) RemoteMultiaddr() ma.Multiaddr              { return c.peer.outside }
func (c *conn) ConnState() network.ConnectionState         { return network.ConnectionState{Transport: "tcp"} }
func (c *conn) Scope() network.ConnScope                   { return c.scope }
func (c *conn) Transport() transport.Transport             { return c.port }
func (c *conn) CloseWithError(network.ConnErrorCode) error { return c.Close() }
func (c *conn) As(any) bool                                { return false }

// A wire is the path of a connection. While it is cut it keeps what is sent.
type wire struct {
	delay time.Duration

	mu    sync.Mutex // owns what follows
	isCut bool
	kept  []func() // to be delivered
	over  *time.Timer
}

// deliver calls f after the delay.
func (w *wire) deliver(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.isCut {
		w.kept = append(w.kept, f)
		return
	}
	time.AfterFunc(w.delay, f)
}

// arrival returns when what is sent now arrives; zero is not known.
func (w *wire) arrival(now time.Time) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.isCut {
		return time.Time{}
	}
	return now.Add(w.delay)
}

// set cuts the wire of c, or joins it again: then what was kept is on its way.
func (w *wire) set(c *conn, cut bool) {
	w.mu.Lock()
	if w.isCut == cut {
		w.mu.Unlock()
		return
	}
	w.isCut = cut
	if cut {
		w.over = time.AfterFunc(silence, func() {
			c.end()
			c.far.end()
		})
		w.mu.Unlock()
		return
	}
	w.over.Stop()
	for _, f := range w.kept {
		time.AfterFunc(w.delay, f)
	}
	w.kept = nil
	w.mu.Unlock()
	for _, s := range append(c.open(), c.far.open()...) {
		s.in.resume()
		s.out.resume()
	}
}

// stop ends the timer.
func (w *wire) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over != nil {
		w.over.Stop()
	}
	w.kept = nil
}
