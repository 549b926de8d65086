package server

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
)

func TestWanted(t *testing.T) {
	t.Parallel()
	for accept, want := range map[string]string{
		"":                                  "",
		"*/*":                               "",
		"application/json":                  "application/json",
		"application/cbor":                  "application/cbor",
		"Application/CBOR; q=0.5":           "application/cbor",
		"application/json, text/plain, */*": "application/json",
		"application/json;q=0.8, application/cbor;q=0.9":                  "application/cbor",
		"image/*, application/json;q=0.5":                                 "",
		"text/event-stream":                                               "",
		"application/x-ndjson":                                            "",
		"application/x-ndjson, application/cbor;q=0.1":                    "application/cbor",
		"text/event-stream, application/cbor":                             "application/cbor",
		"application/cbor;q=0":                                            "",
		"application/cbor;q=x, a/b;q=0.1":                                 "a/b",
		"nonsense/, ,;":                                                   "",
		"a/" + strings.Repeat("x", 300):                                   "",
		strings.Repeat("a/b;q=0.1,", 40) + "application/cbor":             "a/b",
		"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8": "text/html",
	} {
		if got := wanted(http.Header{"Accept": {accept}}); got != want {
			t.Errorf("%q: %q, want %q", accept, got, want)
		}
	}
	for accept, want := range map[string]bool{"text/event-stream": true, "TEXT/Event-Stream;q=0.1": true, "text/event-stream;q=0": false,
		"text/*": false, "*/*": false, "": false, "application/json, text/event-stream": true} {
		r := &http.Request{Header: http.Header{"Accept": {accept}}}
		if got := wantsEvents(r); got != want {
			t.Errorf("%q: %v, want %v", accept, got, want)
		}
	}
}

func FuzzAccept(f *testing.F) {
	f.Add("application/json;q=0.8, text/*;q=1;x=\"a,b\", */*")
	f.Add(",;=,\"")
	f.Fuzz(func(t *testing.T, accept string) {
		h := http.Header{"Accept": {accept}, "Prefer": {accept}}
		if got := wanted(h); strings.Contains(got, "*") || len(got) > maxMember {
			t.Errorf("%q wants %q", accept, got)
		}
		for name := range preferences(h) {
			if name == "" || name != strings.ToLower(name) {
				t.Errorf("%q prefers %q", accept, name)
			}
		}
		interact.TraceContext(accept, accept)
		serverTiming(&interact.Timing{Path: accept}, time.Second)
	})
}

// Headers and query become members of the message.
func TestMessageOfARequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, answers(interact.ActionStatus, "", "1"))
	for _, tt := range []struct {
		name, query string
		headers     []string
		check       func(m *interact.Message) bool
	}{
		{"nothing", "", nil, func(m *interact.Message) bool {
			return m.Key == "" && m.Via == "" && m.Timing == nil && m.Accept == "" && !m.Detach && m.After == ""
		}},
		{"a key", "", []string{"Idempotency-Key", "k 1"}, func(m *interact.Message) bool { return m.Key == "k 1" }},
		{"a key as the draft writes it", "", []string{"Idempotency-Key", `"k1"`}, func(m *interact.Message) bool { return m.Key == "k1" }},
		{"a way", "", []string{"Lmos-Via", "mesh"}, func(m *interact.Message) bool { return m.Via == "mesh" }},
		{"a way in the query", "?via=ws+lmosprotocol", nil, func(m *interact.Message) bool { return m.Via == "ws lmosprotocol" }},
		{"times", "", []string{"Lmos-Timing", "1"}, func(m *interact.Message) bool { return m.Timing != nil }},
		{"times in the query", "?timing", nil, func(m *interact.Message) bool { return m.Timing != nil }},
		{"a media type", "", []string{"Accept", "image/png, */*;q=0.1"}, func(m *interact.Message) bool { return m.Accept == "image/png" }},
		{"after is not for actions", "?after=e1", []string{"Last-Event-Id", "e2"}, func(m *interact.Message) bool { return m.After == "" }},
	} {
		resp, body := send(t, "POST", w.url+"/actions/toggle"+tt.query, "", tt.headers...)
		if m := receive(t, w.asked); !tt.check(m) || resp.StatusCode != 200 {
			t.Errorf("%s: asked %+v, got %d %s", tt.name, m, resp.StatusCode, body)
		}
	}
	for _, header := range []string{"Idempotency-Key", "Lmos-Via"} {
		resp, body := send(t, "POST", w.url+"/actions/toggle", "", header, strings.Repeat("x", 257))
		wantProblem(t, resp, body, 400, interact.Invalid)
	}
}

