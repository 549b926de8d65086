package main

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/internal/poll"
	"github.com/lmosd/lmosd/internal/tlstest"
)

// A node joins through the did:web and the did:webvh of an organization, whose exported files a web server has.
func TestJoinByTheDIDOfAnOrganization(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	cert, key := filepath.Join(x.home, "cert.pem"), filepath.Join(x.home, "key.pem")
	tlstest.Write(t, cert, key)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	site := filepath.Join(x.home, "site")
	s := httptest.NewUnstartedServer(http.FileServer(http.Dir(site)))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	s.StartTLS()
	t.Cleanup(s.Close)
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}

	entry := x.node("entry")
	at := x.at(entry)
	at.ok("org", "init", "localhost:"+port, "--recovery", filepath.Join(x.home, "recovery"))
	first := strings.TrimSpace(at.ok("org", "status", "--jq", ".bootstrap[0]"))
	contains(t, first, "/p2p/"+entry.PeerID)
	at.ok("org", "bootstrap", "--none")
	if got := strings.TrimSpace(at.ok("org", "status", "--jq", ".bootstrap")); got != "null" {
		t.Errorf("without a list the status has %s", got)
	}
	contains(t, at.ok("org", "bootstrap"), "/p2p/"+entry.PeerID)
	contains(t, at.fails(cli.ExitUsage, "org", "bootstrap", "/ip4/192.0.2.1/tcp/1"), "expected the address of a node")
	contains(t, at.fails(cli.ExitUsage, "org", "bootstrap", "--none", first), "exclude each other")
	at.ok("org", "export", filepath.Join(site, ".well-known"))
	id := strings.TrimSpace(at.ok("org", "status", "--jq", ".did"))

	x.env = append(x.env, "SSL_CERT_FILE="+cert)
	for name, did := range map[string]string{"web": "did:web:localhost%3A" + port, "webvh": id} {
		n := x.node(name, "--mesh.bootstrap", did)
		poll.Until(t, "the node joins by "+did, func() bool { return strings.Contains(x.at(n).ok("peers", "-o", "json"), string(entry.DID)) })
	}
	contains(t, x.fails(cli.ExitUsage, "run", "--profile", "test", "--data-dir", filepath.Join(x.home, "m"), "--mesh.bootstrap", "did:web:127.0.0.1"), "mesh.bootstrap")
}
