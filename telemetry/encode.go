package telemetry

import (
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	resource "go.opentelemetry.io/proto/otlp/resource/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// encode returns spans as the body of a request. TracesData has the same wire form as ExportTraceServiceRequest, whose package imports gRPC.
// All spans are of one [Tracer], with one resource and one scope, and have neither events nor links.
func encode(spans []sdk.ReadOnlySpan) ([]byte, error) {
	scope := spans[0].InstrumentationScope()
	list := make([]*otlp.Span, len(spans))
	for i, s := range spans {
		list[i] = span(s)
	}
	return proto.Marshal(&otlp.TracesData{ResourceSpans: []*otlp.ResourceSpans{{
		Resource: &resource.Resource{Attributes: attributes(spans[0].Resource().Attributes())},
		ScopeSpans: []*otlp.ScopeSpans{{
			Scope: &common.InstrumentationScope{Name: scope.Name, Version: scope.Version},
			Spans: list,
		}},
	}}})
}

func span(s sdk.ReadOnlySpan) *otlp.Span {
	c := s.SpanContext()
	id, self, parent := c.TraceID(), c.SpanID(), s.Parent().SpanID()
	p := &otlp.Span{
		TraceId:                id[:],
		SpanId:                 self[:],
		TraceState:             c.TraceState().String(),
		Flags:                  flags(c.TraceFlags(), s.Parent()),
		Name:                   s.Name(),
		Kind:                   kinds[s.SpanKind()],
		StartTimeUnixNano:      uint64(max(0, s.StartTime().UnixNano())), // a wrong clock may be before 1970
		EndTimeUnixNano:        uint64(max(0, s.EndTime().UnixNano())),
		Attributes:             attributes(s.Attributes()),
		DroppedAttributesCount: uint32(s.DroppedAttributes()),
		Status:                 &otlp.Status{Code: statuses[s.Status().Code], Message: s.Status().Description},
	}
	if parent.IsValid() {
		p.ParentSpanId = parent[:]
	}
	return p
}

// flags returns the trace flags, and whether the parent is remote (opentelemetry/proto/trace/v1 "SpanFlags").
func flags(own trace.TraceFlags, parent trace.SpanContext) uint32 {
	f := uint32(own) | uint32(otlp.SpanFlags_SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK)
	if parent.IsRemote() {
		f |= uint32(otlp.SpanFlags_SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK)
	}
	return f
}

// The kinds and statuses of the spans of this package. The numbers of the API differ from the numbers in OTLP.
var (
	kinds = map[trace.SpanKind]otlp.Span_SpanKind{
		trace.SpanKindInternal: otlp.Span_SPAN_KIND_INTERNAL,
		trace.SpanKindServer:   otlp.Span_SPAN_KIND_SERVER,
		trace.SpanKindClient:   otlp.Span_SPAN_KIND_CLIENT,
	}
	statuses = map[codes.Code]otlp.Status_StatusCode{
		codes.Unset: otlp.Status_STATUS_CODE_UNSET,
		codes.Error: otlp.Status_STATUS_CODE_ERROR,
	}
)

func attributes(list []attribute.KeyValue) []*common.KeyValue {
	out := make([]*common.KeyValue, len(list))
	for i, a := range list {
		out[i] = &common.KeyValue{Key: string(a.Key), Value: value(a.Value)}
	}
	return out
}

// value converts a value of an attribute. A list, which no span of this package has, becomes JSON text.
func value(v attribute.Value) *common.AnyValue {
	switch v.Type() {
	case attribute.BOOL:
		return &common.AnyValue{Value: &common.AnyValue_BoolValue{BoolValue: v.AsBool()}}
	case attribute.INT64:
		return &common.AnyValue{Value: &common.AnyValue_IntValue{IntValue: v.AsInt64()}}
	case attribute.FLOAT64:
		return &common.AnyValue{Value: &common.AnyValue_DoubleValue{DoubleValue: v.AsFloat64()}}
	}
	return &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: v.String()}}
}
