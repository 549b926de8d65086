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

// forger joins gossipsub on a host without validation.
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

// links receives a value for each peer that gossipsub has a queue for: messages to other peers are dropped.
type links chan struct{}

func (l links) Trace(e *pb.TraceEvent) {
	if e.GetType() == pb.TraceEvent_ON_NEW_OUTBOUND_STREAM {
		select {
		case l <- struct{}{}:
		default: // more than the test waits for
		}
	}
}

// wait waits for one peer.
func (l links) wait(ctx context.Context, t *testing.T) {
	t.Helper()
	select {
	case <-l:
	case <-ctx.Done():
		t.Fatal("gossipsub has no queue for its peer")
	}
}

// waitForPeers waits until n peers listen on a topic.
func waitForPeers(ctx context.Context, t *testing.T, topic *gossip.Topic, n int) {
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

// onDisconnect returns a function that waits until a host that connects later has lost its connection to a peer.
func onDisconnect(ctx context.Context, t *testing.T, h host.Host, id peer.ID) (wait func()) {
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
				t.Fatal("the peer is still connected")
			}
		}
	}
}

// TestPeersThatForgeRecordsAreDisconnected floods a node with forged records of fresh keys over real connections. Each key costs a window of
// verifications and its connection; an honest peer keeps its share and its connection.
func TestPeersThatForgeRecordsAreDisconnected(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	const forgers, bursts, each = 4, 10, 400
	var mu sync.Mutex
	banned, heard := map[peer.ID]time.Duration{}, make(chan uint64, forgers*bursts*each)
	victim := start(t, listen(t, 60), Options{Deliver: func(_ *td.Signed, r *td.Record) { heard <- r.Seq }, Ban: func(id peer.ID, how time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		banned[id] = how
	}})
	honest := start(t, listen(t, 61), Options{})
	at := peer.AddrInfo{ID: victim.host.ID(), Addrs: victim.host.Addrs()}
	if err := honest.host.Connect(ctx, at); err != nil {
		t.Fatal(err)
	}
	a := weather(t, 1)
	forged := forge(a.signed(t, 1).Record, forgers*bursts*each)
	var flood sync.WaitGroup
	defer flood.Wait()
	for i := range forgers {
		h := listen(t, 62+i)
		topic, linked := forger(t, h, a.shard(t))
		disconnected := onDisconnect(ctx, t, h, at.ID)
		if err := h.Connect(ctx, at); err != nil {
			t.Fatal(err)
		}
		waitForPeers(ctx, t, topic, 1)
		linked.wait(ctx, t)
		done := make(chan struct{})
		flood.Go(func() { // gossipsub may send a burst as one RPC, of which the window admits the first messages
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
	waitForPeers(ctx, t, honest.topics[a.shard(t)], 1)
	if _, err := honest.Announce(ctx, a.signed(t, 1)); err != nil {
		t.Fatal(err)
	}
	select {
	case seq := <-heard:
		if seq != 1 {
			t.Errorf("got seq %d, want 1", seq)
		}
	case <-ctx.Done():
		t.Fatal("the record of the honest peer was not delivered")
	}
	st := victim.Stats()
	// A window, and the messages admitted during the first verifications.
	if most := uint64(forgers*2*windowMin + 8); st.Banned != forgers || st.Verified > most || st.Dropped != 0 || honest.Peers() != 1 {
		t.Errorf("got %+v, want %d banned after at most %d verifications", st, forgers, most)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(banned) != forgers || banned[honest.host.ID()] != 0 {
		t.Errorf("got banned peers %v", banned)
	}
	if victim.host.Network().Connectedness(honest.host.ID()) != network.Connected {
		t.Error("the honest peer was disconnected")
	}
}

// TestRefusedMessagesAreNotCharged checks that messages of banned and graylisted peers are refused and not charged.
func TestRefusedMessagesAreNotCharged(t *testing.T) {
	t.Parallel()
	p := checker(t, Options{})
	for range maxOffenses {
		p.limiter.addOffense("forger", time.Now())
	}
	p.scores.Store(&map[peer.ID]float64{"gray": thresholds().GraylistThreshold - 1, "good": thresholds().GraylistThreshold})
	for _, c := range []struct {
		from peer.ID
		want int
	}{{"forger", 0}, {"gray", 0}, {"good", 3}, {"fresh", 3}} {
		rpc := &gossip.RPC{RPC: pb.RPC{Publish: []*pb.Message{{}, {}, {}}}}
		err := p.inspect(c.from, rpc)
		if refused := errors.Is(err, errRefused); refused != (c.want == 0) {
			t.Errorf("%s: got %v", c.from, err)
		}
		open := 0
		if f := p.limiter.peers[c.from]; f != nil {
			open = f.open
			if c.want == 0 && (f.share != ratelimit.Bucket{} || f.each != ratelimit.Bucket{} || f.bytes != ratelimit.Bucket{}) {
				t.Errorf("%s: was charged %+v", c.from, f)
			}
		}
		if open != c.want {
			t.Errorf("%s: %d messages wait for verification, want %d", c.from, open, c.want)
		}
	}
	if n := p.counts.refused.Load(); n != 6 || !p.limiter.pooled.IsFull(time.Now()) {
		t.Errorf("%d counted as refused, pool charged: %v", n, !p.limiter.pooled.IsFull(time.Now()))
	}
}

// TestInvalidHereOnly checks that records that only this node rejects, for example because of its clock, are not offenses.
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
		t.Error("a peer was banned for records that have expired here")
	}
}
