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
	"github.com/lmosd/lmosd/td"
)

const (
	maxThings   = 4096             // with measurements
	measuredFor = 10 * time.Minute // an older average does not count, so that a Thing that was slow is tried again
	window      = 20               // calls that decide whether a Thing fails
	maxFailures = window / 2
	lostWithin  = 10 * time.Second // of as many unreachable calls as state.lost has
	openFor     = 10 * time.Second
)

// A Meter measures Things by the calls of this node. Its zero value is ready. It is safe for concurrent use.
//
// Each Thing has a circuit breaker. It opens after three calls in 10 s that found the Thing unreachable, or if ten of the last 20 calls failed.
// After 10 s it is half open: the next call decides. An answer closes it at any time.
type Meter struct {
	// Intn returns a random number in [0, n); nil is [rand.IntN].
	Intn func(n int) int

	mu     sync.Mutex
	things map[[32]byte]*state // by the key of the record; owned by mu
}

// A state is what is known of a Thing.
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

// isOpen reports whether the breaker is open, and not half open.
func (s *state) isOpen(now time.Time) bool { return !s.opened.IsZero() && now.Sub(s.opened) < openFor }

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
	if !s.opened.IsZero() || s.failures() >= maxFailures || !s.lost[0].IsZero() && now.Sub(s.lost[0]) <= lostWithin {
		s.opened = now
	}
}

// isFailure reports whether an error counts against the Thing. An agent that fails at once must not be preferred for its speed.
func isFailure(c interact.Code) bool {
	switch c {
	case interact.Unreachable, interact.Timeout, interact.ShuttingDown, interact.Overloaded, interact.AgentFailed, interact.Internal:
		return true
	}
	return false
}

// states returns copies of the states of the candidates.
func (m *Meter) states(candidates []Candidate) []state {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]state, len(candidates))
	for i, c := range candidates {
		if s := m.things[c.Thing.Record.Key()]; s != nil {
			all[i] = *s
		}
	}
	return all
}

// Middleware returns the layer that measures a Thing: the times and results of its calls, and how many run. Observations and subscriptions do not
// count. Failures count only for consumers of this node, so that other nodes cannot make a Thing of this node look bad.
func (m *Meter) Middleware(d *td.Description) interact.Middleware {
	key := d.Record.Key()
	return func(t interact.Thing) interact.Thing {
		return interact.Func(func(ctx context.Context, msg *interact.Message) iter.Seq2[*interact.Message, error] {
			if msg.Type.Long() {
				return t.Do(ctx, msg)
			}
			return func(yield func(*interact.Message, error) bool) {
				c := &call{yield: yield, failuresCount: msg.From != nil && msg.From.Relation == did.Local, timed: msg.Detach}
				c.meter, c.state, c.start = m, m.begin(key), time.Now()
				defer c.end()
				t.Do(ctx, msg)(c.take)
			}
		})
	}
}

// begin counts a call. The caller calls [call.end].
func (m *Meter) begin(key [32]byte) *state {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.things[key]
	if s == nil {
		s = &state{}
		now := time.Now()
		boundedmap.Put(&m.things, key, s, maxThings, func(s *state) bool { return s.running == 0 && !s.isMeasured(now) && !s.isOpen(now) })
	}
	s.running++
	return s
}

// A call is a running call.
type call struct {
	meter         *Meter
	state         *state // owned by meter.mu
	start         time.Time
	yield         func(*interact.Message, error) bool
	failuresCount bool
	timed         bool // its time is recorded, or does not count
}

// take records a reply or the error, and yields it. The first output counts as the answer. The time of an action that waited for input does not
// count.
func (c *call) take(r *interact.Message, err error) bool {
	switch {
	case err != nil:
		if code := interact.AsError(err).Code; c.failuresCount && isFailure(code) {
			c.meter.mu.Lock()
			c.state.fail(code, time.Now())
			c.meter.mu.Unlock()
		}
	case c.timed || r.Status == interact.StatusPending || r.ContentType == interact.Progress:
	case r.Status == interact.StatusInputRequired:
		c.timed = true
	default:
		c.timed = true
		now := time.Now()
		c.meter.mu.Lock()
		c.state.answer(now.Sub(c.start), now)
		c.meter.mu.Unlock()
	}
	return c.yield(r, err)
}

func (c *call) end() {
	c.meter.mu.Lock()
	c.state.running--
	c.meter.mu.Unlock()
}
