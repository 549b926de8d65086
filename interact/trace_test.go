package interact

import (
	"context"
	"fmt"
	"iter"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/td"
)

// keeping returns a Thing that stores the last message.
func keeping(got **Message) Thing {
	return Func(func(_ context.Context, m *Message) iter.Seq2[*Message, error] {
		*got = m
		return One(m.Reply(ActionStatus, "", nil))
	})
}

func TestTrace(t *testing.T) {
	t.Parallel()
	var got *Message
	thing := Chain(keeping(&got), Trace(time.Minute))
	m := &Message{Type: InvokeAction}
	if _, err := Call(t.Context(), thing, m); err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(got.ID) {
		t.Errorf("the id is %q, want a UUID of version 4", got.ID)
	}
	if !regexp.MustCompile(`^00-[0-9a-f]{32}-[0-9a-f]{16}-00$`).MatchString(got.TraceParent) {
		t.Errorf("the traceparent is %q", got.TraceParent)
	}
	if left := time.Until(got.Deadline); left > time.Minute || left < 50*time.Second {
		t.Errorf("%v are left, want about a minute", left)
	}
	if m.ID != "" || !m.Deadline.IsZero() {
		t.Error("the consumer's message was changed")
	}

	whole := &Message{Type: InvokeAction, ID: "mine", TraceParent: "mine", Deadline: time.Now().Add(time.Minute)}
	if _, err := Call(t.Context(), thing, whole); err != nil || got != whole {
		t.Errorf("a complete message was copied (%v)", err)
	}
	patient := &Message{Type: InvokeAction, ID: "mine", TraceParent: "mine", Deadline: time.Now().Add(365 * 24 * time.Hour)}
	if _, err := Call(t.Context(), thing, patient); err != nil || time.Until(got.Deadline) > MaxWait {
		t.Errorf("a timeout of one year left %v (%v), want %v at most", time.Until(got.Deadline), err, MaxWait)
	}
	if _, err := Call(t.Context(), thing, &Message{Type: ObserveProperty, ID: "mine"}); err != nil || !got.Deadline.IsZero() || got.ID != "mine" {
		t.Errorf("an observation got %+v (%v), want its own id and no deadline", got, err)
	}
}

func TestNewID(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 1000 {
		seen[NewID()] = true
	}
	if len(seen) != 1000 {
		t.Errorf("%d of 1000 ids are distinct", len(seen))
	}
}

func TestLongTypes(t *testing.T) {
	t.Parallel()
	for typ := ReadProperty; typ <= UnsubscribeAllEvents; typ++ {
		want := typ == ObserveProperty || typ == SubscribeEvent || typ == SubscribeAllEvents
		if typ.Long() != want {
			t.Errorf("type %d: long is %t", typ, typ.Long())
		}
	}
}

func TestNamed(t *testing.T) {
	t.Parallel()
	var got *Message
	thing := Chain(keeping(&got), Named("urn:x@z6Mk"))
	m := &Message{Thing: "weather", ID: "1"}
	if _, err := Call(t.Context(), thing, m); err != nil || got.Thing != "urn:x@z6Mk" || got.ID != "1" || m.Thing != "weather" {
		t.Errorf("got %+v of %+v (%v)", got, m, err)
	}
	m.Thing = "urn:x@z6Mk"
	if _, err := Call(t.Context(), thing, m); err != nil || got != m {
		t.Error("a message of the right name was copied")
	}
}

// lamp has an affordance of each kind that Check distinguishes.
const lamp = `{
	"@context": "https://www.w3.org/2022/wot/td/v1.1", "id": "urn:example:lamp", "title": "Lamp",
	"securityDefinitions": {"nosec": {"scheme": "nosec"}, "pin_sc": {"scheme": "apikey", "in": "body", "name": "pin"}},
	"security": "nosec",
	"properties": {
		"mode": {"observable": true, "forms": [{"href": "http://lamp/mode"}]},
		"level": {"type": "integer", "minimum": 0, "maximum": 100, "forms": [{"href": "http://lamp/level"}]},
		"power": {"type": "number", "readOnly": true, "forms": [{"href": "http://lamp/power"}]},
		"pin": {"type": "string", "writeOnly": true, "forms": [{"href": "http://lamp/pin"}]}
	},
	"actions": {
		"fade": {"input": {"type": "object", "properties": {"to": {"type": "integer"}}, "required": ["to"]},
			"forms": [{"href": "http://lamp/fade"}]},
		"blink": {"input": {"type": "object", "properties": {"times": {"type": "integer"}}}, "forms": [{"href": "http://lamp/blink"}]},
		"reset": {"forms": [{"href": "http://lamp/reset"}]},
		"unlock": {"input": {"type": "object", "properties": {"pin": {"type": "string"}}, "required": ["pin"]},
			"forms": [{"href": "http://lamp/unlock", "security": "pin_sc"}]},
		"scene": {"input": {"oneOf": [{"type": "string"}, {"type": "integer"}]}, "forms": [{"href": "http://lamp/scene"}]},
		"find": {"uriVariables": {"q": {"type": "string"}}, "input": {"type": "string"}, "forms": [{"href": "http://lamp/find{?q}"}]}
	}
}`

