package frame

import (
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/interact"
)

// TestTongue has a peer say some frames, and looks at how the last is answered.
func TestTongue(t *testing.T) {
	t.Parallel()
	const (
		neutral = `{"messageType":"invokeAction","thingId":"x","messageId":"m","action":"a"}`
		capital = `{"messageType":"invokeAction","thingID":"x","messageID":"m","action":"a"}`
		inWTP   = `{"messageType":"request","operation":"invokeaction","thingID":"x","messageID":"m","name":"a"}`
		ofName  = `{"messageType":"readProperty","thingId":"x","messageId":"m","name":"a"}`
		ofProp  = `{"messageType":"readProperty","thingId":"x","messageId":"m","property":"a"}`
		answer  = `{"messageType":"response","operation":"readproperty","thingID":"x","correlationID":"m","value":1}`
		strange = `{`
	)
	for name, c := range map[string]struct {
		assumed Dialect
		said    []string
		want    Style
		typ     string // of an error, as it is written
	}{
		"nothing is known":           {Undecided, []string{neutral}, Style{}, "error"},
		"by the subprotocol":         {Doc, []string{neutral}, Style{Dialect: Doc}, "error"},
		"by a capital":               {Undecided, []string{capital}, Style{Doc, true, true}, "error"},
		"by a name":                  {Undecided, []string{ofName}, Style{Doc, true, false}, "error"},
		"by a property":              {Doc, []string{ofProp}, Style{Kotlin, true, false}, "error"},
		"as before":                  {Undecided, []string{ofProp, neutral}, Style{Kotlin, true, false}, "error"},
		"once learned":               {Undecided, []string{ofProp, capital}, Style{Doc, true, true}, "error"},
		"wtp":                        {Undecided, []string{inWTP}, Style{WTP, true, true}, "response"},
		"LMOS among wtp":             {WTP, []string{inWTP, neutral}, Style{Undecided, true, false}, "error"},
		"answers teach nothing":      {Undecided, []string{answer, neutral}, Style{}, "error"},
		"unreadable":                 {Undecided, []string{strange}, Style{}, "error"},
		"unreadable, by subprotocol": {WTP, []string{strange}, Style{Dialect: WTP}, "response"},
		"unreadable after wtp":       {Undecided, []string{inWTP, strange}, Style{WTP, true, true}, "response"},
		"unreadable after a capital": {Undecided, []string{capital, strange}, Style{Doc, true, true}, "error"},
		"doubled":                    {Undecided, []string{inWTP, strings.Replace(inWTP, "{", `{"name":"b",`, 1)}, Style{WTP, true, true}, "response"},
	} {
		tongue, last := Tongue{Assumed: c.assumed}, &Frame{}
		for _, text := range c.said {
			last, _ = Decode([]byte(text))
			last.Style = tongue.Style(last)
		}
		b, err := last.Refusal(interact.Errorf(interact.Invalid, "say it again", "what?")).Encode()
		if last.Style != c.want || err != nil || !strings.HasPrefix(string(b), `{"messageType":"`+c.typ+`"`) {
			t.Errorf("%s: got %+v, want %+v; an error is %s, %v", name, last.Style, c.want, b, err)
		}
	}
}

