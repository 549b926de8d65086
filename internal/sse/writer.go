package sse

import (
	"bytes"
	"context"
	"iter"
	"net/http"
	"strings"
	"time"
)

// A Writer writes server-sent events (HTML §9.2.5) as the response to a request. It flushes each event.
type Writer struct {
	// Plain omits the blank line after a comment, which some consumers parse as an event without data.
	Plain bool

	w       http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
	started bool // the header was sent
	buf     []byte
}

// NewWriter returns a writer of the response w. A write that takes longer than the timeout fails; 0 means no timeout.
func NewWriter(w http.ResponseWriter, timeout time.Duration) *Writer {
	return &Writer{w: w, control: http.NewResponseController(w), timeout: timeout}
}

// Started reports whether the header was sent; afterwards only an event can report an error.
func (e *Writer) Started() bool { return e.started }

// Begin sends the header once, with a comment, so that the consumer receives the response before the first event. [Writer.Send] and
// [Writer.Comment] also send the header if it is missing.
func (e *Writer) Begin() error {
	if e.started {
		return nil
	}
	return e.Comment("")
}

func (e *Writer) writeHeader() {
	e.started = true
	SetHeader(e.w.Header())
	e.w.WriteHeader(http.StatusOK)
}

// SetHeader sets the header of a response with events; a [Writer] sets it itself.
func SetHeader(h http.Header) {
	h.Set("Content-Type", MediaType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // proxies buffer slow responses by default
	h.Set("X-Content-Type-Options", "nosniff")
}

// Send sends one event. An empty name or id is omitted. An error means that the consumer disconnected or is too slow.
func (e *Writer) Send(name, id string, data []byte) error {
	e.buf = appendEvent(e.buf[:0], name, id, data)
	return e.flush()
}

// Comment sends a comment, which consumers ignore: a keep-alive, or text for a developer.
func (e *Writer) Comment(text string) error {
	e.buf = append(append(append(e.buf[:0], ": "...), oneLine(text)...), '\n')
	if !e.Plain {
		e.buf = append(e.buf, '\n')
	}
	return e.flush()
}

func (e *Writer) flush() error {
	if !e.started {
		e.writeHeader()
	}
	if e.timeout > 0 {
		// A ResponseWriter without deadlines is in-process or a test: it has no slow readers.
		_ = e.control.SetWriteDeadline(time.Now().Add(e.timeout))
	}
	if _, err := e.w.Write(e.buf); err != nil {
		return err
	}
	return e.control.Flush()
}

// End removes the write deadline, so that the connection can be used for the next request.
func (e *Writer) End() { _ = e.control.SetWriteDeadline(time.Time{}) }

// Follow calls send for each value of a sequence, and sends a comment each keepAlive, until the sequence ends, ctx ends, or a write fails.
// The sequence runs in a goroutine, which has ended when Follow returns; values ends with its context.
func Follow[T any](ctx context.Context, e *Writer, keepAlive time.Duration, values func(ctx context.Context) iter.Seq2[T, error],
	send func(T) error) {
	ctx, cancel := context.WithCancel(ctx)
	queue := make(chan T)
	go func() {
		defer close(queue)
		for v, err := range values(ctx) {
			if err != nil {
				return
			}
			select {
			case queue <- v:
			case <-ctx.Done():
				return
			}
		}
	}()
	defer func() {
		cancel()
		for range queue { // until it is closed
		}
	}()
	alive := time.NewTicker(keepAlive)
	defer alive.Stop()
	for err := e.Begin(); err == nil; {
		select {
		case v, more := <-queue:
			if !more {
				return
			}
			err = send(v)
		case <-alive.C:
			err = e.Comment("")
		}
	}
}

// appendEvent appends an event. Each line of data is a separate field; line ends in the name become spaces; an id that the format
// cannot express is omitted.
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

// oneLine replaces the line ends in text by spaces.
func oneLine(text string) string {
	if !strings.ContainsAny(text, "\r\n") {
		return text
	}
	return strings.NewReplacer("\r", " ", "\n", " ").Replace(text)
}
