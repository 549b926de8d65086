package tdd

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/publication"
	"github.com/lmosd/lmosd/td"
)

// The Things API: WoT Discovery §7.3.1, §7.3.2.1: tdd-things-crud, tdd-things-crudl.
func TestThingsRules(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	long := `"` + strings.Repeat("x", td.MaxTD) + `"`
	w.run(t, []exchange{
		{rule: "tdd-things-create-known-td tdd-things-create-known-td-resp tdd-things-create-known-contenttype", method: "PUT",
			path: "/things/urn:x:a", header: asTD, body: lamp("urn:x:a",
				"A"), status: 201, want: map[string]string{"Location": "/things/urn:x:a"}},
		{rule: "tdd-things-representation-alternate-input", method: "PUT", path: "/things/urn:x:b",
			header: map[string]string{"Content-Type": "application/json; charset=UTF-8"}, body: lamp("urn:x:b", "B"), status: 201},
		{rule: "tdd-things-create-known-td: another id", method: "PUT", path: "/things/urn:x:c", header: asTD,
			body: lamp("urn:x:d", "D"), status: 400},
		{rule: "tdd-things-create-known-vs-anonymous", method: "PUT", path: "/things/urn:x:c", header: asTD, body: lamp("", "D"),
			status: 400},
		{rule: "tdd-things-create-anonymous-td: an id", method: "POST", path: "/things", header: asTD, body: lamp("urn:x:c", "C"),
			status: 400},
		{rule: "tdd-things-retrieve tdd-things-retrieve-resp tdd-things-retrieve-resp-content-type tdd-things-default-representation " +
			"exploration-server-http-method exploration-server-http-resp exploration-server-http-resp-content-type " +
			"exploration-server-http-resp-json",
			path: "/things/urn:x:a", want: map[string]string{"Content-Type": typeTD}, contain: []string{`"title":"A"`,
				`"proof"`}, lack: []string{"registration"}},
		{rule: "tdd-things-retrieve-resp-content-type", path: "/things/urn:x:a", header: map[string]string{"Accept": typeJSON},
			want: map[string]string{"Content-Type": typeJSON}},
		{rule: "tdd-things-update tdd-things-update-resp tdd-things-update-contenttype", method: "PUT", path: "/things/urn:x:a",
			header: asTD,
			body:   lamp("urn:x:a", "A2"), status: 204},
		{path: "/things/urn:x:a", contain: []string{`"title":"A2"`}},
		{rule: "tdd-things-update-partial tdd-things-update-partial-mergepatch tdd-things-update-partial-contenttype " +
			"tdd-things-update-partial-resp",
			method: "PATCH", path: "/things/urn:x:a", header: asPatch,
			body: `{"title":"A3","description":"new","properties":{"on":{"title":"On"}}}`, status: 204},
		{path: "/things/urn:x:a", contain: []string{`"title":"A3"`, `"description":"new"`, `"title":"On"`, `"type":"boolean"`}},
		{rule: "tdd-things-update-partial-partialtd: null removes", method: "PATCH", path: "/things/urn:x:a", header: asPatch,
			body: `{"description":null}`, status: 204},
		{path: "/things/urn:x:a", lack: []string{"description"}},
		{rule: "tdd-things-update-partial-partialtd: the result is validated", method: "PATCH", path: "/things/urn:x:a",
			header: asPatch,
			body:   `{"security":null}`, status: 400, contain: []string{`"validationErrors":[{"field":`}},
		{rule: "a patch of the id", method: "PATCH", path: "/things/urn:x:a", header: asPatch, body: `{"id":"urn:x:z"}`, status: 400},
		{rule: "a patch that is not an object", method: "PATCH", path: "/things/urn:x:a", header: asPatch, body: `[]`, status: 400},
		{rule: "a patch that is not JSON", method: "PATCH", path: "/things/urn:x:a", header: asPatch, body: `{`, status: 400},
		{rule: "tdd-things-update-partial-contenttype", method: "PATCH", path: "/things/urn:x:a", header: asTD, body: `{}`,
			status: 415},
		{rule: "tdd-http-head", method: "HEAD", path: "/things/urn:x:a", want: map[string]string{"Content-Type": typeTD}},
		{rule: "tdd-things-delete tdd-things-delete-resp", method: "DELETE", path: "/things/urn:x:a", status: 204},
		{rule: "unknown: GET", path: "/things/urn:x:a", status: 404},
		{rule: "unknown: HEAD", method: "HEAD", path: "/things/urn:x:a", status: 404},
		{rule: "unknown: PATCH", method: "PATCH", path: "/things/urn:x:a", header: asPatch, body: `{}`, status: 404},
		{rule: "unknown: DELETE", method: "DELETE", path: "/things/urn:x:a", status: 404},
		{rule: "unknown: PUT creates again", method: "PUT", path: "/things/urn:x:a", header: asTD, body: lamp("urn:x:a", "A"),
			status: 201},
		{rule: "tdd-validation-syntactic tdd-validation-jsonschema tdd-validation-result tdd-validation-response", method: "PUT",
			path:   "/things/urn:x:c",
			header: asTD, body: `{"id":"urn:x:c"}`, status: 400, contain: []string{`"validationErrors":[{"field":`, `"description":`}},
		{rule: "tdd-validation-result: not JSON", method: "POST", path: "/things", header: asTD, body: `{`, status: 400,
			contain: []string{`"validationErrors"`}},
		{rule: "a member twice", method: "PUT", path: "/things/urn:x:c", header: asTD, body: `{"id":"urn:x:c","id":"urn:x:c"}`,
			status: 400},
		{rule: "tdd-http-error-response-lang: there is one language", path: "/things/none",
			header: map[string]string{"Accept-Language": "de"}, status: 404, contain: []string{"not found"}},
		{rule: "tdd-http-error-response-utf-8", path: "/things/%C3%A4%FF", status: 404, contain: []string{"ä"}},
		{rule: "tdd-http-error-response-utf-8", path: "/things?limit=%C3%A4%FF", status: 400, contain: []string{"ä"}},
		{rule: "no content type", method: "POST", path: "/things", body: lamp("", "L"), status: 415},
		{rule: "compressed", method: "POST", path: "/things", header: merged(asTD, "Content-Encoding", "gzip"), body: "x", status: 415},
		{rule: "too large", method: "PUT", path: "/things/urn:x:c", header: asTD, body: long, status: 413},
		{rule: "tdd-http-unsupported-feature: a method", method: "PUT", path: "/things", status: 405,
			want: map[string]string{"Allow": "GET, HEAD, POST"}},
		{rule: "tdd-http-unsupported-feature: a method", method: "POST", path: "/things/urn:x:b", status: 405,
			want: map[string]string{"Allow": "DELETE, GET, HEAD, PATCH, PUT"}},
		{rule: "tdd-http-unsupported-feature: an endpoint", path: "/search/graphql", status: 404},
		{rule: "tdd-http-unsupported-feature: an option", path: "/things?sort_by=id", status: 400},
		{rule: "tdd-http-unsupported-feature: an option", path: "/things/urn:x:b?x=1", status: 400},
	})
}

