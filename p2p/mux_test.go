package p2p

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
)

// A leftConn is a connection whose peer has sent a reason and closed it: the reason can be read, writes fail.
type leftConn struct {
	net.Conn
	reason []byte
	failed chan struct{} // closed when a write has failed
	fail   func()
	closed chan struct{}
	end    func()
}

func (c *leftConn) Write([]byte) (int, error) {
	c.fail()
	return 0, syscall.ECONNRESET
}

func (c *leftConn) Read(b []byte) (int, error) {
	select {
	case <-c.failed:
		time.Sleep(time.Millisecond) // until the effects of the failure have happened
	case <-c.closed:
	}
	select {
	case <-c.closed:
		return 0, net.ErrClosed
	default:
	}
	if len(c.reason) == 0 {
		return 0, io.EOF
	}
	n := copy(b, c.reason)
	c.reason = c.reason[n:]
	return n, nil
}

func (c *leftConn) Close() error                     { c.end(); return nil }
func (c *leftConn) SetWriteDeadline(time.Time) error { return nil }

// TestReadAfterFailedWrite writes before the reason of the peer for closing the connection is read.
func TestReadAfterFailedWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &leftConn{reason: []byte{0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, failed: make(chan struct{}), closed: make(chan struct{})} // yamux: go away
		c.fail, c.end = sync.OnceFunc(func() { close(c.failed) }), sync.OnceFunc(func() { close(c.closed) })
		binary.BigEndian.PutUint32(c.reason[8:], uint32(network.ConnGated))
		m, err := muxers()[0].Muxer.NewConn(c, false, &network.NullScope{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.OpenStream(t.Context()); err != nil { // writing its frame fails
			t.Fatal(err)
		}
		if _, err := m.AcceptStream(); !isRefusal(err) {
			t.Errorf("the connection ended with %v", err)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestFailedWriteWithoutReader checks that a failed write does not wait without limit for a blocked reader.
func TestFailedWriteWithoutReader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &readingConn{Conn: &leftConn{fail: func() {}}, over: make(chan struct{})}
		if _, err := c.Write([]byte("x")); err != syscall.ECONNRESET {
			t.Error(err)
		}
	})
}
