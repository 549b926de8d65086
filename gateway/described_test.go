package gateway

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/poll"
	"github.com/lmosd/lmosd/td"
)

// hrefs returns the targets of all forms and links in a TD.
func hrefs(t *testing.T, raw string) (all []string) {
	t.Helper()
	thing, err := td.Parse([]byte(raw))
	if err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	for _, w := range thing.Warnings {
		if w.Pointer != "/actions/listen/forms/0" { // it accepts audio, so no JSON form precedes
			t.Errorf("warning: %v", w)
		}
	}
	for _, f := range thing.Events["storm"].Forms {
		all = append(all, f.Href)
	}
	return append(all, thing.Links[0].Href)
}

func TestDescriptionOfTheNode(t *testing.T) {
	t.Parallel()
	r := start(t, serving(newFake(station(t)), Options{WS: newPlainSocket()}))
	public := start(t, serving(newFake(station(t)), Options{WS: newPlainSocket(), Operation: Operation{PublicURL: "https://node.example/lmos/"}}))
	beyond := start(t, serving(newFake(station(t)), Options{Listen: "0.0.0.0:0"}))
	for _, tt := range []struct {
		name     string
		r        *running
		x        exchange
		http, ws string
	}{
		{"over TCP", r, exchange{}, r.url, strings.Replace(r.url, "http", "ws", 1) + "/ws"},
		{"by another name", r, exchange{header: map[string]string{"Host": "localhost:99"}}, "http://localhost:99", "ws://localhost:99/ws"},
		{"over the socket", r, exchange{socket: true}, r.url, strings.Replace(r.url, "http", "ws", 1) + "/ws"},
		{"behind a proxy", public, exchange{}, "https://node.example/lmos", "wss://node.example/lmos/ws"},
		{"without WebSocket", beyond, exchange{header: asAdmin}, beyond.url, ""},
	} {
		tt.x.path = "/things/urn:x:station/td"
		if tt.name == "without WebSocket" {
			tt.x.header = merge(asAdmin, "Host", strings.TrimPrefix(tt.http, "http://"))
		}
		resp, body := tt.r.do(t, tt.x)
		if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != tdJSON {
			t.Errorf("%s: got %d %v %s", tt.name, resp.StatusCode, resp.Header, body)
			continue
		}
		home := tt.http + "/things/urn:x:station@" + owner1.Multibase()
		want := []string{home + "/events/storm", home + "/events/storm", home + "/events/storm", tt.ws, home}
		if tt.ws == "" {
			want = append(want[:3], want[4])
		}
		if got := hrefs(t, body); strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("%s: got %v, want %v", tt.name, got, want)
		}
		if bearer := strings.Contains(body, "bearer_sc"); bearer != (tt.r == beyond) {
			t.Errorf("%s: a token: %v", tt.name, bearer)
		}
	}
	r.check(t, exchange{path: "/things/none/td", status: 404, code: "LMOS-1404"})
	r.check(t, exchange{method: "DELETE", path: "/things/urn:x:station/td", header: asAdmin, status: 405,
		want: map[string]string{"Allow": "GET, HEAD"}})
	r.check(t, exchange{method: "HEAD", path: "/things/urn:x:station/td", status: 200})
	beyond.check(t, exchange{path: "/things/urn:x:station/td", status: 401})
}

// Lists contain all TDs with forms of the node, by page.
func TestListThingsWithFormsOfTheNode(t *testing.T) {
	t.Parallel()
	second := station(t)
	other := *second.Record
	other.Owner = owner2
	node := newFake(station(t))
	node.things["second"] = &td.Description{Thing: second.Thing, Record: &other, Signed: second.Signed}
	r := start(t, serving(node, Options{}))
	resp, body := r.do(t, exchange{path: "/things?forms=node&limit=1"})
	var page []json.RawMessage
	if err := json.Unmarshal([]byte(body), &page); err != nil || len(page) != 1 {
		t.Fatalf("got %d %s", resp.StatusCode, body)
	}
	if want := `</things?limit=1&offset=1&forms=node>; rel="next"`; resp.Header.Get("Link") != want {
		t.Errorf("Link %s, want %s", resp.Header.Get("Link"), want)
	}
	first := hrefs(t, string(page[0]))
	_, body = r.do(t, exchange{path: "/things?limit=1&offset=1&forms=node"})
	if err := json.Unmarshal([]byte(body), &page); err != nil || len(page) != 1 {
		t.Fatalf("got %s", body)
	}
	// Two owners may have Things with one id: their URLs differ.
	if next := hrefs(t, string(page[0])); next[0] == first[0] || !strings.HasPrefix(next[0], r.url) {
		t.Errorf("got %s, then %s", first[0], next[0])
	}
	r.check(t, exchange{path: "/things?forms=mine", status: 400, code: "LMOS-2000"})
	r.check(t, exchange{path: "/things?forms=node", status: 200, contain: `"longpoll"`})
	if _, body := r.do(t, exchange{path: "/things"}); strings.Contains(body, `"longpoll"`) {
		t.Error("the default list does not contain the signed TDs")
	}
}

