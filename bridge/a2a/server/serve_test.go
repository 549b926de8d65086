package server

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/a2a/card"
	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// mirror returns its request. In a stream the second event is an error for the task "broken", and is never sent for "silent".
func mirror(name, principal string) protocol.Agent {
	return protocol.Func(func(ctx context.Context, op *protocol.Operation) iter.Seq2[json.RawMessage, error] {
		said := protocol.Encode(map[string]any{"agent": name, "principal": principal, "method": op.Method, "params": op.Params, "service": op.Service})
		if !protocol.Streams(op.Method) {
			if strings.Contains(string(op.Params), `"none"`) {
				return protocol.Once(nil, protocol.Errorf(protocol.TaskNotFound, "none"))
			}
			return protocol.Once(said, nil)
		}
		return func(yield func(json.RawMessage, error) bool) {
			switch {
			case strings.Contains(string(op.Params), `"none"`):
				yield(nil, &protocol.Error{Code: -32050, Message: "none of that", Data: json.RawMessage(`{"shelf":7}`)})
				return
			case strings.Contains(string(op.Params), `"forbidden"`):
				yield(nil, interact.Errorf(interact.Forbidden, "", "not you").Then(interact.StepHelp))
				return
			}
			if !yield(said, nil) {
				return
			}
			switch {
			case strings.Contains(string(op.Params), "broken"):
				yield(nil, interact.Errorf(interact.Unreachable, "try again", "it broke"))
			case strings.Contains(string(op.Params), "panics"):
				panic("a mistake")
			case strings.Contains(string(op.Params), "silent"):
				<-ctx.Done()
				yield(nil, ctx.Err())
			}
		}
	})
}

func start(t *testing.T) string { return startAlive(t, 5*time.Millisecond) }

