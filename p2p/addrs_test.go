package p2p

import (
	"slices"
	"strings"
	"testing"

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
		"without one":      {Options{NoAnnounce: []string{"/ip4/10.0.0.1"}}, []string{has[0], has[2], has[3], has[6]}},
		"without some":     {Options{NoAnnounce: []string{"/ip4/10.0.0.1/tcp/1", "/dns4/", "/ip4/8.8.8.8/"}}, []string{has[0], has[2]}},
		"without any IPv4": {Options{NoAnnounce: []string{"/ip4"}}, []string{has[6]}},
	} {
		filter, err := announced(&c.o)
		if err != nil {
			t.Fatal(err)
		}
		given := addrs(t, has...)
		if got := texts(filter(given)); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
		if !slices.Equal(texts(given), has) {
			t.Errorf("%s: the host's own list was changed", name)
		}
	}
}

func TestContainerBridgesAreNotAnnounced(t *testing.T) {
	t.Parallel()
	bridges := map[string]bool{"172.17.0.1": true, "fd00::1": true}
	const loop, bridge, bridge6, lan, name = "/ip4/127.0.0.1/tcp/1", "/ip4/172.17.0.1/tcp/1", "/ip6/fd00::1/tcp/1", "/ip4/172.17.0.2/tcp/1", "/dns4/a.example/tcp/1"
	for _, c := range []struct{ has, want []string }{
		{[]string{loop, bridge, lan}, []string{loop, lan}},
		{[]string{bridge, bridge6, name}, []string{name}},
		{[]string{loop, bridge, bridge6}, []string{loop, bridge, bridge6}}, // the only other addresses
		{[]string{bridge}, []string{bridge}},
		{[]string{loop}, []string{loop}},
		{nil, nil},
	} {
		if got := texts(withoutBridges(addrs(t, c.has...), bridges)); !slices.Equal(got, c.want) {
			t.Errorf("%v: got %v, want %v", c.has, got, c.want)
		}
	}
	for ip := range bridgeIPs() {
		if strings.HasPrefix(ip, "127.") {
			t.Errorf("loopback (%s) counts as a bridge", ip)
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
