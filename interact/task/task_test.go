package task

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

func TestOutlivesItsConsumer(t *testing.T) {
	for name, changes := range map[string][]change{
		"detached":                {detached},
		"not synchronous":         {named("bake")},
		"detached and with a key": {detached, keyed("k")},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Options{}, func(t *testing.T, r *Runner, a *agent, thing interact.Thing) {
				c := begin(t, thing, changes...)
				want(t, "at first", c.states(), "pending")
				run := a.last()
				run.say(interact.StatusPending, "", "") // already received
				run.say(interact.StatusRunning, "", "")
				run.say(interact.StatusRunning, "", "1")
				want(t, "meanwhile", c.states(), "pending running running:1")
				for i, m := range c.got {
					if m.ActionID != c.id() || m.ActionID == "the agent's own" || m.Began.IsZero() || m.Correlation != "m" ||
						m.Thing != "urn:oven" {
						t.Errorf("state %d is %+v", i, m)
					}
				}
				c.leave()
				if run.over() {
					t.Fatal("the action was cancelled as its consumer left")
				}
				name := named(c.got[0].Name)
				want(t, "the state", queried(t, thing, id(c.id()), name), "running")
				run.complete(`"done"`)
				want(t, "the state at the end", queried(t, thing, id(c.id()), name), `completed:"done"`)
				want(t, "the latest", queried(t, thing, name), `completed:"done"`)
				if !run.over() {
					t.Error("the agent still runs")
				}
			})
		})
	}
}

func TestFollowedToItsEnd(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, r *Runner, a *agent, thing interact.Thing) {
		c := begin(t, thing, detached, func(m *interact.Message) { m.TraceParent, m.Correlation = "00-7", "c" })
		if m := a.last().m; m.TraceParent != "00-7" || m.From.ID() != string(alice) || m.Detach {
			t.Errorf("the agent was asked %+v", m)
		}
		time.Sleep(time.Minute)
		a.last().complete("1")
		<-c.done
		want(t, "all states", c.states(), "pending completed:1")
		last := c.got[1]
		if last.Time.Sub(last.Began) != time.Minute || last.Correlation != "c" || last.TraceParent != "00-7" {
			t.Errorf("the last state is %+v", last)
		}
		c = begin(t, thing, named("bake"))
		a.last().fail(interact.Errorf(interact.AgentFailed, "buy eggs", "no eggs"))
		<-c.done
		want(t, "a failure", c.states(), "pending agent-failed")
		want(t, "the failure later", queried(t, thing, named("bake"))[:16], `failed:{"type":"`)
	})
}

// TestInvalidTasks: everything else passes as it is, with its own end.
func TestInvalidTasks(t *testing.T) {
	chunks := func(m *interact.Message) { m.Chunks = func(func([]byte, error) bool) {} }
	for name, changes := range map[string][]change{
		"synchronous":                {named("knock")},
		"not declared":               {},
		"an action that is not":      {named("dance")},
		"a request stream":           {chunks},
		"a request stream and a key": {chunks, keyed("k")},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Options{}, func(t *testing.T, r *Runner, a *agent, thing interact.Thing) {
				c := begin(t, thing, changes...)
				want(t, "at first", c.states(), "")
				a.last().say(interact.StatusRunning, "", "1")
				want(t, "then", c.states(), "running:1")
				if c.got[0].ActionID != "the agent's own" {
					t.Errorf("got %+v", c.got[0])
				}
				c.leave()
				if !a.last().over() {
					t.Error("the action continues without its consumer")
				}
				if running, kept := r.Count(); running+kept != 0 {
					t.Errorf("%d and %d tasks", running, kept)
				}
			})
		})
	}
}

func TestOtherMessagesDoNotAllocate(t *testing.T) { // not parallel: it counts allocations
	r := New(Options{})
	defer r.Close()
	var got *interact.Message
	reply := &interact.Message{Type: interact.ActionStatus, Status: interact.StatusCompleted}
	seq := interact.One(reply)
	thing := interact.Chain(interact.Func(func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		got = m
		return seq
	}), r.Middleware(oven()))
	take := func(r *interact.Message, err error) bool { return r == reply && err == nil }
	for typ := range interact.Type(40) {
		switch typ {
		case interact.QueryAction, interact.CancelAction, interact.ContinueAction, interact.QueryAllActions:
			continue
		}
		m := &interact.Message{Type: typ, Name: "knock"}
		n := testing.AllocsPerRun(10, func() { thing.Do(t.Context(), m)(take) })
		if got != m || n > 0 {
			t.Errorf("type %d: the message was changed, or passing cost %v allocations", typ, n)
		}
	}
}

