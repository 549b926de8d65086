// Package telemetry exports spans of interactions to an OpenTelemetry collector. Metrics are in packages gateway and node/status.
//
// A [Tracer] implements [interact.Tracer]: at each stage of an interaction it starts a span, makes it the parent of the next stage, and
// ends it with the outcome. The spans of one interaction on several nodes are one trace, because each message carries the W3C trace context
// (LMOS "Observability"); spans of consumers and agents join it. Spans are sent in batches over OTLP/HTTP. A slow or unreachable collector
// costs spans, but delays no interaction: the queue is limited, and dropped spans are counted. A batch is retried for some seconds.
//
// Stages and the kinds of their spans (OpenTelemetry "SpanKind"):
//
//	mesh    server    a request of a consumer at its node
//	path    client    a request over one path to the Thing
//	stream  server    a request of another node at the host
//	agent   client    a request of the host to the agent
//	other   internal
//
// A span is named "lmos.call" and the operation, "lmos.call invokeaction". Its attributes are lmos.stage, lmos.op, lmos.thing,
// lmos.affordance, lmos.message_id and lmos.correlation_id; after a failure also lmos.error.code ("LMOS-1502"), lmos.error.remote
// and error.type ("agent-failed"). Inputs, outputs and the texts of errors are not recorded.
//
// Sources: W3C Trace Context; OpenTelemetry specification; OTLP 1.x.
package telemetry

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/lmosd/lmosd/interact"
)

// Limits of the queue, of requests and of their attempts.
const (
	maxQueue      = 4096            // spans that wait; more are dropped
	maxBatch      = 512             // spans in a request
	maxText       = 1024            // characters of an attribute
	batchEvery    = 5 * time.Second // the time for which a span may wait for others
	exportTimeout = 30 * time.Second
	postTimeout   = 10 * time.Second // of one attempt
	retryTimeout  = 20 * time.Second // the last attempt begins at most this long after the first
	firstPause    = time.Second      // between attempts, jittered by a half; doubles after each attempt
	maxPause      = 5 * time.Second
	maxAnswer     = 64 << 10 // bytes of a response that are read
	maxReason     = 300      // bytes of a response in the log
)

// Options are the settings of a [Tracer]. Endpoint is required.
type Options struct {
	// Endpoint is the collector, "http://host:4318" or "https://…". Spans are sent to /v1/traces below its path.
	Endpoint string
	// Headers are sent with each request, for authentication: {"Authorization": "Bearer …"}. They are not logged.
	Headers map[string]string
	// Service and Version are service.name and service.version; an empty Service is "lmosd".
	Service, Version string
	// Node is the DID of the node (service.instance.id).
	Node string
	// Sample is the fraction, up to 1, of the traces started here that are recorded. 0 means all, negative none. Other traces are recorded
	// if their sampled flag is set.
	Sample float64
	// Log receives the number of lost spans, at most once a minute; nil discards.
	Log *slog.Logger
}

// A Tracer records spans and sends them. It is safe for concurrent use. A nil *Tracer records no spans.
type Tracer struct {
	sample float64
	spans  trace.Tracer
	queue  *queue
	closed atomic.Bool
}

// New returns a tracer for a collector, which need not run yet. It also reads two OpenTelemetry variables: OTEL_EXPORTER_OTLP_HEADERS
// ("name=value,…"), unless the options have headers, and OTEL_EXPORTER_OTLP_COMPRESSION ("gzip"). The variables with _TRACES before the last
// word take precedence. The error is an [*interact.Error] of code [interact.ConfigInvalid], or that of ctx.
func New(ctx context.Context, o Options) (*Tracer, error) {
	endpoint, err := target(o.Endpoint)
	if err != nil {
		return nil, err
	}
	if o.Sample > 1 {
		return nil, interact.Errorf(interact.ConfigInvalid, "0.05 records one trace in twenty",
			"expected a sample of at most 1, got %v", o.Sample)
	}
	o.Sample = cmp.Or(o.Sample, 1)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	e, err := newExporter(endpoint, o)
	if err != nil {
		return nil, err
	}
	q := newQueue(e)
	provider := sdk.NewTracerProvider(sdk.WithSampler(sdk.AlwaysSample()), sdk.WithSpanProcessor(q), sdk.WithRawSpanLimits(limits),
		sdk.WithResource(describe(o)))
	return &Tracer{sample: o.Sample, queue: q, spans: provider.Tracer("github.com/lmosd/lmosd/telemetry",
		trace.WithInstrumentationVersion(o.Version))}, nil
}

// limits bound the size of a span, regardless of the names of Things.
var limits = sdk.SpanLimits{AttributeValueLengthLimit: maxText, AttributeCountLimit: 32, EventCountLimit: 8, LinkCountLimit: 8,
	AttributePerEventCountLimit: 8, AttributePerLinkCountLimit: 8}

