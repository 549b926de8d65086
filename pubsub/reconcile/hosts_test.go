package reconcile

import (
	"testing"

	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/internal/testhost"
)

// TestRealHosts syncs over real connections, of each transport, with the library's own limits of memory.
func TestRealHosts(t *testing.T) {
	t.Parallel()
	for i, addr := range []string{"/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1"} {
		t.Run(addr, func(t *testing.T) {
			t.Parallel()
			a, b := start(t, testhost.Listen(t, didtest.Key(2*i+1), addr)), start(t, testhost.Listen(t, didtest.Key(2*i+2), addr))
			testhost.Connect(t, a.host, b.host)
			for j := range 200 {
				a.add(t, signed(t, j, 1))
				b.add(t, signed(t, 100+j, 1+uint64(j%2)))
			}
			b.add(t, large(t, 1))
			r, err := a.Sync(t.Context(), b.host.ID())
			if err != nil || r.Received != 151 || r.Sent != 100 {
				t.Fatalf("got %+v, %v", r, err)
			}
			same(t, a, b, 301)
			if r, err := a.Sync(t.Context(), b.host.ID()); err != nil || r.Rounds != 1 {
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
