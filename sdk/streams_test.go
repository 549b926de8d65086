package sdk

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/lmosd/lmosd/agent"
	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact"
)

// A spring produces a given number of bytes, in chunks.
type spring struct {
	Chunks int  `json:"chunks"`
	Size   int  `json:"size"`
	Fail   bool `json:"fail"`
	read   atomic.Int64
	gate   chan struct{} // closed when the rest may be produced; nil: no gate
}

func (s *spring) Read(b []byte) (int, error) {
	if s.Chunks == 0 && s.gate != nil {
		<-s.gate
	}
	if s.Chunks == 0 {
		if s.Fail {
			return 0, errors.New("the microphone fell")
		}
		return 0, io.EOF
	}
	n := min(len(b), s.Size)
	for i := range b[:n] {
		b[i] = 'x'
	}
	if s.Chunks--; n < s.Size {
		panic("the reader requests less than a chunk")
	}
	s.read.Add(int64(n))
	return n, nil
}

// uploadGo sends data that is not JSON from Go.
func uploadGo(ctx context.Context, r request) (json.RawMessage, error) {
	var in any
	switch r.Op {
	case "upload":
		s := &spring{}
		if err := json.Unmarshal(r.Input, s); err != nil {
			return nil, err
		}
		in = agent.Upload{ContentType: "audio/wav", Reader: s}
	case "bytes":
		var text string
		if err := json.Unmarshal(r.Input, &text); err != nil {
			return nil, err
		}
		in = strings.NewReader(text)
	case "file":
		f, err := os.Open("streams_test.go")
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	return agent.Call[json.RawMessage](ctx, r.Agent, r.Name, in)
}

func init() {
	contract["streams"] = func(a *caller) {
		a.gives("upload", "hear", `{"chunks":1000,"size":1}`, `"1000 of audio/wav"`)
		a.gives("upload", "hear", `{"chunks":40,"size":30000}`, `"1200000 of audio/wav"`)
		a.gives("upload", "hear", `{"chunks":0,"size":1}`, `"0 of audio/wav"`)
		a.gives("bytes", "hear", `"grüße"`, `"7 of application/octet-stream"`)
		a.gives("bytes", "sip", `"one two three"`, `"one two t"`)
		a.gives("call", "hear", `{"a":1}`, `"7 of application/json"`)
		if got, err := a.do("file", "hear", ""); err != nil || !strings.Contains(string(got), " of application/octet-stream") {
			a.Errorf("a file: %s, %v", got, err)
		}
		if _, err := a.do("upload", "hear", `{"chunks":2,"size":10,"fail":true}`); err == nil ||
			!strings.Contains(err.Error(), "the microphone fell") {
			a.Errorf("the source broke: %v", err)
		}
		if _, err := a.do("upload", "echo", `{"chunks":2,"size":10}`); err == nil {
			a.Error("a stream is no text")
		}
		a.gives("call", "add", `{"a":1,"b":2}`, `3`) // it still runs
	}
}

// Text is a request stream like any other: it arrives unchanged, in one part or in several.
func TestTextToStreamActions(t *testing.T) {
	h := newHost(t, "")
	for language, start := range languages {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			name := "text-" + language
			start(t, h, h.api, name)
			for _, o := range []api.CallOptions{{Stream: strings.NewReader("grüße")}, {Body: []byte("grüße")}} {
				o.ContentType = "text/plain"
				r, err := h.client.Invoke(t.Context(), name, "hear", o)
				if err != nil || string(r.Output) != `"7 of text/plain"` {
					t.Errorf("whole is %v: got %+v, %v", o.Stream == nil, r, err)
				}
			}
		})
	}
}

// Streams to the agents of all libraries: large, slow, cancelled, broken.
func TestStreamsToAgents(t *testing.T) {
	h := newHost(t, "")
	for language, start := range languages {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			name := "ear-" + language
			l := start(t, h, h.api, name)
			send := func(ctx context.Context, action string, body io.Reader) (*api.CallResult, error) {
				return h.client.Invoke(ctx, name, action, api.CallOptions{ContentType: "audio/wav", Stream: body})
			}
			r, err := send(t.Context(), "hear", &spring{Chunks: 64 << 20 >> 15, Size: 1 << 15})
			if err != nil || string(r.Output) != `"67108864 of audio/wav"` {
				t.Errorf("64 MiB: got %s, %v", r.Output, err)
			}
			var peak int
			raw, _, err := h.client.Read(t.Context(), name, "peak")
			if err != nil || json.Unmarshal(raw, &peak) != nil || peak > 120<<10 {
				t.Errorf("the agent took %s KiB, %v", raw, err)
			}
			r, err = send(t.Context(), "parrot", &spring{Chunks: 100, Size: 3000})
			if err != nil || !bytes.Equal(r.Output, bytes.Repeat([]byte("x"), 300_000)) {
				t.Errorf("both ways: got %d bytes, %v", len(r.Output), err)
			}
			r, err = h.client.Invoke(t.Context(), name, "hear", api.CallOptions{ContentType: "audio/wav", Body: []byte{0, 255}})
			if err != nil || string(r.Output) != `"2 of audio/wav"` {
				t.Errorf("what is short: got %s, %v", r.Output, err)
			}

			ctx, cancel := context.WithCancel(t.Context())
			s, done := &spring{Chunks: 64 << 20 >> 15, Size: 1 << 15}, make(chan error, 1)
			go func() { _, err := send(ctx, "nap", s); done <- err }()
			until(t, "the agent naps", func() error {
				if s.read.Load() < 256<<10 {
					return fmt.Errorf("%d bytes were read", s.read.Load())
				}
				return nil
			})
			if raw, _, err := h.client.Read(t.Context(), name, "units"); err != nil || string(raw) != `"celsius"` {
				t.Errorf("beside a reader that sleeps: %s, %v", raw, err)
			}
			cancel()
			if e := interact.AsError(take(t, done)); e.Code != interact.Cancelled {
				t.Errorf("got %v", e)
			}
			if n := s.read.Load(); n > 24<<20 { // the sockets buffer some
				t.Errorf("the agent takes nothing, and %d bytes were read", n)
			}
			until(t, "the agent receives the end of its reader", func() error {
				if raw, _, err := h.client.Read(t.Context(), name, "hung"); err != nil || string(raw) != "1" {
					return fmt.Errorf("%s, %w", raw, err)
				}
				return nil
			})
			if l.kill == nil {
				return
			}
			s = &spring{Chunks: 64 << 20 >> 15, Size: 1 << 15}
			go func() { _, err := send(t.Context(), "nap", s); done <- err }()
			until(t, "the agent naps again", func() error {
				if s.read.Load() < 256<<10 {
					return fmt.Errorf("%d bytes were read", s.read.Load())
				}
				return nil
			})
			l.kill()
			if e := interact.AsError(take(t, done)); e == nil || e.Code != interact.Unreachable && e.Code != interact.NodeLost {
				t.Errorf("the agent died: %v", e)
			}
		})
	}
}

