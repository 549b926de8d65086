package policy

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

const (
	invoke    = interact.InvokeAction
	read      = interact.ReadProperty
	subscribe = interact.SubscribeEvent
	observe   = interact.ObserveAllProperties
)

// lasting is a Thing whose interactions run until they are cancelled.
var lasting = interact.Func(func(ctx context.Context, _ *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		<-ctx.Done()
		yield(nil, ctx.Err())
	}
})

// begin runs an interaction of each type in a bubble, until end is called.
func begin(t *testing.T, thing interact.Thing, from did.DID, types ...interact.Type) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, typ := range types {
		wg.Go(func() {
			_, err := interact.Call(ctx, thing, &interact.Message{Type: typ, From: who(from), Thing: "urn:x"})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("type %d of %q, for which there is room: %v", typ, from, err)
			}
		})
	}
	synctest.Wait()
	return func() {
		cancel()
		wg.Wait()
	}
}

// refused checks that a message is rejected with code, and that the hint of the error names the key of the limit.
func refused(t *testing.T, thing interact.Thing, from did.DID, typ interact.Type, want interact.Code, key string) {
	t.Helper()
	_, err := interact.Call(t.Context(), thing, &interact.Message{Type: typ, From: who(from), Thing: "urn:x", Deadline: time.Now().Add(time.Second)})
	e := interact.AsError(err)
	if e == nil || e.Code != want || !e.Code.Retryable() || !strings.Contains(e.Hint, key) || e.Title == "" {
		t.Errorf("type %d of %q: got %v, want %v that names %s", typ, from, err, want, key)
	}
}

func TestCallerConcurrency(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := New(Rules{CallerConcurrency: 2})
		thing := interact.Chain(lasting, p.Limit())
		for range 2 { // ended ones do not count
			end := begin(t, thing, alice, invoke, read)
			refused(t, thing, alice, invoke, interact.Overloaded, "interact.per_caller")
			// Subscriptions of the same caller, other callers, and callers on this host do not count.
			ends := []func(){begin(t, thing, alice, subscribe, observe, observe), begin(t, thing, bob, invoke, invoke),
				begin(t, thing, local, invoke, invoke, invoke, invoke)}
			refused(t, thing, bob, invoke, interact.Overloaded, "interact.per_caller")
			for _, end := range append(ends, end) {
				end()
			}
		}
	})
}

func TestSubscriptions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := New(Rules{Subscriptions: 2, Concurrency: 1, CallerConcurrency: 1})
		thing := interact.Chain(lasting, p.Limit())
		end := begin(t, thing, alice, subscribe, observe)
		refused(t, thing, alice, subscribe, interact.Overloaded, "interact.subscriptions")
		refused(t, thing, alice, observe, interact.Overloaded, "interact.subscriptions")
		begin(t, thing, bob, subscribe)()
		begin(t, thing, local, subscribe, subscribe, subscribe)()
		other := begin(t, thing, alice, invoke) // independent of the subscriptions
		refused(t, thing, alice, invoke, interact.Overloaded, "interact.per_caller")
		refused(t, thing, bob, invoke, interact.Overloaded, "interact.concurrency")
		other()
		end()
		begin(t, thing, alice, subscribe, observe)()
	})
}

// An interaction that the limit of the node rejects does not count for its caller.
func TestRefusedIsNotCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := New(Rules{Concurrency: 1, CallerConcurrency: 2})
		thing := interact.Chain(lasting, p.Limit())
		end := begin(t, thing, bob, invoke)
		for range 5 {
			refused(t, thing, alice, invoke, interact.Overloaded, "interact.concurrency")
		}
		end()
		if n := p.callers.all[alice].running.all; n != 0 {
			t.Errorf("%d of alice are counted, want none", n)
		}
		begin(t, thing, alice, invoke)()
		if !p.peers.unused() {
			t.Errorf("%+v are counted, want none", p.peers.used)
		}
	})
}

