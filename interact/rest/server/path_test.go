package server

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
)

func TestThingID(t *testing.T) {
	t.Parallel()
	const uri = "https://agent.example:8080/a//b%2Fc?q"
	tests := []struct{ name, path, id, rest string }{
		{"short name", "/things/weather/actions/getWeather", "weather", "actions/getWeather"},
		{"urn", "/things/urn:uuid:1-2/properties/units", "urn:uuid:1-2", "properties/units"},
		{"urn, encoded", "/things/urn%3Auuid%3A1-2/properties/units", "urn:uuid:1-2", "properties/units"},
		{"exact reference", "/things/urn:x@z6MkpTHR/properties", "urn:x@z6MkpTHR", "properties"},
		{"http address", "/things/https://a.example/x//y/actions/go", "https://a.example/x//y", "actions/go"},
		{"http address, encoded", "/things/https%3A%2F%2Fa.example%2Fx%2F%2Fy/actions/go", "https://a.example/x//y",
			"actions/go"},
		{"all of them, encoded", "/things/" + url.PathEscape(uri) + "/properties", uri, "properties"},
		{"unescaped once", "/things/a%2525/properties", "a%25", "properties"},
		{"name with an escaped slash", "/things/a/actions/b%2Fc", "a", "actions/b%2Fc"},
		{"task of an action", "/things/a/actions/b/c", "a", "actions/b/c"},
		{"a property called actions", "/things/a/properties/actions", "a", "properties/actions"},
		{"an id with the name of a resource", "/things/urn:x/properties/y/z/actions/go", "urn:x/properties/y/z", "actions/go"},
		{"an id that ends like a rest, encoded", "/things/urn:x%2Fproperties%2Fy/actions/go", "urn:x/properties/y",
			"actions/go"},
		{"events", "/things/a/events", "a", "events"},
		{"an id alone", "/things/urn:x:y", "urn:x:y", ""},
		{"an id with slashes alone", "/things/https://a.example/x/", "https://a.example/x/", ""},
		{"slash at the end", "/things/a/properties/", "a/properties/", ""},
		{"too many names", "/things/a/properties/b/c", "a/properties/b/c", ""},
		{"a long poll", "/things/a/properties/b/observable", "a", "properties/b/observable"},
		{"no long poll", "/things/a/properties/b/observable/c", "a/properties/b/observable/c", ""},
		{"a TD", "/things/https://a.example/x/td", "https://a.example/x", "td"},
		{"below a TD", "/things/a/td/x", "a/td/x", ""},
		{"a subscription", "/things/a/subscriptions/1", "a", "subscriptions/1"},
		{"no subscription", "/things/a/subscriptions", "a/subscriptions", ""},
		{"no id", "/things/", "", ""},
		{"no id", "/things//properties", "", "properties"},
		{"the name of a resource as id", "/things/properties", "properties", ""},
		{"another prefix", "/agents/x", "", ""},
	}
	for _, tt := range tests {
		r := httptest.NewRequest(http.MethodGet, tt.path, nil)
		if id, rest := ThingID(r, "/things/"); id != tt.id || rest != tt.rest {
			t.Errorf("%s: got %q, %q, want %q, %q", tt.name, id, rest, tt.id, tt.rest)
		}
	}
}

func TestThingIDAllocatesLittle(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "/things/urn:uuid:1-2/actions/go", nil)
	if n := testing.AllocsPerRun(100, func() { ThingID(r, "/things/") }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzThingID(f *testing.F) {
	for _, p := range []string{"/things/a/actions/b", "/things/https://x//y/properties", "/things/%2F%25/events/e",
		"/things/", "//", "/things/a/properties/%zz"} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, path string) {
		u, err := url.ParseRequestURI(path)
		if err != nil {
			return
		}
		id, rest := ThingID(&http.Request{URL: u}, "/things/")
		if rest != "" && !isRest(rest) {
			t.Errorf("%q has the rest %q", path, rest)
		}
		// What a well-behaved client sends for any id comes back as it was.
		again, err := url.ParseRequestURI("/things/" + url.PathEscape(id) + "/properties/p")
		if err != nil {
			t.Fatal(err)
		}
		if back, rest := ThingID(&http.Request{URL: again}, "/things/"); back != id || rest != "properties/p" {
			t.Errorf("%q came back as %q with %q", id, back, rest)
		}
	})
}
