package pubsub

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"

	gossip "github.com/libp2p/go-libp2p-pubsub"
	pb "github.com/libp2p/go-libp2p-pubsub/pb"

	"github.com/lmosd/lmosd/internal/ratelimit"
	"github.com/lmosd/lmosd/td"
)

// forge returns copies of a record that differ in their signatures.
func forge(record []byte, n int) [][]byte {
	all := make([][]byte, n)
	for i := range all {
		all[i] = bytes.Clone(record)
		all[i][len(record)-1-i%60] ^= byte(1 + i/60)
	}
	return all
}

// forger speaks the gossip of a host without checking anything.
func forger(t *testing.T, h host.Host, shard byte) (*gossip.Topic, links) {
	t.Helper()
	added := make(links, 16)
	g, err := gossip.NewGossipSub(t.Context(), h, gossip.WithEventTracer(added),
		gossip.WithGossipSubProtocols([]protocol.ID{protocolID("main")},
			func(gossip.GossipSubFeature, protocol.ID) bool { return true }),
		gossip.WithMessageSignaturePolicy(gossip.StrictNoSign), gossip.WithNoAuthor(), gossip.WithMessageIdFn(messageID),
		gossip.WithPeerOutboundQueueSize(1024), gossip.WithFloodPublish(true))
	if err != nil {
		t.Fatal(err)
	}
	topic, err := g.Join(topicName("main", shard))
	if err != nil {
		t.Fatal(err)
	}
	return topic, added
}

// links gets a value for each peer that gossipsub has a queue for: what is published to others is dropped.
type links chan struct{}

func (l links) Trace(e *pb.TraceEvent) {
	if e.GetType() == pb.TraceEvent_ON_NEW_OUTBOUND_STREAM {
		select {
		case l <- struct{}{}:
		default: // more than the test waits for
		}
	}
}

// wait waits for one such peer.
func (l links) wait(ctx context.Context, t *testing.T) {
	t.Helper()
	select {
	case <-l:
	case <-ctx.Done():
		t.Fatal("gossipsub has no queue for its peer")
	}
}

// meets waits until n peers listen on a topic.
func meets(ctx context.Context, t *testing.T, topic *gossip.Topic, n int) {
	t.Helper()
	events, err := topic.EventHandler()
	if err != nil {
		t.Fatal(err)
	}
	defer events.Cancel()
	for n > 0 {
		e, err := events.NextPeerEvent(ctx)
		if err != nil {
			t.Fatalf("%d peers are missing: %v", n, err)
		}
		if e.Type == gossip.PeerJoin {
			n--
		} else {
			n++
		}
	}
}

// loses returns what waits until a host that is connected to a peer from now on has lost it.
func loses(ctx context.Context, t *testing.T, h host.Host, id peer.ID) (wait func()) {
	t.Helper()
	changes, err := h.EventBus().Subscribe(new(event.EvtPeerConnectednessChanged))
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		defer changes.Close()
		for {
			select {
			case e := <-changes.Out():
				if e := e.(event.EvtPeerConnectednessChanged); e.Peer == id && e.Connectedness != network.Connected {
					return
				}
			case <-ctx.Done():
				t.Fatal("it is still connected")
			}
		}
	}
}

