package server

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/td"
)

// An actionState is the state of a run of an action (WoT Profile §6.2.3, ActionStatus). Href is the path of its resource.
type actionState struct {
	Status    string          `json:"status"`
	Href      string          `json:"href,omitempty"`
	Output    json.RawMessage `json:"output,omitempty"`
	Error     json.RawMessage `json:"error,omitempty"` // RFC 9457
	Inputs    json.RawMessage `json:"lmosd:inputRequired,omitempty"`
	Requested string          `json:"timeRequested,omitempty"`
	Ended     string          `json:"timeEnded,omitempty"`
}

// state returns the ActionStatus of r.
func (v *visit) state(r *interact.Message) actionState {
	s := actionState{Status: r.Status.Standard().String(), Requested: rfc3339(r.Began)}
	if r.ActionID != "" {
		s.Href = v.path("actions", v.nameOf(r), r.ActionID)
	}
	if r.Status.Final() {
		s.Ended = rfc3339(r.Time)
	}
	switch r.Status {
	case interact.StatusFailed:
		s.Error = jsonOf(r.Data, r.Media())
	case interact.StatusInputRequired:
		s.Inputs = jsonOf(r.Data, r.Media())
	default:
		s.Output = jsonOf(r.Data, r.Media())
	}
	return s
}

func (v *visit) nameOf(r *interact.Message) string {
	if r.Name != "" {
		return r.Name
	}
	return v.at.name
}

