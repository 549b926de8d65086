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
	"github.com/lmosd/lmosd/interact/mqtt/packet"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/td"
)

// A call is a message of a consumer to an agent, over one form.
type call struct {
	*form.Request
	*plan
	client *Client
}

// Fits implements [form.Transport].
func (c *Client) Fits(f *td.Form, op string) bool {
	return Supports(f) && workers[interact.TypeOf(op)] != nil
}

// Prepare implements [form.Transport].
func (c *Client) Prepare(r *form.Request) (form.Exchange, error) {
	p, err := readForm(r.Form)
	if err != nil {
		return nil, err
	}
	q := &call{Request: r, plan: p, client: c}
	if r.Message.Chunks != nil {
		return nil, interact.Errorf(interact.NotAllowed, "send the input in one message", "%s does not accept a stream over MQTT", r.What())
	}
	if r.Message.Type == interact.WriteProperty || r.Message.Type == interact.InvokeAction {
		if p.topic == "" {
			return nil, form.Bad(r.Form.Href, "has no topic that can be published to")
		}
		if err = r.Convert(); interact.MediaType(r.Message.Media()) == interact.MediaType(r.Media) && len(r.Body) > 0 {
			r.Media = r.Message.Media() // with its parameters
		}
	}
	return q.send, err
}

// send executes the request. Another form is tried if the request has not started.
func (q *call) send(ctx context.Context, yield func(*interact.Message) bool) error {
	q.login = login{q.Secrets.Login.Username, q.Secrets.Login.Password}
	replied := false
	sink := func(r *interact.Message) bool {
		replied = true
		return yield(r)
	}
	work := workers[q.Message.Type]
	err := work(q, ctx, sink)
	if errors.Is(err, errUnsent) && !replied {
		err = work(q, ctx, sink) // on a new connection
	}
	if mayTryNextForm(err) {
		return form.Next(err)
	}
	return err
}

// A worker executes a request and yields each reply.
type worker func(q *call, ctx context.Context, yield func(*interact.Message) bool) error

var workers = map[interact.Type]worker{
	interact.ReadProperty: (*call).read, interact.WriteProperty: (*call).write, interact.InvokeAction: (*call).invoke,
	interact.ObserveProperty: (*call).observe, interact.ObserveAllProperties: (*call).observe,
	interact.SubscribeEvent: (*call).observe, interact.SubscribeAllEvents: (*call).observe,
}

// mayTryNextForm reports whether another form can be tried, because the request has not started.
func mayTryNextForm(err error) bool {
	var e *interact.Error
	if !errors.As(err, &e) || e.Remote || e.Started {
		return false
	}
	return e.Code == interact.NotAllowed || e.Code == interact.Unreachable || e.Code == interact.Unauthenticated
}

// read receives the retained message, or sends a request.
func (q *call) read(ctx context.Context, yield func(*interact.Message) bool) error {
	if q.hasResponses {
		return q.exchange(ctx, func(d *delivery) error { return orLeft(yield(q.reading(d))) })
	}
	l := newInbox(q.client.o.Queue)
	l.once, l.retained = true, true
	filter := q.filters[0]
	s, w, err := q.client.listen(ctx, q.plan, filter, q.qos, l, true)
	if err != nil {
		return err
	}
	defer q.client.stopListening(s, filter, l)
	d, err := l.next(ctx, w.ended())
	for err == nil && d.responseTopic != "" { // a request to the agent
		d, err = l.next(ctx, w.ended())
	}
	switch {
	case err == nil && d.cut:
		return q.cut()
	case err == nil:
		return orLeft(yield(q.reading(d)))
	case errors.Is(err, context.DeadlineExceeded):
		return &interact.Error{Code: interact.Timeout, Title: "the broker has no retained value of " + q.What() +
			", and received none in time",
			Hint: "observe it, or let the agent retain its values (mqv:retain)", Err: err}
	}
	return s.noResponse(ctx, w, err, false)
}

func orLeft(more bool) error {
	if more {
		return nil
	}
	return form.ErrLeft
}

