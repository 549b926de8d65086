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
	// sendAction says something to an agent without naming a skill.
	sendAction = "sendMessage"
	// tasksProperty lists the tasks of whoever reads it.
	tasksProperty = "tasks"
)

// Do implements [interact.Thing].
func (i *imported) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		asking, end, err := i.begin(ctx, m)
		if err != nil {
			yield(nil, err)
			return
		}
		defer end()
		i.do(asking, m)(func(r *interact.Message, err error) bool {
			if errors.Is(err, context.Canceled) && ctx.Err() == nil {
				err = gone()
			}
			return yield(r, err)
		})
	}
}

func (i *imported) do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	if len(m.Data) > protocol.MaxMessage {
		return interact.Fail(interact.Errorf(interact.TooLarge, "send less at once", "the input of %s has more than %d bytes",
			m.Name, protocol.MaxMessage))
	}
	k := i.known.Load()
	agent := i.claims.guard(telling(k.agent, m.From), m.From.ID())
	switch {
	case m.Type == interact.InvokeAction && m.Name == Verbatim:
		return i.verbatim(ctx, k.agent, m)
	case m.Type == interact.InvokeAction:
		return (&invocation{imported: i, known: k, agent: agent, m: m, skill: k.skills[m.Name]}).run(ctx)
	case m.Type == interact.ContinueAction:
		return interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message,
			error) {
			return i.parking.Continue(m)
		}).Do(ctx, m)
	case m.Type == interact.ReadProperty && m.Name == tasksProperty:
		return readTasks(ctx, agent, m)
	}
	return interact.Fail(interact.Errorf(interact.NotAllowed, "call its actions", "an A2A agent has no such operation"))
}

func readTasks(ctx context.Context, agent protocol.Agent, m *interact.Message) iter.Seq2[*interact.Message, error] {
	list, err := protocol.Ask(ctx, agent, &protocol.Operation{Method: protocol.ListTasks, Params: json.RawMessage("{}")})
	if err != nil {
		return interact.Fail(said(err))
	}
	return interact.One(m.Reply(interact.PropertyReading, interact.JSON, list))
}

// said is an error for those who do not speak A2A.
func said(err error) error {
	var e *protocol.Error
	if errors.As(err, &e) {
		return e.Interact()
	}
	return err
}

// maxPrincipal bounds what a node calls its callers, in bytes: it is remembered with each task.
const maxPrincipal = 64

// telling has an agent hear who sends it messages.
func telling(a protocol.Agent, from *did.Principal) protocol.Agent {
	return protocol.Func(func(ctx context.Context, op *protocol.Operation) iter.Seq2[json.RawMessage, error] {
		var caller json.RawMessage
		if from != nil {
			caller = protocol.Encode(from)
		}
		op, e := op.Told(caller)
		if e != nil {
			return protocol.Once(nil, e)
		}
		return a.Do(ctx, op)
	})
}

// principalOf is who asks: a node, or the consumer behind it, by the word that the node has for it.
func principalOf(m *interact.Message, op *protocol.Operation) *did.Principal {
	name := op.Service[protocol.PrincipalParam]
	if p := m.From; p != nil && p.Node != "" && p.Name == "" && did.ValidPrincipalName(name) {
		return did.NodePrincipal(p.Node, name)
	}
	return m.From
}

// callerOf is who asks: a node, or whoever asks through it, in its own words.
func callerOf(m *interact.Message, op *protocol.Operation) string {
	name := op.Service[protocol.PrincipalParam]
	if name == "" {
		return m.From.ID()
	}
	return m.From.ID() + "#" + name[:min(len(name), maxPrincipal)]
}

// verbatim carries an operation, and gives out its results as they are (wire.Outcome). That the agent refuses is a result, too.
func (i *imported) verbatim(ctx context.Context, agent protocol.Agent, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		op, err := protocol.ParseOperation(m.Data)
		if err != nil {
			yield(nil, interact.Errorf(interact.Invalid, "A2A clients use it through their own node; call the other actions", "%v", err))
			return
		}
		agent := i.claims.guard(telling(agent, principalOf(m, op)), callerOf(m, op))
		for result, err := range agent.Do(ctx, op) {
			var e *protocol.Error
			if err != nil && !errors.As(err, &e) {
				yield(nil, err)
				return
			}
			part := m.Reply(interact.ActionStatus, interact.JSON, protocol.Outcome(result, e))
			part.Status = interact.StatusRunning
			if !protocol.Streams(op.Method) { // it is the only one
				part.Status = interact.StatusCompleted
				yield(part, nil)
				return
			}
			if !yield(part, nil) {
				return
			}
		}
		last := m.Reply(interact.ActionStatus, "", nil)
		last.Status = interact.StatusCompleted
		yield(last, nil)
	}
}

