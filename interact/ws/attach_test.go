package ws

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/lmosd/lmosd/interact"
)

// A registry implements the registration of a node.
type registry struct {
	mu       sync.Mutex
	agents   map[string]interact.Thing
	raw      map[string]string
	released []string
	changed  chan struct{}
}

func newRegistry() *registry {
	return &registry{agents: map[string]interact.Thing{}, raw: map[string]string{}, changed: make(chan struct{}, 100)}
}

func (r *registry) register(_ context.Context, raw []byte, agent interact.Thing) (string, func(over bool), error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if strings.Contains(string(raw), "bad") {
		return "", nil, interact.Errorf(interact.BadTD, "add a title", "the description has no title")
	}
	id := fmt.Sprintf("urn:agent:%d", len(raw))
	r.agents[id], r.raw[id] = agent, string(raw)
	r.changed <- struct{}{}
	return id, func(over bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.agents[id] == agent {
			delete(r.agents, id)
		}
		r.released = append(r.released, fmt.Sprintf("%s over %t", id, over))
		r.changed <- struct{}{}
	}, nil
}

func (r *registry) agent(id string) interact.Thing {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.agents[id]
}

// attach runs Attach until stop is called, which returns the result.
func attach(t *testing.T, o AttachOptions) (id string, stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ids, done := make(chan string, 1), make(chan error, 1)
	o.Registered = func(id string) { ids <- id }
	go func() { done <- Attach(ctx, o) }()
	stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { _ = stop() })
	select {
	case id = <-ids:
	case err := <-done:
		done <- err
		t.Fatalf("not attached: %v", err)
	}
	return id, stop
}

// TestAttach calls all operations of an attached agent, and withdraws it.
func TestAttach(t *testing.T) {
	t.Parallel()
	r, l := newRegistry(), newLab()
	_, url := serve(t, newLab(), ServerOptions{Register: r.register})
	id, stop := attach(t, AttachOptions{URL: url, Token: "token", TD: []byte(`{"title":"lab"}`), Thing: l})
	if want := "urn:agent:15"; id != want || r.raw[id] != `{"title":"lab"}` {
		t.Fatalf("registered as %s: %s", id, r.raw[id])
	}
	thing := r.agent(id)
	for _, c := range []struct {
		typ              interact.Type
		name, data, want string
		code             interact.Code
	}{
		{interact.ReadProperty, "level", "", "propertyReading 42", 0},
		{interact.WriteProperty, "level", "7", "propertyReading 7", 0},
		{interact.ReadMultipleProperties, "", `["level"]`, `propertyReadings {"level":7,"on":true}`, 0},
		{interact.InvokeAction, "chat", `"hi"`, `actionStatus completed "hi"`, 0},
		{interact.InvokeAction, "speak", "", "actionStatus running sun, actionStatus running ny, actionStatus completed ", 0},
		{interact.InvokeAction, "work", "", `actionStatus running , actionStatus completed "done"`, 0},
		{interact.InvokeAction, "fail", "", "", interact.AgentFailed},
		{interact.ReadProperty, "none", "", "", interact.NoAffordance},
	} {
		replies, err := ask(t, thing, message(c.typ, c.name, c.data))
		if c.code != 0 {
			if e := wantError(t, err, c.code); !e.Remote {
				t.Errorf("%s: the error is Remote: %+v", c.typ.Op(), e)
			}
		} else if got := texts(replies); err != nil || got != c.want {
			t.Errorf("%s %s: got %q, %v, want %q", c.typ.Op(), c.name, got, err, c.want)
		}
	}
	for _, m := range l.asked {
		if m.Thing != id || m.Detach {
			t.Errorf("the agent received %+v", m)
		}
	}
	watch(t, l, thing, interact.SubscribeEvent)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		l.until(t, "it hangs", func() bool { return l.asked[len(l.asked)-1].Name == "hang" })
		cancel()
	}()
	_, err := interact.Call(ctx, thing, message(interact.InvokeAction, "hang", ""))
	wantError(t, err, interact.Cancelled)
	l.until(t, "the agent's action was cancelled", func() bool { return l.state["left hang"] != 0 })
	if err := stop(); err != nil {
		t.Errorf("Attach returned %v", err)
	}
	if r.agent(id) != nil || len(r.released) != 1 || !strings.HasSuffix(r.released[0], "over true") {
		t.Errorf("it is still registered, or was released %q", r.released)
	}
	_, err = ask(t, thing, message(interact.ReadProperty, "level", ""))
	if e := wantError(t, err, interact.Unreachable); e.Started {
		t.Error("an agent that is not connected has started")
	}
}

