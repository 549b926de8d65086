package hub

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// An agent yields the events of a test.
type agent struct {
	mu    sync.Mutex
	asked []*interact.Message
	runs  []chan *interact.Message // of each observation; closing one ends it
	ended int
	fail  error // of the next observation, at once
}

func (a *agent) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		a.mu.Lock()
		says, fail := make(chan *interact.Message), a.fail
		a.asked, a.runs, a.fail = append(a.asked, m), append(a.runs, says), nil
		a.mu.Unlock()
		defer func() {
			a.mu.Lock()
			a.ended++
			a.mu.Unlock()
		}()
		if fail != nil {
			yield(nil, fail)
			return
		}
		for {
			select {
			case r, ok := <-says:
				switch {
				case !ok:
					return
				case r.Type == 0:
					yield(nil, errBroken)
					return
				case !yield(r, nil):
					return
				}
			case <-ctx.Done():
				yield(nil, ctx.Err())
				return
			}
		}
	}
}

var errBroken = interact.Errorf(interact.AgentFailed, "look at it", "the sensor broke")

// say makes the latest observation yield texts.
func (a *agent) say(texts ...string) {
	for _, text := range texts {
		a.give(&interact.Message{Type: interact.Event, Thing: "urn:clock", Name: "tick", Data: []byte(text)})
	}
}

func (a *agent) give(m *interact.Message) {
	a.mu.Lock()
	last := len(a.runs) - 1
	a.mu.Unlock()
	a.giveTo(last, m)
}

// giveTo makes the observation with the number run yield m.
func (a *agent) giveTo(run int, m *interact.Message) {
	a.mu.Lock()
	says := a.runs[run]
	a.mu.Unlock()
	says <- m
	synctest.Wait()
}

func (a *agent) counts() (asked, running int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.asked), len(a.asked) - a.ended
}

// A listener is a consumer in a goroutine.
type listener struct {
	mu   sync.Mutex
	got  []*interact.Message
	err  error
	stop context.CancelFunc
	done chan struct{}
}

// listen subscribes to tick of thing, with change applied to the message.
func listen(t *testing.T, thing interact.Thing, change ...func(*interact.Message)) *listener {
	m := &interact.Message{Type: interact.SubscribeEvent, Thing: "urn:clock", Name: "tick"}
	for _, c := range change {
		c(m)
	}
	ctx, stop := context.WithCancel(t.Context())
	l := &listener{stop: stop, done: make(chan struct{})}
	go func() {
		defer close(l.done)
		for r, err := range thing.Do(ctx, m) {
			l.mu.Lock()
			if l.err = err; err == nil {
				l.got = append(l.got, r)
			}
			l.mu.Unlock()
		}
	}()
	synctest.Wait()
	return l
}

func after(id string) func(*interact.Message) { return func(m *interact.Message) { m.After = id } }

// leave has the consumer leave.
func (l *listener) leave() {
	l.stop()
	<-l.done
	synctest.Wait()
}

func (l *listener) texts() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []string
	for _, r := range l.got {
		all = append(all, string(r.Data))
	}
	return strings.Join(all, " ")
}

// ids are those of the events that it got.
func (l *listener) ids() (all []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.got {
		all = append(all, r.ID)
	}
	return all
}

// ended reports whether it is over, and with which error.
func (l *listener) ended() (error, bool) {
	select {
	case <-l.done:
		return l.err, true
	default:
		return nil, false
	}
}

// bubble runs test with a hub in a bubble, and fails if anything of the agent is left.
func bubble(t *testing.T, o Options, test func(t *testing.T, h *Hub, a *agent, thing interact.Thing)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, a := New(o), &agent{}
		ctx, stop := context.WithCancel(context.Background())
		ran := make(chan error)
		go func() { ran <- h.Run(ctx) }()
		test(t, h, a, interact.Chain(a, h.Middleware()))
		stop()
		if err := <-ran; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
		h.Close()
		synctest.Wait()
		if _, running := a.counts(); running != 0 {
			t.Errorf("%d observations run after Close", running)
		}
	})
}

