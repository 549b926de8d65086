package pubsub

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	gossip "github.com/libp2p/go-libp2p-pubsub"

	"github.com/lmosd/lmosd/internal/boundedmap"
	"github.com/lmosd/lmosd/p2p/noderecord"
)

// maxNodes limits the nodes with replay state, of about 100 bytes each.
const maxNodes = 1 << 15

// nodes is the topic of the records of nodes.
type nodes struct {
	topic *gossip.Topic

	mu     sync.Mutex
	newest map[peer.ID]time.Time // when the newest record of each node was signed; owned by mu
}

// nodesTopic returns the topic of the records of nodes.
func nodesTopic(network string) string { return "/lmos/" + network + "/nodes" }

// joinNodes joins the topic of the records of nodes.
func (p *PubSub) joinNodes(g *gossip.PubSub) error {
	name := nodesTopic(p.opts.Network)
	if err := g.RegisterTopicValidator(name, p.guarded(p.validateNode), gossip.WithValidatorInline(true)); err != nil {
		return err
	}
	var err error
	if p.nodes.topic, err = g.Join(name); err != nil {
		return err
	}
	leave, err := p.nodes.topic.Relay()
	if err == nil {
		p.relays = append(p.relays, leave)
	}
	return err
}

// validateNode validates the record of a node, and passes it to Options.Node if it is new.
func (p *PubSub) validateNode(from peer.ID, m *gossip.Message) gossip.ValidationResult {
	own := from == p.host.ID()
	r, err := noderecord.Parse(m.GetData(), time.Now())
	switch {
	case errors.Is(err, noderecord.ErrTime): // clocks differ
		return gossip.ValidationIgnore
	case err != nil:
		if !own {
			p.addOffense(from)
		}
		return gossip.ValidationReject
	case !p.nodes.isNew(r):
		return gossip.ValidationIgnore
	case own:
		return gossip.ValidationAccept
	}
	p.limiter.widen(from)
	p.enqueue(delivery{node: r})
	p.limiter.done(from, time.Now())
	return gossip.ValidationAccept
}

// isNew reports whether a record is newer than those of its node before, by the least time between two of them: whoever has a key cannot make
// others forward more.
func (n *nodes) isNew(r *noderecord.Record) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if last, ok := n.newest[r.Peer]; ok && r.Issued.Before(last.Add(noderecord.MinInterval)) {
		return false
	}
	boundedmap.Put(&n.newest, r.Peer, r.Issued, maxNodes, func(last time.Time) bool { return r.Issued.Sub(last) > noderecord.Life })
	return true
}

// AnnounceNode publishes the record of this node, and returns the number of peers that listen. Without one it has no effect.
func (p *PubSub) AnnounceNode(ctx context.Context, r *noderecord.Record) (peers int, err error) {
	peers = len(p.nodes.topic.ListPeers())
	if peers == 0 {
		return 0, nil
	}
	if err := p.nodes.topic.Publish(ctx, r.Raw); err != nil {
		return 0, fmt.Errorf("announce the addresses of this node: %w", err)
	}
	p.counts.published.Add(1)
	return peers, nil
}
