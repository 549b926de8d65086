package tdd

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
)

// Listing: WoT Discovery §7.3.2.1.5.
func TestListRules(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	for _, id := range []string{"urn:x:3", "urn:x:1", "urn:x:ä", "urn:x:Z", "urn:x:\U0001F600", "urn:x:\uFFFD"} {
		w.add(id, "T")
	}
	w.addForeign("urn:x:2", "Theirs")
	all := "urn:x:1 urn:x:2 urn:x:3 urn:x:Z urn:x:ä urn:x:\uFFFD urn:x:\U0001F600" // tdd-things-list-pagination-order-default
	next := func(address string) string { return "<" + address + `>; rel="next"` }
	for _, x := range []struct{ rule, query, ids, next string }{
		{"tdd-things-list-only tdd-things-list-method tdd-things-list-resp", "", all, ""},
		{"tdd-things-list-pagination tdd-things-list-pagination-limit tdd-things-list-pagination-header-nextlink", "?limit=2",
			"urn:x:1 urn:x:2", next("/things?limit=2&offset=2")},
		{"tdd-things-list-pagination-header-nextlink-attr tdd-things-list-pagination-header-nextlink-base",
			"?limit=1&offset=1&scope=local&fields=id", "urn:x:3", next("/things?limit=1&offset=2&scope=local&fields=id")},
		{"the last page", "?limit=3&offset=4", "urn:x:ä urn:x:\uFFFD urn:x:\U0001F600", ""},
		{"the page that ends it", "?limit=7", all, ""},
		{"behind the end", "?offset=9", "", ""},
		{"tdd-things-list-pagination-collection: the default", "?format=array", all, ""},
		{"scope", "?scope=mesh", "urn:x:2", ""},
	} {
		rec := w.do(t, exchange{rule: x.rule, path: "/things" + x.query, want: map[string]string{"Content-Type": typeLD}})
		if got := idsOf(things(t, rec.Body.Bytes())); got != x.ids {
			t.Errorf("%s: got %s, want %s", x.query, got, x.ids)
		}
		links := strings.Join(rec.Header().Values("Link"), "\n")
		if !strings.Contains(links, x.next) || x.next == "" && strings.Contains(links, "next") {
			t.Errorf("%s: links %s, want %s", x.query, links, x.next)
		}
		if paged := strings.Contains(x.query, "limit") ||
			strings.Contains(x.query, "offset"); paged != strings.Contains(links, `</things>; rel="canonical"; etag="`) {
			t.Errorf("%s: tdd-things-list-pagination-header-canonicallink: %s", x.query, links)
		}
	}
	w.run(t, []exchange{
		{rule: "tdd-things-list-resp-content-type", path: "/things", header: map[string]string{"Accept": typeJSON},
			want: map[string]string{"Content-Type": typeJSON}},
		{rule: "tdd-http-head", method: "HEAD", path: "/things?limit=1",
			want: map[string]string{"Content-Type": typeLD, "Link": next("/things?limit=1&offset=1")}},
		{rule: "enriched", path: "/things", contain: []string{`"registration":{"created"`}},
		{rule: "as signed", path: "/things?enriched=false", lack: []string{`"registration"`}},
		{rule: "fields", path: "/things?limit=1&fields=title,id", contain: []string{`[{"id":"urn:x:1","title":"T"}]`}},
		{path: "/things?limit=0", status: 400}, {path: "/things?limit=x", status: 400}, {path: "/things?offset=-1", status: 400},
		{path: "/things?limit=99999999999", status: 400}, {path: "/things?format=xml", status: 400}, {path: "/things?scope=world",
			status: 400},
		{path: "/things?fields=", status: 400}, {path: "/things?enriched=maybe", status: 400}, {path: "/things?enriched=", status: 400},
		{path: "/things?limit=1&limit=2", status: 400},
		{path: "/things?limit=%zz", status: 400}, {rule: "no forms of a node", path: "/things?forms=node", status: 400},
	})
}

