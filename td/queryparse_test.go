package td

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestParseQuery(t *testing.T) {
	t.Parallel()
	owner := signer(t, 1).DID()
	agents := Query{Type: "agent", Capability: []string{"a"}, Limit: 5}
	for _, c := range []struct {
		text   string
		common Query
		want   Query
	}{
		{"", Query{}, Query{}},
		{"  who can check stock levels? ", Query{}, Query{Text: "who can check stock levels?"}},
		{"weather type:agent cap:urn:example:weather capability:b", Query{},
			Query{Text: "weather", Type: "agent", Capability: []string{"urn:example:weather", "b"}}},
		{`Organization:"Example Corp" AND version:^1.2`, Query{}, Query{Organization: "Example Corp", Version: "^1.2"}},
		{"owner:" + string(owner) + " host:" + strings.TrimPrefix(string(owner), "did:key:"), Query{}, Query{Owner: owner, Host: owner}},
		{"action:ask property:units event:tick protocol:mqtt id:urn:x", Query{},
			Query{Action: "ask", Property: "units", Event: "tick", Protocol: "mqtt", ID: "urn:x"}},
		{"urn:example:weather http://x 12:30 type:", Query{}, Query{Text: "urn:example:weather http://x 12:30 type:"}},
		{"rain OR snow type:tool", Query{}, Query{Text: "rain", Or: []Query{{Text: "snow", Type: "tool"}}}},
		{"rain | snow", agents, Query{Text: "rain", Type: "agent", Capability: []string{"a"}, Limit: 5,
			Or: []Query{{Text: "snow", Type: "agent", Capability: []string{"a"}}}}},
		{"cap:b OR cap:c", agents, Query{Type: "agent", Capability: []string{"a", "b"}, Limit: 5,
			Or: []Query{{Type: "agent", Capability: []string{"a", "c"}}}}},
		{"rain NOT type:tool -snow", Query{}, Query{Text: "rain", Not: []Query{{Type: "tool"}, {Text: "snow"}}}},
		{"NOT type:tool", agents, Query{Type: "agent", Capability: []string{"a"}, Limit: 5, Not: []Query{{Type: "tool"}}}},
		{`"OR" - or "-x"`, Query{}, Query{Text: "OR - or -x"}},
		{"type:agent type:agent", Query{}, Query{Type: "agent"}},
		{`"type:agent" ""`, Query{}, Query{Text: "type:agent"}},
	} {
		got, err := ParseQuery(c.text, c.common)
		if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(CoverageCounter{}), cmpopts.EquateEmpty()); err != nil || diff != "" {
			t.Errorf("%q: %v %s", c.text, err, diff)
		}
	}
	for text, want := range map[string]string{
		"OR rain":                              "before an OR",
		"rain OR":                              "behind an OR",
		"rain OR OR snow":                      "before an OR",
		"rain NOT":                             "behind a NOT",
		"NOT rain":                             "only what is not",
		`organisation:"Example`:                "quote",
		"type:agent type:tool":                 "twice",
		"cap:::":                               "no capability",
		"version:newest":                       "range",
		"owner:me":                             "owner",
		strings.Repeat("a OR ", MaxBranches+1): "behind an OR",
		strings.Repeat("a OR ", MaxBranches) + "a": "at most 8",
		"a" + strings.Repeat(" -b", MaxBranches+1): "at most 8",
		strings.Repeat("a ", maxParts+1):           "parts",
		strings.Repeat("a", MaxQueryText+1):        "bytes",
		strings.Repeat("\xb6", MaxQueryText):       "UTF-8", // each would become three bytes
	} {
		if q, err := ParseQuery(text, Query{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: got %+v, %v", text, q, err)
		}
	}
}

func FuzzParseQuery(f *testing.F) {
	f.Add(`weather OR cap:urn:x -type:tool organisation:"a b"`)
	f.Fuzz(func(t *testing.T, text string) {
		q, err := ParseQuery(text, Query{Type: "agent"})
		if err != nil {
			return
		}
		again, err := ParseQuery(q.String(), Query{})
		if diff := cmp.Diff(q, again, cmp.AllowUnexported(CoverageCounter{}), cmpopts.EquateEmpty()); err != nil || diff != "" {
			t.Fatalf("%q is written %q: %v %s", text, q.String(), err, diff)
		}
		n := 0
		for one := range q.Branches() {
			if n++; one.Type == "" || len(one.Or) > 0 {
				t.Fatalf("%q: %+v", text, one)
			}
		}
		if n == 0 || n > MaxBranches || len(q.Not) > MaxBranches {
			t.Fatalf("%q has %d branches", text, n)
		}
	})
}