// Requests below Things are counted by route, not by the values in the path.
func TestRoutesBelowThings(t *testing.T) {
	t.Parallel()
	for below, want := range map[string]string{
		"td": "/things/{id}/td", "properties": "/things/{id}/properties", "properties/x": "/things/{id}/properties/{name}",
		"properties/x/observable": "/things/{id}/properties/{name}/observable", "actions": "/things/{id}/actions",
		"actions/x": "/things/{id}/actions/{name}", "actions/x/y": "/things/{id}/actions/{name}/{run}",
		"events": "/things/{id}/events", "events/x": "/things/{id}/events/{name}", "subscriptions/x": "/things/{id}/subscriptions/{subscription}",
	} {
		if got := interactionPattern(below); got != want {
			t.Errorf("%s: %s, want %s", below, got, want)
		}
	}
	m := NewMetrics()
	r := start(t, serving(stationNode(t, counting(1)), Options{Metrics: m}))
	c := dial(t, r.url, "")
	for range c.Watch(t.Context(), "urn:x:station", "events", "storm", "") {
		break
	}
	r.check(t, exchange{path: "/things/urn:x:station/events/storm", status: 200, contain: "10", want: map[string]string{"Lmos-Event-Id": "1"}})
	poll.Until(t, "the counts", func() bool {
		got := scrape(t, m)
		return got[`lmosd_events_total{dropped="false",kind="sse"}`] == "1" && got[`lmosd_events_total{dropped="false",kind="longpoll"}`] == "1" &&
			got[`lmosd_http_requests_total{code="200",route="/things/{id}/events/{name}"}`] == "2"
	})
}

// Pages that the node serves may observe with a token; a POST from another page is rejected.
func TestEventsForBrowsers(t *testing.T) {
	t.Parallel()
	r := start(t, serving(stationNode(t, counting(1)), Options{}))
	req, err := http.NewRequestWithContext(t.Context(), "GET", r.url+"/things/urn:x:station/events?token="+token, nil)
	if err != nil {
		t.Fatal(err)
	}
	// As Chromium's EventSource sends it.
	for name, value := range map[string]string{"Accept": "text/event-stream", "Cache-Control": "no-cache", "Sec-Fetch-Site": "same-origin",
		"Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty", "Referer": r.url + "/"} {
		req.Header.Set(name, value)
	}
	resp, err := r.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" || resp.Header.Get("Content-Encoding") != "" {
		t.Errorf("got %d %v", resp.StatusCode, resp.Header)
	}
	r.check(t, exchange{path: "/things/urn:x:station/events", status: 401, header: map[string]string{"Accept": "text/event-stream", "Sec-Fetch-Site": "same-origin"}})
	r.check(t, exchange{method: "POST", path: "/things/urn:x:station/events", status: 403, header: map[string]string{
		"Origin": "http://evil.example", "Accept": "text/event-stream"}})
}

// Webhooks use the dialer of the options.
func TestWebhooksOfTheGateway(t *testing.T) {
	t.Parallel()
	got := make(chan string, 10)
	consumer := start(t, Options{}, func(g *Gateway) {
		g.routes = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.Header.Get("Link") })
	})
	hook := exchange{method: "POST", path: "/things/urn:x:station/events/storm", header: map[string]string{"Content-Type": "application/json"},
		body: `{"callbackURL":"` + consumer.url + `/notify"}`, status: 201, contain: `"operation":"subscribeevent"`}
	m := NewMetrics()
	r := start(t, serving(stationNode(t, counting(1)), Options{PrivateCallbacks: true, Metrics: m, Operation: Operation{PublicURL: "https://node.example"}}))
	r.check(t, hook)
	if link := <-got; link != `<https://node.example/things/urn:x:station/events/storm>; rel="self"` {
		t.Errorf("Link %s", link)
	}
	poll.Until(t, "the count", func() bool { return scrape(t, m)[`lmosd_events_total{dropped="false",kind="webhook"}`] == "1" })
	guarded := NewMetrics()
	start(t, serving(stationNode(t, counting(1)), Options{Metrics: guarded})).check(t, hook)
	poll.Until(t, "the refusal", func() bool { return scrape(t, guarded)[`lmosd_events_total{dropped="true",kind="webhook"}`] == "1" })
}

