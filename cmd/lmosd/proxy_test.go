package main

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/internal/poll"
	"github.com/lmosd/lmosd/internal/tlstest"
)

// A forwardProxy is an HTTP proxy that opens tunnels to servers on loopback, whatever host a client names.
type forwardProxy struct {
	*httptest.Server
	mu     sync.Mutex
	routes map[string]string // loopback addresses by host and port; owned by mu
	used   map[string]bool   // by host and port; owned by mu
}

func newForwardProxy(t *testing.T) *forwardProxy {
	t.Helper()
	p := &forwardProxy{routes: map[string]string{}, used: map[string]bool{}}
	var tunnels sync.WaitGroup
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		to := p.routes[r.Host]
		p.used[r.Host] = true
		p.mu.Unlock()
		if to == "" {
			http.Error(w, "no route", http.StatusBadGateway)
			return
		}
		server, err := net.Dial("tcp", to)
		if r.Method != http.MethodConnect || err != nil {
			http.Error(w, "no tunnel", http.StatusBadGateway)
			return
		}
		client, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			server.Close()
			return
		}
		_, _ = io.WriteString(client, "HTTP/1.1 200 OK\r\n\r\n") // a failure shows at the client
		for _, pair := range [][2]net.Conn{{client, server}, {server, client}} {
			tunnels.Go(func() {
				_, _ = io.Copy(pair[0], pair[1])
				pair[0].Close()
			})
		}
	}))
	t.Cleanup(func() {
		p.Close()
		tunnels.Wait()
	})
	return p
}

// route makes the proxy connect to a loopback address in place of a host.
func (p *forwardProxy) route(host, loopback string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.routes[host] = loopback
}

// A node in a network that permits only a web proxy joins over WebSockets, and gets the document of an organization through the proxy, too.
func TestJoinThroughAWebProxy(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	cert, key := filepath.Join(x.home, "cert.pem"), filepath.Join(x.home, "key.pem")
	tlstest.Write(t, cert, key)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	plain := x.node("plain", "--listen.p2p", "/ip4/127.0.0.1/tcp/0/ws")
	secure := x.node("secure", "--listen.p2p", "/ip4/127.0.0.1/tcp/0/tls/ws", "--http.tls.cert", cert, "--http.tls.key", key)

	site := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"id":"did:web:node.example%3A8443","service":[{"id":"#mesh","type":"LmosMesh",` +
			`"serviceEndpoint":"/ip4/192.0.2.1/tcp/443/tls/sni/node.example/ws/p2p/` + secure.PeerID + `"}]}`))
	}))
	site.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	site.StartTLS()
	t.Cleanup(site.Close)

	proxy := newForwardProxy(t)
	proxy.route("192.0.2.1:80", loopbackOf(t, plain))
	proxy.route("node.example:443", loopbackOf(t, secure))
	proxy.route("node.example:8443", site.Listener.Addr().String())
	x.env = append(x.env, "SSL_CERT_FILE="+cert, "HTTP_PROXY="+proxy.URL, "HTTPS_PROXY="+proxy.URL)
	n := x.at(x.node("n", "--mesh.bootstrap", "/ip4/192.0.2.1/tcp/80/ws/p2p/"+plain.PeerID, "--mesh.bootstrap", "did:web:node.example%3A8443"))
	poll.Until(t, "the node joins through the proxy", func() bool {
		peers := n.ok("peers", "-o", "json")
		return strings.Contains(peers, string(plain.DID)) && strings.Contains(peers, string(secure.DID))
	})
	for _, host := range []string{"192.0.2.1:80", "node.example:443", "node.example:8443"} {
		if !proxy.hasSent(host) {
			t.Errorf("nothing was sent to %s through the proxy", host)
		}
	}
}

// hasSent reports whether a client sent a request for a host to the proxy.
func (p *forwardProxy) hasSent(host string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used[host]
}

// Requests to servers that the user named go through the proxy, as docs/operations.md lists.
func TestServersThroughAWebProxy(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	proxy := newForwardProxy(t)
	x.env = append(x.env, "HTTP_PROXY="+proxy.URL, "HTTPS_PROXY="+proxy.URL)
	n := x.at(x.node("n", "--search.embeddings.url", "http://embed.example/v1", "--search.embeddings.model", "m", "--search.method", "vector",
		"--telemetry.traces.endpoint", "http://traces.example"))
	n.exposed(n.script("weather.sh", sunny), "--name", "weather", "--action", "ask")
	n.ok("call", "weather", "ask", "Bonn")
	n.lmosd("route", "the weather")
	n.lmosd("expose", "http://thing.example/td")
	n.lmosd("expose", "mcp:http://mcp.example/mcp", "--name", "tools")
	n.lmosd("id", "did:web:acme.example")
	for _, host := range []string{"embed.example", "traces.example", "thing.example", "mcp.example", "acme.example:443"} {
		eventually(t, "a request to "+host+" reaches the proxy", func() bool { return proxy.hasSent(host) })
	}
}

// loopbackOf returns the address of the WebSocket port of a node on this machine.
func loopbackOf(t *testing.T, n *nodeProcess) string {
	t.Helper()
	for _, text := range n.P2P {
		if a, err := ma.NewMultiaddr(text); err == nil && strings.Contains(text, "/ws") {
			port, err := a.ValueForProtocol(ma.P_TCP)
			if err == nil {
				return "127.0.0.1:" + port
			}
		}
	}
	t.Fatalf("no WebSocket address in %v", n.P2P)
	return ""
}