func TestCheck(t *testing.T) {
	t.Parallel()
	thing, err := td.Parse([]byte(lamp))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		typ   Type
		name  string
		media string
		data  string
		want  Code   // 0: it may be sent
		text  string // in the error or its hint
	}{
		"input that fits":                           {InvokeAction, "fade", "", `{"to": 5}`, 0, ""},
		"input of another type":                     {InvokeAction, "fade", "", `{"to": "five"}`, Invalid, "schema"},
		"a member is missing":                       {InvokeAction, "fade", "", `{}`, Invalid, "fade"},
		"no input where some is needed":             {InvokeAction, "fade", "", "", Invalid, "missing"},
		"no input where none is needed":             {InvokeAction, "blink", "", "", 0, ""},
		"no schema":                                 {InvokeAction, "reset", "", `"anything"`, 0, ""},
		"input that is no JSON":                     {InvokeAction, "fade", "", "to five", Invalid, "quotes"},
		"JSON with a name twice":                    {InvokeAction, "fade", "", `{"to":1,"to":2}`, Invalid, "JSON"},
		"another media type has no schema":          {InvokeAction, "fade", "text/plain", "to five", 0, ""},
		"JSON by another name":                      {InvokeAction, "fade", "application/ld+json", `{}`, Invalid, ""},
		"variables are checked elsewhere":           {InvokeAction, "find", "", `{"q": "x"}`, 0, ""},
		"no such action":                            {InvokeAction, "explode", "", "", NoAffordance, "blink, fade, find, reset"},
		"a secret that the host adds":               {InvokeAction, "unlock", "", `{}`, 0, ""},
		"no input that may be anything":             {InvokeAction, "scene", "", "", 0, ""},
		"lines of JSON are no JSON":                 {InvokeAction, "fade", "application/x-ndjson", "1\n2", 0, ""},
		"write nothing":                             {WriteProperty, "mode", "", "", Invalid, "missing"},
		"no such property":                          {ReadProperty, "levels", "", "", NoAffordance, "properties level, mode, pin, power"},
		"read":                                      {ReadProperty, "level", "", "", 0, ""},
		"observe":                                   {ObserveProperty, "mode", "", "", 0, ""},
		"observe a property that is not observable": {ObserveProperty, "level", "", "", NotAllowed, "{read [lamp level]}"},
		"write":                         {WriteProperty, "level", "", "50", 0, ""},
		"write too much":                {WriteProperty, "level", "", "101", Invalid, ""},
		"write a read-only property":    {WriteProperty, "power", "", "5", NotAllowed, "{read [lamp power]}"},
		"read a write-only property":    {ReadProperty, "pin", "", "", NotAllowed, "{write [lamp pin]}"},
		"observe a write-only property": {ObserveProperty, "pin", "", "", NotAllowed, "write-only"},
		"all properties":                {ReadAllProperties, "", "", "", 0, ""},
	} {
		m := &Message{Type: c.typ, Thing: "lamp", Name: c.name, ContentType: c.media, Data: []byte(c.data)}
		var got *Message
		_, err := Call(t.Context(), Chain(keeping(&got), Checked(thing)), m)
		e := AsError(err)
		switch {
		case c.want == 0 && (err != nil || got != m):
			t.Errorf("%s: refused: %v", name, err)
		case c.want != 0 && (err == nil || got != nil):
			t.Errorf("%s: it was sent", name)
		case c.want != 0 && (e.Code != c.want || !strings.Contains(fmt.Sprint(e, e.Hint, e.Next), c.text)):
			t.Errorf("%s: got %v %q, hint %q, steps %v, want %v and %q", name, e.Code, e, e.Hint, e.Next, c.want, c.text)
		}
	}
}

func TestCheckOfAnEmptyThing(t *testing.T) {
	t.Parallel()
	thing, err := td.Parse([]byte(`{"@context": "https://www.w3.org/2022/wot/td/v1.1", "title": "Bare",
		"securityDefinitions": {"nosec": {"scheme": "nosec"}}, "security": "nosec"}`))
	if err != nil {
		t.Fatal(err)
	}
	e := AsError(Check(thing, &Message{Type: InvokeAction, Name: "a"}))
	if e.Code != NoAffordance || !strings.Contains(e.Hint, "no actions") {
		t.Errorf("got %v, hint %q", e, e.Hint)
	}
}

// An invalid trace context is dropped. A parent without a state is forwarded.
func TestTraceContext(t *testing.T) {
	t.Parallel()
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for name, c := range map[string]struct{ parent, state, wantParent, wantState string }{
		"both":               {parent, "a=b", parent, "a=b"},
		"a later version":    {parent[:53] + "01-0a", "", parent[:53] + "01-0a", ""},
		"a long state":       {parent, strings.Repeat("x", maxTraceState+1), parent, ""},
		"too short":          {parent[:54], "a=b", "", ""},
		"too long":           {parent + "-" + strings.Repeat("a", maxTraceParent), "a=b", "", ""},
		"capitals":           {strings.ToUpper(parent), "a=b", "", ""},
		"without its dashes": {strings.ReplaceAll(parent, "-", "0"), "a=b", "", ""},
		"a line end":         {parent + "\r\n", "a=b", "", ""},
		"a state alone":      {"", "a=b", "", ""},
	} {
		if p, s := TraceContext(c.parent, c.state); p != c.wantParent || s != c.wantState {
			t.Errorf("%s: got %q, %q", name, p, s)
		}
	}
}
