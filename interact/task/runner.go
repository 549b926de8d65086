package task

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"iter"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/heartbeat"
	"github.com/lmosd/lmosd/td"
)

// Options are the settings of a [Runner]. The zero value works.
type Options struct {
	// Keep is how long an ended task is kept; 0 means 10 min. A longer time needs more memory.
	Keep time.Duration
	// MaxRun limits the run time of a task; a longer one is cancelled and fails with Timeout. 0 means 1 h.
	MaxRun time.Duration
	// Bound returns the limit of the run time of a message, if below MaxRun, and its configuration key; 0 means MaxRun. Nil means
	// no such limits.
	Bound func(m *interact.Message) (most time.Duration, key string)
	// MaxTasks limits the tasks, running and retained; 0 means 1000. At the limit, a new task replaces the oldest ended task of the
	// consumer with the most tasks. If all run, the new task is refused.
	MaxTasks int
	// MaxPerCaller limits the running tasks of one consumer; 0 means 100. All callers of this machine are one consumer.
	MaxPerCaller int
	// MaxOutput limits the bytes of input and output of all tasks; 0 means 64 MiB. One consumer may have half of it. Tasks that ended first
	// are removed first. An output without room goes to the consumers that wait for it; later queries get TooLarge.
	MaxOutput int64
	// Log may be nil.
	Log *slog.Logger
}

func (o Options) withDefaults() Options {
	o.Keep = cmp.Or(max(o.Keep, 0), 10*time.Minute)
	o.MaxRun = cmp.Or(max(o.MaxRun, 0), time.Hour)
	o.MaxTasks = cmp.Or(max(o.MaxTasks, 0), 1000)
	o.MaxPerCaller = cmp.Or(max(o.MaxPerCaller, 0), 100)
	o.MaxOutput = cmp.Or(max(o.MaxOutput, 0), 64<<20)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return o
}

// A Runner runs the tasks of all agents of a node. It is safe for concurrent use.
type Runner struct {
	o    Options
	ctx  context.Context // of all tasks
	stop context.CancelCauseFunc
	work sync.WaitGroup // running tasks

	// mu guards the fields below, and those of tasks and callers that are marked.
	mu       sync.Mutex
	tasks    map[string]*task    // by id
	keys     map[key]*task       // by idempotency key
	accounts map[string]*account // by [did.Principal.Base]
	ended    list.List           // of *task, in order of their end
	held     int64               // bytes of input and output
	closed   bool                // rejects new tasks
}

// Causes of the cancellation of a task.
var (
	errCancelled = errors.New("a consumer cancelled it")
	errLeft      = errors.New("its consumer left")
	errTooLong   = errors.New("it ran too long")
	errBarred    = errors.New("its consumer lost the right")
	errLentOver  = errors.New("the delegation of its consumer ended")
	errClosed    = errors.New("the host is shutting down")
)

// New returns a runner. The caller must close it.
func New(o Options) *Runner {
	r := &Runner{o: o.withDefaults(), tasks: map[string]*task{}, keys: map[key]*task{}, accounts: map[string]*account{}}
	r.ctx, r.stop = context.WithCancelCause(context.Background())
	return r
}

// Middleware returns the middleware of the agent with the description d, at its host. It handles:
//
//   - InvokeAction with Detach, and of actions whose synchronous is false (TD 1.1 §5.3.1.4): the first state is pending and has
//     the ActionID; the action continues after the loop is left. MaxRun limits its run time; the deadline of the message only
//     limits how long the consumer follows. A consumer that reads nothing for 10 s while the agent has more replies is
//     disconnected with Overloaded, so that it does not delay the task.
//   - InvokeAction with a Key: if the consumer has started the same action with the same key, it follows that run, from pending to
//     the end. States in between are not repeated: after the first part of an output, the last state has the whole output. Another
//     input with the same key is Invalid. Without Detach, the run is cancelled when its last consumer has left. A run that the
//     agent certainly did not start releases its key.
//   - ContinueAction of a run that waits for input: the agent gets the answers with its own id of the run.
//   - QueryAction, CancelAction and QueryAllActions, for the tasks of the same consumer (From).
//
// A request stream (Chunks) is read while its consumer is connected; if the consumer leaves before its end, the agent gets an error
// instead. Without Detach, and if synchronous is not false, such a message passes, with or without a key. The data of messages is
// stored without a copy.
func (r *Runner) Middleware(d *td.Thing) interact.Middleware {
	return func(agent interact.Thing) interact.Thing { return &host{r, d, agent} }
}