// Things without an id: tdd-things-create-anonymous-id, tdd-anonymous-td-local-uuid.
func TestAnonymousThings(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	form := regexp.MustCompile(`^/things/(urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})$`)
	seen := map[string]bool{}
	for range 2 { // two equal TDs are two Things
		rec := w.do(t, exchange{rule: "tdd-things-create-anonymous-td tdd-things-create-anonymous-td-resp " +
			"tdd-things-create-anonymous-contenttype", method: "POST",
			path: "/things", header: asTD, body: "\ufeff" + lamp("", "Lamp"), status: 201})
		where := rec.Header().Get("Location")
		m := form.FindStringSubmatch(where)
		if m == nil || seen[where] {
			t.Fatalf("Location %q", where)
		}
		seen[where] = true
		w.do(t, exchange{rule: "tdd-anonymous-td-identifier", path: where, contain: []string{`"id":"` + m[1] + `"`}})
	}
}

// An id may be any URI, with every escaping of clients.
func TestIDsInPaths(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	for id, paths := range map[string][]string{
		"urn:x:1": {"/things/urn:x:1", "/things/urn%3Ax%3A1"},
		"https://x.example//a": {"/things/https://x.example//a", "/things/https%3A%2F%2Fx.example%2F%2Fa",
			"/things/https:%2F%2Fx.example%2F%2Fa"},
		"urn:x:%41":   {"/things/urn:x:%2541"},
		"urn:x:a?b=c": {"/things/urn:x:a%3Fb=c"},
	} {
		w.do(t, exchange{method: "PUT", path: paths[0], header: asTD, body: lamp(id, "L"), status: 201})
		for _, path := range paths {
			w.do(t, exchange{path: path, contain: []string{`"id":"` + id + `"`}})
		}
	}
}

