package relay

import (
	"context"
	"fmt"
	"net"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/pb"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/proto"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/util"
)

// prove opens a circuit to this node itself at a relay: one that takes reservations and connects nobody, or connects to somebody else, fails.
func (r *Reservations) prove(ctx context.Context, id peer.ID) error {
	s, err := r.o.Host.NewStream(network.WithNoDial(ctx, "relay proof"), id, proto.ProtoIDv2Hop)
	if err != nil {
		return err
	}
	defer s.Reset() // it also ends the circuit
	if until, ok := ctx.Deadline(); ok {
		_ = s.SetDeadline(until)
	}
	self := peer.AddrInfo{ID: r.o.Host.ID()}
	if err := util.NewDelimitedWriter(s).WriteMsg(&pb.HopMessage{Type: pb.HopMessage_CONNECT.Enum(), Peer: util.PeerInfoToPeerV2(self)}); err != nil {
		return err
	}
	m, _, err := readHop(s)
	if err != nil {
		return err
	}
	if m.GetType() != pb.HopMessage_STATUS || m.GetStatus() != pb.Status_OK {
		return fmt.Errorf("it answers %s", m.GetStatus())
	}
	return r.o.IsSelf(ctx, conn{s})
}

// conn is a stream as a network connection.
type conn struct{ network.Stream }

// LocalAddr implements [net.Conn].
func (conn) LocalAddr() net.Addr { return circuitAddr{} }

// RemoteAddr implements [net.Conn].
func (conn) RemoteAddr() net.Addr { return circuitAddr{} }

type circuitAddr struct{}

func (circuitAddr) Network() string { return "p2p-circuit" }
func (circuitAddr) String() string  { return "p2p-circuit" }

var _ net.Conn = conn{}
