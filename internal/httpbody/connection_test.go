package httpbody

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"

	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// TestBodiesEnd: a request whose body is silent ends with its connection, and with its context.
func TestBodiesEnd(t *testing.T) {
	t.Parallel()
	for name, cause := range map[string]func(server net.Conn, cancel context.CancelFunc){
		"the server closes the connection": func(server net.Conn, _ context.CancelFunc) { server.Close() },
		"the context ends":                 func(_ net.Conn, cancel context.CancelFunc) { cancel() },
		"both": func(server net.Conn, cancel context.CancelFunc) {
			server.Close()
			cancel()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				client, server := net.Pipe()
				defer server.Close()
				transport := &http.Transport{DialContext: Dial(func(context.Context, string, string) (net.Conn, error) { return client, nil })}
				defer transport.CloseIdleConnections()
				body, in := io.Pipe()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				req, err := http.NewRequestWithContext(Bind(ctx, func() { body.Close() }), http.MethodPost, "http://host/", body)
				if err != nil {
					t.Fatal(err)
				}
				go in.Write([]byte("first"))
				go func() {
					if _, err := http.ReadRequest(bufio.NewReader(server)); err != nil {
						t.Error(err)
					}
					synctest.Wait() // the first bytes are sent, or wait
					cause(server, cancel)
					io.Copy(io.Discard, server)
				}()
				if resp, err := transport.RoundTrip(req); err == nil {
					resp.Body.Close()
					t.Error("the request has a response")
				}
				if _, err := in.Write([]byte("second")); err == nil {
					t.Error("the body is still read")
				}
			})
		})
	}
}

// TestTLS: the connection of a TLS session counts, too.
func TestTLS(t *testing.T) {
	t.Parallel()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, _, err := w.(http.Hijacker).Hijack(); err == nil {
			c.Close()
		}
	}))
	defer s.Close()
	transport := s.Client().Transport.(*http.Transport).Clone()
	transport.DialContext, transport.ForceAttemptHTTP2 = Dial(new(net.Dialer).DialContext), false
	defer transport.CloseIdleConnections()
	body, in := io.Pipe()
	defer in.Close()
	req, err := http.NewRequestWithContext(Bind(t.Context(), func() { body.Close() }), http.MethodPost, s.URL, body)
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := transport.RoundTrip(req); err == nil {
		resp.Body.Close()
		t.Error("the request has a response")
	}
}
