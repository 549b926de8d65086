package interact

import (
	"cmp"
	"context"
	"encoding/json"
	"iter"
	"time"

	"github.com/lmosd/lmosd/did"
)

// A Type is the type of a message (LMOS WebSocket subprotocol, "message types").
type Type uint8

// Message types. Nodes exchange these numbers: they are never changed or reused.
//
// Requests to a [Thing], and their replies:
//
//	ReadProperty                       one PropertyReading
//	ReadAllProperties, ReadMultiple…   one PropertyReadings: an object of values by name. ReadMultiple… has an array of names
//	WriteProperty                      one Acknowledgement, or a PropertyReading of the new value
//	WriteAllProperties, WriteMultiple… one Acknowledgement, or PropertyReadings. The data is an object of values by name
//	ObserveProperty, ObserveAll…       a PropertyReading per change, until the loop is left. A first value is optional
//	InvokeAction                       ActionStatus messages. The last is completed, with the output; a failure is the
//	                                   error of the sequence. A running one may have a part of the output: a response
//	                                   stream is a sequence of them, with the content type of the parts; see [Progress]
//	QueryAction                        one ActionStatus: the current state, with the output if completed. If failed,
//	                                   the data is the problem (RFC 9457)
//	CancelAction                       one ActionStatus that is cancelled, or the error NoTask
//	QueryAllActions                    one ActionStatuses: an object of arrays of states by action, newest first (see [Task])
//	ContinueAction                     one Acknowledgement: the input-required run continues with the [Answers] in the data; or
//	                                   the error NoTask. TD 1.1 does not define this operation
//	SubscribeEvent, SubscribeAllEvents Events until the loop is left
//
// Unobserve and unsubscribe messages exist only in protocols: a binding responds to them and leaves the loop.
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
	ObserveAllProperties    Type = 17
	UnobserveAllProperties  Type = 18
	ContinueAction          Type = 19

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
	// StatusInputRequired is the state of a run that waits for input: the data is the required input ([Inputs]). The state has an
	// ActionID for ContinueAction.
	StatusInputRequired
)

// statusNames are the spellings of the Web Thing Protocol and of the WoT Profile; "input-required" is from LMOS.
var statusNames = [...]string{"", "pending", "running", "completed", "failed", "cancelled", "input-required"}

// String returns the name of s; empty for [StatusNone].
func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return ""
}

// Final reports whether s is the last state.
func (s Status) Final() bool { return s >= StatusCompleted && s <= StatusCancelled }

// Standard returns the state of WoT for s: input-required is running.
func (s Status) Standard() Status {
	if s == StatusInputRequired {
		return StatusRunning
	}
	return s
}

// StatusOf returns the state of a name in any spelling of LMOS and WoT; [StatusNone] for other names.
func StatusOf(name string) Status {
	switch name {
	case "pending":
		return StatusPending
	case "running", "in progress", "in_progress", "inProgress":
		return StatusRunning
	case "completed":
		return StatusCompleted
	case "failed":
		return StatusFailed
	case "cancelled", "canceled":
		return StatusCancelled
	case "input-required", "input_required":
		return StatusInputRequired
	}
	return StatusNone
}

// JSON is the default content type of a message (TD 1.1 §5.4).
const JSON = "application/json"

// Progress is the content type of a running state that reports progress and is not a part of the output: an object with any of
// "progress", "total" (numbers) and "message" (MCP 2026-07-28, "Progress").
const Progress = "application/vnd.lmosd.progress+json"

// MaxHops limits the nodes that a message passes; more is a loop.
const MaxHops = 8

// A Task is the JSON of the state of a run (Web Thing Protocol, ActionStatus): an element of the arrays in the data of
// ActionStatuses.
type Task struct {
	ActionID  string          `json:"actionID"`
	State     string          `json:"state"` // of [Status]
	Output    json.RawMessage `json:"output,omitempty"`
	Error     json.RawMessage `json:"error,omitempty"`         // RFC 9457
	Requested string          `json:"timeRequested,omitempty"` // RFC 3339
	Ended     string          `json:"timeEnded,omitempty"`
}

