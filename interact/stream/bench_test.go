package stream

import (
	"context"
	"fmt"
	"io"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

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
	defer reportCPU(b)()
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

// reportCPU reports what the process works for an operation, which other processes disturb less than the time it takes.
func reportCPU(b *testing.B) func() {
	used := func() int64 {
		var u syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
		return u.Utime.Nano() + u.Stime.Nano()
	}
	before := used()
	return func() { b.ReportMetric(float64(used()-before)/float64(b.N), "cpu-ns/op") }
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
						_, err := interact.Call(ctx, p.thing, m)
						return err
					}
				})
			})
		}
	}
}

// BenchmarkHosts is one small call of a Thing with one host, and with three.
func BenchmarkHosts(b *testing.B) {
	for _, n := range []int{1, 3} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			g := newGroup(b, "tcp", slices.Repeat([]interact.Thing{answering}, n)...)
			m := &interact.Message{Type: interact.InvokeAction, Thing: "urn:example:weather", Name: "getWeather", Data: make([]byte, payload)}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := interact.Call(b.Context(), g.thing, m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkRelayed is one small call over a direct connection, and the same through a relay, one after the other. The ratio is that of the medians.
func BenchmarkRelayed(b *testing.B) {
	direct, relayed := newPair(b, "tcp", answering, Options{}, Options{}), newRelayedPair(b, answering, newRelay(b, 1<<40, time.Hour))
	took := map[string][]time.Duration{}
	for b.Loop() {
		for name, thing := range map[string]interact.Thing{"direct": direct.thing, "relayed": relayed.thing} {
			m := &interact.Message{Type: interact.InvokeAction, Thing: "urn:example:weather", Name: "getWeather", Data: make([]byte, payload)}
			began := time.Now()
			if _, err := interact.Call(b.Context(), thing, m); err != nil {
				b.Fatal(err)
			}
			took[name] = append(took[name], time.Since(began))
		}
	}
	median := func(name string) float64 {
		slices.Sort(took[name])
		return float64(took[name][len(took[name])/2])
	}
	b.ReportMetric(median("direct"), "direct-ns")
	b.ReportMetric(median("relayed"), "relayed-ns")
	b.ReportMetric(median("relayed")/median("direct"), "ratio")
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

const chunkSize = 64 << 10

// BenchmarkUp is a request stream of 64 KiB chunks, BenchmarkDown a response stream; to be read beside [BenchmarkBulk].
func BenchmarkUp(b *testing.B) {
	for transport := range transports {
		b.Run(transport, func(b *testing.B) {
			p := newPair(b, transport, interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) {
				for _, err := range m.Chunks {
					if err != nil {
						return nil, err
					}
				}
				return done(m, ""), nil
			}), Options{}, Options{})
			chunk := make([]byte, chunkSize)
			b.SetBytes(chunkSize)
			b.ReportAllocs()
			m := ask("up", "")
			m.Chunks = func(yield func([]byte, error) bool) {
				for b.Loop() {
					if !yield(chunk, nil) {
						return
					}
				}
			}
			if _, err := interact.Call(b.Context(), p.thing, m); err != nil {
				b.Fatal(err)
			}
		})
	}
}

func BenchmarkDown(b *testing.B) {
	for transport := range transports {
		for name, m := range map[string]*interact.Message{"shared": ask("down", ""), "own": streamed(nothing)} {
			b.Run(transport+"-"+name, func(b *testing.B) {
				chunk := make([]byte, chunkSize)
				p := newPair(b, transport, pouring(chunk), Options{}, Options{})
				b.SetBytes(chunkSize)
				b.ReportAllocs()
				for r, err := range p.thing.Do(b.Context(), m) {
					if err != nil || len(r.Data) != chunkSize {
						b.Fatal(err)
					}
					if !b.Loop() {
						break
					}
				}
			})
		}
	}
}

// pouring is a thing that sends data again and again.
func pouring(data []byte) interact.Thing {
	return interact.Func(func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			for yield(part(m, data), nil) {
			}
		}
	})
}

