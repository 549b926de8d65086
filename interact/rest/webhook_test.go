package rest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/form"
)

// deliverTo posts like an agent that ignores the response.
func deliverTo(url, contentType, body string, header ...string) {
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return
	}
	req.Header.Set("Content-Type", contentType)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	if resp, err := client.Do(req); err == nil {
		_ = resp.Body.Close()
	}
}

const hooked = `
	"properties": {"level": {"type": "integer", "observable": true, "forms": [{"href": "BASE/level", "op": ["readproperty"]},
		{"href": "BASE/level", "op": ["observeproperty"], "subprotocol": "webhook"}]}},
	"events": {
		"hot":  {"data": {"type": "number"}, "forms": [{"href": "BASE/hot", "suprotocol": "webhook"}]},
		"bell": {"subscription": {"type": "object", "properties": {"tone": {"type": "string"}}}, "forms": [
			{"href": "BASE/bell", "subprotocol": "webhook"}]}
	},
	"forms": [{"href": "BASE/properties", "op": ["observeallproperties"], "subprotocol": "webhook"},
		{"href": "BASE/events", "op": ["subscribeallevents"], "subprotocol": "webhook"}]`

// A hooker is an agent that calls back: each subscription gets the deliveries of deliver.
type hooker struct {
	deliver func(callbackURL string)
	deleted chan string
	answer  http.HandlerFunc // to a subscription; nil is 201 with Location
}

func newHooker(t *testing.T, deliver func(callbackURL string)) (*hooker, *recorder) {
	t.Helper()
	h := &hooker{deliver: deliver, deleted: make(chan string, 10)}
	return h, newRecorder(t, h.serve)
}

func (h *hooker) serve(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodDelete {
		w.WriteHeader(http.StatusNoContent)
		h.deleted <- r.URL.Path
		return
	}
	var sub struct {
		CallbackURL string `json:"callbackURL"`
	}
	if err := json.NewDecoder(r.Body).Decode(&sub); err != nil || sub.CallbackURL == "" {
		http.Error(w, "no callbackURL", http.StatusBadRequest)
		return
	}
	if h.answer != nil {
		h.answer(w, r)
	} else {
		w.Header().Set("Location", r.URL.Path+"/subscriptions/1")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "Created")
	}
	_ = http.NewResponseController(w).Flush()
	if h.deliver != nil {
		h.deliver(sub.CallbackURL)
	}
}

func TestSubscribeByWebhook(t *testing.T) {
	t.Parallel()
	h, agent := newHooker(t, func(url string) {
		for _, v := range []string{"80", "81.5"} {
			deliverTo(url, "application/json", v)
		}
	})
	callbacks := newCallbacks(t)
	c, thing := newClient(t, Options{Webhook: callbacks}), describe(t, agent.URL, hooked)
	got, err := follow(t, c, thing, subscribe("hot"), 2)
	if err != nil || texts(got) != "hot  80\nhot  81.5\n" || got[0].Type != interact.Event {
		t.Errorf("got %s, %v", texts(got), err)
	}
	if gone := <-h.deleted; gone != "/hot/subscriptions/1" {
		t.Errorf("deleted %s", gone)
	}
	first := agent.requests()[0]
	if first.method != "POST" || first.header.Get("Content-Type") != "application/json" || !strings.HasPrefix(first.body,
		`{"callbackURL":"`+callbacks.base) {
		t.Errorf("subscribed by %+v", first)
	}
	if len(callbacks.open) != 0 {
		t.Error("the address is still open")
	}
	got, err = follow(t, c, thing, observe("level"), 1)
	if err != nil || texts(got) != "level  80\n" || got[0].Type != interact.PropertyReading {
		t.Errorf("got %s, %v", texts(got), err)
	}
}

