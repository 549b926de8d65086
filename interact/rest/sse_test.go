package rest

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// sensor can be observed by each carrier; its property alone and its events by server-sent events.
const sensor = `
	"properties": {
		"temp":  {"type": "number", "observable": true, "readOnly": true, "forms": [
			{"href": "BASE/temp", "op": ["readproperty", "observeproperty"], "subprotocol": "sse"}]},
		"level": {"type": "integer", "observable": true, "readOnly": true, "forms": [
			{"href": "BASE/level", "op": ["readproperty"]},
			{"href": "BASE/level", "op": ["observeproperty"], "subprotocol": "sse"}]},
		"fixed": {"type": "integer", "forms": [{"href": "BASE/fixed"}]}
	},
	"events": {
		"hot":  {"data": {"type": "object"}, "forms": [{"href": "BASE/hot", "op": ["subscribeevent"], "subprotocol": "sse"}]},
		"bell": {"forms": [{"href": "BASE/bell", "subprotocol": "sse", "contentType": "text/event-stream"}]}
	}`

const forAll = `, "forms": [
	{"href": "BASE/properties", "op": ["readallproperties", "observeallproperties"], "subprotocol": "sse"},
	{"href": "BASE/events", "op": ["subscribeallevents", "unsubscribeallevents"], "subprotocol": "sse"}]`

func observe(name string) *interact.Message {
	return &interact.Message{Type: interact.ObserveProperty, Thing: "thing", ID: "1", Name: name}
}

func subscribe(name string) *interact.Message {
	return &interact.Message{Type: interact.SubscribeEvent, Thing: "thing", ID: "1", Name: name}
}

// texts returns replies as "name id data".
func texts(replies []*interact.Message) string {
	var b strings.Builder
	for _, r := range replies {
		fmt.Fprintf(&b, "%s %s %s\n", r.Name, r.ID, r.Data)
	}
	return b.String()
}

// follow sends a message and takes at most n replies, within a long time. The error is that of the sequence.
func follow(t *testing.T, c *Client, thing *td.Thing, m *interact.Message, n int) (replies []*interact.Message, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for reply, err := range interact.Chain(c.Thing(thing), interact.Checked(thing)).Do(ctx, m) {
		if err != nil {
			return replies, err
		}
		if replies = append(replies, reply); len(replies) == n {
			break
		}
	}
	return replies, nil
}

// A streamer is an agent that answers with event streams: each connection has the next text, and the last one stays open.
type streamer struct {
	*recorder
	texts []string
	n     atomic.Int32
}

func newStreamer(t *testing.T, texts ...string) *streamer {
	t.Helper()
	s := &streamer{texts: texts}
	s.recorder = newRecorder(t, s.serve)
	return s
}

func (s *streamer) serve(w http.ResponseWriter, r *http.Request) {
	n := int(s.n.Add(1)) - 1
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = io.WriteString(w, s.texts[min(n, len(s.texts)-1)])
	_ = http.NewResponseController(w).Flush()
	if n >= len(s.texts)-1 {
		<-r.Context().Done()
	}
}

func TestObserveByEventStream(t *testing.T) {
	t.Parallel()
	agent := newStreamer(t, ": hello\n\nid: a\nevent: temp\ndata: 20.5\n\nid: b\ndata: 21\n\nevent: message\ndata: 22\n\n")
	m := observe("temp")
	m.TraceParent, m.After = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "z"
	got, err := follow(t, newClient(t, Options{}), describe(t, agent.URL, sensor), m, 3)
	if err != nil {
		t.Fatal(err)
	}
	if want := "temp a 20.5\ntemp b 21\ntemp b 22\n"; texts(got) != want {
		t.Errorf("got %s, want %s", texts(got), want)
	}
	for _, r := range got {
		if r.Type != interact.PropertyReading || r.ContentType != "application/json" || r.Correlation != "1" ||
			time.Since(r.Time) > time.Minute {
			t.Errorf("got %+v", r)
		}
	}
	req := agent.last(t)
	if req.method != "GET" || req.path != "/temp" || req.header.Get("Accept") != "text/event-stream" ||
		req.header.Get("Last-Event-ID") != "z" || req.header.Get("Traceparent") != m.TraceParent ||
		req.header.Get("Cache-Control") != "no-store" {
		t.Errorf("received %+v", req)
	}
	if n := len(agent.requests()); n != 1 {
		t.Errorf("the agent received %d requests", n)
	}
}

func TestSubscribeByEventStream(t *testing.T) {
	t.Parallel()
	agent := newStreamer(t,
		"event: hot\ndata: {\"at\":\ndata:  90}\n\nevent: bell\ndata: {}\n\nevent: ping\ndata: x\n\nevent: hot\ndata: {}\n\n")
	c, thing := newClient(t, Options{}), describe(t, agent.URL, sensor)
	got, err := follow(t, c, thing, subscribe("hot"), 2)
	if err != nil || texts(got) != "hot  {\"at\":\n 90}\nhot  {}\n" || got[0].Type != interact.Event {
		t.Errorf("got %s, %v", texts(got), err)
	}
	// What a stream has for other names is not for this one. Neither has an event without data any.
	agent = newStreamer(t, "event: hot\ndata: {}\n\nid: 1\nevent: bell\ndata\n\nevent: bell\ndata: null\n\n")
	got, err = follow(t, c, describe(t, agent.URL, sensor), subscribe("bell"), 2)
	if err != nil || texts(got) != "bell 1 \nbell 1 null\n" {
		t.Errorf("got %s, %v", texts(got), err)
	}
}

