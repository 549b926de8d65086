// Package hub shares one observation among many subscribers and replays the events that a subscriber missed.
//
// A [Hub] stands around things, at their host. The first consumer that observes a property or subscribes to an event begins
// one observation of the agent; those that ask for the same join it. What the agent says goes into a ring (topic.go), which
// each consumer reads at its own pace (subscriber.go): one that is slow, or never reads, holds neither the agent nor the others
// up. A consumer that comes back names the last that it has seen (After), and hears what came since, as far as the ring or the
// agent reaches; other consumers do not receive it again. replay.go bounds the rings, quota.go the share of each consumer.
//
// Sources: Web Thing Protocol, lastNotificationID; WoT Profile, HTTP SSE; HTML, server-sent events, Last-Event-ID.
package hub

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"iter"
	"log/slog"
	"slices"
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
	// Memory is how many bytes all rings may have together, beside the newest event; 0 means 64 MiB. Beyond it those that have more
	// than their share give way, the eldest first.
	Memory int64
	// Queue is how many events may wait for a consumer; 0 means 256. With more it is sent away. Higher values forgive slower
	// consumers.
	Queue int
	// IdleTimeout is how long an observation goes on after its last consumer has left, so that one that comes back misses nothing;
	// 0 means 1 min, less than 0 not at all.
	IdleTimeout time.Duration
	// MaxTopics is how many observations there may be at once; 0 means 4096. One that nobody reads makes room for a new one. Callers
	// on this machine leave a quarter of them to others, and others a quarter to them.
	MaxTopics int
	// MaxSubscribers is how many consumers there may be at once, shared in the same way; 0 means 10,000.
	MaxSubscribers int
	// PerCaller is how many subscriptions one caller with a DID may have at once; 0 means a quarter of MaxTopics.
	PerCaller int
	// Log gets what an operator should know; nil discards.
	Log *slog.Logger
}

func (o Options) withDefaults() Options {
	o.Ring = cmp.Or(max(o.Ring, 0), 256)
	o.RingBytes = cmp.Or(max(o.RingBytes, 0), 4<<20)
	o.Memory = cmp.Or(max(o.Memory, 0), 64<<20)
	o.Queue = cmp.Or(max(o.Queue, 0), 256)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, time.Minute)
	o.MaxTopics = cmp.Or(max(o.MaxTopics, 0), 4096)
	o.MaxSubscribers = cmp.Or(max(o.MaxSubscribers, 0), 10_000)
	o.PerCaller = cmp.Or(max(o.PerCaller, 0), max(o.MaxTopics/4, 1))
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return o
}

// A Hub shares observations. One hub serves all things of a node. It is safe for concurrent use.
type Hub struct {
	o      Options
	ctx    context.Context // of all observations
	stop   context.CancelFunc
	work   sync.WaitGroup // an element per observation
	kick   chan struct{}  // has an element when an observation has lost its last consumer
	bytes  atomic.Int64   // of all rings
	lastID atomic.Uint64  // how many events there were

	// mu owns what follows. It is locked before a topic's.
	mu      sync.Mutex
	topics  map[key][]*topic
	all     int            // topics
	taken   [2]taken       // by callers on this machine, and by others
	callers map[string]int // the subscriptions of those who have any
	started int64          // when the last topic was, in Unix milliseconds
	closed  bool
}

// A key is what is observed. What has the same key is the same observation; but consumers that come back to an event that no
// ring has make another, in which the past is told first.
type key struct {
	source    *source
	name, via string
	typ       interact.Type
	input     [sha256.Size]byte // of the data and its type; zero if there is none
}

// A source is a thing that the hub stands around.
type source struct {
	*Hub
	thing interact.Thing
}

// New returns a hub. Close it when it is done.
func New(o Options) *Hub {
	h := &Hub{o: o.withDefaults(), topics: map[key][]*topic{}, callers: map[string]int{}, kick: make(chan struct{}, 1)}
	h.ctx, h.stop = context.WithCancel(context.Background())
	return h
}