func want(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

func TestOneObservationForAll(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, h *Hub, a *agent, thing interact.Thing) {
		l1 := listen(t, thing, func(m *interact.Message) { m.ID, m.TraceParent = "m1", "00-1" })
		a.say("a")
		l2 := listen(t, thing, func(m *interact.Message) { m.ID, m.Correlation, m.TraceState = "m2", "c2", "x=y" })
		a.say("b", "c")
		want(t, "the first", l1.texts(), "a b c")
		want(t, "the second", l2.texts(), "b c")
		if n, _ := a.counts(); n != 1 {
			t.Errorf("the agent received %d requests, want once", n)
		}
		if topics, subs := h.Count(); topics != 1 || subs != 2 {
			t.Errorf("%d topics and %d subscribers, want 1 and 2", topics, subs)
		}
		r1, r2 := l1.got[1], l2.got[0]
		if r1.Correlation != "m1" || r1.TraceParent != "00-1" || r2.Correlation != "c2" || r2.TraceParent != "" ||
			r2.TraceState != "x=y" {
			t.Errorf("got %+v and %+v, want each with the members of its request", r1, r2)
		}
		if r1 == r2 || r1.ID != r2.ID || r1.ID == "" || r1.Name != "tick" || &r1.Data[0] != &r2.Data[0] {
			t.Errorf("got %+v and %+v, want two messages of one event", r1, r2)
		}
		l1.leave()
		a.say("d")
		want(t, "the first, which left", l1.texts(), "a b c")
		want(t, "the second", l2.texts(), "b c d")
		if err, over := l1.ended(); !over || !errors.Is(err, context.Canceled) {
			t.Errorf("the one that cancelled got %v", err)
		}
		l2.leave()
	})
}

func TestSharedSubscriptions(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, h *Hub, a *agent, thing interact.Thing) {
		other := interact.Chain(a, h.Middleware()) // the same messages to another thing
		base := listen(t, thing)
		for name, change := range map[string]func(*interact.Message){
			"another affordance": func(m *interact.Message) { m.Name = "tock" },
			"another type":       func(m *interact.Message) { m.Type = interact.ObserveProperty },
			"input":              func(m *interact.Message) { m.Data = []byte("{}") },
			"input of a type":    func(m *interact.Message) { m.Data, m.ContentType = []byte("{}"), "text/plain" },
			"another way":        func(m *interact.Message) { m.Via = "mqtt" },
		} {
			before, _ := a.counts()
			l := listen(t, thing, change)
			if n, _ := a.counts(); n != before+1 {
				t.Errorf("%s: the agent received %d requests more, want once", name, n-before)
			}
			l2 := listen(t, thing, change)
			if n, _ := a.counts(); n != before+1 {
				t.Errorf("%s: the agent received a request for a second consumer", name)
			}
			l.leave()
			l2.leave()
		}
		before, _ := a.counts()
		l := listen(t, thing, func(m *interact.Message) {
			m.Thing, m.From, m.Accept, m.Deadline = "clock", who("did:key:x"), interact.CBOR, time.Now().Add(time.Hour)
		})
		l.leave()
		if n, _ := a.counts(); n != before {
			t.Error("another caller, name of the Thing, media type or deadline makes another observation")
		}
		listen(t, other).leave()
		if n, _ := a.counts(); n != before+1 {
			t.Error("two things share an observation")
		}
		base.leave()
	})
}

func TestSubscriptionAtTheAgent(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, h *Hub, a *agent, thing interact.Thing) {
		l := listen(t, thing, func(m *interact.Message) {
			m.From, m.Accept, m.Deadline, m.Timing = who("did:key:x"), interact.CBOR, time.Now().Add(time.Hour), &interact.Timing{}
			m.After, m.TraceParent, m.Hops = "e7", "00-1", 2
		})
		m := a.asked[0]
		if m.From.ID() != "did:key:x" || m.TraceParent != "00-1" || m.Hops != 2 || m.After != "e7" {
			t.Errorf("got %+v, want the request of the first consumer", m)
		}
		if m.Accept != "" || !m.Deadline.IsZero() || m.Timing != nil {
			t.Errorf("got %+v, want no members of one consumer", m)
		}
		l.leave()
	})
}

func TestOtherMessagesPass(t *testing.T) { // not parallel: it counts allocations
	h := New(Options{})
	defer h.Close()
	var got *interact.Message
	reply := &interact.Message{Type: interact.PropertyReading}
	seq := interact.One(reply)
	thing := interact.Chain(interact.Func(func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		got = m
		return seq
	}), h.Middleware())
	for typ := range interact.Type(40) {
		if typ.Long() {
			continue
		}
		m := &interact.Message{Type: typ}
		var passed *interact.Message
		take := func(r *interact.Message, _ error) bool { passed = r; return true }
		n := testing.AllocsPerRun(10, func() { thing.Do(t.Context(), m)(take) })
		if passed != reply {
			t.Errorf("type %d: got %v", typ, passed)
		}
		if got != m || n > 0 {
			t.Errorf("type %d: the message was changed, or passing cost %v allocations", typ, n)
		}
	}
}

