package telemetry

import (
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	sdkresource "go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// A pipe is a network with one server, because synctest does not support loopback connections.
type pipe chan net.Conn

func (p pipe) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (p pipe) Close() error   { return nil }
func (p pipe) Addr() net.Addr { return &net.TCPAddr{} }

func (p pipe) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p <- far:
		return near, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// newBubble returns a client of a collector that answers with h. Both end with the test.
func newBubble(t *testing.T, h http.HandlerFunc) *client {
	t.Helper()
	p := make(pipe)
	s := &http.Server{Handler: h, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Serve(p) })
	c, err := newClient("http://127.0.0.1:4318/v1/traces", Options{}, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	c.transport.DialContext = p.dial
	t.Cleanup(func() {
		c.transport.CloseIdleConnections()
		close(p)
		_ = s.Close()
		wg.Wait()
	})
	return c
}

const (
	hang   = -1 // no response
	broken = -2 // the connection breaks
)

func TestRetries(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		statuses    []int // the last one repeats
		after       string
		requests    int           // -1: any number
		least, most time.Duration // limits of the duration
		reason      string        // "": the batch is accepted
	}{
		"accepted":               {[]int{200}, "", 1, 0, 0, ""},
		"another success":        {[]int{202}, "", 1, 0, 0, ""},
		"too many requests":      {[]int{429, 200}, "", 2, 500 * time.Millisecond, 1500 * time.Millisecond, ""},
		"bad gateway":            {[]int{502, 200}, "", 2, 500 * time.Millisecond, 1500 * time.Millisecond, ""},
		"unavailable, twice":     {[]int{503, 503, 200}, "", 3, 1500 * time.Millisecond, 4500 * time.Millisecond, ""},
		"gateway timeout":        {[]int{504, 200}, "", 2, 500 * time.Millisecond, 1500 * time.Millisecond, ""},
		"the connection breaks":  {[]int{broken, 200}, "", 2, 500 * time.Millisecond, 1500 * time.Millisecond, ""},
		"no answer, then one":    {[]int{hang, 200}, "", 2, postTimeout, postTimeout + 1500*time.Millisecond, ""},
		"no answer":              {[]int{hang}, "", 2, 2 * postTimeout, 2*postTimeout + 1500*time.Millisecond, "within 10s"},
		"busy for long":          {[]int{503}, "", -1, retryTimeout - 7500*time.Millisecond, retryTimeout, "503"},
		"Retry-After in seconds": {[]int{429, 200}, "7", 2, 7 * time.Second, 7 * time.Second, ""},
		"Retry-After as a date":  {[]int{503, 200}, "Sat, 01 Jan 2000 00:00:09 GMT", 2, 9 * time.Second, 9 * time.Second, ""},
		"an invalid Retry-After": {[]int{503, 200}, "soon", 2, 500 * time.Millisecond, 1500 * time.Millisecond, ""},
		"an hour is too long":    {[]int{429}, "3600", 1, 0, 0, "429"},
		"the year 9999 too":      {[]int{503}, "Fri, 31 Dec 9999 23:59:59 GMT", 1, 0, 0, "503"},
		"bad request":            {[]int{400}, "1", 1, 0, 0, "400 Bad Request: sorry"},
		"unauthorized":           {[]int{401}, "", 1, 0, 0, "401"},
		"internal error":         {[]int{500}, "", 1, 0, 0, "500"},
		"redirect":               {[]int{308}, "", 1, 0, 0, "308"},
		"too large":              {[]int{413}, "", 1, 0, 0, "413"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var n atomic.Int32
				client := newBubble(t, func(w http.ResponseWriter, r *http.Request) {
					if body, err := io.ReadAll(r.Body); err != nil || string(body) != "spans" {
						t.Errorf("got %q, %v", body, err)
					}
					switch status := c.statuses[min(int(n.Add(1)), len(c.statuses))-1]; status {
					case hang:
						<-r.Context().Done()
					case broken:
						panic(http.ErrAbortHandler)
					default:
						w.Header().Set("Location", "http://elsewhere.test/")
						w.Header().Set("Retry-After", c.after)
						w.WriteHeader(status)
						_, _ = io.WriteString(w, "sorry")
					}
				})
				start := time.Now()
				_, err := client.send(t.Context(), []byte("spans"))
				took, requests := time.Since(start), int(n.Load())
				if c.reason == "" && err != nil || c.reason != "" && (err == nil || !strings.Contains(err.Error(), c.reason)) {
					t.Errorf("got %v, want %q", err, c.reason)
				}
				if c.requests >= 0 && requests != c.requests || requests > 20 || took < c.least || took > c.most {
					t.Errorf("%d requests in %v, want %d in %v to %v", requests, took, c.requests, c.least, c.most)
				}
			})
		})
	}
}

