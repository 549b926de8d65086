package tdd

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/td"
)

// tdd-http-head, exploration-server-http-head: HEAD has the status and header of GET on every GET route, with the length if it is known,
// and no body.
func TestHeadIsGetWithoutBody(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.add("urn:x:a", "A")
	server := httptest.NewServer(w)
	defer server.Close()
	defer w.Drain()
	ask := func(method, path string) (int, http.Header, string) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, method, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept-Encoding", "identity")
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body := ""
		if method == http.MethodHead || !strings.HasPrefix(path, "/events") {
			b, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			body = string(b)
		}
		resp.Header.Del("Date")
		return resp.StatusCode, resp.Header, body
	}
	paths := map[string][]string{"/.well-known/wot": {""}, "/.well-known/core": {"", "?rt=wot.thing", "?x=1"},
		"/things": {"", "?limit=1", "?format=collection", "?limit=0"}, "/events": {"", "?diff=true", "?diff=x"},
		"/search/jsonpath": {"?query=$[*].id", "", "?query=$["}, "/search/xpath": {"?query=//id", "?query=//["},
		"/search/sparql": {"?query=ASK+%7B%7D", ""}, "/things/{id}": {"", "?enriched=false", "?x=1"}, "/events/{type}": {""}}
	for pattern, methods := range w.routes {
		if methods["GET"] == nil || len(paths[pattern]) == 0 {
			t.Errorf("%s: no GET, or not in this test", pattern)
		}
		for _, query := range paths[pattern] {
			path := strings.NewReplacer("{id}", "urn:x:a", "{type}", created).Replace(pattern) + query
			code, header, body := ask("GET", path)
			headCode, headHeader, headBody := ask("HEAD", path)
			if pattern == "/things" && code == 200 { // it streams (RFC 9110 §9.3.2)
				header.Del("Content-Length")
			}
			if headCode != code || !maps.EqualFunc(headHeader, header, slices.Equal) || headBody != "" {
				t.Errorf("%s: HEAD is %d %v %q, GET %d %v, %d bytes", path, headCode, headHeader, headBody, code, header, len(body))
			}
		}
	}
}

// tdd-things-list-pagination-header-nextlink: the links lead to each Thing once, in order, and end.
func TestPagesContainAllThings(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	var want []string
	for _, id := range []string{"urn:x:1", "urn:x:2", "urn:x:3", "urn:x:4", "urn:x:5"} {
		w.add(id, "T")
		want = append(want, id)
	}
	w.addForeign("urn:x:3", "of another owner")
	next := regexp.MustCompile(`<([^>]+)>; rel="next"`)
	for _, start := range []string{"/things?limit=1", "/things?limit=2&format=array&enriched=false",
		"/things?limit=4", "/things?limit=6"} {
		var got []string
		for path, pages := start, 0; path != ""; pages++ {
			rec := w.do(t, exchange{path: path})
			for _, one := range things(t, rec.Body.Bytes()) {
				got = append(got, one["id"].(string))
			}
			m := next.FindStringSubmatch(strings.Join(rec.Header().Values("Link"), ","))
			if path = ""; m != nil && pages < 10 {
				path = m[1]
			}
		}
		if !slices.Equal(slices.Compact(slices.Clone(got)), want) || len(got) != 6 {
			t.Errorf("%s: %v, want %v, one of them twice", start, got, want)
		}
	}
}

