package mqtt

import (
	"context"
	"crypto/rand"
	"errors"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/td"
)

// An agent is a thing behind MQTT forms.
type agent struct {
	client *Client
	thing  *td.Thing
}

// Do implements [interact.Thing].
func (a *agent) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		work := workers[m.Type]
		if work == nil || m.Chunks != nil {
			yield(nil, interact.Errorf(interact.NotAllowed,
				"ask for a reading, a writing, an action, an observation or a subscription, in one message",
				"%s cannot be asked for this over MQTT (message type %d)", a.thing.Name(), m.Type))
			return
		}
		plans, err := a.plans(m)
		if err != nil {
			yield(nil, err)
			return
		}
		ctx, cancel := form.Within(ctx, m)
		defer cancel()
		told := false
		tell := func(r *interact.Message) bool {
			told = true
			return yield(r, nil)
		}
		for i, one := range plans {
			p := one.Plan
			if err = work(a, ctx, m, p, tell); errors.Is(err, errUnsent) && !told {
				err = work(a, ctx, m, p, tell) // on a new connection
			}
			if told || i == len(plans)-1 || !elsewhere(err) || ctx.Err() != nil {
				break
			}
		}
		if err != nil && err != errLeft {
			yield(nil, err)
		}
	}
}

// A worker carries m out by a plan. It calls tell for each reply; what it reports as false is answered with errLeft.
type worker func(a *agent, ctx context.Context, m *interact.Message, p *plan, tell func(*interact.Message) bool) error

var workers = map[interact.Type]worker{
	interact.ReadProperty: (*agent).read, interact.WriteProperty: (*agent).write, interact.InvokeAction: (*agent).invoke,
	interact.ObserveProperty: (*agent).observe, interact.ObserveAllProperties: (*agent).observe,
	interact.SubscribeEvent: (*agent).observe, interact.SubscribeAllEvents: (*agent).observe,
}

// errLeft says that nobody listens any more.
var errLeft = errors.New("the consumer left")

// elsewhere reports whether another form may be tried after err: nothing has begun.
func elsewhere(err error) bool {
	var e *interact.Error
	if !errors.As(err, &e) || e.Remote || e.Started {
		return false
	}
	return e.Code == interact.NotAllowed || e.Code == interact.Unreachable || e.Code == interact.Unauthenticated
}

// what names the affordance and the thing in errors.
func (a *agent) what(m *interact.Message) string {
	if m.Name == "" {
		return a.thing.Name()
	}
	return m.Name + " of " + a.thing.Name()
}

// read takes the retained message, or asks.
func (a *agent) read(ctx context.Context, m *interact.Message, p *plan, tell func(*interact.Message) bool) error {
	if p.asks {
		return a.exchange(ctx, m, p, func(d *delivery) error { return told(tell(a.reading(m, p, d))) })
	}
	l := newListener(a.client.o.Queue)
	l.once, l.retained = true, true
	filter := p.filters[0]
	s, w, err := a.client.hear(ctx, p, filter, p.qos, l, true)
	if err != nil {
		return err
	}
	defer a.client.unhear(s, filter, l)
	d, err := l.next(ctx, w.ended())
	for err == nil && d.answerTo != "" { // a request that somebody sent to the agent
		d, err = l.next(ctx, w.ended())
	}
	switch {
	case err == nil && d.cut:
		return a.cut(m)
	case err == nil:
		return told(tell(a.reading(m, p, d)))
	case errors.Is(err, context.DeadlineExceeded):
		return &interact.Error{Code: interact.Timeout, Title: "no value of " + a.what(m) +
			" is retained at the broker, and none came in time",
			Hint: "observe it, or let the agent retain its values (mqv:retain)", Err: err}
	}
	return s.unanswered(ctx, w, err, false)
}

func told(more bool) error {
	if more {
		return nil
	}
	return errLeft
}

func (a *agent) cut(m *interact.Message) error {
	return interact.Errorf(interact.TooLarge, "let the agent send less", "a message of %s is larger than %d bytes and was dropped",
		a.what(m), a.client.o.MaxPacket)
}

