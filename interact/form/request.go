package form

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// A Request is a message for one form of a Thing.
type Request struct {
	Thing   *td.Thing
	Message *interact.Message
	Form    *td.Form
	Vars    map[string][]string // variables of the address
	Body    []byte              // the rest of the input
	Media   string              // of Body
	Secrets Secrets             // for Form; collected after [Transport.Prepare]
	Rank    int                 // lower is better; Prepare may add to it
}

// What names the affordance and the Thing in errors.
func (r *Request) What() string { return what(r.Thing, r.Message) }

// request splits m into variables and body. It checks what [interact.Check] leaves to the binding: an input of which some members are
// variables of the address, or secrets of this node.
func (c *Consumer) request(t *td.Thing, m *interact.Message) (*Request, error) {
	r := &Request{Thing: t, Message: m, Body: m.Data, Media: m.Media()}
	a := interact.Affordance(t, m)
	switch {
	case !isRequest(m.Type):
		return nil, interact.Errorf(interact.NotAllowed, "ask for one of the operations of TD 1.1 §5.3.4.2; to end a subscription, leave it",
			"%s is not asked like this (message type %d)", label(t), m.Type)
	case m.Type == interact.ReadMultipleProperties:
		_, err := interact.Names(t, m)
		return r, err
	case a == nil && !isWhole(m.Type):
		return r, interact.Check(t, m)
	}
	if err := c.gather(r); err != nil || a == nil || c.NoVariables {
		return r, err
	}
	issues, err := r.split(a)
	if err != nil {
		return nil, err
	}
	if issues = append(issues, missing(a, r.Vars)...); len(issues) > 0 {
		return nil, invalid(m, issues)
	}
	return r, nil
}

// isRequest reports whether messages of a type are sent to a Thing. An observation ends when its consumer leaves.
func isRequest(t interact.Type) bool {
	switch t {
	case interact.UnobserveProperty, interact.UnobserveAllProperties, interact.UnsubscribeEvent, interact.UnsubscribeAllEvents:
		return false
	}
	return t.Op() != ""
}

// gather makes one body of an input that comes in chunks.
func (c *Consumer) gather(r *Request) error {
	if r.Message.Chunks == nil || c.GatherUpTo == 0 {
		return nil
	}
	data := slices.Clone(r.Message.Data)
	for chunk, err := range r.Message.Chunks {
		if err != nil {
			return &interact.Error{Code: interact.Invalid, Title: "the input broke off", Hint: "send it again", Err: err}
		}
		if data = append(data, chunk...); len(data) > c.GatherUpTo {
			return interact.Errorf(interact.TooLarge, "send less", "the input is larger than %d bytes", c.GatherUpTo)
		}
	}
	m := *r.Message
	m.Data, m.Chunks = data, nil
	r.Message, r.Body = &m, data
	return nil
}

// split removes the variables of the address from the body, and checks both parts.
func (r *Request) split(a *td.Affordance) (issues []td.Issue, err error) {
	pointers := bodyPointers(r.Thing, a.Forms)
	isSplit := len(a.URIVariables) > 0 || len(pointers) > 0
	switch streams := r.Message.Chunks != nil; {
	case streams && len(a.URIVariables) == 0: // the body is the beginning of the stream
		return nil, nil
	case streams:
		var rest []byte
		r.Vars, rest, issues = split(TrimJSON(r.Body), a.URIVariables, nil)
		if len(issues) == 0 && len(rest) > 0 && string(rest) != "{}" {
			issues = []td.Issue{{Reason: "beside a stream there may be variables of the address only"}}
		}
		r.Body = nil
		return issues, nil
	}
	if isSplit && interact.IsCBOR(r.Media) {
		if r.Body, r.Media, err = interact.Transcode(r.Body, r.Media, interact.JSON); err != nil {
			return nil, err
		}
	}
	if len(r.Body) > 0 && !td.IsJSON(r.Media) {
		return nil, nil // no schema applies; the conversion checks the media type
	}
	schema := interact.InputSchema(r.Thing, r.Message)
	r.Vars, r.Body, issues = split(TrimJSON(r.Body), a.URIVariables, schema)
	if r.Message.Type == interact.ReadProperty || r.Message.Type == interact.ObserveProperty {
		r.Body = nil
		return issues, nil
	}
	if isSplit {
		issues = append(issues, r.check(schema, pointers)...)
	}
	return issues, nil
}

// check checks the body as the agent will see it: the credentials of this node fill the members at the pointers (in: body, TD 1.1
// §5.3.3).
func (r *Request) check(schema *td.Schema, pointers []string) []td.Issue {
	if len(r.Body) == 0 && r.Message.Type == interact.InvokeAction && schema.Type() == "object" {
		r.Body = []byte("{}")
	}
	value, err := decode(r.Body)
	switch {
	case err != nil:
		return []td.Issue{{Reason: err.Error()}}
	case len(r.Body) > 0:
		for _, p := range pointers {
			place(value, p, "")
		}
		return slices.DeleteFunc(schema.Check(value), func(i td.Issue) bool { return slices.Contains(pointers, i.Pointer) })
	case r.Message.Type == interact.WriteProperty:
		return []td.Issue{{Reason: "a value is needed"}}
	case r.Message.Type == interact.SubscribeEvent, schema.Type() == "":
		return nil
	}
	return []td.Issue{{Reason: "an input is needed: " + schema.Type()}}
}

// Convert converts the body to the media type of the form. Chunks are not converted.
func (r *Request) Convert() error {
	want := r.Form.ContentType
	if r.Message.Chunks != nil {
		if !Alike(want, r.Media) {
			return unsupported(r.Media, want, r.What())
		}
		return nil
	}
	body, err := convert(r.Body, r.Media, want, r.What())
	if err != nil {
		return err
	}
	if r.Body = body; IsStructured(want) || !Alike(r.Media, want) {
		r.Media = want
	}
	return nil
}

// WithoutBody reports an error if the request has a body, which its method cannot carry. An empty object is left out.
func (r *Request) WithoutBody(method, hint string) error {
	if r.Message.Chunks == nil && (len(r.Body) == 0 || string(r.Body) == "{}") {
		r.Body = nil
		return nil
	}
	return interact.Errorf(interact.NotAllowed, "declare the members of the input as uriVariables, or "+hint,
		"%s is asked with %s, which has no body for the input", r.What(), method)
}

func invalid(m *interact.Message, issues []td.Issue) error {
	what := cmp.Or(m.Name, "the input")
	first := issues[0].Reason
	if p := issues[0].Pointer; p != "" {
		first = p + ": " + first
	}
	if n := len(issues) - 1; n > 0 {
		first += fmt.Sprintf(" (and %d more)", n)
	}
	return &interact.Error{Code: interact.Invalid, Title: what + " does not take this: " + first, Issues: issues,
		Hint: "see what it takes", Next: interact.Next(interact.StepShow, m.Thing)}
}

// TrimJSON removes the space that JSON allows around a value (RFC 8259 §2).
func TrimJSON(data []byte) []byte { return bytes.Trim(data, " \t\r\n") }
