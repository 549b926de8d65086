package tdd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/theory/jsonpath"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

func (w *fixture) search(t *testing.T, endpoint, query string, status int) []byte {
	t.Helper()
	return w.do(t, exchange{path: "/search/" + endpoint + "?query=" + url.QueryEscape(query), status: status}).Body.Bytes()
}

// lamps returns a fixture with n Things.
func lamps(t testing.TB, n int) *fixture {
	w := newFixture(t)
	for i := range n {
		id := fmt.Sprintf("urn:x:%04d", i)
		members := []string{fmt.Sprintf(`"version":{"instance":"1.%d"}`, i%7), `"@type":["x:Lamp"]`, `"x:rooms":["a","b",{"n":1.5}]`}
		if w.publisher.dir != nil && i%5 == 0 {
			w.add(id, fmt.Sprintf("Lamp %d", i), members...)
		} else {
			w.addForeign(id, fmt.Sprintf("Lamp %d", i), members...)
		}
	}
	return w
}

// JSONPath: WoT Discovery §7.3.3.2; RFC 9535; tdd-search-large-tdds. The results are those of the library over the whole array.
func TestJSONPathRules(t *testing.T) {
	t.Parallel()
	w := lamps(t, 300) // more than one part
	w.do(t, exchange{method: "POST", path: "/things", header: asTD, body: lamp("", "Anonymous"), status: 201})
	all := make([]any, 0, 301)
	for _, item := range w.allThings(t.Context()) {
		all = append(all, w.value(item))
	}
	for _, query := range []string{
		`$[?@.title=='Lamp 7']`, `$[?@.version.instance=='1.3'].id`, `$[*].title`, `$`, `$[0]`, `$[-1].title`, `$[5:9].id`,
		`$[::100].id`, `$[0,1,1].title`, `$[?@.registration.created].id`,
		`$[?search(@.title, '7$')].id`, `$[?search(@.id, @.title)]`, `$[?match(@.title, '(')]`, `$[?search(@.title, 1)]`,
		`$[?@.title == "match(" || search(@.title,'p 9')].id`, `$[?@['x:rooms'][2].n > 1].id`,
		`$[?count(@.properties.*) == 1 && @.id == 'urn:x:0003'].properties.on.forms[*].href`,
		`$[?@.title == $[3].title].id`, `$[2]..href`, `$..[?@.n]`, `$[?@..n].id`, `$[?@.properties[?@.type == 'boolean']].id`,
		`$[?!@.description].id`, `$[?@['x:rooms', 'title']].id`, `$.title`,
	} {
		var got, want any
		if err := json.Unmarshal(w.search(t, "jsonpath", query, 200), &got); err != nil {
			t.Fatal(err)
		}
		raw, err := json.Marshal(append([]any{}, jsonpath.MustParse(query).Select(all)...))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(raw, &want); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %.300v\nwant %.300v", query, got, want)
		}
	}
	for query, want := range map[string]string{ // the library takes 2 ms per test of a pattern with a dot
		`$[?match(@.title, "Lamp .0")].id`: `["urn:x:0010","urn:x:0020","urn:x:0030","urn:x:0040","urn:x:0050","urn:x:0060",` +
			`"urn:x:0070","urn:x:0080","urn:x:0090"]`,
		`$[?match(@.title, '[.L]amp \\d\\d8.*') && @.version.instance == '1.0'].title`: `["Lamp 168","Lamp 238"]`,
		`$[?match('a\nb', 'a.b')]`: `[]`,
	} {
		if got := strings.TrimSpace(string(w.search(t, "jsonpath", query, -1))); got != want {
			t.Errorf("%s: got %s, want %s", query, got, want)
		}
	}
	found := string(w.search(t, "jsonpath", `$[?@.title=='Anonymous']`, 200)) // an Enriched TD, with the local id
	if !strings.Contains(found, `"registration":{"created":`) || !strings.Contains(found, `"id":"urn:uuid:`) {
		t.Errorf("got %s", found)
	}
	for _, query := range []string{"", "title", "$[", "@.title", "$.[?]", "$[?@.a==]", strings.Repeat("$", 5000), "$" +
		strings.Repeat("[?@", 40)} {
		w.search(t, "jsonpath", query, 400)
	}
	w.run(t, []exchange{{path: "/search/jsonpath", status: 400}, {path: "/search/jsonpath?query=$&x=1", status: 400},
		{path: "/search/jsonpath?query=$[0]%2525", status: 400}, // decoded once
		{rule: "tdd-http-head", method: "HEAD", path: "/search/jsonpath?query=$[0].title",
			want: map[string]string{"Content-Length": "14", "Content-Type": typeJSON}},
		{path: "/search/jsonpath?query=$[*]", header: map[string]string{"Accept-Encoding": "gzip"},
			want: map[string]string{"Content-Encoding": "gzip"}},
		{method: "POST", path: "/search/jsonpath?query=$", status: 405}})
}

