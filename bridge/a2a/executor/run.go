package executor

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/ratelimit"
)

// states maps the status of an action to the state of its task (A2A 1.0 §4.1.3). The first of several rows with one status is the
// default: the required input decides between the rows of input-required (see inputParts), and the error between those of failed (see
// failure).
var states = []struct {
	status interact.Status
	state  protocol.State
}{
	{interact.StatusPending, protocol.Submitted},
	{interact.StatusRunning, protocol.Working},
	{interact.StatusInputRequired, protocol.InputRequired},
	{interact.StatusInputRequired, protocol.AuthRequired},
	{interact.StatusCompleted, protocol.Completed},
	{interact.StatusFailed, protocol.Failed},
	{interact.StatusFailed, protocol.Rejected},
	{interact.StatusCancelled, protocol.Canceled},
}

// StateOf returns the state of a task whose action has status s; Unspecified if the table has none.
func StateOf(s interact.Status) protocol.State {
	for _, row := range states {
		if row.status == s {
			return row.state
		}
	}
	return protocol.Unspecified
}

// StatusOf returns the status of an action whose task has state s; StatusNone if the table has none.
func StatusOf(s protocol.State) interact.Status {
	for _, row := range states {
		if row.state == s {
			return row.status
		}
	}
	return interact.StatusNone
}

// failure returns the final state for an error.
func failure(e *interact.Error) protocol.State {
	switch e.Code {
	case interact.Cancelled:
		return protocol.Canceled
	case interact.Forbidden, interact.Unauthenticated:
		return protocol.Rejected
	}
	return protocol.Failed
}

// accept decodes a message, and returns the task that it creates or continues. For a created task it calls follow, as begin does.
func (a *agent) accept(op *protocol.Operation, follow func(*task, *protocol.Send)) (*task, *protocol.Send, error) {
	p := &protocol.Send{}
	if e := protocol.Read(op.Params, p); e != nil {
		return nil, nil, e
	}
	if e := protocol.CheckMessage(p.Message); e != nil {
		return nil, nil, e
	}
	if n := p.Configuration.HistoryLength; n != nil && *n < 0 {
		return nil, nil, protocol.Errorf(protocol.InvalidParams, "historyLength is negative").At("configuration.historyLength")
	}
	if len(p.Configuration.Push) > 0 && string(p.Configuration.Push) != "null" {
		return nil, nil, protocol.Errorf(protocol.PushNotSupported, "the agent does not support push notifications")
	}
	if e := a.checkModes(p); e != nil {
		return nil, nil, e
	}
	var t *task
	var err error
	if p.Message.TaskID != "" {
		t, err = a.resume(p.Message)
	} else {
		t, err = a.begin(p.Message, func(t *task) { follow(t, p) })
	}
	return t, p, err
}

// begin creates a task for a message, or returns the task that the same message created before. It calls follow with the mutex locked, before
// the run of a new task can send events.
func (a *agent) begin(m *protocol.Message, follow func(*task)) (*task, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sweepLocked(time.Now())
	if t := a.sent[sentKey{a.principal, a.thing.Ref, m.ID}]; t != nil && !a.isShared() {
		follow(t)
		return t, nil
	}
	in, err := a.invocation(m)
	if err != nil {
		return nil, err
	}
	t, err := a.createLocked(m)
	if err != nil {
		return nil, err
	}
	if in == nil {
		t.undecided = m
		a.setLocked(t, protocol.InputRequired, a.choices()...)
		follow(t)
		return t, nil
	}
	follow(t)
	a.startLocked(t, in)
	return t, nil
}

// resume continues a task that waits for its client.
func (a *agent) resume(m *protocol.Message) (*task, error) {
	a.mu.Lock()
	t, err := a.findLocked(m.TaskID)
	if err != nil {
		a.mu.Unlock()
		return nil, err
	}
	state := t.shown.Status.State
	switch {
	case m.ContextID != "" && m.ContextID != t.shown.ContextID:
		err = protocol.Errorf(protocol.InvalidParams, "the task belongs to another context").At("message.contextId")
	case a.hasMessageLocked(t, m.ID):
		a.mu.Unlock()
		return t, nil
	case state.Terminal():
		err = protocol.Errorf(protocol.UnsupportedOperation, "the task has ended: start another")
	case !state.Waits():
		err = protocol.Errorf(protocol.UnsupportedOperation, "the task does not require input")
	}
	if err != nil {
		a.mu.Unlock()
		return nil, err
	}
	if m.ContextID = t.shown.ContextID; t.undecided != nil {
		defer a.mu.Unlock()
		return t, a.decideLocked(t, m)
	}
	open, input := t.open, &interact.Message{Type: interact.ContinueAction, Thing: a.thing.Ref, Name: t.action, ActionID: t.run,
		ID: interact.NewID(), From: a.thing.From}
	a.mu.Unlock()
	answers, e := answersOf(m, open)
	if e != nil {
		return nil, e
	}
	input.Data = protocol.Encode(answers)
	return t, a.answer(t, m, input)
}

