package rest

import (
	"context"
	"errors"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/interact"
)

// lamp has one affordance of each kind with the shortest possible forms.
const lamp = `
	"properties": {
		"power":  {"type": "boolean", "forms": [{"href": "BASE/power"}]},
		"serial": {"type": "string", "readOnly": true, "forms": [{"href": "BASE/serial"}]},
		"secret": {"type": "string", "writeOnly": true, "forms": [{"href": "BASE/secret"}]},
		"level":  {"type": "integer", "minimum": 0, "maximum": 100, "forms": [{"href": "BASE/level",
			"op": "readproperty"},
			{"href": "BASE/level/set", "op": ["writeproperty"], "htv:methodName": "POST"}]}
	},
	"actions": {
		"fade": {"input": {"type": "object", "required": ["to"], "properties": {"to": {"type": "integer"},
			"in": {"type": "number"}}},
			"output": {"type": "string"}, "forms": [{"href": "BASE/fade"}]},
		"toggle": {"forms": [{"href": "BASE/toggle"}]}
	},
	"events": {"broken": {"forms": [{"href": "BASE/broken", "subprotocol": "longpoll"}]}}`

func TestDefaultMethodsOfOperations(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, responds(`"done"`))
	c, thing := newClient(t, Options{}), describe(t, agent.URL, lamp)
	tests := []struct {
		name         string
		m            *interact.Message
		method, path string
		contentType  string
		body         string
	}{
		{"read is GET", read("power"), "GET", "/power", "", ""},
		{"write is PUT", write("power", "true"), "PUT", "/power", "application/json", "true"},
		{"invoke is POST", invoke("fade", `{"to": 5}`), "POST", "/fade", "application/json", `{"to": 5}`},
		{"an action without input has no body", invoke("toggle", ""), "POST", "/toggle", "", ""},
		{"htv:methodName wins", write("level", "7"), "POST", "/level/set", "application/json", "7"},
	}
	for _, tt := range tests {
		if _, err := ask(t, c, thing, tt.m); err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		got := agent.last(t)
		if got.method != tt.method || got.path != tt.path || got.body != tt.body ||
			got.header.Get("Content-Type") != tt.contentType {
			t.Errorf("%s: got %+v", tt.name, got)
		}
		if got.header.Get("Accept") != "application/json" || got.header.Get("User-Agent") != "lmosd" {
			t.Errorf("%s: header %v", tt.name, got.header)
		}
	}
}

func TestReplies(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/toggle", r.Method == http.MethodPut:
			w.WriteHeader(http.StatusNoContent)
		default:
			responds(" \"Light rain, 12 °C\"\n")(w, r)
		}
	})
	c, thing := newClient(t, Options{}), describe(t, agent.URL, lamp)
	tests := []struct {
		name   string
		m      *interact.Message
		typ    interact.Type
		status interact.Status
		media  string
		data   string
	}{
		{"a string output stays JSON", invoke("fade", `{"to":1}`), interact.ActionStatus, interact.StatusCompleted,
			"application/json", `"Light rain, 12 °C"`},
		{"204 is an empty output", invoke("toggle", ""), interact.ActionStatus, interact.StatusCompleted, "", ""},
		{"a reading", read("serial"), interact.PropertyReading, interact.StatusNone, "application/json",
			`"Light rain, 12 °C"`},
		{"a writing", write("power", "false"), interact.PropertyReading, interact.StatusNone, "", ""},
	}
	for _, tt := range tests {
		got, err := ask(t, c, thing, tt.m)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if got.Type != tt.typ || got.Status != tt.status || got.ContentType != tt.media || string(got.Data) != tt.data {
			t.Errorf("%s: got %+v with %q", tt.name, got, got.Data)
		}
		if got.Correlation != "1" || got.Name != tt.m.Name || got.Thing != "thing" {
			t.Errorf("%s: not correlated: %+v", tt.name, got)
		}
		if tt.typ == interact.PropertyReading && got.Time.IsZero() {
			t.Errorf("%s: no time", tt.name)
		}
	}
}

func TestHTTPVocabulary(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, responds(`1`))
	thing := describe(t, agent.URL, `"properties": {"p": {"type": "number", "forms": [{"href": "BASE/p",
		"op": ["readproperty"],
		"contentType": "application/vnd.p+json", "response": {"contentType": "application/senml+json"},
			"htv:methodName": "REPORT",
		"htv:headers": [{"htv:fieldName": "X-Version", "htv:fieldValue": "2"}, {"htv:fieldName": "Accept",
			"htv:fieldValue": "a/b"}]}]}}`)
	if _, err := ask(t, newClient(t, Options{}), thing, read("p")); err != nil {
		t.Fatal(err)
	}
	got := agent.last(t)
	if got.method != "REPORT" || got.header.Get("X-Version") != "2" || got.header.Get("Accept") != "a/b" {
		t.Errorf("got %+v", got)
	}
}