// TestForgersAreDisconnected has fresh keys that flood a node with forged records over real connections. Each costs a window of
// verifications and its connection; an honest peer is heard, keeps its share and its connection.
func TestForgersAreDisconnected(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	const forgers, bursts, each = 4, 10, 400
	var mu sync.Mutex
	banned, heard := map[peer.ID]time.Duration{}, make(chan uint64, forgers*bursts*each)
	victim := start(t, realHost(t, 60), Options{Deliver: func(_ *td.Signed, r *td.Record) { heard <- r.Seq }, Ban: func(id peer.ID, how time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		banned[id] = how
	}})
	honest := start(t, realHost(t, 61), Options{})
	at := peer.AddrInfo{ID: victim.host.ID(), Addrs: victim.host.Addrs()}
	if err := honest.host.Connect(ctx, at); err != nil {
		t.Fatal(err)
	}
	a := weather(t, 1)
	forged := forge(a.signed(t, 1).Record, forgers*bursts*each)
	var flood sync.WaitGroup
	defer flood.Wait()
	for i := range forgers {
		h := realHost(t, byte(62+i))
		topic, linked := forger(t, h, a.shard(t))
		disconnected := loses(ctx, t, h, at.ID)
		if err := h.Connect(ctx, at); err != nil {
			t.Fatal(err)
		}
		meets(ctx, t, topic, 1)
		linked.wait(ctx, t)
		done := make(chan struct{})
		flood.Go(func() { // gossipsub may send a burst as one message, of which the window lets in the first
			for burst := range slices.Chunk(forged[i*bursts*each:(i+1)*bursts*each], each) {
				for _, record := range burst {
					if topic.Publish(ctx, record) != nil {
						return
					}
				}
				select {
				case <-done:
					return
				case <-time.After(time.Second):
				}
			}
		})
		disconnected()
		close(done)
	}
	meets(ctx, t, honest.topics[a.shard(t)], 1)
	if _, err := honest.Announce(ctx, a.signed(t, 1)); err != nil {
		t.Fatal(err)
	}
	select {
	case seq := <-heard:
		if seq != 1 {
			t.Errorf("got seq %d, want 1", seq)
		}
	case <-ctx.Done():
		t.Fatal("the honest peer is not heard")
	}
	st := victim.Stats()
	// A window, and what was let in while the first verifications ran.
	if most := uint64(forgers*2*windowMin + 8); st.Banned != forgers || st.Verified > most || st.Dropped != 0 || honest.Peers() != 1 {
		t.Errorf("got %+v, want %d banned after at most %d verifications", st, forgers, most)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(banned) != forgers || banned[honest.host.ID()] != 0 {
		t.Errorf("banned are %v", banned)
	}
	if victim.host.Network().Connectedness(honest.host.ID()) != network.Connected {
		t.Error("the honest peer was disconnected")
	}
}

// TestRefusedBeforeAnyCost has peers that are banned, or below the graylist, send what would be let in otherwise.
func TestRefusedBeforeAnyCost(t *testing.T) {
	t.Parallel()
	p := checker(t, Options{})
	for range maxOffenses {
		p.pace.offend("forger", time.Now())
	}
	p.scores.Store(&map[peer.ID]float64{"gray": thresholds().GraylistThreshold - 1, "good": thresholds().GraylistThreshold})
	for _, c := range []struct {
		from peer.ID
		want int
	}{{"forger", 0}, {"gray", 0}, {"good", 3}, {"fresh", 3}} {
		rpc := &gossip.RPC{RPC: pb.RPC{Publish: []*pb.Message{{}, {}, {}}}}
		err := p.inspect(c.from, rpc)
		if refused := errors.Is(err, errUnseen); refused != (c.want == 0) {
			t.Errorf("%s: got %v", c.from, err)
		}
		open := 0
		if f := p.pace.peers[c.from]; f != nil {
			open = f.open
			if c.want == 0 && (f.share != ratelimit.Bucket{} || f.each != ratelimit.Bucket{} || f.bytes != ratelimit.Bucket{}) {
				t.Errorf("%s: was charged %+v", c.from, f)
			}
		}
		if open != c.want {
			t.Errorf("%s: %d messages wait for verification, want %d", c.from, open, c.want)
		}
	}
	if n := p.counts.refused.Load(); n != 6 || !p.pace.pooled.IsFull(time.Now()) {
		t.Errorf("%d are counted as refused, the pool owes: %v", n, !p.pace.pooled.IsFull(time.Now()))
	}
}

// TestInvalidHereOnly has a peer forward what only this node takes for invalid, such as a node with another clock would. It is no offense.
func TestInvalidHereOnly(t *testing.T) {
	t.Parallel()
	p := checker(t, Options{})
	p.host = fakeHost{}
	a, now := weather(t, 1), time.Now()
	for i := range 3 * maxOffenses {
		for _, r := range []*td.Signed{a.signedAt(t, uint64(i), now.Add(-2*time.Hour)), a.signedAt(t, uint64(i), now.Add(time.Hour))} {
			m := &gossip.Message{Message: &pb.Message{Data: r.Record}}
			if got := p.validator(a.shard(t))(t.Context(), "peer", m); got != ignore {
				t.Errorf("got %v, want ignore", got)
			}
		}
	}
	if p.counts.banned.Load() != 0 || p.refuses("peer") {
		t.Error("who forwards what has expired here is banned")
	}
}
