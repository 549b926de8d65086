// Package wire is what A2A 1.0 says on its wires: operations and their results, errors, the objects in them, event streams, and
// the two HTTP bindings' ways to write an operation. Whatever passes through stays text: nothing is read that need not be.
//
// Sources: A2A 1.0.1, "specification.md" and "a2a.proto".
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

// Methods of the JSON-RPC binding (A2A 1.0 §9.4), which name the operations here.
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

// Methods are all of them.
var Methods = []string{SendMessage, SendStreamingMessage, GetTask, ListTasks, CancelTask, SubscribeToTask, CreatePush, GetPush,
	ListPush,
	DeletePush, ExtendedCard}

// Known reports whether method is one of A2A 1.0.
func Known(method string) bool { return slices.Contains(Methods, method) }

// Streams reports whether method is answered by a stream of events.
func Streams(method string) bool { return method == SendStreamingMessage || method == SubscribeToTask }

// Names of service parameters (A2A 1.0 §3.2.6), as HTTP headers write them.
const (
	VersionParam    = "A2A-Version"
	ExtensionsParam = "A2A-Extensions"
	// PrincipalParam is what a node calls its caller to the host of an agent: a text of its own that nobody else can make, so that
	// those who ask over one node are told apart. It goes no further than that host.
	PrincipalParam = "Lmosd-Principal"
)

// Limits, in bytes.
const (
	// MaxMessage bounds a request, a response and an event.
	MaxMessage = 10 << 20
	// MaxCard bounds an agent card.
	MaxCard = 256 << 10
)

// An Operation is a request, whatever binding brought it. As JSON it is the input of an action that carries A2A verbatim.
type Operation struct {
	// Method is one of the JSON-RPC binding.
	Method string `json:"method"`
	// Params are those of the JSON-RPC binding, byte for byte; nil for none.
	Params json.RawMessage `json:"params,omitempty"`
	// Service are the service parameters by their names.
	Service map[string]string `json:"serviceParameters,omitempty"`
}

// An Agent answers operations.
type Agent interface {
	// Do yields the results of the JSON-RPC binding: a StreamResponse for each event of a stream, else one. The error is an
	// [*Error], which the agent said, or an *interact.Error, or wraps one of a context. Leaving the loop, or cancelling ctx, ends
	// the operation and no task.
	Do(ctx context.Context, op *Operation) iter.Seq2[json.RawMessage, error]
}

// Func is a function that is an [Agent].
type Func func(ctx context.Context, op *Operation) iter.Seq2[json.RawMessage, error]

// Do calls f.
func (f Func) Do(ctx context.Context, op *Operation) iter.Seq2[json.RawMessage, error] {
	return f(ctx, op)
}

// Once is what a [Func] answers of one result or error.
func Once(result json.RawMessage, err error) iter.Seq2[json.RawMessage, error] {
	return func(yield func(json.RawMessage, error) bool) {
		if err != nil {
			result = nil
		}
		yield(result, err)
	}
}

// Ask returns the one result of an operation that is no stream.
func Ask(ctx context.Context, a Agent, op *Operation) (json.RawMessage, error) {
	for result, err := range a.Do(ctx, op) {
		return result, err
	}
	return nil, Errorf(InvalidAgentResponse, "the agent ended %s without a result", op.Method)
}

// Encode writes v without escapes for HTML. It is for values that always have a JSON form.
func Encode(v any) json.RawMessage {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// Bytes writes op as JSON. Params stay as they are.
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

// ParseOperation reads what [Operation.Bytes] writes.
func ParseOperation(data []byte) (*Operation, error) {
	if len(data) > MaxMessage {
		return nil, Errorf(InvalidRequest, "the operation has more than %d bytes", MaxMessage)
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
		return nil, Errorf(InvalidRequest, `an operation is {"method", "params", "serviceParameters"}`)
	}
	return op, nil
}

// textsOf reads an object of strings.
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

// Outcome writes what a verbatim action gives out for one result or error: {"result": …} or {"error": {code, message, data}}.
func Outcome(result json.RawMessage, e *Error) []byte {
	if e != nil {
		return append(append([]byte(`{"error":`), e.bytes()...), '}')
	}
	b := make([]byte, 0, 16+len(result))
	return append(append(append(b, `{"result":`...), result...), '}')
}

// ParseOutcome reads what [Outcome] writes.
func ParseOutcome(data []byte) (json.RawMessage, error) {
	var room envelopeRoom
	o, ok := envelopeOf(room[:0], data)
	result, err := o.outcome()
	if err == nil && (!ok || result == nil) {
		err = Errorf(InvalidAgentResponse, "the node of the agent gave out what is no result")
	}
	if err != nil {
		return nil, err
	}
	return result, nil
}