// tdd-things-read-only-auth; only the owner can change a Thing.
func TestOnlyOwnersChangeThings(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.addForeign("urn:x:other", "Other")
	w.run(t, []exchange{
		{path: "/things/urn:x:other", contain: []string{`"title":"Other"`}},
		{method: "PUT", path: "/things/urn:x:other", header: asTD, body: lamp("urn:x:other", "Mine"), status: 403},
		{method: "PATCH", path: "/things/urn:x:other", header: asPatch, body: `{"title":"Mine"}`, status: 403},
		{method: "DELETE", path: "/things/urn:x:other", status: 403},
		{path: "/things/urn:x:other", contain: []string{`"title":"Other"`}},
	})
	w.add("urn:x:both", "Mine")
	w.addForeign("urn:x:both", "Theirs")
	w.run(t, []exchange{ // two owners of one id: both are listed, and each changes its own
		{path: "/things", contain: []string{`"title":"Mine"`, `"title":"Theirs"`}},
		{method: "PUT", path: "/things/urn:x:both", header: asTD, body: lamp("urn:x:both", "Mine 2"), status: 204},
		{path: "/things/urn:x:both", contain: []string{`"Mine 2"`}},
	})
	reader := newFixture(t, func(o *Options) { o.Publisher = nil })
	reader.do(t, exchange{method: "POST", path: "/things", header: asTD, body: lamp("", "L"), status: 405,
		want: map[string]string{"Allow": "GET, HEAD"}})
}

// Conditions (RFC 9110 §13.1), and the signed bytes.
func TestSignedBytesAndConditions(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.add("urn:x:a", "A")
	d, err := w.publisher.dir.Get(t.Context(), "urn:x:a")
	if err != nil {
		t.Fatal(err)
	}
	rec := w.do(t, exchange{path: "/things/urn:x:a"})
	tag := rec.Header().Get("ETag")
	if rec.Body.String() != string(d.Signed.TD) || len(tag) != 66 {
		t.Errorf("tag %s, %s", tag, rec.Body)
	}
	put := func(id, header, value string, status int) exchange {
		return exchange{method: "PUT", path: "/things/" + id, header: merged(asTD, header, value), body: lamp(id, "A"), status: status}
	}
	w.run(t, []exchange{
		{path: "/things/urn:x:a", header: map[string]string{"If-None-Match": `"x", W/` + tag}, status: 304},
		put("urn:x:a", "If-Match", `"x"`, 412), put("urn:x:a", "If-None-Match", "*", 412), put("urn:x:b", "If-Match", "*", 412),
		{method: "PATCH", path: "/things/urn:x:a", header: merged(asPatch, "If-Match", `"x"`), body: `{}`, status: 412},
		{method: "DELETE", path: "/things/urn:x:a", header: map[string]string{"If-Match": `"x"`}, status: 412,
			want: map[string]string{"ETag": tag}},
		{method: "DELETE", path: "/things/urn:x:b", header: map[string]string{"If-Match": `"x"`}, status: 412},
		put("urn:x:a", "If-Match", tag, 204), put("urn:x:b", "If-None-Match", "*", 201),
	})
}

