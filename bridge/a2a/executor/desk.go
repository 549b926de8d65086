// Package desk serves things that do not speak A2A as agents that do: a message becomes an action, and a run of it a task.
//
// The tasks live here, at the node that serves the client, and outlive its connections. A task is its principal's: to another it
// is as if it were not there. What is kept is bounded, and forgotten a while after it has ended.
//
// Things keep no conversations: a context is a name that a principal gives to tasks of its own, and is not told to the thing. Two
// principals may give the same.
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

// Options are the settings of a [Desk]. The zero value works.
type Options struct {
	// Keep is how long a task is kept after it has ended, or waits for its client; 0 means 1 h.
	Keep time.Duration
	// MaxRun is how long an action may take; 0 means 1 h.
	MaxRun time.Duration
	// MaxTasks bounds the tasks that are kept; 0 means 2,000. When a new one finds no room, the oldest that has ended is forgotten.
	MaxTasks int
	// MaxRunning bounds the tasks of one principal that have not ended; 0 means 100.
	MaxRunning int
	// MaxBytes bounds what one task holds, in bytes; 0 means 16 MiB.
	MaxBytes int
	// MaxTotal bounds what all tasks hold, in bytes; 0 means 128 MiB.
	MaxTotal int64
	Log      *slog.Logger
}

// A Desk keeps the tasks of one node's A2A clients. It is safe for concurrent use.
type Desk struct {
	o    Options
	ctx  context.Context // of what runs
	stop context.CancelFunc
	work sync.WaitGroup
	// tokens seals the tokens of pages.
	tokens *opaque.Sealer

	// mu owns what follows, and the fields of tasks that say so.
	mu     sync.Mutex
	tasks  map[string]*task
	sent   map[sentKey]*task // by the message that began it
	held   int64
	closed bool
}

// A sentKey names a message: one that is sent again gets the task that it began (A2A 1.0 §3.1.1, idempotency).
type sentKey struct{ principal, thing, message string }

// New returns a desk, which the caller closes.
func New(o Options) *Desk {
	o.Keep, o.MaxRun = cmp.Or(o.Keep, time.Hour), cmp.Or(o.MaxRun, time.Hour)
	o.MaxTasks, o.MaxRunning = cmp.Or(o.MaxTasks, 2000), cmp.Or(o.MaxRunning, 100)
	o.MaxBytes, o.MaxTotal = cmp.Or(o.MaxBytes, 16<<20), cmp.Or(o.MaxTotal, 128<<20)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	d := &Desk{o: o, tasks: map[string]*task{}, sent: map[sentKey]*task{}, tokens: opaque.New("")}
	d.ctx, d.stop = context.WithCancel(context.Background())
	return d
}

// Close cancels what runs, and waits for it.
func (d *Desk) Close() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.stop()
	d.work.Wait()
}

// A Subject is a thing as the desk serves it.
type Subject struct {
	// Ref names it in messages.
	Ref  string
	Desc *td.Thing
	// Thing answers.
	Thing interact.Thing
	// From is who asks it.
	From *did.Principal
}

// Agent serves s to a principal.
func (d *Desk) Agent(s Subject, principal string) protocol.Agent {
	return &agent{d, s, principal}
}

type agent struct {
	*Desk
	subject   Subject
	principal string
}

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
		return protocol.Once(nil, protocol.Errorf(protocol.PushNotSupported, "nothing is pushed here"))
	}
	return protocol.Once(nil, protocol.Errorf(protocol.UnknownMethod, "A2A has no method %q", op.Method))
}

// send waits until the task ends or asks for something, unless it is to return at once (A2A 1.0 §3.1.1).
func (a *agent) send(ctx context.Context, op *protocol.Operation) (json.RawMessage, error) {
	t, p, err := a.take(op)
	if err != nil {
		return nil, err
	}
	s := a.follow(t)
	defer a.unfollow(t, s)
	for !p.Configuration.Immediately && !a.settled(t) {
		if _, err := s.next(ctx); err != nil {
			break // over, or the client is gone: then nobody reads the answer
		}
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return protocol.Encode(protocol.StreamResponse{Task: a.snapshot(t, p.Configuration.HistoryLength)}), nil
}

// stream yields the task, then what happens to it, until it ends or asks for input. What asks somebody to prove who they are goes
// on when they have (A2A 1.0 §7.6.1).
func (a *agent) stream(ctx context.Context, op *protocol.Operation) iter.Seq2[json.RawMessage, error] {
	return func(yield func(json.RawMessage, error) bool) {
		t, p, err := a.take(op)
		if err != nil {
			yield(nil, err)
			return
		}
		a.tell(ctx, t, p.Configuration.HistoryLength, func(s protocol.State) bool { return s == protocol.InputRequired }, yield)
	}
}

// subscribe yields the task, then what happens to it until it ends.
func (a *agent) subscribe(ctx context.Context, op *protocol.Operation) iter.Seq2[json.RawMessage, error] {
	return func(yield func(json.RawMessage, error) bool) {
		var p protocol.Get
		if e := protocol.Read(op.Params, &p); e != nil {
			yield(nil, e)
			return
		}
		t, err := a.find(p.ID)
		if err == nil && a.ended(t) {
			err = protocol.Errorf(protocol.UnsupportedOperation, "the task has ended: get it")
		}
		if err != nil {
			yield(nil, err)
			return
		}
		a.tell(ctx, t, nil, func(protocol.State) bool { return false }, yield)
	}
}

// tell yields a task and its events, up to the end or to a state that leaves.
func (a *agent) tell(ctx context.Context, t *task, history *int, leaves func(protocol.State) bool,
	yield func(json.RawMessage, error) bool) {
	s, first := a.followWith(t, history)
	defer a.unfollow(t, s)
	if !yield(protocol.Encode(protocol.StreamResponse{Task: first}), nil) || first.Status.State.Terminal() || leaves(first.Status.State) {
		return
	}
	for {
		e, err := s.next(ctx)
		if err == errOver {
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
		return nil, protocol.Errorf(protocol.InvalidParams, "historyLength is below zero").At("historyLength")
	}
	t, err := a.find(p.ID)
	if err != nil {
		return nil, err
	}
	return protocol.Encode(a.snapshot(t, p.HistoryLength)), nil
}

// cancel ends a task. One that has been cancelled is cancelled again with the same answer.
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