// A slowLog is a log whose writes end when it is closed.
type slowLog chan struct{}

func (l slowLog) Write(p []byte) (int, error) {
	<-l
	return len(p), nil
}

// An agent unregisters after the responses of its running calls, also of those whose Thing has returned.
func TestAttachEndsAfterItsAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, log := newRegistry(), make(slowLog)
		agent := interact.Func(func(context.Context, *interact.Message) iter.Seq2[*interact.Message, error] {
			panic("a defect, which is logged before it is answered")
		})
		servePipes(t, ServerOptions{Mesh: newLab(), Register: r.register}, func(p *pipes, _ *Server) {
			id, stop := attach(t, AttachOptions{URL: "ws://node/ws", Dial: p.dial, TD: []byte(`{"title":"lab"}`), Thing: agent,
				Log: slog.New(slog.NewTextHandler(log, nil))})
			answer := make(chan error, 1)
			go func() {
				_, err := ask(t, r.agent(id), message(interact.InvokeAction, "chat", ""))
				answer <- err
			}()
			synctest.Wait()
			go func() { _ = stop() }()
			synctest.Wait()
			if r.agent(id) == nil {
				t.Error("the agent is unregistered before its answer")
			}
			close(log)
			wantError(t, <-answer, interact.Internal)
			if err := stop(); err != nil || r.agent(id) != nil {
				t.Errorf("Attach returned %v; the agent is %v", err, r.agent(id))
			}
		})
	})
}

func TestAttachErrors(t *testing.T) {
	t.Parallel()
	r := newRegistry()
	_, url := serve(t, newLab(), ServerOptions{Register: r.register})
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = gone.Close()
	locked := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	t.Cleanup(locked.Close)
	absent := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(absent.Close)
	for _, c := range []struct {
		name, url, token, td string
		code                 interact.Code
		remote               bool
	}{
		{"no token", url, "", `{}`, interact.Unauthenticated, true},
		{"a bad description", url, "token", `{"bad":1}`, interact.BadTD, true},
		{"no JSON", url, "token", `{`, interact.Invalid, false},
		{"no description", url, "token", ``, interact.Invalid, true},
		{"no node", "ws://" + gone.Addr().String(), "token", `{}`, interact.NodeLost, false},
		{"the wrong token", "ws" + strings.TrimPrefix(locked.URL, "http"), "x", `{}`, interact.TokenRejected, false},
		{"no WebSocket", "ws" + strings.TrimPrefix(absent.URL, "http"), "x", `{}`, interact.NodeLost, false},
	} {
		err := Attach(t.Context(), AttachOptions{URL: c.url, Token: c.token, TD: []byte(c.td), Thing: newLab()})
		if e := wantError(t, err, c.code); e.Remote != c.remote {
			t.Errorf("%s: %+v", c.name, e)
		}
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Attach(over, AttachOptions{URL: url, TD: []byte(`{}`), Thing: newLab()}); err != nil {
		t.Errorf("with a context that has ended: %v", err)
	}
}

// TestAttachOverUnixSocket: the address is not dialled then.
func TestAttachOverUnixSocket(t *testing.T) {
	t.Parallel()
	r := newRegistry()
	s := NewServer(ServerOptions{Mesh: newLab(), Find: find(describe(t, `"href": "ws://unused.example"`)), Register: r.register})
	t.Cleanup(s.Close)
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	h := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.Serve(w, r, true) })}
	go func() { _ = h.Serve(l) }()
	t.Cleanup(func() { _ = h.Close() })
	id, stop := attach(t, AttachOptions{URL: "ws://node/ws", TD: []byte(`{"title":"unix"}`), Thing: newLab(),
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}})
	if _, err := ask(t, r.agent(id), message(interact.ReadProperty, "level", "")); err != nil {
		t.Error(err)
	}
	_ = stop()
}