func rfc3339(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// thingPath returns the path of a resource of a Thing. Each name is escaped.
func thingPath(ref string, names ...string) string {
	var b strings.Builder
	b.WriteString("/things/" + url.PathEscape(ref))
	for _, name := range names {
		b.WriteByte('/')
		b.WriteString(url.PathEscape(name))
	}
	return b.String()
}

// postAction invokes an action.
func (v *visit) postAction() error {
	m, err := v.loaded(interact.InvokeAction)
	if err == nil {
		err = v.check(m)
	}
	if err != nil {
		return err
	}
	async := prefers(v.r.Header, "respond-async")
	if a := v.desc.Actions[m.Name]; a.Synchronous != nil && !*a.Synchronous {
		async = true
	}
	m.Detach = async
	ctx, cancel, err := v.withTimeout(m)
	if err != nil {
		return err
	}
	defer cancel()
	if wantsEvents(v.r) {
		return v.follow(ctx, m)
	}
	return v.invoke(ctx, m)
}

// follow sends each state of the run as an event. A slow consumer delays the agent.
func (v *visit) follow(ctx context.Context, m *interact.Message) error {
	f := v.newFeed(ctx, m, 0)
	defer f.stop()
	return v.stream(m, f, func(r *interact.Message) []byte {
		data, _ := json.Marshal(v.state(r)) // texts and JSON always have a JSON form
		return data
	})
}

// invoke responds with the output, as a whole or in parts; or with the address of the state, if the action continues without the
// consumer.
func (v *visit) invoke(ctx context.Context, m *interact.Message) error {
	var last *interact.Message
	out := &output{visit: v, m: m}
	for r, err := range v.o.Mesh.Do(ctx, m) {
		switch {
		case err != nil && out.started:
			out.abort(err)
		case err != nil:
			return v.explained(m, err)
		case m.Detach && r.ActionID != "" && !r.Status.Final():
			return v.created(m, r)
		case r.Status == interact.StatusInputRequired && m.Key != "" && !out.started && prefers(v.r.Header, respondInput):
			return v.suspended(ctx, m, r)
		case r.Status == interact.StatusInputRequired:
			if out.started {
				out.abort(interact.NeedsInput(m.Name))
			}
			return v.explained(m, interact.NeedsInput(m.Name))
		}
		last = r
		if r.Status != interact.StatusRunning || len(r.Data) == 0 || r.ContentType == interact.Progress {
			continue
		}
		if err := out.part(r); err != nil && out.started {
			return nil // the consumer has disconnected
		} else if err != nil {
			return err
		}
	}
	if last == nil {
		return interact.Errorf(interact.Internal, "see the agent's log", "the agent ended the interaction without a reply")
	}
	return out.end(last)
}

// respondInput is the preference of a consumer that sends required input in a later request. It has started the run with a key.
const respondInput = "lmos-input"

// suspended responds with the input request of a run. The second, detached request with the same key detaches the run, so that it
// continues without its consumer.
func (v *visit) suspended(ctx context.Context, m, asks *interact.Message) error {
	again := *m
	again.ID, again.Detach = interact.NewID(), true
	for r, err := range v.o.Mesh.Do(ctx, &again) {
		if err != nil {
			return v.explained(m, err)
		}
		if r.ActionID == asks.ActionID {
			break
		}
	}
	v.w.Header().Set("Preference-Applied", respondInput)
	return v.created(m, asks)
}

// created responds with the address of the state of a run.
func (v *visit) created(m, r *interact.Message) error {
	s := v.state(r)
	if s.Requested == "" {
		s.Requested = rfc3339(v.began)
	}
	v.describeReply(m, r)
	v.w.Header().Set("Location", s.Href)
	if prefers(v.r.Header, "respond-async") {
		v.w.Header().Set("Preference-Applied", "respond-async") // RFC 7240 §3
	}
	return v.writeJSON(http.StatusCreated, m, s)
}

// linesType is the media type of JSON values, one per line.
const linesType = "application/x-ndjson"

// maxHeld limits an output that is collected until its end, in bytes.
const maxHeld = 16 << 20

// An output is the output of an action. Parts that are bytes are sent as they arrive. Parts that are JSON values are joined at the end
// ([interact.Join]), unless the consumer accepts one value per line.
type output struct {
	*visit
	m       *interact.Message
	control *http.ResponseController
	started bool // the status was sent
	lines   bool // each part is sent on a line
	held    []interact.Part
	size    int // of held
}

// part adds a part. After the response has started, an error means that the consumer has disconnected.
func (o *output) part(r *interact.Message) error {
	_, isValue := valueOfPart(r)
	switch {
	case o.started || len(o.held) == 0 && !isValue:
		return o.send(r)
	case len(o.held) == 0 && accepts(o.r, linesType):
		o.lines = true
		return o.send(r)
	}
	if o.size += len(r.Data); o.size > maxHeld {
		return interact.Errorf(interact.TooLarge, "accept it in parts: Accept: "+linesType+", or text/event-stream",
			"the output has more than %d bytes", maxHeld)
	}
	o.held = append(o.held, interact.Part{Data: r.Data, ContentType: r.ContentType})
	return nil
}

// valueOfPart returns a part as a JSON value; ok is false for other parts.
func valueOfPart(r *interact.Message) (value []byte, ok bool) {
	value, media, err := interact.Transcode(r.Data, r.Media(), interact.JSON)
	return value, err == nil && td.IsJSON(media) && json.Valid(value)
}

// send sends one part. The first part determines the media type.
func (o *output) send(r *interact.Message) error {
	data, media := r.Data, r.Media()
	if o.lines {
		data, media = lineOf(r), linesType
	}
	if !o.started {
		o.started, o.control = true, http.NewResponseController(o.w)
		o.describeReply(o.m, r)
		o.describeData(media)
		o.w.Header().Set("X-Accel-Buffering", "no") // else proxies buffer the stream
		o.w.WriteHeader(http.StatusOK)
	}
	// Not all connections have deadlines.
	_ = o.control.SetWriteDeadline(time.Now().Add(o.o.pace.write))
	if _, err := o.w.Write(data); err != nil {
		return err
	}
	return o.control.Flush()
}

// lineOf returns a part as a line.
func lineOf(r *interact.Message) []byte {
	var line bytes.Buffer
	if json.Compact(&line, jsonOf(r.Data, r.Media())) != nil { // jsonOf returns JSON
		return nil
	}
	line.WriteByte('\n')
	return line.Bytes()
}

// end sends the rest. An output is incomplete if the action failed.
func (o *output) end(last *interact.Message) error {
	switch err := outcome(last); {
	case err != nil && o.started:
		o.abort(err)
	case err != nil:
		return err
	case !o.started:
		return o.respond(o.m, o.whole(last))
	case last.Status != interact.StatusRunning && len(last.Data) > 0:
		_ = o.send(last) // an error means that the consumer has disconnected
	}
	_ = o.control.SetWriteDeadline(time.Time{}) // for the next request of the connection
	return nil
}

// whole returns the last state with the whole output.
func (o *output) whole(last *interact.Message) *interact.Message {
	if len(o.held) == 0 {
		return last
	}
	if len(last.Data) > 0 {
		o.held = append(o.held, interact.Part{Data: last.Data, ContentType: last.ContentType})
	}
	c := *last
	c.Data, c.ContentType = interact.Join(o.held)
	return &c
}

// abort closes the connection. The consumer must not accept an incomplete output as complete, and HTTP/1.1 has no other signal for it.
func (o *output) abort(err error) {
	o.o.Log.Info("output incomplete", "thing", o.m.Thing, "action", o.m.Name, "code", interact.AsError(err).Code.String(), "err", err)
	panic(http.ErrAbortHandler)
}

// getTask responds with the state of the run in the path, or of the latest.
func (v *visit) getTask() error {
	m, err := v.message(interact.QueryAction)
	if err != nil {
		return err
	}
	if wantsEvents(v.r) && v.r.Method != http.MethodHead {
		return v.followTask(m)
	}
	r, err := v.last(m)
	if err != nil {
		return err
	}
	v.describeReply(m, r)
	return v.writeJSON(http.StatusOK, m, v.state(r))
}

// followTask sends each new state of a run as an event, until the final one. It polls the run, because the mesh has no notification of
// states. The pauses grow.
func (v *visit) followTask(m *interact.Message) error {
	if err := v.check(m); err != nil {
		return err
	}
	if err := v.enter(); err != nil {
		return err
	}
	defer v.leave()
	ctx, cancel := context.WithCancel(v.r.Context())
	defer cancel()
	defer context.AfterFunc(v.ending, cancel)()
	e := v.eventStream()
	defer e.End()
	alive := time.NewTicker(v.o.pace.keepAlive)
	defer alive.Stop()
	var sent []byte
	id := m.ActionID
	for pause := v.o.pace.poll; ; pause = min(pause*3/2, 20*v.o.pace.poll) {
		query := *m
		query.ID, query.ActionID = interact.NewID(), id
		r, err := interact.Call(ctx, v.o.Mesh, &query)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return v.taskLost(m, e, err)
		}
		id = r.ActionID // the latest run may change
		data, _ := json.Marshal(v.state(r))
		if !bytes.Equal(data, sent) && e.Send(v.nameOf(r), "", data) != nil || r.Status.Final() {
			return nil
		}
		sent = data
		if !pauseWith(ctx, e, alive.C, pause) {
			return nil
		}
	}
}

