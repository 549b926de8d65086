package node

import (
	"slices"
	"strings"
	"testing"

	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/api"
)

// addrs parses multiaddrs.
func addrs(t testing.TB, texts ...string) []ma.Multiaddr {
	t.Helper()
	var as []ma.Multiaddr
	for _, text := range texts {
		a, err := ma.NewMultiaddr(text)
		if err != nil {
			t.Fatal(err)
		}
		as = append(as, a)
	}
	return as
}

func TestARecordHasTheAddressesThatMostCanUse(t *testing.T) {
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
		"in the host's order": {[]string{"/ip4/10.0.0.2/tcp/1", "/ip4/10.0.0.1/tcp/1"}, []string{"/ip4/10.0.0.2/tcp/1", "/ip4/10.0.0.1/tcp/1"}},
		"none that is too long": {[]string{"/dns4/" + strings.Repeat("a.", 126) + "a/tcp/1", "/ip4/10.0.0.1/tcp/1"},
			[]string{"/ip4/10.0.0.1/tcp/1"}},
	} {
		if got := useful(addrs(t, c.has...)); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

func TestLoopbackAloneIsToldOf(t *testing.T) {
	t.Parallel()
	const loop, all, lan = "/ip4/127.0.0.1/tcp/1", "/ip4/0.0.0.0/tcp/1", "/ip4/10.0.0.1/tcp/1"
	for _, c := range []struct {
		announced, listening []string
		want                 bool
	}{
		{[]string{loop}, []string{all}, true},
		{nil, []string{loop, lan}, true},
		{[]string{loop, lan}, []string{all}, false},
		{[]string{loop}, []string{loop}, false}, // as it was told to
		{[]string{loop, "/dns4/a.example/tcp/1"}, []string{all}, false},
	} {
		if got := onlyLoopback(addrs(t, c.announced...), addrs(t, c.listening...)); got != c.want {
			t.Errorf("%v of %v: got %v", c.announced, c.listening, got)
		}
	}
	o := quiet()
	o.Listen, o.NoAnnounce = []string{"/ip4/0.0.0.0/tcp/0"}, []string{"/ip4"}
	silent := opened(t, o)
	if ws := silent.Status().Warnings; !slices.ContainsFunc(ws, func(w api.Warning) bool { return w.Code == "LMOS-W005" }) {
		t.Errorf("a node that nobody can reach says %+v", ws)
	}
}
