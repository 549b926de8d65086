package protocol

import (
	"bytes"
	"context"
	"encoding/json"
	"iter"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/lmosd/lmosd/internal/jsonedit"
)

// Methods of the JSON-RPC binding (A2A 1.0 §9.4). They name the operations of all bindings.
const (
	SendMessage          = "SendMessage"
	SendStreamingMessage = "SendStreamingMessage"
	GetTask              = "GetTask"
	ListTasks            = "ListTasks"
	CancelTask           = "CancelTask"
	SubscribeToTask      = "SubscribeToTask"
	CreatePush           = "CreateTaskPushNotificationConfig"
	GetPush              = "GetTaskPushNotificationConfig"
	ListPush             = "ListTaskPushNotificationConfigs"
	DeletePush           = "DeleteTaskPushNotificationConfig"
	ExtendedCard         = "GetExtendedAgentCard"
)

// Methods lists all methods.
var Methods = []string{SendMessage, SendStreamingMessage, GetTask, ListTasks, CancelTask, SubscribeToTask, CreatePush, GetPush,
	ListPush,
	DeletePush, ExtendedCard}

// Known reports whether method is a method of A2A 1.0.
func Known(method string) bool { return slices.Contains(Methods, method) }

// Streams reports whether the response to method is a stream of events.
func Streams(method string) bool { return method == SendStreamingMessage || method == SubscribeToTask }

// Names of service parameters (A2A 1.0 §3.2.6), as HTTP headers.
const (
	VersionParam    = "A2A-Version"
	ExtensionsParam = "A2A-Extensions"
	// PrincipalParam identifies the caller to the host of an agent, so that the host distinguishes the callers of one node. Only
	// the node can set it, and the host does not pass it on.
	PrincipalParam = "Lmosd-Principal"
)

// Limits, in bytes.
const (
	// MaxMessage bounds a request, a response and an event.
	MaxMessage = 10 << 20
	// MaxProgress bounds the text of a progress update.
	MaxProgress = 8 << 10
)

// An Operation is a request, independent of the binding. Its JSON is the input of a tunnel action.
type Operation struct {
	// Method is one of the JSON-RPC binding.
	Method string `json:"method"`
	// Params are those of the JSON-RPC binding, byte for byte; nil for none.
	Params json.RawMessage `json:"params,omitempty"`
	// Service are the service parameters by name.
	Service map[string]string `json:"serviceParameters,omitempty"`
}

// An Agent handles operations.
type Agent interface {
	// Do yields results as the JSON-RPC binding has them: a StreamResponse for each event of a stream, otherwise one result. The
	// error is an [*Error] of the agent, or an *interact.Error, or wraps a context error. Leaving the loop, or canceling ctx,
	// ends the operation and no task.
	Do(ctx context.Context, op *Operation) iter.Seq2[json.RawMessage, error]
}

// Func is a function as an [Agent].
type Func func(ctx context.Context, op *Operation) iter.Seq2[json.RawMessage, error]

// Do calls f.
func (f Func) Do(ctx context.Context, op *Operation) iter.Seq2[json.RawMessage, error] {
	return f(ctx, op)
}

// Once returns a sequence of one result or error.
func Once(result json.RawMessage, err error) iter.Seq2[json.RawMessage, error] {
	return func(yield func(json.RawMessage, error) bool) {
		if err != nil {
			result = nil
		}
		yield(result, err)
	}
}

// Call returns the result of an operation without a stream.
func Call(ctx context.Context, a Agent, op *Operation) (json.RawMessage, error) {
	for result, err := range a.Do(ctx, op) {
		return result, err
	}
	return nil, Errorf(InvalidAgentResponse, "the agent ended %s without a result", op.Method)
}

// Encode returns the JSON of v without HTML escapes. It panics if v has no JSON form.
func Encode(v any) json.RawMessage {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// Bytes encodes op as JSON. Params stay unchanged.
func (op *Operation) Bytes() []byte {
	b := make([]byte, 0, 256+len(op.Params))
	b = appendText(append(b, `{"method":`...), op.Method)
	if len(op.Params) > 0 {
		b = append(append(b, `,"params":`...), op.Params...)
	}
	if len(op.Service) > 0 {
		b = append(b, `,"serviceParameters":`...)
		before := byte('{')
		for _, name := range slices.Sorted(maps.Keys(op.Service)) {
			b = append(appendText(append(b, before), name), ':')
			b, before = appendText(b, op.Service[name]), ','
		}
		b = append(b, '}')
	}
	return append(b, '}')
}

// appendText appends the JSON string of s.
func appendText(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= utf8.RuneSelf || c == '"' || c == '\\' {
			return append(b, Encode(s)...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

// ParseOperation decodes the output of [Operation.Bytes].
func ParseOperation(data []byte) (*Operation, error) {
	if len(data) > MaxMessage {
		return nil, Errorf(InvalidRequest, "the operation exceeds %d bytes", MaxMessage)
	}
	var room envelopeRoom
	in, ok := envelopeOf(room[:0], data)
	op := &Operation{Params: in.of("params")}
	if ok {
		op.Method, ok = jsonedit.String(in.of("method"))
	}
	if service := in.of("serviceParameters"); ok && service != nil {
		op.Service, ok = textsOf(service)
	}
	if !ok || op.Method == "" {
		return nil, Errorf(InvalidRequest, `expected an operation {"method", "params", "serviceParameters"}`)
	}
	return op, nil
}

// textsOf decodes an object of strings.
func textsOf(raw json.RawMessage) (map[string]string, bool) {
	var room envelopeRoom
	o, ok := envelopeOf(room[:0], raw)
	texts := make(map[string]string, len(o.members))
	for _, m := range o.members {
		var text string
		if text, ok = jsonedit.String(o.text[m.At.From:m.At.To]); !ok {
			return nil, false
		}
		texts[string(m.Name)] = text
	}
	return texts, ok
}

// Outcome encodes a result or an error as the output of a tunnel action: {"result": …} or {"error": {code, message, data}}.
func Outcome(result json.RawMessage, e *Error) []byte {
	if e != nil {
		return append(append([]byte(`{"error":`), e.bytes()...), '}')
	}
	b := make([]byte, 0, 16+len(result))
	return append(append(append(b, `{"result":`...), result...), '}')
}

// ParseOutcome decodes the output of [Outcome].
func ParseOutcome(data []byte) (json.RawMessage, error) {
	var room envelopeRoom
	o, ok := envelopeOf(room[:0], data)
	result, err := o.outcome()
	if err == nil && (!ok || result == nil) {
		err = Errorf(InvalidAgentResponse, "the node of the agent returned neither a result nor an error")
	}
	if err != nil {
		return nil, err
	}
	return result, nil
}
