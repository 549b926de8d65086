// Package didtest provides keys and web servers for tests.
package didtest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/internal/weblocation"
)

// Serve runs an HTTPS server until the test ends. It returns options with which a resolver of DIDs of the web finds the server at any host
// name, and its port.
func Serve(t testing.TB, h http.Handler) (o weblocation.Options, port string) {
	t.Helper()
	s := httptest.NewTLSServer(h)
	t.Cleanup(s.Close)
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	addr := s.Listener.Addr().String()
	_, port, _ = net.SplitHostPort(addr)
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	return weblocation.Options{TLS: &tls.Config{RootCAs: roots, ServerName: "example.com"}, Dial: dial}, port
}

// Key returns the nth test key, which is the same in every run.
func Key(n int) *keystore.Key {
	return must(keystore.FromSeed([32]byte{byte(n), byte(n >> 8), 1}))
}

// NewKey returns a random key.
func NewKey() *keystore.Key { return must(keystore.New()) }

func must(k *keystore.Key, err error) *keystore.Key {
	if err != nil {
		panic(err)
	}
	return k
}
