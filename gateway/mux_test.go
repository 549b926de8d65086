package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

func TestRoutes(t *testing.T) {
	t.Parallel()
	slashed := "https://things.example//a/b?c=1%"
	node := newFake(describe("urn:x:weather", "Weather", owner1), describe(slashed, "Slashed", owner2), describe("urn:x:forked", "Forked", owner2))
	r := start(t, serving(node, Options{}))
	for _, x := range []exchange{
		{name: "own TD", path: "/.well-known/wot", status: 200, contain: "a node",
			want: map[string]string{"Content-Type": tdJSON}},
		{name: "own TD for a client of plain JSON", path: "/.well-known/wot",
			header: map[string]string{"Accept": "application/json"},
			status: 200, want: map[string]string{"Content-Type": "application/json"}},
		{name: "status", path: "/v1/status", status: 200, contain: `"kind":"Status","state":"ready"`},
		{name: "identity", path: "/v1/id", status: 200, contain: `"document":{`},
		{name: "peers, none", path: "/v1/peers", status: 200, contain: `"items":[]`},
		{name: "version", path: "/version", status: 200, contain: `"version":"0.1.0"`},
		{name: "health", path: "/healthz", status: 200, contain: "pass"},
		{name: "readiness", path: "/readyz", status: 200, contain: "pass"},
		{name: "readiness with checks", path: "/readyz?verbose", status: 200,
			contain: `"checks":[{"name":"node","status":"pass"`},
		{name: "metrics", path: "/metrics", status: 200, contain: "lmosd_ready 1"},
		{name: "search", path: "/v1/find?capability=urn:example:weather", status: 200,
			contain: `"coverage":{"asked":1,"answered":1`},
		{name: "agent", path: "/v1/agents/urn:x:weather", status: 200, contain: `"verified":true`},
		{name: "agent with an escaped id", path: "/v1/agents/https:%2F%2Fthings.example%2F%2Fa%2Fb%3Fc=1%25",
			status: 200, contain: "Slashed"},
		{name: "agent with a raw id", path: "/v1/agents/https://things.example//a/b%3Fc=1%25", status: 200,
			contain: "Slashed"},
		{name: "agent whose owner signed two records", path: "/v1/agents/urn:x:forked", status: 200, contain: `"records":["AQ==","Ag=="]`},
		{name: "unknown agent", path: "/v1/agents/none", status: 404, code: "LMOS-1404"},

		{name: "thing", path: "/things/urn:x:weather", status: 200, contain: `"title":"Weather"`,
			want: map[string]string{"Content-Type": tdJSON}},
		{name: "thing with an escaped id", path: "/things/urn%3Ax%3Aweather", status: 200, contain: "Weather"},
		{name: "thing with a slashed id, raw", path: "/things/https://things.example//a/b%3Fc=1%25", status: 200,
			contain: "Slashed"},
		{name: "thing with a slashed id, escaped", path: "/things/https%3A%2F%2Fthings.example%2F%2Fa%2Fb%3Fc%3D1%25",
			status: 200, contain: "Slashed"},
		{name: "unknown thing", path: "/things/none", status: 404, code: "LMOS-1404"},
		{name: "thing that is a dot segment", path: "/things/..", status: 404, code: "LMOS-1404"},

		{name: "unknown path", path: "/nothing", status: 404, code: "LMOS-1405"},
		{name: "root", path: "/", status: 200, contain: `{"method":"GET","path":"/v1/status"}`},
		{name: "final slash", path: "/v1/status/", status: 404, code: "LMOS-1405"},
		{name: "doubled slash", path: "//v1/status", status: 404, code: "LMOS-1405"},
		{name: "dot segment", path: "/v1/x/../status", status: 404, code: "LMOS-1405"},
		{name: "no thing", path: "/things/", status: 404, code: "LMOS-1405"},
		{name: "no agent", path: "/v1/agents/", status: 404, code: "LMOS-1405"},
		{name: "other method", method: "DELETE", path: "/v1/status", status: 405, code: "LMOS-1406",
			want: map[string]string{"Allow": "GET, HEAD"}},
		{name: "other method of a list", method: "PUT", path: "/things", status: 405,
			want: map[string]string{"Allow": "GET, HEAD, POST"}},
		{name: "other method of a thing", method: "POST", path: "/things/x", status: 405,
			want: map[string]string{"Allow": "DELETE, GET, HEAD, PATCH, PUT"}},
		{name: "other method of an agent", method: "POST", path: "/v1/agents/x", status: 405,
			want: map[string]string{"Allow": "DELETE, GET, HEAD"}},
		{name: "write-only path", path: "/v1/publish", status: 405, want: map[string]string{"Allow": "POST"}},
		{name: "other method of an action", method: "PUT", path: "/things/urn:x:weather/actions/ask", status: 405,
			want: map[string]string{"Allow": "DELETE, GET, HEAD, POST"}},
		{name: "preflight", method: "OPTIONS", path: "/v1/publish", status: 405},
		{name: "unknown resource of a thing", path: "/things/urn:x:weather/events/rain", status: 404},

		{name: "metrics are read-only", method: "POST", path: "/metrics", status: 405},
		{name: "connect", method: "POST", path: "/v1/peers", header: merge(asAdmin, "Content-Type",
			"application/json"), body: `{"addr":"/ip4/1.2.3.4"}`, status: 204},
		{name: "connect without an address", method: "POST", path: "/v1/peers", header: merge(asAdmin, "Content-Type",
			"application/json"), body: `{}`, status: 400, code: "LMOS-1400"},
		{name: "connect by a form", method: "POST", path: "/v1/peers", header: asAdmin, body: `addr=x`, status: 415,
			code: "LMOS-1415"},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			r.check(t, x)
		})
	}
}

