package dht

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/internal/testhost"
	"github.com/lmosd/lmosd/td"
)

// simulated makes hosts of a simulated network with 10 ms between any two, in the bubble of a test.
type simulated struct {
	t     *testing.T
	net   *testhost.Network
	nodes []*node
}

func newSimulated(t *testing.T) *simulated {
	return &simulated{t: t, net: testhost.NewNetwork(t, 10*time.Millisecond)}
}

// close stops the nodes.
func (s *simulated) close() {
	for _, n := range s.nodes {
		n.stop()
	}
}

// wait advances the simulated time.
func (s *simulated) wait(d time.Duration) { _ = backoff.Sleep(s.t.Context(), d) }

// host adds a host that can reach every other, which has no node yet.
func (s *simulated) host() (int, host.Host) {
	i := len(s.net.Hosts())
	h, err := s.net.AddPeer(testPrivKey(s.t, i), testAddr(s.t, fmt.Sprintf("/ip4/10.0.%d.%d/tcp/4001", i/200, i%200+1)))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, other := range s.net.Hosts() {
		if other.ID() != h.ID() {
			if _, err := s.net.LinkPeers(h.ID(), other.ID()); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	return i, h
}

func (s *simulated) start(i int, h host.Host, peers func() []peer.AddrInfo, change ...func(*Options)) *node {
	n := start(s.t, i, h, peers, change...)
	s.nodes = append(s.nodes, n)
	return n
}

// add starts a node with the bootstrap peer seed.
func (s *simulated) add(seed *node, change ...func(*Options)) *node {
	i, h := s.host()
	var peers func() []peer.AddrInfo
	if seed != nil {
		peers = seededBy(seed)
	}
	return s.start(i, h, peers, change...)
}

// mesh starts n nodes that join through the first, and waits until they have.
func (s *simulated) mesh(n int, change ...func(*Options)) []*node {
	first := s.add(nil, change...)
	for range n - 1 {
		s.add(first, change...)
	}
	joined(s.t, s.nodes)
	s.wait(10 * time.Second) // tables fill
	return s.nodes
}

// warm starts n servers with full routing tables, without the messages of joining.
func (s *simulated) warm(n int) []*node {
	for range n {
		s.add(nil)
	}
	for _, n := range s.nodes {
		for _, o := range s.nodes {
			if o != n {
				n.host.Peerstore().AddAddrs(o.host.ID(), o.host.Addrs(), time.Hour)
				_, _ = n.kad.RoutingTable().TryAddPeer(o.host.ID(), true, false)
			}
		}
	}
	return s.nodes
}

// simulate runs test on a mesh of n simulated nodes, in simulated time.
func simulate(t *testing.T, n int, test func(t *testing.T, s *simulated, nodes []*node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newSimulated(t)
		defer s.close()
		test(t, s, s.mesh(n))
	})
}

func TestMeshOfTwenty(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSimulated(t)
		defer s.close()
		nodes := s.mesh(20)
		weather := nodes[3].thing(t, "Weather", 1, "urn:example:weather:forecast")
		r := nodes[3].offer(t, weather)
		if r.Wanted != 19 || r.Replicas != 19 {
			t.Errorf("published to %d of %d, want all 19 others", r.Replicas, r.Wanted)
		}
		rec := nodes[3].record(t, weather)
		for i, n := range nodes {
			if _, err := n.Get(t.Context(), rec.Owner, rec.Thing); err != nil {
				t.Errorf("node %d: Get: %v", i, err)
			}
			if i == 3 {
				continue
			}
			all, c := n.found(t, td.Query{Capability: []string{"example:weather"}})
			if len(all) != 1 || !c.Complete() {
				t.Errorf("node %d: found %d, coverage %+v", i, len(all), c)
			}
		}
		late := s.add(nodes[7])
		start := time.Now()
		if err := late.Wait(t.Context(), 5); err != nil {
			t.Fatal(err)
		}
		all, c := late.found(t, td.Query{Capability: []string{"example"}})
		if len(all) != 1 || !c.Complete() {
			t.Errorf("a late node found %d, coverage %+v", len(all), c)
		}
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("a late node has its first answer after %v", took)
		}
	})
}

// TestMeshOutlivesItsBootstrapPeer stops the bootstrap peer of all nodes, and half of the others.
func TestMeshOutlivesItsBootstrapPeer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSimulated(t)
		defer s.close()
		nodes := s.mesh(20)
		weather := nodes[19].thing(t, "Weather", 1, "urn:weather")
		nodes[19].offer(t, weather)
		for _, n := range nodes[:10] {
			s.kill(n)
		}
		rec := nodes[19].record(t, weather)
		for i, n := range nodes[10:19] {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			if _, err := n.Get(ctx, rec.Owner, rec.Thing); err != nil {
				t.Errorf("node %d: Get: %v", i+10, err)
			}
			if all := mustFind(t, n, td.Query{Capability: []string{"weather"}}); len(all) != 1 {
				t.Errorf("node %d: found %d", i+10, len(all))
			}
		}
	})
}

