package testnet

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/stream"
	"github.com/lmosd/lmosd/p2p"
	"github.com/lmosd/lmosd/p2p/noderecord"
	"github.com/lmosd/lmosd/p2p/relay"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/testnet/simnet"
)

// A population is a simulated network of the parts of nodes that reach others: the host of package p2p with its relays, the record of the node, and
// interact/stream. Gossip and the DHT, which carry the records and the role of relays between whole nodes, are functions of the population: 200 whole
// nodes would need 4 GB. The seed determines keys, delays and faults; the order of goroutines differs between runs.
type population struct {
	*testing.T
	seed  int64
	net   *simnet.Net
	delay func(a, b peer.ID) time.Duration
	nat   p2p.NAT // of the nodes
	nodes []*subject
	byID  map[peer.ID]*subject
	work  sync.WaitGroup // of processes that were killed

	r *rand.Rand // of the test's own goroutine

	mu     sync.Mutex // owns what follows
	order  *rand.Rand
	served []*subject // nodes that have stated that they relay, dead ones too, as in a DHT
}

// A subject is one node of a population.
type subject struct {
	of      *population
	n       int // from 0
	key     *keystore.Key
	id      peer.ID
	org     int        // -1: none
	outside netip.Addr // its address, or that of its router
	port    int
	public  bool
	local   interact.Thing // what it serves; nil: it offers nothing
	// book has the records of the others. It outlives the process: a node that starts again would receive them from the DHT.
	book *noderecord.Book

	// The rest is of the running process.
	alive   bool
	at      *simnet.Port
	host    *p2p.Host
	streams *stream.Binding
	stop    func()

	mu      sync.Mutex
	records int // that it has announced; owned by mu
}

func (s *subject) String() string { return fmt.Sprintf("node %d", s.n) }

// populate runs f in a network of the nodes that describe returns, which all run.
func populate(t *testing.T, seed int64, describe func(p *population), f func(p *population)) {
	t.Helper()
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		o := Options{Seed: seed, Latency: 5 * time.Millisecond, Farthest: 60 * time.Millisecond}
		p := &population{T: t, seed: seed, delay: o.delay, net: simnet.New(o.delay), byID: map[peer.ID]*subject{}, r: rand.New(rand.NewPCG(uint64(seed), 2)),
			order: rand.New(rand.NewPCG(uint64(seed), 3))}
		describe(p)
		defer p.end()
		for _, s := range p.nodes {
			if err := s.start(); err != nil {
				t.Fatal(err)
			}
		}
		f(p)
	})
}

// add adds a node. Those without a public address have the same private one, behind the router with the address outside.
func (p *population) add(org int, outside string, public bool) *subject {
	key, err := Key(p.seed, len(p.nodes)+1)
	if err != nil {
		p.Fatal(err)
	}
	s := &subject{of: p, n: len(p.nodes), key: key, id: peer.ID(key.Peer()), org: org, outside: netip.MustParseAddr(outside), port: 4667, public: public,
		book: noderecord.NewBook("sim", func(did.DID) bool { return true })}
	if !public {
		s.port = 20_000 + s.n
	}
	p.nodes, p.byID[s.id] = append(p.nodes, s), s
	return s
}

// relation is that of the organizations of two nodes: 0 and 1 are partners.
func (p *population) relation(a, b *subject) did.Relation {
	switch {
	case a.org < 0 || b.org < 0:
		return did.Untrusted
	case a.org == b.org:
		return did.Own
	}
	return did.Partner
}