// A Message is one LMOS message, independent of its encoding. Receivers must not change it or its Data; [Message.Reply] returns a
// reply.
type Message struct {
	Type Type
	// Thing is the reference of the recipient: its id, its id and owner ("urn:x@z6Mk…"), or a name that is unique at the node (see
	// td.Ref).
	Thing string
	// ID identifies this message; a request and its replies share Correlation. At most 256 bytes each.
	ID, Correlation string
	// Name is the affordance: the property, action or event.
	Name string
	// ActionID identifies a run of an action: in its states, and in QueryAction and CancelAction, where empty means the latest run
	// of the consumer. At most 256 bytes.
	ActionID string
	// After is the ID of the last reading or event that the consumer received: stored later ones are sent again. Only for long
	// types (see [Type.Long]). At most 256 bytes.
	After string
	// Key is an idempotency key: the action runs once per key and consumer, and a repeated request follows that run. At most 256
	// bytes.
	Key string
	// Detach lets an action outlive its consumer: the first state is pending and has an ActionID, and the action continues after
	// the loop is left. Without it, leaving the loop cancels the action, unless its synchronous is false.
	Detach bool
	// Status is set in ActionStatus messages only.
	Status Status
	// ContentType is the media type of Data; empty means [JSON].
	ContentType string
	Data        []byte
	// Accept is the preferred media type of replies; empty means any. A binding to an agent prefers a form of that type, and a
	// binding to a consumer converts between JSON and CBOR ([Transcode]).
	Accept string
	// TraceParent and TraceState are the W3C trace context.
	TraceParent, TraceState string
	// Deadline is the end of the interaction for the consumer; zero means none. Bindings send the remaining time, so that clocks
	// need not agree.
	Deadline time.Time
	// Time is the time of a reading or event, or the end of an action; zero means unknown. Began is the start of an action, in its
	// states.
	Time, Began time.Time
	// Hops is the number of nodes that the message has passed.
	Hops uint8
	// From is the caller as the receiving binding authenticated it. Only bindings set it, and it is not sent. Nodes reject messages
	// without it (package policy).
	From *did.Principal
	// With is a delegation by which From uses a right of another caller. It is sent only to the host that issued it. Agents never receive it.
	With *Capability
	// Timing in a request enables time measurement; the last reply has the result. Nil disables it.
	Timing *Timing
	// Via selects the path to the Thing: "mesh", the scheme of a form, or its href. It is for the receiving node and not sent.
	Via string
	// Chunks is the optional request stream (voice, upload). The Thing reads it once. A chunk is valid until the next one is read.
	Chunks iter.Seq2[[]byte, error]
}

// MaxCapability limits the tokens of a [Capability], in bytes.
const MaxCapability = 16 << 10

// A Capability is delegations that a caller presents (package ucan).
type Capability struct {
	Host   did.DID // which issued the first delegation, as the tokens state it; empty at that host
	Tokens []byte  // a container of UCANs
}

// Timing holds the durations of an interaction; zero means not measured.
type Timing struct {
	// Path is the path to the Thing: "local", "mesh quic-v1", "http".
	Path string
	// Resolve is the time to resolve the Thing, Total the time until the last reply at the node of the consumer. Host is the part
	// of Total at the node of the Thing, and Agent the part of Host in the agent.
	Resolve, Total, Host, Agent time.Duration
	// Dial is the time until there was a session to the host, and Node is the host; both only for a call to another node.
	Dial time.Duration
	Node did.DID
}

// Reply returns a reply to m of type t, with the correlation, Thing, affordance and trace of m.
func (m *Message) Reply(t Type, contentType string, data []byte) *Message {
	corr := cmp.Or(m.Correlation, m.ID)
	return &Message{Type: t, Thing: m.Thing, Correlation: corr, Name: m.Name, ContentType: contentType, Data: data,
		ActionID: m.ActionID, TraceParent: m.TraceParent, TraceState: m.TraceState}
}

// ReplyStatus returns a reply with status s to an invocation m, or to another message about it.
func (m *Message) ReplyStatus(s Status, contentType string, data []byte) *Message {
	r := m.Reply(ActionStatus, contentType, data)
	r.Status = s
	return r
}

// Media returns the content type of m, or the default.
func (m *Message) Media() string {
	if m.ContentType == "" {
		return JSON
	}
	return m.ContentType
}

// A Thing handles messages.
type Thing interface {
	// Do sends m and yields the replies in order. The sequence ends after the last reply, or with one error, which is an [*Error]
	// or wraps a context error. Leaving the loop, or cancelling ctx, cancels the interaction. Do has released everything when the
	// loop ends.
	Do(ctx context.Context, m *Message) iter.Seq2[*Message, error]
}

