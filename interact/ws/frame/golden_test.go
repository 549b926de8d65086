package frame

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/interact"
)

var update = flag.Bool("update", false, "write the meanings of the golden frames")

const goldenFile = "testdata/frames.txt"

// An entry is one golden frame.
type entry struct {
	head, frame, meaning string
}

func (e entry) readOnly() bool { return strings.HasSuffix(e.head, ", read") }

func (e entry) dialect() Dialect {
	words := strings.Split(strings.TrimSuffix(e.head, ", read"), ", ")
	return Dialect(slices.Index(dialectNames[:], words[len(words)-1]))
}

// goldens reads the file: the text before the first entry, and the entries.
func goldens(t testing.TB) (intro string, all []entry) {
	t.Helper()
	raw, err := os.ReadFile(goldenFile)
	if err != nil {
		t.Fatal(err)
	}
	intro, rest, _ := strings.Cut(string(raw), "\n-- ")
	for _, part := range strings.Split(rest, "\n-- ") {
		head, body, ok := strings.Cut(part, " --\n")
		if !ok {
			t.Fatalf("no entry: %q", part)
		}
		frame, meaning, _ := strings.Cut(strings.TrimSpace(body), "\n")
		all = append(all, entry{head, frame, strings.TrimSpace(meaning)})
	}
	return intro, all
}

// meaning is the content of a frame, without its spelling.
func meaning(f *Frame) string {
	var b strings.Builder
	fmt.Fprintf(&b, "= %s", infoOf(f.Type).lmos)
	for _, p := range []struct{ name, value string }{
		{"of", f.op.Op()}, {"thing", f.Thing}, {"id", f.ID}, {"correlation", f.Correlation}, {"name", f.Name},
		{"status", f.Status.String()}, {"actionID", f.ActionID}, {"after", f.After}, {"key", f.Key}, {"delegation", f.Delegation},
		{"media", f.ContentType}, {"data", shown(f.Data)}, {"trace", f.TraceParent}, {"caller", f.From.ID()},
	} {
		if p.value != "" {
			fmt.Fprintf(&b, " %s=%s", p.name, p.value)
		}
	}
	if f.Hops > 0 {
		fmt.Fprintf(&b, " hops=%d", f.Hops)
	}
	if f.Streams {
		b.WriteString(" streams")
	}
	if f.Stream > 0 {
		fmt.Fprintf(&b, " stream=%d", f.Stream)
	}
	if !f.Time.IsZero() {
		fmt.Fprintf(&b, " time=%s", appendTime(nil, f.Time))
	}
	if !f.Began.IsZero() {
		fmt.Fprintf(&b, " began=%s", appendTime(nil, f.Began))
	}
	if f.Fault != nil {
		fmt.Fprintf(&b, " error=%s %q", f.Fault.Code, f.Fault.Title)
	}
	return b.String()
}

// shown is data as a text.
func shown(data []byte) string {
	if q := strconv.QuoteToASCII(string(data)); len(q)-strings.Count(q, `\"`)-strings.Count(q, `\\\\`) != len(data)+2 {
		return q
	}
	return string(data)
}