func TestKeys(t *testing.T) {
	for name, detach := range map[string]change{"detached": detached, "not detached": func(*interact.Message) {}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Options{}, func(t *testing.T, r *Runner, a *agent, thing interact.Thing) {
				c1 := begin(t, thing, keyed("k"), detach, input("1"))
				c2 := begin(t, thing, keyed("k"), detach, input("1"), func(m *interact.Message) { m.ID, m.ContentType = "m2", interact.JSON })
				want(t, "the second", c2.states(), "pending")
				if a.count() != 1 || c1.id() != c2.id() {
					t.Errorf("%d runs, %s and %s, want one", a.count(), c1.id(), c2.id())
				}
				a.last().say(interact.StatusRunning, "", "2")
				c3 := begin(t, thing, keyed("k"), detach, input("1"))
				a.last().say(interact.StatusRunning, "", "3")
				a.last().say(interact.StatusCompleted, "", "")
				for _, c := range []*caller{c1, c2, c3} {
					<-c.done
				}
				want(t, "the first", c1.states(), "pending running:2 running:3 completed")
				want(t, "the second", c2.states(), "pending running:2 running:3 completed")
				want(t, "one that came late", c3.states(), "pending running completed:[2,3]")
				want(t, "one that comes after", begin(t, thing, keyed("k"), detach, input("1")).states(), "pending completed:[2,3]")
				if m := c2.got[1]; m.Correlation != "m2" {
					t.Errorf("got %+v, want the second's own", m)
				}
				time.Sleep(time.Hour)
				begin(t, thing, keyed("k"), detach, input("1")).leave() // forgotten
				if a.count() != 2 {
					t.Errorf("%d runs, want 2", a.count())
				}
			})
		})
	}
}

func TestScopeOfAKey(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, r *Runner, a *agent, thing interact.Thing) {
		first := begin(t, thing, keyed("k"), detached, input("1"))
		for name, changes := range map[string][]change{
			"another key": {keyed("l")}, "another action": {named("bake"), keyed("k")}, "another consumer": {from(bob), keyed("k")},
			"this machine": {from(""), keyed("k")},
		} {
			if c := begin(t, thing, append(changes, detached, input("1"))...); c.id() == first.id() {
				t.Errorf("%s: the same run", name)
			}
		}
		for name, changes := range map[string][]change{
			"another input": {input("2")}, "no input": {input("")},
			"another type": {input("1"), func(m *interact.Message) { m.ContentType = "text/plain" }},
		} {
			c := begin(t, thing, append(changes, keyed("k"), detached)...)
			<-c.done
			if e := interact.AsError(c.err); e.Code != interact.Invalid || !strings.Contains(e.Title, `"k"`) ||
				!strings.Contains(e.Hint, "key") {
				t.Errorf("%s: got %v, want Invalid", name, c.err)
			}
		}
		if a.count() != 5 {
			t.Errorf("%d runs, want 5", a.count())
		}
	})
}

// TestLeavingASharedRun: without Detach, a run with a key ends with the last consumer that waits for it.
func TestLeavingASharedRun(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, r *Runner, a *agent, thing interact.Thing) {
		c1, c2 := begin(t, thing, keyed("k")), begin(t, thing, keyed("k"))
		c1.leave()
		if a.last().over() {
			t.Fatal("cancelled while a consumer waits")
		}
		c2.leave()
		if !a.last().over() {
			t.Fatal("it continues without a waiting caller")
		}
		want(t, "the state", queried(t, thing), "cancelled")
		c3 := begin(t, thing, keyed("k"))
		<-c3.done
		want(t, "a second query", c3.states(), "pending cancelled")
		if a.count() != 1 {
			t.Errorf("a key ran %d times", a.count())
		}
		c4 := begin(t, thing, keyed("l"))
		c5 := begin(t, thing, keyed("l"), detached)
		c4.leave()
		c5.leave()
		if a.last().over() {
			t.Error("a caller that joined or started a run can detach it")
		}
	})
}

