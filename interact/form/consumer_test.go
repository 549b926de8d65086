package form

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// A fake is a Transport that records what it sends: the operation, or the href of the form, and the input.
type fake struct {
	sent    []string
	prepare func(r *Request)
	send    func(r *Request) error
}

func (f *fake) Fits(*td.Form, string) bool { return true }

func (f *fake) Prepare(r *Request) (Exchange, error) {
	if f.prepare != nil {
		f.prepare(r)
	}
	return func(_ context.Context, yield func(*interact.Message) bool) error {
		f.sent = append(f.sent, r.Form.Href+" "+string(r.Body))
		if f.send != nil {
			return f.send(r)
		}
		yield(r.Message.Reply(interact.Acknowledgement, "", nil))
		return nil
	}, nil
}

// do sends m to a Thing with the given members over f, and returns what was sent.
func (f *fake) do(t *testing.T, gatherUpTo int, members string, m *interact.Message) ([]string, error) {
	t.Helper()
	thing, err := td.Parse([]byte(`{"@context": "https://www.w3.org/2022/wot/td/v1.1", "title": "Lamp", "id": "urn:x:lamp",
		"securityDefinitions": {"none": {"scheme": "nosec"}}, "security": "none", ` + members + `}`))
	if err != nil {
		t.Fatal(err)
	}
	c := Consumer{Security: Security{Protocol: "fake"}, Transport: f, GatherUpTo: gatherUpTo}
	_, err = interact.Call(t.Context(), c.Thing(thing), m)
	return f.sent, err
}

// chunks is an input that can be read once.
func chunks(parts ...string) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for len(parts) > 0 {
			next := parts[0]
			if parts = parts[1:]; !yield([]byte(next), nil) {
				return
			}
		}
	}
}

func TestGatheredInputOfWriteAll(t *testing.T) {
	t.Parallel()
	const properties = `"properties": {"a": {"forms": [{"href": "x:a"}]}, "b": {"forms": [{"href": "x:b"}]}}`
	for name, test := range map[string]struct {
		forms string
		want  []string
	}{
		"writemultipleproperties": {`"forms": [{"href": "x:several", "op": "writemultipleproperties"}], `, []string{`x:several {"a":1,"b":2}`}},
		"each property":           {"", []string{"x:a 1", "x:b 2"}},
	} {
		sent, err := new(fake).do(t, 100, test.forms+properties,
			&interact.Message{Type: interact.WriteAllProperties, Chunks: chunks(`{"a":1,`, `"b":2}`)})
		if err != nil || !slices.Equal(sent, test.want) {
			t.Errorf("%s: sent %q, %v", name, sent, err)
		}
	}
}

// TestNextFormAfterChunks: a stream is sent once, because it may have been read.
func TestNextFormAfterChunks(t *testing.T) {
	t.Parallel()
	const action = `"actions": {"say": {"forms": [{"href": "x:1"}, {"href": "x:2"}]}}`
	for name, test := range map[string]struct {
		input iter.Seq2[[]byte, error]
		want  int // forms tried
	}{"data": {nil, 2}, "stream": {chunks("a", "b"), 1}} {
		f := &fake{send: func(*Request) error { return Next(errors.New("refused")) }}
		sent, err := f.do(t, 0, action, &interact.Message{Type: interact.InvokeAction, Name: "say", Chunks: test.input})
		if err == nil || !strings.Contains(err.Error(), "refused") || len(sent) != test.want {
			t.Errorf("%s: tried %q, %v", name, sent, err)
		}
	}
}

func TestRankOfAFilledBody(t *testing.T) {
	t.Parallel()
	const action = `"actions": {"on": {"forms": [{"href": "x:cbor", "contentType": "application/cbor"}, {"href": "x:json"}]}}`
	f := &fake{prepare: func(r *Request) { r.Body = []byte("{}") }}
	sent, err := f.do(t, 0, action, &interact.Message{Type: interact.InvokeAction, Name: "on"})
	if want := []string{"x:json {}"}; err != nil || !slices.Equal(sent, want) {
		t.Errorf("sent %q, %v, want %q", sent, err, want)
	}
}
