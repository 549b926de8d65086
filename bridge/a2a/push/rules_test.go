package push

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/netguard"
)

// A timeline responds to deliveries without a network, and records their times.
type timeline struct {
	mu        sync.Mutex
	began     time.Time
	answer    func(host string, n int) int // the status for the nth delivery to a host; 0 hangs
	delivered map[string][]string          // by host: seconds and the delivered state
}

func (l *timeline) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	_, state := protocol.TaskOf(body)
	l.mu.Lock()
	n := len(l.delivered[r.URL.Host])
	l.delivered[r.URL.Host] = append(l.delivered[r.URL.Host], fmt.Sprintf("%.0fs %s", time.Since(l.began).Seconds(), strings.TrimPrefix(string(state), "TASK_STATE_")))
	l.mu.Unlock()
	status := l.answer(r.URL.Host, n)
	if status == 0 {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return &http.Response{StatusCode: status, Body: http.NoBody, Header: http.Header{}, Request: r}, nil
}

func (l *timeline) of(host string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.delivered[host], ", ")
}

// A stepper has one task, which changes to each state that is sent.
type stepper struct{ states chan protocol.State }

func (s *stepper) Do(ctx context.Context, op *protocol.Operation) iter.Seq2[json.RawMessage, error] {
	if op.Method != protocol.SubscribeToTask {
		return protocol.Once(task(protocol.Working), nil)
	}
	return func(yield func(json.RawMessage, error) bool) {
		for {
			select {
			case state := <-s.states:
				if !yield(wrapped(state), nil) || state.Terminal() {
					return
				}
			case <-ctx.Done():
				yield(nil, ctx.Err())
				return
			}
		}
	}
}

// TestRetryPauses: tries have growing pauses and end, and webhooks do not delay each other.
func TestRetryPauses(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer func(host string, n int) int
		states []protocol.State // one per minute
		want   map[string]string
		left   string // the ids of the remaining webhooks
	}{
		"all is taken": {func(string, int) int { return 204 }, []protocol.State{protocol.Submitted, protocol.Working, protocol.Completed},
			map[string]string{"a": "0s SUBMITTED, 60s WORKING, 120s COMPLETED", "b": "0s SUBMITTED, 60s WORKING, 120s COMPLETED"}, ""},
		"taken the third time": {func(_ string, n int) int { return []int{503, 429, 200}[min(n, 2)] }, []protocol.State{protocol.Submitted, protocol.Working},
			map[string]string{"a": "0s SUBMITTED, 1s SUBMITTED, 3s SUBMITTED, 60s WORKING", "b": "0s SUBMITTED, 1s SUBMITTED, 3s SUBMITTED, 60s WORKING"}, "a b"},
		"one takes nothing": {func(host string, _ int) int { return map[string]int{"a": 500, "b": 200}[host] }, []protocol.State{protocol.Submitted, protocol.Working, protocol.Working, protocol.Working},
			map[string]string{"a": "0s SUBMITTED, 1s SUBMITTED, 3s SUBMITTED, 7s SUBMITTED, 15s SUBMITTED, 60s WORKING, 61s WORKING, 63s WORKING, 67s WORKING, 75s WORKING, 120s WORKING, 121s WORKING, 123s WORKING, 127s WORKING, 135s WORKING",
				"b": "0s SUBMITTED, 60s WORKING, 120s WORKING, 180s WORKING"}, "b"},
		"one hangs": {func(host string, _ int) int { return map[string]int{"a": 0, "b": 200}[host] }, []protocol.State{protocol.Submitted, protocol.Completed},
			map[string]string{"a": "0s SUBMITTED, 16s SUBMITTED, 33s SUBMITTED, 52s SUBMITTED, 75s SUBMITTED, 90s COMPLETED, 106s COMPLETED, 123s COMPLETED, 142s COMPLETED, 165s COMPLETED", "b": "0s SUBMITTED, 60s COMPLETED"}, ""},
		"one is gone": {func(host string, _ int) int { return map[string]int{"a": 410, "b": 200}[host] }, []protocol.State{protocol.Submitted, protocol.Working, protocol.Working, protocol.Working, protocol.Completed},
			map[string]string{"a": "0s SUBMITTED, 60s WORKING, 120s WORKING", "b": "0s SUBMITTED, 60s WORKING, 120s WORKING, 180s WORKING, 240s COMPLETED"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := &timeline{began: time.Now(), answer: test.answer, delivered: map[string][]string{}}
				p := New(Options{MaxFailed: 3})
				defer p.Close()
				p.client.Transport = l
				agent := &stepper{make(chan protocol.State)}
				a := p.Agent(agent, "x", "me")
				for _, host := range []string{"a", "b"} {
					if _, err := protocol.Call(t.Context(), a, &protocol.Operation{Method: protocol.CreatePush, Params: json.RawMessage(`{"taskId":"t","id":"` + host + `","url":"https://` + host + `/"}`)}); err != nil {
						t.Fatal(err)
					}
				}
				for _, s := range test.states {
					agent.states <- s
					time.Sleep(time.Minute)
				}
				time.Sleep(10 * time.Minute)
				for host, want := range test.want {
					if got := l.of(host); got != want {
						t.Errorf("%s received %s\nwant %s", host, got, want)
					}
				}
				var ids []string
				for _, left := range a.(*pushAgent).configs("t") {
					ids = append(ids, left.ID)
				}
				if got := strings.Join(ids, " "); got != test.left {
					t.Errorf("the webhooks %s are left, want %s", got, test.left)
				}
			})
		})
	}
}

