package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	ds "github.com/ipfs/go-datastore"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// says is an agent that answers every action with one text.
func says(text string) interact.Thing {
	return interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) {
		r := m.Reply(interact.ActionStatus, interact.JSON, fmt.Appendf(nil, "%q", text))
		r.Status = interact.StatusCompleted
		return r, nil
	})
}

const echoDraft = `{"title": "Echo", "id": "urn:x:guest", "actions": {"echo": {"input": {"type": "string"}, "output": {"type": "string"}}}}`

func invoke(ctx context.Context, n *running, ref string) (string, error) {
	r, err := interact.Ask(ctx, mesh(n), &interact.Message{Type: interact.InvokeAction, Thing: ref, Name: "echo", Data: []byte(`"x"`)})
	if err != nil {
		return "", err
	}
	return string(r.Data), nil
}

func TestAGuestComesGoesAndComesBack(t *testing.T) {
	simulate(t, 2, func(t *testing.T, s *sim) {
		host, other := s.nodes[0], s.nodes[1]
		connect(t, other, host)
		id, gone, err := host.Register(t.Context(), []byte(echoDraft), says("first"))
		if err != nil || id != "urn:x:guest" {
			t.Fatalf("got %q, %v", id, err)
		}
		knows(t, other, id)
		if got, err := invoke(t.Context(), other, id); err != nil || got != `"first"` {
			t.Errorf("got %s, %v", got, err)
		}
		gone(false)
		if _, err := invoke(t.Context(), other, id); interact.AsError(err).Code != interact.Unreachable || !strings.Contains(err.Error(), "away") {
			t.Errorf("while it is away: %v", err)
		}
		time.Sleep(grace / 2)
		_, gone, err = host.Register(t.Context(), []byte(echoDraft), says("second"))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * grace)
		if got, err := invoke(t.Context(), other, id); err != nil || got != `"second"` {
			t.Errorf("after it came back: %s, %v", got, err)
		}
		gone(false)
		time.Sleep(grace + time.Second)
		if _, err := invoke(t.Context(), other, id); interact.AsError(err).Code != interact.Withdrawn {
			t.Errorf("after the grace: %v", err)
		}
		_, gone, err = host.Register(t.Context(), []byte(echoDraft), says("third"))
		if err != nil {
			t.Fatal(err)
		}
		until(t, "it is back", func() bool { got, _ := invoke(t.Context(), other, id); return got == `"third"` })
		gone(true)
		time.Sleep(time.Second)
		if _, err := invoke(t.Context(), other, id); interact.AsError(err).Code != interact.Withdrawn {
			t.Errorf("a second after it took itself back: %v", err)
		}
	})
}

func TestASecondGuestTakesThePlaceOfTheFirst(t *testing.T) {
	t.Parallel()
	n := start(t, quiet())
	_, goneFirst, err := n.Register(t.Context(), []byte(echoDraft), says("first"))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := n.Register(t.Context(), []byte(echoDraft), says("second")); err != nil {
		t.Fatal(err)
	}
	goneFirst(false) // its connection is found broken only now
	if got, err := invoke(t.Context(), n, "echo"); err != nil || got != `"second"` {
		t.Errorf("got %s, %v", got, err)
	}
}

// inTurn runs f while no offer gets a record.
func (n *Node) inTurn(f func()) {
	n.offers.turn.Lock()
	defer n.offers.turn.Unlock()
	f()
}

func (gs *guests) count() int {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	return len(gs.all)
}

// TestAGuestThatIsRefusedLeavesAllAsItWas: it takes nobody's place for good, and its coming keeps nobody offered who has gone.
func TestAGuestThatIsRefusedLeavesAllAsItWas(t *testing.T) {
	for name, c := range map[string]struct {
		goes string // when the first goes: "before" the second comes, "meanwhile" or "never"
		want string // what is answered half a minute later; empty if it was withdrawn
	}{
		"the first stays":          {"never", `"first"`},
		"the first is away":        {"before", ""},
		"the first goes meanwhile": {"meanwhile", ""},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 1, func(t *testing.T, s *sim) {
				n := s.nodes[0]
				_, gone, err := n.Register(t.Context(), []byte(echoDraft), says("first"))
				if err != nil {
					t.Fatal(err)
				}
				if c.goes == "before" {
					gone(false)
				}
				time.Sleep(grace / 2)
				add := n.offers.add
				n.inTurn(func() {
					n.offers.add = func(*td.Description) (bool, error) {
						if c.goes == "meanwhile" {
							gone(false)
						}
						return false, errors.New("the disk is full")
					}
				})
				if _, _, err := n.Register(t.Context(), []byte(echoDraft), says("second")); err == nil {
					t.Error("it was not refused")
				}
				n.inTurn(func() { n.offers.add = add })
				time.Sleep(2 * grace)
				got, err := invoke(t.Context(), n, "urn:x:guest")
				if got != c.want || c.want == "" && interact.AsError(err).Code != interact.Withdrawn {
					t.Errorf("got %s, %v", got, err)
				}
				if got := n.guests.count(); got != len(c.want)/len(`"first"`) {
					t.Errorf("%d places are kept", got)
				}
			})
		})
	}
}

