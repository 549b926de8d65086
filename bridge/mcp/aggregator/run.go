package aggregator

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"slices"
	"time"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/mcp/features"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/opaque"
	"github.com/lmosd/lmosd/internal/ratelimit"
)

const (
	// maxSuspended bounds the suspended runs of one Thing, and suspendTimeout the time of each.
	maxSuspended   = 256
	suspendTimeout = 15 * time.Minute
	// maxSuspendedEach bounds those of one caller.
	maxSuspendedEach = 64
	// maxOutput bounds an output that comes in parts, in bytes.
	maxOutput = 16 << 20
	// taskAfter is the time after which a turn becomes a task, for clients that support tasks.
	taskAfter = time.Second
	// cancelTimeout bounds the cancellation of a detached action.
	cancelTimeout = 5 * time.Second
)

// runs are the running actions of one Thing. A run that requires input is suspended, and the caller's retry resumes it (MCP 2026-07-28,
// "Multi round-trip requests").
type runs struct {
	t      *thing
	ctx    context.Context
	cancel context.CancelFunc

	suspended protocol.Suspended[*run]
}

func newRuns(t *thing) *runs {
	r := &runs{t: t, suspended: protocol.Suspended[*run]{Sealer: t.h.sealer, Timeout: suspendTimeout, Expired: (*run).abandon,
		Max: maxSuspended, MaxEach: maxSuspendedEach}}
	r.ctx, r.cancel = context.WithCancel(t.h.ctx)
	return r
}

func (r *runs) close() {
	r.suspended.Close()
	r.cancel()
}

// A run is a running action or property access.
type run struct {
	t       *thing
	msg     *interact.Message
	finish  func(parts []interact.Part) any // converts the output to the result
	replies chan reply
	cancel  context.CancelFunc
	fresh   string           // the conversation that this run claimed, until the first reply
	task    string           // the id of the detached action; empty if it ends with its caller
	late    <-chan time.Time // fires when the run becomes a task; nil: never

	binding opaque.For // caller and request, for the requestState
	open    interact.Inputs
	inputID string // the ActionID of the input

	parts    []interact.Part
	size     int
	reported float64 // last progress value
	rate     ratelimit.Bucket
}

type reply struct {
	m   *interact.Message
	err error
}

// start starts an action.
func (r *runs) start(ctx context.Context, m *protocol.Message, msg *interact.Message, finish func([]interact.Part) any) *run {
	msg.From = did.PrincipalOf(ctx)
	one := &run{t: r.t, msg: msg, finish: finish, replies: make(chan reply), binding: r.t.bindingOf(ctx, m)}
	runs, cancel := context.WithCancel(r.ctx)
	one.cancel = cancel
	r.t.work.Go(func() {
		defer close(one.replies)
		defer cancel()
		for m, err := range r.t.h.o.Mesh.Do(runs, msg) {
			select {
			case one.replies <- reply{m, err}:
			case <-runs.Done():
				if err == nil && m.Status == interact.StatusPending && m.ActionID != "" { // the caller has disconnected before it received the id
					one.cancelAction(m.ActionID)
				}
				return
			}
		}
	})
	return one
}

// bindingOf returns the binding of a requestState: the caller and the request, which a retry must repeat.
func (t *thing) bindingOf(ctx context.Context, m *protocol.Message) opaque.For {
	sum := sha256.New()
	sum.Write([]byte(t.ref + "\x00" + m.Method() + "\x00"))
	for _, path := range []string{"name", "arguments"} {
		raw, _ := m.Param(path)
		sum.Write(raw)
		sum.Write([]byte{0})
	}
	return opaque.For{Purpose: "run", Caller: protocol.CallerOf(ctx), Request: [sha256.Size]byte(sum.Sum(nil))}
}

// abandon ends a run without a caller.
func (one *run) abandon() {
	if one.cancel(); one.task != "" {
		one.cancelAction(one.task)
	}
}

// cancelAction cancels a detached action, which may have ended.
func (one *run) cancelAction(id string) {
	ctx, done := context.WithTimeout(one.t.h.ctx, cancelTimeout)
	defer done()
	_, _ = interact.Call(ctx, one.t.h.o.Mesh, &interact.Message{Type: interact.CancelAction, Thing: one.msg.Thing, Name: one.msg.Name,
		ActionID: id, ID: interact.NewID(), From: one.msg.From, Deadline: time.Now().Add(cancelTimeout)})
}

// callTool handles tools/call.
func (t *thing) callTool(ctx context.Context, f *features.Features, m *protocol.Message, notify protocol.Notify) (*protocol.Message, error) {
	one, e := t.tool(ctx, f, m)
	if e != nil {
		return protocol.RespondError(m.ID(), e), nil
	}
	return one.follow(ctx, m, notify, func(err error) *protocol.Message {
		if interact.AsError(err).Code == interact.NoAffordance {
			return protocol.RespondError(m.ID(), features.Error(err))
		}
		return protocol.Respond(m.ID(), features.Failed(err))
	})
}

