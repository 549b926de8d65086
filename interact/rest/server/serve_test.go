package server

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/interact/rest"
	"github.com/lmosd/lmosd/td"
)

const node = `
	"properties": {
		"power":  {"type": "boolean", "forms": [{"href": "http://a.example/power"}]},
		"serial": {"type": "string", "readOnly": true, "forms": [{"href": "http://a.example/serial"}]},
		"secret": {"type": "string", "writeOnly": true, "forms": [{"href": "http://a.example/secret"}]},
		"light": {"type": "object", "uriVariables": {"room": {"type": "string"}, "n": {"type": "integer"},
			"on": {"type": "boolean"}},
			"forms": [{"href": "http://a.example/rooms/{room}{?n,on}"}]},
		"heat": {"type": "number", "uriVariables": {"room": {"type": "string"}},
			"forms": [{"href": "http://a.example/heat/{room}"}]},
		"a/b": {"type": "number", "forms": [{"href": "http://a.example/ab"}]}
	},
	"actions": {
		"fade": {"input": {"type": "object", "required": ["to"], "properties": {"to": {"type": "integer"}}},
			"forms": [{"href": "http://a.example/fade"}]},
		"note": {"input": {"type": "string"}, "forms": [{"href": "http://a.example/note", "contentType": "text/plain"}]},
		"toggle": {"forms": [{"href": "http://a.example/toggle"}]}
	}`

// A mesh is a Thing that replies with do and passes on the messages.
type mesh struct {
	asked chan *interact.Message
	do    func(ctx context.Context, m *interact.Message) (*interact.Message, error)
}

func (m *mesh) Do(ctx context.Context, msg *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		m.asked <- msg
		yield(m.do(ctx, msg))
	}
}

// serve starts a handler over a mesh that replies with the reading data, and a finder that finds one Thing by any of names.
func serve(t *testing.T, data string, names ...string) (*mesh, string) {
	t.Helper()
	thing := describe(t, node)
	d := &td.Description{Thing: thing,
		Record: &td.Record{Owner: "did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH", Thing: thing.ID,
			Title: thing.Title}}
	m := &mesh{asked: make(chan *interact.Message, 100)}
	m.do = func(_ context.Context, msg *interact.Message) (*interact.Message, error) {
		reply := msg.Reply(interact.PropertyReading, "", []byte(data))
		if msg.Type == interact.InvokeAction {
			reply.Type, reply.Status = interact.ActionStatus, interact.StatusCompleted
		}
		return reply, nil
	}
	find := func(_ context.Context, ref string) (*td.Description, error) {
		for _, n := range append(names, "thing") {
			if ref == n {
				return d, nil
			}
		}
		return nil, interact.Errorf(interact.NotFound, "list the agents", "no agent matches %q", ref).Then(interact.StepFind)
	}
	server := httptest.NewServer(handler(t, m, find))
	t.Cleanup(server.Close)
	return m, server.URL
}

// send sends one request with headers in pairs, and returns the answer with its body.
func send(t *testing.T, method, url, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header[headers[i]] = []string{headers[i+1]}
	}
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(got)
}

// wantProblem fails unless the answer is a problem with status and code.
func wantProblem(t *testing.T, resp *http.Response, body string, status int, code interact.Code) *interact.Error {
	t.Helper()
	e := problem.Read(resp, []byte(body))
	if resp.StatusCode != status || resp.Header.Get("Content-Type") != problem.MediaType || e.Code != code {
		t.Errorf("got %d %s %s: %s, want %d %s", resp.StatusCode, resp.Header.Get("Content-Type"), e.Code, body,
			status, code)
	}
	return e
}

const jsonType = "application/json"

