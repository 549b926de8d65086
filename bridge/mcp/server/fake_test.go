package server

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/internal/sse"
	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// A fake is an MCP server in this process. Its sessions echo requests, and send the messages of outgoing.
type fake struct {
	call    func(ctx context.Context, m *protocol.Message, notify func(*protocol.Message) error) (*protocol.Message, error)
	refused error
	begun   chan *fakeConn
}

func newFake() *fake { return &fake{begun: make(chan *fakeConn, 256)} }

func (f *fake) Call(ctx context.Context, m *protocol.Message, notify func(*protocol.Message) error) (*protocol.Message, error) {
	if f.call != nil {
		return f.call(ctx, m, notify)
	}
	return protocol.Respond(m.ID(), map[string]string{"resultType": "complete", "caller": protocol.CallerOf(ctx)}), nil
}

func (f *fake) Session(ctx context.Context) (protocol.Conn, error) {
	if f.refused != nil {
		return nil, f.refused
	}
	c := &fakeConn{outgoing: make(chan *protocol.Message, 1024), incoming: make(chan *protocol.Message, 1024)}
	c.ctx, c.cancel = context.WithCancel(ctx)
	f.begun <- c
	return c, nil
}

// A fakeConn answers echo and initialize, and leaves other requests to the test.
type fakeConn struct {
	outgoing, incoming chan *protocol.Message
	ctx                context.Context
	cancel             context.CancelFunc
}

func (c *fakeConn) Read(context.Context) (*protocol.Message, error) {
	select {
	case m := <-c.outgoing:
		return m, nil
	case <-c.ctx.Done():
		return nil, io.EOF
	}
}

func (c *fakeConn) Write(_ context.Context, m *protocol.Message) error {
	if c.ctx.Err() != nil {
		return io.ErrClosedPipe
	}
	if m.Method() == "echo" || m.Method() == protocol.Initialize {
		c.outgoing <- protocol.Respond(m.ID(), m.Params())
	} else {
		c.incoming <- m
	}
	return nil
}

func (c *fakeConn) Close() error {
	c.cancel()
	return nil
}

// A testServer is a handler on a listener.
type testServer struct {
	t      *testing.T
	url    string
	client *http.Client
	server *fake
}

func newTestServer(t *testing.T, f *fake, o Options) *testServer {
	o.Server = f
	h := New(o)
	s := httptest.NewServer(h)
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(func() {
		h.Close()
		client.CloseIdleConnections()
		s.CloseClientConnections()
		s.Close()
	})
	return &testServer{t, s.URL, client, f}
}

// send sends a request; headers that are empty are left out.
func (r *testServer) send(ctx context.Context, method, body string, headers map[string]string) *http.Response {
	r.t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, r.url, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	for name, value := range headers {
		if req.Header.Set(name, value); value == "" {
			req.Header.Del(name)
		}
	}
	resp, err := r.client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp
}

// ask returns the status and the whole body.
func (r *testServer) ask(method, body string, headers map[string]string) (int, string, http.Header) {
	r.t.Helper()
	resp := r.send(r.t.Context(), method, body, headers)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, string(raw), resp.Header
}

// begin begins a session.
func (r *testServer) begin(headers map[string]string) (id string, c *fakeConn) {
	r.t.Helper()
	status, body, head := r.ask("POST", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`, headers)
	if id = head.Get(sessionID); status != 200 || id == "" {
		r.t.Fatalf("got %d %s", status, body)
	}
	return id, <-r.server.begun
}

// A received event of a stream.
type received struct {
	id string
	m  *protocol.Message
}

// events reads a stream, in a goroutine that ends with it.
func events(t *testing.T, resp *http.Response) <-chan received {
	t.Helper()
	if media := resp.Header.Get("Content-Type"); media != sse.MediaType || resp.StatusCode != 200 {
		t.Fatalf("got %s of type %s", resp.Status, media)
	}
	out := make(chan received, 1024)
	go func() {
		defer close(out)
		defer resp.Body.Close()
		var e received
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			name, value, _ := strings.Cut(lines.Text(), ": ")
			switch name {
			case "id":
				e.id = value
			case "data":
				e.m, _ = protocol.Parse([]byte(value))
				out <- e
				e = received{}
			}
		}
	}()
	return out
}

func next[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(20 * time.Second):
		t.Fatal("timed out waiting for an event")
	}
	return v
}

// modernRequest returns a stateless request with its headers.
func modernRequest(method string, params map[string]any, headers map[string]string) (string, map[string]string) {
	params["_meta"] = map[string]any{protocol.MetaVersion: protocol.Modern, protocol.MetaCapabilities: struct{}{}}
	all := map[string]string{versionName: protocol.Modern, "Mcp-Method": method}
	for k, v := range headers {
		all[k] = v
	}
	return string(protocol.Request("7", method, params).Bytes()), all
}

func has(t *testing.T, what, body string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(body, w) {
			t.Errorf("%s: %.300s has no %s", what, body, w)
		}
	}
}

func note(method string) *protocol.Message {
	return protocol.Request("", method, map[string]json.RawMessage{"progressToken": json.RawMessage("1")})
}
