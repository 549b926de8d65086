package choice

import (
	"context"
	"iter"
	"math/bits"
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/boundedmap"
)

const (
	maxKeys     = 4096             // with measurements
	measuredFor = 10 * time.Minute // an older average does not count, so that a Thing that was slow is tried again
	window      = 20               // calls that decide whether a Thing fails
	maxFailures = window / 2
	lostWithin  = 10 * time.Second // of as many unreachable calls as state.lost has
	openFor     = 10 * time.Second
)

// A Meter measures Things or hosts by the calls of this node. Its zero value is ready. It is safe for concurrent use.
//
// Each key has a circuit breaker. It opens after three calls in 10 s that found nothing reachable, if ten of the last 20 calls failed, or with a
// refusal that holds for the next calls, too: the host is shutting down, or does not offer the Thing. After 10 s it is half open: the next call
// decides. An answer closes it at any time.
type Meter[K comparable] struct {
	// Intn returns a random number in [0, n); nil is [rand.IntN].
	Intn func(n int) int

	mu  sync.Mutex
	all map[K]*state // owned by mu
}

// A state is what is known of one key.
type state struct {
	average  time.Duration // moving average of the time of answered calls; 0: none
	answered time.Time     // the last answer
	running  int
	recent   uint32       // the results of the last calls, the last one in bit 0; 1: failed
	calls    int          // in recent
	lost     [3]time.Time // of the last calls that found the Thing unreachable, since the last answer, the oldest first
	opened   time.Time    // when the breaker opened, or a call has failed since; zero: closed
}

// isMeasured reports whether the average counts.
func (s *state) isMeasured(now time.Time) bool {
	return s.average > 0 && now.Sub(s.answered) < measuredFor
}

// isOpen reports whether the breaker is open. Half open, it lets one call pass.
func (s *state) isOpen(now time.Time) bool {
	return !s.opened.IsZero() && (s.running > 0 || now.Sub(s.opened) < openFor)
}

func (s *state) failures() int { return bits.OnesCount32(s.recent) }

func (s *state) push(failed uint32) {
	s.recent = (s.recent<<1 | failed) & (1<<window - 1)
	s.calls = min(s.calls+1, window)
}

func (s *state) answer(took time.Duration, now time.Time) {
	s.push(0)
	s.opened, s.lost = time.Time{}, [3]time.Time{}
	if took = max(took, 1); s.isMeasured(now) {
		took = (7*s.average + took) / 8
	}
	s.average, s.answered = took, now
}

func (s *state) fail(code interact.Code, now time.Time) {
	s.push(1)
	if code == interact.Unreachable {
		s.lost = [3]time.Time{s.lost[1], s.lost[2], now}
	}
	if !s.opened.IsZero() || isLasting(code) || s.failures() >= maxFailures || !s.lost[0].IsZero() && now.Sub(s.lost[0]) <= lostWithin {
		s.opened = now
	}
}

// isFailure reports whether an error counts against whom it is from. An agent that fails at once must not be preferred for its speed.
func isFailure(c interact.Code) bool {
	switch c {
	case interact.Unreachable, interact.Timeout, interact.Overloaded, interact.AgentFailed, interact.Internal:
		return true
	}
	return isLasting(c)
}

// isLasting reports whether the next calls will get the same error.
func isLasting(c interact.Code) bool {
	switch c {
	case interact.ShuttingDown, interact.NotReady, interact.NotFound, interact.Withdrawn:
		return true
	}
	return false
}

// states returns copies of the states of the candidates.
func (m *Meter[K]) states(candidates []Candidate[K]) []state {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]state, len(candidates))
	for i := range candidates {
		if s := m.all[candidates[i].Key]; s != nil {
			all[i] = *s
		}
	}
	return all
}

// Middleware returns the layer that measures a Thing: the times and results of its calls, and how many run. Observations and subscriptions do not
// count. Failures count only for consumers of this node, so that other nodes cannot make a Thing of this node look bad.
func (m *Meter[K]) Middleware(key K) interact.Middleware {
	return func(t interact.Thing) interact.Thing {
		return interact.Func(func(ctx context.Context, msg *interact.Message) iter.Seq2[*interact.Message, error] {
			if msg.Type.Long() {
				return t.Do(ctx, msg)
			}
			return func(yield func(*interact.Message, error) bool) {
				failuresCount := msg.From != nil && msg.From.Relation == did.Local
				c := m.Begin(key, msg)
				defer c.End()
				t.Do(ctx, msg)(func(r *interact.Message, err error) bool {
					switch {
					case err == nil:
						c.Reply(r)
					case failuresCount:
						c.Fail(err)
					}
					return yield(r, err)
				})
			}
		})
	}
}

// A Call measures a running call. One goroutine uses it.
type Call struct {
	mu    *sync.Mutex
	state *state // owned by mu
	start time.Time
	timed bool // its time is recorded, or does not count
}

// Begin counts a call. The caller calls [Call.End].
func (m *Meter[K]) Begin(key K, msg *interact.Message) Call {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.all[key]
	if s == nil {
		s = &state{}
		boundedmap.Put(&m.all, key, s, maxKeys, func(s *state) bool { return s.running == 0 && !s.isMeasured(now) && !s.isOpen(now) })
	}
	s.running++
	return Call{mu: &m.mu, state: s, start: now, timed: msg.Detach}
}

// Untimed lets the time of the call not count: it has other reasons, such as a dial.
func (c *Call) Untimed() { c.timed = true }

// Reply records a reply. The first output counts as the answer. The time of an action that waited for input does not count.
func (c *Call) Reply(r *interact.Message) {
	switch {
	case c.timed || r.Status == interact.StatusPending || r.ContentType == interact.Progress:
	case r.Status == interact.StatusInputRequired:
		c.timed = true
	default:
		c.timed = true
		now := time.Now()
		c.mu.Lock()
		c.state.answer(now.Sub(c.start), now)
		c.mu.Unlock()
	}
}

// Fail records the error of the call, if it counts.
func (c *Call) Fail(err error) {
	if code := interact.AsError(err).Code; isFailure(code) {
		c.mu.Lock()
		c.state.fail(code, time.Now())
		c.mu.Unlock()
	}
}

// End ends the call.
func (c *Call) End() {
	c.mu.Lock()
	c.state.running--
	c.mu.Unlock()
}
