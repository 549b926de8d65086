package gateway

import (
	"bufio"
	"context"
	"errors"
	"iter"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact"
)

func TestMiddlewareCounts(t *testing.T) {
	t.Parallel()
	m := NewMetrics()
	ask := func(wrap interact.Middleware, typ interact.Type, err error) {
		thing := wrap(interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) {
			if err != nil {
				return nil, err
			}
			return m.Reply(interact.ActionStatus, "", nil), nil
		}))
		_, got := interact.Call(context.Background(), thing, &interact.Message{Type: typ})
		if !errors.Is(got, err) {
			t.Errorf("got %v, want %v", got, err)
		}
	}
	mesh, stream := m.Middleware("mesh"), m.Middleware("stream")
	for range 3 {
		ask(mesh, interact.InvokeAction, nil)
	}
	ask(mesh, interact.InvokeAction, interact.Errorf(interact.Unreachable, "", "gone"))
	ask(mesh, interact.InvokeAction, context.Canceled)
	ask(mesh, interact.InvokeAction, errors.New("odd"))
	ask(mesh, interact.InvokeAction, interact.Errorf(9999, "", "of a newer node"))
	ask(stream, interact.ReadProperty, nil)
	ask(stream, 200, nil)
	got := scrape(t, m)
	for line, want := range map[string]string{
		`lmosd_calls_total{op="invokeaction",protocol="mesh",result="ok"}`:                "3",
		`lmosd_calls_total{op="invokeaction",protocol="mesh",result="agent-unreachable"}`: "1",
		`lmosd_calls_total{op="invokeaction",protocol="mesh",result="cancelled"}`:         "1",
		`lmosd_calls_total{op="invokeaction",protocol="mesh",result="internal"}`:          "2",
		`lmosd_calls_total{op="readproperty",protocol="stream",result="ok"}`:              "1",
		`lmosd_calls_total{op="other",protocol="stream",result="ok"}`:                     "1",
		`lmosd_call_seconds_count{op="invokeaction",protocol="mesh",stage="total"}`:       "7",
		`lmosd_calls_in_flight`: "0",
	} {
		if got[line] != want {
			t.Errorf("%s: %q, want %s", line, got[line], want)
		}
	}
	var s api.Status
	m.FillCalls(&s)
	if s.Calls.Total != 9 || s.Calls.Errors != 3 || s.Calls.P99 < s.Calls.P50 {
		t.Errorf("calls %+v", s.Calls)
	}
}

// A running call is in flight. A call that the consumer ends early is not an error, and a call without an end is not timed.
func TestMiddlewareOfAStream(t *testing.T) {
	t.Parallel()
	m := NewMetrics()
	endless := interact.Func(func(_ context.Context, msg *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			for yield(msg.Reply(interact.Event, "", nil), nil) {
			}
		}
	})
	n := 0
	for range m.Middleware("mesh")(endless).Do(t.Context(), &interact.Message{Type: interact.SubscribeEvent}) {
		if m.inFlight.Load() != 1 {
			t.Error("not in flight")
		}
		if n++; n == 3 {
			break
		}
	}
	got := scrape(t, m)
	if got[`lmosd_calls_total{op="subscribeevent",protocol="mesh",result="ok"}`] != "1" || m.inFlight.Load() != 0 {
		t.Errorf("got %v", got)
	}
	if _, timed := got[`lmosd_call_seconds_count{op="subscribeevent",protocol="mesh",stage="total"}`]; timed {
		t.Error("subscriptions must not be timed")
	}
}

// A call that panics is not counted as in flight afterwards.
func TestMiddlewareOfAPanic(t *testing.T) {
	t.Parallel()
	m := NewMetrics()
	thing := m.Middleware("mesh")(interact.Func(func(context.Context, *interact.Message) iter.Seq2[*interact.Message,
		error] {
		panic("no")
	}))
	func() {
		defer func() { _ = recover() }()
		for range thing.Do(t.Context(), &interact.Message{}) {
		}
	}()
	if n := m.inFlight.Load(); n != 0 {
		t.Errorf("%d in flight", n)
	}
}

