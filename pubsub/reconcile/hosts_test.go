package reconcile

import (
	"context"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/internal/testhost"
)

// TestRealHosts syncs over real connections, of each transport, with the library's own limits of memory.
func TestRealHosts(t *testing.T) {
	t.Parallel()
	for i, addr := range []string{"/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1"} {
		t.Run(addr, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			a, b := realNode(t, 10*i+1, addr), realNode(t, 10*i+2, addr)
			if err := a.host.Connect(ctx, peer.AddrInfo{ID: b.host.ID(), Addrs: b.host.Addrs()}); err != nil {
				t.Fatal(err)
			}
			for j := range 200 {
				a.add(t, signed(t, j, 1))
				b.add(t, signed(t, 100+j, 1+uint64(j%2)))
			}
			b.add(t, large(t, 1))
			r, err := a.Sync(ctx, b.host.ID())
			if err != nil || r.Received != 151 || r.Sent != 100 {
				t.Fatalf("got %+v, %v", r, err)
			}
			same(t, a, b, 301)
			if r, err := a.Sync(ctx, b.host.ID()); err != nil || r.Turns != 1 {
				t.Errorf("again: %+v, %v", r, err)
			}
			for _, n := range []*node{a, b} {
				if st := n.Stats(); st.Violations+st.Refused+st.Failed+st.Panics != 0 {
					t.Errorf("got %+v", st)
				}
			}
		})
	}
}

// realNode listens on loopback.
func realNode(t *testing.T, i int, addr string) *node {
	t.Helper()
	h := testhost.Listen(t, didtest.Key(2000+i).Libp2p(), addr)
	n := newNode()
	n.host = h
	var err error
	if n.Reconciler, err = New(h, n.options()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}
