package interop

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lmosd/lmosd/agent"
	"github.com/lmosd/lmosd/gateway"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/node"
	"github.com/lmosd/lmosd/td"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A mesh is two nodes that are connected over loopback, with every door open: agents live at the first, consumers ask the second.
type mesh struct {
	host, consumer *node.Node
	api            string // of the consumer's node
	client         *gateway.Client
	mqtt, coap     string // addresses of the doors of the consumer's node
	wsHost         string // the socket at which agents of the first node dial in
	token          string // of the first node
	dir            string // of the first node
}

func logger() *slog.Logger {
	if os.Getenv("LMOSD_TEST_LOG") != "" {
		return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return slog.New(slog.DiscardHandler)
}

// newMesh starts the two nodes. They end with the test.
func newMesh(t *testing.T) *mesh {
	t.Helper()
	network := fmt.Sprintf("io-%d", time.Now().UnixNano()%1e9)
	start := func(name string, bootstrap []string) *node.Node {
		o := node.Options{Name: name, Network: network, Profile: "test", Loopback: true, Dir: t.TempDir(), Engine: node.EngineMemory,
			Listen: []string{"/ip4/127.0.0.1/tcp/0"}, ListenExplicit: true, Bootstrap: bootstrap, Direct: node.DirectOff,
			HTTP: &node.HTTP{Listen: "127.0.0.1:0", Explicit: true}, MQTT: "127.0.0.1:0", CoAP: "127.0.0.1:0", Log: logger()}
		n, err := node.New(o)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- n.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			if err := n.Close(); err != nil {
				t.Error(err)
			}
		})
		if name == "host" {
			t.Cleanup(func() {}) // the host stops after the consumer
		}
		return n
	}
	m := &mesh{}
	m.host = start("host", nil)
	m.consumer = start("consumer", m.host.Addrs())
	m.client, m.api, m.wsHost = m.consumer.Client(), m.consumer.API(), m.host.API()
	m.mqtt, m.coap = m.consumer.MQTT(), m.consumer.CoAP()
	m.dir = m.host.Status().DataDir
	raw, err := os.ReadFile(m.dir + "/api.token")
	if err != nil {
		t.Fatal(err)
	}
	m.token = strings.TrimSpace(string(raw))
	return m
}

