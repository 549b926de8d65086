package p2p

import (
	"testing"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"

	"github.com/lmosd/lmosd/dht"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/interact/stream"
)

func TestLimitsHaveDefaults(t *testing.T) {
	t.Parallel()
	if got, want := (Limits{}).WithDefaults(), (Limits{96, 128, 200, 256 << 20, 64, 5}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	own := Limits{1, 2, 3, 4, 5, 6}
	if got := own.WithDefaults(); got != own {
		t.Errorf("got %+v, want the given values", got)
	}
	if files() < 64 || files() > 8192 {
		t.Errorf("limit of %d open files", files())
	}
}

// conns opens inbound connections from an address until the manager refuses, at most n.
func conns(t testing.TB, rm network.ResourceManager, from string, n int) int {
	t.Helper()
	for i := range n {
		scope, err := rm.OpenConnection(network.DirInbound, false, addrs(t, from)[0])
		if err != nil {
			return i
		}
		t.Cleanup(scope.Done)
	}
	return n
}

func TestConnectionsPerAddressAreLimited(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		from string
		want int
	}{
		"a public address":     {"/ip4/8.8.8.8/tcp/1", 4},
		"a subnet of IPv6":     {"/ip6/2001:4860::1/tcp/1", 4},
		"this machine":         {"/ip4/127.0.0.1/tcp/1", 20},
		"this machine by IPv6": {"/ip6/::1/tcp/1", 20},
	} {
		rm, err := resourceManager(Limits{PerAddress: 4, PerAddressRate: 100}.WithDefaults(), "test")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = rm.Close() })
		if got := conns(t, rm, c.from, 20); got != c.want {
			t.Errorf("%s gets %d connections, want %d", name, got, c.want)
		}
	}
}

func TestStreamsPerPeerAreLimited(t *testing.T) {
	t.Parallel()
	rm, err := resourceManager(Limits{Streams: 3}.WithDefaults(), "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rm.Close() })
	greedy, modest := peer.ID(didtest.NewKey().Peer()), peer.ID(didtest.NewKey().Peer())
	opens := func(from peer.ID, proto protocol.ID) bool {
		s, err := rm.OpenStream(from, network.DirInbound)
		if err != nil {
			return false
		}
		if err := s.SetProtocol(proto); err != nil {
			s.Done()
			return false
		}
		t.Cleanup(s.Done)
		return true
	}
	kad, records := dht.Protocols("test")
	for proto, want := range map[protocol.ID]int{stream.Protocol("test"): 3, kad: 8, records: 16} {
		rm, got := peer.ID(didtest.NewKey().Peer()), 0
		for range 30 {
			if opens(rm, proto) {
				got++
			}
		}
		if got != min(want, 6) { // the limit of all streams of a peer is twice Streams
			t.Errorf("one peer gets %d streams of %s, want %d", got, proto, want)
		}
		if !opens(greedy, proto) || !opens(modest, proto) {
			t.Errorf("another peer gets no stream of %s", proto)
		}
	}
}