// tdd-validation-jsonschema, tdd-validation-result, tdd-validation-response-utf-8: the schema is that of TD 1.0 or 1.1, and each issue has
// its path.
func TestValidationErrors(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	for _, x := range []struct {
		name, old, new string
		fields         []string // "": 201
	}{
		{"TD 1.1", "", "", nil},
		{"TD 1.0", td.Context11, td.Context10, nil},
		{"both", `"` + td.Context11 + `"`, `["` + td.Context10 + `","` + td.Context11 + `"]`, nil},
		{"no context of TDs", td.Context11, "https://example.com/ns", []string{"@context"}},
		{"no title", `"title":"L",`, "", []string{"(root) ", "title"}},
		{"a number for an address", `"href":"http://127.0.0.1:9/on"`, `"href":7`, []string{"properties", "on", "forms", "0", "href"}},
		{"a name that is not ASCII", `"on":`, `"größe":7,"on":`, []string{"größe"}},
		{"two things at once", `"title":"L",`, `"title":1,"created":"yesterday",`, []string{"title", "created"}},
		{"a security that is not defined", `["nosec_sc"]`, `["other"]`, []string{"security"}},
		{"an operation of something else", `"href":`, `"op":"invokeaction","href":`, []string{"op"}},
	} {
		text := lamp("urn:x:v", "L")
		if x.old != "" && !strings.Contains(text, x.old) {
			t.Fatalf("%s: no %s", x.name, x.old)
		}
		text = strings.Replace(text, x.old, x.new, 1)
		rec := w.do(t, exchange{rule: x.name, method: "PUT", path: "/things/urn:x:v", header: asTD, body: text, status: -1})
		if x.fields == nil {
			if rec.Code != 201 && rec.Code != 204 {
				t.Errorf("%s: %d %s", x.name, rec.Code, rec.Body)
			}
			continue
		}
		var p struct {
			ValidationErrors []struct{ Field, Description string }
		}
		if err := json.Unmarshal(rec.Body.Bytes(), &p); err != nil || rec.Code != 400 || len(p.ValidationErrors) == 0 {
			t.Errorf("%s: %d %v %s", x.name, rec.Code, err, rec.Body)
		}
		fields := ""
		for _, e := range p.ValidationErrors {
			// A field is a JSON pointer, or "(root)".
			if fields += e.Field + " " + e.Description + "\n"; !strings.HasPrefix(e.Field+"/", "(root)/") && e.Field[:1] != "/" ||
				e.Description == "" {
				t.Errorf("%s: %+v", x.name, e)
			}
		}
		for _, field := range x.fields {
			if !strings.Contains(fields, field) {
				t.Errorf("%s: %q, want %q in it", x.name, fields, field)
			}
		}
	}
}

// WoT Discovery §7.1, ttl and expires: the server computes expires at creation and at every update; §7.3.2.1.5: the change of expires
// changes the tag of the list. An update without a registration removes it. tdd-registrationinfo-vocab-ttl
// tdd-registrationinfo-vocab-expires tdd-registrationinfo-vocab-retrieved
func TestEveryUpdateComputesExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		expires := func() any {
			t.Helper()
			var doc struct{ Registration map[string]any }
			if err := json.Unmarshal(w.do(t, exchange{path: "/things/urn:x:a?enriched=true"}).Body.Bytes(), &doc); err != nil {
				t.Fatal(err)
			}
			return doc.Registration["expires"]
		}
		in := func(d time.Duration) string { return time.Now().UTC().Add(d).Format(time.RFC3339) }
		withTTL := lamp("urn:x:a", "A", `"registration":{"ttl":60,"retrieved":"2001-01-01T00:00:00Z"}`)
		for _, x := range []struct {
			exchange
			want any
		}{
			{exchange{method: "PUT", path: "/things/urn:x:a", header: asTD, body: withTTL, status: 201}, in(60 * time.Second)},
			{exchange{method: "PUT", path: "/things/urn:x:a", header: asTD, body: withTTL, status: 204}, in(70 * time.Second)},
			{exchange{method: "PATCH", path: "/things/urn:x:a", header: asPatch, body: `{"title":"B"}`, status: 204},
				in(80 * time.Second)},
			{exchange{method: "PATCH", path: "/things/urn:x:a", header: asPatch, body: `{"registration":{"ttl":30}}`, status: 204},
				in(60 * time.Second)},
			{exchange{method: "PATCH", path: "/things/urn:x:a", header: asPatch, status: 204,
				body: `{"title":"C","registration":{"ttl":5}}`}, in(45 * time.Second)},
			{exchange{method: "PUT", path: "/things/urn:x:a", header: asTD, body: lamp("urn:x:a", "A"), status: 204}, nil},
			{exchange{method: "PUT", path: "/things/urn:x:a", header: asTD, body: withTTL, status: 204}, in(120 * time.Second)},
		} {
			w.do(t, x.exchange)
			if got := expires(); got != x.want {
				t.Errorf("%s %s: expires %v, want %v", x.method, x.body, got, x.want)
			}
			w.do(t, exchange{rule: "never stored", path: "/things/urn:x:a", lack: []string{"registration"}})
			time.Sleep(10 * time.Second)
		}
		tag := func() string {
			return strings.Join(w.do(t, exchange{path: "/things?limit=1"}).Header().Values("Link"), "")
		}
		before := tag()
		if err := w.publisher.Withdraw(t.Context(), "urn:x:a"); err != nil { // as a node does at the end of a registration
			t.Fatal(err)
		}
		w.do(t, exchange{path: "/things/urn:x:a", status: 404})
		if after := tag(); after == before {
			t.Errorf("the tag stays %s", after)
		}
	})
}