// Every GET route supports HEAD, with the same header and without a body.
func TestHead(t *testing.T) {
	t.Parallel()
	r := start(t, Options{})
	for _, path := range []string{"/things", "/things/urn:x:weather", "/things/none", "/.well-known/wot",
		"/v1/status", "/v1/id", "/v1/peers",
		"/v1/find", "/v1/agents/urn:x:weather", "/healthz", "/readyz", "/version", "/metrics", "/nothing",
		"/things/urn:x:weather/properties/unit"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			get, _ := r.do(t, exchange{path: path})
			head, body := r.do(t, exchange{method: http.MethodHead, path: path})
			if head.StatusCode != get.StatusCode ||
				head.Header.Get("Content-Type") != get.Header.Get("Content-Type") || body != "" {
				t.Errorf("HEAD %d %q %q, GET %d %q", head.StatusCode, head.Header.Get("Content-Type"), body,
					get.StatusCode,
					get.Header.Get("Content-Type"))
			}
		})
	}
}

func TestPublishRoute(t *testing.T) {
	t.Parallel()
	r := start(t, serving(newFake(), Options{}))
	r.check(t, exchange{method: "POST", path: "/v1/publish", header: tdBody, body: thingTD("urn:x:new", "New"),
		status:  201,
		contain: `"kind":"Publication","id":"urn:x:new"`, want: map[string]string{"Location": "/things/urn:x:new"}})
	r.check(t, exchange{method: "POST", path: "/v1/publish", header: tdBody, body: thingTD("urn:x:new", "New"),
		status: 200, contain: `"replicas":2`})
	r.check(t, exchange{method: "POST", path: "/v1/publish", header: tdBody, body: `{"title":1`, status: 400,
		code: "LMOS-2010"})
	r.check(t, exchange{method: "POST", path: "/v1/publish", header: merge(tdBody, "Content-Encoding", "gzip"),
		body: "x", status: 415})
	r.check(t, exchange{method: "DELETE", path: "/v1/agents/urn:x:new", header: asAdmin, status: 200,
		contain: `"withdrawn":true`})
	r.check(t, exchange{method: "DELETE", path: "/v1/agents/urn:x:new", header: asAdmin, status: 404, code: "LMOS-1404"})
}

func TestInteractions(t *testing.T) {
	t.Parallel()
	d := describe("urn:x:weather", "Weather", owner1)
	r := start(t, serving(newFake(d), Options{}))
	for _, x := range []exchange{
		{name: "action", method: "POST", path: "/things/urn:x:weather/actions/ask",
			header: map[string]string{"Content-Type": "application/json"},
			body:   `{"q":1}`, status: 200, contain: `{"q":1}`},
		{name: "property", path: "/things/urn:x:weather/properties/unit", status: 200, contain: `"unit"`},
		{name: "write", method: "PUT", path: "/things/urn:x:weather/properties/unit",
			header: map[string]string{"Content-Type": "application/json"},
			body:   `1`, status: 204},
		{name: "unknown thing", method: "POST", path: "/things/none/actions/ask", status: 404, code: "LMOS-1404"},
		{name: "body of 30 MB", method: "POST", path: "/things/urn:x:weather/actions/ask",
			header: map[string]string{"Content-Type": "application/json"},
			body:   strings.Repeat(" ", 30<<20), status: 413, code: "LMOS-1413"},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			r.check(t, x)
		})
	}
}