func TestObserveAllByEventStream(t *testing.T) {
	t.Parallel()
	agent := newStreamer(t,
		"id: 1\nevent: temp\ndata: 20\n\nevent: unknown\ndata: 1\n\nevent: hot\ndata: 1\n\nid: 2\nevent: level\ndata: 5\n\n"+
			"id: 3\ndata: {\"temp\": 21, \"level\": 6}\n\ndata: {\"temp\": 1, \"x\": 2}\n\ndata: [1]\n\ndata: {}\n\n"+
			"id: 4\nevent: temp\ndata: 22\n\n")
	c, thing := newClient(t, Options{}), describe(t, agent.URL, sensor+forAll)
	got, err := follow(t, c, thing, &interact.Message{Type: interact.ObserveAllProperties}, 5)
	if want := "temp 1 20\nlevel 2 5\ntemp 3 21\nlevel 3 6\ntemp 4 22\n"; err != nil || texts(got) != want {
		t.Errorf("got %s, %v, want %s", texts(got), err, want)
	}
	if agent.last(t).path != "/properties" || got[0].Type != interact.PropertyReading {
		t.Errorf("got %+v, asked %+v", got[0], agent.last(t))
	}
	agent = newStreamer(t, "event: hot\ndata: {}\n\nevent: temp\ndata: 1\n\nevent: bell\ndata:\n\n")
	got, err = follow(t, c, describe(t, agent.URL, sensor+forAll), &interact.Message{Type: interact.SubscribeAllEvents}, 2)
	if err != nil || texts(got) != "hot  {}\nbell  \n" || got[0].Type != interact.Event {
		t.Errorf("got %s, %v", texts(got), err)
	}
}

func TestEventStreamIsOpenedAgain(t *testing.T) {
	t.Parallel()
	agent := newStreamer(t, "retry: 1\n\nid: 1\ndata: 1\n\nid: half\ndata: 9", "id: 2\ndata: 2\n\n", "", "id: 3\ndata: 3\n\n")
	got, err := follow(t, quick(t, Options{}), describe(t, agent.URL, sensor), observe("level"), 3)
	if err != nil || texts(got) != "level 1 1\nlevel 2 2\nlevel 3 3\n" {
		t.Fatalf("got %s, %v", texts(got), err)
	}
	var after []string
	for _, r := range agent.requests() {
		after = append(after, r.header.Get("Last-Event-Id"))
	}
	if fmt.Sprint(after) != "[ 1 2 2]" {
		t.Errorf("received the id %q", after)
	}
}

func TestEventStreamOutlivesAnAgentThatRestarts(t *testing.T) {
	t.Parallel()
	var n atomic.Int32
	agent := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
		switch n.Add(1) {
		case 2:
			panic(http.ErrAbortHandler) // no answer
		case 3:
			http.Error(w, "starting", http.StatusServiceUnavailable)
		case 4:
			http.Error(w, "gateway", http.StatusBadGateway)
		case 5:
			w.Header().Set("Content-Length", "1000")
			fallthrough
		default:
			w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
			fmt.Fprintf(w, "data: %d\n\n", n.Load())
		}
	})
	got, err := follow(t, quick(t, Options{}), describe(t, agent.URL, sensor), observe("level"), 3)
	if err != nil || texts(got) != "level  1\nlevel  5\nlevel  6\n" {
		t.Errorf("got %s, %v", texts(got), err)
	}
}

func TestEventStreamsThatEnd(t *testing.T) {
	t.Parallel()
	const first = "data: 1\n\n"
	begin := func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, first)
	}
	tests := []struct {
		name string
		then http.HandlerFunc // the second connection
		code interact.Code    // 0: the sequence ends
		says string
	}{
		{"204 is the end", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }, 0, ""},
		{"404", http.NotFound, interact.AgentFailed, "404"},
		{"a redirect", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/x", http.StatusFound) },
			interact.AgentFailed, "redirect"},
		{"another type", responds("5"), interact.AgentFailed, "application/json"},
		{"no JSON", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: {\n\n")
		}, interact.AgentFailed, "expected application/json"},
		{"a line without end", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for {
				if _, err := w.Write(make([]byte, 1<<10)); err != nil {
					return
				}
			}
		}, interact.TooLarge, "100000 bytes"},
		{"a compressed bomb", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			for {
				if _, err := z.Write(make([]byte, 1<<10)); err != nil {
					return
				}
			}
		}, interact.TooLarge, "100000 bytes"},
		{"an unknown coding", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			w.Header().Set("Content-Encoding", "br")
		}, interact.AgentFailed, "br"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var n atomic.Int32
			agent := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
				if n.Add(1) == 1 {
					begin(w)
					return
				}
				tt.then(w, r)
			})
			got, err := follow(t, quick(t, Options{MaxBody: 100000}), describe(t, agent.URL, sensor), observe("level"), 9)
			if texts(got) != "level  1\n" {
				t.Errorf("got %s", texts(got))
			}
			if tt.code == 0 && err == nil {
				return
			}
			if e := wantError(t, err, tt.code); !strings.Contains(everything(e), tt.says) {
				t.Errorf("%q is missing in %s", tt.says, everything(e))
			}
		})
	}
}

