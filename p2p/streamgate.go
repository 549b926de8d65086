package p2p

import (
	"context"
	"fmt"
	"slices"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	"github.com/libp2p/go-libp2p/p2p/protocol/identify"
	"github.com/libp2p/go-libp2p/p2p/protocol/ping"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/trust/exchange"
)

// Free returns the protocols of a network that peers use before it is known who they are: identify and ping carry nothing of the network,
// and the protocol of package trust determines who a peer is.
func Free(name string) []protocol.ID {
	return []protocol.ID{identify.ID, identify.IDPush, ping.ID, exchange.Protocol(name)}
}

// A gate is a host on whose streams only admitted nodes are: handlers do not receive the streams of others, and none is opened to them.
type gate struct {
	host.Host
	admits func(did.DID) error
}

// Gate returns h for the parts of a node: a stream of a node for which admits returns an error is reset, and none is opened to such a node.
func Gate(h host.Host, admits func(did.DID) error) host.Host { return &gate{h, admits} }

// SetStreamHandler implements [host.Host].
func (g *gate) SetStreamHandler(id protocol.ID, f network.StreamHandler) {
	g.Host.SetStreamHandler(id, g.guarded(f))
}

// SetStreamHandlerMatch implements [host.Host].
func (g *gate) SetStreamHandlerMatch(id protocol.ID, match func(protocol.ID) bool, f network.StreamHandler) {
	g.Host.SetStreamHandlerMatch(id, match, g.guarded(f))
}

func (g *gate) guarded(f network.StreamHandler) network.StreamHandler {
	return func(s network.Stream) {
		if checkPeer(s.Conn().RemotePeer(), g.admits) != nil {
			_ = s.ResetWithError(network.StreamGated)
			return
		}
		f(s)
	}
}

// NewStream implements [host.Host].
func (g *gate) NewStream(ctx context.Context, p peer.ID, ids ...protocol.ID) (network.Stream, error) {
	if err := checkPeer(p, g.admits); err != nil {
		return nil, err
	}
	return g.Host.NewStream(ctx, p, ids...)
}

func checkPeer(p peer.ID, admits func(did.DID) error) error {
	id, err := did.FromPeer([]byte(p))
	if err != nil {
		return fmt.Errorf("peer %s: %w", p, err)
	}
	return admits(id)
}

// A gatedSwarm is the network of a host whose own services (AutoNAT, relays, hole punching) register their handlers themselves: it checks the
// peer of each inbound stream once its protocol is known, and before its handler runs.
type gatedSwarm struct {
	*swarm.Swarm
	admits func(did.DID) error
	free   []protocol.ID
}

// SetStreamHandler implements [network.Network].
func (g *gatedSwarm) SetStreamHandler(f network.StreamHandler) {
	g.Swarm.SetStreamHandler(func(s network.Stream) { f(&gatedStream{s, g}) })
}

type gatedStream struct {
	network.Stream
	in *gatedSwarm
}

// SetProtocol implements [network.Stream]. The host calls no handler after an error.
func (s *gatedStream) SetProtocol(id protocol.ID) error {
	if !slices.Contains(s.in.free, id) {
		if err := checkPeer(s.Conn().RemotePeer(), s.in.admits); err != nil {
			_ = s.ResetWithError(network.StreamGated)
			return err
		}
	}
	return s.Stream.SetProtocol(id)
}
