package rest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/form"
)

func TestClaims(t *testing.T) {
	t.Parallel()
	thing := describe(t, "http://a.example", `"events": {"e": {"forms": [
		{"href": "http://a.example/0"}, {"href": "HTTPS://a.example/1", "subprotocol": "sse"},
		{"href": "http://a.example/2", "subprotocol": "longpoll"}, {"href": "http://a.example/3", "subprotocol": "webhook"},
		{"href": "http://a.example/4", "suprotocol": "webhook"}, {"href": "http://a.example/5", "suprotocol": 5},
		{"href": "http://a.example/6", "subprotocol": "websub"}, {"href": "ws://a.example/7", "subprotocol": "lmosprotocol"},
		{"href": "mqtt://a.example/8"}, {"href": "coap://a.example/9", "subprotocol": "sse"}, {"href": "lmos:/events/e"}]}}`)
	want := []bool{true, true, true, true, true, true, false, false, false, false, false}
	for i := range thing.Events["e"].Forms {
		f := &thing.Events["e"].Forms[i]
		if got := Supports(f); got != want[i] {
			t.Errorf("%s: got %t", f.Raw, got)
		}
	}
	if s := subprotocol(&thing.Events["e"].Forms[4]); s != "webhook" {
		t.Errorf("the example of the profile: got %q", s)
	}
}

// offering describes an event with forms in this order.
func offering(forms ...string) string {
	return `"events": {"hot": {"data": {}, "forms": [` + strings.Join(forms, ",") + `]}}`
}

func TestOrderOfCarriers(t *testing.T) {
	t.Parallel()
	const (
		stream = `{"href": "BASE/sse", "subprotocol": "sse"}`
		poll   = `{"href": "BASE/poll", "subprotocol": "longpoll"}`
		hook   = `{"href": "BASE/hook", "subprotocol": "webhook"}`
		plain  = `{"href": "BASE/plain"}`
		typed  = `{"href": "BASE/typed", "contentType": "text/event-stream"}`
	)
	tests := []struct {
		name  string
		forms []string
		want  string
	}{
		{"sse before longpoll before webhook", []string{hook, poll, stream}, "/sse"},
		{"longpoll before webhook", []string{hook, poll}, "/poll"},
		{"the default is longpoll", []string{hook, plain, poll}, "/plain"},
		{"by the content type", []string{poll, typed}, "/typed"},
		{"webhook", []string{hook}, "/hook"},
	}
	for _, tt := range tests {
		agent := newRecorder(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) })
		c := newClient(t, Options{Webhook: NewCallbacks("http://node.example")})
		_, err := follow(t, c, describe(t, agent.URL, offering(tt.forms...)), subscribe("hot"), 1)
		wantError(t, err, interact.AgentFailed)
		var asked []string
		for _, r := range agent.requests() {
			asked = append(asked, r.path)
		}
		if asked[0] != tt.want || len(asked) != len(tt.forms) {
			t.Errorf("%s: received %v", tt.name, asked)
		}
	}
}

// An agent whose event stream fails is polled.
func TestNextCarrierIfOneFails(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, responds(`{"a":1}`)) // it ignores Accept
	got, err := follow(t, newClient(t, Options{}), describe(t, agent.URL, offering(
		`{"href": "BASE/hot", "subprotocol": "sse"}`, `{"href": "BASE/hot", "subprotocol": "longpoll"}`)), subscribe("hot"), 1)
	if err != nil || texts(got) != "hot  {\"a\":1}\n" {
		t.Errorf("got %s, %v", texts(got), err)
	}
	var accepted []string
	for _, r := range agent.requests() {
		accepted = append(accepted, r.header.Get("Accept"))
	}
	if want := []string{"text/event-stream", "application/json"}; !slices.Equal(accepted[:2], want) {
		t.Errorf("accepted %v", accepted)
	}
}

func TestFormsThatCannotBeObserved(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, responds(`1`))
	c := newClient(t, Options{})
	for forms, says := range map[string]string{
		`{"href": "BASE/x", "subprotocol": "webhook"}`:                    "callbacks",
		`{"href": "BASE/x", "subprotocol": "websub"}`:                     "websub",
		`{"href": "mqtt://a.example/x"}`:                                  "mqtt",
		`{"href": "BASE/x", "op": ["unsubscribeevent"]}`:                  "unsubscribeevent",
		`{"href": "BASE/x", "subprotocol": "sse", "contentCoding": "br"}`: "gzip",
	} {
		_, err := follow(t, c, describe(t, agent.URL, offering(forms)), subscribe("hot"), 1)
		if e := wantError(t, err, interact.NotAllowed); !strings.Contains(everything(e), says) {
			t.Errorf("%s: %q is missing in %s", forms, says, everything(e))
		}
	}
	// A form for the stream is none for the value.
	thing := describe(t, agent.URL, `"properties": {"p": {"observable": true, "forms": [{"href": "BASE/p",
		"contentType": "text/event-stream",
		"subprotocol": "sse", "op": ["readproperty", "observeproperty"]}]}}`)
	_, err := ask(t, c, thing, read("p"))
	wantError(t, err, interact.NotAllowed)
	if n := len(agent.requests()); n != 0 {
		t.Errorf("the agent received %d requests", n)
	}
}

