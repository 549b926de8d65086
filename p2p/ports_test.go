package p2p

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/lmosd/lmosd/internal/tlstest"
	"github.com/lmosd/lmosd/p2p/oneport"
)

// certificate returns a configuration of TLS for node.example and 127.0.0.1, and what verifies it.
func certificate(t testing.TB) (*tls.Config, *x509.CertPool) {
	t.Helper()
	cert, key := filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	roots := x509.NewCertPool()
	roots.AddCert(tlstest.Write(t, cert, key))
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &pair, nil }, NextProtos: []string{"http/1.1"}}, roots
}

const (
	anyWS  = anyTCP + "/ws"
	anyWSS = anyTCP + "/tls/ws"
	anyWeb = "127.0.0.1:0"
)

// served starts a host, and a server for the connections of HTTP that it shares, which passes WebSockets to it and answers others with "web".
func served(t testing.TB, o Options) *Host {
	t.Helper()
	h := started(t, o)
	l := h.HTTP()
	if l == nil {
		return h
	}
	if h.ports.tls != nil {
		l = tls.NewListener(l, h.ports.tls)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !h.Upgrade(w, r) {
			_, _ = io.WriteString(w, "web")
		}
	})}
	go func() { _ = s.Serve(l) }() // ends with the test
	t.Cleanup(func() { _ = s.Close() })
	return h
}

// One TCP port serves each kind of peer and HTTP, whoever serves HTTP.
func TestOnePort(t *testing.T) {
	t.Parallel()
	conf, roots := certificate(t)
	with := func(*slog.Logger) (*tls.Config, error) { return conf, nil }
	for name, c := range map[string]struct {
		o          Options
		https, web bool
	}{
		"TCP and WebSocket":             {o: Options{Listen: []string{anyWS, anyTCP}}},
		"with TLS":                      {o: Options{Listen: []string{anyTCP, anyWS, anyWSS}, Web: Web{Certificate: with}}},
		"WebSocket alone":               {o: Options{Listen: []string{anyWS}}},
		"TLS alone":                     {o: Options{Listen: []string{anyWSS}, Web: Web{Certificate: with}}},
		"TCP and HTTP":                  {o: Options{Listen: []string{anyTCP}, Web: Web{Listen: anyWeb}}, web: true},
		"TCP, WebSocket and HTTP":       {o: Options{Listen: []string{anyTCP, anyWS}, Web: Web{Listen: anyWeb}}, web: true},
		"TCP, both WebSockets, HTTPS":   {o: Options{Listen: []string{anyTCP, anyWS, anyWSS}, Web: Web{Listen: anyWeb, Certificate: with}}, web: true, https: true},
		"WebSocket with TLS and HTTPS":  {o: Options{Listen: []string{anyWSS}, Web: Web{Listen: anyWeb, Certificate: with}}, web: true, https: true},
		"reused for dials, as punching": {o: Options{Listen: []string{anyTCP, anyWS}, Web: Web{Listen: anyWeb}, NAT: NAT{Relay: true}}, web: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := served(t, c.o)
			ports := map[string]bool{}
			for _, a := range h.Addrs() {
				base, ending := splitTCP(a)
				port, _ := base.ValueForProtocol(ma.P_TCP)
				ports[port] = true
				from := started(t, Options{roots: roots})
				if err := from.Connect(t.Context(), peer.AddrInfo{ID: h.ID(), Addrs: []ma.Multiaddr{a}}); err != nil {
					t.Errorf("dial of %s: %v", a, err)
					continue
				}
				want := "tcp"
				if len(ending) > 0 {
					want = "websocket"
				}
				for _, conn := range append(from.Network().ConnsToPeer(h.ID()), h.Network().ConnsToPeer(from.ID())...) {
					if got := conn.ConnState().Transport; got != want {
						t.Errorf("connected over %s, want %s", got, want)
					}
				}
				if got := h.Network().ConnsToPeer(from.ID())[0].LocalMultiaddr(); !got.Equal(a) {
					t.Errorf("the connection is at %s, want %s", got, a)
				}
			}
			if len(h.Addrs()) != len(c.o.Listen) || len(ports) != 1 {
				t.Errorf("listens on %v, want %d addresses on one port", h.Addrs(), len(c.o.Listen))
			}
			if !c.web {
				return
			}
			scheme := "http://"
			if c.https {
				scheme = "https://"
			}
			client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}}
			res, err := client.Get(scheme + h.HTTP().Addr().String() + "/")
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if body, _ := io.ReadAll(res.Body); string(body) != "web" {
				t.Errorf("HTTP returned %d, %q", res.StatusCode, body)
			}
		})
	}
}