func TestContentTypeAndAcceptComeFromTheForm(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "image/png; x=1")
		_, _ = io.WriteString(w, "\x89PNG")
	})
	thing := describe(t, agent.URL, `"actions": {"draw": {"input": {"type": "object"}, "output": {},
		"forms": [{"href": "BASE/draw",
		"contentType": "application/vnd.draw+json", "response": {"contentType": "image/png"}}]}}`)
	got, err := ask(t, newClient(t, Options{}), thing, invoke("draw", `{"a":1}`))
	if err != nil {
		t.Fatal(err)
	}
	req := agent.last(t)
	if req.header.Get("Content-Type") != "application/vnd.draw+json" || req.header.Get("Accept") != "image/png" {
		t.Errorf("request header %v", req.header)
	}
	if got.ContentType != "image/png" || string(got.Data) != "\x89PNG" {
		t.Errorf("got %q %q", got.ContentType, got.Data)
	}
}

func TestTextForms(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.Copy(w, r.Body)
	})
	thing := describe(t, agent.URL, `"actions": {"echo": {"input": {"type": "string"}, "output": {"type": "string"},
		"forms": [{"href": "BASE/echo", "contentType": "text/plain"}]}}`)
	c := newClient(t, Options{})
	got, err := ask(t, c, thing, invoke("echo", `"a \"b\" ü"`))
	if err != nil {
		t.Fatal(err)
	}
	if got.ContentType != "text/plain" || string(got.Data) != `a "b" ü` {
		t.Errorf("got %q %q", got.ContentType, got.Data)
	}
	plain := invoke("echo", "as it is")
	plain.ContentType = "text/plain"
	if got, err = ask(t, c, thing, plain); err != nil || string(got.Data) != "as it is" {
		t.Errorf("text as text: %v %v", got, err)
	}
	number := describe(t, agent.URL, `"actions": {"echo": {"forms": [{"href": "BASE/echo", "contentType": "text/plain"}]}}`)
	for in, want := range map[string]string{"21.50": "21.50", "true": "true", "": ""} {
		if got, err = ask(t, c, number, invoke("echo", in)); err != nil || string(got.Data) != want {
			t.Errorf("%s as text: %v %v", in, got, err)
		}
	}
	_, err = ask(t, c, number, invoke("echo", `{"a":1}`))
	wantError(t, err, interact.UnsupportedType)
	other := invoke("echo", "x")
	other.ContentType = "application/octet-stream"
	_, err = ask(t, c, thing, other)
	wantError(t, err, interact.UnsupportedType)
}

func TestLargeMessagesAreNotSent(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, responds(`1`))
	c, thing := newClient(t, Options{}), describe(t, agent.URL, lamp)
	chunked := read("power")
	chunked.Chunks = func(func([]byte, error) bool) {}
	long := invoke("fade", `{"to":1}`)
	long.Key = "a\nb"
	tests := []struct {
		name    string
		m       *interact.Message
		code    interact.Code
		says    string
		pointer string
	}{
		{"no such action", invoke("fad", "{}"), interact.NoAffordance, "fade, toggle", ""},
		{"no such property, in another case", read("POWER"), interact.NoAffordance, "level, power, secret, serial", ""},
		{"a property as an action", invoke("power", ""), interact.NoAffordance, "no action", ""},
		{"an action as a property", read("fade"), interact.NoAffordance, "no property", ""},
		{"an event as a property", read("broken"), interact.NoAffordance, "no property", ""},
		{"a property that cannot be observed", &interact.Message{Type: interact.ObserveProperty, Name: "power"},
			interact.NotAllowed, "cannot be observed", ""},
		{"no such event", &interact.Message{Type: interact.SubscribeEvent, Name: "fixed"}, interact.NoAffordance, "broken", ""},
		{"read a write-only property", read("secret"), interact.NotAllowed, "write-only", ""},
		{"write a read-only property", write("serial", `"x"`), interact.NotAllowed, "read-only", ""},
		{"wrong type", write("power", `"on"`), interact.Invalid, "power", ""},
		{"out of range", write("level", "101"), interact.Invalid, "100", ""},
		{"wrong member", invoke("fade", `{"to":"up"}`), interact.Invalid, "/to", "/to"},
		{"missing member", invoke("fade", `{"in":3}`), interact.Invalid, "to", ""},
		{"no input", invoke("fade", ""), interact.Invalid, "missing", ""},
		{"no value", write("power", ""), interact.Invalid, "missing", ""},
		{"not JSON", invoke("fade", `{"to":1`), interact.Invalid, "line 1", ""},
		{"a name twice", invoke("fade", `{"to":1,"to":2}`), interact.Invalid, "line 1", ""},
		{"a query of an action", &interact.Message{Type: interact.QueryAction, Name: "fade", ActionID: "1"}, interact.NotAllowed,
			"node of the agent", ""},
		{"a query of actions", &interact.Message{Type: interact.QueryAllActions}, interact.NotAllowed, "node of the agent", ""},
		{"the end of an action", &interact.Message{Type: interact.CancelAction, Name: "fade"}, interact.NotAllowed,
			"node of the agent", ""},
		{"an unsubscription", &interact.Message{Type: interact.UnsubscribeEvent, Name: "broken"}, interact.NotAllowed, "leave the loop", ""},
		{"a stream of chunks for a read", chunked, interact.NotAllowed, "one message", ""},
		{"a key that is not a header value", long, interact.Invalid, "key", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := ask(t, c, thing, tt.m)
			e := wantError(t, err, tt.code)
			if !strings.Contains(everything(e), tt.says) {
				t.Errorf("%q is missing in %s", tt.says, everything(e))
			}
			if tt.pointer != "" && e.Issues[0].Pointer != tt.pointer {
				t.Errorf("got pointer %q, want %q", e.Issues[0].Pointer, tt.pointer)
			}
		})
	}
	if n := len(agent.requests()); n != 0 {
		t.Errorf("the agent received %d requests", n)
	}
}