func TestAfter(t *testing.T) {
	for name, ids := range map[string][]string{"IDs of the agent": {"e0", "e1", "e2", "e3", "e4"},
		"IDs of the hub": make([]string, 5)} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Options{}, func(t *testing.T, h *Hub, a *agent, thing interact.Thing) {
				first := listen(t, thing)
				for i, id := range ids {
					a.give(&interact.Message{Type: interact.Event, ID: id, Data: []byte(fmt.Sprint(i))})
				}
				got := first.ids()
				if ids[0] != "" && !slices.Equal(got, ids) {
					t.Errorf("got %v, want the agent's %v", got, ids)
				}
				if slices.Sort(got); len(slices.Compact(got)) != 5 {
					t.Errorf("%v are not five", got)
				}
				got = first.ids()
				for i, id := range got {
					l := listen(t, thing, after(id))
					want(t, "after "+id, l.texts(), strings.TrimSpace("0 1 2 3 4 "[2*i+2:]))
					l.leave()
				}
				none := listen(t, thing)
				want(t, "without After", none.texts(), "")
				gone := listen(t, thing, after("never heard of"))
				kept := "0 1 2 3 4 "
				if asked, _ := a.counts(); ids[0] == "" && asked != 1 || ids[0] != "" && asked != 2 {
					t.Errorf("the agent received %d requests: it may know what was before the ring if it gives IDs", asked)
				}
				if ids[0] != "" {
					kept = ""
				}
				a.say("5")
				want(t, "after what is not known", gone.texts(), kept+"5")
				first.leave()
				gone.leave()
				none.leave()
			})
		})
	}
}

// TestReplayBelongsToItsSubscriber: replayed events reach only the consumers that requested them, once each.
func TestReplayBelongsToItsSubscriber(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, h *Hub, a *agent, thing interact.Thing) {
		give := func(run int, ids ...string) {
			for _, id := range ids {
				a.giveTo(run, &interact.Message{Type: interact.Event, ID: id, Data: []byte(id)})
			}
		}
		back := listen(t, thing, after("e1"))
		give(0, "e2") // of the past, as are e3 and e4
		fresh, twin := listen(t, thing), listen(t, thing, after("e1"))
		give(0, "e3")
		later, other := listen(t, thing, after("e2")), listen(t, thing, after("e0"))
		give(0, "e4")
		give(2, "e1", "e2", "e3", "e4")
		for run := range 3 {
			give(run, "e5") // it is now
		}
		for _, c := range []struct{ what, got, want string }{
			{"the first, after e1", back.texts(), "e2 e3 e4 e5"}, {"without After", fresh.texts(), "e5"},
			{"another one after e1", twin.texts(), "e2 e3 e4 e5"}, {"after e2, which the ring has", later.texts(), "e3 e4 e5"},
			{"after e0, which it has not", other.texts(), "e1 e2 e3 e4 e5"}} {
			want(t, c.what, c.got, c.want)
		}
		for run, want := range []string{"e1", "", "e0"} {
			if got := a.asked[run].After; got != want || len(a.asked) != 3 {
				t.Errorf("observation %d of %d was asked for After %q, want %q of 3", run, len(a.asked), got, want)
			}
		}

		give(1, "e6")
		close(a.runs[1]) // the one without a past ends
		synctest.Wait()
		fresh = listen(t, thing)
		again := listen(t, thing, after("e6"))
		give(3, "e8")
		give(4, "e7", "e8")
		want(t, "without After, after an end", fresh.texts(), "e8")
		want(t, "after e6, after an end", again.texts(), "e7 e8")
		for i := range 20 {
			listen(t, thing, after(fmt.Sprint("x", i))).leave()
		}
		if asked, _ := a.counts(); asked > 5+maxReplays {
			t.Errorf("the agent received %d requests for one event", asked)
		}
		for _, l := range []*listener{back, twin, later, other, fresh, again} {
			l.leave()
		}
	})
}