func TestHandlerRoutes(t *testing.T) {
	t.Parallel()
	m, base := serve(t, `"v"`)
	tests := []struct {
		name, method, path, body string
		status                   int
		answer                   string
		typ                      interact.Type
		affordance, data         string
	}{
		{"read", "GET", "/properties/power", "", 200, `"v"`, interact.ReadProperty, "power", ""},
		{"head", "HEAD", "/properties/power", "", 200, ``, interact.ReadProperty, "power", ""},
		{"write", "PUT", "/properties/power", "true", 204, ``, interact.WriteProperty, "power", "true"},
		{"read all", "GET", "/properties", "", 200, `"v"`, interact.ReadAllProperties, "", ""},
		{"head of all", "HEAD", "/properties", "", 200, ``, interact.ReadAllProperties, "", ""},
		{"write several", "PUT", "/properties", `{"power":false}`, 204, ``, interact.WriteMultipleProperties, "",
			`{"power":false}`},
		{"invoke", "POST", "/actions/fade", `{"to":5}`, 200, `"v"`, interact.InvokeAction, "fade", `{"to":5}`},
		{"invoke without input", "POST", "/actions/toggle", ``, 200, `"v"`, interact.InvokeAction, "toggle", ``},
		{"a name with a slash", "GET", "/properties/a%2Fb", "", 200, `"v"`, interact.ReadProperty, "a/b", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			resp, body := send(t, tt.method, base+"/things/thing"+tt.path, tt.body, "Content-Type", jsonType)
			if resp.StatusCode != tt.status || body != tt.answer {
				t.Fatalf("got %d %s", resp.StatusCode, body)
			}
			if tt.status == 200 && (resp.Header.Get("Content-Type") != jsonType || resp.ContentLength != 3 ||
				resp.Header.Get("X-Content-Type-Options") != "nosniff") {
				t.Errorf("header %v, length %d", resp.Header, resp.ContentLength)
			}
			got := <-m.asked
			if got.Type != tt.typ || got.Name != tt.affordance || string(got.Data) != tt.data {
				t.Errorf("received %+v with %s", got, got.Data)
			}
			if got.Thing != "urn:example:thing@z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH" || got.ID == "" ||
				got.From.ID() != "" {
				t.Errorf("received %+v", got)
			}
			if left := time.Until(got.Deadline); left < 25*time.Second || left > 30*time.Second {
				t.Errorf("%v left", left)
			}
		})
	}
}

func TestHandlerEmptyOutputIs204(t *testing.T) {
	t.Parallel()
	_, base := serve(t, ``)
	for _, r := range [][2]string{{"POST", "/actions/toggle"}, {"GET", "/properties/power"}} {
		if resp, body := send(t, r[0], base+"/things/thing"+r[1], ""); resp.StatusCode != 204 || body != "" {
			t.Errorf("%s: got %d %s", r, resp.StatusCode, body)
		}
	}
}

func TestHandlerRefusals(t *testing.T) {
	t.Parallel()
	m, base := serve(t, `1`)
	tests := []struct {
		name, method, path, body, contentType string
		status                                int
		code                                  interact.Code
		allow                                 string
	}{
		{"unknown agent", "GET", "/things/weathr/properties/x", "", "", 404, interact.NotFound, ""},
		{"unknown property", "GET", "/things/thing/properties/powr", "", "", 404, interact.NoAffordance, ""},
		{"unknown action", "POST", "/things/thing/actions/fad", "", "", 404, interact.NoAffordance, ""},
		{"unknown route", "GET", "/things/thing", "", "", 404, interact.NotFound, ""},
		{"unknown event", "GET", "/things/thing/events/x", "", "", 404, interact.NoAffordance, ""},
		{"no events at all", "GET", "/things/thing/events", "", "", 405, interact.NotAllowed, ""},
		{"a run of an unknown action", "GET", "/things/thing/actions/fad/1", "", "", 404, interact.NoAffordance, ""},
		{"slash at the end", "GET", "/things/thing/properties/", "", "", 404, interact.NotFound, ""},
		{"another prefix", "GET", "/agents/thing", "", "", 404, interact.NotFound, ""},
		{"put an action", "PUT", "/things/thing/actions/fade", "", "", 405, interact.NotAllowed, "DELETE, GET, HEAD, POST"},
		{"delete a property", "DELETE", "/things/thing/properties/power", "", "", 405, interact.NotAllowed,
			"GET, HEAD, POST, PUT"},
		{"options", "OPTIONS", "/things/thing/properties", "", "", 405, interact.NotAllowed, "GET, HEAD, POST, PUT"},
		{"write a read-only property", "PUT", "/things/thing/properties/serial", `"x"`, jsonType, 405,
			interact.NotAllowed, "GET, HEAD"},
		{"read a write-only property", "GET", "/things/thing/properties/secret", "", "", 405, interact.NotAllowed,
			"PUT"},
		{"does not fit", "POST", "/things/thing/actions/fade", `{"to":"up"}`, jsonType, 400, interact.Invalid, ""},
		{"one of several does not fit", "PUT", "/things/thing/properties", `{"power":1}`, jsonType, 400,
			interact.Invalid, ""},
		{"not JSON", "PUT", "/things/thing/properties/power", `tru`, jsonType, 400, interact.Invalid, ""},
		{"no content type", "PUT", "/things/thing/properties/power", `true`, "", 415, interact.UnsupportedType, ""},
		{"a form of a web page", "POST", "/things/thing/actions/fade", `to=5`, "application/x-www-form-urlencoded",
			415, interact.UnsupportedType, ""},
		{"text for JSON", "POST", "/things/thing/actions/fade", `{"to":5}`, "text/plain", 415,
			interact.UnsupportedType, ""},
		{"bad timeout", "GET", "/things/thing/properties/power?timeout=5", "", "", 400, interact.Invalid, ""},
		{"timeout in the past", "GET", "/things/thing/properties/power?timeout=-5s", "", "", 400, interact.Invalid, ""},
		{"timeout too long", "GET", "/things/thing/properties/power?timeout=1h", "", "", 400, interact.Invalid, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			resp, body := send(t, tt.method, base+tt.path, tt.body, "Content-Type", tt.contentType)
			e := wantProblem(t, resp, body, tt.status, tt.code)
			if got := resp.Header.Get("Allow"); got != tt.allow {
				t.Errorf("Allow is %q, want %q", got, tt.allow)
			}
			if e.Hint == "" && e.Next == nil || tt.code == interact.Invalid && !strings.Contains(tt.name, "timeout") &&
				len(e.Issues) == 0 {
				t.Errorf("got %+v", e)
			}
		})
	}
	if n := len(m.asked); n != 0 {
		t.Errorf("the mesh received %d messages", n)
	}
}

