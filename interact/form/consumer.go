package form

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/schema"
)

// A Transport is the part of a binding that depends on its protocol. It is safe for concurrent use.
type Transport interface {
	// Fits reports whether the binding can use a form for an operation, regardless of its media types and security.
	Fits(f *td.Form, op string) bool
	// Prepare reads the terms of the protocol in r.Form, without network access. After an error another form is tried. The
	// credentials are collected later: the Exchange finds them in r.
	Prepare(r *Request) (Exchange, error)
}

// An Exchange sends a request and yields the replies in order. It returns nil after the last one, and [ErrLeft] if yield returns
// false. It has released all resources when it returns. After an error of [Next] another form is tried, unless there was a reply.
type Exchange func(ctx context.Context, yield func(*interact.Message) bool) error

// ErrLeft means that the consumer has left the loop over the replies.
var ErrLeft = fmt.Errorf("the consumer left: %w", context.Canceled)

// A nextError is an error after which another form can be used.
type nextError struct{ error }

func (e nextError) Unwrap() error { return e.error }

// Next marks an error after which the same message can be sent over another form.
func Next(err error) error { return nextError{err} }

// A Consumer sends messages to agents over the forms that its transport can use.
type Consumer struct {
	Security
	Transport Transport
	// GatherUpTo is the limit in bytes of an input in chunks, which is joined to one body; 0 passes the chunks to the transport.
	GatherUpTo int
	// LongActions means that an action without a deadline has no time limit, because a lost connection ends it.
	LongActions bool
	// NoVariables means that the addresses have no variables: the input is not split.
	NoVariables bool
}

// Thing returns the agent that t describes. If no form can be used for an operation on all or several affordances, each of them is
// read, written or observed alone ([interact.Composed]).
func (c *Consumer) Thing(t *td.Thing) interact.Thing { return &Agent{c, t} }

// An Agent is a Thing that is reached over forms.
type Agent struct {
	Consumer    *Consumer
	Description *td.Thing
}

// Do implements [interact.Thing].
func (a *Agent) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		if !a.Consumer.LongActions || m.Type != interact.InvokeAction || !m.Deadline.IsZero() {
			limited, cancel := Within(ctx, m)
			defer cancel()
			ctx = limited
		}
		if err := a.Consumer.do(ctx, a.Description, m, yield); err != nil && !errors.Is(err, ErrLeft) {
			yield(nil, err)
		}
	}
}

func (c *Consumer) do(ctx context.Context, t *td.Thing, m *interact.Message, yield func(*interact.Message, error) bool) error {
	if err := CheckHops(m); err != nil {
		return err
	}
	r, err := c.request(t, m)
	if err != nil {
		return err
	}
	m = r.Message // with the chunks in one body
	choices, err := c.choose(r)
	switch {
	case err != nil && m.Type == interact.WriteAllProperties && hasForm(t, interact.WriteMultipleProperties):
		several := *m
		several.Type = interact.WriteMultipleProperties
		return c.do(ctx, t, &several, yield)
	case err != nil && isWhole(m.Type):
		if err := c.checkParts(t, m); err != nil {
			return err
		}
		parts := c.parts(t, m.Type)
		interact.Composed(parts)(c.Thing(parts)).Do(ctx, m)(yield)
		return nil
	case err != nil:
		return err
	}
	var first error
	replied := false
	for _, one := range choices {
		err = one.send(ctx, func(reply *interact.Message) bool {
			replied = true
			return yield(reply, nil)
		})
		next, ok := err.(nextError)
		if ok {
			err = next.error
		}
		if !ok || replied || m.Chunks != nil || ctx.Err() != nil { // a stream can be read once
			return err
		}
		first = cmp.Or(first, err)
	}
	return first
}

// CheckHops rejects a message that has passed too many nodes: the agent may be a Thing of another mesh.
func CheckHops(m *interact.Message) error {
	if m.Hops >= interact.MaxHops {
		return interact.Errorf(interact.Loop, "see which nodes relay to each other", "the message passed %d nodes", m.Hops)
	}
	return nil
}

