package ws

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/interact/ws/frame"
	"github.com/lmosd/lmosd/internal/backoff"
)

// Pauses between two queries of an action in wtp grow from firstPause to lastPause.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 2 * time.Second
)

// A peer is a Thing of the other side of a connection.
type peer struct {
	c     *conn
	thing string // its name at the peer
	style frame.Style
	// streams means that the peer accepts request streams.
	streams bool
}

// call sends m and yields the replies. It returns the error that ends the interaction, for the caller to yield.
func (p *peer) call(ctx context.Context, m *interact.Message, yield func(*interact.Message, error) bool) error {
	if err := form.CheckHops(m); err != nil {
		return err
	}
	if err := p.possible(m); err != nil {
		return err
	}
	ctx, cancel := within(ctx, m)
	defer cancel()
	o, err := p.c.offer(m)
	if err != nil {
		return err
	}
	defer o.end()
	k, err := p.c.begin(ctx, p, m, o)
	if err != nil {
		return err
	}
	if o != nil {
		go o.feed(ctx, k)
	}
	a := answers{m: m, dialect: p.style.Dialect}
	defer func() { p.c.leave(p, k, a.final, a.actionID) }()
	for {
		f, err := p.c.next(ctx, p, k)
		if err != nil {
			return err
		}
		r, err := a.take(f)
		if err != nil {
			return err
		}
		if r != nil && !yield(r, nil) || a.final {
			return nil
		}
		if a.pollable() {
			return p.poll(ctx, &a, yield)
		}
	}
}

// possible rejects messages that the protocol or the peer does not support.
func (p *peer) possible(m *interact.Message) error {
	switch {
	case m.Chunks != nil && (!p.streams || m.Type != interact.InvokeAction):
		return interact.Errorf(interact.NotAllowed, "send the data as one input", "%s does not accept a request stream here", p.c.name)
	case m.Chunks != nil && len(m.Data) > 0:
		return interact.Errorf(interact.Invalid, "send one of them", "%s accepts an input or a stream, got both", frame.Clip(m.Name, 100))
	case frame.Name(m.Type) == "" || m.Type.Op() == "" || ends(m.Type):
		return interact.NoOperation("a Thing", m.Type)
	case !p.style.Supports(m.Type):
		return interact.Errorf(interact.NotAllowed, "use single properties, actions and events", "%s does not support %s",
			p.c.name, m.Type.Op())
	}
	return nil
}

// within limits the time of an interaction. An action without a deadline may last as long as its connection.
func within(ctx context.Context, m *interact.Message) (context.Context, context.CancelFunc) {
	if m.Type == interact.InvokeAction && m.Deadline.IsZero() {
		return context.WithCancel(ctx)
	}
	return form.Within(ctx, m)
}

// expired returns the error of a consumer that left, or of a deadline.
func (p *peer) expired(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return &interact.Error{Code: interact.Timeout, Title: p.c.name + ": no response in time", Started: true, Err: err,
			Hint: interact.BusyHint, Next: interact.MoreTime()}
	}
	return &interact.Error{Code: interact.Cancelled, Err: err}
}

// poll queries an action of wtp until it ends: the protocol sends no states (queryaction).
func (p *peer) poll(ctx context.Context, a *answers, yield func(*interact.Message, error) bool) error {
	q := *a.m
	q.Type, q.ActionID, q.Data, q.Key, q.After = interact.QueryAction, a.actionID, nil, "", ""
	for pauses := (backoff.Backoff{First: firstPause, Max: lastPause}); ; {
		t := time.NewTimer(pauses.Next())
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return p.expired(ctx.Err())
		case <-p.c.ctx.Done(): // the query returns the error
			t.Stop()
		}
		var seen *interact.Message
		if err := p.call(ctx, &q, func(r *interact.Message, _ error) bool { seen = r; return true }); err != nil {
			return err
		}
		r, err := a.state(seen)
		if err != nil {
			return err
		}
		if r != nil && !yield(r, nil) || a.final {
			return nil
		}
	}
}

// answers converts the reply frames of m to replies of a Thing.
type answers struct {
	m        *interact.Message
	dialect  frame.Dialect
	actionID string
	status   interact.Status // of the last reply
	final    bool            // no further frame is needed
}