// Middleware returns what is put around one thing, by whatever name it is asked. Observations and subscriptions (see
// [interact.Type.Long]) are shared where affordance, Data and Via are the same; all other messages pass. The agent is asked with
// the message of the first consumer, its From too, but without its deadline and Accept: the hub belongs inside of policies, and
// bindings to consumers convert what they get.
//
// Each event or reading has the agent's ID, or else one that the hub makes of the time of its start and a number. Without After
// a consumer gets what comes from now on, and nothing that is told again for others. With After it first gets what came after
// that event, once. Where no ring has the event, the agent is asked for what came after it, in an observation apart, which those
// with the same After share. Where that is of no use, because the ring has forgotten events or the agent gives no IDs, and where
// there are eight of these observations already, the consumer gets all that is kept: at least once. An observation that ended is
// begun again, for those with After, with the ID of its last event.
//
// A consumer that has more than Queue events waiting is sent away with Overloaded, and the hint tells the After with which it
// comes back. The end of the agent's sequence, or its error, is that of all consumers, once they have read what came before;
// whoever asks then begins anew. The data of events is kept, not copied.
func (h *Hub) Middleware() interact.Middleware {
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
		defer s.leave(sub)
		sub.deliver(ctx, yield)
	}
}

// join makes the consumer of m a subscriber. The error is Overloaded or ShuttingDown.
func (h *Hub) join(s *source, m *interact.Message) (*subscriber, error) {
	k := key{source: s, name: m.Name, via: m.Via, typ: m.Type}
	if len(m.Data) > 0 {
		k.input = sha256.Sum256(fmt.Appendf(nil, "%d %s %s", len(m.Media()), m.Media(), m.Data))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, shuttingDown()
	}
	if err := h.mayJoinLocked(m.From); err != nil {
		return nil, err
	}
	t := h.pickLocked(k, m.After)
	if t == nil || len(t.readers) == 0 {
		if err := h.mayObserveLocked(m.From, t == nil); err != nil {
			return nil, err
		}
	}
	if t == nil {
		// No two topics have the same start, so that no two events have the same ID.
		h.started = max(h.started+1, time.Now().UnixMilli())
		t = &topic{hub: h, key: k, start: strconv.FormatInt(h.started, 36) + "-", since: m.After, live: m.After == ""}
		h.topics[k] = append(h.topics[k], t)
		h.all++
	}
	h.countLocked(t, m.From, 1)
	return t.join(m), nil
}

// maxReplays is how many observations of one affordance there may be in which the past is told.
const maxReplays = 8

// pickLocked returns the topic that suits a consumer with after best; nil if it is to begin one.
func (h *Hub) pickLocked(k key, after string) *topic {
	var best *topic
	suits := suitsNot
	for _, t := range h.topics[k] {
		if s := t.suits(after); s > suits {
			best, suits = t, s
		}
	}
	if best == nil && after != "" && len(h.topics[k]) > maxReplays {
		return h.topics[k][0]
	}
	return best
}

// leave counts a subscriber out.
func (h *Hub) leave(s *subscriber) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := s.topic
	h.countLocked(t, s.m.From, -1)
	unread, useless := t.leave(time.Now(), reader(s.m.From))
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
	h.all--
	h.topics[t.key] = slices.DeleteFunc(h.topics[t.key], func(other *topic) bool { return other == t })
	if len(h.topics[t.key]) == 0 {
		delete(h.topics, t.key)
	}
}

// eachLocked yields all topics. Who is given one may remove it.
func (h *Hub) eachLocked(yield func(*topic) bool) {
	for _, list := range h.topics {
		for _, t := range slices.Clone(list) {
			if !yield(t) {
				return
			}
		}
	}
}

// Run ends observations that nobody has read for Options.IdleTimeout, until ctx ends, and returns its error.
func (h *Hub) Run(ctx context.Context) error {
	timer := time.NewTimer(h.o.IdleTimeout)
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
	for t := range h.eachLocked {
		idle, ok := t.idleSince()
		if !ok {
			continue
		}
		if left := h.o.IdleTimeout - now.Sub(idle); left <= 0 {
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
	return h.all, h.taken[0].subscriptions + h.taken[1].subscriptions
}

func shuttingDown() *interact.Error {
	return interact.Errorf(interact.ShuttingDown, "subscribe again in a moment", "the host is shutting down")
}
