package mqtt

import (
	"context"
	"encoding/json"
	"fmt"
	"mime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/interact/mqtt/packet"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/td"
)

// A request is a message of a client for a Thing.
type request struct {
	target
	broker        *Broker
	consumer      *consumer
	topic         string
	responseTopic string // "": no response is expected
	correlation   []byte
	accept        string
	follow        bool // each state of an action is a response
	data          []byte
	message       *interact.Message // without type and data, which the target sets
	wait          time.Duration
}

// accept starts a request. It returns the code of the acknowledgement.
func (b *Broker) accept(c *consumer, pk packets.Packet) packets.Code {
	to, ok := parseRequest(pk.TopicName)
	if !ok {
		return packets.ErrNotAuthorized
	}
	r := newRequest(b, c, to, pk)
	switch {
	case r.responseTopic != "" && !r.hasOwnResponseTopic():
		return packets.ErrTopicNameInvalid
	case r.responseTopic == "" && r.kind == "":
		return packets.ErrNotAuthorized // clients cannot send messages to other clients
	}
	if !r.reserve() {
		if r.responseTopic == "" || c.isHalfFull() {
			b.busy.warn(b.o.Log, "mqtt request rejected: too many", "remote", c.client.Net.Remote)
			return packets.ErrQuotaExceeded
		}
		r.fail(interact.Errorf(interact.Overloaded, "wait for responses", "the client has too many running requests"))
		return packets.CodeSuccess
	}
	release := b.o.Gate.Hold()
	if !b.spawn(func() {
		defer release()
		defer r.leave()
		r.serve()
	}) {
		release()
		r.leave()
		return packets.ErrServerShuttingDown
	}
	return packets.CodeSuccess
}

func newRequest(b *Broker, c *consumer, to target, pk packets.Packet) *request {
	p := &pk.Properties
	r := &request{target: to, broker: b, consumer: c, topic: pk.TopicName, responseTopic: p.ResponseTopic, data: pk.Payload,
		correlation: p.CorrelationData, wait: form.DefaultTimeout, message: &interact.Message{ID: interact.NewID(), From: c.from}}
	if p.MessageExpiryInterval > 0 {
		r.wait = min(time.Duration(p.MessageExpiryInterval)*time.Second, requestTime)
	}
	m := r.message
	if media, _, err := mime.ParseMediaType(p.ContentType); err == nil {
		m.ContentType = media
	}
	for _, u := range p.User {
		if len(u.Val) > 512 {
			continue
		}
		switch u.Key {
		case propAccept:
			if media, _, err := mime.ParseMediaType(u.Val); err == nil {
				r.accept, m.Accept = media, media
			}
		case propTraceParent:
			m.TraceParent, _ = interact.TraceContext(u.Val, "")
		case propTraceState:
			m.TraceState = u.Val
		case propHops:
			n, err := strconv.ParseUint(u.Val, 10, 8)
			if m.Hops = uint8(n); err != nil {
				m.Hops = interact.MaxHops + 1 // not a small number
			}
		case propFollow:
			r.follow = u.Val == "true"
		case propDetach:
			m.Detach = u.Val == "true"
		case propKey:
			if len(u.Val) <= 256 {
				m.Key = u.Val
			}
		}
	}
	return r
}

// hasOwnResponseTopic reports whether the response topic is below the topic of the request: a client cannot send messages to other clients.
func (r *request) hasOwnResponseTopic() bool {
	id, ok := strings.CutPrefix(r.responseTopic, r.topic+"/reply/")
	return ok && id != "" && !strings.Contains(id, "/") && packet.IsTopic(r.responseTopic)
}

// reserve counts the request against the limits, and reports whether they allow it.
func (r *request) reserve() bool {
	b := r.broker
	if r.consumer.requests.Add(1) <= int64(b.o.MaxRequests) && b.room.TryAcquire(1) {
		if b.bytes.TryAcquire(int64(len(r.data))) {
			if r.responseTopic != "" || b.deaf.TryAcquire(1) {
				return true
			}
			b.bytes.Release(int64(len(r.data)))
		}
		b.room.Release(1)
	}
	r.consumer.requests.Add(-1)
	return false
}

func (r *request) leave() {
	if r.responseTopic == "" {
		r.broker.deaf.Release(1)
	}
	r.broker.bytes.Release(int64(len(r.data)))
	r.broker.room.Release(1)
	r.consumer.requests.Add(-1)
}