// scrape returns the samples of the registry, by name and labels.
func scrape(t *testing.T, m *Metrics) map[string]string {
	t.Helper()
	r := start(t, Options{Metrics: m})
	_, body := r.do(t, exchange{path: "/metrics"})
	return samples(t, body)
}

func samples(t *testing.T, body string) map[string]string {
	t.Helper()
	out := map[string]string{}
	lines := bufio.NewScanner(strings.NewReader(body))
	for lines.Scan() {
		if line := lines.Text(); !strings.HasPrefix(line, "#") {
			at := strings.LastIndexByte(line, ' ')
			out[line[:at]] = line[at+1:]
		}
	}
	return out
}

func TestMetricNames(t *testing.T) {
	t.Parallel()
	m := NewMetrics()
	libp2p := prometheus.NewCounter(prometheus.CounterOpts{Name: "libp2p_something_total"})
	m.Registerer().MustRegister(libp2p)
	node := newFake(describe("urn:x:weather", "Weather", owner1))
	node.peers = []api.Peer{{DID: owner2, Direction: "inbound", Transport: "tcp", Addr: "/ip4/192.0.2.1"},
		{Direction: "inbound", Transport: "tcp"}}
	node.mesh = m.Middleware("mesh")(interact.Unary(echo)).Do
	r := start(t, serving(node, Options{Metrics: m, Counters: func() []Counter {
		return []Counter{{Name: "gossip_messages_total", Label: "result", Value: "accepted", Count: 5},
			{Name: "gossip_messages_total", Label: "result",
				Value: "rejected", Count: 1}, {Name: "dht_ops_total", Count: 2}, {Name: "not a name", Count: 2}}
	}}))
	r.check(t, exchange{path: "/v1/find?id=urn:x:weather", status: 200})
	r.check(t, exchange{method: "POST", path: "/v1/publish", header: tdBody, body: thingTD("urn:x:new", "N"),
		status: 201})
	r.check(t, exchange{method: "POST", path: "/v1/publish", header: tdBody, body: "{", status: 400})
	r.check(t, exchange{path: "/things/urn:x:weather/properties/unit", status: 200})
	r.check(t, exchange{path: "/things/weathr", status: 404})
	r.check(t, exchange{path: "/no/such/path", status: 404})
	resp, body := r.do(t, exchange{path: "/metrics"})
	if resp.StatusCode != 200 {
		t.Fatalf("status %d: %s", resp.StatusCode, body)
	}
	got := samples(t, body)
	for name, want := range map[string]string{
		`lmosd_ready`:                                      "1",
		`lmosd_agents{source="local"}`:                     "0",
		`lmosd_agents{source="known"}`:                     "0",
		`lmosd_peers{direction="inbound",transport="tcp"}`: "2",
		`lmosd_find_seconds_count`:                         "1",
		`lmosd_td_publish_total{result="ok"}`:              "1",
		`lmosd_td_publish_seconds_count`:                   "1",
		`lmosd_td_publish_replicas_count`:                  "1",
		`lmosd_td_publish_total{result="td-not-json"}`:     "1",
		`lmosd_http_requests_total{code="200",route="/things/{id}/properties/{name}"}`: "1",
		`lmosd_http_requests_total{code="404",route="/things/{id}"}`:                   "1",
		`lmosd_http_requests_total{code="404",route="none"}`:                           "1",
		`lmosd_http_request_seconds_count{route="/v1/find"}`:                           "1",
		`lmosd_gossip_messages_total{result="accepted"}`:                               "5",
		`lmosd_dht_ops_total`:    "2",
		`libp2p_something_total`: "0",
		`lmosd_calls_total{op="readproperty",protocol="mesh",result="ok"}`: "1",
	} {
		if got[name] != want {
			t.Errorf("%s: %q, want %s", name, got[name], want)
		}
	}
	for _, prefix := range []string{"go_goroutines", "process_open_fds", `lmosd_build_info{`} {
		if !strings.Contains(body, "\n"+prefix) {
			t.Errorf("no %s", prefix)
		}
	}
	checkLabels(t, body)
}

