package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/lmosd/lmosd/bridge/mcp/backend"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

var object = json.RawMessage(`{"type":"object","properties":{"where":{"type":"string","x-mcp-header":"Where"}}}`)

// served serves a server of the Go SDK over HTTP, stateless or with sessions.
func served(t *testing.T, modern bool, around func(http.Handler) http.Handler) (string, *sdk.Server) {
	t.Helper()
	versions := []string{protocol.Legacy}
	if modern {
		versions = []string{protocol.Modern}
	}
	s := sdk.NewServer(&sdk.Implementation{Name: "web", Version: "1"}, &sdk.ServerOptions{SupportedProtocolVersions: versions})
	s.AddTool(&sdk.Tool{Name: "say", InputSchema: object}, func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		if token := r.Params.GetProgressToken(); token != nil {
			_ = r.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: token, Progress: 1})
		}
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: string(r.Params.Arguments)}}}, nil
	})
	var h http.Handler = sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, &sdk.StreamableHTTPOptions{Stateless: modern})
	if around != nil {
		h = around(h)
	}
	site := httptest.NewServer(h)
	t.Cleanup(func() {
		for one := range s.Sessions() { // sessions that their clients did not end
			one.Close()
		}
		site.Close()
	})
	return site.URL + "/mcp", s
}

func dialled(t *testing.T, o Options) *backend.Backend {
	t.Helper()
	transport := &http.Transport{}
	o.Transport = transport
	o.Params = func(string) []protocol.Param { return []protocol.Param{{Header: "Where", Path: []string{"where"}}} }
	b := backend.New(backend.Options{Name: "web", Silent: time.Minute, Dial: func(ctx context.Context) (protocol.Conn, error) { return Dial(ctx, o), nil }})
	t.Cleanup(transport.CloseIdleConnections)
	t.Cleanup(b.Close)
	return b
}

func call(t *testing.T, b *backend.Backend, where string) (string, []string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var said []string
	r, err := b.Call(ctx, protocol.Request("7", protocol.CallTool, map[string]any{"name": "say", "arguments": map[string]string{"where": where},
		"_meta": map[string]any{protocol.MetaVersion: protocol.Modern, protocol.MetaCapabilities: struct{}{}, "progressToken": "p"}}),
		func(n *protocol.Message) error { said = append(said, n.Method()); return nil })
	if err != nil {
		return "", said, err
	}
	return string(r.Bytes()), said, nil
}

// Servers of all revisions are detected; headers match the body.
func TestServers(t *testing.T) {
	t.Parallel()
	for _, modern := range []bool{true, false} {
		at, _ := served(t, modern, nil)
		b := dialled(t, Options{URL: at})
		for _, where := range []string{"Bonn", "Köln ", "=?base64?x?="} {
			got, said, err := call(t, b, where)
			if err != nil || !strings.Contains(got, where) || !slices.Equal(said, []string{protocol.Progress}) {
				t.Errorf("modern %v: %q: %s, %q, %v", modern, where, got, said, err)
			}
		}
		if info, err := b.Info(t.Context()); err != nil || info.Modern != modern || info.Server.Name != "web" {
			t.Errorf("modern %v: the server is %+v, %v", modern, info, err)
		}
		odd := protocol.Request("8", "odd/method", map[string]any{"_meta": map[string]any{protocol.MetaVersion: protocol.Modern, protocol.MetaCapabilities: struct{}{}}})
		if r, err := b.Call(t.Context(), odd, func(*protocol.Message) error { return nil }); err != nil || r.Error() == nil || r.Error().Code != protocol.UnknownMethod {
			t.Errorf("modern %v: an unknown method: %v, %v", modern, r, err)
		}
	}
}

// A server of 2024-11-05 is detected, and its notifications are received; when its stream ends, the client reconnects.
func TestHTTPSSEServers(t *testing.T) {
	t.Parallel()
	s := sdk.NewServer(&sdk.Implementation{Name: "oldest", Version: "1"}, nil)
	s.AddTool(&sdk.Tool{Name: "say", InputSchema: object}, func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		_ = r.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: 1})
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: string(r.Params.Arguments)}}}, nil
	})
	site := httptest.NewServer(sdk.NewSSEHandler(func(*http.Request) *sdk.Server { return s }, nil))
	t.Cleanup(site.Close)
	t.Cleanup(site.CloseClientConnections)
	b := dialled(t, Options{URL: site.URL + "/sse"})
	for i := range 2 {
		got, said, err := call(t, b, "Bonn")
		for end := time.Now().Add(time.Minute); i > 0 && !strings.Contains(got, "Bonn") && time.Now().Before(end); {
			got, said, err = call(t, b, "Bonn") // the previous call detected the end of the stream
		}
		if err != nil || !strings.Contains(got, "Bonn") || !slices.Equal(said, []string{protocol.Progress}) {
			t.Errorf("call %d: %s, %q, %v", i, got, said, err)
		}
		if info, err := b.Info(t.Context()); err != nil || info.Modern || info.Server.Name != "oldest" {
			t.Errorf("the server is %+v, %v", info, err)
		}
		site.CloseClientConnections()
	}
}