// write publishes a value, and takes the answer if there is one.
func (a *agent) write(ctx context.Context, m *interact.Message, p *plan, tell func(*interact.Message) bool) error {
	answers, err := a.answers(ctx, p)
	switch {
	case err != nil:
		return err
	case !answers:
		if err := a.publish(ctx, m, p); err != nil {
			return err
		}
		return told(tell(m.Reply(interact.Acknowledgement, "", nil)))
	}
	return a.exchange(ctx, m, p, func(d *delivery) error {
		if len(d.data) == 0 {
			return told(tell(m.Reply(interact.Acknowledgement, "", nil)))
		}
		return told(tell(a.reading(m, p, d)))
	})
}

// invoke publishes the input, and takes the answers if there are any.
func (a *agent) invoke(ctx context.Context, m *interact.Message, p *plan, tell func(*interact.Message) bool) error {
	answers, err := a.answers(ctx, p)
	action := a.thing.Actions[m.Name]
	switch {
	case err != nil:
		return err
	case !answers && p.asks && action != nil && action.Output != nil:
		return a.needs5(m, p)
	case !answers:
		if err := a.publish(ctx, m, p); err != nil {
			return err
		}
		done := m.Reply(interact.ActionStatus, "", nil)
		done.Status = interact.StatusCompleted
		return told(tell(done))
	}
	return a.exchange(ctx, m, p, func(d *delivery) error {
		r := m.Reply(interact.ActionStatus, mediaOf(d.media, p.form.ResponseType), d.data)
		if r.Status = interact.StatusOf(d.prop(propStatus)); r.Status.Final() || r.Status == interact.StatusNone {
			r.Status = interact.StatusCompleted
		}
		if id := d.prop(propActionID); len(id) <= 256 {
			r.ActionID = id
		}
		if len(d.data) == 0 {
			r.ContentType = ""
		}
		if !tell(r) {
			return errLeft
		}
		if !r.Status.Final() {
			return errMore
		}
		return nil
	})
}

// errMore says that another answer follows.
var errMore = errors.New("more follows")

// answers reports whether p's messages are answered: the form is of that style, and the broker speaks MQTT 5.
func (a *agent) answers(ctx context.Context, p *plan) (bool, error) {
	if !p.asks {
		return false, nil
	}
	s, err := a.client.acquire(p, 0)
	if err != nil {
		return false, err
	}
	defer a.client.release(s)
	w, err := s.connect(ctx)
	return err == nil && w.version() == 5, err
}

func (a *agent) needs5(m *interact.Message, p *plan) error {
	return interact.Errorf(interact.NotAllowed, "use a broker that speaks MQTT 5, or a form with mqv:topic",
		"%s needs MQTT 5 for its answer, and the broker at %s speaks 3.1.1", a.what(m), p.host)
}

// publish sends what the form takes of m, and no answer is waited for but the broker's.
func (a *agent) publish(ctx context.Context, m *interact.Message, p *plan) error {
	pub, err := a.publication(m, p)
	if err != nil {
		return err
	}
	pub.qos, pub.retain = p.qos, p.retain
	s, err := a.client.acquire(p, 0)
	if err != nil {
		return err
	}
	defer a.client.release(s)
	w, err := s.connect(ctx)
	if err != nil {
		return err
	}
	if err = w.publish(ctx, pub); p.retain && errors.Is(err, errNobody) {
		err = nil // it is kept for who comes
	}
	return s.unsent(ctx, w, p.topic, err)
}

// publication makes a message of m for the topic of p.
func (a *agent) publication(m *interact.Message, p *plan) (*publication, error) {
	pub := &publication{topic: p.topic, qos: 1}
	if m.Type != interact.ReadProperty {
		var err error
		if pub.data, pub.media, err = encode(m, p.form, a.what(m)); err != nil {
			return nil, err
		}
	}
	if len(pub.data)+len(pub.topic)+maxControl > 256<<20 {
		return nil, interact.Errorf(interact.TooLarge, "send less", "MQTT has no room for %d bytes", len(pub.data))
	}
	if !isProperty(pub.media) {
		return nil, interact.Errorf(interact.Invalid, "send a content type such as application/json",
			"the content type is no media type")
	}
	if m.Hops >= interact.MaxHops {
		return nil, interact.Errorf(interact.Loop, "see which nodes relay to each other", "the message passed %d nodes", m.Hops)
	}
	pub.add(propHops, strconv.Itoa(int(m.Hops)+1)) // the agent may be another thing of a mesh
	pub.add(propTraceParent, m.TraceParent)        // W3C Trace Context, MQTT
	pub.add(propTraceState, m.TraceState)
	pub.add(propCaller, m.From.ID()) // of an agent of this node: others are told nobody
	return pub, nil
}

