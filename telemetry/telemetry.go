// Package telemetry exports spans of interactions to an OpenTelemetry collector.
//
// A [Tracer] is what [interact.Spans] wants: at each stage of an interaction it begins a span, makes it the parent of what comes
// next, and ends it with the outcome. The spans of one interaction on several nodes are one trace, because the W3C trace context
// travels inside each message (LMOS "Observability"); a consumer or an agent that records its own spans finds ours in the same
// trace. Spans leave in batches over OTLP/HTTP. A collector that is slow or away costs spans, never an interaction: the queue is
// bounded, and what does not fit is dropped and counted. A batch is sent again, for some seconds, to a collector that is busy.
//
// Stages and what their spans are (OpenTelemetry "SpanKind"):
//
//	mesh    server    a consumer's request reached its node
//	path    client    the node asks over one of the ways to the thing
//	stream  server    another node's request reached the thing's host
//	agent   client    the host asks the agent
//	other   internal
//
// A span is named "lmos.call" and the operation, "lmos.call invokeaction". Its attributes are lmos.stage, lmos.op, lmos.thing,
// lmos.affordance, lmos.message_id and lmos.correlation_id; after a failure also lmos.error.code ("LMOS-1502"), lmos.error.remote
// and error.type ("agent-failed"). Inputs, outputs and the texts of errors are not recorded.
//
// Sources: W3C Trace Context; OpenTelemetry specification; OTLP 1.x.
package telemetry

