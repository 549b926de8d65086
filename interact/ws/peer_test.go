package ws

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/ws/frame"
	"github.com/lmosd/lmosd/internal/pipenet"
	"github.com/lmosd/lmosd/td"
)

// A script is an agent that responds to the n-th request with the frames of one of its lines, and stores the requests. @id
// in a line is the request's.
type script struct {
	lines [][]string
	mu    sync.Mutex
	asked []map[string]any
}

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"webthingprotocol", "lmosprotocol"}})
	if err != nil {
		return
	}
	defer func() { _ = ws.CloseNow() }()
	for {
		_, data, err := ws.Read(context.Background())
		if err != nil {
			return
		}
		var m map[string]any
		_ = json.Unmarshal(data, &m)
		s.mu.Lock()
		n := len(s.asked)
		s.asked = append(s.asked, m)
		s.mu.Unlock()
		for _, line := range s.lines[min(n, len(s.lines)-1)] {
			id, _ := m["messageID"].(string) // each dialect has it
			line = strings.ReplaceAll(line, "@id", id)
			if ws.Write(context.Background(), websocket.MessageText, []byte(line)) != nil {
				return
			}
		}
	}
}

func (s *script) texts(n int) map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n >= len(s.asked) {
		return nil
	}
	return s.asked[n]
}

// agentOf returns the agent that a script plays.
func agentOf(t *testing.T, sub string, lines ...[]string) (*script, interact.Thing) {
	t.Helper()
	s := &script{lines: lines}
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	return s, newClient(t, Options{}).Thing(describe(t, formOf("ws"+strings.TrimPrefix(h.URL, "http"), sub)).Thing)
}

const answerWTP = `{"messageType":"response","thingID":"urn:x","messageID":"r","correlationID":"@id","operation":`

// TestActionsOfWTPAgents: they are queried until they end.
func TestActionsOfWTPAgents(t *testing.T) {
	t.Parallel()
	pending := []string{answerWTP + `"invokeaction","name":"work","status":{"actionID":"a1","state":"pending","timeRequested":"2026-01-01T00:00:00Z"}}`}
	query := func(status string) []string {
		return []string{answerWTP + `"queryaction","name":"work","status":` + status + `}`}
	}
	for _, c := range []struct {
		name  string
		lines [][]string
		want  string
		code  interact.Code
	}{
		{"it completes", [][]string{pending, query(`{"actionID":"a1","state":"running"}`), query(`{"actionID":"a1","state":"running"}`),
			query(`{"actionID":"a1","state":"completed","output":7}`)}, "actionStatus pending , actionStatus running , actionStatus completed 7", 0},
		{"it fails", [][]string{pending, query(`{"actionID":"a1","state":"failed","error":{"status":"500","title":"no fuel"}}`)}, "", interact.AgentFailed},
		{"it was cancelled", [][]string{pending, {answerWTP + `"queryaction","error":{"status":404,"title":"no such action"}}`}}, "", interact.NoAffordance},
		{"it is refused", [][]string{{answerWTP + `"invokeaction","error":{"status":403,"title":"no"}}`}}, "", interact.Forbidden},
		{"at once", [][]string{{answerWTP + `"invokeaction","name":"work","output":null}`}}, "actionStatus completed ", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, thing := agentOf(t, "webthingprotocol", c.lines...)
			replies, err := ask(t, thing, message(interact.InvokeAction, "work", `{"a":1}`))
			if c.code != 0 {
				wantError(t, err, c.code)
			} else if got := texts(replies); err != nil || got != c.want {
				t.Errorf("got %q, %v, want %q", got, err, c.want)
			}
		})
	}
}

// TestLeavingAnActionOfAWTPAgent cancels it by its actionID.
func TestLeavingAnActionOfAWTPAgent(t *testing.T) {
	t.Parallel()
	s, thing := agentOf(t, "webthingprotocol", []string{answerWTP + `"invokeaction","status":{"actionID":"a1","state":"pending"}}`}, nil,
		[]string{answerWTP + `"readproperty","value":1}`})
	for _, err := range thing.Do(t.Context(), message(interact.InvokeAction, "work", "")) {
		if err != nil {
			t.Fatal(err)
		}
		break
	}
	if _, err := ask(t, thing, message(interact.ReadProperty, "level", "")); err != nil {
		t.Error(err)
	}
	if m := s.texts(1); m["operation"] != "cancelaction" || m["actionID"] != "a1" || m["name"] != "work" {
		t.Errorf("it received %v", m)
	}
}

// TestRequestsInEachDialect checks the frames to agents.
func TestRequestsInEachDialect(t *testing.T) {
	t.Parallel()
	m := message(interact.InvokeAction, "chat", `{"a":1}`)
	m.Key, m.TraceParent, m.Hops, m.Thing = "k1", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", 2, "urn:x@"+owner
	for _, c := range []struct{ sub, want string }{
		{"webthingprotocol", `{"messageType":"request","operation":"invokeaction","thingID":"urn:x","name":"chat","input":{"a":1},"hops":3,"idempotencyKey":"k1",
			"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}`},
		{"lmosprotocol", `{"messageType":"invokeAction","thingId":"urn:x","action":"chat","input":{"a":1},"hops":3,"idempotencyKey":"k1","operation":null}`},
	} {
		s, thing := agentOf(t, c.sub, []string{`{"messageType":"error","messageId":"r","correlationId":"@id","status":403}`})
		_, err := ask(t, thing, m)
		wantError(t, err, interact.Forbidden)
		var want map[string]any
		if err := json.Unmarshal([]byte(c.want), &want); err != nil {
			t.Fatal(err)
		}
		got := s.texts(0)
		if diff := missing(want, got); diff != "" {
			t.Errorf("%s: %s is another in %v", c.sub, diff, got)
		}
		if id := fmt.Sprint(got["messageID"], got["messageId"]); strings.Contains(id, "m1") || len(id) < 36 {
			t.Errorf("%s: the message is called %s", c.sub, id)
		}
	}
}

