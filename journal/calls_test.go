package journal

import (
	"context"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

const self = did.DID("did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH")

// answer is a Thing that completes each action, after two milliseconds for one with times.
func answer(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		r := m.ReplyStatus(interact.StatusCompleted, "", []byte("123"))
		if m.Timing != nil {
			r.Timing = &interact.Timing{Path: "mesh quic-v1", Node: "did:key:zHost", Resolve: time.Millisecond, Dial: 2 * time.Millisecond, Host: 3 * time.Millisecond,
				Agent: 1500 * time.Microsecond}
		}
		yield(r, nil)
	}
}

// ask sends a message through the middleware and returns the last error.
func ask(t *testing.T, j *Journal, m *interact.Message, agent interact.Func) (failed error) {
	t.Helper()
	for _, err := range interact.Chain(agent, j.Middleware(self)).Do(t.Context(), m) {
		failed = err
	}
	return failed
}

func TestCallOfAnotherNode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		j := New()
		began := time.Now()
		ask(t, j, &interact.Message{ID: "m1", Type: interact.InvokeAction, Thing: "urn:x:1", Name: "ask", Data: []byte("12"), From: did.Consumer(did.Process, ""),
			TraceParent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
			func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
				return func(yield func(*interact.Message, error) bool) {
					time.Sleep(4 * time.Millisecond)
					if yield(m.ReplyStatus(interact.StatusRunning, "", []byte("1")), nil) {
						time.Sleep(6 * time.Millisecond)
						answer(ctx, m)(yield)
					}
				}
			})
		c := j.Calls()[0]
		if !c.At.Equal(began) || c.ID != "m1" || c.Thing != "urn:x:1" || c.Action != "ask" || c.Op != "invokeaction" || c.From != "local" || c.Via != "mesh quic-v1" ||
			len(c.Path) != 2 || c.Path[0] != self || c.Host != "did:key:zHost" || c.Status != api.CallCompleted || c.Code != "" || c.Parts != 2 || c.First != 4 || c.Took != 10 ||
			*c.Stages != (api.CallStages{Resolve: 1, Dial: 2, Host: 3, Agent: 1.5}) || c.BytesIn != 2 || c.BytesOut != 4 || c.TraceID != "4bf92f3577b34da6a3ce929d0e0e4736" {
			t.Errorf("got %+v, %+v", c, c.Stages)
		}
	})
}

// The texts of a call may be parts of a long request line, which the journal does not keep in memory.
func TestCallsKeepNoRequests(t *testing.T) {
	t.Parallel()
	j := New()
	line := "GET /things/urn:x:weather/properties/unit?" + strings.Repeat("x", 60<<10)
	m := &interact.Message{Type: interact.ReadProperty, Thing: line[12:25], Name: line[37:41]}
	for range 2 * maxCalls {
		ask(t, j, m, answer)
	}
	texts := map[*byte]bool{}
	for i := range j.calls.n {
		c := *j.calls.at(i)
		if c.thing != "urn:x:weather" || c.action != "unit" || unsafe.StringData(c.thing) == unsafe.StringData(m.Thing) || unsafe.StringData(c.action) == unsafe.StringData(m.Name) {
			t.Fatalf("call %d has %q and %q of the request", i, c.thing, c.action)
		}
		texts[unsafe.StringData(c.thing)] = true
	}
	for range maxCalls {
		ask(t, j, m, answer)
	}
	for i := range j.calls.n {
		if !texts[unsafe.StringData((*j.calls.at(i)).thing)] {
			t.Fatal("the same calls again were copied again")
		}
	}
}