import (
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

// Limits of what is kept and sent.
const (
	maxQueue      = 4096            // spans that wait; more are dropped
	maxBatch      = 512             // spans in a request
	maxText       = 1024            // characters of an attribute
	batchEvery    = 5 * time.Second // how long a span may wait for others
	exportTimeout = 30 * time.Second
	postTimeout   = 10 * time.Second // of one attempt
	retryTimeout  = 20 * time.Second // after the first attempt, no other begins later
	firstPause    = time.Second      // between attempts, give or take the half; each is twice the last
	maxPause      = 5 * time.Second
	maxAnswer     = 64 << 10 // bytes of a collector's answer; what is longer is not read
	maxWhy        = 300      // bytes of an answer in the log: it may be a whole page
)

// Options are the settings of a [Tracer]. Endpoint is needed.
type Options struct {
	// Endpoint is the collector, "http://host:4318" or "https://…". Spans go to its /v1/traces; a path that is given comes before
	// that.
	Endpoint string
	// Headers go with each request, for a collector that asks who sends: {"Authorization": "Bearer …"}. They are not logged.
	Headers map[string]string
	// Service and Version name the sender (service.name, service.version); an empty Service is "lmosd".
	Service, Version string
	// Node is the DID of the node (service.instance.id).
	Node string
	// Sample is the share, up to 1, of the traces that begin here which are recorded. 0 means all, less than 0 none. A trace that
	// began elsewhere is recorded if its sampled flag says so.
	Sample float64
	// Log hears of spans that are lost, at most once a minute; nil discards.
	Log *slog.Logger
}

// A Tracer records spans and sends them. It is safe for concurrent use. A nil *Tracer records nothing.
type Tracer struct {
	sample float64
	spans  trace.Tracer
	queue  *queue
	closed atomic.Bool
}

// New returns a tracer that sends to a collector. It does not wait for the collector, which may come later. The error is an
// [*interact.Error] of code [interact.ConfigInvalid], or that of ctx. Beside the options, two variables of the environment are
// read, as OpenTelemetry has them: OTEL_EXPORTER_OTLP_HEADERS ("name=value,…"), unless the options have headers, and
// OTEL_EXPORTER_OTLP_COMPRESSION ("gzip"). With _TRACES before the last word they win over those without.
func New(ctx context.Context, o Options) (*Tracer, error) {
	endpoint, err := target(o.Endpoint)
	if err != nil {
		return nil, err
	}
	if o.Sample > 1 {
		return nil, interact.Errorf(interact.ConfigInvalid, "0.05 records one trace in twenty",
			"a sample of %v: it is a share, at most 1", o.Sample)
	}
	if o.Sample == 0 {
		o.Sample = 1
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
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

// limits bound a span, whatever a stranger calls its thing.
var limits = sdk.SpanLimits{AttributeValueLengthLimit: maxText, AttributeCountLimit: 32, EventCountLimit: 8, LinkCountLimit: 8,
	AttributePerEventCountLimit: 8, AttributePerLinkCountLimit: 8}

// target returns the address to which spans are posted.
func target(endpoint string) (string, error) {
	const hint = "for example http://127.0.0.1:4318, where a collector listens by default"
	u, err := url.Parse(endpoint)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return "", interact.Errorf(interact.ConfigInvalid, hint, "the collector's address is no http or https URL")
	case u.User != nil:
		return "", interact.Errorf(interact.ConfigInvalid, "give it as a header: Authorization: Basic …",
			"the collector's address has a secret in it")
	case u.RawQuery != "" || u.Fragment != "":
		return "", interact.Errorf(interact.ConfigInvalid, hint, "the collector's address has a query or a fragment")
	}
	if !strings.HasSuffix(u.Path, "/v1/traces") { // OTLP/HTTP, "Endpoint URLs for OTLP/HTTP"
		u = u.JoinPath("v1", "traces")
	}
	return u.String(), nil
}

// describe says who sends (OpenTelemetry semantic conventions, "Service").
func describe(o Options) *resource.Resource {
	if o.Service == "" {
		o.Service = "lmosd"
	}
	list := []attribute.KeyValue{attribute.String("service.name", o.Service)}
	for name, value := range map[string]string{"service.version": o.Version, "service.instance.id": o.Node} {
		if value != "" {
			list = append(list, attribute.String(name, value))
		}
	}
	return resource.NewSchemaless(list...)
}

// Close sends what waits, until ctx ends, and returns when all goroutines have ended. The error wraps that of ctx if spans were
// left behind. Spans that end later are dropped.
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

// Start begins the span of a stage of m; see [interact.Tracer]. The message that it returns has the span as its parent in
// TraceParent, with the sampled flag, and an ID, if m has none. TraceState stays as it is. A trace begins here if m has no
// TraceParent that is one: put this before [interact.Trace], which gives every message one. What is not recorded is passed on as
// it is, or, where a trace begins, with a TraceParent that tells the next stages not to record it either.
func (t *Tracer) Start(stage string, m *interact.Message) (next *interact.Message, end func(err error)) {
	if t == nil || t.closed.Load() {
		return m, nothing
	}
	parent, ok := parseParent(m.TraceParent)
	switch {
	case ok && !parent.TraceFlags.IsSampled():
		return m, nothing
	case !ok && (t.sample < 0 || rand.Float64() >= t.sample):
		return unrecorded(m), nothing
	case ok:
		parent.TraceState, _ = trace.ParseTraceState(m.TraceState) // one that cannot be read is passed on all the same
	}
	c := *m
	if c.ID == "" {
		c.ID = interact.NewID()
	}
	if !ok {
		c.TraceState = "" // W3C Trace Context §3.3: without the parent it belongs to nothing
	}
	span := t.begin(stage, &c, parent)
	c.TraceParent = format(span.SpanContext(), parent.TraceFlags)
	return &c, func(err error) { finish(span, err) }
}

func nothing(error) {}

// unrecorded begins a trace that nobody records.
func unrecorded(m *interact.Message) *interact.Message {
	c := *m
	c.TraceParent, c.TraceState = newParent(), ""
	return &c
}

func (t *Tracer) begin(stage string, m *interact.Message, parent trace.SpanContextConfig) trace.Span {
	ctx := trace.ContextWithRemoteSpanContext(context.Background(), trace.NewSpanContext(parent))
	corr := m.Correlation
	if corr == "" {
		corr = m.ID // as Message.Reply has it
	}
	op := m.Type.Op()
	list := make([]attribute.KeyValue, 0, 6)
	for _, a := range [...]struct{ name, value string }{
		{"lmos.stage", stage}, {"lmos.op", op}, {"lmos.thing", m.Thing}, {"lmos.affordance", m.Name},
		{"lmos.message_id", m.ID}, {"lmos.correlation_id", corr},
	} {
		if a.value != "" {
			// Text that is not UTF-8 would make the whole batch of spans impossible to send.
			list = append(list, attribute.String(a.name, strings.ToValidUTF8(a.value, "\ufffd")))
		}
	}
	_, span := t.spans.Start(ctx, "lmos.call "+op, trace.WithSpanKind(kind(stage)), trace.WithAttributes(list...))
	return span
}

// kind is the table of the package comment.
func kind(stage string) trace.SpanKind {
	switch stage {
	case "mesh", "stream":
		return trace.SpanKindServer
	case "path", "agent":
		return trace.SpanKindClient
	}
	return trace.SpanKindInternal
}

// finish ends a span with the outcome. A consumer that left is no failure of whom it asked: the code is recorded, and the status
// stays unset.
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
