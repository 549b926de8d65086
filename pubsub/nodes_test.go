package pubsub

import (
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/libp2p/go-libp2p-pubsub/pb"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	gossip "github.com/libp2p/go-libp2p-pubsub"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/internal/testhost"
	"github.com/lmosd/lmosd/p2p/noderecord"
)

func nodeRecord(t testing.TB, n int, at time.Time) *noderecord.Record {
	t.Helper()
	r, err := noderecord.Sign(didtest.Key(n), "main", []ma.Multiaddr{ma.StringCast("/ip4/192.0.2.1/tcp/1")}, at)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The addresses that a node signs reach nodes that it is not connected with, once each, and not more often than every few seconds.
func TestNodeRecords(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		net := testhost.NewNetwork(t, time.Millisecond)
		var nodes []*node
		got := make(chan did.DID, 64)
		for i := range 3 {
			o := Options{}
			if i == 2 {
				o.Nodes = noderecord.NewBook("main", func(id did.DID) bool { got <- id; return true })
			}
			nodes = append(nodes, start(t, net.Add(), o))
			if i > 0 {
				net.Connect(nodes[i-1].host, nodes[i].host)
			}
		}
		time.Sleep(3 * time.Second) // the mesh forms
		announce := func(at time.Duration, n int) error {
			t.Helper()
			peers, err := nodes[0].AnnounceNode(t.Context(), nodeRecord(t, n, time.Now().Add(at)))
			if err == nil && peers != 1 {
				t.Errorf("%d peers", peers)
			}
			time.Sleep(time.Second)
			synctest.Wait()
			return err
		}
		for _, n := range []int{1, 2} {
			if err := announce(0, n); err != nil {
				t.Fatal(err)
			}
		}
		if len(got) != 2 {
			t.Fatalf("%d records arrived", len(got))
		}
		if r := <-got; r != didtest.Key(1).DID() {
			t.Errorf("the first is that of %s", r)
		}
		<-got
		for _, at := range []time.Duration{0, -time.Minute, noderecord.MinInterval / 10} {
			if err := announce(at, 1); err != nil || len(got) > 0 {
				t.Errorf("a record from %s later: %v; %d arrived", at, err, len(got))
			}
		}
		time.Sleep(noderecord.MinInterval)
		if err := announce(0, 1); err != nil || len(got) != 1 {
			t.Errorf("%v; %d records arrived", err, len(got))
		}
	})
}

func TestValidateNode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		net := testhost.NewNetwork(t, time.Millisecond)
		n, from := start(t, net.Add(), Options{}), peer.ID(didtest.Key(7).Peer())
		good := nodeRecord(t, 1, time.Now()).Raw
		changed := append([]byte(nil), good...)
		changed[len(changed)/2] ^= 1
		for i, c := range []struct {
			raw  []byte
			want gossip.ValidationResult
		}{
			{good, gossip.ValidationAccept}, {good, gossip.ValidationIgnore}, {changed, gossip.ValidationReject}, {nil, gossip.ValidationReject},
			{nodeRecord(t, 2, time.Now().Add(-2*noderecord.Life)).Raw, gossip.ValidationIgnore},
		} {
			m := &gossip.Message{Message: &pb.Message{Data: c.raw}}
			if got := n.guarded(n.validateNode)(t.Context(), from, m); got != c.want {
				t.Errorf("%d: got %v, want %v", i, got, c.want)
			}
		}
		if !n.limiter.hasOffended(from) {
			t.Error("malformed records are no offense")
		}
	})
}
