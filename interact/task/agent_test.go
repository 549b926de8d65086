package task

import (
	"context"
	"errors"
	"iter"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

const (
	alice = did.DID("did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH")
	bob   = did.DID("did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp")
)

// oven is a thing with an action of each kind.
func oven() *td.Thing {
	no, yes := false, true
	return &td.Thing{ID: "urn:oven", Title: "Oven", Actions: map[string]*td.Action{
		"bake":  {Synchronous: &no},
		"knock": {Synchronous: &yes},
		"hum":   {},
	}}
}

// An agent is controlled by a test: each run executes steps from its channel until it is closed.
type agent struct {
	mu    sync.Mutex
	runs  []*run
	eager interact.Func // executes the next runs, if set
}

// A run is one asking of the agent.
type run struct {
	m     *interact.Message
	steps chan step
	ctx   context.Context
	ended chan struct{}
}

// A step is a reply or an error.
type step struct {
	reply *interact.Message
	err   error
}

func (a *agent) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	a.mu.Lock()
	r := &run{m: m, steps: make(chan step), ctx: ctx, ended: make(chan struct{})}
	a.runs = append(a.runs, r)
	eager := a.eager
	a.mu.Unlock()
	if eager != nil {
		close(r.ended)
		return eager(ctx, m)
	}
	return func(yield func(*interact.Message, error) bool) {
		defer close(r.ended)
		for {
			select {
			case s, ok := <-r.steps:
				if !ok || !yield(s.reply, s.err) || s.err != nil {
					return
				}
			case <-ctx.Done():
				yield(nil, ctx.Err())
				return
			}
		}
	}
}

func (a *agent) last() *run {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.runs[len(a.runs)-1]
}

func (a *agent) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.runs)
}

// say makes the run yield a state.
func (r *run) say(status interact.Status, media, data string) {
	m := r.m.Reply(interact.ActionStatus, media, nil)
	if data != "" {
		m.Data = []byte(data)
	}
	m.Status, m.ActionID = status, "the agent's own"
	r.steps <- step{reply: m}
	synctest.Wait()
}

func (r *run) fail(err error) {
	r.steps <- step{err: err}
	synctest.Wait()
}

func (r *run) complete(data string) { r.say(interact.StatusCompleted, "", data) }

func (r *run) over() bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}

// completes is an agent that completes immediately with its input as output.
func completes(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	r := m.Reply(interact.ActionStatus, m.ContentType, m.Data)
	r.Status = interact.StatusCompleted
	return interact.One(r)
}

// A caller follows an action in a goroutine.
type caller struct {
	mu   sync.Mutex
	got  []*interact.Message
	err  error
	stop context.CancelFunc
	hold chan struct{} // if set, it takes a reply for each element
	done chan struct{}
}

type change = func(*interact.Message)

func from(id did.DID) change { return func(m *interact.Message) { m.From = who(id) } }

// who returns the principal of a node, or of this machine.
func who(node did.DID) *did.Principal {
	if node == "" {
		return did.Consumer(did.Loopback, "")
	}
	return did.NodePrincipal(node, "")
}

func named(action string) change   { return func(m *interact.Message) { m.Name = action } }
func keyed(word string) change     { return func(m *interact.Message) { m.Key = word } }
func input(data string) change     { return func(m *interact.Message) { m.Data = []byte(data) } }
func id(id string) change          { return func(m *interact.Message) { m.ActionID = id } }
func detached(m *interact.Message) { m.Detach = true }

// message is one of type typ to the oven, of alice.
func message(typ interact.Type, changes ...change) *interact.Message {
	m := &interact.Message{Type: typ, Thing: "urn:oven", Name: "hum", From: who(alice), ID: "m"}
	for _, c := range changes {
		c(m)
	}
	return m
}

// begin invokes an action in a bubble, and returns when nothing moves.
func begin(t *testing.T, thing interact.Thing, changes ...change) *caller {
	c := &caller{done: make(chan struct{})}
	c.start(t, thing, message(interact.InvokeAction, changes...))
	return c
}

func (c *caller) start(t *testing.T, thing interact.Thing, m *interact.Message) {
	ctx, stop := context.WithCancel(t.Context())
	c.stop = stop
	go func() {
		defer close(c.done)
		for r, err := range thing.Do(ctx, m) {
			c.mu.Lock()
			if c.err = err; err == nil {
				c.got = append(c.got, r)
			}
			c.mu.Unlock()
			if c.hold != nil {
				<-c.hold
			}
		}
	}()
	synctest.Wait()
}

func (c *caller) leave() {
	c.stop()
	<-c.done
	synctest.Wait()
}

// states returns the received states, as "pending running:data completed:data", and the code of the error.
func (c *caller) states() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	text := ""
	for i, r := range c.got {
		if i > 0 {
			text += " "
		}
		text += r.Status.String()
		if len(r.Data) > 0 {
			text += ":" + string(r.Data)
		}
	}
	if c.err != nil {
		text += " " + codeOf(c.err)
	}
	return text
}

func (c *caller) id() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.got[0].ActionID
}

func codeOf(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, context.Canceled):
		return "left"
	}
	return interact.AsError(err).Code.Slug()
}

// ask requests one reply.
func ask(t *testing.T, thing interact.Thing, typ interact.Type, changes ...change) (*interact.Message, error) {
	return interact.Call(t.Context(), thing, message(typ, changes...))
}

// queried returns the state as states does.
func queried(t *testing.T, thing interact.Thing, changes ...change) string {
	r, err := ask(t, thing, interact.QueryAction, changes...)
	return (&caller{got: row(r), err: err}).states()
}

func row(r *interact.Message) []*interact.Message {
	if r == nil {
		return nil
	}
	return []*interact.Message{r}
}

// bubble runs test with a runner in a bubble, and fails if it leaves anything running.
func bubble(t *testing.T, o Options, test func(t *testing.T, r *Runner, a *agent, thing interact.Thing)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, a := New(o), &agent{}
		ctx, stop := context.WithCancel(context.Background())
		ran := make(chan error)
		go func() { ran <- r.Run(ctx) }()
		test(t, r, a, interact.Chain(a, r.Middleware(oven())))
		stop()
		if err := <-ran; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
		r.Close()
		for i, one := range a.runs {
			if !one.over() {
				t.Errorf("run %d continues after Close", i)
			}
		}
		r.audit(t)
	})
}

// audit checks the books.
func (r *Runner) audit(t *testing.T) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	var held int64
	n := 0
	for id, c := range r.accounts {
		var running int
		var has, kept int64
		for _, t := range c.tasks {
			has += t.held
			if t.state.Final() {
				kept += t.held
			} else {
				running++
			}
		}
		if len(c.tasks) == 0 || running != c.running || has != c.held || kept != c.kept {
			t.Errorf("%s: %d tasks, %d of %d run, %d of %d bytes, %d of %d kept", id, len(c.tasks), running, c.running, has, c.held,
				kept, c.kept)
		}
		held += has
		n += len(c.tasks)
	}
	if held != r.held || n != len(r.tasks) || len(r.keys) > n || r.ended.Len() > n {
		t.Errorf("%d of %d bytes, %d of %d tasks, %d keys, %d ended", held, r.held, n, len(r.tasks), len(r.keys), r.ended.Len())
	}
	if held > r.o.MaxOutput || n > r.o.MaxTasks {
		t.Errorf("%d bytes and %d tasks pass the limits", held, n)
	}
}

func want(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}
