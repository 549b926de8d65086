package gateway

import (
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/directory/directorytest"
	"github.com/lmosd/lmosd/td"
)

// An indexed node has a real directory.
type indexed struct {
	*fakeNode
	directory *directory.Directory
}

func (n indexed) After(ctx context.Context, q td.Query, after directory.Place, limit int) (directory.Page, error) {
	return n.directory.After(ctx, q, after, limit)
}

// newIndexed returns a node with n synthetic agents. Only the socket sees those of the ids in hidden.
func newIndexed(t testing.TB, n int, hidden ...string) indexed {
	t.Helper()
	o := directory.Options{Verifier: td.NewVerifier(did.Keys())}
	if len(hidden) > 0 {
		o.Sees = func(p *did.Principal, d *td.Description) bool {
			return p.Via == did.Socket || !slices.Contains(hidden, d.ID)
		}
		o.Scope = func(*did.Principal) td.Scope {
			s := td.Scope{All: [td.Private + 1]bool{true, true, true, true, true}}
			for _, id := range hidden {
				s.Deny = append(s.Deny, td.Query{ID: id})
			}
			return s
		}
	}
	d, err := directory.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	all, err := directorytest.Sign(0, n)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		d.Ingest(t.Context(), s)
	}
	if _, known := d.Len(); known != n {
		t.Fatalf("%d Things in the directory, want %d", known, n)
	}
	return indexed{newFake(), d}
}

// get reads a JSON document over the socket or, with a token, over TCP.
func get[T any](t testing.TB, r *running, path string, header map[string]string) (v T) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range header {
		req.Header.Set(name, value)
	}
	resp, err := r.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK || json.Unmarshal(body, &v) != nil {
		t.Fatalf("%s: %s, %v: %s", path, resp.Status, err, body)
	}
	return v
}

// The pages of the index have each agent once and in order, also if agents come and go before the next page.
func TestAgentsPages(t *testing.T) {
	t.Parallel()
	n := newIndexed(t, 25)
	r := start(t, serving(n, Options{}))
	first := get[api.AgentList](t, r, "/v1/agents?limit=10", nil)
	if len(first.Items) != 10 || *first.Total != 25 || first.Next == "" || !first.Coverage.More || first.Kind != "AgentList" {
		t.Fatalf("first page: %d items of %v, next %q, coverage %+v", len(first.Items), first.Total, first.Next, first.Coverage)
	}
	more, err := directorytest.Sign(25, 5)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range more {
		n.directory.Ingest(t.Context(), s)
	}
	refs := refsOf(first)
	next := first.Next
	for next != "" {
		p := get[api.AgentList](t, r, "/v1/agents?limit=10&cursor="+next, nil)
		if *p.Total != 30 {
			t.Errorf("total %d after five agents were added", *p.Total)
		}
		refs, next = append(refs, refsOf(p)...), p.Next
	}
	if len(refs) != 30 || !slices.IsSorted(refs) || len(slices.Compact(slices.Clone(refs))) != 30 {
		t.Errorf("%d agents: %v", len(refs), refs)
	}
	if again := get[api.AgentList](t, r, "/v1/agents?limit=10&cursor="+first.Next, nil); again.Items[0].Ref != refs[10] {
		t.Errorf("a page that is read again begins with %s, want %s", again.Items[0].Ref, refs[10])
	}
	if p := get[api.AgentList](t, r, "/v1/agents?limit=1000&capability="+directorytest.Capability(3), nil); p.Next != "" || len(p.Items) != *p.Total || len(p.Items) == 0 || len(p.Items) == 30 {
		t.Errorf("a capability: %d items of %d, next %q", len(p.Items), *p.Total, p.Next)
	}
}

func refsOf(l api.AgentList) (refs []string) {
	for _, a := range l.Items {
		refs = append(refs, a.Ref)
	}
	return refs
}

// An agent that a caller may not see is in no page and no total.
func TestAgentsOfTwoPrincipals(t *testing.T) {
	t.Parallel()
	n := newIndexed(t, 12, directorytest.ID(3))
	r := start(t, serving(n, Options{}))
	for _, c := range []struct {
		by   *http.Client
		want int
	}{{r.http, 11}, {r.unix, 12}} {
		var p api.AgentList
		for next, seen := "", 0; ; {
			resp, err := c.by.Get(r.url + "/v1/agents?limit=4&cursor=" + next)
			if err != nil {
				t.Fatal(err)
			}
			p = api.AgentList{}
			err = json.NewDecoder(resp.Body).Decode(&p)
			resp.Body.Close()
			if seen += len(p.Items); err != nil || *p.Total != c.want || seen > c.want {
				t.Fatalf("%d items of %d, want %d; %v", seen, *p.Total, c.want, err)
			}
			if next = p.Next; next == "" {
				if seen != c.want {
					t.Errorf("%d items, want %d", seen, c.want)
				}
				break
			}
		}
	}
}