// A host is an agent whose long actions are tasks.
type host struct {
	*Runner
	desc  *td.Thing
	agent interact.Thing
}

// Do implements [interact.Thing]. Messages that pass cost no allocation.
func (h *host) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	switch m.Type {
	case interact.InvokeAction:
		if d := h.detached(m); d || m.Key != "" && m.Chunks == nil {
			return h.invoke(ctx, m, d)
		}
	case interact.QueryAction:
		return interact.Unary(h.query).Do(ctx, m)
	case interact.CancelAction:
		return interact.Unary(h.cancel).Do(ctx, m)
	case interact.ContinueAction:
		return interact.Unary(h.resume).Do(ctx, m)
	case interact.QueryAllActions:
		return interact.Unary(h.list).Do(ctx, m)
	}
	return h.agent.Do(ctx, m)
}

// detached reports whether the action continues after its consumer has left.
func (h *host) detached(m *interact.Message) bool {
	if m.Detach {
		return true
	}
	a := h.desc.Actions[m.Name]
	return a != nil && a.Synchronous != nil && !*a.Synchronous
}

// Run drops old tasks until ctx ends, and returns its error. Without it, ended tasks stay until there is no room.
func (r *Runner) Run(ctx context.Context) error {
	every := min(max(r.o.Keep/8, time.Second), time.Minute)
	tick := time.NewTicker(every)
	defer tick.Stop()
	loop := heartbeat.StartVital(ctx, "tasks", every)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case now := <-tick.C:
			r.sweep(now)
			loop.Beat()
		}
	}
}

// Drain rejects new tasks with ShuttingDown, and waits until none runs or ctx ends. Existing tasks can be queried.
func (r *Runner) Drain(ctx context.Context) {
	for {
		t := r.refuse()
		if t == nil {
			return
		}
		select {
		case <-t.done:
		case <-ctx.Done():
			return
		}
	}
}

// refuse rejects new tasks, and returns a running one.
func (r *Runner) refuse() *task {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for _, t := range r.tasks {
		if !t.state.Final() {
			return t
		}
	}
	return nil
}

// States returns the numbers of tasks by state.
func (r *Runner) States() map[interact.Status]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := map[interact.Status]int{}
	for _, t := range r.tasks {
		n[t.state]++
	}
	return n
}

// CancelOf cancels the running tasks of a node and its consumers.
func (r *Runner) CancelOf(node did.DID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.tasks {
		if !t.state.Final() && (t.ownerID == string(node) || strings.HasPrefix(t.ownerID, string(node)+"#")) {
			t.cancel(errBarred)
		}
	}
}

// CancelLent cancels the running tasks that a delegation permitted, which link names ([did.Lent]).
func (r *Runner) CancelLent(link string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.tasks {
		if !t.state.Final() && t.m.From.Lent != nil && t.m.From.Lent.Link == link { // a final task has no message
			t.cancel(errLentOver)
		}
	}
}

// Close cancels all running tasks and waits for them. Their consumers get ShuttingDown.
func (r *Runner) Close() {
	r.refuse()
	r.stop(errClosed)
	r.work.Wait()
}

// Count returns the numbers of running and of kept tasks.
func (r *Runner) Count() (running, kept int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.tasks) - r.ended.Len(), r.ended.Len()
}
