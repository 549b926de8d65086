// Package interact defines the interaction model: messages, Things that handle them, middleware and errors.
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
//
// What a [Thing] is asked, and what it answers:
//
//	ReadProperty                       one PropertyReading
//	ReadAllProperties, ReadMultiple…   one PropertyReadings: an object of values by name. ReadMultiple… has an array of names
//	WriteProperty                      one Acknowledgement, or a PropertyReading of what was written
//	WriteAllProperties, WriteMultiple… one Acknowledgement, or PropertyReadings. The data is an object of values by name
//	ObserveProperty, ObserveAll…       a PropertyReading per change, until the loop is left. There need not be a first value
//	InvokeAction                       ActionStatus messages. The last is completed and has the output; a failure is the
//	                                   error of the sequence. One that is running may have a part of the output: a response
//	                                   stream is a row of them, with the content type of the parts; see [Progress]
//	QueryAction                        one ActionStatus: the state now, with the output of what is completed. What failed has
//	                                   the problem (RFC 9457) as data
//	CancelAction                       one ActionStatus that is cancelled, or the error NoTask
//	QueryAllActions                    one ActionStatuses: an object of arrays of states by action, newest first (see [Task])
//	ContinueAction                     one Acknowledgement: the run that was input-required goes on with the [Answers] in the data; or
//	                                   the error NoTask: none waits. It is lmosd's own: TD 1.1 has no such operation
//	SubscribeEvent, SubscribeAllEvents an Event for each, until the loop is left
//
// Unobserve and unsubscribe messages exist on wires only: a binding answers them and leaves the loop. No Thing sees them.
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
	// StatusInputRequired is the state of a run that waits for its consumer: the data is what it wants to know ([Inputs]). It has
	// an ActionID, with which ContinueAction answers.
	StatusInputRequired
)

// statusWords are the states as the Web Thing Protocol and WoT Profiles spell them; the last two are LMOS's own, and lmosd's.
var statusWords = [...]string{"", "pending", "running", "completed", "failed", "cancelled", "input-required"}

// String returns the word of s; empty for [StatusNone].
func (s Status) String() string {
	if int(s) < len(statusWords) {
		return statusWords[s]
	}
	return ""
}

// Final reports whether nothing follows s.
func (s Status) Final() bool { return s >= StatusCompleted && s <= StatusCancelled }

// Standard returns the state that WoT has for s: one that waits for its consumer is running.
func (s Status) Standard() Status {
	if s == StatusInputRequired {
		return StatusRunning
	}
	return s
}

