package publication

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lmosd/lmosd/dht"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/heartbeat"
	"github.com/lmosd/lmosd/td"
)

// Gossip announces records to the peers that follow their shards (pubsub.PubSub).
type Gossip interface {
	Announce(ctx context.Context, s *td.Signed) (peers int, err error)
	Peers() int
}

// A DHT stores records, and under which capabilities a node offers Things ([dht.DHT]).
type DHT interface {
	Publish(ctx context.Context, s *td.Signed) (dht.Receipt, error)
	Provide(ctx context.Context, r *td.Record) (dht.Receipt, error)
	Unprovide(owner did.DID, thing string)
	// Size returns the number of DHT servers that are known.
	Size() int
}

// Limits of the duration of announcements.
const (
	announceWait    = 2 * time.Second // that Publish, Withdraw and Move wait; the rest continues in the background
	announceTimeout = 30 * time.Second
)

// A Reach is the number of nodes that received a record.
type Reach struct {
	GossipPeers      int
	Replicas, Wanted int // DHT servers
}

// A progress collects the reach of a record. It is safe for concurrent use.
type progress struct {
	mu    sync.Mutex
	reach Reach // owned by mu
}

func (g *progress) gossiped(peers int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.reach.GossipPeers = peers
}

func (g *progress) replicated(r dht.Receipt) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.reach.Replicas, g.reach.Wanted = r.Replicas, r.Wanted
}

func (g *progress) get() Reach {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.reach
}

// Pending returns the number of Things that no other node knows yet.
func (p *Publisher) Pending() int { return p.schedule.pending() }

// repeat announces publications again until ctx ends: every few seconds until a carrier accepts them, then by gossip every few minutes
// and to the DHT every few hours.
func (p *Publisher) repeat(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var g errgroup.Group
	g.SetLimit(4)
	defer g.Wait()
	loop := heartbeat.Start(ctx, "announcements", announceTimeout) // which it waits for beyond the limit
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		loop.Beat()
		p.followGrants(ctx, time.Now())
		for _, a := range p.schedule.due(time.Now(), p.o.Gossip.Peers() > 0) {
			loop.Beat()
			g.Go(func() error { p.refresh(ctx, a); return nil })
		}
	}
}

// refresh announces a Thing with a new record, which shows that its host is alive.
func (p *Publisher) refresh(ctx context.Context, a attempt) {
	defer p.schedule.end(a.thing)
	if ctx.Err() != nil {
		return // Many attempts may be due; a node that stops begins none.
	}
	pub, err := p.renew(ctx, a.thing)
	if err != nil {
		p.o.Log.Error("record renewal failed", "thing", a.thing, "err", err)
		return
	}
	if pub != nil {
		p.announce(ctx, pub, a, new(progress))
	}
}

// announceSoon announces pub and waits for announceWait at most; the rest continues in the background. Without peers, repeat announces it when
// there are some.
func (p *Publisher) announceSoon(ctx context.Context, pub *Publication) Reach {
	if !pub.isRestricted() && p.o.Gossip.Peers() == 0 && p.o.DHT.Size() == 0 {
		return Reach{}
	}
	g, done := new(progress), make(chan struct{})
	p.schedule.begin(pub.Thing)
	if !p.o.Go(func(life context.Context) {
		defer close(done)
		defer p.schedule.end(pub.Thing)
		p.announce(life, pub, attempt{thing: pub.Thing, gossip: true, dht: true}, g)
	}) {
		p.schedule.end(pub.Thing) // The node closes; the next start announces it.
		return g.get()
	}
	timer := time.NewTimer(announceWait)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-ctx.Done():
	}
	return g.get()
}

// announcement returns the record of pub for all nodes: its own, or the tombstone of the public description that a restricted one replaced;
// nil if there is none.
func (p *Publisher) announcement(pub *Publication) *td.Signed {
	if !pub.isRestricted() {
		return pub.Signed
	}
	if pub.Public != nil {
		if _, err := p.o.Verifier.Record(pub.Public.Record, time.Now()); err == nil { // else it has expired
			return pub.Public
		}
	}
	return nil
}

// announce sends pub to the carriers of a, all at once, and notes which accepted it. The caller has begun the attempt. A restricted
// description is not sent.
func (p *Publisher) announce(ctx context.Context, pub *Publication, a attempt, to *progress) {
	if pub.isRestricted() && p.o.OnRestricted != nil {
		p.o.OnRestricted(pub.Signed)
	}
	signed := p.announcement(pub)
	if signed == nil {
		p.schedule.gossiped(pub)
		p.schedule.replicated(pub)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, announceTimeout)
	defer cancel()
	var g errgroup.Group
	if a.gossip {
		g.Go(func() error { return p.gossip(ctx, pub, signed, a.hasTD, to) })
	}
	if a.dht {
		g.Go(func() error { return p.replicate(ctx, pub, signed, to) })
		g.Go(func() error { return p.provide(ctx, pub) })
	}
	if err := g.Wait(); err != nil && ctx.Err() == nil && p.o.Index.Get(pub.Thing) == pub {
		p.o.Log.Warn("announcement failed, will be repeated", "thing", pub.Thing, "err", err)
	}
}

// gossip sends pub without its TD if peers have the TD already: a node that missed it fetches it by its hash.
func (p *Publisher) gossip(ctx context.Context, pub *Publication, signed *td.Signed, hasTD bool, to *progress) error {
	if hasTD && pub.Description != nil && signed == pub.Signed {
		signed = &td.Signed{Record: pub.Description.Record.WithoutTD(), TD: pub.Signed.TD}
	}
	peers, err := p.o.Gossip.Announce(ctx, signed)
	to.gossiped(peers)
	if err == nil && peers > 0 {
		p.schedule.gossiped(pub)
	}
	return err
}

func (p *Publisher) replicate(ctx context.Context, pub *Publication, signed *td.Signed, to *progress) error {
	if pub.Owner != "" { // the providers of the Thing are its hosts, and give out their records themselves
		p.schedule.replicated(pub)
		return nil
	}
	r, err := p.o.DHT.Publish(ctx, signed)
	to.replicated(r)
	if r.Replicas > 0 {
		p.schedule.replicated(pub)
	}
	return unlessAlone(err)
}

// provide announces the capabilities of a Thing as long as pub is its publication.
func (p *Publisher) provide(ctx context.Context, pub *Publication) error {
	switch {
	case p.o.Index.Get(pub.Thing) != pub:
		return nil // It was withdrawn or replaced in between.
	case pub.Description == nil, pub.isRestricted():
		p.o.DHT.Unprovide(p.ownerOf(pub), pub.Thing)
		return nil
	}
	_, err := p.o.DHT.Provide(ctx, pub.Description.Record)
	return unlessAlone(err)
}

// unlessAlone drops the error of missing peers: the [Reach] shows it, and the announcement is repeated.
func unlessAlone(err error) error {
	if errors.Is(err, dht.ErrNoReplicas) || errors.Is(err, dht.ErrNoPeers) {
		return nil
	}
	return err
}
