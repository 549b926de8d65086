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

// readFirst is how long a failed write waits for data that the peer sent before.
const readFirst = time.Second

// A muxer is yamux that reads all data of a peer even after a write has failed.
//
// A peer that rejects a connection sends the reason and closes the connection. The next write then fails, and yamux would close the
// connection with the reason unread in the buffers of the system.
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

// A readingConn is a connection with a permanent reader. A failed write returns after the last read.
type readingConn struct {
	net.Conn
	over chan struct{} // closed after the last read
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
		late := time.NewTimer(readFirst) // a reader that waits for this write would block without a limit
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