// The list is a contract of the API.
func TestGoldenAgents(t *testing.T) {
	t.Parallel()
	weather, old := describe("urn:x:weather", "Weather", owner1), describe("urn:x:old", "Old", owner2)
	weather.Types, weather.Thing.Version = []string{"lmos:Agent", "x:Sensor"}, "1.2.0"
	weather.Actions["ask"].Forms = []td.Form{{Href: "https://agent.example/ask"}}
	r := start(t, serving(newFake(weather, old, describe("urn:x:zoo", "A zoo", owner2)), Options{Events: sequence(1795339809162485)}))
	_, body := r.do(t, exchange{path: "/v1/agents?limit=2"})
	golden(t, "agents", []byte(body), r.url)
}

func TestAgentsErrors(t *testing.T) {
	t.Parallel()
	r := start(t, Options{})
	cursor := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	for name, query := range map[string]string{
		"limit 0": "limit=0", "limit too high": "limit=1001", "limit no number": "limit=x", "unknown": "offset=3", "twice": "limit=1&limit=2",
		"cursor no base64": "cursor=%21", "cursor without an owner": "cursor=" + cursor("urn:x:1"), "cursor without a Thing": "cursor=" + cursor(string(owner1)+"\n"),
		"cursor with another owner": "cursor=" + cursor("x\nurn:x:1"), "cursor with a long id": "cursor=" + cursor(string(owner1)+"\n"+strings.Repeat("x", td.MaxID+1)),
		"cursor too long": "cursor=" + strings.Repeat("A", maxAgentsCursor+1), "no field": "fields=", "an empty field": "fields=ref,,name", "a query": "q=owner:x",
		"too many fields": "fields=" + strings.Repeat("x,", maxAgentFields) + "x", "owner": "owner=x", "version": "version=1",
	} {
		t.Run(name, func(t *testing.T) {
			r.check(t, exchange{path: "/v1/agents?" + query, status: 400})
		})
	}
	r.check(t, exchange{method: "POST", path: "/v1/agents", status: 405, want: map[string]string{"Allow": "GET, HEAD"}})
	r.check(t, exchange{method: "HEAD", path: "/v1/agents", status: 200, want: map[string]string{"Content-Type": "application/json"}})
}

func TestAgentsFields(t *testing.T) {
	t.Parallel()
	r := start(t, serving(newFake(describe("urn:x:1", "One", owner1), describe("urn:x:2", "Second", owner2)), Options{Events: sequence(41)}))
	_, body := r.do(t, exchange{path: "/v1/agents?fields=state,ref,none&limit=1"})
	for _, want := range []string{`"apiVersion":"lmosd/v1","kind":"AgentList"`, `"items":[{"ref":"urn:x:1@` + owner1.Multibase() + `","state":"reachable"}]`, `"total":2`, `"next":"`, `"latest":41`} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s in %s", want, body)
		}
	}
}

type sequence uint64

func (s sequence) Latest() uint64 { return uint64(s) }