// A variable of an address is that, though it has the name of one of the server's parameters.
func TestVariableWithTheNameOfAParameter(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, answers(interact.PropertyReading, "", "1"))
	if resp, body := send(t, "GET", w.url+"/properties/room?via=hall&timing=1", ""); resp.StatusCode != 200 {
		t.Fatalf("got %d %s", resp.StatusCode, body)
	}
	if m := receive(t, w.asked); string(m.Data) != `{"via":"hall"}` || m.Via != "" || m.Timing == nil {
		t.Errorf("received %+v with %s", m, m.Data)
	}
	// Beside a body in CBOR.
	resp, body := send(t, "PUT", w.url+"/properties/room?via=hall", "\x15", "Content-Type", "application/cbor")
	if resp.StatusCode != 204 {
		t.Fatalf("got %d %s", resp.StatusCode, body)
	}
	if m := receive(t, w.asked); string(m.Data) != `{"value":21,"via":"hall"}` || m.Media() != interact.JSON {
		t.Errorf("received %q with %s", m.ContentType, m.Data)
	}
	resp, body = send(t, "PUT", w.url+"/properties/room?via=hall", "\xff", "Content-Type", "application/cbor")
	wantProblem(t, resp, body, 400, interact.Invalid)
}

func TestServerTiming(t *testing.T) {
	t.Parallel()
	times := &interact.Timing{Path: "mesh quic-v1", Resolve: 1500 * time.Microsecond, Host: 20 * time.Millisecond,
		Agent: 15 * time.Millisecond, Total: 25 * time.Millisecond}
	w := newWorld(t, Options{}, func(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
		r := m.Reply(interact.PropertyReading, "", []byte("1"))
		r.Timing = times
		yield(r, nil)
	})
	resp, _ := send(t, "GET", w.url+"/properties/serial?timing", "")
	const want = `resolve;dur=1.500, host;dur=20.000, agent;dur=15.000, total;dur=25.000, path;desc="mesh quic-v1"`
	if got := resp.Header.Get("Server-Timing"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if resp, _ := send(t, "GET", w.url+"/properties/serial", ""); resp.Header.Get("Server-Timing") != "" {
		t.Errorf("%s was not requested", resp.Header.Get("Server-Timing"))
	}
	for path, want := range map[string]string{`"x`: "total;dur=2.000", "a\r\nb": "total;dur=2.000", "": "total;dur=2.000",
		"http": `total;dur=2.000, path;desc="http"`} {
		if got := serverTiming(&interact.Timing{Path: path}, 2*time.Millisecond); got != want {
			t.Errorf("%q: %s, want %s", path, got, want)
		}
	}
	if got := serverTiming(nil, time.Millisecond); got != "total;dur=1.000" {
		t.Errorf("nothing measured: %s", got)
	}
}

// JSON and CBOR are one to a consumer.
func TestCBOR(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, answers(interact.ActionStatus, "", `{"a":1}`))
	resp, body := send(t, "POST", w.url+"/actions/fade", "\xa1\x62to\x05", "Content-Type", "application/cbor", "Accept", "application/cbor")
	if resp.StatusCode != 200 || body != "\xa1\x61a\x01" || resp.Header.Get("Content-Type") != "application/cbor" {
		t.Errorf("got %d %q %v", resp.StatusCode, body, resp.Header)
	}
	if m := receive(t, w.asked); m.ContentType != "application/cbor" || string(m.Data) != "\xa1\x62to\x05" {
		t.Errorf("received %q with %q", m.ContentType, m.Data)
	}
	resp, body = send(t, "POST", w.url+"/actions/fade", "\xa1\x62to\x61x", "Content-Type", "application/cbor")
	if e := wantProblem(t, resp, body, 400, interact.Invalid); len(e.Issues) != 1 || e.Issues[0].Pointer != "/to" {
		t.Errorf("got %+v", e)
	}
	resp, body = send(t, "POST", w.url+"/actions/fade", "\xa1", "Content-Type", "application/cbor")
	wantProblem(t, resp, body, 400, interact.Invalid)

	packed := newWorld(t, Options{}, answers(interact.PropertyReading, "application/cbor", "\xa1\x61a\x01"))
	for accept, want := range map[string]string{"application/json": `{"a":1}`, "application/cbor": "\xa1\x61a\x01", "*/*": "\xa1\x61a\x01",
		"image/png": "\xa1\x61a\x01"} {
		if _, body := send(t, "GET", packed.url+"/properties/serial", "", "Accept", accept); body != want {
			t.Errorf("%s: got %q, want %q", accept, body, want)
		}
	}
	// Data that cannot be converted is unchanged.
	odd := newWorld(t, Options{}, answers(interact.PropertyReading, "", "{"))
	if resp, body := send(t, "GET", odd.url+"/properties/serial", "", "Accept", "application/cbor"); body != "{" ||
		resp.Header.Get("Content-Type") != jsonType {
		t.Errorf("got %q %v", body, resp.Header)
	}
}