// Streams of 2024-11-05 with an endpoint on another host, or none, are not followed.
func TestBadEndpoints(t *testing.T) {
	t.Parallel()
	for stream, says := range map[string]string{
		"event: endpoint\ndata: http://127.0.0.1:1/x\n\n": "405",
		"event: endpoint\ndata: //evil.example/x\n\n":     "405",
		"event: other\ndata: /x\n\n":                      "405",
		"data: /x\n\n":                                    "405",
	} {
		site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet {
				w.WriteHeader(http.StatusMethodNotAllowed)
				return
			}
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, stream)
		}))
		b := dialled(t, Options{URL: site.URL})
		if got, _, err := call(t, b, "x"); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %s, %v", stream, got, err)
		}
		b.Close()
		site.Close()
	}
}

// Tools with invalid headers are left out; the others are unchanged.
func TestToolsWithBadHeaders(t *testing.T) {
	t.Parallel()
	const good = `{"name":"good","inputSchema":{"type":"object","properties":{"a":{"type":"string","x-mcp-header":"A"}}},"description":"<b>&"}`
	for name, test := range map[string]struct{ tools, want string }{
		"none is bad": {`[` + good + `, {"name":"other"}]`, `[` + good + `,{"name":"other"}]`},
		"one is":      {`[{"name":"bad","inputSchema":{"properties":{"a":{"type":"string","x-mcp-header":"A B"}}}},` + good + `]`, `[` + good + `]`},
		"all are":     {`[{"name":"bad","inputSchema":{"properties":{"a":{"type":"object","x-mcp-header":"A"}}}}]`, `[]`},
		"no list":     {`{"x-mcp-header":1}`, `{"x-mcp-header":1}`},
	} {
		m, err := protocol.Parse([]byte(`{"jsonrpc":"2.0","id":1,"result":{"tools":` + test.tools + `,"ttlMs":0}}`))
		if err != nil {
			t.Fatal(err)
		}
		var log strings.Builder
		c := &conn{o: Options{Log: slog.New(slog.NewTextHandler(&log, nil))}}
		got := string(c.dropInvalidTools(m).Bytes())
		if !strings.Contains(strings.ReplaceAll(got, ", ", ","), test.want+`,"ttlMs":0`) || strings.Contains(test.tools, "bad") != strings.Contains(log.String(), "bad") {
			t.Errorf("%s: %s; %s", name, got, log.String())
		}
	}
}

// A session that the server has lost is started again, and the request is repeated.
func TestLostSessionIsStartedAgain(t *testing.T) {
	t.Parallel()
	var forget atomic.Bool
	at, _ := served(t, false, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost && r.Header.Get("Mcp-Session-Id") != "" && forget.Swap(false) {
				http.Error(w, "session not found", http.StatusNotFound)
				return
			}
			h.ServeHTTP(w, r)
		})
	})
	b := dialled(t, Options{URL: at})
	for i := range 3 {
		if got, _, err := call(t, b, "x"); err != nil || !strings.Contains(got, `"result"`) {
			t.Fatalf("call %d: %s, %v", i, got, err)
		}
		forget.Store(true)
	}
}

// A response whose stream breaks is resumed, if a legacy server keeps its events.
func TestBrokenStreamIsResumed(t *testing.T) {
	t.Parallel()
	s := sdk.NewServer(&sdk.Implementation{Name: "web", Version: "1"}, &sdk.ServerOptions{SupportedProtocolVersions: []string{protocol.Legacy}})
	begun, broken := make(chan struct{}), make(chan struct{})
	s.AddTool(&sdk.Tool{Name: "say", InputSchema: object}, func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		_ = r.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: 1})
		close(begun)
		<-broken
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "the rest"}}}, nil
	})
	var resumed atomic.Int32
	h := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, &sdk.StreamableHTTPOptions{EventStore: sdk.NewMemoryEventStore(nil)})
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Last-Event-ID") != "" {
			resumed.Add(1)
		}
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		for one := range s.Sessions() {
			one.Close()
		}
		site.Close()
	})
	b := dialled(t, Options{URL: site.URL + "/mcp"})
	go func() {
		<-begun
		site.CloseClientConnections()
		close(broken)
	}()
	if got, said, err := call(t, b, "x"); err != nil || !strings.Contains(got, "the rest") || len(said) != 1 || resumed.Load() == 0 {
		t.Errorf("%s, %q, %v; resumed %d times", got, said, err, resumed.Load())
	}
}

