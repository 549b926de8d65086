package push

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	"github.com/lmosd/lmosd/internal/netguard"
	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// A tasker has one task with a sequence of states.
type tasker struct {
	states  []protocol.State
	streams bool // SubscribeToTask is supported
	unary   bool // SendStreamingMessage is refused

	mu    sync.Mutex
	asked int
}

func task(s protocol.State) json.RawMessage {
	return protocol.Encode(protocol.Task{ID: "t", ContextID: "c", Status: protocol.Status{State: s}})
}

func wrapped(s protocol.State) json.RawMessage {
	return append(append([]byte(`{"task":`), task(s)...), '}')
}

func (k *tasker) Do(_ context.Context, op *protocol.Operation) iter.Seq2[json.RawMessage, error] {
	k.mu.Lock()
	defer k.mu.Unlock()
	last := k.states[len(k.states)-1]
	switch op.Method {
	case protocol.GetTask:
		k.asked++
		var p protocol.Get
		if protocol.Read(op.Params, &p); p.ID != "t" {
			return protocol.Once(nil, protocol.Errorf(protocol.TaskNotFound, "none"))
		}
		return protocol.Once(task(k.states[min(k.asked, len(k.states))-1]), nil)
	case protocol.SendMessage:
		if strings.Contains(string(op.Params), "PushNotification") {
			return protocol.Once(nil, protocol.Errorf(protocol.PushNotSupported, "the agent was told of the webhook"))
		}
		return protocol.Once(wrapped(last), nil)
	}
	if op.Method == protocol.SendStreamingMessage && k.unary || op.Method == protocol.SubscribeToTask && !k.streams {
		return protocol.Once(nil, protocol.Errorf(protocol.UnsupportedOperation, "no streams"))
	}
	return func(yield func(json.RawMessage, error) bool) {
		for _, s := range k.states {
			if !yield(wrapped(s), nil) {
				return
			}
		}
	}
}

// A hook is a webhook that responds with statuses in turn; the last one repeats.
type hook struct {
	*httptest.Server
	statuses []int
	received chan *http.Request
	bodies   chan string
}

func newHook(t *testing.T, statuses ...int) *hook {
	h := &hook{statuses: statuses, received: make(chan *http.Request, 100), bodies: make(chan string, 100)}
	var mu sync.Mutex
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		body, _ := io.ReadAll(r.Body)
		status := h.statuses[0]
		if len(h.statuses) > 1 {
			h.statuses = h.statuses[1:]
		}
		h.received <- r
		if status < 300 {
			h.bodies <- string(body)
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(h.Close)
	return h
}

func newPusher(t *testing.T, o Options) *Pusher {
	o.Wait = time.Millisecond
	p := New(o)
	t.Cleanup(p.Close)
	return p
}

func send(method, url string) *protocol.Operation {
	return &protocol.Operation{Method: method, Params: json.RawMessage(`{"message":{"messageId":"m"},"configuration":{"task_push_notification_config":{"url":"` + url + `","token":"secret","authentication":{"scheme":"Basic","credentials":"eDp5"}}}}`)}
}

// TestDelivery delivers events of agents with and without streams, at the first or a later try.
func TestDelivery(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		agent    *tasker
		method   string
		statuses []int
		want     int // deliveries
	}{
		"a stream":               {&tasker{states: []protocol.State{protocol.Working, protocol.Completed}, streams: true}, protocol.SendStreamingMessage, []int{200}, 2},
		"one answer":             {&tasker{states: []protocol.State{protocol.Working, protocol.Completed}, streams: true}, protocol.SendMessage, []int{204}, 2},
		"an agent that is asked": {&tasker{states: []protocol.State{protocol.Working, protocol.Working, protocol.Completed}}, protocol.SendStreamingMessage, []int{200}, 2},
		"without streams at all": {&tasker{states: []protocol.State{protocol.Completed}, unary: true}, protocol.SendMessage, []int{200}, 1},
		"taken the third time":   {&tasker{states: []protocol.State{protocol.Completed}, streams: true}, protocol.SendMessage, []int{500, 429, 200}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHook(t, test.statuses...)
			a := newPusher(t, Options{Private: true}).Agent(test.agent, "x", "")
			for result, err := range a.Do(t.Context(), send(test.method, h.URL)) {
				if id, _ := protocol.TaskOf(result); err != nil || id != "t" {
					t.Errorf("the result is %s, %v", result, err)
				}
			}
			for range test.want - 1 {
				<-h.bodies
			}
			if last := <-h.bodies; !strings.Contains(last, string(protocol.Completed)) {
				t.Errorf("the last is %s", last)
			}
			r := <-h.received
			if r.Header.Get("Authorization") != "Basic eDp5" || r.Header.Get("X-A2A-Notification-Token") != "secret" || r.Header.Get("A2A-Notification-Token") != "secret" ||
				r.Header.Get("Content-Type") != "application/a2a+json" {
				t.Errorf("the headers are %v", r.Header)
			}
		})
	}
}

