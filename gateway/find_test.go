package gateway

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/querytext"
)

func parsed(query string) (td.Query, time.Duration, error) {
	f, err := parseFind(&http.Request{URL: &url.URL{RawQuery: query}})
	return f.query, f.timeout, err
}

func TestParseFind(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, query string
		want        td.Query
		timeout     time.Duration
	}{
		{"nothing", "", td.Query{}, 2 * time.Second},
		{"all", "capability=a&capability=b%3Ac&type=agent&action=ask&owner=" + string(owner1) + "&id=urn:x&q=rain+in+Bonn&limit=7&timeout=1.5s",
			td.Query{Capability: []string{"a", "b:c"}, Type: "agent", Action: "ask", Owner: owner1, ID: "urn:x",
				Text: "rain in Bonn", Limit: 7},
			1500 * time.Millisecond},
		{"owner by key", "owner=z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH", td.Query{Owner: owner1},
			2 * time.Second},
		{"query text", "q=rain+OR+snow+NOT+type:tool&host=" + string(owner2) + "&version=%5E1&explain=1", td.Query{Text: "rain", Host: owner2,
			Version: "^1", Or: []td.Query{{Text: "snow", Host: owner2, Version: "^1"}}, Not: []td.Query{{Type: "tool"}}}, 2 * time.Second},
		{"other facets", "property=p&event=e&organization=O+K&protocol=mqtt", td.Query{Property: "p", Event: "e", Organization: "O K",
			Protocol: "mqtt"}, 2 * time.Second},
		{"bounds", "limit=1000&timeout=1m", td.Query{Limit: 1000}, time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			q, timeout, err := parsed(c.query)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, q, cmpopts.IgnoreFields(td.Query{}, "Counter"), cmpopts.EquateEmpty()); diff != "" ||
				timeout != c.timeout {
				t.Errorf("timeout %v, query (-want +got):\n%s", timeout, diff)
			}
		})
	}
}

func TestParseFindRejects(t *testing.T) {
	t.Parallel()
	for name, query := range map[string]string{
		"unknown parameter":              "capabilty=weather",
		"twice":                          "type=a&type=b",
		"not encoded":                    "q=%zz",
		"semicolon":                      "q=a;b",
		"limit of zero":                  "limit=0",
		"limit too high":                 "limit=1001",
		"limit that is not a number":     "limit=many",
		"empty limit":                    "limit=",
		"timeout without unit":           "timeout=5",
		"timeout of zero":                "timeout=0s",
		"negative timeout":               "timeout=-1s",
		"timeout too long":               "timeout=2m",
		"invalid DID":                    "owner=did:key:z",
		"part of a key":                  "owner=z6Mkp",
		"empty capability":               "capability=",
		"long capability":                "capability=" + strings.Repeat("x", 300),
		"many capabilities":              strings.Repeat("capability=a&", 17),
		"long text":                      "q=" + strings.Repeat("x", querytext.MaxLength+1),
		"incomplete query text":          "q=rain+OR",
		"invalid version range":          "version=newest",
		"invalid host":                   "host=me",
		"explain with another value":     "explain=all",
		"empty explain":                  "explain=",
		"explain in capitals":            "explain=TRUE",
		"unknown strategy":               "capability=a&strategy=NEWEST",
		"strategy without a capability":  "q=rain&strategy=HIGHEST",
		"strategy with two capabilities": "capability=a&capability=b&strategy=HIGHEST",
		"strategy with alternatives":     "q=capability:a+OR+capability:b&strategy=HIGHEST",
		"unknown order":                  "capability=a&order=price",
		"order of a call of two":         "capability=a&capability=b&order=call",
		"order of a call of none":        "q=rain&order=call",
		"order of a call and a strategy": "capability=a&order=call&strategy=HIGHEST",
		"order of a call and factors":    "capability=a&order=call&explain=true",
		"unknown trust":                  "capability=a&order=call&trust=friends",
		"trust without the order":        "capability=a&trust=own",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, err := parsed(query)
			var e *interact.Error
			if !errors.As(err, &e) || e.Code != interact.Usage || e.Hint == "" && e.Next == nil {
				t.Errorf("got %v", err)
			}
		})
	}
}

