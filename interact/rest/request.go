package rest

import (
	"context"
	"io"
	"slices"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/td"
)

// A request is a message taken apart, ready to be sent by one of the forms.
type request struct {
	thing   *td.Thing
	message *interact.Message
	op      string
	forms   []td.Form
	vars    map[string][]string // variables of the address
	body    []byte              // what is left of the input
	media   string              // of body
	// promised tells that the description promises a value in the answer.
	promised bool
	// repeatable tells that a request may be sent again if the connection broke before an answer (safe or idempotent).
	repeatable bool
	// synchronous is what the action says of itself; nil if it says nothing.
	synchronous *bool

	// Chosen by [Client.choose].
	form    *td.Form
	secrets form.Secrets
	// feed is the request stream on its way, if there is one; abort ends the interaction if it breaks.
	feed  *io.PipeReader
	abort context.CancelCauseFunc
}

// plan takes m apart: the affordance's forms, the variables of the address, the body. [interact.Check] has found m good before;
// what it cannot see is checked here: an input of which some members stand in the address, or are this node's to give.
func plan(t *td.Thing, m *interact.Message) (*request, error) {
	a := interact.Affordance(t, m)
	if a == nil {
		return nil, strange(t, m)
	}
	r := &request{thing: t, message: m, op: m.Type.Op(), forms: a.Forms, repeatable: interact.Repeatable(t, m)}
	if err := r.takeApart(a, r.expects()); err != nil {
		return r, err
	}
	if issues := form.Missing(a, r.vars); len(issues) > 0 {
		return r, invalid(m, issues)
	}
	return r, nil
}

// takeApart takes the data of the message apart, by the kind of request that it is.
func (r *request) takeApart(a *td.Affordance, input *td.Schema) error {
	switch m := r.message; {
	case m.Chunks != nil:
		return r.takeStream(a.URIVariables)
	case m.Type == interact.ReadProperty || m.Type == interact.ObserveProperty:
		return r.takeVariables(a.URIVariables)
	}
	return r.take(a.URIVariables, input)
}

// strange is the error of a message whose affordance is not there.
func strange(t *td.Thing, m *interact.Message) error {
	if err := interact.Check(t, m); err != nil {
		return err
	}
	return interact.Errorf(interact.NotAllowed, "lmosd show "+interact.Quote(m.Thing), "%s offers no %s over HTTP",
		form.Label(t), m.Type.Op())
}

// expects notes what the description says of the answer, and returns the schema of the input.
func (r *request) expects() *td.Schema {
	name := r.message.Name
	switch r.message.Type {
	case interact.InvokeAction:
		a := r.thing.Actions[name]
		r.promised, r.synchronous = a.Output != nil, a.Synchronous
		return a.Input
	case interact.WriteProperty:
		return r.thing.Properties[name].Schema
	case interact.SubscribeEvent:
		e := r.thing.Events[name]
		r.promised = e.Data != nil
		return e.Subscription
	}
	r.promised = true
	return nil
}

// take splits the message's data into variables and body. Where it does so, it checks the parts.
func (r *request) take(vars map[string]*td.Schema, input *td.Schema) error {
	data, apart, err := r.input(vars)
	if err != nil {
		return err
	}
	if len(data) > 0 && !td.IsJSON(r.media) {
		r.body = data // no schema speaks about it; choose looks at its media type
		return nil
	}
	given, rest, issues := form.Split(trimJSON(data), vars, input)
	r.vars, r.body = given, rest
	if len(rest) == 0 && r.message.Type == interact.InvokeAction && input.Type() == "object" {
		r.body = []byte("{}") // all its members are optional
	}
	if apart {
		issues = append(issues, r.checkRest(rest, input)...)
	}
	if len(issues) > 0 {
		return invalid(r.message, issues)
	}
	return nil
}

// input returns the message's data, and whether it is to be taken apart. What is, must be JSON: CBOR becomes it.
func (r *request) input(vars map[string]*td.Schema) (data []byte, apart bool, err error) {
	data, r.media = r.message.Data, r.message.Media()
	if apart = len(vars) > 0 || len(form.BodyPointers(r.thing, r.forms)) > 0; apart && interact.IsCBOR(r.media) {
		data, r.media, err = interact.Transcode(data, r.media, interact.JSON)
	}
	return data, apart, err
}

// checkRest checks what is left of an input that was taken apart.
func (r *request) checkRest(rest []byte, input *td.Schema) []td.Issue {
	value, err := form.Decode(rest)
	switch {
	case err != nil:
		return []td.Issue{{Reason: err.Error()}}
	case len(rest) > 0:
		return r.withhold(value, input)
	case r.message.Type == interact.WriteProperty:
		return []td.Issue{{Reason: "a value is needed"}}
	case r.message.Type == interact.SubscribeEvent, input.Type() == "":
		return nil
	case input.Type() == "object":
		return r.withhold(map[string]any{}, input)
	}
	return []td.Issue{{Reason: "an input is needed: " + input.Type()}}
}

// takeVariables is take for an operation without a body.
func (r *request) takeVariables(vars map[string]*td.Schema) error {
	data, _, err := r.input(vars)
	if err != nil {
		return err
	}
	var issues []td.Issue
	if r.vars, _, issues = form.Split(trimJSON(data), vars, nil); len(issues) > 0 {
		return invalid(r.message, issues)
	}
	return nil
}

// takeStream is take for a request stream: its content type speaks of the chunks. The data beside it is the beginning of the
// stream, or JSON that holds the variables of the address if there are any.
func (r *request) takeStream(vars map[string]*td.Schema) error {
	if r.media = r.message.Media(); len(vars) == 0 {
		r.body = r.message.Data
		return nil
	}
	given, rest, issues := form.Split(trimJSON(r.message.Data), vars, nil)
	r.vars = given
	if len(issues) == 0 && len(rest) > 0 && string(rest) != "{}" {
		issues = []td.Issue{{Reason: "beside a stream there may be variables of the address only"}}
	}
	if len(issues) > 0 {
		return invalid(r.message, issues)
	}
	return nil
}

// withhold checks value as the agent will see it: members that this node's credentials fill (in: body, TD 1.1 §5.3.3)
// are not the consumer's to give.
func (r *request) withhold(value any, input *td.Schema) []td.Issue {
	pointers := form.BodyPointers(r.thing, r.forms)
	for _, p := range pointers {
		form.Place(value, p, "")
	}
	return slices.DeleteFunc(input.Check(value), func(i td.Issue) bool { return slices.Contains(pointers, i.Pointer) })
}

// what names the affordance and the Thing in errors.
func (r *request) what() string { return form.What(r.thing, r.message) }
