package p2p

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	"github.com/quic-go/quic-go"

	"github.com/lmosd/lmosd/did"
)

// TestRefusedPeersGetTheReason checks over each transport that a dialer whom the policy of the peer refuses gets the reason. A peer
// that is admitted later is no longer refused.
func TestRefusedPeersGetTheReason(t *testing.T) {
	t.Parallel()
	for name, addr := range map[string]string{"TCP": anyTCP, "QUIC": "/ip4/127.0.0.1/udp/0/quic-v1"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			caller := started(t, Options{Listen: []string{addr}})
			no := started(t, Options{Listen: []string{addr}, Admits: func(id did.DID) error {
				if raw, err := id.Peer(); err == nil && peer.ID(raw) == caller.ID() {
					return errors.New("denied")
				}
				return nil
			}})
			other := started(t, Options{Listen: []string{addr}})
			for range 5 {
				_ = caller.Connect(t.Context(), peer.AddrInfo{ID: no.ID(), Addrs: no.Addrs()}) // it may be connected for a moment
				if !caller.Refused(no.ID()) {
					t.Fatal("the dialer reports no refusal")
				}
				if no.Network().Connectedness(caller.ID()) == network.Connected {
					t.Error("a refused peer is connected")
				}
			}
			if err := caller.Connect(t.Context(), peer.AddrInfo{ID: other.ID(), Addrs: other.Addrs()}); err != nil || caller.Refused(other.ID()) {
				t.Errorf("a peer that admits all: %v, refused %v", err, caller.Refused(other.ID()))
			}
		})
	}
}

// A closedConn is a connection that the peer closed before this node sent anything.
type closedConn struct {
	network.Conn
	id  peer.ID
	err error
}

func (c *closedConn) RemotePeer() peer.ID { return c.id }
func (c *closedConn) IsClosed() bool      { return true }
func (c *closedConn) Stat() network.ConnStats {
	return network.ConnStats{Stats: network.Stats{Direction: network.DirOutbound}}
}
func (c *closedConn) NewStream(context.Context) (network.Stream, error) { return nil, c.err }

// TestRefusalBeforeIdentify has a peer close a connection before its identification begins, or before the dial returns.
func TestRefusalBeforeIdentify(t *testing.T) {
	t.Parallel()
	h := started(t, Options{})
	gated := &network.ConnError{Remote: true, ErrorCode: network.ConnGated}
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"gated":              {gated, true},
		"gated in a dial":    {&swarm.DialError{DialErrors: []swarm.TransportError{{Cause: &quic.ApplicationError{Remote: true, ErrorCode: quic.ApplicationErrorCode(network.ConnGated)}}}}, true},
		"gated by this node": {&network.ConnError{ErrorCode: network.ConnGated}, false},
		"shut down":          {&network.ConnError{Remote: true, ErrorCode: network.ConnShutdown}, false},
		"lost":               {io.EOF, false},
	} {
		for _, seen := range []bool{false, true} { // whether the network has reported the close
			conn := &closedConn{id: peer.ID(fmt.Sprint(name, seen)), err: c.err}
			h.refused.connected(nil, conn)
			if seen {
				h.refused.ended(conn)
			}
			if got := h.Refused(conn.id); got != c.want {
				t.Errorf("%s: refused %v, want %v", name, got, c.want)
			}
		}
	}
	if len(h.refused.dialed) != 0 {
		t.Errorf("%d closed connections are kept", len(h.refused.dialed))
	}
}
