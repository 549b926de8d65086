package telemetry

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// A collector is a real receiver of OTLP/HTTP.
type collector struct {
	*httptest.Server
	status int    // 0: 200
	answer []byte // the response to accepted spans

	mu       sync.Mutex
	spans    map[string]*otlp.Span // by lmos.stage
	count    int
	resource map[string]string
	headers  http.Header
	paths    []string
}

func newCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{spans: map[string]*otlp.Span{}, resource: map[string]string{}}
	c.Server = httptest.NewServer(c)
	t.Cleanup(c.Close)
	return c
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paths, c.headers = append(c.paths, r.URL.Path), r.Header.Clone()
	var in io.Reader = r.Body
	var err error
	if r.Header.Get("Content-Encoding") == "gzip" {
		in, err = gzip.NewReader(r.Body)
	}
	if err != nil {
		http.Error(w, "not gzip", http.StatusBadRequest)
		return
	}
	body, err := io.ReadAll(in)
	if c.status != 0 {
		w.WriteHeader(c.status)
		_, _ = io.WriteString(w, strings.Repeat("no ", 1000))
		return
	}
	var req otlp.TracesData
	if err == nil {
		err = proto.Unmarshal(body, &req)
	}
	if err != nil || r.Header.Get("Content-Type") != "application/x-protobuf" {
		http.Error(w, "not OTLP", http.StatusBadRequest)
		return
	}
	for _, rs := range req.ResourceSpans {
		for name, value := range texts(rs.Resource.Attributes) {
			c.resource[name] = value
		}
		for _, ss := range rs.ScopeSpans {
			for _, s := range ss.Spans {
				c.spans[texts(s.Attributes)["lmos.stage"]] = s
				c.count++
			}
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
	_, _ = w.Write(c.answer)
}

// texts returns text and boolean attributes as a map.
func texts(list []*common.KeyValue) map[string]string {
	m := map[string]string{}
	for _, a := range list {
		if v, ok := a.Value.Value.(*common.AnyValue_BoolValue); ok {
			m[a.Key] = fmt.Sprint(v.BoolValue)
		} else {
			m[a.Key] = a.Value.GetStringValue()
		}
	}
	return m
}

func newTracer(t *testing.T, o Options) *Tracer {
	t.Helper()
	tr, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { flush(t, tr) })
	return tr
}

func flush(t *testing.T, tr *Tracer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := tr.Close(ctx); err != nil {
		t.Error(err)
	}
}

// agent replies with a reading and records its requests.
func agent(seen *interact.Message) interact.Thing {
	return interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) {
		*seen = *m
		return m.Reply(interact.ActionStatus, "", []byte(`1`)), nil
	})
}

func failing(err error) interact.Thing {
	return interact.Func(func(context.Context, *interact.Message) iter.Seq2[*interact.Message, error] {
		return interact.Fail(err)
	})
}

func request() *interact.Message {
	return &interact.Message{Type: interact.InvokeAction, Thing: "urn:x:weather", Name: "forecast", ID: "m1", Correlation: "c1"}
}

func TestTwoNodesMakeOneTrace(t *testing.T) {
	t.Parallel()
	c := newCollector(t)
	here := newTracer(t, Options{Endpoint: c.URL, Service: "lmosd", Version: "1.2.3", Node: "did:key:z6Mkhere"})
	there := newTracer(t, Options{Endpoint: c.URL, Sample: -1}) // its own traces are not recorded; this one is not its own
	var seen interact.Message
	host := interact.Chain(agent(&seen), interact.Spans(there, "stream"), interact.Trace(time.Minute), interact.Spans(there,
		"agent"))
	mesh := interact.Chain(host, interact.Spans(here, "mesh"), interact.Trace(time.Minute), interact.Spans(here, "path"))
	if _, err := interact.Call(t.Context(), mesh, request()); err != nil {
		t.Fatal(err)
	}
	flush(t, here)
	flush(t, there)

	if c.count != 4 {
		t.Fatalf("got %d spans, want 4", c.count)
	}
	parent := []byte(nil)
	for _, stage := range []string{"mesh", "path", "stream", "agent"} {
		s := c.spans[stage]
		if !bytes.Equal(s.ParentSpanId, parent) || !bytes.Equal(s.TraceId, c.spans["mesh"].TraceId) {
			t.Errorf("%s: parent %x in trace %x, want %x in %x", stage, s.ParentSpanId, s.TraceId, parent, c.spans["mesh"].TraceId)
		}
		if s.EndTimeUnixNano < s.StartTimeUnixNano || s.Status.GetCode() != otlp.Status_STATUS_CODE_UNSET {
			t.Errorf("%s: from %d to %d, status %v", stage, s.StartTimeUnixNano, s.EndTimeUnixNano, s.Status)
		}
		parent = s.SpanId
	}
	if want := fmt.Sprintf("00-%x-%x-01", c.spans["mesh"].TraceId, parent); seen.TraceParent != want {
		t.Errorf("the agent received %s, want %s", seen.TraceParent, want)
	}
	if c.resource["service.name"] != "lmosd" || c.resource["service.version"] != "1.2.3" ||
		c.resource["service.instance.id"] != "did:key:z6Mkhere" {
		t.Errorf("the resource is %v", c.resource)
	}
}