func TestFormsThatHTTPCannotUse(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, responds(`1`))
	thing := describe(t, agent.URL, `"properties": {
		"mqtt":  {"type": "number", "forms": [{"href": "mqtt://broker.example/p", "op": ["readproperty"]}]},
		"both":  {"type": "number", "forms": [{"href": "ws://agent.example/ws", "op": ["readproperty"],
			"subprotocol": "lmosprotocol"},
			{"href": "BASE/both", "op": ["readproperty"]}]},
		"sse":   {"type": "number", "forms": [{"href": "BASE/sse", "op": ["readproperty", "observeproperty"],
			"subprotocol": "sse"}]},
		"write": {"type": "number", "forms": [{"href": "BASE/write", "op": ["writeproperty"]}]}}`)
	c := newClient(t, Options{})
	_, err := ask(t, c, thing, read("mqtt"))
	if e := wantError(t, err, interact.NotAllowed); !strings.Contains(e.Hint, "mqtt readproperty") {
		t.Errorf("hint %q", e.Hint)
	}
	_, err = ask(t, c, thing, read("write"))
	wantError(t, err, interact.NotAllowed)
	for _, name := range []string{"both", "sse"} {
		if _, err := ask(t, c, thing, read(name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTraceTravelsAlong(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, responds(`true`))
	m := read("power")
	m.TraceParent, m.TraceState = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=1"
	got, err := ask(t, newClient(t, Options{}), describe(t, agent.URL, lamp), m)
	if err != nil {
		t.Fatal(err)
	}
	h := agent.last(t).header
	if h.Get("Traceparent") != m.TraceParent || h.Get("Tracestate") != "a=1" || got.TraceParent != m.TraceParent {
		t.Errorf("header %v, reply %+v", h, got)
	}
}

func TestConnectionsAreReused(t *testing.T) {
	t.Parallel()
	remotes := make(chan string, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		remotes <- r.RemoteAddr
		responds(`true`)(w, r)
	}))
	t.Cleanup(server.Close)
	c, thing := newClient(t, Options{}), describe(t, server.URL, lamp)
	for range 10 {
		if _, err := ask(t, c, thing, read("power")); err != nil {
			t.Fatal(err)
		}
	}
	close(remotes)
	var seen []string
	for r := range remotes {
		seen = append(seen, r)
	}
	if n := len(slices.Compact(seen)); n != 1 {
		t.Errorf("10 requests took %d connections", n)
	}
}

func TestConnectionsToAnAgentAreBounded(t *testing.T) {
	t.Parallel()
	tr := newTransport(Options{}, 64)
	if tr.MaxConnsPerHost != 64 || tr.MaxIdleConnsPerHost != 64 || tr.Proxy != nil {
		t.Errorf("got %d, %d, proxy %t", tr.MaxConnsPerHost, tr.MaxIdleConnsPerHost, tr.Proxy != nil)
	}
}

func TestDisconnectCancelsTheRequest(t *testing.T) {
	t.Parallel()
	asked, gone := make(chan bool), make(chan bool)
	agent := newRecorder(t, func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
		close(gone)
	})
	ctx, cancel := context.WithCancel(t.Context())
	thing := newClient(t, Options{}).Thing(describe(t, agent.URL, lamp))
	go func() {
		<-asked
		cancel()
	}()
	_, err := interact.Call(ctx, thing, read("power"))
	wantError(t, err, interact.Cancelled)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v does not wrap context.Canceled", err)
	}
	<-gone
}

