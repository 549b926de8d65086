package rest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lmosd/lmosd/interact"
)

const background = `"actions": {"fade": {"synchronous": false, "output": {"type": "string"},
	"forms": [{"href": "BASE/fade"}]},
	"unsaid": {"output": {}, "forms": [{"href": "BASE/unsaid"}]},
	"sync": {"synchronous": true, "output": {}, "forms": [{"href": "BASE/sync"}]}}`

// A worker is an agent that runs actions in the background: its status goes through states, one per look.
type worker struct {
	begin  http.HandlerFunc
	states []string

	mu      sync.Mutex
	looks   int
	deleted chan string // paths of DELETE requests
}

func newWorker(t *testing.T, states ...string) (*worker, *recorder) {
	t.Helper()
	w := &worker{states: states, deleted: make(chan string, 10)}
	w.begin = func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Location", "/fade/1")
		rw.Header().Set("Content-Type", "application/json")
		rw.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(rw, `{"status":"pending","href":"/fade/1"}`)
	}
	return w, newRecorder(t, w.serve)
}

func (w *worker) serve(rw http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodPost:
		w.begin(rw, r)
	case http.MethodDelete:
		w.deleted <- r.URL.Path
		rw.WriteHeader(http.StatusNoContent)
	default:
		w.mu.Lock()
		defer w.mu.Unlock()
		state := w.states[min(w.looks, len(w.states)-1)]
		w.looks++
		if state == "down" {
			panic(http.ErrAbortHandler)
		}
		if state == "500" {
			http.Error(rw, "lost it", 500)
			return
		}
		responds(state)(rw, r)
	}
}

// quick returns a client that does not wait long between looks.
func quick(t *testing.T, o Options) *Client {
	t.Helper()
	c := newClient(t, o)
	c.pause = time.Millisecond
	return c
}

// replies collects what a thing yields.
func replies(t *testing.T, thing interact.Thing, m *interact.Message) (states []interact.Status,
	last *interact.Message, err error) {
	t.Helper()
	for reply, e := range thing.Do(t.Context(), m) {
		if e != nil {
			return states, last, e
		}
		states, last = append(states, reply.Status), reply
	}
	return states, last, nil
}

func TestBackgroundActionIsFollowed(t *testing.T) {
	t.Parallel()
	_, agent := newWorker(t, `{"status":"pending"}`, `{"status":"running"}`, `{"status":"running"}`,
		`{"status":"completed","output":"faded"}`)
	m := invoke("fade", "")
	m.TraceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	states, last, err := replies(t, quick(t, Options{}).Thing(describe(t, agent.URL, background)), m)
	if err != nil {
		t.Fatal(err)
	}
	if want := []interact.Status{interact.StatusPending, interact.StatusRunning,
		interact.StatusCompleted}; fmt.Sprint(states) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", states, want)
	}
	if string(last.Data) != `"faded"` || last.Type != interact.ActionStatus || last.Correlation != "1" {
		t.Errorf("got %+v %s", last, last.Data)
	}
	look := agent.last(t)
	if look.method != "GET" || look.path != "/fade/1" || look.header.Get("Traceparent") == "" ||
		look.header.Get("Content-Type") != "" {
		t.Errorf("looked by %+v", look)
	}
}

func TestBackgroundActionsThatEnd(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		states []string
		code   interact.Code
		remote bool
		says   string
	}{
		{"failed with a problem", []string{`{"status":"failed","error":{"title":"Bulb broken","detail":"buy one"}}`},
			interact.AgentFailed, true, "Bulb broken: buy one"},
		{"failed without a text", []string{`{"status":"failed"}`}, interact.AgentFailed, true, "fade of Thing failed"},
		{"cancelled at the agent", []string{`{"status":"cancelled"}`}, interact.Cancelled, true, "at the agent"},
		{"unknown status", []string{`{"status":"dreaming"}`}, interact.AgentFailed, false, "dreaming"},
		{"no status", []string{`[1]`}, interact.AgentFailed, false, "its status is"},
		{"the status is gone", []string{`{"status":"running"}`, "500"}, interact.AgentFailed, true, "lost it"},
		{"the agent is gone", []string{`{"status":"running"}`, "down"}, interact.Unreachable, false,
			"connection was closed"},
		{"moves to another origin", []string{`{"status":"running","href":"http://evil.example/"}`},
			interact.AgentFailed, false, "another origin"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, agent := newWorker(t, tt.states...)
			_, _, err := replies(t, quick(t, Options{}).Thing(describe(t, agent.URL, background)), invoke("fade", ""))
			e := wantError(t, err, tt.code)
			if e.Remote != tt.remote || !strings.Contains(everything(e), tt.says) {
				t.Errorf("got remote %t, %s", e.Remote, everything(e))
			}
		})
	}
}

