package stream

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/host"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/stream/frame"
	"github.com/lmosd/lmosd/internal/liveheap"
	"github.com/lmosd/lmosd/td"
)

// streamed is a request with a stream of chunks.
func streamed(chunks iter.Seq2[[]byte, error]) *interact.Message {
	m := ask("stream", "")
	m.Chunks = chunks
	return m
}

// part is a piece of a response stream.
func part(m *interact.Message, data []byte) *interact.Message {
	r := m.Reply(interact.ActionStatus, "application/octet-stream", data)
	r.Status = interact.StatusRunning
	return r
}

// echoing is a thing that sends each chunk back at once.
var echoing = interact.Func(func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		for chunk, err := range m.Chunks {
			if err != nil {
				yield(nil, err)
				return
			}
			if !yield(part(m, chunk), nil) {
				return
			}
		}
		yield(done(m, ""), nil)
	}
})

// settled waits until no interaction and no session of its own is left at either end.
func settled(t *testing.T, p *pair) {
	t.Helper()
	until(t, "both ends are quiet", func() bool {
		c, s := p.caller.Stats(), p.server.Stats()
		return s.ServingNow == 0 && c.Streams == c.Pooled && s.Streams == c.Streams
	})
}

// TestBothWaysAtOnce: each chunk is sent only after the one before came back.
func TestBothWaysAtOnce(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		p := newPair(t, transport, echoing, Options{}, Options{})
		for _, size := range []int{1, 1000, inline, inline + 1, 64 << 10, frame.MaxChunk, 3*frame.MaxChunk + 1} {
			back := make(chan []byte, 1)
			const rounds = 5
			m := streamed(func(yield func([]byte, error) bool) {
				for i := range rounds {
					if sent := bytes.Repeat([]byte{'a' + byte(i)}, size); !yield(sent, nil) {
						t.Errorf("%d bytes: chunk %d is not read", size, i)
						return
					} else if !bytes.Equal(<-back, sent) {
						t.Errorf("%d bytes: chunk %d came back as another", size, i)
					}
				}
			})
			var got []byte
			for r, err := range p.thing.Do(t.Context(), m) {
				if err != nil {
					t.Fatal(err)
				}
				if got = append(got, r.Data...); len(got) == size { // a large chunk comes in several
					back <- got
					got = nil
				}
			}
		}
		settled(t, p)
	})
}

// TestLeavingInTheMiddle: the consumer leaves a stream that goes both ways; both ends get the cancellation, and release everything.
func TestLeavingInTheMiddle(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		ended, poured := make(chan error, 1), make(chan struct{})
		p := newPair(t, transport, interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			return func(yield func(*interact.Message, error) bool) {
				var failed error
				for chunk, err := range m.Chunks {
					if failed = err; err != nil || !yield(part(m, chunk), nil) {
						break
					}
				}
				<-ctx.Done()
				ended <- errors.Join(failed, ctx.Err())
			}
		}), Options{}, Options{})
		m := streamed(func(yield func([]byte, error) bool) {
			defer close(poured)
			for yield(make([]byte, 10_000), nil) {
			}
		})
		n := 0
		for _, err := range p.thing.Do(t.Context(), m) {
			if err != nil {
				t.Fatal(err)
			}
			if n++; n == 100 {
				break
			}
		}
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the agent's context ended with %v", err)
		}
		<-poured
		settled(t, p)
	})
}

// TestTheAgentEndsFirst: the agent ends or fails while chunks still arrive.
func TestTheAgentEndsFirst(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		failure := interact.Errorf(interact.AgentFailed, "", "enough")
		for name, c := range map[string]struct {
			taken int // chunks that the agent takes
			err   error
		}{"reads nothing": {0, nil}, "reads a little": {3, nil}, "fails at once": {0, failure}, "fails later": {3, failure}} {
			p := newPair(t, transport, interact.Func(func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
				return func(yield func(*interact.Message, error) bool) {
					n := 0
					for range m.Chunks {
						if n++; n > c.taken {
							break
						}
					}
					if c.err != nil {
						yield(nil, c.err)
						return
					}
					yield(done(m, "enough"), nil)
				}
			}), Options{}, Options{})
			for range 20 {
				poured := make(chan struct{})
				r, err := interact.Call(t.Context(), p.thing, streamed(func(yield func([]byte, error) bool) {
					defer close(poured)
					for yield(make([]byte, 100_000), nil) {
					}
				}))
				if c.err == nil && (err != nil || string(r.Data) != "enough") || c.err != nil && code(err) != interact.AgentFailed {
					t.Fatalf("%s: got %v, %v", name, r, err)
				}
				<-poured
			}
			settled(t, p)
		}
	})
}

