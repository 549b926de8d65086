package interop

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"sync"
	"testing"
	"time"

	"github.com/lmosd/lmosd/agent"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// A gate blocks until the test opens it, for one passage.
type gate chan struct{}

func newGate() gate { return make(gate, 1) }

func (g gate) open() {
	select {
	case g <- struct{}{}:
	default: // already open
	}
}

// shut closes an unused opening.
func (g gate) shut() {
	select {
	case <-g:
	default:
	}
}

// wait waits for a number of milliseconds or, without one, until the gate is open.
func (g gate) wait(ctx context.Context, ms int) (string, error) {
	if ms == 0 {
		return "done", g.pass(ctx)
	}
	select {
	case <-time.After(time.Duration(ms) * time.Millisecond):
		return "done", nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func (g gate) pass(ctx context.Context) error {
	select {
	case <-g:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A lamp is the agent of all agent bindings.
type lamp struct {
	units *agent.State[string]
	level *agent.State[int]
	alarm *agent.Event[string]
	gate
}

type sum struct {
	A int `json:"a"`
	B int `json:"b"`
}

func bareLamp() *lamp {
	units, level := agent.NewState("units", "celsius", nil), agent.NewState("level", 0, nil)
	return &lamp{units, level, agent.NewEvent[string]("alarm"), newGate()}
}

// newLamp returns a lamp, its description and its Thing.
func newLamp(t *testing.T, name string) (*lamp, []byte, interact.Thing) {
	t.Helper()
	l := bareLamp()
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
		agent.Action("wait", l.wait, agent.Async()),
		agent.Stream("count", func(ctx context.Context, _ agent.None) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				if yield("one", nil) {
					yield("two", l.pass(ctx))
				}
			}
		}),
		agent.Action("upload", func(_ context.Context, in agent.Chunks) (string, error) {
			sum := sha256.New()
			_, err := io.Copy(sum, in.Reader())
			return hex.EncodeToString(sum.Sum(nil)), err
		}),
		agent.Stream("echo", func(_ context.Context, in agent.Chunks) iter.Seq2[agent.Data, error] {
			return func(yield func(agent.Data, error) bool) {
				for chunk, err := range in.All() {
					if !yield(agent.Data{Bytes: bytes.Clone(chunk)}, err) {
						return
					}
				}
			}
		}),
	}
}

const octets = "application/octet-stream"

// A state is a lamp for servers of other protocols, which are written by hand after the standards.
type state struct {
	gate
	board[happening]

	mu    sync.Mutex // owns the following fields
	units string
	level int
}

// A happening is a change of level, or an alarm.
type happening struct {
	what  string
	value any
}

func newState() *state { return &state{units: "celsius", gate: newGate()} }

// follow calls f for each happening, in a goroutine of work, until ctx ends or f returns false.
func (s *state) follow(ctx context.Context, work *sync.WaitGroup, f func(what string, value []byte) bool) {
	came, leave := s.read()
	work.Go(func() {
		defer leave()
		for h, err := next(ctx, came); err == nil && f(h.what, asJSON(h.value)); h, err = next(ctx, came) {
		}
	})
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

// set sets a property from JSON.
func (s *state) set(name string, raw []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if name == "units" {
		return json.Unmarshal(raw, &s.units)
	}
	err := json.Unmarshal(raw, &s.level)
	if err == nil {
		s.put(happening{"level", s.level})
	}
	return err
}

// act runs an action and passes its output, or the partial outputs and the end.
func (s *state) act(ctx context.Context, name string, in []byte, tell func(out []byte, last bool)) error {
	switch name {
	case "add":
		var two sum
		if err := json.Unmarshal(in, &two); err != nil {
			return err
		}
		tell(asJSON(two.A+two.B), true)
	case "ring":
		s.put(happening{"alarm", json.RawMessage(in)})
		tell(nil, true)
	case "wait":
		ms := 0
		if err := json.Unmarshal(in, &ms); err != nil {
			return err
		}
		done, err := s.wait(ctx, ms)
		if err != nil {
			return err
		}
		tell(asJSON(done), true)
	case "count":
		tell(asJSON("one"), false)
		if err := s.pass(ctx); err != nil {
			return err
		}
		tell(asJSON("two"), false)
		tell(nil, true)
	case "upload":
		sum := sha256.Sum256(in)
		tell(asJSON(hex.EncodeToString(sum[:])), true)
	case "echo":
		tell(in, true)
	default:
		return errors.New("out of order")
	}
	return nil
}

// whole runs an action and returns its whole output.
func (s *state) whole(ctx context.Context, name string, in []byte) (out []byte, err error) {
	err = s.act(ctx, name, in, func(part []byte, last bool) {
		switch {
		case !last:
			out = asJSON(plain(out) + plain(part))
		case part != nil:
			out = part
		}
	})
	return out, err
}

func asJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // test values are JSON
	}
	return b
}

// describe returns the TD of a lamp whose forms f makes, for an affordance ("properties", "level") and some operations. With a nil f it has
// no forms and only actions: only the node reaches it.
func describe(name string, f func(kind, affordance string, ops ...string) map[string]any) []byte {
	type object = map[string]any
	with := func(about object, kind, affordance string, ops ...[]string) object {
		var forms []object
		for _, of := range ops {
			if f != nil {
				forms = append(forms, f(kind, affordance, of...))
			}
		}
		if forms != nil {
			about["forms"] = forms
		}
		return about
	}
	action := func(name string, about object) object {
		if about["synchronous"] == nil {
			about["synchronous"] = true
		}
		return with(about, "actions", name, []string{"invokeaction"})
	}
	number, text := object{"type": "integer"}, object{"type": "string"}
	about := object{
		"@context": []any{td.Context10, td.Context11, object{"lmos": td.ContextLMOS}}, "@type": "lmos:Agent", "title": name,
		"securityDefinitions": object{"nosec_sc": object{"scheme": "nosec"}}, "security": []any{"nosec_sc"},
		"actions": object{
			"add": action("add", object{"safe": true, "output": number,
				"input": object{"type": "object", "required": []string{"a", "b"}, "properties": object{"a": number, "b": number}}}),
			"ring":   action("ring", object{"input": text}),
			"fail":   action("fail", object{}),
			"wait":   action("wait", object{"synchronous": false, "input": number, "output": text}),
			"count":  action("count", object{}),
			"upload": action("upload", object{"output": text}),
			"echo":   action("echo", object{}),
		},
	}
	if f != nil {
		readWrite, observe := []string{"readproperty", "writeproperty"}, []string{"observeproperty", "unobserveproperty"}
		about["properties"] = object{
			"units": with(object{"type": "string"}, "properties", "units", readWrite),
			"level": with(object{"type": "integer", "observable": true}, "properties", "level", readWrite, observe),
		}
		about["events"] = object{"alarm": with(object{"data": text}, "events", "alarm", []string{"subscribeevent", "unsubscribeevent"})}
	}
	return asJSON(about)
}

// form is a form of a lamp.
func form(href, affordance string, ops []string) map[string]any {
	f := map[string]any{"href": href, "contentType": interact.JSON, "op": ops}
	switch affordance {
	case "upload":
		f["contentType"], f["response"] = octets, map[string]any{"contentType": interact.JSON}
	case "echo":
		f["contentType"] = octets
	}
	return f
}