// exchange asks and hands the answers to take until it returns nil, or an error that is not errMore.
func (a *agent) exchange(ctx context.Context, m *interact.Message, p *plan, take func(*delivery) error) error {
	pub, err := a.publication(m, p)
	if err != nil {
		return err
	}
	a.ask(ctx, m, p, pub)
	if p.topic == "" || !isTopic(pub.answerTo) {
		return form.Bad(p.form.Href, "has no topic that can be asked")
	}
	l := newListener(a.client.o.Queue)
	l.once = true
	s, w, err := a.client.hear(ctx, p, pub.answerTo, 1, l, false)
	if err != nil {
		return err
	}
	defer a.client.unhear(s, pub.answerTo, l)
	if w.version() != 5 {
		return a.needs5(m, p)
	}
	if err := w.publish(ctx, pub); err != nil {
		return s.unsent(ctx, w, p.topic, err)
	}
	for {
		d, err := l.next(ctx, w.ended())
		if err != nil {
			return a.silent(m, s.unanswered(ctx, w, err, true))
		}
		if len(d.correlation) > 0 && string(d.correlation) != string(pub.correlation) {
			continue // an answer to somebody else
		}
		if interact.MediaType(d.media) == problemType && interact.MediaType(p.form.ResponseType) != problemType {
			return a.refused(m, d)
		}
		if err := take(d); err != errMore {
			return err
		}
	}
}

// ask adds what a request has: where the answer goes, how long it is waited for, and what the consumer would like.
func (a *agent) ask(ctx context.Context, m *interact.Message, p *plan, pub *publication) {
	pub.answerTo = p.topic + "/reply/" + interact.NewID() // kotlin-wot, MqttProtocolClient
	pub.correlation = []byte(rand.Text())
	if until, ok := ctx.Deadline(); ok {
		pub.expiry = max(time.Until(until), time.Second)
	}
	accept := m.Accept
	if accept == "" && m.Type == interact.InvokeAction {
		accept = p.form.ResponseType
	}
	follow := ""
	if m.Type == interact.InvokeAction {
		follow = "true"
	}
	pub.add(propAccept, accept)
	pub.add(propFollow, follow)
	pub.add(propKey, m.Key)
}

// silent names who did not answer.
func (a *agent) silent(m *interact.Message, err error) error {
	e := interact.AsError(err)
	if e.Code != interact.Timeout {
		return err
	}
	silent := *e
	silent.Title = a.what(m) + " gave no answer in time"
	silent.Hint = "see whether the agent runs: over MQTT it says nothing if it does not know what it is asked, or fails"
	return &silent
}

// unanswered says why no message came that was waited for.
func (s *session) unanswered(ctx context.Context, w wire, err error, begun bool) error {
	var e *interact.Error
	switch {
	case errors.As(err, &e):
		c := *e
		c.Started = begun
		return &c
	case errors.Is(ctx.Err(), context.Canceled):
		return &interact.Error{Code: interact.Cancelled, Started: begun, Err: ctx.Err()}
	case ctx.Err() != nil:
		return &interact.Error{Code: interact.Timeout, Started: begun, Hint: "raise --timeout", Err: ctx.Err()}
	case s.life.Err() != nil:
		return shuttingDown()
	}
	return &interact.Error{Code: interact.Unreachable, Started: begun, Title: "the connection to the broker at " + s.key.host +
		" broke before an answer came",
		Hint: "see whether the agent did it before you ask again", Err: lostTo(w, err)}
}

