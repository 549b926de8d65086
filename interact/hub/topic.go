package hub

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/interact"
)

// maxID limits the ID of an event, in bytes (interact.Message.ID).
const maxID = 256

// A topic is one observation: the ring of its events, and the run that receives them.
type topic struct {
	hub   *Hub
	key   key
	start string // prefix of generated event IDs
	since string // the After of its first request: the ring begins after it

	// readers are the subscribers by caller, and keeper is the caller that left last. Hub.mu guards them.
	readers map[string]int
	keeper  string

	// mu guards the fields below. It is not held during yields and calls.
	mu sync.Mutex
	// events are the kept events, oldest first. first is the number of the first one; numbers begin with 0.
	events []*interact.Message
	first  uint64
	bytes  int64
	wake   chan struct{} // closed when there is more to read; nil if no subscriber waits
	run    *run          // the last
	users  int           // subscribers
	idle   time.Time     // when the last one left
	last   string        // the agent's ID of the last event that had one
	live   bool          // it was started without After
	lastID uint64        // the number of its last event among those of the hub
	closed bool          // removed
}

// A run is one observation of the agent. topic.mu guards its fields.
type run struct {
	cancel context.CancelFunc
	over   bool
	end    uint64 // the number after that of its last event
	err    error
}

// join adds a subscriber, and starts a run if none is active. Hub.mu is locked.
func (t *topic) join(m *interact.Message) *subscriber {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &subscriber{topic: t, m: m, at: t.nextLocked(), seen: m.After}
	if m.After != "" {
		s.at = t.afterLocked(m.After)
	}
	s.joined = t.nextLocked()
	t.users++
	if t.run == nil || t.run.over {
		t.beginLocked(m)
	}
	s.run = t.run
	return s
}

func (t *topic) nextLocked() uint64 { return t.first + uint64(len(t.events)) }

// afterLocked returns the number after the event id: of the oldest of several, and that of the first kept event if there is none.
func (t *topic) afterLocked(id string) uint64 {
	if i := t.indexLocked(id); i >= 0 {
		return t.first + uint64(i) + 1
	}
	return t.first
}

func (t *topic) indexLocked(id string) int {
	return slices.IndexFunc(t.events, func(e *interact.Message) bool { return e.ID == id })
}

// The fit of a topic for a consumer.
const (
	suitsNot   = iota
	suitsBadly // it has some of the missed events, or the consumer missed none
	suits      // it has all missed events
	suitsBest  // and no others
)

// suits returns the fit of the topic for a consumer with after. Hub.mu is locked.
func (t *topic) suits(after string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	anonymous := t.last == "" && len(t.events) > 0 // the agent assigns no IDs
	switch {
	case after == "" && t.live && (!t.run.over || t.last == ""):
		return suitsBadly
	case after == "":
		return suitsNot
	case t.indexLocked(after) >= 0:
		return suitsBest
	case t.since == after, strings.HasPrefix(after, t.start):
		return suits
	case t.live && (t.first > 0 || anonymous):
		return suitsBadly
	}
	return suitsNot
}

// beginLocked starts a run for all subscribers with the request of the first.
func (t *topic) beginLocked(first *interact.Message) {
	m := *first
	m.Deadline, m.Accept, m.Timing = time.Time{}, "", nil
	switch {
	case t.last != "":
		m.After = t.last
	case strings.HasPrefix(m.After, t.start), len(t.events) > 0: // unknown to the agent
		m.After = ""
	}
	t.live = t.live && m.After == ""
	ctx, cancel := context.WithCancel(t.hub.ctx)
	r := &run{cancel: cancel}
	t.run = r
	t.hub.work.Go(func() {
		defer cancel()
		err := t.observe(ctx, &m)
		if t.hub.ctx.Err() != nil {
			err = shuttingDown()
		}
		t.conclude(r, err)
	})
}

// observe calls the agent and publishes its replies.
func (t *topic) observe(ctx context.Context, m *interact.Message) (err error) {
	defer func() {
		if p := recover(); p != nil {
			t.hub.o.Log.Error("agent panicked", "thing", m.Thing, "affordance", m.Name, "panic", fmt.Sprint(p), "stack",
				string(debug.Stack()))
			err = interact.Errorf(interact.Internal, "see the log of the host", "the host failed while it observed %s", m.Name)
		}
	}()
	for r, err := range t.key.source.thing.Do(ctx, m) {
		if err != nil {
			return err
		}
		if r == nil {
			return interact.Errorf(interact.Internal, "this is a bug of the binding of the agent", "empty event of the agent of %s", m.Name)
		}
		t.publish(r)
	}
	return nil
}

// publish adds an event to the ring and wakes all subscribers.
func (t *topic) publish(r *interact.Message) {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return
	}
	if r.ID != "" && len(r.ID) <= maxID {
		t.last = r.ID
	} else {
		c := *r
		c.ID = t.start + strconv.FormatUint(t.nextLocked(), 10)
		r = &c
	}
	t.lastID = t.hub.lastID.Add(1)
	t.events = append(t.events, r)
	t.addLocked(size(r))
	for len(t.events) > t.hub.o.Ring+t.hub.o.Queue || t.bytes > t.hub.o.RingBytes && len(t.events) > 1 {
		t.dropLocked()
	}
	wake := t.wake
	t.wake = nil
	t.mu.Unlock()
	if wake != nil {
		close(wake)
	}
	if t.hub.bytes.Load() > t.hub.o.Memory {
		t.hub.reclaim(t)
	}
}

// conclude records the end of a run and wakes its subscribers.
func (t *topic) conclude(r *run, err error) {
	t.mu.Lock()
	r.over, r.end, r.err = true, t.nextLocked(), err
	wake := t.wake
	t.wake = nil
	useless := t.users == 0 && len(t.events) == 0
	t.mu.Unlock()
	if wake != nil {
		close(wake)
	}
	if useless {
		t.hub.discard(t)
	}
}

// discard removes a topic whose run ended without an event, unless a subscriber has joined.
func (h *Hub) discard(t *topic) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t.mu.Lock()
	useless := t.users == 0 && t.run.over && len(t.events) == 0
	t.mu.Unlock()
	if useless && slices.Contains(h.topics[t.key], t) {
		h.removeLocked(t)
	}
}

// leave removes a subscriber. It reports whether the topic has no readers, and whether it can be removed. Hub.mu is locked.
func (t *topic) leave(now time.Time, caller string) (unread, useless bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.users--
	t.idle, t.keeper = now, caller
	unread = t.users == 0
	return unread, unread && (t.hub.o.IdleTimeout < 0 || t.run.over && len(t.events) == 0)
}

// idleSince returns when the last reader left, if there is none.
func (t *topic) idleSince() (since time.Time, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.idle, t.users == 0
}

// close ends the run and drops the ring.
func (t *topic) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	t.addLocked(-t.bytes)
	t.first, t.events = t.nextLocked(), nil
	t.run.cancel()
}