// TestKeyOfAnUnstartedAction: the key of an action that certainly did not start can be used again.
func TestKeyOfAnUnstartedAction(t *testing.T) {
	for name, c := range map[string]struct {
		err   *interact.Error
		said  bool
		again bool
	}{
		"not reached":                {err: &interact.Error{Code: interact.Unreachable}, again: true},
		"no room":                    {err: &interact.Error{Code: interact.Overloaded}, again: true},
		"lost on the way":            {err: &interact.Error{Code: interact.Unreachable, Started: true}},
		"lost after its start":       {err: &interact.Error{Code: interact.Unreachable}, said: true},
		"failed":                     {err: &interact.Error{Code: interact.AgentFailed}},
		"timeout, unknown result":    {err: &interact.Error{Code: interact.Timeout}},
		"an error of no known class": {err: &interact.Error{Code: interact.Internal}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Options{}, func(t *testing.T, r *Runner, a *agent, thing interact.Thing) {
				first := begin(t, thing, keyed("k"), detached)
				if c.said {
					a.last().say(interact.StatusRunning, "", "")
				}
				a.last().fail(c.err)
				<-first.done
				again := begin(t, thing, keyed("k"), detached)
				if ran := a.count() == 2; ran != c.again {
					t.Errorf("ran again: %t, want %t (%s)", ran, c.again, again.states())
				}
			})
		})
	}
}

func TestMaxRun(t *testing.T) {
	bubble(t, Options{MaxRun: time.Minute}, func(t *testing.T, r *Runner, a *agent, thing interact.Thing) {
		c := begin(t, thing, detached, func(m *interact.Message) { m.Deadline = time.Now().Add(time.Hour) })
		if left := time.Until(a.last().m.Deadline); left != time.Minute {
			t.Errorf("the agent has %v, want the time of a task", left)
		}
		time.Sleep(59 * time.Second)
		a.last().say(interact.StatusRunning, "", "1") // without an end
		time.Sleep(time.Second)
		<-c.done
		e := interact.AsError(c.err)
		if e.Code != interact.Timeout || !strings.Contains(e.Title, "1m0s") || !strings.Contains(e.Hint, "interact.tasks.max_duration") {
			t.Errorf("got %v, want Timeout that names the limit", c.err)
		}
		if got := queried(t, thing); !strings.HasPrefix(got, "failed:") || !strings.Contains(got, `"code":"LMOS-1504"`) {
			t.Errorf("the state is %s", got)
		}
	})
}

// TestBound: an untrusted caller has less than MaxRun, and the error names the configuration key.
func TestBound(t *testing.T) {
	limit := func(m *interact.Message) (time.Duration, string) {
		return 10 * time.Second, "interact.tasks.untrusted_max_duration"
	}
	bubble(t, Options{MaxRun: time.Minute, Bound: limit}, func(t *testing.T, _ *Runner, a *agent, thing interact.Thing) {
		c := begin(t, thing, detached, func(m *interact.Message) { m.Deadline = time.Now().Add(time.Hour) })
		if left := time.Until(a.last().m.Deadline); left != 10*time.Second {
			t.Errorf("the agent has %v, want the bound", left)
		}
		time.Sleep(10 * time.Second)
		<-c.done
		if e := interact.AsError(c.err); e.Code != interact.Timeout || !strings.Contains(e.Hint, "interact.tasks.untrusted_max_duration") {
			t.Errorf("got %v, want Timeout that names the key", c.err)
		}
	})
}

// TestDeadlineOfAConsumer is for how long it follows, not for how long the task may run.
func TestDeadlineOfAConsumer(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, r *Runner, a *agent, thing interact.Thing) {
		soon := func(m *interact.Message) { m.Deadline = time.Now().Add(time.Second) }
		free, bound := begin(t, thing, detached, soon), begin(t, thing, keyed("k"), soon)
		time.Sleep(time.Second)
		<-free.done
		<-bound.done
		synctest.Wait()
		for _, c := range []*caller{free, bound} {
			want(t, "the consumer", c.states(), "pending timeout")
			if !errors.Is(c.err, context.DeadlineExceeded) {
				t.Errorf("%v wraps no context error", c.err)
			}
		}
		want(t, "detached", queried(t, thing, id(free.id())), "running")
		want(t, "not detached", queried(t, thing, id(bound.id())), "cancelled")
		late := begin(t, thing, detached, func(m *interact.Message) { m.Deadline = time.Now().Add(-time.Second) })
		want(t, "one that is late already", late.states(), " timeout")
		if a.count() != 2 {
			t.Error("a task was started for a consumer that has left")
		}
	})
}

