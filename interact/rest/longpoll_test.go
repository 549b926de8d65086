package rest

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/form"
)

// polled is a thing as node-wot and the Kotlin SDK describe it.
const polled = `
	"properties": {
		"count": {"type": "integer", "observable": true, "forms": [
			{"href": "BASE/counter/properties/count", "op": ["readproperty", "writeproperty"]},
			{"href": "BASE/counter/properties/count/observable", "op": ["observeproperty", "unobserveproperty"],
				"subprotocol": "longpoll"}]},
		"plain": {"type": "integer", "observable": true, "forms": [
			{"href": "BASE/plain", "op": ["readproperty", "observeproperty"]}]}
	},
	"events": {
		"change": {"data": {"type": "string"}, "forms": [{"href": "BASE/counter/events/change", "op": ["subscribeevent",
			"unsubscribeevent"],
			"subprotocol": "longpoll"}]},
		"bell":   {"forms": [{"href": "BASE/counter/events/bell", "op": ["subscribeevent"]}]},
		"gone":   {"forms": [{"href": "http://127.0.0.1:1/gone", "op": ["subscribeevent"]}]}
	}`

const polledAll = `, "forms": [{"href": "BASE/counter/properties", "op": ["readallproperties", "observeallproperties"],
	"subprotocol": "longpoll"}]`

// A nodeWoT responds like the HTTP server of node-wot: to HEAD immediately with 202, to GET when something is emitted, the value or
// nothing as the body, without Content-Length; the socket is left alone for an hour.
type nodeWoT struct{ emitted chan string }

func (n nodeWoT) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodHead {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	select {
	case value := <-n.emitted:
		w.Header().Set("Access-Control-Allow-Origin", "*")
		if value != "" {
			w.Header().Set("Content-Type", "application/json")
		}
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		_, _ = io.WriteString(w, value)
	case <-r.Context().Done():
	}
}

func TestLongpollOfNodeWoT(t *testing.T) {
	t.Parallel()
	server := nodeWoT{make(chan string)}
	agent := newRecorder(t, server.ServeHTTP)
	c, thing := newClient(t, Options{}), describe(t, agent.URL, polled)
	done := make(chan bool)
	go func() {
		defer close(done)
		for _, v := range []string{"1", "2", "3"} {
			server.emitted <- v
		}
	}()
	m := observe("count")
	m.After = "7"
	got, err := follow(t, c, thing, m, 3)
	if err != nil || texts(got) != "count  1\ncount  2\ncount  3\n" {
		t.Errorf("got %s, %v", texts(got), err)
	}
	<-done
	all := agent.requests()
	if all[0].method != "GET" || all[0].path != "/counter/properties/count/observable" ||
		all[0].header.Get("Accept") != "application/json" ||
		all[0].header.Get("Last-Event-Id") != "7" || all[1].header.Get("Last-Event-Id") != "" {
		t.Errorf("received %+v", all)
	}
}

func TestLongpollOfEvents(t *testing.T) {
	t.Parallel()
	server := nodeWoT{make(chan string)}
	agent := newRecorder(t, server.ServeHTTP)
	done := make(chan bool)
	go func() {
		defer close(done)
		for range 2 {
			server.emitted <- `"a"`
		}
		time.Sleep(2 * minHold) // a held response without data is an event without data
		server.emitted <- ""
	}()
	c, thing := newClient(t, Options{}), describe(t, agent.URL, polled)
	got, err := follow(t, c, thing, subscribe("change"), 2)
	if err != nil || texts(got) != "change  \"a\"\nchange  \"a\"\n" || got[0].Type != interact.Event {
		t.Errorf("got %s, %v", texts(got), err)
	}
	got, err = follow(t, c, thing, subscribe("bell"), 1)
	if err != nil || texts(got) != "bell  \n" {
		t.Errorf("got %s, %v", texts(got), err)
	}
	<-done
}

func TestLongpollOfAll(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, func(w http.ResponseWriter, r *http.Request) { responds(`{"count": 1, "plain": 2}`)(w, r) })
	got, err := follow(t, newClient(t, Options{}), describe(t, agent.URL, polled+polledAll),
		&interact.Message{Type: interact.ObserveAllProperties}, 2)
	if err != nil || texts(got) != "count  1\nplain  2\n" {
		t.Errorf("got %s, %v", texts(got), err)
	}
}

