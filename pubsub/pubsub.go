// Package pubsub publishes and receives signed records over gossipsub, on 16 capability topics.
//
// A record is published on the shard of each of its capabilities, "/lmos/<network>/adv/00" to "…/0f", over gossipsub with a
// protocol id of its own. Messages carry no signature of the sender, because the owner signs the record. Every record is verified
// before it is forwarded; a peer that forwards invalid records is disconnected and banned for 10 minutes. Gossipsub has no history:
// nodes that join later fetch records over other protocols. One more topic, "/lmos/<network>/nodes", carries the addresses that nodes sign.
package pubsub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/connmgr"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"

	gossip "github.com/libp2p/go-libp2p-pubsub"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/heartbeat"
	"github.com/lmosd/lmosd/p2p/noderecord"
	"github.com/lmosd/lmosd/td"
)

// Shards is the number of capability topics. Every node of a network must use the same.
const Shards = 16

// Options configure a [PubSub]. The zero value works.
type Options struct {
	// Network separates meshes on shared hosts: it is part of the protocol id and of every topic. Empty means "main".
	Network string
	// Verifier verifies records. A shared one saves double verification. Nil means a new one that resolves did:key.
	Verifier *td.Verifier
	// Degree is the number of peers in the mesh of a topic, 3 to 24: a higher one costs bandwidth, a lower one latency and
	// resilience. 0 means 5. A lean node uses 4.
	Degree int
	// Shards are the shards to subscribe to, each below 16. Nil means all. Records can be announced on any shard.
	Shards []byte
	// Deliver receives each accepted and new record, from one goroutine of Run. It may block: records that exceed the queue are
	// dropped and counted. It must not change its arguments. Nil discards all records.
	Deliver func(s *td.Signed, r *td.Record)
	// Nodes receives the records of other nodes, which are forwarded if it accepts them. Nil means a book that keeps none.
	Nodes *noderecord.Book
	// Ban receives a peer that forwarded invalid records, before its connections are closed. It should prevent connections to the
	// peer for that time. With nil the peer can reconnect; its messages are refused.
	Ban func(id peer.ID, how time.Duration)
	// Log may be nil.
	Log *slog.Logger

	limiter *limiter // for tests; nil means the default limits
}

// PubSub is the gossipsub participant of a node. Its methods are safe for concurrent use.
type PubSub struct {
	host   host.Host
	opts   Options
	log    *slog.Logger
	topics [Shards]*gossip.Topic
	shards map[string]byte    // by topic; immutable
	cancel context.CancelFunc // ends the goroutines of gossipsub
	relays []gossip.RelayCancelFunc

	limiter   *limiter
	replay    replay
	nodes     *gossip.Topic // of the records of nodes
	meshPeers meshPeers
	pending   pending
	adopted   chan adoption // to be published again
	queue     chan delivery // to be passed to Deliver
	bans      chan peer.ID  // to be disconnected
	counts    counts
	scores    atomic.Pointer[map[peer.ID]float64]
	closing   sync.Once
}

// delivery is an accepted record for Deliver.
type delivery struct {
	signed *td.Signed
	record *td.Record
}

// New joins the gossipsub network of h: from now on records are verified and forwarded. [PubSub.Run] delivers them. Call New before
// h dials, so that the first handshake lists the protocol; call Close before h is closed.
func New(h host.Host, o Options) (*PubSub, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	p := &PubSub{
		host: h, opts: o, log: o.Log, shards: shardsByTopic(o.Network),
		limiter: o.limiter,
		replay:  replay{max: maxReplay},
		pending: pending{max: maxPending},
		adopted: make(chan adoption, 256),
		queue:   make(chan delivery, 1024),
		bans:    make(chan peer.ID, 256),
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	if err := p.join(ctx); err != nil {
		_ = p.Close()
		return nil, fmt.Errorf("join gossipsub: %w", err)
	}
	return p, nil
}

// complete fills in the defaults and checks the rest.
func (o *Options) complete() error {
	if o.Network == "" {
		return errors.New("pubsub: Network is required")
	}
	o.Degree = cmp.Or(o.Degree, 5)
	if o.Degree < 3 || o.Degree > 24 {
		return fmt.Errorf("gossip degree %d: expected 3 to 24", o.Degree)
	}
	if o.Shards == nil {
		for i := range Shards {
			o.Shards = append(o.Shards, byte(i))
		}
	}
	for _, s := range o.Shards {
		if s >= Shards {
			return fmt.Errorf("gossip shard %d: expected 0 to %d", s, Shards-1)
		}
	}
	if o.Verifier == nil {
		o.Verifier = td.NewVerifier(did.Keys())
	}
	if o.Nodes == nil {
		o.Nodes = noderecord.NewBook(o.Network, func(did.DID) bool { return false })
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.limiter == nil {
		o.limiter = newLimiter()
	}
	return nil
}

// join starts gossipsub, joins all topics to publish, and subscribes to those of Options.Shards.
func (p *PubSub) join(ctx context.Context) error {
	g, err := p.gossipSub(ctx)
	if err != nil {
		return err
	}
	for i := range p.topics {
		name := topicName(p.opts.Network, byte(i))
		// The validator is registered first: a topic without one forwards every message. It runs inline: gossipsub marks a message
		// as seen even if no goroutine is free to validate it.
		err := g.RegisterTopicValidator(name, p.validator(byte(i)), gossip.WithValidatorInline(true))
		if err != nil {
			return err
		}
		if p.topics[i], err = g.Join(name); err != nil {
			return err
		}
	}
	if err := p.joinNodes(g); err != nil {
		return err
	}
	for _, s := range p.opts.Shards {
		// A relay is a subscription without a reader: the validator queues accepted records, so that one bounded queue serves all
		// topics.
		leave, err := p.topics[s].Relay()
		if err != nil {
			return err
		}
		p.relays = append(p.relays, leave)
	}
	return nil
}

func (p *PubSub) gossipSub(ctx context.Context) (*gossip.PubSub, error) {
	h := limitedHost{p.host, p, ctx}
	if _, ok := connmgr.SupportsDecay(p.host.ConnManager()); ok {
		return gossip.NewGossipSub(ctx, h, p.settings()...)
	}
	// Without tags for the connection manager: if it has no decaying tags, gossipsub logs a warning per message.
	return gossip.NewGossipSubWithRouter(ctx, h, gossip.DefaultGossipSubRouter(h), p.settings()...)
}

// Run delivers records, publishes adopted messages, disconnects banned peers, and announces pending records after the first peer
// connects, until ctx ends. It returns nil after the last call of Deliver has returned.
func (p *PubSub) Run(ctx context.Context) error {
	var g sync.WaitGroup
	g.Go(func() { p.deliver(ctx) })
	g.Go(func() { p.forward(ctx) })
	g.Wait()
	return nil
}

func (p *PubSub) deliver(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case n := <-p.queue:
			if p.opts.Deliver != nil {
				p.opts.Deliver(n.signed, n.record)
			}
		}
	}
}