func TestAgentsThatMisbehave(t *testing.T) {
	for name, c := range map[string]struct {
		does interact.Func
		want string
	}{
		"no replies": {func(context.Context, *interact.Message) iter.Seq2[*interact.Message, error] {
			return func(func(*interact.Message, error) bool) {}
		}, "pending agent-failed"},
		"dies in the middle": {func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			return func(yield func(*interact.Message, error) bool) {
				r := m.Reply(interact.ActionStatus, "", []byte("1"))
				r.Status = interact.StatusRunning
				if yield(r, nil) {
					yield(nil, &interact.Error{Code: interact.Unreachable, Started: true})
				}
			}
		}, "pending running:1 agent-unreachable"},
		"panics": {func(context.Context, *interact.Message) iter.Seq2[*interact.Message, error] { panic("oh") }, "pending internal"},
		"panics later": {func(context.Context, *interact.Message) iter.Seq2[*interact.Message, error] {
			return func(func(*interact.Message, error) bool) { panic("oh") }
		}, "pending internal"},
		"gives nothing": {func(context.Context, *interact.Message) iter.Seq2[*interact.Message, error] { return interact.One(nil) },
			"pending internal"},
		"replies failed": {func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			return interact.One(&interact.Message{Type: interact.ActionStatus, Status: interact.StatusFailed})
		}, "pending agent-failed"},
		"replies cancelled": {func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			return interact.One(&interact.Message{Type: interact.ActionStatus, Status: interact.StatusCancelled})
		}, "pending cancelled"},
		"replies after the end": {func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			return func(yield func(*interact.Message, error) bool) {
				if yield(&interact.Message{Type: interact.ActionStatus, Status: interact.StatusCompleted, Data: []byte("1")}, nil) {
					panic("the agent was read further")
				}
			}
		}, "pending completed:1"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Options{}, func(t *testing.T, r *Runner, a *agent, thing interact.Thing) {
				a.eager = c.does
				caller := begin(t, thing, detached)
				<-caller.done
				want(t, "the consumer", caller.states(), c.want)
				if running, kept := r.Count(); running != 0 || kept != 1 {
					t.Errorf("%d run and %d are kept", running, kept)
				}
			})
		})
	}
}

// TestClientThatDoesNotRead: a consumer that takes nothing holds the task up for ten seconds, and then no more.
func TestClientThatDoesNotRead(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, r *Runner, a *agent, thing interact.Thing) {
		c := &caller{done: make(chan struct{}), hold: make(chan struct{})}
		c.start(t, thing, message(interact.InvokeAction, keyed("k"), detached))
		good := begin(t, thing, keyed("k"), detached)
		for i := range ahead {
			a.last().say(interact.StatusRunning, "", fmt.Sprint(i))
		}
		began := time.Now()
		for i := range 100 {
			a.last().say(interact.StatusRunning, "", fmt.Sprint(i))
		}
		if took := time.Since(began); took != timeout {
			t.Errorf("it held the task up for %v", took)
		}
		a.last().complete("")
		<-good.done
		if n := len(good.got); n != 1+ahead+100+1 || good.err != nil {
			t.Errorf("the other got %d states and %v", n, good.err)
		}
		close(c.hold)
		<-c.done
		if e := interact.AsError(c.err); e.Code != interact.Overloaded || e.Hint == "" && e.Next == nil || len(c.got) != 1+ahead {
			t.Errorf("the slow one got %d states and %v", len(c.got), c.err)
		}
	})
}

// TestSlowAnswerIsReceived: a consumer that is slow slows the agent down, and gets everything.
func TestSlowAnswerIsReceived(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, r *Runner, a *agent, thing interact.Thing) {
		a.eager = func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			return func(yield func(*interact.Message, error) bool) {
				for i := range 50 {
					one := m.Reply(interact.ActionStatus, "", fmt.Append(nil, i))
					if one.Status = interact.StatusRunning; !yield(one, nil) {
						return
					}
				}
				completes(context.TODO(), m)(yield)
			}
		}
		n := 0
		for r, err := range thing.Do(t.Context(), message(interact.InvokeAction, detached)) {
			if err != nil {
				t.Fatal(err)
			}
			if r.Status == interact.StatusRunning && string(r.Data) == fmt.Sprint(n) {
				n++
			}
			time.Sleep(9 * time.Second)
		}
		if n != 50 {
			t.Errorf("got %d of 50 parts", n)
		}
	})
}

