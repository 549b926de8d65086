package pubsub

import (
	"context"
	"sync"

	"github.com/libp2p/go-libp2p/core/peer"
)

// neighbours knows the mesh of each shard, as gossipsub tells its tracer.
//
// It is there for a gap in gossipsub: a message is forwarded to the mesh, and its id is told later to the peers that
// are not in the mesh. A peer that subscribed less than a heartbeat ago misses both, if it is in the mesh by then.
// Among many neighbours another one helps; a line of three nodes that have just met would lose what the first one
// says. So while a mesh is thin, a message is adopted: gossipsub ignores the copy that came, and it is published here
// again, which floods it to all peers of the topic.
type neighbours struct {
	mu   sync.Mutex
	mesh [Shards]map[peer.ID]bool // owned by mu
}

func (n *neighbours) graft(p peer.ID, shard byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mesh[shard] == nil {
		n.mesh[shard] = map[peer.ID]bool{}
	}
	n.mesh[shard][p] = true
}

func (n *neighbours) prune(p peer.ID, shard byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.mesh[shard], p)
}

func (n *neighbours) leave(p peer.ID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, mesh := range n.mesh {
		delete(mesh, p)
	}
}

// thin reports whether a mesh has fewer than least members.
func (n *neighbours) thin(shard byte, least int) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.mesh[shard]) < least
}

// misses reports whether one of listeners, from aside, is not in a mesh.
func (n *neighbours) misses(shard byte, listeners []peer.ID, from peer.ID) bool {
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

// adopt queues a message that came from a peer to be published again, if its mesh would not bring it to all who
// listen. It returns false if gossipsub can forward it as usual, or must, because the queue is full.
func (p *PubSub) adopt(shard byte, record []byte, from peer.ID) bool {
	if !p.neighbours.thin(shard, meshOf(p.opts.Degree).Dlo) {
		return false
	}
	if !p.neighbours.misses(shard, p.topics[shard].ListPeers(), from) {
		return false
	}
	select {
	case p.adopted <- adoption{shard, record}:
		return true
	default:
		return false
	}
}

// publishAdopted publishes a message that was accepted already.
func (p *PubSub) publishAdopted(ctx context.Context, a adoption) {
	if err := p.topics[a.shard].Publish(ctx, a.record); err != nil && ctx.Err() == nil {
		p.log.Debug("forward", "shard", a.shard, "err", err) // a newer record came between
	}
}