func TestSpanAttributes(t *testing.T) {
	t.Parallel()
	c := newCollector(t)
	tr := newTracer(t, Options{Endpoint: c.URL})
	for _, stage := range []string{"mesh", "path", "stream", "agent", "cache"} {
		_, end := tr.Start(stage, request())
		end(nil)
	}
	_, end := tr.Start("bare", &interact.Message{Type: interact.ReadAllProperties})
	end(nil)
	flush(t, tr)
	for stage, kind := range map[string]otlp.Span_SpanKind{"mesh": otlp.Span_SPAN_KIND_SERVER, "path": otlp.Span_SPAN_KIND_CLIENT,
		"stream": otlp.Span_SPAN_KIND_SERVER, "agent": otlp.Span_SPAN_KIND_CLIENT, "cache": otlp.Span_SPAN_KIND_INTERNAL} {
		s := c.spans[stage]
		want := map[string]string{"lmos.stage": stage, "lmos.op": "invokeaction", "lmos.thing": "urn:x:weather",
			"lmos.affordance": "forecast",
			"lmos.message_id": "m1", "lmos.correlation_id": "c1"}
		if got := texts(s.Attributes); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: got %v, want %v", stage, got, want)
		}
		if s.Kind != kind || s.Name != "lmos.call invokeaction" {
			t.Errorf("%s: got %s of kind %s, want kind %s", stage, s.Name, s.Kind, kind)
		}
	}
	got := texts(c.spans["bare"].Attributes)
	if id := got["lmos.message_id"]; id == "" || got["lmos.correlation_id"] != id || got["lmos.thing"] != "" {
		t.Errorf("a message without ids: got %v, want one id for both", got)
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()
	c := newCollector(t)
	tr := newTracer(t, Options{Endpoint: c.URL})
	cases := map[string]struct {
		err          error
		code, status string
	}{
		"remote": {&interact.Error{Code: interact.AgentFailed, Title: "exit 3: password hunter2", Remote: true},
			"LMOS-1502 agent-failed true", "LMOS-1502 agent-failed"},
		"ours": {interact.Errorf(interact.Unreachable, "", "x"), "LMOS-1503 agent-unreachable false",
			"LMOS-1503 agent-unreachable"},
		"deadline":              {fmt.Errorf("wait: %w", context.DeadlineExceeded), "LMOS-1504 timeout false", "LMOS-1504 timeout"},
		"any":                   {errors.New("disk hunter2"), "LMOS-1500 internal false", "LMOS-1500 internal"},
		"canceled":              {context.Canceled, "LMOS-1499 cancelled false", ""},
		"canceled by the agent": {&interact.Error{Code: interact.Cancelled, Remote: true}, "LMOS-1499 cancelled true", "LMOS-1499 cancelled"},
	}
	for stage, want := range cases {
		if _, err := interact.Call(t.Context(), interact.Chain(failing(want.err), interact.Spans(tr, stage)),
			request()); !errors.Is(err, want.err) {
			t.Errorf("%s: got %v, want the error to pass", stage, err)
		}
	}
	flush(t, tr)
	for stage, want := range cases {
		a, s := texts(c.spans[stage].Attributes), c.spans[stage].Status
		if got := a["lmos.error.code"] + " " + a["error.type"] + " " + a["lmos.error.remote"]; got != want.code ||
			s.GetMessage() != want.status {
			t.Errorf("%s: got %q and status %q, want %q and %q", stage, got, s.GetMessage(), want.code, want.status)
		}
		if (s.GetCode() == otlp.Status_STATUS_CODE_ERROR) != (want.status != "") {
			t.Errorf("%s: status %v", stage, s)
		}
		if strings.Contains(c.spans[stage].String(), "hunter2") {
			t.Errorf("%s: the text of the error is recorded", stage)
		}
	}
}