// TestCancelledWhileAFollowerIsSlow: it does not get a whole with a part missing.
func TestCancelledWhileAFollowerIsSlow(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, r *Runner, a *agent, thing interact.Thing) {
		a.eager = func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			return func(yield func(*interact.Message, error) bool) {
				for range ahead + 1 { // the last finds no room, until the task is cancelled
					one := m.Reply(interact.ActionStatus, "", []byte("1"))
					if one.Status = interact.StatusRunning; !yield(one, nil) {
						return
					}
				}
				completes(ctx, m)(yield) // it does not listen
			}
		}
		c := &caller{done: make(chan struct{}), hold: make(chan struct{})}
		c.start(t, thing, message(interact.InvokeAction, detached))
		if _, err := ask(t, thing, interact.CancelAction); interact.AsError(err).Code != interact.NoTask {
			t.Errorf("got %v, want NoTask: it was completed", err)
		}
		close(c.hold)
		<-c.done
		want(t, "the follower", c.states(), "pending"+strings.Repeat(" running:1", ahead)+" cancelled")
		want(t, "the state", queried(t, thing), "completed:[1,1,1,1,1]")
	})
}

func TestRequestStream(t *testing.T) {
	reads := func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			var all []byte
			for b, err := range m.Chunks {
				if err != nil {
					yield(nil, err)
					return
				}
				all = append(all, b...)
			}
			completes(context.TODO(), &interact.Message{Data: all})(yield)
		}
	}
	chunks := make(chan []byte)
	stream := func(m *interact.Message) {
		m.Chunks = func(yield func([]byte, error) bool) {
			for b := range chunks {
				if b == nil {
					yield(nil, errors.New("the line is cut"))
					return
				}
				if !yield(b, nil) {
					return
				}
			}
		}
	}
	t.Run("read to the end", func(t *testing.T) {
		bubble(t, Options{}, func(t *testing.T, r *Runner, a *agent, thing interact.Thing) {
			chunks, a.eager = make(chan []byte), reads
			c := begin(t, thing, detached, stream)
			chunks <- []byte("1")
			chunks <- []byte("2")
			close(chunks)
			<-c.done
			want(t, "the consumer", c.states(), "pending completed:12")

			chunks = make(chan []byte)
			c = begin(t, thing, named("bake"), stream)
			chunks <- nil
			<-c.done
			want(t, "a stream that fails", c.states(), "pending internal")

			chunks = make(chan []byte)
			c = begin(t, thing, detached, stream)
			chunks <- []byte("1")
			c.leave()
			close(chunks) // as a binding does that has been left
			synctest.Wait()
			want(t, "the consumer left in the middle", queried(t, thing), "cancelled")

			chunks = make(chan []byte)
			c = begin(t, thing, detached, stream)
			c.leave()
			chunks <- []byte("1") // the binding had it already
			synctest.Wait()
			want(t, "the consumer left before", queried(t, thing), "cancelled")
		})
	})
	t.Run("read late", func(t *testing.T) {
		f := &follower{left: make(chan struct{})}
		close(f.left)
		for b, err := range f.chunks(func(func([]byte, error) bool) { t.Error("the stream of one that has left is read") }) {
			if b != nil || interact.AsError(err).Code != interact.Cancelled {
				t.Errorf("got %q, %v", b, err)
			}
		}
	})
	t.Run("left by the agent", func(t *testing.T) {
		f := &follower{left: make(chan struct{})}
		for range f.chunks(func(yield func([]byte, error) bool) {
			if yield([]byte("1"), nil) {
				t.Error("the agent was read further")
			}
		}) {
			break
		}
	})
}