func TestEventStreamThatCannotBeOpened(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		answer http.HandlerFunc
		code   interact.Code
		says   string
	}{
		{"JSON", responds("5"), interact.AgentFailed, "expected an event stream"},
		{"nothing", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }, interact.AgentFailed,
			"expected an event stream"},
		{"503", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "busy", http.StatusServiceUnavailable) },
			interact.AgentFailed, "503: busy"},
		{"no answer", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, interact.Unreachable, "closed"},
	}
	for _, tt := range tests {
		agent := newRecorder(t, tt.answer)
		_, err := follow(t, quick(t, Options{}), describe(t, agent.URL, sensor), observe("level"), 1)
		if e := wantError(t, err, tt.code); !strings.Contains(everything(e), tt.says) {
			t.Errorf("%s: %q is missing in %s", tt.name, tt.says, everything(e))
		}
	}
	_, err := follow(t, quick(t, Options{}), describe(t, closedAddress, sensor), observe("level"), 1)
	if e := wantError(t, err, interact.Unreachable); e.Started {
		t.Error("an unreached agent has started")
	}
}

// An agent that sends an endless error response does not block the consumer.
func TestRefusalWithoutEnd(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, "because")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	_, err := follow(t, quick(t, Options{}), describe(t, agent.URL, sensor), observe("level"), 1)
	if e := wantError(t, err, interact.AgentFailed); !strings.Contains(e.Error(), "403: because") {
		t.Errorf("got %v", e)
	}
}

// A node ends a stream with the problem that ended it. One that may pass is mended.
func TestEventStreamThatEndsWithAProblem(t *testing.T) {
	t.Parallel()
	problem := func(code interact.Code) string {
		return fmt.Sprintf("event: lmosd:problem\ndata: {\"type\": \"x\", \"code\": %q, \"title\": \"x\", "+
			"\"detail\": \"the lamp fell\", \"hint\": \"h\"}\n\n", code)
	}
	agent := newStreamer(t, "id: 1\ndata: 1\n\n"+problem(interact.ShuttingDown), "id: 2\ndata: 2\n\n"+problem(interact.AgentFailed))
	got, err := follow(t, quick(t, Options{}), describe(t, agent.URL, sensor), observe("level"), 9)
	if e := wantError(t, err, interact.AgentFailed); !e.Remote || e.Error() != "the lamp fell" ||
		texts(got) != "level 1 1\nlevel 2 2\n" {
		t.Errorf("got %s, %+v", texts(got), e)
	}
	if id := agent.last(t).header.Get("Last-Event-Id"); id != "1" {
		t.Errorf("went on behind %q", id)
	}
}

func TestEventStreamWithCompression(t *testing.T) {
	t.Parallel()
	agent := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = io.WriteString(z, "data: 1\n\n")
		_ = z.Flush()
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	got, err := follow(t, newClient(t, Options{}), describe(t, agent.URL, sensor), observe("level"), 1)
	if err != nil || texts(got) != "level  1\n" {
		t.Errorf("got %s, %v", texts(got), err)
	}
}

func TestObservationEndsWithItsConsumer(t *testing.T) {
	t.Parallel()
	gone := make(chan bool, 1)
	agent := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: 1\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		gone <- true
	})
	thing := newClient(t, Options{}).Thing(describe(t, agent.URL, sensor))
	for range thing.Do(t.Context(), observe("level")) {
		break
	}
	<-gone

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var last error
	for _, err := range thing.Do(ctx, observe("level")) {
		last = err
		cancel()
	}
	wantError(t, last, interact.Cancelled)
	<-gone

	m := observe("level")
	m.Deadline = time.Now().Add(100 * time.Millisecond)
	for _, err := range thing.Do(t.Context(), m) {
		last = err
	}
	wantError(t, last, interact.Timeout)
	<-gone
	next, stop := iter.Pull2(thing.Do(t.Context(), observe("level")))
	if m, err, ok := next(); !ok || err != nil || string(m.Data) != "1" {
		t.Errorf("got %v, %v, %t", m, err, ok)
	}
	stop()
	<-gone
}

func TestObservationThatWaitsToBeMendedCanBeCancelled(t *testing.T) {
	t.Parallel()
	agent := newStreamer(t, "retry: 30000\n\ndata: 1\n\n", "")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var last error
	for _, err := range newClient(t, Options{}).Thing(describe(t, agent.URL, sensor)).Do(ctx, observe("level")) {
		last = err
		time.AfterFunc(20*time.Millisecond, cancel)
	}
	wantError(t, last, interact.Cancelled)
	if n := len(agent.requests()); n != 1 {
		t.Errorf("%d connections in spite of retry", n)
	}
}
