package node

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/gateway"
	"github.com/lmosd/lmosd/internal/tlstest"
	"github.com/lmosd/lmosd/p2p"
)

// One TCP port serves peers over TCP and WebSocket, and the API with its own WebSockets. The API has the rules of its address.
func TestOnePort(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	roots := x509.NewCertPool()
	roots.AddCert(tlstest.Write(t, cert, key))
	for name, c := range map[string]struct {
		ip              string
		secure          bool
		status, sockets int // of a read and of a WebSocket of the API, from loopback without a token
	}{
		"loopback":                {"127.0.0.1", false, http.StatusOK, http.StatusSwitchingProtocols},
		"loopback, with TLS":      {"127.0.0.1", true, http.StatusOK, http.StatusSwitchingProtocols},
		"all addresses, with TLS": {"0.0.0.0", true, http.StatusUnauthorized, http.StatusUnauthorized},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := quiet()
			base := "/ip4/" + c.ip + "/tcp/0"
			o.Dir, o.Listen, o.Web.Listen = t.TempDir(), []string{base, base + "/ws"}, c.ip+":0"
			o.HTTP = &HTTP{Listen: o.Web.Listen, Explicit: true}
			scheme := "http://"
			if c.secure {
				scheme, o.Listen[1] = "https://", base+"/tls/ws"
				o.HTTP.CertFile, o.HTTP.KeyFile = cert, key
				o.Web.Certificate = func(log *slog.Logger) (*tls.Config, error) { return gateway.TLS(cert, key, log) }
			}
			n := start(t, o)
			at, ok := strings.CutPrefix(n.API(), scheme)
			if !ok || !strings.HasPrefix(at, "127.0.0.1:") {
				t.Fatalf("the API is at %s", n.API())
			}
			port := strings.TrimPrefix(at, "127.0.0.1:")
			for _, a := range n.Addrs() {
				if !strings.Contains(a, "/tcp/"+port) {
					t.Errorf("%s has another port than the API, %s", a, port)
				}
			}
			other := start(t, quiet())
			if err := other.Client().Connect(t.Context(), "/ip4/127.0.0.1/tcp/"+port+"/p2p/"+n.network.ID().String()); err != nil {
				t.Errorf("TCP: %v", err)
			}
			client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}}
			for _, q := range []struct {
				path    string
				upgrade bool
				status  int
			}{
				{"/healthz", false, http.StatusOK},
				{"/v1/status", false, c.status},
				{"/", true, http.StatusSwitchingProtocols}, // of libp2p, which authenticates by itself
				{"/ws", true, c.sockets},
			} {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, n.API()+q.path, nil)
				if err != nil {
					t.Fatal(err)
				}
				if q.upgrade {
					for k, v := range map[string]string{"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
						"Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Protocol": "webthing"} {
						req.Header.Set(k, v)
					}
				}
				resp, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				if !q.upgrade {
					_, _ = io.Copy(io.Discard, resp.Body)
				}
				if resp.Body.Close(); resp.StatusCode != q.status {
					t.Errorf("%s: status %d, want %d", q.path, resp.StatusCode, q.status)
				}
			}
		})
	}
}

// A node that listens for WebSockets only, as behind a proxy for the web, is reached by others.
func TestOnlyWebSockets(t *testing.T) {
	t.Parallel()
	o := quiet()
	o.Listen, o.Web = []string{"/ip4/127.0.0.1/tcp/0/ws"}, p2p.Web{}
	n := start(t, o)
	other := start(t, quiet())
	connect(t, other, n)
	id := publish(t, n, tool("Behind", ""))
	knows(t, other, id)
}
