package stream

import (
	"bytes"
	"context"
	"iter"
	"testing"

	"github.com/libp2p/go-libp2p"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// TestAnAnswerIsWholeHoweverLateItIsRead: the host has closed its end when the caller comes to the data. The hosts have
// resource managers, which grant no memory for a stream that has ended.
func TestAnAnswerIsWholeHoweverLateItIsRead(t *testing.T) {
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
					for _, l := range caller.all() {
						if l.own && !l.answered() {
							return false
						}
					}
					return server.Stats().ServingNow == 0
				}
				got := 0
				m := &interact.Message{Type: interact.SubscribeEvent, Thing: "a", Name: "b"}
				for r, err := range caller.Thing([]td.Host{at(t, to)}).Do(t.Context(), m) {
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
