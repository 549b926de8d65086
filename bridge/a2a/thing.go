package a2a

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"iter"
	"time"

	"github.com/lmosd/lmosd/bridge/a2a/card"
	"github.com/lmosd/lmosd/bridge/a2a/desk"
	"github.com/lmosd/lmosd/bridge/a2a/wire"
	"github.com/lmosd/lmosd/interact"
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
	k := i.known.Load()
	agent := i.claims.guard(k.agent, string(m.From))
	switch {
	case m.Type == interact.InvokeAction && m.Name == Verbatim:
		return verbatim(ctx, agent, m)
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

func readTasks(ctx context.Context, agent wire.Agent, m *interact.Message) iter.Seq2[*interact.Message, error] {
	list, err := wire.Ask(ctx, agent, &wire.Operation{Method: wire.ListTasks, Params: json.RawMessage("{}")})
	if err != nil {
		return interact.Fail(said(err))
	}
	return interact.One(m.Reply(interact.PropertyReading, interact.JSON, list))
}

// said is an error for those who do not speak A2A.
func said(err error) error {
	var e *wire.Error
	if errors.As(err, &e) {
		return e.Interact()
	}
	return err
}

// verbatim carries an operation, and gives out its results as they are (wire.Outcome). That the agent refuses is a result, too.
func verbatim(ctx context.Context, agent wire.Agent, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		op, err := wire.ParseOperation(m.Data)
		if err != nil {
			yield(nil, interact.Errorf(interact.Invalid, "A2A clients use it through their own node; call the other actions", "%v", err))
			return
		}
		for result, err := range agent.Do(ctx, op) {
			var e *wire.Error
			if err != nil && !errors.As(err, &e) {
				yield(nil, err)
				return
			}
			part := m.Reply(interact.ActionStatus, interact.JSON, wire.Outcome(result, e))
			part.Status = interact.StatusRunning
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
	agent wire.Agent
	m     *interact.Message
	skill string

	yield   func(*interact.Message, error) bool
	left    bool // the consumer has
	task    string
	context string
	status  wire.Status
	given   bool // something of the output
}

// run sends the message and gives out what comes, round by round: the agent may ask for more. A consumer that leaves cancels the
// task.
func (v *invocation) run(ctx context.Context) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		v.yield = yield
		message, err := v.message()
		op := v.send(message)
		for err == nil && !v.left {
			if err = v.round(ctx, op); err != nil || v.left || !v.status.State.Waits() {
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

// cancel tells the agent that nobody waits any more.
func (v *invocation) cancel(ctx context.Context) {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer stop()
	if _, err := wire.Ask(ctx, v.agent, &wire.Operation{Method: wire.CancelTask,
		Params: wire.Encode(wire.Get{ID: v.task})}); err != nil {
		v.o.Log.Debug("an A2A task could not be cancelled", "target", v.target, "err", err)
	}
}

// message makes a message of the input: a message of A2A stays, a text is said, other JSON is data, and the rest bytes.
func (v *invocation) message() (*wire.Message, error) {
	m := &wire.Message{ID: cmp.Or(v.m.Key, v.m.ID, rand.Text()), Role: wire.User}
	if v.skill != "" {
		m.Metadata = wire.Encode(map[string]string{"skillId": v.skill})
	}
	data, media, err := interact.Transcode(v.m.Data, v.m.Media(), interact.JSON)
	if err != nil {
		return nil, err
	}
	var text string
	var given wire.Message
	switch {
	case !td.IsJSON(media):
		m.Parts = []wire.Part{wire.RawPart(data, media)}
	case len(bytes.TrimSpace(data)) == 0:
		m.Parts = []wire.Part{wire.TextPart("")}
	case bytes.TrimSpace(data)[0] == '"' && json.Unmarshal(data, &text) == nil:
		m.Parts = []wire.Part{wire.TextPart(text)}
	case json.Unmarshal(wire.Normal(data), &given) == nil && len(given.Parts) > 0:
		given.ID, given.Role = cmp.Or(given.ID, m.ID), wire.User
		if given.Metadata == nil {
			given.Metadata = m.Metadata
		}
		m = &given
	default:
		m.Parts = []wire.Part{wire.DataPart(data)}
	}
	return m, nil
}

// send is the operation that sends a message; as a stream, if the agent has those.
func (v *invocation) send(m *wire.Message) *wire.Operation {
	method := wire.SendMessage
	if card.Yes(v.card.Capabilities.Streaming) {
		method = wire.SendStreamingMessage
	}
	return &wire.Operation{Method: method, Params: wire.Encode(wire.Send{Message: m})}
}

// leaveFor is how long an agent is listened to when its consumer has left and the name of its task is not known: it is needed to
// cancel that.
const leaveFor = 2 * time.Second

// round asks, and gives out what is said until nothing more comes.
func (v *invocation) round(ctx context.Context, op *wire.Operation) error {
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
		if err != nil {
			return cmp.Or(ctx.Err(), said(err))
		}
		var e wire.StreamResponse
		if err := json.Unmarshal(result, &e); err != nil {
			return interact.Errorf(interact.AgentFailed, "it breaks A2A 1.0", "the agent's answer cannot be read: %v", err)
		}
		if v.heard(&e); v.left || v.status.State.Waits() {
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
	if v.status.State == wire.Completed || v.status.State.Terminal() {
		return nil
	}
	return &interact.Error{Code: interact.Unreachable, Title: "the agent broke off", Hint: "ask again in a moment", Begun: true}
}

func (v *invocation) heard(e *wire.StreamResponse) {
	switch {
	case e.Message != nil:
		v.give(e.Message.Parts)
		v.status = wire.Status{State: wire.Completed}
	case e.Task != nil:
		v.task, v.context, v.status = e.Task.ID, e.Task.ContextID, e.Task.Status
		for _, a := range e.Task.Artifacts {
			if !v.given || !card.Yes(v.card.Capabilities.Streaming) {
				v.give(a.Parts)
			}
		}
	case e.StatusUpdate != nil:
		v.task, v.context, v.status = e.StatusUpdate.TaskID, e.StatusUpdate.ContextID, e.StatusUpdate.Status
	case e.ArtifactUpdate != nil && e.ArtifactUpdate.Artifact != nil:
		v.give(e.ArtifactUpdate.Artifact.Parts)
	}
}

// give yields parts of the output.
func (v *invocation) give(parts []wire.Part) {
	for _, p := range parts {
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
func content(p wire.Part) ([]byte, string) {
	switch {
	case p.Text != nil:
		return wire.Encode(*p.Text), interact.JSON
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
		return wire.Encode(link), interact.JSON
	}
	return nil, ""
}

// ask asks the consumer for what the agent wants, and returns how it goes on.
func (v *invocation) ask(ctx context.Context) (*wire.Operation, error) {
	in := interact.Input{Kind: interact.InputMessage, Message: words(v.status.Message), Params: wire.Encode(v.status)}
	auth := v.status.State == wire.AuthRequired
	if auth {
		in.Kind, in.URL = interact.InputURL, link(v.status.Message)
	}
	answers, left, err := v.parking.Ask(ctx, v.m, interact.Inputs{"message": in}, v.yield)
	if v.left = left; left || err != nil {
		return nil, err
	}
	a := answers["message"]
	switch {
	case a.Action != interact.Accept:
		return nil, &interact.Error{Code: interact.Cancelled, Title: "the consumer does not answer the agent"}
	case auth: // it has been done elsewhere: the task goes on by itself
		v.status = wire.Status{}
		return &wire.Operation{Method: wire.SubscribeToTask, Params: wire.Encode(wire.Get{ID: v.task})}, nil
	}
	next := *v.m
	next.Data, next.ContentType, next.ID, next.Key = a.Content, interact.JSON, rand.Text(), ""
	m, err := (&invocation{imported: v.imported, known: v.known, m: &next, skill: v.skill}).message()
	if err != nil {
		return nil, err
	}
	m.TaskID, m.ContextID = v.task, v.context
	v.status = wire.Status{}
	return v.send(m), nil
}

func words(m *wire.Message) string {
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
func link(m *wire.Message) string {
	if m == nil {
		return ""
	}
	for _, p := range m.Parts {
		var data struct {
			URL    string
			Inputs interact.Inputs
		}
		_ = json.Unmarshal(p.Data, &data) // it may say anything
		for _, in := range data.Inputs {
			data.URL = cmp.Or(data.URL, in.URL)
		}
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
	switch status := desk.StatusOf(v.status.State); {
	case err != nil:
	case status == interact.StatusCancelled:
		err = &interact.Error{Code: interact.Cancelled, Title: cmp.Or(text, "the agent cancelled the task"), Remote: true}
	case status == interact.StatusFailed:
		err = &interact.Error{Code: interact.AgentFailed, Title: cmp.Or(text, "the agent failed"), Hint: "the agent says so",
			Remote: true}
	}
	if err != nil {
		v.yield(nil, err)
		return
	}
	if !v.given && v.status.Message != nil {
		if v.give(v.status.Message.Parts); v.left {
			return
		}
	}
	r := v.m.Reply(interact.ActionStatus, "", nil)
	r.Status = interact.StatusCompleted
	v.yield(r, nil)
}
