package stream

import (
	"bytes"
	"context"
	"iter"
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/network"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/stream/frame"
	"github.com/lmosd/lmosd/td"
)

// TestLateReadReturnsTheWholeAnswer: the host has closed its end when the caller comes to the data. The hosts have
// resource managers, which grant no memory for a stream that has ended.
func TestLateReadReturnsTheWholeAnswer(t *testing.T) {
	t.Parallel()
	data := bytes.Repeat([]byte("x"), 512<<10)
	events := interact.Func(func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			_ = yield(m.Reply(interact.Event, "", []byte("1")), nil) && yield(m.Reply(interact.Event, "", data), nil)
		}
	})
	for transport := range transports {
		t.Run(transport, func(t *testing.T) {
			t.Parallel()
			from, to := newHost(t, transport, libp2p.UserAgent("caller")), newHost(t, transport, libp2p.UserAgent("server"))
			caller, server := newBinding(t, from, Options{}), newBinding(t, to, Options{})
			server.Serve(events)
			connect(t, from, to)
			for range 20 {
				late := func() bool {
					return caller.Stats().Streams == 0 && server.Stats().ServingNow == 0
				}
				got := 0
				m := &interact.Message{Type: interact.InvokeAction, Thing: "a", Name: "b", Chunks: nothing}
				for r, err := range caller.at([]td.Host{at(t, to)}).Do(t.Context(), m) {
					if err != nil {
						t.Fatalf("after %d bytes: %v", got, err)
					}
					if got == 0 {
						until(t, "all has arrived", late)
					}
					got += len(r.Data)
				}
				if got != 1+len(data) {
					t.Fatalf("got %d bytes, want %d", got, 1+len(data))
				}
			}
			until(t, "nothing is open", func() bool { return caller.Stats().Streams == 0 })
		})
	}
}

// TestCompleteResponseOutlivesItsSession: the host times out a consumer that pauses, and resets the stream of its response.
func TestCompleteResponseOutlivesItsSession(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		data := strings.Repeat("x", 200_000)
		for name, m := range map[string]*interact.Message{"own session": streamed(nothing), "shared session": ask("a", "")} {
			from, to := newHost(t, transport, libp2p.UserAgent("caller")), newHost(t, transport, libp2p.UserAgent("server"))
			reset := make(chan struct{})
			to.SetStreamHandler(Protocol("test"), func(s network.Stream) {
				id := uint64(1)
				if m.Chunks != nil {
					id = 0
				}
				first, _ := frame.AppendReply(nil, part(m, []byte("1")), m, frame.Extra{})
				head, _ := frame.AppendReply(nil, part(m, nil), m, frame.Extra{Size: int64(len(data))})
				last, _ := frame.AppendReply(nil, done(m, ""), m, frame.Extra{})
				sent := append(raw(frame.Reply, id, string(first)), raw(frame.Reply, id, string(head))...)
				for b := range slicesOf([]byte(data), frame.MaxControl) {
					sent = append(sent, raw(frame.Chunk, id, string(b))...)
				}
				_, _ = s.Read(make([]byte, 1000))
				_, _ = s.Write(append(sent, raw(frame.Last, id, string(last))...))
				<-reset
				_ = s.ResetWithError(network.StreamRateLimited)
			})
			caller := newBinding(t, from, Options{})
			connect(t, from, to)
			n := 0
			for r, err := range caller.at([]td.Host{at(t, to)}).Do(t.Context(), m) {
				if err != nil {
					t.Fatalf("%s: after %d replies: %v", name, n, err)
				}
				if n++; n == 1 {
					l := caller.all()[0]
					until(t, "all has arrived", func() bool { return l.answered() })
					close(reset)
					until(t, "the session has ended", func() bool { return len(caller.all()) == 0 && l.reason() != nil })
				}
				if n == 2 && string(r.Data) != data {
					t.Errorf("%s: got %d bytes", name, len(r.Data))
				}
			}
			if n != 3 {
				t.Errorf("%s: got %d replies, want 3", name, n)
			}
		}
	})
}
