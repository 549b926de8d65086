package stream

import (
	"context"
	"fmt"
	"io"
	"iter"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/libp2p/go-libp2p/core/network"

	"github.com/lmosd/lmosd/interact"
)

const payload = 256

// answering is a thing that answers every message with its data.
var answering = interact.Func(func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	r := m.Reply(interact.ActionStatus, "", m.Data)
	r.Status = interact.StatusCompleted
	return interact.One(r)
})

// callers runs b.N calls by n goroutines, each with what connect gives it.
func callers(b *testing.B, n int, connect func() func() error) {
	b.Helper()
	calls := make([]func() error, n)
	for i := range calls {
		calls[i] = connect()
	}
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for _, call := range calls {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := call(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// BenchmarkUnary is one small call and its answer, to be read beside [BenchmarkEcho]. Allocations are those of both nodes.
func BenchmarkUnary(b *testing.B) {
	for transport := range transports {
		for _, n := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s-%d", transport, n), func(b *testing.B) {
				p := newPair(b, transport, answering, Options{}, Options{})
				ctx := b.Context()
				callers(b, n, func() func() error {
					m := &interact.Message{Type: interact.InvokeAction, Thing: "urn:example:weather", ID: "0123456789abcdef",
						Name: "getWeather", TraceParent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
						Data: make([]byte, payload)}
					return func() error {
						_, err := interact.Ask(ctx, p.thing, m)
						return err
					}
				})
			})
		}
	}
}

// BenchmarkEcho is what libp2p itself gives: bytes there and back on one persistent stream per caller.
func BenchmarkEcho(b *testing.B) {
	for transport := range transports {
		for _, n := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s-%d", transport, n), func(b *testing.B) {
				client, server := newHost(b, transport), newHost(b, transport)
				server.SetStreamHandler("/echo", echo)
				connect(b, client, server)
				callers(b, n, func() func() error {
					s, err := client.NewStream(b.Context(), server.ID(), "/echo")
					if err != nil {
						b.Fatal(err)
					}
					data := make([]byte, payload)
					return func() error {
						if _, err := s.Write(data); err != nil {
							return err
						}
						_, err := io.ReadFull(s, data)
						return err
					}
				})
			})
		}
	}
}

func echo(s network.Stream) {
	data := make([]byte, payload)
	for {
		if _, err := io.ReadFull(s, data); err != nil {
			_ = s.Reset()
			return
		}
		if _, err := s.Write(data); err != nil {
			return
		}
	}
}
