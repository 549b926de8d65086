package rest

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/td"
)

// A request is a message for an agent, over one form.
type request struct {
	*form.Request
	client *Client
	op     string
	// isPromised means that the description declares a value in the response.
	isPromised bool
	// isRepeatable means that the request may be sent again if the connection broke before a response (safe or idempotent).
	isRepeatable bool
	// synchronous is what the action declares; nil if it declares nothing.
	synchronous *bool

	// feed is the request stream, if any; abort ends the interaction if the stream fails.
	feed  *io.PipeReader
	abort context.CancelCauseFunc
}

// Fits implements [form.Transport].
func (c *Client) Fits(f *td.Form, op string) bool { return fits(f, op) }

// Prepare implements [form.Transport].
func (c *Client) Prepare(of *form.Request) (form.Exchange, error) {
	r, err := c.request(of)
	switch {
	case err != nil:
		return nil, err
	case r.Message.Type.Long():
		return r.observe, nil
	case r.Message.Type == interact.InvokeAction:
		return r.invoke, nil
	}
	return r.single, nil
}

func (c *Client) request(of *form.Request) (*request, error) {
	r := &request{Request: of, client: c, op: of.Message.Type.Op(), isRepeatable: interact.Repeatable(of.Thing, of.Message)}
	r.readDescription()
	isLong := r.Message.Type.Long()
	switch {
	case r.Message.Chunks != nil && r.Message.Type != interact.InvokeAction && r.Message.Type != interact.WriteProperty:
		return nil, interact.Errorf(interact.NotAllowed, "send the input in one message", "%s does not accept a stream", r.What())
	case isLong && carrier(r.Form) == webhook && c.webhook == nil:
		return nil, interact.Errorf(interact.NotAllowed, "add a form with sse, or configure an address for callbacks of this node",
			"%s uses a webhook, and this node has no address for callbacks", r.What())
	case isLong:
		r.Rank += 4 * slices.Index(carriers, carrier(r.Form))
	}
	switch strings.ToLower(r.Form.ContentCoding) {
	case "", "identity", "gzip":
	default:
		return nil, interact.Errorf(interact.NotAllowed, "add a form with gzip or without contentCoding",
			"%s requires the coding %q, which lmosd does not support", r.What(), r.Form.ContentCoding)
	}
	if r.isBodyless() {
		return r, r.WithoutBody(r.method(), "use POST")
	}
	return r, r.Convert()
}

// readDescription reads the declared response in the description. An action with an object as input receives an empty object if there is
// no input.
func (r *request) readDescription() {
	r.isPromised = r.Message.Name != ""
	switch m := r.Message; m.Type {
	case interact.InvokeAction:
		a := r.Thing.Actions[m.Name]
		r.isPromised, r.synchronous = a.Output != nil, a.Synchronous
		if len(r.Body) == 0 && m.Chunks == nil && a.Input.Type() == "object" {
			r.Body = []byte("{}")
		}
	case interact.WriteProperty:
		r.isPromised = false
	case interact.SubscribeEvent:
		r.isPromised = r.Thing.Events[m.Name].Data != nil
	}
}

// over returns a copy of the request for another form.
func (r *request) over(f *td.Form) *request {
	c, of := *r, *r.Request
	of.Form, c.Request = f, &of
	return &c
}

func (r *request) isBodyless() bool {
	method := r.method()
	return method == http.MethodGet || method == http.MethodHead
}