// Notifications of a legacy server are received.
func TestServerStream(t *testing.T) {
	t.Parallel()
	at, s := served(t, false, nil)
	b := dialled(t, Options{URL: at})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	received := 0
	_, _ = b.Call(ctx, protocol.Request("1", protocol.Listen, map[string]any{"notifications": map[string]any{"toolsListChanged": true},
		"_meta": map[string]any{protocol.MetaVersion: protocol.Modern, protocol.MetaCapabilities: struct{}{}}}), func(n *protocol.Message) error {
		if received++; n.Method() == "notifications/tools/list_changed" {
			return io.EOF
		}
		go func() {
			for i := 0; ctx.Err() == nil && i < 100; i++ {
				s.AddTool(&sdk.Tool{Name: fmt.Sprint("t", i), InputSchema: object}, nil)
				time.Sleep(10 * time.Millisecond)
			}
		}()
		return nil
	})
	if received < 2 {
		t.Errorf("%d messages were received", received)
	}
	cancel()
}

// Responses of other kinds of servers are errors, without a wait.
func TestBadServers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer func(w http.ResponseWriter, id string)
		says   string
	}{
		"a web page": {func(w http.ResponseWriter, _ string) { fmt.Fprint(w, "<html>") }, "not an MCP message"},
		"not found":  {func(w http.ResponseWriter, _ string) { http.Error(w, "no", 404) }, "404"},
		"no entry":   {func(w http.ResponseWriter, _ string) { http.Error(w, "no", http.StatusUnauthorized) }, "401"},
		"too many":   {func(w http.ResponseWriter, _ string) { http.Error(w, "no", http.StatusTooManyRequests) }, "429"},
		"a redirect away": {func(w http.ResponseWriter, _ string) {
			w.Header().Set("Location", "http://127.0.0.1:1/")
			w.WriteHeader(307)
		}, "307"},
		"accepted":        {func(w http.ResponseWriter, _ string) { w.WriteHeader(202) }, "before the response"},
		"an empty stream": {func(w http.ResponseWriter, _ string) { w.Header().Set("Content-Type", "text/event-stream") }, "before the response"},
		"rubbish in a stream": {func(w http.ResponseWriter, _ string) {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, ": hi\ndata: rubbish\n\nretry: x\ndata\n\ndata: {\"jsonrpc\"")
		}, "before the response"},
		"an error without id": {func(w http.ResponseWriter, _ string) {
			w.WriteHeader(400)
			fmt.Fprint(w, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"bad header"}}`)
		}, "bad header"},
		"a huge event": {func(w http.ResponseWriter, _ string) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.Copy(w, io.LimitReader(zeros{}, maxEvent+1<<20))
		}, "too large"},
		"no HTTP": {func(w http.ResponseWriter, _ string) {
			if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
				fmt.Fprintf(conn, "%s\n\n", strings.Repeat("x", 1<<16))
				conn.Close()
			}
		}, "malformed HTTP response"},
	} {
		site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			m, err := protocol.Parse(body)
			if err != nil {
				w.WriteHeader(http.StatusMethodNotAllowed) // a GET
				return
			}
			test.answer(w, string(m.ID()))
		}))
		b := dialled(t, Options{URL: site.URL})
		if got, _, err := call(t, b, "x"); err == nil || !strings.Contains(err.Error(), test.says) || len(err.Error()) > 1000 {
			t.Errorf("%s: %s, %.1000v", name, got, err)
		}
		b.Close()
		site.Close()
	}
	b := dialled(t, Options{URL: "http://127.0.0.1:1/?key=secret"})
	if _, _, err := call(t, b, "x"); err == nil || !strings.Contains(err.Error(), "unreachable") || strings.Contains(err.Error(), "secret") {
		t.Errorf("no server: %v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// A caller that cancels closes its request.
func TestClose(t *testing.T) {
	t.Parallel()
	left, asked := make(chan struct{}), make(chan struct{})
	at, _ := served(t, true, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Mcp-Name") != "say" {
				h.ServeHTTP(w, r)
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			close(asked)
			<-r.Context().Done()
			close(left)
		})
	})
	b := dialled(t, Options{URL: at})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	_, err := b.Call(ctx, protocol.Request("7", protocol.CallTool, map[string]any{"name": "say",
		"_meta": map[string]any{protocol.MetaVersion: protocol.Modern, protocol.MetaCapabilities: struct{}{}}}), func(*protocol.Message) error { return nil })
	if <-left; err == nil {
		t.Error("a cancelled call has a response")
	}
}

// Secrets are sent only to their server.
func TestLogin(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var tokens, keys []string
	elsewhere := 0
	var as *httptest.Server
	as = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path != "/token" {
			fmt.Fprintf(w, `{"issuer":%q,"token_endpoint":%q,"authorization_endpoint":%q,"response_types_supported":["code"],"code_challenge_methods_supported":["S256"]}`,
				as.URL, as.URL+"/token", as.URL+"/authorize")
			return
		}
		elsewhere++
		id, secret, _ := r.BasicAuth()
		_ = r.ParseForm()
		fmt.Fprintf(w, `{"access_token":"t-%s-%s%s%s","token_type":"Bearer","expires_in":3600}`, id, secret, r.Form.Get("refresh_token"), r.Form.Get("client_secret"))
	}))
	defer as.Close()
	want := atomic.Pointer[string]{}
	var at string
	at, _ = served(t, true, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/.well-known/") {
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprintf(w, `{"resource":%q,"authorization_servers":[%q]}`, at, as.URL)
				return
			}
			mu.Lock()
			tokens, keys = append(tokens, r.Header.Get("Authorization")), append(keys, r.Header.Get("X-Key"))
			mu.Unlock()
			if r.Header.Get("Authorization") != *want.Load() {
				w.Header().Set("WWW-Authenticate", `Bearer resource_metadata="`+strings.TrimSuffix(at, "/mcp")+`/.well-known/oauth-protected-resource/mcp"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			h.ServeHTTP(w, r)
		})
	})
	origin := strings.TrimSuffix(at, "/mcp")
	for name, test := range map[string]struct{ file, want, says string }{
		"a token":            {`"bearer":{"origin":"` + origin + `","token":"b"}`, "Bearer b", ""},
		"a key":              {`"header":{"origin":"` + origin + `","username":"X-Key","key":"k"}`, "", ""},
		"client credentials": {`"oauth":{"origin":"` + as.URL + `","username":"me","password":"pw"}`, "Bearer t-me-pw", ""},
		"a refresh token":    {`"oauth":{"origin":"` + as.URL + `","username":"me","password":"pw","token":"rt"}`, "Bearer t-me-pwrt", ""},
		"another's origin":   {`"oauth":{"origin":"https://login.example","username":"me","password":"pw"}`, "never", "another origin"},
		"a stranger's token": {`"bearer":{"origin":"https://other.example","token":"b"}`, "never", "requires a login"},
	} {
		store := written(t, filepath.Join(t.TempDir(), "credentials.json"), `{"`+at+`":{`+test.file+`}}`)
		mu.Lock()
		tokens, keys, elsewhere = nil, nil, 0
		mu.Unlock()
		want.Store(&test.want)
		transport := &http.Transport{}
		b := dialled(t, Options{URL: at, Login: NewLogin(LoginOptions{Server: at, Credentials: store, Transport: transport})})
		got, _, err := call(t, b, "x")
		if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %s, %v", name, got, err)
		}
		b.Close()
		transport.CloseIdleConnections()
		mu.Lock()
		if test.says != "" && (elsewhere > 0 || strings.Contains(strings.Join(tokens, ""), "b")) || name == "a key" && keys[0] != "k" {
			t.Errorf("%s: the secret was sent to another server: %q, %d", name, tokens, elsewhere)
		}
		mu.Unlock()
	}
}

// written is a store with a file.
func written(t *testing.T, file, content string) credentials.Store {
	t.Helper()
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	store, err := credentials.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// For every stream the messages are complete, and reading ends.
func FuzzEvents(f *testing.F) {
	f.Add([]byte("id: 1\nretry: 5\ndata: {\"jsonrpc\":\"2.0\",\ndata: \"method\":\"x\"}\n\n:\r\n\r\n"))
	f.Add([]byte("data: {}\n\ndata\n\nid\n\n"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		s := &events{}
		_ = s.read(strings.NewReader(string(stream)), func(m *protocol.Message) {
			if again, err := protocol.Parse(m.Bytes()); err != nil || string(again.Bytes()) != string(m.Bytes()) {
				t.Fatalf("%s: %v", m.Bytes(), err)
			}
		})
		value := encodeHeader(string(stream))
		if back, err := protocol.DecodeHeader(value); err != nil || back != string(stream) {
			t.Fatalf("%q is %q and then %q, %v", stream, value, back, err)
		}
	})
}