// TestWatchersComeAndGo from many goroutines, while events come: the last one out ends the subscription, each time.
func TestWatchersComeAndGo(t *testing.T) {
	t.Parallel()
	l := newLab()
	_, url := serve(t, l, ServerOptions{})
	thing := newClient(t, Options{}).Thing(describe(t, formOf(url, "lmosprotocol")).Thing)
	stop := make(chan struct{})
	var events, work sync.WaitGroup
	events.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				l.emit(interact.Event, "alarm", "", `"fire"`)
			}
		}
	})
	var received atomic.Int64
	for range 16 {
		work.Go(func() {
			for range 10 {
				for _, err := range thing.Do(t.Context(), message(interact.SubscribeEvent, "alarm", "")) {
					if err != nil {
						t.Errorf("it ended: %v", err)
					}
					received.Add(1)
					break
				}
			}
		})
	}
	work.Wait()
	close(stop)
	events.Wait()
	l.watched(t, 0)
	if received.Load() != 160 {
		t.Errorf("%d events were received", received.Load())
	}
}

// TestDialIsDelayed and no more: an agent that never answers the upgrade is given up.
func TestDialIsDelayed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &pipes{pipenet.Listen()}
		client := NewClient(Options{Dial: p.dial})
		defer client.Close()
		thing := client.Thing(describe(t, formOf("ws://agent/ws", "lmos")).Thing)
		errs := make(chan error, 2)
		began := time.Now()
		for range 2 { // they share the attempt
			go func() {
				_, err := interact.Call(t.Context(), thing, message(interact.ReadProperty, "level", ""))
				errs <- err
			}()
		}
		mute, _ := p.Accept()
		for range 2 {
			if e := wantError(t, <-errs, interact.Unreachable); e.Started || time.Since(began) != dialWait {
				t.Errorf("after %v: %+v", time.Since(began), e)
			}
		}
		_ = mute.Close()
	})
}

// TestDescriptionsAreRemembered for a moment.
func TestDescriptionsAreRemembered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab()
		d := describe(t, `"href": "ws://unused.example"`)
		var asked atomic.Int64
		h := &host{find: func(context.Context, string) (target, error) {
			asked.Add(1)
			return target{d.Ref(), l, d.Thing}, nil
		}}
		c := &conn{ctx: t.Context()}
		c.serving.init(h, settings{})
		f := &frame.Frame{}
		for range 10 {
			if _, err := c.find(f); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(knownFor)
		_, _ = c.find(f)
		if asked.Load() != 2 {
			t.Errorf("it was looked up %d times, want 2", asked.Load())
		}
		for i := range 3 * maxKnown {
			f.Thing = fmt.Sprint(i)
			_, _ = c.find(f)
		}
		if n := len(c.serving.known); n > maxKnown {
			t.Errorf("%d are remembered", n)
		}
	})
}

func TestStatesOfActionsArePutRight(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{
		{`{"a":[{"actionID":"1","status":"running"}]}`, `{"a":[{"actionID":"1","state":"running"}]}`},
		{`{"a":[{"state":"running","output":{"status":1}}]}`, `{"a":[{"output":{"status":1},"state":"running"}]}`},
		{`{"a": [{"state":"running"}]}`, `{"a": [{"state":"running"}]}`},
		{`{"a":"status"}`, `{"a":"status"}`},
		{`["status"]`, `["status"]`},
	} {
		if got := string(tasks([]byte(c[0]))); got != c[1] {
			t.Errorf("%s: got %s, want %s", c[0], got, c[1])
		}
	}
}

// TestThingIDOfAnAgent may be another than the description's.
func TestThingIDOfAnAgent(t *testing.T) {
	t.Parallel()
	thing := &td.Thing{ID: "urn:x"}
	for _, c := range [][2]string{{`{}`, "urn:x"}, {`{"lmosd:thingId":"chatagent"}`, "chatagent"}, {`{"lmosd:thingId":7}`, "urn:x"}} {
		if got := thingID(thing, &td.Form{Raw: []byte(c[0])}); got != c[1] {
			t.Errorf("%s: got %s", c[0], got)
		}
	}
}

// BenchmarkAsk is a small action over loopback, client and server.
func BenchmarkAsk(b *testing.B) {
	_, url := serve(b, newLab(), ServerOptions{Rate: 1e9})
	c := NewClient(Options{})
	defer c.Close()
	thing := c.Thing(describe(b, formOf(url, "lmosprotocol")).Thing)
	b.ReportAllocs()
	b.SetParallelism(8)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := interact.Call(context.Background(), thing, message(interact.InvokeAction, "chat", `{"q":"Bonn"}`)); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
