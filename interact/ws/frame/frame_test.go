package frame

import (
	"bytes"
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/interact"
)

// TestDialectDetector reads frames of a peer and checks the response to the last one.
func TestDialectDetector(t *testing.T) {
	t.Parallel()
	const (
		neutral = `{"messageType":"invokeAction","thingId":"x","messageId":"m","action":"a"}`
		capital = `{"messageType":"invokeAction","thingID":"x","messageID":"m","action":"a"}`
		both    = `{"messageType":"readProperty","thingId":"x","thingID":"x","messageId":"m","messageID":"m","property":"a","name":"a"}`
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
		"by a capital":               {Undecided, []string{capital}, Style{Dialect: Doc, Proven: true, Capital: true}, "error"},
		"by both spellings":          {Undecided, []string{both}, Style{Capital: true}, "error"},
		"both, by the subprotocol":   {Doc, []string{both}, Style{Dialect: Doc, Capital: true}, "error"},
		"by a name":                  {Undecided, []string{ofName}, Style{Dialect: Doc, Proven: true}, "error"},
		"by a property":              {Doc, []string{ofProp}, Style{Dialect: Kotlin, Proven: true}, "error"},
		"as before":                  {Undecided, []string{ofProp, neutral}, Style{Dialect: Kotlin, Proven: true}, "error"},
		"once learned":               {Undecided, []string{ofProp, capital}, Style{Dialect: Doc, Proven: true, Capital: true}, "error"},
		"wtp":                        {Undecided, []string{inWTP}, Style{Dialect: WTP, Proven: true, Capital: true}, "response"},
		"LMOS among wtp":             {WTP, []string{inWTP, neutral}, Style{Dialect: Undecided, Proven: true}, "error"},
		"answers teach nothing":      {Undecided, []string{answer, neutral}, Style{}, "error"},
		"unreadable":                 {Undecided, []string{strange}, Style{}, "error"},
		"unreadable, by subprotocol": {WTP, []string{strange}, Style{Dialect: WTP}, "response"},
		"unreadable after wtp":       {Undecided, []string{inWTP, strange}, Style{Dialect: WTP, Proven: true, Capital: true}, "response"},
		"unreadable after a capital": {Undecided, []string{capital, strange}, Style{Dialect: Doc, Proven: true, Capital: true}, "error"},
		"doubled":                    {Undecided, []string{inWTP, strings.Replace(inWTP, "{", `{"name":"b",`, 1)}, Style{Dialect: WTP, Proven: true, Capital: true}, "response"},
	} {
		tongue, last := DialectDetector{Assumed: c.assumed}, &Frame{}
		for _, text := range c.said {
			last, _ = Decode([]byte(text))
			last.Style = tongue.Style(last)
		}
		b, err := last.Refusal(interact.Errorf(interact.Invalid, "send it again", "invalid")).Encode()
		if last.Style != c.want || err != nil || !strings.HasPrefix(string(b), `{"messageType":"`+c.typ+`"`) {
			t.Errorf("%s: got %+v, want %+v; an error is %s, %v", name, last.Style, c.want, b, err)
		}
	}
}