func TestReadSome(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, answers(interact.PropertyReadings, "", `{"units":"celsius"}`))
	for _, tt := range []struct{ name, method, query, body, media, data string }{
		{"a list", "GET", "?names=units,serial", "", "", `["units","serial"]`},
		{"one by one", "GET", "?name=units&name=a%2Cb", "", "", `["units","a,b"]`},
		{"both", "GET", "?name=a%2Cb&names=units", "", "", `["a,b","units"]`},
		{"an array", "POST", "", `["units"]`, jsonType, `["units"]`},
		{"an array in CBOR", "POST", "", "\x81\x65units", "application/cbor", "\x81\x65units"},
	} {
		resp, body := send(t, tt.method, w.url+"/properties"+tt.query, tt.body, "Content-Type", tt.media)
		if resp.StatusCode != 200 || body != `{"units":"celsius"}` {
			t.Errorf("%s: got %d %s", tt.name, resp.StatusCode, body)
			continue
		}
		if m := receive(t, w.asked); m.Type != interact.ReadMultipleProperties || string(m.Data) != tt.data || m.Name != "" {
			t.Errorf("%s: asked %+v with %s", tt.name, m, m.Data)
		}
	}
	if resp, body := send(t, "HEAD", w.url+"/properties?names=units", ""); resp.StatusCode != 200 || body != "" {
		t.Errorf("HEAD: got %d %q", resp.StatusCode, body)
	}
	receive(t, w.asked)
	for _, tt := range []struct {
		method, query, body string
		status              int
		code                interact.Code
	}{
		{"GET", "?names=", "", 404, interact.NoAffordance},
		{"GET", "?name=unit", "", 404, interact.NoAffordance},
		{"GET", "?names=secret", "", 405, interact.NotAllowed},
		{"POST", "", `[]`, 400, interact.Invalid},
		{"POST", "", `[1]`, 400, interact.Invalid},
		{"POST", "", `["units"`, 400, interact.Invalid},
	} {
		resp, body := send(t, tt.method, w.url+"/properties"+tt.query, tt.body, "Content-Type", jsonType)
		wantProblem(t, resp, body, tt.status, tt.code)
	}
	if len(w.asked) > 0 {
		t.Errorf("the mesh received %+v", <-w.asked)
	}
}

func TestWriteAllOrSome(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, answers(interact.Acknowledgement, "", ""))
	const all = `{"units":"celsius","secret":"x","room":1,"a,b":2}`
	for _, tt := range []struct {
		query, prefer, body string
		status              int
		typ                 interact.Type
	}{
		{"", "", `{"units":"celsius"}`, 204, interact.WriteMultipleProperties},
		{"?all=true", "", all, 204, interact.WriteAllProperties},
		{"?all", "", all, 204, interact.WriteAllProperties},
		{"", "all", all, 204, interact.WriteAllProperties},
		{"?all", "", `{"units":"celsius"}`, 400, 0},
		{"", "", `{"units":"kelvin"}`, 400, 0},
		{"", "", `{"serial":"x"}`, 405, 0},
		{"", "", `[]`, 400, 0},
	} {
		resp, body := send(t, "PUT", w.url+"/properties"+tt.query, tt.body, "Content-Type", jsonType, "Prefer", tt.prefer)
		if resp.StatusCode != tt.status {
			t.Errorf("%+v: got %d %s", tt, resp.StatusCode, body)
		}
		if tt.typ == 0 {
			continue
		}
		if m := receive(t, w.asked); m.Type != tt.typ {
			t.Errorf("%+v: asked %+v", tt, m)
		}
	}
}

// Everything that GET answers, HEAD does, with the same header.
func TestHeadOfEveryRoute(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, func(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
		switch m.Type {
		case interact.QueryAction:
			yield(status(m, interact.StatusRunning, "7", ""), nil)
		case interact.QueryAllActions:
			yield(m.Reply(interact.ActionStatuses, "", []byte("{}")), nil)
		default:
			yield(m.Reply(interact.PropertyReading, "", []byte(`{"a":1}`)), nil)
		}
	})
	for _, path := range []string{"/td", "/properties", "/properties?names=units", "/properties/units", "/actions", "/actions/fade",
		"/actions/fade/7", "/events/hot", "/events", "/properties/units/observable"} {
		get, body := send(t, "GET", w.url+path, "")
		head, none := send(t, "HEAD", w.url+path, "")
		if get.StatusCode != 200 || head.StatusCode != 200 || none != "" || get.Header.Get("Content-Type") != head.Header.Get("Content-Type") {
			t.Errorf("%s: GET %d %s %v, HEAD %d %q %v", path, get.StatusCode, body, get.Header, head.StatusCode, none, head.Header)
		}
	}
}

