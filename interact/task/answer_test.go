package task

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

func TestQuery(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, r *Runner, a *agent, thing interact.Thing) {
		first, second := begin(t, thing, detached), begin(t, thing, detached)
		baked := begin(t, thing, named("bake"))
		for name, c := range map[string]struct {
			changes []change
			want    string // the id
		}{
			"by id":              {[]change{id(first.id())}, first.id()},
			"by id alone":        {[]change{id(first.id()), named("")}, first.id()},
			"the latest":         {nil, second.id()},
			"of another":         {[]change{named("bake")}, baked.id()},
			"of an unknown name": {[]change{named("knock")}, ""},
			"of no such id":      {[]change{id("x")}, ""},
			"of another name":    {[]change{id(first.id()), named("bake")}, ""},
			"by another caller":  {[]change{id(first.id()), from(bob)}, ""},
			"by this machine":    {[]change{id(first.id()), from("")}, ""},
			"their latest":       {[]change{from(bob)}, ""},
		} {
			for _, typ := range []interact.Type{interact.QueryAction, interact.CancelAction} {
				if c.want != "" && typ == interact.CancelAction {
					continue
				}
				reply, err := ask(t, thing, typ, c.changes...)
				switch {
				case c.want == "":
					if e := interact.AsError(err); e == nil || e.Code != interact.NoTask || e.Hint == "" && e.Next == nil {
						t.Errorf("%s: got %v, %v, want NoTask", name, reply, err)
					}
				case err != nil || reply.ActionID != c.want || reply.Type != interact.ActionStatus || reply.Correlation != "m" ||
					reply.Name == "":
					t.Errorf("%s: got %+v, %v, want %s", name, reply, err, c.want)
				}
			}
		}
		if _, err := ask(t, thing, interact.QueryAction, named("")); interact.AsError(err).Code != interact.Invalid {
			t.Errorf("neither id nor name: got %v, want Invalid", err)
		}
		_, absent := ask(t, thing, interact.QueryAction, id("no such id"))
		_, others := ask(t, thing, interact.QueryAction, id(first.id()), from(bob))
		if strings.ReplaceAll(absent.Error(), "no such id", first.id()) != others.Error() {
			t.Errorf("%q reveals the task: %q", others, absent)
		}
		other := interact.Chain(a, r.Middleware(&td.Thing{ID: "urn:toaster", Title: "Toaster", Actions: oven().Actions}))
		if _, err := ask(t, other, interact.QueryAction, id(first.id())); interact.AsError(err).Code != interact.NoTask {
			t.Errorf("another thing: got %v, want NoTask", err)
		}
		again := interact.Chain(a, r.Middleware(oven())) // offered again
		want(t, "of the same thing, offered again", queried(t, again, id(first.id())), "running")
	})
}

func TestQueryHasTimesAndOutput(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, r *Runner, a *agent, thing interact.Thing) {
		began := time.Now()
		c := begin(t, thing, detached)
		time.Sleep(time.Second)
		running, err := ask(t, thing, interact.QueryAction)
		if err != nil || !running.Began.Equal(began) || !running.Time.IsZero() || running.Data != nil {
			t.Errorf("got %+v, %v", running, err)
		}
		a.last().say(interact.StatusCompleted, "image/png", "PNG")
		<-c.done
		done, err := ask(t, thing, interact.QueryAction, func(m *interact.Message) { m.TraceParent = "00-9" })
		if err != nil || string(done.Data) != "PNG" || done.ContentType != "image/png" || done.Time.Sub(done.Began) != time.Second ||
			done.TraceParent != "00-9" {
			t.Errorf("got %+v, %v", done, err)
		}
		if done.Began.Location() != time.UTC || done.Time.Location() != time.UTC {
			t.Error("times are not UTC")
		}
	})
}

func TestProblem(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, r *Runner, a *agent, thing interact.Thing) {
		begin(t, thing, detached)
		a.last().fail(&interact.Error{Code: interact.AgentFailed, Title: "no eggs <here>", Hint: "buy eggs", Remote: true,
			Issues: []td.Issue{{Pointer: "/eggs", Reason: "is 0"}}, Err: errors.New("the password is 1234")})
		reply, err := ask(t, thing, interact.QueryAction)
		if err != nil || reply.Status != interact.StatusFailed || reply.ContentType != "application/problem+json" {
			t.Fatalf("got %+v, %v", reply, err)
		}
		var got map[string]any
		if err := json.Unmarshal(reply.Data, &got); err != nil {
			t.Fatal(err)
		}
		delete(got, "instance")
		if diff := cmp.Diff(map[string]any{"type": "urn:lmosd:error:agent-failed", "code": "LMOS-1502", "title": "Agent failed",
			"detail": "no eggs <here>", "hint": "buy eggs", "remote": true, "retryable": false, "status": 502.0,
			"validationErrors": []any{map[string]any{"field": "/eggs", "description": "is 0"}}}, got); diff != "" {
			t.Error(diff)
		}
	})
}

