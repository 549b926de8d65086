package pubsub

import (
	"context"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/internal/testhost"
	"github.com/lmosd/lmosd/td"
)

// listen returns a host on a free port of loopback.
func listen(t *testing.T, n int) host.Host {
	t.Helper()
	return testhost.Listen(t, didtest.Key(n), "/ip4/127.0.0.1/tcp/0")
}

// TestThreeHosts checks that a record and its tombstone pass a node in the middle, on real connections.
func TestThreeHosts(t *testing.T) {
	t.Parallel()
	got := make(chan uint64, 8)
	a := weather(t, 1)
	var nodes []*node
	for i := range 3 {
		o := Options{}
		if i == 2 {
			o.Deliver = func(_ *td.Signed, r *td.Record) { got <- r.Seq }
		}
		nodes = append(nodes, start(t, listen(t, 50+i), o))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for i := range 2 {
		next := nodes[i+1].host
		if err := nodes[i].host.Connect(ctx, peer.AddrInfo{ID: next.ID(), Addrs: next.Addrs()}); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []int{1, 2, 1} {
		waitForPeers(ctx, t, nodes[i].topics[a.shard(t)], want)
	}
	// The mesh forms with the next heartbeat; the test does not wait for it.
	for seq, s := range []*td.Signed{a.signed(t, 1), a.tombstone(t, 2)} {
		if _, err := nodes[0].Announce(ctx, s); err != nil {
			t.Fatal(err)
		}
		select {
		case r := <-got:
			if r != uint64(seq)+1 {
				t.Errorf("got seq %d, want %d", r, seq+1)
			}
		case <-ctx.Done():
			t.Fatalf("seq %d did not arrive", seq+1)
		}
	}
}