// heldStore holds each Put until it is told to go on.
type heldStore struct {
	ds.Batching
	came, goOn chan struct{}
}

func (h *heldStore) Put(ctx context.Context, k ds.Key, b []byte) error {
	h.came <- struct{}{}
	<-h.goOn
	return h.Batching.Put(ctx, k, b)
}

// TestAGuestIsWithdrawnOnlyIfItIsOffered: who comes back at the last moment stays, and so does what was published in its place.
func TestAGuestIsWithdrawnOnlyIfItIsOffered(t *testing.T) {
	simulate(t, 1, func(t *testing.T, s *sim) {
		n := s.nodes[0]
		register := func(text string) func(bool) {
			_, gone, err := n.Register(t.Context(), []byte(echoDraft), says(text))
			if err != nil {
				t.Error(err)
			}
			return gone
		}
		answers := func(when, want string) {
			t.Helper()
			if got, err := invoke(t.Context(), n, "urn:x:guest"); got != want {
				t.Errorf("%s: got %q, %v", when, got, err)
			}
		}
		// Each absence has its own time.
		for range 3 {
			register("it flaps")(false)
			time.Sleep(grace * 2 / 3)
		}
		gone := register("first")
		time.Sleep(2 * grace)
		answers("after short absences", `"first"`)

		disk := &heldStore{n.offers.store, make(chan struct{}, 2), make(chan struct{})} // a tombstone, and a mark of what comes back
		n.inTurn(func() { n.offers.store = disk })
		gone(true)
		<-disk.came // it is being withdrawn
		back := make(chan func(bool))
		go func() { back <- register("second") }()
		ended, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, err := n.Register(ended, []byte(echoDraft), says("x")); interact.AsError(err).Code != interact.Timeout {
			t.Errorf("while it is withdrawn: %v", err)
		}
		close(disk.goOn)
		gone = <-back
		time.Sleep(2 * grace)
		answers("after it came back at the last moment", `"second"`)

		n.inTurn(func() { n.offers.store = disk.Batching })
		if _, err := n.Publish(t.Context(), tool("Echo", "urn:x:guest")); err != nil {
			t.Fatal(err)
		}
		gone(true)
		time.Sleep(2 * grace)
		if !n.offers.has(n.offers.get("urn:x:guest").desc) {
			t.Error("what was published in its place was withdrawn")
		}
		if got := n.guests.count(); got != 0 {
			t.Errorf("%d places are kept", got)
		}
	})
}

func TestGuestsThatAreRefused(t *testing.T) {
	t.Parallel()
	n := start(t, quiet())
	for _, raw := range []string{`x`, `[]`, `{}`, `{"title": "x", "id": "no uri"}`, `{"title": "x", "actions": {"a": {"input": {"type": "float"}}}}`,
		`{"title": "x", "id": "did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH"}`} {
		if id, _, err := n.Register(t.Context(), []byte(raw), says("x")); err == nil || interact.AsError(err).Hint == "" {
			t.Errorf("%s: got %q, %v", raw, id, err)
		}
	}
	if n := n.guests.count(); n != 0 {
		t.Errorf("%d places are kept for guests that were refused", n)
	}
}

func TestWhatBreaksItsOwnDescriptionIsAnError(t *testing.T) {
	t.Parallel()
	liar := interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) {
		r := m.Reply(interact.ActionStatus, interact.JSON, []byte(`42`))
		r.Status = interact.StatusCompleted
		return r, nil
	})
	for _, trusting := range []bool{false, true} {
		o := quiet()
		o.NoValidation = trusting
		n := start(t, o)
		if _, _, err := n.Register(t.Context(), []byte(echoDraft), liar); err != nil {
			t.Fatal(err)
		}
		got, err := invoke(t.Context(), n, "echo")
		if trusting != (err == nil) || !trusting && interact.AsError(err).Code != interact.AgentFailed {
			t.Errorf("trusting %t: got %s, %v", trusting, got, err)
		}
		_, err = interact.Ask(t.Context(), mesh(n), &interact.Message{Type: interact.InvokeAction, Thing: "echo", Name: "echo", Data: []byte(`7`)})
		if trusting != (err == nil) || !trusting && interact.AsError(err).Code != interact.Invalid {
			t.Errorf("trusting %t: wrong input gave %v", trusting, err)
		}
	}
}

