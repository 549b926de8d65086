package node

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/policy/access"
)

// An eventLog collects the events of a client until the test ends.
type eventLog struct{ c chan api.NodeEvent }

func follow(t *testing.T, c *api.Client, types ...string) *eventLog {
	t.Helper()
	list, err := c.Events(t.Context(), api.EventQuery{Types: types})
	if err != nil {
		t.Fatal(err)
	}
	l := &eventLog{make(chan api.NodeEvent, 1000)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for e, err := range c.WatchEvents(ctx, types, list.Latest) {
			if err != nil {
				return
			}
			l.c <- e
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return l
}

// until waits for an event of a kind, and returns it with those before it.
func (l *eventLog) until(t *testing.T, kind string) (all []api.NodeEvent) {
	t.Helper()
	limit := time.After(20 * time.Second)
	for {
		select {
		case e := <-l.c:
			if all = append(all, e); e.Kind == kind {
				return all
			}
		case <-limit:
			t.Fatalf("no %s in %+v", kind, all)
		}
	}
}

// What a principal may not see is in no event, list or count: of two tokens, one may not find an agent.
func TestActivityForTwoPrincipals(t *testing.T) {
	t.Parallel()
	o := quiet()
	o.HTTP, o.Dir = &HTTP{Listen: "127.0.0.1:0"}, t.TempDir()
	o.Audit.Dir = t.TempDir()
	o.Policy = withRules("", access.Rule{Deny: []string{"token:blind"}, To: []string{"*"}, On: []string{"urn:x:hidden"}})
	n := start(t, o)
	dial := func(name string) *api.Client {
		made, err := n.Client().CreateToken(t.Context(), api.TokenRequest{Name: name, Scopes: []string{"find", "call"}})
		if err != nil {
			t.Fatal(err)
		}
		c, err := api.Dial(n.API(), made.Token)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
	sees, blind := dial("sees"), dial("blind")
	one, other := follow(t, sees), follow(t, blind)
	agent := newAgent(t)
	hidden := publish(t, n, toolAt("Hidden", "urn:x:hidden", agent.url))
	if _, err := sees.Invoke(t.Context(), hidden, "echo", api.CallOptions{Body: []byte(`"1"`)}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Client().Unpublish(t.Context(), hidden); err != nil {
		t.Fatal(err)
	}
	publish(t, n, toolAt("Plain", "urn:x:plain", agent.url))
	has := func(all []api.NodeEvent) bool {
		return slices.ContainsFunc(all, func(e api.NodeEvent) bool { return strings.Contains(e.Thing+e.Name+e.Text, "idden") })
	}
	if all := one.until(t, api.EventAgentRemoved); !has(all) {
		t.Errorf("who may find it: got %+v", all)
	}
	all := other.until(t, api.EventAgentAdded)
	if has(all) || all[len(all)-1].Thing != "urn:x:plain@"+n.DID().Multibase() {
		t.Errorf("who may not: got %+v", all)
	}
	list, err := blind.Events(t.Context(), api.EventQuery{})
	if err != nil || has(list.Items) || len(list.Items) == 0 {
		t.Errorf("a list for who may not: %+v, %v", list, err)
	}
	if list, err := sees.Events(t.Context(), api.EventQuery{}); err != nil || !has(list.Items) {
		t.Errorf("a list for who may: %+v, %v", list, err)
	}
	for _, kind := range []string{"call", "trust", "trust.token"} {
		if _, err := sees.Events(t.Context(), api.EventQuery{Types: []string{kind}}); codeOf(err) != interact.Forbidden {
			t.Errorf("%s without full rights: %v", kind, err)
		}
	}
	if _, err := sees.Calls(t.Context(), api.CallQuery{}); codeOf(err) != interact.Forbidden {
		t.Errorf("calls without full rights: %v", err)
	}
	for _, c := range []*api.Client{sees, blind} {
		s, err := c.Series(t.Context(), 0)
		if err != nil || len(s.Items.Agents) != 180 || slices.ContainsFunc(s.Items.Agents, func(v *float64) bool { return v != nil }) {
			t.Errorf("series without full rights: %+v, %v", s, err)
		}
	}
	all, trust := nil, follow(t, n.Client(), "trust", "config")
	if err := n.Client().RevokeToken(t.Context(), "blind"); err != nil {
		t.Fatal(err)
	}
	if all = trust.until(t, api.EventTrustToken); all[len(all)-1].Text == "" {
		t.Errorf("got %+v", all)
	}
}

// A call has its path, its host and its stages; its response names it.
func TestCallsOfANode(t *testing.T) {
	t.Parallel()
	o := quiet()
	o.HTTP = &HTTP{Listen: "127.0.0.1:0"}
	near, far := start(t, o), start(t, quiet())
	events := follow(t, near.Client(), "peer", "call")
	connect(t, near, far)
	if all := events.until(t, api.EventPeerConnected); all[0].DID != far.DID() {
		t.Errorf("got %+v", all)
	}
	agent := newAgent(t)
	remote := publish(t, far, toolAt("Remote", "urn:x:remote", agent.url))
	knows(t, near, remote)
	own := publish(t, near, toolAt("Own", "urn:x:own", agent.url))
	for ref, host := range map[string]did.DID{remote: far.DID(), own: near.DID()} {
		made, err := near.Client().Invoke(t.Context(), ref, "echo", api.CallOptions{Body: []byte(`"12"`)})
		if err != nil || made.ID == "" {
			t.Fatalf("%+v, %v", made, err)
		}
		c, err := near.Client().CallRecord(t.Context(), made.ID)
		if err != nil {
			t.Fatal(err)
		}
		shown, _ := json.Marshal(c)
		if c.Kind != "Call" || c.Thing != ref || c.Name == "" || c.Action != "echo" || c.From != "local" || c.Host != host || c.Status != api.CallCompleted || c.Parts != 1 ||
			c.BytesIn != 4 || c.BytesOut != 4 || c.Stages == nil || c.Stages.Agent <= 0 || c.Stages.Resolve <= 0 || len(c.TraceID) != 32 || c.Took < c.Stages.Agent ||
			c.Path[0] != near.DID() || c.Path[len(c.Path)-1] != host {
			t.Errorf("got %s", shown)
		}
		if isRemote := host == far.DID(); isRemote != strings.HasPrefix(c.Via, "mesh ") || isRemote && (c.Stages.Host < c.Stages.Agent || len(c.Path) != 2) {
			t.Errorf("got %s", shown)
		}
	}
	if _, err := near.Client().Invoke(t.Context(), own, "nothing", api.CallOptions{}); err == nil {
		t.Fatal("an unknown action succeeds")
	}
	list, err := near.Client().Calls(t.Context(), api.CallQuery{Thing: "own"})
	if err != nil || len(list.Items) == 0 || slices.ContainsFunc(list.Items, func(c api.Call) bool { return c.Thing != own }) {
		t.Errorf("of one agent: %+v, %v", list, err)
	}
	done := events.until(t, api.EventCallDone)
	if e := done[len(done)-1]; e.ID == "" || e.Text != "echo completed" || e.DID == "" {
		t.Errorf("got %+v", e)
	}
	if err := far.stop(); err != nil {
		t.Fatal(err)
	}
	if all := events.until(t, api.EventPeerDisconnected); all[len(all)-1].DID != far.DID() {
		t.Errorf("got %+v", all)
	}
}

// A task has events for those who may see its agent.
func TestEventsOfTasks(t *testing.T) {
	t.Parallel()
	o := quiet()
	o.HTTP = &HTTP{Listen: "127.0.0.1:0"}
	n := start(t, o)
	events := follow(t, n.Client(), "task")
	release := make(chan struct{})
	thing := interact.Unary(func(ctx context.Context, m *interact.Message) (*interact.Message, error) {
		select {
		case <-release:
		case <-ctx.Done():
		}
		return m.ReplyStatus(interact.StatusCompleted, "", []byte(`"1"`)), nil
	})
	p, err := n.Offer(t.Context(), tool("Slow", "urn:x:slow"), thing)
	if err != nil {
		t.Fatal(err)
	}
	made, err := n.Client().Invoke(t.Context(), p.Ref, "echo", api.CallOptions{Body: []byte(`"1"`), Async: true})
	if err != nil || made.Task == nil {
		t.Fatalf("%+v, %v", made, err)
	}
	if e := events.until(t, api.EventTaskStarted)[0]; e.ID != made.Task.ID || e.Thing != p.Ref || e.Text != "echo" {
		t.Errorf("got %+v", e)
	}
	close(release)
	if _, err := n.Client().WaitTask(t.Context(), made.Task); err != nil {
		t.Fatal(err)
	}
	if all := events.until(t, api.EventTaskEnded); all[len(all)-1].Code != "completed" {
		t.Errorf("got %+v", all)
	}
}
