package mqtt

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"
	paho3 "github.com/eclipse/paho.mqtt.golang"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/interact/mqtt/packet"
	"github.com/lmosd/lmosd/td"
)

// A mesh has one lamp, for the clients of the broker.
type mesh struct {
	lamp *td.Description

	mu    sync.Mutex
	asked []*interact.Message
	gone  []error                                // how requests that waited have ended
	watch map[string]map[*func(reading)]struct{} // the observers of each name
	begun map[string]int                         // started observations
	over  chan struct{}                          // closed to end all observations
	why   error                                  // why they ended
}

type reading struct{ id, data string }

// meshForms are not used: the mesh replies without them.
const meshForms = `
	"properties": {
		"level": {"type": "integer", "observable": true, "forms": [{"href": "lmos:/properties/level"}]},
		"color": {"type": "string", "observable": true, "forms": [{"href": "lmos:/properties/color"}]}},
	"actions": {
		"echo":    {"input": {}, "output": {}, "forms": [{"href": "lmos:/actions/echo"}]},
		"stream":  {"output": {"type": "string"}, "forms": [{"href": "lmos:/actions/stream"}]},
		"wait":    {"forms": [{"href": "lmos:/actions/wait"}]},
		"panic":   {"forms": [{"href": "lmos:/actions/panic"}]},
		"refuse":  {"forms": [{"href": "lmos:/actions/refuse"}]},
		"long":    {"synchronous": false, "forms": [{"href": "lmos:/actions/long"}]}},
	"events": {"broken": {"forms": [{"href": "lmos:/events/broken"}]}, "out": {"forms": [{"href": "lmos:/events/out"}]}}`

func newMesh(t testing.TB) *mesh {
	t.Helper()
	thing := describe(t, "", meshForms)
	return &mesh{lamp: &td.Description{Thing: thing, Record: &td.Record{Thing: thing.ID, Title: thing.Title,
		Owner: "did:key:z6MkLamp"}},
		watch: map[string]map[*func(reading)]struct{}{}, begun: map[string]int{}, over: make(chan struct{})}
}

func (m *mesh) find(_ context.Context, ref string) (*td.Description, error) {
	switch {
	case ref == "lamp", ref == m.lamp.Ref(), ref == "urn:example:lamp", ref == "a/b+c":
		return m.lamp, nil
	case ref == "nobody":
		return nil, nil
	}
	return nil, interact.Errorf(interact.NotFound, "see what there is", "no agent matches %q", ref).Then(interact.StepFind)
}

// Do implements [interact.Thing].
func (m *mesh) Do(ctx context.Context, q *interact.Message) iter.Seq2[*interact.Message, error] {
	m.mu.Lock()
	m.asked = append(m.asked, q)
	m.mu.Unlock()
	status := func(s interact.Status, data string) *interact.Message {
		r := q.Reply(interact.ActionStatus, "", []byte(data))
		r.Status = s
		return r
	}
	switch {
	case q.Type.Long():
		return m.observe(ctx, q)
	case q.Type == interact.ReadProperty && q.Name == "level":
		return interact.One(q.Reply(interact.PropertyReading, "application/json", []byte("42")))
	case q.Type == interact.ReadProperty && q.Name == "color":
		return interact.One(q.Reply(interact.PropertyReading, "text/plain", []byte("red")))
	case q.Type == interact.ReadAllProperties, q.Type == interact.ReadMultipleProperties:
		return interact.One(q.Reply(interact.PropertyReadings, "application/json", []byte(`{"level":42}`)))
	case q.Type == interact.WriteProperty, q.Type == interact.WriteMultipleProperties:
		return interact.One(q.Reply(interact.Acknowledgement, "", nil))
	case q.Type == interact.QueryAction:
		r := status(interact.StatusCompleted, `"done"`)
		r.ActionID = "run-" + q.ActionID
		return interact.One(r)
	case q.Type == interact.CancelAction:
		if q.ActionID == "unknown" {
			return interact.Fail(interact.Errorf(interact.NoTask, "see the tasks", "no such run").Then(interact.StepTasks))
		}
		return interact.One(status(interact.StatusCancelled, ""))
	case q.Type == interact.QueryAllActions:
		return interact.One(q.Reply(interact.ActionStatuses, "application/json", []byte(`{"long":[]}`)))
	case q.Name == "echo":
		r := status(interact.StatusCompleted, string(q.Data))
		r.ContentType = q.ContentType
		return interact.One(r)
	case q.Name == "panic":
		panic("the lamp broke")
	case q.Name == "stream":
		return sequence(status(interact.StatusPending, ""), status(interact.StatusRunning, `"a"`),
			status(interact.StatusRunning, `"b"`), status(interact.StatusCompleted, ""))
	case q.Name == "long":
		first := status(interact.StatusPending, "")
		first.ActionID = "run-1"
		return sequence(first, status(interact.StatusCompleted, `"late"`))
	case q.Name == "wait":
		return func(yield func(*interact.Message, error) bool) {
			<-ctx.Done()
			m.mu.Lock()
			m.gone = append(m.gone, ctx.Err())
			m.mu.Unlock()
			yield(nil, ctx.Err())
		}
	}
	return interact.Fail(&interact.Error{Code: interact.Forbidden, Title: "the lamp is not for you", Hint: "ask its owner",
		Err: errors.New("inner secret")})
}

func sequence(all ...*interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		for _, m := range all {
			if !yield(m, nil) {
				return
			}
		}
	}
}

func (m *mesh) observe(ctx context.Context, q *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		news := make(chan reading, 4096)
		put := func(r reading) { news <- r }
		m.mu.Lock()
		over := m.over
		m.begun[q.Name]++
		if m.watch[q.Name] == nil {
			m.watch[q.Name] = map[*func(reading)]struct{}{}
		}
		m.watch[q.Name][&put] = struct{}{}
		m.mu.Unlock()
		defer func() {
			m.mu.Lock()
			delete(m.watch[q.Name], &put)
			m.mu.Unlock()
		}()
		for {
			select {
			case <-over:
				yield(nil, m.why)
				return
			case r := <-news:
				t := interact.PropertyReading
				if q.Type == interact.SubscribeEvent {
					t = interact.Event
				}
				reply := q.Reply(t, "application/json", []byte(r.data))
				reply.ID, reply.Time = r.id, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
				if !yield(reply, nil) {
					return
				}
			case <-ctx.Done():
				yield(nil, ctx.Err())
				return
			}
		}
	}
}

