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
	"container/list"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/lmosd/lmosd/interact"
)

// A task is one run of an action:
//
//	pending → running → completed | failed | cancelled
//
// Only the goroutine that calls the agent changes the state and sends to followers.
type task struct {
	id, thing, name string
	key             key
	input           [sha256.Size]byte // hash of the input, if there is a key
	most            time.Duration     // limit of the run time
	bound           string            // configuration key of the limit
	ownerID         string            // [did.Principal.ID] of its consumer
	began           time.Time
	cancel          context.CancelCauseFunc
	done            chan struct{}     // closed at the end
	m               *interact.Message // the request to the agent; owned by the goroutine
	parts           []interact.Part   // of a response stream; owned by the goroutine

	// The rest is owned by Runner.mu.
	owner     *account
	detached  bool
	followers []*follower // copy on write
	state     interact.Status
	touched   bool              // the agent has replied
	asks      *interact.Message // the required input, while it waits
	hasOutput bool              // a reply had a part of the output
	lost      bool              // the output had no room
	held      int64             // bytes of input and output
	final     *interact.Message // if completed, with the whole output
	err       *interact.Error   // if failed or cancelled
	over      time.Time         // time of the end
	place     *list.Element     // in Runner.ended
}

// A key identifies a repeatable invocation. The zero key does not.
type key struct {
	from, thing, action, name string
}

// join adds the consumer of m to the task of the same key, or to a new one.
func (h *host) join(m *interact.Message, detached bool) (*follower, error) {
	var k key
	var sum [sha256.Size]byte
	if m.Key != "" {
		k = key{m.From.ID(), h.desc.ID, m.Name, m.Key}
		sum = digest(m)
	}
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sweepLocked(now)
	f := &follower{m: m, replies: make(chan *interact.Message, ahead), left: make(chan struct{})}
	f.task = h.keys[k] // the zero key has no task
	switch {
	case f.task == nil:
		return f, h.beginLocked(f, k, sum, detached, now)
	case f.task.input != sum:
		return nil, interact.Errorf(interact.Invalid,
			"use a new key for each invocation", "the key %q was used with another input of %s", m.Key, m.Name)
	case len(f.task.followers) >= maxFollowers:
		return nil, interact.Errorf(interact.Overloaded, "read its state (queryaction)", "%d consumers follow %s",
			maxFollowers, m.Name)
	case f.task.state.Final():
		f.end(f.task.resultLocked())
		return f, nil
	}
	f.task.detached = f.task.detached || detached
	f.late = f.task.hasOutput
	f.task.followers = append(slices.Clip(f.task.followers), f)
	return f, nil
}

// digest returns the hash of an input.
func digest(m *interact.Message) [sha256.Size]byte {
	s := sha256.New()
	fmt.Fprintf(s, "%d %s ", len(m.Media()), m.Media())
	s.Write(m.Data)
	return [sha256.Size]byte(s.Sum(nil))
}

// beginLocked starts a task for f. Its message is that of the consumer, with the deadline of the task and without Detach.
func (h *host) beginLocked(f *follower, k key, sum [sha256.Size]byte, detached bool, now time.Time) error {
	m := *f.m
	most, bound := h.o.bound(f.m)
	m.Detach, m.Deadline = false, now.Add(most)
	if m.Chunks != nil {
		m.Chunks = f.chunks(m.Chunks)
	}
	t := &task{id: interact.NewID(), ownerID: m.From.ID(), thing: h.desc.ID, name: m.Name, key: k, input: sum, began: now,
		done: make(chan struct{}), m: &m, most: most, bound: bound, detached: detached, followers: []*follower{f},
		state: interact.StatusPending}
	if err := h.admitLocked(t); err != nil {
		return err
	}
	f.task = t
	var ctx context.Context
	ctx, t.cancel = context.WithCancelCause(h.ctx)
	h.work.Go(func() { h.run(ctx, t) })
	return nil
}

// bound returns the limit of the run time of m, and its configuration key; empty: the limit is the end of a delegation.
func (o *Options) bound(m *interact.Message) (most time.Duration, key string) {
	if o.Bound != nil {
		if most, key = o.Bound(m); most > 0 && most < o.MaxRun {
			return most, key
		}
	}
	return o.MaxRun, "interact.tasks.max_duration"
}

// run calls the agent until the end.
func (h *host) run(ctx context.Context, t *task) {
	defer t.cancel(nil)
	ctx, stop := context.WithTimeoutCause(ctx, t.most, errTooLong)
	defer stop()
	h.mu.Lock()
	t.state = interact.StatusRunning
	h.mu.Unlock()
	final, err := h.call(ctx, t)
	if err != nil {
		err = h.why(t, context.Cause(ctx), err)
	}
	h.finish(t, final, interact.AsError(err))
}

