package rest

import (
	"context"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/internal/ratelimit"
	"github.com/lmosd/lmosd/td"
)

const (
	// maxObserved limits the observations of one origin.
	maxObserved = 256
	// maxOutage limits the time in which an observation of an unreachable agent is retried.
	maxOutage = 5 * time.Minute
	// maxBackoff limits the pauses between two tries.
	maxBackoff = 30 * time.Second
)

// An observation is the running interaction of a message whose type is long.
type observation struct {
	client *Client
	r      *request
	yield  func(*interact.Message) bool
	// opened means that the agent accepted the observation: it is retried after a failure.
	opened bool
	// logged means that an unknown name was logged.
	logged bool
	// drop ends the latest request.
	drop context.CancelFunc
}

// A notice is a change or an event as a subprotocol delivers it.
type notice struct {
	id, name string // may be empty
	media    string // empty: that of the form
	data     []byte
}

// observe yields the changes or events. Another form is tried if the agent did not accept this one.
func (r *request) observe(ctx context.Context, yield func(*interact.Message) bool) error {
	leave, err := r.client.admit(r, r.Form)
	if err != nil {
		return err
	}
	defer leave()
	o := &observation{client: r.client, r: r, yield: yield}
	if err = o.follow(ctx); err != nil && !o.opened {
		return form.Next(err)
	}
	return err
}

// follow receives the changes or events over the form.
func (o *observation) follow(ctx context.Context) error {
	switch carrier(o.r.Form) {
	case sse:
		return o.listen(ctx)
	case webhook:
		return o.receive(ctx)
	}
	return o.poll(ctx)
}

// admit counts an observation. The returned function ends the count.
func (c *Client) admit(r *request, f *td.Form) (leave func(), err error) {
	origin := credentials.OriginOf(f.Href)
	if c.observed.Enter(origin) != ratelimit.Entered {
		return nil, interact.Errorf(interact.Overloaded, "end some, or observe all affordances of the Thing together",
			"%s: %d observations of %s are open", r.What(), maxObserved, origin)
	}
	return func() { c.observed.Leave(origin) }, nil
}

// send sends the request over a connection of its own. The prepare function changes the header. The caller calls drop.
func (o *observation) send(ctx context.Context, prepare func(h http.Header)) (*http.Response, error) {
	ctx, o.drop = context.WithCancel(ctx)
	req, err := o.r.build(ctx)
	if err != nil {
		return nil, err
	}
	prepare(req.Header)
	return send(ctx, o.client.lasting, o.r, req)
}

// after requests the events after the event id. An id that is not a valid header is omitted.
func after(h http.Header, id string) {
	if id != "" && form.HeaderOK("Last-Event-Id", id) {
		h.Set("Last-Event-Id", id)
	}
}

// yieldNotice yields the values of a notice. The error is form.ErrLeft if the consumer left, or that of data that violates the
// description.
func (o *observation) yieldNotice(n notice) error {
	if n.name == "message" && !o.observes(n.name) {
		n.name = "" // HTML §9.2.6: the name of events without one
	}
	if n.name != "" && !o.observes(n.name) {
		o.logUnknown(n)
		return nil
	}
	f := *o.r.Form
	f.ResponseType = o.promises()
	data := &answer{data: n.data}
	if err := data.settle(o.r.over(&f), n.media); err != nil {
		return err
	}
	parts, ok := o.parts(n, data)
	if !ok {
		o.logUnknown(n)
	}
	for _, one := range parts {
		if !o.yield(o.reply(n.id, one.Name, data.media, one.Raw)) {
			return form.ErrLeft
		}
	}
	return nil
}

// promises returns the media type of a change or event: JSON if the form has the type of the stream, or CBOR, which a stream of text
// cannot have.
func (o *observation) promises() string {
	media := o.r.Form.ResponseType
	if interact.MediaType(media) == eventsType || interact.IsCBOR(media) && carrier(o.r.Form) == sse {
		return interact.JSON
	}
	return media
}

func (o *observation) reply(id, name, media string, data []byte) *interact.Message {
	t := interact.Event
	if o.r.Message.Type == interact.ObserveProperty || o.r.Message.Type == interact.ObserveAllProperties {
		t = interact.PropertyReading
	}
	reply := reading(o.r.Message, t, media, data)
	reply.ID, reply.Name = id, name
	return reply
}

// parts returns the affordances of a notice with their data: the named or the observed one. An object without a name may have several,
// by name.
func (o *observation) parts(n notice, data *answer) (parts []jcs.Member, ok bool) {
	switch name := o.r.Message.Name; {
	case n.name != "":
		return []jcs.Member{{Name: n.name, Raw: data.data}}, true
	case name != "":
		return []jcs.Member{{Name: name, Raw: data.data}}, true
	case !td.IsJSON(data.media):
		return nil, false
	}
	parts, err := jcs.Members(data.data)
	if err != nil || slices.ContainsFunc(parts, func(f jcs.Member) bool { return !o.observes(f.Name) }) {
		return nil, false
	}
	return parts, true
}

// observes reports whether an affordance of that name is observed.
func (o *observation) observes(name string) bool {
	switch o.r.Message.Type {
	case interact.ObserveAllProperties:
		return o.r.Thing.Properties[name] != nil
	case interact.SubscribeAllEvents:
		return o.r.Thing.Events[name] != nil
	}
	return name == o.r.Message.Name
}

// logUnknown logs the first notice of an unknown affordance.
func (o *observation) logUnknown(n notice) {
	if !o.logged {
		o.client.log.Warn("notification of an unknown affordance ignored", "thing", o.r.Thing.ID, "op", o.r.op,
			"affordance", o.r.Message.Name, "name", interact.Excerpt(n.name, 100))
	}
	o.logged = true
}

// An outage is the time in which an agent is unreachable or fails. It has the pauses between the tries, and the limit.
type outage struct {
	first time.Duration // first pause
	pause time.Duration // previous pause
	since time.Time     // start; zero if there is no outage
}

// next returns a pause, which is longer each time. A part of it is random, so that the consumers of an agent do not return at the
// same time.
func (o *outage) next() time.Duration {
	o.pause = min(max(2*o.pause, o.first), maxBackoff)
	return o.pause - rand.N(o.pause/4+1)
}

// begin records a failed try. recovers records a response: the pauses do not start again before end.
func (o *outage) begin() {
	if o.since.IsZero() {
		o.since = time.Now()
	}
}

func (o *outage) recovers() { o.since = time.Time{} }

func (o *outage) end() { o.since, o.pause = time.Time{}, 0 }

// late reports whether the agent was unreachable for too long.
func (o *outage) late() bool { return !o.since.IsZero() && time.Since(o.since) > maxOutage }

// isTemporary reports whether an error status is temporary.
func isTemporary(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests, http.StatusInternalServerError,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}