func (q *call) cut() error {
	return interact.Errorf(interact.TooLarge, "let the agent send less", "message of %s larger than %d bytes dropped",
		q.What(), q.client.o.MaxPacket)
}

// write publishes a value, and receives the response if the form has one.
func (q *call) write(ctx context.Context, yield func(*interact.Message) bool) error {
	answers, err := q.answers(ctx)
	switch {
	case err != nil:
		return err
	case !answers:
		if err := q.publish(ctx); err != nil {
			return err
		}
		return orLeft(yield(q.Message.Reply(interact.Acknowledgement, "", nil)))
	}
	return q.exchange(ctx, func(d *delivery) error {
		if len(d.data) == 0 {
			return orLeft(yield(q.Message.Reply(interact.Acknowledgement, "", nil)))
		}
		return orLeft(yield(q.reading(d)))
	})
}

// invoke publishes the input, and receives the responses if the form has them.
func (q *call) invoke(ctx context.Context, yield func(*interact.Message) bool) error {
	answers, err := q.answers(ctx)
	action := q.Thing.Actions[q.Message.Name]
	switch {
	case err != nil:
		return err
	case !answers && q.hasResponses && action != nil && action.Output != nil:
		return q.errVersion()
	case !answers:
		if err := q.publish(ctx); err != nil {
			return err
		}
		done := q.Message.ReplyStatus(interact.StatusCompleted, "", nil)
		return orLeft(yield(done))
	}
	return q.exchange(ctx, func(d *delivery) error {
		r := q.Message.Reply(interact.ActionStatus, mediaOf(d.media, q.Form.ResponseType), d.data)
		if r.Status = interact.StatusOf(d.prop(propStatus)); r.Status.Final() || r.Status == interact.StatusNone {
			r.Status = interact.StatusCompleted
		}
		if id := d.prop(propActionID); len(id) <= 256 {
			r.ActionID = id
		}
		if len(d.data) == 0 {
			r.ContentType = ""
		}
		if !yield(r) {
			return form.ErrLeft
		}
		if !r.Status.Final() {
			return errMore
		}
		return nil
	})
}

// errMore means that another response follows.
var errMore = errors.New("more follows")

// answers reports whether the agent sends responses: the form has that style, and the broker supports MQTT 5.
func (q *call) answers(ctx context.Context) (bool, error) {
	if !q.hasResponses {
		return false, nil
	}
	s, err := q.client.acquire(q.plan, 0)
	if err != nil {
		return false, err
	}
	defer q.client.release(s)
	w, err := s.connect(ctx)
	return err == nil && w.version() == 5, err
}

func (q *call) errVersion() error {
	return interact.Errorf(interact.NotAllowed, "use a broker with MQTT 5, or a form with mqv:topic",
		"%s requires MQTT 5 for its response, and the broker at %s supports 3.1.1", q.What(), q.host)
}

// publish publishes the body and waits for the acknowledgement of the broker.
func (q *call) publish(ctx context.Context) error {
	pub, err := q.publication()
	if err != nil {
		return err
	}
	pub.qos, pub.retain = q.qos, q.retain
	s, err := q.client.acquire(q.plan, 0)
	if err != nil {
		return err
	}
	defer q.client.release(s)
	w, err := s.connect(ctx)
	if err != nil {
		return err
	}
	if err = w.publish(ctx, pub); q.retain && errors.Is(err, errNoSubscriber) {
		err = nil // the broker retains it
	}
	return s.publishError(ctx, w, q.topic, err)
}