// hear listens to a filter at the broker of p, on a connection where it overlaps with no other.
func (c *Client) hear(ctx context.Context, p *plan, filter string, qos byte, l *listener, again bool) (*session, wire, error) {
	for lane := range maxLanes {
		s, err := c.acquire(p, lane)
		if err != nil {
			return nil, nil, err
		}
		w, err := s.listen(ctx, filter, qos, l, again)
		if err == nil {
			return s, w, nil
		}
		c.unhear(s, filter, l)
		if err != errOverlap {
			return nil, nil, err
		}
	}
	return nil, nil, interact.Errorf(interact.Overloaded, "end an observation that covers others",
		"%d observations at the broker %s overlap with %s",
		maxLanes, p.host, quoted(filter))
}

func (c *Client) unhear(s *session, filter string, l *listener) {
	s.leave(filter, l)
	c.release(s)
}

// observe yields what is published on the filters of p until the consumer leaves.
func (a *agent) observe(ctx context.Context, m *interact.Message, p *plan, tell func(*interact.Message) bool) error {
	property := m.Type == interact.ObserveProperty || m.Type == interact.ObserveAllProperties
	l := newListener(a.client.o.Queue)
	// A retained value is a value; an event from before the subscription is none, unless the form says that it retains.
	l.retained = property || p.retain
	var s *session
	for _, filter := range p.filters {
		var err error
		if s, _, err = a.client.hear(ctx, p, filter, p.qos, l, false); err != nil {
			return err
		}
		defer a.client.unhear(s, filter, l)
	}
	for {
		d, err := l.next(ctx, nil)
		switch {
		case err != nil && ctx.Err() != nil:
			return s.given(ctx, "was observed until the deadline")
		case err != nil:
			return err
		case d.cut:
			return a.cut(m)
		case d.answerTo != "":
			continue // a request that somebody sent to the agent
		}
		if r := a.news(m, p, d, property); r != nil && !tell(r) {
			return errLeft
		}
	}
}

// news makes a reading or event of a message; nil if it is none.
func (a *agent) news(m *interact.Message, p *plan, d *delivery, property bool) *interact.Message {
	name := m.Name
	switch m.Type {
	case interact.ObserveAllProperties:
		name = nameIn(d.topic, p.filters, maps.Keys(a.thing.Properties))
	case interact.SubscribeAllEvents:
		name = nameIn(d.topic, p.filters, maps.Keys(a.thing.Events))
	}
	media := mediaOf(d.media, p.form.ResponseType)
	empty := property && len(d.data) == 0 && (td.IsJSON(media) || interact.IsCBOR(media)) // a retained value was deleted
	if name == "" && m.Name == "" || empty {
		a.client.o.Log.Debug("message skipped", "thing", a.thing.ID, "topic", interact.Clip(d.topic, 200))
		return nil
	}
	r := a.reading(m, p, d)
	r.Name = name
	if !property {
		r.Type = interact.Event
	}
	return r
}

// reading makes a PropertyReading of a message.
func (a *agent) reading(m *interact.Message, p *plan, d *delivery) *interact.Message {
	r := m.Reply(interact.PropertyReading, mediaOf(d.media, p.form.ResponseType), d.data)
	if id := d.prop(propID); len(id) <= 256 {
		r.ID = id
	}
	if at, err := time.Parse(time.RFC3339Nano, d.prop(propTime)); err == nil {
		r.Time = at
	} else if !d.retained { // nobody knows when a retained value was new
		r.Time = time.Now()
	}
	return r
}

// nameIn finds the affordance in a topic that one of the filters covers: the first level from the wildcard on that is one of
// names, escaped or not; "" if there is none.
func nameIn(topic string, filters []string, names iter.Seq[string]) string {
	levels := strings.Split(topic, "/")
	known := slices.Collect(names)
	for _, filter := range filters {
		if !matches(filter, topic) {
			continue
		}
		from := strings.Split(filter, "/")
		wild := slices.IndexFunc(from, func(level string) bool { return level == "#" || level == "+" })
		if wild < 0 {
			wild = 0 // a list of plain topics
		}
		for _, level := range levels[min(wild, len(levels)):] {
			if slices.Contains(known, level) {
				return level
			}
			if name := unescapeLevel(level); slices.Contains(known, name) {
				return name
			}
		}
	}
	return ""
}