// end ends all observations with an error.
func (m *mesh) end(why error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.why = why
	close(m.over)
	m.over = make(chan struct{})
}

// tell delivers a reading to all observers of name, and returns their number.
func (m *mesh) tell(name, id, data string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	for put := range m.watch[name] {
		(*put)(reading{id, data})
	}
	return len(m.watch[name])
}

func (m *mesh) observers(name string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.watch[name])
}

// last returns the newest message.
func (m *mesh) last(t testing.TB) *interact.Message {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.asked) == 0 {
		t.Fatal("the mesh was not asked")
	}
	return m.asked[len(m.asked)-1]
}

func (m *mesh) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.asked)
}

// serve runs a broker of the mesh until the test ends.
func serve(t testing.TB, m *mesh, change ...func(*BrokerOptions)) *Broker {
	t.Helper()
	o := BrokerOptions{Listen: "127.0.0.1:0", Mesh: m, Find: m.find}
	for _, f := range change {
		f(&o)
	}
	return runBroker(t, o)
}

// runBroker runs a broker until the test ends.
func runBroker(t testing.TB, o BrokerOptions) *Broker {
	t.Helper()
	b, err := NewBroker(o)
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() {
		if err := b.Run(context.Background()); err != nil {
			t.Error(err)
		}
	})
	until(t, "the broker runs", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.running
	})
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		work.Wait()
	})
	return b
}

// exchange sends a request to the broker and returns the response.
func (p *peer) exchange(t testing.TB, topic, media, data string, props ...string) *paho.Publish {
	t.Helper()
	responseTopic := topic + "/reply/" + interact.NewID()
	p.sub(t, responseTopic)
	m := &paho.Publish{Topic: topic, QoS: 1, Payload: []byte(data), Properties: &paho.PublishProperties{ContentType: media,
		ResponseTopic: responseTopic, CorrelationData: []byte(responseTopic)}}
	for i := 0; i < len(props); i += 2 {
		m.Properties.User.Add(props[i], props[i+1])
	}
	if code := p.pub(t, m); code != 0 {
		t.Fatalf("%s was refused: %#x", topic, code)
	}
	got := p.next(t)
	if got.Topic != responseTopic || string(got.Properties.CorrelationData) != responseTopic || got.QoS != 1 || got.Retain {
		t.Errorf("%s: answered on %s with %q, QoS %d", topic, got.Topic, got.Properties.CorrelationData, got.QoS)
	}
	return got
}

func TestBrokerAnswers(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	b := serve(t, m)
	p := newPeer(t, b.Addr().String(), nil)
	tests := []struct {
		name, topic, data string
		typ               interact.Type
		affordance        string
		media, answer     string
	}{
		{"read", "lamp/properties/level", "", interact.ReadProperty, "level", "application/json", "42"},
		{"read text", "lamp/properties/color", "", interact.ReadProperty, "color", "text/plain", "red"},
		{"write", "lamp/properties/level", "7", interact.WriteProperty, "level", "", ""},
		{"read all", "lamp/properties", "", interact.ReadAllProperties, "", "application/json", `{"level":42}`},
		{"read some", "lamp/properties", `["level"]`, interact.ReadMultipleProperties, "", "application/json", `{"level":42}`},
		{"write some", "lamp/properties", `{"level":1}`, interact.WriteMultipleProperties, "", "", ""},
		{"invoke", "lamp/actions/echo", `{"a":1}`, interact.InvokeAction, "echo", "application/json", `{"a":1}`},
		{"a response stream as a whole", "lamp/actions/stream", "", interact.InvokeAction, "stream", "application/json", `"ab"`},
		{"an action in the background", "lamp/actions/long", "", interact.InvokeAction, "long", "application/json",
			`{"actionID":"run-1","state":"pending"}`},
		{"query", "lamp/actions/long/query", "7", interact.QueryAction, "long", "application/json",
			`{"actionID":"run-7","state":"completed","output":"done"}`},
		{"cancel", "lamp/actions/long/cancel", "7", interact.CancelAction, "long", "application/json",
			`{"actionID":"7","state":"cancelled"}`},
		{"query all", "lamp/actions", "", interact.QueryAllActions, "", "application/json", `{"long":[]}`},
		{"by id", "urn:example:lamp/properties/level", "", interact.ReadProperty, "level", "application/json", "42"},
		{"by an escaped name", packet.Topic("a/b+c", "properties", "level"), "", interact.ReadProperty, "level", "application/json", "42"},
	}
	for _, tt := range tests {
		media := ""
		if tt.data != "" {
			media = "application/json"
		}
		got := p.exchange(t, tt.topic, media, tt.data)
		if got.Properties.ContentType != tt.media || string(got.Payload) != tt.answer || got.Properties.User.Get("lmos-code") != "" {
			t.Errorf("%s: %s %q %v", tt.name, got.Properties.ContentType, got.Payload, got.Properties.User)
		}
		asked := m.last(t)
		if asked.Type != tt.typ || asked.Name != tt.affordance || asked.Thing != m.lamp.Ref() || asked.From.ID() != "" || asked.ID == "" {
			t.Errorf("%s: the mesh was asked %+v", tt.name, asked)
		}
		if left := time.Until(asked.Deadline); left < form.DefaultTimeout-soon || left > form.DefaultTimeout {
			t.Errorf("%s: deadline in %v", tt.name, left)
		}
	}
	before := m.count()
	if got := p.exchange(t, "lamp", "", ""); string(got.Payload) != string(m.lamp.Raw) ||
		got.Properties.ContentType != "application/td+json" || m.count() != before {
		t.Errorf("description: %s %.40q", got.Properties.ContentType, got.Payload)
	}
}

