package node

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lmosd/lmosd/dht"
	"github.com/lmosd/lmosd/gateway"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// patience is how long Publish waits for the mesh; what is not done by then goes on in the background.
const patience = 2 * time.Second

// Publish signs a TD, stores it durably, and tells the mesh. When it returns, this node offers the thing whatever happens
// to the process; the answer says who else knows by now.
func (n *Node) Publish(ctx context.Context, raw []byte) (*gateway.Publication, error) {
	return n.offer(ctx, raw, nil)
}

// Offer publishes an agent that is part of this process: agent answers what its TD describes, within the TD's schemas. It
// ends with the process; its last record says how long others remember it.
func (n *Node) Offer(ctx context.Context, raw []byte, agent interact.Thing) (*gateway.Publication, error) {
	t, err := td.Complete(raw, n.DID())
	if err != nil {
		return nil, interact.AsError(err)
	}
	return n.offer(ctx, t.Raw, interact.Chain(agent, interact.Checked(t)))
}

func (n *Node) offer(ctx context.Context, raw []byte, agent interact.Thing) (*gateway.Publication, error) {
	start := time.Now()
	if err := n.stores.room(); err != nil {
		return nil, err
	}
	of, created, err := n.offers.publish(ctx, raw, agent)
	if err != nil {
		return nil, interact.AsError(err)
	}
	p := n.report(of, n.tellSoon(ctx, of), start)
	p.Created = created
	p.Name, p.Warnings = of.desc.Name(), of.desc.Warnings
	p.Capability, p.Action = first(of.desc)
	n.log.Info("published", "thing", of.Thing, "seq", of.Seq, "replicas", p.Replicas, "gossip", p.GossipPeers, "took", time.Since(start))
	return p, nil
}

// Unpublish withdraws a thing that this node offers and tells the mesh.
func (n *Node) Unpublish(ctx context.Context, ref string) (*gateway.Publication, error) {
	start := time.Now()
	d, err := n.dir.Get(ctx, ref)
	if err != nil {
		return nil, err
	}
	if !n.offers.has(d) {
		return nil, interact.Errorf(interact.Forbidden, "run it on the node that published: "+string(d.Record.Hosts[0].Node),
			"%s is offered by another node; only its owner can withdraw it", d.Name())
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

func (n *Node) report(of *offer, s spread, start time.Time) *gateway.Publication {
	return &gateway.Publication{APIVersion: gateway.APIVersion, Kind: "Publication", ID: of.Thing,
		Ref: of.Thing + "@" + n.key.DID().Multibase(), Owner: n.key.DID(), Seq: of.Seq,
		Replicas: s.receipt.Replicas, Wanted: s.receipt.Wanted, GossipPeers: s.gossip,
		Pending:    s.gossip == 0 && s.receipt.Replicas == 0,
		RecordSize: len(of.Signed.Record), TDSize: len(of.Signed.TD), Took: ms(time.Since(start))}
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

// A spread is who was told of an offer.
type spread struct {
	gossip  int
	receipt dht.Receipt
}

// tellSoon tells the mesh of an offer and waits as long as a user does; the rest goes on in the background.
func (n *Node) tellSoon(ctx context.Context, of *offer) spread {
	var mu sync.Mutex
	var s spread
	done := make(chan struct{})
	n.offers.busy(of, true)
	n.work.Go(func() {
		defer close(done)
		defer n.offers.busy(of, false)
		n.tell(n.life, telling{of, true, true}, func(update func(*spread)) { mu.Lock(); update(&s); mu.Unlock() })
	})
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-ctx.Done():
	}
	mu.Lock()
	defer mu.Unlock()
	return s
}

// tell gossips an offer and puts it into the DHT, both at once, and remembers what succeeded.
func (n *Node) tell(ctx context.Context, t telling, note func(func(*spread))) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var g errgroup.Group
	if t.gossip {
		g.Go(func() error { return n.announce(ctx, t.of, note) })
	}
	if t.dht {
		g.Go(func() error { return n.replicate(ctx, t.of, note) })
		g.Go(func() error { return n.provide(ctx, t.of) })
	}
	if err := g.Wait(); err != nil && ctx.Err() == nil {
		n.log.Warn("telling the mesh failed; it is tried again", "thing", t.of.Thing, "err", err)
	}
}

func (n *Node) announce(ctx context.Context, of *offer, note func(func(*spread))) error {
	peers, err := n.gossip.Announce(ctx, of.Signed)
	note(func(s *spread) { s.gossip = peers })
	if peers > 0 {
		n.offers.told(of)
	}
	return err
}

func (n *Node) replicate(ctx context.Context, of *offer, note func(func(*spread))) error {
	r, err := n.dht.Publish(ctx, of.Signed)
	note(func(s *spread) { s.receipt = r })
	if r.Replicas > 0 {
		n.offers.replicated(of)
	}
	if errors.Is(err, dht.ErrNoReplicas) || errors.Is(err, dht.ErrNoPeers) {
		return nil // Pending: the answer says so, and it is tried again.
	}
	return err
}

func (n *Node) provide(ctx context.Context, of *offer) error {
	if of.desc == nil {
		n.dht.Unprovide(n.DID(), of.Thing)
		return nil
	}
	_, err := n.dht.Provide(ctx, of.desc.Record)
	if errors.Is(err, dht.ErrNoReplicas) || errors.Is(err, dht.ErrNoPeers) {
		return nil // The DHT tells it as soon as somebody is there.
	}
	return err
}

// keepOffers tells the mesh again: soon while nobody knows, by gossip every few minutes, into the DHT every few hours.
func (n *Node) keepOffers(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var g errgroup.Group
	g.SetLimit(4)
	defer g.Wait()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		for _, t := range n.offers.due(time.Now(), n.gossip.Peers() > 0) {
			g.Go(func() error { n.tellAgain(ctx, t); return nil })
		}
	}
}

// tellAgain renews the record, so that readers see that its host lives. What only gossip hears again travels without its
// TD: who was there has it, and who was not fetches it.
func (n *Node) tellAgain(ctx context.Context, t telling) {
	defer n.offers.busy(t.of, false)
	next, err := n.offers.renew(ctx, t.of)
	if err != nil || next == nil {
		n.log.Error("an offer could not be renewed", "thing", t.of.Thing, "err", err)
		return
	}
	t.of = next
	n.tell(ctx, t, func(func(*spread)) {})
}