func TestLimits(t *testing.T) {
	refused := func(t *testing.T, c *caller, text string) {
		t.Helper()
		<-c.done
		if e := interact.AsError(c.err); e == nil || e.Code != interact.Overloaded || !strings.Contains(e.Title, text) || e.Hint == "" && e.Next == nil {
			t.Errorf("got %v, want Overloaded, %s", c.err, text)
		}
	}
	t.Run("of a consumer", func(t *testing.T) {
		bubble(t, Options{MaxPerCaller: 2}, func(t *testing.T, r *Runner, a *agent, thing interact.Thing) {
			begin(t, thing, detached)
			begin(t, thing, detached).leave()
			refused(t, begin(t, thing, detached), "2 tasks")
			begin(t, thing, detached, from(bob))
			a.runs[0].complete("")
			begin(t, thing, detached)
			if n := r.States(); n[interact.StatusRunning] != 3 || n[interact.StatusCompleted] != 1 {
				t.Errorf("tasks by state: %v", n)
			}
			if running, _ := r.Count(); running != 3 {
				t.Errorf("%d run, want 3", running)
			}
		})
	})
	t.Run("of all that run", func(t *testing.T) {
		bubble(t, Options{MaxTasks: 2}, func(t *testing.T, r *Runner, a *agent, thing interact.Thing) {
			begin(t, thing, detached)
			begin(t, thing, detached)
			refused(t, begin(t, thing, detached, from(bob)), "2 tasks")
			a.runs[0].complete("")
			begin(t, thing, detached, from(bob))
		})
	})
	t.Run("of followers", func(t *testing.T) {
		bubble(t, Options{}, func(t *testing.T, r *Runner, a *agent, thing interact.Thing) {
			for range maxFollowers {
				begin(t, thing, keyed("k"))
			}
			refused(t, begin(t, thing, keyed("k")), "follow")
		})
	})
	t.Run("of an input", func(t *testing.T) {
		bubble(t, Options{MaxOutput: 100}, func(t *testing.T, r *Runner, a *agent, thing interact.Thing) {
			begin(t, thing, detached, input(strings.Repeat("x", 40)))
			refused(t, begin(t, thing, detached, input(strings.Repeat("x", 11))), "11 bytes")
			refused(t, begin(t, thing, detached, from(bob), input(strings.Repeat("x", 51))), "51 bytes")
			begin(t, thing, detached, from(bob), input(strings.Repeat("x", 50)))
			refused(t, begin(t, thing, detached, from(""), input(strings.Repeat("x", 20))), "20 bytes")
			a.runs[0].complete("")
			begin(t, thing, detached, from(""), input(strings.Repeat("x", 20)))
		})
	})
}

// TestEvictionOrder: the oldest that has ended of the consumer that has most, so that a greedy one harms itself.
func TestEvictionOrder(t *testing.T) {
	bubble(t, Options{MaxTasks: 10}, func(t *testing.T, r *Runner, a *agent, thing interact.Thing) {
		a.eager = completes
		for range 2 {
			begin(t, thing, detached, from(bob), input("7"))
		}
		first := begin(t, thing, detached, input("0")).id()
		for i := range 50 {
			begin(t, thing, detached, input(fmt.Sprint(i)))
		}
		all := func(c change) int {
			r, err := ask(t, thing, interact.QueryAllActions, c)
			if err != nil {
				t.Fatal(err)
			}
			return strings.Count(string(r.Data), "actionID")
		}
		if n, m := all(from(alice)), all(from(bob)); n != 6 || m != 2 {
			t.Errorf("%d of the greedy one and %d of the other are kept, want 6 and 2: two places are for consumers on this machine", n, m)
		}
		want(t, "the oldest", queried(t, thing, id(first)), " task-not-found")
		want(t, "the newest", queried(t, thing), "completed:49")
		r.audit(t)
	})
}

func TestKeepingOutputs(t *testing.T) {
	big := func(n int) string { return `"` + strings.Repeat("x", n-2) + `"` }
	bubble(t, Options{MaxOutput: 1000}, func(t *testing.T, r *Runner, a *agent, thing interact.Thing) {
		a.eager = completes
		b := begin(t, thing, detached, from(bob), input(big(300)))
		var ids []string
		for range 5 {
			ids = append(ids, begin(t, thing, detached, input(big(200))).id())
		}
		kept := 0
		for _, one := range ids {
			if strings.HasPrefix(queried(t, thing, id(one)), "completed") {
				kept++
			}
		}
		if kept != 2 {
			t.Errorf("%d outputs of 200 bytes are kept, want 2: half of 1000 is for one consumer", kept)
		}
		if got := queried(t, thing, id(b.id()), from(bob)); !strings.HasPrefix(got, "completed:") {
			t.Errorf("the other's output is gone: %s", got)
		}
		r.audit(t)
	})
	t.Run("many consumers", func(t *testing.T) {
		bubble(t, Options{MaxOutput: 1000}, func(t *testing.T, r *Runner, a *agent, thing interact.Thing) {
			a.eager = completes
			begin(t, thing, detached, from("a"), input(big(400)))
			begin(t, thing, detached, from("b"), input(big(200)))
			begin(t, thing, detached, from("c"), input(big(450)))
			for from, want := range map[string]string{"a": " task-not-found", "b": "completed", "c": "completed"} {
				if got := queried(t, thing, func(m *interact.Message) { m.From = who(did.DID(from)) }); !strings.HasPrefix(got, want) {
					t.Errorf("of %s: %s, want %s", from, got, want)
				}
			}
			r.audit(t)
		})
	})
}