func TestRequestPropertiesAtTheBroker(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	p := newPeer(t, serve(t, m).Addr().String(), nil)
	trace := "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	got := p.exchange(t, "lamp/actions/echo", "application/json; charset=utf-8", "[1]", "accept", "application/cbor",
		"traceparent", trace, "tracestate", "a=b",
		"lmos-key", "once", "lmos-detach", "true", "unknown", "x")
	if got.Properties.ContentType != "application/cbor" || string(got.Payload) != "\x81\x01" {
		t.Errorf("answer %s %x", got.Properties.ContentType, got.Payload)
	}
	asked := m.last(t)
	if asked.Accept != "application/cbor" || asked.ContentType != "application/json" || asked.TraceParent != trace ||
		asked.TraceState != "a=b" || asked.Key != "once" || !asked.Detach {
		t.Errorf("received %+v", asked)
	}
	p.exchange(t, "lamp/actions/echo", "nonsense;;", `1`, "accept", ";", "traceparent", "00-XX", "lmos-key",
		strings.Repeat("k", 300))
	if asked := m.last(t); asked.Accept != "" || asked.ContentType != "" || asked.TraceParent != "" || asked.Key != "" ||
		asked.Detach {
		t.Errorf("nonsense was taken over: %+v", asked)
	}
	expiry := uint32(2)
	responseTopic := "lamp/actions/echo/reply/x"
	p.sub(t, responseTopic)
	p.pub(t, &paho.Publish{Topic: "lamp/actions/echo", QoS: 1, Properties: &paho.PublishProperties{ResponseTopic: responseTopic,
		MessageExpiry: &expiry}})
	p.next(t)
	if left := time.Until(m.last(t).Deadline); left > 2*time.Second {
		t.Errorf("a consumer that waits 2 s is answered within %v", left)
	}
}

func TestStatesAsTheyCome(t *testing.T) {
	t.Parallel()
	p := newPeer(t, serve(t, newMesh(t)).Addr().String(), nil)
	for action, want := range map[string][]string{
		"stream": {"pending  ", `running  "a"`, `running  "b"`, "completed  "},
		"long":   {"pending run-1 ", `completed  "late"`},
	} {
		m := p.exchange(t, "lamp/actions/"+action, "", "", "lmos-follow", "true")
		var got []string
		for {
			props := m.Properties.User
			got = append(got, props.Get("lmos-status")+" "+props.Get("lmos-action-id")+" "+string(m.Payload))
			if props.Get("lmos-status") == "completed" {
				break
			}
			m = p.next(t)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", action, got, want)
		}
	}
}

func TestBrokerProblems(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	b := serve(t, m)
	p := newPeer(t, b.Addr().String(), nil)
	tests := []struct {
		topic, media, data string
		code               interact.Code
		says               string
	}{
		{"stranger/properties/x", "", "", interact.NotFound, "stranger"},
		{"stranger", "", "", interact.NotFound, "stranger"},
		{"nobody/actions/x", "", "", interact.NotFound, "nobody"},
		{"lamp/actions/refuse", "", "", interact.Forbidden, "not for you"},
		{"lamp/actions/panic", "", "", interact.Internal, "the node failed"},
		{"lamp/actions/long/cancel", "", "unknown", interact.NoTask, "no such run"},
		{"lamp/actions/long/query", "", strings.Repeat("x", 300), interact.Invalid, "got 300"},
		{"lamp/properties", "application/json", "7", interact.Invalid, "object of values"},
		{"lamp/properties", "application/json", "{", interact.Invalid, "object of values"},
		{"lamp/properties", "image/png", "x", interact.Invalid, "object of values"},
	}
	for _, tt := range tests {
		got := p.exchange(t, tt.topic, tt.media, tt.data)
		var problem struct {
			Type, Code, Title, Detail, Hint string
			Next                            interact.Steps
		}
		if err := json.Unmarshal(got.Payload, &problem); err != nil || got.Properties.ContentType != "application/problem+json" {
			t.Errorf("%s: %s %q", tt.topic, got.Properties.ContentType, got.Payload)
			continue
		}
		if problem.Code != tt.code.String() || got.Properties.User.Get("lmos-code") != problem.Code ||
			problem.Type != "urn:lmosd:error:"+tt.code.Slug() ||
			problem.Title != tt.code.Title() || !strings.Contains(problem.Detail, tt.says) || problem.Hint == "" && problem.Next == nil {
			t.Errorf("%s: %+v", tt.topic, problem)
		}
		if strings.Contains(string(got.Payload), "inner secret") {
			t.Errorf("what is wrapped was sent: %s", got.Payload)
		}
	}
	// A deadline passes: the consumer receives an error, and the mesh got the deadline.
	expiry := uint32(1)
	responseTopic := "lamp/actions/wait/reply/1"
	p.sub(t, responseTopic)
	p.pub(t, &paho.Publish{Topic: "lamp/actions/wait", QoS: 1, Properties: &paho.PublishProperties{ResponseTopic: responseTopic,
		MessageExpiry: &expiry}})
	if got := p.next(t); got.Properties.User.Get("lmos-code") != "LMOS-1504" {
		t.Errorf("got %q", got.Payload)
	}
}

func TestAbandonedRequests(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	b := serve(t, m)
	old := newPeer3(t, b.Addr().String(), nil)
	for _, qos := range []byte{0, 1, 2} {
		before := m.count()
		done(t, old.Publish("lamp/properties/level", qos, false, "7"))
		until(t, "written", func() bool { return m.count() == before+1 })
		if got := m.last(t); got.Type != interact.WriteProperty || string(got.Data) != "7" {
			t.Errorf("QoS %d: %+v", qos, got)
		}
	}
	before := m.count()
	done(t, old.Publish("lamp/properties/level", 1, false, "")) // a value without a subscriber
	done(t, old.Publish("lamp/actions/echo", 1, true, "1"))     // retained, which it is not
	until(t, "invoked", func() bool { return m.count() == before+1 })
	if got := m.last(t); got.Type != interact.InvokeAction {
		t.Errorf("got %+v", got)
	}
	// A client that publishes a request and disconnects has sent it. One that waits for a response and disconnects cancels it.
	p := newPeer(t, b.Addr().String(), nil)
	p.pub(t, &paho.Publish{Topic: "lamp/actions/echo", QoS: 1, Payload: []byte("2")})
	p.sub(t, "lamp/actions/wait/reply/1")
	p.pub(t, &paho.Publish{Topic: "lamp/actions/wait", QoS: 1,
		Properties: &paho.PublishProperties{ResponseTopic: "lamp/actions/wait/reply/1"}})
	until(t, "both are asked", func() bool { return m.count() == before+3 })
	_ = p.Disconnect(&paho.Disconnect{})
	until(t, "the waiting one is cancelled", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(m.gone) == 1
	})
}

