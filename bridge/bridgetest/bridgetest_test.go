package bridgetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/testmain"
	"github.com/lmosd/lmosd/td"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// limit is the size limit of the bridge of this test.
const limit = 2 << 20

// A plain bridge has no wire protocol: its agents and clients are in this process. It has at most one fault.
type plain struct {
	fault string
	done  chan struct{} // closed at the end of the test

	mu     sync.Mutex
	agents map[string]interact.Thing // by target
	served map[string]*plainHandler  // by the number that it serves
}

// Name implements [bridge.Bridge].
func (p *plain) Name() string { return "plain" }

func (p *plain) at(target string) interact.Thing {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.agents[target]
}

// Import implements [bridge.Bridge].
func (p *plain) Import(_ context.Context, target string, o bridge.Import) (*bridge.Agent, error) {
	if p.at(target) == nil {
		return nil, interact.Errorf(interact.Usage, "plain:agent-1", "unknown target %q", target)
	}
	if p.fault == "leaks" {
		go func() { <-p.done }()
	}
	actions := map[string]any{}
	for name, input := range Acts {
		actions[name] = fields{"synchronous": true, "input": input}
	}
	gone, stop := context.WithCancel(context.Background())
	var work sync.WaitGroup
	draft := encoded(fields{"title": o.Name, "actions": actions, "@context": []any{td.Context10, td.Context11, fields{"lmos": td.ContextLMOS}},
		"lmos:capabilities": []any{fields{"id": o.Capabilities[0], "name": "c"}}})
	thing := interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			work.Add(1)
			defer work.Done()
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			defer context.AfterFunc(gone, cancel)()
			if gone.Err() != nil {
				cancel()
			}
			p.ask(ctx, p.at(target), m)(yield)
		}
	})
	return &bridge.Agent{TD: draft, Thing: thing, Close: func() { stop(); work.Wait() }}, nil
}

// ask calls an agent, with the fault.
func (p *plain) ask(ctx context.Context, agent interact.Thing, m *interact.Message) iter.Seq2[*interact.Message, error] {
	switch {
	case agent == nil || ctx.Err() != nil:
		return interact.Fail(interact.Errorf(interact.Unreachable, "wait", "the agent is unreachable"))
	case m.Type != interact.InvokeAction && m.Type != interact.ContinueAction || m.Type == interact.InvokeAction && Acts[m.Name] == nil:
		return interact.Fail(interact.Errorf(interact.NotAllowed, "call its actions", "unsupported operation"))
	case len(m.Data) > limit:
		return interact.Fail(interact.Errorf(interact.TooLarge, "send less", "the input is too large"))
	case p.fault == "goes on" && m.Name == Slow:
		ctx = context.WithoutCancel(ctx)
	}
	if !m.Deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, m.Deadline)
		context.AfterFunc(ctx, cancel)
	}
	return func(yield func(*interact.Message, error) bool) {
		for r, err := range agent.Do(ctx, m) {
			switch {
			case err != nil:
				e := *interact.AsError(err)
				if e.Remote = true; p.fault == "gives no hint" {
					e.Hint = ""
				}
				r, err = nil, &e
			case len(r.Data) > limit:
				r, err = nil, interact.Errorf(interact.TooLarge, "ask for less", "the output is too large")
			case p.fault == "loses parts" && string(r.Data) == step(3):
				continue
			}
			if !yield(r, err) || err != nil {
				return
			}
		}
	}
}

// start starts an agent.
func (p *plain) start(_ testing.TB, s *Script) *Foreign {
	p.mu.Lock()
	defer p.mu.Unlock()
	target := fmt.Sprint("agent-", len(p.agents))
	gone, stop := context.WithCancel(context.Background())
	agent := &stage{Script: s}
	p.agents[target] = interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			defer context.AfterFunc(gone, cancel)()
			agent.Do(ctx, m)(func(r *interact.Message, err error) bool {
				if gone.Err() != nil {
					err = interact.Errorf(interact.Unreachable, "wait", "the agent has stopped")
				}
				return yield(r, err)
			})
		}
	})
	return &Foreign{Target: target, Stop: func() {
		stop()
		p.mu.Lock()
		defer p.mu.Unlock()
		p.agents[target] = nil
	}}
}

// A plainHandler serves its number over HTTP, and calls of clients in this process.
type plainHandler struct {
	*plain
	mesh   bridge.Mesh
	number string
	gone   context.Context
	stop   context.CancelFunc
}

// Export implements [bridge.Bridge].
func (p *plain) Export(m bridge.Mesh) bridge.Handler {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := &plainHandler{plain: p, mesh: m, number: fmt.Sprint(len(p.served))}
	h.gone, h.stop = context.WithCancel(context.Background())
	p.served[h.number] = h
	return h
}

func (h *plainHandler) Paths() []string                                  { return []string{"/plain"} }
func (h *plainHandler) ServeHTTP(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, h.number) }
func (h *plainHandler) Close()                                           { h.stop() }

// A plainClient calls a Thing of a handler.
type plainClient struct {
	*plainHandler
	name string
}

func (p *plain) connect(t testing.TB, url, name string) Client {
	r, err := http.Get(url + "/plain")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	number, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	p.mu.Lock()
	defer p.mu.Unlock()
	return &plainClient{p.served[string(number)], name}
}

func (c *plainClient) Changed() <-chan struct{} { return nil }