func TestHandlerIssuesHavePointers(t *testing.T) {
	t.Parallel()
	_, base := serve(t, `1`)
	_, body := send(t, "POST", base+"/things/thing/actions/fade", `{"to":"up"}`, "Content-Type", jsonType)
	var p struct {
		Errors []struct{ Field, Description string } `json:"validationErrors"`
	}
	if err := json.Unmarshal([]byte(body), &p); err != nil || len(p.Errors) != 1 || p.Errors[0].Field != "/to" ||
		p.Errors[0].Description == "" {
		t.Errorf("got %s, %v", body, err)
	}
}

func TestHandlerBodyLimit(t *testing.T) {
	t.Parallel()
	m, base := serve(t, ``)
	big := strings.Repeat(" ", rest.MaxBody-4) + "true"
	if resp, body := send(t, "PUT", base+"/things/thing/properties/power", big, "Content-Type",
		jsonType); resp.StatusCode != 204 {
		t.Errorf("4 MiB: got %d %s", resp.StatusCode, body)
	}
	<-m.asked
	resp, body := send(t, "PUT", base+"/things/thing/properties/power", big+" ", "Content-Type", jsonType)
	wantProblem(t, resp, body, 413, interact.TooLarge)
}

func TestHandlerAcceptsTheTypesOfTheForms(t *testing.T) {
	t.Parallel()
	m, base := serve(t, ``)
	for contentType, media := range map[string]string{"text/plain; charset=utf-8": "text/plain",
		"application/vnd.x+json": jsonType} {
		body := `"milk"`
		if resp, text := send(t, "POST", base+"/things/thing/actions/note", body, "Content-Type",
			contentType); resp.StatusCode != 204 {
			t.Fatalf("%s: got %d %s", contentType, resp.StatusCode, text)
		}
		if got := <-m.asked; got.ContentType != media || string(got.Data) != body {
			t.Errorf("%s: asked %q with %s", contentType, got.ContentType, got.Data)
		}
	}
	resp, body := send(t, "POST", base+"/things/thing/actions/note", "x", "Content-Type", "text/plain",
		"Content-Encoding", "gzip")
	wantProblem(t, resp, body, 415, interact.UnsupportedType)
}

func TestHandlerAnonymousAuthorization(t *testing.T) {
	t.Parallel()
	_, base := serve(t, `1`)
	for _, value := range []string{"null", "", "Bearer", "Basic !!", "Unknown x"} {
		if resp, body := send(t, "GET", base+"/things/thing/properties/power", "", "Authorization",
			value); resp.StatusCode != 200 {
			t.Errorf("%q: got %d %s", value, resp.StatusCode, body)
		}
	}
}