func TestSequenceIsOneReply(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, responds(`true`))
	thing := newClient(t, Options{}).Thing(describe(t, agent.URL, lamp))
	next, stop := iter.Pull2(thing.Do(t.Context(), read("power")))
	defer stop()
	if m, err, ok := next(); m == nil || err != nil || !ok {
		t.Fatalf("got %v, %v, %t", m, err, ok)
	}
	if m, err, ok := next(); ok {
		t.Errorf("there is more: %v, %v", m, err)
	}
}

func TestFormThatAcceptsTheInputIsChosen(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, responds(`1`))
	thing := describe(t, agent.URL, `"actions": {"put": {"input": {}, "forms": [{"href": "BASE/json"},
		{"href": "BASE/bytes", "contentType": "application/octet-stream",
			"response": {"contentType": "application/json"}}]}}`)
	m := invoke("put", "\x00\x01")
	m.ContentType = "application/octet-stream"
	if _, err := ask(t, newClient(t, Options{}), thing, m); err != nil {
		t.Fatal(err)
	}
	if got := agent.last(t); got.path != "/bytes" || got.body != "\x00\x01" ||
		got.header.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("got %+v", got)
	}
}

func TestGetHasNoBody(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, responds(`1`))
	thing := describe(t, agent.URL, `"actions": {"look": {"input": {"type": "object"}, "output": {},
		"forms": [{"href": "BASE/look", "htv:methodName": "GET"}]}}`)
	c := newClient(t, Options{})
	if _, err := ask(t, c, thing, invoke("look", "")); err != nil {
		t.Errorf("without input: %v", err)
	}
	_, err := ask(t, c, thing, invoke("look", `{"a":1}`))
	if e := wantError(t, err, interact.NotAllowed); !strings.Contains(e.Hint, "uriVariables") {
		t.Errorf("hint %q", e.Hint)
	}
}

func TestBadFormsAreNamed(t *testing.T) {
	t.Parallel()
	for name, form := range map[string]string{
		"method": `{"href": "http://127.0.0.1:1/x", "htv:methodName": "GE T"}`,
		"header": `{"href": "http://127.0.0.1:1/x", "htv:headers": [{"htv:fieldName": "a b",
			"htv:fieldValue": "c"}]}`,
		"header value": `{"href": "http://127.0.0.1:1/x", "htv:headers": [{"htv:fieldName": "a",
			"htv:fieldValue": "c\r\nd: e"}]}`,
	} {
		thing := describe(t, "", `"actions": {"a": {"forms": [`+form+`]}}`)
		_, err := ask(t, newClient(t, Options{}), thing, invoke("a", ""))
		if e := wantError(t, err, interact.BadTD); !strings.Contains(e.Error(), "http://127.0.0.1:1/x") {
			t.Errorf("%s: %v", name, e)
		}
	}
}

func TestUserOfAnAddressIsHidden(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusUnauthorized) })
	base := strings.Replace(agent.URL, "http://", "http://me:hunter2@", 1)
	_, err := ask(t, newClient(t, Options{}), describe(t, base, lamp), read("power"))
	e := wantError(t, err, interact.AgentFailed)
	if agent.last(t).header.Get("Authorization") != "" || strings.Contains(everything(e), "hunter2") {
		t.Errorf("sent %v, said %s", agent.last(t).header, everything(e))
	}
}

func TestIdempotentActionIsRepeatedOverANewConnection(t *testing.T) {
	t.Parallel()
	// The first request on a kept connection is swallowed: the server closes it unanswered.
	agent := newRecorder(t, nil)
	agent.answer = func(w http.ResponseWriter, r *http.Request) {
		if len(agent.requests()) == 2 {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				_ = conn.Close()
			}
			return
		}
		responds(`1`)(w, r)
	}
	thing := describe(t, agent.URL, `"actions": {"get": {"idempotent": true, "safe": true, "output": {},
		"forms": [{"href": "BASE/get"}]}}`)
	c := newClient(t, Options{})
	for i := range 2 {
		if _, err := ask(t, c, thing, invoke("get", "")); err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
	}
	if n := len(agent.requests()); n != 3 {
		t.Errorf("the agent received %d requests, want 3", n)
	}
	if h := agent.last(t).header; len(h["Idempotency-Key"]) > 0 {
		t.Errorf("a key was sent: %v", h)
	}
}

func BenchmarkRead(b *testing.B) {
	server := httptest.NewServer(responds(`true`))
	defer server.Close()
	c, thing := newClient(b, Options{}), describe(b, server.URL, lamp)
	m := read("power")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := interact.Call(b.Context(), c.Thing(thing), m); err != nil {
			b.Fatal(err)
		}
	}
}
