package pubsub

import (
	"context"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"

	"github.com/lmosd/lmosd/internal/backoff"
)

// offended counts a message of a peer that no honest node forwards. Who sent several is banned; the connection is closed by Run.
func (p *PubSub) offended(id peer.ID) {
	if !p.pace.offend(id, time.Now()) {
		return
	}
	p.counts.banned.Add(1)
	select {
	case p.bans <- id:
	default: // Many are banned at once. Nothing of this one is looked at, and its next stream is refused.
	}
}

// expel closes the connections of a banned peer.
func (p *PubSub) expel(id peer.ID) {
	p.log.Warn("a peer forwards records that cannot be true; it is disconnected", "peer", id, "for", banFor)
	if p.opts.Ban != nil {
		p.opts.Ban(id, banFor) // before the connection is closed, or it would be back in between
	}
	for _, c := range p.host.Network().ConnsToPeer(id) {
		if err := c.CloseWithError(network.ConnProtocolViolation); err != nil {
			p.log.Debug("close the connection of a banned peer", "peer", id, "err", err)
		}
	}
}

// metered is a host whose peers are read no faster than the pace allows. What a peer sends beyond that waits at the peer, and is
// neither decoded nor kept here.
type metered struct {
	host.Host
	p   *PubSub
	ctx context.Context // ends with the gossip; waits end with it
}

func (h metered) SetStreamHandler(id protocol.ID, f network.StreamHandler) {
	h.Host.SetStreamHandler(id, h.meter(f))
}

func (h metered) SetStreamHandlerMatch(id protocol.ID, match func(protocol.ID) bool, f network.StreamHandler) {
	h.Host.SetStreamHandlerMatch(id, match, h.meter(f))
}

// meter refuses the streams of banned peers and slows the others.
func (h metered) meter(f network.StreamHandler) network.StreamHandler {
	return func(s network.Stream) {
		if h.p.pace.isBanned(s.Conn().RemotePeer(), time.Now()) {
			_ = s.ResetWithError(network.StreamProtocolViolation)
			return
		}
		f(&meteredStream{s, h})
	}
}

type meteredStream struct {
	network.Stream
	host metered
}

// Read charges what was read, and returns when more may be.
func (s *meteredStream) Read(b []byte) (int, error) {
	n, err := s.Stream.Read(b)
	wait := s.host.p.pace.read(s.Conn().RemotePeer(), n, time.Now())
	if wait <= 0 {
		return n, err
	}
	_ = backoff.Sleep(s.host.ctx, wait) // the end of the host is no error of the stream
	return n, err
}