func TestOneObservationForAllSubscribers(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	b := serve(t, m)
	var peers []*peer
	for range 3 {
		peers = append(peers, newPeer(t, b.Addr().String(), nil))
	}
	seen := make(chan string, 16)
	hear := func(_ paho3.Client, msg paho3.Message) { seen <- msg.Topic() + " " + string(msg.Payload()) }
	old := newPeer3(t, b.Addr().String(), hear, "lamp/properties/level/observable")
	peers[0].sub(t, "lamp/properties/level/observable")
	peers[1].sub(t, "lamp/properties/+/observable", "lamp/properties/level/observable")
	peers[2].sub(t, "lamp/#")
	until(t, "observed", func() bool {
		return m.observers("level") == 1 && m.observers("color") == 1 && m.observers("broken") == 1 && m.observers("out") == 1
	})
	for i := range 3 {
		if n := m.tell("level", "id-"+strconv.Itoa(i), strconv.Itoa(i)); n != 1 {
			t.Fatalf("%d observations", n)
		}
		for j, p := range peers { // once each, however many of its filters cover it
			got := p.next(t)
			if got.Topic != "lamp/properties/level/observable" || string(got.Payload) != strconv.Itoa(i) || got.QoS != 1 || got.Retain {
				t.Errorf("peer %d: %s %q QoS %d", j, got.Topic, got.Payload, got.QoS)
			}
			if props := got.Properties; props.ContentType != "application/json" || props.User.Get("lmos-id") != "id-"+strconv.Itoa(i) ||
				props.User.Get("lmos-time") != "2026-01-02T03:04:05Z" {
				t.Errorf("peer %d: %v", j, props)
			}
		}
		if got := <-seen; got != "lamp/properties/level/observable "+strconv.Itoa(i) {
			t.Errorf("3.1.1: %s", got)
		}
	}
	m.tell("out", "", `"x"`)
	if got := peers[2].next(t); got.Topic != "lamp/events/out" {
		t.Errorf("got %s", got.Topic)
	}
	// The observation ends with its last subscriber: when it unsubscribes, disconnects, or loses its connection.
	unsubscribe := func(p *peer, filter string) {
		t.Helper()
		if _, err := p.Unsubscribe(t.Context(), &paho.Unsubscribe{Topics: []string{filter}}); err != nil {
			t.Fatal(err)
		}
	}
	unsubscribe(peers[1], "lamp/properties/+/observable")
	until(t, "color goes on for one", func() bool { return m.observers("color") == 1 })
	unsubscribe(peers[2], "lamp/#")
	until(t, "color and events are left",
		func() bool { return m.observers("color")+m.observers("out")+m.observers("broken") == 0 })
	unsubscribe(peers[1], "lamp/properties/level/observable")
	_ = peers[0].Disconnect(&paho.Disconnect{})
	if m.observers("level") != 1 {
		t.Error("somebody still listens to level")
	}
	old.Disconnect(10)
	until(t, "level is left", func() bool { return m.observers("level") == 0 })

	// However the thing and the affordance are spelled, and by however many filters of one client.
	spelled := newPeer(t, b.Addr().String(), nil)
	topics := []string{"urn%3Aexample%3Alamp/events/out", "lamp/events/o%75t", "lamp/events/out", "urn:example:lamp/events/out"}
	spelled.sub(t, topics...)
	until(t, "out is observed", func() bool { return m.observers("out") > 0 })
	m.tell("out", "", `"y"`)
	var received []string
	for range topics {
		received = append(received, spelled.next(t).Topic)
	}
	if slices.Sort(received); m.observers("out") != 1 || !slices.Equal(received, slices.Sorted(slices.Values(topics))) {
		t.Errorf("%d observations for one event; it was received on %v", m.observers("out"), received)
	}
	for _, topic := range topics {
		unsubscribe(spelled, topic)
	}
	until(t, "out is left", func() bool { return m.observers("out") == 0 })
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.begun["level"] != 1 {
		t.Errorf("level was observed %d times", m.begun["level"])
	}
}

func TestFailedObservationIsRestarted(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	var log lines
	b := serve(t, m, func(o *BrokerOptions) { o.Log = logTo(&log) })
	p := newPeer(t, b.Addr().String(), nil)
	p.sub(t, "lamp/events/broken")
	until(t, "observed", func() bool { return m.tell("broken", "7", `"a"`) == 1 })
	p.next(t)
	m.end(interact.Errorf(interact.Unreachable, "wait", "the lamp is away"))
	until(t, "ended", func() bool { return m.observers("broken") == 0 })
	until(t, "begun again", func() bool { return m.tell("broken", "8", `"b"`) == 1 })
	if got := p.next(t); string(got.Payload) != `"b"` {
		t.Errorf("got %q", got.Payload)
	}
	if last := m.last(t); last.After != "7" || last.Type != interact.SubscribeEvent || last.Name != "broken" {
		t.Errorf("it was begun again with %+v", last)
	}
	if !strings.Contains(log.String(), "the lamp is away") {
		t.Errorf("log: %s", log.String())
	}
}

