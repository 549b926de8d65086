package rest

import (
	"bytes"
	"errors"
	"io"
	"iter"
	"net/http"
	"strconv"
	"time"
)

// What both sides of the binding call the same: this package, and package serve.
const (
	// EventsType is the media type of server-sent events (HTML Living Standard §9.2.5).
	EventsType = "text/event-stream"
	// ProblemEvent is the name of the last event of a stream that ends with an error; its data is the problem (RFC 9457). No
	// affordance of a well-meaning thing is called so, and EventSource, to which "error" means something else, passes it on.
	ProblemEvent = "lmos:problem"
	// EventIDHeader tells in the answer to a long poll, and in a delivery, which event it is: what a consumer gives as ?after=
	// next time, so that none is lost between two polls. EventNameHeader says which affordance it is of, where the consumer asked
	// for all.
	EventIDHeader   = "Lmos-Event-Id"
	EventNameHeader = "Lmos-Event-Name"
)

// maxName is the limit of an event's id and name in bytes (see interact.Message).
const maxName = 256

// An event is one message of an event stream.
type event struct {
	id, name string
	data     []byte
}

// errLong says that a line or an event passed the limit.
var errLong = errors.New("a line or an event is larger than the limit")

// An eventReader reads an event stream (HTML §9.2.5, §9.2.6). It takes what the parser of that standard takes, within a limit.
type eventReader struct {
	src   io.Reader
	limit int // of a line, and of an event's data, in bytes
	// id is that of the last event whose end was read. It stays until another comes.
	id string
	// retry is how long the agent wants a reader to wait before it connects again; 0 if it did not say.
	retry time.Duration

	buf        []byte
	start, end int
	long       []byte // a line that does not stand in buf as a whole
	afterCR    bool   // a LF that comes next belongs to the line before
	begun      bool   // the first line was read, which may begin with a byte order mark
}

func newEventReader(src io.Reader, limit int) *eventReader {
	return &eventReader{src: src, limit: limit, buf: make([]byte, 4<<10)}
}

// next returns the next event that has data. The error is errLong, or that of the source: io.EOF at its end, where half an
// event is dropped.
func (e *eventReader) next() (event, error) {
	var ev event
	id, some := e.id, false
	for {
		line, err := e.line()
		if err != nil {
			return event{}, err
		}
		if !e.begun {
			line, e.begun = bytes.TrimPrefix(line, bom), true
		}
		if len(line) == 0 {
			if e.id = id; some {
				ev.id, ev.data = id, ev.data[:len(ev.data)-1]
				return ev, nil
			}
			ev.name = ""
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) { // a comment has an empty name
		case "data":
			if some = true; len(ev.data)+len(value) > e.limit {
				return event{}, errLong
			}
			ev.data = append(append(ev.data, value...), '\n')
		case "event":
			ev.name = string(value[:min(len(value), maxName+1)]) // too long is no name that anything has
		case "id":
			id = idOf(value, id)
		case "retry":
			e.retry = retryOf(value, e.retry)
		}
	}
}

// idOf reads an id: one with NUL is none, and one that is too long cannot be given back.
func idOf(value []byte, before string) string {
	switch {
	case bytes.IndexByte(value, 0) >= 0:
		return before
	case len(value) > maxName:
		return ""
	}
	return string(value)
}

// retryOf reads milliseconds in digits.
func retryOf(value []byte, before time.Duration) time.Duration {
	n, err := strconv.ParseUint(string(value[:min(len(value), 20)]), 10, 31)
	if err != nil {
		return before
	}
	return time.Duration(n) * time.Millisecond
}

// line returns the next line without its end: LF, CR, or both. It is valid until the next call.
func (e *eventReader) line() ([]byte, error) {
	e.long = e.long[:0]
	if cap(e.long) > maxPart {
		e.long = nil // one long line is no reason to hold so much for ever
	}
	for {
		if e.start == e.end {
			if err := e.fill(); err != nil {
				return nil, err
			}
		}
		have := e.buf[e.start:e.end]
		if e.afterCR {
			if e.afterCR = false; have[0] == '\n' {
				e.start++
				continue
			}
		}
		at := bytes.IndexAny(have, "\r\n")
		whole := at >= 0
		if !whole {
			at = len(have)
		}
		if len(e.long)+at > e.limit {
			return nil, errLong
		}
		if !whole {
			e.long, e.start = append(e.long, have...), e.end
			continue
		}
		e.start, e.afterCR = e.start+at+1, have[at] == '\r'
		if len(e.long) == 0 {
			return have[:at], nil
		}
		e.long = append(e.long, have[:at]...)
		return e.long, nil
	}
}

// fill reads more.
func (e *eventReader) fill() error {
	for range 100 {
		n, err := e.src.Read(e.buf)
		if n > 0 {
			e.start, e.end = 0, n
			return nil // an error comes again
		}
		if err != nil {
			return err
		}
	}
	return io.ErrNoProgress
}

var bom = []byte("\xef\xbb\xbf")

// A SentEvent is one server-sent event as a reader gets it.
type SentEvent struct {
	// Name is its type; empty if it has none.
	Name string
	// ID is what to continue after: that of this event, or of one before it.
	ID   string
	Data []byte
}

// ReadEvents reads the server-sent events of a node (package serve) until src ends. A line, and the data of an event, have at most
// limit bytes. The sequence ends with an [*interact.Error] that the server sent as the last event, with the error of src, or with
// that of the limit; the end of src is none.
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
			case e.name == ProblemEvent:
				said := http.Response{StatusCode: http.StatusInternalServerError, Header: http.Header{"Content-Type": {ProblemType}}}
				yield(SentEvent{}, FromProblem(&said, e.data))
				return
			case !yield(SentEvent{Name: e.name, ID: e.id, Data: e.data}, nil):
				return
			}
		}
	}
}