// TestABrokenSource: a request stream that gives an error ends the interaction with it; one that panics harms nothing else.
func TestABrokenSource(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		p := newPair(t, transport, echoing, Options{}, Options{})
		disk := interact.Errorf(interact.DiskFull, "", "the file cannot be read")
		for name, c := range map[string]struct {
			end  func(yield func([]byte, error) bool)
			want interact.Code
		}{
			"an error": {func(yield func([]byte, error) bool) { yield(nil, disk) }, interact.DiskFull},
			"a panic":  {func(func([]byte, error) bool) { panic("boom") }, interact.Internal},
		} {
			_, err := interact.Call(t.Context(), p.thing, streamed(func(yield func([]byte, error) bool) {
				if yield([]byte("x"), nil) {
					c.end(yield)
				}
			}))
			if code(err) != c.want {
				t.Errorf("%s: got %v, want %v", name, err, c.want)
			}
		}
		settled(t, p)
	})
}

// steady waits until n has stopped to rise, and returns it.
func steady(t *testing.T, n *atomic.Int64) int64 {
	t.Helper()
	last, same := int64(-1), 0
	until(t, "it stops", func() bool {
		now := n.Load()
		if same++; now != last || now == 0 {
			last, same = now, 0
		}
		return same == 100
	})
	return last
}

// TestASlowConsumer: a consumer that does not read replies stops its agent only.
func TestASlowConsumer(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		const size, total = 10_000, 1000
		for name, c := range map[string]struct {
			m     *interact.Message
			limit int64 // of what is under way, in bytes
		}{
			"events":           {&interact.Message{Type: interact.SubscribeEvent, Name: "e"}, 64<<10 + 2*size},
			"observation":      {&interact.Message{Type: interact.ObserveAllProperties}, 64<<10 + 2*size},
			"an action":        {ask("a", ""), 256<<10 + 2*size},
			"its own session":  {streamed(nothing), 2<<20 + 2*size},
			"a wanted picture": {&interact.Message{Type: interact.InvokeAction, Accept: "image/png"}, 2<<20 + 2*size},
		} {
			var yielded atomic.Int64
			p := newPair(t, transport, interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
				if m.Name == "echo" {
					return answering(ctx, m)
				}
				return func(yield func(*interact.Message, error) bool) {
					for i := range total {
						if !yield(part(m, binary.BigEndian.AppendUint64(make([]byte, size-8, size), uint64(i))), nil) {
							return
						}
						yielded.Add(1)
					}
				}
			}), Options{}, Options{})
			taken := 0
			for r, err := range p.thing.Do(t.Context(), c.m) {
				if err != nil {
					t.Fatal(name, err)
				}
				if i := binary.BigEndian.Uint64(r.Data[size-8:]); i != uint64(taken) {
					t.Fatalf("%s: reply %d is number %d", name, taken, i)
				}
				if taken++; taken == 1 {
					if n := steady(t, &yielded) * size; n > c.limit || n < c.limit/2 {
						t.Errorf("%s: the agent sent %d bytes to a consumer that reads nothing, want about %d", name, n, c.limit)
					}
					if _, err := interact.Call(t.Context(), p.thing, ask("echo", "x")); err != nil {
						t.Errorf("%s: a call meanwhile: %v", name, err)
					}
				}
			}
			if taken != total {
				t.Errorf("%s: got %d replies, want %d", name, taken, total)
			}
			settled(t, p)
		}
	})
}

// TestASlowAgent: an agent that takes no chunks stops their source.
func TestASlowAgent(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		const size, total, limit = 10_000, 1000, 2<<20 + highWater + 2*10_000
		goOn := make(chan struct{})
		var poured atomic.Int64
		p := newPair(t, transport, interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) {
			<-goOn
			n := 0
			for chunk, err := range m.Chunks {
				if err != nil {
					return nil, err
				}
				n += len(chunk)
			}
			return done(m, fmt.Sprint(n)), nil
		}), Options{}, Options{})
		answer := make(chan error, 1)
		go func() {
			r, err := interact.Call(t.Context(), p.thing, streamed(func(yield func([]byte, error) bool) {
				for range total {
					if !yield(make([]byte, size), nil) {
						return
					}
					poured.Add(1)
				}
			}))
			if err == nil && string(r.Data) != fmt.Sprint(size*total) {
				err = fmt.Errorf("the agent took %s bytes", r.Data)
			}
			answer <- err
		}()
		if n := steady(t, &poured) * size; n > limit {
			t.Errorf("the source gave %d bytes to an agent that takes none, want %d at most", n, limit)
		}
		close(goOn)
		if err := <-answer; err != nil {
			t.Error(err)
		}
		settled(t, p)
	})
}

