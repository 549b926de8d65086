package p2p

import (
	"testing"
	"time"

	ma "github.com/multiformats/go-multiaddr"
)

func TestRankDialsPutsTCPFirstNearby(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		addrs []string
		first string
	}{
		"loopback":            {[]string{"/ip4/127.0.0.1/udp/1/quic-v1", "/ip4/127.0.0.1/tcp/1"}, "/ip4/127.0.0.1/tcp/1"},
		"a local network":     {[]string{"/ip4/10.0.0.7/udp/1/quic-v1", "/ip4/10.0.0.7/tcp/1"}, "/ip4/10.0.0.7/tcp/1"},
		"a public address":    {[]string{"/ip4/1.2.3.4/udp/1/quic-v1", "/ip4/1.2.3.4/tcp/1"}, "/ip4/1.2.3.4/udp/1/quic-v1"},
		"QUIC only, nearby":   {[]string{"/ip4/10.0.0.7/udp/1/quic-v1"}, "/ip4/10.0.0.7/udp/1/quic-v1"},
		"a private TCP alone": {[]string{"/ip4/192.168.1.2/tcp/1"}, "/ip4/192.168.1.2/tcp/1"},
	} {
		var addrs []ma.Multiaddr
		for _, a := range tc.addrs {
			addrs = append(addrs, ma.StringCast(a))
		}
		ranked := rankDials(addrs)
		if len(ranked) != len(addrs) {
			t.Errorf("%s: %d addresses returned, want %d", name, len(ranked), len(addrs))
		}
		for _, r := range ranked {
			if isFirst := r.Addr.String() == tc.first; isFirst != (r.Delay == 0) {
				t.Errorf("%s: %s is dialed after %v", name, r.Addr, r.Delay.Round(time.Millisecond))
			}
		}
	}
}
