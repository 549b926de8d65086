package node

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// echoes is the query for the tools of these tests.
var echoes = td.Query{Capability: []string{"urn:example:tool:echo"}, Version: "^1", Action: "echo"}

// A provider is a tool with the capability on a node.
type provider struct {
	ref   string
	calls atomic.Int32
}

// provide publishes on host a tool that answers calls as serve does; a nil serve repeats the input, which is idempotent.
func provide(t *testing.T, host *running, id string, serve http.HandlerFunc) *provider {
	t.Helper()
	p := &provider{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if r.Method == http.MethodPost {
			p.calls.Add(1)
			if serve != nil {
				serve(w, r)
				return
			}
		}
		answer(w, body, err)
	}))
	t.Cleanup(server.Close)
	raw := toolAt("Echo "+id, "urn:x:"+id, server.URL)
	if serve == nil {
		raw = bytes.Replace(raw, []byte(`"synchronous":true`), []byte(`"synchronous":true,"idempotent":true`), 1)
	}
	p.ref = publish(t, host, raw)
	return p
}

// order returns the candidates of n, with first as the first one.
func order(t *testing.T, n *running, first string) []api.Agent {
	t.Helper()
	list, err := n.Client().Choose(t.Context(), echoes, api.TrustAny, 0)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortStableFunc(list.Items, func(a, b api.Agent) int {
		switch first {
		case a.Ref:
			return -1
		case b.Ref:
			return 1
		}
		return 0
	})
	return list.Items
}

// invokeFirst calls the first candidate that answers.
func invokeFirst(t *testing.T, n *running, candidates []api.Agent) (string, error) {
	t.Helper()
	r, who, err := n.Client().InvokeFirst(t.Context(), candidates, "echo", api.CallOptions{Body: []byte(`"x"`)})
	if err != nil {
		return "", err
	}
	if string(r.Output) != `"x"` {
		t.Errorf("the output is %q", r.Output)
	}
	return who.Ref, nil
}

// Two nodes of different owners provide a capability, and the one that is called first has stopped.
func TestCallByCapabilityOutlivesAHost(t *testing.T) {
	t.Parallel()
	nodes := connected(t, 3)
	caller := nodes[1]
	a, b := provide(t, nodes[0], "a", nil), provide(t, nodes[2], "b", nil)
	knows(t, caller, a.ref)
	knows(t, caller, b.ref)
	_, err := caller.Client().Choose(t.Context(), echoes, "", 0)
	if e := wantCode(t, err, interact.NotFound); !strings.Contains(e.Hint, "of other owners (2)") {
		t.Errorf("without trust: %v, %s", e, e.Hint)
	}
	before := order(t, caller, a.ref)
	if len(before) != 2 {
		t.Fatalf("the candidates are %+v", before)
	}
	if got, err := invokeFirst(t, caller, before); err != nil || got != a.ref {
		t.Fatalf("answered by %s, %v; want %s", got, err, a.ref)
	}
	if err := nodes[0].stop(); err != nil {
		t.Fatal(err)
	}
	if got, err := invokeFirst(t, caller, before); err != nil || got != b.ref {
		t.Errorf("after the host stopped: answered by %s, %v; want %s", got, err, b.ref)
	}
	if n := a.calls.Load(); n != 1 {
		t.Errorf("the stopped agent ran %d times", n)
	}
	until(t, "the stopped one is last", func() bool {
		list := order(t, caller, "")
		return len(list) == 2 && list[1].Ref == a.ref && list[1].Choice.Reason == "unreachable" && strings.HasSuffix(list[0].Choice.Reason, "ms on average")
	})
}

// The agent of the first host gets the request and breaks the connection: the host reports that the action may have run.
func TestCallByCapabilityRepeatsNothingThatMayHaveRun(t *testing.T) {
	t.Parallel()
	nodes := connected(t, 3)
	caller := nodes[1]
	a := provide(t, nodes[0], "breaking", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	b := provide(t, nodes[2], "b", nil)
	knows(t, caller, a.ref)
	knows(t, caller, b.ref)
	_, err := invokeFirst(t, caller, order(t, caller, a.ref))
	if e := wantCode(t, err, interact.Unreachable); !e.Started || !e.Remote {
		t.Errorf("%v: started %v, remote %v, want both", e, e.Started, e.Remote)
	}
	if n, other := a.calls.Load(), b.calls.Load(); n != 1 || other != 0 {
		t.Errorf("the agent got %d requests, and the other one %d; want one", n, other)
	}
}

// A Thing that fails at once is not preferred for its speed, and one of the own node precedes the others.
func TestChoiceAvoidsWhatFails(t *testing.T) {
	t.Parallel()
	nodes := connected(t, 3)
	caller := nodes[1]
	quick := provide(t, nodes[0], "quick", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "it is broken", http.StatusInternalServerError)
	})
	right := provide(t, nodes[2], "right", nil)
	knows(t, caller, quick.ref)
	knows(t, caller, right.ref)
	candidates := order(t, caller, quick.ref)
	for range 10 {
		if _, err := invokeFirst(t, caller, candidates); codeOf(err) != interact.AgentFailed {
			t.Fatalf("got %v", err)
		}
	}
	list := order(t, caller, "")
	if list[0].Ref != right.ref || list[1].Choice.Reason != "10 of the last 10 calls failed" {
		t.Errorf("the order is %s: %+v, %s: %+v", list[0].Ref, list[0].Choice, list[1].Ref, list[1].Choice)
	}
	own := provide(t, caller, "own", nil)
	list = order(t, caller, "")
	if list[0].Ref != own.ref || list[0].Choice.Reason != "on this node, not measured yet" {
		t.Errorf("with one of this node, the first is %s: %+v", list[0].Ref, list[0].Choice)
	}
	mine, err := caller.Client().Choose(t.Context(), echoes, "", 0)
	if err != nil || len(mine.Items) != 1 || mine.Items[0].Ref != own.ref || mine.LeftOut == nil || mine.LeftOut.Any != 2 {
		t.Errorf("of the own organization: %+v, %v", mine, err)
	}
	if _, err := invokeFirst(t, caller, mine.Items); err != nil {
		t.Fatal(err)
	}
	// Its calls are not measured: they are the hot path of a node, and the Thing is near.
	if list = order(t, caller, own.ref); list[0].Ref != own.ref || list[0].Choice.Reason != "on this node, not measured yet" {
		t.Errorf("after a call the first is %s: %+v", list[0].Ref, list[0].Choice)
	}
}
