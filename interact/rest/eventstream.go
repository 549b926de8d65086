package rest

import (
	"bytes"
	"net/http"
	"strings"
	"time"
)

// An EventStream writes server-sent events (HTML Living Standard §9.2.5) as the answer to a request, each at once.
type EventStream struct {
	// Plain leaves out the blank line after a comment: some consumers take that for the end of an event with nothing in it.
	Plain bool

	w        http.ResponseWriter
	control  *http.ResponseController
	patience time.Duration
	named    bool // events have their names
	begun    bool // the status was sent
	buf      []byte
}

// NewEventStream answers by events. Whoever cannot take one within the patience is given up. Without named, events have no names,
// for clients that see such only; that of a problem keeps its own.
func NewEventStream(w http.ResponseWriter, patience time.Duration, named bool) *EventStream {
	return &EventStream{w: w, control: http.NewResponseController(w), patience: patience, named: named}
}

// Begun reports whether the answer has begun, so that an error can only be told by an event.
func (e *EventStream) Begun() bool { return e.begun }

// Begin sends the header, so that a consumer knows that it is heard.
func (e *EventStream) Begin() error {
	if e.begun {
		return nil
	}
	e.begun = true
	h := e.w.Header()
	h.Set("Content-Type", EventsType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // proxies hold back what comes slowly
	h.Set("X-Content-Type-Options", "nosniff")
	e.w.WriteHeader(http.StatusOK)
	return e.Comment("")
}

// Send sends one event. The error says that the consumer is gone, or as good as that.
func (e *EventStream) Send(name, id string, data []byte) error {
	if err := e.Begin(); err != nil {
		return err
	}
	if !e.named && name != ProblemEvent {
		name = ""
	}
	e.buf = appendEvent(e.buf[:0], name, id, data)
	return e.flush()
}

// Comment sends what every consumer ignores: a sign of life, or a word for people.
func (e *EventStream) Comment(text string) error {
	e.buf = append(append(append(e.buf[:0], ": "...), oneLine(text)...), '\n')
	if !e.Plain {
		e.buf = append(e.buf, '\n')
	}
	return e.flush()
}

// Problem sends the last event of a stream that ends with err.
func (e *EventStream) Problem(err error) {
	doc, detail := ProblemOf(err)
	if e.Comment(detail) == nil {
		_ = e.Send(ProblemEvent, "", doc) // a consumer that is gone needs no reason
	}
}

func (e *EventStream) flush() error {
	// A connection without deadlines has no slow readers either.
	_ = e.control.SetWriteDeadline(time.Now().Add(e.patience))
	if _, err := e.w.Write(e.buf); err != nil {
		return err
	}
	return e.control.Flush()
}

// End lifts the deadline of the last write, so that the connection can be used again.
func (e *EventStream) End() { _ = e.control.SetWriteDeadline(time.Time{}) }

// appendEvent appends an event. Data of several lines stays that; a name, which cannot have any, is cut to one; an id that cannot
// be sent is left out.
func appendEvent(dst []byte, name, id string, data []byte) []byte {
	if name != "" {
		dst = append(append(append(dst, "event: "...), oneLine(name)...), '\n')
	}
	if id != "" && !strings.ContainsAny(id, "\x00\r\n") {
		dst = append(append(append(dst, "id: "...), id...), '\n')
	}
	for {
		end := bytes.IndexAny(data, "\r\n")
		if end < 0 {
			break
		}
		dst = append(append(append(dst, "data: "...), data[:end]...), '\n')
		if data[end] == '\r' && end+1 < len(data) && data[end+1] == '\n' {
			end++
		}
		data = data[end+1:]
	}
	return append(append(append(dst, "data: "...), data...), "\n\n"...)
}

// oneLine makes of text a line.
func oneLine(text string) string {
	if !strings.ContainsAny(text, "\r\n") {
		return text
	}
	return strings.NewReplacer("\r", " ", "\n", " ").Replace(text)
}
