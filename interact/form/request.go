package form

import (
	"bytes"
	"cmp"
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

// What returns the name of the affordance and the Thing in errors.
func (r *Request) What() string { return what(r.Thing, r.Message) }

// request splits m into variables and body. It checks an input with members that are variables of the address or secrets of this node,
// which [interact.Check] skips.
func (c *Consumer) request(t *td.Thing, m *interact.Message) (*Request, error) {
	r := &Request{Thing: t, Message: m, Body: m.Data, Media: m.Media()}
	a := interact.Affordance(t, m)
	switch {
	case !isRequest(m.Type):
		return nil, interact.NoOperation(label(t), m.Type)
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

// gather joins an input in chunks to one body.
func (c *Consumer) gather(r *Request) error {
	if r.Message.Chunks == nil || c.GatherUpTo == 0 {
		return nil
	}
	data := slices.Clone(r.Message.Data)
	for chunk, err := range r.Message.Chunks {
		if err != nil {
			return &interact.Error{Code: interact.Invalid, Title: "incomplete input", Hint: "send it again", Err: err}
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
			issues = []td.Issue{{Reason: "expected only variables of the address next to a stream"}}
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

// check checks the body as the agent receives it, with the members at the pointers that the credentials of this node fill (in: body,
// TD 1.1 §5.3.3).
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
		return []td.Issue{{Reason: "expected a value"}}
	case r.Message.Type == interact.SubscribeEvent, schema.Type() == "":
		return nil
	}
	return []td.Issue{{Reason: "expected an input: " + schema.Type()}}
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
	if len(r.Body) > 0 && !Alike(r.Media, want) {
		body, err := convert(r.Body, r.Media, want, r.What())
		if err != nil {
			return err
		}
		r.Body = body
	}
	if IsStructured(want) || !Alike(r.Media, want) {
		r.Media = want
	}
	return nil
}

// WithoutBody returns an error if the request has a body, which its method does not allow. It removes an empty object.
func (r *Request) WithoutBody(method, hint string) error {
	if r.Message.Chunks == nil && (len(r.Body) == 0 || string(r.Body) == "{}") {
		r.Body = nil
		return nil
	}
	return interact.Errorf(interact.NotAllowed, "declare the members of the input as uriVariables, or "+hint,
		"%s uses %s, which has no body for the input", r.What(), method)
}

func invalid(m *interact.Message, issues []td.Issue) error {
	return &interact.Error{Code: interact.Invalid, Title: InvalidTitle(m, issues), Issues: issues,
		Hint: "see the schema of its input", Next: interact.Next(interact.StepShow, m.Thing)}
}

// InvalidTitle returns the title of the error of an invalid input.
func InvalidTitle(m *interact.Message, issues []td.Issue) string {
	return cmp.Or(m.Name, "the input") + " does not accept this: " + interact.FirstIssue(issues)
}

// TrimJSON removes the space that JSON allows around a value (RFC 8259 §2).
func TrimJSON(data []byte) []byte { return bytes.Trim(data, " \t\r\n") }
