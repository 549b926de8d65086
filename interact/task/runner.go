// Package task runs long-running actions as tasks that continue when their consumer disconnects.
//
// A [Runner] is a layer in front of the agents of a node. An action that is called with Detach or with a Key, or that the description
// declares asynchronous, becomes a task (task.go, watch.go). A task has an unguessable id, runs in a goroutine of the runner, and its result
// is retained for a time (retention.go, output.go). Its caller can query, cancel, continue and list it (answer.go); other callers cannot
// see it. Other messages pass unchanged.
//
// A [Ledger] is at the other end: it stores the tasks that consumers of this node started at other nodes, over restarts too (ledger.go).
//
// Sources: WoT Profile, HTTP Basic, "asynchronous actions"; Web Thing Protocol, "queryaction", "cancelaction",
// "queryallactions"; LMOS WebSocket subprotocol, "actionStatus".
package task

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// Options are the settings of a [Runner]. The zero value works.
type Options struct {
	// Keep is how long a task is retained after its end; 0 means 10 min.
	Keep time.Duration
	// MaxRun is the maximum duration of a task, which then fails with Timeout; 0 means 1 h.
	MaxRun time.Duration
	// Bound returns a shorter maximum duration for the task of a message, with its configuration key; 0 means MaxRun. It may be nil.
	Bound func(m *interact.Message) (most time.Duration, key string)
	// MaxTasks limits the tasks, running and retained; 0 means 1000. At the limit, a new task replaces the oldest ended task of the
	// consumer with the most tasks. If all run, the new task is refused.
	MaxTasks int
	// MaxPerConsumer limits the running tasks of one consumer; 0 means 100. All callers of this machine are one consumer.
	MaxPerConsumer int
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
	o.MaxPerConsumer = cmp.Or(max(o.MaxPerConsumer, 0), 100)
	o.MaxOutput = cmp.Or(max(o.MaxOutput, 0), 64<<20)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return o
}

// A Runner runs tasks. One runner serves all agents of a node. It is safe for concurrent use.
type Runner struct {
	o    Options
	ctx  context.Context // of all that runs
	stop context.CancelCauseFunc
	work sync.WaitGroup // an element per task that runs

	// mu owns what follows, and the fields of tasks and consumers that say so.
	mu        sync.Mutex
	tasks     map[string]*task     // by id
	keys      map[key]*task        // by what makes an invocation repeatable
	consumers map[string]*consumer // by [did.Principal.Base]
	ended     list.List            // of *task, in the order in which they ended
	held      int64                // bytes of input and output
	closed    bool                 // nothing new begins
}

// Causes for which a task is cancelled.
var (
	errAsked   = errors.New("a consumer cancelled it")
	errLeft    = errors.New("its consumer left")
	errTooLong = errors.New("it ran too long")
	errClosed  = errors.New("the host is shutting down")
)

// New returns a runner. Close it when it is done.
func New(o Options) *Runner {
	r := &Runner{o: o.withDefaults(), tasks: map[string]*task{}, keys: map[key]*task{}, consumers: map[string]*consumer{}}
	r.ctx, r.stop = context.WithCancelCause(context.Background())
	return r
}

// Middleware returns what is put around the agent that d describes, at its host. It answers, of the messages that reach it,
//
//   - InvokeAction with Detach, and of actions whose synchronous is false (TD 1.1 §5.3.1.4): the first state is pending and has
//     the ActionID; leaving the loop leaves the action running. The time it has is the runner's MaxRun; the message's deadline
//     is for how long the consumer follows. A consumer that takes nothing for 10 s while the agent has more to say is sent
//     away with Overloaded, so that it does not hold the task up.
//   - InvokeAction with a Key: where the consumer has begun the same action with the same key, it hears of that run: that it is
//     pending, and how it ended. What the run has said between is not said again: whoever comes after the first part of an
//     output gets the whole with the last state. Another input with the same key is Invalid. Without Detach, the run is
//     cancelled when the last consumer that waits for it has left. A run that the agent surely did not begin leaves its key.
//   - ContinueAction of a run that waits for its consumer: the agent gets the answers under the id that it gave the run.
//   - QueryAction, CancelAction, QueryAllActions, each for what the same consumer (From) has begun. See the package comment.
//
// A request stream (Chunks) is read while its consumer is there; if the consumer leaves before its end, the agent gets an error
// in its place. Without Detach and with synchronous not false, such a message passes, key or not. The data of messages is kept,
// not copied.
func (r *Runner) Middleware(d *td.Thing) interact.Middleware {
	return func(agent interact.Thing) interact.Thing { return &host{r, d, agent} }
}

// A host is an agent whose long actions are tasks.
type host struct {
	*Runner
	desc  *td.Thing
	agent interact.Thing
}

// Do implements [interact.Thing]. What passes costs no allocation.
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

// detached reports whether the action goes on when its consumer has left.
func (h *host) detached(m *interact.Message) bool {
	if m.Detach {
		return true
	}
	a := h.desc.Actions[m.Name]
	return a != nil && a.Synchronous != nil && !*a.Synchronous
}

// Run forgets what is old until ctx ends, and returns its error. Tasks need it not to be found or to end: without it, what
// nobody asks for stays in memory until there is no room.
func (r *Runner) Run(ctx context.Context) error {
	tick := time.NewTicker(min(max(r.o.Keep/8, time.Second), time.Minute))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case now := <-tick.C:
			r.sweep(now)
		}
	}
}

// Drain refuses new tasks with ShuttingDown, and waits until none runs or ctx ends. What is there can still be asked for.
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

// refuse lets nothing new begin, and returns a task that runs.
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

// Close cancels what runs, and waits for it. Its consumers hear ShuttingDown.
func (r *Runner) Close() {
	r.refuse()
	r.stop(errClosed)
	r.work.Wait()
}

// Count returns how many tasks run, and how many have ended and are kept.
func (r *Runner) Count() (running, kept int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.tasks) - r.ended.Len(), r.ended.Len()
}