// TestGoldenFrames reads each golden frame, compares its meaning, and writes it again: each of its members must be equal,
// and no others than those that the tolerance policy adds.
func TestGoldenFrames(t *testing.T) {
	t.Parallel()
	intro, all := goldens(t)
	var out strings.Builder
	out.WriteString(intro)
	for _, e := range all {
		f, err := Decode([]byte(e.frame))
		if err != nil {
			t.Errorf("%s: %v", e.head, err)
			continue
		}
		got := meaning(f)
		fmt.Fprintf(&out, "\n-- %s --\n%s\n%s\n", e.head, e.frame, got)
		if got != e.meaning && !*update {
			t.Errorf("%s: got\n%s\nwant\n%s", e.head, got, e.meaning)
		}
		// Many frames of Kotlin are also frames of the documents.
		if f.Dialect = e.dialect(); f.marks != f.Dialect && (f.marks != Undecided || f.Dialect != Kotlin) {
			t.Errorf("%s: it was taken for %s", e.head, f.marks)
		}
		if !e.readOnly() {
			sameMembers(t, e, f)
		}
	}
	if *update {
		if err := os.WriteFile(goldenFile, []byte(out.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// superset are the members that may be more than in the golden frame.
var superset = map[string]bool{"name": true, "property": true, "data": true, "value": true}

func sameMembers(t *testing.T, e entry, f *Frame) {
	t.Helper()
	b, err := f.Encode()
	if err != nil {
		t.Errorf("%s: %v", e.head, err)
		return
	}
	var want, got map[string]any
	if err := json.Unmarshal([]byte(e.frame), &want); err != nil {
		t.Fatalf("%s: %v", e.head, err)
	}
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatalf("%s is written as %s: %v", e.head, b, err)
	}
	for name, value := range want {
		if !reflect.DeepEqual(got[name], value) {
			t.Errorf("%s: member %s is written as %v, want %v", e.head, name, got[name], value)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok && !superset[name] {
			t.Errorf("%s: member %s is written and does not belong there: %s", e.head, name, b)
		}
	}
}

// TestBadFrames reads invalid frames: each has an error with a hint, and the readable members.
func TestBadFrames(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 257)
	for _, c := range []struct {
		name, frame string
		code        interact.Code
		id          string
	}{
		{"not JSON", `{"messageType"`, interact.Invalid, ""},
		{"empty", ``, interact.Invalid, ""},
		{"no UTF-8", "{\"messageType\":\"readProperty\",\"name\":\"\xff\"}", interact.Invalid, ""},
		{"an array", `[{"messageType":"readProperty"}]`, interact.Invalid, ""},
		{"a text", `"readProperty"`, interact.Invalid, ""},
		{"no type", `{"messageId":"m1","thingId":"urn:x"}`, interact.Invalid, "m1"},
		{"type null", `{"messageId":"m1","messageType":null}`, interact.Invalid, "m1"},
		{"type 7", `{"messageId":"m1","messageType":7}`, interact.Invalid, "m1"},
		{"unknown type", `{"messageId":"m1","messageType":"dance"}`, interact.NotAllowed, "m1"},
		{"unknown operation", `{"messageId":"m1","messageType":"request","operation":"dance"}`, interact.NotAllowed, "m1"},
		{"no operation", `{"messageId":"m1","messageType":"request"}`, interact.Invalid, "m1"},
		{"a senseless notification", `{"messageID":"m1","messageType":"notification","operation":"readproperty"}`, interact.Invalid, "m1"},
		{"long id", `{"messageType":"readProperty","thingId":"urn:x","correlationId":"c","messageId":"` + long + `"}`, interact.Invalid, ""},
		{"no id", `{"messageType":"readProperty","thingId":"urn:x","property":"level"}`, interact.Invalid, ""},
		{"id 7", `{"messageType":"readProperty","thingId":"urn:x","messageId":7}`, interact.Invalid, ""},
		{"no thing", `{"messageType":"readProperty","messageId":"m1","property":"level"}`, interact.Invalid, "m1"},
		{"no property", `{"messageType":"readProperty","thingId":"urn:x","messageId":"m1"}`, interact.Invalid, "m1"},
		{"two ids", `{"messageType":"readProperty","messageId":"m1","messageID":"m2"}`, interact.Invalid, ""},
		{"two names", `{"messageType":"readProperty","messageId":"m1","name":"a","name":"b"}`, interact.Invalid, "m1"},
		{"bad base64", `{"messageType":"event","messageId":"m1","data":"?","base64":true}`, interact.Invalid, "m1"},
		{"base64 of invalid JSON", `{"messageType":"event","messageId":"m1","data":"ew==","base64":true,"contentType":"application/json"}`, interact.Invalid, "m1"},
		{"a picture that is a number", `{"messageType":"event","messageId":"m1","data":1,"contentType":"image/png"}`, interact.Invalid, "m1"},
		{"a bad status", `{"messageType":"response","operation":"queryaction","messageID":"m1","status":{"state":5}}`, interact.Invalid, "m1"},
	} {
		f, err := Decode([]byte(c.frame))
		e := interact.AsError(err)
		if e == nil || e.Code != c.code || e.Hint == "" && e.Next == nil {
			t.Errorf("%s: got %v, want %s with a hint", c.name, err, c.code)
		}
		if f == nil || f.ID != c.id {
			t.Errorf("%s: the id %q was not read", c.name, c.id)
		}
	}
}

// TestUnfitDataIsNotWritten encodes data that does not match its content type: it is never written into a frame.
func TestUnfitDataIsNotWritten(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, data, media string
		want              string
	}{
		{"a second member", `1,"thingId":"urn:other"`, "", ""},
		{"half a value", `{`, "application/ld+json", ""},
		{"no UTF-8", "\"\xff\"", "", ""},
		{"text", `1,"a":2`, "text/plain; charset=utf-8", `"data":"1,\"a\":2","contentType":"text/plain; charset=utf-8"`},
		{"text that is none", "\xff", "text/plain", `"data":"/w==","contentType":"text/plain","base64":true`},
		{"CBOR", "\xa1\x61a\x01", "application/cbor", `"data":{"a":1}`},
		{"bad CBOR", "\xa1", "application/cbor", ""},
		{"bytes", "\x00", "application/octet-stream", `"data":"AA==","contentType":"application/octet-stream","base64":true`},
		{"linked data", `{}`, "application/ld+json", `"data":{},"contentType":"application/ld+json"`},
	} {
		f := &Frame{}
		f.Type, f.Data, f.ContentType = interact.Event, []byte(c.data), c.media
		b, err := f.Encode()
		if c.want == "" {
			if interact.AsError(err) == nil || interact.AsError(err).Code != interact.AgentFailed {
				t.Errorf("%s: got %s, %v, want AgentFailed", c.name, b, err)
			}
			continue
		}
		if err != nil || !bytes.Contains(b, []byte(c.want)) || !json.Valid(b) {
			t.Errorf("%s: got %s, %v, want %s", c.name, b, err, c.want)
		}
	}
}

// TestEveryDialectHasEveryMessage writes each request and reply in each dialect and reads it again.
func TestEveryDialectHasEveryMessage(t *testing.T) {
	t.Parallel()
	for _, w := range messageTypes {
		for _, d := range []Dialect{Undecided, Doc, Kotlin, WTP} {
			if d == WTP && w.typ.Op() == "" {
				continue // replies of wtp are made from operations: below
			}
			f := &Frame{Style: Style{Dialect: d, Capital: d == WTP}}
			f.Type, f.Thing, f.ID, f.Correlation = w.typ, "urn:x", "m1", "c1"
			f.Fault = interact.Errorf(interact.NotFound, "look", "gone")
			if d == WTP {
				f.part = request
			}
			if w.about != aboutThing {
				f.Name = "level"
			}
			if len(w.data) > 0 {
				f.Data = []byte(`{"a":1}`)
			}
			b, err := f.Encode()
			if err != nil {
				t.Fatalf("%s: %v", w.lmos, err)
			}
			g, err := Decode(b)
			if err != nil || g.Type != f.Type || g.Name != f.Name || !bytes.Equal(g.Data, f.Data) || g.Correlation != "c1" {
				t.Errorf("%s in %s: %s is read as %+v, %v", w.lmos, d, b, g, err)
			}
		}
		for _, typ := range []interact.Type{w.answer, w.note} {
			if typ == 0 {
				continue
			}
			f := &Frame{Style: Style{Dialect: WTP}, part: response, op: w.typ}
			if typ == w.note {
				f.part = notification
			}
			f.Type, f.Thing, f.ID, f.Name, f.Status = typ, "urn:x", "m1", "level", interact.StatusCompleted
			if len(byType[typ].data) > 0 {
				f.Data = []byte(`1`)
			}
			b, err := f.Encode()
			if err != nil {
				t.Fatalf("%s: %v", w.lmos, err)
			}
			g, err := Decode(b)
			same := g.Type == typ && g.op == w.typ && (bytes.Equal(g.Data, f.Data) || w.typ == interact.CancelAction)
			if err != nil || !same {
				t.Errorf("answer to %s: %s is read as %+v, %v", w.lmos, b, g, err)
			}
		}
	}
}

// TestSmallInvokeIsCheap limits the allocations for reading and writing a small request.
func TestSmallInvokeIsCheap(t *testing.T) {
	b := []byte(`{"messageType":"invokeAction","thingID":"urn:x","messageID":"m1","correlationID":"c1","action":"chat","input":{"q":"Bonn"}}`)
	var f *Frame
	var err error
	// The frame, and the texts of messageType, thing, id, correlation and action.
	if n := testing.AllocsPerRun(100, func() { f, err = Decode(b) }); n > 6 || err != nil {
		t.Errorf("reading costs %v allocations (%v), want at most 6", n, err)
	}
	f.Style = Style{Dialect: Doc, Capital: true}
	if n := testing.AllocsPerRun(100, func() { _, err = f.Encode() }); n > 1 || err != nil {
		t.Errorf("writing costs %v allocations (%v), want 1", n, err)
	}
}

func BenchmarkDecode(b *testing.B) {
	raw := []byte(`{"messageType":"invokeAction","thingID":"urn:x","messageID":"m1","correlationID":"c1","action":"chat","input":{"q":"Bonn"}}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decode(raw); err != nil {
			b.Fatal(err)
		}
	}
}

// TestTimeLeft: what is left of a deadline comes back as a deadline, never a later one; what is no such number says nothing.
func TestTimeLeft(t *testing.T) {
	t.Parallel()
	until := time.Now().Add(time.Hour)
	f := Request(Style{Dialect: Doc}, "urn:x", interact.InvokeAction, &interact.Message{Name: "chat"})
	f.Deadline = until
	raw, err := f.Encode()
	if err != nil {
		t.Fatal(err)
	}
	back, err := Decode(raw)
	if err != nil || back.Deadline.IsZero() || back.Deadline.Before(until.Add(-time.Minute)) || back.Deadline.After(until.Add(time.Minute)) {
		t.Errorf("%s was read as %v, %v", raw, back.Deadline, err)
	}
	for _, left := range []string{"0", "-1", "1.5", `"60000"`, "null", "99999999999999999999", "31536000001"} {
		back, err := Decode([]byte(`{"messageType":"readProperty","thingId":"x","messageId":"m","property":"p","timeLeft":` + left + `}`))
		if err != nil || !back.Deadline.IsZero() {
			t.Errorf("%s says %v, %v", left, back.Deadline, err)
		}
	}
}