// tool starts a call, or resumes a suspended one.
func (t *thing) tool(ctx context.Context, f *features.Features, m *protocol.Message) (*run, *protocol.Error) {
	tool := f.Tool(m.Text("name"))
	if tool == nil {
		return nil, notFound("tool", m.Text("name"))
	}
	if state := m.Text("requestState"); state != "" {
		return t.resume(ctx, m, state)
	}
	msg, turn, e := tool.Message(m)
	caller, fresh := protocol.CallerOf(ctx), ""
	if e == nil && turn != nil {
		fresh, e = t.checkTurn(turn, caller)
	}
	if e != nil {
		return nil, e
	}
	t.address(msg, m, callTimeout)
	one := t.runs.start(ctx, m, msg, func(parts []interact.Part) any { return t.claimed(tool.Result(parts), caller) })
	one.fresh = fresh
	return one, nil
}

// checkTurn returns an error if the task or conversation of a turn belongs to another caller. A new conversation belongs to the caller
// from now on, and is returned. A task belongs to a caller only after the agent has returned its id, so that guessed ids are not taken
// from their later owners.
func (t *thing) checkTurn(turn *bridge.Turn, caller string) (fresh string, e *protocol.Error) {
	if !t.tasks.Allows(turn.Task, caller) {
		return "", protocol.UnknownTask()
	}
	switch own, first := t.contexts.Claim(turn.Context, caller); {
	case !own:
		return "", protocol.Errorf(protocol.InvalidParams, "unknown contextId: leave it out to start a new conversation")
	case first:
		return turn.Context, nil
	}
	return "", nil
}

// claimed assigns the task and the conversation of a result to a caller.
func (t *thing) claimed(r features.Result, caller string) features.Result {
	t.tasks.Claim(r.Task, caller)
	t.contexts.Claim(r.Context, caller)
	return r
}

// resume passes the responses of the client to a suspended run.
func (t *thing) resume(ctx context.Context, m *protocol.Message, state string) (*run, *protocol.Error) {
	one, e := t.runs.suspended.Resume(t.bindingOf(ctx, m), state)
	if e != nil {
		return nil, e
	}
	answers, open, e := features.Answers(one.open, m)
	if e == nil && len(answers) > 0 {
		if err := t.answer(ctx, one.msg.Name, one.inputID, answers); err != nil {
			e = features.Error(err)
		}
	}
	if e != nil {
		one.abandon()
		return nil, e
	}
	if one.open = open; one.late != nil {
		one.late = time.After(taskAfter)
	}
	return one, nil
}

// answer sends input to a running action.
func (t *thing) answer(ctx context.Context, action, id string, answers interact.Answers) error {
	_, err := interact.Call(ctx, t.h.o.Mesh, &interact.Message{Type: interact.ContinueAction, Thing: t.ref, Name: action, ActionID: id,
		ID: interact.NewID(), From: did.PrincipalOf(ctx), Data: protocol.Encode(answers), Deadline: time.Now().Add(readTimeout)})
	return err
}

// follow passes on the replies of a run until it ends, requires input, or becomes a task.
func (one *run) follow(ctx context.Context, m *protocol.Message, notify protocol.Notify,
	failed func(error) *protocol.Message) (*protocol.Message, error) {
	if len(one.open) > 0 { // some input is still missing
		return one.requestInput(ctx, m), nil
	}
	for {
		select {
		case r, ok := <-one.replies:
			switch {
			case !ok && one.t.runs.ctx.Err() != nil: // cancelled, not complete
				return failed(interact.ShutdownError("try again in a moment")), nil
			case !ok:
				return protocol.Respond(m.ID(), one.finish(one.parts)), nil
			case r.err != nil:
				one.cancel()
				if one.fresh != "" && bridge.Refused(r.err) { // the agent does not have the conversation
					one.t.contexts.Release(one.fresh, one.binding.Caller)
				}
				return failed(r.err), nil
			}
			one.fresh = ""
			response, err := one.handle(ctx, m, r.m, notify)
			if err != nil {
				one.abandon()
				if ctx.Err() == nil {
					return failed(err), nil
				}
			}
			if response != nil || err != nil {
				return response, err
			}
		case <-one.late:
			one.cancel() // the action continues
			return one.t.started(ctx, m, one), nil
		case <-ctx.Done():
			one.abandon()
			return nil, ctx.Err()
		}
	}
}