func TestThingConcurrency(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := New(Rules{ThingConcurrency: 2})
		lamp, clock := interact.Chain(lasting, p.LimitThing("urn:lamp", 0, nil)), interact.Chain(lasting, p.LimitThing("urn:clock", 0, nil))
		again := interact.Chain(lasting, p.LimitThing("urn:lamp", 0, nil)) // offered again
		end := begin(t, lamp, alice, invoke)
		local1 := begin(t, again, local, invoke)
		for _, from := range []did.DID{alice, bob, local} {
			refused(t, lamp, from, read, interact.Overloaded, "interact.per_thing")
			refused(t, again, from, read, interact.Overloaded, "interact.per_thing")
		}
		begin(t, lamp, bob, subscribe, observe, subscribe)()
		begin(t, clock, local, invoke, invoke)()
		end()
		local1()
		begin(t, lamp, local, invoke, invoke)()
	})
}

func TestPerThing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := New(Rules{PerThing: 4})
		lamp, clock := interact.Chain(answering, p.LimitThing("urn:lamp", 0, nil)), interact.Chain(answering, p.LimitThing("urn:clock", 0, nil))
		passed := func(n int) (ok int) {
			for i := range n {
				switch err := ask(t.Context(), lamp, []did.DID{alice, bob}[i%2]); {
				case err == nil:
					ok++
				case code(err) != interact.RateLimited:
					t.Errorf("got %v, want RateLimited", err)
				}
			}
			return ok
		}
		if n := passed(20); n != 4 {
			t.Errorf("%d of 20 at once passed, want what a second brings: 4", n)
		}
		refused(t, lamp, alice, subscribe, interact.RateLimited, "trust.rate.per_thing")
		for range 100 {
			if err := ask(t.Context(), lamp, local); err != nil {
				t.Fatalf("on this machine: %v", err)
			}
		}
		if err := ask(t.Context(), clock, alice); err != nil {
			t.Errorf("another agent: %v", err)
		}
		time.Sleep(500 * time.Millisecond)
		if n := passed(20); n != 2 {
			t.Errorf("%d of 20 passed after 500 ms at 4 a second, want 2", n)
		}
	})
}

func TestThingBurst(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rules Rules
		want  int
	}{
		"its own":               {Rules{PerThing: 0.001, ThingBurst: 7}, 7},
		"what a second brings":  {Rules{PerThing: 30.5}, 30},
		"at least one":          {Rules{PerThing: 0.001}, 1},
		"a rate beyond numbers": {Rules{PerThing: 1e300}, 1 << 30},
	} {
		if got := New(c.rules).things.get(thingKey{}, time.Now()).calls.Load().limit.Burst; got != float64(c.want) {
			t.Errorf("%s: a burst of %g, want %d", name, got, c.want)
		}
	}
}

// An account with a running interaction is kept; others are dropped.
func TestAccountsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := New(Rules{CallerConcurrency: 1, Subscriptions: 1})
		thing := interact.Chain(lasting, p.Limit())
		end, endSub := begin(t, thing, alice, invoke), begin(t, thing, bob, subscribe)
		for i := range maxCallers + 50 {
			begin(t, thing, did.DID(fmt.Sprint("did:key:z", i)), invoke)()
		}
		if n := len(p.callers.all); n > maxCallers+1 {
			t.Errorf("%d accounts, want at most %d", n, maxCallers+1)
		}
		time.Sleep(time.Hour)
		begin(t, thing, "did:key:zlast", invoke)()
		if n := len(p.callers.all); n > 3 {
			t.Errorf("%d accounts after an hour, want those that have something running", n)
		}
		refused(t, thing, alice, invoke, interact.Overloaded, "interact.per_caller")
		refused(t, thing, bob, subscribe, interact.Overloaded, "interact.subscriptions")
		end()
		endSub()
	})
}

// Beyond the limit new callers share an account; others keep theirs.
func TestLatecomersShare(t *testing.T) {
	t.Parallel()
	a := newAccounts(2, func(*account, string) {})
	now := time.Now()
	first, second := a.get("a", now), a.get("b", now)
	third, fourth := a.get("c", now), a.get("d", now)
	if third != fourth || first == second || third == first || a.get("a", now) != first {
		t.Error("want two accounts of their own, and one that the rest share")
	}
}

func TestZeroLimits(t *testing.T) {
	t.Parallel()
	p := New(Rules{Concurrency: 1})
	thing := interact.Chain(answering, p.LimitThing("urn:x", 0, nil), p.Limit())
	if err := ask(t.Context(), thing, alice); err != nil {
		t.Error(err)
	}
	if len(p.things.all)+len(p.callers.all) != 0 {
		t.Error("accounts are kept where nothing is counted")
	}
}

