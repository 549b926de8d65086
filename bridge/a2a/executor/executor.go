// Package executor serves Things as A2A agents: a message invokes an action, and the invocation is an A2A task.
//
// Tasks are stored at the node that serves the client, and outlive its connections. Only the principal that created a task sees it; for
// others it does not exist. Storage is bounded; tasks are dropped a while after they ended.
//
// Things keep no conversations: a context groups tasks of one principal and is not sent to the Thing. Context ids of two principals are
// independent.
//
// Sources: A2A 1.0.1 §3, §4, §7.
package executor

import (
	"cmp"
	"context"
	"encoding/json"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/opaque"
	"github.com/lmosd/lmosd/td"
)

// Options configure an [Executor]. The zero value works.
type Options struct {
	// Keep is the retention of a task after it ended or started to wait for its client; 0 means 1 h.
	Keep time.Duration
	// MaxRun is the time limit of an action; 0 means 1 h.
	MaxRun time.Duration
	// MaxTasks limits the stored tasks; 0 means 2,000. When it is reached, a new task replaces the one that ended first.
	MaxTasks int
	// MaxRunning limits the unfinished tasks of one principal; 0 means 100.
	MaxRunning int
	// MaxBytes limits the size of one task, in bytes; 0 means 16 MiB.
	MaxBytes int
	// MaxTotal limits the size of all tasks, in bytes; 0 means 128 MiB.
	MaxTotal int64
	Log      *slog.Logger
}

// An Executor executes and stores the tasks of one node's A2A clients. It is safe for concurrent use.
type Executor struct {
	o    Options
	ctx  context.Context // of all runs
	stop context.CancelFunc
	work sync.WaitGroup
	// tokens encrypts page tokens.
	tokens *opaque.Sealer

	// mu owns the following fields, and the fields of tasks that refer to it.
	mu     sync.Mutex
	tasks  map[string]*task
	sent   map[sentKey]*task // by the first message
	held   int64             // size of all tasks, in bytes
	closed bool
}

// A sentKey identifies a message: sending it again returns the task that it created (A2A 1.0 §3.1.1, idempotency), unless the principal is
// shared.
type sentKey struct{ principal, thing, message string }

// New returns an Executor, which the caller must close.
func New(o Options) *Executor {
	o.Keep, o.MaxRun = cmp.Or(o.Keep, time.Hour), cmp.Or(o.MaxRun, time.Hour)
	o.MaxTasks, o.MaxRunning = cmp.Or(o.MaxTasks, 2000), cmp.Or(o.MaxRunning, 100)
	o.MaxBytes, o.MaxTotal = cmp.Or(o.MaxBytes, 16<<20), cmp.Or(o.MaxTotal, 128<<20)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	x := &Executor{o: o, tasks: map[string]*task{}, sent: map[sentKey]*task{}, tokens: opaque.New("")}
	x.ctx, x.stop = context.WithCancel(context.Background())
	return x
}

// Close cancels all runs, and waits for them.
func (x *Executor) Close() {
	x.mu.Lock()
	x.closed = true
	x.mu.Unlock()
	x.stop()
	x.work.Wait()
}

// An Agent is a Thing served as an agent.
type Agent struct {
	// Ref is its reference in messages.
	Ref  string
	Desc *td.Thing
	// Thing handles the messages.
	Thing interact.Thing
	// From is the caller.
	From *did.Principal
}

// Agent returns the agent of s for a principal.
func (x *Executor) Agent(s Agent, principal string) protocol.Agent {
	return &agent{x, s, principal}
}

type agent struct {
	*Executor
	thing     Agent
	principal string
}

// isShared reports whether the principal stands for callers that are not one person: a task of theirs is found by its id only.
func (a *agent) isShared() bool { return a.thing.From.Anonymous() && a.principal == a.thing.From.ID() }

// Do implements [protocol.Agent].
func (a *agent) Do(ctx context.Context, op *protocol.Operation) iter.Seq2[json.RawMessage, error] {
	switch op.Method {
	case protocol.SendMessage:
		return protocol.Once(a.send(ctx, op))
	case protocol.SendStreamingMessage:
		return a.stream(ctx, op)
	case protocol.GetTask:
		return protocol.Once(a.get(op))
	case protocol.ListTasks:
		return protocol.Once(a.list(op))
	case protocol.CancelTask:
		return protocol.Once(a.cancel(ctx, op))
	case protocol.SubscribeToTask:
		return a.subscribe(ctx, op)
	case protocol.ExtendedCard:
		return protocol.Once(nil, protocol.Errorf(protocol.UnsupportedOperation, "the agent has no extended card"))
	case protocol.CreatePush, protocol.GetPush, protocol.ListPush, protocol.DeletePush:
		return protocol.Once(nil, protocol.Errorf(protocol.PushNotSupported, "the agent does not support push notifications"))
	}
	return protocol.Once(nil, protocol.Errorf(protocol.UnknownMethod, "A2A has no method %q", op.Method))
}

