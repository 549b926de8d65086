package node

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/dht"
	"github.com/lmosd/lmosd/td"
)

// Times of an offer. All are jittered by a tenth, so that a mesh that started at once does not speak at once.
const (
	tellEvery = 10 * time.Minute // a new record by gossip; half its life if that is less
	// tellEach is what gossip waits for each thing of the mesh, at least. To tell a thing of two shards again costs a node 4 kB
	// (docs/benchmarks.md), so that all things of any mesh cost it 11 kB/s at most.
	tellEach   = 360 * time.Millisecond
	retryEvery = 15 * time.Second // between attempts, at first; a quarter of its life at most
)

// A reach is what the mesh knows of an offer: when gossip and the DHT last took a record of it. It outlives the records.
type reach struct {
	told, replicated time.Time     // zero while nobody has it
	tried            time.Time     // the end of the last attempt
	vain             int           // attempts in a row after which somebody was still to be told
	wait             time.Duration // until gossip repeats it, jittered
	busy             int           // attempts that run
}

// A telling is a thing that the mesh must hear of again, and by which carrier.
type telling struct {
	thing       string
	gossip, dht bool
	known       bool // gossip has brought its TD
}

// due returns what must be told at the time now, and marks it as being told: [offers.rest] ends that. Nothing is due while
// there is nobody to tell.
func (o *offers) due(now time.Time, listeners bool) []telling {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !listeners {
		return nil
	}
	var out []telling
	for thing := range o.all {
		r := o.reachLocked(thing)
		gossip, dht := r.wants(now, o.life)
		if r.busy > 0 || !gossip && !dht || now.Sub(r.tried) < o.pauseAfter(r.vain) {
			continue
		}
		r.busy++
		out = append(out, telling{thing, gossip, dht, !r.told.IsZero()})
	}
	return out
}

// wants says by which carriers a thing is to be told at the time now.
func (r *reach) wants(now time.Time, life time.Duration) (gossip, dht bool) {
	return now.Sub(r.told) >= r.wait, now.Sub(r.replicated) >= life/4
}

// pauseAfter is how long nothing is tried after so many attempts in vain: it doubles, because each attempt signs and stores a
// record, and a mesh without a DHT server would never have enough of them.
func (o *offers) pauseAfter(vain int) time.Duration {
	return min(retryEvery<<min(max(vain-1, 0), 10), tellEvery, o.life/4)
}

func (o *offers) reachLocked(thing string) *reach {
	r := o.reach[thing]
	if r == nil {
		r = &reach{wait: o.pause()}
		o.reach[thing] = r
	}
	return r
}

// pause is how long gossip waits until it repeats an offer. The more things there are in the mesh, the more rarely each is told.
func (o *offers) pause() time.Duration {
	return jitter(min(max(tellEvery, time.Duration(o.things())*tellEach), o.life/2))
}

// busy marks a thing as being told, so that nothing is told twice at once. The caller ends it with rest.
func (o *offers) busy(thing string) { o.note(thing, func(r *reach) { r.busy++ }) }

// rest marks a thing as told or given up, for now.
func (o *offers) rest(thing string) {
	o.note(thing, func(r *reach) {
		r.busy, r.tried = r.busy-1, time.Now()
		if gossip, dht := r.wants(r.tried, o.life); gossip || dht {
			r.vain++
		} else {
			r.vain = 0
		}
	})
}

// news notes that nobody knows what is said of a thing now, whatever they knew of it before.
func (o *offers) news(thing string) {
	o.note(thing, func(r *reach) { r.told, r.replicated, r.vain = time.Time{}, time.Time{}, 0 })
}

// told and replicated note that gossip or the DHT has the offer; nothing, if it was replaced meanwhile.
func (o *offers) told(of *offer) {
	o.note(of.Thing, func(r *reach) {
		if o.all[of.Thing] == of {
			r.told, r.wait = time.Now(), o.pause()
		}
	})
}

func (o *offers) replicated(of *offer) {
	o.note(of.Thing, func(r *reach) {
		if o.all[of.Thing] == of {
			r.replicated = time.Now()
		}
	})
}

func (o *offers) note(thing string, f func(*reach)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all[thing] != nil { // It may be forgotten by now.
		f(o.reachLocked(thing))
	}
}

