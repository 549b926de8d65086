package pubsub

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	gossip "github.com/libp2p/go-libp2p-pubsub"

	"github.com/lmosd/lmosd/p2p/noderecord"
)

// nodesTopic returns the topic of the records of nodes.
func nodesTopic(network string) string { return "/lmos/" + network + "/nodes" }

// joinNodes joins the topic of the records of nodes.
func (p *PubSub) joinNodes(g *gossip.PubSub) error {
	name := nodesTopic(p.opts.Network)
	if err := g.RegisterTopicValidator(name, p.guarded(p.validateNode), gossip.WithValidatorInline(true)); err != nil {
		return err
	}
	var err error
	if p.nodes, err = g.Join(name); err != nil {
		return err
	}
	leave, err := p.nodes.Relay()
	if err == nil {
		p.relays = append(p.relays, leave)
	}
	return err
}

// validateNode validates the record of a node. Own records are new: the clock of this node may have been set back.
func (p *PubSub) validateNode(from peer.ID, m *gossip.Message) gossip.ValidationResult {
	if from == p.host.ID() {
		return gossip.ValidationAccept
	}
	_, err := p.opts.Nodes.Add(m.GetData(), time.Now())
	switch {
	case errors.Is(err, noderecord.ErrMalformed):
		p.addOffense(from)
		return gossip.ValidationReject
	case err != nil: // it is old, or clocks or versions differ
		return gossip.ValidationIgnore
	}
	p.limiter.widen(from)
	p.limiter.done(from, time.Now())
	return gossip.ValidationAccept
}

// AnnounceNode publishes the record of this node, and returns the number of peers that listen. Without one it has no effect.
func (p *PubSub) AnnounceNode(ctx context.Context, r *noderecord.Record) (peers int, err error) {
	peers = len(p.nodes.ListPeers())
	if peers == 0 {
		return 0, nil
	}
	if err := p.nodes.Publish(ctx, r.Raw); err != nil {
		return 0, fmt.Errorf("announce the addresses of this node: %w", err)
	}
	p.counts.published.Add(1)
	return peers, nil
}
