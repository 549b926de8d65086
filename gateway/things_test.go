package gateway

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/td"
)

func TestCreateThings(t *testing.T) {
	t.Parallel()
	r := start(t, serving(newFake(), Options{}))
	for _, x := range []exchange{
		{name: "anonymous", method: "POST", path: "/things", header: tdBody, body: thingTD("", "Lamp"), status: 201},
		{name: "anonymous as JSON", method: "POST", path: "/things", header: merge(asAdmin, "Content-Type",
			"application/json; charset=UTF-8"),
			body: thingTD("", "Lamp 2"), status: 201},
		{name: "POST with an id", method: "POST", path: "/things", header: tdBody, body: thingTD("urn:x:a", "A"),
			status: 400,
			code:   "LMOS-1400", contain: "PUT /things/urn:x:a"},
		{name: "PUT", method: "PUT", path: "/things/urn:x:put", header: tdBody, body: thingTD("urn:x:put", "Put"),
			status: 201,
			want:   map[string]string{"Location": "/things/urn:x:put"}},
		{name: "PUT of a slashed id", method: "PUT", path: "/things/https:%2F%2Fx%2F%2Fy", header: tdBody,
			body: thingTD("https://x//y", "S"), status: 201,
			want: map[string]string{"Location": "/things/https:%2F%2Fx%2F%2Fy"}},
		{name: "PUT of a slashed id, raw", method: "PUT", path: "/things/https://x//raw", header: tdBody,
			body: thingTD("https://x//raw", "S"), status: 201},
		{name: "PUT of another id", method: "PUT", path: "/things/urn:x:1", header: tdBody, body: thingTD("urn:x:2",
			"B"), status: 400, code: "LMOS-1400"},
		{name: "PUT without an id", method: "PUT", path: "/things/urn:x:1", header: tdBody, body: thingTD("", "B"),
			status: 400, code: "LMOS-1400"},
		{name: "not JSON", method: "PUT", path: "/things/urn:x:1", header: tdBody, body: "{", status: 400,
			code: "LMOS-2010", contain: "validationErrors"},
		{name: "a member twice", method: "PUT", path: "/things/urn:x:1", header: tdBody,
			body: `{"id":"urn:x:1","id":"urn:x:1"}`, status: 400, code: "LMOS-2010"},
		{name: "not a TD", method: "PUT", path: "/things/urn:x:1", header: tdBody, body: `{"id":"urn:x:1"}`,
			status: 400, code: "LMOS-2011",
			contain: `"validationErrors":[{"field":`},
		{name: "too large", method: "PUT", path: "/things/urn:x:1", header: tdBody, body: strings.Repeat(" ",
			td.MaxTD+1), status: 413, code: "LMOS-1413"},
		{name: "as text", method: "PUT", path: "/things/urn:x:1", header: merge(asAdmin, "Content-Type",
			"text/plain"), body: "{}", status: 415,
			code: "LMOS-1415", contain: "application/td+json"},
		{name: "as nothing", method: "PUT", path: "/things/urn:x:1", header: asAdmin, body: "{}", status: 415,
			code: "LMOS-1415"},
		{name: "in Latin-1", method: "PUT", path: "/things/urn:x:1", header: merge(asAdmin, "Content-Type",
			tdJSON+"; charset=iso-8859-1"), body: "{}", status: 415},
		{name: "without a token", method: "PUT", path: "/things/urn:x:1",
			header: map[string]string{"Content-Type": tdJSON}, body: "{}", status: 401, code: "LMOS-1401"},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			r.check(t, x)
		})
	}
}

// A body of unknown length is limited, too.
func TestTooLargeWithoutALength(t *testing.T) {
	t.Parallel()
	r := start(t, Options{MaxTD: 1000})
	body := struct{ *strings.Reader }{strings.NewReader(strings.Repeat(" ", 2000))}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, r.url+"/things/x", body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", tdJSON)
	resp, err := r.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("status %d", resp.StatusCode)
	}
}