func TestSameIDs(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, h *Hub, a *agent, thing interact.Thing) {
		l := listen(t, thing)
		for _, text := range []string{"0", "1", "2"} {
			a.give(&interact.Message{Type: interact.Event, ID: "same", Data: []byte(text)})
		}
		a.give(&interact.Message{Type: interact.Event, ID: strings.Repeat("x", 257), Data: []byte("3")})
		again := listen(t, thing, after("same"))
		want(t, "after an ID that several have", again.texts(), "1 2 3")
		if id := again.got[2].ID; len(id) > 256 {
			t.Errorf("an ID of %d bytes is passed on", len(id))
		}
		l.leave()
		again.leave()
	})
}

func TestLinger(t *testing.T) {
	bubble(t, Options{IdleTimeout: time.Minute}, func(t *testing.T, h *Hub, a *agent, thing interact.Thing) {
		l := listen(t, thing)
		a.say("0")
		id := l.ids()[0]
		l.leave()
		time.Sleep(59 * time.Second)
		a.say("1") // there are no listeners now
		l = listen(t, thing, after(id))
		want(t, "one that returns in time", l.texts(), "1")
		l.leave()
		time.Sleep(50 * time.Second)
		if _, running := a.counts(); running != 1 {
			t.Errorf("%d observations run 50 s after the last consumer left, want 1", running)
		}
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if topics, _ := h.Count(); topics != 0 {
			t.Errorf("%d topics after the time to linger", topics)
		}
		if asked, running := a.counts(); asked != 1 || running != 0 {
			t.Errorf("received %d times and %d run, want 1 and 0", asked, running)
		}
		l = listen(t, thing, after(id))
		if m := a.asked[1]; m.After != id {
			t.Errorf("the agent was asked after %q, want %q: it may know", m.After, id)
		}
		a.say("2")
		want(t, "one that returns late", l.texts(), "2")
		if l.ids()[0] == id {
			t.Error("two events have one ID")
		}
		l.leave()
	})
}

func TestNoLinger(t *testing.T) {
	bubble(t, Options{IdleTimeout: -1}, func(t *testing.T, h *Hub, a *agent, thing interact.Thing) {
		seen := map[string]bool{}
		for range 3 { // within the same millisecond
			l := listen(t, thing)
			a.say("x")
			seen[l.ids()[0]] = true
			l.leave()
			if _, running := a.counts(); running != 0 {
				t.Errorf("%d run after the only consumer has left", running)
			}
		}
		if len(seen) != 3 {
			t.Errorf("three events of three observations have the IDs %v", seen)
		}
	})
}

// TestFailureAtOnce: the error of the agent reaches the consumer, and no observation is left.
func TestFailureAtOnce(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, h *Hub, a *agent, thing interact.Thing) {
		for range 3 {
			a.fail = interact.Errorf(interact.NoAffordance, "", "unknown event tick")
			l := listen(t, thing)
			if err, over := l.ended(); !over || interact.AsError(err).Code != interact.NoAffordance {
				t.Errorf("got %v, %t, want the agent's NoAffordance", err, over)
			}
			if topics, subs := h.Count(); topics+subs != 0 {
				t.Errorf("%d topics and %d subscribers are left", topics, subs)
			}
		}
		l := listen(t, thing)
		a.say("now")
		want(t, "after the failures", l.texts(), "now")
		l.leave()
	})
}

// TestAgentCrashes: all listeners receive the earlier events, then the error; one that returns starts a new observation and receives what it missed.
func TestAgentCrashes(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, h *Hub, a *agent, thing interact.Thing) {
		l1, l2 := listen(t, thing), listen(t, thing)
		a.give(&interact.Message{Type: interact.Event, ID: "e0", Data: []byte("0")})
		a.give(&interact.Message{Type: interact.Event, ID: "e1", Data: []byte("1")})
		a.give(&interact.Message{}) // it breaks
		for _, l := range []*listener{l1, l2} {
			want(t, "before it died", l.texts(), "0 1")
			if err, over := l.ended(); !over || !errors.Is(err, error(errBroken)) {
				t.Errorf("got %v, %t, want the agent's error", err, over)
			}
		}
		l := listen(t, thing, after("e0"))
		want(t, "one that returns", l.texts(), "1")
		if asked, _ := a.counts(); asked != 2 {
			t.Errorf("the agent received %d requests, want 2", asked)
		}
		if m := a.asked[1]; m.After != "e1" {
			t.Errorf("the After is %q, want e1: the hub has the earlier events", m.After)
		}
		a.say("2")
		want(t, "and goes on", l.texts(), "1 2")
		l.leave()
	})
}

