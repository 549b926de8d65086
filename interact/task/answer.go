package task

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/td"
)

const (
	// cancelWait limits the wait of CancelAction for the end of the task.
	cancelWait = 5 * time.Second
	// maxListed limits the outputs in a reply to QueryAllActions, in bytes.
	maxListed = 1 << 20
)

// query handles QueryAction: the state of a task, with its output if completed, or the problem if failed. If the output was not
// kept, the error is TooLarge.
func (h *host) query(_ context.Context, m *interact.Message) (*interact.Message, error) {
	s, err := h.lookup(m)
	switch {
	case err != nil:
		return nil, err
	case s.lost != nil:
		return nil, s.lost
	}
	return s.reply(m), nil
}

// cancel handles CancelAction: it waits for the end of the task, at most 5 s.
func (h *host) cancel(ctx context.Context, m *interact.Message) (*interact.Message, error) {
	s, err := h.lookup(m)
	switch {
	case err != nil:
		return nil, err
	case s.state.Final():
		return nil, s.ended(m)
	}
	s.task.cancel(errCancelled)
	if err := s.task.wait(ctx, m.Deadline); err != nil {
		return nil, err
	}
	h.mu.Lock()
	s = s.task.stateLocked()
	h.mu.Unlock()
	if s.state != interact.StatusCancelled { // the agent had ended before, or ignores its context
		return nil, s.ended(m)
	}
	return s.reply(m), nil
}

// resume handles ContinueAction: it sends the answers to the agent. A run that is not a task passes to the agent.
func (h *host) resume(ctx context.Context, m *interact.Message) (*interact.Message, error) {
	h.mu.Lock()
	t, asks := h.findLocked(m), (*interact.Message)(nil)
	if t != nil {
		asks = t.asks
	}
	h.mu.Unlock()
	switch {
	case t == nil:
		return interact.Call(ctx, h.agent, m)
	case asks == nil:
		return nil, interact.Errorf(interact.NoTask, "read its state with queryaction", "%s does not wait for input", t.name)
	}
	c := *m
	c.Name, c.ActionID = t.name, asks.ActionID
	r, err := interact.Call(ctx, h.agent, &c)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if t.asks != asks {
		return m.Reply(r.Type, r.ContentType, r.Data), nil // it has a later state
	}
	if t.asks = unanswered(asks, m); t.asks == nil {
		t.state = interact.StatusRunning
	}
	return m.Reply(r.Type, r.ContentType, r.Data), nil
}

// unanswered returns the state of a run that still requires input after m; nil if m has all answers.
func unanswered(asks, m *interact.Message) *interact.Message {
	var open interact.Inputs
	var given interact.Answers
	if !decode(asks, &open) || !decode(m, &given) {
		return nil // the agent accepted them and requests the rest itself
	}
	for key := range given {
		delete(open, key)
	}
	data, err := json.Marshal(open)
	if err != nil || len(open) == 0 {
		return nil
	}
	c := *asks
	c.Data, c.ContentType = data, interact.JSON
	return &c
}

func decode(m *interact.Message, v any) bool {
	data, _, err := interact.Transcode(m.Data, m.Media(), interact.JSON)
	return err == nil && json.Unmarshal(data, v) == nil
}

// wait returns after the end of the task, or with the error that ended the wait.
func (t *task) wait(ctx context.Context, deadline time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, cancelWait)
	defer cancel()
	if !deadline.IsZero() {
		ctx, cancel = context.WithDeadline(ctx, deadline)
		defer cancel()
	}
	select {
	case <-t.done:
		return nil
	case <-ctx.Done():
	}
	if ctx.Err() == context.Canceled {
		return ctx.Err()
	}
	return interact.Errorf(interact.Timeout, "read its state later (queryaction)",
		"%s received the cancellation and has not stopped yet", t.name)
}

// list handles QueryAllActions with the tasks of the consumer by action, newest first. Outputs without a JSON form, and those
// beyond 1 MiB in total, are omitted: QueryAction has them.
func (h *host) list(_ context.Context, m *interact.Message) (*interact.Message, error) {
	all, room := map[string][]interact.Task{}, maxListed
	for _, s := range h.states(m.From) {
		one := s.listed()
		if len(one.Output) > room {
			one.Output = nil
		}
		room -= len(one.Output)
		all[s.task.name] = append(all[s.task.name], one)
	}
	data, err := json.Marshal(all)
	if err != nil {
		return nil, &interact.Error{Code: interact.Internal, Title: "the tasks cannot be listed",
			Hint: "query one task (queryaction)", Err: err}
	}
	return m.Reply(interact.ActionStatuses, interact.JSON, data), nil
}

