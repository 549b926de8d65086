package p2p

import (
	"slices"
	"strings"
	"testing"

	ma "github.com/multiformats/go-multiaddr"
)

func TestRecordAddrs(t *testing.T) {
	t.Parallel()
	const relayed = "/ip4/192.0.2.9/tcp/1/p2p/12D3KooWA4Xop1JaT3MHxwYMkCepYsv4iPVopMXwCz5iHYdBfeSB/p2p-circuit"
	for name, c := range map[string]struct{ has, want []string }{
		"none": {},
		"loopback last": {[]string{"/ip4/127.0.0.1/udp/1/quic-v1", "/ip4/127.0.0.1/tcp/1", "/ip6/::1/udp/1/quic-v1", "/ip6/::1/tcp/1",
			"/ip4/10.0.0.1/tcp/1",
			"/ip4/10.0.0.1/udp/1/quic-v1"},
			[]string{"/ip4/10.0.0.1/tcp/1", "/ip4/10.0.0.1/udp/1/quic-v1", "/ip4/127.0.0.1/udp/1/quic-v1", "/ip4/127.0.0.1/tcp/1"}},
		"public first": {[]string{"/ip4/127.0.0.1/tcp/1", "/ip4/10.0.0.1/tcp/1", relayed, "/dns4/node.example/tcp/1", "/ip4/8.8.8.8/tcp/1"},
			[]string{"/dns4/node.example/tcp/1", "/ip4/8.8.8.8/tcp/1", "/ip4/10.0.0.1/tcp/1", relayed}},
		"places for relays": {[]string{"/ip4/10.0.0.1/tcp/1", "/ip4/10.0.0.1/udp/1/quic-v1", "/ip4/8.8.8.8/tcp/1", "/ip4/127.0.0.1/tcp/1", "/ip4/10.0.0.2/tcp/1", relayed,
			strings.Replace(relayed, "192.0.2.9", "192.0.2.8", 1), strings.Replace(relayed, "192.0.2.9", "192.0.2.7", 1)},
			[]string{"/ip4/8.8.8.8/tcp/1", "/ip4/10.0.0.1/tcp/1", relayed, strings.Replace(relayed, "192.0.2.9", "192.0.2.8", 1)}},
		"in the host's order": {[]string{"/ip4/10.0.0.2/tcp/1", "/ip4/10.0.0.1/tcp/1"}, []string{"/ip4/10.0.0.2/tcp/1", "/ip4/10.0.0.1/tcp/1"}},
		"WebSockets if there is room": {[]string{"/ip4/8.8.8.8/tcp/443/ws", "/ip4/8.8.8.8/tcp/443", "/ip4/10.0.0.1/tcp/443", "/ip4/10.0.0.1/tcp/443/ws", relayed},
			[]string{"/ip4/8.8.8.8/tcp/443", "/ip4/10.0.0.1/tcp/443", "/ip4/8.8.8.8/tcp/443/ws", relayed}},
		"WebSockets without room": {[]string{"/dns/node.example/tcp/443/tls/ws", "/ip4/8.8.8.8/tcp/443", "/ip4/10.0.0.1/tcp/443", relayed,
			strings.Replace(relayed, "192.0.2.9", "192.0.2.8", 1)},
			[]string{"/ip4/8.8.8.8/tcp/443", "/ip4/10.0.0.1/tcp/443", relayed, strings.Replace(relayed, "192.0.2.9", "192.0.2.8", 1)}},
		"none that is too long": {[]string{"/dns4/" + strings.Repeat("a.", 126) + "a/tcp/1", "/ip4/10.0.0.1/tcp/1"},
			[]string{"/ip4/10.0.0.1/tcp/1"}},
	} {
		if got := RecordAddrs(addrs(t, c.has...)); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

func TestLoopbackOnlyIsAWarning(t *testing.T) {
	t.Parallel()
	const loop, all, lan = "/ip4/127.0.0.1/tcp/1", "/ip4/0.0.0.0/tcp/1", "/ip4/10.0.0.1/tcp/1"
	for _, c := range []struct {
		announced, listening []string
		want                 bool
	}{
		{[]string{loop}, []string{all}, true},
		{nil, []string{loop, lan}, true},
		{[]string{loop, lan}, []string{all}, false},
		{[]string{loop}, []string{loop}, false}, // as configured
		{[]string{loop, "/dns4/a.example/tcp/1"}, []string{all}, false},
	} {
		if got := OnlyLoopback(addrs(t, c.announced...), addrs(t, c.listening...)); got != c.want {
			t.Errorf("%v of %v: got %v", c.announced, c.listening, got)
		}
	}
}

// Only peers with a public address of their own share a range.
func TestRangesOfAddresses(t *testing.T) {
	t.Parallel()
	rs := Ranges{IPv4: 24, IPv6: 48}
	for text, want := range map[string]string{
		"/ip4/8.8.4.4/tcp/4667":             "8.8.4.0/24",
		"/ip4/8.8.4.200/udp/4667/quic-v1":   "8.8.4.0/24",
		"/ip6/2600:1f18:1:2::7/tcp/4667":    "2600:1f18:1::/48",
		"/ip4/127.0.0.1/tcp/4667":           "",
		"/ip4/10.1.2.3/tcp/4667":            "",
		"/ip4/192.168.1.2/udp/4667/quic-v1": "",
		"/ip4/100.64.3.4/tcp/4667":          "",
		"/ip4/169.254.3.4/tcp/4667":         "",
		"/ip6/::1/tcp/4667":                 "",
		"/ip6/fd00::7/tcp/4667":             "",
		"/ip6/fe80::7/tcp/4667":             "",
		"/dns4/example.org/tcp/4667":        "",
		"/ip4/8.8.4.4/tcp/4667/p2p/12D3KooWGC6TvWhfapngX6wvJHMYvKpDMXPb3ZnCZ6dMoaMtimQ5/p2p-circuit": "",
	} {
		got, ok := rs.of(ma.StringCast(text))
		if ok != (want != "") || ok && got.String() != want {
			t.Errorf("%s: got %v, %v, want %q", text, got, ok, want)
		}
	}
	if got, ok := (Ranges{}).of(ma.StringCast("/ip4/8.8.4.4/tcp/4667")); ok {
		t.Errorf("off: got %v", got)
	}
}
