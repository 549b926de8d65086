package hub

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"testing"

	"github.com/lmosd/lmosd/interact"
)

// BenchmarkFanout is an agent that talks as fast as its slowest consumer reads: the time is that of one event to all. The cost
// of a delivery is ns/op by the number of consumers, which is the same for any number.
func BenchmarkFanout(b *testing.B) {
	for _, subscribers := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprint(subscribers), func(b *testing.B) { fanout(b, subscribers, 128) })
	}
}

// BenchmarkOneByOne is the worst case: each event finds all consumers asleep, and the agent waits until all have it.
func BenchmarkOneByOne(b *testing.B) {
	for _, subscribers := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprint(subscribers), func(b *testing.B) { fanout(b, subscribers, 1) })
	}
}

// fanout has the agent be up to window events ahead.
func fanout(b *testing.B, subscribers, window int) {
	h := New(Options{Queue: 1024})
	defer h.Close()
	events := make(chan *interact.Message)
	thing := interact.Chain(interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			for e := range events {
				for range window {
					if !yield(e, nil) {
						return
					}
				}
			}
		}
	}), h.Middleware())
	var wg, round sync.WaitGroup
	for range subscribers {
		wg.Go(func() {
			n := 0
			for _, err := range thing.Do(b.Context(), &interact.Message{ID: "m", Type: interact.SubscribeEvent, Name: "e"}) {
				if err != nil {
					b.Error(err)
					return
				}
				if n++; n%window == 0 {
					round.Done()
				}
			}
		})
	}
	for n := 0; n != subscribers; _, n = h.Count() {
	}
	event := &interact.Message{Type: interact.Event, ID: "e", Name: "e", Data: []byte(`{"temperature":21.5}`)}
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i += window {
		round.Add(subscribers)
		events <- event
		round.Wait()
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N*subscribers)/b.Elapsed().Seconds(), "deliveries/s")
	close(events)
	wg.Wait()
}