func TestBackgroundActionWithInvalidJSON(t *testing.T) {
	t.Parallel()
	_, agent := newWorker(t, `{"status":"completed","output":"done"}`)
	thing := describe(t, agent.URL, `"actions": {"fade": {"output": {}, "forms": [{"href": "BASE/fade",
		"response": {"contentType": "text/plain"}}]}}`)
	if _, last, err := replies(t, quick(t, Options{}).Thing(thing), invoke("fade", "")); err != nil || string(last.Data) != `"done"` {
		t.Errorf("got %v, %v", last, err)
	}
}

func TestOneLostLookIsForgiven(t *testing.T) {
	t.Parallel()
	_, agent := newWorker(t, `{"status":"running"}`, "down", "down", `{"status":"completed","output":1}`)
	if _, last, err := replies(t, quick(t, Options{}).Thing(describe(t, agent.URL, background)),
		invoke("fade", "")); err != nil || string(last.Data) != "1" {
		t.Errorf("got %v, %v", last, err)
	}
}

func TestAnnouncementOfBackgroundActions(t *testing.T) {
	t.Parallel()
	answer := func(status int, location, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			if location != "" {
				w.Header().Set("Location", location)
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
	const done = `{"status":"completed","output":"done"}`
	tests := []struct {
		name, action string
		begin        http.HandlerFunc
		want         string // output; "!" and a word of the error
		looks        int
	}{
		{"201 with status and href", "fade", answer(201, "", `{"status":"pending","href":"fade/2"}`), `"done"`, 1},
		{"201 with status and location", "fade", answer(201, "/fade/2", `{"status":"pending"}`), `"done"`, 1},
		{"202 too", "fade", answer(202, "/fade/2", `{"status":"running"}`), `"done"`, 1},
		{"synchronous is not declared", "unsaid", answer(201, "/fade/2", `{"status":"running"}`), `"done"`, 1},
		{"already completed", "fade", answer(201, "/fade/2", `{"status":"completed","output":5}`), `5`, 0},
		{"already failed", "fade", answer(201, "/fade/2", `{"status":"failed","error":"no"}`), `!no`, 0},
		{"200 is the output", "fade", answer(200, "/fade/2", `{"status":"pending"}`), `{"status":"pending"}`, 0},
		{"201 with something else is the output", "unsaid", answer(201, "/orders/7", `{"id":7}`), `{"id":7}`, 0},
		{"a synchronous action has no background", "sync", answer(201, "/fade/2", `{"status":"pending"}`),
			`{"status":"pending"}`, 0},
		{"no address", "fade", answer(201, "", `{"status":"pending"}`), `!without the address of its status`, 0},
		{"another origin", "fade", answer(201, "", `{"status":"pending","href":"//evil.example/x"}`),
			`!another origin`, 0},
		{"bad address", "fade", answer(201, "", `{"status":"pending","href":"http://%zz"}`), `!another origin`, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w, agent := newWorker(t, done)
			w.begin = tt.begin
			_, last, err := replies(t, quick(t, Options{}).Thing(describe(t, agent.URL, background)),
				invoke(tt.action, ""))
			if why, bad := strings.CutPrefix(tt.want, "!"); bad {
				if e := wantError(t, err, interact.AgentFailed); !strings.Contains(e.Error(), why) {
					t.Errorf("got %v", e)
				}
			} else if err != nil || string(last.Data) != tt.want {
				t.Errorf("got %v, %v, want %s", last, err, tt.want)
			}
			if got := len(agent.requests()) - 1; got != tt.looks {
				t.Errorf("%d looks, want %d", got, tt.looks)
			}
		})
	}
}

func TestLocationWithoutABody(t *testing.T) {
	t.Parallel()
	w, agent := newWorker(t, `{"status":"completed"}`)
	w.begin = func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Location", "/fade/1")
		rw.WriteHeader(http.StatusCreated)
	}
	thing := describe(t, agent.URL, `"actions": {"fade": {"synchronous": false, "forms": [{"href": "BASE/fade"}]}}`)
	states, last, err := replies(t, quick(t, Options{}).Thing(thing), invoke("fade", ""))
	if err != nil || len(states) != 2 || len(last.Data) != 0 {
		t.Errorf("got %v, %v, %v", states, last, err)
	}
}