// Close does not wait for an unreachable collector, and for a busy one only until ctx ends.
func TestCloseEndsRetries(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		want    time.Duration
	}{
		"unreachable": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 100 * time.Millisecond},
		"busy":        {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }, 2 * time.Second},
		"slow":        {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, 2 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			client := newBubble(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				c.handler(w, r)
			})
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			start := time.Now()
			time.AfterFunc(100*time.Millisecond, client.endRetries)
			if _, err := client.send(ctx, []byte("x")); err == nil || time.Since(start) != c.want {
				t.Errorf("%s: got %v after %v, want it after %v", name, err, time.Since(start), c.want)
			}
		})
	}
}

// message returns a message with a number in field 1 and a text in field 2.
func message(n int64, text string) []byte {
	b := protowire.AppendTag(nil, 1, protowire.VarintType)
	b = protowire.AppendVarint(b, uint64(n))
	b = protowire.AppendTag(b, 2, protowire.BytesType)
	return protowire.AppendString(b, text)
}

// inner returns a message with the message b in field 1.
func inner(b []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), b)
}

func TestCollectorResponses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status int
		answer []byte
		want   []string // of one line of the log; nil: no line
	}{
		"an empty response":     {0, nil, nil},
		"an empty message":      {0, inner(message(0, "")), nil},
		"two of three rejected": {0, inner(message(2, "too\nold")), []string{"spans lost", "spans=2", "rejected: too old"}},
		"no reason":             {0, inner(message(1, "")), []string{"spans=1", "no reason given"}},
		"more than were sent":   {0, inner(message(math.MaxInt64, "x")), []string{"spans=3"}},
		"a negative number":     {0, inner(message(-1, "odd")), []string{"collector warning", "spans=0", "odd"}},
		"a warning":             {0, inner(message(0, "slow down")), []string{"collector warning", "spans=0", "slow down"}},
		"an unknown field": {0, append(protowire.AppendFixed32(protowire.AppendTag(nil, 9, protowire.Fixed32Type), 1),
			inner(message(2, "x"))...), []string{"spans=2"}},
		"an invalid message": {0, []byte("\xff\xff\xff"), nil},
		"endless":            {0, append(inner(message(2, "x")), make([]byte, 2*maxAnswer)...), []string{"spans=2"}},
		"refused":            {400, message(3, "no\x1b[2J such tenant"), []string{"spans=3", "400 Bad Request: no [2J such tenant"}},
		"refused at length":  {400, message(3, strings.Repeat("n", 9000)), []string{"spans=3", "nn…"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int32
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				requests.Add(1)
				_, _ = io.Copy(io.Discard, r.Body)
				w.Header().Set("Content-Type", "application/x-protobuf")
				if c.status != 0 {
					w.WriteHeader(c.status)
				}
				_, _ = w.Write(c.answer)
			}))
			t.Cleanup(s.Close)
			var log logBuffer
			tr := newTracer(t, Options{Endpoint: s.URL, Log: log.logger()})
			for range 3 {
				_, end := tr.Start("mesh", request())
				end(nil)
			}
			flush(t, tr)
			lines := log.lines()
			if requests.Load() != 1 || len(lines) != 1 || (lines[0] == "") != (c.want == nil) || len(lines[0]) > 700 {
				t.Fatalf("%d requests, log %q", requests.Load(), lines)
			}
			for _, want := range c.want {
				if !strings.Contains(lines[0], want) {
					t.Errorf("got %q, want %q", lines[0], want)
				}
			}
		})
	}
}