// An invocation is one run of a skill for a consumer that does not speak A2A.
type invocation struct {
	*imported
	*known
	agent protocol.Agent
	m     *interact.Message
	skill string
	turn  *bridge.Turn // what is said, if it is said as a turn

	yield    func(*interact.Message, error) bool
	left     bool // the consumer has
	task     string
	context  string
	status   protocol.Status
	answered protocol.Status // what was asked last, and answered
	given    bool            // something of the output
	parts    map[string]int  // how many parts of each artifact are given
	made     outcome         // of a turn
}

// run sends the message and gives out what comes, round by round: the agent may ask for more. A consumer that leaves cancels the
// task.
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

// begin is the first operation.
func (v *invocation) begin(ctx context.Context) (*protocol.Operation, error) {
	if interact.MediaType(v.m.Media()) != bridge.TurnType {
		m, err := v.message()
		return v.send(m), err
	}
	v.turn = &bridge.Turn{}
	if err := json.Unmarshal(v.m.Data, v.turn); err != nil {
		return nil, &interact.Error{Code: interact.Invalid, Title: "the turn cannot be read", Err: err,
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

// cancel tells the agent that nobody waits any more.
func (v *invocation) cancel(ctx context.Context) {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer stop()
	if _, err := protocol.Ask(ctx, v.agent, &protocol.Operation{Method: protocol.CancelTask,
		Params: protocol.Encode(protocol.Get{ID: v.task})}); err != nil {
		v.o.Log.Debug("an A2A task could not be cancelled", "target", v.target, "err", err)
	}
}

// message makes a message of the input: a message of A2A stays, a text is said, other JSON is data, and the rest bytes.
func (v *invocation) message() (*protocol.Message, error) {
	m := v.empty()
	data, media, err := interact.Transcode(v.m.Data, v.m.Media(), interact.JSON)
	if err != nil {
		return nil, err
	}
	var text string
	var given protocol.Message
	switch {
	case !td.IsJSON(media):
		m.Parts = []protocol.Part{protocol.RawPart(data, media)}
	case len(bytes.TrimSpace(data)) == 0:
		m.Parts = []protocol.Part{protocol.TextPart("")}
	case bytes.TrimSpace(data)[0] == '"' && json.Unmarshal(data, &text) == nil:
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

// empty is a message without parts. It names the skill.
func (v *invocation) empty() *protocol.Message {
	m := &protocol.Message{ID: cmp.Or(v.m.Key, v.m.ID, rand.Text()), Role: protocol.User}
	if v.skill != "" {
		m.Metadata = protocol.Encode(map[string]string{"skillId": v.skill})
	}
	return m
}

// turnMessage makes a message of a turn.
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

// refer makes m a message of the task of its turn. One that has ended takes no messages (A2A 1.0 §3.4.2): m begins another in its
// context, and refers to it.
func (v *invocation) refer(ctx context.Context, m *protocol.Message) error {
	m.TaskID = v.turn.Task
	none := 0
	raw, err := protocol.Ask(ctx, v.agent, &protocol.Operation{Method: protocol.GetTask,
		Params: protocol.Encode(protocol.Get{ID: v.turn.Task, HistoryLength: &none})})
	var e *protocol.Error
	switch {
	case err != nil && errors.As(err, &e) && e.Code != protocol.TaskNotFound:
		return nil // the agent cannot tell; what it says to the message counts
	case err != nil:
		return said(err)
	}
	var t protocol.Task
	if json.Unmarshal(raw, &t) != nil {
		return nil
	}
	if m.ContextID = cmp.Or(m.ContextID, t.ContextID); t.Status.State.Terminal() {
		m.TaskID, m.References = "", []string{v.turn.Task}
		return nil
	}
	for _, a := range t.Artifacts { // what is there already was given by the turn before
		v.parts[a.ID] = len(a.Parts)
	}
	return nil
}

// send is the operation that sends a message; as a stream, if the agent has those.
func (v *invocation) send(m *protocol.Message) *protocol.Operation {
	method := protocol.SendMessage
	if card.Yes(v.card.Capabilities.Streaming) {
		method = protocol.SendStreamingMessage
	}
	return &protocol.Operation{Method: method, Params: protocol.Encode(protocol.Send{Message: m})}
}

// leaveFor is how long an agent is listened to when its consumer has left and the name of its task is not known: it is needed to
// cancel that.
const leaveFor = 2 * time.Second

// round asks, and gives out what is said until nothing more comes.
func (v *invocation) round(ctx context.Context, op *protocol.Operation) error {
	asking, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		t := time.AfterFunc(leaveFor, cancel)
		context.AfterFunc(asking, func() { t.Stop() })
	})()
	watched := v.task != ""
	if watched {
		defer context.AfterFunc(ctx, cancel)()
	}
	for result, err := range v.agent.Do(asking, op) {
		var refused *protocol.Error
		if errors.As(err, &refused) && op.Method == protocol.SubscribeToTask && ctx.Err() == nil {
			if err := v.look(ctx); err != nil || v.left { // a task that nothing runs of, to some, cannot be followed
				return err
			}
			break
		}
		if err != nil {
			return cmp.Or(ctx.Err(), said(err))
		}
		var e protocol.StreamResponse
		if err := json.Unmarshal(result, &e); err != nil {
			return unreadable(err)
		}
		if v.heard(&e); v.left || v.status.State.Waits() && !v.isAnswered() {
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
	// An agent that has broken off, or answers before it is done, is asked for its task in growing pauses.
	shortestPoll = 250 * time.Millisecond
	longestPoll  = 5 * time.Second
)

// settle waits for the end of a task that goes on though the agent says no more, or for what it asks.
func (v *invocation) settle(ctx context.Context) error {
	for pause := shortestPoll; ; pause = min(2*pause, longestPoll) {
		switch state := v.status.State; {
		case state.Terminal() || state.Waits() && (state != protocol.AuthRequired || !v.isAnswered()):
			return nil
		case state == protocol.AuthRequired: // somebody does it elsewhere
		case state != "" && executor.StatusOf(state) == interact.StatusNone:
			return interact.Errorf(interact.AgentFailed, "ask its operator, or use an A2A client",
				"the agent's task is in a state that lmosd does not know: %s", interact.Clip(string(state), 64))
		case v.task == "":
			return &interact.Error{Code: interact.Unreachable, Title: "the agent broke off", Hint: "ask again in a moment", Begun: true}
		}
		if err := backoff.For(ctx, pause); err != nil {
			return err
		}
		if err := v.look(ctx); err != nil || v.left {
			return err
		}
	}
}

// look asks how the task is.
func (v *invocation) look(ctx context.Context) error {
	raw, err := protocol.Ask(ctx, v.agent, &protocol.Operation{Method: protocol.GetTask, Params: protocol.Encode(protocol.Get{ID: v.task})})
	if err != nil {
		return cmp.Or(ctx.Err(), said(err))
	}
	var t protocol.Task
	if err := json.Unmarshal(raw, &t); err != nil {
		return unreadable(err)
	}
	v.heard(&protocol.StreamResponse{Task: &t})
	return nil
}

func unreadable(err error) error {
	return interact.Errorf(interact.AgentFailed, "it breaks A2A 1.0", "the agent's answer cannot be read: %v", err)
}

func (v *invocation) heard(e *protocol.StreamResponse) {
	switch {
	case e.Message != nil:
		v.context = e.Message.ContextID
		v.made.message(e.Message)
		v.give(e.Message.Parts)
		v.status = protocol.Status{State: protocol.Completed}
	case e.Task != nil:
		v.task, v.context = e.Task.ID, e.Task.ContextID
		v.made.task(e.Task, v.parts)
		for _, a := range e.Task.Artifacts {
			if n := v.parts[a.ID]; n < len(a.Parts) {
				v.give(a.Parts[n:])
			}
			v.parts[a.ID] = len(a.Parts)
		}
		v.become(e.Task.Status)
	case e.StatusUpdate != nil:
		v.task, v.context = e.StatusUpdate.TaskID, e.StatusUpdate.ContextID
		v.become(e.StatusUpdate.Status)
	case e.ArtifactUpdate != nil && e.ArtifactUpdate.Artifact != nil:
		a := e.ArtifactUpdate.Artifact
		if !e.ArtifactUpdate.Append {
			v.parts[a.ID] = 0
		}
		v.parts[a.ID] += len(a.Parts)
		v.made.artifact(a, e.ArtifactUpdate.Append)
		v.give(a.Parts)
	}
}

// become takes over a status. What an agent says while it works is progress.
func (v *invocation) become(s protocol.Status) {
	v.status = s
	if text := words(s.Message); s.State == protocol.Working && text != "" {
		v.tell(text)
	}
}

// tell tells the consumer how far the agent is.
func (v *invocation) tell(text string) {
	if v.left {
		return
	}
	r := v.m.Reply(interact.ActionStatus, interact.Progress, protocol.Encode(map[string]string{"message": interact.Clip(text, maxTold)}))
	r.Status = interact.StatusRunning
	v.left = !v.yield(r, nil)
}

// maxTold bounds what is said of progress, in bytes.
const maxTold = 8 << 10

// give yields parts of the output. Those of a turn come with its outcome; its words are progress until then.
func (v *invocation) give(parts []protocol.Part) {
	for _, p := range parts {
		if v.turn != nil {
			if p.Text != nil && *p.Text != "" {
				v.tell(*p.Text)
			}
			continue
		}
		data, media := content(p)
		if v.left || data == nil {
			continue
		}
		r := v.m.Reply(interact.ActionStatus, media, data)
		r.Status = interact.StatusRunning
		v.given = true
		v.left = !v.yield(r, nil)
	}
}

// content is what a part holds: text as JSON, a link as its address with what is known of it.
func content(p protocol.Part) ([]byte, string) {
	switch {
	case p.Text != nil:
		return protocol.Encode(*p.Text), interact.JSON
	case p.Data != nil:
		return p.Data, interact.JSON
	case p.Raw != nil:
		b, _ := p.Bytes() // what is no base64 is nothing
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

// isAnswered reports whether the agent waits for what was answered already: it says so once more before it goes on.
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

// whole is the key of what an agent wants that says it in words.
const whole = "message"

// inputs are what the agent wants to know. An agent of lmosd says it in words of its own, which is told apart.
func (v *invocation) inputs() (in interact.Inputs, own bool) {
	if v.status.Message != nil {
		for _, p := range v.status.Message.Parts {
			var data struct{ Inputs interact.Inputs }
			if len(p.Data) > 0 && json.Unmarshal(p.Data, &data) == nil && askable(data.Inputs) {
				return data.Inputs, true
			}
		}
	}
	one := interact.Input{Kind: interact.InputMessage, Message: words(v.status.Message), Params: protocol.Encode(v.status)}
	if v.status.State == protocol.AuthRequired {
		one.Kind, one.URL = interact.InputURL, link(v.status.Message)
	}
	return interact.Inputs{whole: one}, false
}

// askable reports whether inputs are there, and all of kinds that consumers can be asked for.
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

// endsHere reports whether a turn ends with what the agent asks: its consumer cannot be asked for that otherwise.
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

// ask asks the consumer for what the agent wants, and returns how it goes on.
func (v *invocation) ask(ctx context.Context) (*protocol.Operation, error) {
	in, own := v.inputs()
	auth := v.status.State == protocol.AuthRequired
	answers, left, err := v.parking.Ask(ctx, v.m, in, v.yield)
	if v.left = left; left || err != nil {
		return nil, err
	}
	a := answers[whole]
	v.answered = v.status
	next := v.empty()
	next.ID = rand.Text()
	switch {
	case own:
		next.Parts = []protocol.Part{protocol.DataPart(protocol.Encode(answers))}
	case a.Action != interact.Accept:
		return nil, &interact.Error{Code: interact.Cancelled, Title: "the consumer does not answer the agent"}
	case auth: // it has been done elsewhere: the task goes on by itself
		v.status = protocol.Status{}
		return &protocol.Operation{Method: protocol.SubscribeToTask, Params: protocol.Encode(protocol.Get{ID: v.task})}, nil
	default:
		said := *v.m
		said.Data, said.ContentType, said.ID, said.Key = a.Content, interact.JSON, next.ID, ""
		if next, err = (&invocation{imported: v.imported, known: v.known, m: &said, skill: v.skill}).message(); err != nil {
			return nil, err
		}
	}
	next.TaskID, next.ContextID = v.task, v.context
	v.status = protocol.Status{}
	return v.send(next), nil
}

func words(m *protocol.Message) string {
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

// link is the address at which somebody is to prove who they are: of a link, or of data that have one.
func link(m *protocol.Message) string {
	if m == nil {
		return ""
	}
	for _, p := range m.Parts {
		var data struct{ URL string }
		_ = json.Unmarshal(p.Data, &data) // it may say anything
		if p.URL != nil {
			data.URL = *p.URL
		}
		if data.URL != "" {
			return data.URL
		}
	}
	return ""
}

// end yields the last state.
func (v *invocation) end(err error) {
	text := words(v.status.Message)
	switch status := executor.StatusOf(v.status.State); {
	case err != nil:
	case status == interact.StatusCancelled:
		err = &interact.Error{Code: interact.Cancelled, Title: cmp.Or(text, "the agent cancelled the task"), Remote: true}
	case v.status.State == protocol.Rejected:
		err = &interact.Error{Code: interact.AgentFailed, Title: cmp.Or(text, "the agent rejected the task"), Remote: true,
			Hint: "the agent says so: it does not do this"}
	case status == interact.StatusFailed:
		err = &interact.Error{Code: interact.AgentFailed, Title: cmp.Or(text, "the agent failed"), Hint: "the agent says so",
			Remote: true}
	}
	if err != nil {
		v.yield(nil, err)
		return
	}
	if v.turn == nil && !v.given && v.status.Message != nil {
		if v.give(v.status.Message.Parts); v.left {
			return
		}
	}
	r := v.m.Reply(interact.ActionStatus, "", nil)
	if v.turn != nil {
		r.ContentType, r.Data = bridge.TurnType, protocol.Encode(v.made.end(v.task, v.context, v.status))
	}
	r.Status = interact.StatusCompleted
	v.yield(r, nil)
}
