package client

import (
	"bytes"
	"errors"
	"io"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/internal/sse"
)

// maxEvent bounds a line of a stream, in bytes: a message, and the framing around it.
const maxEvent = protocol.MaxMessage + 64<<10

// events reads event streams, one after the other.
type events struct {
	id   string        // of the last event; empty: the server sends no ids
	wait time.Duration // before the stream is requested again
	// named receives the events with another name than "message"; nil ignores them.
	named func(name string, data []byte)
}

var errLarge = &protocol.Error{Code: protocol.InvalidRequest, Message: "an event is too large"}

// read passes each message of a stream to receive, and returns the error that ended the stream: nil at its end. Events that are not
// messages are skipped.
func (s *events) read(r io.Reader, receive func(*protocol.Message)) error {
	in := sse.NewReader(r, maxEvent)
	in.ID, in.Retry = s.id, s.wait
	for {
		e, err := in.Next()
		s.id, s.wait = in.ID, in.Retry
		switch {
		case err == io.EOF:
			return nil
		case errors.Is(err, sse.ErrTooLarge), len(e.Data) > protocol.MaxMessage:
			return errLarge
		case err != nil:
			return err
		case e.Name != "" && e.Name != "message":
			if s.named != nil && len(e.Data) > 0 {
				s.named(e.Name, e.Data)
			}
		default:
			if m, bad := protocol.Parse(bytes.TrimSpace(e.Data)); len(e.Data) > 0 && bad == nil {
				receive(m)
			}
		}
	}
}