func TestThingAllocates(t *testing.T) {
	m := &interact.Message{Type: invoke, From: who(alice)}
	for name, c := range map[string]struct {
		rules Rules
		want  float64
	}{"no limit": {Rules{}, 0}, "a rate": {Rules{PerThing: 1e12}, 0}, "a rate and counted": {Rules{PerThing: 1e12,
		ThingConcurrency: 9}, 1}} {
		thing := interact.Chain(answering, New(c.rules).LimitThing("urn:x", 0, nil))
		n := testing.AllocsPerRun(100, func() {
			thing.Do(t.Context(), m)(func(*interact.Message, error) bool { return true })
		})
		if n > c.want {
			t.Errorf("%s: %v allocations, want %v", name, n, c.want)
		}
	}
}

// A TD may set a lower limit, tunnels have their own places, and waiting calls get a place.
func TestPlacesOfAThing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := New(Rules{ThingConcurrency: 64})
		tunnel := func(name string) bool { return name == "session" }
		one := interact.Chain(lasting, p.LimitThing("urn:one", 1, tunnel))
		end := begin(t, one, alice, invoke)
		refused(t, one, local, read, interact.Overloaded, "interact.per_thing")
		ctx, cancel := context.WithCancel(t.Context())
		var tunnels sync.WaitGroup
		for range tunnelsEach / 4 {
			tunnels.Go(func() {
				_, _ = interact.Call(ctx, one, &interact.Message{Type: invoke, From: who(bob), Name: "session", Chunks: func(func([]byte, error) bool) {}})
			})
		}
		synctest.Wait()
		if n := p.things.get(p.thing("urn:one", 1), time.Now()).tunnels.used[untrusted]; n != 1 {
			t.Errorf("%d tunnels are open, want 1", n)
		}
		answered := make(chan error)
		go func() {
			answered <- ask(t.Context(), interact.Chain(answering, p.LimitThing("urn:one", 1, tunnel)), bob)
		}()
		synctest.Wait()
		end()
		if err := <-answered; err != nil {
			t.Errorf("the waiting call: %v", err)
		}
		cancel()
		tunnels.Wait()
	})
}

// Reads and calls have separate rates, and both errors have the time to wait.
func TestReadsHaveASeparateRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		thing := interact.Chain(answering, New(Rules{PerPeer: 2, Burst: 3, ReadsPerPeer: 20}).Limit())
		passed := func(typ interact.Type) (n int, last *interact.Error) {
			for range 50 {
				_, err := interact.Call(t.Context(), thing, &interact.Message{Type: typ, From: who(alice)})
				if last = interact.AsError(err); last == nil {
					n++
				}
			}
			return n, last
		}
		for _, c := range []struct {
			typ  interact.Type
			want int
			wait time.Duration
		}{{read, 20, 50 * time.Millisecond}, {invoke, 3, 500 * time.Millisecond}, {interact.QueryAction, 0, 50 * time.Millisecond}, {subscribe, 0, 500 * time.Millisecond}} {
			n, e := passed(c.typ)
			if n != c.want || e == nil || e.Code != interact.RateLimited || e.RetryAfter != c.wait {
				t.Errorf("of type %d %d came through, and then %+v; want %d, and %v to wait", c.typ, n, e, c.want, c.wait)
			}
		}
		time.Sleep(500 * time.Millisecond)
		if n, _ := passed(invoke); n != 1 {
			t.Errorf("after the time to wait %d came through, want 1", n)
		}
	})
}