// known waits until the consumer's node knows the thing of a name, and returns its description.
func (m *mesh) known(t *testing.T, name string) *td.Description {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; {
		d, err := m.consumer.Get(t.Context(), name)
		if err == nil {
			return d
		}
		if time.Now().After(end) {
			t.Fatalf("the consumer's node does not know %s: %v", name, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// offer publishes a TD at the host. A nil thing is asked over its forms.
func (m *mesh) offer(t *testing.T, raw []byte, thing interact.Thing) {
	t.Helper()
	var err error
	if thing == nil {
		_, err = m.host.Publish(t.Context(), raw)
	} else {
		raw, err = td.Draft(raw)
		if err == nil {
			_, err = m.host.Offer(t.Context(), raw, thing)
		}
	}
	if err != nil {
		t.Fatalf("offer: %v\n%s", err, raw)
	}
}

// A lamp is the agent that every agent binding offers, whatever its protocol.
type lamp struct {
	units *agent.State[string]
	level *agent.State[int]
	alarm *agent.Event[string]
}

type sum struct {
	A int `json:"a"`
	B int `json:"b"`
}

// newLamp returns a lamp, its description and the thing that answers.
func newLamp(t *testing.T, name string) (*lamp, []byte, interact.Thing) {
	t.Helper()
	l := &lamp{units: agent.NewState("units", "celsius", nil), level: agent.NewState("level", 0, nil), alarm: agent.NewEvent[string]("alarm")}
	raw, thing, err := agent.New(agent.Agent{Name: name}, l.parts()...)
	if err != nil {
		t.Fatal(err)
	}
	return l, raw, thing
}

func (l *lamp) parts() []agent.Part {
	return []agent.Part{l.units, l.level, l.alarm,
		agent.Action("add", func(_ context.Context, in sum) (int, error) { return in.A + in.B, nil }, agent.Safe()),
		agent.Action("ring", func(_ context.Context, text string) (agent.None, error) { l.alarm.Emit(text); return agent.None{}, nil }),
		agent.Action("fail", func(context.Context, agent.None) (agent.None, error) { return agent.None{}, fmt.Errorf("out of order") }),
		agent.Action("wait", wait, agent.Async()),
	}
}

// wait takes as many milliseconds as it is told.
func wait(ctx context.Context, ms int) (string, error) {
	select {
	case <-time.After(time.Duration(ms) * time.Millisecond):
		return "done", nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// A state is a lamp for servers of other protocols than ours: they are written by hand, against the standards alone.
type state struct {
	mu        sync.Mutex
	units     string
	level     int
	listeners map[int]func(what string, value any)
	next      int
}

func newState() *state { return &state{units: "celsius", listeners: map[int]func(string, any){}} }

// listen calls f for each change of level and each alarm, until the returned function is called.
func (s *state) listen(f func(what string, value any)) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	id := s.next
	s.listeners[id] = f
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.listeners, id)
	}
}

func (s *state) tell(what string, value any) {
	s.mu.Lock()
	var all []func(string, any)
	for _, f := range s.listeners {
		all = append(all, f)
	}
	s.mu.Unlock()
	for _, f := range all {
		f(what, value)
	}
}

// get returns a property as JSON.
func (s *state) get(name string) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if name == "units" {
		return asJSON(s.units)
	}
	return asJSON(s.level)
}

// set takes a property as JSON.
func (s *state) set(name string, raw []byte) error {
	s.mu.Lock()
	var err error
	if name == "units" {
		err = json.Unmarshal(raw, &s.units)
	} else {
		err = json.Unmarshal(raw, &s.level)
	}
	level := s.level
	s.mu.Unlock()
	if err == nil && name == "level" {
		s.tell("level", level)
	}
	return err
}

// act runs an action with JSON input and returns its JSON output.
func (s *state) act(ctx context.Context, name string, raw []byte) ([]byte, error) {
	switch name {
	case "add":
		var in sum
		err := json.Unmarshal(raw, &in)
		return asJSON(in.A + in.B), err
	case "ring":
		var text string
		if err := json.Unmarshal(raw, &text); err != nil {
			return nil, err
		}
		s.tell("alarm", text)
		return nil, nil
	case "wait":
		var ms int
		if err := json.Unmarshal(raw, &ms); err != nil {
			return nil, err
		}
		out, err := wait(ctx, ms)
		return asJSON(out), err
	}
	return nil, fmt.Errorf("out of order")
}

func asJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // test values are JSON
	}
	return b
}

// describe writes the TD of a lamp whose forms f makes: for an affordance ("properties", "level") and some operations.
func describe(name string, f func(kind, affordance string, ops ...string) []map[string]any) []byte {
	forms := func(kind, affordance string, ops ...string) []map[string]any { return f(kind, affordance, ops...) }
	doc := map[string]any{
		"@context": []any{td.Context10, td.Context11, map[string]any{"lmos": td.ContextLMOS}}, "@type": "lmos:Agent", "title": name,
		"securityDefinitions": map[string]any{"nosec_sc": map[string]any{"scheme": "nosec"}}, "security": []any{"nosec_sc"},
		"properties": map[string]any{
			"units": map[string]any{"type": "string", "forms": forms("properties", "units", "readproperty", "writeproperty")},
			"level": map[string]any{"type": "integer", "observable": true, "forms": append(forms("properties", "level", "readproperty", "writeproperty"),
				forms("properties", "level", "observeproperty", "unobserveproperty")...)},
		},
		"actions": map[string]any{
			"add": map[string]any{"safe": true, "synchronous": true, "input": map[string]any{"type": "object", "required": []string{"a", "b"},
				"properties": map[string]any{"a": map[string]any{"type": "integer"}, "b": map[string]any{"type": "integer"}}},
				"output": map[string]any{"type": "integer"}, "forms": forms("actions", "add", "invokeaction")},
			"ring": map[string]any{"synchronous": true, "input": map[string]any{"type": "string"}, "forms": forms("actions", "ring", "invokeaction")},
			"fail": map[string]any{"synchronous": true, "forms": forms("actions", "fail", "invokeaction")},
			"wait": map[string]any{"synchronous": false, "input": map[string]any{"type": "integer"}, "output": map[string]any{"type": "string"},
				"forms": forms("actions", "wait", "invokeaction")},
		},
		"events": map[string]any{"alarm": map[string]any{"data": map[string]any{"type": "string"}, "forms": forms("events", "alarm", "subscribeevent", "unsubscribeevent")}},
	}
	return asJSON(doc)
}
