package protocol

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/lmosd/lmosd/internal/sse"
)

// EventStream is the media type of server-sent events.
const EventStream = sse.MediaType

// Events decodes a stream. The last event is complete without the empty line after it, which some servers omit. An event of more than
// [MaxMessage] bytes ends the sequence with an error.
func Events(r io.Reader) iter.Seq2[sse.Event, error] {
	return func(yield func(sse.Event, error) bool) {
		in := sse.NewReader(r, MaxMessage+64) // of a line with the name of its field
		in.Partial = true
		for {
			e, err := in.Next()
			if err == io.EOF {
				return
			}
			if errors.Is(err, sse.ErrTooLarge) || len(e.Data) > MaxMessage {
				e, err = sse.Event{}, Errorf(InvalidAgentResponse, "an event of the agent exceeds %d bytes", MaxMessage)
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// WriteEvent encodes one event. Data is JSON, so line terminators in it are replaced by spaces.
func WriteEvent(w io.Writer, name string, data []byte) error {
	if bytes.ContainsAny(data, "\r\n") {
		data = bytes.Map(func(r rune) rune {
			if r == '\n' || r == '\r' {
				return ' '
			}
			return r
		}, data)
	}
	var b bytes.Buffer
	if name != "" {
		fmt.Fprintf(&b, "event: %s\n", name)
	}
	fmt.Fprintf(&b, "data: %s\n\n", data)
	_, err := w.Write(b.Bytes())
	return err
}