// TestReplies writes what answers a request: the members of want are in it, null is not there.
func TestReplies(t *testing.T) {
	t.Parallel()
	const write, inWTP = `{"messageType":"writeProperty","thingId":"x","messageId":"m","property":"a b","data":7}`,
		`{"messageType":"request","operation":"writeproperty","thingID":"x","messageID":"m","name":"a b","value":7}`
	const observe = `{"messageType":"request","operation":"observeallproperties","thingID":"x","messageID":"m"}`
	confirmed := &interact.Message{Type: interact.PropertyReading, Data: []byte("8"), Name: "a b", Time: time.Unix(0, 0)}
	reading := &interact.Message{Type: interact.PropertyReading, Data: []byte("9"), Name: "c", ID: "p1"}
	for name, c := range map[string]struct {
		asked string
		in    Dialect
		reply func(f *Frame) *Frame
		want  string
	}{
		"kotlin hears what it wrote": {write, Kotlin, func(f *Frame) *Frame { return f.Answer(&interact.Message{}) },
			`{"messageType":"propertyReading","correlationId":"m","property":"a b","data":7}`},
		"doc, by name": {write, Doc, func(f *Frame) *Frame { return f.Answer(&interact.Message{}) },
			`{"messageType":"propertyReadings","correlationId":"m","data":{"a b":7}}`},
		"wtp hears nothing": {inWTP, WTP, func(f *Frame) *Frame { return f.Answer(&interact.Message{}) },
			`{"messageType":"response","operation":"writeproperty","correlationID":"m","value":null}`},
		"but what is confirmed": {inWTP, WTP, func(f *Frame) *Frame { return f.Answer(confirmed) },
			`{"messageType":"response","value":8,"timestamp":"1970-01-01T00:00:00Z"}`},
		"doc, confirmed": {write, Doc, func(f *Frame) *Frame { return f.Answer(confirmed) },
			`{"messageType":"propertyReadings","data":{"a b":8}}`},
		"a notification": {observe, WTP, func(f *Frame) *Frame { return f.Notification(reading) },
			`{"messageType":"notification","operation":"observeallproperties","messageID":"p1","correlationID":"m","name":"c","value":9,"data":9}`},
		"the current reading": {strings.Replace(write, "write", "observe", 1), Kotlin, func(f *Frame) *Frame { return f.Reading(reading) },
			`{"messageType":"propertyReading","messageId":"p1","correlationId":"m","property":"c","data":9}`},
		"a request": {write, Doc, func(f *Frame) *Frame {
			return Request(Style{Dialect: WTP}, "y", interact.QueryAction, &interact.Message{Name: "a", ActionID: "7", Hops: 2, Time: time.Now()})
		}, `{"messageType":"request","operation":"queryaction","thingID":"y","name":"a","actionID":"7","hops":3,"timestamp":null}`},
	} {
		f, err := Decode([]byte(c.asked))
		if err != nil {
			t.Fatal(err)
		}
		f.Dialect = c.in
		b, err := c.reply(f).Encode()
		var got, want map[string]any
		if err != nil || json.Unmarshal(b, &got) != nil || json.Unmarshal([]byte(c.want), &want) != nil {
			t.Fatalf("%s: %s, %v", name, b, err)
		}
		for member, value := range want {
			if !reflect.DeepEqual(got[member], value) {
				t.Errorf("%s: %s is %v in %s", name, member, got[member], b)
			}
		}
	}
}

func TestSubprotocolIsTheFirstThatIsKnown(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ offer, want string }{
		{"", ""}, {"graphql-ws", ""}, {"graphql-ws, webthingprotocol, lmosprotocol", "webthingprotocol"},
		{"lmos,webthingprotocol", "lmos"}, {"LMOSProtocol", "LMOSProtocol"},
	} {
		if got := Negotiate(http.Header{"Sec-Websocket-Protocol": {c.offer}}); got != c.want {
			t.Errorf("of %q %q was taken, want %q", c.offer, got, c.want)
		}
	}
}

func TestMoments(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ raw, want string }{
		{`"2026-01-01T00:00:00.123Z"`, "2026-01-01T00:00:00.123Z"},
		{`"2026-01-01T01:00:00+01:00[Europe/Berlin][u-ca=hebrew]"`, "2026-01-01T00:00:00Z"},
		{`1767225600`, "2026-01-01T00:00:00Z"},
		{`1767225600.123456789`, "2026-01-01T00:00:00.123457Z"},
		{`1767225600123`, "2026-01-01T00:00:00.123Z"},
		{`1.7672256e9`, "2026-01-01T00:00:00Z"},
		{`"yesterday"`, ""}, {`-1`, ""}, {`0`, ""}, {`1e300`, ""}, {`true`, ""}, {`[2026,1,1]`, ""}, {``, ""}, {`"0000-01-01T00:00:00Z"`, ""},
	} {
		got := ""
		if at := moment([]byte(c.raw)); !at.IsZero() {
			got = string(appendTime(nil, at))
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", c.raw, got, c.want)
		}
	}
}
