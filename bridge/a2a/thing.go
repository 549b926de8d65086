package a2a

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/a2a/card"
	"github.com/lmosd/lmosd/bridge/a2a/executor"
	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/td"
)

const (
	// sendAction sends a message without the name of a skill.
	sendAction = "sendMessage"
	// tasksProperty lists the tasks of its reader.
	tasksProperty = "tasks"
)

// Do implements [interact.Thing].
func (i *imported) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		callCtx, end, err := i.begin(ctx, m)
		if err != nil {
			yield(nil, err)
			return
		}
		defer end()
		i.do(callCtx, m)(func(r *interact.Message, err error) bool {
			if errors.Is(err, context.Canceled) && ctx.Err() == nil {
				err = closedError()
			}
			return yield(r, err)
		})
	}
}

func (i *imported) do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	if len(m.Data) > protocol.MaxMessage {
		return interact.Fail(interact.Errorf(interact.TooLarge, "send less at once", "the input of %s exceeds %d bytes",
			m.Name, protocol.MaxMessage))
	}
	k := i.cached.Load()
	agent := i.owners.guard(withCaller(k.agent, m.From), m.From.ID())
	switch {
	case m.Type == interact.InvokeAction && m.Name == verbatim:
		return i.verbatim(ctx, k.agent, m)
	case m.Type == interact.InvokeAction:
		return (&invocation{imported: i, cachedCard: k, agent: agent, m: m, skill: k.skills[m.Name]}).run(ctx)
	case m.Type == interact.ContinueAction:
		return func(yield func(*interact.Message, error) bool) { yield(i.waiting.Continue(m)) }
	case m.Type == interact.ReadProperty && m.Name == tasksProperty:
		return readTasks(ctx, agent, m)
	}
	return interact.Fail(interact.Errorf(interact.NotAllowed, "call its actions", "unsupported operation of an A2A agent"))
}

func readTasks(ctx context.Context, agent protocol.Agent, m *interact.Message) iter.Seq2[*interact.Message, error] {
	list, err := protocol.Call(ctx, agent, &protocol.Operation{Method: protocol.ListTasks, Params: json.RawMessage("{}")})
	if err != nil {
		return interact.Fail(toInteract(err))
	}
	return interact.One(m.Reply(interact.PropertyReading, interact.JSON, list))
}

// toInteract converts an A2A error for consumers of other protocols.
func toInteract(err error) error {
	var e *protocol.Error
	if errors.As(err, &e) {
		return e.ToInteract()
	}
	return err
}

// maxPrincipal is the size limit of a caller's name, in bytes: it is stored with each task.
const maxPrincipal = 64

// withCaller adds the caller to the messages to an agent.
func withCaller(a protocol.Agent, from *did.Principal) protocol.Agent {
	return protocol.Func(func(ctx context.Context, op *protocol.Operation) iter.Seq2[json.RawMessage, error] {
		var caller json.RawMessage
		if from != nil {
			caller = protocol.Encode(from)
		}
		op, e := op.WithCaller(caller)
		if e != nil {
			return protocol.Once(nil, e)
		}
		return a.Do(ctx, op)
	})
}

// principalOf returns the caller: a node, or the consumer behind it under the name that the node sent.
func principalOf(m *interact.Message, op *protocol.Operation) *did.Principal {
	name := op.Service[protocol.PrincipalParam]
	if p := m.From; p != nil && p.Node != "" && p.Name == "" && did.ValidPrincipalName(name) {
		return p.Narrowed(name, p.Relation, nil)
	}
	return m.From
}

// callerOf returns the owner of tasks for a caller: a node, or a consumer of the node.
func callerOf(m *interact.Message, op *protocol.Operation) string {
	name := op.Service[protocol.PrincipalParam]
	if name == "" {
		return m.From.ID()
	}
	return m.From.ID() + "#" + name[:min(len(name), maxPrincipal)]
}

// verbatim calls the operation of an A2A client, and yields its results unchanged (protocol.Outcome). An A2A error is a result, too.
func (i *imported) verbatim(ctx context.Context, agent protocol.Agent, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		op, err := protocol.ParseOperation(m.Data)
		if err != nil {
			yield(nil, interact.Errorf(interact.Invalid, "this action is for A2A clients through their own node; call the other actions", "%v", err))
			return
		}
		agent := i.owners.guard(withCaller(agent, principalOf(m, op)), callerOf(m, op))
		for result, err := range agent.Do(ctx, op) {
			var e *protocol.Error
			if err != nil && !errors.As(err, &e) {
				yield(nil, err)
				return
			}
			part := m.ReplyStatus(interact.StatusRunning, interact.JSON, protocol.Outcome(result, e))
			if !protocol.Streams(op.Method) { // the only result
				part.Status = interact.StatusCompleted
				yield(part, nil)
				return
			}
			if !yield(part, nil) {
				return
			}
		}
		yield(m.ReplyStatus(interact.StatusCompleted, "", nil), nil)
	}
}