// handle handles one reply. A non-nil response ends the request.
func (one *run) handle(ctx context.Context, m *protocol.Message, r *interact.Message, notify protocol.Notify) (*protocol.Message, error) {
	switch {
	case r.Status == interact.StatusInputRequired:
		var in interact.Inputs
		if json.Unmarshal(r.Data, &in) != nil || len(in) == 0 {
			return nil, interact.Errorf(interact.AgentFailed, "see the agent's log", "malformed input request of %s", one.msg.Name)
		}
		one.open, one.inputID = in, r.ActionID
		return one.requestInput(ctx, m), nil
	case r.Status == interact.StatusPending:
		switch one.task = r.ActionID; {
		case one.msg.Detach && one.task != "" && one.msg.ContentType == bridge.TurnType: // its duration is unknown
			one.late = time.After(taskAfter)
		case one.msg.Detach && one.task != "":
			one.cancel() // the action continues
			return one.t.started(ctx, m, one), nil
		}
		return nil, nil
	case r.Status == interact.StatusRunning && r.ContentType == interact.Progress:
		return nil, one.progress(m, r, notify)
	case r.Status == interact.StatusCancelled:
		return nil, interact.Errorf(interact.Cancelled, "another caller cancelled it", "%s was cancelled", one.msg.Name)
	case r.Status == interact.StatusFailed:
		return nil, &interact.Error{Code: interact.AgentFailed, Title: cmp.Or(features.Text(r), one.msg.Name+" failed"), Remote: true}
	case r.Status != interact.StatusNone && features.StateOf(r.Status, false) == "":
		return nil, interact.Errorf(interact.AgentFailed, "see the agent's log", "unknown action status of %s", one.msg.Name)
	case len(r.Data) > 0 && r.Status != interact.StatusRunning: // the complete output
		one.parts = nil
		fallthrough
	case len(r.Data) > 0:
		if one.size += len(r.Data); one.size > maxOutput {
			return nil, interact.Errorf(interact.TooLarge, "request less", "the output of %s exceeds %d bytes", one.msg.Name, maxOutput)
		}
		one.parts = append(one.parts, interact.Part{Data: slices.Clone(r.Data), ContentType: r.ContentType})
	}
	if r.Status == interact.StatusRunning {
		return nil, one.progress(m, r, notify)
	}
	return nil, nil
}

// progress sends a progress notification, unless there are too many. A textual reply is its message.
func (one *run) progress(m *protocol.Message, r *interact.Message, notify protocol.Notify) error {
	token := m.ProgressToken()
	if token == nil || !one.rate.Take(protocol.ProgressLimit, 1, time.Now()) {
		return nil
	}
	params := map[string]any{"progressToken": token}
	if r.ContentType == interact.Progress {
		one.setProgress(r.Data, params)
	} else {
		one.reported++
	}
	if params["progress"] = one.reported; r.ContentType != interact.Progress {
		if text := features.Text(r); text != "" {
			params["message"] = text
		}
	}
	return notify(protocol.Request("", protocol.Progress, params))
}

// setProgress applies the progress that the agent reports. Each notification must have a greater value than the one before (MCP 2026-07-28,
// "Progress"), so a value that does not increase is replaced.
func (one *run) setProgress(data []byte, params map[string]any) {
	var p struct {
		Progress, Total *float64
		Message         string
	}
	_ = json.Unmarshal(data, &p) // malformed progress has no members
	if p.Progress != nil && *p.Progress > one.reported {
		if one.reported = *p.Progress; p.Total != nil {
			params["total"] = *p.Total
		}
	} else {
		one.reported++
	}
	if p.Message != "" {
		params["message"] = interact.Clip(p.Message, features.MaxText)
	}
}

// requestInput suspends the run and requests its input from the client.
func (one *run) requestInput(ctx context.Context, m *protocol.Message) *protocol.Message {
	requests, e := features.Requests(one.open, m)
	if e != nil {
		one.abandon()
		return protocol.RespondError(m.ID(), e)
	}
	one.binding = one.t.bindingOf(ctx, m)
	state, err := one.t.runs.suspended.Suspend(one.binding, one)
	if err != nil {
		one.abandon()
		return protocol.RespondError(m.ID(), features.Error(err))
	}
	return protocol.Respond(m.ID(), map[string]any{"resultType": "input_required", "inputRequests": requests, "requestState": state})
}

// getPrompt handles prompts/get.
func (t *thing) getPrompt(ctx context.Context, f *features.Features, m *protocol.Message, notify protocol.Notify) (*protocol.Message, error) {
	p := f.Prompt(m.Text("name"))
	if p == nil {
		return protocol.RespondError(m.ID(), notFound("prompt", m.Text("name"))), nil
	}
	refused := func(err error) *protocol.Message { return protocol.RespondError(m.ID(), features.Error(err)) }
	if state := m.Text("requestState"); state != "" {
		one, e := t.resume(ctx, m, state)
		if e != nil {
			return protocol.RespondError(m.ID(), e), nil
		}
		return one.follow(ctx, m, notify, refused)
	}
	msg, e := p.Message(m)
	if e != nil {
		return protocol.RespondError(m.ID(), e), nil
	}
	t.address(msg, m, callTimeout)
	one := t.runs.start(ctx, m, msg, func(parts []interact.Part) any { return p.Result(parts) })
	return one.follow(ctx, m, notify, refused)
}
