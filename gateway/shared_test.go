package gateway

import (
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/lmosd/lmosd/gateway/tokens"
	"github.com/lmosd/lmosd/interact"
)

// listening returns a listener that the test opened, as the mesh opens a shared port.
func listening(t *testing.T, addr string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// The rules for an address hold for a port that the gateway did not open.
func TestRulesOfASharedPort(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		addr string
		o    Options
		code interact.Code
	}{
		"without a token":    {"0.0.0.0:0", Options{}, interact.WildcardBind},
		"with no auth":       {"0.0.0.0:0", Options{Tokens: tokens.New(token), NoAuth: true}, interact.WildcardBind},
		"plain HTTP":         {"0.0.0.0:0", Options{Tokens: tokens.New(token)}, interact.ConfigInvalid},
		"with another name ": {"0.0.0.0:0", Options{Listen: "127.0.0.1:1"}, interact.WildcardBind}, // the listener decides
	} {
		o := c.o
		if o.Shared = listening(t, c.addr); o.Listen == "" {
			o.Listen = c.addr
		}
		if _, err := New(serving(newFake(), o)); interact.AsError(err).Code != c.code {
			t.Errorf("%s: got %v", name, err)
		}
	}
	const thing = "/things/urn:x:weather/properties/unit"
	beyond := start(t, Options{Listen: "0.0.0.0:0", Shared: listening(t, "0.0.0.0:0")})
	beyond.check(t, exchange{path: thing, status: 401, code: "LMOS-1401"}) // from loopback, which proves nothing there
	beyond.check(t, exchange{path: thing, header: map[string]string{"Authorization": "Bearer " + token}, status: 200})
	local := start(t, Options{Listen: "127.0.0.1:0", Shared: listening(t, "127.0.0.1:0")})
	local.check(t, exchange{path: thing, status: 200})
}

// Requests that open a connection of another protocol do not reach the routes; those of the socket do.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	r := start(t, Options{Upgrade: func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Upgrade") != "websocket" || r.URL.Path != "/" {
			return false
		}
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return true
		}
		defer c.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\n\r\n")
		_ = rw.Flush() // the client sees a failure
		return true
	}})
	r.check(t, exchange{path: "/healthz", status: 200})
	for _, c := range []struct {
		client *http.Client
		path   string
		want   bool
	}{{r.http, "/", true}, {r.unix, "/", false}, {r.http, "/ws", false}} {
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost"+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Upgrade", "websocket")
		resp, err := c.client.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if got := resp.StatusCode == http.StatusSwitchingProtocols; got != c.want {
			t.Errorf("%s: status %d", c.path, resp.StatusCode)
		}
	}
}

// An addressed listener says that its connections come from other addresses, in turn.
type addressed struct {
	net.Listener
	from []string
	next int
}

type addressedConn struct {
	net.Conn
	from net.Addr
}

func (c addressedConn) RemoteAddr() net.Addr { return c.from }

func (l *addressed) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	ip := l.from[l.next%len(l.from)]
	l.next++
	return addressedConn{c, &net.TCPAddr{IP: net.ParseIP(ip), Port: l.next}}, nil
}

// One address cannot take the connections of all others.
func TestConnectionsOfOneAddress(t *testing.T) {
	t.Parallel()
	l := &addressed{listening(t, "127.0.0.1:0"), []string{"192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.2", "127.0.0.1", "127.0.0.1", "127.0.0.1", "192.0.2.1"}, 0}
	bound := limitListener(l, 8, 2, time.Second)
	defer bound.Close()
	var clients []net.Conn
	dial := func() {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		clients = append(clients, c)
	}
	accept := func() net.Conn {
		c, err := bound.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	dial()
	dial()
	first, second := accept(), accept()
	dial() // one too many
	dial()
	if c := accept(); c.RemoteAddr().String() != "192.0.2.2:4" {
		t.Errorf("accepted %s, want the other address", c.RemoteAddr())
	}
	if _, err := clients[2].Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the third connection of an address: %v, want its end", err)
	}
	for range 3 { // loopback has no limit
		dial()
		accept()
	}
	first.Close()
	second.Close()
	dial()
	if c := accept(); c.RemoteAddr().String() != "192.0.2.1:8" {
		t.Errorf("accepted %s after others ended", c.RemoteAddr())
	}
}