func (a *agent) hasMessageLocked(t *task, message string) bool {
	return slices.ContainsFunc(t.shown.History, func(m *protocol.Message) bool { return m.ID == message })
}

// answer sends the input of message m to the run that requires it. The task is WORKING before that, because the input may end the run at
// once.
func (a *agent) answer(t *task, m *protocol.Message, input *interact.Message) error {
	a.mu.Lock()
	before := t.shown.Status
	t.open = nil
	a.appendHistoryLocked(t, m)
	a.setLocked(t, protocol.Working)
	a.mu.Unlock()
	ctx, cancel := context.WithTimeout(a.ctx, 30*time.Second)
	defer cancel()
	_, err := interact.Call(ctx, a.thing.Thing, input)
	if err == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if t.shown.Status.State == protocol.Working && t.open == nil && interact.AsError(err).Code == interact.Invalid {
		a.setLocked(t, before.State, protocol.TextPart(errorText(interact.AsError(err))))
	}
	return err
}

// decideLocked selects the skill of an undecided task from m: m names it, has its name as text, or is a complete message.
func (a *agent) decideLocked(t *task, m *protocol.Message) error {
	first := t.undecided
	if name := strings.TrimSpace(textOf(m)); a.thing.Desc.Actions[name] != nil && dataOf(m) == nil {
		named := *first
		named.Metadata = protocol.Encode(map[string]string{"skillId": name})
		first = &named
	} else if name, _ := SkillOf(m); name != "" && textOf(m) == "" && dataOf(m) == nil {
		named := *first
		named.Metadata = m.Metadata
		first = &named
	} else {
		first = m
	}
	first.ContextID = t.shown.ContextID
	in, err := a.invocation(first)
	if err != nil {
		return err
	}
	m.TaskID = t.id
	a.appendHistoryLocked(t, m)
	if in == nil {
		a.setLocked(t, protocol.InputRequired, a.choices()...)
		return nil
	}
	t.undecided = nil
	a.setLocked(t, protocol.Working)
	a.startLocked(t, in)
	return nil
}

// startLocked starts the run of a task.
func (a *agent) startLocked(t *task, in *invocation) {
	ctx, cancel := context.WithTimeout(a.ctx, a.o.MaxRun)
	t.cancel, t.action = cancel, in.action
	m := &interact.Message{Type: interact.InvokeAction, Thing: a.thing.Ref, Name: in.action, ID: interact.NewID(),
		From: a.thing.From, Correlation: t.id,
		ContentType: in.media, Data: in.data, Deadline: time.Now().Add(a.o.MaxRun)}
	a.work.Go(func() {
		defer cancel()
		defer func() {
			if p := recover(); p != nil {
				a.o.Log.Error("A2A task panicked", "thing", a.thing.Ref, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
				a.fail(t, interact.Errorf(interact.Internal, "see the log of the node", "the node failed while it called %s", m.Name))
			}
		}()
		a.run(ctx, t, m)
	})
}

// run invokes the action and processes all replies.
func (a *agent) run(ctx context.Context, t *task, m *interact.Message) {
	for r, err := range a.thing.Thing.Do(ctx, m) {
		if err != nil {
			a.fail(t, interact.AsError(err))
			return
		}
		if !a.handleReply(t, r) {
			return
		}
	}
	a.fail(t, interact.Errorf(interact.AgentFailed, "see the log of the agent", "the agent ended %s without a final status", m.Name))
}

// handleReply processes a reply of a run, and reports whether the run continues.
func (a *agent) handleReply(t *task, r *interact.Message) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.ActionID != "" {
		t.run = r.ActionID
	}
	for one := range t.readers {
		one.backlog = one.size
	}
	switch state := StateOf(r.Status); {
	case state == protocol.Unspecified:
		a.setLocked(t, protocol.Failed, protocol.TextPart("the agent returned an unknown status"))
	case r.Status == interact.StatusInputRequired:
		var in interact.Inputs
		if err := json.Unmarshal(r.Data, &in); err != nil || len(in) == 0 {
			a.setLocked(t, protocol.Failed, protocol.TextPart("the agent returned an invalid input request"))
			return false
		}
		state, parts := inputParts(in)
		t.open = in
		a.setLocked(t, state, parts...)
		return true
	case r.ContentType == interact.Progress && r.Status == interact.StatusRunning:
		a.progressLocked(t, r.Data)
	case len(r.Data) > 0 && state != protocol.Failed && state != protocol.Canceled && !a.addOutputLocked(t, r):
		a.setLocked(t, protocol.Failed, protocol.TextPart("the output exceeds the size limit of a task"))
		return false
	case state == protocol.Completed && len(r.Data) > 0:
		a.setLocked(t, state, reply(r)...)
	case state == protocol.Failed && len(r.Data) > 0:
		parts, _ := partsOf(r.Data, r.Media())
		a.setLocked(t, state, parts...)
	case t.shown.Status.State != state:
		t.open = nil // the run continues; another consumer may have provided the input
		a.setLocked(t, state)
	}
	return !t.shown.Status.State.Terminal()
}