func TestStatesOfCalls(t *testing.T) {
	t.Parallel()
	refuse := func(err error) interact.Func {
		return func(context.Context, *interact.Message) iter.Seq2[*interact.Message, error] {
			return func(yield func(*interact.Message, error) bool) { yield(nil, err) }
		}
	}
	running := func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			_ = yield(m.ReplyStatus(interact.StatusRunning, "", nil), nil) && yield(m.ReplyStatus(interact.StatusCompleted, "", nil), nil)
		}
	}
	reading := func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			yield(m.Reply(interact.PropertyReading, "", nil), nil)
		}
	}
	state := func(s interact.Status) interact.Func {
		return func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			return func(yield func(*interact.Message, error) bool) { yield(m.ReplyStatus(s, "", nil), nil) }
		}
	}
	action := interact.Message{Type: interact.InvokeAction}
	detached := action
	detached.Detach = true
	for name, c := range map[string]struct {
		m      interact.Message
		agent  interact.Func
		leave  int // after this number of replies; 0: never
		status string
		code   string
	}{
		"completed":                      {action, answer, 0, api.CallCompleted, ""},
		"left after the last reply":      {action, answer, 1, api.CallCompleted, ""},
		"left before the last reply":     {action, running, 1, api.CallCanceled, ""},
		"a task that continues":          {detached, state(interact.StatusPending), 1, api.CallCompleted, ""},
		"unreachable":                    {action, refuse(interact.Errorf(interact.Unreachable, "", "away")), 0, api.CallFailed, interact.Unreachable.String()},
		"canceled":                       {action, refuse(context.Canceled), 0, api.CallCanceled, interact.Cancelled.String()},
		"a property":                     {interact.Message{Type: interact.ReadProperty}, reading, 0, api.CallCompleted, ""},
		"an observation that was left":   {interact.Message{Type: interact.ObserveProperty}, reading, 1, api.CallCompleted, ""},
		"a state that failed":            {action, state(interact.StatusFailed), 0, api.CallFailed, ""},
		"a state that is cancelled":      {action, state(interact.StatusCancelled), 0, api.CallCanceled, ""},
		"an action without a last reply": {action, state(interact.StatusRunning), 0, api.CallCanceled, ""},
		"a Thing that does not answer it": {action, func(context.Context, *interact.Message) iter.Seq2[*interact.Message, error] {
			return func(func(*interact.Message, error) bool) {}
		}, 0, api.CallCanceled, ""},
	} {
		j, n := New(), 0
		for range interact.Chain(c.agent, j.Middleware(self)).Do(t.Context(), &c.m) {
			if n++; n == c.leave {
				break
			}
		}
		if got := j.Calls()[0]; got.Status != c.status || got.Code != c.code {
			t.Errorf("%s: got %s %s, want %s %s", name, got.Status, got.Code, c.status, c.code)
		}
	}
}

// A call that runs is in the list, and one that lasts longer than the next 500 is in it again when it ends.
func TestRunningCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		j := New()
		begin := j.Mark()
		long := func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			return func(yield func(*interact.Message, error) bool) {
				time.Sleep(7 * time.Second)
				if c := j.Calls()[0]; c.ID != "long" || c.Status != api.CallRunning || c.Took != 7000 {
					t.Errorf("while it runs: %+v", c)
				}
				if events, lost := j.Ended(begin, j.Mark()); len(events) != 0 || lost != 0 {
					t.Errorf("it has not ended: %+v, %d", events, lost)
				}
				for range maxCalls {
					ask(t, j, &interact.Message{ID: "short", Type: interact.InvokeAction}, answer)
				}
				if all := j.Calls(); len(all) != maxCalls || all[maxCalls-1].ID != "short" {
					t.Errorf("%d calls, the last is %s", len(all), all[len(all)-1].ID)
				}
				yield(m.ReplyStatus(interact.StatusCompleted, "", nil), nil)
			}
		}
		ask(t, j, &interact.Message{ID: "long", Type: interact.InvokeAction, Name: "ask"}, long)
		if c := j.Calls()[0]; c.ID != "long" || c.Status != api.CallCompleted {
			t.Errorf("at the end: %+v", c)
		}
		events, lost := j.Ended(begin, j.Mark())
		if n := len(events); n != maxCalls || events[n-1].ID != "long" || events[n-1].Text != "ask completed" || lost == 0 {
			t.Errorf("%d events, lost %d", n, lost)
		}
		if events, lost := j.Ended(j.Mark(), j.Mark()); len(events) != 0 || lost != 0 {
			t.Errorf("from now on: %+v, %d", events, lost)
		}
	})
}

// The stages of some calls in a second are measured; others cost few objects.
func TestStagesAreMeasuredForSome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		j := New()
		many := func() (measured int) {
			for range maxCalls {
				ask(t, j, &interact.Message{Type: interact.InvokeAction}, answer)
			}
			for _, c := range j.Calls() {
				if c.Stages != nil {
					measured++
				}
			}
			return measured
		}
		if n := many(); n != timedASec {
			t.Errorf("%d calls are measured, want %d", n, timedASec)
		}
		time.Sleep(time.Second)
		if n := many(); n != timedASec {
			t.Errorf("in the next second: %d calls are measured", n)
		}
		ask(t, j, &interact.Message{Type: interact.InvokeAction, Timing: &interact.Timing{}}, answer)
		if j.Calls()[0].Stages == nil {
			t.Error("a call that requests it is not measured")
		}
	})
}

func TestAllocationsOfTheMiddleware(t *testing.T) { // not parallel: it measures allocations
	silent := interact.Func(func(context.Context, *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) { yield(&interact.Message{}, nil) }
	})
	j, ctx := New(), t.Context()
	recorded, m := interact.Chain(silent, j.Middleware(self)), &interact.Message{Type: interact.ReadProperty}
	drain := func(thing interact.Thing) func() {
		return func() {
			for range thing.Do(ctx, m) {
			}
		}
	}
	for range 2 * maxCalls {
		drain(recorded)()
	}
	before := testing.AllocsPerRun(500, drain(silent))
	if n := testing.AllocsPerRun(500, drain(recorded)); n > before+1 {
		t.Errorf("a call allocates %v objects with the journal and %v without, want 1 more at most", n, before)
	}
}