// A port without an HTTP server answers other requests than those of WebSockets.
func TestOnlyWebSockets(t *testing.T) {
	t.Parallel()
	h := served(t, Options{Listen: []string{anyTCP, anyWS}})
	base, _ := splitTCP(h.Addrs()[0])
	at, _ := base.ValueForProtocol(ma.P_TCP)
	for _, path := range []string{"/", "/v1/status"} {
		res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get("http://127.0.0.1:" + at + path)
		if err != nil {
			t.Fatal(err)
		}
		if res.Body.Close(); res.StatusCode != http.StatusNotFound {
			t.Errorf("GET %s returned %d, want 404", path, res.StatusCode)
		}
	}
}

// A node of another port, which does not share, is not affected by those that do.
func TestPortsApart(t *testing.T) {
	t.Parallel()
	h := started(t, Options{Listen: []string{anyTCP, "/ip4/127.0.0.2/tcp/0/ws"}})
	if len(h.Addrs()) != 2 || h.HTTP() != nil {
		t.Fatalf("listens on %v", h.Addrs())
	}
	if err := dial(t, started(t, Options{}), h); err != nil {
		t.Error(err)
	}
}

func TestSharesPort(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		http   string
		listen []string
		shared bool
		err    bool
	}{
		{"0.0.0.0:443", []string{"/ip4/0.0.0.0/tcp/443"}, true, false},
		{":443", []string{"/ip4/0.0.0.0/udp/443/quic-v1", "/ip4/0.0.0.0/tcp/443/ws"}, true, false},
		{"[::]:443", []string{"/ip4/0.0.0.0/tcp/443", "/ip6/::/tcp/443"}, true, false},
		{"192.0.2.7:443", []string{"/ip4/192.0.2.7/tcp/443"}, true, false},
		{"127.0.0.1:4668", []string{"/ip4/0.0.0.0/tcp/4667", "/ip4/0.0.0.0/udp/4668/quic-v1"}, false, false},
		{"127.0.0.1:0", []string{"/ip4/127.0.0.1/tcp/0"}, false, false},
		{"127.0.0.1:443", []string{"/ip4/192.0.2.7/tcp/443"}, false, false},
		{"0.0.0.0:443", []string{"/ip6/::/tcp/443"}, false, false},
		{"127.0.0.1:4667", []string{"/ip4/0.0.0.0/tcp/4667"}, false, true},
		{"0.0.0.0:443", []string{"/ip4/192.0.2.7/tcp/443"}, false, true},
		{":443", []string{"/ip6/::1/tcp/443"}, false, true},
		{"", []string{"/ip4/0.0.0.0/tcp/443"}, false, false},
		{"name:443", []string{"/ip4/0.0.0.0/tcp/443", "x"}, false, false},
	} {
		if got, err := SharesPort(c.listen, c.http); got != c.shared || (err != nil) != c.err {
			t.Errorf("%s and %v: got %v, %v", c.http, c.listen, got, err)
		}
	}
}

