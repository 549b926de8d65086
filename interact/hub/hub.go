// Package hub shares one observation among many subscribers and replays the events that a subscriber missed.
//
// A [Hub] is middleware at the host of a Thing. The first consumer that observes a property or subscribes to an event starts one
// observation of the agent; further consumers join it. Events are stored in a ring (topic.go), which each consumer reads at its own speed
// (subscriber.go): a slow consumer delays neither the agent nor other consumers. A consumer that reconnects names the last event
// that it received (After) and gets the later ones that the ring or the agent still has; other consumers do not receive them again.
// replay.go limits the rings, quota.go the share of each consumer.
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
	// Ring is the number of events of an affordance kept for reconnecting consumers; 0 means 256. They are kept in addition to
	// Queue, so that a consumer disconnected for slowness misses nothing if it reconnects soon.
	Ring int
	// RingBytes limits the kept events of one affordance, in bytes; 0 means 4 MiB. The newest is always kept.
	RingBytes int64
	// Memory limits the kept events of all rings, in bytes, without the newest event; 0 means 64 MiB. Above it, rings over their
	// share drop their oldest events first.
	Memory int64
	// Queue limits the events that wait for a consumer; 0 means 256. A consumer with more is disconnected. Higher values tolerate
	// slower consumers.
	Queue int
	// IdleTimeout is how long an observation continues without consumers, so that a reconnecting one misses nothing; 0 means 1 min,
	// a negative value none.
	IdleTimeout time.Duration
	// MaxTopics limits the observations; 0 means 4096. An observation without consumers is replaced by a new one. A quarter is
	// reserved for callers on this machine, and a quarter for others.
	MaxTopics int
	// MaxSubscribers limits the consumers, with the same reserves; 0 means 10,000.
	MaxSubscribers int
	// SubscriptionsPerCaller limits the subscriptions of a caller with a DID; 0 means a quarter of MaxTopics.
	SubscriptionsPerCaller int
	// Log receives warnings; nil discards them.
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
	o.SubscriptionsPerCaller = cmp.Or(max(o.SubscriptionsPerCaller, 0), max(o.MaxTopics/4, 1))
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return o
}

// A Hub shares observations of all Things of a node. It is safe for concurrent use.
type Hub struct {
	o      Options
	ctx    context.Context // of all observations
	stop   context.CancelFunc
	work   sync.WaitGroup // observations
	kick   chan struct{}  // signals that an observation has lost its last consumer
	bytes  atomic.Int64   // of all rings
	lastID atomic.Uint64  // number of events so far

	// mu guards the fields below. It is locked before that of a topic.
	mu      sync.Mutex
	topics  map[key][]*topic
	all     int            // topics
	used    [2]usage       // by callers on this machine, and by others
	callers map[string]int // subscriptions by caller
	started int64          // start of the last topic, in Unix milliseconds
	closed  bool
}

// A key identifies an observation. A consumer that continues after an event without a ring starts another observation with the same key,
// which begins after that event.
type key struct {
	source    *source
	name, via string
	class     string            // of the consumer, at a remote Thing
	with      [sha256.Size]byte // hash of its delegations, at a remote Thing
	typ       interact.Type
	input     [sha256.Size]byte // of the data and its type; zero if there is none
}

// A source is a Thing behind the hub.
type source struct {
	*Hub
	thing  interact.Thing
	remote bool
}

// New returns a hub. The caller must close it.
func New(o Options) *Hub {
	h := &Hub{o: o.withDefaults(), topics: map[key][]*topic{}, callers: map[string]int{}, kick: make(chan struct{}, 1)}
	h.ctx, h.stop = context.WithCancel(context.Background())
	return h
}

// Middleware returns the middleware of one Thing, independent of the reference used. Observations and subscriptions (see
// [interact.Type.Long]) are shared if affordance, Data and Via are the same; other messages pass. The agent receives the message of
// the first consumer, with its From but without its deadline and Accept: the hub runs after policies, and bindings to consumers
// convert the replies.
//
// Each event or reading has the ID of the agent, or else one from the start of the topic and a number. Without After a consumer
// gets only later events, none that is repeated for others. With After it first gets the events after that one, once. If no ring
// has the event, the agent is requested to replay, in a separate observation that consumers with the same After share. If that
// fails, because the ring has dropped events or the agent assigns no IDs, and if there are eight such observations, the consumer
// gets all kept events: at least once. For consumers with After, an observation that ended is restarted with the ID of its last
// event.
//
// A consumer with more than Queue waiting events is disconnected with Overloaded, and the hint has the After for reconnection. When
// the sequence of the agent ends, or fails, all consumers end after they have read the earlier events; later consumers start a new
// observation. The data of events is stored without a copy.
func (h *Hub) Middleware() interact.Middleware {
	return func(t interact.Thing) interact.Thing { return &source{Hub: h, thing: t} }
}

// Remote is Middleware for a Thing of another node, which knows the consumers of this node by their class ([did.Principal.Class]): those of
// one class share, if they present the same delegations.
func (h *Hub) Remote() interact.Middleware {
	return func(t interact.Thing) interact.Thing { return &source{h, t, true} }
}

// Do implements [interact.Thing].
func (s *source) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	if !m.Type.Long() {
		return s.thing.Do(ctx, m)
	}
	return s.subscribe(ctx, m)
}

// subscribe joins the observation of m until the loop is left.
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
	if s.remote {
		k.class = m.From.Class()
		if m.With != nil {
			k.with = sha256.Sum256(m.With.Tokens)
		}
	}
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

// maxReplays limits the replaying observations of one affordance.
const maxReplays = 8

// pickLocked returns the best topic for a consumer with after; nil if a new one is needed.
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

// leave removes a subscriber.
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

// removeLocked ends an observation without consumers.
func (h *Hub) removeLocked(t *topic) {
	t.close()
	h.all--
	h.topics[t.key] = slices.DeleteFunc(h.topics[t.key], func(other *topic) bool { return other == t })
	if len(h.topics[t.key]) == 0 {
		delete(h.topics, t.key)
	}
}

// eachLocked yields all topics. The loop body may remove its topic.
func (h *Hub) eachLocked(yield func(*topic) bool) {
	for _, list := range h.topics {
		for _, t := range slices.Clone(list) {
			if !yield(t) {
				return
			}
		}
	}
}

// Run ends observations without consumers after Options.IdleTimeout, until ctx ends, and returns its error.
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

// sweep ends observations that are idle for too long, and returns the time until the next sweep; 0 if none is idle.
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

// Close ends all observations and waits for them. Subscribers get ShuttingDown.
func (h *Hub) Close() {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.stop()
	h.work.Wait()
}

// Count returns the numbers of observations and subscribers.
func (h *Hub) Count() (topics, subscribers int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.all, h.used[0].subscriptions + h.used[1].subscriptions
}

func shuttingDown() *interact.Error {
	return interact.HostShutdownError("subscribe again in a moment")
}