// TestRetriesByStatus counts the tries for each status of the webhook.
func TestRetriesByStatus(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for status, want := range map[int]int{400: 1, 410: 1, 500: 5, 429: 5} {
		h := newHook(t, status)
		p := newPusher(t, Options{Private: true})
		if err := p.deliver(ctx, &config{URL: h.URL}, json.RawMessage("{}")); err == nil || len(h.received) != want {
			t.Errorf("%d was tried %d times, want %d: %v", status, len(h.received), want, err)
		}
	}
	// Addresses outside of the public internet are refused, also after a redirect.
	p := newPusher(t, Options{})
	h := newHook(t, 200)
	for _, url := range []string{h.URL, "http://localhost:1/", "http://[::1]:1/", "http://10.0.0.1/", "http://169.254.169.254/latest/meta-data", "http://0.0.0.0:1/", "http://[::ffff:127.0.0.1]:1/"} {
		refused := &netguard.Error{}
		if err := p.deliver(ctx, &config{URL: url}, json.RawMessage("{}")); !errors.As(err, &refused) {
			t.Errorf("%s: %v", url, err)
		}
	}
	if len(h.received) > 0 {
		t.Error("a webhook on loopback was called")
	}
}

// Secrets do not follow a redirect to another host.
func TestRedirects(t *testing.T) {
	t.Parallel()
	to := newHook(t, 200)
	from := httptest.NewServer(http.RedirectHandler(to.URL, http.StatusTemporaryRedirect))
	defer from.Close()
	p := newPusher(t, Options{Private: true})
	c := &config{URL: from.URL, Token: "secret", Auth: &auth{Scheme: "Bearer", Credentials: "x"}}
	if err := p.deliver(t.Context(), c, json.RawMessage("{}")); err != nil {
		t.Fatal(err)
	}
	if r := <-to.received; r.Header.Get("Authorization")+r.Header.Get("X-A2A-Notification-Token")+r.Header.Get("A2A-Notification-Token") != "" {
		t.Errorf("another host got %v", r.Header)
	}
	round := httptest.NewServer(nil)
	round.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, round.URL, http.StatusTemporaryRedirect)
	})
	defer round.Close()
	p.o.Tries = 1
	if err := p.deliver(t.Context(), &config{URL: round.URL}, json.RawMessage("{}")); err == nil {
		t.Error("an endless redirect was accepted")
	}
}

// TestConfigs checks the operations on webhooks.
func TestConfigs(t *testing.T) {
	t.Parallel()
	hold := net.Listener(nil)
	hold, err := net.Listen("tcp", "127.0.0.1:0") // a webhook that never responds
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Close()
	p := newPusher(t, Options{Private: true, MaxConfigs: 2})
	a := p.Agent(&tasker{states: []protocol.State{protocol.Working}, streams: true}, "x", "me")
	ask := func(method, params string) string {
		t.Helper()
		r, err := protocol.Call(t.Context(), a, &protocol.Operation{Method: method, Params: json.RawMessage(params)})
		if err != nil {
			return protocol.AsError(err).Message
		}
		return string(r)
	}
	url := "http://" + hold.Addr().String() + "/"
	for _, step := range []struct{ method, params, want string }{
		{protocol.ListPush, `{"taskId":"t"}`, `{"configs":[],"nextPageToken":""}`},
		{protocol.CreatePush, `{"taskId":"t","id":"a","url":"` + url + `","tenant":"x"}`, `{"taskId":"t","id":"a","url":"` + url + `"}`},
		{protocol.CreatePush, `{"task_id":"t","id":"a","url":"` + url + `again"}`, `{"taskId":"t","id":"a","url":"` + url + `again"}`},
		{protocol.GetPush, `{"taskId":"t","id":"a"}`, `{"taskId":"t","id":"a","url":"` + url + `again"}`},
		{protocol.GetPush, `{"taskId":"t"}`, `{"taskId":"t","id":"a","url":"` + url + `again"}`},
		{protocol.CreatePush, `{"taskId":"t","id":"b","url":"` + url + `"}`, `{"taskId":"t","id":"b","url":"` + url + `"}`},
		{protocol.CreatePush, `{"taskId":"t","id":"c","url":"` + url + `"}`, `a task has at most 2 webhooks`},
		{protocol.CreatePush, `{"taskId":"other","url":"` + url + `"}`, `none`},
		{protocol.CreatePush, `{"taskId":"t","url":"http://user:pw@x/"}`, `expected an https URL for the webhook`},
		{protocol.CreatePush, `{"taskId":"t","url":"` + url + `","token":"a\nb"}`, `the token is not a valid header value`},
		{protocol.CreatePush, `{"taskId":"t","url":"` + url + `","authentication":{"scheme":""}}`, `the authentication is not a valid header value`},
		{protocol.DeletePush, `{"taskId":"t","id":"a"}`, `{}`},
		{protocol.DeletePush, `{"taskId":"t","id":"a"}`, `{}`},
		{protocol.GetPush, `{"taskId":"t","id":"a"}`, `the task has no such push notification config`},
		{protocol.DeletePush, `{"taskId":"t","id":"b"}`, `{}`},
		{protocol.GetTask, `{"id":"t"}`, string(task(protocol.Working))},
	} {
		if got := ask(step.method, step.params); got != step.want {
			t.Errorf("%s %s gives %s, want %s", step.method, step.params, got, step.want)
		}
	}
	other := p.Agent(&tasker{states: []protocol.State{protocol.Working}}, "x", "other")
	if r, err := protocol.Call(t.Context(), other, &protocol.Operation{Method: protocol.ListPush, Params: json.RawMessage(`{"taskId":"t"}`)}); err != nil || string(r) != `{"configs":[],"nextPageToken":""}` {
		t.Errorf("the webhooks of another principal are %s, %v", r, err)
	}
}
