package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/td"
)

// A choiceNode answers calls with the error of each Thing; a Thing without one answers with its name.
type choiceNode struct {
	errs map[string]*interact.Error
	list AgentList

	mu     sync.Mutex
	called []string
	query  string
}

func (n *choiceNode) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if r.URL.Path == "/v1/find" {
		n.query = r.URL.RawQuery
		_ = json.NewEncoder(w).Encode(n.list)
		return
	}
	name := strings.Split(r.URL.Path, "/")[2]
	n.called = append(n.called, name)
	if err := n.errs[name]; err != nil {
		problem.Write(w, r, err)
		return
	}
	fmt.Fprintf(w, "%q", name)
}

func startChoice(t *testing.T, n *choiceNode) *Client {
	s := httptest.NewServer(n)
	t.Cleanup(s.Close)
	return dial(t, s.URL, "")
}

func candidates(repeatable bool, names ...string) (all []Agent) {
	for _, name := range names {
		all = append(all, Agent{Ref: name, Name: name, Choice: &Choice{Repeatable: repeatable}})
	}
	return all
}

func TestInvokeFirst(t *testing.T) {
	t.Parallel()
	failing := func(c interact.Code, started bool) *interact.Error {
		return &interact.Error{Code: c, Title: "no luck", Started: started}
	}
	for name, tt := range map[string]struct {
		err        *interact.Error // of a, b and d
		repeatable bool
		stream     bool
		want       string // the called ones
		code       interact.Code
	}{
		"the next one, if the action did not start": {failing(interact.Unreachable, false), false, false, "a b c", 0},
		"also of a host that shuts down":            {failing(interact.ShuttingDown, false), false, false, "a b c", 0},
		"of an overloaded one":                      {failing(interact.Overloaded, false), false, false, "a b c", 0},
		"and of one that limits the rate":           {failing(interact.RateLimited, false), false, false, "a b c", 0},
		"not, if it may have started":               {failing(interact.Unreachable, true), false, false, "a", interact.Unreachable},
		"unless it is safe or idempotent":           {failing(interact.Unreachable, true), true, false, "a b c", 0},
		"the agent failed":                          {failing(interact.AgentFailed, false), false, false, "a", interact.AgentFailed},
		"the agent failed, and is repeatable":       {failing(interact.AgentFailed, false), true, false, "a b c", 0},
		"a timeout":                                 {failing(interact.Timeout, false), false, false, "a", interact.Timeout},
		"a timeout, and repeatable":                 {failing(interact.Timeout, true), true, false, "a b c", 0},
		"a bad input is bad for all":                {failing(interact.Invalid, false), true, false, "a", interact.Invalid},
		"a refusal":                                 {failing(interact.Forbidden, false), true, false, "a", interact.Forbidden},
		"a stream is read once":                     {failing(interact.Unreachable, false), true, true, "a", interact.Unreachable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := &choiceNode{errs: map[string]*interact.Error{"a": tt.err, "b": tt.err}}
			o := CallOptions{}
			if tt.stream {
				o.Stream, o.ContentType = strings.NewReader("x"), "text/plain"
			}
			r, who, err := startChoice(t, n).InvokeFirst(t.Context(), candidates(tt.repeatable, "a", "b", "c", "d"), "run", o)
			if got := strings.Join(n.called, " "); got != tt.want {
				t.Errorf("called %s, want %s", got, tt.want)
			}
			if tt.code == 0 && (err != nil || who.Ref != "c" || string(r.Output) != `"c"`) || tt.code != 0 && (interact.AsError(err) == nil || interact.AsError(err).Code != tt.code || who.Ref != "a") {
				t.Errorf("got %+v of %+v, %v", r, who, err)
			}
		})
	}
}

func TestInvokeFirstTriesThree(t *testing.T) {
	t.Parallel()
	down := &interact.Error{Code: interact.Unreachable, Title: "it is away"}
	n := &choiceNode{errs: map[string]*interact.Error{"a": {Code: interact.Unreachable, Title: "it was lost", Started: true}, "b": down, "c": down, "d": down}}
	_, who, err := startChoice(t, n).InvokeFirst(t.Context(), candidates(true, "a", "b", "c", "d"), "run", CallOptions{})
	e := interact.AsError(err)
	if !slices.Equal(n.called, []string{"a", "b", "c"}) || who.Ref != "c" || e.Code != interact.Unreachable {
		t.Fatalf("called %v: %v", n.called, err)
	}
	if want := "c: it is away: tried before: a: it was lost; b: it is away"; e.Error() != want || !e.Started {
		t.Errorf("got %q, started %v; want %q, because a may have started", e.Error(), e.Started, want)
	}
	if _, _, err := startChoice(t, n).InvokeFirst(t.Context(), nil, "run", CallOptions{}); interact.AsError(err).Code != interact.NotFound {
		t.Errorf("of none: %v", err)
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	q := td.Query{Capability: []string{"urn:x"}, Version: "^1", Action: "run"}
	n := &choiceNode{list: AgentList{Items: []Agent{{Name: "a"}}}}
	c := startChoice(t, n)
	if list, err := c.Choose(t.Context(), q, TrustPartner, 0); err != nil || len(list.Items) != 1 {
		t.Errorf("got %+v, %v", list, err)
	}
	if !strings.Contains(n.query, "order=call") || !strings.Contains(n.query, "trust=partner") {
		t.Errorf("sent %q", n.query)
	}
	for _, tt := range []struct {
		out         *LeftOut
		title, hint string
		steps       int
	}{
		{nil, "no agent provides urn:x in a version of ^1 with the action run", "see which agents have a part of it", 1},
		{&LeftOut{Any: 3}, "no trusted agent provides urn:x in a version of ^1 with the action run", "agents of other owners (3) provide it", 2},
		{&LeftOut{Partner: 1, Any: 3}, "no trusted agent provides urn:x in a version of ^1 with the action run",
			"agents of partners (1) and of other owners (3) provide it", 3},
	} {
		n.list = AgentList{LeftOut: tt.out}
		_, err := c.Choose(t.Context(), q, "", 0)
		if e := interact.AsError(err); e == nil || e.Code != interact.NotFound || e.Title != tt.title || e.Hint != tt.hint || len(e.Next) != tt.steps {
			t.Errorf("got %+v", e)
		}
	}
}
