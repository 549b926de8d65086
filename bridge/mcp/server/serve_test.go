package server

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
)

// Invalid and contradictory requests are rejected with the status and code of the specification.
func TestInvalidRequestsAreRejected(t *testing.T) {
	t.Parallel()
	params := []protocol.Param{{Header: "Region", Path: []string{"where", "region"}}, {Header: "N", Path: []string{"n"}}}
	r := newTestServer(t, newFake(), Options{MaxBody: 4 << 10, Params: func(_ context.Context, tool string) []protocol.Param {
		if tool == "t" {
			return params
		}
		return nil
	}})
	tool := map[string]any{"name": "t", "arguments": map[string]any{"where": map[string]any{"region": "Zürich"}, "n": 42}}
	good := map[string]string{"Mcp-Name": "t", "Mcp-Param-Region": "=?base64?WsO8cmljaA==?=", "Mcp-Param-N": " 42.0 "}
	without := func(name, value string) map[string]string {
		changed := map[string]string{name: value}
		for k, v := range good {
			if k != name {
				changed[k] = v
			}
		}
		return changed
	}
	const old = `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
	bare := func(meta string) string {
		return `{"jsonrpc":"2.0","id":"x","method":"tools/list","params":{"_meta":{` + meta + `}}}`
	}
	const version = `"io.modelcontextprotocol/protocolVersion":"2026-07-28"`
	for name, c := range map[string]struct {
		method, body string
		headers      map[string]string
		tool         map[string]any // a call, instead of a body
		status       int
		want         string
	}{
		"all is well":                  {tool: tool, headers: good, status: 200, want: `"id":7`},
		"no header of an argument":     {tool: tool, headers: without("Mcp-Param-N", ""), status: 400, want: "-32020"},
		"another argument":             {tool: tool, headers: without("Mcp-Param-N", "43"), status: 400, want: "-32020"},
		"no base64":                    {tool: tool, headers: without("Mcp-Param-Region", "=?base64?*?="), status: 400, want: "-32020"},
		"an argument that is not sent": {tool: map[string]any{"name": "t"}, headers: good, status: 400, want: "-32020"},
		"none sent, none repeated":     {tool: map[string]any{"name": "t"}, headers: map[string]string{"Mcp-Name": "t"}, status: 200, want: `"id":7`},
		"another name":                 {tool: tool, headers: without("Mcp-Name", "u"), status: 400, want: "-32020"},
		"no name":                      {tool: tool, headers: without("Mcp-Name", ""), status: 400, want: "-32020"},
		"another method":               {tool: tool, headers: without("Mcp-Method", "Tools/Call"), status: 400, want: "-32020"},
		"no method":                    {tool: tool, headers: without("Mcp-Method", ""), status: 400, want: "-32020"},
		"no revision in the header":    {tool: tool, headers: without(versionName, ""), status: 400, want: "-32020"},
		"an old one in the header":     {tool: tool, headers: without(versionName, protocol.Legacy), status: 400, want: "-32020"},
		"no revision in the body":      {body: bare(`"io.modelcontextprotocol/clientCapabilities":{}`), headers: map[string]string{versionName: protocol.Modern}, status: 400, want: "-32602"},
		"no capabilities":              {body: bare(version), headers: map[string]string{versionName: protocol.Modern}, status: 400, want: "-32602"},
		"a later revision": {body: strings.ReplaceAll(bare(version+`,"io.modelcontextprotocol/clientCapabilities":{}`), protocol.Modern, "2099-01-01"),
			headers: map[string]string{versionName: "2099-01-01"}, status: 400, want: `"supported":["2026-07-28"]`},
		"a removed method":                      {body: strings.Replace(bare(version), "tools/list", "ping", 1), headers: map[string]string{versionName: protocol.Modern}, status: 404, want: `"id":"x"`},
		"a response":                            {body: `{"jsonrpc":"2.0","id":1,"result":{}}`, headers: map[string]string{versionName: protocol.Modern}, status: 400, want: "-32600"},
		"a notification":                        {body: `{"jsonrpc":"2.0","method":"notifications/x"}`, headers: map[string]string{versionName: protocol.Modern}, status: 202},
		"invalid JSON":                          {body: `{`, status: 400, want: "-32700"},
		"a batch":                               {body: `[` + old + `]`, status: 400, want: "-32600"},
		"an invalid message with an id":         {body: `{"jsonrpc":"2.0","id":5}`, status: 400, want: `"id":5`},
		"no session":                            {body: old, status: 400, want: "-32600"},
		"an unknown session":                    {body: old, headers: map[string]string{sessionID: "x"}, status: 404},
		"an unsupported old revision":           {body: old, headers: map[string]string{versionName: "1999-01-01"}, status: 400, want: "unsupported MCP revision 1999-01-01\n"},
		"too large":                             {body: strings.Repeat(" ", 5<<10), status: 413},
		"another Content-Type":                  {body: old, headers: map[string]string{"Content-Type": "text/plain"}, status: 415},
		"Accept without event streams":          {body: old, headers: map[string]string{"Accept": "application/json"}, status: 406},
		"PUT":                                   {method: "PUT", status: 405},
		"GET without a session":                 {method: "GET", status: 400},
		"GET, stateless":                        {method: "GET", headers: map[string]string{versionName: protocol.Modern}, status: 405},
		"GET with Accept without event streams": {method: "GET", headers: map[string]string{"Accept": "application/json"}, status: 406},
		"DELETE of an unknown session":          {method: "DELETE", headers: map[string]string{sessionID: "x"}, status: 404},
	} {
		body, headers := c.body, c.headers
		if c.tool != nil {
			body, headers = modernRequest(protocol.CallTool, c.tool, c.headers)
		}
		if c.method == "" {
			c.method = "POST"
		}
		status, got, _ := r.ask(c.method, body, headers)
		if status != c.status || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %d %s, want %d and %s", name, status, got, c.status, c.want)
		}
	}
}

// The name in the header of tasks is that of the task.
func TestTaskNameHeader(t *testing.T) {
	t.Parallel()
	r := newTestServer(t, newFake(), Options{})
	for name, want := range map[string]int{"T": 200, "U": 400, "": 400} {
		body, headers := modernRequest("tasks/get", map[string]any{"taskId": "T"}, map[string]string{"Mcp-Name": name})
		if status, got, _ := r.ask("POST", body, headers); status != want {
			t.Errorf("%q: got %d %s", name, status, got)
		}
	}
}

// Messages before the response start a stream; errors have an HTTP status only without one.
func TestStatelessRequest(t *testing.T) {
	t.Parallel()
	f := newFake()
	gone := make(chan error, 1)
	f.call = func(ctx context.Context, m *protocol.Message, notify func(*protocol.Message) error) (*protocol.Message, error) {
		switch m.Method() {
		case "unknown":
			return protocol.RespondError(m.ID(), protocol.Errorf(protocol.UnknownMethod, "no")), nil
		case "lost":
			return nil, errors.New("it exited with 3")
		case "hang":
			_ = notify(note(protocol.Progress))
			<-ctx.Done()
			gone <- ctx.Err()
			return nil, ctx.Err()
		case protocol.Listen, "cancelled":
			if err := notify(note(protocol.Cancelled)); err == nil {
				<-ctx.Done()
			}
			return nil, ctx.Err()
		}
		for range 2 {
			if err := notify(note(protocol.Progress)); err != nil {
				return nil, err
			}
		}
		return protocol.Respond(m.ID(), struct{}{}), nil
	}
	r := newTestServer(t, f, Options{})
	for method, want := range map[string]struct {
		status int
		body   string
	}{"unknown": {404, "-32601"}, "lost": {200, "it exited with 3"}, "cancelled": {200, "-32603"}, protocol.Listen: {200, `"resultType":"complete"`}} {
		body, headers := modernRequest(method, map[string]any{}, nil)
		if status, got, _ := r.ask("POST", body, headers); status != want.status || !strings.Contains(got, want.body) {
			t.Errorf("%s: got %d %s", method, status, got)
		}
	}
	body, headers := modernRequest("streams", map[string]any{}, nil)
	status, got, head := r.ask("POST", body, headers)
	if strings.Count(got, "data: ") != 3 || strings.Contains(got, "id: ") || head.Get("X-Accel-Buffering") != "no" || status != 200 {
		t.Errorf("got %d %v %s", status, head, got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	body, headers = modernRequest("hang", map[string]any{}, nil)
	stream := events(t, r.send(ctx, "POST", body, headers))
	next(t, stream)
	cancel() // closing the response cancels
	if err := next(t, gone); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestCallerReachesTheServer(t *testing.T) {
	t.Parallel()
	r := newTestServer(t, newFake(), Options{Caller: func(r *http.Request) string { return r.Header.Get("X-Caller") }})
	body, headers := modernRequest("x", map[string]any{}, map[string]string{"X-Caller": "ada"})
	_, got, _ := r.ask("POST", body, headers)
	has(t, "a request", got, `"caller":"ada"`)
}

// A silent stream sends keep-alives.
func TestKeepAlive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.call = func(ctx context.Context, m *protocol.Message, _ func(*protocol.Message) error) (*protocol.Message, error) {
			time.Sleep(40 * time.Second)
			return protocol.Respond(m.ID(), struct{}{}), nil
		}
		h := New(Options{Server: f})
		defer h.Close()
		body, headers := modernRequest("x", map[string]any{}, nil)
		req := httptest.NewRequest("POST", "/", strings.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "*/*")
		for k, v := range headers {
			req.Header.Set(k, v)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		if got := w.Body.String(); strings.Count(got, ": \n\n") != 2 || !strings.Contains(got, `"result":{}`) {
			t.Errorf("got %q", got)
		}
	})
}

// Every posted message gets a response of a kind that clients expect.
func FuzzPost(f *testing.F) {
	good, _ := modernRequest(protocol.CallTool, map[string]any{"name": "t", "arguments": map[string]any{"n": 1}}, nil)
	f.Add([]byte(good), protocol.Modern, protocol.CallTool, "t", "1")
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"method":"initialize"}`), "", "", "", "")
	f.Add([]byte(`{"jsonrpc":"2.0","method":"x"}`), "2025-11-25", "=?base64??=", "=?base64?", "\"")
	server := newFake()
	go func() {
		for c := range server.begun {
			c.Close()
		}
	}()
	f.Cleanup(func() { close(server.begun) })
	f.Fuzz(func(t *testing.T, body []byte, version, method, name, argument string) {
		h := New(Options{Server: server, Params: func(context.Context, string) []protocol.Param {
			return []protocol.Param{{Header: "N", Path: []string{"n"}}}
		}})
		defer h.Close()
		req := httptest.NewRequest("POST", "/", bytes.NewReader(body))
		req.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"*/*"}, "Mcp-Protocol-Version": {version},
			"Mcp-Method": {method}, "Mcp-Name": {name}, "Mcp-Param-N": {argument}}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		switch w.Code {
		case 200, 202, 400, 404:
		default:
			t.Errorf("%q gives %d", body, w.Code)
		}
		if w.Code == 200 && w.Header().Get("Content-Type") == jsonType {
			if _, err := protocol.Parse(w.Body.Bytes()); err != nil {
				t.Errorf("%q gives %q: %v", body, w.Body, err)
			}
		}
	})
}
