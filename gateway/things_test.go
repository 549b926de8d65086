package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

func TestCreateThings(t *testing.T) {
	t.Parallel()
	r := start(t, Options{Node: newFake()})
	for _, x := range []exchange{
		{name: "anonymous", method: "POST", path: "/things", header: tdBody, body: thingTD("", "Lamp"), status: 201,
			want: map[string]string{"Location": "/things/urn:lmos:" + string(owner1) + ":lamp"}},
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

// A body whose length is not announced is cut where it is too long.
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
	r := start(t, Options{Node: newFake()})
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

func TestListThings(t *testing.T) {
	t.Parallel()
	node := newFake()
	for i := range 5 {
		d := describe(fmt.Sprintf("urn:x:%d", 4-i), "T", owner1)
		node.things[d.ID] = d
	}
	r := start(t, Options{Node: node})
	for _, c := range []struct {
		query string
		want  []string
		next  string
	}{
		{"", []string{"urn:x:0", "urn:x:1", "urn:x:2", "urn:x:3", "urn:x:4"}, ""},
		{"?limit=2", []string{"urn:x:0", "urn:x:1"}, `</things?limit=2&offset=2>; rel="next"`},
		{"?limit=2&offset=2", []string{"urn:x:2", "urn:x:3"}, `</things?limit=2&offset=4>; rel="next"`},
		{"?limit=2&offset=4", []string{"urn:x:4"}, ""},
		{"?offset=9", []string{}, ""},
		{"?format=array&limit=5", []string{"urn:x:0", "urn:x:1", "urn:x:2", "urn:x:3", "urn:x:4"}, ""},
	} {
		t.Run(c.query, func(t *testing.T) {
			t.Parallel()
			resp, body := r.do(t, exchange{path: "/things" + c.query})
			var things []struct{ ID string }
			if err := json.Unmarshal([]byte(body), &things); err != nil {
				t.Fatalf("%v in %s", err, body)
			}
			ids := []string{}
			for _, th := range things {
				ids = append(ids, th.ID)
			}
			if !slices.Equal(ids, c.want) {
				t.Errorf("got %v, want %v", ids, c.want)
			}
			links := resp.Header.Values("Link")
			if c.next != "" && !slices.Contains(links, c.next) || c.next == "" && strings.Contains(strings.Join(links,
				" "), "next") {
				t.Errorf("links %v, want %q", links, c.next)
			}
			if paged := strings.Contains(c.query, "="); paged != strings.Contains(strings.Join(links, " "), "canonical") {
				t.Errorf("links %v of %q", links, c.query)
			}
		})
	}
}

func TestListThingsRefuses(t *testing.T) {
	t.Parallel()
	r := start(t, Options{Node: newFake()})
	for _, query := range []string{"limit=0", "limit=-1", "limit=x", "limit=99999999999", "offset=-1", "format=xml",
		"sort_by=id", "limit=1&limit=2", "limit=%zz"} {
		r.check(t, exchange{path: "/things?" + query, status: 400, code: "LMOS-2000"})
	}
	r.check(t, exchange{path: "/things", status: 200, contain: "[]",
		want: map[string]string{"Content-Type": "application/ld+json"}})
	r.check(t, exchange{path: "/things", header: map[string]string{"Accept": "application/json"}, status: 200,
		want: map[string]string{"Content-Type": "application/json"}})
}

// The tag of a list changes with its members and their content, and with nothing else.
func TestListTag(t *testing.T) {
	t.Parallel()
	tag := func(ds ...*td.Description) string {
		_, tag := (&Gateway{o: Options{Node: newFake(ds...)}}).indexed()
		return tag
	}
	a, b := describe("urn:x:a", "A", owner1), describe("urn:x:b", "B", owner1)
	changed := describe("urn:x:a", "Another", owner1)
	moved := describe("urn:x:a", "A", owner2)
	if tag(a, b) != tag(b, a) {
		t.Error("the order of the index shows")
	}
	all := []string{tag(), tag(a), tag(b), tag(a, b), tag(changed), tag(moved)}
	slices.Sort(all)
	if len(slices.Compact(all)) != 6 {
		t.Error("two different lists have one tag")
	}
}

// A change is refused if the state of the thing cannot be known.
func TestConditionOfAnUnknownState(t *testing.T) {
	t.Parallel()
	node := newFake()
	g := &Gateway{o: Options{Node: failingGet{node}}}
	req, err := http.NewRequest(http.MethodPut, "/things/x", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("If-Match", "*")
	if err := g.precondition(req, "x"); interact.AsError(err).Code != interact.Ambiguous {
		t.Errorf("got %v", err)
	}
}
