package executor

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"time"

	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/ratelimit"
)

// A task is an A2A task of a principal.
//
//	SUBMITTED → WORKING ⇄ INPUT_REQUIRED | AUTH_REQUIRED → COMPLETED | FAILED | CANCELED | REJECTED
//
// A task whose message does not identify an action is INPUT_REQUIRED before anything runs.
type task struct {
	principal, thing string
	key              sentKey
	id               string
	cancel           context.CancelFunc // of the run; nil before it starts

	// The rest is owned by Executor.mu.
	shown     protocol.Task    // artifacts and history only grow; elements change only in the parts of an artifact
	at        time.Time        // of the status
	progress  ratelimit.Bucket // of progress updates
	bytes     int64
	action    string            // the running action
	run       string            // its ActionID, if it has one
	open      interact.Inputs   // the input that it requires
	undecided *protocol.Message // the message that does not identify an action
	canceled  bool              // canceled by the client: later errors of the run are ignored
	readers   map[*reader]bool
}

// Limits of a task.
const (
	maxHistory = 200     // messages
	maxQueue   = 8 << 20 // bytes that are queued for a reader, plus the events of one reply
	maxReaders = 32
	maxParts   = 10_000 // of an artifact
)

// An event is a change of a task: text is a StreamResponse.
type event struct {
	text  json.RawMessage
	state protocol.State // the new state; empty if unchanged
}

// A reader receives the events of a task. Its fields are owned by Executor.mu.
type reader struct {
	executor *Executor
	queue    []event
	size     int
	backlog  int // the size before the last reply of the run: all events of one reply are queued at once
	ended    bool
	err      error
	changed  chan struct{}
}

var errEnded = errors.New("the task has ended")

// next waits for an event. At the end it returns errEnded.
func (r *reader) next(ctx context.Context) (event, error) {
	for {
		r.executor.mu.Lock()
		if len(r.queue) > 0 {
			e := r.queue[0]
			r.queue, r.size = r.queue[1:], r.size-len(e.text)
			r.executor.mu.Unlock()
			return e, nil
		}
		over, err, news := r.ended, r.err, r.changed
		r.executor.mu.Unlock()
		switch {
		case err != nil:
			return event{}, err
		case over:
			return event{}, errEnded
		}
		select {
		case <-news:
		case <-ctx.Done():
			return event{}, ctx.Err()
		case <-r.executor.ctx.Done():
			return event{}, interact.ShutdownError("subscribe again in a moment")
		}
	}
}

func (r *reader) wakeLocked() {
	close(r.changed)
	r.changed = make(chan struct{})
}

func (x *Executor) follow(t *task) *reader {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.followLocked(t)
}

// followWith returns a reader and the task at the time when it started.
func (x *Executor) followWith(t *task, history *int) (*reader, *protocol.Task) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.followLocked(t), t.viewLocked(history, true)
}

func (x *Executor) followLocked(t *task) *reader {
	r := &reader{executor: x, changed: make(chan struct{}), ended: t.shown.Status.State.Terminal()}
	if len(t.readers) >= maxReaders {
		r.err = interact.Errorf(interact.Overloaded, "use GetTask instead", "the task has %d subscribers already", maxReaders)
	} else {
		t.readers[r] = true
	}
	return r
}

func (x *Executor) removeReader(t *task, r *reader) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(t.readers, r)
}

// notifyLocked sends an event to all readers, in order.
func (t *task) notifyLocked(v protocol.StreamResponse, s protocol.State) {
	if len(t.readers) == 0 {
		return
	}
	e := event{protocol.Encode(v), s}
	for r := range t.readers {
		if r.size += len(e.text); r.backlog > maxQueue {
			r.err = interact.Errorf(interact.Overloaded, "subscribe to the task again", "the client reads the events too slowly")
			r.queue = nil
			delete(t.readers, r)
		} else {
			r.queue = append(r.queue, e)
		}
		r.ended = r.ended || s.Terminal()
		r.wakeLocked()
	}
}

// setLocked changes the state of t, unless it has ended. A message is added to the history, too.
func (x *Executor) setLocked(t *task, s protocol.State, parts ...protocol.Part) {
	if t.shown.Status.State.Terminal() {
		return
	}
	m := t.agentMessage(parts...)
	if m != nil {
		x.appendHistoryLocked(t, m)
	}
	x.setStatusLocked(t, s, m)
	if s.Terminal() {
		t.open, t.undecided = nil, nil
	}
}

// agentMessage returns a message of the agent; nil without parts.
func (t *task) agentMessage(parts ...protocol.Part) *protocol.Message {
	if len(parts) == 0 {
		return nil
	}
	return &protocol.Message{ID: rand.Text(), ContextID: t.shown.ContextID, TaskID: t.id, Role: protocol.AgentRole, Parts: parts}
}

// setStatusLocked changes the status of t, and notifies its readers.
func (x *Executor) setStatusLocked(t *task, s protocol.State, m *protocol.Message) {
	t.at = time.Now()
	t.shown.Status = protocol.Status{State: s, Message: m, Timestamp: protocol.Time(t.at)}
	t.notifyLocked(protocol.StreamResponse{StatusUpdate: &protocol.StatusUpdate{TaskID: t.id, ContextID: t.shown.ContextID,
		Status: t.shown.Status}}, s)
}

// appendHistoryLocked adds a message to the history. When it is full, the oldest message but the first is dropped.
func (x *Executor) appendHistoryLocked(t *task, m *protocol.Message) {
	if len(t.shown.History) >= maxHistory {
		t.shown.History = append(t.shown.History[:1:1], t.shown.History[2:]...)
	}
	t.shown.History = append(t.shown.History, m)
	x.reserveLocked(t, len(protocol.Encode(m)))
}

