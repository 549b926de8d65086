package p2p

import (
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/interact"
)

// addrs parses multiaddrs.
func addrs(t testing.TB, texts ...string) []ma.Multiaddr {
	t.Helper()
	as, err := multiaddrs("test", texts)
	if err != nil {
		t.Fatal(err)
	}
	return as
}

func texts(as []ma.Multiaddr) []string {
	var ss []string
	for _, a := range as {
		ss = append(ss, a.String())
	}
	return ss
}

func TestAnnouncedAddresses(t *testing.T) {
	t.Parallel()
	has := []string{"/ip4/127.0.0.1/tcp/1", "/ip4/10.0.0.1/tcp/1", "/ip4/10.0.0.12/tcp/1", "/ip4/8.8.8.8/tcp/1", "/ip4/169.254.1.1/tcp/1",
		"/ip6/fe80::1/tcp/1", "/dns4/node.example/tcp/1"}
	const id = "12D3KooWA4Xop1JaT3MHxwYMkCepYsv4iPVopMXwCz5iHYdBfeSB"
	for name, c := range map[string]struct {
		o    Options
		want []string
	}{
		"all but link-local":     {Options{}, []string{has[0], has[1], has[2], has[3], has[6]}},
		"public ones and names":  {Options{PublicOnly: true}, []string{has[3], has[6]}},
		"configured":             {Options{Announce: []string{"/ip4/192.0.2.7/tcp/4667"}}, []string{"/ip4/192.0.2.7/tcp/4667"}},
		"configured with a peer": {Options{Announce: []string{"/ip4/192.0.2.7/tcp/4667/p2p/" + id}}, []string{"/ip4/192.0.2.7/tcp/4667"}},
		"configured and private": {Options{Announce: []string{"/ip4/10.9.9.9/tcp/1"}, PublicOnly: true, NoAnnounce: []string{"/ip4"}},
			[]string{"/ip4/10.9.9.9/tcp/1"}},
		"without one":     {Options{NoAnnounce: []string{"/ip4/10.0.0.1"}}, []string{has[0], has[2], has[3], has[6]}},
		"without some":    {Options{NoAnnounce: []string{"/ip4/10.0.0.1/tcp/1", "/dns4/", "/ip4/8.8.8.8/"}}, []string{has[0], has[2]}},
		"without a range": {Options{Filter: []string{"10.0.0.0/29", "8.8.0.0/16"}}, []string{has[0], has[2], has[6]}},
		"configured in a range": {Options{Announce: []string{"/ip4/10.0.0.1/tcp/1", "/ip4/10.0.0.12/tcp/1"}, Filter: []string{"10.0.0.0/29"}},
			[]string{has[2]}},
		"without any IPv4": {Options{NoAnnounce: []string{"/ip4"}}, []string{has[6]}},
	} {
		filter, err := prefixes("mesh.filter", c.o.Filter)
		if err != nil {
			t.Fatal(err)
		}
		r, err := newAnnouncer(&c.o, nil, filter, nil)
		if err != nil {
			t.Fatal(err)
		}
		given := addrs(t, has...)
		if got := texts(r.announce(given)); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
		if !slices.Equal(texts(given), has) {
			t.Errorf("%s: the host's own list was changed", name)
		}
	}
}