// An invocation is one run of a skill for a consumer of another protocol.
type invocation struct {
	*imported
	*cachedCard
	agent protocol.Agent
	m     *interact.Message
	skill string
	turn  *bridge.Turn // nil if the input is not a turn

	yield    func(*interact.Message, error) bool
	left     bool // the consumer has disconnected
	task     string
	context  string
	status   protocol.Status
	answered protocol.Status // the last status for which the consumer provided input
	sent     bool            // a part of the output was sent
	parts    map[string]int  // number of parts of each artifact that were sent
	outcome  outcome         // of a turn
}

// run sends the message and yields the results, in several rounds if the agent requires input. When the consumer disconnects, the task is
// canceled.
func (v *invocation) run(ctx context.Context) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		v.yield, v.parts = yield, map[string]int{}
		op, err := v.begin(ctx)
		for err == nil && !v.left {
			if err = v.round(ctx, op); err != nil || v.left || !v.status.State.Waits() || v.endsHere() {
				break
			}
			op, err = v.ask(ctx)
		}
		if (v.left || err != nil) && v.task != "" && !v.status.State.Terminal() {
			v.cancel(ctx)
		}
		if !v.left {
			v.end(err)
		}
	}
}

// begin returns the first operation.
func (v *invocation) begin(ctx context.Context) (*protocol.Operation, error) {
	if interact.MediaType(v.m.Media()) != bridge.TurnType {
		m, err := v.message()
		return v.send(m), err
	}
	v.turn = &bridge.Turn{}
	if err := json.Unmarshal(v.m.Data, v.turn); err != nil {
		return nil, &interact.Error{Code: interact.Invalid, Title: "invalid turn", Err: err,
			Hint: `for example {"message": "hello"}`}
	}
	m := v.turnMessage()
	if v.turn.Task != "" {
		if err := v.refer(ctx, m); err != nil {
			return nil, err
		}
	}
	return v.send(m), nil
}

// cancel cancels the task at the agent.
func (v *invocation) cancel(ctx context.Context) {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer stop()
	if _, err := protocol.Call(ctx, v.agent, &protocol.Operation{Method: protocol.CancelTask,
		Params: protocol.Encode(protocol.Get{ID: v.task})}); err != nil {
		v.o.Log.Debug("A2A task cancellation failed", "target", v.target, "err", err)
	}
}

// message converts the input to a message. An A2A message stays unchanged; a string becomes a text part, other JSON a data part, and other
// media types a raw part.
func (v *invocation) message() (*protocol.Message, error) {
	m := v.empty()
	data, media, err := interact.Transcode(v.m.Data, v.m.Media(), interact.JSON)
	if err != nil {
		return nil, err
	}
	var text string
	var given protocol.Message
	switch trimmed := bytes.TrimSpace(data); {
	case !td.IsJSON(media):
		m.Parts = []protocol.Part{protocol.RawPart(data, media)}
	case len(trimmed) == 0:
		m.Parts = []protocol.Part{protocol.TextPart("")}
	case trimmed[0] == '"' && json.Unmarshal(data, &text) == nil:
		m.Parts = []protocol.Part{protocol.TextPart(text)}
	case json.Unmarshal(protocol.Normal(data), &given) == nil && len(given.Parts) > 0:
		given.ID, given.Role = cmp.Or(given.ID, m.ID), protocol.User
		if given.Metadata == nil {
			given.Metadata = m.Metadata
		}
		m = &given
	default:
		m.Parts = []protocol.Part{protocol.DataPart(data)}
	}
	return m, nil
}

// empty returns a message with the name of the skill and without parts.
func (v *invocation) empty() *protocol.Message {
	m := &protocol.Message{ID: cmp.Or(v.m.Key, v.m.ID, rand.Text()), Role: protocol.User}
	if v.skill != "" {
		m.Metadata = protocol.Encode(map[string]string{"skillId": v.skill})
	}
	return m
}