// serve executes the request and responds to a failure with a problem. The end of the connection cancels only requests with a response
// topic.
func (r *request) serve() {
	life := r.consumer.life
	if r.responseTopic == "" {
		life = r.broker.life
	}
	ctx, cancel := context.WithTimeout(life, r.wait)
	defer cancel()
	if err := r.broker.safely("a request", func() error { return r.execute(ctx) }); err != nil {
		thing, name := interact.Excerpt(r.thing, 200), interact.Excerpt(r.name, 200)
		r.broker.o.Log.Info("mqtt request failed", "thing", thing, "name", name, "err", err)
		r.fail(err)
	}
}

// safely runs f; a panic in it becomes an error of the request.
func (b *Broker) safely(what string, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			b.o.Log.Error("mqtt panic", "at", what, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = interact.Errorf(interact.Internal, "see the log of the node", "the node failed at %s", what)
		}
	}()
	return f()
}

// find resolves a Thing for a caller.
func (b *Broker) find(ctx context.Context, from *did.Principal, ref string) (*td.Description, error) {
	d, err := b.o.Find(did.WithPrincipal(ctx, from), ref)
	if err != nil {
		return nil, err
	}
	if d == nil || d.Thing == nil {
		return nil, interact.NoAgent(ref)
	}
	return d, nil
}

func (r *request) execute(ctx context.Context) error {
	d, err := r.broker.find(ctx, r.consumer.from, r.thing)
	if err != nil {
		return err
	}
	if r.kind == "" {
		r.respond(&outgoing{data: d.Raw, media: "application/td+json"})
		return nil
	}
	m := r.message
	if m.Hops > interact.MaxHops {
		return interact.Errorf(interact.Loop, "see which nodes relay to each other", "the message passed %d nodes", m.Hops)
	}
	m.Thing, m.Name = d.Ref(), r.name
	m.Deadline, _ = ctx.Deadline()
	if err := r.setType(m); err != nil {
		return err
	}
	switch {
	case r.responseTopic == "" && m.Type.Reads():
		return nil // no response is expected
	case m.Type == interact.InvokeAction:
		return r.invoke(ctx, d.Actions[m.Name], m)
	}
	reply, err := interact.Call(ctx, r.broker.o.Mesh, m)
	if err != nil {
		return err
	}
	p := newOutgoing("", reply, r.accept)
	if reply.Type == interact.ActionStatus {
		p = &outgoing{data: taskJSON(reply), media: interact.JSON}
		stateOf(p, reply)
	}
	r.respond(p)
	return nil
}

// setType sets type and data of m by the target.
func (r *request) setType(m *interact.Message) error {
	if m.Data = r.data; len(m.Data) == 0 {
		m.ContentType = ""
	}
	switch {
	case r.verb != "":
		if m.Type = interact.QueryAction; r.verb == "cancel" {
			m.Type = interact.CancelAction
		}
		m.ActionID, m.Data, m.ContentType = string(r.data), nil, ""
		if len(m.ActionID) > 256 {
			return interact.Errorf(interact.Invalid, "send the id of the run, or no payload", "expected at most 256 bytes as id, got %d",
				len(m.ActionID))
		}
	case r.kind == "actions" && r.name == "":
		m.Type, m.Data, m.ContentType = interact.QueryAllActions, nil, ""
	case r.kind == "actions":
		m.Type = interact.InvokeAction
	case r.name == "":
		return r.setTypeOfAll(m)
	case len(r.data) == 0:
		m.Type = interact.ReadProperty
	default:
		m.Type = interact.WriteProperty
	}
	return nil
}

// setTypeOfAll sets the type of m for {thing}/properties by the payload.
func (r *request) setTypeOfAll(m *interact.Message) error {
	v, ok, err := interact.Value(r.data, m.Media())
	switch v.(type) {
	case map[string]any:
		m.Type = interact.WriteMultipleProperties
	case []any:
		m.Type = interact.ReadMultipleProperties
	default:
		if m.Type = interact.ReadAllProperties; len(r.data) > 0 {
			return &interact.Error{Code: interact.Invalid, Title: "expected an object of values, an array of names, or no payload",
				Hint: `for example {"units":"celsius"}, or ["units"]`, Err: err}
		}
	}
	if !ok && len(r.data) > 0 {
		return interact.Errorf(interact.UnsupportedType, "send application/json", "values by name are JSON or CBOR, not %s",
			m.Media())
	}
	return nil
}