// The registration: WoT Discovery §7.1: tdd-registrationinfo-vocab-created tdd-registrationinfo-vocab-modified. Without it the TD verifies.
func TestRegistrationRules(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		client, end := w.client()
		defer end()
		registration := func(id string) map[string]any {
			t.Helper()
			rec := w.do(t, exchange{path: "/things/" + id + "?enriched=true",
				contain: []string{td.ContextDiscovery}}) // tdd-context-injection
			var doc struct{ Registration map[string]any }
			if err := json.Unmarshal(rec.Body.Bytes(), &doc); err != nil || doc.Registration == nil {
				t.Fatalf("%v in %s", err, rec.Body)
			}
			for _, name := range []string{"created", "modified", "expires", "retrieved"} { // tdd-absolute-time
				if v, ok := doc.Registration[name].(string); ok {
					if _, err := time.Parse(time.RFC3339, v); err != nil {
						t.Errorf("%s: %v", name, err)
					}
				}
			}
			return doc.Registration
		}
		at := func(d time.Duration) string { return time.Now().UTC().Add(d).Format(time.RFC3339) }
		w.do(t, exchange{method: "PUT", path: "/things/urn:x:a", header: asTD, status: 201,
			body: lamp("urn:x:a", "A", `"registration":{"ttl":60,"expires":"`+at(time.Hour)+`","created":"2001-01-01T00:00:00Z"}`)})
		r := registration("urn:x:a")
		if r["ttl"] != 60.0 || r["expires"] != at(time.Minute) || r["created"] != at(0) || r["retrieved"] != at(0) {
			t.Errorf("the server computes expires from ttl: %v", r)
		}
		firstCreated := r["created"]
		before := w.do(t, exchange{path: "/things/urn:x:a", lack: []string{"registration"}}).Header().Get("ETag")
		time.Sleep(30 * time.Second)
		w.do(t, exchange{rule: "an empty patch computes expires again", method: "PATCH", path: "/things/urn:x:a", header: asPatch,
			body: "{}", status: 204})
		r = registration("urn:x:a")
		if r["expires"] != at(time.Minute) || r["created"] != firstCreated || r["modified"] != firstCreated {
			t.Errorf("after {}: %v", r)
		}
		if after := w.do(t, exchange{path: "/things/urn:x:a"}).Header().Get("ETag"); after != before {
			t.Error("{} changed the TD")
		}
		w.run(t, []exchange{
			{method: "PATCH", path: "/things/urn:x:a", header: asPatch, body: `{"registration":{"ttl":90}}`, status: 204},
			{method: "PATCH", path: "/things/urn:x:a", header: asPatch, body: `{"registration":{"ttl":-1}}`, status: 400,
				contain: []string{`"/registration/ttl"`}},
			{method: "PATCH", path: "/things/urn:x:a", header: asPatch, body: `{"registration":{"expires":"tomorrow"}}`, status: 400,
				contain: []string{`"/registration/expires"`}},
			{method: "PATCH", path: "/things/urn:x:a", header: asPatch, body: `{"registration":{"expires":"1999-01-01T00:00:00Z"}}`,
				status: 400},
			{method: "PATCH", path: "/things/urn:x:a", header: asPatch, body: `{"registration":[]}`, status: 400},
			{method: "PUT", path: "/things/urn:x:n", header: asTD, body: lamp("urn:x:n", "N", `"registration":{"modified":1}`),
				status: 400},
			{method: "PUT", path: "/things/urn:x:b", header: asTD,
				body: lamp("urn:x:b", "B", `"registration":{"expires":"`+at(10*time.Second)+`"}`), status: 201},
			{method: "PUT", path: "/things/urn:x:c", header: asTD, body: lamp("urn:x:c", "C"), status: 201},
			{method: "PUT", path: "/things/urn:x:d", header: asTD, body: lamp("urn:x:d", "D", `"registration":{"ttl":5}`), status: 201},
			{method: "PATCH", path: "/things/urn:x:d", header: asPatch, body: `{"registration":null}`, status: 204},
		})
		// The end of a registration is a deletion with an event.
		resp, err := client.Get("http://x/events/thing_deleted")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		synctest.Wait()
		if err := w.publisher.Withdraw(t.Context(), "urn:x:b"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		w.do(t, exchange{path: "/things/urn:x:b", status: 404})
		if e := nextEvent(t, newLines(resp.Body)); e.name != deleted || e.data != `{"id":"urn:x:b"}` {
			t.Errorf("got %+v", e)
		}
		w.run(t, []exchange{{path: "/things/urn:x:c"}, {path: "/things/urn:x:d"}})
		if r := registration("urn:x:c"); r["expires"] != nil || r["ttl"] != nil {
			t.Errorf("without ttl: %v", r)
		}
		w.addForeign("urn:x:m", "M")
		if r := registration("urn:x:m"); r["expires"] != at(time.Hour) {
			t.Errorf("of another owner: %v", r)
		}
	})
}

