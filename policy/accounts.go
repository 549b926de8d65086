package policy

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/internal/ratelimit"
)

// idle is the inactivity after which an account with a full bucket is dropped.
const idle = time.Minute

// accounts are the accounts of callers, or of agents.
type accounts[K comparable] struct {
	max int
	// begin initializes a new account.
	begin func(*account, K)

	mu sync.Mutex
	// all has the accounts that are active or were used recently; owned by mu. Further keys share the account of the zero K.
	all   map[K]*account
	swept time.Time
}

func newAccounts[K comparable](most int, begin func(*account, K)) accounts[K] {
	return accounts[K]{max: most, begin: begin, all: map[K]*account{}}
}

// An account counts the messages of one caller or agent. A nil account counts nothing.
type account struct {
	calls      atomic.Pointer[meter] // all messages, except reads of a caller; nil without a limit
	reads      atomic.Pointer[meter] // of a caller: messages that only read
	seen       time.Time             // owned by accounts.mu
	running    counts
	subscribed count
	// places and tunnels are those of an agent; nil without a limit.
	places, tunnels *admission
}

// get returns the account of id, or the shared one.
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

// sweepLocked drops idle accounts, at most once a second.
func (a *accounts[K]) sweepLocked(now time.Time) {
	if now.Sub(a.swept) < time.Second {
		return
	}
	a.swept = now
	for id, c := range a.all {
		// An account that was returned but not yet entered is safe, because seen is recent.
		if now.Sub(c.seen) > idle && c.empty(now) {
			delete(a.all, id)
		}
	}
}

// each calls f for every account.
func (a *accounts[K]) each(f func(*account, K)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for id, c := range a.all {
		f(c, id)
	}
}

// empty reports whether c equals a new account.
func (c *account) empty(now time.Time) bool {
	return c.calls.Load().full(now) && c.reads.Load().full(now) && c.running.none() && c.subscribed.Load() == 0 && c.places.unused() && c.tunnels.unused()
}

// waitFor returns the time until b has a token, but at least the time of one new token up to 100 ms, so that a retry after it succeeds
// despite inexact clocks and networks.
func waitFor(b *ratelimit.Bucket, l ratelimit.Limit, now time.Time) time.Duration {
	return min(max(b.Wait(l, 1, now), time.Duration(min(1/l.Rate, 0.1)*float64(time.Second))), maxWait)
}

// maxWait is the longest time to wait in an error.
const maxWait = 24 * time.Hour

// A count is a number of running interactions.
type count struct{ atomic.Int64 }

// enter counts one more, up to limit. A limit below 1 means no limit.
func (c *count) enter(limit int) bool {
	if n := c.Add(1); limit > 0 && n > int64(limit) {
		c.leave()
		return false
	}
	return true
}

func (c *count) leave() { c.Add(-1) }

// counts are the numbers of running or waiting interactions of one node, by consumer. The zero value is empty. It is safe for concurrent
// use.
type counts struct {
	mu  sync.Mutex
	all int            // owned by mu
	by  map[string]int // by non-empty name of the consumer; owned by mu
}

// enter counts one more of a consumer, up to limit. The last quarter is reserved for consumers with less than a sixteenth. A limit below 1
// means no limit.
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

// none reports whether no interaction runs.
func (c *counts) none() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all == 0
}