// tdd-things-list-pagination-header-canonicallink: the tag changes with the list.
func TestListTag(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	form, seen := regexp.MustCompile(`etag="([^"]+)"`), map[string]bool{}
	look := func(what string, fresh bool) {
		t.Helper()
		m := form.FindStringSubmatch(strings.Join(w.do(t, exchange{path: "/things?limit=1"}).Header().Values("Link"), "\n"))
		if m == nil || seen[m[1]] == fresh {
			t.Fatalf("%s: tag %v", what, m)
		}
		seen[m[1]] = true
	}
	look("empty", true)
	w.add("urn:x:a", "A")
	look("created", true)
	look("read again", false)
	w.addForeign("urn:x:b", "B")
	look("foreign Thing added", true)
	w.do(t, exchange{method: "DELETE", path: "/things/urn:x:a", status: 204})
	look("deleted", true)
}

// tdd-things-list-pagination-collection.
func TestCollection(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	for i := range 3 {
		w.add(fmt.Sprintf("urn:x:%d", i), "T")
	}
	read := func(path string) (c struct {
		Context string `json:"@context"`
		Type    string `json:"@type"`
		ID      string `json:"@id"`
		Total   int
		Next    string
		Members []map[string]any
	}) {
		if err := json.Unmarshal(w.do(t, exchange{path: path}).Body.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := read("/things?format=collection&limit=2")
	if c.Context != "https://www.w3.org/2022/wot/discovery" || c.Type != "ThingCollection" ||
		c.ID != "/things?limit=2&format=collection" || c.Total != 3 ||
		c.Next != "/things?limit=2&offset=2&format=collection" || idsOf(c.Members) != "urn:x:0 urn:x:1" {
		t.Errorf("got %+v", c)
	}
	if c = read(c.Next); c.Next != "" || c.ID != "/things?limit=2&offset=2&format=collection" || idsOf(c.Members) != "urn:x:2" {
		t.Errorf("got %+v", c)
	}
}

// A list without a limit is complete, streamed, and compressed on request.
func TestLargeList(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	for i := range 300 {
		w.addForeign(fmt.Sprintf("urn:x:%03d", i), "T", `"description":"`+strings.Repeat("long ", 100)+`"`)
	}
	plain := w.do(t, exchange{path: "/things"})
	zipped := w.do(t, exchange{rule: "tdd-http-representation-alternate-output", path: "/things",
		header: map[string]string{"Accept-Encoding": "br, gzip"},
		want:   map[string]string{"Content-Encoding": "gzip"}})
	if zipped.Body.Len()*4 > plain.Body.Len() {
		t.Errorf("%d bytes, %d without gzip", zipped.Body.Len(), plain.Body.Len())
	}
	z, err := gzip.NewReader(zipped.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range []string{plain.Body.String(), body(t, z)} {
		if n := len(things(t, []byte(b))); n != 300 {
			t.Errorf("%d things", n)
		}
	}
	for accept, want := range map[string]string{"gzip;q=0": "", "identity": "", "": "", "*": "gzip", "gzip; q=0.5": "gzip"} {
		w.do(t, exchange{path: "/things?limit=1", header: map[string]string{"Accept-Encoding": accept},
			want: map[string]string{"Content-Encoding": want}})
	}
	w.do(t, exchange{method: "HEAD", path: "/things", header: map[string]string{"Accept-Encoding": "gzip"},
		want: map[string]string{"Content-Encoding": "gzip"}})
}

// CoRE links: WoT Discovery §6.4; RFC 6690. introduction-core-rd introduction-core-rd-resource-type-thing
// introduction-core-rd-resource-type-directory
func TestLinks(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.add("urn:x:a", `The \"A\"`)
	w.addForeign("urn:x:b", "B")
	own, theirs := w.publisher.key.DID().Multibase(), ""
	for _, item := range w.o.Things.Lookup(t.Context(), "urn:x:b") {
		theirs = item.Record.Owner.Multibase()
	}
	mine := `</things/urn:x:a@` + own + `>;rt="wot.thing";ct=432;title="The \"A\""`
	all := mine + `,</things/urn:x:b@` + theirs + `>;rt="wot.thing";ct=432;title="B"`
	links := map[string]string{"Accept": typeLinks}
	for _, x := range []struct {
		path   string
		header map[string]string
		want   string
	}{
		{"/things", links, all},
		{"/things?limit=1", links, mine},
		{"/.well-known/core", nil, `</.well-known/wot>;rt="wot.directory";ct=432`},
		{"/.well-known/core?rt=wot.directory", nil, `</.well-known/wot>;rt="wot.directory";ct=432`},
		{"/.well-known/core?rt=wot.thing", nil, mine},
		{"/.well-known/core?rt=x", nil, ""},
	} {
		if rec := w.do(t, exchange{path: x.path, header: x.header,
			want: map[string]string{"Content-Type": typeLinks}}); rec.Body.String() != x.want {
			t.Errorf("%s: %s\nwant %s", x.path, rec.Body, x.want)
		}
	}
	w.run(t, []exchange{{method: "HEAD", path: "/.well-known/core"}, {method: "HEAD", path: "/things", header: links},
		{path: "/.well-known/core?href=/x", status: 400},
		{path: "/things/urn:x:a@" + own, contain: []string{`"id":"urn:x:a"`}}})
}

// The TD of the directory: introduction-direct-thing-description introduction-direct-directory-description introduction-well-known-uri
// introduction-well-known-path introduction-well-known-thing-description exploration-server-http-alternate-content
func TestSelf(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	tag := w.do(t, exchange{path: "/.well-known/wot", want: map[string]string{"Content-Type": typeTD},
		contain: []string{"self"}}).Header().Get("ETag")
	w.run(t, []exchange{{method: "HEAD", path: "/.well-known/wot", want: map[string]string{"Content-Length": "16"}},
		{path: "/.well-known/wot", header: map[string]string{"If-None-Match": tag}, status: 304},
		{path: "/.well-known/wot", header: map[string]string{"Accept": typeJSON}, want: map[string]string{"Content-Type": typeJSON}}})
}

// A name that resembles that of a Thing of this node is marked in the registration; the signed TD is unchanged.
func TestSimilarNamesAreMarked(t *testing.T) {
	t.Parallel()
	w := newFixture(t, func(o *Options) { o.Resembles = o.Things.(Index).Resembles })
	w.add("urn:x:echo", "Echo")
	w.addForeign("urn:x:fake", "\u0415cho")
	const mark = `"lmosd:resembles":"echo"`
	for path, marks := range map[string]int{"/things": 1, "/things/urn:x:fake?enriched=true": 1, "/things/urn:x:echo?enriched=true": 0,
		"/things/urn:x:fake": 0, "/things?enriched=false": 0, "/search/jsonpath?query=$[*]": 1} {
		if body := w.do(t, exchange{path: path}).Body.String(); strings.Count(body, mark) != marks || strings.Count(body, "resembles") != marks {
			t.Errorf("%s: want %d marks: %s", path, marks, body)
		}
	}
	known := strings.TrimSpace(string(w.search(t, "jsonpath", `$[?@.registration['lmosd:resembles']].id`, 200)))
	if known != `["urn:x:fake"]` {
		t.Errorf("a search for marks has %s", known)
	}
}

// Weights are those of RFC 9110 §12.4.2; the name has precedence over "*".
func TestAcceptsGzip(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]bool{
		"": false, "gzip": true, "GZIP": true, "x-gzip": true, "deflate, gzip": true, "br;q=1.0, gzip;q=0.8, *;q=0.1": true, "*": true,
		"gzip;q=0": false, "gzip; q=0.000": false, "gzip;q=0.001": true, "gzip;q=1.000": true, "gzip;q=1.001": false, "gzip;q=": false,
		"gzip;q=NaN": false, "gzip;q=1e9": false, "gzip;q=0.0001": false, "gzip;q=-1": false, "gzip;q=2": false, "gzip;x=1": false,
		"gzip;q=0, *": false, "*, gzip;q=0": false, "*;q=0, gzip": true, "*;q=0": false, "identity": false, "gzipped": false, "gzip;Q=1": true,
	} {
		r := httptest.NewRequest(http.MethodGet, "/things", nil)
		r.Header.Set("Accept-Encoding", header)
		if got := acceptsGzip(r); got != want {
			t.Errorf("%q: accepted %v, want %v", header, got, want)
		}
	}
}
