package tdd

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/td"
)

// The examples of RFC 7396, appendix A.
func TestMerge(t *testing.T) {
	t.Parallel()
	for _, x := range [][3]string{
		{`{"a":"b"}`, `{"a":"c"}`, `{"a":"c"}`}, {`{"a":"b"}`, `{"b":"c"}`, `{"a":"b","b":"c"}`}, {`{"a":"b"}`, `{"a":null}`, `{}`},
		{`{"a":"b","b":"c"}`, `{"a":null}`, `{"b":"c"}`}, {`{"a":["b"]}`, `{"a":"c"}`, `{"a":"c"}`}, {`{"a":"c"}`, `{"a":["b"]}`,
			`{"a":["b"]}`},
		{`{"a":{"b":"c"}}`, `{"a":{"b":"d","c":null}}`, `{"a":{"b":"d"}}`}, {`{"a":[{"b":"c"}]}`, `{"a":[1]}`,
			`{"a":[1]}`}, {`["a","b"]`, `["c","d"]`, `["c","d"]`},
		{`{"a":"b"}`, `["c"]`, `["c"]`}, {`{"a":"foo"}`, `null`, `null`}, {`{"a":"foo"}`, `"bar"`, `"bar"`}, {`{"e":null}`, `{"a":1}`,
			`{"a":1,"e":null}`},
		{`[1,2]`, `{"a":"b","c":null}`, `{"a":"b"}`}, {`{}`, `{"a":{"bb":{"ccc":null}}}`, `{"a":{"bb":{}}}`},
	} {
		target, patch := decode(t, x[0]), decode(t, x[1])
		if got := encode(t, merge(target, patch)); got != x[2] {
			t.Errorf("%s with %s: %s, want %s", x[0], x[1], got, x[2])
		}
		object, isObject := decode(t, x[0]).(map[string]any)
		changes, isPatch := patch.(map[string]any)
		if !isObject || !isPatch {
			continue
		}
		got, err := mergeTD([]byte(x[0]), changes)
		if err != nil || encode(t, decode(t, string(got))) != x[2] {
			t.Errorf("%s with %s as text: %v %s", x[0], x[1], err, got)
		}
		if after := decode(t, x[2]).(map[string]any); encode(t, merge(object, diff(decode(t, x[0]).(map[string]any), after))) != x[2] {
			t.Errorf("the diff of %s and %s is %v", x[0], x[2], diff(object, after))
		}
	}
	got, err := mergeTD([]byte(`{"z": 1,  "y" : [1,  2], "b":{"c":1}}`),
		map[string]any{"z": 2.0, "a": "new", "b": map[string]any{"d": nil}})
	if want := `{"z":2,"y":[1,  2],"b":{"c":1},"a":"new"}`; err != nil || string(got) != want {
		t.Errorf("got %v %s, want %s: unnamed members keep their text", err, got, want)
	}
}

func decode(t testing.TB, text string) any {
	t.Helper()
	v, err := jcs.Decode([]byte(text), len(text))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func encode(t testing.TB, v any) string {
	t.Helper()
	b, err := jcs.Append(nil, v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// noNull reports whether v has no null in an object, which a patch cannot express.
func noNull(v any) bool {
	m, _ := v.(map[string]any)
	for _, e := range m {
		if e == nil || !noNull(e) {
			return false
		}
	}
	return true
}

// A merge results in a valid object, the same by value and by text, and the diff of both leads to it.
func FuzzMerge(f *testing.F) {
	f.Add(`{"a":{"b":1},"c":null}`, `{"a":{"b":null,"d":[1]},"c":2}`)
	f.Add(`{}`, `{"a":{"b":{"c":null}}}`)
	f.Fuzz(func(t *testing.T, target, patch string) {
		a, err := jcs.Object([]byte(target), 4096)
		if err != nil {
			return
		}
		p, err := jcs.Object([]byte(patch), 4096)
		if err != nil {
			return
		}
		byText, err := mergeTD([]byte(target), p)
		if err != nil {
			t.Fatal(err)
		}
		got, err := jcs.Object(byText, len(byText))
		if err != nil {
			t.Fatal(err)
		}
		before, _ := jcs.Object([]byte(target), 4096)
		if want := merge(a, p); encode(t, got) != encode(t, want) {
			t.Fatalf("%s with %s: %s, want %s", target, patch, encode(t, got), encode(t, want))
		}
		if noNull(got) {
			if back := merge(before, diff(before, got)); !reflect.DeepEqual(back, any(got)) {
				t.Fatalf("the diff of %s and %s leads to %v", target, byText, back)
			}
		}
	})
}

// The result of every query is an array or an error, for limited work.
func FuzzQueries(f *testing.F) {
	for _, q := range []string{`$[?@.title=='Lamp 3']`, `$..*`, `$[?search(@.title,'a.*')]`, `$[?@..[?@.a]]`, `/*[title='x']/id`,
		`//*[contains(.,'a')]`, `count(//*)`, `/*[1]/..`, `$[`, `((`, `$[?(`, `//*[`, `$['\u`, `//*[matches(.,'(a+)+$')]`,
		`concat('\',string-join(//*,'\'))`, `//*[matches(concat(.,.), 'a')]|//*`, `$[?@.a==@.b]..*`} {
		f.Add(q)
	}
	w := lamps(f, 3)
	f.Fuzz(func(t *testing.T, query string) {
		for _, endpoint := range []string{"jsonpath", "xpath"} {
			const most = 20_000
			out, steps, err := w.query(endpoint, query, most)
			hasNext := err == nil || interact.AsError(err).Hint != "" || interact.AsError(err).Next != nil
			if err == nil && !json.Valid(out.body) || !hasNext || steps > most+maxMatch/64+100_000 {
				t.Fatalf("%s %q: %d steps, %v %s", endpoint, query, steps, err, out.body)
			}
		}
	})
}

// A registration is read or rejected, and the rest is the TD.
func FuzzRegistration(f *testing.F) {
	f.Add(`{"a":1,"registration":{"ttl":5}}`)
	f.Add(`{"registration":{"expires":"2999-01-01T00:00:00Z","created":null}}`)
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > td.MaxTD {
			return
		}
		rest, r, err := takeRegistration([]byte(text))
		if err == nil && (r.TTL < 0 || r.TTL > maxTTL) {
			t.Fatalf("%s: %+v", text, r)
		}
		if m, bad := jcs.Object(rest, td.MaxTD); bad == nil && err == nil {
			if _, there := m["registration"]; there {
				t.Fatalf("%s has one still", rest)
			}
			if enriched := newServer.enrich(nil, rest, entry{Registration: r}, r.Expires); !json.Valid(enriched) ||
				!strings.Contains(string(enriched), `"registration":`) {
				t.Fatalf("%s becomes %s", rest, enriched)
			}
		}
	})
}

var newServer = &Server{}
