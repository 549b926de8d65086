package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/testmain"
	"github.com/lmosd/lmosd/td"
)

func TestMain(m *testing.M) { testmain.Run(m) }

type question struct {
	Text  string   `json:"text" desc:"what to say"`
	Times *int     `json:"times"`
	Tags  []string `json:"tags,omitempty"`
	Skip  int      `json:"-"`
}

// testParts is an agent with a part of each kind.
func testParts() (*State[string], *Event[int], []Part) {
	mood, said := NewState("mood", "calm", func(v string) error {
		if v == "dead" {
			return errors.New("it is resting")
		}
		return nil
	}), NewEvent[int]("said")
	count := 0
	return mood, said, []Part{mood, said,
		Action("say", func(_ context.Context, q question) (string, error) {
			count += len(q.Text)
			said.Emit(count)
			return strings.Repeat(q.Text, max(1, *cmp.Or(q.Times, new(int)))), nil
		}, Doc("Says it again."), Safe()),
		Stream("spell", func(_ context.Context, word string) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				for _, r := range word {
					if r == '!' {
						yield("", errors.New("it does not shout"))
						return
					}
					if !yield(string(r), nil) {
						return
					}
				}
			}
		}),
		Action("fall", func(context.Context, None) (None, error) { panic("off the perch") }, Idempotent()),
		Action("wait", func(ctx context.Context, _ None) (None, error) { <-ctx.Done(); return None{}, ctx.Err() }, Async()),
		Property("age", func(context.Context) (int, error) { return 7, nil }, nil),
		Property("name", func(context.Context) (string, error) { return "Polly", nil },
			func(context.Context, string) error { return nil }),
	}
}

const owner = did.DID("did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH")

func described(t *testing.T, raw []byte) *td.Thing {
	t.Helper()
	draft, err := td.Draft(raw)
	if err != nil {
		t.Fatal(err)
	}
	d, err := td.Complete(draft, owner)
	if err != nil {
		t.Fatalf("%v\n%s", err, raw)
	}
	return d
}

func TestDescriptionFollowsTheTypes(t *testing.T) {
	t.Parallel()
	_, _, parts := testParts()
	raw, _, err := New(Agent{Name: "parrot", Description: "It talks.", Version: "1.2.3", Capabilities: []string{"urn:example:say"},
		Tool: true}, parts...)
	if err != nil {
		t.Fatal(err)
	}
	d := described(t, raw)
	if d.Title != "parrot" || d.Description != "It talks." || d.Version != "1.2.3" || d.Types[0] != "lmos:Tool" ||
		d.Capabilities[0].ID != "urn:example:say" {
		t.Errorf("got %s", raw)
	}
	say := d.Actions["say"]
	if !say.Safe || say.Description != "Says it again." || say.Output.Type() != "string" ||
		!slices.Equal(say.Input.Required(), []string{"text"}) ||
		!slices.Equal(say.Input.Properties(), []string{"tags", "text", "times"}) {
		t.Errorf("say is %s", raw)
	}
	if a := d.Actions["fall"]; !a.Idempotent || a.Safe {
		t.Errorf("fall is %+v", a)
	}
	if a := d.Actions["wait"]; a.Synchronous == nil || *a.Synchronous || a.Input != nil || a.Output != nil {
		t.Errorf("wait is %+v", a)
	}
	if p := d.Properties["age"]; !p.ReadOnly || p.Observable || p.Type() != "integer" {
		t.Errorf("age is %+v", p)
	}
	if p := d.Properties["mood"]; p.ReadOnly || !p.Observable {
		t.Errorf("mood is %+v", p)
	}
	if d.Events["said"].Data.Type() != "integer" || d.Actions["spell"].Output != nil {
		t.Errorf("got %s", raw)
	}
}