func TestCancel(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, r *Runner, a *agent, thing interact.Thing) {
		c := begin(t, thing, detached)
		reply, err := ask(t, thing, interact.CancelAction, id(c.id()))
		if err != nil || reply.Status != interact.StatusCancelled || reply.ActionID != c.id() || reply.Time.IsZero() ||
			!a.last().over() {
			t.Fatalf("got %+v, %v", reply, err)
		}
		<-c.done
		want(t, "its consumer", c.states(), "pending cancelled")
		if !strings.Contains(c.err.Error(), "a consumer cancelled it") {
			t.Errorf("its consumer gets %v", c.err)
		}
		want(t, "the state", queried(t, thing), "cancelled")
		c = begin(t, thing, detached)
		a.last().complete("1")
		failed := begin(t, thing, named("bake"))
		a.last().fail(&interact.Error{Code: interact.AgentFailed})
		for what, changes := range map[string][]change{
			"has ended: completed": {id(c.id())}, "has ended: failed": {id(failed.id()), named("bake")},
			"has ended: cancelled": {id(reply.ActionID)},
		} {
			_, err := ask(t, thing, interact.CancelAction, changes...)
			if e := interact.AsError(err); e == nil || e.Code != interact.NoTask || !strings.Contains(e.Title, what) || e.Hint == "" && e.Next == nil {
				t.Errorf("got %v, want NoTask, %s", err, what)
			}
		}
	})
}

// TestCancelOfAnAgentThatDoesNotAnswer waits five seconds, or as long as the consumer does.
func TestCancelOfAnAgentThatDoesNotAnswer(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, r *Runner, a *agent, thing interact.Thing) {
		release := make(chan struct{})
		a.eager = func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			<-release
			return completes(ctx, m)
		}
		begin(t, thing, detached)
		for name, c := range map[string]struct {
			change change
			took   time.Duration
			code   interact.Code
		}{
			"five seconds":  {func(*interact.Message) {}, 5 * time.Second, interact.Timeout},
			"its deadline":  {func(m *interact.Message) { m.Deadline = time.Now().Add(time.Second) }, time.Second, interact.Timeout},
			"it waits long": {func(m *interact.Message) { m.Deadline = time.Now().Add(time.Hour) }, 5 * time.Second, interact.Timeout},
		} {
			began := time.Now()
			_, err := ask(t, thing, interact.CancelAction, c.change)
			if interact.AsError(err).Code != c.code || time.Since(began) != c.took {
				t.Errorf("%s: got %v after %v", name, err, time.Since(began))
			}
		}
		ctx, leave := context.WithCancel(t.Context())
		leave()
		if _, err := interact.Call(ctx, thing, message(interact.CancelAction)); !errors.Is(err, context.Canceled) {
			t.Errorf("the consumer that left got %v", err)
		}
		close(release)
		synctest.Wait()
		want(t, "it was completed all the same", queried(t, thing), "completed")
	})
}

// TestAgentsAnswersToCancel: the task is cancelled with each reply of the agent, except completed.
func TestAgentsAnswersToCancel(t *testing.T) {
	for name, c := range map[string]struct {
		says func(m *interact.Message, yield func(*interact.Message, error) bool)
		want string
	}{
		"an error of its own": {func(_ *interact.Message, yield func(*interact.Message, error) bool) {
			yield(nil, interact.Errorf(interact.AgentFailed, "", "stopped"))
		}, "cancelled"},
		"nothing": {func(*interact.Message, func(*interact.Message, error) bool) {}, "cancelled"},
		"a panic": {func(*interact.Message, func(*interact.Message, error) bool) { panic("stop") }, "cancelled"},
		"it completed": {func(m *interact.Message, yield func(*interact.Message, error) bool) {
			completes(context.TODO(), m)(yield)
		},
			" task-not-found"},
		"another state": {func(m *interact.Message, yield func(*interact.Message, error) bool) {
			yield(&interact.Message{Status: interact.StatusFailed}, nil)
		}, "cancelled"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Options{}, func(t *testing.T, r *Runner, a *agent, thing interact.Thing) {
				a.eager = func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
					return func(yield func(*interact.Message, error) bool) {
						<-ctx.Done()
						c.says(m, yield)
					}
				}
				begin(t, thing, detached).leave()
				reply, err := ask(t, thing, interact.CancelAction)
				want(t, "the answer", (&caller{got: row(reply), err: err}).states(), c.want)
			})
		})
	}
}

