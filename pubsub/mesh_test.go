package pubsub

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	gossip "github.com/libp2p/go-libp2p-pubsub"
	"github.com/libp2p/go-libp2p/core/protocol"

	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/internal/testhost"
	"github.com/lmosd/lmosd/td"
)

// mesh returns n connected nodes, in a ring with random chords, after the topics have formed.
func mesh(t *testing.T, n int, o Options) (*testhost.Network, []*node) {
	t.Helper()
	s := testhost.NewNetwork(t, 20*time.Millisecond)
	nodes := make([]*node, n)
	for i := range nodes {
		nodes[i] = start(t, s.Add(), o)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	linked := map[[2]int]bool{}
	link := func(a, b int) {
		if a == b || linked[[2]int{a, b}] {
			return
		}
		linked[[2]int{a, b}], linked[[2]int{b, a}] = true, true
		s.Connect(nodes[a].host, nodes[b].host)
	}
	for i := range nodes {
		link(i, (i+1)%n)
		for range 3 {
			link(i, rng.IntN(n))
		}
	}
	time.Sleep(3 * time.Second)
	return s, nodes
}

// checkDelivered checks the sequence numbers of a that were delivered to all nodes but the first.
func checkDelivered(t *testing.T, nodes []*node, a agent, want string) {
	t.Helper()
	synctest.Wait()
	for i, n := range nodes[1:] {
		if got := n.delivered(a.id); got != want {
			t.Errorf("node %d: got %s, want %s", i+1, got, want)
		}
	}
}

func TestTwentyNodes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, nodes := mesh(t, 20, Options{})
		a := weather(t, 1)
		peers, err := nodes[0].Announce(t.Context(), a.signed(t, 5))
		if err != nil || peers < 2 {
			t.Fatalf("got %d peers, %v", peers, err)
		}
		time.Sleep(time.Second)
		checkDelivered(t, nodes, a, "[5]")
		if got := nodes[0].delivered(a.id); got != "[]" {
			t.Errorf("own records %s were delivered to the publisher", got)
		}

		// A refresh without its TD.
		if _, err := nodes[0].Announce(t.Context(), withoutTD(t, a.signed(t, 6))); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		checkDelivered(t, nodes, a, "[5 6]")

		// An older record cannot be announced after a newer one.
		ignored := nodes[3].Stats().Ignored
		if _, err := nodes[3].Announce(t.Context(), a.signed(t, 4)); err == nil {
			t.Error("an older record was announced")
		}
		time.Sleep(time.Second)
		checkDelivered(t, nodes, a, "[5 6]")
		if got := nodes[3].Stats().Ignored; got != ignored {
			t.Errorf("counted own message as ignored: %d", got)
		}

		// The tombstone reaches all nodes within a second.
		if _, err := nodes[0].Announce(t.Context(), a.tombstone(t, 7)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		checkDelivered(t, nodes, a, "[5 6 7]")

		for i, n := range nodes {
			s := n.Stats()
			if s.Rejected != 0 || s.Dropped != 0 || s.Topics != 16 || s.Peers != n.Peers() || s.Peers < 2 {
				t.Errorf("node %d: %+v", i, s)
			}
		}
	})
}

// attacker joins gossipsub without validation.
func attacker(t *testing.T, s *testhost.Network, network string) (send func(shard byte, data []byte), h *node) {
	t.Helper()
	h = &node{host: s.Add()}
	g, err := gossip.NewGossipSub(t.Context(), h.host,
		gossip.WithGossipSubProtocols([]protocol.ID{protocolID(network)},
			func(gossip.GossipSubFeature, protocol.ID) bool { return true }),
		gossip.WithMessageSignaturePolicy(gossip.StrictNoSign), gossip.WithNoAuthor(), gossip.WithMessageIdFn(messageID),
		gossip.WithFloodPublish(true))
	if err != nil {
		t.Fatal(err)
	}
	topics := map[byte]*gossip.Topic{}
	return func(shard byte, data []byte) {
		t.Helper()
		if topics[shard] == nil {
			topic, err := g.Join(topicName(network, shard))
			if err != nil {
				t.Fatal(err)
			}
			topics[shard] = topic
		}
		if err := topics[shard].Publish(t.Context(), data); err != nil {
			t.Fatal(err)
		}
	}, h
}