// target returns the URL for spans.
func target(endpoint string) (string, error) {
	const hint = "for example http://127.0.0.1:4318, where a collector listens by default"
	u, err := url.Parse(endpoint)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return "", interact.Errorf(interact.ConfigInvalid, hint, "the URL of the collector is not http or https")
	case u.User != nil:
		return "", interact.Errorf(interact.ConfigInvalid, "configure it as a header: Authorization: Basic …",
			"the URL of the collector contains a secret")
	case u.RawQuery != "" || u.Fragment != "":
		return "", interact.Errorf(interact.ConfigInvalid, hint, "the URL of the collector has a query or a fragment")
	}
	if !strings.HasSuffix(u.Path, "/v1/traces") { // OTLP/HTTP, "Endpoint URLs for OTLP/HTTP"
		u = u.JoinPath("v1", "traces")
	}
	return u.String(), nil
}

// describe returns the resource of the spans (OpenTelemetry semantic conventions, "Service").
func describe(o Options) *resource.Resource {
	o.Service = cmp.Or(o.Service, "lmosd")
	list := []attribute.KeyValue{attribute.String("service.name", o.Service)}
	for name, value := range map[string]string{"service.version": o.Version, "service.instance.id": o.Node} {
		if value != "" {
			list = append(list, attribute.String(name, value))
		}
	}
	return resource.NewSchemaless(list...)
}

// Close sends the queued spans until ctx ends, and returns when all goroutines have ended. The error wraps that of ctx if not all spans were
// sent. Later spans are dropped.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	t.closed.Store(true)
	if err := t.queue.close(ctx); err != nil {
		return fmt.Errorf("send the last spans: %w", err)
	}
	return nil
}

// Start starts the span of a stage of m; see [interact.Tracer]. The returned message has the span as its parent in TraceParent, with the
// sampled flag, and an ID. TraceState is unchanged. If m has no valid TraceParent, a new trace starts; so Start must precede
// [interact.Trace], which sets a TraceParent. Messages of unrecorded traces are unchanged, or get a TraceParent that is not sampled if the
// trace starts here.
func (t *Tracer) Start(stage string, m *interact.Message) (next *interact.Message, end func(err error)) {
	if t == nil || t.closed.Load() {
		return m, endNone
	}
	parent, ok := parseParent(m.TraceParent)
	switch {
	case ok && !parent.TraceFlags.IsSampled():
		return m, endNone
	case !ok && (t.sample < 0 || rand.Float64() >= t.sample):
		return unrecorded(m), endNone
	case ok:
		parent.TraceState, _ = trace.ParseTraceState(m.TraceState) // invalid state is passed on anyway
	}
	c := *m
	if c.ID == "" {
		c.ID = interact.NewID()
	}
	if !ok {
		c.TraceState = "" // W3C Trace Context §3.3: state requires a parent
	}
	span := t.begin(stage, &c, parent)
	c.TraceParent = format(span.SpanContext(), parent.TraceFlags)
	return &c, func(err error) { finish(span, err) }
}

// endNone is the end of a span that is not recorded.
func endNone(error) {}

// unrecorded returns m with a new trace that is not recorded.
func unrecorded(m *interact.Message) *interact.Message {
	c := *m
	c.TraceParent, c.TraceState = newParent(), ""
	return &c
}

func (t *Tracer) begin(stage string, m *interact.Message, parent trace.SpanContextConfig) trace.Span {
	ctx := trace.ContextWithRemoteSpanContext(context.Background(), trace.NewSpanContext(parent))
	corr := cmp.Or(m.Correlation, m.ID) // as in Message.Reply
	op := m.Type.Op()
	list := make([]attribute.KeyValue, 0, 6)
	for _, a := range [...]struct{ name, value string }{
		{"lmos.stage", stage}, {"lmos.op", op}, {"lmos.thing", m.Thing}, {"lmos.affordance", m.Name},
		{"lmos.message_id", m.ID}, {"lmos.correlation_id", corr},
	} {
		if a.value != "" {
			// Text that is not UTF-8 would make the whole batch invalid.
			list = append(list, attribute.String(a.name, strings.ToValidUTF8(a.value, "\ufffd")))
		}
	}
	_, span := t.spans.Start(ctx, "lmos.call "+op, trace.WithSpanKind(kind(stage)), trace.WithAttributes(list...))
	return span
}

// kind returns the kind of the span of a stage, see the package comment.
func kind(stage string) trace.SpanKind {
	switch stage {
	case "mesh", "stream":
		return trace.SpanKindServer
	case "path", "agent":
		return trace.SpanKindClient
	}
	return trace.SpanKindInternal
}

// finish ends a span with the outcome. If the consumer has canceled, the code is recorded, and the status is unset.
func finish(span trace.Span, err error) {
	if err != nil {
		e := interact.AsError(err)
		span.SetAttributes(attribute.String("lmos.error.code", e.Code.String()), attribute.String("error.type", e.Code.Slug()),
			attribute.Bool("lmos.error.remote", e.Remote))
		if e.Code != interact.Cancelled || e.Remote {
			span.SetStatus(codes.Error, e.Code.String()+" "+e.Code.Slug())
		}
	}
	span.End()
}