// lines collects a log.
type lines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestUnsupportedFeatures(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	b := serve(t, m)
	p := newPeer(t, b.Addr().String(), nil)
	victim := newPeer(t, b.Addr().String(), nil)
	victim.sub(t, "lamp/events/broken", "lamp/actions/echo/reply/secret")
	for _, filter := range []string{"#", "+/events/broken", "$SYS/#", "$SYS/broker/version", "chat", "lamp", "lamp/actions/echo",
		"lamp/actions/echo/reply/+", "lamp/+/+", "stranger/events/x",
		"lamp/events/none", "nobody/events/x", "$share/g/lamp/events/broken", "lamp/properties/level"} {
		if err := p.trySub(t, filter, 1); err == nil {
			t.Errorf("the filter %s is allowed", filter)
		}
	}
	for _, topic := range []string{"chat", "chat/room", "lamp/events/broken", "lamp/properties/level/observable",
		"lamp/actions/echo/reply/secret", "stranger/x/y", "lamp/actions/"} {
		if code := p.pub(t, &paho.Publish{Topic: topic, QoS: 1, Payload: []byte("forged")}); code != 0x87 {
			t.Errorf("to publish on %s is answered %#x", topic, code)
		}
	}
	// Responses go only to topics below that of the request, and only to its client.
	for _, responseTopic := range []string{"chat", "lamp/events/broken", "lamp/actions/wait/reply/1", "lamp/actions/echo/reply/",
		"lamp/actions/echo/reply/a/b"} {
		if code := p.pub(t, &paho.Publish{Topic: "lamp/actions/echo", QoS: 1, Payload: []byte("1"),
			Properties: &paho.PublishProperties{ResponseTopic: responseTopic}}); code != 0x90 {
			t.Errorf("an answer to %s: %#x", responseTopic, code)
		}
	}
	if code := p.pub(t, &paho.Publish{Topic: "lamp/actions/echo", QoS: 1, Payload: []byte("1"),
		Properties: &paho.PublishProperties{ResponseTopic: "lamp/actions/echo/reply/secret"}}); code != 0 {
		t.Errorf("%#x", code)
	}
	until(t, "asked", func() bool { return m.count() > 0 && m.last(t).Type == interact.InvokeAction })
	// A will and a retained message are not kept.
	will := newPeer(t, b.Addr().String(), nil, func(c *paho.Connect) {
		c.WillMessage = &paho.WillMessage{Topic: "lamp/events/broken", Payload: []byte("forged"), QoS: 1, Retain: true}
	})
	will.TerminateConnectionForTest()
	until(t, "the victim is received", func() bool { return m.tell("broken", "", `"true"`) == 1 })
	if got := victim.next(t); string(got.Payload) != `"true"` {
		t.Errorf("the victim received %q on %s", got.Payload, got.Topic)
	}
	if n := len(victim.messages); n > 0 {
		t.Errorf("the victim received %d messages more", n)
	}
}

func TestRefusalsIn311(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	b := serve(t, m)
	c := newPeer3(t, b.Addr().String(), nil)
	token := c.Subscribe("#", 1, nil)
	if token.WaitTimeout(soon); token.(*paho3.SubscribeToken).Result()["#"] != 0x80 {
		t.Errorf("# is answered %v", token.(*paho3.SubscribeToken).Result())
	}
	done(t, c.Publish("chat/room", 0, false, "x")) // dropped
	c.Publish("chat/room", 1, false, "x")          // MQTT 3.1.1 §3.3.5: only the end of the connection rejects it
	until(t, "disconnected", func() bool { return !c.IsConnected() })
	if m.count() != 0 {
		t.Error("the mesh was asked")
	}
}

