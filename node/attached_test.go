package node

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/publication"
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
	r, err := interact.Call(ctx, asConsumer(n), &interact.Message{Type: interact.InvokeAction, Thing: ref, Name: "echo", Data: []byte(`"x"`)})
	if err != nil {
		return "", err
	}
	return string(r.Data), nil
}

func TestAttachedAgentReconnects(t *testing.T) {
	simulate(t, 2, func(t *testing.T, s *sim) {
		host, other := s.nodes[0], s.nodes[1]
		connect(t, other, host)
		id, gone, err := host.mesh.publisher.Attach(t.Context(), []byte(echoDraft), says("first"))
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
		time.Sleep(publication.Grace / 2)
		_, gone, err = host.mesh.publisher.Attach(t.Context(), []byte(echoDraft), says("second"))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * publication.Grace)
		if got, err := invoke(t.Context(), other, id); err != nil || got != `"second"` {
			t.Errorf("after it came back: %s, %v", got, err)
		}
		gone(false)
		time.Sleep(publication.Grace + time.Second)
		if _, err := invoke(t.Context(), other, id); interact.AsError(err).Code != interact.Withdrawn {
			t.Errorf("after the grace: %v", err)
		}
		_, gone, err = host.mesh.publisher.Attach(t.Context(), []byte(echoDraft), says("third"))
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

func TestSecondAttachmentReplacesTheFirst(t *testing.T) {
	t.Parallel()
	n := start(t, quiet())
	_, goneFirst, err := n.mesh.publisher.Attach(t.Context(), []byte(echoDraft), says("first"))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := n.mesh.publisher.Attach(t.Context(), []byte(echoDraft), says("second")); err != nil {
		t.Fatal(err)
	}
	goneFirst(false) // its connection is found broken only now
	if got, err := invoke(t.Context(), n, "echo"); err != nil || got != `"second"` {
		t.Errorf("got %s, %v", got, err)
	}
}

func TestReplyThatViolatesItsDescriptionIsAnError(t *testing.T) {
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
		if _, _, err := n.mesh.publisher.Attach(t.Context(), []byte(echoDraft), liar); err != nil {
			t.Fatal(err)
		}
		got, err := invoke(t.Context(), n, "echo")
		if trusting != (err == nil) || !trusting && interact.AsError(err).Code != interact.AgentFailed {
			t.Errorf("trusting %t: got %s, %v", trusting, got, err)
		}
		_, err = interact.Call(t.Context(), asConsumer(n), &interact.Message{Type: interact.InvokeAction, Thing: "echo", Name: "echo", Data: []byte(`7`)})
		if trusting != (err == nil) || !trusting && interact.AsError(err).Code != interact.Invalid {
			t.Errorf("trusting %t: wrong input gave %v", trusting, err)
		}
	}
}

// sleeper returns an agent whose action waits until enough is closed.
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

// A long-running action continues when its consumer's node stops, and the restarted node finds it.
func TestTasksSurviveTheConsumersNode(t *testing.T) {
	t.Parallel()
	host := start(t, quiet())
	enough := make(chan struct{})
	thing, _, err := host.mesh.publisher.Attach(t.Context(), []byte(sleepDraft), sleeper(enough))
	if err != nil {
		t.Fatal(err)
	}
	o := quiet()
	o.Dir, o.Bootstrap = t.TempDir(), host.Addrs()
	consumer := start(t, o)
	knows(t, consumer, thing)
	var id string
	for r, err := range asConsumer(consumer).Do(t.Context(), &interact.Message{Type: interact.InvokeAction, Thing: "sleeper", Name: "sleep"}) {
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
	tasks := consumer.tasks().Known(did.AsProcess(t.Context()))
	if len(tasks) != 1 || tasks[0].ID != id || tasks[0].Status != "pending" || tasks[0].Action != "sleep" {
		t.Fatalf("after a restart there are %+v, want %s", tasks, id)
	}
	knows(t, consumer, thing)
	if task, err := consumer.tasks().Get(did.AsProcess(t.Context()), id); err != nil || task.Status != "running" && task.Status != "pending" {
		t.Errorf("got %+v, %v", task, err)
	}
	close(enough)
	until(t, "it is done", func() bool {
		task, err := consumer.tasks().Get(did.AsProcess(t.Context()), id)
		return err == nil && task.Status == "completed" && string(task.Output) == `"awake"` && !task.Ended.IsZero() && task.Name == "sleeper"
	})
	if _, err := consumer.tasks().Cancel(did.AsProcess(t.Context()), id); interact.AsError(err).Code != interact.NoTask {
		t.Errorf("a cancel of what has ended: %v", err)
	}
	if _, err := consumer.tasks().Get(did.AsProcess(t.Context()), "nonsense"); interact.AsError(err).Code != interact.NoTask {
		t.Errorf("what was never begun: %v", err)
	}
	if _, err := interact.Call(t.Context(), asConsumer(host), &interact.Message{Type: interact.QueryAction, Thing: "sleeper", Name: "sleep", ActionID: id}); interact.AsError(err).Code != interact.NoTask {
		t.Errorf("a task of another consumer: %v", err)
	}
}

func TestTasksAreCancelled(t *testing.T) {
	t.Parallel()
	host := start(t, quiet())
	if _, _, err := host.mesh.publisher.Attach(t.Context(), []byte(sleepDraft), sleeper(nil)); err != nil {
		t.Fatal(err)
	}
	for r, err := range asConsumer(host).Do(t.Context(), &interact.Message{Type: interact.InvokeAction, Thing: "sleeper", Name: "sleep"}) {
		if err != nil {
			t.Fatal(err)
		}
		task, err := host.tasks().Cancel(did.AsProcess(t.Context()), r.ActionID)
		if err != nil || task.Status != "cancelled" {
			t.Errorf("got %+v, %v", task, err)
		}
		break
	}
}

func TestPathsAndPings(t *testing.T) {
	t.Parallel()
	host, other := start(t, quiet()), start(t, quiet())
	if _, _, err := host.mesh.publisher.Attach(t.Context(), []byte(echoDraft), says("x")); err != nil {
		t.Fatal(err)
	}
	connect(t, other, host)
	knows(t, other, "urn:x:guest")
	paths, err := other.mesh.monitor.Paths(t.Context(), "echo")
	if err != nil || len(paths) != 1 || paths[0].Name != "mesh" {
		t.Errorf("got %+v, %v", paths, err)
	}
	if paths, err = host.mesh.monitor.Paths(t.Context(), "echo"); err != nil || paths[0].Name != "local" {
		t.Errorf("at its host: %+v, %v", paths, err)
	}
	p, err := other.mesh.monitor.Ping(t.Context(), "echo", 3)
	if err != nil || len(p.RTT) != 3 || p.RTT[0] <= 0 || p.Node != host.DID() || p.Path != "mesh tcp" {
		t.Errorf("got %+v, %v", p, err)
	}
	if p, err = host.mesh.monitor.Ping(t.Context(), "echo", 2); err != nil || len(p.RTT) != 2 || p.Path != "local" {
		t.Errorf("at its host: %+v, %v", p, err)
	}
	for _, times := range []int{-1, 0} {
		for _, n := range []*running{host, other} {
			if _, err := n.mesh.monitor.Ping(t.Context(), "echo", times); interact.AsError(err).Code != interact.Invalid {
				t.Errorf("%d times: got %v", times, err)
			}
		}
	}
	if _, err := other.mesh.monitor.Ping(t.Context(), "unknown", 1); interact.AsError(err).Code != interact.NotFound {
		t.Errorf("got %v", err)
	}
	r, err := interact.Call(t.Context(), asConsumer(other), &interact.Message{Type: interact.InvokeAction, Thing: "echo", Name: "echo", Data: []byte(`"x"`), Timing: &interact.Timing{}})
	if err != nil || r.Timing == nil || r.Timing.Path != "mesh tcp" || r.Timing.Total < r.Timing.Host || r.Timing.Host < r.Timing.Agent || r.Timing.Agent <= 0 {
		t.Errorf("got %+v, %v", r.Timing, err)
	}
	if _, err := interact.Call(t.Context(), asConsumer(other), &interact.Message{Type: interact.InvokeAction, Thing: "echo", Name: "echo", Data: []byte(`"x"`), Via: "coap"}); interact.AsError(err).Code != interact.Unreachable {
		t.Errorf("a way that there is not: %v", err)
	}
}

// TestAgentCallsItsCaller offers its event by webhook only (WoT Profile §7.3).
func TestAgentCallsItsCaller(t *testing.T) {
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
	for r, err := range asConsumer(n).Do(t.Context(), &interact.Message{Type: interact.SubscribeEvent, Thing: "alarm", Name: "alarm"}) {
		if err != nil || string(r.Data) != `"fire"` {
			t.Fatalf("got %v, %v", r, err)
		}
		break
	}
	if err := n.stop(); err != nil { // a subscription that lost its last subscriber is kept for a minute
		t.Fatal(err)
	}
	<-over
}
