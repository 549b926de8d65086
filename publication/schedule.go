package publication

import (
	"math/rand/v2"
	"sync"
	"time"
)

// Intervals of announcements. All are jittered by a tenth, so that the nodes of a mesh that started together do not announce together.
const (
	gossipInterval = 10 * time.Minute // between records by gossip; half the lifetime of a record if that is less
	// gossipIntervalPerThing is the least interval for each Thing in the mesh. To announce a Thing of two shards again costs a node 4 kB
	// (docs/benchmarks.md), so that all Things of any mesh cost it 11 kB/s at most.
	gossipIntervalPerThing = 360 * time.Millisecond
	retryInterval          = 15 * time.Second // after the first failed attempt; a quarter of the lifetime of a record at most
)

// A schedule decides when each publication is announced, and by which carrier. It is safe for concurrent use.
type schedule struct {
	index    *Index
	lifetime time.Duration // of a record; the DHT gets a new one after a quarter of it
	known    func() int    // how many Things this node knows in the mesh

	mu     sync.Mutex
	states map[string]*state // by thing id; owned by mu
}

// A state is how far a Thing is announced. It outlives the records.
type state struct {
	gossiped, replicated time.Time     // when gossip or the DHT last accepted a record; zero if none has
	tried                time.Time     // the end of the last attempt
	failures             int           // attempts in a row that left a carrier without the record
	wait                 time.Duration // until gossip repeats it, jittered
	running              int           // attempts
}

// An attempt announces a Thing.
type attempt struct {
	thing       string
	gossip, dht bool // carriers
	hasTD       bool // gossip has delivered the TD already
}

// due returns the attempts that are due at now and marks them as running; the caller ends each with [schedule.end]. Without peers
// nothing is due.
func (s *schedule) due(now time.Time, peers bool) []attempt {
	if !peers {
		return nil
	}
	known := s.known() // Before the locks: the directory has its own.
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []attempt
	for thing := range s.index.things() {
		st := s.stateLocked(thing, known)
		gossip, dht := st.wants(now, s.lifetime)
		if st.running > 0 || !gossip && !dht || now.Sub(st.tried) < s.retryAfter(st.failures) {
			continue
		}
		st.running++
		out = append(out, attempt{thing, gossip, dht, !st.gossiped.IsZero()})
	}
	return out
}

// wants returns the carriers that need a record at now.
func (st *state) wants(now time.Time, lifetime time.Duration) (gossip, dht bool) {
	return now.Sub(st.gossiped) >= st.wait, now.Sub(st.replicated) >= lifetime/4
}

// retryAfter returns the pause after a number of failed attempts. It doubles, because each attempt signs and stores a record, and in a
// mesh without a DHT server every attempt fails.
func (s *schedule) retryAfter(failures int) time.Duration {
	return min(retryInterval<<min(max(failures-1, 0), 10), gossipInterval, s.lifetime/4)
}

func (s *schedule) stateLocked(thing string, known int) *state {
	st := s.states[thing]
	if st == nil {
		st = &state{wait: s.interval(known)}
		s.states[thing] = st
	}
	return st
}

// interval returns how long gossip waits before it repeats a publication, in a mesh of so many known Things.
func (s *schedule) interval(known int) time.Duration {
	return jitter(min(max(gossipInterval, time.Duration(known)*gossipIntervalPerThing), s.lifetime/2))
}

// begin marks an attempt as running, so that no second one begins. The caller ends it with end.
func (s *schedule) begin(thing string) { s.update(thing, func(st *state) { st.running++ }) }

// end notes that an attempt has succeeded or failed.
func (s *schedule) end(thing string) {
	s.update(thing, func(st *state) {
		st.running, st.tried = st.running-1, time.Now()
		if gossip, dht := st.wants(st.tried, s.lifetime); gossip || dht {
			st.failures++
		} else {
			st.failures = 0
		}
	})
}

// reset notes that no carrier has the current record of a Thing.
func (s *schedule) reset(thing string) {
	s.update(thing, func(st *state) { st.gossiped, st.replicated, st.failures = time.Time{}, time.Time{}, 0 })
}

// gossiped and replicated note that a carrier has accepted p, unless another publication has replaced p.
func (s *schedule) gossiped(p *Publication) {
	s.update(p.Thing, func(st *state) {
		if s.index.known(p.Thing) == p {
			st.gossiped, st.wait = time.Now(), s.interval(s.known())
		}
	})
}

func (s *schedule) replicated(p *Publication) {
	s.update(p.Thing, func(st *state) {
		if s.index.known(p.Thing) == p {
			st.replicated = time.Now()
		}
	})
}

func (s *schedule) update(thing string, f func(*state)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.index.known(thing) != nil { // else it was removed
		f(s.stateLocked(thing, s.known()))
	}
}

// remove drops the state of a Thing that was removed from the index.
func (s *schedule) remove(thing string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.states, thing)
}

// pending returns how many publications in force no carrier has accepted yet.
func (s *schedule) pending() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, p := range s.index.All() {
		if st := s.states[p.Thing]; p.Description != nil && (st == nil || st.gossiped.IsZero() && st.replicated.IsZero()) {
			n++
		}
	}
	return n
}

// jitter returns d, up to a tenth less or more.
func jitter(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1)
}
