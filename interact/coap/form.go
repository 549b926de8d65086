package coap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"unicode/utf8"

	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/coap/messaging"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/scheme"
)

// A request is one message of a consumer on its way to an agent, over one form.
type request struct {
	client  *Client
	thing   *td.Thing
	message *interact.Message
	op      string
	form    *td.Form
	terms   terms
	address address
	target  messaging.Target
	body    []byte
}

// request chooses the form for m and makes a request of it.
func (a *agent) request(m *interact.Message) (*request, error) {
	data, err := a.client.input(m)
	if err != nil {
		return nil, err
	}
	fit, err := form.Choose("CoAP", form.What(a.thing, m), m.Type.Op(), interact.Forms(a.thing, m), Claims, func(f *td.Form) (*request, int, error) {
		r := &request{client: a.client, thing: a.thing, message: m, op: m.Type.Op(), form: f}
		err := r.prepare(data)
		return r, form.Rank(f.ContentType, f.ResponseType, len(r.body) > 0, m.Media(), m.Accept), err
	})
	if err != nil {
		return nil, err
	}
	return fit[0].Plan, nil
}

// input returns the data of m. What comes in chunks is gathered.
func (c *Client) input(m *interact.Message) ([]byte, error) {
	if m.Chunks == nil {
		return m.Data, nil
	}
	data := slices.Clone(m.Data)
	for chunk, err := range m.Chunks {
		if err != nil {
			return nil, &interact.Error{Code: interact.Invalid, Title: "the input broke off", Hint: "send it again", Err: err}
		}
		if data = append(data, chunk...); len(data) > c.limit {
			return nil, interact.Errorf(interact.TooLarge, "send less", "the input is larger than %d bytes", c.limit)
		}
	}
	return data, nil
}

// prepare makes all of the request that needs no connection.
func (r *request) prepare(data []byte) error {
	r.terms = termsOf(r.form, r.op)
	if r.message.Hops >= interact.MaxHops {
		return interact.Errorf(interact.Loop, "see which nodes relay to each other", "the message passed %d nodes", r.message.Hops)
	}
	// The agent may be another thing of a mesh (RFC 8768); a form may want fewer hops, and no more.
	if left := uint32(interact.MaxHops - r.message.Hops); r.terms.hops == nil || *r.terms.hops > left {
		r.terms.hops = &left
	}
	vars, body, err := r.split(data)
	if err != nil {
		return err
	}
	if r.body, err = r.convert(body); err != nil {
		return err
	}
	if r.address, err = expand(r.form.Href, vars); err != nil {
		return err
	}
	r.target = messaging.Target{Scheme: r.address.scheme, Hostport: r.address.hostport(), Host: r.address.host}
	r.target, err = form.Collect(&r.client.security, r.thing, r.form, r.what(), r.target, addKey)
	return err
}

// what names the affordance and the Thing in errors.
func (r *request) what() string { return form.What(r.thing, r.message) }

// packet makes the request as a message, without its body.
func (r *request) packet() *messaging.Packet {
	p := &messaging.Packet{Code: r.terms.method}
	r.address.options(p)
	r.terms.options(p)
	if len(r.body) > 0 {
		format, ok := messaging.FormatOf(r.form.ContentType)
		if r.terms.format != nil {
			format, ok = *r.terms.format, true
		}
		if ok {
			p.AddUint(message.ContentFormat, format)
		}
	}
	if r.terms.szx2 != nil && scheme.Lookup(r.address.scheme).Network == "udp" {
		p.AddUint(message.Block2, messaging.Block{SZX: *r.terms.szx2}.Value())
	}
	return p
}

// takesBody tells the methods whose requests have a payload (RFC 7252 §5.8, RFC 8132).
func takesBody(method codes.Code) bool { return method != codes.GET && method != codes.DELETE }