// A waitingAgent has one task that waits for minutes. Its streams end after the task, or do not exist; the agent may be down for a while.
type waitingAgent struct {
	began   time.Time
	streams bool
	away    time.Duration // from a second on
}

func (w *waitingAgent) Do(_ context.Context, op *protocol.Operation) iter.Seq2[json.RawMessage, error] {
	now := time.Since(w.began)
	state := protocol.InputRequired
	if now > 10*time.Minute {
		state = protocol.Completed
	}
	switch {
	case now > time.Second && now < w.away:
		return protocol.Once(nil, errors.New("away"))
	case op.Method == protocol.GetTask:
		return protocol.Once(task(state), nil)
	case w.streams && !state.Terminal():
		return protocol.Once(wrapped(state), nil)
	}
	return protocol.Once(nil, protocol.Errorf(protocol.UnsupportedOperation, "no"))
}

// A task without events for minutes keeps its webhooks, and delivers each state once.
func TestTaskWithoutEvents(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		agent waitingAgent
		want  string
	}{
		"streams that end": {waitingAgent{streams: true}, "0s INPUT_REQUIRED, 602s COMPLETED"},
		"no streams":       {waitingAgent{}, "0s INPUT_REQUIRED, 602s COMPLETED"},
		"away for a while": {waitingAgent{away: 20 * time.Second}, "0s INPUT_REQUIRED, 602s COMPLETED"},
		"away for good":    {waitingAgent{away: time.Hour}, "0s INPUT_REQUIRED"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := &timeline{began: time.Now(), delivered: map[string][]string{}, answer: func(string, int) int { return 200 }}
				p := New(Options{})
				defer p.Close()
				p.client.Transport = l
				agent := test.agent
				agent.began = time.Now()
				a := p.Agent(&agent, "x", "me")
				if _, err := protocol.Call(t.Context(), a, &protocol.Operation{Method: protocol.CreatePush, Params: json.RawMessage(`{"taskId":"t","url":"https://a/"}`)}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(15 * time.Minute)
				got := l.of("a")
				if first, second, _ := strings.Cut(test.want, ", "); !strings.HasPrefix(got, first) || strings.HasSuffix(got, "COMPLETED") != (second != "") || strings.Count(got, ",") != strings.Count(test.want, ",") {
					t.Errorf("the webhook received %s, want about %s", got, test.want)
				}
				p.mu.Lock()
				defer p.mu.Unlock()
				if len(p.all) > 0 {
					t.Error("the task still has a subscription")
				}
			})
		})
	}
}

// TestChanges adds webhooks late, and removes them before all events were delivered.
func TestChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &timeline{began: time.Now(), delivered: map[string][]string{}, answer: func(host string, _ int) int {
			return map[string]int{"good": 200, "late": 200, "slow": 503, "big": 503}[host]
		}}
		p := New(Options{Tries: 8})
		defer p.Close()
		p.client.Transport = l
		agent := &stepper{make(chan protocol.State)}
		a := p.Agent(agent, "x", "me")
		change := func(method, id string) {
			t.Helper()
			if _, err := protocol.Call(t.Context(), a, &protocol.Operation{Method: method, Params: json.RawMessage(`{"taskId":"t","id":"` + id + `","url":"https://` + id + `/"}`)}); err != nil {
				t.Fatal(err)
			}
		}
		change(protocol.CreatePush, "good")
		change(protocol.CreatePush, "slow")
		agent.states <- protocol.Submitted
		agent.states <- protocol.Working
		time.Sleep(2 * time.Second)
		change(protocol.DeletePush, "slow") // its queued events are not sent
		change(protocol.DeletePush, "slow")
		time.Sleep(10 * time.Minute)
		if got := l.of("slow"); strings.Contains(got, "WORKING") || !strings.HasPrefix(got, "0s SUBMITTED, 1s SUBMITTED") {
			t.Errorf("the deleted webhook received %s", got)
		}
		change(protocol.CreatePush, "late")
		agent.states <- protocol.Completed
		synctest.Wait()
		if got := l.of("late"); got != "602s COMPLETED" {
			t.Errorf("the late subscriber received %s", got)
		}
		if n := len(p.all); n != 0 {
			t.Errorf("%d tasks have a subscription", n)
		}
		change(protocol.CreatePush, "big")
		for range 10 { // the delivery of the first event always fails
			p.mu.Lock()
			f := p.all[taskKey{"x", "me", "t"}]
			p.mu.Unlock()
			if f != nil {
				a.(*pushAgent).deliverAll(t.Context(), taskKey{"x", "me", "t"}, make([]byte, 1<<20))
			}
		}
		if left := a.(*pushAgent).configs("t"); len(left) != 0 {
			t.Errorf("%d webhooks remain after their deliveries failed", len(left))
		}
	})
}

