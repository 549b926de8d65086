package suspicion

import (
	"testing"

	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/internal/poll"
	"github.com/lmosd/lmosd/internal/testhost"
)

// TestRealHosts reports over real connections of each transport, with the default resource limits of libp2p.
func TestRealHosts(t *testing.T) {
	t.Parallel()
	for i, addr := range []string{"/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1"} {
		t.Run(addr, func(t *testing.T) {
			t.Parallel()
			a, b := newNode(t, testhost.Listen(t, didtest.Key(2*i+1), addr)), newNode(t, testhost.Listen(t, didtest.Key(2*i+2), addr))
			hosts := several(t, maxHosts)
			received := make(chan struct{})
			b.onDial = received
			b.run()
			a.list(false, hosts...)
			b.list(false, hosts...)
			testhost.Connect(t, a.host, b.host)
			poll.Until(t, "the protocols of the peer", func() bool { return a.supports(b.host.ID()) })
			a.SyncPeer(t.Context(), b.host.ID(), hosts)
			if x, y := a.Stats(), b.Stats(); x.Sent != 1 {
				t.Fatalf("the report was not sent: %+v, %+v", x, y)
			}
			<-received
			if x, y := a.Stats(), b.Stats(); x.Sent != 1 || x.BytesOut != y.BytesIn || y.Received != maxHosts || y.Rejected != 0 {
				t.Errorf("%+v, %+v", x, y)
			}
		})
	}
}