func TestHandlerTrace(t *testing.T) {
	t.Parallel()
	m, base := serve(t, `1`)
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	resp, _ := send(t, "GET", base+"/things/thing/properties/power", "", "Traceparent", parent, "Tracestate", "a=1")
	if got := <-m.asked; got.TraceParent != parent || got.TraceState != "a=1" ||
		resp.Header.Get("Traceparent") != parent {
		t.Errorf("received %+v, answered %v", got, resp.Header)
	}
	for _, bad := range []string{"x", strings.Repeat("0", 55), strings.ToUpper(parent),
		parent + strings.Repeat("0", 300)} {
		send(t, "GET", base+"/things/thing/properties/power", "", "Traceparent", bad, "Tracestate", "a=1")
		if got := <-m.asked; got.TraceParent != "" || got.TraceState != "" {
			t.Errorf("%q was taken over", bad)
		}
	}
}

func TestHandlerPatience(t *testing.T) {
	t.Parallel()
	m, base := serve(t, `1`)
	for _, tt := range []struct {
		query, prefer string
		want          time.Duration
	}{
		{"", "", 30 * time.Second},
		{"?timeout=5s", "", 5 * time.Second},
		{"", "wait=7", 7 * time.Second},
		{"", `respond-async, Wait = "8"`, 8 * time.Second},
		{"", "wait=many", 30 * time.Second},
		{"", "wait=0", 30 * time.Second},
		{"", "wait=99999", 10 * time.Minute},
		{"?timeout=9s", "wait=7", 9 * time.Second},
	} {
		send(t, "GET", base+"/things/thing/properties/power"+tt.query, "", "Prefer", tt.prefer)
		got := <-m.asked
		if left := time.Until(got.Deadline); left > tt.want || left < tt.want-5*time.Second {
			t.Errorf("%s %s: %v left, want %v", tt.query, tt.prefer, left, tt.want)
		}
	}
}

func TestHandlerTimeout(t *testing.T) {
	t.Parallel()
	m, base := serve(t, ``)
	m.do = func(ctx context.Context, _ *interact.Message) (*interact.Message, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	resp, body := send(t, "POST", base+"/things/thing/actions/toggle?timeout=50ms", "")
	wantProblem(t, resp, body, 504, interact.Timeout)
}

func TestHandlerAfterDisconnect(t *testing.T) {
	t.Parallel()
	m, base := serve(t, ``)
	cancelled := make(chan error, 1)
	m.do = func(ctx context.Context, _ *interact.Message) (*interact.Message, error) {
		<-ctx.Done()
		cancelled <- context.Cause(ctx)
		return nil, ctx.Err()
	}
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "POST", base+"/things/thing/actions/toggle", nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		<-m.asked
		cancel()
	}()
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	if resp, err := tr.RoundTrip(req); err == nil {
		_ = resp.Body.Close()
		t.Error("an answer came")
	}
	if err := <-cancelled; err != context.Canceled {
		t.Errorf("got %v", err)
	}
}

func TestHandlerErrorsOfTheMesh(t *testing.T) {
	t.Parallel()
	m, base := serve(t, ``)
	for _, code := range interact.Codes() {
		m.do = func(context.Context, *interact.Message) (*interact.Message, error) {
			return nil, &interact.Error{Code: code, Title: "what", Hint: "do", Remote: true}
		}
		resp, body := send(t, "POST", base+"/things/thing/actions/toggle", "")
		if e := wantProblem(t, resp, body, problem.Status(code), code); !e.Remote || e.Title != "what" {
			t.Errorf("%s: got %+v", code, e)
		}
		<-m.asked
	}
	for status, code := range map[interact.Status]interact.Code{interact.StatusFailed: interact.AgentFailed,
		interact.StatusCancelled: interact.Cancelled, interact.StatusRunning: interact.AgentFailed,
		interact.StatusPending: interact.AgentFailed} {
		m.do = func(_ context.Context, msg *interact.Message) (*interact.Message, error) {
			reply := msg.Reply(interact.ActionStatus, "", nil)
			reply.Status = status
			return reply, nil
		}
		resp, body := send(t, "POST", base+"/things/thing/actions/toggle", "")
		wantProblem(t, resp, body, problem.Status(code), code)
		<-m.asked
	}
}

