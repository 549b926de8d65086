package p2p

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"
	"github.com/lmosd/lmosd/p2p/oneport"
	ma "github.com/multiformats/go-multiaddr"
)

func TestWebAddr(t *testing.T) {
	t.Parallel()
	const at = "/ip4/192.0.2.7/tcp/443"
	for _, c := range []struct {
		of   []string
		want string
	}{
		{[]string{at, at + "/ws"}, at + "/ws"},
		{[]string{at + "/tls/ws"}, at + "/tls/ws"},
		{[]string{"/dns/node.example/tcp/443/tls/ws"}, at + "/tls/sni/node.example/ws"},
		{[]string{"/dns4/node.example/tcp/443/ws"}, at + "/ws"},
		{[]string{"/ip4/192.0.2.8/tcp/443/ws", "/ip4/192.0.2.7/tcp/444/ws", "/dns/node.example/tcp/444/tls/ws", at, "/ip4/192.0.2.7/udp/443/quic-v1"}, ""},
		{[]string{"/dnsaddr/node.example", at + "/ws" + viaPublic}, ""},
		{nil, ""},
	} {
		got := webAddr(ma.StringCast(at), addrs(t, c.of...))
		if (got == nil) != (c.want == "") || got != nil && got.String() != c.want {
			t.Errorf("%v: got %v, want %q", c.of, got, c.want)
		}
	}
}

// redirected dials another address.
type redirected struct {
	transport.Transport
	to ma.Multiaddr
}

func (r redirected) Dial(ctx context.Context, _ ma.Multiaddr, p peer.ID) (transport.CapableConn, error) {
	return r.Transport.Dial(ctx, r.to, p)
}

// A peer whose TCP is silent is reached over WebSocket; one that has neither is not.
func TestFallback(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	h := served(t, Options{Listen: []string{anyWS}})
	from := started(t, Options{})
	_, port, _ := net.SplitHostPort(silent.Addr().String())
	raw := ma.StringCast("/ip4/127.0.0.1/tcp/" + port)
	own, ok := from.swarm.TransportForDialing(raw).(*tcpTransport)
	if !ok {
		t.Fatal("another transport dials TCP")
	}
	tpt := *own
	tpt.addrs = func(peer.ID) []ma.Multiaddr { return []ma.Multiaddr{raw.Encapsulate(oneport.Plain)} }
	web := tpt.web
	tpt.web = redirected{web, h.Addrs()[0]}
	c, err := tpt.Dial(t.Context(), raw, h.ID())
	if err != nil {
		t.Fatal(err)
	}
	if c.RemotePeer() != h.ID() || c.ConnState().Transport != "websocket" {
		t.Errorf("connected to %s over %s", c.RemotePeer(), c.ConnState().Transport)
	}
	_ = c.Close()
	_ = silent.Close()
	tpt.web = web
	if c, err := tpt.Dial(t.Context(), raw, h.ID()); err == nil {
		t.Error(errors.Join(errors.New("a peer without TCP and WebSockets is connected"), c.Close()))
	}
}