func TestReplaceAndDelete(t *testing.T) {
	t.Parallel()
	r := start(t, serving(newFake(), Options{}))
	put := exchange{method: "PUT", path: "/things/urn:x:a", header: tdBody, body: thingTD("urn:x:a", "A"), status: 201}
	r.check(t, put)
	put.status = 204
	r.check(t, put)
	r.check(t, exchange{path: "/things/urn:x:a", status: 200})
	r.check(t, exchange{method: "DELETE", path: "/things/urn:x:a", status: 401})
	r.check(t, exchange{method: "DELETE", path: "/things/urn:x:a", header: asAdmin, status: 204})
	r.check(t, exchange{method: "DELETE", path: "/things/urn:x:a", header: asAdmin, status: 404, code: "LMOS-1404"})
	r.check(t, exchange{path: "/things/urn:x:a", status: 404})
}

func TestConditions(t *testing.T) {
	t.Parallel()
	r := start(t, Options{})
	path := "/things/urn:x:weather"
	resp, _ := r.do(t, exchange{path: path})
	tag := resp.Header.Get("ETag")
	if len(tag) != 66 {
		t.Fatalf("ETag %q", tag)
	}
	put := func(id, header, value string, status int) exchange {
		return exchange{method: "PUT", path: "/things/" + id, header: merge(tdBody, header, value), body: thingTD(id,
			"Weather"), status: status}
	}
	for _, x := range []exchange{
		{path: path, header: map[string]string{"If-None-Match": tag}, status: 304},
		{path: path, header: map[string]string{"If-None-Match": `"x", W/` + tag}, status: 304},
		{path: path, header: map[string]string{"If-None-Match": `"x"`}, status: 200},
		put("urn:x:weather", "If-Match", `"x"`, 412),
		put("urn:x:weather", "If-None-Match", "*", 412),
		put("urn:x:other", "If-Match", "*", 412),
		{method: "DELETE", path: path, header: merge(asAdmin, "If-Match", `"x"`), status: 412,
			want: map[string]string{"ETag": tag}},
		put("urn:x:weather", "If-Match", tag, 204),
		put("urn:x:other", "If-None-Match", "*", 201),
		{method: "DELETE", path: path, header: merge(asAdmin, "If-Match", "*"), status: 204},
	} {
		r.check(t, x)
	}
}

// The routes of the directory have the access rules and errors of the gateway, and end with it.
func TestDirectoryIsServed(t *testing.T) {
	t.Parallel()
	r := start(t, Options{})
	for _, x := range []exchange{
		{path: "/things?format=collection", status: 200, contain: `"@type":"ThingCollection"`},
		{path: "/things?limit=0", status: 400, code: "LMOS-2000"},
		{path: "/search/jsonpath?query=$[*].title", status: 200, contain: `["Weather"]`},
		{path: "/search/sparql?query=ASK{}", status: 404, code: "LMOS-1405"},
		{path: "/.well-known/core", status: 200, contain: "wot.directory"},
		{method: "HEAD", path: "/events", status: 200},
		{path: "/events/none", status: 404, code: "LMOS-1405"},
		{method: "PATCH", path: "/things/urn:x:weather", header: merge(asAdmin, "Content-Type", "application/merge-patch+json"),
			body: "{}", status: 204},
		{method: "PATCH", path: "/things/urn:x:weather", header: map[string]string{"Content-Type": "application/merge-patch+json"},
			body: "{}", status: 401},
		{method: "POST", path: "/search/sparql", header: map[string]string{"Origin": "http://evil.example"}, status: 403},
	} {
		r.check(t, x)
	}
	beyond := start(t, Options{Listen: "0.0.0.0:0"})
	for _, path := range []string{"/things", "/things/urn:x:weather", "/events", "/search/jsonpath?query=$", "/search/xpath?query=/*"} {
		beyond.check(t, exchange{path: path, status: 401})
		beyond.check(t, exchange{method: "HEAD", path: path, header: asAdmin, status: 200})
	}
	beyond.check(t, exchange{path: "/.well-known/wot", status: 200})
	beyond.check(t, exchange{path: "/.well-known/core", status: 200})
	beyond.check(t, exchange{path: "/.well-known/core?rt=wot.thing", status: 401})
	resp, err := r.http.Get(r.url + "/events")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	r.stop()
	if _, err := io.ReadAll(resp.Body); err != nil {
		t.Errorf("the event stream failed: %v", err)
	}
}