// kill makes a node unreachable, as a power cut does.
func (s *simulated) kill(n *node) {
	id := n.host.ID()
	for _, other := range s.net.Peers() {
		if other == id {
			continue
		}
		// The link first: in between, a peer may dial again.
		if err := s.net.UnlinkPeers(id, other); err != nil {
			s.t.Fatal(err)
		}
	}
	// Disconnect again at rest: a running dial may have connected.
	for range 2 {
		for _, other := range s.net.Peers() {
			if err := s.net.DisconnectPeers(id, other); err != nil && other != id {
				s.t.Fatal(err)
			}
		}
		synctest.Wait()
	}
}

// TestBootstrapPeerDownAtStart starts nodes whose bootstrap peer starts 5 minutes later.
func TestBootstrapPeerDownAtStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSimulated(t)
		defer s.close()
		i, h := s.host()
		info := peer.AddrInfo{ID: h.ID(), Addrs: h.Addrs()}
		early := []*node{}
		for range 3 {
			j, hj := s.host()
			if err := s.net.UnlinkPeers(h.ID(), hj.ID()); err != nil {
				t.Fatal(err)
			}
			early = append(early, s.start(j, hj, func() []peer.AddrInfo { return []peer.AddrInfo{info} }))
		}
		thing := early[0].thing(t, "Early", 1, "urn:early")
		early[0].held.add(thing)
		if _, err := early[0].Publish(t.Context(), thing); !errors.Is(err, ErrNoReplicas) {
			t.Errorf("Publish: got %v, want no replicas", err)
		}
		if _, err := early[0].Provide(t.Context(), early[0].record(t, thing)); !errors.Is(err, ErrNoReplicas) {
			t.Errorf("Provide: got %v, want no replicas", err)
		}
		s.wait(5 * time.Minute)
		for _, n := range early {
			if n.Size() != 0 {
				t.Fatal("a node has joined nothing")
			}
			if _, err := s.net.LinkPeers(h.ID(), n.host.ID()); err != nil {
				t.Fatal(err)
			}
		}
		s.start(i, h, nil)
		s.wait(time.Minute)
		for i, n := range early {
			if n.Size() != 3 {
				t.Errorf("node %d has %d peers after a minute, want 3", i, n.Size())
			}
		}
		if all := mustFind(t, early[2], td.Query{Capability: []string{"early"}}); len(all) != 1 {
			t.Errorf("a Thing provided before the bootstrap peer started is found %d times", len(all))
		}
	})
}

// TestNetworkLargerThanK stores on the closest nodes only, and everybody finds it.
func TestNetworkLargerThanK(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSimulated(t)
		defer s.close()
		nodes := s.mesh(20, func(o *Options) { o.K = minBucket })
		for i, n := range nodes[:4] {
			r := n.offer(t, n.thing(t, fmt.Sprint("Thing ", i), 1, fmt.Sprintf("urn:kind:of:thing%d", i)))
			if r.Wanted != minBucket || r.Replicas != minBucket {
				t.Errorf("node %d: published to %d of %d, want %d", i, r.Replicas, r.Wanted, minBucket)
			}
		}
		for i, n := range nodes[4:] {
			if all, c := n.found(t, td.Query{Capability: []string{"kind:of"}}); len(all) != 4 || !c.Complete() {
				t.Errorf("node %d: found %d of 4, coverage %+v", i+4, len(all), c)
			}
			if all := mustFind(t, n, td.Query{Capability: []string{"kind:of:thing2"}}); len(all) != 1 {
				t.Errorf("node %d: found %d of 1", i+4, len(all))
			}
		}
	})
}

// TestMeshForADay runs a mesh for more than a day: renewed records stay, others expire.
func TestMeshForADay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSimulated(t)
		defer s.close()
		nodes := s.mesh(3)
		kept := nodes[1].thing(t, "Kept", 1, "urn:fruit:kept")
		lost := nodes[2].thing(t, "Lost", 1, "urn:fruit:lost")
		nodes[1].offer(t, kept)
		nodes[2].offer(t, lost)
		rec := nodes[2].record(t, lost)
		nodes[2].Unprovide(rec.Owner, rec.Thing)
		for i := range 5 { // 27.5 hours
			s.wait(5*time.Hour + 30*time.Minute)
			nodes[1].held.drop(kept)
			kept = nodes[1].thing(t, "Kept", uint64(i)+2, "urn:fruit:kept")
			nodes[1].offer(t, kept)
		}
		if _, err := nodes[0].Get(t.Context(), rec.Owner, rec.Thing); !errors.Is(err, did.ErrNotFound) {
			t.Errorf("Get of a record that was not renewed: %v", err)
		}
		all, c := nodes[0].found(t, td.Query{Capability: []string{"fruit"}})
		if len(all) != 1 || all[0].Seq != 6 || c.Asked != 1 {
			t.Errorf("found %d, asked %d; want the renewed Thing, from its one provider", len(all), c.Asked)
		}
		for i, n := range nodes {
			if u := n.Stats().Values; u.Entries != 1 {
				t.Errorf("node %d keeps %d values, want 1", i, u.Entries)
			}
		}
	})
}