// Func is a function that is a [Thing].
type Func func(ctx context.Context, m *Message) iter.Seq2[*Message, error]

// Do calls f.
func (f Func) Do(ctx context.Context, m *Message) iter.Seq2[*Message, error] { return f(ctx, m) }

// A Middleware wraps a Thing, for example with a policy, a rate limiter or a trace.
type Middleware func(Thing) Thing

// Chain returns t with layers around it. The first layer is the outermost.
func Chain(t Thing, layers ...Middleware) Thing {
	for i := len(layers) - 1; i >= 0; i-- {
		t = layers[i](t)
	}
	return t
}

// As sets the caller of messages without one to p, for programs in the process of the node.
func As(p *did.Principal) Middleware {
	return func(t Thing) Thing {
		return Func(func(ctx context.Context, m *Message) iter.Seq2[*Message, error] {
			if m.From == nil {
				c := *m
				c.From = p
				m = &c
			}
			return t.Do(ctx, m)
		})
	}
}

// Anonymous removes the caller before a message is sent to a third party: only agents of this node receive it.
func Anonymous(t Thing) Thing {
	return Func(func(ctx context.Context, m *Message) iter.Seq2[*Message, error] {
		c := *m
		c.From = nil
		return t.Do(ctx, &c)
	})
}

// One returns a sequence of the single reply m.
func One(m *Message) iter.Seq2[*Message, error] {
	return func(yield func(*Message, error) bool) { yield(m, nil) }
}

// Fail returns a sequence that is the single error err.
func Fail(err error) iter.Seq2[*Message, error] {
	return func(yield func(*Message, error) bool) { yield(nil, err) }
}

// Unary returns a Thing from a function that returns one reply or an error.
func Unary(f func(ctx context.Context, m *Message) (*Message, error)) Thing {
	return Func(func(ctx context.Context, m *Message) iter.Seq2[*Message, error] {
		return func(yield func(*Message, error) bool) { yield(f(ctx, m)) }
	})
}

// maxJoined limits the response stream that [Call] holds, in bytes.
const maxJoined = 16 << 20

// A collector collects the replies for [Call].
type collector struct {
	request, last *Message
	parts         []Part
	size          int
	err           error
}

// take adds a yielded reply or error. It is not called after an error.
func (c *collector) take(r *Message, err error) bool {
	if c.err = err; err != nil {
		return false
	}
	if r != nil && r.Status == StatusInputRequired && c.request.Type == InvokeAction {
		c.err = NeedsInput(c.request.Name)
		return false
	}
	c.last = r
	if r == nil || r.Type != ActionStatus || r.Status != StatusRunning || len(r.Data) == 0 || r.ContentType == Progress {
		return true
	}
	if c.size += len(r.Data); c.size > maxJoined {
		c.err = Errorf(TooLarge, "read the output as a stream", "the output of %s has more than %d bytes", c.request.Name, maxJoined).
			Then(StepOption, "stream")
		return false
	}
	c.parts = append(c.parts, Part{r.Data, r.ContentType})
	return true
}

// Call sends m to t and returns the last reply: the reply of a unary interaction, or the final state of an action with the whole
// output (see [Join]; more than 16 MiB is the error [TooLarge]). If an action requires input, the code of the error is
// [InputNeeded]. Without a reply it is [Internal].
func Call(ctx context.Context, t Thing, m *Message) (*Message, error) {
	all := collector{request: m}
	t.Do(ctx, m)(all.take) // not a loop: its body would allocate each captured variable
	last, parts := all.last, all.parts
	if all.err != nil {
		return nil, all.err
	}
	if last == nil {
		return nil, &Error{Code: Internal, Title: "the agent ended the interaction without a reply", Hint: "see the agent's log"}
	}
	if len(parts) > 0 && last.Status == StatusCompleted && len(last.Data) == 0 {
		c := *last
		c.Data, c.ContentType = Join(parts)
		return &c, nil
	}
	return last, nil
}

// TraceID returns the trace id of the message (W3C Trace Context §3.2.2.3), or "".
func (m *Message) TraceID() string {
	const from, to = len("00-"), len("00-") + 32
	if len(m.TraceParent) < to {
		return ""
	}
	return m.TraceParent[from:to]
}