// startAlive starts a server with a keep-alive interval.
func startAlive(t *testing.T, each time.Duration) string {
	t.Helper()
	h := New(Options{KeepAlive: each, Find: func(_ context.Context, name string) (*Agent, error) {
		if name == "nobody" {
			return nil, interact.Errorf(interact.NotFound, "", "no agent matches").Then(interact.StepFind)
		}
		return &Agent{Card: func(at Endpoint) (*card.Card, error) {
			return &card.Card{Name: at.Base + " " + at.Name, Interfaces: []card.Interface{{URL: "x", Binding: card.JSONRPC, Version: "0.3"}}}, nil
		}, For: func(c Caller, _ Endpoint) protocol.Agent { return mirror(name, c.Principal[:min(len(c.Principal), 4)]) }}, nil
	}})
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// ask sends a request "VERB path" with headers "name: value", and returns the status, the media type and the body.
func ask(t *testing.T, base, line, body string, headers ...string) (int, string, string) {
	t.Helper()
	verb, path, _ := strings.Cut(line, " ")
	q, err := http.NewRequestWithContext(t.Context(), verb, base+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		q.Header.Set("Content-Type", "application/json")
	}
	for _, h := range headers {
		if name, value, ok := strings.Cut(h, ": "); ok {
			q.Header.Set(name, value)
		}
	}
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	r, err := c.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, r.Header.Get("Content-Type"), string(text)
}

func rpcOf(method, params string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":%s}`, method, params)
}

// An error before the first event of a stream has the form that the official clients decode: an event over JSON-RPC (a2aclient/jsonrpc.go
// decodes nothing else); a status and a JSON body over REST, and for authorization errors.
func TestStreamsThatDoNotStart(t *testing.T) {
	t.Parallel()
	base := startAlive(t, time.Hour)
	for _, test := range []struct {
		line, body, version string
		status              int
		media, want         string
	}{
		{"POST /a2a/x", rpcOf("SendStreamingMessage", `{"x":"none"}`), "1.0", 200, protocol.EventStream, `data: {"jsonrpc":"2.0","id":1,"error":{"code":-32050,"message":"none of that","data":{"shelf":7}}}`},
		{"POST /a2a/x", rpcOf("message/stream", `{"message":{"kind":"message","messageId":"m","role":"user","parts":[{"kind":"text","text":"none"}]},"metadata":{"x":"none"}}`), "", 200, protocol.EventStream, `"code":-32050`},
		{"POST /a2a/nobody", rpcOf("SendStreamingMessage", `{}`), "1.0", 200, protocol.EventStream, `"code":-32601`},
		{"POST /a2a/x", rpcOf("SendStreamingMessage", `{}`), "2.0", 200, protocol.EventStream, `"code":-32009`},
		{"POST /a2a/x", rpcOf("SendStreamingMessage", `{"x":"forbidden"}`), "1.0", 403, jsonType, `"code":-31403`},
		{"POST /a2a/x/message:stream", `{"x":"none"}`, "1.0", 500, jsonType, `"message":"none of that"`},
		{"POST /a2a/x/message:stream", `{"x":"forbidden"}`, "1.0", 403, jsonType, `"message":"not you"`},
		{"POST /a2a/nobody/message:stream", `{}`, "1.0", 404, jsonType, `no agent matches`},
	} {
		status, media, got := ask(t, base, test.line, test.body, "A2A-Version: "+test.version)
		if status != test.status || media != test.media || !strings.Contains(got, test.want) || strings.Contains(got, "lmosd ") {
			t.Errorf("%s %s: %d %s %s", test.line, test.body, status, media, got)
		}
	}
}

// TestRequestsReachTheirAgent checks which agent and operation a request reaches.
func TestRequestsReachTheirAgent(t *testing.T) {
	t.Parallel()
	base := start(t)
	const v1 = "A2A-Version: 1.0"
	for name, test := range map[string]struct {
		line, body string
		headers    []string
		want       string // a part of the response
	}{
		"JSON-RPC":                 {"POST /a2a/x", rpcOf("GetTask", `{"id":"t"}`), []string{v1}, `"agent":"x","method":"GetTask","params":{"id":"t"},"principal":"","service":{"A2A-Version":"1.0"}`},
		"a slash at the end":       {"POST /a2a/x/", rpcOf("GetTask", `{"id":"t"}`), []string{v1}, `"agent":"x"`},
		"an id as the name":        {"POST /a2a/urn:lmos:did:key:z6Mk:x%2Fy", rpcOf("GetTask", `{"id":"t"}`), []string{v1}, `"agent":"urn:lmos:did:key:z6Mk:x/y"`},
		"the default":              {"POST /a2a", rpcOf("GetTask", `{"id":"t"}`), []string{v1}, `"agent":""`},
		"by tenant":                {"POST /a2a", rpcOf("GetTask", `{"tenant":"y","id":"t"}`), []string{v1}, `"agent":"y","method":"GetTask","params":{"id":"t"}`},
		"the agent's own tenant":   {"POST /a2a/x", rpcOf("GetTask", `{"tenant":"y","id":"t"}`), []string{v1}, `"agent":"x","method":"GetTask","params":{"tenant":"y","id":"t"}`},
		"a method says 1.0":        {"POST /a2a/x", rpcOf("GetTask", `{"id":"t"}`), nil, `"method":"GetTask"`},
		"a method says 0.3":        {"POST /a2a/x", rpcOf("agent/getAuthenticatedExtendedCard", `{}`), nil, `"method":"GetExtendedAgentCard"`},
		"0.3 in the header":        {"POST /a2a/x", rpcOf("tasks/pushNotificationConfig/list", `{"id":"t"}`), []string{"A2A-Version: 0.3.0"}, `"result":[]`},
		"the last number":          {"POST /a2a/x", rpcOf("GetTask", `{"id":"t"}`), []string{"A2A-Version: 1.0.7"}, `"method":"GetTask"`},
		"the version in the query": {"POST /a2a/x?a2a-version=1.0", rpcOf("GetTask", `{"id":"t"}`), nil, `"method":"GetTask"`},
		"1.0 with a method of 0.3": {"POST /a2a/x", rpcOf("tasks/get", `{"id":"t"}`), []string{v1}, `"code":-32601`},
		"0.3 with a method of 1.0": {"POST /a2a/x", rpcOf("GetTask", `{"id":"t"}`), []string{"A2A-Version: 0.3"}, `"code":-32601`},
		"another version":          {"POST /a2a/x", rpcOf("GetTask", `{"id":"t"}`), []string{"A2A-Version: 1.1"}, `"supportedVersions":"1.0, 0.3"`},
		"extensions":               {"POST /a2a/x", rpcOf("GetTask", `{"id":"t"}`), []string{v1, "A2A-Extensions: https://e/1, https://e/2"}, `"A2A-Extensions":"https://e/1, https://e/2"`},
		"principal":                {"POST /a2a/x", rpcOf("GetTask", `{"id":"t"}`), []string{v1, "Authorization: Bearer a"}, `"principal":"122c"`},
		"a wrong type":             {"POST /a2a/x", rpcOf("GetTask", `{"id":"t"}`), []string{v1, "Content-Type: text/plain"}, `"code":-32005`},
		"several at once":          {"POST /a2a/x", "[" + rpcOf("GetTask", `{}`) + "]", []string{v1}, `"code":-32600`},
		"no JSON":                  {"POST /a2a/x", "{", []string{v1}, `"id":null,"error":{"code":-32700`},
		"nobody":                   {"POST /a2a/nobody", rpcOf("GetTask", `{"id":"t"}`), []string{v1}, `"code":-32601`},
		"too deep":                 {"POST /a2a/x/y/z", rpcOf("GetTask", `{"id":"t"}`), []string{v1}, `"code":404`},
		"JSON-RPC with GET":        {"GET /a2a/x", "", nil, `"code":-32600`},

		"REST":                    {"GET /a2a/x/tasks/t?historyLength=2", "", []string{v1}, `"agent":"x","method":"GetTask","params":{"historyLength":2,"id":"t"}`},
		"colons and slashes":      {"POST /a2a/urn:x%2Fy/tasks/a%2F:b:cancel", "", []string{v1}, `"agent":"urn:x/y","method":"CancelTask","params":{"id":"a/:b"}`},
		"REST of a tenant":        {"GET /a2a/x/acme/tasks/t", "", []string{v1}, `"agent":"x","method":"GetTask","params":{"id":"t","tenant":"acme"}`},
		"REST of the default":     {"GET /a2a/tasks/t", "", []string{v1}, `"agent":""`},
		"REST by tenant":          {"GET /a2a/tasks/t?tenant=y", "", []string{v1}, `"agent":"y","method":"GetTask","params":{"id":"t"}`},
		"names of the proto":      {"GET /a2a/x/tasks?page_size=3&context_id=c", "", []string{v1}, `"params":{"contextId":"c","pageSize":3}`},
		"REST without a version":  {"GET /a2a/x/tasks/t", "", nil, `"method":"GetTask"`},
		"REST of 0.3":             {"GET /a2a/x/v1/tasks/t/pushNotificationConfigs", "", nil, `{"configs":[]}`},
		"REST of 0.3 fails":       {"GET /a2a/x/v1/tasks/none/pushNotificationConfigs/none", "", nil, `{"code":-32001,`},
		"REST of 0.3 says 1.0":    {"GET /a2a/x/v1/tasks/t", "", []string{v1}, `"code":404`},
		"REST of another version": {"GET /a2a/x/tasks/t", "", []string{"A2A-Version: 9"}, `VERSION_NOT_SUPPORTED`},
		"a wrong verb":            {"PUT /a2a/x/tasks/t", "", []string{v1}, `"code":404`},
		"a wrong number":          {"GET /a2a/x/tasks/t?historyLength=x", "", []string{v1}, `"fieldViolations"`},
		"a body that is none":     {"POST /a2a/x/message:send", "[]", []string{v1}, `"code":400`},
	} {
		if _, _, got := ask(t, base, test.line, test.body, test.headers...); !strings.Contains(got, test.want) {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
	if _, _, got := ask(t, base, "POST /a2a/x", strings.Repeat("x", protocol.MaxMessage+1)); !strings.Contains(got, "-32600") {
		t.Errorf("a body over the limit gives %.100s", got)
	}
}

// TestMedia checks the media types of REST responses and errors.
func TestMedia(t *testing.T) {
	t.Parallel()
	base := start(t)
	for headers, want := range map[string]string{
		"": "application/a2a+json", "Accept: application/json": "application/json", "Accept: application/a2a+json, application/json": "application/a2a+json",
		"Content-Type: application/json": "application/json", "Accept: */*": "application/a2a+json",
	} {
		for _, path := range []string{"GET /a2a/x/tasks/t", "GET /a2a/x/tasks/none", "GET /a2a/x/tasks/t?historyLength=x"} {
			if _, media, _ := ask(t, base, path, "", headers); media != want {
				t.Errorf("%s with %q is %s, want %s", path, headers, media, want)
			}
		}
	}
	for path, want := range map[string]int{"GET /a2a/x/tasks/none": 404, "GET /a2a/x/tasks/t?historyLength=x": 400, "GET /a2a/x/tasks/t": 200, "GET /a2a/nobody/tasks": 404} {
		if status, _, _ := ask(t, base, path, ""); status != want {
			t.Errorf("%s is %d, want %d", path, status, want)
		}
	}
}

// withoutComments removes the comments from the start of an event stream, which a slow agent causes.
func withoutComments(stream string) string {
	for strings.HasPrefix(stream, ":") {
		_, stream, _ = strings.Cut(stream, "\n\n")
	}
	return stream
}

// TestEventStreams checks the streams of both bindings and their ends.
func TestEventStreams(t *testing.T) {
	t.Parallel()
	base := start(t)
	_, media, got := ask(t, base, "POST /a2a/x", rpcOf("SendStreamingMessage", `{"x":1}`), "A2A-Version: 1.0")
	if media != protocol.EventStream || !strings.HasPrefix(withoutComments(got), `data: {"jsonrpc":"2.0","id":1,"result":{"agent":"x"`) || strings.Count(got, "data: ") != 1 {
		t.Errorf("the stream is %s %q", media, got)
	}
	_, _, got = ask(t, base, "POST /a2a/x", rpcOf("SendStreamingMessage", `{"x":"broken"}`), "A2A-Version: 1.0")
	if !strings.Contains(got, `"error":{"code":-32603,"message":"it broke"`) || !strings.Contains(got, `"retryable":"true"`) {
		t.Errorf("a broken stream is %q", got)
	}
	_, media, got = ask(t, base, "POST /a2a/x/message:stream", `{"x":"broken"}`, "A2A-Version: 1.0")
	if media != protocol.EventStream || !strings.HasPrefix(withoutComments(got), `data: {"agent":"x"`) || !strings.Contains(got, "event: error\ndata: {\"error\":{\"code\":500") {
		t.Errorf("a broken stream of REST is %q", got)
	}
	for _, verb := range []string{"GET", "POST"} {
		if _, media, got = ask(t, base, verb+" /a2a/x/tasks/t:subscribe", "", "A2A-Version: 1.0"); media != protocol.EventStream || !strings.Contains(got, "SubscribeToTask") {
			t.Errorf("a subscription with %s is %q", verb, got)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	q, _ := http.NewRequestWithContext(ctx, http.MethodGet, base+"/a2a/x/tasks/silent:subscribe", nil)
	r, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	received := make([]byte, 1<<10)
	for text := ""; !strings.Contains(text, ": keep-alive\n\n"); {
		n, err := r.Body.Read(received)
		if err != nil {
			t.Fatal(err)
		}
		text += string(received[:n])
	}
	cancel()
}

// A started stream ends with a result or an error, also if the agent returns none, or panics.
func TestStreamsEndWithResultOrError(t *testing.T) {
	t.Parallel()
	base := start(t)
	_, _, got := ask(t, base, "POST /a2a/x", rpcOf("SendStreamingMessage", `{"x":"panics"}`), "A2A-Version: 1.0")
	if strings.Count(got, "data: ") != 2 || !strings.Contains(got, `"error":{"code":-32603`) || strings.Contains(got, "a mistake") {
		t.Errorf("after a panic: %q", got)
	}
	_, _, got = ask(t, base, "POST /a2a/x/message:stream", `{"x":"panics"}`, "A2A-Version: 1.0")
	if !strings.Contains(got, "event: error\ndata: {\"error\":{\"code\":500") {
		t.Errorf("after a panic, with REST: %q", got)
	}
	h := New(Options{KeepAlive: time.Hour})
	over := make(chan result)
	close(over)
	var received []result
	h.events(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil), nil, over, func(r result) (string, []byte) {
		received = append(received, r)
		return "", nil
	})
	if len(received) != 1 || received[0].err == nil || received[0].err.Code != protocol.InvalidAgentResponse {
		t.Errorf("an agent without a result: %+v", received)
	}
}

// A subject of an identity provider is the same caller with each of its tokens, and no other caller can be it.
func TestCallersWithTokens(t *testing.T) {
	t.Parallel()
	name := func(p *did.Principal, c bridge.Caller) string {
		r := httptest.NewRequest(http.MethodPost, "/a2a/x", nil)
		return callerOf(r.WithContext(bridge.WithCaller(did.WithPrincipal(t.Context(), p), c))).Principal
	}
	alice, bob, local := did.Consumer(did.OIDC, "oidc:acme:alice"), did.Consumer(did.OIDC, "oidc:acme:bob"), did.Consumer(did.Loopback, "")
	switch a := name(alice, bridge.Caller{}); {
	case a == "", a == name(bob, bridge.Caller{}), a == name(local, bridge.Caller{}), a == name(local, bridge.Caller{Authorization: alice.ID()}):
		t.Errorf("another caller is %q, too", a)
	}
}