// progressLimit is the rate of progress updates of a task. Updates above it are dropped.
var progressLimit = ratelimit.Every(32, 50*time.Millisecond)

// progressLocked updates the status with the progress of a run. Progress is not part of the history.
func (a *agent) progressLocked(t *task, data []byte) {
	if !t.progress.Take(progressLimit, 1, time.Now()) && t.shown.Status.State == protocol.Working {
		return
	}
	var p struct {
		Progress, Total json.Number
		Message         string
	}
	_ = json.Unmarshal(data, &p) // invalid progress is ignored
	text := p.Message
	if text == "" && p.Progress != "" {
		if text = p.Progress.String(); p.Total != "" {
			text += " of " + p.Total.String()
		}
	}
	if text == "" {
		return
	}
	part := protocol.TextPart(interact.Clip(text, protocol.MaxProgress))
	if json.Valid(data) {
		part.Metadata = protocol.Encode(map[string]json.RawMessage{progressTerm: data})
	}
	t.open = nil
	a.setStatusLocked(t, protocol.Working, t.agentMessage(part))
}

// addOutputLocked adds the data of r to the output of the task. Data of the final reply is the whole output.
func (a *agent) addOutputLocked(t *task, r *interact.Message) bool {
	if r.Status == interact.StatusRunning && t.shown.Status.State == protocol.Submitted {
		a.setLocked(t, protocol.Working)
	}
	parts, meta := partsOf(r.Data, r.Media())
	for len(parts) > 0 {
		n := partsPerEvent(parts)
		last := r.Status == interact.StatusCompleted && n == len(parts)
		if !a.addArtifactLocked(t, &protocol.Artifact{ID: "output", Name: t.action, Metadata: meta, Parts: parts[:n:n]}, last) {
			return false
		}
		parts = parts[n:]
	}
	return true
}

// partsPerEvent returns the number of parts that fit into one event (see maxPart), at least one.
func partsPerEvent(parts []protocol.Part) int {
	size := 0
	for i, p := range parts {
		if size += len(protocol.Encode(p)); size > maxPart && i > 0 {
			return i
		}
	}
	return len(parts)
}

// reply returns the message of a conversational agent next to its output (AgentResult of the LMOS data model).
func reply(r *interact.Message) []protocol.Part {
	var result struct {
		Messages []struct{ Role, Content string } `json:"messages"`
	}
	if json.Unmarshal(r.Data, &result) != nil {
		return nil
	}
	var parts []protocol.Part
	for _, m := range result.Messages {
		if m.Content != "" && m.Role != "user" {
			parts = append(parts, protocol.TextPart(m.Content))
		}
	}
	return parts
}

// errorText returns the title of an error, its issues and its hint, one per line.
func errorText(e *interact.Error) string {
	title := cmp.Or(e.Title, e.Code.Title())
	for _, i := range e.Issues {
		title += "\n" + i.Pointer + " " + i.Reason
	}
	if hint := protocol.Hint(e); hint != "" {
		title += "\n" + hint
	}
	return title
}

// fail ends a task with an error.
func (a *agent) fail(t *task, e *interact.Error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if t.canceled && e.Code == interact.Cancelled {
		return // end has set the state
	}
	part := protocol.TextPart(errorText(e))
	part.Metadata = protocol.Encode(map[string]any{"lmosCode": e.Code.String(), "retryable": e.Code.Retryable()})
	a.setLocked(t, failure(e), part)
}

// end cancels a task and its run.
func (a *agent) end(ctx context.Context, t *task) error {
	a.mu.Lock()
	state, run, cancel := t.shown.Status.State, t.run, t.cancel
	if state.Terminal() {
		a.mu.Unlock()
		if state == protocol.Canceled {
			return nil
		}
		return protocol.Errorf(protocol.TaskNotCancelable, "the task has ended").With(map[string]string{"taskId": t.id})
	}
	t.canceled = true
	a.setLocked(t, protocol.Canceled)
	a.mu.Unlock()
	if cancel == nil {
		return nil
	}
	if run != "" { // a detached run continues when its consumer disconnects
		ctx, stop := context.WithTimeout(ctx, 10*time.Second)
		defer stop()
		_, err := interact.Call(ctx, a.thing.Thing, &interact.Message{Type: interact.CancelAction, Thing: a.thing.Ref, Name: t.action,
			ActionID: run, ID: interact.NewID(), From: a.thing.From})
		if err != nil {
			a.o.Log.Debug("action cancellation failed", "thing", a.thing.Ref, "action", t.action, "err", err)
		}
	}
	cancel()
	return nil
}
