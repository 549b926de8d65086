package rest

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/td"
)

// together is how many properties are read at once where the agent has no form that reads several.
const together = 4

// single reads or writes one property. A writing answers with the reading that the agent gave back, or with one without data:
// most agents answer 204.
func (a *agent) single(ctx context.Context, m *interact.Message) (*interact.Message, error) {
	r, err := plan(a.thing, m)
	if err != nil {
		return nil, err
	}
	ans, err := a.client.ask(ctx, r)
	if err != nil {
		return nil, err
	}
	return reading(m, interact.PropertyReading, ans.media, ans.data), nil
}

func reading(m *interact.Message, t interact.Type, media string, data []byte) *interact.Message {
	reply := m.Reply(t, media, data)
	reply.Time = time.Now().UTC()
	return reply
}

// readAll asks the thing-level form, else each property that can be read alone.
func (a *agent) readAll(ctx context.Context, m *interact.Message) (*interact.Message, error) {
	if whole := a.whole(m, "readallproperties"); whole != nil {
		return a.askWhole(ctx, whole)
	}
	return a.readEach(ctx, m, a.readable())
}

// readMultiple asks the thing-level form if that has a body to carry the names (TD 1.1 §8.3.1), else each property.
func (a *agent) readMultiple(ctx context.Context, m *interact.Message) (*interact.Message, error) {
	names, err := interact.Names(a.thing, m)
	if err != nil {
		return nil, err
	}
	if whole := a.whole(m, "readmultipleproperties"); whole != nil && whole.method() != http.MethodGet {
		return a.askWhole(ctx, whole)
	}
	slices.Sort(names) // a name that stands a thousand times in a message must not ask the agent a thousand times
	return a.readEach(ctx, m, slices.Compact(names))
}

// readable lists the properties that can be read as part of a whole: with an HTTP form, as JSON, CBOR or text, without variables.
func (a *agent) readable() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(a.thing.Properties)), func(name string) bool {
		p := a.thing.Properties[name]
		return p.WriteOnly || !slices.ContainsFunc(p.Forms, func(f td.Form) bool {
			return alone(&f, "readproperty") && embeddable(f.ResponseType)
		})
	})
}

// alone tells whether op can be asked by the form without variables.
func alone(f *td.Form, op string) bool {
	return offers(f, op) && !form.NeedsVariables(f.Href)
}

// embeddable tells whether a value of this media type can stand inside a JSON object.
func embeddable(media string) bool {
	media = interact.MediaType(media)
	return form.IsStructured(media) || strings.HasPrefix(media, "text/")
}

// readEach reads the properties one by one.
func (a *agent) readEach(ctx context.Context, m *interact.Message, names []string) (*interact.Message, error) {
	var mu sync.Mutex // guards values
	values := make(map[string]json.RawMessage, len(names))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(together)
	for _, name := range names {
		g.Go(func() error {
			reply, err := a.single(ctx, part(m, interact.ReadProperty, name, nil))
			if err != nil {
				return err
			}
			value, err := embed(reply)
			mu.Lock()
			defer mu.Unlock()
			values[name] = value
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	data, err := json.Marshal(values)
	if err != nil {
		return nil, &interact.Error{Code: interact.Internal, Err: err}
	}
	return reading(m, interact.PropertyReadings, interact.JSON, data), nil
}

// embed returns the value of a reading as JSON.
func embed(reply *interact.Message) (json.RawMessage, error) {
	switch media := reply.Media(); {
	case len(reply.Data) == 0:
		return json.RawMessage("null"), nil
	case form.IsStructured(media):
		value, _, err := interact.Transcode(reply.Data, media, interact.JSON)
		return value, err
	case embeddable(media):
		return json.Marshal(string(reply.Data))
	default:
		return nil, interact.Errorf(interact.UnsupportedType, "read it alone",
			"property %q is %s and cannot be read together with others", reply.Name, media)
	}
}

// writeMultiple writes several values, or all. Without a thing-level form the values are written one after the other, by name,
// and taken apart before the first is sent; an error then says which ones the agent has taken.
func (a *agent) writeMultiple(ctx context.Context, m *interact.Message) (*interact.Message, error) {
	ops := []string{"writemultipleproperties"}
	if m.Type == interact.WriteAllProperties {
		ops = []string{"writeallproperties", "writemultipleproperties"}
	}
	for _, op := range ops {
		if whole := a.whole(m, op); whole != nil {
			return a.askWhole(ctx, whole)
		}
	}
	names, parts, err := a.parts(m)
	if err != nil {
		return nil, err
	}
	for i, r := range parts {
		if _, err := a.client.ask(ctx, r); err != nil {
			return nil, partly(err, names[i], names[:i])
		}
	}
	return reading(m, interact.PropertyReadings, "", nil), nil
}

// parts takes an object of values apart into requests that write one each.
func (a *agent) parts(m *interact.Message) (names []string, parts []*request, err error) {
	data, _, err := interact.Transcode(m.Data, m.Media(), interact.JSON)
	if err != nil {
		return nil, nil, err
	}
	fields, err := jcs.Members(data)
	if err != nil {
		return nil, nil, invalid(m, []td.Issue{{Reason: "an object of values by property name is needed"}})
	}
	var issues []td.Issue
	for _, f := range fields {
		r, err := plan(a.thing, part(m, interact.WriteProperty, f.Name, f.Raw))
		switch e := interact.AsError(err); {
		case e == nil:
			names, parts = append(names, f.Name), append(parts, r)
		case len(e.Issues) > 0:
			issues = append(issues, form.Below("/"+form.EscapePointer.Replace(f.Name), e.Issues)...)
		default:
			return nil, nil, err
		}
	}
	if len(issues) > 0 {
		return nil, nil, invalid(m, issues)
	}
	return names, parts, nil
}

func partly(err error, failed string, written []string) error {
	e := *interact.AsError(err)
	done := "nothing was written"
	if len(written) > 0 {
		done = "written before: " + strings.Join(written, ", ")
	}
	e.Title = "write " + failed + " (" + done + "): " + e.Title
	return &e
}

// part is the message that asks for one property of several.
func part(m *interact.Message, t interact.Type, name string, data []byte) *interact.Message {
	p := *m
	p.Type, p.Name, p.ContentType, p.Data, p.Accept = t, name, "", data, interact.JSON
	p.Key, p.After = "", "" // they speak of the whole
	return &p
}

// whole returns the request of a thing-level operation, or nil if the thing has no such form that can be used.
func (a *agent) whole(m *interact.Message, op string) *request {
	r := &request{thing: a.thing, message: m, op: op, forms: a.thing.Forms, body: m.Data, media: m.Media(),
		repeatable: interact.Repeatable(a.thing, m)}
	if td.IsJSON(r.media) {
		r.body = trimJSON(r.body)
	}
	if err := a.client.choose(r); err != nil {
		return nil
	}
	return r
}

// askWhole asks by a thing-level form.
func (a *agent) askWhole(ctx context.Context, r *request) (*interact.Message, error) {
	ans, err := a.client.ask(ctx, r)
	if err != nil {
		return nil, err
	}
	return reading(r.message, interact.PropertyReadings, ans.media, ans.data), nil
}
