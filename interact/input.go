package interact

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"sync"
)

// Kinds of an [Input].
const (
	InputForm    = "form"    // values that fit Schema
	InputURL     = "url"     // that somebody opens URL, and does there what it says
	InputMessage = "message" // another message to the agent, in words or as JSON
	InputModel   = "model"   // what a model says to Params (MCP sampling/createMessage)
	InputRoots   = "roots"   // the folders that may be worked in (MCP roots/list)
)

// An Input is one thing that a run of an action wants to know before it goes on (MCP elicitation, sampling and roots; A2A
// input-required and auth-required).
type Input struct {
	Kind    string          `json:"kind"`
	Message string          `json:"message,omitempty"` // for people
	Schema  json.RawMessage `json:"schema,omitempty"`  // JSON Schema of the content of the answer
	URL     string          `json:"url,omitempty"`
	// Params are what the agent's own protocol says, verbatim.
	Params json.RawMessage `json:"params,omitempty"`
}

// Inputs are the data of an ActionStatus that is input-required: what is asked for, by a key each.
type Inputs map[string]Input

// What an [Answer] does.
const (
	Accept  = "accept"
	Decline = "decline" // no, and go on without
	Dismiss = "cancel"  // nobody chose
)

// An Answer is what the consumer says to an [Input].
type Answer struct {
	Action  string          `json:"action"`
	Content json.RawMessage `json:"content,omitempty"`
}

// Answers are the data of a ContinueAction, by the keys of the inputs. What is not answered is asked for again.
type Answers map[string]Answer

// NeedsInput is the error for a consumer that cannot be asked what a run of the action wants to know.
func NeedsInput(action string) *Error {
	return &Error{Code: InputNeeded, Title: action + " wants to know more before it goes on", Started: true,
		Hint: "call it as a task, and answer the task", Next: Next(StepOption, "async")}
}

const (
	maxWaiting = 1024    // runs of one Parking that wait
	maxAnswers = 64      // inputs of one run
	maxAnswer  = 1 << 20 // bytes of the answers to one run
)

// A Parking lets runs of an agent's actions wait for their consumers. The zero value is ready. It is safe for concurrent use.
type Parking struct {
	mu   sync.Mutex
	runs map[string]*parked // by ActionID
}

// A parked run waits for answers.
type parked struct {
	from    string // [did.Principal.ID]
	open    Inputs
	answers Answers
	whole   chan struct{} // closed when all is answered
}

// Call yields what the run of m wants to know, and waits until its consumer has answered all of it, or ctx ends. It is called from
// the loop of Do, which yields; left is that the consumer has left the loop. The answers' content is not checked.
func (p *Parking) Ask(ctx context.Context, m *Message, in Inputs, yield func(*Message, error) bool) (_ Answers, left bool, err error) {
	data, err := json.Marshal(in)
	if err != nil || len(in) == 0 || len(in) > maxAnswers {
		return nil, false, &Error{Code: Internal, Title: "what the action wants to know cannot be said", Err: err, Hint: "see the agent's log"}
	}
	w := &parked{from: m.From.ID(), open: Inputs{}, answers: Answers{}, whole: make(chan struct{})}
	for key, one := range in {
		w.open[key] = one
	}
	r := m.Reply(ActionStatus, JSON, data)
	r.Status = StatusInputRequired
	if r.ActionID, err = p.enter(m.ActionID, w); err != nil {
		return nil, false, err
	}
	defer p.leave(r.ActionID, w)
	if !yield(r, nil) {
		return nil, true, nil
	}
	select {
	case <-w.whole:
		return w.answers, false, nil
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
}

func (p *Parking) enter(id string, w *parked) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.runs) >= maxWaiting {
		return "", Errorf(Overloaded, "try again later", "%d runs wait for their consumers already", maxWaiting)
	}
	if p.runs == nil {
		p.runs = map[string]*parked{}
	}
	if id == "" || p.runs[id] != nil {
		id = rand.Text() // who knows it is the consumer
	}
	p.runs[id] = w
	return id, nil
}

func (p *Parking) leave(id string, w *parked) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.runs[id] == w {
		delete(p.runs, id)
	}
}

// Continue answers ContinueAction. Only who began a run answers it; to another it is as if it were not there.
func (p *Parking) Continue(m *Message) (*Message, error) {
	data, _, err := Transcode(m.Data, m.Media(), JSON)
	var answers Answers
	if err == nil {
		err = json.Unmarshal(data, &answers)
	}
	if err != nil || len(data) > maxAnswer {
		return nil, &Error{Code: Invalid, Title: "the answers cannot be read", Err: err,
			Hint: `send {"key":{"action":"accept","content":{…}}}, for each key that was asked for; at most 1 MiB`}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.runs[m.ActionID]
	if w == nil || w.from != m.From.ID() {
		return nil, Errorf(NoTask, "it may have ended meanwhile: ask for its state", "no run %q waits for an answer", Clip(m.ActionID, 64))
	}
	for key, a := range answers {
		if _, asked := w.open[key]; !asked {
			continue // answered before, or never asked
		}
		if a.Action != Accept && a.Action != Decline && a.Action != Dismiss {
			return nil, Errorf(Invalid, `"action" is accept, decline or cancel`, "the answer %q does nothing", Clip(key, 64))
		}
		delete(w.open, key)
		w.answers[key] = a
	}
	if len(w.open) == 0 {
		delete(p.runs, m.ActionID)
		close(w.whole)
	}
	return m.Reply(Acknowledgement, "", nil), nil
}