func TestWebhookWithInputAndEventsWithoutData(t *testing.T) {
	t.Parallel()
	_, agent := newHooker(t, func(url string) { deliverTo(url, "", "") })
	c, thing := newClient(t, Options{Webhook: newCallbacks(t)}), describe(t, agent.URL, hooked)
	m := with(subscribe("bell"), `{"tone":"c"}`)
	m.After = "7"
	got, err := follow(t, c, thing, m, 1)
	if err != nil || texts(got) != "bell  \n" {
		t.Errorf("got %s, %v", texts(got), err)
	}
	first := agent.requests()[0]
	if !strings.HasPrefix(first.body, `{"tone":"c","callbackURL":"http`) || first.header.Get("Last-Event-Id") != "7" {
		t.Errorf("subscribed by %+v", first)
	}
}

func TestObserveAllByWebhook(t *testing.T) {
	t.Parallel()
	var base string
	_, agent := newHooker(t, func(url string) {
		go func() {
			deliverTo(url, "application/json", "1", "Link", `<`+base+`/level>; rel="self"`)
			deliverTo(url, "application/json", "2", "Link", `</level>; rel="self"`)
			deliverTo(url, "application/json", "3", "Link", `</other>; rel="self"`)
			deliverTo(url, "application/json", `{"level":4}`)
		}()
	})
	base = agent.URL
	c, thing := newClient(t, Options{Webhook: newCallbacks(t)}), describe(t, agent.URL, hooked)
	got, err := follow(t, c, thing, &interact.Message{Type: interact.ObserveAllProperties}, 3)
	if err != nil || texts(got) != "level  1\nlevel  2\nlevel  4\n" || got[0].Type != interact.PropertyReading {
		t.Errorf("got %s, %v", texts(got), err)
	}
}

func TestWebhooksThatFail(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		answer http.HandlerFunc
		code   interact.Code
	}{
		"refused": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no callbacks", http.StatusForbidden) },
			interact.AgentFailed},
		"busy": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "later", http.StatusServiceUnavailable) },
			interact.AgentFailed},
		"redirect": {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/x", http.StatusPermanentRedirect) },
			interact.AgentFailed},
		"no answer": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, interact.Unreachable},
	} {
		h, agent := newHooker(t, nil)
		h.answer = tt.answer
		callbacks := newCallbacks(t)
		_, err := follow(t, newClient(t, Options{Webhook: callbacks}), describe(t, agent.URL, hooked), subscribe("hot"), 1)
		wantError(t, err, tt.code)
		if len(callbacks.open) != 0 || len(h.deleted) != 0 {
			t.Errorf("%s: open %d, deleted %d", name, len(callbacks.open), len(h.deleted))
		}
	}
	full := NewCallbacks("http://node.example")
	for range maxCallbacks {
		_, _, _, _ = full.Receive(t.Context())
	}
	_, agent := newHooker(t, nil)
	_, err := follow(t, newClient(t, Options{Webhook: full}), describe(t, agent.URL, hooked), subscribe("hot"), 1)
	wantError(t, err, interact.Overloaded)
	if len(agent.requests()) != 0 {
		t.Error("the agent received a request without an address")
	}
}

// The credentials go where the subscription is ended: it must be the agent's own origin.
func TestSubscriptionElsewhereIsNotDeleted(t *testing.T) {
	t.Parallel()
	other := newRecorder(t, responds(`1`))
	for name, location := range map[string]string{"another origin": other.URL + "/x", "none": "", "nonsense": "http://%zz"} {
		h, agent := newHooker(t, func(url string) { deliverTo(url, "application/json", "1") })
		h.answer = func(w http.ResponseWriter, _ *http.Request) {
			if location != "" {
				w.Header().Set("Location", location)
			}
			w.WriteHeader(http.StatusCreated)
		}
		got, err := follow(t, newClient(t, Options{Webhook: newCallbacks(t)}), describe(t, agent.URL, hooked), subscribe("hot"), 1)
		if err != nil || len(got) != 1 {
			t.Errorf("%s: got %v, %v", name, got, err)
		}
		if len(h.deleted) != 0 || len(other.requests()) != 0 {
			t.Errorf("%s: something was deleted", name)
		}
	}
}

