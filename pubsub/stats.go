package pubsub

import (
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"

	gossip "github.com/libp2p/go-libp2p-pubsub"
)

// Stats counts messages since [New]. Own messages count only as Published.
type Stats struct {
	Topics int // of records of Things, subscribed
	Peers  int // distinct, subscribed to any topic

	Published  uint64
	Delivered  uint64 // valid and new
	Rejected   uint64 // invalid; their forwarders lose score
	Ignored    uint64 // not new, or not accepted by this node
	Limited    uint64 // not verified: over a rate limit
	Refused    uint64 // not verified: the forwarder is banned, or its score is too low
	Duplicates uint64
	// Dropped counts messages and records that did not fit into a queue.
	Dropped uint64
	// Verified counts verified records, including own and cached ones; Banned counts peers that were disconnected.
	Verified, Banned uint64
}

type counts struct {
	published, delivered, rejected, ignored, limited, refused, duplicates, dropped, verified, banned atomic.Uint64
}

// Stats returns the counters.
func (p *PubSub) Stats() Stats {
	return Stats{
		Topics:     len(p.opts.Shards),
		Peers:      p.Peers(),
		Published:  p.counts.published.Load(),
		Delivered:  p.counts.delivered.Load(),
		Rejected:   p.counts.rejected.Load(),
		Ignored:    p.counts.ignored.Load(),
		Limited:    p.counts.limited.Load(),
		Refused:    p.counts.refused.Load(),
		Duplicates: p.counts.duplicates.Load(),
		Dropped:    p.counts.dropped.Load(),
		Verified:   p.counts.verified.Load(),
		Banned:     p.counts.banned.Load(),
	}
}

// tracer receives the events of gossipsub. Its methods are called from gossipsub's only loop and must not block.
type tracer struct{ p *PubSub }

var _ gossip.RawTracer = (*tracer)(nil)

func (t *tracer) DeliverMessage(*gossip.Message) { t.p.counts.delivered.Add(1) }
func (t *tracer) DropRPC(r *gossip.RPC, _ peer.ID) {
	t.p.counts.dropped.Add(uint64(len(r.GetPublish())))
}
func (t *tracer) UndeliverableMessage(*gossip.Message)     { t.p.counts.dropped.Add(1) }
func (t *tracer) ThrottlePeer(peer.ID)                     { t.p.counts.dropped.Add(1) }
func (t *tracer) OnNewOutboundStream(peer.ID, protocol.ID) {}
func (t *tracer) Join(string)                              {}
func (t *tracer) Leave(string)                             {}
func (t *tracer) ValidateMessage(*gossip.Message)          {}
func (t *tracer) RecvRPC(*gossip.RPC)                      {}
func (t *tracer) SendRPC(*gossip.RPC, peer.ID)             {}

func (t *tracer) DuplicateMessage(m *gossip.Message) {
	t.p.counts.duplicates.Add(1)
	t.p.limiter.done(m.ReceivedFrom, time.Now())
}

func (t *tracer) RejectMessage(m *gossip.Message, r string) {
	t.p.counts.refuse(m, r)
	t.p.limiter.done(m.ReceivedFrom, time.Now())
}

func (t *tracer) OnClosedOutboundStream(id peer.ID) {
	t.p.meshPeers.leave(id)
	t.p.limiter.leave(id, time.Now())
}

func (t *tracer) Graft(id peer.ID, topic string) {
	if shard, ok := t.p.shards[topic]; ok {
		t.p.meshPeers.graft(id, shard)
	}
}

func (t *tracer) Prune(id peer.ID, topic string) {
	if shard, ok := t.p.shards[topic]; ok {
		t.p.meshPeers.prune(id, shard)
	}
}

// refuse counts a message that was not accepted, by gossipsub's reason.
func (c *counts) refuse(m *gossip.Message, reason string) {
	_, adopted := m.ValidatorData.(accepted)
	switch reason {
	case gossip.RejectValidationIgnored:
		if adopted {
			c.delivered.Add(1)
		} else {
			c.ignored.Add(1)
		}
	case gossip.RejectValidationQueueFull, gossip.RejectValidationThrottled:
		c.dropped.Add(1)
	default:
		c.rejected.Add(1)
	}
}