// A problem of an input has its place, whatever the input is.
func TestExplained(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, answers(interact.ActionStatus, "", "1"))
	for _, tt := range []struct{ name, method, path, body, title, hint string }{
		{"a member", "POST", "/actions/fade", `{"to":"up"}`, `fade does not accept this: /to: expected integer, got string`, ""},
		{"no input", "POST", "/actions/fade", ``, `fade does not accept this: "to" is missing`, ""},
		{"no JSON", "POST", "/actions/fade", "{\n x", `fade does not accept this: `, ""},
		{"a name that was meant", "POST", "/actions/fad", ``, `thing has no action "fad"`, "did you mean fade?"},
		{"an event that was meant", "GET", "/events/hott", ``, `thing has no event "hott"`, "did you mean hot?"},
		{"a property that was meant", "GET", "/properties/unit", ``, `thing has no property "unit"`, "did you mean units?"},
		{"nothing alike", "POST", "/actions/xyzxyzxyz", ``, `thing has no action "xyzxyzxyz"`, "thing has the actions clean, fade, listen, talk, toggle"},
	} {
		resp, body := send(t, tt.method, w.url+tt.path, tt.body, "Content-Type", jsonType)
		var p struct{ Detail, Hint string }
		if err := json.Unmarshal([]byte(body), &p); err != nil || !strings.HasPrefix(p.Detail, tt.title) ||
			tt.hint != "" && p.Hint != tt.hint || p.Hint == "" {
			t.Errorf("%s: got %d %s", tt.name, resp.StatusCode, body)
		}
	}
}

// The paths of a server.
func TestParseSpot(t *testing.T) {
	t.Parallel()
	for rest, want := range map[string]resource{
		"td":                       {kind: "td"},
		"properties":               {kind: "properties"},
		"properties/a%2Fb":         {kind: "properties", name: "a/b"},
		"properties/a/observable":  {kind: "properties", name: "a", poll: true},
		"properties/observable":    {kind: "properties", name: "observable"},
		"actions":                  {kind: "actions"},
		"actions/a":                {kind: "actions", name: "a"},
		"actions/a/1%2F2":          {kind: "actions", name: "a", id: "1/2"},
		"events":                   {kind: "events"},
		"events/e":                 {kind: "events", name: "e"},
		"subscriptions/1":          {kind: "subscriptions", id: "1"},
		"properties/x/observable/": {}, "properties/a/b": {}, "td/x": {}, "subscriptions": {}, "events/a/b": {}, "": {}, "forms": {},
		"actions/a/b/c": {}, "actions//b": {}, "subscriptions/": {},
	} {
		got, offered := parseResource(rest)
		if want == (resource{}) {
			if offered != nil {
				t.Errorf("%q is taken for %+v", rest, got)
			}
		} else if got != want || offered == nil {
			t.Errorf("%q: %+v, want %+v", rest, got, want)
		}
	}
}

func FuzzServer(f *testing.F) {
	s := New(Options{Mesh: interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) {
		r := m.Reply(interact.ActionStatus, "", m.Data)
		r.Status = interact.StatusCompleted
		return r, nil
	}), Find: finds(f, "house"), PrivateCallbacks: true, MaxCallbacks: -1})
	f.Cleanup(s.Close)
	f.Add("GET", "properties/units", "application/json", "application/cbor", []byte(nil))
	f.Add("POST", "actions/fade?timeout=1s", "application/json", "text/event-stream", []byte(`{"to":1}`))
	f.Add("POST", "events/hot", "application/cbor", "", []byte("\xa1kcallbackURL"))
	f.Add("PUT", "properties/room?n=1&via=2", "application/json", "*/*", []byte(`1`))
	f.Add("GET", "events/hot?lastEventId=1", "", "text/event-stream", []byte(nil))
	f.Add("GET", "td", "", "", []byte(nil))
	f.Fuzz(func(t *testing.T, method, path, media, accept string, body []byte) {
		r, err := http.NewRequestWithContext(t.Context(), method, "http://node.example/things/house/"+path, strings.NewReader(string(body)))
		if err != nil {
			return
		}
		r.Header.Set("Content-Type", media)
		r.Header.Set("Accept", accept)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if resp := w.Result(); resp.StatusCode >= 400 && resp.Header.Get("Content-Type") != problem.MediaType || resp.StatusCode == 500 {
			t.Errorf("%s %s: %d %v %s", method, path, resp.StatusCode, resp.Header, w.Body)
		}
	})
}
