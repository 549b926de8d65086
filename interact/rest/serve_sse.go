package rest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net/http"
	"strings"
	"time"
)

// problemEvent is the name of the last event of a stream that ends with an error; its data is the problem (RFC 9457). No
// affordance of a well-meaning thing is called so, and EventSource, to which "error" means something else, passes it on.
const problemEvent = "lmos:problem"

// An eventStream writes server-sent events (HTML Living Standard §9.2.5), each at once. Whoever cannot take an event within the
// patience is given up.
type eventStream struct {
	w        http.ResponseWriter
	control  *http.ResponseController
	patience time.Duration
	named    bool // events have their names
	begun    bool // the status was sent
	buf      []byte
}

func (v *visit) eventStream() *eventStream {
	return &eventStream{w: v.w, control: http.NewResponseController(v.w), patience: v.o.pace.write,
		named: v.param("named") != "false"}
}

// begin sends the header, so that a consumer knows that it is heard.
func (e *eventStream) begin() error {
	if e.begun {
		return nil
	}
	e.begun = true
	h := e.w.Header()
	h.Set("Content-Type", eventsType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // proxies hold back what comes slowly
	h.Set("X-Content-Type-Options", "nosniff")
	e.w.WriteHeader(http.StatusOK)
	return e.comment("")
}

// send sends one event. The error says that the consumer is gone, or as good as that.
func (e *eventStream) send(name, id string, data []byte) error {
	if err := e.begin(); err != nil {
		return err
	}
	if !e.named && name != problemEvent {
		name = ""
	}
	e.buf = appendEvent(e.buf[:0], name, id, data)
	return e.flush()
}

// comment sends what every consumer ignores: a sign of life, or a word for people.
func (e *eventStream) comment(text string) error {
	e.buf = append(append(append(e.buf[:0], ": "...), oneLine(text)...), "\n\n"...)
	return e.flush()
}

// problem sends the last event of a stream that ends with err.
func (e *eventStream) problem(err error) {
	data, _ := json.Marshal(problemOf(err)) // strings, a number and booleans always have a JSON form
	if e.comment(detail(asProblem(err))) == nil {
		_ = e.send(problemEvent, "", data) // a consumer that is gone needs no reason
	}
}

func (e *eventStream) flush() error {
	// A connection without deadlines has no slow readers either.
	_ = e.control.SetWriteDeadline(time.Now().Add(e.patience))
	if _, err := e.w.Write(e.buf); err != nil {
		return err
	}
	return e.control.Flush()
}

// end lifts the deadline of the last write, so that the connection can be used again.
func (e *eventStream) end() { _ = e.control.SetWriteDeadline(time.Time{}) }

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

// A SentEvent is one server-sent event as a reader gets it.
type SentEvent struct {
	// Name is its type; empty if it has none.
	Name string
	// ID is what to continue after: that of this event, or of one before it.
	ID   string
	Data []byte
}

// ReadEvents reads the server-sent events of a [Server] until src ends. A line, and the data of an event, have at most limit
// bytes. The sequence ends with an [*interact.Error] that the server sent as the last event, with the error of src, or with that
// of the limit; the end of src is none.
func ReadEvents(src io.Reader, limit int) iter.Seq2[SentEvent, error] {
	return func(yield func(SentEvent, error) bool) {
		r := newEventReader(src, limit)
		for {
			e, err := r.next()
			switch {
			case errors.Is(err, io.EOF):
				return
			case err != nil:
				yield(SentEvent{}, err)
				return
			case e.name == problemEvent:
				said := http.Response{StatusCode: http.StatusInternalServerError, Header: http.Header{"Content-Type": {ProblemType}}}
				yield(SentEvent{}, FromProblem(&said, e.data))
				return
			case !yield(SentEvent{Name: e.name, ID: e.id, Data: e.data}, nil):
				return
			}
		}
	}
}

// oneLine makes of text a line.
func oneLine(text string) string {
	if !strings.ContainsAny(text, "\r\n") {
		return text
	}
	return strings.NewReplacer("\r", " ", "\n", " ").Replace(text)
}
