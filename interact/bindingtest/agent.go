package bindingtest

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"sync"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// bigReply is the size of the property "big" in bytes.
const bigReply = 256 << 10

// An Agent is the Thing at the far end.
type Agent struct {
	// About is the description, for a server that needs one. Its forms lead nowhere.
	About *td.Thing
	// Gate is for the server, which holds it until its responses are sent.
	Gate *interact.Gate

	started, ended chan string   // names of the affordances whose interaction began or ended
	respond        chan struct{} // the action "late" responds when it is closed

	mu     sync.Mutex
	values map[string]string
	seen   []interact.Message
}

func newAgent() *Agent {
	return &Agent{Gate: new(interact.Gate), started: make(chan string, 100), ended: make(chan string, 100), respond: make(chan struct{}),
		values: map[string]string{"level": "0", "power": "true", "big": `"` + strings.Repeat("x", bigReply) + `"`}}
}

// Find returns the description of the agent, whatever its reference is.
func (a *Agent) Find(context.Context, string) (*td.Description, error) {
	return &td.Description{Thing: a.About, Record: &td.Record{Owner: "did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH", Thing: a.About.ID,
		Title: a.About.Title}}, nil
}

// Seen returns the messages that arrived.
func (a *Agent) Seen() []interact.Message {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]interact.Message(nil), a.seen...)
}

// Do implements [interact.Thing].
func (a *Agent) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		a.mu.Lock()
		a.seen = append(a.seen, *m)
		value := a.values[m.Name]
		if m.Type == interact.WriteProperty {
			a.values[m.Name] = string(m.Data)
		}
		a.mu.Unlock()
		reply := m.Reply(interact.PropertyReading, interact.JSON, []byte(value))
		switch {
		case m.Type == interact.WriteProperty:
			reply.Type, reply.Data, reply.ContentType = interact.Acknowledgement, nil, ""
		case m.Type == interact.ObserveProperty, m.Type == interact.SubscribeEvent:
			a.series(ctx, m, yield)
			return
		case m.Name == "fail":
			yield(nil, interact.Errorf(interact.AgentFailed, "see the agent's log", "the wick is wet"))
			return
		case m.Name == "stuck":
			a.wait(ctx, m.Name)
			yield(nil, ctx.Err())
			return
		case m.Type == interact.InvokeAction:
			reply.Type, reply.Status, reply.Data = interact.ActionStatus, interact.StatusCompleted, m.Data
			if m.Name == "late" {
				a.ended <- m.Name
				select {
				case <-a.respond:
				case <-ctx.Done():
				}
			}
		}
		yield(reply, nil)
	}
}

// series yields 1, 2 and 3, and then waits for the consumer to leave.
func (a *Agent) series(ctx context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
	t := interact.Event
	if m.Type == interact.ObserveProperty {
		t = interact.PropertyReading
	}
	for n := 1; n <= 3; n++ {
		if !yield(m.Reply(t, interact.JSON, fmt.Appendf(nil, "%d", n)), nil) {
			a.ended <- m.Name
			return
		}
	}
	a.wait(ctx, m.Name)
}

func (a *Agent) wait(ctx context.Context, name string) {
	a.started <- name
	<-ctx.Done()
	a.ended <- name
}