func TestParentDeterminesSampling(t *testing.T) {
	t.Parallel()
	const trace, span, state = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", "vendor=a,other=b"
	for name, c := range map[string]struct {
		parent   string
		sample   float64
		recorded bool
		kept     bool // the trace and its state continue
		flags    string
	}{
		"sampled":                    {"00-" + trace + "-" + span + "-01", -1, true, true, "01"},
		"sampled and random":         {"00-" + trace + "-" + span + "-03", -1, true, true, "03"},
		"unknown flags":              {"00-" + trace + "-" + span + "-f1", -1, true, true, "01"},
		"a later version":            {"cc-" + trace + "-" + span + "-01-what-else", -1, true, true, "01"},
		"not sampled":                {"00-" + trace + "-" + span + "-00", 1, false, true, "00"},
		"no parent, sample all":      {"", 0, true, false, "01"},
		"no parent, sample none":     {"", -1, false, false, "00"},
		"zero trace id":              {"00-00000000000000000000000000000000-" + span + "-01", 1, true, false, "01"},
		"zero span id":               {"00-" + trace + "-0000000000000000-01", 1, true, false, "01"},
		"capitals":                   {"00-" + strings.ToUpper(trace) + "-" + span + "-01", 1, true, false, "01"},
		"version ff":                 {"ff-" + trace + "-" + span + "-01", -1, false, false, "00"},
		"version 00, with a suffix":  {"00-" + trace + "-" + span + "-01-x", -1, false, false, "00"},
		"later version without dash": {"01-" + trace + "-" + span + "-01x", -1, false, false, "00"},
		"too short":                  {"00-" + trace + "-" + span, -1, false, false, "00"},
		"a digit that is not hex":    {"00-" + trace[1:] + "g-" + span + "-01", -1, false, false, "00"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			col := newCollector(t)
			tr := newTracer(t, Options{Endpoint: col.URL, Sample: c.sample})
			m := request()
			m.TraceParent, m.TraceState = c.parent, state
			before := *m
			next, end := tr.Start("mesh", m)
			end(nil)
			flush(t, tr)
			if fmt.Sprint(*m) != fmt.Sprint(before) {
				t.Error("the consumer's message was changed")
			}
			got, ok := parseParent(next.TraceParent)
			if !ok || next.TraceParent[53:] != c.flags || (col.count == 1) != c.recorded {
				t.Fatalf("got %q and %d spans, want flags %s", next.TraceParent, col.count, c.flags)
			}
			if (got.TraceID.String() == trace) != c.kept || (next.TraceState == state) != c.kept || !c.kept && next.TraceState != "" {
				t.Errorf("got trace %s, state %q, want them kept: %v", got.TraceID, next.TraceState, c.kept)
			}
			if !c.recorded {
				return
			}
			s := col.spans["mesh"]
			if !bytes.Equal(s.SpanId, got.SpanID[:]) || c.kept && (hex.EncodeToString(s.ParentSpanId) != span || s.TraceState != state) {
				t.Errorf("the collector has span %x of parent %x, state %q", s.SpanId, s.ParentSpanId, s.TraceState)
			}
		})
	}
}

func TestInvalidTraceStateIsForwarded(t *testing.T) {
	t.Parallel()
	c := newCollector(t)
	tr := newTracer(t, Options{Endpoint: c.URL})
	m := request()
	m.TraceParent, m.TraceState = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "no state, at all=\xff"
	next, end := tr.Start("mesh", m)
	end(nil)
	flush(t, tr)
	if next.TraceState != m.TraceState || c.count != 1 || c.spans["mesh"].TraceState != "" {
		t.Errorf("got %q, %d spans with %q", next.TraceState, c.count, c.spans["mesh"].TraceState)
	}
}

func TestSamplingRatio(t *testing.T) {
	t.Parallel()
	c := newCollector(t)
	tr := newTracer(t, Options{Endpoint: c.URL, Sample: 0.25})
	const n = 2000
	flagged := 0
	for range n {
		next, end := tr.Start("mesh", &interact.Message{Type: interact.ReadProperty})
		// The sampling decision holds for all stages.
		last, endNext := tr.Start("path", next)
		endNext(nil)
		end(nil)
		if strings.HasSuffix(last.TraceParent, "-01") {
			flagged++
		}
	}
	flush(t, tr)
	if flagged < n/5 || flagged > n*3/10 || c.count != 2*flagged { // 0.25 ± 5 standard deviations
		t.Errorf("%d of %d traces are flagged, and %d spans were received", flagged, n, c.count)
	}
}

