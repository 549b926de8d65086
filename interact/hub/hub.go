// Package hub shares one observation of a thing among many consumers, and sends again what a consumer missed.
//
// A [Hub] stands around things, at their host. The first consumer that observes a property or subscribes to an event begins
// one observation of the agent; those that ask for the same join it. What the agent says goes into a ring (topic.go), which
// each consumer reads at its own pace (subscriber.go): one that is slow, or never reads, holds neither the agent nor the others
// up. A consumer that comes back names the last that it has seen (After), and hears what came since, as far as the ring
// reaches. Sources: Web Thing Protocol, lastNotificationID; WoT Profile, HTTP SSE; HTML, server-sent events, Last-Event-ID.
package hub

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"iter"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/interact"
)

// Options are the settings of a [Hub]. The zero value works.
type Options struct {
	// Ring is how many events of an affordance are kept for those that come back; 0 means 256. They are kept beside those that
	// the slowest may have waiting (Queue), so that who is sent away for slowness misses nothing if it comes back soon.
	Ring int
	// RingBytes is how many bytes they may have together, of one affordance; 0 means 4 MiB. The newest is always kept.
	RingBytes int64
	// Memory is how many bytes all rings may have; 0 means 64 MiB. When there are many, each gets its share.
	Memory int64
	// Queue is how many events may wait for a consumer; 0 means 256. With more it is sent away. Higher values forgive slower
	// consumers.
	Queue int
	// Linger is how long an observation goes on after its last consumer has left, so that one that comes back misses nothing;
	// 0 means 1 min, less than 0 not at all.
	Linger time.Duration
	// MaxTopics is how many observations there may be at once; 0 means 1024. One that nobody reads makes room for a new one.
	MaxTopics int
	// MaxSubscribers is how many consumers there may be at once; 0 means 10,000.
	MaxSubscribers int
	// Log gets what an operator should know; nil discards.
	Log *slog.Logger
}

func (o Options) withDefaults() Options {
	o.Ring = cmp.Or(max(o.Ring, 0), 256)
	o.RingBytes = cmp.Or(max(o.RingBytes, 0), 4<<20)
	o.Memory = cmp.Or(max(o.Memory, 0), 64<<20)
	o.Queue = cmp.Or(max(o.Queue, 0), 256)
	o.Linger = cmp.Or(o.Linger, time.Minute)
	o.MaxTopics = cmp.Or(max(o.MaxTopics, 0), 1024)
	o.MaxSubscribers = cmp.Or(max(o.MaxSubscribers, 0), 10_000)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return o
}

// A Hub shares observations. One hub serves all things of a node. It is safe for concurrent use.
type Hub struct {
	o     Options
	ctx   context.Context // of all observations
	stop  context.CancelFunc
	work  sync.WaitGroup // an element per observation
	kick  chan struct{}  // has an element when an observation has lost its last consumer
	share atomic.Int64   // bytes that a ring may have

	// mu owns what follows. It is locked before a topic's.
	mu          sync.Mutex
	topics      map[key]*topic
	subscribers int
	started     int64 // when the last topic was, in Unix milliseconds
	closed      bool
}

// A key is what is observed: what has the same key is the same observation.
type key struct {
	source           *source
	thing, name, via string
	typ              interact.Type
	input            [sha256.Size]byte // of the data and its type; zero if there is none
}

// A source is a thing that the hub stands around.
type source struct {
	*Hub
	thing interact.Thing
}

// New returns a hub. Close it when it is done.
func New(o Options) *Hub {
	h := &Hub{o: o.withDefaults(), topics: map[key]*topic{}, kick: make(chan struct{}, 1)}
	h.ctx, h.stop = context.WithCancel(context.Background())
	h.shareOutLocked()
	return h
}

// Wrap returns what is put around a thing. Observations and subscriptions (see [interact.Type.Long]) are shared where thing,
// affordance, Data and Via are the same; all other messages pass. The agent is asked with the message of the first consumer, its
// From too, but without its deadline and Accept: the hub belongs inside of policies, and bindings to consumers convert what they
// get. The agent gets the first consumer's After, or the ID of the last event that the hub has of it.
//
// Each event or reading has the agent's ID, or else one that the hub makes of the time of its start and a number. With After, a
// consumer first gets what came after that event; where that is not known any more, all that is kept: at least once. Without
// After it gets what comes from now on.
//
// A consumer that has more than Queue events waiting is sent away with Overloaded, and the hint tells the After with which it
// comes back. The end of the agent's sequence, or its error, is that of all consumers, once they have read what came before;
// whoever asks then begins anew. The data of events is kept, not copied.
func (h *Hub) Wrap() interact.Wrap {
	return func(t interact.Thing) interact.Thing { return &source{h, t} }
}