func TestList(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, r *Runner, a *agent, thing interact.Thing) {
		list := func(changes ...change) (all map[string][]interact.Task) {
			t.Helper()
			reply, err := ask(t, thing, interact.QueryAllActions, changes...)
			if err != nil || reply.Type != interact.ActionStatuses || reply.Media() != interact.JSON || reply.Correlation != "m" {
				t.Fatalf("got %+v, %v", reply, err)
			}
			if err := json.Unmarshal(reply.Data, &all); err != nil {
				t.Fatal(err)
			}
			return all
		}
		if all := list(); len(all) != 0 || all == nil {
			t.Errorf("got %v, want an empty object", all)
		}
		outputs := []struct{ media, data, want string }{
			{"", `{"a":1}`, `{"a":1}`},
			{"text/plain", "crisp <b>", `"crisp \u003cb\u003e"`},
			{interact.CBOR, "\xa1\x61a\x01", `{"a":1}`},
			{"image/png", "\x89PNG", ""},
			{"", "{no JSON", ""},
			{"text/plain", "\xff", ""},
			{"", "", ""},
			{"", `"` + strings.Repeat("x", maxListed-10) + `"`, ""}, // with the others it is too much
			{"", `"` + strings.Repeat("x", maxListed) + `"`, ""},
		}
		var ids []string
		for i := range outputs {
			o := outputs[len(outputs)-1-i]
			ids = append([]string{begin(t, thing, detached).id()}, ids...)
			a.last().say(interact.StatusCompleted, o.media, o.data)
		}
		begin(t, thing, named("bake"))
		a.last().fail(&interact.Error{Code: interact.AgentFailed})
		begin(t, thing, named("bake"))
		begin(t, thing, detached, from(bob))
		all := list()
		if len(all) != 2 || len(all["bake"]) != 2 || len(all["hum"]) != len(outputs) {
			t.Fatalf("got %v", all)
		}
		for i, one := range all["hum"] {
			got := string(one.Output)
			if one.ActionID != ids[i] || one.State != "completed" || got != outputs[i].want || one.Requested == "" || one.Ended == "" {
				t.Errorf("%d: got %.200v, want %v with %s", i, one, ids[i], outputs[i].want)
			}
		}
		if b := all["bake"]; b[0].State != "running" || b[0].Ended != "" || b[1].State != "failed" ||
			!strings.Contains(string(b[1].Error), "agent-failed") {
			t.Errorf("got %+v, want the newest first", b)
		}
		if all := list(from(bob)); len(all) != 1 || len(all["hum"]) != 1 {
			t.Errorf("the other has %v", all)
		}
	})
}

// Consumers of one node own their tasks and share the limits of the node, because the node chooses their names.
func TestConsumersBehindANode(t *testing.T) {
	bubble(t, Options{MaxPerCaller: 2}, func(t *testing.T, r *Runner, a *agent, thing interact.Thing) {
		behind := func(name string) change {
			return func(m *interact.Message) { m.From = did.NodePrincipal(alice, name) }
		}
		first := begin(t, thing, detached, behind("crm"))
		for name, as := range map[string]change{"another": behind("ops"), "the node itself": behind(""), "another node's": func(m *interact.Message) {
			m.From = did.NodePrincipal(bob, "crm")
		}, "this machine's": func(m *interact.Message) { m.From = did.Consumer(did.Token, "crm") }} {
			if got := queried(t, thing, id(first.id()), as); got != " task-not-found" && !strings.Contains(got, "task-not-found") {
				t.Errorf("%s consumer sees the task: %s", name, got)
			}
		}
		if got := queried(t, thing, id(first.id()), behind("crm")); strings.Contains(got, "not-found") {
			t.Errorf("its own consumer sees %s", got)
		}
		begin(t, thing, detached, behind("ops"))
		_, err := interact.Call(t.Context(), thing, message(interact.InvokeAction, detached, behind("invented")))
		if interact.AsError(err).Code != interact.Overloaded {
			t.Errorf("a third task of the node: %v", err)
		}
	})
}

// Callers whose requests prove nothing share a principal and are not one person: each finds its task by the id only.
func TestAnonymousConsumers(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, r *Runner, a *agent, thing interact.Thing) {
		for _, p := range []*did.Principal{did.Consumer(did.Unproven, ""), did.NodePrincipal(alice, "unproven")} {
			as := func(m *interact.Message) { m.From = p }
			run := begin(t, thing, detached, as)
			reply, err := ask(t, thing, interact.QueryAllActions, as)
			if err != nil || string(reply.Data) != "{}" {
				t.Errorf("%s lists %s, %v", p.ID(), reply.Data, err)
			}
			for _, typ := range []interact.Type{interact.QueryAction, interact.CancelAction} {
				if _, err := ask(t, thing, typ, as); interact.AsError(err).Code != interact.NoTask {
					t.Errorf("%s: %v of the latest task of the action: %v", p.ID(), typ, err)
				}
			}
			if got := queried(t, thing, id(run.id()), as); strings.Contains(got, "not-found") {
				t.Errorf("%s: its own task is %s", p.ID(), got)
			}
		}
	})
}
