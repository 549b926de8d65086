package querytext

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

func TestParse(t *testing.T) {
	t.Parallel()
	owner := did.DID("did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK")
	agents := td.Query{Type: "agent", Capability: []string{"a"}, Limit: 5}
	for _, c := range []struct {
		text   string
		common td.Query
		want   td.Query
	}{
		{"", td.Query{}, td.Query{}},
		{"  who can check stock levels? ", td.Query{}, td.Query{Text: "who can check stock levels?"}},
		{"weather type:agent cap:urn:example:weather capability:b", td.Query{},
			td.Query{Text: "weather", Type: "agent", Capability: []string{"urn:example:weather", "b"}}},
		{`Organization:"Example Corp" AND version:^1.2`, td.Query{}, td.Query{Organization: "Example Corp", Version: "^1.2"}},
		{"owner:" + string(owner) + " host:" + strings.TrimPrefix(string(owner), "did:key:"), td.Query{}, td.Query{Owner: owner, Host: owner}},
		{"action:ask property:units event:tick protocol:mqtt id:urn:x", td.Query{},
			td.Query{Action: "ask", Property: "units", Event: "tick", Protocol: "mqtt", ID: "urn:x"}},
		{"urn:example:weather http://x 12:30 type:", td.Query{}, td.Query{Text: "urn:example:weather http://x 12:30 type:"}},
		{"rain OR snow type:tool", td.Query{}, td.Query{Text: "rain", Or: []td.Query{{Text: "snow", Type: "tool"}}}},
		{"rain | snow", agents, td.Query{Text: "rain", Type: "agent", Capability: []string{"a"}, Limit: 5,
			Or: []td.Query{{Text: "snow", Type: "agent", Capability: []string{"a"}}}}},
		{"cap:b OR cap:c", agents, td.Query{Type: "agent", Capability: []string{"a", "b"}, Limit: 5,
			Or: []td.Query{{Type: "agent", Capability: []string{"a", "c"}}}}},
		{"rain NOT type:tool -snow", td.Query{}, td.Query{Text: "rain", Not: []td.Query{{Type: "tool"}, {Text: "snow"}}}},
		{"NOT type:tool", agents, td.Query{Type: "agent", Capability: []string{"a"}, Limit: 5, Not: []td.Query{{Type: "tool"}}}},
		{`"OR" - or "-x"`, td.Query{}, td.Query{Text: "OR - or -x"}},
		{"type:agent type:agent", td.Query{}, td.Query{Type: "agent"}},
		{`"type:agent" ""`, td.Query{}, td.Query{Text: "type:agent"}},
	} {
		got, err := Parse(c.text, c.common)
		if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(td.CoverageCounter{}), cmpopts.EquateEmpty()); err != nil || diff != "" {
			t.Errorf("%q: %v %s", c.text, err, diff)
		}
	}
	for text, want := range map[string]string{
		"OR rain":               "before OR",
		"rain OR":               "after OR",
		"rain OR OR snow":       "before OR",
		"rain NOT":              "after NOT",
		"NOT rain":              "exclusions only",
		`organization:"Example`: "quote",
		"type:agent type:tool":  "twice",
		"cap:::":                "capability id",
		"version:newest":        "range",
		"owner:me":              "owner",
		strings.Repeat("a OR ", td.MaxBranches+1):     "after OR",
		strings.Repeat("a OR ", td.MaxBranches) + "a": "limit is 8",
		"a" + strings.Repeat(" -b", td.MaxBranches+1): "limit is 8",
		strings.Repeat("a ", maxParts+1):              "words and fields",
		strings.Repeat("a", MaxLength+1):              "bytes",
		strings.Repeat("\xb6", MaxLength):             "UTF-8", // each would become three bytes
	} {
		if q, err := Parse(text, td.Query{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: got %+v, %v", text, q, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(`weather OR cap:urn:x -type:tool organization:"a b"`)
	f.Fuzz(func(t *testing.T, text string) {
		q, err := Parse(text, td.Query{Type: "agent"})
		if err != nil {
			return
		}
		again, err := Parse(q.String(), td.Query{})
		if diff := cmp.Diff(q, again, cmp.AllowUnexported(td.CoverageCounter{}), cmpopts.EquateEmpty()); err != nil || diff != "" {
			t.Fatalf("%q is written %q: %v %s", text, q.String(), err, diff)
		}
		n := 0
		for one := range q.Branches() {
			if n++; one.Type == "" || len(one.Or) > 0 {
				t.Fatalf("%q: %+v", text, one)
			}
		}
		if n == 0 || n > td.MaxBranches || len(q.Not) > td.MaxBranches {
			t.Fatalf("%q has %d branches", text, n)
		}
	})
}