// Errors of the mesh keep their codes.
func TestErrorsOfTheMesh(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code   interact.Code
		status int
	}{
		{interact.Forbidden, 403}, {interact.Withdrawn, 410}, {interact.RateLimited, 429}, {interact.AgentFailed, 502},
		{interact.Unreachable, 503}, {interact.Timeout, 504}, {interact.Loop, 508},
	} {
		t.Run(c.code.Slug(), func(t *testing.T) {
			t.Parallel()
			node := newFake(describe("urn:x:weather", "Weather", owner1))
			node.mesh = func(context.Context, *interact.Message) iter.Seq2[*interact.Message, error] {
				return interact.Fail(interact.Errorf(c.code, "do something", "it is so"))
			}
			r := start(t, serving(node, Options{}))
			r.check(t, exchange{method: "POST", path: "/things/urn:x:weather/actions/ask", status: c.status,
				code: c.code.String(), contain: "it is so"})
		})
	}
}

func TestNotReady(t *testing.T) {
	t.Parallel()
	node := newFake()
	node.notReady = errors.New("the store is not open")
	r := start(t, serving(node, Options{}))
	r.check(t, exchange{path: "/readyz", status: 503, code: "LMOS-3031", contain: "the store is not open"})
	r.check(t, exchange{path: "/healthz", status: 200})
	resp, body := r.do(t, exchange{path: "/readyz?verbose"})
	if resp.StatusCode != 503 || !strings.Contains(body, `"status":"fail","message":"the store is not open"`) {
		t.Errorf("verbose: %d %s", resp.StatusCode, body)
	}
	r.check(t, exchange{path: "/metrics", status: 200, contain: "lmosd_ready 0"})
}

func TestHangingLoopsAreAReadinessCheck(t *testing.T) {
	t.Parallel()
	node := newFake()
	node.notReady = errors.New("a loop hangs")
	node.status = func() *api.Status {
		return &api.Status{Warnings: []api.Warning{api.NoPeers.Warning("", "alone"), api.LoopHangs.Warning("", "1 loop hangs: gossip for 40s")}}
	}
	if _, body := start(t, serving(node, Options{})).do(t, exchange{path: "/readyz?verbose"}); !strings.Contains(body, `{"name":"loops","status":"warn","message":"LMOS-W032: 1 loop hangs: gossip for 40s"`) ||
		strings.Count(body, "LMOS-W032") != 1 {
		t.Errorf("verbose: %s", body)
	}
}

func TestHiddenMetrics(t *testing.T) {
	t.Parallel()
	start(t, Options{Operation: Operation{HideMetrics: true}}).check(t, exchange{path: "/metrics", status: 404})
}

func TestPanicOfAHandler(t *testing.T) {
	t.Parallel()
	node := newFake()
	node.connect = func(context.Context, string) error { panic("the fake panics") }
	var log strings.Builder
	r := start(t, serving(node, Options{Log: slog.New(slog.NewTextHandler(&log, nil))}))
	r.check(t, exchange{method: "POST", path: "/v1/peers", header: merge(asAdmin, "Content-Type", "application/json"),
		body:   `{"addr":"/x"}`,
		status: 500, code: "LMOS-1500"})
	r.check(t, exchange{path: "/healthz", status: 200})
	r.end()
	if !strings.Contains(log.String(), "the fake panics") || !strings.Contains(log.String(), "stack") {
		t.Errorf("log: %s", log.String())
	}
}

// After a panic, a started response must not look complete.
func TestPanicDuringAResponse(t *testing.T) {
	t.Parallel()
	r := start(t, Options{}, func(g *Gateway) {
		g.routes = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, "half")
			panic("in the middle")
		})
	})
	resp, err := r.http.Get(r.url + "/x")
	if err == nil {
		_, err = io.ReadAll(resp.Body)
		resp.Body.Close()
	}
	if err == nil {
		t.Error("the response looks complete")
	}
}

// An unexpected error is logged with its cause, which is not sent.
func TestInternalError(t *testing.T) {
	t.Parallel()
	node := newFake()
	node.connect = func(context.Context, string) error { return errors.New("the secret cause") }
	var log strings.Builder
	r := start(t, serving(node, Options{Log: slog.New(slog.NewTextHandler(&log, nil))}))
	resp, body := r.do(t, exchange{method: "POST", path: "/v1/peers", header: merge(asAdmin, "Content-Type",
		"application/json"), body: `{"addr":"/x"}`})
	r.end()
	if resp.StatusCode != 500 || strings.Contains(body, "secret") || !strings.Contains(log.String(), "the secret cause") {
		t.Errorf("%d %s; log %s", resp.StatusCode, body, log.String())
	}
}

