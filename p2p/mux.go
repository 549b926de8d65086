package p2p

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/p2p/muxer/yamux"
	"github.com/libp2p/go-libp2p/p2p/net/upgrader"
)

// readFirst is how long a write that failed waits for what the peer sent before.
const readFirst = time.Second

// A muxer is yamux, which reads what a peer said at the end although the peer does not read any more.
//
// A peer that refuses a connection says why and closes it. What the dialer writes after that fails, and yamux would then close the
// connection at once, with the reason unread in the buffers of the system.
type muxer struct{ network.Multiplexer }

func muxers() []upgrader.StreamMuxer {
	return []upgrader.StreamMuxer{{ID: yamux.ID, Muxer: muxer{yamux.DefaultTransport}}}
}

// NewConn implements [network.Multiplexer].
func (m muxer) NewConn(c net.Conn, isServer bool, scope network.PeerScope) (network.MuxedConn, error) {
	r := &readingConn{Conn: c, over: make(chan struct{})}
	r.end = sync.OnceFunc(func() { close(r.over) })
	return m.Multiplexer.NewConn(r, isServer, scope)
}

// A readingConn is a connection that a goroutine always reads. A write fails after the last read.
type readingConn struct {
	net.Conn
	over chan struct{} // closed when nothing more is read
	end  func()
}

// Read implements [net.Conn].
func (c *readingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		c.end()
	}
	return n, err
}

// Write implements [net.Conn].
func (c *readingConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		late := time.NewTimer(readFirst) // or a reader that waits for a write would wait for ever
		defer late.Stop()
		select {
		case <-c.over:
		case <-late.C:
		}
	}
	return n, err
}

// Close implements [net.Conn].
func (c *readingConn) Close() error {
	c.end()
	return c.Conn.Close()
}