func (p *PubSub) forward(ctx context.Context) {
	look := time.NewTicker(time.Second)
	defer look.Stop()
	loop := heartbeat.StartVital(ctx, "gossip", time.Second)
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			loop.Beat()
			p.announcePending(ctx)
		case a := <-p.adopted:
			p.publishAdopted(ctx, a)
		case id := <-p.bans:
			p.disconnect(id)
		}
	}
}

// Close leaves the gossipsub network. It may be called more than once, and while Run runs.
func (p *PubSub) Close() error {
	p.closing.Do(func() {
		for _, leave := range p.relays {
			leave()
		}
		p.host.RemoveStreamHandler(protocolID(p.opts.Network))
		p.cancel()
	})
	return nil
}

// Announce publishes the unchanged record of s on each shard of its capabilities, and returns the number of distinct peers that
// listen there. A tombstone is published on the shards on which the Thing was seen, else on all. Without a listening peer, Announce
// returns 0 and no error, and the record is published after the first peer connects, unless a newer record of the Thing replaces it
// or it expires. A repeated announcement of the same bytes within 10 minutes has no effect: a refresh is a new record. The TD is
// included only if the record contains it; s.TD is not sent. The error wraps one of td's if the record is not valid now. A record that is not public is refused.
func (p *PubSub) Announce(ctx context.Context, s *td.Signed) (peers int, err error) {
	r, err := p.opts.Verifier.Record(s.Record, time.Now())
	if err != nil {
		return 0, fmt.Errorf("announce: %w", err)
	}
	if r.Audience != td.Public {
		return 0, fmt.Errorf("announce %s: %w", r.Thing, errAudience)
	}
	key := r.CarrierKey()
	announced := map[peer.ID]bool{}
	where := p.shardsFor(r, key) // computed once: publishing changes it
	for i := range Shards {
		if !where.has(byte(i)) {
			continue
		}
		listeners := p.topics[i].ListPeers()
		for _, l := range listeners {
			announced[l] = true
		}
		if len(listeners) == 0 {
			p.counts.dropped.Add(p.pending.keep(byte(i), key, s.Record))
			continue
		}
		p.pending.drop(byte(i), key)
		if err := p.publish(ctx, byte(i), s.Record); err != nil {
			return len(announced), fmt.Errorf("announce %s: %w", r.Thing, err)
		}
	}
	return len(announced), nil
}

// publish publishes an encoded and verified record on a shard.
func (p *PubSub) publish(ctx context.Context, shard byte, record []byte) error {
	err := p.topics[shard].Publish(ctx, record)
	if refused := (gossip.ValidationError{}); errors.As(err, &refused) {
		return errors.New("record refused: a newer one is known, or the owner is not admitted")
	}
	if err == nil {
		p.counts.published.Add(1)
	}
	return err
}

// announcePending publishes the pending records of the shards that have peers now.
func (p *PubSub) announcePending(ctx context.Context) {
	for i := range Shards {
		if p.pending.empty(byte(i)) || len(p.topics[i].ListPeers()) == 0 {
			continue
		}
		for _, record := range p.pending.take(byte(i)) {
			if _, err := p.opts.Verifier.Record(record, time.Now()); err != nil {
				continue // expired
			}
			if err := p.publish(ctx, byte(i), record); err != nil {
				p.log.Warn("delayed announcement failed", "shard", i, "err", err)
			}
		}
	}
}

// Peers returns the number of distinct peers that listen on any shard.
func (p *PubSub) Peers() int {
	all := map[peer.ID]bool{}
	for _, t := range p.topics {
		for _, l := range t.ListPeers() {
			all[l] = true
		}
	}
	return len(all)
}

// score returns the gossipsub score of a peer, at most 1 s old: below -40 the peer receives no gossip, below -160 its messages are
// ignored. ok is false for an unknown peer.
func (p *PubSub) score(id peer.ID) (score float64, ok bool) {
	scores := p.scores.Load()
	if scores == nil {
		return 0, false
	}
	s, ok := (*scores)[id]
	return s, ok
}
