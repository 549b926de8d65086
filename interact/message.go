// Package interact is the one interaction model of lmosd: messages, things that answer them, and the errors they give.
//
// Everything that can be talked to is a [Thing]: an agent in this process, an agent on another node, a server behind a
// bridge. A relay is a Thing that asks another Thing; so are a policy, a limit and a trace (see [Chain]). The package knows
// no network: bindings such as interact/stream and interact/rest carry messages over a wire.
package interact

import (
	"context"
	"iter"
	"time"

	"github.com/lmosd/lmosd/did"
)

// A Type says what a message asks or tells (LMOS WebSocket subprotocol, "message types").
type Type uint8

// Message types. The numbers travel between nodes: they are never changed or reused.
const (
	ReadProperty            Type = 1
	WriteProperty           Type = 2
	ReadAllProperties       Type = 3
	ReadMultipleProperties  Type = 4
	WriteAllProperties      Type = 5
	WriteMultipleProperties Type = 6
	ObserveProperty         Type = 7
	UnobserveProperty       Type = 8
	InvokeAction            Type = 9
	QueryAction             Type = 10
	CancelAction            Type = 11
	QueryAllActions         Type = 12
	SubscribeEvent          Type = 13
	UnsubscribeEvent        Type = 14
	SubscribeAllEvents      Type = 15
	UnsubscribeAllEvents    Type = 16

	PropertyReading  Type = 32
	PropertyReadings Type = 33
	ActionStatus     Type = 34
	ActionStatuses   Type = 35
	Event            Type = 36
	Acknowledgement  Type = 37
)

// A Status is the state of an action in an ActionStatus message.
type Status uint8

// States of an action (LMOS "actionStatus"; W3C WoT Profile "ActionStatus").
const (
	StatusNone Status = iota
	StatusPending
	StatusRunning
	StatusCompleted
	StatusFailed
	StatusCancelled
)

// JSON is the content type of a message that names none (TD 1.1 §5.4, default of contentType).
const JSON = "application/json"

// MaxHops is how many nodes a message may pass before it is refused as a loop.
const MaxHops = 8

// A Message is one LMOS message, whatever its spelling on the wire was. Whoever receives a message must not change it or
// its Data; [Message.Reply] makes the answer.
type Message struct {
	Type Type
	// Thing refers to the thing that is asked: its id, its id and owner ("urn:x@z6Mk…"), or a name that is unique where the
	// message is handled (see td.Ref).
	Thing string
	// ID names this message; Correlation is shared by a request and all its replies. At most 256 bytes each.
	ID, Correlation string
	// Name is the affordance: the property, action or event.
	Name string
	// Status is set in ActionStatus messages only.
	Status Status
	// ContentType is the media type of Data; empty means [JSON].
	ContentType string
	Data        []byte
	// TraceParent and TraceState are the W3C trace context.
	TraceParent, TraceState string
	// Deadline is when the consumer stops waiting; zero means never. Bindings send the time that is left, so that clocks
	// need not agree.
	Deadline time.Time
	// Time is when a reading or event happened; zero means unknown.
	Time time.Time
	// Hops counts the nodes that the message has passed.
	Hops uint8
	// From is who asks, as the transport proved it; empty means nobody in particular. It is never sent: each binding sets
	// it on what it receives.
	From did.DID
	// Chunks is the optional request stream (voice, upload). It is read once, by the thing that answers.
	Chunks iter.Seq2[[]byte, error]
}

// Reply returns an answer to m of type t: correlated, of the same thing and affordance, in the same trace.
func (m *Message) Reply(t Type, contentType string, data []byte) *Message {
	corr := m.Correlation
	if corr == "" {
		corr = m.ID
	}
	return &Message{Type: t, Thing: m.Thing, Correlation: corr, Name: m.Name, ContentType: contentType, Data: data,
		TraceParent: m.TraceParent, TraceState: m.TraceState}
}

// Media returns the content type of m, with the default applied.
func (m *Message) Media() string {
	if m.ContentType == "" {
		return JSON
	}
	return m.ContentType
}

// A Thing answers messages.
type Thing interface {
	// Do sends m and yields the replies in order. The sequence ends after the last reply, or with exactly one error, which
	// is an [*Error] or wraps a context error. Leaving the loop, or cancelling ctx, cancels the interaction; Do has released
	// everything when the loop is left.
	Do(ctx context.Context, m *Message) iter.Seq2[*Message, error]
}

// Func is a function that is a [Thing].
type Func func(ctx context.Context, m *Message) iter.Seq2[*Message, error]

// Do calls f.
func (f Func) Do(ctx context.Context, m *Message) iter.Seq2[*Message, error] { return f(ctx, m) }

// A Wrap puts something around a Thing: a policy, a limit, a trace.
type Wrap func(Thing) Thing

// Chain returns t inside wraps; the first wrap is the outermost and sees a message first.
func Chain(t Thing, wraps ...Wrap) Thing {
	for i := len(wraps) - 1; i >= 0; i-- {
		t = wraps[i](t)
	}
	return t
}

// One returns a sequence of the single reply m.
func One(m *Message) iter.Seq2[*Message, error] {
	return func(yield func(*Message, error) bool) { yield(m, nil) }
}

// Fail returns a sequence that is the single error err.
func Fail(err error) iter.Seq2[*Message, error] {
	return func(yield func(*Message, error) bool) { yield(nil, err) }
}

// Unary makes a Thing of a function that gives one reply or an error.
func Unary(f func(ctx context.Context, m *Message) (*Message, error)) Thing {
	return Func(func(ctx context.Context, m *Message) iter.Seq2[*Message, error] {
		return func(yield func(*Message, error) bool) { yield(f(ctx, m)) }
	})
}

// Ask sends m to t and returns the last reply: the answer of a unary interaction, the final status of an action.
// No reply at all is an [*Error] of code [Internal].
func Ask(ctx context.Context, t Thing, m *Message) (*Message, error) {
	var last *Message
	for r, err := range t.Do(ctx, m) {
		if err != nil {
			return nil, err
		}
		last = r
	}
	if last == nil {
		return nil, &Error{Code: Internal, Title: "no answer", Hint: "the agent ended the interaction without a reply; see its log"}
	}
	return last, nil
}