// pending counts the offers that nobody else knows yet.
func (o *offers) pending() int {
	o.mu.RLock()
	defer o.mu.RUnlock()
	n := 0
	for _, of := range o.refs {
		if r := o.reach[of.Thing]; r == nil || r.told.IsZero() && r.replicated.IsZero() {
			n++
		}
	}
	return n
}

// jitter returns d, up to a tenth sooner or later.
func jitter(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1)
}

// keepOffers tells the mesh again: soon while nobody knows, by gossip every few minutes, into the DHT every few hours. It
// ends with ctx.
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

// tellAgain renews the record, so that readers see that its host lives.
func (n *Node) tellAgain(ctx context.Context, t telling) {
	defer n.offers.rest(t.thing)
	if ctx.Err() != nil {
		return // Many may be due; a node that stops begins none.
	}
	of, err := n.offers.renew(ctx, t.thing)
	if err != nil {
		n.log.Error("an offer could not be renewed", "thing", t.thing, "err", err)
		return
	}
	if of != nil {
		n.tell(ctx, of, t, new(spread))
	}
}

// A spread is who was told of an offer. It is safe for concurrent use.
type spread struct {
	mu sync.Mutex
	// what follows is owned by mu.
	gossip           int // peers
	replicas, wanted int // DHT servers
}

func (s *spread) heard(peers int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gossip = peers
}

func (s *spread) stored(r dht.Receipt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replicas, s.wanted = r.Replicas, r.Wanted
}

// fill writes what is known by now into an answer.
func (s *spread) fill(p *api.Publication) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.GossipPeers, p.Replicas, p.Wanted = s.gossip, s.replicas, s.wanted
	p.Pending = s.gossip == 0 && s.replicas == 0
}

// tell gossips an offer and puts it into the DHT, both at once, and remembers what succeeded. The callers mark the thing as busy. Of
// what is unlisted nobody is told.
func (n *Node) tell(ctx context.Context, of *offer, t telling, s *spread) {
	if of.isUnlisted() {
		n.offers.told(of)
		n.offers.replicated(of)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var g errgroup.Group
	if t.gossip {
		g.Go(func() error { return n.announce(ctx, of, t.known, s) })
	}
	if t.dht {
		g.Go(func() error { return n.replicate(ctx, of, s) })
		g.Go(func() error { return n.provide(ctx, of) })
	}
	if err := g.Wait(); err != nil && ctx.Err() == nil && n.offers.get(of.Thing) == of {
		n.log.Warn("telling the mesh failed; it is tried again", "thing", of.Thing, "err", err)
	}
}

// announce gossips an offer. A TD that is known does not travel again: who missed it asks for it by its hash.
func (n *Node) announce(ctx context.Context, of *offer, known bool, s *spread) error {
	signed := of.Signed
	if known && of.desc != nil {
		signed = &td.Signed{Record: of.desc.Record.Bare(), TD: of.Signed.TD}
	}
	peers, err := n.gossip.Announce(ctx, signed)
	s.heard(peers)
	if err == nil && peers > 0 {
		n.offers.told(of)
	}
	return err
}

func (n *Node) replicate(ctx context.Context, of *offer, s *spread) error {
	r, err := n.dht.Publish(ctx, of.Signed)
	s.stored(r)
	if r.Replicas > 0 {
		n.offers.replicated(of)
	}
	return unlessAlone(err)
}

// provide says under which capabilities the thing is found here, as long as it is.
func (n *Node) provide(ctx context.Context, of *offer) error {
	switch {
	case n.offers.get(of.Thing) != of:
		return nil // It was withdrawn meanwhile, or something else is said of it.
	case of.desc == nil:
		n.dht.Unprovide(n.DID(), of.Thing)
		return nil
	}
	_, err := n.dht.Provide(ctx, of.desc.Record)
	return unlessAlone(err)
}

// unlessAlone drops the error that nobody was there: the answer says so, and it is tried again.
func unlessAlone(err error) error {
	if errors.Is(err, dht.ErrNoReplicas) || errors.Is(err, dht.ErrNoPeers) {
		return nil
	}
	return err
}
