package pubsub

import (
	"context"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/backoff"
)

// addOffense counts an offense of a peer. [PubSub.Run] closes the connections of a peer with several.
func (p *PubSub) addOffense(id peer.ID) {
	if !p.limiter.addOffense(id, time.Now()) {
		return
	}
	p.counts.banned.Add(1)
	select {
	case p.bans <- id:
	default: // the queue is full; the messages and new streams of the peer are refused all the same
	}
}

// disconnect closes the connections of a banned peer. It does not wait for their ends, which a peer that does not read delays for up to 10 s, or
// until the host is closed.
func (p *PubSub) disconnect(id peer.ID) {
	p.log.Warn("peer banned: invalid records forwarded", "peer", did.ShortPeer(id), "for", banFor)
	if p.opts.Ban != nil {
		p.opts.Ban(id, banFor) // before the connection is closed, so that the peer cannot reconnect in between
	}
	for _, c := range p.host.Network().ConnsToPeer(id) {
		go func() {
			if err := c.CloseWithError(network.ConnProtocolViolation); err != nil {
				p.log.Debug("closing the connection of a banned peer failed", "peer", did.ShortPeer(id), "err", err)
			}
		}()
	}
}

// limitedHost is a host that limits the rate at which peers are read. Data above the limit stays at the sender.
type limitedHost struct {
	host.Host
	p   *PubSub
	ctx context.Context // of gossipsub; ends the waits
}

func (h limitedHost) SetStreamHandler(id protocol.ID, f network.StreamHandler) {
	h.Host.SetStreamHandler(id, h.limit(f))
}

func (h limitedHost) SetStreamHandlerMatch(id protocol.ID, match func(protocol.ID) bool, f network.StreamHandler) {
	h.Host.SetStreamHandlerMatch(id, match, h.limit(f))
}

// limit refuses the streams of banned peers and limits the others.
func (h limitedHost) limit(f network.StreamHandler) network.StreamHandler {
	return func(s network.Stream) {
		if h.p.limiter.isBanned(s.Conn().RemotePeer(), time.Now()) {
			_ = s.ResetWithError(network.StreamProtocolViolation)
			return
		}
		f(&limitedStream{s, h})
	}
}

type limitedStream struct {
	network.Stream
	host limitedHost
}

// Read charges the bytes read, and returns when the limit allows more.
func (s *limitedStream) Read(b []byte) (int, error) {
	n, err := s.Stream.Read(b)
	wait := s.host.p.limiter.read(s.Conn().RemotePeer(), n, time.Now())
	if wait <= 0 {
		return n, err
	}
	_ = backoff.Sleep(s.host.ctx, wait) // the error is that of the context, not of the stream
	return n, err
}