// pauseWith waits and sends keep-alive comments. It reports whether the consumer is connected. It ends early with ctx.
func pauseWith(ctx context.Context, e *eventStream, alive <-chan time.Time, pause time.Duration) bool {
	over := time.NewTimer(pause)
	defer over.Stop()
	for {
		select {
		case <-alive:
			if e.Comment("") != nil {
				return false
			}
		case <-over.C:
			return true
		case <-ctx.Done():
			return true
		}
	}
}

// taskLost ends the events of a run whose query failed.
func (v *visit) taskLost(m *interact.Message, e *eventStream, err error) error {
	if v.ending.Err() != nil {
		err = stopping()
	}
	switch {
	case v.r.Context().Err() != nil:
		return nil
	case !e.Started():
		return v.explained(m, err)
	}
	problem.Send(e.Writer, err)
	return nil
}

// postAnswers sends required input to a run (interact.Answers), which then continues.
func (v *visit) postAnswers() error {
	m, err := v.loaded(interact.ContinueAction)
	return v.done(m, err)
}

// deleteTask cancels a run.
func (v *visit) deleteTask() error {
	m, err := v.message(interact.CancelAction)
	return v.done(m, err)
}

// done sends m and responds without content. A non-nil err is its result.
func (v *visit) done(m *interact.Message, err error) error {
	if err == nil {
		_, err = v.last(m)
	}
	if err == nil {
		v.w.WriteHeader(http.StatusNoContent)
	}
	return err
}

// getActions responds with the states of all runs by action, newest first.
func (v *visit) getActions() error {
	m, err := v.message(interact.QueryAllActions)
	if err != nil {
		return err
	}
	r, err := v.last(m)
	if err != nil {
		return err
	}
	data, _, err := interact.Transcode(r.Data, r.Media(), interact.JSON)
	var tasks map[string][]interact.Task
	if err == nil && len(data) > 0 {
		err = json.Unmarshal(data, &tasks)
	}
	if err != nil {
		return &interact.Error{Code: interact.AgentFailed, Title: "the states of the actions cannot be read",
			Hint: "see the agent's log", Err: err}
	}
	all := make(map[string][]actionState, len(tasks))
	for name, runs := range tasks {
		states := make([]actionState, len(runs))
		for i, t := range runs {
			states[i] = actionState{Status: t.State, Href: v.path("actions", name, t.ActionID), Output: t.Output, Error: t.Error,
				Requested: t.Requested, Ended: t.Ended}
		}
		all[name] = states
	}
	v.describeReply(m, r)
	return v.writeJSON(http.StatusOK, m, all)
}