func TestAgentEnds(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, h *Hub, a *agent, thing interact.Thing) {
		l1, l2 := listen(t, thing), listen(t, thing)
		a.say("bye")
		close(a.runs[0])
		synctest.Wait()
		for _, l := range []*listener{l1, l2} {
			want(t, "before the end", l.texts(), "bye")
			if err, over := l.ended(); !over || err != nil {
				t.Errorf("got %v, %t, want a quiet end", err, over)
			}
		}
	})
}

func TestAgentPanicsOrReturnsNothing(t *testing.T) {
	t.Parallel()
	h := New(Options{})
	defer h.Close()
	for name, agent := range map[string]interact.Func{
		"panic": func(context.Context, *interact.Message) iter.Seq2[*interact.Message, error] { panic("oh") },
		"nil":   func(context.Context, *interact.Message) iter.Seq2[*interact.Message, error] { return interact.One(nil) },
	} {
		_, err := interact.Call(t.Context(), interact.Chain(agent, h.Middleware()), &interact.Message{Type: interact.ObserveProperty,
			Name: "p"})
		if e := interact.AsError(err); e == nil || e.Code != interact.Internal || e.Hint == "" && e.Next == nil {
			t.Errorf("%s: got %v, want Internal", name, err)
		}
	}
}

// TestSlowConsumer: only the consumer that does not read is disconnected, and it receives the missed events when it reconnects.
func TestSlowConsumer(t *testing.T) {
	bubble(t, Options{Queue: 4, Ring: 4}, func(t *testing.T, h *Hub, a *agent, thing interact.Thing) {
		quick := listen(t, thing)
		read := make(chan struct{})
		var got []string
		var failed error
		done := make(chan struct{})
		go func() {
			defer close(done)
			for r, err := range thing.Do(t.Context(), &interact.Message{Type: interact.SubscribeEvent, Thing: "urn:clock", Name: "tick"}) {
				if failed = err; err == nil {
					got = append(got, string(r.Data))
					<-read
				}
			}
		}()
		synctest.Wait()
		a.say("0", "1", "2", "3", "4", "5") // 0 is read, and 5 wait
		close(read)
		<-done
		e := interact.AsError(failed)
		if e == nil || e.Code != interact.Overloaded || !e.Code.Retryable() || !strings.Contains(e.Title, "5 events") || len(got) != 1 {
			t.Fatalf("got %v and %v, want one event and Overloaded", got, failed)
		}
		id := quick.ids()[0]
		if !strings.Contains(e.Hint, id) {
			t.Errorf("the hint is %q, want one that names %s", e.Hint, id)
		}
		back := listen(t, thing, after(id))
		want(t, "one that returns", back.texts(), "1 2 3 4 5")
		want(t, "the quick one", quick.texts(), "0 1 2 3 4 5")
		quick.leave()
		back.leave()
	})
}

// TestClientThatDoesNotRead: a consumer that stops in the middle of its loop does not block the others.
func TestClientThatDoesNotRead(t *testing.T) {
	bubble(t, Options{Queue: 10}, func(t *testing.T, h *Hub, a *agent, thing interact.Thing) {
		stuck := make(chan struct{})
		go func() {
			for range thing.Do(t.Context(), &interact.Message{Type: interact.SubscribeEvent, Thing: "urn:clock", Name: "tick"}) {
				<-stuck
			}
		}()
		l := listen(t, thing)
		for range 1000 {
			a.say("x")
		}
		if n := len(l.ids()); n != 1000 {
			t.Errorf("%d of 1000 events next to a consumer that does not read", n)
		}
		for topic := range h.eachLocked {
			if n := len(topic.events); n > 266 {
				t.Errorf("%d events are kept, want at most 266", n)
			}
		}
		close(stuck)
		l.leave()
	})
}

// TestCatchingUp: to get more than may wait is not to be slow.
func TestCatchingUp(t *testing.T) {
	bubble(t, Options{Queue: 2, Ring: 100}, func(t *testing.T, h *Hub, a *agent, thing interact.Thing) {
		l := listen(t, thing)
		for i := range 100 {
			a.say(fmt.Sprint(i))
		}
		back := listen(t, thing, after(l.ids()[9]))
		if got := back.texts(); !strings.HasPrefix(got, "10 11 ") || !strings.HasSuffix(got, " 98 99") || len(back.ids()) != 90 {
			t.Errorf("got %d events, %s, want 90", len(back.ids()), got)
		}
		l.leave()
		back.leave()
	})
}

