package p2p

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/lmosd/lmosd/internal/poll"
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

// A connection that begins a handshake and is silent loses its place.
func TestSilentHandshake(t *testing.T) {
	t.Parallel()
	h := started(t, Options{Listen: []string{anyTCP}, accept: 50 * time.Millisecond})
	c, err := manet.Dial(h.Network().ListenAddresses()[0])
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("\x13/m")); err != nil {
		t.Fatal(err)
	}
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection is open")
	}
	poll.Until(t, "the end of its place", func() bool {
		n := -1
		if err := h.rm.ViewTransient(func(s network.ResourceScope) error { n = s.Stat().NumConnsInbound; return nil }); err != nil {
			t.Fatal(err)
		}
		return n == 0
	})
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