func TestHandlerVariablesOfTheQuery(t *testing.T) {
	t.Parallel()
	m, base := serve(t, ``)
	for _, tt := range []struct{ name, method, path, body, data string }{
		{"typed by their schemas", "GET", "light?room=5&n=5&on=true&other=1", "", `{"n":5,"on":true,"room":"5"}`},
		{"with a body", "PUT", "light?room=hall", `{"x":1}`, `{"x":1,"room":"hall"}`},
		{"the body holds", "PUT", "light?room=hall", `{"room":"bath"}`, `{"room":"bath"}`},
		{"next to a number", "PUT", "heat?room=hall", `21.5`, `{"value":21.5,"room":"hall"}`},
	} {
		resp, body := send(t, tt.method, base+"/things/thing/properties/"+tt.path, tt.body, "Content-Type", jsonType)
		if resp.StatusCode != 204 {
			t.Errorf("%s: got %d %s", tt.name, resp.StatusCode, body)
			continue
		}
		var got, want any
		data := (<-m.asked).Data
		if json.Unmarshal(data, &got) != nil || json.Unmarshal([]byte(tt.data), &want) != nil ||
			fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: got %s, want %s", tt.name, data, tt.data)
		}
	}
	resp, body := send(t, "GET", base+"/things/thing/properties/light?room=hall&n=two", "")
	if e := wantProblem(t, resp, body, 400, interact.Invalid); e.Issues[0].Pointer != "/n" {
		t.Errorf("got %v", e.Issues)
	}
}

func TestHandlerIDsRawAndEncoded(t *testing.T) {
	t.Parallel()
	ids := []string{"urn:example:thing", "urn:example:thing@z6MkpTHR", "https://a.example:80/x//y", "50%", "a%2Fb", "ü x"}
	_, base := serve(t, `1`, ids...)
	for _, id := range ids {
		if resp, body := send(t, "GET", base+"/things/"+url.PathEscape(id)+"/properties/power",
			""); resp.StatusCode != 200 {
			t.Errorf("%q encoded: got %d %s", id, resp.StatusCode, body)
		}
	}
	// Raw, byte for byte as some clients send it, without a client library that cleans it up.
	for _, id := range []string{"urn:example:thing", "https://a.example:80/x//y", "urn:example:thing@z6MkpTHR"} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "GET /things/%s/properties/power HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", id)
		line, err := bufio.NewReader(conn).ReadString('\n')
		_ = conn.Close()
		if err != nil || !strings.HasPrefix(line, "HTTP/1.1 200 ") {
			t.Errorf("%q raw: got %q, %v", id, line, err)
		}
	}
}

func TestHandlerDoesNotLetABrowserRunAnAnswer(t *testing.T) {
	t.Parallel()
	m, base := serve(t, ``)
	for media, want := range map[string]string{"text/html": "text/html", "a\r\nb": "application/octet-stream"} {
		m.do = func(_ context.Context, msg *interact.Message) (*interact.Message, error) {
			return msg.Reply(interact.PropertyReading, media, []byte("<script>")), nil
		}
		resp, _ := send(t, "GET", base+"/things/thing/properties/power", "")
		if got := resp.Header.Get("Content-Type"); got != want ||
			!strings.Contains(resp.Header.Get("Content-Security-Policy"), "sandbox") {
			t.Errorf("%q: got %v", media, resp.Header)
		}
	}
}

func TestHandlerWithoutADescription(t *testing.T) {
	t.Parallel()
	h := handler(t, &mesh{}, func(context.Context, string) (*td.Description, error) {
		return &td.Description{Record: &td.Record{}}, nil
	})
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/things/x/properties", nil))
	wantProblem(t, w.Result(), w.Body.String(), 404, interact.NotFound)
}

func BenchmarkHandler(b *testing.B) {
	thing := describe(b, node)
	d := &td.Description{Thing: thing,
		Record: &td.Record{Owner: "did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH", Thing: thing.ID}}
	h := handler(b, interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) {
		return m.Reply(interact.ActionStatus, "", []byte("1")), nil
	}), func(context.Context, string) (*td.Description, error) { return d, nil })
	b.ReportAllocs()
	for b.Loop() {
		r := httptest.NewRequest("POST", "/things/thing/actions/fade", strings.NewReader(`{"to":5}`))
		r.Header.Set("Content-Type", jsonType)
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
}

// handler returns a server that is closed with the test.
func handler(t testing.TB, mesh interact.Thing, find func(context.Context, string) (*td.Description, error)) *Server {
	s := New(Options{Mesh: mesh, Find: find})
	t.Cleanup(s.Close)
	return s
}