// The server of the Kotlin SDK may respond immediately without data: the pauses between requests grow.
func TestLongPollWithAnEmptyAnswer(t *testing.T) {
	t.Parallel()
	for name, nothing := range map[string]http.HandlerFunc{
		"204": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
		"200": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) },
		"202": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) },
	} {
		for _, m := range []*interact.Message{observe("count"), subscribe("change"), subscribe("bell")} {
			var n atomic.Int32
			agent := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
				if n.Add(1) < 6 {
					nothing(w, r)
					return
				}
				if m.Name == "count" {
					responds("5")(w, r)
					return
				}
				responds(`"5"`)(w, r)
			})
			begun := time.Now()
			got, err := follow(t, quick(t, Options{}), describe(t, agent.URL, polled), m, 1)
			if err != nil || len(got) != 1 || !strings.Contains(texts(got), "5") {
				t.Errorf("%s, %s: got %s, %v", name, m.Name, texts(got), err)
			}
			// 4 ms and its doubles, less a quarter by chance.
			if took, want := time.Since(begun), (4+8+16+32+64)*time.Millisecond*3/4; took < want {
				t.Errorf("%s, %s: six requests within %v, want %v", name, m.Name, took, want)
			}
		}
	}
}

func TestPausesOfALongpollGrow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		thing := describe(t, "http://a.example", polled)
		c := NewClient(Options{})
		o := &observation{client: c, r: &request{Request: &form.Request{Thing: thing, Message: observe("count"), Form: &thing.Properties["count"].Forms[1]}}}
		p := &poller{observation: o, repeats: outage{first: 4 * c.pause}}
		begun := time.Now()
		for range 100 {
			if err := p.accept(t.Context(), &answer{status: http.StatusNoContent}, false); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(begun); took < 100*20*time.Second || took > 100*maxBackoff {
			t.Errorf("100 empty answers in %v", took)
		}
		begun = time.Now()
		for range 100 {
			if err := p.accept(t.Context(), &answer{status: http.StatusNoContent}, true); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(begun); took != 0 {
			t.Errorf("a held request is repeated after %v", took/100)
		}
	})
}

// A form with the value in place of a longpoll: changes arrive with the polls.
func TestLongpollOfAPlainProperty(t *testing.T) {
	t.Parallel()
	var n atomic.Int32
	agent := newRecorder(t, func(w http.ResponseWriter, r *http.Request) { responds(fmt.Sprint(n.Add(1)/4))(w, r) })
	got, err := follow(t, quick(t, Options{}), describe(t, agent.URL, polled), observe("plain"), 3)
	if err != nil || texts(got) != "plain  0\nplain  1\nplain  2\n" {
		t.Errorf("got %s, %v", texts(got), err)
	}
}

func TestEventsInARowAreSlowedDown(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, responds(`"again"`))
	begun := time.Now()
	got, err := follow(t, quick(t, Options{}), describe(t, agent.URL, polled), subscribe("change"), maxRow+11)
	if err != nil || len(got) != maxRow+11 {
		t.Fatalf("got %d, %v", len(got), err)
	}
	if took := time.Since(begun); took < 10*4*time.Millisecond {
		t.Errorf("%d events in %v", len(got), took)
	}
}

func TestLongpollOutlivesFailures(t *testing.T) {
	t.Parallel()
	var n atomic.Int32
	agent := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
		switch n.Add(1) {
		case 2:
			panic(http.ErrAbortHandler)
		case 3:
			w.WriteHeader(http.StatusGatewayTimeout)
		case 4:
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusTooManyRequests)
		case 5:
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, `"half`)
		default:
			responds(fmt.Sprintf(`"%d"`, n.Load()))(w, r)
		}
	})
	got, err := follow(t, quick(t, Options{}), describe(t, agent.URL, polled), subscribe("change"), 2)
	if err != nil || texts(got) != "change  \"1\"\nchange  \"6\"\n" {
		t.Errorf("got %s, %v", texts(got), err)
	}
}