// StatusOf returns the state that word spells, in any of the spellings of LMOS and WoT; [StatusNone] for another.
func StatusOf(word string) Status {
	switch word {
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

// JSON is the content type of a message that names none (TD 1.1 §5.4, default of contentType).
const JSON = "application/json"

// Progress is the content type of a state that is running which tells how far an action is, and is no part of its output: an object
// of any of "progress", "total" (numbers) and "message" (MCP 2026-07-28, "Progress").
const Progress = "application/vnd.lmosd.progress+json"

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
	// ActionID names one run of an action: in its states, and in QueryAction and CancelAction, where empty means the latest
	// run that the consumer began. At most 256 bytes.
	ActionID string
	// After is the ID of the last reading or event that the consumer has seen: what came since is sent again, as far as it is
	// kept. Only where the type is long (see [Type.Long]). At most 256 bytes.
	After string
	// Key makes an invocation repeatable: with one key, one consumer's action runs once, and who asks again hears of that run.
	// At most 256 bytes.
	Key string
	// Detach asks that an action outlive its consumer: the first state is pending and has an ActionID, and leaving the loop
	// leaves it running. Without it, leaving cancels; but actions whose synchronous is false are always detached.
	Detach bool
	// Status is set in ActionStatus messages only.
	Status Status
	// ContentType is the media type of Data; empty means [JSON].
	ContentType string
	Data        []byte
	// Accept is the media type in which a consumer would like the replies; empty means any. A binding to an agent takes a form
	// of that type if there is one, and a binding to a consumer converts between JSON and CBOR ([Transcode]).
	Accept string
	// TraceParent and TraceState are the W3C trace context.
	TraceParent, TraceState string
	// Deadline is when the consumer stops waiting; zero means never. Bindings send the time that is left, so that clocks
	// need not agree.
	Deadline time.Time
	// Time is when a reading or event happened, or when an action ended; zero means unknown. Began is when an action was asked
	// for, in its states.
	Time, Began time.Time
	// Hops counts the nodes that the message has passed.
	Hops uint8
	// From is who asks, as the binding that received the message proved it; only bindings set it. It is never sent as such. A node
	// refuses messages without it (package policy): who asks is never guessed.
	From *did.Principal
	// Timing asks, in a request, where the time goes; the last reply says so. Nil asks nothing.
	Timing *Timing
	// Via forces the way to the thing: "mesh", the scheme of a form, or its href. It is for the node that is asked, and never
	// sent.
	Via string
	// Chunks is the optional request stream (voice, upload). It is read once, by the thing that answers. A chunk is its
	// receiver's until it asks for the next.
	Chunks iter.Seq2[[]byte, error]
}

// Timing says where the time of an interaction went. What was not measured is zero.
type Timing struct {
	// Path is how the thing was reached: "local", "mesh quic-v1", "http".
	Path string
	// Resolve is the time until the thing was known, Total until the last reply came back to the consumer's node. Host is what
	// the thing's node took of it, and Agent what the agent took of that.
	Resolve, Total, Host, Agent time.Duration
}

// Reply returns an answer to m of type t: correlated, of the same thing and affordance, in the same trace.
func (m *Message) Reply(t Type, contentType string, data []byte) *Message {
	corr := m.Correlation
	if corr == "" {
		corr = m.ID
	}
	return &Message{Type: t, Thing: m.Thing, Correlation: corr, Name: m.Name, ContentType: contentType, Data: data,
		ActionID: m.ActionID, TraceParent: m.TraceParent, TraceState: m.TraceState}
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

// A Middleware returns a Thing that handles messages before and after the Thing it is given: a policy, a limit, a trace.
type Middleware func(Thing) Thing

// Chain returns t behind layers. The first layer is the outermost and receives a message first.
func Chain(t Thing, layers ...Middleware) Thing {
	for i := len(layers) - 1; i >= 0; i-- {
		t = layers[i](t)
	}
	return t
}

// As has p ask where a message does not say who asks: for programs that ask a node in their own process.
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

// Anonymous takes away who asks, before a message goes to an address of another party: agents of this node alone are told.
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

// Unary makes a Thing of a function that gives one reply or an error.
func Unary(f func(ctx context.Context, m *Message) (*Message, error)) Thing {
	return Func(func(ctx context.Context, m *Message) iter.Seq2[*Message, error] {
		return func(yield func(*Message, error) bool) { yield(f(ctx, m)) }
	})
}

// maxJoined is how many bytes of a response stream [Call] holds.
const maxJoined = 16 << 20

// An answer gathers replies for [Call].
type answer struct {
	request, last *Message
	parts         []Part
	size          int
	err           error
}

// take takes what a sequence yields. After an error it is not called again.
func (a *answer) take(r *Message, err error) bool {
	if a.err = err; err != nil {
		return false
	}
	if r != nil && r.Status == StatusInputRequired && a.request.Type == InvokeAction {
		a.err = NeedsInput(a.request.Name)
		return false
	}
	a.last = r
	if r == nil || r.Type != ActionStatus || r.Status != StatusRunning || len(r.Data) == 0 || r.ContentType == Progress {
		return true
	}
	if a.size += len(r.Data); a.size > maxJoined {
		a.err = Errorf(TooLarge, "take the output in parts", "the output of %s has more than %d bytes", a.request.Name, maxJoined).Then(StepOption, "stream")
		return false
	}
	a.parts = append(a.parts, Part{r.Data, r.ContentType})
	return true
}

// Call sends m to t and returns the last reply: the answer of a unary interaction, or the final state of an action, with the whole
// output if that came in parts (see [Join]; more than 16 MiB is the error [TooLarge]). If an action requires input, the error has the code
// [InputNeeded]. No reply at all is an [*Error] of code [Internal].
func Call(ctx context.Context, t Thing, m *Message) (*Message, error) {
	a := answer{request: m}
	t.Do(ctx, m)(a.take) // no loop: each variable that its body keeps would be an object of its own
	last, parts := a.last, a.parts
	if a.err != nil {
		return nil, a.err
	}
	if last == nil {
		return nil, &Error{Code: Internal, Title: "no answer", Hint: "the agent ended the interaction without a reply; see its log"}
	}
	if len(parts) > 0 && last.Status == StatusCompleted && len(last.Data) == 0 {
		c := *last
		c.Data, c.ContentType = Join(parts)
		return &c, nil
	}
	return last, nil
}