// The additions of a directory do not break the proof of a TD.
func TestEnrichedVerifies(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.add("urn:x:a", "A")
	rec := w.do(t, exchange{path: "/things?limit=1"})
	one := things(t, rec.Body.Bytes())[0]
	delete(one, "registration")
	raw, err := json.Marshal(one)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := td.Complete(raw, w.publisher.key.DID()); err != nil {
		t.Errorf("the rest does not verify: %v", err)
	}
	for in, want := range map[string]string{
		`{"@context":"u"}`:              `{"@context":["u","` + td.ContextDiscovery + `"],"registration":{"ttl":1}}`,
		`{"@context":["u",{"a":"b"}] }`: `{"@context":["u","` + td.ContextDiscovery + `",{"a":"b"}],"registration":{"ttl":1}}`,
		`{}`:                            `{"registration":{"ttl":1}}`,
		`{"@context":"u","description":"` + td.ContextDiscovery + `"}`: `{"@context":["u","` + td.ContextDiscovery + `"],` +
			`"description":"` + td.ContextDiscovery + `","registration":{"ttl":1}}`,
		`{"@context":["` + td.ContextDiscovery + `", "u"]}`: `{"@context":["` + td.ContextDiscovery + `", "u"],"registration":{"ttl":1}}`,
		`{"@context":"` + td.ContextDiscovery + `"}`:        `{"@context":"` + td.ContextDiscovery + `","registration":{"ttl":1}}`,
	} {
		raw := []byte(in)
		if got := string(w.enrich(nil, raw, entry{Registration: publication.Registration{TTL: 1}}, time.Time{})); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
		if string(raw) != in {
			t.Errorf("%s was changed to %s", in, raw)
		}
	}
}

// Security bootstrapping (WoT Discovery §7.3.1.1) is that of the guard, which precedes all routes: security-bootstrapping-endpoints
// exploration-secboot-401 priv-loc-priv-dir-access
func TestGuard(t *testing.T) {
	t.Parallel()
	var required []Access
	w := newFixture(t, func(o *Options) {
		o.Guard = func(a Access, h Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				required = append(required, a)
				if a > Open {
					w.Header().Set("WWW-Authenticate", `Bearer realm="x"`)
					w.Header().Set("Content-Type", "application/problem+json")
					w.WriteHeader(401)
					w.Write([]byte(`{"type":"about:blank","title":"no","status":401}`))
				} else if err := h(w, r); err != nil {
					t.Error(err)
				}
			})
		}
	})
	for path, status := range map[string]int{"/.well-known/wot": 200, "/.well-known/core": 200,
		"/.well-known/core?rt=wot.directory": 200,
		"/.well-known/core?rt=wot.thing":     401, "/.well-known/core?rt=wot%2Ething": 401, "/things": 401, "/things/x": 401,
		"/things?limit=1": 401, "/events": 401, "/events/thing_created": 401,
		"/search/jsonpath?query=$": 401, "/search/xpath?query=/": 401, "/search/sparql?query=x": 401} {
		w.do(t, exchange{path: path, status: status})
	}
	required = nil
	for method, path := range map[string]string{"PUT": "/things/x", "PATCH": "/things/x", "DELETE": "/things/x", "POST": "/things"} {
		w.do(t, exchange{rule: "tdd-things-read-only-auth", method: method, path: path, status: 401})
	}
	if !slices.Equal(required, []Access{Change, Change, Change, Change}) {
		t.Errorf("required %v", required)
	}
}

// Concurrent changes of one Thing are serialized: none is lost, and of those with one condition one succeeds.
func TestConcurrentChanges(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.add("urn:x:a", "A")
	var g sync.WaitGroup
	for i := range 20 {
		g.Go(func() {
			w.do(t, exchange{method: "PATCH", path: "/things/urn:x:a", header: asPatch, body: fmt.Sprintf(`{"x:%d":%d}`, i, i), status: 204})
		})
	}
	g.Wait()
	rec := w.do(t, exchange{path: "/things/urn:x:a", contain: []string{`"x:0":0`, `"x:9":9`, `"x:19":19`}})
	var won atomic.Int32
	for i := range 10 {
		g.Go(func() {
			if w.do(t, exchange{method: "PATCH", path: "/things/urn:x:a", header: merged(asPatch, "If-Match", rec.Header().Get("ETag")),
				body: fmt.Sprintf(`{"title":"T%d"}`, i), status: -1}).Code == 204 {
				won.Add(1)
			}
		})
	}
	g.Wait()
	if n := strings.Count(rec.Body.String(), `"x:`); n != 20 || won.Load() != 1 {
		t.Errorf("%d of 20 members, and %d changes with one condition", n, won.Load())
	}
}