func TestAgentThatIgnoresDelete(t *testing.T) {
	t.Parallel()
	h, agent := newHooker(t, func(url string) { deliverTo(url, "application/json", "1") })
	hold := make(chan bool)
	agent.answer = func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			select {
			case <-hold:
			case <-r.Context().Done():
			}
			return
		}
		h.serve(w, r)
	}
	begun := time.Now()
	if _, err := follow(t, newClient(t, Options{Webhook: newCallbacks(t)}), describe(t, agent.URL, hooked),
		subscribe("hot"), 1); err != nil {
		t.Error(err)
	}
	if took := time.Since(begun); took < form.CancelTimeout || took > form.CancelTimeout+5*time.Second {
		t.Errorf("it took %v", took)
	}
	close(hold)
}

func TestSecretsGoAlongWithASubscription(t *testing.T) {
	t.Parallel()
	h, agent := newHooker(t, func(url string) { deliverTo(url, "application/json", "1") })
	thing := describe(t, agent.URL, `"securityDefinitions": {"sc": {"scheme": "bearer"}}, "security": ["sc"],
		"events": {"hot": {"data": {}, "forms": [{"href": "BASE/hot", "subprotocol": "webhook"}]}}`)
	c := withSecrets(t, Options{Webhook: newCallbacks(t)}, "urn:example:thing", "sc", fmt.Sprintf(`{"origin": %q,
		"token": "hunter2"}`, agent.URL))
	if _, err := follow(t, c, thing, subscribe("hot"), 1); err != nil {
		t.Fatal(err)
	}
	<-h.deleted
	for _, r := range agent.requests() {
		if r.header.Get("Authorization") != "Bearer hunter2" {
			t.Errorf("%s without credentials", r.method)
		}
	}
}

// A subscription that expires is renewed in time, also if the first attempt fails.
func TestWebhookIsRenewed(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	h, agent := newHooker(t, nil)
	h.answer = func(w http.ResponseWriter, r *http.Request) {
		n := asked.Add(1)
		if n == 2 {
			http.Error(w, "busy", http.StatusServiceUnavailable)
			return
		}
		expires := time.Now().Add(time.Hour)
		if n == 1 {
			expires = time.Now().Add(time.Second)
		}
		body := fmt.Sprintf(`{"expires":%q}`, expires.Format(time.RFC3339Nano))
		w.Header().Set("Location", fmt.Sprintf("/subscriptions/%d", n))
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, body)
	}
	h.deliver = func(url string) {
		if asked.Load() == 3 {
			deliverTo(url, "application/json", "80")
		}
	}
	c, thing := newClient(t, Options{Webhook: newCallbacks(t)}), describe(t, agent.URL, hooked)
	c.pause = time.Microsecond
	m := subscribe("hot")
	m.After = "e1"
	got, err := follow(t, c, thing, m, 1)
	if err != nil || texts(got) != "hot  80\n" {
		t.Errorf("got %s, %v", texts(got), err)
	}
	if gone := <-h.deleted; gone != "/subscriptions/3" {
		t.Errorf("deleted %s", gone)
	}
	all := agent.requests()
	for i, after := range []string{"e1", "", ""} {
		if all[i].body != all[0].body || all[i].header.Get("Last-Event-Id") != after {
			t.Errorf("%d: subscribed with %+v", i, all[i])
		}
	}
}

// One that cannot be renewed in time is over.
func TestWebhookIsNotRenewed(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	h, agent := newHooker(t, nil)
	h.answer = func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) > 1 {
			http.Error(w, "no more", http.StatusForbidden)
			return
		}
		const body = `{"expires":"2020-01-01T00:00:00Z"}`
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, body)
	}
	c, thing := newClient(t, Options{Webhook: newCallbacks(t)}), describe(t, agent.URL, hooked)
	c.pause = time.Microsecond
	_, err := follow(t, c, thing, subscribe("hot"), 1)
	wantError(t, err, interact.AgentFailed)
}