// send waits until the task ends or requires input, unless returnImmediately is set (A2A 1.0 §3.1.1).
func (a *agent) send(ctx context.Context, op *protocol.Operation) (json.RawMessage, error) {
	t, p, err := a.accept(op, func(*task, *protocol.Send) {})
	if err != nil {
		return nil, err
	}
	s := a.follow(t)
	defer a.removeReader(t, s)
	for !p.Configuration.Immediately && !a.settled(t) {
		if _, err := s.next(ctx); err != nil {
			break // the task has ended, or the client has disconnected
		}
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return protocol.Encode(protocol.StreamResponse{Task: a.snapshot(t, p.Configuration.HistoryLength)}), nil
}

// stream yields the task and then its events, until it ends or requires input. It continues while authentication is required (A2A 1.0
// §7.6.1).
func (a *agent) stream(ctx context.Context, op *protocol.Operation) iter.Seq2[json.RawMessage, error] {
	return func(yield func(json.RawMessage, error) bool) {
		var s *reader
		var first *protocol.Task
		t, p, err := a.accept(op, func(t *task, p *protocol.Send) {
			s, first = a.followLocked(t), t.viewLocked(p.Configuration.HistoryLength, true)
		})
		if err != nil {
			yield(nil, err)
			return
		}
		if s == nil { // a continued task
			s, first = a.followWith(t, p.Configuration.HistoryLength)
		}
		a.sendEvents(ctx, t, s, first, func(s protocol.State) bool { return s == protocol.InputRequired }, yield)
	}
}

// subscribe yields the task and then its events until it ends.
func (a *agent) subscribe(ctx context.Context, op *protocol.Operation) iter.Seq2[json.RawMessage, error] {
	return func(yield func(json.RawMessage, error) bool) {
		var p protocol.Get
		if e := protocol.Read(op.Params, &p); e != nil {
			yield(nil, e)
			return
		}
		t, err := a.find(p.ID)
		if err == nil && a.ended(t) {
			err = protocol.Errorf(protocol.UnsupportedOperation, "the task has ended: use GetTask")
		}
		if err != nil {
			yield(nil, err)
			return
		}
		s, first := a.followWith(t, nil)
		a.sendEvents(ctx, t, s, first, func(protocol.State) bool { return false }, yield)
	}
}

// sendEvents yields first, the task when s was created, and the events of s, until the task ends or reaches a state for which leaves returns
// true. It removes s.
func (a *agent) sendEvents(ctx context.Context, t *task, s *reader, first *protocol.Task, leaves func(protocol.State) bool,
	yield func(json.RawMessage, error) bool) {
	defer a.removeReader(t, s)
	if !yield(protocol.Encode(protocol.StreamResponse{Task: first}), nil) || first.Status.State.Terminal() || leaves(first.Status.State) {
		return
	}
	for {
		e, err := s.next(ctx)
		if err == errEnded {
			return
		}
		if err != nil {
			yield(nil, err)
			return
		}
		if !yield(e.text, nil) || e.state.Terminal() || leaves(e.state) {
			return
		}
	}
}

func (a *agent) get(op *protocol.Operation) (json.RawMessage, error) {
	var p protocol.Get
	if e := protocol.Read(op.Params, &p); e != nil {
		return nil, e
	}
	if p.HistoryLength != nil && *p.HistoryLength < 0 {
		return nil, protocol.Errorf(protocol.InvalidParams, "historyLength is negative").At("historyLength")
	}
	t, err := a.find(p.ID)
	if err != nil {
		return nil, err
	}
	return protocol.Encode(a.snapshot(t, p.HistoryLength)), nil
}

// cancel cancels a task. Canceling it again returns the same result.
func (a *agent) cancel(ctx context.Context, op *protocol.Operation) (json.RawMessage, error) {
	var p protocol.Get
	if e := protocol.Read(op.Params, &p); e != nil {
		return nil, e
	}
	t, err := a.find(p.ID)
	if err != nil {
		return nil, err
	}
	if err := a.end(ctx, t); err != nil {
		return nil, err
	}
	return protocol.Encode(a.snapshot(t, nil)), nil
}
