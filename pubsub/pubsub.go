// Package pubsub publishes and receives signed records over gossipsub, on 16 capability topics.
//
// A record goes to the shard of each of its capabilities, "/lmos/<network>/adv/00" to "…/0f". The gossip below is
// gossipsub with a protocol id of its own. Messages carry no signature of the sender, because a record is signed by its
// owner. Every record is verified before it is forwarded; who forwards what cannot be true is disconnected and banned for
// a while. Gossip has no history: whoever joins late learns the rest elsewhere.
package pubsub

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/connmgr"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"

	gossip "github.com/libp2p/go-libp2p-pubsub"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

// Shards is the number of capability topics. Every node of a network must use the same.
const Shards = 16

// Options configure a [PubSub]. The zero value works.
type Options struct {
	// Network separates meshes that share wires: it is part of the protocol id and of every topic. Required.
	Network string
	// Verifier verifies records. Sharing one with the rest of the node saves verifying twice. Nil means one of its own
	// that knows did:key.
	Verifier *td.Verifier
	// Admits says whether records of an owner are taken; an error means no. It must not block. Nil admits everyone.
	Admits func(owner did.DID) error
	// Degree is how many neighbours a topic's mesh has: more costs bandwidth, fewer costs time and resilience. It is 3
	// to 24; zero means 5. A small node takes 4.
	Degree int
	// Shards are the shards to listen on, each below 16. Nil means all; records can be announced on any.
	Shards []byte
	// SharedNets are networks in which many nodes have one address, such as those behind a NAT. Elsewhere the
	// seventeenth node of an address costs all of them score. Loopback is always exempt.
	SharedNets []netip.Prefix
	// Deliver is given each accepted record that is news, from one goroutine of Run. It may take its time: what does
	// not fit into the queue before it is dropped and counted. It must not change what it is given. Nil drops
	// everything.
	Deliver func(s *td.Signed, r *td.Record)
	// Ban is told of a peer whose messages no honest node forwards, before its connections are closed. It should keep the
	// peer from being connected for that long. Nil lets it come back; its messages are refused all the same.
	Ban func(id peer.ID, how time.Duration)
	// Log may be nil.
	Log *slog.Logger

	pace *pace // of tests; nil is the usual one
}

// PubSub is a node's part in the gossip. Its methods are safe for concurrent use.
type PubSub struct {
	host   host.Host
	opts   Options
	log    *slog.Logger
	topics [Shards]*gossip.Topic
	shards map[string]byte    // by topic; never changes
	cancel context.CancelFunc // ends the goroutines of gossip
	relays []gossip.RelayCancelFunc

	pace       *pace
	replay     replay
	neighbours neighbours
	waiting    waiting
	adopted    chan adoption // on its way to all who listen
	queue      chan news     // on its way to Deliver
	bans       chan peer.ID  // to be disconnected
	counts     counts
	scores     atomic.Pointer[map[peer.ID]float64]
	closing    sync.Once
}

// news is an accepted record on its way to Deliver.
type news struct {
	signed *td.Signed
	record *td.Record
}

