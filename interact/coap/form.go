package coap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"unicode/utf8"

	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/coap/messaging"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/scheme"
)

// A request is one message of a consumer to an agent, over one form.
type request struct {
	*form.Request
	client  *Client
	terms   terms
	address address
}

// Fits implements [form.Transport].
func (c *Client) Fits(f *td.Form, _ string) bool { return Supports(f) }

// Prepare implements [form.Transport].
func (c *Client) Prepare(of *form.Request) (form.Exchange, error) {
	r, err := c.request(of)
	switch {
	case err != nil:
		return nil, err
	case r.Message.Type.Long():
		return r.watch, nil
	case r.Message.Type == interact.InvokeAction:
		return r.invoke, nil
	}
	return r.unary, nil
}

func (c *Client) request(of *form.Request) (*request, error) {
	r := &request{Request: of, client: c, terms: termsOf(of.Form, of.Message.Type.Op())}
	// The agent may relay the request (RFC 8768). A form can lower the number of hops, and not raise it.
	if left := uint32(interact.MaxHops - r.Message.Hops); r.terms.hops == nil || *r.terms.hops > left {
		r.terms.hops = &left
	}
	err := r.convert()
	if err == nil {
		r.address, err = expand(r.Form.Href, r.Vars)
	}
	return r, err
}

// convert converts the body for a method with a body (RFC 7252 §5.8, RFC 8132).
func (r *request) convert() error {
	if r.terms.method == codes.GET || r.terms.method == codes.DELETE {
		return r.WithoutBody("a method", "set cov:method to one with a body")
	}
	return r.Convert()
}

// target returns the connection for the request.
func (r *request) target() messaging.Target {
	login := r.Secrets.Login
	return messaging.Target{Scheme: r.address.scheme, Hostport: r.address.hostport(), Host: r.address.host,
		Identity: login.Username, Key: login.Key}
}

// packet returns the request as a message without its body.
func (r *request) packet() *messaging.Packet {
	p := &messaging.Packet{Code: r.terms.method}
	r.address.options(p)
	r.terms.options(p)
	if len(r.Body) > 0 {
		format, ok := messaging.FormatOf(r.Form.ContentType)
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

// call sends the request and returns the complete response. A response of class 4 or 5 is an error.
func (r *request) call(ctx context.Context) (*messaging.Packet, error) {
	p, err := r.exchange(ctx, r.packet(), r.Body)
	if err != nil {
		return nil, err
	}
	if !p.Good() {
		return nil, refused(r.What(), p)
	}
	return p, nil
}

// exchange sends p with body and returns the complete response, of any code.
func (r *request) exchange(ctx context.Context, p *messaging.Packet, body []byte) (*messaging.Packet, error) {
	e, err := r.client.pool.Get(ctx, r.target())
	if err != nil {
		return nil, r.lost(ctx, err)
	}
	defer e.Release()
	k := e.Call(1)
	defer k.End()
	a, err := r.transfer(k).do(ctx, p, body)
	if err != nil {
		return nil, r.lostOn(ctx, e, err)
	}
	return a, nil
}

// lostOn is lost; it also drops the connection to an agent that does not respond.
func (r *request) lostOn(ctx context.Context, e *messaging.Lease, err error) error {
	var l *messaging.Loss
	if errors.As(err, &l) && !l.Acked && !errors.Is(l.Cause, context.Canceled) {
		e.Drop()
	}
	return r.lost(ctx, err)
}

// lost returns the error of a missing response.
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
	what, where := r.What(), form.Plain(r.Form.Href)
	e := form.Ended(ctx, what, r.Form.Href)
	switch {
	case e != nil && (e.Code == interact.Cancelled || l.Acked):
	case errors.As(err, &shake):
		e = interact.Errorf(interact.Unauthenticated, hintCredentials, "%s: no secure connection to %s: %s", what, where,
			reason(shake.Err))
	case errors.Is(err, messaging.ErrReset):
		e = interact.Errorf(interact.AgentFailed, "check the server at that address", "%s: the server at %s rejected the message", what, where)
		e.Remote = true
	default:
		e = form.Unreachable(what, r.Form.Href, reason(err))
	}
	e.Started = l.Started
	return e
}

// reason returns a short cause of a loss.
func reason(err error) string {
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns):
		return "the name " + clip(interact.Readable(dns.Name), 100) + " is unknown"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, messaging.ErrSilent), messaging.IsTimeout(err):
		return "no response in time"
	case messaging.IsRefused(err):
		return messaging.ErrRefused.Error()
	}
	return clip(interact.Readable(err.Error()), 200)
}

// broken returns the error of an invalid response.
func (r *request) broken(format string, args ...any) error {
	return form.Broken(r.What(), fmt.Sprintf(format, args...))
}

// settle returns the media type of a response: that of its content format, else that of the form. Text that is JSON has the type JSON
// if the form declares it: simple agents omit the content format or send 0.
func (r *request) settle(p *messaging.Packet) (data []byte, is string, err error) {
	data, is = p.Payload, r.Form.ResponseType
	if len(data) == 0 {
		return nil, "", nil
	}
	if format, ok := p.Uint(message.ContentFormat); ok {
		declared := r.terms.answered != nil && *r.terms.answered == format || r.terms.accept != nil && *r.terms.accept == format
		switch m := messaging.Media(format); {
		case m == "text/plain" && td.IsJSON(is) && json.Valid(data):
		case m != "":
			is = m
		case !declared:
			is = messaging.Octets
		}
	}
	if td.IsJSON(is) && !(json.Valid(data) && utf8.Valid(data)) {
		begin := clip(interact.Readable(string(data[:min(len(data), 200)])), 100)
		return nil, "", r.broken("expected %s, got %q", interact.MediaType(is), begin)
	}
	return data, is, nil
}
