package interact

import (
	"context"
	"encoding/json"
	"iter"
	"testing"
)

func TestJoin(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		parts       []Part
		want, media string
	}{
		"one":             {[]Part{{[]byte("x"), "text/plain"}}, "x", "text/plain"},
		"texts":           {[]Part{{[]byte("a "), "text/plain"}, {[]byte("b"), "text/plain"}}, "a b", "text/plain"},
		"bytes":           {[]Part{{[]byte{1}, "audio/opus"}, {[]byte{2}, "audio/opus"}}, "\x01\x02", "audio/opus"},
		"values":          {[]Part{{[]byte("1"), JSON}, {[]byte(`"a"`), JSON}}, `[1,"a"]`, JSON},
		"texts in JSON":   {[]Part{{[]byte(`"a <\u00e9"`), JSON}, {[]byte(` "b"`), JSON}}, `"a <éb"`, JSON},
		"nothing in JSON": {[]Part{{[]byte(`null`), JSON}, {[]byte(`"b"`), JSON}}, `[null,"b"]`, JSON},
		"CBOR":            {[]Part{{[]byte{1}, CBOR}, {[]byte{0x61, 'a'}, CBOR}}, `[1,"a"]`, JSON},
		"CBOR and JSON":   {[]Part{{[]byte{0x61, 'a'}, CBOR}, {[]byte(`"b"`), JSON}}, `"ab"`, JSON},
		"no JSON":         {[]Part{{[]byte("{"), JSON}, {[]byte(`}`), JSON}}, `{}`, JSON},
		"rows": {[]Part{{[]byte("1\n"), "application/x-ndjson"}, {[]byte("2\n"), "application/x-ndjson"}}, "1\n2\n",
			"application/x-ndjson"},
		"JSON and the end": {[]Part{{[]byte("1"), JSON}, {[]byte("end"), "text/plain"}}, "1end", JSON},
	} {
		data, media := Join(c.parts)
		if string(data) != c.want || media != c.media {
			t.Errorf("%s: got %s of %s, want %s of %s", name, data, media, c.want, c.media)
		}
	}
}

// FuzzJoin: joined parts are JSON if the media type is JSON and all parts are JSON.
func FuzzJoin(f *testing.F) {
	f.Add([]byte(`"a"`), []byte(`"b"`), true)
	f.Add([]byte(`{"a":1}`), []byte{0xa0}, false)
	f.Fuzz(func(t *testing.T, a, b []byte, inJSON bool) {
		media := CBOR
		if inJSON {
			media = JSON
		}
		parts := []Part{{a, JSON}, {b, media}}
		_, ok := asValues(parts)
		if data, _ := Join(parts); ok && !json.Valid(data) {
			t.Errorf("%q and %q make %q", a, b, data)
		}
	})
}

func TestAskJoinsParts(t *testing.T) {
	t.Parallel()
	parts := func(data ...string) Thing {
		return Func(func(_ context.Context, m *Message) iter.Seq2[*Message, error] {
			return func(yield func(*Message, error) bool) {
				for _, d := range data {
					r := m.Reply(ActionStatus, "text/plain", []byte(d))
					if r.Status = StatusRunning; !yield(r, nil) {
						return
					}
				}
				last := m.Reply(ActionStatus, "", nil)
				last.Status = StatusCompleted
				yield(last, nil)
			}
		})
	}
	r, err := Call(t.Context(), parts("a", "", "b"), &Message{Type: InvokeAction, Name: "x"})
	if err != nil || string(r.Data) != "ab" || r.ContentType != "text/plain" || r.Status != StatusCompleted {
		t.Errorf("got %+v, %v", r, err)
	}
	big := string(make([]byte, maxJoined/2+1))
	if _, err := Call(t.Context(), parts(big, big), &Message{Type: InvokeAction, Name: "x"}); AsError(err).Code != TooLarge {
		t.Errorf("got %v, want TooLarge", err)
	}
}