// TestTooLargeToKeep: waiting callers get the result, and later queries get the state.
// Tasks by a delegation end with it. Others go on, and final ones are left: they may have no message any more.
func TestCancelLent(t *testing.T) {
	bubble(t, Options{MaxOutput: 100}, func(t *testing.T, r *Runner, a *agent, thing interact.Thing) {
		lent := func(link string) func(m *interact.Message) {
			return func(m *interact.Message) {
				from := *m.From
				from.Lent = &did.Lent{Link: link}
				m.From = &from
			}
		}
		final := begin(t, thing, detached, lent("one"))
		a.last().complete(strings.Repeat("1", 101)) // too large to keep
		<-final.done
		one, two, own := begin(t, thing, detached, lent("one")), begin(t, thing, detached, lent("two")), begin(t, thing, detached)
		r.CancelLent("one")
		<-one.done
		if e := interact.AsError(one.err); e == nil || e.Code != interact.Cancelled || !strings.Contains(e.Title, "delegation") {
			t.Errorf("the task by the delegation: %v", one.err)
		}
		for name, c := range map[string]*caller{"another delegation": two, "no delegation": own} {
			select {
			case <-c.done:
				t.Errorf("the task by %s ended: %v", name, c.err)
			default:
			}
		}
	})
}

// A task by a delegation ends at its end, and the error says so.
func TestEndOfADelegation(t *testing.T) {
	bubble(t, Options{Bound: func(*interact.Message) (time.Duration, string) { return 10 * time.Second, "" }}, func(t *testing.T, _ *Runner, _ *agent, thing interact.Thing) {
		c := begin(t, thing, detached)
		time.Sleep(10 * time.Second)
		<-c.done
		if e := interact.AsError(c.err); e.Code != interact.Cancelled || !strings.Contains(e.Title, "delegation") {
			t.Errorf("got %v, want the end of the delegation", c.err)
		}
	})
}

func TestTooLargeToKeep(t *testing.T) {
	for name, parts := range map[string]int{"at once": 0, "in parts": 3} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Options{MaxOutput: 100}, func(t *testing.T, r *Runner, a *agent, thing interact.Thing) {
				c := begin(t, thing, detached, keyed("k"))
				text := strings.Repeat("1", 60)
				var late *caller
				for range parts {
					a.last().say(interact.StatusRunning, "", text[:20])
					if late == nil {
						late = begin(t, thing, detached, keyed("k"))
					}
				}
				if parts == 0 {
					a.last().complete(text)
				} else {
					a.last().complete("")
					<-late.done
					want(t, "one that came late", late.states(), "pending running running too-large")
				}
				<-c.done
				if got := c.states(); strings.Count(got, "1") != 60 || c.err != nil {
					t.Errorf("the waiting caller got %s", got)
				}
				want(t, "a later query", queried(t, thing), " too-large")
				want(t, "a request with the key", begin(t, thing, detached, keyed("k")).states(), "pending too-large")
				r2, err := ask(t, thing, interact.QueryAllActions)
				if err != nil || !strings.Contains(string(r2.Data), `"state":"completed"`) || !strings.Contains(string(r2.Data),
					"too-large") {
					t.Errorf("the list is %v, %v", r2, err)
				}
				r.audit(t)
			})
		})
	}
}

func TestDrainAndClose(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, r *Runner, a *agent, thing interact.Thing) {
		c1, c2 := begin(t, thing, detached), begin(t, thing, keyed("k"))
		drained := make(chan time.Duration)
		began := time.Now()
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
			defer cancel()
			r.Drain(ctx)
			drained <- time.Since(began)
		}()
		synctest.Wait()
		want(t, "a new one", begin(t, thing, detached).states(), " shutting-down")
		want(t, "one that follows", begin(t, thing, keyed("k")).states(), "pending")
		want(t, "the state", queried(t, thing, id(c1.id())), "running")
		time.Sleep(time.Second)
		a.runs[0].complete("1")
		if took := <-drained; took != 8*time.Second {
			t.Errorf("it waited for %v, want until its time was up", took)
		}
		r.Close()
		<-c2.done
		want(t, "what was in time", c1.states(), "pending completed:1")
		want(t, "what was cut", c2.states(), "pending shutting-down")
		if e := interact.AsError(c2.err); !e.Started {
			t.Errorf("%v is not Started", e)
		}
		r.Drain(t.Context()) // nothing runs
	})
}