// How an agent is served follows from its tunnel, else from the first binding that has a form.
func TestProtocolOf(t *testing.T) {
	t.Parallel()
	action := func(typ string, hrefs ...string) map[string]*td.Action {
		a := &td.Action{Affordance: td.Affordance{Types: []string{typ}}}
		for _, h := range hrefs {
			a.Forms = append(a.Forms, td.Form{Href: h})
		}
		return map[string]*td.Action{"a": a}
	}
	for want, actions := range map[string]map[string]*td.Action{
		"mcp": action(bridge.MCPSession, "http://h/"), "a2a": action(bridge.A2AOperation), "lmos": action("x", "lmos:actions/a"),
		"http": action("x", "mqtt://h/", "https://h/"), "coap": action("x", "lmos:a", "coaps+tcp://h/"), "mqtt": action("x", "MQTTS://h/"),
	} {
		if got := protocolOf(&td.Description{Thing: &td.Thing{Actions: actions}}); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// Facts are decoded once per TD, and their memory is bounded.
func TestFactsCache(t *testing.T) {
	t.Parallel()
	var c factsCache
	decoded := 0
	read := func(i, size int) {
		d := describe(fmt.Sprintf("urn:x:%d", i), "T", owner1)
		d.Thing.Description, d.Record.Hash = strings.Repeat("x", size), sha256.Sum256(fmt.Appendf(nil, "%d", i))
		f := c.of(d.Record, func() *td.Description { decoded++; return d })
		if f.thing.ID != d.ID {
			t.Fatalf("facts of %s for %s", f.thing.ID, d.ID)
		}
	}
	for range 3 {
		for i := range 100 {
			read(i, 10)
		}
	}
	if decoded != 100 {
		t.Errorf("%d decoded for 100 TDs", decoded)
	}
	const large = maxFacts / 10
	for i := 1000; i < 1100; i++ {
		read(i, large)
		if c.bytes > maxFacts || len(c.recent)+len(c.old) > 120 {
			t.Fatalf("%d bytes, %d and %d facts", c.bytes, len(c.recent), len(c.old))
		}
	}
	if before := decoded; true {
		if read(1099, large); decoded != before {
			t.Error("the newest facts were dropped")
		}
	}
}

// JSON of more than 1 kB is compressed for clients that accept it, and nothing else is.
func TestGzip(t *testing.T) {
	t.Parallel()
	n := newFake()
	for i := range 20 {
		n.things[fmt.Sprint(i)] = describe(fmt.Sprintf("urn:x:%02d", i), "Agent", owner1)
	}
	r := start(t, serving(n, Options{}))
	plain, _ := r.do(t, exchange{path: "/v1/agents", header: map[string]string{"Accept-Encoding": "identity"}})
	for name, c := range map[string]struct {
		method, path, accept string
		want                 bool
	}{
		"a list":             {path: "/v1/agents", accept: "gzip", want: true},
		"a search":           {path: "/v1/find", accept: "br;q=1, gzip;q=0.5", want: true},
		"HEAD":               {method: "HEAD", path: "/v1/agents", accept: "gzip", want: true},
		"small":              {path: "/v1/agents?limit=1&fields=ref", accept: "gzip"},
		"not accepted":       {path: "/v1/agents", accept: "gzip;q=0"},
		"without a header":   {path: "/v1/agents", accept: "identity"},
		"a problem":          {path: "/v1/agents?limit=0", accept: "gzip"},
		"a stream of events": {path: "/v1/find", accept: "gzip"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, c.method, r.url+c.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Accept-Encoding", c.accept)
			if name == "a stream of events" {
				req.Header.Set("Accept", "text/event-stream")
			}
			resp, err := r.http.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if got := resp.Header.Get("Content-Encoding") == "gzip"; got != c.want {
				t.Fatalf("compressed: %v, want %v", got, c.want)
			}
			if large := !strings.Contains(c.path, "limit=") && name != "a stream of events"; large && !strings.Contains(resp.Header.Get("Vary"), "Accept-Encoding") {
				t.Errorf("Vary is %q", resp.Header.Values("Vary"))
			}
			if c.want && resp.ContentLength >= plain.ContentLength/3 {
				t.Errorf("%d bytes, %d without compression", resp.ContentLength, plain.ContentLength)
			}
			if c.want && c.method == "" {
				z, err := gzip.NewReader(resp.Body)
				if err != nil {
					t.Fatal(err)
				}
				var list api.AgentList
				if err := json.NewDecoder(z).Decode(&list); err != nil || len(list.Items) != 20 {
					t.Errorf("%d agents, %v", len(list.Items), err)
				}
			}
		})
	}
}

// BenchmarkAgents lists 10,000 agents in ten pages, as the page of the console does.
func BenchmarkAgents(b *testing.B) {
	n := newIndexed(b, 10_000)
	g, err := New(serving(n, Options{Listen: "127.0.0.1:0"}))
	if err != nil {
		b.Fatal(err)
	}
	defer g.Close()
	for _, encoding := range []string{"identity", "gzip"} {
		b.Run(encoding, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				bytes, agents := 0, 0
				for next := ""; ; {
					w := &collecting{discarding: discarding{header: http.Header{}}}
					req, err := http.NewRequestWithContext(did.WithPrincipal(b.Context(), did.Consumer(did.Loopback, "")), http.MethodGet, "http://127.0.0.1:4668/v1/agents?limit=1000&cursor="+next, nil)
					if err != nil {
						b.Fatal(err)
					}
					req.Body = http.NoBody
					req.Header.Set("Accept-Encoding", encoding)
					g.serve(w, req)
					if bytes += len(w.body); w.status != http.StatusOK {
						b.Fatalf("status %d: %s", w.status, w.body)
					}
					if agents += 1000; agents == 10_000 {
						break
					}
					p, err := n.directory.After(b.Context(), td.Query{}, directory.Place{}, agents)
					if err != nil {
						b.Fatal(err)
					}
					next = agentsCursor(p.Items[agents-1].Record())
				}
				b.ReportMetric(float64(bytes), "bytes/list")
			}
		})
	}
}

// A collecting response keeps the body.
type collecting struct {
	discarding
	body []byte
}

func (c *collecting) Write(b []byte) (int, error) {
	c.body = append(c.body, b...)
	return len(b), nil
}
