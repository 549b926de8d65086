package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/poll"
)

// A plainSocket switches protocols without WebSocket frames, reports its caller, and holds the connection until its end.
type plainSocket struct {
	mayRegister chan bool // receives the argument of Serve
	ended       chan error
}

func newPlainSocket() *plainSocket {
	return &plainSocket{mayRegister: make(chan bool, 10), ended: make(chan error, 10)}
}

func (s *plainSocket) Serve(w http.ResponseWriter, r *http.Request, mayRegister bool) {
	if r.Header.Get("Upgrade") == "" {
		http.Error(w, "no upgrade", http.StatusUpgradeRequired)
		return
	}
	conn, buf, err := w.(http.Hijacker).Hijack()
	if err != nil {
		s.ended <- err
		return
	}
	defer conn.Close()
	fmt.Fprintf(buf, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\nQuery: %s\r\n\r\n", r.URL.RawQuery)
	_ = buf.Flush()
	s.mayRegister <- mayRegister
	<-r.Context().Done()
	s.ended <- r.Context().Err()
}

// upgrade sends an upgrade request with pairs of headers over network, and returns the status and header of the response. The connection is
// closed with the test.
func (r *running) upgrade(t *testing.T, network, path string, headers ...string) *http.Response {
	t.Helper()
	addr := r.Addr().String()
	if network == "unix" {
		addr = r.o.Socket
	}
	conn, err := net.Dial(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	request := "GET " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: x\r\n"
	for i := 0; i < len(headers); i += 2 {
		request += headers[i] + ": " + headers[i+1] + "\r\n"
	}
	if _, err := io.WriteString(conn, request+"\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func TestWebSocket(t *testing.T) {
	t.Parallel()
	ws := newPlainSocket()
	r := start(t, Options{WS: ws})
	for _, tt := range []struct {
		name, network, path string
		headers             []string
		status              int
		mayRegister         bool
		query               string
	}{
		{"a consumer", "tcp", "/ws", nil, 101, false, ""},
		{"an agent", "tcp", "/ws", []string{"Authorization", "Bearer " + token}, 101, true, ""},
		{"an agent in a browser", "tcp", "/ws?x=1&token=" + token, []string{"Origin", "http://127.0.0.1"}, 101, true, "x=1"},
		{"a wrong token in the query", "tcp", "/ws?token=x&y=1", nil, 101, false, "y=1"},
		{"over the socket", "unix", "/ws", nil, 101, true, ""},
		{"from another page", "tcp", "/ws", []string{"Origin", "http://evil.example"}, 403, false, ""},
		{"from a null origin", "tcp", "/ws", []string{"Origin", "null"}, 403, false, ""},
		{"from a page, by Fetch Metadata", "tcp", "/ws", []string{"Sec-Fetch-Site", "cross-site"}, 403, false, ""},
	} {
		resp := r.upgrade(t, tt.network, tt.path, tt.headers...)
		if resp.StatusCode != tt.status || resp.Header.Get("Query") != tt.query {
			t.Errorf("%s: got %d %v", tt.name, resp.StatusCode, resp.Header)
			continue
		}
		if tt.status == 101 {
			if may := <-ws.mayRegister; may != tt.mayRegister {
				t.Errorf("%s: may register: %v", tt.name, may)
			}
		}
	}
	r.check(t, exchange{method: "POST", path: "/ws", header: asAdmin, status: 405})
	if resp, _ := r.do(t, exchange{path: "/ws"}); resp.StatusCode != http.StatusUpgradeRequired { // the socket rejects it
		t.Errorf("no upgrade: %d", resp.StatusCode)
	}
	r.end()
	for range 5 {
		if err := <-ws.ended; err != context.Canceled {
			t.Errorf("a socket ended with %v", err)
		}
	}
}

func TestWebSocketIsCounted(t *testing.T) {
	t.Parallel()
	ws := newPlainSocket()
	m := NewMetrics()
	r := start(t, Options{WS: ws, Metrics: m})
	r.upgrade(t, "tcp", "/ws")
	<-ws.mayRegister
	r.end() // a drain does not wait for open sockets
	<-ws.ended
	poll.Until(t, "the count", func() bool { return scrape(t, m)[`lmosd_http_requests_total{code="101",route="/ws"}`] == "1" })
}

// Beyond loopback, consumers need the token, too.
func TestWebSocketBeyondLoopback(t *testing.T) {
	t.Parallel()
	ws := newPlainSocket()
	r := start(t, Options{WS: ws, Listen: "0.0.0.0:0"})
	if resp := r.upgrade(t, "tcp", "/ws"); resp.StatusCode != 401 {
		t.Errorf("without a token: %d", resp.StatusCode)
	}
	if resp := r.upgrade(t, "tcp", "/ws?token="+token); resp.StatusCode != 101 || !<-ws.mayRegister {
		t.Errorf("with the token: %d", resp.StatusCode)
	}
}

func TestWebSocketWhileDraining(t *testing.T) {
	t.Parallel()
	ws := newPlainSocket()
	r, mesh := startBlocking(t, Options{WS: ws})
	r.upgrade(t, "tcp", "/ws")
	<-ws.mayRegister
	call := r.asynchronously(t, blockedCall)
	<-mesh.started
	r.stop()
	poll.Until(t, "the drain", r.gate.Closed)
	if resp := r.upgrade(t, "tcp", "/ws"); resp.StatusCode != 503 {
		t.Errorf("a new socket: %d", resp.StatusCode)
	}
	select {
	case err := <-ws.ended:
		t.Errorf("a socket ended with %v while calls run", err)
	default:
	}
	close(mesh.release)
	<-call
	err := <-r.done
	r.done <- err // for r.end
	select {
	case err := <-ws.ended:
		t.Errorf("a socket ended with %v before Close: an agent behind it may be answering a peer", err)
	default:
	}
	r.end()
	<-ws.ended
}

func TestNoWebSocket(t *testing.T) {
	t.Parallel()
	r := start(t, Options{})
	r.check(t, exchange{path: "/ws", status: 404, code: "LMOS-1405"})
}

// Only browsers' EventSource and WebSocket requests may have the token in the query.
func TestTokenInTheQuery(t *testing.T) {
	t.Parallel()
	node := newFake(describe("urn:x:weather", "Weather", owner1))
	var received *interact.Message
	node.mesh = interact.Unary(func(ctx context.Context, m *interact.Message) (*interact.Message, error) {
		received = m
		return echo(ctx, m)
	}).Do
	r := start(t, serving(node, Options{Listen: "0.0.0.0:0"}))
	path := "/things/urn:x:weather/properties/unit?token=" + token
	r.check(t, exchange{path: path, status: 401})
	r.check(t, exchange{method: "POST", path: "/v1/publish?token=" + token, header: map[string]string{"Accept": "text/event-stream"}, status: 401})
	r.check(t, exchange{path: path, header: events(""), status: 405, code: "LMOS-1406"}) // not observable, but authorized
	r.check(t, exchange{path: "/things/urn:x:weather/properties/unit?token=x", header: events(""), status: 401})
	if received != nil {
		t.Errorf("request %+v", received)
	}
}

// The token of the node in a query does not reach agents as a URI variable.
func TestTokenDoesNotReachAgents(t *testing.T) {
	t.Parallel()
	r := start(t, Options{})
	for _, tt := range []struct {
		name, method, path, query string
		socket                    bool
		headers                   map[string]string
		left, authorization       string
	}{
		{"a variable", "GET", "/x", "a=1&token=mine", false, nil, "a=1&token=mine", ""},
		{"events", "GET", "/x", "b=1&token=" + token + "&a=2", false, events(""), "a=2&b=1", "Bearer " + token},
		{"events, a wrong token", "GET", "/x", "token=wrong&a=2", false, events(""), "a=2", "Bearer wrong"},
		{"events, none", "GET", "/x", "a=2", false, events(""), "a=2", ""},
		{"events, an escaped name", "GET", "/x", "%74oken=wrong", false, events(""), "", "Bearer wrong"},
		{"events, a header too", "GET", "/x", "token=" + token, false, events("Bearer other"), "", "Bearer other"},
		{"events, a header and a variable", "GET", "/x", "token=mine", false, events("Bearer other"), "token=mine", "Bearer other"},
		{"events over the socket", "GET", "/x", "token=mine", true, events(""), "token=mine", ""},
		{"a WebSocket, a wrong token", "GET", "/ws", "token=wrong", false, nil, "", "Bearer wrong"},
		{"a reading", "GET", "/x", "token=" + token, false, nil, "", ""},
		{"a call, the token behind a variable", "POST", "/x", "token=mine&token=" + token, false, nil, "token=mine", ""},
		{"a call over the socket", "POST", "/x", "token=" + token, true, nil, "", ""},
	} {
		caller := did.Consumer(map[bool]did.Via{false: did.Loopback, true: did.Socket}[tt.socket], "")
		req, err := http.NewRequestWithContext(did.WithPrincipal(t.Context(), caller), tt.method, tt.path+"?"+tt.query, nil)
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range tt.headers {
			req.Header.Set(name, value)
		}
		r.guard.moveQueryToken(req)
		if req.URL.RawQuery != tt.left || req.Header.Get("Authorization") != tt.authorization {
			t.Errorf("%s: query %q, header %v", tt.name, req.URL.RawQuery, req.Header)
		}
	}
}

// events returns the headers of a request for events.
func events(authorization string) map[string]string {
	h := map[string]string{"Accept": "text/event-stream"}
	if authorization != "" {
		h["Authorization"] = authorization
	}
	return h
}
