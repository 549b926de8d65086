package p2p

import (
	"context"
	"fmt"
	"slices"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"

	"github.com/lmosd/lmosd/did"
)

// A gate is a host on whose streams only admitted nodes are: handlers do not receive the streams of others, and none is opened to them.
// Protocols that the host itself serves (identify, ping) are not affected.
type gate struct {
	host.Host
	admits func(did.DID) error
	free   []protocol.ID
}

// Gate returns h for the parts of a node: a stream of a node for which admits returns an error is reset, unless its protocol is free.
// None is opened to such a node unless all its protocols are free.
func Gate(h host.Host, admits func(did.DID) error, free ...protocol.ID) host.Host {
	return &gate{h, admits, free}
}

// SetStreamHandler implements [host.Host].
func (g *gate) SetStreamHandler(id protocol.ID, f network.StreamHandler) {
	g.Host.SetStreamHandler(id, g.guarded(id, f))
}

// SetStreamHandlerMatch implements [host.Host].
func (g *gate) SetStreamHandlerMatch(id protocol.ID, match func(protocol.ID) bool, f network.StreamHandler) {
	g.Host.SetStreamHandlerMatch(id, match, g.guarded(id, f))
}

func (g *gate) guarded(id protocol.ID, f network.StreamHandler) network.StreamHandler {
	if slices.Contains(g.free, id) {
		return f
	}
	return func(s network.Stream) {
		if g.check(s.Conn().RemotePeer()) != nil {
			_ = s.ResetWithError(network.StreamGated)
			return
		}
		f(s)
	}
}

// NewStream implements [host.Host].
func (g *gate) NewStream(ctx context.Context, p peer.ID, ids ...protocol.ID) (network.Stream, error) {
	if len(ids) == 0 || slices.ContainsFunc(ids, func(id protocol.ID) bool { return !slices.Contains(g.free, id) }) {
		if err := g.check(p); err != nil {
			return nil, err
		}
	}
	return g.Host.NewStream(ctx, p, ids...)
}

func (g *gate) check(p peer.ID) error {
	id, err := did.FromPeer([]byte(p))
	if err != nil {
		return fmt.Errorf("peer %s: %w", p, err)
	}
	return g.admits(id)
}
