package simnet

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
)

// ids number connections and streams.
var ids atomic.Int64

// A conn is one side of a connection.
type conn struct {
	port, remote *port
	far          *conn
	id           int64
	delay        time.Duration
	stat         network.Stats
	announced    chan struct{} // closed when all peers are notified of it
	gone         chan struct{} // closed when all are notified of its end

	mu      sync.Mutex
	streams map[*stream]bool // owned by mu; nil after the end
}

var _ network.Conn = (*conn)(nil)

// connect returns the near side of a new connection.
func connect(near, far *port, delay time.Duration) *conn {
	one := func(p, remote *port, dir network.Direction) *conn {
		return &conn{port: p, remote: remote, id: ids.Add(1), delay: delay, stat: network.Stats{Direction: dir, Opened: time.Now()},
			announced: make(chan struct{}), gone: make(chan struct{}), streams: map[*stream]bool{}}
	}
	a, b := one(near, far, network.DirOutbound), one(far, near, network.DirInbound)
	a.far, b.far = b, a
	return a
}

func (c *conn) announce() {
	defer close(c.announced)
	c.port.notify(c.remote.id, func(n network.Notifiee) { n.Connected(c.port, c) })
}

// Close ends the connection here, and on the other side after the delay.
func (c *conn) Close() error {
	if c.end() {
		time.AfterFunc(c.delay, func() { c.far.end() })
	}
	return nil
}

// end ends this side; it returns false if it had ended.
func (c *conn) end() bool {
	c.mu.Lock()
	open := c.streams
	c.streams = nil
	c.mu.Unlock()
	if open == nil {
		return false
	}
	for s := range open {
		s.fail()
	}
	go func() { // the caller may be one of the notified
		<-c.announced
		c.port.notify(c.remote.id, func(n network.Notifiee) { n.Disconnected(c.port, c) })
		c.port.mu.Lock()
		delete(c.port.conns, c.remote.id)
		c.port.mu.Unlock()
		close(c.gone)
	}()
	return true
}

// NewStream opens a stream. The other side sees it after the delay.
func (c *conn) NewStream(context.Context) (network.Stream, error) {
	near, far := newStreams(c)
	if !c.add(near) {
		return nil, network.ErrReset
	}
	time.AfterFunc(c.delay, func() {
		if !c.far.add(far) {
			far.fail()
			return
		}
		<-c.far.announced
		c.far.port.mu.Lock()
		h := c.far.port.handler
		c.far.port.mu.Unlock()
		if h == nil {
			_ = far.Reset()
			return
		}
		h(far)
	})
	return near, nil
}

func (c *conn) add(s *stream) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams == nil {
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

// GetStreams returns the open streams.
func (c *conn) GetStreams() []network.Stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]network.Stream, 0, len(c.streams))
	for _, s := range slices.Collect(maps.Keys(c.streams)) {
		out = append(out, s)
	}
	return out
}

// IsClosed reports whether the connection has ended on this side.
func (c *conn) IsClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.streams == nil
}

// Stat describes the connection.
func (c *conn) Stat() network.ConnStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return network.ConnStats{Stats: c.stat, NumStreams: len(c.streams)}
}

func (c *conn) ID() string                                 { return strconv.FormatInt(c.id, 10) }
func (c *conn) LocalPeer() peer.ID                         { return c.port.id }
func (c *conn) RemotePeer() peer.ID                        { return c.remote.id }
func (c *conn) RemotePublicKey() crypto.PubKey             { return c.remote.key }
func (c *conn) LocalMultiaddr() ma.Multiaddr               { return c.port.addr }
func (c *conn) RemoteMultiaddr() ma.Multiaddr              { return c.remote.addr }
func (c *conn) ConnState() network.ConnectionState         { return network.ConnectionState{} }
func (c *conn) Scope() network.ConnScope                   { return &network.NullScope{} }
func (c *conn) CloseWithError(network.ConnErrorCode) error { return c.Close() }
func (c *conn) As(any) bool                                { return false }