// New joins the gossip of h: from now on records are verified and forwarded. They are delivered while [PubSub.Run]
// runs. Call New before h dials, so that the first handshake already names the protocol; call Close before h is
// closed.
func New(h host.Host, o Options) (*PubSub, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	p := &PubSub{
		host: h, opts: o, log: o.Log, shards: shardsOf(o.Network),
		pace:    o.pace,
		replay:  replay{max: maxReplay},
		waiting: waiting{max: maxWaiting},
		adopted: make(chan adoption, 256),
		queue:   make(chan news, 1024),
		bans:    make(chan peer.ID, 256),
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	if err := p.join(ctx); err != nil {
		_ = p.Close()
		return nil, fmt.Errorf("join the gossip: %w", err)
	}
	return p, nil
}

// complete fills in the defaults and checks the rest.
func (o *Options) complete() error {
	if o.Network == "" {
		return errors.New("pubsub: Network is required")
	}
	if o.Degree == 0 {
		o.Degree = 5
	}
	if o.Degree < 3 || o.Degree > 24 {
		return fmt.Errorf("gossip degree %d: it must be 3 to 24", o.Degree)
	}
	if o.Shards == nil {
		for i := range Shards {
			o.Shards = append(o.Shards, byte(i))
		}
	}
	for _, s := range o.Shards {
		if s >= Shards {
			return fmt.Errorf("gossip shard %d: there are %d, from 0", s, Shards)
		}
	}
	if o.Verifier == nil {
		o.Verifier = td.NewVerifier(did.Keys())
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.pace == nil {
		o.pace = newPace()
	}
	return nil
}

// join starts gossipsub and enters the topics: all to speak, those of Options.Shards to listen.
func (p *PubSub) join(ctx context.Context) error {
	g, err := p.gossipSub(ctx)
	if err != nil {
		return err
	}
	for i := range p.topics {
		name := topicName(p.opts.Network, byte(i))
		// The validator comes first: a topic without one forwards anything.
		// It runs inline: gossipsub takes what it has no goroutine for as known, and the record would be unheard.
		err := g.RegisterTopicValidator(name, p.validator(byte(i)), gossip.WithValidatorInline(true))
		if err != nil {
			return err
		}
		if p.topics[i], err = g.Join(name); err != nil {
			return err
		}
	}
	for _, s := range p.opts.Shards {
		// A relay is a subscription without a reader: the validator hands on what it accepts, so that one bounded queue
		// stands before Deliver instead of one per topic.
		leave, err := p.topics[s].Relay()
		if err != nil {
			return err
		}
		p.relays = append(p.relays, leave)
	}
	return nil
}

// gossipSub starts gossipsub.
func (p *PubSub) gossipSub(ctx context.Context) (*gossip.PubSub, error) {
	h := metered{p.host, p, ctx}
	if _, ok := connmgr.SupportsDecay(p.host.ConnManager()); ok {
		return gossip.NewGossipSub(ctx, h, p.settings()...)
	}
	// The same without tags for the connection manager: without one that takes them, each message would be a warning.
	return gossip.NewGossipSubWithRouter(ctx, h, gossip.DefaultGossipSubRouter(h), p.settings()...)
}

// Run delivers what is heard, forwards what needs help, disconnects who is banned, and announces what waits for a first
// neighbour, until ctx ends. It returns nil after its last call of Deliver has returned.
func (p *PubSub) Run(ctx context.Context) error {
	var g sync.WaitGroup
	g.Go(func() { p.deliver(ctx) })
	g.Go(func() { p.speak(ctx) })
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

func (p *PubSub) speak(ctx context.Context) {
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			p.announceWaiting(ctx)
		case a := <-p.adopted:
			p.publishAdopted(ctx, a)
		case id := <-p.bans:
			p.expel(id)
		}
	}
}

// Close leaves the gossip. It may be called more than once, and while Run runs.
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

// Announce tells the record of s, as it is, to every shard that its capabilities belong to, and returns how many
// distinct peers listen there. A tombstone goes where its thing was heard of, or everywhere. Without any peer it
// returns 0 and no error, and what nobody heard is announced once the first neighbour is there, unless a newer record
// of the thing came between or it expired. To announce the same bytes again within ten minutes does nothing: a refresh
// is a new record. The TD goes along if it is inside the record; s.TD is not sent. The error wraps one of td's if the
// record is not valid now.
func (p *PubSub) Announce(ctx context.Context, s *td.Signed) (peers int, err error) {
	r, err := p.opts.Verifier.Record(s.Record, time.Now())
	if err != nil {
		return 0, fmt.Errorf("announce: %w", err)
	}
	key := r.Key()
	announced := map[peer.ID]bool{}
	where := p.speaks(r, key) // asked once: what is published here is heard here, too
	for i := range Shards {
		if !where.has(byte(i)) {
			continue
		}
		listeners := p.topics[i].ListPeers()
		for _, l := range listeners {
			announced[l] = true
		}
		if len(listeners) == 0 {
			p.counts.dropped.Add(p.waiting.keep(byte(i), key, s.Record))
			continue
		}
		p.waiting.drop(byte(i), key)
		if err := p.publish(ctx, byte(i), s.Record); err != nil {
			return len(announced), fmt.Errorf("announce %s: %w", r.Thing, err)
		}
	}
	return len(announced), nil
}

// publish sends an encoded record, which the caller has verified, to a shard.
func (p *PubSub) publish(ctx context.Context, shard byte, record []byte) error {
	err := p.topics[shard].Publish(ctx, record)
	if refused := (gossip.ValidationError{}); errors.As(err, &refused) {
		return errors.New("a newer record is known, or the owner is not admitted here")
	}
	if err == nil {
		p.counts.published.Add(1)
	}
	return err
}

// announceWaiting announces what waited for neighbours in the shards that have some now.
func (p *PubSub) announceWaiting(ctx context.Context) {
	for i := range Shards {
		if p.waiting.empty(byte(i)) || len(p.topics[i].ListPeers()) == 0 {
			continue
		}
		for _, record := range p.waiting.take(byte(i)) {
			if _, err := p.opts.Verifier.Record(record, time.Now()); err != nil {
				continue // it expired while it waited
			}
			if err := p.publish(ctx, byte(i), record); err != nil {
				p.log.Warn("announce late", "shard", i, "err", err)
			}
		}
	}
}

// Peers returns how many distinct peers listen on any shard.
func (p *PubSub) Peers() int {
	all := map[peer.ID]bool{}
	for _, t := range p.topics {
		for _, l := range t.ListPeers() {
			all[l] = true
		}
	}
	return len(all)
}

// Score returns what the gossip thinks of a peer, at most a second ago: above zero it has been useful, below -40
// it is told nothing, below -160 it is not listened to. The answer is false for a peer that is unknown.
func (p *PubSub) Score(id peer.ID) (float64, bool) {
	scores := p.scores.Load()
	if scores == nil {
		return 0, false
	}
	s, ok := (*scores)[id]
	return s, ok
}