func TestDeadline(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, h *Hub, a *agent, thing interact.Thing) {
		l := listen(t, thing, func(m *interact.Message) { m.Deadline = time.Now().Add(time.Second) })
		a.say("x")
		time.Sleep(time.Second)
		synctest.Wait()
		if err, over := l.ended(); !over || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, %t, want the deadline", err, over)
		}
		want(t, "before", l.texts(), "x")
	})
}

func TestClose(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, h *Hub, a *agent, thing interact.Thing) {
		l := listen(t, thing)
		a.say("x")
		h.Close()
		synctest.Wait()
		for _, l := range []*listener{l, listen(t, thing)} {
			if err, over := l.ended(); !over || interact.AsError(err).Code != interact.ShuttingDown {
				t.Errorf("got %v, %t, want ShuttingDown", err, over)
			}
		}
		want(t, "before", l.texts(), "x")
	})
}

func TestBounds(t *testing.T) {
	bubble(t, Options{MaxTopics: 2, MaxSubscribers: 3, IdleTimeout: time.Hour}, func(t *testing.T, h *Hub, a *agent,
		thing interact.Thing) {
		name := func(s string) func(*interact.Message) { return func(m *interact.Message) { m.Name = s } }
		overloaded := func(what string, l *listener) {
			t.Helper()
			if err, over := l.ended(); !over || interact.AsError(err).Code != interact.Overloaded {
				t.Errorf("%s: got %v, %t, want Overloaded", what, err, over)
			}
		}
		a1, b1 := listen(t, thing, name("a")), listen(t, thing, name("b"))
		overloaded("a third affordance", listen(t, thing, name("c")))
		a2 := listen(t, thing, name("a"))
		overloaded("a fourth consumer", listen(t, thing, name("a")))
		a1.leave()
		a2.leave()
		c1 := listen(t, thing, name("c")) // a is not read any more
		if _, over := c1.ended(); over {
			t.Errorf("an affordance without readers does not make room: %v", c1.err)
		}
		if _, running := a.counts(); running != 2 {
			t.Errorf("%d observations run, want 2", running)
		}
		b1.leave()
		c1.leave()
	})
}

func TestMemory(t *testing.T) {
	big := strings.Repeat("x", 1000)
	bubble(t, Options{RingBytes: 20_000, Memory: 30_000}, func(t *testing.T, h *Hub, a *agent, thing interact.Thing) {
		held := func() (n int64) {
			for topic := range h.eachLocked {
				var sum int64
				for _, e := range topic.events {
					sum += size(e)
				}
				if sum != topic.bytes {
					t.Errorf("a ring of %d bytes counts %d", sum, topic.bytes)
				}
				n += sum
			}
			return n
		}
		var all []*listener
		for i := range 5 {
			l := listen(t, thing, func(m *interact.Message) { m.Name = fmt.Sprint(i) })
			all = append(all, l)
			for range 50 {
				a.say(big)
			}
			if n := held(); n > 30_000 || i == 0 && n > 20_000 {
				t.Errorf("%d rings have %d bytes", i+1, n)
			}
			if n := len(l.ids()); n != 50 {
				t.Errorf("%d of 50 events came", n)
			}
		}
		a.say(strings.Repeat("y", 50_000))
		if n := len(all[4].ids()); n != 51 {
			t.Error("an event that is larger than the ring did not come")
		}
		for _, l := range all {
			l.leave()
		}
	})
}