// A running call of an agent that stops completes; new calls are refused; then the agent is unregistered.
func TestAgentDisconnectsDuringACall(t *testing.T) {
	t.Parallel()
	h := newHost(t, "")
	for language, start := range languages {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			name := "busy-" + language
			l := start(t, h, h.api, name)
			const size = 32 << 20 // more than the sockets buffer: the agent has started to read
			s, called, left := &spring{Chunks: size >> 15, Size: 1 << 15, gate: make(chan struct{})}, make(chan error, 1), make(chan error, 1)
			go func() {
				r, err := h.client.Invoke(t.Context(), name, "hear", api.CallOptions{ContentType: "audio/wav", Stream: s})
				if err == nil && string(r.Output) != fmt.Sprintf(`"%d of audio/wav"`, size) {
					err = fmt.Errorf("got %s", r.Output)
				}
				called <- err
			}()
			until(t, "the agent receives all but the end", func() error {
				if n := s.read.Load(); n < size {
					return fmt.Errorf("%d bytes were read", n)
				}
				return nil
			})
			go func() { left <- l.leave() }()
			until(t, "new calls are refused", func() error {
				_, _, err := h.client.Call(t.Context(), name, "add", "", []byte(`{"a":1,"b":1}`))
				if e := interact.AsError(err); e == nil || e.Code != interact.ShuttingDown {
					return fmt.Errorf("not refused: %w", err)
				}
				return nil
			})
			close(s.gate)
			if err := take(t, called); err != nil {
				t.Errorf("the running call: %v", err)
			}
			if err := take(t, left); err != nil {
				t.Errorf("the agent ends with %v", err)
			}
		})
	}
}

// pack sends a binary frame of a request stream.
func (p *peer) pack(kind byte, stream uint32, body string) {
	p.send(final|blob, string(binary.BigEndian.AppendUint32([]byte{kind}, stream))+body)
}

// await reads frames until one contains a text. Frames before may be of a cancelled call.
func (p *peer) await(contain string) {
	p.t.Helper()
	for {
		switch op, data, err := p.next(); {
		case err != nil:
			p.t.Fatalf("nothing has %q: %v", contain, err)
		case op == ping:
			p.send(final|pong, string(data))
		case bytes.Contains(data, []byte(contain)):
			return
		}
	}
}

// streams sends valid and invalid request streams.
func (p *peer) streams() {
	p.t.Helper()
	const chunk, end, abort, credit, stop = 1, 2, 3, "\x04", "\x05"
	invoke := func(action string, stream int) {
		p.send(final|text, fmt.Sprintf(
			`{"messageType":"invokeAction","messageId":"s%d","action":%q,"stream":%d,"contentType":"audio/wav"}`, stream, action, stream))
	}
	grant := credit + "\x00\x00\x00\x07\x00\x04\x00\x00"
	p.pack(chunk, 7, "of no stream")
	invoke("hear", 7)
	p.expect(blob, grant)
	p.pack(9, 7, "what is that?")
	p.pack(chunk, 8, "of no stream")
	p.pack(chunk, 7, "one")
	p.pack(chunk, 7, "two")
	p.pack(end, 7, "")
	p.expect(text, `"6 of audio/wav"`)
	p.pack(chunk, 7, "too late")

	invoke("hear", 7)
	p.expect(blob, grant)
	p.pack(abort, 7, "the microphone fell")
	p.expect(text, "the microphone fell")

	invoke("nap", 7) // the action reads one chunk
	p.expect(blob, grant)
	for range 5 {
		p.pack(chunk, 7, strings.Repeat("x", 1<<16))
	}
	p.expect(blob, stop)
	p.send(final|text, `{"messageType":"cancelAction","messageId":"c","correlationId":"s7","action":"nap"}`)
	p.await(`"cancelled"`)
	invoke("nap", 8)
	p.await(credit)
	p.pack(chunk, 8, strings.Repeat("x", 1<<16+1))
	p.await(stop)
	p.await(`"s8"`)
	invoke("echo", 9)
	p.await(`"LMOS-1406"`)
	invoke("sip", 10)
	p.expect(blob, credit)
	p.pack(chunk, 10, "one two three")
	p.expect(blob, stop)
	p.expect(text, `"one two t"`)
}