func TestSchemas(t *testing.T) {
	t.Parallel()
	type tree struct {
		Left *tree `json:"left"`
	}
	type listed struct {
		A []bool `json:"a"`
	}
	type optional struct {
		A []bool `json:"a,omitempty"`
		B *bool  `json:"b,omitempty"`
	}
	type ordered struct {
		Z string `json:"z"`
		A bool   `json:"a,omitempty"`
	}
	type embedded struct {
		question
		Named question `json:"named"`
		Skip  int      `json:"-"`
		Plain bool
	}
	for want, got := range map[string]map[string]any{
		`{"type":"string"}`:                            schemaFor[string](),
		`{"type":"integer"}`:                           schemaFor[int64](),
		`{"minimum":0,"type":"integer"}`:               schemaFor[uint8](),
		`{"type":"number"}`:                            schemaFor[float32](),
		`{"items":{"type":"boolean"},"type":"array"}`:  schemaFor[[]bool](),
		`{"contentEncoding":"base64","type":"string"}`: schemaFor[[]byte](),
		`{"items":{"type":"string"},"maxItems":2,"minItems":2,"type":"array"}`: schemaFor[[2]string](),
		`{"type":"object"}`:                      schemaFor[map[string]int](),
		`{"format":"date-time","type":"string"}`: schemaFor[time.Time](),
		`{}`:                                     schemaFor[any](),
		`null`:                                   schemaFor[None](),
		`{"oneOf":[{"type":"string"},{"type":"null"}]}`: schemaFor[*string](),
		`{"properties":{"a":{"oneOf":[{"items":{"type":"boolean"},"type":"array"},{"type":"null"}]}},"required":["a"],` +
			`"type":"object"}`: schemaFor[listed](),
		`{"properties":{"a":{"items":{"type":"boolean"},"type":"array"},"b":{"type":"boolean"}},"type":"object"}`: schemaFor[optional](),
		`{"properties":{"z":{"type":"string"},"a":{"type":"boolean"}},"required":["z"],"type":"object"}`:          schemaFor[ordered](),
	} {
		if b, _ := json.Marshal(got); string(b) != want {
			t.Errorf("got %s, want %s", b, want)
		}
	}
	if b, err := json.Marshal(schemaFor[tree]()); err != nil || len(b) > 2000 {
		t.Errorf("a recursive type: %d bytes, %v", len(b), err)
	}
	names := schemaFor[embedded]()["properties"].(members).names
	if !slices.Equal(names, []string{"text", "times", "tags", "named", "Plain"}) {
		t.Errorf("the members are %q", names)
	}
}

func TestRepliesAreChecked(t *testing.T) {
	t.Parallel()
	_, _, parts := testParts()
	raw, thing, err := New(Agent{Name: "parrot"}, parts...)
	if err != nil {
		t.Fatal(err)
	}
	d := described(t, raw)
	thing = interact.Chain(thing, interact.Checked(d), interact.CheckedReplies(d))
	for name, c := range map[string]struct {
		m    interact.Message
		want string
		code interact.Code
		text string
	}{
		"an action": {interact.Message{Type: interact.InvokeAction, Name: "say",
			Data: []byte(`{"text":"ho","times":2}`)}, `"hoho"`, 0, ""},
		"in CBOR": {interact.Message{Type: interact.InvokeAction, Name: "say", ContentType: interact.CBOR,
			Data: []byte("\xa1\x64text\x62hi")}, `"hi"`, 0, ""},
		"a wrong input": {interact.Message{Type: interact.InvokeAction, Name: "say",
			Data: []byte(`{"text":1}`)}, "", interact.Invalid, ""},
		"a panic":   {interact.Message{Type: interact.InvokeAction, Name: "fall"}, "", interact.AgentFailed, "off the perch"},
		"a reading": {interact.Message{Type: interact.ReadProperty, Name: "age"}, `7`, 0, ""},
		"a writing": {interact.Message{Type: interact.WriteProperty, Name: "name", Data: []byte(`"Jack"`)}, ``, 0, ""},
		"a refused writing": {interact.Message{Type: interact.WriteProperty, Name: "mood",
			Data: []byte(`"dead"`)}, "", interact.AgentFailed, "resting"},
		"all":                      {interact.Message{Type: interact.ReadAllProperties}, `{"age":7,"mood":"calm","name":"Polly"}`, 0, ""},
		"some":                     {interact.Message{Type: interact.ReadMultipleProperties, Data: []byte(`["age"]`)}, `{"age":7}`, 0, ""},
		"writing some":             {interact.Message{Type: interact.WriteMultipleProperties, Data: []byte(`{"name":"Jack"}`)}, ``, 0, ""},
		"unknown property":         {interact.Message{Type: interact.ReadProperty, Name: "x"}, "", interact.NoAffordance, "x"},
		"an operation of the host": {interact.Message{Type: interact.QueryAction, Name: "say"}, "", interact.NotAllowed, ""},
	} {
		r, err := interact.Call(t.Context(), thing, &c.m)
		if c.code != 0 {
			if e := interact.AsError(err); e == nil || e.Code != c.code || !strings.Contains(e.Error(), c.text) {
				t.Errorf("%s: got %v, want %v with %q", name, err, c.code, c.text)
			}
			continue
		}
		if err != nil || string(r.Data) != c.want {
			t.Errorf("%s: got %v, %v, want %s", name, r, err, c.want)
		}
	}
}