// sleeper is an agent whose action waits until it is told to end.
func sleeper(enough <-chan struct{}) interact.Thing {
	return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			select {
			case <-enough:
				r := m.Reply(interact.ActionStatus, interact.JSON, []byte(`"awake"`))
				r.Status = interact.StatusCompleted
				yield(r, nil)
			case <-ctx.Done():
				yield(nil, ctx.Err())
			}
		}
	})
}

const sleepDraft = `{"title": "Sleeper", "actions": {"sleep": {"synchronous": false, "output": {"type": "string"}}}}`

// TestTasksOutliveTheConsumersNode: a long action goes on when its consumer's node stops, and the node finds it again.
func TestTasksOutliveTheConsumersNode(t *testing.T) {
	t.Parallel()
	host := start(t, quiet())
	enough := make(chan struct{})
	thing, _, err := host.Register(t.Context(), []byte(sleepDraft), sleeper(enough))
	if err != nil {
		t.Fatal(err)
	}
	o := quiet()
	o.Dir, o.Bootstrap = t.TempDir(), host.Addrs()
	consumer := start(t, o)
	knows(t, consumer, thing)
	var id string
	for r, err := range mesh(consumer).Do(t.Context(), &interact.Message{Type: interact.InvokeAction, Thing: "sleeper", Name: "sleep"}) {
		if err != nil {
			t.Fatal(err)
		}
		id = r.ActionID
		break
	}
	if err := consumer.stop(); err != nil {
		t.Fatal(err)
	}
	consumer = start(t, o)
	tasks := consumer.Tasks().Known()
	if len(tasks) != 1 || tasks[0].ID != id || tasks[0].Status != "pending" || tasks[0].Action != "sleep" {
		t.Fatalf("after a restart there are %+v, want %s", tasks, id)
	}
	knows(t, consumer, thing)
	if task, err := consumer.Tasks().Get(t.Context(), id); err != nil || task.Status != "running" && task.Status != "pending" {
		t.Errorf("got %+v, %v", task, err)
	}
	close(enough)
	until(t, "it is done", func() bool {
		task, err := consumer.Tasks().Get(t.Context(), id)
		return err == nil && task.Status == "completed" && string(task.Output) == `"awake"` && !task.Ended.IsZero() && task.Name == "sleeper"
	})
	if _, err := consumer.Tasks().Cancel(t.Context(), id); interact.AsError(err).Code != interact.NoTask {
		t.Errorf("a cancel of what has ended: %v", err)
	}
	if _, err := consumer.Tasks().Get(t.Context(), "nonsense"); interact.AsError(err).Code != interact.NoTask {
		t.Errorf("what was never begun: %v", err)
	}
	if _, err := interact.Ask(t.Context(), mesh(host), &interact.Message{Type: interact.QueryAction, Thing: "sleeper", Name: "sleep", ActionID: id}); interact.AsError(err).Code != interact.NoTask {
		t.Errorf("a task of another consumer: %v", err)
	}
}

func TestTasksAreCancelled(t *testing.T) {
	t.Parallel()
	host := start(t, quiet())
	if _, _, err := host.Register(t.Context(), []byte(sleepDraft), sleeper(nil)); err != nil {
		t.Fatal(err)
	}
	for r, err := range mesh(host).Do(t.Context(), &interact.Message{Type: interact.InvokeAction, Thing: "sleeper", Name: "sleep"}) {
		if err != nil {
			t.Fatal(err)
		}
		task, err := host.Tasks().Cancel(t.Context(), r.ActionID)
		if err != nil || task.Status != "cancelled" {
			t.Errorf("got %+v, %v", task, err)
		}
		break
	}
}