// TestMemoryOfMany: events that are larger than the share of a ring do not add up, and a small ring loses nothing.
func TestMemoryOfMany(t *testing.T) {
	const memory = 200_000
	bubble(t, Options{Memory: memory}, func(t *testing.T, h *Hub, a *agent, thing interact.Thing) {
		name := func(s string) func(*interact.Message) { return func(m *interact.Message) { m.Name = s } }
		small := listen(t, thing, name("small"))
		a.say("0", "1", "2")
		idle := listen(t, thing, name("idle"))
		a.say("i")
		idle.leave()
		all := []*listener{small}
		for i := range 50 {
			l := listen(t, thing, name(fmt.Sprint("big", i)))
			all = append(all, l)
			a.say(strings.Repeat("x", 30_000))
			if l.leave(); len(l.ids()) != 1 {
				t.Fatalf("the event of ring %d did not come", i)
			}
			if i%2 == 0 {
				all = append(all, listen(t, thing, name(fmt.Sprint("big", i))))
			}
			var held int64
			for topic := range h.eachLocked {
				for _, e := range topic.events {
					held += size(e)
				}
			}
			if held > memory || held != h.bytes.Load() {
				t.Fatalf("%d rings hold %d bytes and say %d, want at most %d", i+1, held, h.bytes.Load(), memory)
			}
		}
		back := listen(t, thing, name("small"), after(small.ids()[0]))
		want(t, "one that returns to a small ring", back.texts(), "1 2")
		idle = listen(t, thing, name("idle"), after("gone"))
		want(t, "one that returns to a small ring without readers", idle.texts(), "i")
		for _, l := range append(all, back, idle) {
			l.leave()
		}
		time.Sleep(2 * time.Minute)
		if topics, _ := h.Count(); topics != 0 || h.bytes.Load() != 0 {
			t.Errorf("%d topics and %d bytes are left", topics, h.bytes.Load())
		}
	})
}

// TestShares: no caller, and neither of the two kinds of callers, takes all that there is.
func TestShares(t *testing.T) {
	o := Options{MaxTopics: 8, MaxSubscribers: 12, SubscriptionsPerCaller: 4, IdleTimeout: time.Hour}
	bubble(t, o, func(t *testing.T, h *Hub, a *agent, thing interact.Thing) {
		var all []*listener
		ask := func(from, name string) *listener {
			l := listen(t, thing, func(m *interact.Message) { m.From, m.Name = who(did.DID(from)), name })
			all = append(all, l)
			return l
		}
		refused := func(l *listener) bool {
			err, over := l.ended()
			if over && interact.AsError(err).Code != interact.Overloaded {
				t.Errorf("got %v, want Overloaded", err)
			}
			return over
		}
		for i, c := range []struct {
			from, name string
			refused    bool
		}{
			{"did:a", "1", false}, {"did:a", "2", false}, {"did:a", "3", false}, {"did:a", "4", false}, {"did:a", "5", true},
			{"did:a", "1", true}, {"did:b", "5", false}, {"did:b", "6", false}, {"did:b", "7", true}, {"did:b", "1", false},
			{"", "1", false}, {"", "8", false}, {"", "9", false}, {"", "10", true}, {"did:b", "1", false}, {"did:c", "7", true},
			{"did:c", "1", false}, {"did:d", "1", true}, // nine of twelve is the limit of callers that are not on this machine
		} {
			if got := refused(ask(c.from, c.name)); got != c.refused {
				t.Errorf("%d: %q observes %s: refused is %t", i, c.from, c.name, got)
			}
		}
		for _, l := range all {
			l.leave()
		}
		if len(h.callers) > 0 || h.used != [2]usage{} {
			t.Errorf("%v and %v are counted when all have left", h.callers, h.used)
		}
	})
}

// TestCallerWithMostTopicsIsEvicted: a caller that connects and leaves often does not evict topics of others.
func TestCallerWithMostTopicsIsEvicted(t *testing.T) {
	bubble(t, Options{MaxTopics: 4, IdleTimeout: time.Hour}, func(t *testing.T, h *Hub, a *agent, thing interact.Thing) {
		by := func(from, name string) *listener {
			return listen(t, thing, func(m *interact.Message) { m.From, m.Name = who(did.DID(from)), name })
		}
		l := by("did:a", "mine")
		a.say("0", "1")
		l.leave()
		for i := range 20 {
			time.Sleep(time.Second)
			by("did:b", fmt.Sprint(i)).leave()
		}
		id := l.ids()[0]
		l = listen(t, thing, func(m *interact.Message) { m.From, m.Name, m.After = who("did:a"), "mine", id })
		want(t, "one that returns", l.texts(), "1")
		l.leave()
	})
}

