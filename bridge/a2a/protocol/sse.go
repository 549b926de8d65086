package protocol

import (
	"errors"
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
