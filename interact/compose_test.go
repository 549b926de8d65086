package interact

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/td"
)

// single returns a Thing that handles and logs messages about one affordance.
func single(log *[]string, refuse string) Thing {
	return Func(func(ctx context.Context, m *Message) iter.Seq2[*Message, error] {
		if log != nil {
			*log = append(*log, m.Type.Op()+" "+m.Name+" "+string(m.Data))
		}
		if m.Name == refuse && refuse != "" {
			return Fail(&Error{Code: AgentFailed, Remote: true, Title: "no"})
		}
		switch m.Type {
		case ReadProperty:
			return One(m.Reply(PropertyReading, JSON, []byte(`"`+m.Name+`"`)))
		case WriteProperty:
			return One(m.Reply(Acknowledgement, "", nil))
		case ObserveProperty, SubscribeEvent:
			return func(yield func(*Message, error) bool) {
				if yield(m.Reply(Event, JSON, []byte(`1`)), nil) {
					<-ctx.Done()
				}
			}
		}
		return Fail(errors.New("not asked for one affordance"))
	})
}

func TestComposedReadsAndWritesEach(t *testing.T) {
	t.Parallel()
	d := dimmer(t)
	for name, c := range map[string]struct {
		m     Message
		asked []string
		data  string
	}{
		"read all":     {Message{Type: ReadAllProperties}, []string{"readproperty a/b ", "readproperty level ", "readproperty power "}, `{"a/b":"a/b","level":"level","power":"power"}`},
		"read several": {Message{Type: ReadMultipleProperties, Data: []byte(`["power","level"]`)}, []string{"readproperty power ", "readproperty level "}, `{"level":"level","power":"power"}`},
		"write several": {Message{Type: WriteMultipleProperties, Data: []byte(`{"level": 1, "a/b": "x"}`)},
			[]string{`writeproperty a/b "x"`, `writeproperty level 1`}, ""},
		"write in CBOR": {Message{Type: WriteMultipleProperties, ContentType: CBOR, Data: []byte("\xa1\x65level\x07")}, []string{`writeproperty level 7`}, ""},
		"a name twice":  {Message{Type: ReadMultipleProperties, Data: []byte(`["level","level"]`)}, []string{"readproperty level "}, `{"level":"level"}`},
		"one alone":     {Message{Type: ReadProperty, Name: "level"}, []string{"readproperty level "}, `"level"`},
	} {
		var asked []string
		r, err := Call(t.Context(), Chain(single(&asked, ""), Composed(d)), &c.m)
		if err != nil || !slices.Equal(asked, c.asked) || string(r.Data) != c.data {
			t.Errorf("%s: got %s, %v after %q", name, r.Data, err, asked)
		}
	}
}

func TestComposedListsWrittenProperties(t *testing.T) {
	t.Parallel()
	_, err := Call(t.Context(), Chain(single(nil, "level"), Composed(dimmer(t))), &Message{Type: WriteMultipleProperties, Data: []byte(`{"level":1,"a/b":"x"}`)})
	if e := AsError(err); e.Code != AgentFailed || !strings.Contains(e.Title, "level was not written") || !strings.Contains(e.Title, "written before: a/b") {
		t.Errorf("got %v", err)
	}
	for _, bad := range []string{`[]`, `{`} {
		if _, err := Call(t.Context(), Chain(single(nil, ""), Composed(dimmer(t))), &Message{Type: WriteMultipleProperties, Data: []byte(bad)}); AsError(err).Code != Invalid {
			t.Errorf("%s: got %v", bad, err)
		}
	}
}

func TestComposedKeepsForms(t *testing.T) {
	t.Parallel()
	d := dimmer(t)
	d.Forms = []td.Form{{Href: "http://lamp/all", Ops: []string{"readallproperties"}}}
	asked := ""
	all := Unary(func(_ context.Context, m *Message) (*Message, error) {
		asked = m.Type.Op()
		return m.Reply(PropertyReadings, "", nil), nil
	})
	if _, err := Call(t.Context(), Chain(all, Composed(d)), &Message{Type: ReadAllProperties}); err != nil || asked != "readallproperties" {
		t.Errorf("the agent received %q: %v", asked, err)
	}
}

func TestComposedMergesSubscriptions(t *testing.T) {
	t.Parallel()
	d := dimmer(t)
	var names []string
	for r, err := range Chain(single(nil, ""), Composed(d)).Do(t.Context(), &Message{Type: SubscribeAllEvents}) {
		if err != nil {
			t.Fatal(err)
		}
		if names = append(names, r.Name); len(names) == 2 {
			break
		}
	}
	if slices.Sort(names); !slices.Equal(names, []string{"cold", "hot"}) {
		t.Errorf("got %v", names)
	}
	for r, err := range Chain(single(nil, ""), Composed(d)).Do(t.Context(), &Message{Type: ObserveAllProperties}) {
		if err != nil || r.Name != "level" {
			t.Errorf("only level can be observed: got %v, %v", r, err)
		}
		break
	}
	var last error
	for _, err := range Chain(single(nil, "cold"), Composed(d)).Do(t.Context(), &Message{Type: SubscribeAllEvents}) {
		last = err
	}
	if AsError(last).Code != AgentFailed {
		t.Errorf("the first error does not end all: got %v", last)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, err := range Chain(single(nil, ""), Composed(d)).Do(ctx, &Message{Type: SubscribeAllEvents}) {
		last = err
		cancel()
	}
	if AsError(last).Code != Cancelled {
		t.Errorf("a consumer that has left: got %v", last)
	}
	if _, err := Call(t.Context(), Chain(single(nil, ""), Composed(&td.Thing{})), &Message{Type: SubscribeAllEvents}); AsError(err).Code != NotAllowed {
		t.Errorf("no events: got %v", err)
	}
}