func TestBridgesAndTunnelsAreNotAnnounced(t *testing.T) {
	t.Parallel()
	ips := func(ss ...string) map[netip.Addr]bool {
		m := map[netip.Addr]bool{}
		for _, s := range ss {
			m[netip.MustParseAddr(s)] = true
		}
		return m
	}
	const loop, bridge, bridge6, lan, name = "/ip4/127.0.0.1/tcp/1", "/ip4/172.17.0.1/tcp/1", "/ip6/fd00::1/tcp/1", "/ip4/172.17.0.2/tcp/1", "/dns4/a.example/tcp/1"
	const vpn, shared, modem = "/ip4/10.8.0.2/tcp/1", "/ip4/100.64.0.7/udp/1/quic-v1", "/ip4/8.8.4.4/tcp/1"
	for _, c := range []struct{ has, want, listen []string }{
		{has: []string{loop, bridge, lan}, want: []string{loop, lan}},
		{has: []string{bridge, bridge6, name}, want: []string{name}},
		{has: []string{loop, bridge, bridge6}, want: []string{loop, bridge, bridge6}}, // the only other addresses
		{has: []string{bridge}, want: []string{bridge}},
		{has: []string{loop}, want: []string{loop}},
		{},
		{has: []string{loop, vpn, shared, lan}, want: []string{loop, lan}},
		{has: []string{loop, vpn, bridge}, want: []string{loop, vpn}}, // a VPN leads farther than a bridge
		{has: []string{vpn, modem}, want: []string{modem}},            // public, at an interface like that of a VPN
		{has: []string{vpn, bridge, lan}, want: []string{vpn, lan}, listen: []string{vpn, "/ip4/0.0.0.0/tcp/1"}},
	} {
		r, err := newAnnouncer(&Options{}, addrs(t, c.listen...), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.local = interfaces{read: time.Now().Add(time.Hour), bridges: ips("172.17.0.1", "fd00::1"), tunnels: ips("10.8.0.2", "100.64.0.7", "8.8.4.4")}
		if got := texts(r.announce(addrs(t, c.has...))); !slices.Equal(got, c.want) {
			t.Errorf("%v: got %v, want %v", c.has, got, c.want)
		}
	}
	bridges, tunnels := readInterfaces()
	for ip := range maps.Keys(bridges) {
		if ip.IsLoopback() || tunnels[ip] {
			t.Errorf("%s counts as a bridge", ip)
		}
	}
}

func TestKindsOfInterfaces(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][2]bool{
		"docker0": {true, false}, "br-1a2b3c": {true, false}, "veth12": {true, false}, "cni0": {true, false}, "podman1": {true, false},
		"wg0": {false, true}, "tun7": {false, true}, "tailscale0": {false, true}, "tap0": {false, true},
		"eth0": {}, "enp3s0": {}, "wlan0": {}, "bridge0": {}, "br0": {}, "lo": {},
	} {
		i := net.Interface{Name: name}
		if got := [2]bool{hasName(i, bridgeNames), hasName(i, tunnelNames)}; got != want {
			t.Errorf("%s: got bridge, tunnel %v, want %v", name, got, want)
		}
	}
}

func TestAnyPort(t *testing.T) {
	t.Parallel()
	for from, want := range map[string]string{
		"/ip4/0.0.0.0/udp/4667/quic-v1": "/ip4/0.0.0.0/udp/0/quic-v1",
		"/ip4/127.0.0.1/tcp/4667":       "/ip4/127.0.0.1/tcp/0",
		"/ip6/::1/tcp/0":                "/ip6/::1/tcp/0",
		"/dns4/node.example/tcp/1/ws":   "/dns4/node.example/tcp/0/ws",
		"/ip4/127.0.0.1":                "/ip4/127.0.0.1",
	} {
		if got := anyPort(addrs(t, from)[0]).String(); got != want {
			t.Errorf("%s: got %s, want %s", from, got, want)
		}
	}
}

func TestInvalidAddressIsNamed(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"127.0.0.1:4667", "/ip4/256.0.0.1/tcp/1", "/ip4/127.0.0.1/tcp/99999", "", "/nonsense"} {
		_, err := multiaddrs("listen.p2p", []string{"/ip4/127.0.0.1/tcp/1", bad})
		if e := wantCode(t, err, interact.ConfigInvalid); !strings.Contains(e.Title, "listen.p2p") || !strings.Contains(e.Title, bad) {
			t.Errorf("%q: %v", bad, e)
		}
	}
}

func TestLeadOutside(t *testing.T) {
	t.Parallel()
	for addr, outside := range map[string]bool{"": false, "/ip4/192.168.1.4/tcp/1": false, "/ip4/127.0.0.1/tcp/1": false, "/ip6/fe80::1/tcp/1": false,
		"/ip4/11.0.0.1/tcp/1": true, "/dns/example.org/tcp/1": true, "/dnsaddr/example.org": true} {
		if got := LeadOutside([]string{addr}); got != outside {
			t.Errorf("%s: %v", addr, got)
		}
	}
}

// A node whose only network is a VPN announces its address there when it has a relay, too.
func TestOnlyNetworkIsATunnel(t *testing.T) {
	t.Parallel()
	tunnel := netip.MustParseAddr("10.2.0.1")
	all := []ma.Multiaddr{ma.StringCast("/ip4/127.0.0.1/tcp/1"), ma.StringCast("/ip4/10.2.0.1/tcp/1"), ma.StringCast("/ip4/10.3.0.1/tcp/1/p2p-circuit")}
	if got := without(slices.Clone(all), func(_ ma.Multiaddr, ip netip.Addr) bool { return ip == tunnel }); len(got) != len(all) {
		t.Errorf("got %v", got)
	}
	all = append(all, ma.StringCast("/ip4/192.168.1.2/tcp/1"))
	if got := without(all, func(_ ma.Multiaddr, ip netip.Addr) bool { return ip == tunnel }); len(got) != 3 {
		t.Errorf("beside another network: %v", got)
	}
}