// TestAges are differences of the monotonic clock: a change of the time of day drops no tasks.
func TestAges(t *testing.T) {
	t.Parallel()
	r := New(Options{Keep: time.Minute})
	defer r.Close()
	thing := interact.Chain(interact.Func(completes), r.Middleware(oven()))
	if _, err := interact.Call(t.Context(), thing, message(interact.InvokeAction, detached)); err != nil {
		t.Fatal(err)
	}
	for _, one := range r.tasks {
		if !strings.Contains(one.over.String(), " m=") || !strings.Contains(one.began.String(), " m=") {
			t.Errorf("%v or %v has no monotonic reading", one.over, one.began)
		}
		r.sweep(one.over.Add(time.Minute - 1))
		if _, kept := r.Count(); kept != 1 {
			t.Error("it was forgotten too early")
		}
		r.sweep(one.over.Add(time.Minute))
	}
	if _, kept := r.Count(); kept != 0 {
		t.Error("it was not forgotten")
	}
}

func TestRunForgets(t *testing.T) {
	bubble(t, Options{Keep: time.Minute}, func(t *testing.T, r *Runner, a *agent, thing interact.Thing) {
		a.eager = completes
		begin(t, thing, detached)
		time.Sleep(59 * time.Second)
		if _, kept := r.Count(); kept != 1 {
			t.Error("it was forgotten too early")
		}
		time.Sleep(10 * time.Second)
		if _, kept := r.Count(); kept != 0 {
			t.Error("it was not forgotten")
		}
	})
}

// TestConcurrentTasks is for the race detector.
func TestConcurrentTasks(t *testing.T) {
	t.Parallel()
	r := New(Options{MaxTasks: 20, MaxOutput: 4000, Keep: time.Millisecond})
	slow := interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			for i := range 20 {
				one := m.Reply(interact.ActionStatus, "", fmt.Append(nil, i))
				if one.Status = interact.StatusRunning; ctx.Err() != nil || !yield(one, nil) {
					yield(nil, ctx.Err())
					return
				}
			}
			completes(ctx, m)(yield)
		}
	})
	thing := interact.Chain(slow, r.Middleware(oven()))
	ctx, stop := context.WithCancel(t.Context())
	var wg, sweeper sync.WaitGroup
	sweeper.Go(func() { _ = r.Run(ctx) })
	for i := range 8 {
		wg.Go(func() {
			for j := range 100 {
				m := message(interact.InvokeAction, keyed(fmt.Sprint(j%7)), from(did.DID(fmt.Sprint(i%3))), input("1"))
				m.Detach = j%2 == 0
				n := 0
				for range thing.Do(t.Context(), m) {
					if n++; n > j%25 {
						break
					}
				}
				for _, typ := range []interact.Type{interact.QueryAction, interact.QueryAllActions, interact.CancelAction} {
					if _, err := interact.Call(t.Context(), thing, message(typ, from(m.From.DID))); err != nil {
						switch interact.AsError(err).Code {
						case interact.NoTask, interact.TooLarge:
						default:
							t.Error(err)
						}
					}
				}
			}
		})
	}
	wg.Wait()
	stop()
	sweeper.Wait()
	r.Close()
	r.audit(t)
}

// BenchmarkPassing measures the overhead of the runner for an action that is not a task.
func BenchmarkPassing(b *testing.B) {
	r := New(Options{})
	defer r.Close()
	seq := interact.One(&interact.Message{Type: interact.ActionStatus, Status: interact.StatusCompleted})
	thing := interact.Chain(interact.Func(func(context.Context, *interact.Message) iter.Seq2[*interact.Message,
		error] {
		return seq
	}), r.Middleware(oven()))
	m := message(interact.InvokeAction, named("knock"))
	b.ReportAllocs()
	for b.Loop() {
		thing.Do(b.Context(), m)(func(*interact.Message, error) bool { return true })
	}
}

// BenchmarkTask is an action that is one, from its beginning to its end.
func BenchmarkTask(b *testing.B) {
	r := New(Options{})
	defer r.Close()
	thing := interact.Chain(interact.Func(completes), r.Middleware(oven()))
	m := message(interact.InvokeAction, detached, input(`{"minutes":5}`))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := interact.Call(b.Context(), thing, m); err != nil {
			b.Fatal(err)
		}
	}
}