func TestInvalidTextDoesNotSpoilTheBatch(t *testing.T) {
	t.Parallel()
	c := newCollector(t)
	tr := newTracer(t, Options{Endpoint: c.URL})
	m := &interact.Message{Type: interact.InvokeAction, Thing: "urn:\xff\xfe", Name: strings.Repeat("ä", 5000), ID: "\xc3"}
	_, end := tr.Start("bad", m)
	end(nil)
	_, end = tr.Start("good", request())
	end(nil)
	flush(t, tr)
	if c.count != 2 {
		t.Fatalf("got %d spans, want both", c.count)
	}
	a := texts(c.spans["bad"].Attributes)
	if a["lmos.thing"] != "urn:\ufffd" || len([]rune(a["lmos.affordance"])) != maxText || a["lmos.message_id"] != "\ufffd" {
		t.Errorf("got thing %q, id %q and %d characters", a["lmos.thing"], a["lmos.message_id"], len([]rune(a["lmos.affordance"])))
	}
}

func TestSpanCoversTheInteraction(t *testing.T) {
	t.Parallel()
	c := newCollector(t)
	tr := newTracer(t, Options{Endpoint: c.URL})
	events := interact.Func(func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			for yield(m.Reply(interact.Event, "", nil), nil) {
			}
		}
	})
	n := 0
	for range interact.Chain(events, interact.Spans(tr, "mesh")).Do(t.Context(), &interact.Message{Type: interact.SubscribeEvent}) {
		if n++; n == 5 {
			break
		}
	}
	flush(t, tr)
	if c.count != 1 || c.spans["mesh"].Name != "lmos.call subscribeevent" || c.spans["mesh"].Status.GetCode() != 0 {
		t.Errorf("got %d spans, %v", c.count, c.spans["mesh"])
	}
}

func TestEndpoint(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"http://127.0.0.1:4318":              "http://127.0.0.1:4318/v1/traces",
		"http://127.0.0.1:4318/":             "http://127.0.0.1:4318/v1/traces",
		"https://otel.example/tenant/a":      "https://otel.example/tenant/a/v1/traces",
		"https://otel.example/tenant/a/":     "https://otel.example/tenant/a/v1/traces",
		"http://[::1]:4318/v1/traces":        "http://[::1]:4318/v1/traces",
		"127.0.0.1:4318":                     "",
		"":                                   "",
		"grpc://127.0.0.1:4317":              "",
		"http://":                            "",
		"http://user:hunter2@127.0.0.1:4318": "",
		"http://127.0.0.1:4318?token=x":      "",
		"http://127.0.0.1:4318#x":            "",
		"http://a b":                         "",
	} {
		got, err := target(in)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: got %q, %v; want %q", in, got, err, want)
		}
		var e *interact.Error
		if err != nil && (!errors.As(err, &e) || e.Code != interact.ConfigInvalid || e.Hint == "" && e.Next == nil ||
			strings.Contains(err.Error(), "hunter2")) {
			t.Errorf("%s: got %v", in, err)
		}
	}
	const unreachable = "http://127.0.0.1:1"
	for _, o := range []Options{{}, {Endpoint: unreachable, Sample: 1.5}, {Endpoint: unreachable, Headers: map[string]string{"a b": "hunter2"}},
		{Endpoint: unreachable, Headers: map[string]string{"Authorization": "hunter2\r\nX: y"}}} {
		tr, err := New(t.Context(), o)
		if interact.AsError(err) == nil || interact.AsError(err).Code != interact.ConfigInvalid || tr != nil ||
			strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%+v: got %v", o, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := New(ctx, Options{Endpoint: "http://127.0.0.1:1"}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
}

func TestHeadersAndPath(t *testing.T) {
	t.Parallel()
	c := newCollector(t)
	tr := newTracer(t, Options{Endpoint: c.URL + "/tenant", Headers: map[string]string{"Authorization": "Bearer t"}})
	_, end := tr.Start("mesh", request())
	end(nil)
	flush(t, tr)
	if c.headers.Get("Authorization") != "Bearer t" || len(c.paths) != 1 || c.paths[0] != "/tenant/v1/traces" {
		t.Errorf("got %v at %v", c.headers, c.paths)
	}
}