// start starts the process of a node.
func (s *subject) start() (err error) {
	p := s.of
	outside := fmt.Sprintf("/ip4/%s/tcp/%d", s.outside, s.port)
	o := p2p.Options{Key: s.key, Network: "sim", PublicOnly: true, DialPublic: true, NAT: p.nat,
		Listen: []string{"/ip4/192.168.1.2/tcp/4667"}, FindRelays: s.findRelays,
		Relays: func(node did.DID) (bool, did.Relation) { return true, p.relation(s, p.of(node)) },
		Transport: func(scopes network.ResourceManager) (transport.Transport, error) {
			key, err := crypto.UnmarshalPrivateKey(s.key.Libp2p())
			if err != nil {
				return nil, err
			}
			s.at, err = p.net.Open(key.GetPublic(), ma.StringCast(outside), !s.public, scopes)
			return s.at, err
		}}
	if s.public {
		o.Listen, o.Announce = []string{outside}, []string{outside}
	}
	if s.host, err = p2p.New(o); err != nil {
		return err
	}
	s.streams = stream.New(s.host, stream.Options{Network: "sim", Addrs: s.book.Addrs, DialTimeout: 2 * time.Second})
	if s.local != nil {
		s.streams.Serve(s.local)
	}
	announcer := noderecord.NewAnnouncer(noderecord.AnnouncerOptions{Host: s.host, Signer: s.key, Network: "sim", Addrs: p2p.NodeAddrs,
		Offers: func() bool { return s.local != nil }, Gossip: s.gossip, Store: inDHT})
	if err := s.host.Start(); err != nil {
		return errors.Join(err, s.host.Close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	for _, run := range []func(context.Context) error{s.host.Run, s.streams.Run, announcer.Run} {
		work.Go(func() { _ = run(ctx) })
	}
	host, streams := s.host, s.streams
	s.stop = func() {
		cancel()
		work.Wait()
		if err := errors.Join(streams.Close(), host.Close()); err != nil {
			p.Errorf("%s: close: %v", s, err)
		}
	}
	s.alive = true
	return nil
}

// of returns the node with a DID.
func (p *population) of(node did.DID) *subject {
	id, err := node.Peer()
	if err != nil {
		p.Error(err)
	}
	return p.byID[peer.ID(id)]
}

// kill ends the process of a node: its system ends the connections, or if silent it has lost its power, and no other node notices.
func (s *subject) kill(silent bool) {
	s.alive = false
	if silent {
		s.at.Silence()
	} else {
		s.at.Kill()
	}
	s.of.work.Go(s.stop)
}

// end ends all processes.
func (p *population) end() {
	for _, s := range p.nodes {
		if s.alive {
			p.work.Go(s.stop)
		}
	}
	p.work.Wait()
	synctest.Wait()
}

// findRelays yields nodes that relay, some of which are dead, in any order.
func (s *subject) findRelays(ctx context.Context) iter.Seq[peer.AddrInfo] {
	return func(yield func(peer.AddrInfo) bool) {
		p := s.of
		time.Sleep(200 * time.Millisecond) // of a lookup
		p.mu.Lock()
		all := slices.Clone(p.served)
		p.order.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		p.mu.Unlock()
		for _, o := range all {
			if o != s && ctx.Err() == nil && !yield(peer.AddrInfo{ID: o.id, Addrs: []ma.Multiaddr{o.addr()}}) {
				return
			}
		}
	}
}

// addr is the address at which others see a node.
func (s *subject) addr() ma.Multiaddr {
	return ma.StringCast(fmt.Sprintf("/ip4/%s/tcp/%d", s.outside, s.port))
}

// gossip is what carries the record of a node to all others, within half a second.
func (s *subject) gossip(_ context.Context, r *noderecord.Record) (int, error) {
	s.mu.Lock()
	s.records++
	s.mu.Unlock()
	for _, o := range s.of.nodes {
		if o != s {
			time.AfterFunc(4*s.of.delay(s.id, o.id), func() { o.book.Keep(r) })
		}
	}
	return len(s.of.nodes), nil
}

// inDHT stores a record in the DHT, which has nothing that gossip has not delivered.
func inDHT(context.Context, *noderecord.Record) (replicas int, err error) { return 1, nil }

// announced returns the number of records that each node has announced.
func (p *population) announced() map[*subject]int {
	all := map[*subject]int{}
	for _, s := range p.nodes {
		s.mu.Lock()
		all[s] = s.records
		s.mu.Unlock()
	}
	return all
}

// places returns the reservations of a node.
func (s *subject) places() []relay.Place {
	r, _ := s.host.Relays()
	places, _ := r.State()
	return places
}

// living returns the nodes that run and for which f is true.
func (p *population) living(f func(*subject) bool) (all []*subject) {
	for _, s := range p.nodes {
		if s.alive && f(s) {
			all = append(all, s)
		}
	}
	return all
}

// within waits until cond returns no reason why it does not hold, and returns after how long. After the limit the test fails.
func (p *population) within(limit time.Duration, what string, cond func() string) time.Duration {
	p.Helper()
	began := time.Now()
	for {
		why := cond()
		took := time.Since(began)
		switch {
		case why == "":
			p.Logf("%s: after %v, %v are allowed", what, took.Round(time.Millisecond), limit)
			return took
		case took >= limit:
			p.Fatalf("%s: not after %v: %s", what, limit, why)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// thingAt describes a Thing at hosts, without their addresses: these are in the records of the nodes. It has an action "work", which may run once
// only, and a safe one, "look".
func thingAt(id string, hosts ...*subject) *td.Description {
	d := &td.Description{Thing: &td.Thing{ID: id, Actions: map[string]*td.Action{"work": {}, "look": {Safe: true}}}, Record: &td.Record{Thing: id}}
	for _, s := range hosts {
		d.Record.Hosts = append(d.Record.Hosts, td.Host{Node: s.key.DID()})
	}
	return d
}

// echo answers a call with the number of its node.
func (s *subject) echo(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	r := m.Reply(interact.ActionStatus, "", fmt.Appendf(nil, "%d", s.n))
	r.Status = interact.StatusCompleted
	return interact.One(r)
}
