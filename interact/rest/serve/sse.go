package serve

import (
	"bytes"
	"net/http"
	"strings"
	"time"

	"github.com/lmosd/lmosd/interact/rest"
)

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
	h.Set("Content-Type", rest.EventsType)
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
	if !e.named && name != rest.ProblemEvent {
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
	doc, detail := rest.ProblemOf(err)
	if e.comment(detail) == nil {
		_ = e.send(rest.ProblemEvent, "", doc) // a consumer that is gone needs no reason
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

// oneLine makes of text a line.
func oneLine(text string) string {
	if !strings.ContainsAny(text, "\r\n") {
		return text
	}
	return strings.NewReplacer("\r", " ", "\n", " ").Replace(text)
}