// turnMessage converts a turn to a message.
func (v *invocation) turnMessage() *protocol.Message {
	m := v.empty()
	m.ContextID = v.turn.Context
	if v.turn.Message != "" || len(v.turn.Data) == 0 {
		m.Parts = append(m.Parts, protocol.TextPart(v.turn.Message))
	}
	if len(v.turn.Data) > 0 {
		m.Parts = append(m.Parts, protocol.DataPart(v.turn.Data))
	}
	return m
}

// refer adds the task of a turn to m. A task that has ended accepts no messages (A2A 1.0 §3.4.2): m then starts another task in the same
// context, with a reference.
func (v *invocation) refer(ctx context.Context, m *protocol.Message) error {
	m.TaskID = v.turn.Task
	none := 0
	raw, err := protocol.Call(ctx, v.agent, &protocol.Operation{Method: protocol.GetTask,
		Params: protocol.Encode(protocol.Get{ID: v.turn.Task, HistoryLength: &none})})
	var e *protocol.Error
	switch {
	case err != nil && errors.As(err, &e) && e.Code != protocol.TaskNotFound:
		return nil // the agent cannot return tasks: its response to the message decides
	case err != nil:
		return toInteract(err)
	}
	var t protocol.Task
	if json.Unmarshal(raw, &t) != nil {
		return nil
	}
	if m.ContextID = cmp.Or(m.ContextID, t.ContextID); t.Status.State.Terminal() {
		m.TaskID, m.References = "", []string{v.turn.Task}
		return nil
	}
	for _, a := range t.Artifacts { // the previous turn has sent these parts
		v.parts[a.ID] = len(a.Parts)
	}
	return nil
}

// send returns the operation for a message; a stream if the agent supports it.
func (v *invocation) send(m *protocol.Message) *protocol.Operation {
	method := protocol.SendMessage
	if card.Supported(v.card.Capabilities.Streaming) {
		method = protocol.SendStreamingMessage
	}
	return &protocol.Operation{Method: method, Params: protocol.Encode(protocol.Send{Message: m})}
}

// taskIDTimeout bounds the wait for the id of a task after the consumer has disconnected. The id is needed to cancel the task.
const taskIDTimeout = 2 * time.Second

// round calls an operation and processes its results.
func (v *invocation) round(ctx context.Context, op *protocol.Operation) error {
	callCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		t := time.AfterFunc(taskIDTimeout, cancel)
		context.AfterFunc(callCtx, func() { t.Stop() })
	})()
	watched := v.task != ""
	if watched {
		defer context.AfterFunc(ctx, cancel)()
	}
	for result, err := range v.agent.Do(callCtx, op) {
		var refused *protocol.Error
		if errors.As(err, &refused) && op.Method == protocol.SubscribeToTask && ctx.Err() == nil {
			if err := v.poll(ctx); err != nil || v.left { // some agents refuse to subscribe to a task that does not run
				return err
			}
			break
		}
		if err != nil {
			return cmp.Or(ctx.Err(), toInteract(err))
		}
		var e protocol.StreamResponse
		if err := json.Unmarshal(result, &e); err != nil {
			return unreadable(err)
		}
		if v.handle(&e); v.left || v.status.State.Waits() && !v.isAnswered() {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if v.task != "" && !watched {
			watched = true
			defer context.AfterFunc(ctx, cancel)()
		}
	}
	return v.settle(ctx)
}

const (
	// Pauses between polls of a task whose stream broke off, or whose agent responded before the task ended.
	shortestPoll = 250 * time.Millisecond
	longestPoll  = 5 * time.Second
)

// settle polls a task until it ends or requires input.
func (v *invocation) settle(ctx context.Context) error {
	for pauses := (backoff.Backoff{First: shortestPoll, Max: longestPoll}); ; {
		switch state := v.status.State; {
		case state.Terminal() || state.Waits() && (state != protocol.AuthRequired || !v.isAnswered()):
			return nil
		case state == protocol.AuthRequired: // the user authenticates elsewhere
		case state != "" && executor.StatusOf(state) == interact.StatusNone:
			return interact.Errorf(interact.AgentFailed, "use an A2A client, or report it to the operator of the agent",
				"the agent returned an unknown task state: %s", interact.Clip(string(state), 64))
		case v.task == "":
			return &interact.Error{Code: interact.Unreachable, Title: "the agent's stream broke off", Hint: "try again in a moment", Started: true}
		}
		if err := pauses.Sleep(ctx); err != nil {
			return err
		}
		if err := v.poll(ctx); err != nil || v.left {
			return err
		}
	}
}