// Private addresses are refused, as URL of a client, as redirect of a public host, and as name that resolves to this machine.
func TestPrivateAddresses(t *testing.T) {
	t.Parallel()
	inner := newHook(t, 200)
	at, _ := url.Parse(inner.URL)
	locations := map[string]string{"/address": inner.URL, "/name": "http://localhost:" + at.Port(), "/six": "http://[::1]:" + at.Port(), "/metadata": "http://169.254.169.254/", "/far": "https://hook.example/taken"}
	var secrets []string
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if to := locations[r.URL.Path]; to != "" && r.Host == "hook.example" {
			http.Redirect(w, r, to, http.StatusPermanentRedirect)
			return
		}
		secrets = append(secrets, r.Header.Get("Authorization")+r.Header.Get("A2A-Notification-Token")+r.Header.Get("X-A2A-Notification-Token"))
	}))
	defer front.Close()
	p := newPusher(t, Options{Tries: 1})
	guard := netguard.Public()
	p.client = clientOf(func(ctx context.Context, network, addr string) (net.Conn, error) {
		if strings.HasPrefix(addr, "hook.example:") { // a public host
			return netguard.Any().DialContext(ctx, network, front.Listener.Addr().String())
		}
		return guard.DialContext(ctx, network, addr)
	})
	for path := range locations {
		err := p.deliver(t.Context(), &config{URL: "http://hook.example" + path, Token: "secret", Auth: &auth{"Bearer", "secret"}}, json.RawMessage("{}"))
		refused := &netguard.Error{}
		if path == "/far" { // another scheme is another host: TLS fails here
			if err == nil || errors.As(err, &refused) {
				t.Errorf("%s gives %v", path, err)
			}
		} else if !errors.As(err, &refused) {
			t.Errorf("%s gives %v", path, err)
		}
		if err != nil && strings.Contains(redacted(err).Error(), "hook.example/") {
			t.Errorf("the log has the address: %v", redacted(err))
		}
	}
	if len(inner.received) > 0 {
		t.Error("a redirect reached a private address")
	}
	if err := p.deliver(t.Context(), &config{URL: "http://hook.example/", Token: "secret", Auth: &auth{"Bearer", "secret"}}, json.RawMessage("{}")); err != nil || strings.Join(secrets, ",") != "Bearer secretsecretsecret" {
		t.Errorf("a permitted webhook got %q, %v", secrets, err)
	}
	if _, err := New(Options{}).client.Get(inner.URL); err == nil {
		t.Error("the default allows a webhook on loopback")
	}
}

// A principal uses at most as many tasks as remain free for others, over all agents; tasks that it releases
// are free again. The error has a hint.
func TestTasksOfOnePrincipalAreBounded(t *testing.T) {
	t.Parallel()
	p := newPusher(t, Options{Private: true, MaxTasks: 8})
	asks := func(principal, agent string) error {
		working := &tasker{states: []protocol.State{protocol.Working}}
		_, err := protocol.Call(t.Context(), p.Agent(working, agent, principal), &protocol.Operation{Method: protocol.CreatePush,
			Params: json.RawMessage(`{"taskId":"t","id":"h","url":"http://127.0.0.1:1/"}`)})
		return err
	}
	for _, row := range []struct {
		principal string
		want      int
	}{{"greedy", 4}, {"second", 2}, {"third", 1}, {"fourth", 1}, {"late", 0}} {
		got := 0
		var err error
		for err == nil && got < 20 {
			if err = asks(row.principal, fmt.Sprint("agent ", got)); err == nil {
				got++
			}
		}
		if got != row.want {
			t.Errorf("%s has %d tasks with webhooks, want %d", row.principal, got, row.want)
		}
		if e := protocol.AsError(err); e.Code != protocol.InternalError || !strings.Contains(string(e.Data), `"hint":"`) || !strings.Contains(string(e.Data), interact.Overloaded.String()) {
			t.Errorf("%s is refused with %v %s", row.principal, e, e.Data)
		}
	}
	if err := asks("greedy", "agent 0"); err != nil {
		t.Errorf("another webhook of a task that has one: %v", err)
	}
	p.mu.Lock()
	for n := range 3 {
		delete(p.all, taskKey{fmt.Sprint("agent ", n), "greedy", "t"})
	}
	p.mu.Unlock()
	if err := asks("late", "agent 0"); err != nil {
		t.Errorf("after a task was released: %v", err)
	}
}
