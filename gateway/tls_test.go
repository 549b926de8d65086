package gateway

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/gateway/tokens"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/tlstest"
)

// A pair is the files of a certificate for node.example.
type pair struct{ cert, key string }

func newPair(t *testing.T) pair {
	t.Helper()
	dir := t.TempDir()
	return pair{filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")}
}

// write replaces the files by those of a new certificate; the serial numbers count from 1.
func (p pair) write(t *testing.T) *x509.Certificate {
	t.Helper()
	return tlstest.Write(t, p.cert, p.key)
}

func chmod(t *testing.T, name string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(name, mode); err != nil {
		t.Fatal(err)
	}
}

// With a certificate the TCP listener serves HTTPS only, and its URLs say so.
func TestTLS(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	cert := p.write(t)
	g := start(t, Options{CertFile: p.cert, KeyFile: p.key, Operation: Operation{Hosts: []string{"node.example"}}})
	if !strings.HasPrefix(g.URL(), "https://127.0.0.1:") {
		t.Errorf("the URL is %s", g.URL())
	}
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	transport := g.http.Transport.(*http.Transport)
	transport.TLSClientConfig = &tls.Config{RootCAs: roots}
	get := func(origin string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://node.example/things/urn:x:weather/properties/unit", nil)
		if err != nil {
			t.Fatal(err)
		}
		if origin != "" {
			req.Header.Set("Origin", origin)
			req.Header.Set("Authorization", "Bearer "+token) // a page without a session needs one
		}
		resp, err := g.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		if resp.ProtoMajor != 1 {
			t.Errorf("the protocol is %s", resp.Proto)
		}
		return resp.StatusCode, string(body)
	}
	for origin, want := range map[string]int{"": 200, "https://node.example": 200, "http://node.example": 403} {
		if status, body := get(origin); status != want {
			t.Errorf("origin %q: status %d, want %d: %s", origin, status, want, body)
		}
	}
	transport.TLSClientConfig = nil // the roots of the system
	transport.CloseIdleConnections()
	if _, err := g.http.Get("https://node.example/healthz"); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an untrusted certificate: %v", err)
	}
	if resp, err := g.http.Get("http://node.example/healthz"); err != nil || resp.StatusCode != http.StatusBadRequest {
		t.Errorf("plain HTTP: %v, %v", resp, err)
	} else {
		resp.Body.Close()
	}
	if resp, err := g.unix.Get("http://x/healthz"); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("the socket: %v, %v", resp, err)
	} else {
		resp.Body.Close()
	}
}

// The addresses of a description have the scheme of the listener.
func TestFormsWithTLS(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.write(t)
	g := start(t, Options{CertFile: p.cert, KeyFile: p.key})
	resp, err := g.unix.Get("http://x/things/urn:x:weather/td")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || !strings.Contains(string(body), g.URL()+"/things/") {
		t.Errorf("%d %s, %v: want addresses at %s", resp.StatusCode, body, err, g.URL())
	}
	if port := g.AnnouncedPort(); port != 0 {
		t.Errorf("port %d is announced", port)
	}
}

// A changed certificate is used for the next connection. An invalid one is reported once and not used.
func TestCertificateIsReadAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		p.write(t)
		var log bytes.Buffer
		c, err := openCertificate(p.cert, p.key, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		check := func(when string, want int64) {
			t.Helper()
			got, err := c.get(nil)
			if err != nil || got.Leaf.SerialNumber.Int64() != want {
				t.Errorf("%s: got the certificate %v, %v, want %d", when, got.Leaf.SerialNumber, err, want)
			}
		}
		check("at the start", 1)
		p.write(t)
		check("before the files are inspected", 1)
		time.Sleep(recheck)
		check("after a change", 2)

		key, err := os.ReadFile(p.key)
		if err != nil {
			t.Fatal(err)
		}
		p.write(t)
		tlstest.Replace(t, p.key, key)
		for range 3 {
			time.Sleep(recheck)
			check("with the key of another certificate", 2)
		}
		if err := os.Remove(p.cert); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			time.Sleep(recheck)
			check("without a file", 2)
		}
		p.write(t)
		chmod(t, p.key, 0o604)
		time.Sleep(recheck)
		check("with a key that others can read", 2)
		chmod(t, p.key, 0o600)
		time.Sleep(recheck)
		check("after the repair", 1) // the numbers start again without a file
		if n := strings.Count(log.String(), "certificate not replaced"); n != 3 {
			t.Errorf("%d warnings, want 3:\n%s", n, log.String())
		}
	})
}

// A wrong certificate is an error at the start, with the names of the keys.
func TestCertificatesThatAreRejected(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(p pair) error
		want   string
	}{
		"no certificate":                  {func(p pair) error { return os.Remove(p.cert) }, "http.tls.cert"},
		"no key":                          {func(p pair) error { return os.Remove(p.key) }, "http.tls.key"},
		"no PEM":                          {func(p pair) error { return os.WriteFile(p.cert, []byte("x"), 0o600) }, "http.tls.cert"},
		"a key that other users can read": {func(p pair) error { return os.Chmod(p.key, 0o604) }, "chmod o= "},
	} {
		p := newPair(t)
		p.write(t)
		if err := test.change(p); err != nil {
			t.Fatal(err)
		}
		o := serving(newFake(), Options{CertFile: p.cert, KeyFile: p.key, Listen: "127.0.0.1:0", Tokens: tokens.New(token)})
		g, err := New(o)
		if err == nil {
			err = errors.Join(g.Close(), errors.New("it is accepted"))
		}
		if e := interact.AsError(err); e.Code != interact.ConfigInvalid || !strings.Contains(e.Error()+e.Hint, test.want) {
			t.Errorf("%s: %v (%s)", name, err, e.Hint)
		}
	}
}

// A client that does not finish the handshake is disconnected, and others are served.
func TestSlowHandshakes(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.write(t)
	g := start(t, Options{CertFile: p.cert, KeyFile: p.key, timeouts: timeouts{header: 50 * time.Millisecond, idle: time.Minute,
		write: time.Minute, drain: time.Second, close: time.Second}})
	conn, err := net.Dial("tcp", g.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte{22, 3, 1}); err != nil { // the begin of a record
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(conn); err != nil && !errors.Is(err, net.ErrClosed) && strings.Contains(err.Error(), "timeout") {
		t.Errorf("the connection stays open: %v", err)
	}
}