func hasForm(t *td.Thing, of interact.Type) bool {
	return len(interact.Forms(t, &interact.Message{Type: of})) > 0
}

// isWhole reports whether messages of a type are about all or several affordances, so that they can be composed.
func isWhole(t interact.Type) bool {
	switch t {
	case interact.ReadAllProperties, interact.ReadMultipleProperties, interact.WriteAllProperties, interact.WriteMultipleProperties,
		interact.ObserveAllProperties, interact.SubscribeAllEvents:
		return true
	}
	return false
}

// checkParts checks all values of a write before the first is sent.
func (c *Consumer) checkParts(t *td.Thing, m *interact.Message) error {
	if m.Type != interact.WriteAllProperties && m.Type != interact.WriteMultipleProperties {
		return nil
	}
	data, _, err := interact.Transcode(m.Data, m.Media(), interact.JSON)
	if err != nil {
		return err
	}
	values, err := jcs.Members(data)
	if err != nil {
		return invalid(m, []td.Issue{{Reason: "expected an object of values by property name"}})
	}
	var issues []td.Issue
	for _, v := range values {
		_, err := c.request(t, &interact.Message{Type: interact.WriteProperty, Thing: m.Thing, Name: v.Name, Data: v.Raw})
		switch e := interact.AsError(err); {
		case e == nil:
		case len(e.Issues) == 0:
			return err
		default:
			issues = append(issues, below(schema.Pointer(v.Name), e.Issues)...)
		}
	}
	if len(issues) > 0 {
		return invalid(m, issues)
	}
	return nil
}

// parts returns t without forms of its own. To read all properties, it has those that the binding can read and that can be members of a
// JSON object.
func (c *Consumer) parts(t *td.Thing, of interact.Type) *td.Thing {
	parts := *t
	if parts.Forms = nil; of == interact.ReadAllProperties {
		parts.Properties = maps.Clone(t.Properties)
		maps.DeleteFunc(parts.Properties, func(_ string, p *td.Property) bool { return !slices.ContainsFunc(p.Forms, c.isMember) })
	}
	return &parts
}

func (c *Consumer) isMember(f td.Form) bool {
	return c.Transport.Fits(&f, interact.ReadProperty.Op()) &&
		(IsStructured(f.ResponseType) || strings.HasPrefix(interact.MediaType(f.ResponseType), "text/"))
}

// A choice is a form that a message can be sent over.
type choice struct {
	send Exchange
	rank int
}

// choose returns the forms that fit the message and can be used, best first: those with the lowest rank, else in the order of the
// description. If there is none, the error is that of the first form that fits, else an error of code NotAllowed.
func (c *Consumer) choose(r *Request) ([]choice, error) {
	op, forms := r.Message.Type.Op(), r.Thing.Forms
	if a := interact.Affordance(r.Thing, r.Message); a != nil {
		forms = a.Forms
	}
	var usable []choice
	var first error
	for i := range forms {
		if !slices.Contains(forms[i].Ops, op) || !c.Transport.Fits(&forms[i], op) {
			continue
		}
		one, err := c.prepare(*r, &forms[i])
		switch {
		case err == nil:
			usable = append(usable, one)
		case first == nil:
			first = err
		}
	}
	switch {
	case len(usable) > 0:
		slices.SortStableFunc(usable, func(a, b choice) int { return a.rank - b.rank })
		return usable, nil
	case first != nil:
		return nil, first
	}
	return nil, noForm(c.Protocol, r.What(), op, forms)
}

func (c *Consumer) prepare(r Request, f *td.Form) (choice, error) {
	r.Form = f
	media := r.Media
	x, err := c.Transport.Prepare(&r)
	r.Rank += rankOf(f.ContentType, f.ResponseType, len(r.Body) > 0, media, r.Message.Accept) // Prepare may have filled an empty body
	if err == nil {
		r.Secrets, err = c.collect(r.Thing, f, r.Message)
	}
	return choice{x, r.Rank}, err
}