func TestBrokerAuthenticates(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	var log lines
	b := serve(t, m, func(o *BrokerOptions) {
		o.Log = logTo(&log)
		o.Auth = func(user, password string) (*did.Principal, context.Context) {
			if user == "me" && password == "geheim-7" || user == "you" && password == "auch" {
				return did.Consumer(did.Token, user), t.Context()
			}
			return nil, nil
		}
	})
	as := func(user, password string) func(*paho.Connect) {
		return func(c *paho.Connect) {
			c.ClientID, c.Username, c.UsernameFlag, c.Password, c.PasswordFlag = "same", user, true, []byte(password), true
		}
	}
	me := newPeer(t, b.Addr().String(), nil, as("me", "geheim-7"))
	newPeer(t, b.Addr().String(), nil, as("you", "auch")) // the same identifier, another user
	me.exchange(t, "lamp/properties/level", "", "")
	for _, l := range []login{{}, {"me", "falsch-8"}} {
		conn, err := net.Dial("tcp", b.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, err = dial5(t.Context(), packet.NewConn(conn, packet.FromBroker, 1000), "id", l, 1000, func(*delivery) {})
		var r *refusal
		if !errors.As(err, &r) || r.code != 0x86 {
			t.Errorf("%q: %v", l.user, err)
		}
	}
	if strings.Contains(log.String(), "falsch-8") || !strings.Contains(log.String(), "refused") {
		t.Errorf("log: %s", log.String())
	}
	// The same user with the same identifier takes the session over, and starts a clean one.
	me.sub(t, "lamp/events/broken")
	until(t, "observed", func() bool { return m.observers("broken") == 1 })
	again := newPeer(t, b.Addr().String(), nil, as("me", "geheim-7"), func(c *paho.Connect) { c.CleanStart = false })
	until(t, "the old session is left", func() bool { return m.observers("broken") == 0 })
	select {
	case <-me.Done():
	case <-time.After(soon):
		t.Error("the old connection lives on")
	}
	again.exchange(t, "lamp/properties/level", "", "")
}

// Clients have the principals of their passwords, do not share observations, and are disconnected when their right ends.
func TestBrokerPrincipals(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	tokens := map[string]*did.Principal{"a": did.Consumer(did.Token, "a"), "b": did.Consumer(did.Token, "b")}
	ctx, revoke := context.WithCancel(t.Context())
	b := serve(t, m, func(o *BrokerOptions) {
		o.Auth = func(_, password string) (*did.Principal, context.Context) {
			if password == "a" {
				return tokens["a"], ctx
			}
			return tokens[password], t.Context()
		}
	})
	as := func(password string) func(*paho.Connect) {
		return func(c *paho.Connect) {
			c.ClientID, c.Username, c.UsernameFlag, c.Password, c.PasswordFlag = "same", "same", true, []byte(password), true
		}
	}
	one, two := newPeer(t, b.Addr().String(), nil, as("a")), newPeer(t, b.Addr().String(), nil, as("b"))
	for name, p := range map[string]*peer{"a": one, "b": two} { // one principal does not end the session of another
		p.exchange(t, "lamp/properties/level", "", "")
		if got := m.last(t).From; got != tokens[name] {
			t.Errorf("%s asks as %v", name, got)
		}
		p.sub(t, "lamp/events/broken")
	}
	until(t, "an observation of each", func() bool { return m.observers("broken") == 2 })
	revoke()
	select {
	case <-one.Done():
	case <-time.After(soon):
		t.Error("the connection lives on")
	}
	until(t, "its observation ended", func() bool { return m.observers("broken") == 1 })
	two.exchange(t, "lamp/properties/level", "", "")
}

func TestBrokerLimits(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	var log lines
	b := serve(t, m, func(o *BrokerOptions) {
		o.MaxConnections, o.MaxRequests, o.MaxPacket, o.Log = 2, 3, 10_000, logTo(&log)
	})
	addr := b.Addr().String()
	p := newPeer(t, addr, nil)
	for i := range 3 {
		responseTopic := "lamp/actions/wait/reply/" + strconv.Itoa(i)
		p.sub(t, responseTopic)
		p.pub(t, &paho.Publish{Topic: "lamp/actions/wait", QoS: 1, Properties: &paho.PublishProperties{ResponseTopic: responseTopic}})
	}
	if got := p.exchange(t, "lamp/properties/level", "", ""); got.Properties.User.Get("lmos-code") != "LMOS-1529" {
		t.Errorf("a fourth request is answered %q", got.Payload)
	}
	if code := p.pub(t, &paho.Publish{Topic: "lamp/actions/echo", QoS: 1}); code != 0x97 {
		t.Errorf("a fourth request without answer: %#x", code)
	}
	// Another client has room, but not a third one.
	q := newPeer(t, addr, nil)
	q.exchange(t, "lamp/properties/level", "", "")
	for range 3 {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil {
			t.Error("a third connection is served")
		}
		conn.Close()
	}
	if text := log.String(); strings.Count(text, "connection closed") != 1 || !strings.Contains(text, "MaxConnections") {
		t.Errorf("want one line that says what to raise, got %s", text)
	}
	// A packet that is too large ends its own connection.
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	_, _ = q.Publish(ctx, &paho.Publish{Topic: "lamp/actions/echo", Payload: make([]byte, 20_000)})
	select {
	case <-q.Done():
	case <-ctx.Done():
		t.Error("20,000 bytes are taken")
	}
	if got := p.exchange(t, "lamp/properties/level", "", ""); got == nil {
		t.Error("p has suffered")
	}
	until(t, "room again", func() bool {
		b.listener.mu.Lock()
		defer b.listener.mu.Unlock()
		return len(b.listener.open) == 1
	})
	r := newPeer(t, addr, nil)
	for i := range maxClientFilters + 1 {
		if err := r.trySub(t, "lamp/reply/"+strconv.Itoa(i), 1); (err == nil) != (i < maxClientFilters) {
			t.Fatalf("subscription %d: %v", i, err)
		}
	}
}

// TestOneClientDoesNotWatchAll: its limit is a quarter of the total limit.
func TestOneClientDoesNotWatchAll(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	many := *m.lamp.Thing
	many.Events = map[string]*td.Event{}
	for i := range maxClientWatches / 2 {
		many.Events[strconv.Itoa(i)] = &td.Event{}
	}
	var log lines
	b := serve(t, m, func(o *BrokerOptions) {
		o.Log = logTo(&log)
		o.Find = func(_ context.Context, ref string) (*td.Description, error) {
			return &td.Description{Thing: &many, Record: &td.Record{Thing: ref, Owner: "did:key:z6MkLamp"}}, nil
		}
	})
	p, other := newPeer(t, b.Addr().String(), nil), newPeer(t, b.Addr().String(), nil)
	p.sub(t, "1/events/#", "2/events/#", "2/events/#")
	if err := p.trySub(t, "3/events/0", 1); err == nil || !strings.Contains(log.String(), "observes too much") {
		t.Errorf("one client observes more than %d affordances: %s", maxClientWatches, log.String())
	}
	other.sub(t, "3/events/0")
}

// TestConnectionsPerHostAreLimited: of another machine than this.
func TestConnectionsPerHostAreLimited(t *testing.T) {
	t.Parallel()
	from := func(host string) net.Conn {
		return &remoteConn{remote: &net.TCPAddr{IP: net.ParseIP(host), Port: 1}}
	}
	d := newListener(nil, BrokerOptions{MaxConnections: 4, Log: slog.New(slog.DiscardHandler)}, nil, nil)
	for i, c := range []struct {
		host string
		room bool
	}{{"192.0.2.1", true}, {"192.0.2.1", true}, {"::ffff:192.0.2.1", false}, {"192.0.2.2", true}, {"127.0.0.1", true},
		{"127.0.0.1", false}} {
		conn := from(c.host)
		if room := d.roomLocked(conn); room != c.room {
			t.Errorf("connection %d of %s: room is %t", i, c.host, room)
		} else if room {
			d.open[conn] = true
		}
	}
}

type remoteConn struct {
	net.Conn
	remote net.Addr
}

func (c *remoteConn) RemoteAddr() net.Addr { return c.remote }

// count returns how many clients there are.
func (b *Broker) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.consumers)
}

func TestAnswerAboveTheLimitOfTheClient(t *testing.T) {
	t.Parallel()
	p := newPeer(t, serve(t, newMesh(t)).Addr().String(), nil, func(c *paho.Connect) {
		size := uint32(2000)
		c.Properties = &paho.ConnectProperties{MaximumPacketSize: &size}
	})
	got := p.exchange(t, "lamp/actions/echo", "", `"`+strings.Repeat("x", 3000)+`"`)
	if got.Properties.User.Get("lmos-code") != "LMOS-1413" {
		t.Errorf("got %.200q", got.Payload)
	}
}