func (c *plainClient) Names(ctx context.Context) ([]string, error) {
	d, err := c.mesh.Get(ctx, c.name)
	if err != nil {
		return nil, err
	}
	return slices.Collect(maps.Keys(d.Thing.Actions)), nil
}

func (c *plainClient) Call(ctx context.Context, call Call) (out string, err error) {
	fail := func(err error) error {
		e := interact.AsError(err)
		return &Failure{e.Code.String(), e.Error() + " " + e.Hint}
	}
	defer func() {
		if p := recover(); p != nil {
			err = fail(interact.Errorf(interact.Internal, "see the log", "it panics"))
		}
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.gone, cancel)()
	if len(call.Input) > limit || c.gone.Err() != nil {
		return "", fail(interact.Errorf(interact.TooLarge, "send less", "it is too large"))
	}
	m := &interact.Message{Type: interact.InvokeAction, Thing: c.name, Name: call.Name, Data: call.Input}
	if len(m.Data) == 0 {
		m.Data = []byte("{}")
	}
	thing := interact.Thing(c.mesh)
	if c.fault == "knows no policy" {
		thing = interact.Router(c.mesh.(*Mesh).Directory)
	}
	for r, err := range thing.Do(ctx, m) {
		if err != nil {
			return "", fail(err)
		}
		if r.Status == interact.StatusRunning && len(r.Data) > 0 && call.OnProgress != nil {
			call.OnProgress(string(r.Data))
		}
		if out += text(r); len(out) > limit {
			return "", fail(interact.Errorf(interact.TooLarge, "ask for less", "it is too large"))
		}
	}
	return out, nil
}

// newKit is a kit whose bridge has a fault.
func newKit(t *testing.T, fault string) *Kit {
	p := &plain{fault: fault, done: make(chan struct{}), agents: map[string]interact.Thing{}, served: map[string]*plainHandler{}}
	t.Cleanup(func() { close(p.done) })
	k := &Kit{Bridge: func(testing.TB) bridge.Bridge { return p }, Start: p.start, Connect: p.connect, Limit: limit, Nonsense: []string{"", "nobody"},
		Kinds: map[interact.Code]string{},
		Lacks: map[Part]string{Inputs: "no input", Changes: "no changes", Notifications: "no notifications", Backpressure: "no buffer in between"}}
	for _, c := range interact.Codes() {
		k.Kinds[c] = c.String()
	}
	return k
}

// A recorder records failures of a test without failing it.
type recorder struct {
	testing.TB
	ctx context.Context

	mu       sync.Mutex
	failures []string
	cleanups []func()
}

func (r *recorder) Context() context.Context { return r.ctx }

func (r *recorder) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, f)
}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func (r *recorder) Error(args ...any) { r.Errorf("%s", fmt.Sprintln(args...)) }

func (r *recorder) Fatal(args ...any) {
	r.Error(args...)
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

// runRule checks a rule of a kit, and returns the failures.
func runRule(t *testing.T, r rule, k *Kit, within time.Duration) []string {
	rec := &recorder{TB: t, ctx: t.Context()}
	done := make(chan struct{})
	go func() { // which Fatal ends
		defer close(done)
		defer func() {
			for _, f := range slices.Backward(rec.cleanups) {
				f()
			}
		}()
		r.run(rec, k, within)
	}()
	<-done
	return rec.failures
}

// A bridge without a fault passes.
func TestRun(t *testing.T) { Run(t, *newKit(t, "")) }

// The suite can fail: each fault of a bridge breaks its rule.
func TestFaults(t *testing.T) {
	for fault, breaks := range map[string]struct{ rule, says string }{
		"goes on":         {"import, cancel:", "does not end"},
		"loses parts":     {"import, stream: all partial", step(3)},
		"gives no hint":   {"import, errors: a failure", "want one"},
		"knows no policy": {"export, policy:", "want a failure"},
		"leaks":           {"import: the draft", "goroutines are left"},
	} {
		found := false
		for _, r := range rules() {
			if !strings.HasPrefix(r.name, breaks.rule) {
				continue
			}
			found = true
			if says := runRule(t, r, newKit(t, ""), ruleTimeout); len(says) > 0 {
				t.Errorf("%q: a good bridge fails: %q", r.name, says)
			}
			if says := strings.Join(runRule(t, r, newKit(t, fault), time.Second), "\n"); !strings.Contains(says, breaks.says) {
				t.Errorf("%q: a bridge that %s has the failures %q, want %q in them", r.name, fault, says, breaks.says)
			}
		}
		if !found {
			t.Errorf("no rule %q", breaks.rule)
		}
	}
}

// Each part that a kit lacks has a reason, and a rule fails at its time limit.
func TestLacksAndTimeouts(t *testing.T) {
	k := newKit(t, "")
	for _, r := range rules() {
		for _, p := range r.needs {
			if why := k.lacks(r); (why == "") == (k.Lacks[p] != "") && len(r.needs) == 1 {
				t.Errorf("%q needs %s, and is left out because %q", r.name, p, why)
			}
		}
	}
	hangs := rule{name: "hangs", check: func(b *fixture) { b.waitFor("nothing", make(chan struct{})) }}
	if says := runRule(t, hangs, k, time.Millisecond); len(says) != 1 || !strings.Contains(says[0], "timed out waiting") {
		t.Errorf("what does not end says %q", says)
	}
	if f := (*Failure)(nil); !errors.As(fmt.Errorf("x: %w", &Failure{"k", "t"}), &f) || f.Error() != "k: t" {
		t.Errorf("a failure is %v", f)
	}
}