// TestStuckHoldsLittle: the batch of a consumer that does not read is small, and read events are released.
func TestStuckHoldsLittle(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, h *Hub, a *agent, thing interact.Thing) {
		topic := &topic{hub: h}
		for i := range 100 {
			topic.events = append(topic.events, &interact.Message{ID: fmt.Sprint(i), Data: make([]byte, 1000*(1+i%20))})
		}
		s := &subscriber{topic: topic, m: &interact.Message{}, run: &run{over: true, end: 100}}
		read := 0
		s.deliver(t.Context(), func(m *interact.Message, err error) bool {
			held := 0
			for _, e := range s.batch {
				if e != nil {
					held += len(e.Data)
				}
			}
			if held > batchBytes {
				t.Errorf("a consumer that does not read holds %d bytes", held)
			}
			read++
			return true
		})
		if read != 100 {
			t.Errorf("%d of 100 events came", read)
		}
	})
}

// TestClockJumps: an observation does not end because the time of day is set; ages are differences of the monotonic clock.
func TestClockJumps(t *testing.T) {
	t.Parallel()
	h := New(Options{IdleTimeout: time.Minute})
	defer h.Close()
	thing := interact.Chain(interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			yield(m.Reply(interact.Event, "", nil), nil)
			<-ctx.Done()
		}
	}), h.Middleware())
	for range thing.Do(t.Context(), &interact.Message{Type: interact.SubscribeEvent}) {
		break
	}
	for topic := range h.eachLocked {
		now := topic.idle
		if !strings.Contains(now.String(), " m=") {
			t.Errorf("%v has no monotonic reading", now)
		}
		if h.sweep(now) != time.Minute || h.sweep(now.Add(30*time.Second)) != 30*time.Second || h.sweep(now.Add(time.Minute)) != 0 {
			t.Error("the time that is left is wrong")
		}
	}
	if topics, _ := h.Count(); topics != 0 {
		t.Errorf("%d topics are left", topics)
	}
}

// TestConcurrentConsumers is for the race detector: consumers come and go while the agent talks, ends and begins again.
func TestConcurrentConsumers(t *testing.T) {
	t.Parallel()
	h := New(Options{Queue: 1 << 20, Ring: 64, IdleTimeout: time.Millisecond})
	ctx, stop := context.WithCancel(t.Context())
	var hub, wg sync.WaitGroup
	hub.Go(func() { _ = h.Run(ctx) })
	thing := interact.Chain(interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			for i := 0; i < 500 && ctx.Err() == nil; i++ {
				if !yield(m.Reply(interact.Event, "", []byte(fmt.Sprint(i))), nil) {
					return
				}
			}
		}
	}), h.Middleware())
	for i := range 8 {
		wg.Go(func() {
			last := ""
			for j := range 50 {
				n := 0
				for r, err := range thing.Do(ctx, &interact.Message{Type: interact.SubscribeEvent, Name: fmt.Sprint(j % 3), After: last}) {
					if err != nil {
						if interact.AsError(err).Code != interact.Overloaded { // it may well be slow
							t.Errorf("consumer %d: %v", i, err)
						}
						break
					}
					if last = r.ID; n > 20*i {
						break
					}
					n++
				}
			}
		})
	}
	wg.Wait()
	stop()
	hub.Wait()
	h.Close()
	if _, subs := h.Count(); subs != 0 {
		t.Errorf("%d subscribers are left", subs)
	}
}

// TestOrder: whatever the batches, each consumer gets each event once and in order.
func TestOrder(t *testing.T) {
	t.Parallel()
	const events = 5000
	h := New(Options{Queue: events, Ring: 1, RingBytes: 1 << 30, Memory: 1 << 30})
	defer h.Close()
	ready := make(chan struct{})
	thing := interact.Chain(interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			<-ready
			for i := range events {
				if !yield(m.Reply(interact.Event, "", []byte(fmt.Sprint(i))), nil) {
					return
				}
			}
		}
	}), h.Middleware())
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			n := 0
			for r, err := range thing.Do(t.Context(), &interact.Message{Type: interact.SubscribeEvent, Name: "e"}) {
				if err != nil {
					t.Error(err)
					return
				}
				if string(r.Data) != fmt.Sprint(n) {
					t.Errorf("got %s, want %d", r.Data, n)
					return
				}
				n++
			}
			if n != events {
				t.Errorf("got %d events, want %d", n, events)
			}
		})
	}
	for {
		if _, subs := h.Count(); subs == 20 {
			break
		}
		runtime.Gosched()
	}
	close(ready)
	wg.Wait()
}

// who returns the principal of a node, or of this machine.
func who(node did.DID) *did.Principal {
	if node == "" {
		return did.Consumer(did.Loopback, "")
	}
	return did.NodePrincipal(node, "")
}
