package stream

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"testing"

	"github.com/lmosd/lmosd/interact"
)

// subscribe is a request for the events of a name.
func subscribe(name string) *interact.Message {
	return &interact.Message{Type: interact.SubscribeEvent, Thing: "urn:example:weather", ID: "id-1", Name: name}
}

// ticking is a thing with an event for each value that is sent to it, and a call.
func ticking(ticks <-chan struct{}) interact.Thing {
	return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		if !m.Type.Long() {
			return answering(ctx, m)
		}
		return func(yield func(*interact.Message, error) bool) {
			for yield(m.Reply(interact.Event, "", []byte(m.Name)), nil) {
				select {
				case <-ticks:
				case <-ctx.Done():
					yield(nil, ctx.Err())
					return
				}
			}
		}
	})
}

// TestAThousandSubscriptions: they share a session, and each gets what is its own.
func TestAThousandSubscriptions(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		const n, events = 1000, 20
		ticks := make(chan struct{})
		p := newPair(t, transport, ticking(ticks), Options{}, Options{})
		ctx, cancel := context.WithCancel(t.Context())
		var first, all sync.WaitGroup
		first.Add(n)
		for i := range n {
			all.Go(func() {
				name, seen := fmt.Sprint("event", i), 0
				for r, err := range p.thing.Do(ctx, subscribe(name)) {
					switch {
					case errors.Is(err, context.Canceled):
						return
					case err != nil || string(r.Data) != name || r.Name != name:
						t.Errorf("%s: got %v, %v", name, r, err)
						return
					}
					if seen++; seen == 1 {
						first.Done()
					}
				}
			})
		}
		first.Wait()
		for range n * events {
			ticks <- struct{}{}
		}
		if _, err := interact.Call(t.Context(), p.thing, ask("echo", "x")); err != nil {
			t.Errorf("a call meanwhile: %v", err)
		}
		if c, s := p.caller.Stats(), p.server.Stats(); c.Streams != 2 || s.ServingNow != n {
			t.Errorf("%d streams, and %d interactions are served, want 2 and %d", c.Streams, s.ServingNow, n)
		}
		cancel()
		all.Wait()
		settled(t, p)
	})
}

// TestTooManySubscriptions: one more than allowed is refused at once, here or there, and calls go on.
func TestTooManySubscriptions(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		for name, c := range map[string]struct {
			caller, server Options
			remote         bool
		}{
			"for the caller":           {Options{MaxLong: 3}, Options{}, false},
			"for the host":             {Options{}, Options{MaxLong: 3}, true},
			"for the host, of anybody": {Options{}, Options{MaxConcurrent: 3}, true},
		} {
			p := newPair(t, transport, ticking(nil), c.caller, c.server)
			ctx, cancel := context.WithCancel(t.Context())
			var all sync.WaitGroup
			for range 3 {
				got := make(chan struct{})
				all.Go(func() {
					for range p.thing.Do(ctx, subscribe("e")) {
						select {
						case <-got:
						default:
							close(got)
						}
					}
				})
				<-got
			}
			_, err := interact.Call(t.Context(), p.thing, subscribe("e"))
			if e := interact.AsError(err); e.Code != interact.Overloaded || e.Remote != c.remote || e.Hint == "" && e.Next == nil {
				t.Errorf("%s: got %v remote=%t, want Overloaded, remote=%t", name, err, e.Remote, c.remote)
			}
			if _, err := interact.Call(t.Context(), p.thing, ask("echo", "x")); err != nil {
				t.Errorf("%s: a call: %v", name, err)
			}
			cancel()
			all.Wait()
			settled(t, p)
		}
	})
}

// TestDrainEndsSubscriptions: they have no end of their own that could be waited for.
func TestDrainEndsSubscriptions(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		p := newPair(t, transport, ticking(nil), Options{}, Options{})
		var last error
		seen := 0
		for _, err := range p.thing.Do(t.Context(), subscribe("e")) {
			if last = err; err == nil {
				seen++
				go p.server.Drain(t.Context())
			}
		}
		if e := interact.AsError(last); seen != 1 || e.Code != interact.ShuttingDown || !e.Remote {
			t.Errorf("after %d events: %v, want ShuttingDown", seen, last)
		}
		p.server.Drain(t.Context())
		if _, err := interact.Call(t.Context(), p.thing, subscribe("e")); code(err) != interact.ShuttingDown {
			t.Errorf("another: got %v, want ShuttingDown", err)
		}
	})
}

// TestALostLaneOfSubscriptions: all on it learn of it, and the next takes a new session.
func TestALostLaneOfSubscriptions(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		p := newPair(t, transport, ticking(nil), Options{}, Options{})
		for range 2 {
			errs := make(chan error, 10)
			var first sync.WaitGroup
			first.Add(10)
			for range 10 {
				go func() {
					for _, err := range p.thing.Do(t.Context(), subscribe("e")) {
						if err != nil {
							errs <- err
							return
						}
						first.Done()
					}
				}()
			}
			first.Wait()
			for _, l := range p.server.all() {
				l.fail(errStuck)
			}
			for range 10 {
				if err := <-errs; code(err) != interact.Unreachable {
					t.Errorf("got %v, want Unreachable", err)
				}
			}
		}
		settled(t, p)
	})
}

func TestClasses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		m    *interact.Message
		want class
	}{
		"a call":                      {ask("a", ""), short},
		"a call for CBOR":             {&interact.Message{Type: interact.InvokeAction, Accept: "application/cbor"}, short},
		"a call for JSON of a kind":   {&interact.Message{Type: interact.InvokeAction, Accept: "application/ld+json; a=b"}, short},
		"a call for anything":         {&interact.Message{Type: interact.InvokeAction, Accept: "*/*"}, short},
		"a call for sound":            {&interact.Message{Type: interact.InvokeAction, Accept: "audio/opus"}, alone},
		"a picture of a property":     {&interact.Message{Type: interact.ReadProperty, Accept: "image/png"}, short},
		"a large call":                {&interact.Message{Type: interact.InvokeAction, Data: make([]byte, inline+1)}, alone},
		"a request stream":            {streamed(nothing), alone},
		"a subscription":              {subscribe("e"), long},
		"a subscription to all":       {&interact.Message{Type: interact.SubscribeAllEvents}, long},
		"an observation":              {&interact.Message{Type: interact.ObserveProperty}, long},
		"an observation of all":       {&interact.Message{Type: interact.ObserveAllProperties, Accept: "image/png"}, long},
		"a subscription with a book":  {&interact.Message{Type: interact.SubscribeEvent, Data: make([]byte, inline+1)}, alone},
		"a detached action is a call": {&interact.Message{Type: interact.InvokeAction, Detach: true}, short},
	} {
		if got := (request{m: c.m}).class(); got != c.want {
			t.Errorf("%s: got class %d, want %d", name, got, c.want)
		}
	}
}