// Without a form for all, each property is observed.
func TestObserveAllWithoutAForm(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "id: 7\ndata: %d\n\n", len(r.URL.Path))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	thing := describe(t, agent.URL, sensor)
	m := &interact.Message{Type: interact.ObserveAllProperties, ID: "1", Thing: "thing"}
	var got []*interact.Message
	for reply, err := range newClient(t, Options{}).Thing(thing).Do(t.Context(), m) {
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, reply); len(got) == 2 {
			break
		}
	}
	slices.SortFunc(got, func(a, b *interact.Message) int { return strings.Compare(a.Name, b.Name) })
	if texts(got) != "level 7 6\ntemp 7 5\n" || got[0].Correlation != "1" || got[0].Type != interact.PropertyReading {
		t.Errorf("got %s", texts(got))
	}
}

func TestObservationsOfOneAgentAreBounded(t *testing.T) {
	t.Parallel()
	agent := newStreamer(t, "data: 1\n\n")
	c, thing := newClient(t, Options{}), describe(t, agent.URL, sensor)
	r := &request{Request: &form.Request{Thing: thing, Message: observe("level")}, op: "observeproperty"}
	over := &thing.Properties["level"].Forms[1]
	var leave []func()
	for range maxObserved {
		f, err := c.admit(r, over)
		if err != nil {
			t.Fatal(err)
		}
		leave = append(leave, f)
	}
	_, err := follow(t, c, thing, observe("level"), 1)
	wantError(t, err, interact.Overloaded)
	other := newStreamer(t, "data: 1\n\n")
	if _, err := follow(t, c, describe(t, other.URL, sensor), observe("level"), 1); err != nil {
		t.Errorf("another agent: %v", err)
	}
	leave[0]()
	if _, err := follow(t, c, thing, observe("level"), 1); err != nil {
		t.Errorf("after one left: %v", err)
	}
	for _, f := range leave[1:] {
		f()
	}
	if n := c.observed.Len(); n != 0 {
		t.Errorf("%d are still counted", n)
	}
}

// Observations must not take the connections that other interactions with the agent need.
func TestObservationsDoNotKeepOthersOut(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept") != eventsType {
			responds("5")(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: 1\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	c, thing := newClient(t, Options{}), describe(t, agent.URL, sensor)
	ctx, cancel := context.WithCancel(t.Context())
	begun, done := make(chan bool), make(chan bool)
	for range 70 {
		go func() {
			for _, err := range c.Thing(thing).Do(ctx, observe("level")) {
				if err == nil {
					begun <- true
				}
			}
			done <- true
		}()
	}
	for range 70 {
		<-begun
	}
	if got, err := ask(t, c, thing, read("level")); err != nil || string(got.Data) != "5" {
		t.Errorf("got %v, %v", got, err)
	}
	cancel()
	for range 70 {
		<-done
	}
}

func TestOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := outage{first: 500 * time.Millisecond}
		var total time.Duration
		for i := range 12 {
			o.begin()
			pause, full := o.next(), min(500*time.Millisecond<<i, maxBackoff)
			if pause > full || pause < full*3/4 {
				t.Errorf("pause %d is %v of %v", i, pause, full)
			}
			total += pause
			time.Sleep(pause)
		}
		if o.late() {
			t.Errorf("given up after %v", total)
		}
		time.Sleep(maxOutage)
		if !o.late() {
			t.Error("the outage has no limit")
		}
		if o.recovers(); o.late() || o.next() < maxBackoff/2 {
			t.Error("a response ends the outage and not the growth of the pauses")
		}
		if o.end(); o.next() > 500*time.Millisecond {
			t.Error("the pauses do not start again")
		}
	})
}

func TestMendingEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		thing := describe(t, "http://a.example", sensor)
		lost := &lostError{error: interact.Errorf(interact.Unreachable, "start it", "gone"), after: time.Second}
		r := &request{Request: &form.Request{Thing: thing, Message: observe("level"), Form: &thing.Properties["level"].Forms[1]}}
		o := &observation{client: NewClient(Options{}), r: r}
		out := &outage{first: time.Second}
		if err := o.retry(t.Context(), lost, out, 0); err != lost.error {
			t.Errorf("before the agent took it: %v", err)
		}
		o.opened = true
		begun := time.Now()
		for out.begin(); o.retry(t.Context(), lost, out, out.next()) == nil; out.begin() {
		}
		if took := time.Since(begun); took < maxOutage || took > maxOutage+2*maxBackoff {
			t.Errorf("given up after %v", took)
		}
		if err := o.retry(t.Context(), io.EOF, out, 0); err != io.EOF {
			t.Errorf("a permanent error: %v", err)
		}
	})
}
