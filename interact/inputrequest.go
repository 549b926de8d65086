package interact

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"maps"
	"sync"
)

// Kinds of an [Input].
const (
	InputForm    = "form"    // values of Schema
	InputURL     = "url"     // a user follows the instructions at URL
	InputMessage = "message" // another message to the agent, as text or JSON
	InputModel   = "model"   // the reply of a model to Params (MCP sampling/createMessage)
	InputRoots   = "roots"   // the accessible folders (MCP roots/list)
)

// An Input is one input that a run of an action requires before it continues (MCP elicitation, sampling and roots; A2A
// input-required and auth-required).
type Input struct {
	Kind    string          `json:"kind"`
	Message string          `json:"message,omitempty"` // for users
	Schema  json.RawMessage `json:"schema,omitempty"`  // JSON Schema of the content of the answer
	URL     string          `json:"url,omitempty"`
	// Params are the parameters in the protocol of the agent, unchanged.
	Params json.RawMessage `json:"params,omitempty"`
}

// Inputs are the data of an input-required ActionStatus, by key.
type Inputs map[string]Input

// Actions of an [Answer].
const (
	Accept  = "accept"
	Decline = "decline" // continue without the input
	Dismiss = "cancel"  // the user made no choice
)

// An Answer is the reply of the consumer to an [Input].
type Answer struct {
	Action  string          `json:"action"`
	Content json.RawMessage `json:"content,omitempty"`
}

// Answers are the data of a ContinueAction, by the keys of the inputs. Inputs without an answer are requested again.
type Answers map[string]Answer

// NeedsInput returns the error for a consumer that cannot give the required input over this protocol.
func NeedsInput(action string) *Error {
	return &Error{Code: InputNeeded, Title: action + " requires input", Started: true,
		Hint: "call it as a task, and answer the task", Next: Next(StepOption, "async")}
}

const (
	maxWaiting = 1024    // runs of one InputWaiter
	maxAnswers = 64      // inputs of one run
	maxAnswer  = 1 << 20 // bytes of the answers to one run
)

// An InputWaiter suspends runs of actions that wait for input. The zero value is ready. It is safe for concurrent use.
type InputWaiter struct {
	mu   sync.Mutex
	runs map[string]*waitingRun // by ActionID
}

// A waitingRun is a run that waits for answers.
type waitingRun struct {
	from    string // [did.Principal.ID]
	open    Inputs
	answers Answers
	done    chan struct{} // closed with the last answer
}

// Ask yields the required input of the run of m, and waits for all answers, or the end of ctx. It is called from the loop of Do,
// which yields; left means that the consumer has left the loop. The contents of answers are not checked.
func (p *InputWaiter) Ask(ctx context.Context, m *Message, in Inputs, yield func(*Message, error) bool) (_ Answers, left bool, err error) {
	data, err := json.Marshal(in)
	if err != nil || len(in) == 0 || len(in) > maxAnswers {
		return nil, false, &Error{Code: Internal, Title: "the required input cannot be encoded", Err: err, Hint: "see the agent's log"}
	}
	w := &waitingRun{from: m.From.ID(), open: maps.Clone(in), answers: Answers{}, done: make(chan struct{})}
	r := m.ReplyStatus(StatusInputRequired, JSON, data)
	if r.ActionID, err = p.enter(m.ActionID, w); err != nil {
		return nil, false, err
	}
	defer p.leave(r.ActionID, w)
	if !yield(r, nil) {
		return nil, true, nil
	}
	select {
	case <-w.done:
		return w.answers, false, nil
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
}

func (p *InputWaiter) enter(id string, w *waitingRun) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.runs) >= maxWaiting {
		return "", Errorf(Overloaded, "try again later", "%d runs wait for input", maxWaiting)
	}
	if p.runs == nil {
		p.runs = map[string]*waitingRun{}
	}
	if id == "" || p.runs[id] != nil {
		id = rand.Text() // only the consumer knows it
	}
	p.runs[id] = w
	return id, nil
}

func (p *InputWaiter) leave(id string, w *waitingRun) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.runs[id] == w {
		delete(p.runs, id)
	}
}

// Continue handles ContinueAction. Only the consumer that started a run can answer it; for others the run does not exist.
func (p *InputWaiter) Continue(m *Message) (*Message, error) {
	data, _, err := Transcode(m.Data, m.Media(), JSON)
	var answers Answers
	if err == nil {
		err = json.Unmarshal(data, &answers)
	}
	if err != nil || len(data) > maxAnswer {
		return nil, &Error{Code: Invalid, Title: "invalid answers", Err: err,
			Hint: `send {"key":{"action":"accept","content":{…}}}, for each key of the inputs; at most 1 MiB`}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.runs[m.ActionID]
	if w == nil || w.from != m.From.ID() {
		return nil, Errorf(NoTask, "it may have ended: query its state", "no run %q waits for an answer", Clip(m.ActionID, 64))
	}
	for key, a := range answers {
		if _, asked := w.open[key]; !asked {
			continue // answered, or unknown
		}
		if a.Action != Accept && a.Action != Decline && a.Action != Dismiss {
			return nil, Errorf(Invalid, `"action" is accept, decline or cancel`, "the answer %q has no valid action", Clip(key, 64))
		}
		delete(w.open, key)
		w.answers[key] = a
	}
	if len(w.open) == 0 {
		delete(p.runs, m.ActionID)
		close(w.done)
	}
	return m.Reply(Acknowledgement, "", nil), nil
}