// take handles one frame. It returns nil for a frame without a reply for the consumer.
func (a *answers) take(f *frame.Frame) (*interact.Message, error) {
	if f.Type == frame.TypeError {
		a.final = true
		return nil, f.Fault
	}
	switch {
	case a.m.Type.Long():
		if f.Type != interact.PropertyReading && f.Type != interact.Event {
			return nil, nil // an acknowledgement
		}
		r := a.reply(f, f.Type)
		r.ID = f.ID
		return r, nil
	case a.m.Type == interact.InvokeAction && f.Type == interact.ActionStatus:
		return a.state(a.reply(f, f.Type))
	}
	a.final = true
	several := a.m.Type == interact.WriteMultipleProperties || a.m.Type == interact.WriteAllProperties
	switch {
	case a.m.Type == interact.WriteProperty:
		return a.written(f)
	case several && f.Type == interact.Acknowledgement:
	case f.Type != frame.AnswerTo(a.m.Type):
		return nil, a.unexpected(f)
	case f.Type == interact.ActionStatuses:
		f.Data = tasks(f.Data)
	}
	return a.reply(f, f.Type), nil
}

// unexpected returns the error of a response of the wrong type.
func (a *answers) unexpected(f *frame.Frame) error {
	return interact.Errorf(interact.AgentFailed, "see the agent's log", "unexpected response to %s: a message of type %s",
		a.m.Type.Op(), frame.Name(f.Type))
}

// reply makes a reply of f.
func (a *answers) reply(f *frame.Frame, t interact.Type) *interact.Message {
	r := a.m.Reply(t, f.ContentType, f.Data)
	r.Status, r.Time, r.Began = f.Status, f.Time, f.Began
	if f.Name != "" {
		r.Name = f.Name
	}
	if f.ActionID != "" {
		r.ActionID = f.ActionID
	}
	return r
}

// written reads the response to a write: in doc, an object of values by name.
func (a *answers) written(f *frame.Frame) (*interact.Message, error) {
	switch {
	case f.Type == interact.PropertyReading && len(f.Data) > 0:
		return a.reply(f, f.Type), nil
	case f.Type == interact.PropertyReadings:
		var values map[string]json.RawMessage
		_ = json.Unmarshal(f.Data, &values) // without an object the write is not confirmed
		if value := values[a.m.Name]; value != nil {
			f.Data = value
			return a.reply(f, interact.PropertyReading), nil
		}
	case f.Type != interact.Acknowledgement && f.Type != interact.PropertyReading:
		return nil, a.unexpected(f)
	}
	return a.m.Reply(interact.Acknowledgement, "", nil), nil
}

// state handles a state of the action. A failure is an error.
func (a *answers) state(r *interact.Message) (*interact.Message, error) {
	if r.ActionID != "" {
		a.actionID = r.ActionID
	}
	r.Type, r.Name = interact.ActionStatus, a.m.Name
	if r.Status == interact.StatusPending && len(r.Data) > 0 {
		r.Status = interact.StatusRunning // doc has one term for both
	}
	switch r.Status {
	case interact.StatusNone, interact.StatusCompleted: // a response without a state is final
		r.Status, a.final = interact.StatusCompleted, true
	case interact.StatusFailed:
		a.final = true
		return nil, failure(r)
	case interact.StatusCancelled:
		a.final = true
		return nil, &interact.Error{Code: interact.Cancelled, Remote: true, Title: "the agent cancelled the action", Hint: "invoke it again"}
	default:
		if a.status == r.Status && len(r.Data) == 0 {
			return nil, nil // unchanged
		}
	}
	a.status = r.Status
	return r, nil
}

// failure returns the error of a failed action: its problem, or the text of its output.
func failure(r *interact.Message) error {
	switch {
	case len(r.Data) == 0:
		return &interact.Error{Code: interact.AgentFailed, Remote: true, Title: "the action failed", Hint: "see the agent's log"}
	case r.ContentType == problem.MediaType:
		return frame.ReadProblem(r.Data)
	}
	return &interact.Error{Code: interact.AgentFailed, Remote: true, Hint: "see the agent's log",
		Title: "the action failed: " + frame.Clip(string(r.Data), frame.MaxText)}
}

// pollable reports whether the action continues and must be polled.
func (a *answers) pollable() bool {
	return a.dialect == frame.WTP && a.m.Type == interact.InvokeAction && !a.final && a.actionID != ""
}

// tasks corrects states of actions as in an example of the draft, which has "status" in place of "state".
func tasks(data []byte) []byte {
	if !bytes.Contains(data, []byte(`"status"`)) {
		return data
	}
	var all map[string][]map[string]json.RawMessage
	if json.Unmarshal(data, &all) != nil {
		return data
	}
	for _, list := range all {
		for _, t := range list {
			if t["state"] == nil && t["status"] != nil {
				t["state"] = t["status"]
				delete(t, "status")
			}
		}
	}
	fixed, err := json.Marshal(all)
	if err != nil {
		return data
	}
	return fixed
}
