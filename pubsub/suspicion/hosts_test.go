package suspicion

import (
	"context"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/internal/testhost"
)

// TestRealHosts reports over real connections of each transport, with the default resource limits of libp2p.
func TestRealHosts(t *testing.T) {
	t.Parallel()
	for i, addr := range []string{"/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1"} {
		t.Run(addr, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			a, b, hosts := realNode(t, 100*i+1, addr), realNode(t, 100*i+2, addr), several(t, maxHosts)
			heard := make(chan struct{})
			b.onDial = heard
			b.run()
			a.list(false, hosts...)
			b.list(false, hosts...)
			if err := a.host.Connect(ctx, peer.AddrInfo{ID: b.host.ID(), Addrs: b.host.Addrs()}); err != nil {
				t.Fatal(err)
			}
			for !a.supports(b.host.ID()) { // until identify has listed the protocols
				select {
				case <-ctx.Done():
					t.Fatal("identify does not list the protocol")
				case <-time.After(time.Millisecond):
				}
			}
			a.SyncPeer(ctx, b.host.ID(), hosts)
			select {
			case <-ctx.Done():
				t.Fatalf("not received: %+v, %+v", a.Stats(), b.Stats())
			case <-heard:
			}
			if x, y := a.Stats(), b.Stats(); x.Sent != 1 || x.BytesOut != y.BytesIn || y.Received != maxHosts || y.Rejected != 0 {
				t.Errorf("%+v, %+v", x, y)
			}
		})
	}
}

// realNode listens on loopback.
func realNode(t *testing.T, i int, addr string) *node {
	t.Helper()
	return newNode(t, testhost.Listen(t, didtest.Key(2000+i).Libp2p(), addr))
}