// A client that does not read is ended, and others go on.
func TestClientThatDoesNotRead(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	b := serve(t, m)
	good := newPeer(t, b.Addr().String(), nil)
	good.sub(t, "lamp/events/broken")
	bad, err := net.Dial("tcp", b.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer bad.Close()
	// CONNECT and SUBSCRIBE at QoS 1 by hand; then it reads, and acknowledges nothing.
	raw := join(packetOf(0x10, "\x00\x04MQTT\x04\x02\x00\x3c\x00\x03bad"), packetOf(0x82, "\x00\x01\x00\x12lamp/events/broken\x01"))
	if _, err := bad.Write(raw); err != nil {
		t.Fatal(err)
	}
	var read sync.WaitGroup
	read.Go(func() { _, _ = io.Copy(io.Discard, bad) })
	until(t, "both listen", func() bool { return b.members() == 2 })
	for i := range maxOutgoing + maxPending + 10 {
		m.tell("broken", "", strconv.Itoa(i))
		if got := good.next(t); string(got.Payload) != strconv.Itoa(i) {
			t.Fatalf("the good client received %q, want %d", got.Payload, i)
		}
	}
	until(t, "the bad one is ended", func() bool { return b.count() == 1 && b.members() == 1 })
	read.Wait()
}

// members returns the number of subscribers of the event broken.
func (b *Broker) members() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for key, w := range b.watches {
		if key.name == "broken" {
			n += len(w.members)
		}
	}
	return n
}

