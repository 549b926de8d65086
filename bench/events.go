package main

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// events prints the cost of a subscription and the rate of events, for several numbers of subscriptions on one node to an agent of another:
// first all with the same input, then each with its own, so that the nodes cannot share them.
func events(ctx context.Context, p plan) error {
	p.table("subscriptions | until all are established | memory of each, consumer's node | host's node | deliveries/s | CPU per delivery")
	for _, same := range []bool{true, false} {
		for _, n := range []int{1, 10, 100, 1000} {
			var runs []delivery
			for round := range p.rounds {
				d, err := deliver(ctx, n, same, p.length)
				if err != nil {
					return fmt.Errorf("%d subscriptions: %w", n, err)
				}
				runs = append(runs, d)
				progress("round %d  %4d subscriptions, same=%-5t  %9.0f/s", round+1, n, same, d.rate)
			}
			p.row("%s", eventsRow(n, same, runs))
			if same && n == 100 {
				p.atLeast("deliveries to 100 subscribers of the same", median(runs, func(d delivery) float64 { return d.rate }), 200_000, "/s")
			}
		}
	}
	return nil
}

func eventsRow(n int, same bool, runs []delivery) string {
	of := func(pick func(delivery) float64) float64 { return median(runs, pick) }
	what, memory := "different things", "– | –" // too few compared with other allocations
	if same {
		what = "the same"
	}
	if n >= 100 {
		memory = fmt.Sprintf("%.1f KiB | %.1f KiB", of(func(d delivery) float64 { return d.near })/1024, of(func(d delivery) float64 { return d.far })/1024)
	}
	return fmt.Sprintf("%d, %s | %.1f ms | %s | %.0f | %.2f µs", n, what, of(func(d delivery) float64 { return ms(d.begin) }), memory,
		of(func(d delivery) float64 { return d.rate }), of(func(d delivery) float64 { return us(d.cpu) }))
}

// A delivery is one measurement of n subscriptions.
type delivery struct {
	begin     time.Duration // until all were established
	near, far float64       // bytes of heap and stacks for each subscription
	rate      float64       // events received by subscribers, per second
	cpu       time.Duration // of both processes per delivery
}

// deliver subscribes n times, measures the cost, then the rate of events.
func deliver(ctx context.Context, n int, same bool, length time.Duration) (d delivery, err error) {
	l, err := newLink(ctx, "tcp")
	if err != nil {
		return d, err
	}
	defer l.stop()
	far, err := l.stats(ctx)
	if err != nil {
		return d, err
	}
	near, began := measured(), time.Now()
	a := &audience{link: l, size: n, batches: make(chan struct{}, ahead)}
	a.waiting.Store(int64(n))
	ctx, cancel := context.WithCancel(ctx)
	defer a.all.Wait()
	defer cancel()
	for i := range n {
		a.all.Go(func() { a.listen(ctx, cancel, i, same) })
	}
	if err := a.stand(ctx); err != nil {
		return d, err
	}
	d.begin = time.Since(began)
	now, err := l.stats(ctx)
	if err != nil {
		return d, err
	}
	here := measured()
	d.near = (here.memory() - near.memory()) / float64(n)
	d.far = (now.memory() - far.memory()) / float64(n)

	began = time.Now()
	rounds, err := a.flow(ctx, length)
	took := time.Since(began)
	if err != nil {
		return d, err
	}
	end, err := l.stats(ctx)
	received := float64(rounds * batch * n)
	d.rate = received / took.Seconds()
	d.cpu = time.Duration(float64(measured().CPU-here.CPU+end.CPU-now.CPU) / received)
	return d, err
}

// The publisher is at most ahead batches of events before the slowest subscriber. It is as fast as its subscribers, and a node never queues
// more for one Thing than it keeps (interact/hub).
const (
	batch = 20
	ahead = 3
)

// An audience is the subscribers of one measurement.
type audience struct {
	*link
	size     int
	all      sync.WaitGroup
	waiting  atomic.Int64        // subscribers that have received nothing yet
	received [ahead]atomic.Int64 // received events of a batch, by its number modulo ahead
	batches  chan struct{}       // an element for each batch that all subscribers received
	failed   atomic.Pointer[error]
}

// listen counts the events of one subscription.
func (a *audience) listen(ctx context.Context, giveUp context.CancelFunc, i int, same bool) {
	m := &interact.Message{From: did.Consumer(did.Process, ""), Type: interact.SubscribeEvent, Thing: a.ref, Name: "tick"}
	if !same {
		m.Data = strconv.AppendQuote(nil, fmt.Sprint(i))
	}
	first := true
	for r, err := range a.node.Mesh().Do(ctx, m) {
		number := 0
		if err == nil {
			number, err = numberOf(r.Data)
		}
		if err != nil {
			if ctx.Err() == nil {
				a.failed.Store(&err)
				giveUp()
			}
			return
		}
		if first {
			first = false
			a.waiting.Add(-1)
		}
		if number >= 0 {
			a.count(number / batch)
		}
	}
}

// count records that a subscriber received an event of a batch.
func (a *audience) count(b int) {
	n := &a.received[b%ahead]
	if n.Add(1) == int64(batch*a.size) {
		n.Store(0)
		a.batches <- struct{}{}
	}
}

// stand waits until all subscriptions are established: it publishes single events until all subscribers received one.
func (a *audience) stand(ctx context.Context) error {
	for a.waiting.Load() > 0 {
		if _, err := a.invoke(ctx, "publish", []byte("-1")); err != nil {
			return a.cause(err)
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

// flow publishes for a time, and returns the number of batches that all subscribers received.
func (a *audience) flow(ctx context.Context, length time.Duration) (rounds int, err error) {
	sent := 0
	for deadline := time.Now().Add(length); time.Now().Before(deadline); sent++ {
		if sent-rounds == ahead {
			if err := a.await(ctx); err != nil {
				return rounds, err
			}
			rounds++
		}
		if _, err := a.invoke(ctx, "publish", strconv.AppendInt(nil, int64(sent*batch), 10)); err != nil {
			return rounds, a.cause(err)
		}
	}
	for ; rounds < sent; rounds++ {
		if err := a.await(ctx); err != nil {
			return rounds, err
		}
	}
	return rounds, nil
}

// await waits until all subscribers received another batch.
func (a *audience) await(ctx context.Context) error {
	select {
	case <-a.batches:
		return nil
	case <-ctx.Done():
		return a.cause(ctx.Err())
	}
}

// cause returns why a subscription failed, or else err.
func (a *audience) cause(err error) error {
	if e := a.failed.Load(); e != nil {
		return *e
	}
	return err
}
