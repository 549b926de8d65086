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
	"github.com/lmosd/lmosd/interact/form"
)

// firstPause is the pause before the first poll of a task.
const firstPause = 50 * time.Millisecond

// A task polls an action that the agent runs in the background: 2.01 with the address of its state, as [Server] responds.
type task struct {
	r     *request // of the state: the address is that of the task
	state form.State
}

// task returns the task of the response p: 2.01 with a Location-Path, and no payload or a state. Any other response is the output, and
// so is each response of a synchronous action.
func (r *request) task(p *messaging.Packet) *task {
	path := p.Texts(message.LocationPath)
	a := r.Thing.Actions[r.Message.Name]
	if p.Code != codes.Created || len(path) == 0 || a != nil && a.Synchronous != nil && *a.Synchronous {
		return nil
	}
	t := &task{state: form.State{State: "pending"}}
	if len(p.Payload) > 0 {
		t.state = form.State{}
		if json.Unmarshal(p.Payload, &t.state) != nil || t.state.Of() == interact.StatusNone {
			return nil
		}
	}
	of, bare := *r, *r.Request
	bare.Body = nil
	of.Request, of.address.path, of.address.query = &bare, path, p.Texts(message.LocationQuery)
	of.terms = terms{method: codes.GET, unconfirmed: r.terms.unconfirmed, hops: r.terms.hops}
	t.r = &of
	return t
}

// follow yields the states of the task until the final one.
func (t *task) follow(ctx context.Context, yield func(*interact.Message) bool) error {
	whole := form.Task{Poller: t, Message: t.r.Message, What: t.r.What(), State: t.state, Pause: firstPause,
		ErrorText: errorText, Log: t.r.client.log}
	return whole.Follow(ctx, yield)
}

// errorText returns the text of the error in a state (RFC 9457 §3.1), or "" for another format.
func errorText(e json.RawMessage) string {
	var problem struct{ Title, Detail string }
	_ = json.Unmarshal(e, &problem)
	return clip(interact.Readable(strings.Trim(problem.Title+": "+problem.Detail, ": ")), maxText)
}

// Poll implements [form.Poller].
func (t *task) Poll(ctx context.Context) (s form.State, _ time.Duration, err error) {
	p, err := t.r.call(ctx)
	if err != nil {
		return s, 0, err
	}
	if json.Unmarshal(p.Payload, &s) != nil || s.Of() == interact.StatusNone {
		return s, 0, t.r.broken("the action runs in the background, and its state is invalid")
	}
	return s, 0, nil
}

// Lost implements [form.Poller].
func (t *task) Lost(ctx context.Context, err error) error {
	return t.r.lost(ctx, &messaging.Loss{Cause: err, Started: true, Acked: true})
}

// Cancel implements [form.Poller].
func (t *task) Cancel(ctx context.Context) error {
	p := t.r.packet()
	p.Code = codes.DELETE
	_, err := t.r.exchange(ctx, p, nil)
	return err
}
