package coap

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/coap/messaging"
	"github.com/lmosd/lmosd/internal/backoff"
)

// Pauses between two looks at an action in the background grow from firstPause to maxPause.
const (
	firstPause = 50 * time.Millisecond
	maxPause   = 2 * time.Second
	// farewell is how long the DELETE of an abandoned action may take.
	farewell = 2 * time.Second
)

// A task is an action that the agent runs in the background: 2.01 with the place of its state, which [Server] answers too.
type task struct {
	r     *request // of the state: the address is that of the task
	state state
}

// A state is what an agent says of a task, in the words of the Web Thing Protocol or of the WoT Profile.
type state struct {
	State  string          `json:"state"`
	Status string          `json:"status"`
	Output json.RawMessage `json:"output"`
	Error  json.RawMessage `json:"error"`
}

func (s state) status() interact.Status {
	if s.State == "" {
		return interact.StatusOf(s.Status)
	}
	return interact.StatusOf(s.State)
}

// task returns the task that the answer p announces: 2.01 with a Location-Path, and nothing else or a state. Any other answer is
// the output itself, and so is every answer of an action that calls itself synchronous.
func (r *request) task(p *messaging.Packet) *task {
	path := p.Texts(message.LocationPath)
	a := r.thing.Actions[r.message.Name]
	if p.Code != codes.Created || len(path) == 0 || a != nil && a.Synchronous != nil && *a.Synchronous {
		return nil
	}
	t := &task{state: state{State: "pending"}}
	if len(p.Payload) > 0 {
		t.state = state{}
		if json.Unmarshal(p.Payload, &t.state) != nil || t.state.status() == interact.StatusNone {
			return nil
		}
	}
	of := *r
	of.address.path, of.address.query, of.body = path, p.Texts(message.LocationQuery), nil
	of.terms = terms{method: codes.GET, unconfirmed: r.terms.unconfirmed, hops: r.terms.hops}
	t.r = &of
	return t
}

// follow yields each new state until the final one. If the consumer leaves or its time is up, the action is cancelled.
func (t *task) follow(ctx context.Context, yield func(*interact.Message, error) bool) {
	told := interact.StatusNone
	for pauses := (backoff.Backoff{First: firstPause, Max: maxPause}); ; {
		s := t.state.status()
		if s.Final() {
			yield(t.end(s))
			return
		}
		if s != told {
			m := t.r.message.Reply(interact.ActionStatus, "", nil)
			if m.Status = s; !yield(m, nil) {
				t.abandon(ctx)
				return
			}
		}
		told = s
		if err := t.look(ctx, pauses.Next()); err != nil {
			if ctx.Err() != nil {
				t.abandon(ctx)
			}
			yield(nil, err)
			return
		}
	}
}

// look waits and asks for the state.
func (t *task) look(ctx context.Context, pause time.Duration) error {
	if err := backoff.Sleep(ctx, pause); err != nil {
		return t.r.lost(ctx, &messaging.Loss{Cause: err, Begun: true, Acked: true})
	}
	p, err := t.r.ask(ctx)
	if err != nil {
		return err
	}
	t.state = state{}
	if json.Unmarshal(p.Payload, &t.state) != nil || t.state.status() == interact.StatusNone {
		return t.r.broken("it runs in the background, and its state cannot be read")
	}
	return nil
}

// end makes the last message of a task, or its error.
func (t *task) end(s interact.Status) (*interact.Message, error) {
	switch s {
	case interact.StatusCompleted:
		output := []byte(t.state.Output)
		if string(output) == "null" {
			output = nil
		}
		return t.r.completed(output, interact.JSON), nil
	case interact.StatusCancelled:
		return nil, &interact.Error{Code: interact.Cancelled, Remote: true, Hint: "see who else can cancel it",
			Title: t.r.what() + " was cancelled at the agent"}
	}
	var problem struct{ Title, Detail string }
	_ = json.Unmarshal(t.state.Error, &problem) // an error of another form says nothing
	words := strings.Trim(problem.Title+": "+problem.Detail, ": ")
	title := strings.TrimSuffix(t.r.what()+" failed: "+clip(interact.Readable(words), maxWords), ": ")
	return nil, &interact.Error{Code: interact.AgentFailed, Remote: true, Title: title, Hint: hintLog}
}

// abandon cancels the action at the agent, after ctx has ended.
func (t *task) abandon(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	p := t.r.packet()
	p.Code = codes.DELETE
	_, err := t.r.exchange(ctx, p, nil)
	t.r.client.log.Debug("action cancelled", "thing", t.r.thing.ID, "action", t.r.message.Name, "err", err)
}