// poll gets the task.
func (v *invocation) poll(ctx context.Context) error {
	raw, err := protocol.Call(ctx, v.agent, &protocol.Operation{Method: protocol.GetTask, Params: protocol.Encode(protocol.Get{ID: v.task})})
	if err != nil {
		return cmp.Or(ctx.Err(), toInteract(err))
	}
	var t protocol.Task
	if err := json.Unmarshal(raw, &t); err != nil {
		return unreadable(err)
	}
	v.handle(&protocol.StreamResponse{Task: &t})
	return nil
}

func unreadable(err error) error {
	return interact.Errorf(interact.AgentFailed, "report it to the operator of the agent", "invalid A2A response of the agent: %v", err)
}

func (v *invocation) handle(e *protocol.StreamResponse) {
	switch {
	case e.Message != nil:
		v.context = e.Message.ContextID
		v.outcome.message(e.Message)
		v.sendParts(e.Message.Parts)
		v.status = protocol.Status{State: protocol.Completed}
	case e.Task != nil:
		v.task, v.context = e.Task.ID, e.Task.ContextID
		v.outcome.task(e.Task, v.parts)
		for _, a := range e.Task.Artifacts {
			if n := v.parts[a.ID]; n < len(a.Parts) {
				v.sendParts(a.Parts[n:])
			}
			v.parts[a.ID] = len(a.Parts)
		}
		v.setStatus(e.Task.Status)
	case e.StatusUpdate != nil:
		v.task, v.context = e.StatusUpdate.TaskID, e.StatusUpdate.ContextID
		v.setStatus(e.StatusUpdate.Status)
	case e.ArtifactUpdate != nil && e.ArtifactUpdate.Artifact != nil:
		a := e.ArtifactUpdate.Artifact
		if !e.ArtifactUpdate.Append {
			v.parts[a.ID] = 0
		}
		v.parts[a.ID] += len(a.Parts)
		v.outcome.artifact(a, e.ArtifactUpdate.Append)
		v.sendParts(a.Parts)
	}
}

// setStatus updates the status. Text of a working agent is progress.
func (v *invocation) setStatus(s protocol.Status) {
	v.status = s
	if text := messageText(s.Message); s.State == protocol.Working && text != "" {
		v.progress(text)
	}
}

// progress sends progress to the consumer.
func (v *invocation) progress(text string) {
	if v.left {
		return
	}
	data := protocol.Encode(map[string]string{"message": interact.Clip(text, protocol.MaxProgress)})
	v.left = !v.yield(v.m.ReplyStatus(interact.StatusRunning, interact.Progress, data), nil)
}

// sendParts yields parts of the output. Parts of a turn are in its outcome; until then their text is progress.
func (v *invocation) sendParts(parts []protocol.Part) {
	for _, p := range parts {
		if v.turn != nil {
			if p.Text != nil && *p.Text != "" {
				v.progress(*p.Text)
			}
			continue
		}
		data, media := content(p)
		if v.left || data == nil {
			continue
		}
		v.sent = true
		v.left = !v.yield(v.m.ReplyStatus(interact.StatusRunning, media, data), nil)
	}
}

// content returns the data of a part: text as JSON, a link as an object.
func content(p protocol.Part) ([]byte, string) {
	switch {
	case p.Text != nil:
		return protocol.Encode(*p.Text), interact.JSON
	case p.Data != nil:
		return p.Data, interact.JSON
	case p.Raw != nil:
		b, _ := p.Bytes() // empty if it is not base64
		return b, p.Media()
	case p.URL != nil:
		link := map[string]string{"url": *p.URL}
		for name, text := range map[string]string{"filename": p.Filename, "mediaType": p.MediaType} {
			if text != "" {
				link[name] = text
			}
		}
		return protocol.Encode(link), interact.JSON
	}
	return nil, ""
}

// isAnswered reports whether the status is one for which input was provided: agents may repeat it before they continue.
func (v *invocation) isAnswered() bool {
	was, now := v.answered, v.status
	id := func(m *protocol.Message) string {
		if m == nil {
			return ""
		}
		return m.ID
	}
	return was.State == now.State && was.Timestamp == now.Timestamp && id(was.Message) == id(now.Message)
}

// textInput is the key of an input that the agent describes as text.
const textInput = "message"

// inputs returns the input that the agent requires. An lmosd agent sends it as structured data; then own is true.
func (v *invocation) inputs() (in interact.Inputs, own bool) {
	if v.status.Message != nil {
		for _, p := range v.status.Message.Parts {
			var data struct{ Inputs interact.Inputs }
			if len(p.Data) > 0 && json.Unmarshal(p.Data, &data) == nil && askable(data.Inputs) {
				return data.Inputs, true
			}
		}
	}
	one := interact.Input{Kind: interact.InputMessage, Message: messageText(v.status.Message), Params: protocol.Encode(v.status)}
	if v.status.State == protocol.AuthRequired {
		one.Kind, one.URL = interact.InputURL, link(v.status.Message)
	}
	return interact.Inputs{textInput: one}, false
}