func TestQueueOfAClientCountsBytes(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	b := serve(t, m)
	bad, err := net.Dial("tcp", b.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer bad.Close()
	hello, listen := "\x00\x04MQTT\x04\x02\x00\x3c\x00\x03bad", "\x00\x01\x00\x12lamp/events/broken\x01"
	if _, err := bad.Write(join(packetOf(0x10, hello), packetOf(0x82, listen))); err != nil {
		t.Fatal(err)
	}
	until(t, "it listens", func() bool { return m.observers("broken") == 1 })
	large := `"` + strings.Repeat("x", 1<<20) + `"`
	for range 12 { // 12 MiB, unread or unacknowledged
		m.tell("broken", "", large)
	}
	until(t, "it is ended", func() bool { return b.count() == 0 })
}

func TestNewBrokerErrors(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	busy := serve(t, m)
	tests := []struct {
		name string
		o    BrokerOptions
		code interact.Code
	}{
		{"a busy port", BrokerOptions{Listen: busy.Addr().String()}, interact.PortBusy},
		{"no address", BrokerOptions{Listen: "nowhere"}, interact.ConfigInvalid},
		{"all addresses", BrokerOptions{Listen: "0.0.0.0:0"}, interact.WildcardBind},
	}
	for _, tt := range tests {
		_, err := NewBroker(tt.o)
		wantError(t, err, tt.code)
	}
	b, err := NewBroker(BrokerOptions{Listen: "127.0.0.1:0", Mesh: m, Find: m.find})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(b.Close(), b.Close()); err != nil {
		t.Error(err)
	}
	if err := b.Run(t.Context()); err == nil {
		t.Error("a closed broker runs")
	}
	if _, err := net.Dial("tcp", b.Addr().String()); err == nil {
		t.Error("a closed broker listens")
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	b, err := NewBroker(BrokerOptions{Listen: "127.0.0.1:0", Mesh: m, Find: m.find})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	p := newPeer(t, b.Addr().String(), nil)
	newPeer3(t, b.Addr().String(), nil, "lamp/events/broken")
	silent, err := net.Dial("tcp", b.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	p.sub(t, "lamp/actions/wait/reply/1")
	p.pub(t, &paho.Publish{Topic: "lamp/actions/wait", QoS: 1,
		Properties: &paho.PublishProperties{ResponseTopic: "lamp/actions/wait/reply/1"}})
	until(t, "asked", func() bool { return m.count() == 2 })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if m.observers("broken") != 0 || b.count() != 0 {
		t.Error("something goes on after Run")
	}
	if err := b.Run(t.Context()); err == nil {
		t.Error("it runs twice")
	}
}

// Client and broker of this package understand each other, in all operations.
func TestClientAsksBroker(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	b := serve(t, m)
	base := "mqtt://" + b.Addr().String()
	thing := describe(t, base, `
		"properties": {"level": {"type": "integer", "observable": true, "forms": [{"href": "BASE/lamp/properties/level",
			"op": ["readproperty", "writeproperty"]},
			{"href": "BASE/lamp/properties/level/observable", "op": "observeproperty"}]}},
		"actions": {"echo": {"output": {}, "forms": [{"href": "BASE/lamp/actions/echo"}]}, "stream": {"output": {},
			"forms": [{"href": "BASE/lamp/actions/stream"}]},
			"refuse": {"forms": [{"href": "BASE/lamp/actions/refuse"}]}},
		"events": {"broken": {"forms": [{"href": "BASE/lamp/events/broken"}]}},
		"forms": [{"href": "BASE/lamp/properties/+/observable", "op": "observeallproperties"}, {"href": "BASE/lamp/events/#",
			"op": "subscribeallevents"}]`)
	c := newClient(t, Options{})
	if got, err := ask(t, c, thing, read("level")); err != nil || string(got.Data) != "42" {
		t.Errorf("read: %v, %v", got, err)
	}
	if got, err := ask(t, c, thing, write("level", "1")); err != nil || got.Type != interact.Acknowledgement {
		t.Errorf("write: %v, %v", got, err)
	}
	if got, err := ask(t, c, thing, invoke("echo", `[1]`)); err != nil || string(got.Data) != "[1]" {
		t.Errorf("invoke: %v, %v", got, err)
	}
	var parts []string
	for r, err := range c.Thing(thing).Do(t.Context(), invoke("stream", "")) {
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, r.Status.String()+string(r.Data))
	}
	if want := []string{"pending", `running"a"`, `running"b"`, "completed"}; !slices.Equal(parts, want) {
		t.Errorf("stream: %q", parts)
	}
	_, err := ask(t, c, thing, invoke("refuse", ""))
	if e := wantError(t, err, interact.Forbidden); !e.Remote || !strings.Contains(e.Title, "not for you") ||
		e.Hint != "ask its owner" {
		t.Errorf("refuse: %+v", e)
	}
	readers := []*reader{
		observe(t, c.Thing(thing), &interact.Message{Type: interact.ObserveProperty, Name: "level"}),
		observe(t, c.Thing(thing), &interact.Message{Type: interact.ObserveAllProperties}),
	}
	until(t, "subscribed", func() bool { return listening(c) == 2 && m.observers("level") == 1 })
	m.tell("level", "id-7", "7")
	for _, r := range readers {
		if got := r.next(t); got.Name != "level" || string(got.Data) != "7" || got.ID != "id-7" || got.Time.Year() != 2026 {
			t.Errorf("observed %+v", got)
		}
	}
	events := observe(t, c.Thing(thing), &interact.Message{Type: interact.SubscribeAllEvents})
	until(t, "subscribed", func() bool { return m.observers("broken") == 1 })
	m.tell("broken", "", `"x"`)
	if got := events.next(t); got.Name != "broken" || got.Type != interact.Event {
		t.Errorf("event %+v", got)
	}
}

// A packet above the limit of a broker is not sent, and the connection continues.
func TestRequestAboveTheLimitOfTheBroker(t *testing.T) {
	t.Parallel()
	b := serve(t, newMesh(t), func(o *BrokerOptions) { o.MaxPacket = 10_000 })
	thing := describe(t, "mqtt://"+b.Addr().String(), `"actions": {"echo": {"output": {},
		"forms": [{"href": "BASE/lamp/actions/echo"}]}}`)
	c := newClient(t, Options{})
	_, err := ask(t, c, thing, invoke("echo", `"`+strings.Repeat("x", 20_000)+`"`))
	if e := wantError(t, err, interact.TooLarge); e.Started {
		t.Errorf("got %+v", e)
	}
	if _, err := ask(t, c, thing, invoke("echo", `1`)); err != nil {
		t.Error(err)
	}
}

// What cannot stand in a property of MQTT ends no connection, on either side.
func TestInvalidMQTTTexts(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	b := serve(t, m)
	thing := describe(t, "mqtt://"+b.Addr().String(), `"actions": {"echo": {"output": {},
		"forms": [{"href": "BASE/lamp/actions/echo"}]}}`)
	c := newClient(t, Options{})
	bad := invoke("echo", "1")
	bad.Key, bad.TraceState, bad.Accept = "\xff\x00", strings.Repeat("x", 70_000), "a\nb"
	if _, err := ask(t, c, thing, bad); err != nil {
		t.Error(err)
	}
	bad.ContentType = "application/json; x=\x00"
	_, err := ask(t, c, thing, bad)
	wantError(t, err, interact.Invalid)
	p := newPeer(t, b.Addr().String(), nil)
	p.sub(t, "lamp/events/broken")
	until(t, "told", func() bool { return m.tell("broken", "\xff\x00", "1") == 1 })
	if got := p.next(t); got.Properties.User.Get("lmos-id") != "" {
		t.Errorf("%v", got.Properties)
	}
	if n := newOutgoing("t", &interact.Message{ContentType: "text/\xff", Data: []byte("x")},
		""); n.media != "application/octet-stream" {
		t.Errorf("media %q", n.media)
	}
}

func TestBrokerOverTLS(t *testing.T) {
	t.Parallel()
	cert, pool := certificate(t)
	m := newMesh(t)
	b := serve(t, m, func(o *BrokerOptions) { o.TLS = tlsOf(cert) })
	thing := describe(t, "mqtts://"+b.Addr().String(), `"properties": {"level": {"type": "integer",
		"forms": [{"href": "BASE/lamp/properties/level"}]}}`)
	c := newClient(t, Options{TLS: trusting(pool)})
	if got, err := ask(t, c, thing, read("level")); err != nil || string(got.Data) != "42" {
		t.Errorf("got %v, %v", got, err)
	}
}

// halfSubscribe is a SUBSCRIBE of MQTT 5 without the options of its filter: mochi 2.7.9 reads beyond its end, and panics.
const halfSubscribe = "\x00\x02\x00\x00\x06lamp/#"

func TestPanicOfTheLibraryEndsOneConnection(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	var log lines
	b := serve(t, m, func(o *BrokerOptions) { o.Log = logTo(&log) })
	good := newPeer(t, b.Addr().String(), nil)
	for i := range 3 {
		conn, err := net.Dial("tcp", b.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		hello := "\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x04bad" + strconv.Itoa(i)
		_, _ = conn.Write(join(packetOf(0x10, hello), packetOf(0x82, "\x00\x01\x00\x00\x12lamp/events/broken\x01"), packetOf(0x82,
			halfSubscribe)))
		_, _ = io.Copy(io.Discard, conn) // until it is ended
		conn.Close()
	}
	until(t, "nothing is left of it", func() bool {
		return b.count() == 1 && m.observers("broken") == 0 && b.server.Clients.Len() == 1 &&
			len(b.server.Topics.Subscribers("lamp/events/broken").Subscriptions) == 0
	})
	good.exchange(t, "lamp/properties/level", "", "")
	until(t, "it is logged", func() bool { return strings.Contains(log.String(), "panic") })
}

// The broker serves other clients after any input of a client.
func FuzzBrokerInput(f *testing.F) {
	m := newMesh(f)
	b := serve(f, m, func(o *BrokerOptions) { o.MaxConnections = 1000 })
	f.Add([]byte{}, byte(5))
	f.Add(packetOf(0x82, "\x00\x01\x00\x12lamp/events/broken\x01"), byte(4))
	f.Add(packetOf(0x82, "\x00\x01\x00\x00\x06lamp/#\x01"), byte(5))
	f.Add(packetOf(0x32, "\x00\x11lamp/actions/echo\x00\x01\x00x"), byte(5))
	f.Add(packetOf(0x34, "\x00\x11lamp/actions/echo\x00\x01x"), byte(4))
	f.Add(packetOf(0x62, "\x00\x01"), byte(4))
	f.Add(packetOf(0x82, halfSubscribe), byte(5))
	f.Add(packetOf(0xa2, "\x00\x01\x00\x01a"), byte(4))
	f.Fuzz(func(t *testing.T, raw []byte, version byte) {
		conn, err := net.Dial("tcp", b.Addr().String())
		if err != nil {
			t.Skip("no sockets left")
		}
		defer conn.Close()
		hello := packetOf(0x10, "\x00\x04MQTT"+string(rune(version%8))+"\x02\x00\x3c\x00\x01f")
		if version == 5 {
			hello = packetOf(0x10, "\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x01f")
		}
		_, _ = conn.Write(join(hello, raw, packetOf(0xe0, "")))
		_ = conn.(*net.TCPConn).CloseWrite() // half a packet is not waited for
		_ = conn.SetReadDeadline(time.Now().Add(soon))
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the broker neither ends nor answers after %x", raw)
		}
	})
}
