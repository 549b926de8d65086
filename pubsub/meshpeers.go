package pubsub

import (
	"context"
	"sync"

	"github.com/libp2p/go-libp2p/core/peer"
)

// meshPeers holds the peers in the gossipsub mesh of each shard, as the tracer reports them.
//
// It closes a gap in gossipsub: a message is forwarded to the mesh, and its id is announced later to peers outside the mesh. A peer
// that subscribed less than a heartbeat ago misses both if it has joined the mesh by then. While a mesh is small, PubSub therefore
// adopts messages: gossipsub ignores the received copy, and PubSub publishes the message again, which floods it to all peers of the
// topic.
type meshPeers struct {
	mu   sync.Mutex
	mesh [Shards]map[peer.ID]bool // owned by mu
}

func (n *meshPeers) graft(p peer.ID, shard byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mesh[shard] == nil {
		n.mesh[shard] = map[peer.ID]bool{}
	}
	n.mesh[shard][p] = true
}

func (n *meshPeers) prune(p peer.ID, shard byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.mesh[shard], p)
}

func (n *meshPeers) leave(p peer.ID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, mesh := range n.mesh {
		delete(mesh, p)
	}
}

// thin reports whether a mesh has fewer than least members.
func (n *meshPeers) thin(shard byte, least int) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.mesh[shard]) < least
}

// misses reports whether one of listeners, other than from, is not in a mesh.
func (n *meshPeers) misses(shard byte, listeners []peer.ID, from peer.ID) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range listeners {
		if l != from && !n.mesh[shard][l] {
			return true
		}
	}
	return false
}

// adoption is a message that is published here again, because its mesh is not complete.
type adoption struct {
	shard  byte
	record []byte
}

// adopt queues a received message to be published again if its mesh would not deliver it to all listeners. If it returns false,
// gossipsub forwards the message: the mesh is complete, or the queue is full.
func (p *PubSub) adopt(shard byte, record []byte, from peer.ID) bool {
	if !p.meshPeers.thin(shard, meshOf(p.opts.Degree).Dlo) {
		return false
	}
	if !p.meshPeers.misses(shard, p.topics[shard].ListPeers(), from) {
		return false
	}
	select {
	case p.adopted <- adoption{shard, record}:
		return true
	default:
		return false
	}
}

// publishAdopted publishes a message that the validator accepted.
func (p *PubSub) publishAdopted(ctx context.Context, a adoption) {
	if err := p.topics[a.shard].Publish(ctx, a.record); err != nil && ctx.Err() == nil {
		p.log.Debug("forwarding failed", "shard", a.shard, "err", err) // for example after a newer record
	}
}