func TestTamperedRecordsCostScore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := testhost.NewNetwork(t, 10*time.Millisecond)
		victim, behind := start(t, s.Add(), Options{}), start(t, s.Add(), Options{})
		send, evil := attacker(t, s, "main")
		s.Connect(victim.host, behind.host)
		s.Connect(victim.host, evil.host)
		time.Sleep(2 * time.Second)
		a := weather(t, 1)
		good := a.signed(t, 1)
		for i := range 4 {
			bad := append([]byte{}, good.Record...)
			bad[len(bad)-1-i] ^= 1
			send(a.shard(t), bad)
		}
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if score, ok := victim.score(evil.host.ID()); !ok || score > -160 {
			t.Errorf("the attacker's score is %v, %v; want it below the graylist threshold", score, ok)
		}
		if score, _ := behind.score(victim.host.ID()); score < 0 {
			t.Errorf("the victim's score is %v: it forwarded invalid records", score)
		}
		// The second invalid record takes the peer below the graylist threshold; later ones are not verified.
		if st := victim.Stats(); st.Rejected < 2 || st.Delivered != 0 {
			t.Errorf("got %+v", st)
		}
		// Valid messages of a graylisted peer are ignored, too.
		send(a.shard(t), good.Record)
		time.Sleep(2 * time.Second)
		if got := victim.delivered(a.id) + behind.delivered(a.id); got != "[][]" {
			t.Errorf("got %s", got)
		}
	})
}

// TestIgnoredRecordsCostNoScore checks that records on which honest nodes may disagree cost no score and are not forwarded.
func TestIgnoredRecordsCostNoScore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := testhost.NewNetwork(t, 10*time.Millisecond)
		victim := start(t, s.Add(), Options{})
		behind := start(t, s.Add(), Options{})
		send, other := attacker(t, s, "main")
		s.Connect(victim.host, behind.host)
		s.Connect(victim.host, other.host)
		time.Sleep(2 * time.Second)
		a := weather(t, 1)
		now := time.Now()
		for _, r := range []*td.Signed{
			a.signedAt(t, 9, now.Add(-2*time.Hour)), a.signedAt(t, 9, now.Add(time.Hour)),
			a.signed(t, 5), a.signed(t, 4), a.signed(t, 3),
		} {
			send(a.shard(t), r.Record)
			time.Sleep(time.Second)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if st := victim.Stats(); st.Ignored != 4 || st.Delivered != 1 || st.Rejected != 0 || st.Banned != 0 {
			t.Errorf("got %+v", st)
		}
		if score, ok := victim.score(other.host.ID()); !ok || score < 0 {
			t.Errorf("score %v, %v", score, ok)
		}
		if got := behind.delivered(a.id); got != "[5]" {
			t.Errorf("the node behind received %s", got)
		}
	})
}

// TestAnnounceWaitsForTheFirstPeer checks that a record announced without a listening peer is published later.
func TestAnnounceWaitsForTheFirstPeer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := testhost.NewNetwork(t, 10*time.Millisecond)
		n, late := start(t, s.Add(), Options{}), start(t, s.Add(), Options{})
		a, b, c := weather(t, 1), weather(t, 2), agent{didtest.Key(3), "urn:short", "urn:short"}
		for _, r := range []*td.Signed{a.signed(t, 1), a.signed(t, 2), c.signedAt(t, 1, time.Now().Add(-59*time.Minute))} {
			if peers, err := n.Announce(t.Context(), r); peers != 0 || err != nil {
				t.Fatalf("got %d, %v", peers, err)
			}
		}
		time.Sleep(10 * time.Minute) // c has expired
		s.Connect(n.host, late.host)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if got := late.delivered(a.id); got != "[2]" {
			t.Errorf("got %s, want the newer one", got)
		}
		if got := late.delivered(c.id); got != "[]" {
			t.Errorf("got %s of an expired record", got)
		}
		if peers, err := n.Announce(t.Context(), b.signed(t, 1)); peers != 1 || err != nil {
			t.Errorf("got %d, %v", peers, err)
		}
	})
}