// A busy consumer gets what the others leave, and not their parts; together they have the rate of their node.
func TestConsumersOfANodeHaveRates(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rules Rules
		typ   interact.Type
	}{"calls": {Rules{PerPeer: 10, Burst: 20}, invoke}, "reads": {Rules{ReadsPerPeer: 10, Burst: 20}, read}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				thing := interact.Chain(answering, New(c.rules).Limit())
				passed := func(name string, n int) (ok int) {
					for range n {
						_, err := interact.Call(t.Context(), thing, &interact.Message{Type: c.typ, From: did.NodePrincipal(alice, name)})
						switch e := interact.AsError(err); {
						case e == nil:
							ok++
						case e.Code != interact.RateLimited || e.RetryAfter <= 0:
							t.Fatalf("got %v, want RateLimited and a time to wait", err)
						}
					}
					return ok
				}
				if n := passed("greedy", 100); n != 20 {
					t.Errorf("%d at once by the only consumer, want the burst of 20", n)
				}
				passed("modest", 1) // it now has a part
				greedy, modest := 0, 0
				for i := range 100 {
					time.Sleep(100 * time.Millisecond)
					if greedy += passed("greedy", 10); i%4 == 3 {
						modest += passed("modest", 1)
					}
				}
				if modest != 25 || greedy < 64 || greedy > 75 {
					t.Errorf("in 10 s %d of 25 of one consumer, and %d of the other; want all, and what they leave of 100 and keep", modest, greedy)
				}
				time.Sleep(10 * time.Second)
				if n := passed("greedy", 100) + passed("modest", 100) + passed("another", 100) + passed("", 100); n != 20 {
					t.Errorf("%d at once by four consumers, want the burst of 20 of their node", n)
				}
			})
		})
	}
}

// One consumer leaves a quarter of the interactions of its node, and together they have no more than the node.
func TestConsumersOfANodeRunAtOnce(t *testing.T) {
	t.Parallel()
	c := &counts{}
	enter := func(name string) (n int) {
		for c.enter(name, 16) {
			n++
		}
		return n
	}
	if a, b := enter("a"), enter("b"); a != 12 || b != 1 {
		t.Errorf("%d of the first consumer and %d of the second, want 12 and 1", a, b)
	}
	for _, name := range []string{"c", "", "d"} {
		if n := enter(name); n != 1 {
			t.Errorf("%d of %q, want 1", n, name)
		}
	}
	if n := enter("e"); n != 0 || c.all != 16 {
		t.Errorf("%d of the last, and %d of all; want none, and 16", n, c.all)
	}
	for name, n := range map[string]int{"a": 12, "b": 1, "c": 1, "": 1, "d": 1} {
		for range n {
			c.leave(name)
		}
	}
	if !c.none() || len(c.by) != 0 {
		t.Errorf("%d are left, of %d consumers", c.all, len(c.by))
	}
}

// Unknown keys that call an agent continuously leave the part of a partner.
func TestAgentsHaveRatesForEach(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lamp := interact.Chain(answering, New(Rules{PerThing: 10, ThingBurst: 20}).LimitThing("urn:lamp", 0, nil))
		fresh := 0
		flood := func() (ok int) {
			for range 20 {
				if fresh++; ask(t.Context(), lamp, did.DID(fmt.Sprint("did:key:z", fresh))) == nil {
					ok++
				}
			}
			return ok
		}
		_, _ = flood(), ask(t.Context(), lamp, friend)
		strangers := 0
		for i := range 100 {
			time.Sleep(100 * time.Millisecond)
			if strangers += flood(); i%4 == 3 {
				if err := ask(t.Context(), lamp, friend); err != nil {
					t.Fatal(err)
				}
			}
		}
		if strangers < 64 || strangers > 75 {
			t.Errorf("%d of untrusted callers in 10 s, want what is left of 100", strangers)
		}
	})
}

// Subscriptions of unknown keys leave room for those of known callers, and both for those of partners; ended ones do not count.
func TestSubscriptionsOfUntrustedCallers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := New(Rules{Subscriptions: 256})
		thing := interact.Chain(lasting, p.Limit())
		many := slices.Repeat([]interact.Type{subscribe}, 256)
		for range 2 {
			var ends []func()
			for i := range 4 {
				ends = append(ends, begin(t, thing, did.DID(fmt.Sprint("did:key:zFresh", i)), many...))
			}
			refused(t, thing, "did:key:zNext", subscribe, interact.Overloaded, "invitation")
			for i := range 4 {
				id := did.DID(fmt.Sprint("did:key:zKnown", i))
				p.met.succeeded(id, time.Now().Add(-probation))
				ends = append(ends, begin(t, thing, id, many...))
			}
			p.met.succeeded(alice, time.Now().Add(-probation))
			refused(t, thing, alice, subscribe, interact.Overloaded, "invitation")
			ends = append(ends, begin(t, thing, friend, many...), begin(t, thing, local, many...))
			for _, end := range ends {
				end()
			}
			if p.untrusted.Load() != 0 || p.unverified.Load() != 0 {
				t.Errorf("%d and %d are counted when all have ended", p.untrusted.Load(), p.unverified.Load())
			}
		}
	})
}