func TestPathsAndPings(t *testing.T) {
	t.Parallel()
	host, other := start(t, quiet()), start(t, quiet())
	if _, _, err := host.Register(t.Context(), []byte(echoDraft), says("x")); err != nil {
		t.Fatal(err)
	}
	connect(t, other, host)
	knows(t, other, "urn:x:guest")
	paths, err := other.Paths(t.Context(), "echo")
	if err != nil || len(paths) != 1 || paths[0].Name != "mesh" {
		t.Errorf("got %+v, %v", paths, err)
	}
	if paths, err = host.Paths(t.Context(), "echo"); err != nil || paths[0].Name != "local" {
		t.Errorf("at its host: %+v, %v", paths, err)
	}
	p, err := other.Ping(t.Context(), "echo", 3)
	if err != nil || len(p.RTT) != 3 || p.RTT[0] <= 0 || p.Node != host.DID() || p.Path != "mesh tcp" {
		t.Errorf("got %+v, %v", p, err)
	}
	if p, err = host.Ping(t.Context(), "echo", 2); err != nil || len(p.RTT) != 2 || p.Path != "local" {
		t.Errorf("at its host: %+v, %v", p, err)
	}
	if _, err := other.Ping(t.Context(), "nobody", 1); interact.AsError(err).Code != interact.NotFound {
		t.Errorf("got %v", err)
	}
	r, err := interact.Ask(t.Context(), mesh(other), &interact.Message{Type: interact.InvokeAction, Thing: "echo", Name: "echo", Data: []byte(`"x"`), Timing: &interact.Timing{}})
	if err != nil || r.Timing == nil || r.Timing.Path != "mesh" || r.Timing.Total < r.Timing.Host || r.Timing.Host < r.Timing.Agent || r.Timing.Agent <= 0 {
		t.Errorf("got %+v, %v", r.Timing, err)
	}
	if _, err := interact.Ask(t.Context(), mesh(other), &interact.Message{Type: interact.InvokeAction, Thing: "echo", Name: "echo", Data: []byte(`"x"`), Via: "coap"}); interact.AsError(err).Code != interact.Unreachable {
		t.Errorf("a way that there is not: %v", err)
	}
}

// TestAnAgentThatCallsBack offers its event by webhook only (WoT Profile §7.3).
func TestAnAgentThatCallsBack(t *testing.T) {
	t.Parallel()
	o := quiet()
	o.Dir, o.HTTP = t.TempDir(), &HTTP{Listen: "127.0.0.1:0", Explicit: true}
	n := start(t, o)
	over := make(chan struct{})
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			w.WriteHeader(http.StatusNoContent)
			close(over)
			return
		}
		var subscription struct{ CallbackURL string }
		if err := json.NewDecoder(r.Body).Decode(&subscription); err != nil {
			t.Error(err)
		}
		w.Header().Set("Location", "/subscription")
		w.WriteHeader(http.StatusCreated)
		go func() {
			resp, err := http.Post(subscription.CallbackURL, "application/json", strings.NewReader(`"fire"`))
			if err != nil || resp.StatusCode != http.StatusOK {
				t.Errorf("called back: %v, %v", resp, err)
				return
			}
			resp.Body.Close()
		}()
	}))
	t.Cleanup(agent.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	if _, err := n.Publish(t.Context(), fmt.Appendf(nil, `{"@context": "https://www.w3.org/2022/wot/td/v1.1", "title": "Alarm",
		"securityDefinitions": {"n": {"scheme": "nosec"}}, "security": "n",
		"events": {"alarm": {"data": {"type": "string"}, "forms": [{"href": "%s/alarm", "subprotocol": "webhook"}]}}}`, agent.URL)); err != nil {
		t.Fatal(err)
	}
	for r, err := range mesh(n).Do(t.Context(), &interact.Message{Type: interact.SubscribeEvent, Thing: "alarm", Name: "alarm"}) {
		if err != nil || string(r.Data) != `"fire"` {
			t.Fatalf("got %v, %v", r, err)
		}
		break
	}
	n.hub.Close() // it would wait a minute for somebody who comes back
	<-over
}

// TestAGuestThatDoesNotComeBackAfterARestart: its record outlives its node and its process, so the next start of the node withdraws
// it, but not one that came back.
func TestAGuestThatDoesNotComeBackAfterARestart(t *testing.T) {
	t.Parallel()
	other := start(t, quiet())
	o := quiet()
	o.Dir, o.Bootstrap = t.TempDir(), other.Addrs()
	host := start(t, o)
	for _, id := range []string{"urn:x:gone", "urn:x:back"} {
		if _, _, err := host.Register(t.Context(), []byte(strings.Replace(echoDraft, "urn:x:guest", id, 1)), says(id)); err != nil {
			t.Fatal(err)
		}
		knows(t, other, id)
	}
	if err := host.stop(); err != nil { // it withdraws nothing, like a node that is killed
		t.Fatal(err)
	}
	host = start(t, o)
	if _, _, err := host.Register(t.Context(), []byte(strings.Replace(echoDraft, "urn:x:guest", "urn:x:back", 1)), says("back")); err != nil {
		t.Fatal(err)
	}
	if len(host.offers.orphans) != 2 {
		t.Errorf("the orphans are %v, want both", host.offers.orphans)
	}
	host.withdrawOrphans(t.Context())
	until(t, "the other node knows that one is withdrawn", func() bool {
		_, err := invoke(t.Context(), other, "urn:x:gone")
		return err != nil && interact.AsError(err).Code == interact.Withdrawn
	})
	until(t, "the one that came back answers", func() bool { got, _ := invoke(t.Context(), other, "urn:x:back"); return got == `"back"` })
}
