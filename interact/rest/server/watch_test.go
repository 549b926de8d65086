package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/internal/sse"
)

// untilLeft yields events and then nothing until the consumer goes.
func untilLeft(events ...string) func(context.Context, *interact.Message, func(*interact.Message, error) bool) {
	return func(ctx context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
		for i, e := range events {
			name, data, _ := strings.Cut(e, "=")
			if !yield(happens(m, name, fmt.Sprint("e", i+1), data), nil) {
				return
			}
		}
		<-ctx.Done()
		yield(nil, ctx.Err())
	}
}

func TestServerSentEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, untilLeft("=20.5", "=21"))
	in := w.events("/properties/temperature")
	for name, want := range map[string]string{"Cache-Control": "no-store", "X-Accel-Buffering": "no", "X-Content-Type-Options": "nosniff",
		"Content-Length": ""} {
		if got := in.resp.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	for _, want := range []string{"event: temperature\nid: e1\ndata: 20.5", "event: temperature\nid: e2\ndata: 21"} {
		if got := in.nextEvent(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	m := receive(t, w.asked)
	if m.Type != interact.ObserveProperty || m.Name != "temperature" || m.After != "" || !m.Deadline.IsZero() || m.Thing == "" {
		t.Errorf("received %+v", m)
	}
	// The consumer closes the connection.
	in.resp.Body.Close()
	if err := receive(t, w.left); err != context.Canceled {
		t.Errorf("the interaction was left with %v", err)
	}
}

// The subscription of each resource, and its events.
func TestServerSentEventsOfEveryResource(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, method, path, body string
		typ                      interact.Type
		after, data, event       string
	}{
		{"property", "GET", "/properties/units", "", interact.ObserveProperty, "", "", "event: units\nid: e1\ndata: 1"},
		{"observable", "GET", "/properties/units/observable", "", interact.ObserveProperty, "", "", "event: units\nid: e1\ndata: 1"},
		{"all properties", "GET", "/properties", "", interact.ObserveAllProperties, "", "", "event: units\nid: e1\ndata: 1"},
		{"event", "GET", "/events/hot", "", interact.SubscribeEvent, "", "", "event: hot\nid: e1\ndata: 1"},
		{"all events", "GET", "/events", "", interact.SubscribeAllEvents, "", "", "event: units\nid: e1\ndata: 1"},
		{"without names", "GET", "/events/hot?named=false", "", interact.SubscribeEvent, "", "", "id: e1\ndata: 1"},
		{"after, by the query", "GET", "/events?lastEventId=e7", "", interact.SubscribeAllEvents, "e7", "", "event: units\nid: e1\ndata: 1"},
		{"after, for a long poll", "GET", "/events?after=e8", "", interact.SubscribeAllEvents, "e8", "", "event: units\nid: e1\ndata: 1"},
		{"with the data of a subscription", "POST", "/events/sold", `{"item":"tea"}`, interact.SubscribeEvent, "", `{"item":"tea"}`,
			"event: sold\nid: e1\ndata: 1"},
		{"with a variable", "GET", "/events/sold?shop=x&named=no", "", interact.SubscribeEvent, "", `{"shop":"x"}`, "event: sold\nid: e1\ndata: 1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, Options{}, func(ctx context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
				name := ""
				if m.Name == "" {
					name = "units"
				}
				untilLeft(name+"=1")(ctx, m, yield)
			})
			in := w.open(t.Context(), tt.method, tt.path, tt.body, "Accept", "text/html;q=0.1, text/event-stream", "Content-Type", jsonType)
			if got := in.nextEvent(); got != tt.event {
				t.Errorf("got %q, want %q", got, tt.event)
			}
			if m := receive(t, w.asked); m.Type != tt.typ || m.After != tt.after || string(m.Data) != tt.data || m.Accept != "text/html" {
				t.Errorf("received %+v with %s", m, m.Data)
			}
		})
	}
}

// The header wins over the query.
func TestLastEventID(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, untilLeft())
	w.events("/events/hot?lastEventId=1", "Last-Event-ID", "2")
	if m := receive(t, w.asked); m.After != "2" {
		t.Errorf("after %q", m.After)
	}
	resp, body := send(t, "GET", w.url+"/events/hot", "", "Accept", "text/event-stream", "Last-Event-Id", strings.Repeat("x", 257))
	wantProblem(t, resp, body, 400, interact.Invalid)
}