// A logBuffer collects the lines of a log.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Split(strings.TrimSuffix(l.b.String(), "\n"), "\n")
}

func (l *logBuffer) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func TestCollectorRefusal(t *testing.T) {
	t.Parallel()
	c := newCollector(t)
	c.status = http.StatusForbidden
	var log logBuffer
	tr := newTracer(t, Options{Endpoint: c.URL, Log: log.logger(), Headers: map[string]string{"Authorization": "hunter2"}})
	for range 3 {
		for range maxBatch {
			_, end := tr.Start("mesh", request())
			end(nil)
		}
	}
	flush(t, tr)
	lines := log.lines()
	if len(lines) != 1 || !strings.Contains(lines[0], "403") || len(lines[0]) > 700 || strings.Contains(lines[0], "hunter2") {
		t.Errorf("got %d lines: %q", len(lines), lines)
	}
}

func TestARedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	for _, code := range []int{301, 302, 303, 307, 308} {
		other := newCollector(t)
		s := httptest.NewServer(http.RedirectHandler(other.URL+"/v1/traces", code))
		t.Cleanup(s.Close)
		var log logBuffer
		tr := newTracer(t, Options{Endpoint: s.URL, Log: log.logger(), Headers: map[string]string{"Authorization": "hunter2"}})
		_, end := tr.Start("mesh", request())
		end(nil)
		flush(t, tr)
		if len(other.paths) != 0 || !strings.Contains(log.lines()[0], fmt.Sprint(code)) {
			t.Errorf("%d: the other server received requests for %v; log %q", code, other.paths, log.lines())
		}
	}
}

// If the collector hangs, the queue fills, and Close returns at the end of its context.
func TestHangingCollector(t *testing.T) {
	t.Parallel()
	entered, release := make(chan struct{}, 100), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		entered <- struct{}{}
		<-release
	}))
	t.Cleanup(func() { close(release); s.Close() })
	var log logBuffer
	tr, err := New(t.Context(), Options{Endpoint: s.URL, Log: log.logger()})
	if err != nil {
		t.Fatal(err)
	}
	begin := func(n int) {
		for range n {
			_, end := tr.Start("mesh", request())
			end(nil)
		}
	}
	begin(maxBatch)
	<-entered // one request hangs
	begin(maxQueue - maxBatch)
	if got := tr.queue.out.waiting.Load(); got != maxQueue {
		t.Errorf("%d spans wait, want %d", got, maxQueue)
	}
	begin(100)
	if got := tr.queue.out.waiting.Load(); got != maxQueue {
		t.Errorf("%d spans wait, want no more than %d", got, maxQueue)
	}
	if lines := log.lines(); len(lines) != 1 || !strings.Contains(lines[0], "full") {
		t.Errorf("got %q, want one line about the full queue", lines)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := tr.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
}

func TestUnreachableCollector(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(nil)
	s.Close()
	var log logBuffer
	tr := newTracer(t, Options{Endpoint: s.URL, Log: log.logger()})
	_, end := tr.Start("mesh", request())
	end(nil)
	flush(t, tr)
	if lines := log.lines(); len(lines) != 1 || !strings.Contains(lines[0], "refused") {
		t.Errorf("got %q", lines)
	}
}

// A busy collector is retried, and the end of the context ends Close.
func TestBusyCollector(t *testing.T) {
	t.Parallel()
	requested := make(chan struct{}, 10)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		requested <- struct{}{}
	}))
	t.Cleanup(s.Close)
	var log logBuffer
	tr, err := New(t.Context(), Options{Endpoint: s.URL, Log: log.logger()})
	if err != nil {
		t.Fatal(err)
	}
	_, end := tr.Start("mesh", request())
	end(nil)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-requested; cancel() }()
	if err := tr.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
	if lines := log.lines(); len(lines) != 1 || !strings.Contains(lines[0], "spans=1") {
		t.Errorf("got %q", lines)
	}
}

func TestAfterClose(t *testing.T) {
	t.Parallel()
	c := newCollector(t)
	tr := newTracer(t, Options{Endpoint: c.URL})
	_, late := tr.Start("mesh", request())
	flush(t, tr)
	late(nil)
	m := request()
	next, end := tr.Start("mesh", m)
	end(nil)
	flush(t, tr)
	if next != m || c.count != 0 {
		t.Errorf("got %v and %d spans after the end", next, c.count)
	}
}

