package bridgetest

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/lmosd/lmosd/interact"
)

// Acts of the agents of kits and of the Thing of the suite. Each takes an object and returns a text.
const (
	Echo  = "echo"    // {"text": T} returns T
	Fail  = "fail"    // fails with Trouble
	Slow  = "slow"    // {"word": W} runs until it is canceled: [Script.Wait]
	Count = "count"   // {"n": N, "bytes": B} sends [Script.Step] 0 to N-1 as partial outputs
	Ask   = "enquire" // requires input with Question: an object with the text "city"; returns "in " and the city
	Big   = "big"     // {"bytes": B} returns B letters x
	Extra = "extra"   // exists only after a change: returns "more"
)

// Texts of the acts.
const (
	Trouble  = "the kettle is broken"
	Question = "Which city?"
)

// Acts are the acts that an agent has from the start, with the JSON Schemas of their input.
var Acts = map[string]json.RawMessage{
	Echo: object(`"text":{"type":"string"}`, "text"), Fail: object(""), Slow: object(`"word":{"type":"string"}`, "word"),
	Count: object(`"n":{"type":"integer"},"bytes":{"type":"integer"}`, "n"), Ask: object(""),
	Big: object(`"bytes":{"type":"integer"}`, "bytes"),
}

func object(properties string, required ...string) json.RawMessage {
	names, _ := json.Marshal(append([]string{}, required...)) // cannot fail
	return fmt.Appendf(nil, `{"type":"object","properties":{%s},"required":%s,"additionalProperties":false}`, properties, names)
}

// An Input is the input of an act.
type Input struct {
	Text, Word string
	N, Bytes   int
}

// Read decodes the input of an act; the zero value if it is invalid.
func Read(raw []byte) (in Input) {
	_ = json.Unmarshal(raw, &in)
	return in
}

// A Script records what an agent does, and makes it wait where a rule requires it. It is safe for concurrent use.
type Script struct {
	calls, steps atomic.Int64
	done         chan struct{} // closed by end, after the rule: ends runs that were not canceled
	end          func()

	mu   sync.Mutex
	runs map[string]*run
	gate chan struct{} // closed: steps after the first may continue
}

// A run is the state of one run of [Slow].
type run struct{ started, ended chan struct{} }

func newScript() *Script {
	s := &Script{done: make(chan struct{}), runs: map[string]*run{}, gate: make(chan struct{})}
	close(s.gate)
	s.end = sync.OnceFunc(func() { close(s.done) })
	return s
}

// CountCall counts a call. Each act calls it first.
func (s *Script) CountCall() { s.calls.Add(1) }

// Wait is the act [Slow]: it returns when ctx ends.
func (s *Script) Wait(ctx context.Context, name string) {
	w := s.run(name)
	close(w.started)
	select {
	case <-ctx.Done():
		close(w.ended)
	case <-s.done:
	}
}

// Step makes one step of [Count], and returns its text, padded to a number of bytes.
func (s *Script) Step(ctx context.Context, i, bytes int) string {
	if i > 0 {
		s.mu.Lock()
		gate := s.gate
		s.mu.Unlock()
		select {
		case <-gate:
		case <-ctx.Done():
		case <-s.done:
		}
	}
	s.steps.Add(1)
	return step(i) + strings.Repeat(" ", max(0, bytes-8))
}

func step(i int) string { return fmt.Sprintf("step-%d.", i) }

func (s *Script) run(name string) *run {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.runs[name]
	if w == nil {
		w = &run{make(chan struct{}), make(chan struct{})}
		s.runs[name] = w
	}
	return w
}

// hold blocks steps after the first until release.
func (s *Script) hold() (release func()) {
	gate := make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gate = gate
	return sync.OnceFunc(func() { close(gate) })
}

// Acts of the Thing of the suite only.
const (
	secret = "secret" // the policy refuses it
	broken = "broken" // panics
)

// stageTD describes the Thing of the suite, with further acts.
func stageTD(id string, more ...string) []byte {
	actions := map[string]any{}
	add := func(name string, input json.RawMessage) {
		actions[name] = map[string]any{"description": "Does " + name + ".", "synchronous": true, "input": input}
	}
	for name, input := range Acts {
		add(name, input)
	}
	for _, name := range append(more, secret, broken) {
		add(name, object(""))
	}
	raw, _ := json.Marshal(map[string]any{"id": "urn:example:" + id, "title": id, "description": "Plays a script.",
		"actions": actions}) // it always can
	return raw
}

// A stage is the Thing of the suite.
type stage struct {
	*Script
	inputs interact.InputWaiter
}

// Do implements [interact.Thing].
func (s *stage) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		if m.Type == interact.ContinueAction {
			yield(s.inputs.Continue(m))
			return
		}
		s.CountCall()
		if err := s.act(ctx, m, yield); err != nil {
			yield(nil, err)
		}
	}
}

// act does one act and returns the error of the sequence.
func (s *stage) act(ctx context.Context, m *interact.Message, yield func(*interact.Message, error) bool) error {
	in := Read(m.Data)
	give := func(text string) { yield(m.ReplyStatus(interact.StatusCompleted, "text/plain", []byte(text)), nil) }
	switch m.Name {
	case Echo:
		give(in.Text)
	case Fail:
		return interact.Errorf(interact.AgentFailed, troubleHint, Trouble)
	case Slow:
		if yield(m.ReplyStatus(interact.StatusRunning, "", nil), nil) {
			s.Wait(ctx, in.Word)
			return ctx.Err()
		}
	case Count:
		for i := range in.N {
			if !yield(m.ReplyStatus(interact.StatusRunning, "text/plain", []byte(s.Step(ctx, i, in.Bytes))), nil) {
				return nil
			}
		}
		yield(m.ReplyStatus(interact.StatusCompleted, "", nil), nil)
	case Ask:
		answers, left, err := s.inputs.Ask(ctx, m, interact.Inputs{"where": {Kind: interact.InputForm, Message: Question,
			Schema: object(`"city":{"type":"string"}`, "city")}}, yield)
		if err != nil || left {
			return err
		}
		var where struct{ City string }
		_ = json.Unmarshal(answers["where"].Content, &where) // missing content is an empty city
		give("in " + where.City)
	case Big:
		give(strings.Repeat("x", in.Bytes))
	case Extra:
		give("more")
	case broken:
		panic("the stage is broken")
	}
	return nil
}

// troubleHint is the hint of [Fail].
const troubleHint = "buy another kettle"