// Whatever an agent sends, an event is one event with a JSON value.
func TestEventsHaveJSON(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, func(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
		for _, e := range [][2]string{{"", `{"a": 1}`}, {"", "[1,\r\n2,\r3]\n"}, {"", "nonsense\nid: x"}, {"", ""}, {"text/plain", "a\n\nb"},
			{"application/cbor", "\xa1\x61a\x01"}, {"application/cbor", "\xff"}, {"image/png", "\x89PNG"}} {
			r := happens(m, "hot\nid: x", "1\n2", e[1])
			if r.ContentType = e[0]; !yield(r, nil) {
				return
			}
		}
	})
	in := w.events("/events")
	for _, want := range []string{`data: {"a": 1}`, "data: [1,\ndata: 2,\ndata: 3]", `data: "nonsense\nid: x"`, `data: null`, `data: "a\n\nb"`,
		`data: {"a":1}`, `data: "_w"`, `data: "iVBORw"`} {
		if got := in.nextEvent(); got != "event: hot id: x\n"+want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := in.nextEvent(); got != "EOF" {
		t.Errorf("after the end: %q", got)
	}
}

// A stream begins before there is an event, and shows that it lives.
func TestEventsKeepAlive(t *testing.T) {
	t.Parallel()
	p := defaultPace
	p.commit, p.keepAlive = time.Millisecond, time.Millisecond
	w := newWorld(t, Options{pace: p}, untilLeft())
	in := w.events("/events/hot")
	for range 3 {
		if got := in.next(); got != ": " {
			t.Errorf("got %q", got)
		}
	}
}

// Before the first event an error is a status, later it is the last event.
func TestEventsThatFail(t *testing.T) {
	t.Parallel()
	refused := interact.Errorf(interact.Forbidden, "contact the owner", "rejected by rule 3")
	w := newWorld(t, Options{}, fails(refused))
	for _, accept := range []string{"text/event-stream", "*/*"} {
		resp, body := send(t, "GET", w.url+"/events/hot", "", "Accept", accept)
		wantProblem(t, resp, body, 403, interact.Forbidden)
	}

	later := newWorld(t, Options{}, func(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
		if yield(happens(m, "", "1", "1"), nil) {
			yield(nil, interact.Errorf(interact.Unreachable, "wait", "the host\nis gone"))
		}
	})
	for _, path := range []string{"/events/hot", "/events/hot?named=false"} {
		in := later.events(path)
		in.nextEvent()
		if got := in.next(); got != ": the host is gone" {
			t.Errorf("comment %q", got)
		}
		got := in.next()
		if !strings.HasPrefix(got, "event: lmosd:problem\ndata: {") || !strings.Contains(got, `"code":"LMOS-1503"`) {
			t.Errorf("got %q", got)
		}
		if got := in.next(); got != "EOF" {
			t.Errorf("then %q", got)
		}
	}
}

// If the Thing ends the subscription immediately, the response is a stream that ends.
func TestEventsThatEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, func(context.Context, *interact.Message, func(*interact.Message, error) bool) {})
	in := w.events("/events/hot")
	if got := in.nextEvent(); got != "EOF" {
		t.Errorf("got %q", got)
	}
	resp, body := send(t, "GET", w.url+"/events/hot", "")
	wantProblem(t, resp, body, 502, interact.AgentFailed)
}

func TestLongPoll(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, path, after string
		typ               interact.Type
		affordance        string
	}{
		{"event", "/events/hot", "", interact.SubscribeEvent, "hot"},
		{"all events", "/events?after=e6", "e6", interact.SubscribeAllEvents, "cold"},
		{"property", "/properties/temperature/observable", "", interact.ObserveProperty, "temperature"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			release := make(chan struct{})
			w := newWorld(t, Options{}, func(ctx context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
				<-release
				for i := 7; yield(happens(m, tt.affordance, fmt.Sprint("e", i), fmt.Sprint(i)), nil); i++ {
				}
			})
			go func() {
				<-w.asked
				close(release)
			}()
			resp, body := send(t, "GET", w.url+tt.path, "", "Accept", "application/json")
			if resp.StatusCode != 200 || body != "7" || resp.Header.Get("Content-Type") != jsonType ||
				resp.Header.Get("Lmos-Event-Id") != "e7" || resp.Header.Get("Lmos-Event-Name") != tt.affordance ||
				resp.Header.Get("Cache-Control") != "no-store" {
				t.Errorf("got %d %s %v", resp.StatusCode, body, resp.Header)
			}
			receive(t, w.left)
		})
	}
}

// An event without data is an event all the same, and no "no content".
func TestLongPollWithoutData(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, untilLeft("="))
	if resp, body := send(t, "GET", w.url+"/events/hot", ""); resp.StatusCode != 200 || body != "" {
		t.Errorf("got %d %q", resp.StatusCode, body)
	}
	cbor := newWorld(t, Options{}, untilLeft("=1"))
	if resp, body := send(t, "GET", cbor.url+"/events/hot", "", "Accept", "application/cbor"); body != "\x01" ||
		resp.Header.Get("Content-Type") != "application/cbor" {
		t.Errorf("got %q %v", body, resp.Header)
	}
}