// TestAStreamIsNotStored: what goes through two nodes, in both directions at once, is never in memory as a whole. With
// LMOSD_LONG=1 it is 1 GiB.
func TestAStreamIsNotStored(t *testing.T) {
	total := int64(64 << 20)
	if os.Getenv("LMOSD_LONG") != "" {
		total = 1 << 30
	}
	const size, limit = 64 << 10, 24 << 20
	for transport := range transports {
		t.Run(transport, func(t *testing.T) { // alone: the memory of other tests would count
			p := newPair(t, transport, echoing, Options{}, Options{})
			before, most := liveheap.Bytes(), int64(0)
			chunk := make([]byte, size)
			m := streamed(func(yield func([]byte, error) bool) {
				for i := int64(0); i < total; i += size {
					binary.BigEndian.PutUint64(chunk, uint64(i))
					if !yield(chunk, nil) {
						return
					}
				}
			})
			got := int64(0)
			for r, err := range p.thing.Do(t.Context(), m) {
				if err != nil {
					t.Fatal(err)
				}
				if r.Status == interact.StatusCompleted {
					break
				}
				if n := binary.BigEndian.Uint64(r.Data); n != uint64(got) || len(r.Data) != size {
					t.Fatalf("%d bytes came where byte %d should be: they say %d", len(r.Data), got, n)
				}
				if got += size; got%(total/16) == 0 {
					most = max(most, liveheap.Bytes()-before)
				}
			}
			if got != total {
				t.Errorf("%d bytes came back, want %d", got, total)
			}
			if most > limit {
				t.Errorf("the heap grew by %d MiB, want less than %d", most>>20, limit>>20)
			}
			t.Logf("%d MiB went there and back, the heap grew by %.1f MiB at most", total>>20, float64(most)/(1<<20))
		})
	}
}

// TestAPausedDownload: the host has long said all when the consumer goes on to read.
func TestAPausedDownload(t *testing.T) {
	simulated(t, 2, func(t *testing.T, hosts []host.Host) {
		server, stop := bind(hosts[0], Options{})
		defer stop()
		data := strings.Repeat("x", 600_000)
		server.Serve(interact.Func(func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			return func(yield func(*interact.Message, error) bool) {
				for range 3 {
					if !yield(part(m, []byte(data)), nil) {
						return
					}
				}
				yield(done(m, ""), nil)
			}
		}))
		caller, stop := bind(hosts[1], Options{})
		defer stop()
		n := 0
		for r, err := range caller.at([]td.Host{at(t, hosts[0])}).Do(t.Context(), streamed(nothing)) {
			if err != nil {
				t.Fatalf("after %d replies: %v", n, err)
			}
			if n++; n <= 3 && string(r.Data) != data {
				t.Errorf("reply %d has %d bytes", n, len(r.Data))
			}
			time.Sleep(time.Minute)
		}
		if n != 4 {
			t.Errorf("got %d replies, want 4", n)
		}
		synctest.Wait()
		if c, s := caller.Stats(), server.Stats(); c.Streams != 0 || s.Streams != 0 {
			t.Errorf("%d and %d streams are left", c.Streams, s.Streams)
		}
	})
}

// TestASlowLink: a large frame may take long, as long as it moves.
func TestASlowLink(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		l, _ := sessionOf(t, r, true)
		sent := raw(frame.Chunk, 0, strings.Repeat("x", frame.MaxChunk))
		go func() {
			for b := range slicesOf(sent, 8<<10) { // 1 MiB in more than two minutes
				time.Sleep(time.Second)
				if _, err := w.Write(b); err != nil {
					return
				}
			}
		}()
		if f, err := l.read(); err != nil || len(f.Body) != frame.MaxChunk || l.reason() != nil {
			t.Errorf("got %d bytes, %v; the session ended with %v", len(f.Body), err, l.reason())
		}
	})
}

// slicesOf yields b in parts of n bytes.
func slicesOf(b []byte, n int) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for len(b) > 0 {
			p := b[:min(n, len(b))]
			if b = b[len(p):]; !yield(p) {
				return
			}
		}
	}
}