// BenchmarkBulk is what libp2p itself gives: writes of 64 KiB on one stream.
func BenchmarkBulk(b *testing.B) {
	for transport := range transports {
		b.Run(transport, func(b *testing.B) {
			client, server := newHost(b, transport), newHost(b, transport)
			over := make(chan error, 1)
			server.SetStreamHandler("/bulk", func(s network.Stream) {
				_, err := io.Copy(io.Discard, onlyReader{s})
				_ = s.Close()
				over <- err
			})
			connect(b, client, server)
			s, err := client.NewStream(b.Context(), server.ID(), "/bulk")
			if err != nil {
				b.Fatal(err)
			}
			chunk := make([]byte, chunkSize)
			b.SetBytes(chunkSize)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Write(chunk); err != nil {
					b.Fatal(err)
				}
			}
			_ = s.CloseWrite()
			if err := <-over; err != nil {
				b.Fatal(err)
			}
		})
	}
}

// An onlyReader hides that what it reads could do more.
type onlyReader struct{ io.Reader }

// BenchmarkEvents is one event of a publisher that goes as fast as its subscribers let it, to one of n subscribers.
func BenchmarkEvents(b *testing.B) {
	for transport := range transports {
		for _, n := range []int{1, 100, 1000} {
			b.Run(fmt.Sprintf("%s-%d", transport, n), func(b *testing.B) {
				p := newPair(b, transport, publishing(make([]byte, payload)), Options{}, Options{})
				ctx, cancel := context.WithCancel(b.Context())
				defer cancel()
				var left atomic.Int64
				left.Store(int64(b.N))
				var wg, ready sync.WaitGroup
				ready.Add(n)
				start := make(chan struct{})
				for range n {
					wg.Go(func() {
						first := true
						m := &interact.Message{Type: interact.SubscribeEvent, Thing: "urn:example:weather", Name: "rain"}
						for r, err := range p.thing.Do(ctx, m) {
							if err != nil || len(r.Data) != payload {
								b.Error(err)
								return
							}
							if first {
								first = false
								ready.Done()
								<-start
							}
							if left.Add(-1) < 0 {
								return
							}
						}
					})
				}
				ready.Wait()
				b.ReportAllocs()
				b.ResetTimer()
				close(start)
				wg.Wait()
			})
		}
	}
}

// publishing is a thing that sends events to each subscriber without a pause.
func publishing(data []byte) interact.Thing {
	return interact.Func(func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			for yield(m.Reply(interact.Event, "", data), nil) {
			}
		}
	})
}

// BenchmarkUnaryBeside is a small call while another interaction with the same host streams its answer.
func BenchmarkUnaryBeside(b *testing.B) {
	for transport := range transports {
		for name, m := range map[string]*interact.Message{"nothing": nil, "shared": ask("down", ""), "own": streamed(nothing),
			"events": subscribe("e")} {
			b.Run(transport+"-"+name, func(b *testing.B) {
				chunks, events := pouring(make([]byte, chunkSize)), publishing(make([]byte, payload))
				local := func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
					switch {
					case m.Name == "echo":
						return answering(ctx, m)
					case m.Type.Long():
						return events.Do(ctx, m)
					}
					return chunks.Do(ctx, m)
				}
				p := newPair(b, transport, interact.Func(local), Options{}, Options{})
				ctx, cancel := context.WithCancel(b.Context())
				var wg sync.WaitGroup
				var bytes atomic.Int64
				if m != nil {
					started := make(chan struct{})
					wg.Go(func() {
						for r := range p.thing.Do(ctx, m) {
							if r != nil && bytes.Add(int64(len(r.Data))) == int64(len(r.Data)) {
								close(started)
							}
						}
					})
					<-started
				}
				times := make([]time.Duration, 0, 1<<16)
				before := bytes.Load()
				for b.Loop() {
					t := time.Now()
					if _, err := interact.Call(ctx, p.thing, ask("echo", string(make([]byte, payload)))); err != nil {
						b.Fatal(err)
					}
					times = append(times, time.Since(t))
				}
				slices.Sort(times)
				b.ReportMetric(float64(times[len(times)*99/100].Microseconds()), "p99-µs")
				b.ReportMetric(float64(bytes.Load()-before)/b.Elapsed().Seconds()/1e6, "stream-MB/s")
				cancel()
				wg.Wait()
			})
		}
	}
}