func TestDisconnectCancelsTheBackgroundAction(t *testing.T) {
	t.Parallel()
	t.Run("by leaving the loop", func(t *testing.T) {
		t.Parallel()
		w, agent := newWorker(t, `{"status":"running"}`)
		for range quick(t, Options{}).Thing(describe(t, agent.URL, background)).Do(t.Context(), invoke("fade", "")) {
			break
		}
		if got := <-w.deleted; got != "/fade/1" {
			t.Errorf("deleted %s", got)
		}
	})
	t.Run("by cancelling", func(t *testing.T) {
		t.Parallel()
		w, agent := newWorker(t, `{"status":"running"}`)
		ctx, cancel := context.WithCancel(t.Context())
		var last error
		for m, err := range quick(t, Options{}).Thing(describe(t, agent.URL, background)).Do(ctx, invoke("fade", "")) {
			if last = err; err == nil && m.Status == interact.StatusRunning {
				cancel()
			}
		}
		cancel()
		wantError(t, last, interact.Cancelled)
		if got := <-w.deleted; got != "/fade/1" {
			t.Errorf("deleted %s", got)
		}
	})
	t.Run("by the deadline", func(t *testing.T) {
		t.Parallel()
		w, agent := newWorker(t, `{"status":"running"}`)
		m := invoke("fade", "")
		m.Deadline = time.Now().Add(150 * time.Millisecond)
		_, err := interact.Call(t.Context(), quick(t, Options{}).Thing(describe(t, agent.URL, background)), m)
		wantError(t, err, interact.Timeout)
		if got := <-w.deleted; got != "/fade/1" {
			t.Errorf("deleted %s", got)
		}
	})
}

func TestSecretsGoAlongToTheStatus(t *testing.T) {
	t.Parallel()
	w, agent := newWorker(t, `{"status":"failed","error":{"title":"bad key hunter2"}}`)
	w.begin = func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "application/json")
		rw.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(rw, `{"status":"pending","href":"/fade/1?x=1"}`)
	}
	for scheme, where := range map[string]func(seen) string{
		`{"scheme": "bearer"}`:                             func(s seen) string { return s.header.Get("Authorization") },
		`{"scheme": "apikey", "in": "query", "name": "k"}`: func(s seen) string { return s.query },
	} {
		c := withSecrets(t, Options{}, "urn:example:thing", "sc",
			fmt.Sprintf(`{"origin": %q, "token": "hunter2", "key": "hunter2"}`, agent.URL))
		c.pause = time.Millisecond
		_, _, err := replies(t, c.Thing(guarded(t, agent.URL, scheme)), invoke("act", `{}`))
		e := wantError(t, err, interact.AgentFailed)
		if got := where(agent.last(t)); got != "Bearer hunter2" && got != "x=1&k=hunter2" {
			t.Errorf("%s: got %q", scheme, got)
		}
		if strings.Contains(everything(e), "hunter2") {
			t.Errorf("the secret is shown: %s", everything(e))
		}
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]time.Duration{"": 0, "2": 2 * time.Second, "-1": 0, "x": 0,
		"99999999":                      30 * time.Second,
		"Wed, 21 Oct 2026 07:28:00 GMT": 0, "99999999999999999999": 0} {
		if got := retryAfter(value); got != want {
			t.Errorf("%q: got %v, want %v", value, got, want)
		}
	}
}

// The caller secret of an agent is in each request to its origin, also to the status of an action, and in none to another origin. The agent cannot
// publish it in its errors, and a form cannot set it.
func TestCallerSecret(t *testing.T) {
	t.Parallel()
	elsewhere := newRecorder(t, responds(`{"status":"completed"}`))
	w, agent := newWorker(t, `{"status":"running"}`, `{"status":"completed","output":"faded"}`)
	c := quick(t, Options{CallerSecret: func(thing string, to *url.URL) string {
		if "http://"+to.Host == agent.URL {
			return "hush of " + thing
		}
		return ""
	}})
	thing := describe(t, agent.URL, strings.ReplaceAll(background, `"href": "BASE/sync"`,
		`"href": "`+elsewhere.URL+`", "htv:headers": [{"htv:fieldName": "lmos-CALLER-secret", "htv:fieldValue": "forged"}]`))
	want := "hush of " + thing.ID
	if _, _, err := replies(t, c.Thing(thing), invoke("fade", "")); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, r := range agent.requests() {
		if seen++; r.header.Get("Lmos-Caller-Secret") != want {
			t.Errorf("%s %s has the secret %q", r.method, r.path, r.header.Get("Lmos-Caller-Secret"))
		}
	}
	if seen < 3 {
		t.Errorf("%d requests", seen)
	}
	_, _, _ = replies(t, c.Thing(thing), invoke("sync", ""))
	if got := elsewhere.last(t).header.Values("Lmos-Caller-Secret"); len(got) > 0 {
		t.Errorf("another origin gets %q", got)
	}
	w.begin = func(rw http.ResponseWriter, r *http.Request) { http.Error(rw, r.Header.Get("Lmos-Caller-Secret"), 500) }
	if _, _, err := replies(t, c.Thing(thing), invoke("fade", "")); err == nil || strings.Contains(fmt.Sprintf("%+v", interact.AsError(err)), "hush") {
		t.Errorf("the agent publishes its secret: %v", err)
	}
}