// TestReplies writes responses: they have the members of want, without those that are null.
func TestReplies(t *testing.T) {
	t.Parallel()
	const write, inWTP = `{"messageType":"writeProperty","thingId":"x","messageId":"m","property":"a b","data":7}`,
		`{"messageType":"request","operation":"writeproperty","thingID":"x","messageID":"m","name":"a b","value":7}`
	const observe = `{"messageType":"request","operation":"observeallproperties","thingID":"x","messageID":"m"}`
	const several = `{"messageType":"writeMultipleProperties","thingId":"x","messageId":"m","data":{"a b":7}}`
	empty := &interact.Message{Type: interact.PropertyReading, Time: time.Unix(0, 0)}
	confirmed := &interact.Message{Type: interact.PropertyReading, Data: []byte("8"), Name: "a b", Time: time.Unix(0, 0)}
	reading := &interact.Message{Type: interact.PropertyReading, Data: []byte("9"), Name: "c", ID: "p1"}
	for name, c := range map[string]struct {
		asked string
		in    Dialect
		reply func(f *Frame) *Frame
		want  string
	}{
		"kotlin receives its value": {write, Kotlin, func(f *Frame) *Frame { return f.Answer(&interact.Message{}) },
			`{"messageType":"propertyReading","correlationId":"m","property":"a b","data":7}`},
		"doc, by name": {write, Doc, func(f *Frame) *Frame { return f.Answer(&interact.Message{}) },
			`{"messageType":"propertyReadings","correlationId":"m","data":{"a b":7}}`},
		"kotlin receives its value, from an agent of HTTP without a response body": {write, Kotlin, func(f *Frame) *Frame { return f.Answer(empty) },
			`{"messageType":"propertyReading","correlationId":"m","property":"a b","data":7,"value":7}`},
		"doc, to an agent without an output": {write, Doc, func(f *Frame) *Frame { return f.Answer(empty) },
			`{"messageType":"propertyReadings","correlationId":"m","data":{"a b":7}}`},
		"wtp, of an agent without an output": {inWTP, WTP, func(f *Frame) *Frame { return f.Answer(empty) },
			`{"messageType":"response","operation":"writeproperty","correlationID":"m","value":null}`},
		"several, to an agent without an output": {several, Kotlin, func(f *Frame) *Frame {
			return f.Answer(&interact.Message{Type: interact.PropertyReadings})
		}, `{"messageType":"propertyReadings","correlationId":"m","data":{"a b":7}}`},
		"wtp receives nothing": {inWTP, WTP, func(f *Frame) *Frame { return f.Answer(&interact.Message{}) },
			`{"messageType":"response","operation":"writeproperty","correlationID":"m","value":null}`},
		"a confirmed value": {inWTP, WTP, func(f *Frame) *Frame { return f.Answer(confirmed) },
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

// TestMandatoryDataIsPresent: missing data is null, if the table of the dialect requires data.
func TestMandatoryDataIsPresent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		f    Frame
		part part
		op   interact.Type
		want string // empty: no null
	}{
		{f: Frame{Message: interact.Message{Type: interact.PropertyReading}}, want: `"data":null,"value":null`},
		{f: Frame{Message: interact.Message{Type: interact.PropertyReadings}}, want: `"data":null`},
		{f: Frame{Message: interact.Message{Type: interact.Event}}, want: `"data":null`},
		{f: Frame{Message: interact.Message{Type: interact.WriteProperty}}, want: `"data":null`},
		{f: Frame{Message: interact.Message{Type: interact.WriteMultipleProperties}}, want: `"data":null`},
		{f: Frame{Message: interact.Message{Type: interact.InvokeAction}}},
		{f: Frame{Message: interact.Message{Type: interact.ActionStatus, Status: interact.StatusCompleted}}},
		{f: Frame{Message: interact.Message{Type: interact.PropertyReading}, Style: Style{Dialect: WTP}}, part: response,
			op: interact.ReadProperty, want: `"value":null`},
		{f: Frame{Message: interact.Message{Type: interact.PropertyReading}, Style: Style{Dialect: WTP}}, part: response, op: interact.WriteProperty},
	} {
		c.f.part, c.f.op, c.f.Name = c.part, c.op, "level"
		b, err := c.f.Encode()
		if err != nil || c.want == "" && bytes.Contains(b, []byte("null")) || !bytes.Contains(b, []byte(c.want)) {
			t.Errorf("got %s, %v, want %s", b, err, c.want)
		}
	}
}

// TestBothSpellings writes the first requests to a peer with each id and name in both ways, and reads them as one.
func TestBothSpellings(t *testing.T) {
	t.Parallel()
	for _, w := range messageTypes {
		if w.typ.Op() == "" {
			continue
		}
		for _, d := range []Dialect{Doc, Kotlin, WTP} {
			m := &interact.Message{Name: "level", ActionID: "a1", After: "e1", Data: []byte(`{"a":1}`)}
			b, err := Request(Style{Dialect: d, Both: true}, "urn:x", w.typ, m).Encode()
			var got map[string]any
			if err != nil || json.Unmarshal(b, &got) != nil {
				t.Fatalf("%s: %s, %v", w.lmos, b, err)
			}
			for _, pair := range [][2]string{{"thingId", "thingID"}, {"messageId", "messageID"}, {"correlationId", "correlationID"},
				{"actionId", "actionID"}, {"lastNotificationId", "lastNotificationID"}, {"property", "name"}} {
				if pair[0] == "property" && w.about != aboutProperty {
					continue
				}
				if got[pair[1]] == nil || (d == WTP) != (got[pair[0]] == nil) || d != WTP && got[pair[0]] != got[pair[1]] {
					t.Errorf("%s in %s: %s and %s are %v and %v", w.lmos, d, pair[0], pair[1], got[pair[0]], got[pair[1]])
				}
			}
			f, err := Decode(b)
			if err != nil || f.Thing != "urn:x" || f.ID != got["messageID"] || f.Correlation != f.ID || f.ActionID != "a1" || f.After != "e1" {
				t.Errorf("%s is read as %+v, %v", b, f, err)
			}
		}
	}
}

func TestFirstKnownSubprotocolIsChosen(t *testing.T) {
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
		if at := timestamp([]byte(c.raw)); !at.IsZero() {
			got = string(appendTime(nil, at))
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", c.raw, got, c.want)
		}
	}
}