// XPath: WoT Discovery §7.3.3.3.
func TestXPathRules(t *testing.T) {
	t.Parallel()
	w := lamps(t, 20)
	for query, want := range map[string]string{
		`/*[title='Lamp 3']/id`: `["urn:x:0003"]`, `//title[.='Lamp 3']`: `["Lamp 3"]`,
		`/*[position()<3]/id`:     `["urn:x:0000","urn:x:0001"]`,
		`/*[last()]/title/text()`: `["Lamp 19"]`, `count(/*)`: `[20]`,
		`/*[properties/on/type='boolean'][1]/version/instance`:               `["1.0"]`,
		`//href[contains(.,'127')][1]/ancestor::*[title]/id[.='urn:x:0000']`: `["urn:x:0000"]`,
		`/*[registration/created][2]/id`:                                     `["urn:x:0005"]`,
		`/*[1]/*[name()='x:rooms']/*[3]`:                                     `[{"n":1.5}]`,
		`string(/*[2]/title)`:                                                `["Lamp 1"]`,
		`boolean(//none)`:                                                    `[false]`, `//none`: `[]`,
		`/*[matches(title,'^Lamp 1[23]$')]/id`:                                      `["urn:x:0012","urn:x:0013"]`,
		`/*[3]/following-sibling::*[1]/title | /*[3]/preceding-sibling::*[1]/title`: `["Lamp 3","Lamp 1"]`,
	} {
		got := strings.TrimSpace(string(w.search(t, "xpath", query, 200)))
		if got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
	for _, query := range []string{"", "$[0]", "/*[", "//title[matches(., '(')]", "/*[unknown(.)]", "/",
		"string(/)", "number('x')", "'\xbb'",
		"substring('ä', 2)", `replace(//title,'.','aaaa')`,
		`string-join(//*,'')`, "/" + strings.Repeat("(", 40), `//*[matches(.,'` + strings.Repeat("(a{9}){9}", 20) + `')]`} {
		w.search(t, "xpath", query, 400)
	}
	w.run(t, []exchange{{path: "/search/xpath", status: 400},
		{method: "HEAD", path: "/search/xpath?query=count(/*)", want: map[string]string{"Content-Length": "5"}}})
}

// query runs a query with a limit of steps and without a limit of time.
func (w *fixture) query(endpoint, query string, most int) (out queryResult, steps int, err error) {
	b := newBudget(context.Background(), time.Hour)
	b.stepLimit = most
	lang, run := inJSONPath, w.evalJSONPath
	if endpoint == "xpath" {
		lang, run = inXPath, w.evalXPath
	}
	if err := checkQuery(lang, query); err != nil {
		return out, 0, err
	}
	out, err = runQuery(b, query, run)
	return out, b.steps, err
}

// Queries that would not end are stopped by their steps (WoT Discovery §8.1.1), or rejected before: 503 and 400.
func TestPathologicalQueries(t *testing.T) {
	t.Parallel()
	w := lamps(t, 100)
	w.addForeign("urn:x:deep", "Deep", `"x:deep":`+strings.Repeat(`{"a":[`, 20)+`1`+strings.Repeat(`]}`, 20))
	w.addForeign("urn:x:wide", "Wide", `"x:wide":[`+strings.Repeat(`{"a":"`+strings.Repeat("a", 30)+`"},`, 2000)+`1]`)
	w.addForeign("urn:x:long", "Long", `"x:long":"`+strings.Repeat("a", 100_000)+`"`)
	w.addForeign("urn:x:same", "Same", `"x:a":[`+strings.Repeat("1,", 20_000)+`1],"x:b":[`+strings.Repeat("1,", 20_000)+`1]`)
	const most = 100_000
	again, long := strings.Repeat, `/*[title='Long']/*[name()='x:long']`
	for endpoint, queries := range map[string][]string{
		"jsonpath": {`$..*..*..*`, `$` + again(`..*`, 12), `$` + again(`[*,*,*,*]`, 30), `$[?@..*..*..*]`,
			`$[?@[*,*,*,*][*,*,*,*][*,*,*,*][*,*,*,*][*,*,*,*]]`, `$[?@..[?@..[?@..[?@..z]]]]`, `$..[?$..[?@.a]]`,
			`$..[?search(@.a, '` + again("(a?){20}", 20) + `')]`, `$..[?@..a == $..a]`, `$[?` + again(`@.a||`, 700) + `@..*..[*]..*]`,
			`$..[?` + again(`@.a||`, 800) + `@.a]`, `$[` + again(`0:9007199254740991:1,`, 180) + `::-1]..a`,
			`$..[` + again(`::1,`, 1000) + `::1]`,
			`$[?match(@['x:long'], '(a?a?a?a?){100}b')]`, `$[*][?search(@, '(a?){150}b$')]`,
			`$..[?search('` + again("a", 3500) + `', '(a?){200}b$')]`, `$..*..[?@ == @..a]`,
			`$[?` + again(`@['x:a'] != @['x:b'] && `, 100) + `@.z]`, `$[?@..['a','b','c']..['a','b','c']..*]`,
			`$..[?count(@..*) == count(@..*..*)]`, `$[?` + again("(", 40) + `@.a` + again(")", 40) + `]`, `$` + again("[0]", 4000),
			`$[?@.a` + again(` && @.a`, 1500) + `]`, again("$", 10<<10)},
		"xpath": {again(`//*`, 20), `//*//*//*`, `//*[count(//*[count(//*)>1])>1]`, `//*[//*[//*[//*]]]`,
			`//*/following::*/preceding::*`,
			`//*/ancestor::*/descendant::*/ancestor::*/descendant::*`, `//*|//*//*|//*//*//*`, `//*` + again(`|//*`, 500), `//*[. = //*]`,
			`//*[last() = position()][last()]`, `//text()[ancestor::*[descendant::*]]`, `count(//*[not(//*[. = 'none'])])`,
			`//*[matches(.,'(a+)+$')][matches(.,'(a|a|a)*b')]`, `//*[matches(., '(a?){200}b$')]`,
			`//*[matches(` + long + `,'(a?){200}b$')]`,
			`//*[matches('` + again("a", 3800) + `','(a?){200}b$')]`, `//*[matches('aaaa', .)]`, `//*[matches(., ` + long + `)]`,
			`//*[matches(., concat('(a?)', '{200}'))]`, `//*[matches(concat(` + again(`string(/*[103]),`, 200) + `''),'a{50}b')]`,
			`//*[matches ( normalize-space(concat(., .)), 'a')]`, "//*[matches(concat\u00a0(., .), 'a')]",
			`concat('\', string-join(//*,'\'))`, `replace(//title,'.','aaaa')`, "string-join\u00a0(//*,'')", `fn:replace('a','.','aaaa')`,
			`//*[contains(concat(` + again(`string(/*[103]),`, 200) + `''),'b')]`, `//*[translate(` + long + `,'a','bb')='b']`,
			`//*[translate(.,'` + again("abcdefgh", 200) + `','` + again("x", 1600) + `')='']`, `sum(//*[sum(//*) > 0])`,
			`//*[normalize-space(lower-case(normalize-space(` + long + `)))='']`, `//*[name(` + long + `/text()) = '']`,
			`//*[` + again(`.='a' or `, 450) + `.//*//*]`, `/*[` + again("(", 40) + `1` + again(")", 40) + `]`, again("//*", 4<<10)},
	} {
		for _, query := range queries {
			out, steps, err := w.query(endpoint, query, most)
			code := interact.Usage
			if err != nil {
				code = interact.AsError(err).Code
			}
			// One step may cost as much as the largest match, and the match of the longest literals.
			if err == nil || code != interact.Usage && code != interact.Overloaded || steps > most+maxMatch/64+100_000 {
				t.Errorf("%.80s: %d steps, %v, %.100s", query, steps, err, out.body)
			}
		}
	}
	w.o.QueryTime = 0 // the clock stops these queries before the steps
	w.search(t, "xpath", `//*//*`, 503)
	w.search(t, "jsonpath", `$..*..*..*`, 503)
	w.run(t, []exchange{
		{rule: "10 kB", path: "/search/jsonpath?query=" + again("$", 10<<10), status: 400, contain: []string{"10240 bytes"}},
		{path: "/search/xpath?query=" + again("/", 10<<10), status: 400}})
}

// The same functions are cheap in ordinary queries.
func TestOrdinaryQueriesAreCheap(t *testing.T) {
	t.Parallel()
	w := lamps(t, 1000)
	for _, x := range []struct {
		endpoint, query string
		steps           int // of a thing
	}{
		{"jsonpath", `$[?@.title=='Lamp 7']`, 4}, {"jsonpath", `$[?match(@.title, 'Lamp .*7')].id`, 10}, {"jsonpath", `$..href`, 150},
		{"jsonpath", `$[?@.properties[?@.type == 'boolean']].id`, 100}, {"jsonpath", `$[?@.title == $[3].title].id`, 100},
		{"xpath", `/*[title='Lamp 3']/id`, 100}, {"xpath", `/*[matches(title,'^Lamp 1[23]$')]/id`, 150},
		{"xpath", `//title[contains(concat(., '\'), 'Lamp 3\')]`, 600}, {"xpath", `/*[matches(., 'boolean.*Lamp')]/title`, 1500},
	} {
		if out, steps, err := w.query(x.endpoint, x.query, maxSteps); err != nil || steps > 1000*x.steps || steps < 1000 {
			t.Errorf("%s: %d steps, want up to %d: %v %.100s", x.query, steps, 1000*x.steps, err, out.body)
		}
	}
}

// A query that needs all Things in memory is limited, and runs alone; other queries do not wait for it.
func TestQueriesOverAllThingsRunAlone(t *testing.T) {
	t.Parallel()
	w := lamps(t, 20)
	w.o.Cache, w.o.QueryTime = 1000, 20*time.Millisecond // not all Things fit
	w.decoded.limit = 1000
	w.wholeSlot <- struct{}{}
	w.search(t, "jsonpath", "$[0].title", 503)
	w.search(t, "xpath", "//title", 503)
	w.o.QueryTime = time.Minute
	w.search(t, "jsonpath", "$[?@.title=='Lamp 1']", 200)
	w.search(t, "jsonpath", "$..href", 200)
	<-w.wholeSlot
	w.search(t, "jsonpath", "$[0].title", 200)
	w.search(t, "xpath", "//title", 200)
	all := make([]Item, maxWhole/td.MaxTD+1)
	for i := range all {
		all[i].TD = make([]byte, td.MaxTD)
	}
	if _, err := w.admitWhole(newBudget(t.Context(), time.Minute), all); err == nil || interact.AsError(err).Code != interact.Usage {
		t.Errorf("more than %d bytes: %v", maxWhole, err)
	}
}

// A query ends with its caller, and the number of queries is limited.
func TestQueriesAreBounded(t *testing.T) {
	t.Parallel()
	w := lamps(t, 10)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b := newBudget(ctx, time.Hour)
	if _, err := runQuery(b, "", func(b *budget, _ string) (queryResult, error) { b.check(); return queryResult{}, nil }); err == nil {
		t.Error("a query continues without its caller")
	}
	b.ctx = t.Context()
	_, err := runQuery(b, "", func(b *budget, _ string) (queryResult, error) { b.addSteps(maxSteps + 1); return queryResult{}, nil })
	if interact.AsError(err).Code != interact.Overloaded {
		t.Errorf("after too many steps: %v", err)
	}
	_, err = runQuery(b, "", func(*budget, string) (queryResult, error) { panic([]int{}[len(b.ctx.Err().Error())]) })
	if interact.AsError(err).Code != interact.Usage {
		t.Errorf("after a panic: %v", err)
	}
	w.o.QueryTime = time.Millisecond
	for range cap(w.queries.slots) {
		w.queries.slots <- struct{}{}
	}
	w.search(t, "jsonpath", "$", 503)
}

// One host cannot block the queries of others.
func TestQueriesOfOneHostAreLimited(t *testing.T) {
	t.Parallel()
	from := func(ctx context.Context, addr string) *http.Request {
		r := httptest.NewRequestWithContext(ctx, "GET", "/search/jsonpath?query=$", nil)
		r.RemoteAddr = addr
		return r
	}
	synctest.Test(t, func(t *testing.T) {
		for _, slots := range []int{1, 2, 4} {
			q := newQueries(slots)
			var g sync.WaitGroup
			for range 20 { // of a second each
				g.Go(func() {
					done, err := q.acquire(from(t.Context(), "192.0.2.1:4711"), time.Now().Add(time.Hour))
					if err != nil {
						t.Error(err)
						return
					}
					time.Sleep(time.Second)
					done()
				})
			}
			synctest.Wait()
			if got, want := len(q.slots), max(slots-1, 1); got != want {
				t.Errorf("%d of one host run, want %d of %d", got, want, slots)
			}
			start := time.Now()
			done, err := q.acquire(from(t.Context(), "192.0.2.2:4711"), start.Add(time.Minute))
			if waited := time.Since(start); err != nil || waited > time.Second || waited > 0 && slots > 1 {
				t.Fatalf("another host of %d slots waited for %v: %v", slots, waited, err)
			}
			done()
			over, cancel := context.WithCancel(t.Context())
			cancel()
			_, late := q.acquire(from(t.Context(), "[::ffff:192.0.2.1]:9"), time.Now().Add(time.Millisecond))
			if _, err := q.acquire(from(over, "192.0.2.1:4711"), time.Now().Add(time.Hour)); !errors.Is(err, context.Canceled) ||
				interact.AsError(late).Code != interact.Overloaded {
				t.Errorf("queries that did not run: %v, %v", late, err)
			}
			if g.Wait(); len(q.callers) != 0 || len(q.slots) != 0 {
				t.Errorf("%d callers and %d slots are left", len(q.callers), len(q.slots))
			}
		}
	})
	for addr, want := range map[string]string{"192.0.2.1:80": "192.0.2.1", "[::ffff:192.0.2.1]:80": "192.0.2.1",
		"[2001:db8:1:2:3::4]:80": "2001:db8:1:2::/64", "[fe80::1%eth0]:80": "fe80::/64", "@": "", "": ""} {
		if got := callerOf(from(t.Context(), addr)); got != want {
			t.Errorf("%q is %q, want %q", addr, got, want)
		}
	}
}

// The cache of decoded TDs is limited, and has no TDs of removed Things.
func TestDecodedIsBounded(t *testing.T) {
	t.Parallel()
	w := lamps(t, 30)
	w.search(t, "jsonpath", "$[*].id", 200)
	c := &w.decoded
	if len(c.docs) != 30 || c.bytes == 0 {
		t.Errorf("%d docs, %d bytes", len(c.docs), c.bytes)
	}
	w.do(t, exchange{method: "DELETE", path: "/things/urn:x:0000", status: 204})
	w.add("urn:x:0005", "Another")
	w.do(t, exchange{method: "PATCH", path: "/things/urn:x:0010", header: asPatch, body: `{"registration":{"ttl":77}}`, status: 204})
	if got := string(w.search(t, "jsonpath", "$[?@.registration.ttl==77].id", 200)); !strings.Contains(got, "0010") {
		t.Errorf("an old registration: %s", got)
	}
	w.search(t, "jsonpath", "$[*].id", 200)
	sum := 0
	for _, d := range c.docs {
		sum += d.bytes
	}
	if len(c.docs) != 29 || sum != c.bytes {
		t.Errorf("%d docs of %d bytes, %d counted", len(c.docs), sum, c.bytes)
	}
	w.decoded = decoded{limit: 20_000}
	w.search(t, "jsonpath", "$[*].id", 200)
	if c.bytes > 20_000 || len(c.docs) == 0 {
		t.Errorf("%d docs, %d bytes", len(c.docs), c.bytes)
	}
}

// WoT Discovery §7.3.3: SPARQL is optional.
func TestSPARQLIsNotSupported(t *testing.T) {
	t.Parallel()
	newFixture(t).run(t, []exchange{
		{rule: "GET", path: "/search/sparql?query=x", status: 404, contain: []string{"/search/jsonpath"}},
		{rule: "POST", method: "POST", path: "/search/sparql", body: "ASK {}", status: 404},
		{rule: "another method", method: "PUT", path: "/search/sparql", status: 405},
	})
}

// A filter over 2,000 things may take 5 ms.
func BenchmarkJSONPath(b *testing.B) {
	w := lamps(b, 2000)
	for _, query := range []string{`$[?@.title=='Lamp 1777']`, `$[?match(@.title, '.*99')].id`, `$[?@.version.instance=='1.3'].id`,
		`$..[?@.type=='boolean'].forms[0].href`} {
		b.Run(query, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				rec := httptest.NewRecorder()
				w.ServeHTTP(rec, httptest.NewRequestWithContext(b.Context(), "GET", "/search/jsonpath?query="+url.QueryEscape(query), nil))
				if rec.Code != 200 {
					b.Fatal(rec.Body)
				}
			}
		})
	}
}
