// Package frame encodes and decodes WebSocket text frames in three dialects, and the binary frames of lmosd. It has no connections.
//
// [Decode] reads a frame of any dialect, and [DialectDetector] selects the style of the response. [Frame.Reply] and similar methods
// return responses, and [Request] returns requests; [Frame.Encode] writes both in the style of the peer. The table of all messages is in
// messagetype.go.
//
// Sources: LMOS protocol, "WebSocket subprotocol" (message types, errors, dialect detection, tolerance); kotlin-wot; W3C Web
// Thing Protocol WebSocket Sub-protocol (operations, ActionStatus, errors); RFC 6455, 9457, 9557. The documentation of interact/ws lists
// the members that are extensions of lmosd.
package frame

import (
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// Limits, in bytes.
const (
	MaxID    = 256     // a message's, correlation's or action's id (LMOS, limits)
	MaxText  = 4 << 10 // text of a peer in an error
	maxThing = 2 << 10 // a thing's id with its owner
	maxName  = 1 << 10 // an affordance

	maxDelegation = interact.MaxCapability*4/3 + 8 // a delegation in base64, with its prefix
)

// A part is the kind of a message of wtp; LMOS has types instead.
type part uint8

const (
	none part = iota
	request
	response
	notification
)

var parts = map[string]part{"request": request, "response": response, "notification": notification}

var partNames = [...]string{request: "request", response: "response", notification: "notification"}

// A Frame is one message of any dialect. Its Type is one of interact, or of those below.
type Frame struct {
	interact.Message
	Style
	// Fault is the error of a frame of [TypeError].
	Fault *interact.Error
	// Streams means in a registration that the agent accepts request streams, and in the response that the node sends them.
	Streams bool
	// Stream is the number of the request stream that is the input of an invocation; 0 if there is none.
	Stream uint32
	// Delegation is the text of a delegation, by which a consumer makes the request; [Request] sets none.
	Delegation string

	marks Dialect       // the dialect that its spelling proves
	part  part          // none in LMOS
	op    interact.Type // the operation of the request of a reply; 0 if unknown
}

// Request returns the frame of the request m as a message of type t, in the style s. Its id and correlation are a new id, and its number of
// hops is one more than that of m.
func Request(s Style, thing string, t interact.Type, m *interact.Message) *Frame {
	f := &Frame{Message: *m, Style: s, Streams: t == TypeRegister}
	f.Type, f.Thing, f.ID, f.Hops = t, thing, interact.NewID(), m.Hops+1
	f.Correlation, f.Time = f.ID, time.Time{}
	if s.Dialect == WTP {
		f.part = request
	}
	return f
}

// IsRequest reports whether f is a request.
func (f *Frame) IsRequest() bool {
	return f.Type.Op() != "" || f.Type == TypeRegister || f.Type == TypeUnregister
}

// ReplyTo returns the correlation of the replies to f (LMOS: correlationId, else the messageId of the request).
func (f *Frame) ReplyTo() string {
	if f.Correlation != "" {
		return f.Correlation
	}
	return f.ID
}

// Reply returns a response of type t to the request f, in the spelling of f, without content.
func (f *Frame) Reply(t interact.Type) *Frame {
	r := &Frame{Style: f.Style, op: f.Type}
	r.Type, r.Thing, r.ID, r.Correlation, r.Name = t, f.Thing, interact.NewID(), f.ReplyTo(), f.Name
	if f.Dialect == WTP {
		r.part = response
	}
	return r
}

// Refusal returns the response to f with the error e.
func (f *Frame) Refusal(e *interact.Error) *Frame {
	a := f.Reply(TypeError)
	a.Fault = e
	a.Now()
	return a
}

// Answer returns the single response to f with the reply r, in the form of the dialect.
func (f *Frame) Answer(r *interact.Message) *Frame {
	a := f.Reply(AnswerTo(f.Type))
	a.Data, a.ContentType, a.Status, a.ActionID = r.Data, r.ContentType, r.Status, r.ActionID
	a.Time, a.Began = r.Time, r.Began
	if r.Name != "" {
		a.Name = r.Name
	}
	switch f.Type {
	case interact.ReadProperty, interact.ReadAllProperties, interact.ReadMultipleProperties:
		a.Now()
	case interact.WriteProperty, interact.WriteAllProperties, interact.WriteMultipleProperties:
		f.written(a, r)
	}
	return a
}

// written completes the response to a write. LMOS repeats the written values: Kotlin as a reading, the documents as readings
// (tolerance 13), also if the Thing has only confirmed the write (HTTP: 204 without a body). wtp has a value only if the Thing has
// returned one.
func (f *Frame) written(a *Frame, r *interact.Message) {
	if len(r.Data) == 0 || r.Type != interact.PropertyReading && r.Type != interact.PropertyReadings {
		a.Data, a.ContentType = nil, ""
		if f.Dialect != WTP || f.Type != interact.WriteProperty {
			a.Data, a.ContentType = f.Data, f.ContentType
		}
	}
	a.Now()
	if f.Type == interact.WriteProperty && f.Dialect == Doc && td.IsJSON(a.ContentType) && len(a.Data) > 0 {
		a.Type = interact.PropertyReadings
		a.Data = append(append(append(appendText([]byte{'{'}, f.Name), ':'), a.Data...), '}')
	}
}

// Notification returns the frame for r, a reading or event of the subscription f.
func (f *Frame) Notification(r *interact.Message) *Frame {
	n := f.Reply(byType[f.Type].note)
	if n.part != none {
		n.part = notification
	}
	n.carry(r)
	return n
}

// Reading returns the reading r as the response to the observation f.
func (f *Frame) Reading(r *interact.Message) *Frame {
	a := f.Reply(interact.PropertyReading)
	a.carry(r)
	return a
}

// carry sets the content of a reading or event. Its id is the id of the message, so that a consumer can continue after it.
func (f *Frame) carry(r *interact.Message) {
	f.Data, f.ContentType, f.Time = r.Data, r.ContentType, r.Time
	if r.Name != "" {
		f.Name = r.Name
	}
	if r.ID != "" && len(r.ID) <= MaxID {
		f.ID = r.ID
	}
	f.Now()
}

// Now sets the time of a frame without one to the current time.
func (f *Frame) Now() {
	if f.Time.IsZero() {
		f.Time = time.Now()
	}
}
