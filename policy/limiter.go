package policy

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/internal/ratelimit"
)

// idle is after which silence an account may be forgotten, if its bucket is full again: nothing is lost.
const idle = time.Minute

// accounts are what is counted of each caller, or of each agent.
type accounts[K comparable] struct {
	max int
	// begin is called for each new account.
	begin func(*account, K)

	mu sync.Mutex
	// all holds those that were seen lately or have something running; owned by mu. Those that come when there are max
	// share the account of the zero K.
	all   map[K]*account
	swept time.Time
}

func newAccounts[K comparable](most int, begin func(*account, K)) accounts[K] {
	return accounts[K]{max: most, begin: begin, all: map[K]*account{}}
}

// An account is what is counted of one caller or agent. A nil account counts nothing.
type account struct {
	calls      *meter    // what an agent is asked, or a caller asks without what only reads
	reads      *meter    // of a caller: what only reads
	seen       time.Time // owned by accounts.mu
	running    counts
	subscribed count
	// places and tunnels are those of an agent; nil if nothing is counted.
	places, tunnels *admission
}

// get returns the account of id, or the one that latecomers share.
func (a *accounts[K]) get(id K, now time.Time) *account {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.all[id]; c != nil {
		c.seen = now
		return c
	}
	a.sweepLocked(now)
	if len(a.all) >= a.max {
		var latecomers K
		id = latecomers
		if c := a.all[id]; c != nil {
			c.seen = now
			return c
		}
	}
	c := &account{seen: now}
	a.begin(c, id)
	a.all[id] = c
	return c
}

// sweepLocked forgets accounts in which nothing is noted, once in a while.
func (a *accounts[K]) sweepLocked(now time.Time) {
	if now.Sub(a.swept) < time.Second {
		return
	}
	a.swept = now
	for id, c := range a.all {
		// Whoever got the account a moment ago and has not yet entered is safe: the account was seen then.
		if now.Sub(c.seen) > idle && c.empty(now) {
			delete(a.all, id)
		}
	}
}

// empty reports whether a new account would be the same.
func (c *account) empty(now time.Time) bool {
	return c.calls.full(now) && c.reads.full(now) && c.running.none() && c.subscribed.Load() == 0 && c.places.unused() && c.tunnels.unused()
}

// waitFor returns how long to wait for a token of b: at least as long as a new one takes, so that a caller that waits and comes again
// finds it, though clocks and networks are not exact.
func waitFor(b *ratelimit.Bucket, l ratelimit.Limit, now time.Time) time.Duration {
	return min(max(b.Wait(l, 1, now), time.Duration(min(1/l.Rate, 0.1)*float64(time.Second))), maxWait)
}

// maxWait is the longest time to wait that a refusal names.
const maxWait = 24 * time.Hour

// A count is how many run.
type count struct{ atomic.Int64 }

// enter counts one more, unless there are limit already. A limit below 1 is none.
func (c *count) enter(limit int) bool {
	if n := c.Add(1); limit > 0 && n > int64(limit) {
		c.leave()
		return false
	}
	return true
}

func (c *count) leave() { c.Add(-1) }

// The counts are how many interactions of one node run or wait, by consumer. The zero value is empty. It is safe for concurrent use.
type counts struct {
	mu  sync.Mutex
	all int            // owned by mu
	by  map[string]int // by the name of the consumer, without those of none; owned by mu
}

// enter counts one more of a consumer, unless there are limit already, or a quarter is free at most and the consumer has a sixteenth: that
// quarter is for the other consumers of the node. A limit below 1 is none.
func (c *counts) enter(name string, limit int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if free := limit - c.all; limit > 0 && (free <= 0 || free <= limit/4 && c.by[name] >= max(limit/16, 1)) {
		return false
	}
	if c.by == nil {
		c.by = map[string]int{}
	}
	c.all++
	c.by[name]++
	return true
}

func (c *counts) leave(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all--
	if c.by[name]--; c.by[name] == 0 {
		delete(c.by, name)
	}
}

// none reports whether nothing runs.
func (c *counts) none() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all == 0
}