// The middleware Spans must precede Trace. In the other order, Trace starts each trace before the tracer, which then does not record it.
func TestSpansPrecedeTrace(t *testing.T) {
	t.Parallel()
	c := newCollector(t)
	tr := newTracer(t, Options{Endpoint: c.URL})
	var seen interact.Message
	trace := interact.Trace(time.Minute)
	for want, chain := range []interact.Thing{
		interact.Chain(agent(&seen), trace, interact.Spans(tr, "mesh")),
		interact.Chain(agent(&seen), interact.Spans(tr, "mesh"), trace),
	} {
		if _, err := interact.Call(t.Context(), chain, &interact.Message{Type: interact.InvokeAction}); err != nil {
			t.Fatal(err)
		}
		if want == 1 {
			flush(t, tr)
		}
		if flags := fmt.Sprintf("-%02d", want); !strings.HasSuffix(seen.TraceParent, flags) || seen.ID == "" || seen.Deadline.IsZero() {
			t.Errorf("the agent received %+v, want flags %s", seen, flags)
		}
	}
	if c.count != 1 {
		t.Errorf("got %d spans, want that of the second chain", c.count)
	}
}

func TestNilTracer(t *testing.T) {
	t.Parallel()
	var tr *Tracer
	m := request()
	next, end := tr.Start("mesh", m)
	end(errors.New("x"))
	if next != m || tr.Close(t.Context()) != nil {
		t.Error("a nil tracer changed the message or failed to close")
	}
}

func TestLossesAreLoggedOnceAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log logBuffer
		l := losses{log: log.logger()}
		for range 100 { // 99 seconds
			l.note("no", 2)
			time.Sleep(time.Second)
		}
		lines := log.lines()
		if len(lines) != 2 || !strings.Contains(lines[0], "spans=2") || !strings.Contains(lines[1], "spans=120") {
			t.Errorf("got %q", lines)
		}
	})
}

func TestConcurrentSpans(t *testing.T) {
	t.Parallel()
	c := newCollector(t)
	tr := newTracer(t, Options{Endpoint: c.URL})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				var seen interact.Message
				_, _ = interact.Call(t.Context(), interact.Chain(agent(&seen), interact.Spans(tr, "mesh"), interact.Spans(tr, "agent")),
					request())
			}
		})
	}
	wg.Wait()
	flush(t, tr)
	if c.count != 1600 {
		t.Errorf("got %d spans, want 1600", c.count)
	}
}

// FuzzParent compares parseParent with the parser of the OpenTelemetry library.
func FuzzParent(f *testing.F) {
	for _, s := range []string{"", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		"cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
		"00-4BF92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, ok := parseParent(s)
		ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": s})
		want := trace.SpanContextFromContext(ctx)
		// The library's parser requires dashes only at their positions, and rejects unknown flags in version 00; ours is stricter.
		if want.IsValid() && !ok && len(s) > parentLen && s[parentLen] == '-' {
			t.Fatalf("%q is rejected", s)
		}
		if !ok {
			return
		}
		if want.IsValid() && (want.TraceID() != got.TraceID || want.SpanID() != got.SpanID ||
			want.IsSampled() != got.TraceFlags.IsSampled()) {
			t.Fatalf("%q: got %v, want %v", s, got, want)
		}
		if !want.IsValid() && got.TraceFlags&^(trace.FlagsSampled|trace.FlagsRandom) == 0 {
			t.Fatalf("%q is accepted, and the library rejects it", s)
		}
		again, ok := parseParent(format(trace.NewSpanContext(got), got.TraceFlags))
		if !ok || again.TraceID != got.TraceID || again.SpanID != got.SpanID {
			t.Fatalf("%q: wrote %v", s, again)
		}
	})
}

func BenchmarkStart(b *testing.B) {
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	defer s.Close()
	for name, c := range map[string]struct {
		sample float64
		parent string
	}{
		"parent not sampled": {1, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"},
		"root not sampled":   {-1, ""},
		"root sampled":       {1, ""},
		"parent sampled":     {1, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
	} {
		b.Run(name, func(b *testing.B) {
			tr, err := New(b.Context(), Options{Endpoint: s.URL, Sample: c.sample})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = tr.Close(context.Background()) }()
			m := request()
			m.TraceParent = c.parent
			b.ReportAllocs()
			for b.Loop() {
				_, end := tr.Start("mesh", m)
				end(nil)
			}
		})
	}
}
