package node

import (
	"context"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// patience is how long Publish waits for the mesh; what is not done by then goes on in the background.
const patience = 2 * time.Second

// Publish signs a TD, stores it durably, and tells the mesh. When it returns, this node offers the thing whatever happens
// to the process; the answer says who else knows by now.
func (n *Node) Publish(ctx context.Context, raw []byte) (*api.Publication, error) {
	return n.Enter(ctx, raw, tdd.Registration{})
}

// Enter is Publish with what the directory is to say of the thing: it is withdrawn when its registration ends.
func (n *Node) Enter(ctx context.Context, raw []byte, r tdd.Registration) (*api.Publication, error) {
	return n.enter(ctx, raw, nil, r)
}

// Extend changes when a thing of this node ends, and nothing else. It is durable when Extend returns.
func (n *Node) Extend(ctx context.Context, thing string, r tdd.Registration) error {
	if err := n.stores.room(); err != nil {
		return err
	}
	if err := n.offers.register(ctx, thing, r, time.Now()); err != nil {
		return interact.AsError(err)
	}
	return nil
}

// Registered returns the registration of a thing that this node offers; false for all others.
func (n *Node) Registered(r *td.Record) (tdd.Registration, bool) { return n.offers.registered(r) }

// Offer publishes an agent that is part of this process: agent answers what its TD describes, within the TD's schemas. It
// ends with the process; its last record says how long others remember it. A TD without forms comes from td.Draft.
func (n *Node) Offer(ctx context.Context, raw []byte, agent interact.Thing) (*api.Publication, error) {
	return n.offer(ctx, raw, agent)
}

func (n *Node) offer(ctx context.Context, raw []byte, agent interact.Thing) (*api.Publication, error) {
	return n.enter(ctx, raw, agent, tdd.Registration{})
}

func (n *Node) enter(ctx context.Context, raw []byte, agent interact.Thing, r tdd.Registration) (*api.Publication, error) {
	start := time.Now()
	if err := n.stores.room(); err != nil {
		return nil, err
	}
	of, created, err := n.offers.publish(ctx, raw, agent, r)
	if err != nil {
		return nil, interact.AsError(err)
	}
	p := n.report(of, n.tellSoon(ctx, of), start)
	p.Callers = n.policy.Callers()
	p.Created, p.Pending = created, p.Pending && !of.isUnlisted()
	p.Name, p.Warnings = of.desc.Name(), of.warns
	p.Capability, p.Action = first(of.desc)
	n.log.Info("published", "thing", of.Thing, "seq", of.Seq, "replicas", p.Replicas, "gossip", p.GossipPeers, "took", time.Since(start))
	return p, nil
}

// Unpublish withdraws a thing of this node and tells the mesh: one that it offers, or that a process with its key offered and
// left behind.
func (n *Node) Unpublish(ctx context.Context, ref string) (*api.Publication, error) {
	start := time.Now()
	d, err := n.dir.Get(ctx, ref)
	if err != nil {
		return nil, err
	}
	if d.Record.Owner != n.DID() {
		return nil, notOurs(d)
	}
	of, err := n.offers.withdraw(ctx, d.Record.Thing)
	if err != nil {
		return nil, interact.AsError(err)
	}
	p := n.report(of, n.tellSoon(ctx, of), start)
	p.Name, p.Withdrawn = d.Name(), true
	n.log.Info("withdrawn", "thing", of.Thing, "seq", of.Seq, "replicas", p.Replicas, "gossip", p.GossipPeers, "took", time.Since(start))
	return p, nil
}

func notOurs(d *td.Description) error {
	hint := "its owner is " + string(d.Record.Owner)
	if len(d.Record.Hosts) > 0 {
		hint = "run it on the node that published: " + string(d.Record.Hosts[0].Node)
	}
	return interact.Errorf(interact.Forbidden, hint, "%s belongs to another node; only its owner can withdraw it", d.Name())
}

func (n *Node) report(of *offer, s *spread, start time.Time) *api.Publication {
	p := &api.Publication{APIVersion: api.APIVersion, Kind: "Publication", ID: of.Thing,
		Owner: n.key.DID(), Seq: of.Seq, RecordSize: len(of.Signed.Record), TDSize: len(of.Signed.TD)}
	s.fill(p)
	p.Ref, p.Took = refOf(of.Thing, n.key.DID()), ms(time.Since(start))
	return p
}

// refOf returns the exact reference of a thing.
func refOf(thing string, owner did.DID) string {
	return (&td.Description{Record: &td.Record{Owner: owner, Thing: thing}}).Ref()
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

// tellSoon tells the mesh of an offer and waits as long as a user does; the rest goes on in the background.
func (n *Node) tellSoon(ctx context.Context, of *offer) *spread {
	s, done := new(spread), make(chan struct{})
	n.offers.busy(of.Thing)
	if !n.later(func(life context.Context) {
		defer close(done)
		defer n.offers.rest(of.Thing)
		n.tell(life, of, telling{thing: of.Thing, gossip: true, dht: true}, s)
	}) {
		n.offers.rest(of.Thing) // the node ends; it is told at the next start
		return s
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-ctx.Done():
	}
	return s
}
