package node

import (
	"context"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/publication"
	"github.com/lmosd/lmosd/td"
)

// Publish signs a TD, stores it durably and announces it (publication.Publisher.Publish).
func (n *Node) Publish(ctx context.Context, raw []byte) (*api.Publication, error) {
	return n.Enter(ctx, raw, publication.Registration{})
}

// Enter is Publish with a registration: the thing is withdrawn when it expires.
func (n *Node) Enter(ctx context.Context, raw []byte, r publication.Registration) (*api.Publication, error) {
	return n.published(n.publisher.Publish(ctx, raw, nil, r))
}

// Offer publishes an agent that is part of this process: agent answers what its TD describes, within the TD's schemas. It
// ends with the process; its last record limits how long other nodes remember it. A TD without forms comes from td.Draft.
func (n *Node) Offer(ctx context.Context, raw []byte, agent interact.Thing) (*api.Publication, error) {
	return n.published(n.publisher.Publish(ctx, raw, agent, publication.Registration{}))
}

// Unpublish withdraws a thing of this node (publication.Publisher.Withdraw).
func (n *Node) Unpublish(ctx context.Context, ref string) (*api.Publication, error) {
	return n.published(n.publisher.Withdraw(ctx, ref))
}

// Move announces that a thing of this node has a new owner (publication.Publisher.Move).
func (n *Node) Move(ctx context.Context, ref, to string) (*api.Publication, error) {
	return n.published(n.publisher.Move(ctx, ref, to))
}

// Extend changes the registration of a thing of this node, and nothing else. It is durable when Extend returns.
func (n *Node) Extend(ctx context.Context, thing string, r publication.Registration) error {
	return n.publisher.Extend(ctx, thing, r)
}

// Registered returns the registration of a thing that this node offers; false for all others.
func (n *Node) Registered(r *td.Record) (publication.Registration, bool) {
	return n.publisher.Registered(r)
}

// published returns the answer of the API.
func (n *Node) published(r *publication.Result, err error) (*api.Publication, error) {
	if err != nil {
		return nil, err
	}
	p := &api.Publication{APIVersion: api.APIVersion, Kind: "Publication", ID: r.Thing, Ref: td.ExactRef(r.Thing, n.DID()), Name: r.Name,
		Owner: n.DID(), Seq: r.Seq, Withdrawn: r.Description == nil, MovedTo: r.Moved, Successor: r.Successor, Created: r.Created,
		Replicas: r.Reach.Replicas, Wanted: r.Reach.Wanted, GossipPeers: r.Reach.GossipPeers, Pending: r.IsPending(),
		RecordSize: len(r.Signed.Record), TDSize: len(r.Signed.TD), Took: ms(r.Took), Warnings: r.Warnings}
	if !p.Withdrawn {
		p.Callers = n.policy.Callers()
		p.Capability, p.Action = first(r.Description)
	}
	return p, nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// first returns a capability and an action of d, for the commands that a user tries next.
func first(d *td.Description) (capability, action string) {
	if len(d.Capabilities) > 0 {
		capability = d.Capabilities[0].ID
	}
	for name := range d.Actions {
		if action == "" || name < action {
			action = name
		}
	}
	return capability, action
}
