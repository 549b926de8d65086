package protocol

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
)

// EventStream is the media type of Server-Sent Events.
const EventStream = "text/event-stream"

// An Event is an event of a stream (HTML, "Server-sent events").
type Event struct {
	Name string // the "event" field; empty means message
	Data []byte
}

// Events decodes a stream: it ignores comments, ids and retry times, and joins the data lines of an event. An event of more than
// [MaxMessage] bytes ends the sequence with an error.
func Events(r io.Reader) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		in, e, any := bufio.NewReader(r), Event{}, false
		for {
			line, err := readLine(in, MaxMessage-len(e.Data))
			if err != nil {
				if err != io.EOF {
					yield(Event{}, err)
				} else if any { // some servers omit the last empty line
					yield(e, nil)
				}
				return
			}
			name, value, _ := bytes.Cut(line, []byte(":"))
			value = bytes.TrimPrefix(value, []byte(" "))
			switch {
			case len(line) == 0:
				if any && !yield(e, nil) {
					return
				}
				e, any = Event{}, false
			case string(name) == "event":
				e.Name = string(value)
			case string(name) == "data":
				if any {
					e.Data = append(e.Data, '\n')
				}
				e.Data, any = append(e.Data, value...), true
			}
		}
	}
}

// readLine returns a line without its terminator, of at most room bytes.
func readLine(in *bufio.Reader, room int) ([]byte, error) {
	var line []byte
	for {
		piece, err := in.ReadSlice('\n')
		if len(line)+len(piece) > room+2 {
			return nil, Errorf(InvalidAgentResponse, "an event of the agent exceeds %d bytes", MaxMessage)
		}
		line = append(line, piece...)
		switch {
		case err == nil:
			return bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r")), nil
		case errors.Is(err, bufio.ErrBufferFull):
		case err == io.EOF && len(line) > 0:
			return line, nil
		default:
			return nil, err
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