// Do implements [interact.Thing].
func (s *source) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	if !m.Type.Long() {
		return s.thing.Do(ctx, m)
	}
	return s.subscribe(ctx, m)
}

// subscribe joins the observation that m asks for, until the loop is left.
func (s *source) subscribe(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		if !m.Deadline.IsZero() {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, m.Deadline)
			defer cancel()
		}
		sub, err := s.join(s, m)
		if err != nil {
			yield(nil, err)
			return
		}
		defer s.leave(sub.topic)
		sub.deliver(ctx, yield)
	}
}

// join makes the consumer of m a subscriber. The error is Overloaded or ShuttingDown.
func (h *Hub) join(s *source, m *interact.Message) (*subscriber, error) {
	k := key{source: s, thing: m.Thing, name: m.Name, via: m.Via, typ: m.Type}
	if len(m.Data) > 0 {
		k.input = sha256.Sum256(fmt.Appendf(nil, "%d %s %s", len(m.Media()), m.Media(), m.Data))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return nil, shuttingDown()
	case h.subscribers >= h.o.MaxSubscribers:
		return nil, interact.Errorf(interact.Overloaded, "try again in a while; or subscribe at another host of the thing",
			"%d subscriptions are served already", h.subscribers)
	}
	t := h.topics[k]
	if t == nil {
		if len(h.topics) >= h.o.MaxTopics && !h.evictLocked() {
			return nil, interact.Errorf(interact.Overloaded, "try again in a while; or subscribe to what others have subscribed to",
				"%d affordances are observed already", len(h.topics))
		}
		// No two topics have the same start, so that no two events have the same ID.
		h.started = max(h.started+1, time.Now().UnixMilli())
		t = &topic{hub: h, key: k, start: strconv.FormatInt(h.started, 36) + "-"}
		h.topics[k] = t
		h.shareOutLocked()
	}
	h.subscribers++
	return t.join(m), nil
}

// leave counts a subscriber of t out.
func (h *Hub) leave(t *topic) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.subscribers--
	unread, useless := t.leave(time.Now())
	if useless {
		h.removeLocked(t)
	}
	if !unread {
		return
	}
	select {
	case h.kick <- struct{}{}:
	default:
	}
}

// removeLocked ends an observation that nobody reads.
func (h *Hub) removeLocked(t *topic) {
	t.close()
	delete(h.topics, t.key)
	h.shareOutLocked()
}

// evictLocked ends the observation that nobody has read for the longest time.
func (h *Hub) evictLocked() bool {
	var oldest *topic
	var since time.Time
	for _, t := range h.topics {
		if idle, ok := t.idleSince(); ok && (oldest == nil || idle.Before(since)) {
			oldest, since = t, idle
		}
	}
	if oldest != nil {
		h.removeLocked(oldest)
	}
	return oldest != nil
}

// shareOutLocked gives each ring its share of the memory.
func (h *Hub) shareOutLocked() {
	share := min(h.o.RingBytes, h.o.Memory/int64(max(len(h.topics), 1)))
	if h.share.Swap(share) <= share {
		return
	}
	for _, t := range h.topics {
		t.shrink()
	}
}

// Run ends observations that nobody has read for Options.Linger, until ctx ends, and returns its error.
func (h *Hub) Run(ctx context.Context) error {
	timer := time.NewTimer(h.o.Linger)
	defer timer.Stop()
	for {
		if next := h.sweep(time.Now()); next > 0 {
			timer.Reset(next)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-h.kick:
		case <-timer.C:
		}
	}
}

// sweep ends what has lingered long enough at now, and returns the time until there is more to do; 0 if nobody has left.
func (h *Hub) sweep(now time.Time) (next time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range h.topics {
		idle, ok := t.idleSince()
		if !ok {
			continue
		}
		if left := h.o.Linger - now.Sub(idle); left <= 0 {
			h.removeLocked(t)
		} else if next == 0 || left < next {
			next = left
		}
	}
	return next
}

// Close ends all observations, and waits for them. Subscribers hear ShuttingDown.
func (h *Hub) Close() {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.stop()
	h.work.Wait()
}

// Count returns how many observations and how many subscribers there are.
func (h *Hub) Count() (topics, subscribers int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.topics), h.subscribers
}

func shuttingDown() *interact.Error {
	return interact.Errorf(interact.ShuttingDown, "subscribe again in a moment", "the host is shutting down")
}
