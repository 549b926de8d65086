package servient

import (
	"context"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// A place is a host of a Thing, or several, which replies with its name.
type place struct {
	name  string
	err   *interact.Error
	takes time.Duration
	calls int
}

func (p *place) Do(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		p.calls++
		time.Sleep(p.takes) // of synctest
		if p.err != nil {
			yield(nil, p.err)
			return
		}
		yield(m.Reply(interact.ActionStatus, "", []byte(p.name)), nil)
	}
}

// The agent of this node precedes the other hosts of its Thing: while it can be reached, and takes at most twice their time.
func TestLocalFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		agent, far := &place{name: "local"}, &place{name: "mesh"}
		hasState := false
		both := localFirst(&td.Thing{Actions: map[string]*td.Action{"safe": {Safe: true}, "unsafe": {}}}, agent, far, func(*interact.Message) bool { return hasState })
		var m interact.Message
		want := func(what, name string) {
			t.Helper()
			one := m
			if one.Type == 0 {
				one.Type, one.Name = interact.InvokeAction, "unsafe"
			}
			if r, err := interact.Call(t.Context(), both, &one); err != nil || string(r.Data) != name {
				t.Errorf("%s: got %v, %v, want %s", what, r, err, name)
			}
		}
		want("at first", "local")
		agent.err = &interact.Error{Code: interact.Unreachable}
		want("an agent that is down", "mesh")
		agent.err = nil
		want("an agent that was down a moment ago", "mesh")
		m.Key = "k"
		want("a key, which the agent may have", "local")
		m = interact.Message{Type: interact.QueryAction, ActionID: "1"}
		want("a run, which the agent may have", "local")
		m.Type, m.After = interact.SubscribeEvent, "1"
		want("events, which the agent may have", "local")
		m, hasState = interact.Message{Key: "k"}, true
		want("a key that another host has", "mesh")
		m.Via = "local"
		want("the path by its name", "local")
		m, hasState = interact.Message{Via: "mesh"}, false
		want("the other path by its name", "mesh")
		m = interact.Message{With: &interact.Capability{}}
		want("a delegation, which is for another host", "mesh")
		m = interact.Message{}
		time.Sleep(time.Minute)

		agent.err = &interact.Error{Code: interact.Overloaded}
		want("a queue that is full", "mesh")
		agent.err, m = &interact.Error{Code: interact.NoTask}, interact.Message{Type: interact.QueryAction, ActionID: "1"}
		want("a run of another host", "mesh")
		agent.err, m = &interact.Error{Code: interact.AgentFailed}, interact.Message{Type: interact.InvokeAction, Name: "safe"}
		calls := far.calls
		if _, err := interact.Call(t.Context(), both, &m); interact.AsError(err).Code != interact.AgentFailed || far.calls != calls {
			t.Errorf("an error of the agent: %v", err)
		}
		agent.err = &interact.Error{Code: interact.Unreachable}
		m = interact.Message{Type: interact.SubscribeEvent, Name: "e", After: "1"}
		if _, err := interact.Call(t.Context(), both, &m); interact.AsError(err).Code != interact.Unreachable || far.calls != calls {
			t.Errorf("events that only the agent has: %v", err)
		}

		agent.err, m = nil, interact.Message{}
		time.Sleep(time.Minute)
		agent.takes, far.takes = 19*time.Millisecond, 10*time.Millisecond
		measure := func() {
			for range 40 {
				for _, via := range []string{"local", "mesh"} {
					_, _ = interact.Call(t.Context(), both, &interact.Message{Type: interact.InvokeAction, Name: "unsafe", Via: via})
				}
			}
		}
		measure()
		want("an agent that takes less than twice the time", "local")
		agent.takes = 25 * time.Millisecond
		measure()
		want("an agent that takes more", "mesh")
	})
}
