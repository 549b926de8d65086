package choice

import (
	"context"
	"fmt"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// A bench is a measured Thing that replies as its fields say.
type bench struct {
	*Meter[string]
	t     *testing.T
	thing interact.Thing

	takes   time.Duration
	replies []*interact.Message
	err     error // after the replies
}

func newBench(t *testing.T) *bench {
	b := &bench{Meter: &Meter[string]{}, t: t, replies: []*interact.Message{{Status: interact.StatusCompleted}}}
	b.thing = b.Middleware("a")(interact.Func(func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			time.Sleep(b.takes) // of synctest
			for _, r := range b.replies {
				if !yield(r, nil) {
					return
				}
			}
			if b.err != nil {
				yield(nil, b.err)
			}
		}
	}))
	return b
}

// call sends a message and returns the number of replies and errors that arrive.
func (b *bench) call(m interact.Message) (n int) {
	if m.Type == 0 {
		m.Type = interact.InvokeAction
	}
	if m.From == nil {
		m.From = did.Consumer(did.Process, "")
	}
	for range b.thing.Do(context.Background(), &m) {
		n++
	}
	return n
}

// answers and fails are the behavior of the next calls.
func (b *bench) answers(takes time.Duration) {
	b.takes, b.err, b.replies = takes, nil, []*interact.Message{{Status: interact.StatusCompleted}}
}

func (b *bench) fails(code interact.Code) {
	b.takes, b.err, b.replies = 0, &interact.Error{Code: code}, nil
}

func (b *bench) choice() Choice { return b.Order([]of{{Key: "a"}})[0] }

func (b *bench) want(reason string) {
	b.t.Helper()
	if got := b.choice().Reason; got != reason {
		b.t.Errorf("got %q, want %q", got, reason)
	}
}

func TestAverage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.want("not measured yet")
		b.answers(80 * ms)
		b.call(interact.Message{})
		b.want("80 ms on average")
		b.answers(160 * ms)
		b.call(interact.Message{})
		b.want("90 ms on average")
		// Neither the time of a subscription, nor of the start of a detached action, nor of a failure counts.
		b.answers(0)
		b.call(interact.Message{Type: interact.SubscribeEvent})
		b.call(interact.Message{Detach: true})
		b.fails(interact.AgentFailed)
		b.call(interact.Message{})
		b.want("90 ms on average")
		// Nor that of an action that asked for input; the first output counts.
		b.answers(time.Hour)
		b.replies = []*interact.Message{{Status: interact.StatusPending}, {Status: interact.StatusInputRequired}, {Status: interact.StatusCompleted}}
		if n := b.call(interact.Message{}); n != 3 {
			t.Errorf("%d of 3 replies were passed on", n)
		}
		b.want("not measured yet") // the last one is an hour old
		b.answers(20 * ms)
		b.replies = []*interact.Message{{Status: interact.StatusRunning, ContentType: interact.Progress}, {Status: interact.StatusRunning}, {Status: interact.StatusCompleted}}
		b.call(interact.Message{})
		b.want("20 ms on average")
		if n := b.failures(); n != 1 {
			t.Errorf("%d failures, want 1", n)
		}
	})
}

func (b *bench) failures() int { return b.all["a"].failures() }

func TestRunningCallsCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.answers(time.Second)
		for range 3 {
			go b.call(interact.Message{})
		}
		synctest.Wait()
		if c := b.choice(); c.Running != 3 || c.Cost != 4*floor {
			t.Errorf("got %+v", c)
		}
		time.Sleep(2 * time.Second)
		b.want("1000 ms on average")
		for range b.thing.Do(t.Context(), &interact.Message{Type: interact.InvokeAction}) { // a caller that leaves
			break
		}
		if c := b.choice(); c.Running != 0 {
			t.Errorf("got %+v", c)
		}
	})
}

func TestBreakerOpensAfterThreeUnreachableCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.fails(interact.Unreachable)
		for range 3 { // too slowly
			b.call(interact.Message{})
			time.Sleep(6 * time.Second)
		}
		b.want("not measured yet")
		b.call(interact.Message{})
		b.want("not measured yet")
		b.call(interact.Message{})
		b.want("5 of the last 5 calls failed")

		time.Sleep(openFor) // half open: one more failure opens it
		b.want("not measured yet")
		b.call(interact.Message{})
		b.want("6 of the last 6 calls failed")

		b.answers(5 * ms) // an answer closes it
		b.call(interact.Message{})
		b.want("5.0 ms on average")
		b.fails(interact.Unreachable)
		b.call(interact.Message{})
		b.call(interact.Message{})
		b.want("5.0 ms on average")
		b.call(interact.Message{})
		b.want("9 of the last 10 calls failed")
	})
}

// An agent that answers at once and wrong must not be preferred for its speed.
func TestBreakerOpensIfHalfOfTheCallsFail(t *testing.T) {
	t.Parallel()
	for _, code := range []interact.Code{interact.AgentFailed, interact.Internal, interact.Timeout, interact.Overloaded} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			for i := range 10 {
				b.fails(code)
				if b.call(interact.Message{}); i < 9 {
					b.answers(ms)
					b.call(interact.Message{})
					b.want("1.0 ms on average")
				}
			}
			b.want("10 of the last 19 calls failed")
			b.answers(ms)
			for range 30 {
				b.call(interact.Message{})
			}
			if n := b.failures(); n != 0 {
				t.Errorf("after 30 answers %d failures count", n)
			}
		})
	}
}

// What is shutting down, or does not offer the Thing, refuses the next call, too.
func TestBreakerOpensWithALastingRefusal(t *testing.T) {
	t.Parallel()
	for _, code := range []interact.Code{interact.ShuttingDown, interact.NotReady, interact.NotFound, interact.Withdrawn} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			b.fails(code)
			b.call(interact.Message{})
			b.want("1 of the last 1 calls failed")
			b.answers(ms)
			b.call(interact.Message{})
			b.want("1.0 ms on average")
		})
	}
}

// Half open, the breaker lets one call pass at a time.
func TestBreakerHalfOpen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.fails(interact.ShuttingDown)
		b.call(interact.Message{})
		time.Sleep(openFor)
		b.want("not measured yet")
		b.takes = time.Second
		go b.call(interact.Message{})
		synctest.Wait()
		b.want("1 of the last 1 calls failed")
		time.Sleep(2 * time.Second)
		b.want("2 of the last 2 calls failed")
	})
}

func TestWhatIsNoFailure(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		code interact.Code
		from *did.Principal
	}{
		"a bad input":            {interact.Invalid, nil},
		"a refusal":              {interact.Forbidden, nil},
		"a limit of the caller":  {interact.RateLimited, nil},
		"a caller that left":     {interact.Cancelled, nil},
		"calls of another node":  {interact.Timeout, did.NodePrincipal("did:key:z6Mk", "")},
		"calls without any name": {interact.Timeout, did.Consumer(did.Unproven, "")},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			b.fails(c.code)
			for range 20 {
				b.call(interact.Message{From: c.from})
			}
			if n := b.failures(); n != 0 {
				t.Errorf("%s: %d failures", name, n)
			}
		})
	}
}

func TestMeasurementsAreBounded(t *testing.T) {
	t.Parallel()
	m := &Meter[string]{}
	for i := range maxKeys + 10 {
		call := m.Begin(fmt.Sprint(i), &interact.Message{})
		call.End()
	}
	if n := len(m.all); n > maxKeys {
		t.Errorf("%d Things are measured", n)
	}
}
