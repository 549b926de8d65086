package rest

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// together is how many properties are read at once where the agent has no form that reads several.
const together = 4

func (a *agent) read(ctx context.Context, m *interact.Message) (*interact.Message, error) {
	r, err := check(a.thing, m)
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

// write answers with the reading that the agent gave back, or with one without data: most agents answer 204.
func (a *agent) write(ctx context.Context, m *interact.Message) (*interact.Message, error) {
	r, err := check(a.thing, m)
	if err != nil {
		return nil, err
	}
	ans, err := a.client.ask(ctx, r)
	if err != nil {
		return nil, err
	}
	return reading(m, interact.PropertyReading, ans.media, ans.data), nil
}

// readAll asks the thing-level form, else each property that can be read alone.
func (a *agent) readAll(ctx context.Context, m *interact.Message) (*interact.Message, error) {
	if whole := a.whole(m, "readallproperties", nil); whole != nil {
		return a.askWhole(ctx, whole)
	}
	values, err := a.readEach(ctx, m, a.readable())
	if err != nil {
		return nil, err
	}
	return readings(m, values)
}

// readMultiple asks the thing-level form if that has a body to carry the names (TD 1.1 §8.3.1), else each property.
func (a *agent) readMultiple(ctx context.Context, m *interact.Message) (*interact.Message, error) {
	names, err := a.names(m)
	if err != nil {
		return nil, err
	}
	whole := a.whole(m, "readmultipleproperties", m.Data)
	if whole != nil && whole.method() != "GET" {
		return a.askWhole(ctx, whole)
	}
	values, err := a.readEach(ctx, m, names)
	if err != nil {
		return nil, err
	}
	return readings(m, values)
}

// names reads the names that m asks for, each once, and checks them: a name that stands a thousand times in a message must
// not ask the agent a thousand times.
func (a *agent) names(m *interact.Message) ([]string, error) {
	var names []string
	if err := json.Unmarshal(m.Data, &names); err != nil || len(names) == 0 {
		return nil, invalid(m, []td.Issue{{Reason: "an array of property names is needed"}})
	}
	slices.Sort(names)
	names = slices.Compact(names)
	for _, name := range names {
		if _, err := check(a.thing, part(m, interact.ReadProperty, name, nil)); err != nil {
			return nil, err
		}
	}
	return names, nil
}

// readable lists the properties that can be read as part of a whole: with an HTTP form, as JSON or text, without variables.
func (a *agent) readable() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(a.thing.Properties)), func(name string) bool {
		p := a.thing.Properties[name]
		if p.WriteOnly {
			return true
		}
		return !slices.ContainsFunc(p.Forms, func(f td.Form) bool {
			t, err := parseTemplate(f.Href)
			return offers(&f, "readproperty") && embeddable(f.ResponseType) && err == nil && len(t.required()) == 0
		})
	})
}

// embeddable tells whether a value of this media type can stand inside a JSON object.
func embeddable(media string) bool {
	media = mediaType(media)
	return media == "" || td.IsJSON(media) || strings.HasPrefix(media, "text/")
}

func (a *agent) readEach(ctx context.Context, m *interact.Message, names []string) (map[string]json.RawMessage, error) {
	var mu sync.Mutex // guards values
	values := make(map[string]json.RawMessage, len(names))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(together)
	for _, name := range names {
		g.Go(func() error {
			reply, err := a.read(ctx, part(m, interact.ReadProperty, name, nil))
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
	return values, g.Wait()
}

// embed returns the value of a reading as JSON.
func embed(reply *interact.Message) (json.RawMessage, error) {
	switch media := reply.Media(); {
	case len(reply.Data) == 0:
		return json.RawMessage("null"), nil
	case td.IsJSON(media):
		return reply.Data, nil
	case embeddable(media):
		return json.Marshal(string(reply.Data))
	default:
		return nil, interact.Errorf(interact.UnsupportedType, "read it alone",
			"property %q is %s and cannot be read together with others", reply.Name, media)
	}
}

func readings(m *interact.Message, values map[string]json.RawMessage) (*interact.Message, error) {
	data, err := json.Marshal(values)
	if err != nil {
		return nil, &interact.Error{Code: interact.Internal, Err: err}
	}
	return reading(m, interact.PropertyReadings, interact.JSON, data), nil
}

// writeMultiple checks every value before the first one is sent. Without a thing-level form the values are written one
// after the other, by name; an error then says which ones the agent has taken.
func (a *agent) writeMultiple(ctx context.Context, m *interact.Message) (*interact.Message, error) {
	names, parts, err := values(a.thing, m)
	if err != nil {
		return nil, err
	}
	if whole := a.whole(m, "writemultipleproperties", m.Data); whole != nil {
		if _, err := a.client.ask(ctx, whole); err != nil {
			return nil, err
		}
		return reading(m, interact.PropertyReadings, "", nil), nil
	}
	for i, r := range parts {
		if _, err := a.client.ask(ctx, r); err != nil {
			return nil, partly(err, names[i], names[:i])
		}
	}
	return reading(m, interact.PropertyReadings, "", nil), nil
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

// values reads the values by name and checks each of them.
func values(t *td.Thing, m *interact.Message) ([]string, []*request, error) {
	names, parts, issues := []string{}, []*request{}, []td.Issue{}
	fields, err := members(m.Data)
	if err != nil || len(fields) == 0 {
		return nil, nil, invalid(m, []td.Issue{{Reason: "an object of values by property name is needed"}})
	}
	for _, f := range fields {
		r, err := check(t, part(m, interact.WriteProperty, f.Name, f.Raw))
		switch e := interact.AsError(err); {
		case e == nil:
			names, parts = append(names, f.Name), append(parts, r)
		case len(e.Issues) > 0:
			issues = append(issues, below("/"+escapePointer.Replace(f.Name), e.Issues)...)
		default:
			return nil, nil, err
		}
	}
	if len(issues) > 0 {
		return nil, nil, invalid(m, issues)
	}
	return names, parts, nil
}

// part is the message that asks for one property of several.
func part(m *interact.Message, t interact.Type, name string, data []byte) *interact.Message {
	p := *m
	p.Type, p.Name, p.ContentType, p.Data = t, name, "", data
	return &p
}

// whole returns the request of a thing-level operation, or nil if the thing has no such form.
func (a *agent) whole(m *interact.Message, op string, body []byte) *request {
	r := &request{thing: a.thing, message: m, op: op, forms: a.thing.Forms, body: trimJSON(body)}
	var err error
	if r.form, r.secrets, err = a.client.choose(r); err != nil {
		return nil
	}
	return r
}

func (a *agent) askWhole(ctx context.Context, r *request) (*interact.Message, error) {
	ans, err := a.client.ask(ctx, r)
	if err != nil {
		return nil, err
	}
	return reading(r.message, interact.PropertyReadings, ans.media, ans.data), nil
}