// TestSeveralThingsOnOneSocket registers, replaces and takes back, as any agent may, and consumes over the same connection.
func TestSeveralThingsOnOneSocket(t *testing.T) {
	t.Parallel()
	r := newRegistry()
	_, url := serve(t, newLab(), ServerOptions{Register: r.register})
	w := dialWithToken(t, url)
	w.talk(`
		> {"messageType":"registerThing","messageId":"m1","data":{"title":"a"}}
		< {"messageType":"thingRegistered","correlationId":"m1","thingId":"urn:agent:13"}
		> {"messageType":"registerThing","messageId":"m2","data":{"title":"bb"}}
		< {"messageType":"thingRegistered","correlationId":"m2","thingId":"urn:agent:14"}
		> {"messageType":"registerThing","messageId":"m3","data":{"title":"c"}}
		< {"messageType":"thingRegistered","correlationId":"m3","thingId":"urn:agent:13"}
		> {"messageType":"readProperty","thingId":"urn:x","messageId":"m4","property":"level"}
		< {"messageType":"propertyReading","thingId":"urn:x","correlationId":"m4","data":42}
		> {"messageType":"registerThing","messageId":"m5"}
		< {"messageType":"error","correlationId":"m5","status":"400"}`)
	if len(r.released) != 1 || r.raw["urn:agent:13"] != `{"title":"c"}` {
		t.Errorf("released %v, known %v: the first was replaced", r.released, r.raw)
	}
	got := make(chan string, 1)
	go func() {
		r, err := interact.Call(context.Background(), r.agent("urn:agent:13"), message(interact.InvokeAction, "chat", "1"))
		got <- fmt.Sprint(texts([]*interact.Message{r}), err)
	}()
	m := w.hear()
	if m["messageType"] != "invokeAction" || m["thingId"] != "urn:agent:13" || m["action"] != "chat" || m["hops"] != 1.0 {
		t.Errorf("the agent receives %v", m)
	}
	w.say(fmt.Sprintf(`{"messageType":"actionStatus","messageId":"a1","correlationId":%q,"thingId":"urn:agent:13","action":"chat","status":"in progress","output":2}`, m["messageId"]))
	w.say(fmt.Sprintf(`{"messageType":"actionStatus","messageId":"a2","correlationId":%q,"thingId":"urn:agent:13","action":"chat","status":"completed","output":3}`, m["messageId"]))
	if text := <-got; text != "actionStatus completed 3<nil>" {
		t.Errorf("got %s", text)
	}
	w.talk(`
		> {"messageType":"unregisterThing","messageId":"m6","thingId":"urn:agent:14"}
		< {"messageType":"acknowledgement","correlationId":"m6","thingId":"urn:agent:14"}
		> {"messageType":"unregisterThing","messageId":"m7","thingId":"urn:agent:14"}
		< {"messageType":"error","correlationId":"m7","status":"404"}`)
}

func dialWithToken(t *testing.T, url string) *wire {
	t.Helper()
	k, _, err := dialer{}.open(t.Context(), url, http.Header{"Authorization": {"Bearer token"}})
	if err != nil {
		t.Fatal(err)
	}
	return newWire(t, k.ws)
}

// TestAgentCrashesDuringAStream of an action, an observation and a registration: all consumers get the error, and it is released.
func TestAgentCrashesDuringAStream(t *testing.T) {
	t.Parallel()
	r := newRegistry()
	_, url := serve(t, newLab(), ServerOptions{Register: r.register})
	w := dialWithToken(t, url)
	w.talk(`
		> {"messageType":"registerThing","messageId":"m1","data":{"title":"a"}}
		< {"messageType":"thingRegistered","correlationId":"m1"}`)
	<-r.changed
	thing := r.agent("urn:agent:13")
	calls := []*reader{newReader(t, thing, message(interact.InvokeAction, "chat", "")), newReader(t, thing, message(interact.ObserveProperty, "level", ""))}
	w.hear()
	w.hear()
	_ = w.ws.CloseNow()
	for _, c := range calls {
		if e := wantError(t, <-c.err, interact.Unreachable); !e.Started || e.Remote {
			t.Errorf("got %+v", e)
		}
	}
	<-r.changed
	if len(r.released) != 1 || !strings.HasSuffix(r.released[0], "over false") {
		t.Errorf("released %v", r.released)
	}
}