// A watch without a value ends with an error after its timeout.
func TestLongPollWithoutEvents(t *testing.T) {
	t.Parallel()
	p := defaultPace
	p.hold = time.Millisecond
	w := newWorld(t, Options{pace: p}, untilLeft())
	resp, body := send(t, "GET", w.url+"/events/hot", "")
	wantProblem(t, resp, body, 504, interact.Timeout)
	receive(t, w.left)
}

func TestLongPollIsEndedByDelete(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, untilLeft())
	for _, path := range []string{"/events/hot", "/events", "/properties/temperature/observable"} {
		if resp, body := send(t, "DELETE", w.url+path, ""); resp.StatusCode != 204 || body != "" {
			t.Errorf("%s: got %d %s", path, resp.StatusCode, body)
		}
	}
	if n := len(w.asked); n > 0 {
		t.Errorf("the mesh received %d messages", n)
	}
}

// Clients open a long poll with a HEAD that must not wait.
func TestHeadReturnsAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, untilLeft())
	for path, media := range map[string]string{"/events/hot": jsonType, "/events": jsonType, "/properties/units/observable": jsonType} {
		for accept, want := range map[string]string{"*/*": media, "text/event-stream": "text/event-stream"} {
			resp, body := send(t, "HEAD", w.url+path, "", "Accept", accept)
			if resp.StatusCode != 200 || body != "" || resp.Header.Get("Content-Type") != want {
				t.Errorf("%s for %s: got %d %v", path, accept, resp.StatusCode, resp.Header)
			}
		}
	}
	if resp, _ := send(t, "HEAD", w.url+"/properties/units", "", "Accept", "text/event-stream"); resp.StatusCode != 200 {
		t.Errorf("a property as events: got %d", resp.StatusCode)
	}
	if resp, _ := send(t, "HEAD", w.url+"/events/cold", ""); resp.StatusCode != 404 {
		t.Errorf("an unknown event: got %d", resp.StatusCode)
	}
	if n := len(w.asked); n > 0 {
		t.Errorf("the mesh received %d messages", n)
	}
}

func TestWatchRefusals(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, untilLeft())
	for _, tt := range []struct {
		method, path, body, accept string
		status                     int
		code                       interact.Code
	}{
		{"GET", "/properties/serial", "", sse.MediaType, 405, interact.NotAllowed},
		{"GET", "/properties/serial/observable", "", "", 405, interact.NotAllowed},
		{"GET", "/properties/sereal", "", sse.MediaType, 404, interact.NoAffordance},
		{"GET", "/events/hott", "", "", 404, interact.NoAffordance},
		{"GET", "/events/hott", "", sse.MediaType, 404, interact.NoAffordance},
		{"PUT", "/events/hot", "", "", 405, interact.NotAllowed},
		{"POST", "/properties/units/observable", "", "", 405, interact.NotAllowed},
		{"POST", "/events/bid", `{"item":1}`, sse.MediaType, 400, interact.Invalid},
		{"POST", "/events/bid", `{`, sse.MediaType, 400, interact.Invalid},
		{"GET", "/properties/room?n=two", "", sse.MediaType, 400, interact.Invalid},
		{"GET", "/things/unknown/events", "", "", 404, interact.NotFound},
		{"GET", "/events/", "", "", 404, interact.NotFound},
	} {
		url := w.url + tt.path
		if strings.HasPrefix(tt.path, "/things") {
			url = strings.TrimSuffix(w.url, "/things/house") + tt.path
		}
		resp, body := send(t, tt.method, url, tt.body, "Accept", tt.accept, "Content-Type", jsonType)
		if e := wantProblem(t, resp, body, tt.status, tt.code); e.Hint == "" && e.Next == nil {
			t.Errorf("%s %s: no hint", tt.method, tt.path)
		}
	}
	if n := len(w.asked); n > 0 {
		t.Errorf("the mesh received %d messages", n)
	}
}

func TestTooManyWatchers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{MaxWatchers: 1}, untilLeft("=1"))
	in := w.events("/events/hot")
	resp, body := send(t, "GET", w.url+"/events/hot", "")
	wantProblem(t, resp, body, 503, interact.Overloaded)
	in.resp.Body.Close()
	receive(t, w.left)
	for {
		if resp, _ := send(t, "GET", w.url+"/events/hot", ""); resp.StatusCode == 200 {
			break // the place is free once the handler has returned
		}
	}
}

