package sse

import (
	"bytes"
	"errors"
	"io"
	"iter"
	"strconv"
	"time"
)

// MediaType is the media type of an event stream.
const MediaType = "text/event-stream"

const (
	maxID   = 1024     // bytes of an id
	maxName = 256      // bytes of a name
	maxLine = 64 << 10 // bytes of the line buffer that are kept for the next line
)

// ErrTooLarge is the error of a line or an event that exceeds the limit of its [Reader].
var ErrTooLarge = errors.New("a line or an event is larger than the limit")

// An Event is one event of a stream.
type Event struct {
	// Name is the type of the event; empty if it has none. A reader truncates a name of more than 256 bytes to 257.
	Name string
	// ID is the last event ID: of this event, or of an event before it. A reader replaces an ID of more than 1024 bytes by "".
	ID   string
	Data []byte
}

// A Reader reads an event stream (HTML §9.2.5, §9.2.6). It accepts what the parser of that standard accepts, within its limit.
type Reader struct {
	// ID is the last event ID: of the last event that was read to its end. A caller that resumes a stream sets it first.
	ID string
	// Retry is the reconnection time that the server set; 0 if it set none.
	Retry time.Duration
	// Partial makes Next return an event that the end of the source truncates. By default it is dropped, as the standard requires.
	Partial bool

	src   io.Reader
	limit int // of a line, and of the data of an event, in bytes

	buf        []byte
	start, end int
	long       []byte // a line that does not fit into buf
	afterCR    bool   // a CR ended the last line; a LF belongs to it
	started    bool   // the first line, which may begin with a byte order mark, was read
}

// NewReader returns a reader of src that reads lines, and data of events, of at most limit bytes.
func NewReader(src io.Reader, limit int) *Reader {
	return &Reader{src: src, limit: limit, buf: make([]byte, 4<<10)}
}

// Next returns the next event that has data, which belongs to the caller. The error is [ErrTooLarge] or the error of the source:
// io.EOF at its end.
func (e *Reader) Next() (Event, error) {
	var ev Event
	id, hasData := e.ID, false
	for {
		line, err := e.line()
		if err == io.EOF && e.Partial && (len(line) > 0 || hasData) {
			err = nil // an incomplete line is a line, and the empty line after it ends the event
		}
		if err != nil {
			return Event{}, err
		}
		if !e.started {
			line, e.started = bytes.TrimPrefix(line, bom), true
		}
		if len(line) == 0 {
			if e.ID = id; hasData {
				ev.ID, ev.Data = id, ev.Data[:len(ev.Data)-1]
				return ev, nil
			}
			ev.Name = ""
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) { // a comment has an empty name
		case "data":
			if hasData = true; len(ev.Data)+len(value) > e.limit {
				return Event{}, ErrTooLarge
			}
			ev.Data = append(append(ev.Data, value...), '\n')
		case "event":
			ev.Name = string(value[:min(len(value), maxName+1)]) // a longer name matches no affordance
		case "id":
			id = idOf(value, id)
		case "retry":
			e.Retry = retryOf(value, e.Retry)
		}
	}
}

// idOf returns the id that value sets: an id with NUL is ignored, and an id that is too long cannot be sent back.
func idOf(value []byte, before string) string {
	switch {
	case bytes.IndexByte(value, 0) >= 0:
		return before
	case len(value) > maxID:
		return ""
	}
	return string(value)
}

// retryOf parses a reconnection time: digits, in milliseconds.
func retryOf(value []byte, before time.Duration) time.Duration {
	n, err := strconv.ParseUint(string(value[:min(len(value), 20)]), 10, 31)
	if err != nil {
		return before
	}
	return time.Duration(n) * time.Millisecond
}

// line returns the next line without its end: LF, CR, or both. With an error it returns the part that was read. The line is valid
// until the next call.
func (e *Reader) line() ([]byte, error) {
	e.long = e.long[:0]
	if cap(e.long) > maxLine {
		e.long = nil // release the memory of an exceptionally long line
	}
	for {
		if e.start == e.end {
			if err := e.fill(); err != nil {
				return e.long, err
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
			return nil, ErrTooLarge
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

// fill reads the next bytes of the source.
func (e *Reader) fill() error {
	for range 100 {
		n, err := e.src.Read(e.buf)
		if n > 0 {
			e.start, e.end = 0, n
			return nil // the source returns the error again
		}
		if err != nil {
			return err
		}
	}
	return io.ErrNoProgress
}

var bom = []byte("\xef\xbb\xbf")

// Events yields the events of src, whose lines and data have at most limit bytes, until src ends. The sequence ends with
// [ErrTooLarge] or the error of src, if any; the end of src is not an error.
func Events(src io.Reader, limit int) iter.Seq2[Event, error] {
	return NewReader(src, limit).all
}

func (e *Reader) all(yield func(Event, error) bool) {
	for {
		ev, err := e.Next()
		if err == io.EOF || !yield(ev, err) || err != nil {
			return
		}
	}
}
