package p2p

import (
	"net/netip"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/did/didtest"
)

const viaPrivate, viaPublic = "/p2p/12D3KooWRrkUmMhPhxkzb4TgxEB9rpjCjbhsxRgVmgaFVg8WJmUK/p2p-circuit", "/p2p/12D3KooWMsmGnhxmYpuefyV19CBRs5AFVXEVcbhpFq8BfqF75Xw6/p2p-circuit"

func TestDialOrder(t *testing.T) {
	t.Parallel()
	const none = 0
	type delays map[string]time.Duration
	r := ranker{near: func(ip netip.Addr) bool { return netip.MustParsePrefix("192.168.1.0/24").Contains(ip) }}
	for name, want := range map[string]delays{
		"loopback":                       {"/ip4/127.0.0.1/udp/1/quic-v1": quicLater, "/ip4/127.0.0.1/tcp/1": none},
		"a local network":                {"/ip4/10.0.0.7/udp/1/quic-v1": quicLater, "/ip4/10.0.0.7/tcp/1": none},
		"a public address":               {"/ip4/1.2.3.4/udp/1/quic-v1": none, "/ip4/1.2.3.4/tcp/1": 250 * time.Millisecond},
		"QUIC only, nearby":              {"/ip4/10.0.0.7/udp/1/quic-v1": none},
		"a private TCP alone":            {"/ip4/192.168.1.2/tcp/1": none},
		"relays alone":                   {"/ip4/10.0.0.1/udp/1/quic-v1" + viaPrivate: none, "/ip4/1.2.3.4/udp/2/quic-v1" + viaPublic: 250 * time.Millisecond},
		"a relay with a private address": {"/ip4/1.2.3.4/udp/1/quic-v1": none, "/ip4/10.0.0.1/tcp/1" + viaPrivate: relayLater},
		"a relay beside a neighbor":      {"/ip4/192.168.1.7/tcp/1": none, "/ip4/1.2.3.4/udp/1/quic-v1" + viaPublic: relayLater},
		"WebSockets": {"/ip4/1.2.3.4/udp/1/quic-v1": none, "/ip4/1.2.3.4/tcp/443": 250 * time.Millisecond, "/ip4/1.2.3.4/tcp/443/ws": 450 * time.Millisecond,
			"/ip4/1.2.3.5/udp/1/quic-v1" + viaPublic: relayLater},
		"a relay after WebSockets": {"/ip4/1.2.3.4/tcp/443": none, "/ip4/1.2.3.4/tcp/443/tls/sni/node.example/ws": 200 * time.Millisecond,
			"/ip4/1.2.3.4/tcp/444/ws": 450 * time.Millisecond, "/ip4/1.2.3.5/udp/1/quic-v1" + viaPublic: relayLater},
		"WebSockets alone": {"/ip4/1.2.3.4/tcp/443/ws": none, "/ip4/127.0.0.1/tcp/443/ws": none},
		"a relay beside a private address elsewhere": {"/ip4/192.168.7.7/tcp/1": none, "/ip4/192.168.7.7/udp/1/quic-v1": quicLater,
			"/ip4/1.2.3.4/udp/1/quic-v1" + viaPublic: relayShortly},
	} {
		var addrs []ma.Multiaddr
		for a := range want {
			addrs = append(addrs, ma.StringCast(a))
		}
		got := r.rank(addrs)
		if len(got) != len(want) {
			t.Errorf("%s: %d addresses, want %d", name, len(got), len(want))
		}
		for _, d := range got {
			if d.Delay != want[d.Addr.String()] {
				t.Errorf("%s: %s is dialed after %v, want %v", name, d.Addr, d.Delay, want[d.Addr.String()])
			}
		}
	}
}

// AutoNAT judges addresses of all kinds from the first request on.
func TestDialBack(t *testing.T) {
	t.Parallel()
	h := started(t, Options{Listen: []string{anyTCP, anyQUIC}, NAT: NAT{AutoNAT: true}})
	s, err := h.dialBack()
	if err != nil {
		t.Fatal(err)
	}
	id := peer.ID(didtest.NewKey().Peer())
	for _, a := range []string{"/ip4/1.2.3.4/udp/1/quic-v1", "/ip4/1.2.3.4/tcp/1", "/ip6/2a00::1/udp/1/quic-v1", "/ip6/2a00::1/tcp/1"} {
		if !s.CanDial(id, ma.StringCast(a)) {
			t.Errorf("%s cannot be judged", a)
		}
	}
}