// TestLineBeforeTheMeshHasFormed checks that the last of three nodes in a line receives a record before a mesh has formed.
func TestLineBeforeTheMeshHasFormed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := testhost.NewNetwork(t, 10*time.Millisecond)
		first, middle, last := start(t, s.Add(), Options{}), start(t, s.Add(), Options{}), start(t, s.Add(), Options{})
		time.Sleep(3200 * time.Millisecond) // heartbeats are at 100 ms and then every second
		s.Connect(first.host, middle.host)
		s.Connect(middle.host, last.host)
		time.Sleep(200 * time.Millisecond)
		a := weather(t, 1)
		if peers, err := first.Announce(t.Context(), a.signed(t, 1)); peers != 1 || err != nil {
			t.Fatalf("got %d, %v", peers, err)
		}
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		for name, n := range map[string]*node{"middle": middle, "last": last} {
			if got := n.delivered(a.id); got != "[1]" {
				t.Errorf("%s received %s", name, got)
			}
		}
		// Its capability and its action are on two shards.
		if st := middle.Stats(); st.Delivered != 2 || st.Ignored != 0 || st.Published != 0 {
			t.Errorf("got %+v", st)
		}
		if st := last.Stats(); st.Delivered != 2 || st.Rejected != 0 {
			t.Errorf("got %+v", st)
		}
	})
}

// TestRecordOnSeveralShards checks that a Thing on two shards is delivered once to a node on both, and reaches a node behind it
// that listens on one.
func TestRecordOnSeveralShards(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := testhost.NewNetwork(t, 10*time.Millisecond)
		a := weather(t, 1)
		a.cap = "urn:telekom:billing"
		one, other := a.shard(t), td.Shard("weather")
		if one == other {
			t.Fatal("choose another capability: both are on one shard")
		}
		all := start(t, s.Add(), Options{})
		first := start(t, s.Add(), Options{Shards: []byte{one}})
		second := start(t, s.Add(), Options{Shards: []byte{other}})
		none := start(t, s.Add(), Options{Shards: []byte{}})
		middle := start(t, s.Add(), Options{})
		for _, n := range []*node{all, first, second, none} {
			s.Connect(middle.host, n.host)
		}
		time.Sleep(2 * time.Second)
		peers, err := all.Announce(t.Context(), a.signed(t, 1))
		if err != nil || peers != 1 {
			t.Fatalf("got %d, %v", peers, err)
		}
		time.Sleep(2 * time.Second)
		for name, n := range map[string]*node{"middle": middle, "first": first, "second": second} {
			if got := n.delivered(a.id); got != "[1]" {
				t.Errorf("%s: got %s", name, got)
			}
		}
		// A tombstone without capabilities is published on the shards of the Thing.
		published := middle.Stats().Published
		if _, err := middle.Announce(t.Context(), a.tombstone(t, 2)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		for name, n := range map[string]*node{"all": all, "first": first, "second": second} {
			if got := n.delivered(a.id); got != "[1 2]" && !(name == "all" && got == "[2]") {
				t.Errorf("%s: got %s", name, got)
			}
		}
		if got := middle.Stats().Published - published; got != 2 {
			t.Errorf("the tombstone went to %d shards, want the 2 of its thing", got)
		}
		if got := none.delivered(a.id); got != "[]" {
			t.Errorf("a node without shards received %s", got)
		}
		// A node that has not seen the Thing publishes the tombstone on all shards.
		if _, err := none.Announce(t.Context(), a.tombstone(t, 3)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if got := first.delivered(a.id); got != "[1 2 3]" {
			t.Errorf("got %s", got)
		}
	})
}

// TestSlowDeliverDropsAndCounts checks that records are dropped if Deliver is too slow.
func TestSlowDeliverDropsAndCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := testhost.NewNetwork(t, 10*time.Millisecond)
		stuck := make(chan struct{})
		slow := start(t, s.Add(), Options{Deliver: func(*td.Signed, *td.Record) { <-stuck }})
		defer close(stuck)
		n := start(t, s.Add(), Options{})
		s.Connect(slow.host, n.host)
		time.Sleep(2 * time.Second)
		a := weather(t, 1)
		total := cap(slow.queue) + 50
		for i := range total {
			a.id = fmt.Sprintf("urn:example:%d", i)
			if _, err := n.Announce(t.Context(), a.signed(t, 1)); err != nil {
				t.Fatal(err)
			}
			if i%16 == 0 {
				time.Sleep(time.Second)
			}
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		st := slow.Stats()
		// Each record is on two shards; Deliver holds one.
		if st.Dropped != 49 || st.Delivered != 2*uint64(total) {
			t.Errorf("got %+v", st)
		}
	})
}

func TestNetworksDoNotMerge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := testhost.NewNetwork(t, 10*time.Millisecond)
		a, b := start(t, s.Add(), Options{Network: "acme"}), start(t, s.Add(), Options{Network: "main"})
		s.Connect(a.host, b.host)
		time.Sleep(3 * time.Second)
		if a.Peers() != 0 || b.Peers() != 0 {
			t.Errorf("got %d and %d peers, want none", a.Peers(), b.Peers())
		}
	})
}