func TestLongpollsThatEnd(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		then http.HandlerFunc
		code interact.Code
		says string
	}{
		"the event is gone": {http.NotFound, interact.AgentFailed, "404"},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/x", http.StatusTemporaryRedirect) },
			interact.AgentFailed, "redirect"},
		"no JSON": {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<p>") },
			interact.AgentFailed, "expected application/json"},
		"too large": {responds(`"` + strings.Repeat("x", 2000) + `"`), interact.TooLarge, "1000 bytes"},
	} {
		var n atomic.Int32
		agent := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
			if n.Add(1) == 1 {
				responds(`"a"`)(w, r)
				return
			}
			tt.then(w, r)
		})
		got, err := follow(t, quick(t, Options{MaxBody: 1000}), describe(t, agent.URL, polled), subscribe("change"), 9)
		if e := wantError(t, err, tt.code); len(got) != 1 || !strings.Contains(everything(e), tt.says) {
			t.Errorf("%s: got %s, %s", name, texts(got), everything(e))
		}
	}
	_, err := follow(t, newClient(t, Options{}), describe(t, "", polled), subscribe("gone"), 1)
	wantError(t, err, interact.Unreachable)
}

// A node names the event of a response and continues after it.
func TestLongPollReceivesAllEvents(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
		n := len(r.Header.Get("Last-Event-Id")) + 1
		w.Header().Set("Lmos-Event-Id", strings.Repeat("i", n))
		w.Header().Set("Lmos-Event-Name", []string{"count", "plain", "unknown"}[n%3])
		responds(fmt.Sprint(n))(w, r)
	})
	c, thing := newClient(t, Options{}), describe(t, agent.URL, polled+polledAll)
	got, err := follow(t, c, thing, &interact.Message{Type: interact.ObserveAllProperties, After: "ii"}, 3)
	if err != nil || texts(got) != "count iii 3\nplain iiii 4\ncount iiiiii 6\n" {
		t.Errorf("got %s, %v", texts(got), err)
	}
	agent.answer = func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Lmos-Event-Name", "an alias")
		responds(`"a"`)(w, r)
	}
	if got, err := follow(t, c, thing, subscribe("change"), 1); err != nil || texts(got) != "change  \"a\"\n" {
		t.Errorf("got %s, %v", texts(got), err)
	}
}

func TestLongpollInCBOR(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/cbor")
		_, _ = w.Write([]byte{0x18, 0x2a})
	})
	thing := describe(t, agent.URL, `"events": {"e": {"data": {"type": "integer"}, "forms": [
		{"href": "BASE/json", "subprotocol": "longpoll"}, {"href": "BASE/cbor", "subprotocol": "longpoll",
			"contentType": "application/cbor"}]}}`)
	m := subscribe("e")
	m.Accept = "application/cbor"
	got, err := follow(t, newClient(t, Options{}), thing, m, 1)
	if err != nil || string(got[0].Data) != "\x18\x2a" || got[0].ContentType != "application/cbor" ||
		agent.requests()[0].path != "/cbor" {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestSubscriptionWithVariables(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, responds(`1`))
	thing := describe(t, agent.URL, `"events": {"e": {"data": {}, "uriVariables": {"room": {"type": "string"},
		"above": {"type": "integer"}},
		"forms": [{"href": "BASE/e/{room}{?above}", "subprotocol": "longpoll"}]}}`)
	c := newClient(t, Options{})
	if _, err := follow(t, c, thing, with(subscribe("e"), `{"room":"hall","above":3}`), 1); err != nil {
		t.Fatal(err)
	}
	if got := agent.requests()[0]; got.path != "/e/hall" || got.query != "above=3" {
		t.Errorf("received %+v", got)
	}
	n := len(agent.requests())
	for data, code := range map[string]interact.Code{``: interact.Invalid, `{"room":"hall","above":"x"}`: interact.Invalid,
		`{"room":"hall","other":1}`: interact.NotAllowed} {
		_, err := follow(t, c, thing, with(subscribe("e"), data), 1)
		wantError(t, err, code)
	}
	if len(agent.requests()) != n {
		t.Error("the agent received an unsuitable request")
	}
}