func TestStages(t *testing.T) {
	t.Parallel()
	m := NewMetrics()
	thing := interact.Chain(interact.Unary(echo), m.Middleware("mesh"), m.Stage("agent", "http"))
	for range 2 {
		if _, err := interact.Call(context.Background(), thing, &interact.Message{Type: interact.ReadProperty, Name: "x"}); err != nil {
			t.Fatal(err)
		}
	}
	for range thing.Do(context.Background(), &interact.Message{Type: interact.ObserveAllProperties}) {
	}
	got := scrape(t, m)
	for line, want := range map[string]string{
		`lmosd_call_seconds_count{op="readproperty",protocol="mesh",stage="total"}`:                   "2",
		`lmosd_call_seconds_count{op="readproperty",protocol="http",stage="agent"}`:                   "2",
		`lmosd_call_seconds_count{op="observeallproperties",protocol="mesh",stage="total"}`:           "",
		`lmosd_calls_total{op="readproperty",protocol="mesh",result="ok"}`:                            "2",
		`lmosd_calls_total{op="readproperty",protocol="http",result="ok"}`:                            "",
		`lmosd_calls_total{op="observeallproperties",protocol="mesh",result="operation-not-allowed"}`: "1",
		`lmosd_calls_in_flight`: "0",
	} {
		if got[line] != want {
			t.Errorf("%s: %q, want %q", line, got[line], want)
		}
	}
	var s api.Status
	if m.FillCalls(&s); s.Calls.Total != 3 {
		t.Errorf("%d calls", s.Calls.Total)
	}
	for op := range opCount {
		if interact.Type(op).Op() != "" && opOf(interact.Type(op)) != op {
			t.Errorf("type %d is counted as %s", op, opName(opOf(interact.Type(op))))
		}
	}
	if opName(opOf(200)) != "other" || opName(opOf(interact.Event)) != "other" {
		t.Error("a message that is not an operation is counted as one")
	}
}

// A request stream may last longer than a body: the timeout applies to its parts, not to the whole.
func TestSlowRequestStream(t *testing.T) {
	t.Parallel()
	quick := defaultTimeouts
	quick.body = time.Millisecond
	r := start(t, serving(stationNode(t, echoInParts), Options{timeouts: quick}))
	body, input := io.Pipe()
	output, out := io.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := dial(t, r.url, "").Invoke(t.Context(), "urn:x:station", "listen",
			api.CallOptions{ContentType: "audio/wav", Stream: body, Output: out})
		done <- err
	}()
	word := make([]byte, 4)
	for range 50 { // each goes to the agent and back before the next
		if _, err := input.Write([]byte("word")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(output, word); err != nil || string(word) != "word" {
			t.Fatalf("received %q, %v", word, err)
		}
	}
	input.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// fakeCallbacks send the path of each request, and first the URL.
type fakeCallbacks chan string

func (c fakeCallbacks) Listen(url string) { c <- url }

func (c fakeCallbacks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c <- r.URL.Path
	w.WriteHeader(http.StatusOK)
}

// The gateway accepts events at the callback URLs from every sender except web pages.
func TestCallbacks(t *testing.T) {
	t.Parallel()
	took := make(fakeCallbacks, 10)
	r := start(t, Options{Listen: "0.0.0.0:0", Callbacks: took})
	if got, want := <-took, r.url+callbacksPath; got != want {
		t.Errorf("listens below %s, want %s", got, want)
	}
	post := exchange{method: "POST", path: callbacksPath + "x1", body: "1", status: 200,
		header: map[string]string{"Content-Type": "application/json"}}
	r.check(t, post)
	if got := <-took; got != "/callbacks/x1" {
		t.Errorf("took %s", got)
	}
	r.check(t, exchange{path: post.path, status: 405, want: map[string]string{"Allow": "POST"}})
	r.check(t, exchange{method: "POST", path: post.path + "/y", status: 404})
	r.check(t, exchange{method: "POST", path: callbacksPath, status: 404})
	r.check(t, exchange{method: "POST", path: post.path, status: 403, header: map[string]string{"Origin": "http://evil.example"}})
	start(t, Options{}).check(t, exchange{method: "POST", path: post.path, status: 404, code: "LMOS-1405"})
}
