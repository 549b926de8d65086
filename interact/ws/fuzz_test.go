package ws

import (
	"testing"
	"unicode/utf8"

	"github.com/lmosd/lmosd/interact"
)

// FuzzFrame reads anything. What can be read can be written in its own dialect: a request means the same then, and what means
// the same once means the same for ever.
func FuzzFrame(f *testing.F) {
	_, all := goldens(f)
	for _, e := range all {
		f.Add([]byte(e.frame))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		first, err := decode(b)
		if err != nil {
			if e := interact.AsError(err); e.Code == interact.Internal || e.Hint == "" {
				t.Fatalf("%q: %v", b, err)
			}
			return
		}
		if interact.IsCBOR(first.ContentType) {
			return // it is written as JSON, if it is CBOR at all
		}
		second := again(t, first)
		third := again(t, second)
		if meaning(second) != meaning(third) {
			t.Fatalf("%q:\n%s\n%s", b, meaning(second), meaning(third))
		}
		if first.asks() && meaning(first) != meaning(second) {
			t.Fatalf("%q:\n%s\n%s", b, meaning(first), meaning(second))
		}
	})
}

// again writes f and reads it.
func again(t *testing.T, f *frame) *frame {
	f.style.dialect = f.marks
	b, err := f.encode()
	if err != nil {
		t.Fatalf("%s cannot be written: %v", meaning(f), err)
	}
	g, err := decode(b)
	if err != nil {
		t.Fatalf("%s is written as %s: %v", meaning(f), b, err)
	}
	return g
}

// FuzzProblem reads the error of anybody: it has a code, a hint and no control characters.
func FuzzProblem(f *testing.F) {
	f.Add([]byte(`{"type":"https://eclipse.dev/lmos/protocol/v1/errors#not-found","status":"404","detail":"x","code":"LMOS-1405"}`))
	f.Add([]byte(`"text"`))
	f.Add([]byte(`{"status":503,"validationErrors":[{"field":"/a","description":"b"}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		e := readProblem(b)
		if e.Code == 0 || e.Hint == "" || len(e.Title) > maxText+8 || interact.Readable(e.Title) != e.Title {
			t.Fatalf("%q: %+v", b, e)
		}
	})
}

// FuzzConversation says anything to a server: it must go on to answer.
func FuzzConversation(f *testing.F) {
	_, all := goldens(f)
	for _, e := range all {
		f.Add(e.frame)
	}
	l := newLab()
	l.unblock.Do(func() { close(l.release) })
	_, url := serve(f, l, ServerOptions{Rate: 1e9, MaxPending: 1e6, MaxSubscriptions: 4})
	w := dial(f, url)
	f.Fuzz(func(t *testing.T, frame string) {
		if !utf8.ValidString(frame) {
			return
		}
		w.t = t
		w.say(frame)
		w.quietAs(interact.NewID())
	})
}