func TestFindReturnsResultsInTime(t *testing.T) {
	t.Parallel()
	node := newFake()
	node.find = func(ctx context.Context, q td.Query) iter.Seq2[*td.Description, error] {
		return func(yield func(*td.Description, error) bool) {
			q.Counter.CountAsked(2)
			q.Counter.CountAnswer()
			if yield(describe("urn:x:1", "One", owner1), nil) {
				<-ctx.Done()
				yield(nil, ctx.Err())
			}
		}
	}
	r := start(t, serving(node, Options{}))
	_, body := r.do(t, exchange{path: "/v1/find?timeout=20ms"})
	if !strings.Contains(body, `"urn:x:1"`) || !strings.Contains(body, `"asked":2,"answered":1`) ||
		!strings.Contains(body, `"truncated":true`) {
		t.Errorf("got %s", body)
	}
	node.find = func(context.Context, td.Query) iter.Seq2[*td.Description, error] {
		return func(yield func(*td.Description, error) bool) {
			yield(nil, interact.Errorf(interact.Overloaded, "wait", "too many searches"))
		}
	}
	r.check(t, exchange{path: "/v1/find", status: 503, code: "LMOS-1529"})
}

// Text of a caller is shortened in errors, and its control characters are removed.
func TestErrorsAreShort(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x\u202e", 5000)
	escaped := strings.Repeat("%1b", 5000)
	r := start(t, Options{Listen: "0.0.0.0:0"})
	for name, x := range map[string]exchange{
		"a path":              {path: "/" + escaped, status: 404},
		"a path, no token":    {method: "POST", path: "/v1/tasks/" + escaped, status: 405},
		"a thing, no token":   {path: "/things/" + escaped + "/actions/x", status: 401},
		"a parameter":         {path: "/v1/find?" + escaped + "=1", header: asAdmin, status: 400},
		"a value":             {path: "/v1/find?limit=" + escaped, header: asAdmin, status: 400},
		"an owner":            {path: "/v1/find?owner=" + escaped, header: asAdmin, status: 400},
		"a format":            {path: "/things?format=" + escaped, header: asAdmin, status: 400},
		"a host":              {path: "/healthz", header: map[string]string{"Host": strings.Repeat("x", 9000)}, status: 403},
		"an origin":           {method: "POST", path: "/v1/publish", header: merge(tdBody, "Origin", long), status: 403},
		"a content type":      {method: "POST", path: "/v1/publish", header: merge(asAdmin, "Content-Type", long), status: 415},
		"a content encoding":  {method: "POST", path: "/v1/publish", header: merge(tdBody, "Content-Encoding", long), status: 415},
		"a token":             {path: "/v1/status", header: map[string]string{"Authorization": "Bearer " + long}, status: 401},
		"a thing in a state":  {method: "DELETE", path: "/things/" + escaped, header: merge(asAdmin, "If-Match", `"x"`), status: 412},
		"an id in a document": {method: "POST", path: "/things", header: tdBody, body: thingTD("urn:x:"+strings.Repeat("x", 900), "X"), status: 400},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			resp, body := r.do(t, x)
			if resp.StatusCode != x.status || len(body) > 1500 || strings.ContainsAny(body, "\x1b\u202e") ||
				strings.Contains(body, `\u001b`) {
				t.Errorf("status %d with %d bytes: %.300s", resp.StatusCode, len(body), body)
			}
		})
	}
}

// The DID document of a node with a public URL links to its TD (WoT Discovery §6.5); a did:key has no services.
func TestDIDDocument(t *testing.T) {
	t.Parallel()
	r := start(t, serving(newFake(), Options{Operation: Operation{PublicURL: "https://node.example/"}}))
	for _, want := range []string{`"https://www.w3.org/2022/wot/discovery-did"`, `"id":"did:web:node.example",`,
		`"id":"did:web:node.example#td","type":"WotThing","serviceEndpoint":"https://node.example/.well-known/wot"`,
		`"id":"did:web:node.example#tdd","type":"WotDirectory","serviceEndpoint":"https://node.example/.well-known/wot"`} {
		r.check(t, exchange{path: "/.well-known/did.json", status: 200, contain: want,
			want: map[string]string{"Content-Type": "application/did+json"}})
	}
	for _, address := range []string{"", "http://node.example", "https://node.example/below"} {
		start(t, serving(newFake(), Options{Operation: Operation{PublicURL: address}})).check(t, exchange{path: "/.well-known/did.json", status: 404})
	}
}