// call calls the agent, sends its states to the followers, and returns the completed state.
func (h *host) call(ctx context.Context, t *task) (final *interact.Message, err error) {
	defer func() {
		if p := recover(); p != nil {
			h.o.Log.Error("agent panicked", "thing", t.thing, "action", t.name, "panic", fmt.Sprint(p),
				"stack", string(debug.Stack()))
			final, err = nil, interact.Errorf(interact.Internal, "see the log of the host", "the host failed during %s", t.name)
		}
	}()
	for r, err := range h.agent.Do(ctx, t.m) {
		switch {
		case err != nil:
			return nil, err
		case r.Status == interact.StatusCompleted:
			return r, nil
		case r.Status == interact.StatusCancelled:
			return nil, &interact.Error{Code: interact.Cancelled, Title: "the agent cancelled " + t.name, Remote: true}
		case r.Status == interact.StatusFailed:
			return nil, &interact.Error{Code: interact.AgentFailed, Title: "the agent reported the failure of " + t.name, Remote: true}
		case r.Status != interact.StatusPending || len(r.Data) > 0: // the followers have received pending
			h.report(ctx, t, r)
		}
	}
	return nil, interact.Errorf(interact.AgentFailed, "see the log of the agent", "the agent ended %s without a final state", t.name)
}

// why returns the reason for the end of a task whose context may have been cancelled.
func (h *host) why(t *task, cause, err error) error {
	switch {
	case errors.Is(cause, errTooLong) && t.bound == "":
		return &interact.Error{Code: interact.Cancelled, Title: t.name + " was cancelled: " + errLentOver.Error(), Hint: "ask the delegator for a new one", Started: true}
	case errors.Is(cause, errTooLong):
		return &interact.Error{Code: interact.Timeout, Title: fmt.Sprintf("%s ran longer than %v", t.name, t.most),
			Hint: "the operator of its host can raise " + t.bound, Started: true}
	case errors.Is(cause, errClosed):
		return &interact.Error{Code: interact.ShuttingDown, Title: t.name + " was cancelled: the host is shutting down",
			Hint: "retry later", Started: true}
	case cause != nil:
		return &interact.Error{Code: interact.Cancelled, Title: t.name + " was cancelled: " + cause.Error(),
			Hint: "retry, with another key if it had one", Started: true}
	}
	return err
}

// report sends a state of the agent to the followers. It waits for slow ones, up to a limit.
func (h *host) report(ctx context.Context, t *task, r *interact.Message) {
	n := int64(len(r.Data))
	if r.ContentType == interact.Progress {
		n = 0
	}
	h.mu.Lock()
	t.touched = true
	if r.Status == interact.StatusInputRequired {
		t.state, t.asks, n = r.Status, r, 0
	} else {
		t.state, t.asks, t.hasOutput = interact.StatusRunning, nil, t.hasOutput || n > 0
	}
	if !t.lost && n > 0 && h.holdLocked(t, n) {
		t.parts = append(t.parts, interact.Part{Data: r.Data, ContentType: r.Media()})
	} else if n > 0 {
		h.loseLocked(t)
	}
	followers := t.followers
	h.mu.Unlock()
	for _, f := range followers {
		if err := f.send(ctx, r); err != nil {
			h.unfollow(f)
			f.end(nil, err)
		}
	}
}

// loseLocked discards the output of a running task.
func (h *host) loseLocked(t *task) {
	for _, p := range t.parts {
		h.releaseLocked(t, int64(len(p.Data)))
	}
	t.parts, t.lost = nil, true
}

// finish records the end of t and sends it to the followers. A follower that received all parts of an output gets the unchanged
// last state, others the whole output.
func (h *host) finish(t *task, last *interact.Message, err *interact.Error) {
	now := time.Now()
	final := last
	if err == nil {
		final = t.whole(last)
	}
	h.mu.Lock()
	h.settleLocked(t, final, err, now)
	whole, fail := t.resultLocked()
	followers := t.followers
	t.followers, t.parts, t.m = nil, nil, nil
	h.mu.Unlock()
	for _, f := range followers {
		if err == nil && !f.late {
			f.end(last, nil)
		} else {
			f.end(whole, fail)
		}
	}
	h.o.Log.Debug("action ended", "thing", t.thing, "action", t.name, "id", t.id, "state", t.state.String(), "took",
		now.Sub(t.began))
	close(t.done)
}

// settleLocked marks a running task as ended.
func (h *host) settleLocked(t *task, final *interact.Message, err *interact.Error, now time.Time) {
	h.releaseLocked(t, t.held)
	switch {
	case err == nil:
		t.state = interact.StatusCompleted
		if t.lost = t.lost || !h.holdLocked(t, int64(len(final.Data))); !t.lost {
			t.final = final
		}
	case err.Code == interact.Cancelled:
		t.state, t.err = interact.StatusCancelled, err
	default:
		t.state, t.err = interact.StatusFailed, err
		if !t.touched && isUnstarted(err) {
			h.unkeyLocked(t)
		}
	}
	t.asks = nil
	t.over, t.place = now, h.ended.PushBack(t)
	t.owner.running--
	t.owner.kept += t.held
}

// isUnstarted reports whether err means that the agent did not start, so that the key can be used again.
func isUnstarted(err *interact.Error) bool {
	switch err.Code {
	case interact.Unreachable, interact.Overloaded, interact.RelayLimited, interact.RateLimited, interact.NotReady, interact.Unauthenticated,
		interact.Forbidden, interact.NotFound:
		return !err.Started
	}
	return false
}

// resultLocked returns the result of a task for a consumer that did not receive the whole output.
func (t *task) resultLocked() (*interact.Message, *interact.Error) {
	if t.state == interact.StatusCompleted && t.lost {
		return nil, interact.Errorf(interact.TooLarge, "follow it while it runs, or request more memory for outputs at its host",
			"%s is completed, and its output was too large to keep", t.name)
	}
	return t.final, t.err
}