// Dialers verify the name of a certificate, so that name is announced.
func TestNamesOfCertificatesAreAnnounced(t *testing.T) {
	t.Parallel()
	conf, _ := certificate(t)
	has := []string{"/ip4/127.0.0.1/tcp/1/tls/ws", "/ip4/127.0.0.2/tcp/1/tls/ws", "/ip4/10.0.0.1/tcp/1/tls/ws", "/ip4/10.0.0.2/tcp/1/tls/ws", "/ip4/10.0.0.2/tcp/1/ws",
		"/ip4/10.0.0.1/tcp/1", "/dns4/other.example/tcp/1/tls/ws"}
	want := []string{"/ip4/127.0.0.1/tcp/1/tls/ws", "/dns/node.example/tcp/1/tls/ws", "/ip4/10.0.0.2/tcp/1/ws", "/ip4/10.0.0.1/tcp/1", "/dns4/other.example/tcp/1/tls/ws"}
	if got := texts(named(addrs(t, has...), conf)); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := texts(named(addrs(t, has...), nil)); !slices.Equal(got, has) {
		t.Errorf("without a certificate: got %v", got)
	}
}

// Addresses of a filtered range are not dialed.
func TestFilteredAddressesAreNotDialed(t *testing.T) {
	t.Parallel()
	h := made(t, Options{Filter: []string{"10.8.0.0/16", "fd7a::/16"}})
	for text, want := range map[string]bool{
		"/ip4/10.8.3.4/tcp/1": false, "/ip6/fd7a::1/udp/1/quic-v1": false, "/ip4/10.9.0.1/tcp/1": true,
		"/ip4/10.8.3.4/tcp/1" + viaPrivate: false, "/dns4/node.example/tcp/1": true,
	} {
		if got := h.gater.InterceptAddrDial("", ma.StringCast(text)); got != want {
			t.Errorf("%s: got %v", text, got)
		}
	}
}

// Clients that send nothing, or something else, keep no other out.
func TestSilentClientsOfASharedPort(t *testing.T) {
	t.Parallel()
	h := served(t, Options{Listen: []string{anyTCP, anyWS}, Web: Web{Listen: anyWeb}})
	at := h.HTTP().Addr().String()
	for i := range 200 {
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if text := []string{"", "", "G", "\x00\xff\x17", "SSH-2.0-x\r\n"}[i%5]; text != "" {
			_, _ = c.Write([]byte(text)) // the host may have closed it
		}
	}
	for _, a := range h.Addrs() {
		if err := started(t, Options{}).Connect(t.Context(), peer.AddrInfo{ID: h.ID(), Addrs: []ma.Multiaddr{a}}); err != nil {
			t.Errorf("dial of %s: %v", a, err)
		}
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get("http://" + at)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, err := io.ReadAll(res.Body); err != nil || !strings.Contains(string(body), "web") {
		t.Errorf("got %q, %v", body, err)
	}
}

// A node is reached from networks that permit only TCP, or only HTTP through a proxy.
func TestRestrictedNetworks(t *testing.T) {
	t.Parallel()
	h := served(t, Options{Listen: []string{anyTCP, anyWS}, Web: Web{Listen: anyWeb}})
	target, err := url.Parse("http://" + h.HTTP().Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewServer(httputil.NewSingleHostReverseProxy(target))
	t.Cleanup(proxy.Close)
	behind, err := manet.FromNetAddr(proxy.Listener.Addr())
	if err != nil {
		t.Fatal(err)
	}
	dropped := ma.StringCast("/ip4/127.0.0.1/udp/" + busyUDP(t) + "/quic-v1")
	tcp := h.Addrs()[0]
	for name, c := range map[string]struct {
		addrs []ma.Multiaddr
		want  string
	}{
		"no UDP":    {[]ma.Multiaddr{dropped, tcp, tcp.Encapsulate(oneport.Plain)}, "tcp"},
		"only HTTP": {[]ma.Multiaddr{dropped, behind, behind.Encapsulate(oneport.Plain)}, "websocket"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			from := started(t, Options{Listen: []string{anyQUIC}})
			if err := from.Connect(t.Context(), peer.AddrInfo{ID: h.ID(), Addrs: c.addrs}); err != nil {
				t.Fatal(err)
			}
			if got := from.Network().ConnsToPeer(h.ID())[0].ConnState().Transport; got != c.want {
				t.Errorf("connected over %s, want %s", got, c.want)
			}
		})
	}
}