// A drain ends subscriptions and sends the reason.
func TestDrain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, untilLeft("=1"))
	in := w.events("/events/hot")
	in.nextEvent()
	quiet := newWorld(t, Options{}, untilLeft())
	polled := make(chan string)
	go func() {
		resp, body := send(t, "GET", quiet.url+"/events/hot", "")
		polled <- fmt.Sprint(resp.StatusCode, problem.Read(resp, []byte(body)).Code)
	}()
	receive(t, quiet.asked)
	w.Drain()
	quiet.Drain()
	if got := in.nextEvent(); !strings.Contains(got, `"code":"LMOS-3030"`) {
		t.Errorf("got %q", got)
	}
	if got := in.next(); got != "EOF" {
		t.Errorf("then %q", got)
	}
	if got := receive(t, polled); got != "503 LMOS-3030" {
		t.Errorf("the long poll ended with %s", got)
	}
	for _, accept := range []string{sse.MediaType, ""} {
		resp, body := send(t, "GET", w.url+"/events/hot", "", "Accept", accept)
		wantProblem(t, resp, body, 503, interact.ShuttingDown)
	}
}

// counts records the counted events.
type counts chan string

func (c counts) count(kind string, dropped bool) { note(c, fmt.Sprint(kind, " ", dropped)) }

// wait returns when something was counted.
func (c counts) wait(t *testing.T, what string) {
	t.Helper()
	for receive(t, c) != what {
	}
}

// flood yields large events as fast as they are taken.
func flood(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
	data := `"` + strings.Repeat("x", 100<<10) + `"`
	for i := 0; yield(happens(m, "", fmt.Sprint(i), data), nil); i++ {
	}
}

// A consumer that does not read is disconnected, and the events that wait for it are released.
func TestReaderThatDoesNotRead(t *testing.T) {
	t.Parallel()
	p := defaultPace
	p.write = 50 * time.Millisecond
	c := make(counts, 1000)
	w := newWorld(t, Options{pace: p, Count: c.count}, flood)
	w.events("/events/hot") // and nothing is read
	receive(t, w.left)
	c.wait(t, "sse true")
}

// A blockedWriter accepts one write for each signal.
type blockedWriter struct {
	httptest.ResponseRecorder
	mu    sync.Mutex
	allow chan struct{}
}

func (b *blockedWriter) Write(p []byte) (int, error) {
	<-b.allow
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ResponseRecorder.Write(p)
}

// A reader that does not keep up receives the buffered events, then the reason why it is dropped.
func TestReaderThatIsTooSlow(t *testing.T) {
	t.Parallel()
	p := defaultPace
	p.write = 20 * time.Millisecond
	c := make(counts, 1000)
	w := newWorld(t, Options{pace: p, Count: c.count}, flood)
	out := &blockedWriter{ResponseRecorder: httptest.ResponseRecorder{Body: &bytes.Buffer{}}, allow: make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		r := httptest.NewRequestWithContext(t.Context(), "GET", "/things/house/events/hot", nil)
		r.Header.Set("Accept", sse.MediaType)
		w.ServeHTTP(out, r)
	}()
	receive(t, w.left) // the mesh was left, because there was no reader
	close(out.allow)
	receive(t, done)
	text := out.Body.String()
	if n := strings.Count(text, "event: hot\n"); n < 2 || n > 2*aheadBytes/(100<<10) {
		t.Errorf("%d events before the end", n)
	}
	if end := text[strings.LastIndex(text, "\n: ")+1:]; !strings.HasPrefix(end, ": the reader is too slow\n\nevent: lmosd:problem\n") ||
		!strings.Contains(end, "LMOS-1529") {
		t.Errorf("the end is %q", end[:min(len(end), 300)])
	}
	c.wait(t, "sse false")
	c.wait(t, "sse true")
}

// Many small events ahead of a reader are bounded too.
func TestReadAheadIsBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, nil)
	n := 0
	w.o.Mesh = interact.Func(func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			for yield(happens(m, "", "", "1"), nil) {
				n++
			}
		}
	})
	v := &visit{Server: w.Server}
	f := v.newFeed(t.Context(), &interact.Message{Type: interact.SubscribeEvent}, time.Millisecond)
	<-f.done
	if n != aheadEvents || f.err != errSlow {
		t.Errorf("%d events were read ahead, then %v", n, f.err)
	}
	f.stop()
}

// A consumer that goes away in the middle of a long poll ends it.
func TestLongPollAfterDisconnect(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, untilLeft())
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-w.asked
		cancel()
	}()
	req, _ := http.NewRequestWithContext(ctx, "GET", w.url+"/events/hot", nil)
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	if resp, err := tr.RoundTrip(req); err == nil {
		_, _ = io.ReadAll(resp.Body)
		resp.Body.Close()
		t.Error("an answer came")
	}
	if err := receive(t, w.left); err != context.Canceled {
		t.Errorf("left with %v", err)
	}
}