// The body is the encoding of the message in text form below.
func TestEncoding(t *testing.T) {
	t.Parallel()
	id, state := trace.TraceID{1, 15: 2}, trace.TraceState{}
	state, err := state.Insert("vendor", "a")
	if err != nil {
		t.Fatal(err)
	}
	at := func(span byte, remote bool) trace.SpanContext {
		return trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: trace.SpanID{7: span}, TraceFlags: 3, Remote: remote,
			TraceState: state})
	}
	res := sdkresource.NewSchemaless(attribute.String("service.name", "lmosd"))
	scope := instrumentation.Scope{Name: "scope", Version: "1.2.3"}
	body, err := encode(tracetest.SpanStubs{
		{Name: "all", SpanContext: at(5, false), Parent: at(4, true), SpanKind: trace.SpanKindServer, StartTime: time.Unix(1, 2),
			EndTime: time.Unix(3, 4), Resource: res, InstrumentationScope: scope, DroppedAttributes: 6,
			Status: sdk.Status{Code: codes.Error, Description: "LMOS-1502"},
			Attributes: []attribute.KeyValue{attribute.String("text", "ä"), attribute.Bool("yes", true), attribute.Bool("no", false),
				attribute.Int("number", -1), attribute.Float64("share", .5),
				attribute.StringSlice("list", []string{"a", "b"})}},
		{Name: "root", SpanContext: at(6, false), SpanKind: trace.SpanKindClient, StartTime: time.Unix(-1, 0),
			EndTime: time.Unix(0, 0)},
		{Name: "child here", SpanContext: at(7, false), Parent: at(6, false), SpanKind: trace.SpanKindInternal},
	}.Snapshots())
	if err != nil {
		t.Fatal(err)
	}
	var got, want otlp.TracesData
	if err := proto.Unmarshal(body, &got); err != nil {
		t.Fatal(err)
	}
	if err := prototext.Unmarshal([]byte(`resource_spans {
		resource { attributes { key: "service.name" value { string_value: "lmosd" } } }
		scope_spans {
			scope { name: "scope" version: "1.2.3" }
			spans {
				trace_id: "\001\000\000\000\000\000\000\000\000\000\000\000\000\000\000\002" span_id: "\000\000\000\000\000\000\000\005"
				parent_span_id: "\000\000\000\000\000\000\000\004" trace_state: "vendor=a" flags: 0x303 name: "all" kind: SPAN_KIND_SERVER
				start_time_unix_nano: 1000000002 end_time_unix_nano: 3000000004 dropped_attributes_count: 6
				status { code: STATUS_CODE_ERROR message: "LMOS-1502" }
				attributes { key: "text" value { string_value: "ä" } }
				attributes { key: "yes" value { bool_value: true } }
				attributes { key: "no" value { bool_value: false } }
				attributes { key: "number" value { int_value: -1 } }
				attributes { key: "share" value { double_value: 0.5 } }
				attributes { key: "list" value { string_value: '["a","b"]' } }
			}
			spans {
				trace_id: "\001\000\000\000\000\000\000\000\000\000\000\000\000\000\000\002" span_id: "\000\000\000\000\000\000\000\006"
				trace_state: "vendor=a" flags: 0x103 name: "root" kind: SPAN_KIND_CLIENT status {}
			}
			spans {
				trace_id: "\001\000\000\000\000\000\000\000\000\000\000\000\000\000\000\002" span_id: "\000\000\000\000\000\000\000\007"
				parent_span_id: "\000\000\000\000\000\000\000\006" trace_state: "vendor=a" flags: 0x103 name: "child here"
				kind: SPAN_KIND_INTERNAL status {}
			}
		}
	}`), &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&want, &got, protocmp.Transform()); diff != "" {
		t.Errorf("want -, got +:\n%s", diff)
	}
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	const headers, traces = "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"
	for name, c := range map[string]struct {
		env     map[string]string
		headers map[string]string
		gzip    bool
		warns   bool
	}{
		"nothing":        {},
		"headers":        {env: map[string]string{headers: " a=1 , b = x%20y=z,"}, headers: map[string]string{"a": "1", "b": "x y=z"}},
		"traces win":     {env: map[string]string{headers: "a=1", traces: "b=2"}, headers: map[string]string{"b": "2"}},
		"no pair":        {env: map[string]string{headers: "Bearer hunter2,a=1"}, headers: map[string]string{"a": "1"}, warns: true},
		"no name":        {env: map[string]string{headers: "X: hunter2=1,=hunter2"}, warns: true},
		"a broken value": {env: map[string]string{headers: "a=hunter2%zz"}, warns: true},
		"two lines":      {env: map[string]string{headers: "a=hunter2%0d%0ab:c"}, warns: true},
		"gzip":           {env: map[string]string{"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}, gzip: true},
		"none for traces": {env: map[string]string{"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
			"OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "none"}},
	} {
		var log logBuffer
		got := readEnv(func(name string) string { return c.env[name] }, log.logger())
		if c.headers == nil {
			c.headers = map[string]string{}
		}
		if cmp.Diff(got.headers, c.headers) != "" || got.gzip != c.gzip {
			t.Errorf("%s: got %+v", name, got)
		}
		if text := strings.Join(log.lines(), ""); (text != "") != c.warns || strings.Contains(text, "hunter2") {
			t.Errorf("%s: log %q", name, text)
		}
	}
}

// The environment is read, and batches are compressed. The test is not parallel, because it changes the environment of the process.
func TestEnvironmentIsRead(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "X-Tenant=a,Content-Type=text/plain")
	c := newCollector(t)
	for _, headers := range []map[string]string{nil, {"X-Other": "b"}} {
		tr := newTracer(t, Options{Endpoint: c.URL, Headers: headers})
		_, end := tr.Start("mesh", request())
		end(nil)
		flush(t, tr)
		if got := c.headers.Get("X-Tenant"); (got == "a") != (headers == nil) || c.headers.Get("X-Other") != headers["X-Other"] ||
			c.headers.Get("Content-Encoding") != "gzip" || c.headers.Get("User-Agent") != "lmosd" {
			t.Errorf("options %v: got %v", headers, c.headers)
		}
	}
	if c.count != 2 {
		t.Errorf("got %d spans, want 2", c.count)
	}
}

// FuzzAnswer compares the response reader with the Protobuf library.
func FuzzAnswer(f *testing.F) {
	for _, b := range [][]byte{nil, inner(nil), inner(message(2, "old")), append(inner(message(1, "a")), inner(message(2, ""))...),
		inner(message(-1, "\xff")), binary.AppendUvarint(nil, math.MaxUint64), {0x0b, 0x0c}, {0x0a, 0x7f}} {
		f.Add(b)
	}
	response := schema(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		got := readPartial(b)
		m := dynamicpb.NewMessage(response)
		if proto.Unmarshal(b, m) != nil {
			return // the valid fields are used
		}
		p := m.Get(response.Fields().ByNumber(1)).Message()
		n, text := p.Get(p.Descriptor().Fields().ByNumber(1)).Int(), p.Get(p.Descriptor().Fields().ByNumber(2)).String()
		if got.rejected != n || got.message != text {
			t.Errorf("got %+v, want %d %q", got, n, text)
		}
	})
}

// schema returns the schema of ExportTraceServiceResponse (opentelemetry/proto/collector/trace/v1).
func schema(t testing.TB) protoreflect.MessageDescriptor {
	var d descriptorpb.FileDescriptorProto
	if err := prototext.Unmarshal([]byte(`name: "response" syntax: "proto3"
		message_type { name: "Response"
			field { name: "partial" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".Partial" }
		}
		message_type { name: "Partial"
			field { name: "rejected" number: 1 label: LABEL_OPTIONAL type: TYPE_INT64 }
			field { name: "message" number: 2 label: LABEL_OPTIONAL type: TYPE_STRING }
		}`), &d); err != nil {
		t.Fatal(err)
	}
	file, err := protodesc.NewFile(&d, nil)
	if err != nil {
		t.Fatal(err)
	}
	return file.Messages().Get(0)
}