// reserveLocked reserves n bytes, and reports whether the limits allow it.
func (x *Executor) reserveLocked(t *task, n int) bool {
	if t.bytes+int64(n) > int64(x.o.MaxBytes) {
		return false
	}
	for x.held+int64(n) > x.o.MaxTotal {
		if !x.evictLocked() {
			return false
		}
	}
	t.bytes, x.held = t.bytes+int64(n), x.held+int64(n)
	return true
}

// addArtifactLocked adds parts to an artifact of t, or adds the artifact.
func (x *Executor) addArtifactLocked(t *task, given *protocol.Artifact, last bool) bool {
	if t.shown.Status.State.Terminal() {
		return true
	}
	if !x.reserveLocked(t, len(protocol.Encode(given))) {
		return false
	}
	u := &protocol.ArtifactUpdate{TaskID: t.id, ContextID: t.shown.ContextID, LastChunk: last, Artifact: given}
	if n := len(t.shown.Artifacts); n > 0 && t.shown.Artifacts[n-1].ID == given.ID {
		whole := *t.shown.Artifacts[n-1]
		if len(whole.Parts)+len(given.Parts) > maxParts {
			return false
		}
		whole.Parts = append(whole.Parts[:len(whole.Parts):len(whole.Parts)], given.Parts...)
		if len(given.Metadata) > 0 {
			whole.Metadata = given.Metadata
		}
		t.shown.Artifacts = append(t.shown.Artifacts[:n-1:n-1], &whole)
		u.Append = true
	} else {
		t.shown.Artifacts = append(t.shown.Artifacts[:n:n], u.Artifact)
	}
	t.notifyLocked(protocol.StreamResponse{ArtifactUpdate: u}, "")
	return true
}

// viewLocked returns t with the last messages of the history: nil means all.
func (t *task) viewLocked(history *int, artifacts bool) *protocol.Task {
	s := t.shown
	if s.History = s.History[:len(s.History):len(s.History)]; history != nil {
		s.History = s.History[max(0, len(s.History)-max(0, *history)):]
	}
	if !artifacts {
		s.Artifacts = nil
	}
	return &s
}

func (x *Executor) snapshot(t *task, history *int) *protocol.Task {
	x.mu.Lock()
	defer x.mu.Unlock()
	return t.viewLocked(history, true)
}

// settled reports whether t has ended or waits for its client.
func (x *Executor) settled(t *task) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return t.shown.Status.State.Terminal() || t.shown.Status.State.Waits()
}

func (x *Executor) ended(t *task) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return t.shown.Status.State.Terminal()
}

// find returns a task of the principal at this Thing. The error is [protocol.NoSuchTask], also for tasks of others.
func (a *agent) find(id string) (*task, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.findLocked(id)
}

func (a *agent) findLocked(id string) (*task, error) {
	a.sweepLocked(time.Now())
	t := a.tasks[id]
	if t == nil || t.principal != a.principal || t.thing != a.thing.Ref {
		return nil, protocol.NoSuchTask(id)
	}
	return t, nil
}

// createLocked creates a task for a message.
func (a *agent) createLocked(m *protocol.Message) (*task, error) {
	running := 0
	for _, t := range a.tasks {
		if t.principal == a.principal && !t.shown.Status.State.Terminal() {
			running++
		}
	}
	switch {
	case a.closed:
		return nil, interact.ShutdownError("try again in a moment")
	case running >= a.o.MaxRunning:
		return nil, interact.Errorf(interact.Overloaded, "wait until one has ended, or cancel one", "%d tasks are running already", running)
	case len(a.tasks) >= a.o.MaxTasks && !a.evictLocked():
		return nil, interact.Errorf(interact.Overloaded, "try again later", "%d tasks are running already", a.o.MaxTasks)
	}
	t := &task{principal: a.principal, thing: a.thing.Ref, key: sentKey{a.principal, a.thing.Ref, m.ID}, id: rand.Text(),
		readers: map[*reader]bool{}, at: time.Now()}
	if m.ContextID == "" {
		m.ContextID = rand.Text()
	}
	m.TaskID = t.id
	t.shown = protocol.Task{ID: t.id, ContextID: m.ContextID, Status: protocol.Status{State: protocol.Submitted, Timestamp: protocol.Time(t.at)}}
	if !a.reserveLocked(t, len(protocol.Encode(m))) {
		return nil, interact.Errorf(interact.TooLarge, "send less", "the message exceeds the storage limit")
	}
	t.shown.History = []*protocol.Message{m}
	a.tasks[t.id], a.sent[t.key] = t, t
	return t, nil
}

// sweepLocked drops expired tasks, and fails those that have waited too long for their client.
func (x *Executor) sweepLocked(now time.Time) {
	for _, t := range x.tasks {
		if now.Sub(t.at) < x.o.Keep {
			continue
		}
		switch s := t.shown.Status.State; {
		case s.Terminal():
			x.dropLocked(t)
		case s.Waits():
			if t.cancel != nil {
				t.cancel()
			}
			x.setLocked(t, protocol.Failed, protocol.TextPart("timed out waiting for the client"))
		}
	}
}

// evictLocked drops the task that ended first, and reports whether there was one.
func (x *Executor) evictLocked() bool {
	var oldest *task
	for _, t := range x.tasks {
		if t.shown.Status.State.Terminal() && (oldest == nil || t.at.Before(oldest.at)) {
			oldest = t
		}
	}
	if oldest != nil {
		x.dropLocked(oldest)
	}
	return oldest != nil
}

func (x *Executor) dropLocked(t *task) {
	delete(x.tasks, t.id)
	if x.sent[t.key] == t {
		delete(x.sent, t.key)
	}
	x.held -= t.bytes
	t.bytes = 0
}