// states returns the states of the tasks of a consumer, newest first. Anonymous consumers share a principal, so that they get none.
func (h *host) states(from *did.Principal) (all []state) {
	if from.Anonymous() {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sweepLocked(time.Now())
	c, id := h.accounts[from.Base()], from.ID()
	if c == nil {
		return nil
	}
	for _, t := range slices.Backward(c.tasks) {
		if t.thing == h.desc.ID && t.ownerID == id {
			all = append(all, t.stateLocked())
		}
	}
	return all
}

// lookup returns the state of the task of m. The error is NoTask, or Invalid if m identifies no task.
func (h *host) lookup(m *interact.Message) (state, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sweepLocked(time.Now())
	switch t := h.findLocked(m); {
	case t != nil:
		return t.stateLocked(), nil
	case m.ActionID != "":
		return state{}, interact.Errorf(interact.NoTask,
			"results are kept for a limited time and not over a restart of the host; only the caller that started an action can query it",
			"%s has no task %q", h.desc.Name(), m.ActionID)
	case m.Name == "":
		return state{}, interact.Errorf(interact.Invalid, "send the actionID of its first state, or the name of the action",
			"expected an actionID or the name of an action")
	default:
		return state{}, interact.Errorf(interact.NoTask, "only actions invoked with Detach or a Key are kept for later queries",
			"%s has no task of %s", h.desc.Name(), m.Name)
	}
}

// findLocked returns the task of m, or the latest of its action, if it belongs to the consumer. Anonymous consumers share a principal: they
// must name the task.
func (h *host) findLocked(m *interact.Message) *task {
	c, id := h.accounts[m.From.Base()], m.From.ID()
	if c == nil || m.ActionID == "" && (m.Name == "" || m.From.Anonymous()) {
		return nil
	}
	for _, t := range slices.Backward(c.tasks) {
		if t.thing == h.desc.ID && t.ownerID == id && (m.Name == "" || t.name == m.Name) && (m.ActionID == "" || t.id == m.ActionID) {
			return t
		}
	}
	return nil
}

// A state is a snapshot of a task.
type state struct {
	task  *task
	state interact.Status
	asks  *interact.Message
	final *interact.Message
	err   *interact.Error
	lost  *interact.Error // the output was not kept
	over  time.Time
}

func (t *task) stateLocked() state {
	s := state{task: t, state: t.state, asks: t.asks, final: t.final, err: t.err, over: t.over}
	if t.state == interact.StatusCompleted {
		_, s.lost = t.resultLocked()
	}
	return s
}

// reply returns the state as a reply to m.
func (s state) reply(m *interact.Message) *interact.Message {
	r := m.Reply(interact.ActionStatus, "", nil)
	r.ActionID, r.Name, r.Status, r.Began = s.task.id, s.task.name, s.state, s.task.began.UTC()
	if !s.over.IsZero() {
		r.Time = s.over.UTC()
	}
	switch {
	case s.final != nil:
		r.ContentType, r.Data = s.final.ContentType, s.final.Data
	case s.asks != nil:
		r.ContentType, r.Data = s.asks.ContentType, s.asks.Data
	case s.state == interact.StatusFailed:
		r.ContentType = problem.MediaType
		r.Data, _ = problem.Marshal(s.err)
	}
	return r
}

// ended returns the error of a cancellation after the end of the task.
func (s state) ended(m *interact.Message) error {
	return interact.Errorf(interact.NoTask, "read its result with queryaction", "%s of %s has ended: %s",
		s.task.name, interact.Quote(m.Thing), s.state)
}

// listed returns the state as an element of the reply to QueryAllActions (Web Thing Protocol, ActionStatus).
func (s state) listed() interact.Task {
	one := interact.Task{ActionID: s.task.id, State: s.state.String(), Requested: s.task.began.UTC().Format(time.RFC3339Nano)}
	if !s.over.IsZero() {
		one.Ended = s.over.UTC().Format(time.RFC3339Nano)
	}
	switch {
	case s.final != nil:
		one.Output = inJSON(s.final)
	case s.lost != nil:
		one.Error, _ = problem.Marshal(s.lost)
	case s.state == interact.StatusFailed:
		one.Error, _ = problem.Marshal(s.err)
	}
	return one
}

// inJSON returns the data of m as JSON; nil if it has no JSON form.
func inJSON(m *interact.Message) json.RawMessage {
	data, media, err := interact.Transcode(m.Data, m.Media(), interact.JSON)
	switch {
	case err != nil || len(data) == 0 || len(data) > maxListed:
		return nil
	case td.IsJSON(media) && json.Valid(data):
		return data
	case strings.HasPrefix(media, "text/") && utf8.Valid(data):
		text, _ := json.Marshal(string(data)) // a string always has a JSON form
		return text
	}
	return nil
}