// checkLabels rejects labels whose values grow with the mesh, and metrics without the prefix.
func checkLabels(t *testing.T, body string) {
	t.Helper()
	allowed := []string{"op", "protocol", "result", "stage", "kind", "dropped", "route", "code", "le", "source", "direction", "transport",
		"version", "goversion", "commit", "quantile", "coverage", "severity", "of", "profile", "dht_mode", "bridge"}
	for _, m := range regexp.MustCompile(`(?m)^(\w+)\{([^}]*)\}`).FindAllStringSubmatch(body, -1) {
		for _, l := range regexp.MustCompile(`(\w+)="([^"]*)"`).FindAllStringSubmatch(m[2], -1) {
			if strings.HasPrefix(m[1], "lmosd_") && !slices.Contains(allowed, l[1]) {
				t.Errorf("label %s of %s", l[1], m[1])
			}
			if strings.Contains(l[2], "urn:") || strings.Contains(l[2], "did:") || strings.Contains(l[2],
				"192.0.2") || strings.Contains(l[2], "weathr") {
				t.Errorf("%s has %s=%s", m[1], l[1], l[2])
			}
		}
	}
}

func TestRecent(t *testing.T) {
	t.Parallel()
	var r recent
	if p := r.percentiles(0.5, 0.99); p[0] != 0 || p[1] != 0 {
		t.Errorf("of nothing: %v", p)
	}
	r.add(2 * time.Millisecond)
	if p := r.percentiles(0, 0.5, 1); !slices.Equal(p, []float64{2, 2, 2}) {
		t.Errorf("of one: %v", p)
	}
	for i := range 2000 {
		r.add(time.Duration(i) * time.Millisecond)
	}
	// The last 1024 are 976 to 1999.
	if p := r.percentiles(0, 0.5, 1); !slices.Equal(p, []float64{976, 1488, 1999}) {
		t.Errorf("of many: %v", p)
	}
	r.add(-time.Second)
	r.add(100 * 24 * time.Hour)
	if p := r.percentiles(0, 1); p[0] != 0 || p[1] != float64(1<<32-1)/1000 {
		t.Errorf("of extremes: %v", p)
	}
}

// Each error code has an index in the table of counters.
func TestResults(t *testing.T) {
	t.Parallel()
	if n := len(results); n > len(series{}.counters[0]) {
		t.Errorf("%d results, the table has %d slots", n, len(series{}.counters[0]))
	}
	for _, c := range interact.Codes() {
		if got := results[resultOf(&interact.Error{Code: c})]; got != c.Slug() {
			t.Errorf("%v: %s, want %s", c, got, c.Slug())
		}
	}
}

func TestMiddlewareAllocations(t *testing.T) {
	m := NewMetrics()
	reply := interact.One(&interact.Message{})
	inner := interact.Func(func(context.Context, *interact.Message) iter.Seq2[*interact.Message, error] { return reply })
	bare := testing.AllocsPerRun(100, func() { drainReplies(inner) })
	thing := m.Middleware("mesh")(inner)
	wrapped := testing.AllocsPerRun(100, func() { drainReplies(thing) })
	if wrapped-bare > 3 { // the sequence, its call, and the yield function
		t.Errorf("%v allocations, %v without", wrapped, bare)
	}
}

var invoke = &interact.Message{Type: interact.InvokeAction}

func drainReplies(t interact.Thing) {
	for range t.Do(context.Background(), invoke) {
	}
}

func BenchmarkMiddleware(b *testing.B) {
	m := NewMetrics()
	reply := interact.One(&interact.Message{})
	inner := interact.Func(func(context.Context, *interact.Message) iter.Seq2[*interact.Message, error] { return reply })
	for name, thing := range map[string]interact.Thing{"bare": inner, "wrapped": m.Middleware("mesh")(inner)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				drainReplies(thing)
			}
		})
	}
}