// The schema of a Go type accepts the nil and zero values of the type.
func TestSchemaAcceptsNil(t *testing.T) {
	t.Parallel()
	type found struct {
		Names []string          `json:"names"`
		By    map[string]*found `json:"by"`
		Next  *found            `json:"next"`
		Raw   json.RawMessage   `json:"raw"`
		Bytes []byte            `json:"bytes"`
	}
	raw, thing, err := New(Agent{Name: "x"},
		Action("struct", func(context.Context, None) (found, error) { return found{}, nil }),
		Action("list", func(context.Context, None) ([]string, error) { return nil, nil }),
		Action("map", func(context.Context, None) (map[string]int, error) { return nil, nil }),
		Action("pointer", func(context.Context, None) (*found, error) { return nil, nil }),
		Action("raw", func(context.Context, None) (json.RawMessage, error) { return nil, nil }),
		NewState[[]int]("state", nil, nil))
	if err != nil {
		t.Fatal(err)
	}
	thing = interact.CheckedReplies(described(t, raw))(thing)
	for name, want := range map[string]string{"struct": `{"names":null,"by":null,"next":null,"raw":null,"bytes":null}`,
		"list": "[]", "map": "{}", "pointer": "null", "raw": "null"} {
		r, err := interact.Call(t.Context(), thing, &interact.Message{Type: interact.InvokeAction, Name: name})
		if err != nil || string(r.Data) != want {
			t.Errorf("%s: got %v, %v, want %s", name, r, err, want)
		}
	}
	r, err := interact.Call(t.Context(), thing, &interact.Message{Type: interact.ReadProperty, Name: "state"})
	if err != nil || string(r.Data) != "[]" {
		t.Errorf("the state: got %v, %v", r, err)
	}
}

func TestStreamRepliesInParts(t *testing.T) {
	t.Parallel()
	_, _, parts := testParts()
	_, thing, err := New(Agent{Name: "parrot"}, parts...)
	if err != nil {
		t.Fatal(err)
	}
	spell := func(word string, enough int) (states string, last error) {
		data, _ := json.Marshal(word)
		n := 0
		for r, err := range thing.Do(t.Context(), &interact.Message{Type: interact.InvokeAction, Name: "spell", Data: data}) {
			if err != nil {
				return states, err
			}
			states += fmt.Sprintf("%s %s;", r.Status, r.Data)
			if n++; n == enough {
				break
			}
		}
		return states, nil
	}
	if states, err := spell("ab", -1); err != nil || states != `running "a";running "b";completed ;` {
		t.Errorf("got %q, %v", states, err)
	}
	if states, err := spell("a!", -1); interact.AsError(err).Code != interact.AgentFailed || states != `running "a";` {
		t.Errorf("got %q, %v", states, err)
	}
	if states, err := spell("abc", 1); err != nil || states != `running "a";` {
		t.Errorf("a caller that leaves: got %q, %v", states, err)
	}
}

func TestListeners(t *testing.T) {
	t.Parallel()
	mood, said, parts := testParts()
	_, thing, err := New(Agent{Name: "parrot"}, parts...)
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range map[string]*interact.Message{
		"mood": {Type: interact.ObserveProperty, Name: "mood"}, "said": {Type: interact.SubscribeEvent, Name: "said"},
		"all properties": {Type: interact.ObserveAllProperties}, "all events": {Type: interact.SubscribeAllEvents},
	} {
		stop := make(chan struct{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
					mood.Set("cross")
					said.Emit(3)
				}
			}
		}()
		for r, err := range thing.Do(t.Context(), m) {
			if err != nil || string(r.Data) != `"cross"` && string(r.Data) != "3" || r.Time.IsZero() ||
				r.Name != "mood" && r.Name != "said" {
				t.Errorf("%s: got %+v, %v", name, r, err)
			}
			break
		}
		close(stop)
		<-done
	}
	if mood.Get() != "cross" {
		t.Errorf("the mood is %s", mood.Get())
	}
}