// TestSharedSubscriptions plays an agent: an existing subscription is not requested again, and its end ends all consumers.
func TestSharedSubscriptions(t *testing.T) {
	t.Parallel()
	w, thing := plays(t, "")
	tell := func(kind, of, more string) {
		w.say(fmt.Sprintf(`{"messageType":%q,"messageId":"x","correlationId":%q,"thingId":"urn:agent:13",%s}`, kind, of, more))
	}
	asked := func(kind string, name any) string {
		t.Helper()
		m := w.hear()
		if m["messageType"] != kind || m["event"] != name {
			t.Fatalf("the agent receives %v, want %s %v", m, kind, name)
		}
		return m["messageId"].(string)
	}
	one, every := message(interact.SubscribeEvent, "alarm", ""), message(interact.SubscribeAllEvents, "", "")
	first := newReader(t, thing, one)
	id := asked("subscribeEvent", "alarm")
	second := newReader(t, thing, one)
	watched(t, thing, 2)
	first.leave() // the subscription stays
	tell("event", id, `"event":"alarm","data":1`)
	if r := second.next(t); string(r.Data) != "1" {
		t.Errorf("got %+v", r)
	}
	tell("error", id, `"title":"it is over"`)
	wantError(t, <-second.err, interact.AgentFailed)

	first = newReader(t, thing, one) // an ended subscription is requested again
	id = asked("subscribeEvent", "alarm")
	all := newReader(t, thing, every)
	tell("error", asked("subscribeAllEvents", nil), `"title":"what is that?"`)
	wantError(t, <-all.err, interact.AgentFailed)
	tell("event", id, `"event":"alarm","data":2`)
	first.next(t) // that was refused, so this stands

	all = newReader(t, thing, every)
	id = asked("subscribeAllEvents", nil)
	second = newReader(t, thing, message(interact.SubscribeEvent, "other", ""))
	watched(t, thing, 3)
	all.leave() // single ones have joined
	for _, name := range []string{"alarm", "other", "third"} {
		tell("event", id, `"event":"`+name+`","data":3`)
	}
	if a, b := first.next(t), second.next(t); a.Name != "alarm" || b.Name != "other" {
		t.Errorf("got %+v, %+v", a, b)
	}
	first.leave()
	after := message(interact.SubscribeEvent, "other", "")
	after.After = "e1"
	third := newReader(t, thing, after) // it continues after an earlier event
	asked("subscribeEvent", "other")
	third.leave()
	second.leave()
	asked("unsubscribeAllEvents", nil)

	third = newReader(t, thing, one)
	id = asked("subscribeEvent", "alarm")
	third.leave()
	asked("unsubscribeEvent", "alarm")
	tell("error", id, `"title":"without a reader"`)
	w.quietAs("q")
}

// TestBadAnswersOfAnAgent end the call that they answer, or nothing.
func TestBadAnswersOfAnAgent(t *testing.T) {
	t.Parallel()
	r := newRegistry()
	_, url := serve(t, newLab(), ServerOptions{Register: r.register})
	w := dialWithToken(t, url)
	w.talk(`
		> {"messageType":"registerThing","messageId":"m1","data":{"title":"a"}}
		< {"messageType":"thingRegistered","correlationId":"m1"}`)
	thing := r.agent("urn:agent:13")
	for _, c := range []struct {
		typ    interact.Type
		answer string
		code   interact.Code
	}{
		{interact.ReadProperty, `"messageType":"event","event":"x"`, interact.AgentFailed},
		{interact.ReadProperty, `"messageType":"propertyReading","data":"?","base64":true`, interact.AgentFailed},
		{interact.WriteProperty, `"messageType":"event","event":"x"`, interact.AgentFailed},
		{interact.WriteProperty, `"messageType":"acknowledgement","message":"writeProperty"`, 0},
		{interact.WriteProperty, `"messageType":"propertyReadings","data":{"other":1}`, 0},
		{interact.InvokeAction, `"messageType":"actionStatus","status":"failed","output":"no fuel"`, interact.AgentFailed},
		{interact.InvokeAction, `"messageType":"actionStatus","status":"failed"`, interact.AgentFailed},
		{interact.InvokeAction, `"messageType":"actionStatus","status":"cancelled"`, interact.Cancelled},
		{interact.InvokeAction, `"messageType":"actionStatus","output":1`, 0},
		{interact.InvokeAction, `"messageType":"error","title":"Busy","status":429,"code":"LMOS-9999"`, interact.RateLimited},
		{interact.InvokeAction, `"messageType":"error"`, interact.AgentFailed},
	} {
		done := make(chan error, 1)
		go func() {
			_, err := interact.Call(context.Background(), thing, message(c.typ, "level", "1"))
			done <- err
		}()
		id := w.hear()["messageId"]
		w.say(`{"messageType":"event","thingId":"urn:agent:13","messageId":"x","correlationId":"late","event":"x"}`)
		w.say(fmt.Sprintf(`{"thingId":"urn:agent:13","messageId":%q,%s}`, id, c.answer)) // some repeat the id
		if err := <-done; c.code != 0 {
			wantError(t, err, c.code)
		} else if err != nil {
			t.Errorf("%s: %v", c.answer, err)
		}
	}
	w.quietAs("m9")
}

