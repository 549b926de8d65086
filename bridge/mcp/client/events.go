package client

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
)

// maxEvent bounds an event, in bytes.
const maxEvent = protocol.MaxMessage + 64<<10

// events reads event streams, one after the other (HTML Living Standard §9.2).
type events struct {
	id   string        // of the last event; empty: the server gives none
	wait time.Duration // before the stream is asked for again
	// named is given events that have another name than "message"; nil is not.
	named func(name string, data []byte)
}

var errLarge = &protocol.Error{Code: protocol.InvalidRequest, Message: "an event is too large"}

// read gives each message of a stream to take, and returns why it ended: nil at its end. Events that are no messages are skipped.
func (s *events) read(r io.Reader, take func(*protocol.Message)) error {
	in := bufio.NewReaderSize(r, 32<<10)
	var data []byte
	event := ""
	for {
		line, err := lineOf(in, maxEvent-len(data))
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil // what is not complete is nothing
			}
			return err
		}
		if len(line) == 0 {
			if len(data) > protocol.MaxMessage {
				return errLarge
			}
			if event != "" && event != "message" {
				if s.named != nil && len(data) > 0 {
					s.named(event, data)
				}
			} else if m, err := protocol.Parse(bytes.Clone(bytes.TrimSpace(data))); len(data) > 0 && err == nil {
				take(m)
			}
			data, event = data[:0], ""
			continue
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "event":
			event = string(value[:min(len(value), 64)])
		case "data":
			if len(data) > 0 {
				data = append(data, '\n')
			}
			data = append(data, value...)
		case "id":
			if len(value) <= 1024 && bytes.IndexByte(value, 0) < 0 {
				s.id = string(value)
			}
		case "retry":
			if ms, err := strconv.ParseInt(string(value), 10, 32); err == nil && ms >= 0 {
				s.wait = time.Duration(ms) * time.Millisecond
			}
		}
	}
}

// lineOf returns a line without its end, of at most n bytes.
func lineOf(in *bufio.Reader, n int) (line []byte, err error) {
	for {
		part, err := in.ReadSlice('\n')
		if len(line)+len(part) > n {
			return nil, errLarge
		}
		if err == nil && line == nil {
			return bytes.TrimSuffix(part[:len(part)-1], []byte("\r")), nil
		}
		line = append(line, part...)
		if err == nil {
			return bytes.TrimSuffix(line[:len(line)-1], []byte("\r")), nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
	}
}
