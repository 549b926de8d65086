package interop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"sync"
	"testing"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interop/testmesh"
)

const (
	stepTimeout    = time.Minute      // the timeout of a step
	refusalTimeout = 10 * time.Second // in which a refusal arrives
)

// A consumer sends messages to a Thing in the form of its protocol, and reads the replies in that form. A message that the protocol does
// not have returns [errNot].
type consumer struct {
	interact.Thing
	hangUp func()
}

// errNot means that the protocol does not have a message.
var errNot = errors.New("not in that protocol")

// A consumerBinding is a protocol of consumers.
type consumerBinding struct {
	name string
	open func(t *testing.T, m *testmesh.Mesh, thing string) *consumer
}

var consumerBindings = []consumerBinding{
	{"Go, CLI", openGo},
	{"HTTP", openHTTP},
	{"HTTP SSE", openSSE},
	{"HTTP long poll", openLongPoll},
	{"HTTP webhook", openWebhook},
	{"ws doc", func(t *testing.T, m *testmesh.Mesh, thing string) *consumer { return openSocket(t, m, thing, doc) }},
	{"ws kotlin", func(t *testing.T, m *testmesh.Mesh, thing string) *consumer { return openSocket(t, m, thing, kotlin) }},
	{"ws wtp", func(t *testing.T, m *testmesh.Mesh, thing string) *consumer { return openSocket(t, m, thing, wtp) }},
	{"MQTT", openMQTT},
	{"CoAP", openCoAP},
}

// openGo sends messages to the mesh of the node, like a Go program or `lmosd call`.
func openGo(_ *testing.T, m *testmesh.Mesh, thing string) *consumer {
	do := func(ctx context.Context, of *interact.Message) iter.Seq2[*interact.Message, error] {
		asked := *of
		asked.Thing, asked.Accept = thing, ""
		return testmesh.InProcess(m.Consumer).Do(ctx, &asked)
	}
	return &consumer{interact.Func(do), func() {}}
}

// inParts is the media type of a consumer that accepts partial outputs: JSON values on one line each. Protocols with another form use that.
const inParts = "application/x-ndjson"

// A speech sends m over a wire. It calls tell for each reply; when that returns false it cancels, and returns.
type speech func(ctx context.Context, m *interact.Message, tell func(*interact.Message) bool) error

// A speaker is a Thing of a speech. A failed cancellation fails the test.
type speaker struct {
	t   *testing.T
	say speech
}

// Do implements [interact.Thing].
func (s speaker) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		there := true
		err := s.say(ctx, m, func(r *interact.Message) bool {
			there = there && yield(r, nil)
			return there
		})
		switch {
		case there && err != nil:
			yield(nil, err)
		case err != nil:
			s.t.Errorf("the end of %s: %v", m.Type.Op(), err)
		}
	}
}

// kindOf returns the kind of the affordance of m in paths and topics.
func kindOf(t interact.Type) string {
	switch t {
	case interact.InvokeAction, interact.QueryAction, interact.CancelAction, interact.QueryAllActions:
		return "actions"
	case interact.SubscribeEvent, interact.SubscribeAllEvents:
		return "events"
	}
	return "properties"
}

// stateIn reads a state of an action, as the WoT Profile and the Web Thing Protocol write it. A failure is an error.
func stateIn(m *interact.Message, raw []byte) (*interact.Message, error) {
	var s struct {
		ActionID, Href, State, Status string
		Output, Error                 json.RawMessage
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, fmt.Errorf("%w: %s", err, raw)
	}
	r := m.Reply(interact.ActionStatus, "", s.Output)
	if r.Status = interact.StatusOf(s.State + s.Status); r.Status == interact.StatusFailed && m.Type == interact.InvokeAction {
		return nil, fmt.Errorf("%s", s.Error)
	}
	if id := s.ActionID + s.Href; id != "" {
		r.ActionID = id
	}
	return r, nil
}

// completed is the last state of an action.
func completed(m *interact.Message, media string, data []byte) *interact.Message {
	r := m.Reply(interact.ActionStatus, media, data)
	r.Status = interact.StatusCompleted
	return r
}

// A board distributes the messages of one connection to all its readers.
type board[T any] struct {
	mu      sync.Mutex
	readers map[chan T]bool // owned by mu
}

// read returns a channel with all later messages, until leave is called.
func (b *board[T]) read() (came chan T, leave func()) {
	came = make(chan T, 1000)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.readers == nil {
		b.readers = map[chan T]bool{}
	}
	b.readers[came] = true
	return came, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.readers, came)
	}
}

// put distributes v. It does not wait for slow readers.
func (b *board[T]) put(v T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for came := range b.readers {
		select {
		case came <- v:
		default:
		}
	}
}

// next waits for a message.
func next[T any](ctx context.Context, came <-chan T) (T, error) {
	select {
	case v := <-came:
		return v, nil
	case <-ctx.Done():
		var none T
		return none, fmt.Errorf("nothing came: %w", ctx.Err())
	}
}