// askable reports whether there are inputs, all of known kinds.
func askable(in interact.Inputs) bool {
	for _, one := range in {
		switch one.Kind {
		case interact.InputForm, interact.InputURL, interact.InputMessage, interact.InputModel, interact.InputRoots:
		default:
			return false
		}
	}
	return len(in) > 0
}

// endsHere reports whether a turn ends because its consumer cannot provide the required input.
func (v *invocation) endsHere() bool {
	if v.turn == nil || v.turn.Kinds == nil {
		return false
	}
	in, _ := v.inputs()
	for _, one := range in {
		if !slices.Contains(v.turn.Kinds, one.Kind) {
			return true
		}
	}
	return false
}

// ask requests the input from the consumer, and returns the operation that continues the task.
func (v *invocation) ask(ctx context.Context) (*protocol.Operation, error) {
	in, own := v.inputs()
	auth := v.status.State == protocol.AuthRequired
	answers, left, err := v.waiting.Ask(ctx, v.m, in, v.yield)
	if v.left = left; left || err != nil {
		return nil, err
	}
	a := answers[textInput]
	v.answered = v.status
	next := v.empty()
	next.ID = rand.Text()
	switch {
	case own:
		next.Parts = []protocol.Part{protocol.DataPart(protocol.Encode(answers))}
	case a.Action != interact.Accept:
		return nil, &interact.Error{Code: interact.Cancelled, Title: "the consumer declined to provide the input"}
	case auth: // the user has authenticated elsewhere: the task continues by itself
		v.status = protocol.Status{}
		return &protocol.Operation{Method: protocol.SubscribeToTask, Params: protocol.Encode(protocol.Get{ID: v.task})}, nil
	default:
		answer := *v.m
		answer.Data, answer.ContentType, answer.ID, answer.Key = a.Content, interact.JSON, next.ID, ""
		if next, err = (&invocation{imported: v.imported, cachedCard: v.cachedCard, m: &answer, skill: v.skill}).message(); err != nil {
			return nil, err
		}
	}
	next.TaskID, next.ContextID = v.task, v.context
	v.status = protocol.Status{}
	return v.send(next), nil
}

func messageText(m *protocol.Message) string {
	if m == nil {
		return ""
	}
	var b bytes.Buffer
	for _, p := range m.Parts {
		if p.Text != nil {
			b.WriteString(*p.Text)
		}
	}
	return b.String()
}

// link returns the authentication URL of a message: that of a link, or of data with a url.
func link(m *protocol.Message) string {
	if m == nil {
		return ""
	}
	for _, p := range m.Parts {
		var data struct{ URL string }
		_ = json.Unmarshal(p.Data, &data) // data may have any form
		if p.URL != nil {
			data.URL = *p.URL
		}
		if data.URL != "" {
			return data.URL
		}
	}
	return ""
}

// end yields the final reply or the error.
func (v *invocation) end(err error) {
	text := messageText(v.status.Message)
	switch status := executor.StatusOf(v.status.State); {
	case err != nil:
	case status == interact.StatusCancelled:
		err = &interact.Error{Code: interact.Cancelled, Title: cmp.Or(text, "the agent canceled the task"), Remote: true}
	case v.status.State == protocol.Rejected:
		err = &interact.Error{Code: interact.AgentFailed, Title: cmp.Or(text, "the agent rejected the task"), Remote: true,
			Hint: "the agent does not accept this request"}
	case status == interact.StatusFailed:
		err = &interact.Error{Code: interact.AgentFailed, Title: cmp.Or(text, "the agent failed"), Hint: "the agent reported this failure",
			Remote: true}
	}
	if err != nil {
		v.yield(nil, err)
		return
	}
	if v.turn == nil && !v.sent && v.status.Message != nil {
		if v.sendParts(v.status.Message.Parts); v.left {
			return
		}
	}
	if v.turn == nil {
		v.yield(v.m.ReplyStatus(interact.StatusCompleted, "", nil), nil)
		return
	}
	outcome := protocol.Encode(v.outcome.end(v.task, v.context, v.status))
	v.yield(v.m.ReplyStatus(interact.StatusCompleted, bridge.TurnType, outcome), nil)
}
