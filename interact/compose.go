package interact

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/td"
)

// maxParts limits the parts of one observation or subscription.
const maxParts = 256

// Composed handles operations on all or several affordances by one request per affordance, if d has no form for the operation
// itself (TD 1.1 §5.3.4.2). The parts of a read or write are sent in sequence: the first failure ends it, and the error of a write
// lists the properties written before. Observations and subscriptions run concurrently; the first error ends all.
func Composed(d *td.Thing) Middleware {
	return func(t Thing) Thing {
		return Func(func(ctx context.Context, m *Message) iter.Seq2[*Message, error] {
			compose := composers[m.Type]
			if compose == nil || len(Forms(d, m)) > 0 {
				return t.Do(ctx, m)
			}
			return compose(ctx, d, t, m)
		})
	}
}

type composer func(ctx context.Context, d *td.Thing, t Thing, m *Message) iter.Seq2[*Message, error]

var composers = map[Type]composer{
	ReadAllProperties: readEach, ReadMultipleProperties: readEach, WriteAllProperties: writeEach, WriteMultipleProperties: writeEach,
	ObserveAllProperties: observeEach, SubscribeAllEvents: subscribeEach,
}

// part returns m as a request for one affordance.
func part(m *Message, t Type, name string) *Message {
	p := *m
	p.Type, p.Name, p.Data, p.ContentType, p.Key = t, name, nil, "", "" // the key is that of the whole
	return &p
}

func readEach(ctx context.Context, d *td.Thing, t Thing, m *Message) iter.Seq2[*Message, error] {
	return Unary(func(ctx context.Context, m *Message) (*Message, error) {
		names, err := readable(d, m)
		if err != nil {
			return nil, err
		}
		values := make(map[string]json.RawMessage, len(names))
		for _, name := range names {
			if values[name] != nil {
				continue // a duplicate
			}
			p := part(m, ReadProperty, name)
			p.Accept = JSON // the value becomes a member
			r, err := Call(ctx, t, p)
			if err != nil {
				return nil, fmt.Errorf("read %s: %w", name, err)
			}
			if values[name], err = member(r); err != nil {
				return nil, err
			}
		}
		data, err := json.Marshal(values)
		if err != nil {
			return nil, err
		}
		r := m.Reply(PropertyReadings, JSON, data)
		r.Time = time.Now()
		return r, nil
	}).Do(ctx, m)
}

// readable returns the properties that m reads: those in its data, or all readable ones without variables.
func readable(d *td.Thing, m *Message) ([]string, error) {
	if m.Type == ReadMultipleProperties {
		return Names(d, m)
	}
	var names []string
	for _, name := range slices.Sorted(maps.Keys(d.Properties)) {
		if p := d.Properties[name]; !p.WriteOnly && len(p.URIVariables) == 0 {
			names = append(names, name)
		}
	}
	return names, nil
}

// member returns the data of r as a member of a JSON object: other text as a string.
func member(r *Message) (json.RawMessage, error) {
	data, media, err := Transcode(r.Data, r.Media(), JSON)
	switch {
	case err != nil:
		return nil, err
	case len(data) == 0:
		return json.RawMessage("null"), nil
	case td.IsJSON(media) && json.Valid(data):
		return bytes.TrimSpace(data), nil
	case strings.HasPrefix(media, "text/"):
		return json.Marshal(string(data))
	}
	return nil, Errorf(NotAllowed, "read it alone", "property %s has the type %s, which cannot be a member of a JSON object", r.Name, media)
}

func writeEach(ctx context.Context, d *td.Thing, t Thing, m *Message) iter.Seq2[*Message, error] {
	return Unary(func(ctx context.Context, m *Message) (*Message, error) {
		data, _, err := Transcode(m.Data, m.Media(), JSON)
		if err != nil {
			return nil, err
		}
		var values map[string]json.RawMessage
		if err := json.Unmarshal(data, &values); err != nil {
			return nil, &Error{Code: Invalid, Title: "expected an object of values by name", Hint: hintValues, Err: err}
		}
		var written []string
		for _, name := range slices.Sorted(maps.Keys(values)) {
			p := part(m, WriteProperty, name)
			p.Data, p.ContentType = values[name], JSON
			if _, err := Call(ctx, t, p); err != nil {
				return nil, partly(err, name, written)
			}
			written = append(written, name)
		}
		return m.Reply(Acknowledgement, "", nil), nil
	}).Do(ctx, m)
}

// partly returns err with the properties that were written before it.
func partly(err error, failed string, written []string) error {
	e := *AsError(err)
	e.Title = failed + " was not written: " + cmp.Or(e.Title, e.Code.Title())
	if len(written) > 0 {
		e.Title += "; written before: " + strings.Join(written, ", ")
	}
	return &e
}

func observeEach(ctx context.Context, d *td.Thing, t Thing, m *Message) iter.Seq2[*Message, error] {
	var parts []*Message
	for _, name := range slices.Sorted(maps.Keys(d.Properties)) {
		if p := d.Properties[name]; p.Observable && !p.WriteOnly {
			parts = append(parts, part(m, ObserveProperty, name))
		}
	}
	return merged(ctx, d, t, parts, "observable property")
}

func subscribeEach(ctx context.Context, d *td.Thing, t Thing, m *Message) iter.Seq2[*Message, error] {
	var parts []*Message
	for _, name := range slices.Sorted(maps.Keys(d.Events)) {
		parts = append(parts, part(m, SubscribeEvent, name))
	}
	return merged(ctx, d, t, parts, "event")
}

// merged runs all parts concurrently and yields their replies.
func merged(ctx context.Context, d *td.Thing, t Thing, parts []*Message, what string) iter.Seq2[*Message, error] {
	if len(parts) == 0 || len(parts) > maxParts {
		return Fail(Errorf(NotAllowed, "", "%s has no %s, or more than %d", d.Name(), what, maxParts).Then(StepShow, d.Name()))
	}
	return func(yield func(*Message, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		var work sync.WaitGroup
		defer work.Wait()
		defer cancel()
		type result struct {
			m   *Message
			err error
		}
		all := make(chan result)
		give := func(r result) bool {
			select {
			case all <- r:
				return true
			case <-ctx.Done():
				return false
			}
		}
		for _, p := range parts {
			work.Go(func() {
				for r, err := range t.Do(ctx, p) {
					if !give(result{r, err}) {
						return
					}
				}
				give(result{})
			})
		}
		for left := len(parts); left > 0; {
			select {
			case r := <-all:
				switch {
				case r.err != nil:
					yield(nil, r.err)
					return
				case r.m == nil:
					left--
				case !yield(r.m, nil):
					return
				}
			case <-ctx.Done():
				yield(nil, AsError(context.Cause(ctx)))
				return
			}
		}
	}
}
