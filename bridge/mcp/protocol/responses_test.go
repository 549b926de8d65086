package protocol

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/interact"
)

// A script is a connection with fixed messages, which fails writes of requests named "broken".
type script struct {
	messages chan *Message
	wrote    []string
}

func (s *script) Read(context.Context) (*Message, error) {
	m, ok := <-s.messages
	if !ok {
		return nil, io.EOF
	}
	return m, nil
}

func (s *script) Write(_ context.Context, m *Message) error {
	if m.Method() == "broken" {
		return errors.New("the wire is cut")
	}
	s.wrote = append(s.wrote, m.Method())
	return nil
}

func (s *script) Close() error { return nil }

// Each written request gets one response: that of the server or, in order, the cause of its absence.
func TestEnsureResponses(t *testing.T) {
	t.Parallel()
	s := &script{messages: make(chan *Message, 16)}
	conn := EnsureResponses(s, func(err error) error {
		return interact.Errorf(interact.Unreachable, "lmosd status", "the server ended: %v", err)
	})
	write := func(id ID, method string, want bool) {
		t.Helper()
		if err := conn.Write(t.Context(), Request(id, method, map[string]int{"requestId": 5})); (err == nil) != want {
			t.Errorf("%s %s: %v", id, method, err)
		}
	}
	read := func(id ID, word string) {
		t.Helper()
		m, err := conn.Read(t.Context())
		if err != nil || m.ID() != id || !strings.Contains(string(m.Bytes()), word) {
			t.Fatalf("got %v, %v, want %s with %s", m, err, id, word)
		}
	}
	for _, id := range []ID{"9", `"b"`, "3", "5", "7"} {
		write(id, "call", true)
	}
	write("7", "call", false)   // twice
	write("8", "broken", false) // not started
	write("", Cancelled, true)  // of 5
	for _, m := range []*Message{Respond("3", "first"), Respond("3", "again"), Respond("5", "late"), Respond("8", "never asked"),
		Request("", Progress, nil), RespondError("", Errorf(ParseError, "what?"))} {
		s.messages <- m
	}
	close(s.messages)
	read("3", "first")
	read("", Progress)
	read("", "what?")
	read("9", "the server ended: EOF")
	read(`"b"`, `"code":"LMOS-1503"`)
	read("7", `"retryable":true`)
	for range 2 {
		if m, err := conn.Read(t.Context()); err != io.EOF {
			t.Errorf("after the end: %v, %v", m, err)
		}
	}
	write("11", "call", false)
}
