package form

import (
	"encoding/json"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/td"
)

// rooms is a Thing with variables in path and query.
func rooms(t testing.TB) *td.Thing {
	t.Helper()
	thing, err := td.Parse([]byte(`{"@context": "https://www.w3.org/2022/wot/td/v1.1", "title": "Rooms", "id": "urn:x:rooms",
		"securityDefinitions": {"no": {"scheme": "nosec"}}, "security": "no", "actions": {
		"say": {"input": {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}, "room": {"type": "string"}}},
			"uriVariables": {"room": {"type": "string"}, "volume": {"type": "number"}}, "forms": [{"href": "http://a.example/say/{room}{?volume}"}]},
		"pick": {"uriVariables": {"ids": {"oneOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}, "maxItems": 3}]},
			"tags": {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
			"limit": {"type": "integer", "lmosd:required": true}, "deep": {"type": "boolean"}},
			"forms": [{"href": "http://a.example/pick/{ids}{?tags*,limit,deep}"}]}}}`))
	if err != nil {
		t.Fatal(err)
	}
	return thing
}

// TestVariablesOfAQuery adds the query of a consumer to the input, by the schemas.
func TestVariablesOfAQuery(t *testing.T) {
	t.Parallel()
	pick := rooms(t).Actions["pick"]
	for query, want := range map[string]string{
		"ids=7&limit=10&tags=a&deep=true": `{"deep":true,"ids":7,"limit":10,"tags":"a"}`,
		"ids=7&ids=8&tags=1&tags=2":       `{"ids":[7,8],"tags":["1","2"]}`,
		"limit=1&limit=2":                 `{"limit":1}`,
	} {
		q, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		var got, wanted any
		raw := AddVariables(nil, q, pick.URIVariables, nil)
		if json.Unmarshal(raw, &got) != nil || json.Unmarshal([]byte(want), &wanted) != nil || !reflect.DeepEqual(got, wanted) {
			t.Errorf("%s: got %s, want %s", query, raw, want)
		}
	}
}

func TestExpand(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, href string
		vars       map[string][]string
		want       string // "" means refused
	}{
		{"no template", "http://a.example/x?y=1", nil, "http://a.example/x?y=1"},
		{"reserved expansion keeps slashes", "http://a.example/{+path}", map[string][]string{"path": {"a/b"}},
			"http://a.example/a/b"},
		{"reserved expansion with dots", "http://a.example/x/{+path}", map[string][]string{"path": {"../b"}}, ""},
		{"reserved expansion with escaped dots", "http://a.example/x/{+path}", map[string][]string{"path": {"%2e%2e/b"}}, ""},
		{"dots of the form itself stay", "http://a.example/x/../{v}", map[string][]string{"v": {"y"}},
			"http://a.example/x/../y"},
		{"the host is not for a variable", "http://{host}/x", map[string][]string{"host": {"b.example"}}, ""},
		{"nor a part of it", "http://a{+x}/y", map[string][]string{"x": {".b.example"}}, ""},
		{"nor a user before it", "http://a.example{+x}", map[string][]string{"x": {"@b.example/"}}, ""},
		{"nor the port", "http://a.example{+x}", map[string][]string{"x": {":99"}}, ""},
		{"a path right behind the host", "http://a.example{/x}", map[string][]string{"x": {"y"}}, "http://a.example/y"},
		{"a query right behind the host", "http://a.example{?x}", map[string][]string{"x": {"y"}}, "http://a.example?x=y"},
		{"query continuation", "http://a.example/?a=1{&x}", map[string][]string{"x": {"y&z"}},
			"http://a.example/?a=1&x=y%26z"},
		{"escaped escapes", "http://a.example/{x}", map[string][]string{"x": {"%2e%2e"}}, "http://a.example/%252e%252e"},
		{"broken template", "http://a.example/{x", nil, ""},
		{"no host", "http:///x", nil, ""},
		{"relative", "/x", nil, ""},
		{"prefix", "http://a.example/{x:2}", map[string][]string{"x": {"abc"}}, "http://a.example/ab"},
	}
	for _, tt := range tests {
		u, err := Expand(tt.href, tt.vars)
		switch {
		case tt.want == "" && err == nil:
			t.Errorf("%s: got %s, want an error", tt.name, u)
		case tt.want != "" && (err != nil || u.String() != tt.want):
			t.Errorf("%s: got %v, %v, want %s", tt.name, u, err, tt.want)
		}
	}
}

func FuzzExpand(f *testing.F) {
	f.Add("http://a.example/x/{v}{?q}", "1", "..")
	f.Add("http://a.example{+v}", "@b.example/", ":99")
	f.Add("https://[::1]:8{/v:3}/{+q*}", "ü", "%2e%2e")
	f.Add("http://a.example/{", "", "")
	f.Fuzz(func(t *testing.T, href, v, q string) {
		u, err := Expand(href, map[string][]string{"v": {v}, "q": {q, v}})
		if err != nil {
			return
		}
		if u.Host == "" || strings.Contains(href, "{") && credentials.Origin(u) != credentials.OriginOf(href) {
			t.Errorf("%q with %q and %q leads to %s", href, v, q, u)
		}
	})
}

func FuzzSplit(f *testing.F) {
	thing := rooms(f)
	say := thing.Actions["say"]
	f.Add([]byte(`{"room":"hall","text":"hi"}`))
	f.Add([]byte(`{"volume":1e400}`))
	f.Add([]byte(`{"room":{},"room":1}`))
	f.Add([]byte(`[1]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, rest, issues := split(data, say.URIVariables, say.Input)
		if len(issues) > 0 || len(rest) == 0 {
			return
		}
		before, err := decode(data)
		after, err2 := decode(rest)
		if (err == nil) != (err2 == nil) {
			t.Fatalf("%q: %v, after the split %q: %v", data, err, rest, err2)
		}
		b, ok := before.(map[string]any)
		if a, _ := after.(map[string]any); ok && !slices.Equal(keysWithout(b, "volume"), keysWithout(a, "volume")) {
			t.Errorf("%q became %q", data, rest)
		}
	})
}

func keysWithout(m map[string]any, name string) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(m)), func(s string) bool { return s == name })
}