// invoke runs an action and sends its states, or only its output.
func (r *request) invoke(ctx context.Context, action *td.Action, m *interact.Message) error {
	background := m.Detach || action != nil && action.Synchronous != nil && !*action.Synchronous
	var whole gathered
	for s, err := range r.broker.o.Mesh.Do(ctx, m) {
		if err != nil {
			return err
		}
		final := s.Status.Final()
		switch {
		case s.Status == interact.StatusCancelled:
			return &interact.Error{Code: interact.Cancelled, Remote: true, Title: "the action was cancelled",
				Hint: "check which other consumers can cancel it"}
		case r.follow:
			p := newOutgoing("", s, r.accept)
			stateOf(p, s)
			r.respond(p)
		case final:
			r.respond(newOutgoing("", whole.with(s), r.accept))
		case background && s.ActionID != "":
			p := &outgoing{data: taskJSON(s), media: interact.JSON}
			stateOf(p, s)
			r.respond(p)
			return nil // it continues in the background
		default:
			if err := whole.add(s, r.broker.o.MaxPacket); err != nil {
				return err
			}
		}
		if final {
			return nil
		}
	}
	return interact.Errorf(interact.AgentFailed, "see the agent's log", "the action ended without a result")
}

// maxParts limits the gathered parts of a response stream.
const maxParts = 1 << 16

// gathered are the parts of a response stream for a client that receives one message.
type gathered struct {
	parts []interact.Part
	size  int
}

// add adds the part in s, if any.
func (g *gathered) add(s *interact.Message, limit int) error {
	if len(s.Data) == 0 {
		return nil
	}
	if g.size += len(s.Data); g.size > limit || len(g.parts) == maxParts {
		return interact.Errorf(interact.TooLarge, "send the user property lmos-follow: true, to receive the parts",
			"the output is larger than %d bytes, or has more than %d parts", limit, maxParts)
	}
	g.parts = append(g.parts, interact.Part{Data: s.Data, ContentType: s.Media()})
	return nil
}

// with returns the final state with the whole output ([interact.Join]).
func (g *gathered) with(s *interact.Message) *interact.Message {
	if len(s.Data) > 0 || len(g.parts) == 0 {
		return s
	}
	c := *s
	c.Data, c.ContentType = interact.Join(g.parts)
	return &c
}

// stateOf adds the state of s to p.
func stateOf(p *outgoing, s *interact.Message) {
	p.add(propStatus, s.Status.String())
	p.add(propActionID, s.ActionID)
}

// taskJSON writes the state of an action (Web Thing Protocol, ActionStatus).
func taskJSON(s *interact.Message) []byte {
	t := interact.Task{ActionID: s.ActionID, State: s.Status.String()}
	output := s.Data
	data, media, err := interact.Transcode(s.Data, s.Media(), interact.JSON)
	if err == nil && td.IsJSON(media) && json.Valid(data) {
		output = data
	} else if len(output) > 0 {
		output, _ = json.Marshal(string(output)) // a string always has a JSON form
	}
	if s.Status == interact.StatusFailed {
		t.Error = output
	} else if s.Status == interact.StatusCompleted {
		t.Output = output
	}
	stamp := func(at time.Time) string {
		if at.IsZero() {
			return ""
		}
		return at.UTC().Format(time.RFC3339Nano)
	}
	t.Requested, t.Ended = stamp(s.Began), stamp(s.Time)
	if data, err = json.Marshal(t); err != nil { // invalid JSON is left out
		data, _ = json.Marshal(interact.Task{ActionID: t.ActionID, State: t.State, Requested: t.Requested, Ended: t.Ended})
	}
	return data
}

// fail sends a problem.
func (r *request) fail(err error) {
	data, _ := problem.Marshal(err)
	p := &outgoing{data: data, media: problem.MediaType}
	p.add(propCode, interact.AsError(err).Code.String())
	r.respond(p)
}

// respond sends p to the client if the request has a response topic to which the client is subscribed.
func (r *request) respond(p *outgoing) {
	b, c := r.broker, r.consumer
	if r.responseTopic == "" {
		return
	}
	limit := int(c.client.Properties.Props.MaximumPacketSize)
	if limit > 0 && p.weight()+2*len(r.topic) > limit && p.media != problem.MediaType {
		r.fail(interact.Errorf(interact.TooLarge, "raise the Maximum Packet Size of the client",
			"the response has %d bytes, the limit of the client is %d", len(p.data), limit))
		return
	}
	p.topic, p.correlation = r.responseTopic, r.correlation
	b.mu.Lock()
	to := c.filters[r.responseTopic]
	b.mu.Unlock()
	if to == nil {
		b.o.Log.Debug("mqtt response dropped: no subscription to the response topic", "remote", c.client.Net.Remote)
		return
	}
	if c.send(p, to.qos) {
		c.stop()
	}
}
