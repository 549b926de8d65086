package rest

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"time"
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