// LMOS platform, CapabilityResolver: HIGHEST selects the highest version that fits, MOST_SIMILAR the lowest.
func TestStrategies(t *testing.T) {
	t.Parallel()
	var all []*td.Description
	for id, version := range map[string]string{"a": "1.0.0", "b": "2.0.0", "c": "1.10.0", "d": "1.9.0"} {
		d := describe("urn:x:"+id, "Weather", owner1)
		d.Capabilities = []td.Capability{{ID: "urn:example:rain", Version: version}}
		all = append(all, d)
	}
	below := describe("urn:x:below", "Weather", owner1)
	below.Capabilities = []td.Capability{{ID: "urn:example:rain:today", Version: "1.99.0"}}
	c := dial(t, start(t, serving(newFake(append(all, below)...), Options{})).url, "")
	for _, tt := range []struct {
		s       td.Strategy
		version string
		limit   int
		want    string
		more    bool
	}{
		{td.Highest, "", 0, "b c d a", false},
		{td.Highest, "^1", 2, "c d", true},
		{td.MostSimilar, "^1", 0, "a d c", false},
		{"most_similar", ">1.0.0", 1, "d", true},
		{td.Highest, "3.x", 0, "", false},
	} {
		list, err := c.Resolve(t.Context(), td.Query{Capability: []string{"urn:example:rain"}, Version: tt.version, Limit: tt.limit}, tt.s, 0)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, a := range list.Items {
			got = append(got, strings.TrimPrefix(a.ID, "urn:x:"))
		}
		if s := strings.Join(got, " "); s != tt.want || list.Coverage.More != tt.more {
			t.Errorf("%s of %q: got %s, %+v; want %s", tt.s, tt.version, s, list.Coverage, tt.want)
		}
		if list.Total != nil {
			t.Errorf("%s of %q: the total is %d and includes excluded Things", tt.s, tt.version, *list.Total)
		}
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// The gateway parses the queries that the client encodes.
func TestFindRoundTrip(t *testing.T) {
	t.Parallel()
	want := td.Query{Capability: []string{"a:b", "c d"}, ID: "urn:x?y=1&z", Owner: owner2, Action: "ask",
		Type: "lmos:Agent", Text: "ä & ö", Limit: 9, Or: []td.Query{{Text: "or:else"}}, Not: []td.Query{{Host: owner1}}}
	var query string
	client := api.NewClient("a recorder", "", roundTrip(func(r *http.Request) (*http.Response, error) {
		query = r.URL.RawQuery
		return nil, errors.New("recorded")
	}))
	if _, err := client.Find(t.Context(), want, 300*time.Millisecond); err == nil {
		t.Error("the search did not fail")
	}
	got, timeout, err := parsed(query)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(td.Query{}, "Counter"), cmpopts.EquateEmpty()); diff != "" ||
		timeout != 300*time.Millisecond {
		t.Errorf("timeout %v, query (-want +got):\n%s", timeout, diff)
	}
}

func FuzzParseFind(f *testing.F) {
	f.Add("capability=a&limit=3&timeout=1s&owner=" + string(owner1))
	f.Add("q=%zz")
	f.Add("limit=99999999999999999999&timeout=1e9h")
	f.Add(strings.Repeat("capability=a&", 20))
	f.Fuzz(func(t *testing.T, query string) {
		q, timeout, err := parsed(query)
		if err != nil {
			if e := interact.AsError(err); e.Code != interact.Usage || e.Hint == "" && e.Next == nil {
				t.Errorf("%q: %v", query, err)
			}
			return
		}
		if q.Limit < 0 || q.Limit > maxFind || timeout <= 0 || timeout > maxFindTime ||
			len(q.Capability) > maxTerms || len(q.Text) > querytext.MaxLength {
			t.Errorf("%q: %+v, %v", query, q, timeout)
		}
		if q.Owner != "" {
			if _, err := did.Parse(string(q.Owner)); err != nil {
				t.Errorf("%q: owner %q: %v", query, q.Owner, err)
			}
		}
	})
}

// For every path there is no redirect and no panic, and errors are problem documents.
func FuzzDispatch(f *testing.F) {
	for _, p := range []string{"/", "/things", "/things/", "/things/urn:x:weather", "/things/a//b", "/things/%2F%2F",
		"/things/../x", "//things//x",
		"/things/x/actions/y", "/things/x/properties", "/things/x/properties/%2e%2e", "/v1/agents/x/y",
		"/v1/agents/%00", "/v1/./status",
		"/v1/status/", "/things/x/events/y", "/.well-known/wot", "/things/%ff", "/\x00", "*"} {
		for _, m := range []string{"GET", "PUT", "CONNECT"} {
			f.Add(m, p)
		}
	}
	var log strings.Builder
	g, err := New(serving(newFake(describe("urn:x:weather", "Weather", owner1)), Options{Listen: "127.0.0.1:0",
		NoAuth: true,
		Log:    slog.New(slog.NewTextHandler(&log, nil))}))
	if err != nil {
		f.Fatal(err)
	}
	defer g.Close()
	f.Fuzz(func(t *testing.T, method, path string) {
		u, err := url.ParseRequestURI(path)
		if err != nil {
			return
		}
		req := &http.Request{Method: method, URL: u, Host: "localhost", Header: http.Header{},
			Body: io.NopCloser(strings.NewReader(""))}
		w := httptest.NewRecorder()
		g.serve(w, req.WithContext(context.Background()))
		resp := w.Result()
		if resp.StatusCode >= 300 && resp.StatusCode < 400 || resp.Header.Get("Location") != "" {
			t.Errorf("%s %q: status %d to %q", method, path, resp.StatusCode, resp.Header.Get("Location"))
		}
		if resp.StatusCode >= 400 && resp.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s %q: status %d as %q", method, path, resp.StatusCode, resp.Header.Get("Content-Type"))
		}
		if strings.Contains(log.String(), "panicked") {
			t.Fatalf("%s %q: %s", method, path, log.String())
		}
	})
}