// quietAs is quiet for a peer that may have been sent cancellations.
func (w *wire) quietAs(id string) {
	w.t.Helper()
	w.say(`{"messageType":"readProperty","thingID":"urn:x","messageID":"` + id + `","name":"level"}`)
	for w.hear()["correlationID"] != id {
	}
}

// TestRegistrationIsNotCalledBeforeItIsComplete: the node calls the Thing immediately.
func TestRegistrationIsNotCalledBeforeItIsComplete(t *testing.T) {
	t.Parallel()
	asked := make(chan error, 1)
	eager := func(_ context.Context, _ []byte, agent interact.Thing) (string, func(over bool), error) {
		go func() {
			_, err := interact.Call(context.Background(), agent, message(interact.ReadProperty, "level", ""))
			asked <- err
		}()
		return "urn:agent:1", nil, nil
	}
	_, url := serve(t, newLab(), ServerOptions{Register: eager})
	_, stop := attach(t, AttachOptions{URL: url, Token: "token", TD: []byte(`{}`), Thing: newLab()})
	if err := <-asked; err != nil {
		t.Error(err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	refusing := func(_ context.Context, _ []byte, agent interact.Thing) (string, func(over bool), error) {
		go func() {
			_, err := interact.Call(context.Background(), agent, message(interact.ReadProperty, "level", ""))
			asked <- err
		}()
		return "", nil, errors.New("no room")
	}
	_, url = serve(t, newLab(), ServerOptions{Register: refusing})
	err := Attach(t.Context(), AttachOptions{URL: url, Token: "token", TD: []byte(`{}`), Thing: newLab()})
	wantError(t, err, interact.Internal)
	wantError(t, <-asked, interact.Unreachable)
}

// TestAConnectionHasItsShareOfThings also for concurrent registrations. A failed registration frees its slot.
func TestAConnectionHasItsShareOfThings(t *testing.T) {
	t.Parallel()
	gate := make(chan struct{})
	var ids atomic.Int32
	slow := func(_ context.Context, raw []byte, _ interact.Thing) (string, func(over bool), error) {
		<-gate
		if strings.Contains(string(raw), "bad") {
			return "", nil, interact.Errorf(interact.BadTD, "add a title", "the description has no title")
		}
		return fmt.Sprintf("urn:agent:%d", ids.Add(1)), nil, nil
	}
	_, url := serve(t, newLab(), ServerOptions{Register: slow, MaxPending: 2 * maxThings})
	w := dialWithToken(t, url)
	hear := func(n int, want string) {
		t.Helper()
		for range n {
			if m := w.hear(); m["messageType"] != want {
				t.Fatalf("got %v, want %s", m, want)
			}
		}
	}
	register := func(n int, title string) {
		t.Helper()
		for i := range n {
			w.say(fmt.Sprintf(`{"messageType":"registerThing","messageId":"%s%d","data":{"title":%q}}`, title, i, title))
		}
	}
	register(maxThings+44, "bad")
	hear(44, "error") // while the others wait
	close(gate)
	hear(maxThings, "error")
	register(maxThings+44, "good")
	counts := map[any]int{}
	for range maxThings + 44 {
		counts[w.hear()["messageType"]]++
	}
	if counts["thingRegistered"] != maxThings || counts["error"] != 44 {
		t.Errorf("got %v, want %d registered and 44 refused", counts, maxThings)
	}
	w.talk(`
		> {"messageType":"unregisterThing","messageId":"m1","thingId":"urn:agent:7"}
		< {"messageType":"acknowledgement","correlationId":"m1"}
		> {"messageType":"registerThing","messageId":"m2","data":{"title":"a"}}
		< {"messageType":"thingRegistered","correlationId":"m2"}
		> {"messageType":"registerThing","messageId":"m3","data":{"title":"a"}}
		< {"messageType":"error","correlationId":"m3","status":"429"}`)
}

// TestNodeIsLost returns an error to the agent, which attaches again.
func TestNodeIsLost(t *testing.T) {
	t.Parallel()
	r := newRegistry()
	s, url := serve(t, newLab(), ServerOptions{Register: r.register})
	done := make(chan error, 1)
	registered := make(chan string, 1)
	slow := interact.Func(func(ctx context.Context, _ *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(func(*interact.Message, error) bool) { <-ctx.Done() }
	})
	go func() {
		done <- Attach(t.Context(), AttachOptions{URL: url, Token: "token", TD: []byte(`{}`), Thing: slow, Registered: func(id string) { registered <- id }})
	}()
	<-registered
	s.Close()
	if e := wantError(t, <-done, interact.NodeLost); !strings.Contains(e.Error(), "shutting down") {
		t.Errorf("got %v", e)
	}
}

// A changed agent gets a new description, and its interactions continue.
func TestADescriptionChanges(t *testing.T) {
	t.Parallel()
	r, next := newRegistry(), make(chan struct{})
	_, url := serve(t, newLab(), ServerOptions{Register: r.register})
	var mu sync.Mutex
	raw, changed := `{"title":"one"}`, (<-chan struct{})(next)
	going, on := make(chan struct{}), make(chan struct{})
	id, stop := attach(t, AttachOptions{URL: url, Token: "token", Changing: func() ([]byte, <-chan struct{}) {
		mu.Lock()
		defer mu.Unlock()
		return []byte(raw), changed
	}, Thing: interact.Func(func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			close(going)
			<-on
			done := m.Reply(interact.ActionStatus, "", []byte(`"done"`))
			done.Status = interact.StatusCompleted
			yield(done, nil)
		}
	})})
	<-r.changed
	answer := make(chan error, 1)
	thing := r.agent(id)
	go func() {
		_, err := interact.Call(t.Context(), thing, message(interact.InvokeAction, "work", ""))
		answer <- err
	}()
	<-going
	mu.Lock()
	raw, changed = `{"title":"two"}`, nil // of the same length: of the same id
	mu.Unlock()
	close(next)
	<-r.changed // registered
	<-r.changed // and the first was released
	if got := r.raw[id]; got != `{"title":"two"}` || r.agent(id) == thing {
		t.Errorf("it is %s", got)
	}
	close(on)
	if err := <-answer; err != nil {
		t.Errorf("the running interaction: %v", err)
	}
	if err := stop(); err != nil || r.agent(id) != nil {
		t.Errorf("taken back: %v, %v", err, r.agent(id))
	}
}

// TestUnregisterAfterTake: a Thing can be unregistered, and registered again, as soon as the connection has it.
func TestUnregisterAfterTake(t *testing.T) {
	t.Parallel()
	c := unrun(t)
	first, second := &registered{peer: peer{c: c}}, &registered{peer: peer{c: c}}
	for _, r := range []*registered{first, second} {
		if !c.serving.reserve() {
			t.Fatal("no slot is free")
		}
		old := c.serving.take("x", r)
		if (r == first) != (old == nil) || r.gone == nil || r.gone.Err() != nil {
			t.Fatalf("got %v, %v", old, r.gone)
		}
	}
	second.end(true)
	if first.gone.Err() == nil || second.gone.Err() == nil {
		t.Error("a registration is open after the end of the Thing")
	}
}