// ask sends the request and returns the answer, whole. A refusal is an error.
func (r *request) ask(ctx context.Context) (*messaging.Packet, error) {
	p, err := r.exchange(ctx, r.packet(), r.body)
	if err != nil {
		return nil, err
	}
	if !p.Good() {
		return nil, refused(r.what(), p)
	}
	return p, nil
}

// exchange sends p with body and returns the answer, whole, whatever it says.
func (r *request) exchange(ctx context.Context, p *messaging.Packet, body []byte) (*messaging.Packet, error) {
	e, err := r.client.pool.Get(ctx, r.target)
	if err != nil {
		return nil, r.lost(ctx, err)
	}
	defer e.Release()
	k := e.Call(1)
	defer k.End()
	a, err := r.transfer(k).do(ctx, p, body)
	if err != nil {
		return nil, r.gone(ctx, e, err)
	}
	return a, nil
}

// gone is lost, and sees to it that the connection to an agent that is silent is not used again.
func (r *request) gone(ctx context.Context, e *messaging.Lease, err error) error {
	var l *messaging.Loss
	if errors.As(err, &l) && !l.Acked && !errors.Is(l.Cause, context.Canceled) {
		e.Drop()
	}
	return r.lost(ctx, err)
}

// lost says why no answer came.
func (r *request) lost(ctx context.Context, err error) error {
	var known *interact.Error
	if errors.As(err, &known) {
		return known
	}
	var l *messaging.Loss
	if !errors.As(err, &l) {
		l = &messaging.Loss{Cause: err}
	}
	var shake *messaging.HandshakeError
	what, where := r.what(), form.Plain(r.form.Href)
	e := form.Ended(ctx, what, r.form.Href)
	switch {
	case e != nil && (e.Code == interact.Cancelled || l.Acked):
	case errors.As(err, &shake):
		e = interact.Errorf(interact.Unauthenticated, hintCredentials, "%s: no secure connection to %s: %s", what, where, reason(shake.Err))
	case errors.Is(err, messaging.ErrReset):
		e = interact.Errorf(interact.AgentFailed, "see what serves that address", "%s: what is at %s rejected the message", what, where)
		e.Remote = true
	default:
		e = form.Unreachable(what, r.form.Href, reason(err))
	}
	e.Started = l.Started
	return e
}

// reason is a short cause of a loss.
func reason(err error) string {
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns):
		return "the name " + clip(interact.Readable(dns.Name), 100) + " is unknown"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, messaging.ErrSilent), messaging.IsTimeout(err):
		return "nothing answered in time"
	case messaging.IsRefused(err):
		return messaging.ErrRefused.Error()
	}
	return clip(interact.Readable(err.Error()), 200)
}

// broken is an answer that came and cannot be used.
func (r *request) broken(format string, args ...any) error {
	return form.Broken(r.what(), fmt.Sprintf(format, args...))
}

// settle decides the media type of an answer: what its content format says, else what the form promises. What is labelled as text
// and is JSON is JSON where that is promised: simple agents leave the label out or say 0.
func (r *request) settle(p *messaging.Packet) (data []byte, is string, err error) {
	data, is = p.Payload, r.form.ResponseType
	if len(data) == 0 {
		return nil, "", nil
	}
	if format, ok := p.Uint(message.ContentFormat); ok {
		promised := r.terms.answered != nil && *r.terms.answered == format || r.terms.accept != nil && *r.terms.accept == format
		switch m := messaging.Media(format); {
		case m == "text/plain" && td.IsJSON(is) && json.Valid(data):
		case m != "":
			is = m
		case !promised:
			is = messaging.Octets
		}
	}
	if td.IsJSON(is) && !(json.Valid(data) && utf8.Valid(data)) {
		begin := clip(interact.Readable(string(data[:min(len(data), 200)])), 100)
		return nil, "", r.broken("it says that it is %s, and begins with %q", interact.MediaType(is), begin)
	}
	return data, is, nil
}
