package interact

import (
	"context"
	"errors"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/td"
)

func dimmer(t *testing.T) *td.Thing {
	t.Helper()
	d, err := td.Parse([]byte(`{"@context": "https://www.w3.org/2022/wot/td/v1.1", "title": "lamp", "id": "urn:lamp",
		"securityDefinitions": {"n": {"scheme": "nosec"}}, "security": "n",
		"properties": {
			"level": {"type": "integer", "maximum": 100, "observable": true, "forms": [{"href": "http://lamp/level"}]},
			"power": {"type": "number", "readOnly": true, "forms": [{"href": "http://lamp/power"}]},
			"pin": {"type": "string", "writeOnly": true, "forms": [{"href": "http://lamp/pin"}]},
			"a/b": {"type": "string", "forms": [{"href": "http://lamp/ab"}]}},
		"actions": {"fade": {"input": {"type": "integer"}, "output": {"type": "string"}, "forms": [{"href": "http://lamp/fade"}]}},
		"events": {"hot": {"subscription": {"type": "object", "required": ["above"]}, "data": {"type": "number"}, "forms": [{"href": "http://lamp/hot"}]},
			"cold": {"forms": [{"href": "http://lamp/cold"}]}}}`))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestCheckOfSeveral(t *testing.T) {
	t.Parallel()
	d := dimmer(t)
	for name, c := range map[string]struct {
		m    Message
		code Code
		text string
	}{
		"two names":                      {Message{Type: ReadMultipleProperties, Data: []byte(`["level","power"]`)}, 0, ""},
		"no names":                       {Message{Type: ReadMultipleProperties, Data: []byte(`[]`)}, Invalid, ""},
		"no array":                       {Message{Type: ReadMultipleProperties, Data: []byte(`"level"`)}, Invalid, ""},
		"a number as a name":             {Message{Type: ReadMultipleProperties, Data: []byte(`[1]`)}, Invalid, ""},
		"an unknown name":                {Message{Type: ReadMultipleProperties, Data: []byte(`["level","x"]`)}, NoAffordance, "x"},
		"a name that is write-only":      {Message{Type: ReadMultipleProperties, Data: []byte(`["pin"]`)}, NotAllowed, "write-only"},
		"names as text":                  {Message{Type: ReadMultipleProperties, ContentType: "text/plain", Data: []byte(`level`)}, Invalid, ""},
		"names in CBOR":                  {Message{Type: ReadMultipleProperties, ContentType: CBOR, Data: []byte("\x81\x65level")}, 0, ""},
		"write some":                     {Message{Type: WriteMultipleProperties, Data: []byte(`{"level":1}`)}, 0, ""},
		"write nothing":                  {Message{Type: WriteMultipleProperties, Data: []byte(`{}`)}, Invalid, ""},
		"write a read-only property":     {Message{Type: WriteMultipleProperties, Data: []byte(`{"power":1}`)}, NotAllowed, "read-only"},
		"write an unknown property":      {Message{Type: WriteMultipleProperties, Data: []byte(`{"x":1}`)}, NoAffordance, "x"},
		"write too much, and a text":     {Message{Type: WriteMultipleProperties, Data: []byte(`{"level":101,"a/b":1}`)}, Invalid, "/a~1b /level"},
		"write all":                      {Message{Type: WriteAllProperties, Data: []byte(`{"level":1,"pin":"1","a/b":"c"}`)}, 0, ""},
		"write all but one":              {Message{Type: WriteAllProperties, Data: []byte(`{"level":1,"pin":"1"}`)}, Invalid, "/a~1b"},
		"read all":                       {Message{Type: ReadAllProperties}, 0, ""},
		"observe all":                    {Message{Type: ObserveAllProperties}, 0, ""},
		"subscribe":                      {Message{Type: SubscribeEvent, Name: "hot"}, 0, ""},
		"subscribe with valid data":      {Message{Type: SubscribeEvent, Name: "hot", Data: []byte(`{"above":5}`)}, 0, ""},
		"subscribe with invalid data":    {Message{Type: SubscribeEvent, Name: "hot", Data: []byte(`{}`)}, Invalid, ""},
		"subscribe to an unknown event":  {Message{Type: SubscribeEvent, Name: "warm"}, NoAffordance, "warm"},
		"subscribe to all":               {Message{Type: SubscribeAllEvents}, 0, ""},
		"subscribe to all with data":     {Message{Type: SubscribeAllEvents, Data: []byte(`1`)}, Invalid, "no data"},
		"subscribe with unexpected data": {Message{Type: SubscribeEvent, Name: "cold", Data: []byte(`1`)}, Invalid, "no data"},
		"observe with data":              {Message{Type: ObserveProperty, Name: "level", Data: []byte(`1`)}, Invalid, "no data"},
		"observe all with data":          {Message{Type: ObserveAllProperties, Data: []byte(`1`)}, Invalid, "no data"},
		"query":                          {Message{Type: QueryAction, ActionID: "1"}, 0, ""},
		"query an action":                {Message{Type: QueryAction, Name: "fade"}, 0, ""},
		"query an unknown action":        {Message{Type: QueryAction, Name: "x"}, NoAffordance, "x"},
		"cancel an unknown action":       {Message{Type: CancelAction, Name: "x"}, NoAffordance, "x"},
		"query all":                      {Message{Type: QueryAllActions}, 0, ""},
		"unobserve":                      {Message{Type: UnobserveProperty, Name: "level"}, NotAllowed, "leave"},
		"a reply":                        {Message{Type: PropertyReading, Name: "level"}, NotAllowed, ""},
		"a stream is not checked":        {Message{Type: InvokeAction, Name: "fade", ContentType: "audio/wav", Chunks: func(func([]byte, error) bool) {}}, 0, ""},
		"broken CBOR":                    {Message{Type: InvokeAction, Name: "fade", ContentType: CBOR, Data: []byte{0xff}}, Invalid, "CBOR"},
		"CBOR outside the schema":        {Message{Type: InvokeAction, Name: "fade", ContentType: CBOR, Data: []byte("\x61x")}, Invalid, ""},
	} {
		e := AsError(Check(d, &c.m))
		if e == nil && c.code != 0 || e != nil && e.Code != c.code {
			t.Errorf("%s: got %v, want %v", name, e, c.code)
			continue
		}
		if e == nil {
			continue
		}
		text := e.Error() + e.Hint
		for _, i := range e.Issues {
			text += " " + i.Pointer
		}
		if !strings.Contains(text, c.text) {
			t.Errorf("%s: %q does not contain %q", name, text, c.text)
		}
	}
	for _, all := range []Type{SubscribeAllEvents, ObserveAllProperties} {
		if e := AsError(Check(&td.Thing{Title: "mute"}, &Message{Type: all})); e == nil || e.Code != NotAllowed {
			t.Errorf("%s of nothing: got %v", all.Op(), e)
		}
	}
}

func TestCheckReply(t *testing.T) {
	t.Parallel()
	d := dimmer(t)
	for name, c := range map[string]struct {
		r       Message
		pointer string // "-": no error
	}{
		"a reading":              {Message{Type: PropertyReading, Name: "level", Data: []byte(`7`)}, "-"},
		"a reading too high":     {Message{Type: PropertyReading, Name: "level", Data: []byte(`101`)}, ""},
		"invalid JSON":           {Message{Type: PropertyReading, Name: "level", Data: []byte(`{`)}, ""},
		"of an unknown property": {Message{Type: PropertyReading, Name: "x", Data: []byte(`1`)}, "-"},
		"readings":               {Message{Type: PropertyReadings, Data: []byte(`{"level":1,"power":2.5,"new":{}}`)}, "-"},
		"one of the readings":    {Message{Type: PropertyReadings, Data: []byte(`{"level":"x","a/b":"y"}`)}, "/level"},
		"readings in an array":   {Message{Type: PropertyReadings, Data: []byte(`[]`)}, ""},
		"an output":              {Message{Type: ActionStatus, Name: "fade", Status: StatusCompleted, Data: []byte(`"done"`)}, "-"},
		"another output":         {Message{Type: ActionStatus, Name: "fade", Status: StatusCompleted, Data: []byte(`1`)}, ""},
		"a part of an output":    {Message{Type: ActionStatus, Name: "fade", Status: StatusRunning, Data: []byte(`1`)}, "-"},
		"no output":              {Message{Type: ActionStatus, Name: "fade", Status: StatusCompleted}, "-"},
		"a picture":              {Message{Type: ActionStatus, Name: "fade", Status: StatusCompleted, ContentType: "image/png", Data: []byte(`1`)}, "-"},
		"an event":               {Message{Type: Event, Name: "hot", Data: []byte(`80.5`)}, "-"},
		"another event":          {Message{Type: Event, Name: "hot", Data: []byte(`"hot"`)}, ""},
	} {
		e := AsError(CheckReply(d, &c.r))
		if e == nil && c.pointer != "-" || e != nil && (e.Code != AgentFailed || len(e.Issues) == 0 || e.Issues[0].Pointer != c.pointer) {
			t.Errorf("%s: got %+v, want an issue at %q", name, e, c.pointer)
		}
	}
}

func TestInvalidReplyEndsTheInteraction(t *testing.T) {
	t.Parallel()
	m := &Message{Type: ObserveProperty, Name: "level"}
	left := false
	liar := Func(func(_ context.Context, m *Message) iter.Seq2[*Message, error] {
		return func(yield func(*Message, error) bool) {
			for _, v := range []string{"1", "101", "2"} {
				if !yield(m.Reply(PropertyReading, "", []byte(v)), nil) {
					left = true
					return
				}
			}
		}
	})
	var got []string
	var failed error
	for r, err := range Chain(liar, CheckedReplies(dimmer(t))).Do(t.Context(), m) {
		if failed = err; err == nil {
			got = append(got, string(r.Data))
		}
	}
	if len(got) != 1 || got[0] != "1" || AsError(failed).Code != AgentFailed || !left {
		t.Errorf("got %v, %v; the agent was left: %t", got, failed, left)
	}
}

// A tracer records the spans.
type tracer struct{ log []string }

func (tr *tracer) Start(stage string, m *Message) (*Message, func(error)) {
	c := *m
	c.TraceParent = m.TraceParent + ">" + stage
	return &c, func(err error) {
		if err != nil {
			stage += " failed"
		}
		tr.log = append(tr.log, stage+" under "+m.TraceParent)
	}
}

func TestSpans(t *testing.T) {
	t.Parallel()
	tr := &tracer{}
	var seen *Message
	thing := Chain(keeping(&seen), Spans(tr, "mesh"), Spans(nil, "none"), Spans(tr, "agent"))
	if _, err := Call(t.Context(), thing, &Message{TraceParent: "p"}); err != nil {
		t.Fatal(err)
	}
	if _, err := Call(t.Context(), Chain(Func(func(context.Context, *Message) iter.Seq2[*Message, error] { return Fail(errors.New("no")) }), Spans(tr, "mesh")), &Message{}); err == nil {
		t.Fatal("no error")
	}
	want := "agent under p>mesh|mesh under p|mesh failed under "
	if got := strings.Join(tr.log, "|"); got != want || seen.TraceParent != "p>mesh>agent" {
		t.Errorf("got %q, and the agent %q", got, seen.TraceParent)
	}
}

func TestTimed(t *testing.T) {
	t.Parallel()
	agent := Timed(func(t *Timing, took time.Duration) { t.Agent = took + 1 })
	host := Timed(func(t *Timing, took time.Duration) { t.Host = took + 1 })
	r, err := Call(t.Context(), Chain(echo, host, agent), &Message{Timing: &Timing{}})
	if err != nil || r.Timing == nil || r.Timing.Agent <= 0 || r.Timing.Host < r.Timing.Agent {
		t.Errorf("got %+v, %v", r.Timing, err)
	}
	if r, err = Call(t.Context(), Chain(echo, host, agent), &Message{}); err != nil || r.Timing != nil {
		t.Errorf("not requested: got %+v, %v", r.Timing, err)
	}
}