// publication returns the message for the topic of the form.
func (q *call) publication() (*publication, error) {
	pub := &publication{topic: q.topic, qos: 1}
	if q.Message.Type != interact.ReadProperty {
		pub.data, pub.media = q.Body, q.Media
	}
	if len(pub.data)+len(pub.topic)+packet.MaxControl > 256<<20 {
		return nil, interact.Errorf(interact.TooLarge, "send less", "%d bytes are too large for an MQTT packet", len(pub.data))
	}
	if !isProperty(pub.media) {
		return nil, interact.Errorf(interact.Invalid, "send a content type such as application/json",
			"expected a media type as content type")
	}
	pub.add(propHops, strconv.Itoa(int(q.Message.Hops)+1)) // the agent may be another thing of a mesh
	pub.add(propTraceParent, q.Message.TraceParent)        // W3C Trace Context, MQTT
	pub.add(propTraceState, q.Message.TraceState)
	if from := q.Message.From; from != nil { // only for agents of this node
		pub.add(propCaller, from.ID())
		pub.add(propCallerVia, string(from.Via))
		pub.add(propCallerOrg, string(from.Org))
		pub.add(propCallerRoles, strings.Join(from.Roles, " "))
		pub.add(propCallerGroups, from.GroupsText())
		pub.add(propCallerLentBy, from.Lent.Lender())
	}
	return pub, nil
}

// exchange sends a request and calls handle for each response, until handle returns nil or an error other than errMore.
func (q *call) exchange(ctx context.Context, handle func(*delivery) error) error {
	pub, err := q.publication()
	if err != nil {
		return err
	}
	q.addResponseTopic(ctx, pub)
	if q.topic == "" || !packet.IsTopic(pub.responseTopic) {
		return form.Bad(q.Form.Href, "has no topic for requests")
	}
	l := newInbox(q.client.o.Queue)
	l.once = true
	s, w, err := q.client.listen(ctx, q.plan, pub.responseTopic, 1, l, false)
	if err != nil {
		return err
	}
	defer q.client.stopListening(s, pub.responseTopic, l)
	if w.version() != 5 {
		return q.errVersion()
	}
	if err := w.publish(ctx, pub); err != nil {
		return s.publishError(ctx, w, q.topic, err)
	}
	for {
		d, err := l.next(ctx, w.ended())
		if err != nil {
			return q.silent(s.noResponse(ctx, w, err, true))
		}
		if len(d.correlation) > 0 && string(d.correlation) != string(pub.correlation) {
			continue // a response to another request
		}
		if interact.MediaType(d.media) == problem.MediaType && interact.MediaType(q.Form.ResponseType) != problem.MediaType {
			return q.refused(d)
		}
		if err := handle(d); err != errMore {
			return err
		}
	}
}

// addResponseTopic adds the response topic, the expiry and the preferences of a request.
func (q *call) addResponseTopic(ctx context.Context, pub *publication) {
	pub.responseTopic = q.topic + "/reply/" + interact.NewID() // kotlin-wot, MqttProtocolClient
	pub.correlation = []byte(rand.Text())
	if until, ok := ctx.Deadline(); ok {
		pub.expiry = max(time.Until(until), time.Second)
	}
	accept := q.Message.Accept
	if accept == "" && q.Message.Type == interact.InvokeAction {
		accept = q.Form.ResponseType
	}
	follow := ""
	if q.Message.Type == interact.InvokeAction {
		follow = "true"
	}
	pub.add(propAccept, accept)
	pub.add(propFollow, follow)
	pub.add(propKey, q.Message.Key)
}

// silent returns err with the name of the agent, if it is a timeout.
func (q *call) silent(err error) error {
	e := interact.AsError(err)
	if e.Code != interact.Timeout {
		return err
	}
	silent := *e
	silent.Title = q.What() + ": no response in time"
	silent.Hint = "check that the agent runs: MQTT has no response to an unknown or failed request"
	return &silent
}

// noResponse returns the error of a missing message.
func (s *session) noResponse(ctx context.Context, w wire, err error, started bool) error {
	var e *interact.Error
	switch {
	case errors.As(err, &e):
		c := *e
		c.Started = started
		return &c
	case errors.Is(ctx.Err(), context.Canceled):
		return &interact.Error{Code: interact.Cancelled, Started: started, Err: ctx.Err()}
	case ctx.Err() != nil:
		return &interact.Error{Code: interact.Timeout, Started: started, Hint: "allow more time", Next: interact.MoreTime(), Err: ctx.Err()}
	case s.life.Err() != nil:
		return shuttingDown()
	}
	return &interact.Error{Code: interact.Unreachable, Started: started, Title: "the connection to the broker at " + s.key.host +
		" was lost before a response",
		Hint: "check whether the agent has executed it before you repeat it", Err: lostTo(w, err)}
}

