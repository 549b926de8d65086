package aggregator

import (
	"context"
	"encoding/json"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/features"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/opaque"
)

// pollInterval is the recommended interval between requests for the state of a task.
const pollInterval = time.Second

// tasksOf returns the binding of the opaque task ids of a caller. They are valid until the node stops.
func tasksOf(ctx context.Context) opaque.For {
	return opaque.For{Purpose: "task", Caller: protocol.CallerOf(ctx)}
}

// A taskID is the content of an opaque task id.
type taskID struct {
	Ref    string    `json:"r"`
	Tool   string    `json:"t"`
	Action string    `json:"a"`
	ID     string    `json:"i"`
	Began  time.Time `json:"b"`
}

// started returns the response to a call that becomes a task.
func (t *thing) started(ctx context.Context, m *protocol.Message, one *run) *protocol.Message {
	now := time.Now().UTC()
	id := t.h.sealer.Seal(tasksOf(ctx), 0, taskID{t.ref, m.Text("name"), one.msg.Name, one.task, now})
	return protocol.Respond(m.ID(), features.Task{Type: "task", ID: id, Status: "working", Created: now, Updated: now,
		Poll: pollInterval.Milliseconds()})
}

// task handles tasks/get, tasks/update and tasks/cancel.
func (t *thing) task(ctx context.Context, m *protocol.Message) *protocol.Message {
	if e := features.NeedTasks(m); e != nil {
		return protocol.RespondError(m.ID(), e)
	}
	var id taskID
	token := m.Text("taskId")
	if t.h.sealer.Open(tasksOf(ctx), token, &id) != nil || id.Ref != t.ref {
		return protocol.RespondError(m.ID(), protocol.UnknownTask())
	}
	state, in, e := t.state(ctx, m, token, id)
	if e == nil {
		switch m.Method() {
		case protocol.UpdateTask:
			e = t.update(ctx, m, id, in)
		case protocol.CancelTask:
			e = t.cancelTask(ctx, id, state)
		default:
			state.Type = "complete"
			return protocol.Respond(m.ID(), state)
		}
	}
	if e != nil {
		return protocol.RespondError(m.ID(), e)
	}
	return protocol.Respond(m.ID(), map[string]string{"resultType": "complete"})
}

// state requests the state of a task, with its input requests for the client of m.
func (t *thing) state(ctx context.Context, m *protocol.Message, token string, id taskID) (*features.Task, *taskInput, *protocol.Error) {
	r, err := t.query(ctx, id)
	switch {
	case err != nil && interact.AsError(err).Code == interact.NoTask:
		return nil, nil, protocol.UnknownTask()
	case err != nil:
		return nil, nil, features.Error(err)
	}
	s := &features.Task{ID: token, Status: features.StateOf(r.Status, false), Created: id.Began, Updated: id.Began,
		Poll: pollInterval.Milliseconds()}
	if !r.Time.IsZero() {
		s.Updated = r.Time.UTC()
	}
	var in *taskInput
	switch r.Status {
	case interact.StatusInputRequired:
		in = &taskInput{id: r.ActionID}
		if json.Unmarshal(r.Data, &in.open) != nil {
			return nil, nil, protocol.Errorf(protocol.InternalError, "malformed input request of the task")
		}
		requests, e := features.Requests(in.open, m)
		if e != nil {
			return nil, nil, e
		}
		s.Requests = requests
	case interact.StatusCompleted:
		s.Result = t.output(ctx, id, r)
	case interact.StatusFailed:
		s.Fail(r.Data)
	}
	if s.Status == "" {
		return nil, nil, protocol.Errorf(protocol.InternalError, "unknown task status")
	}
	return s, in, nil
}

// query requests the state of a task; interact.Call returns an error for a task that waits for input.
func (t *thing) query(ctx context.Context, id taskID) (*interact.Message, error) {
	for r, err := range t.h.o.Mesh.Do(ctx, t.about(ctx, interact.QueryAction, id)) {
		return r, err
	}
	return nil, interact.Errorf(interact.AgentFailed, "see the log of its host", "no task state from %s", t.ref)
}

// A taskInput is the input that a task requires.
type taskInput struct {
	id   string
	open interact.Inputs
}

// output returns the result of a completed task.
func (t *thing) output(ctx context.Context, id taskID, r *interact.Message) json.RawMessage {
	var tool *features.Tool
	if f, err := t.features(ctx); err == nil {
		tool = f.Tool(id.Tool)
	}
	var parts []interact.Part
	if len(r.Data) > 0 {
		parts = []interact.Part{{Data: r.Data, ContentType: r.ContentType}}
	}
	return protocol.Encode(t.claimed(tool.TaskResult(parts), protocol.CallerOf(ctx)))
}

// about returns a message about the invocation behind a task.
func (t *thing) about(ctx context.Context, kind interact.Type, id taskID) *interact.Message {
	return &interact.Message{Type: kind, Thing: t.ref, Name: id.Action, ActionID: id.ID, ID: interact.NewID(), From: did.PrincipalOf(ctx),
		Deadline: time.Now().Add(readTimeout)}
}

// update passes input to a task. Responses to closed input requests are ignored.
func (t *thing) update(ctx context.Context, m *protocol.Message, id taskID, in *taskInput) *protocol.Error {
	if in == nil {
		return nil
	}
	answers, _, e := features.Answers(in.open, m)
	if e != nil || len(answers) == 0 {
		return e
	}
	if err := t.answer(ctx, id.Action, in.id, answers); err != nil && interact.AsError(err).Code != interact.NoTask {
		return features.Error(err)
	}
	return nil
}

// cancelTask cancels a task unless it has ended.
func (t *thing) cancelTask(ctx context.Context, id taskID, s *features.Task) *protocol.Error {
	if s.Ended() {
		return nil
	}
	_, err := interact.Call(ctx, t.h.o.Mesh, t.about(ctx, interact.CancelAction, id))
	if err != nil && interact.AsError(err).Code != interact.NoTask {
		return features.Error(err)
	}
	return nil
}
