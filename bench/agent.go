package main

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/lmosd/lmosd/interact"
)

const chunkSize = 64 << 10

// payload is a JSON text of payloadSize bytes.
var payload = []byte(`"` + strings.Repeat("x", payloadSize-2) + `"`)

// An agent runs in the process of its node. Its description is benchTD.
type agent struct {
	mu   sync.Mutex
	subs map[*subscription]struct{}
}

// A subscription receives events from a channel until it ends.
type subscription struct {
	events chan []byte
	gone   <-chan struct{}
}

// Do implements interact.Thing.
func (a *agent) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	switch {
	case m.Type == interact.SubscribeEvent:
		return a.subscribe(ctx, m)
	case m.Name == "upload":
		return interact.Unary(upload).Do(ctx, m)
	case m.Name == "download":
		return download(m)
	case m.Name == "publish":
		return interact.Unary(a.publish).Do(ctx, m)
	case m.Name == "stats":
		return interact.Unary(a.stats).Do(ctx, m)
	}
	return interact.One(completed(m, m.Data))
}

func completed(m *interact.Message, data []byte) *interact.Message {
	return m.ReplyStatus(interact.StatusCompleted, interact.JSON, data)
}

func (a *agent) subscribe(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		s := &subscription{make(chan []byte, batch), ctx.Done()}
		a.mu.Lock()
		a.subs[s] = struct{}{}
		a.mu.Unlock()
		defer func() {
			a.mu.Lock()
			delete(a.subs, s)
			a.mu.Unlock()
		}()
		for {
			select {
			case data := <-s.events:
				if !yield(m.Reply(interact.Event, interact.JSON, data), nil) {
					return
				}
			case <-ctx.Done():
				yield(nil, ctx.Err())
				return
			}
		}
	}
}

// publish sends a batch of events to every subscription. The input is the number of the first; a negative one requests a single event.
func (a *agent) publish(_ context.Context, m *interact.Message) (*interact.Message, error) {
	first, err := strconv.Atoi(string(m.Data))
	if err != nil {
		return nil, err
	}
	n := batch
	if first < 0 {
		n = 1
	}
	a.mu.Lock()
	subs := make([]*subscription, 0, len(a.subs))
	for s := range a.subs {
		subs = append(subs, s)
	}
	a.mu.Unlock()
	for i := range n {
		data := numbered(first + i)
		for _, s := range subs {
			select {
			case s.events <- data:
			case <-s.gone:
			}
		}
	}
	return completed(m, []byte("null")), nil
}

// numbered returns an event: a JSON string of payloadSize bytes that begins with i.
func numbered(i int) []byte {
	data := append(make([]byte, 0, payloadSize), payload...)
	copy(data[1:], fmt.Sprintf("%012d ", i))
	return data
}

// numberOf returns the number of an event.
func numberOf(data []byte) (int, error) {
	if len(data) != payloadSize {
		return 0, fmt.Errorf("an event of %d bytes", len(data))
	}
	return strconv.Atoi(string(data[1:13]))
}

// upload reads a request stream and returns its size.
func upload(_ context.Context, m *interact.Message) (*interact.Message, error) {
	n := 0
	for chunk, err := range m.Chunks {
		if err != nil {
			return nil, err
		}
		n += len(chunk)
	}
	return completed(m, strconv.AppendInt(nil, int64(n), 10)), nil
}

// download is an endless response stream.
func download(m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		chunk := make([]byte, chunkSize)
		for {
			if !yield(m.ReplyStatus(interact.StatusRunning, "application/octet-stream", chunk), nil) {
				return
			}
		}
	}
}

// stats is the resource usage of a process.
type stats struct {
	Mallocs    uint64        // allocated objects since the start
	Heap       uint64        // bytes in use after a collection
	Stacks     uint64        // bytes
	Goroutines int           //
	CPU        time.Duration // since the start
}

// memory returns the bytes of heap and stacks.
func (s stats) memory() float64 { return float64(s.Heap + s.Stacks) }

// measured collects garbage and returns the usage of this process.
func measured() stats {
	var m runtime.MemStats
	var u syscall.Rusage
	runtime.GC()
	runtime.GC() // pooled objects survive one collection
	runtime.ReadMemStats(&m)
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return stats{Mallocs: m.Mallocs, Heap: m.HeapAlloc, Stacks: m.StackInuse, Goroutines: runtime.NumGoroutine(),
		CPU: time.Duration(u.Utime.Nano() + u.Stime.Nano())}
}

func (a *agent) stats(_ context.Context, m *interact.Message) (*interact.Message, error) {
	b, err := json.Marshal(measured())
	return completed(m, b), err
}