// A consumer that reads a value and then observes misses no change in between, and receives none twice.
func TestObservationContinuesAReading(t *testing.T) {
	t.Parallel()
	mood, _, parts := testParts()
	_, thing, err := New(Agent{Name: "parrot"}, parts...)
	if err != nil {
		t.Fatal(err)
	}
	read := func() *interact.Message {
		t.Helper()
		r, err := interact.Call(t.Context(), thing, &interact.Message{Type: interact.ReadProperty, Name: "mood"})
		if err != nil || r.ID == "" {
			t.Fatalf("got %+v, %v", r, err)
		}
		return r
	}
	observe := func(after string, begun func()) *interact.Message {
		t.Helper()
		over, done := make(chan struct{}), make(chan struct{})
		defer func() { close(over); <-done }()
		go func() {
			defer close(done)
			for len(mood.changes.listening()) == 0 {
				select {
				case <-over:
					return
				case <-time.After(time.Millisecond):
				}
			}
			begun()
		}()
		for r, err := range thing.Do(t.Context(), &interact.Message{Type: interact.ObserveProperty, Name: "mood", After: after}) {
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		return nil
	}
	before := read()
	mood.Set("cross")
	if r := observe(before.ID, func() {}); string(r.Data) != `"cross"` || r.ID != read().ID {
		t.Errorf("after an older value: got %s %s", r.ID, r.Data)
	}
	if r := observe(read().ID, func() { mood.Set("glad") }); string(r.Data) != `"glad"` {
		t.Errorf("after the last value: got %s", r.Data)
	}
	if r := observe("", func() { mood.Set("sad") }); string(r.Data) != `"sad"` {
		t.Errorf("from now: got %s", r.Data)
	}
}

func TestSlowListenersAreDropped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, said, parts := testParts()
		_, thing, err := New(Agent{Name: "parrot"}, parts...)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			synctest.Wait() // the consumer is subscribed
			said.Emit(0)
		}()
		var last error
		for _, err := range thing.Do(t.Context(), &interact.Message{Type: interact.SubscribeEvent, Name: "said"}) {
			if last = err; err == nil {
				for i := 0; len(said.topic.listening()) > 0 && i < 2*queueLength+2; i++ {
					said.Emit(i)
				}
			}
		}
		if e := interact.AsError(last); e.Code != interact.Overloaded {
			t.Errorf("got %v", last)
		}
	})
}

// listening returns the listeners of t.
func (t *topic) listening() []*listener {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.listeners))
}

func TestPartsAreChecked(t *testing.T) {
	t.Parallel()
	one := Action("a", func(context.Context, None) (None, error) { return None{}, nil })
	unnamed := Action("", func(context.Context, None) (None, error) { return None{}, nil })
	for name, parts := range map[string][]Part{"a name twice": {one, one}, "no name": {unnamed}} {
		if _, _, err := New(Agent{Name: "x"}, parts...); interact.AsError(err) == nil || interact.AsError(err).Code != interact.BadTD {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, _, err := New(Agent{}); err == nil {
		t.Error("an agent without a name is served")
	}
	if err := Serve(t.Context(), Agent{Name: "x", Node: "ftp://x"}); interact.AsError(err).Code != interact.Usage {
		t.Errorf("got %v", err)
	}
}

func TestLocal(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("LMOSD_NODE", "")
	t.Setenv("LMOSD_TOKEN", "")
	t.Setenv("LMOSD_DATA_DIR", dir)
	if node, token := Local(); node != "http://127.0.0.1:4668" || token != "" {
		t.Errorf("got %q %q", node, token)
	}
	t.Setenv("LMOSD_NODE", "http://127.0.0.1:1")
	t.Setenv("LMOSD_TOKEN", "x")
	if node, token := Local(); node != "http://127.0.0.1:1" || token != "x" {
		t.Errorf("got %q %q", node, token)
	}
}

// A panic after the consumer left ends the stream and not the process.
func TestPanicAfterTheConsumerLeft(t *testing.T) {
	t.Parallel()
	_, thing, err := New(Agent{Name: "parrot"}, Stream("talk", func(context.Context, None) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			defer panic("in the cleanup")
			yield("hello", nil)
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range thing.Do(t.Context(), &interact.Message{Type: interact.InvokeAction, Name: "talk"}) {
		if err != nil {
			t.Error(err)
		}
		break
	}
}