// listen subscribes to a filter at the broker of p, on a connection without overlapping filters.
func (c *Client) listen(ctx context.Context, p *plan, filter string, qos byte, l *inbox, again bool) (*session, wire, error) {
	for index := range maxConns {
		s, err := c.acquire(p, index)
		if err != nil {
			return nil, nil, err
		}
		w, err := s.listen(ctx, filter, qos, l, again)
		if err == nil {
			return s, w, nil
		}
		c.stopListening(s, filter, l)
		if err != errOverlap {
			return nil, nil, err
		}
	}
	return nil, nil, interact.Errorf(interact.Overloaded, "end an observation that covers others",
		"%d observations at the broker %s overlap with %s",
		maxConns, p.host, quoted(filter))
}

func (c *Client) stopListening(s *session, filter string, l *inbox) {
	s.leave(filter, l)
	c.release(s)
}

// observe yields the messages on the filters of the form until the consumer leaves.
func (q *call) observe(ctx context.Context, yield func(*interact.Message) bool) error {
	property := q.Message.Type == interact.ObserveProperty || q.Message.Type == interact.ObserveAllProperties
	l := newInbox(q.client.o.Queue)
	// A retained value is a reading. A retained event is from before the subscription: it counts only if the form has mqv:retain.
	l.retained = property || q.retain
	var s *session
	for _, filter := range q.filters {
		var err error
		if s, _, err = q.client.listen(ctx, q.plan, filter, q.qos, l, false); err != nil {
			return err
		}
		defer q.client.stopListening(s, filter, l)
	}
	for {
		d, err := l.next(ctx, nil)
		switch {
		case err != nil && ctx.Err() != nil:
			return s.timeoutError(ctx, "was observed until the deadline")
		case err != nil:
			return err
		case d.cut:
			return q.cut()
		case d.responseTopic != "":
			continue // a request to the agent
		}
		if r := q.news(d, property); r != nil && !yield(r) {
			return form.ErrLeft
		}
	}
}

// news returns the reading or event of a message, or nil.
func (q *call) news(d *delivery, property bool) *interact.Message {
	name := q.Message.Name
	switch q.Message.Type {
	case interact.ObserveAllProperties:
		name = nameIn(d.topic, q.filters, maps.Keys(q.Thing.Properties))
	case interact.SubscribeAllEvents:
		name = nameIn(d.topic, q.filters, maps.Keys(q.Thing.Events))
	}
	media := mediaOf(d.media, q.Form.ResponseType)
	empty := property && len(d.data) == 0 && (td.IsJSON(media) || interact.IsCBOR(media)) // a retained value was deleted
	if name == "" && q.Message.Name == "" || empty {
		q.client.o.Log.Debug("message skipped", "thing", q.Thing.ID, "topic", interact.Clip(d.topic, 200))
		return nil
	}
	r := q.reading(d)
	r.Name = name
	if !property {
		r.Type = interact.Event
	}
	return r
}

// reading returns the PropertyReading of a message.
func (q *call) reading(d *delivery) *interact.Message {
	r := q.Message.Reply(interact.PropertyReading, mediaOf(d.media, q.Form.ResponseType), d.data)
	if id := d.prop(propID); len(id) <= 256 {
		r.ID = id
	}
	if at, err := time.Parse(time.RFC3339Nano, d.prop(propTime)); err == nil {
		r.Time = at
	} else if !d.retained { // the time of a retained value is unknown
		r.Time = time.Now()
	}
	return r
}

// nameIn returns the affordance in a topic that one of the filters covers: the first level of names, escaped or not, at or after the
// wildcard; "" without a match.
func nameIn(topic string, filters []string, names iter.Seq[string]) string {
	levels := strings.Split(topic, "/")
	known := slices.Collect(names)
	for _, filter := range filters {
		if !packet.Matches(filter, topic) {
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
			if name := packet.UnescapeLevel(level); slices.Contains(known, name) {
				return name
			}
		}
	}
	return ""
}
