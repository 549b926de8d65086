package td

import (
	"sync"
	"time"
)

// Coverage says how complete an answer is.
type Coverage struct {
	Asked       int `json:"asked"`
	Answered    int `json:"answered"`
	Unreachable int `json:"unreachable"`
	// Refused is how many things of the answer are at hosts that do not talk with this node, because of a policy.
	Refused int       `json:"refused"`
	Oldest  time.Time `json:"oldest,omitzero"`
	// Truncated says that something was not looked at, because of a deadline or another bound: nobody knows what is missing.
	Truncated bool `json:"truncated"`
	// More says that the answer ended at the limit of the query: what follows is had by asking for it.
	More bool `json:"more,omitempty"`
}

// Complete reports whether everyone who was asked has answered in full.
func (c Coverage) Complete() bool { return c.Asked == c.Answered && !c.Truncated }

// A Tally collects a [Coverage] while a query runs. It is safe for concurrent use; the zero value is ready, and a nil
// Tally counts nothing.
type Tally struct {
	mu sync.Mutex
	c  Coverage // owned by mu, as total
	// total is how many things fit; negative: that cannot be counted.
	total int
}

func (t *Tally) note(f func(c *Coverage)) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	f(&t.c)
}

// Ask counts n peers that are being asked.
func (t *Tally) Ask(n int) { t.note(func(c *Coverage) { c.Asked += n }) }

// Answer counts one peer that gave a valid answer in time.
func (t *Tally) Answer() { t.note(func(c *Coverage) { c.Answered++ }) }

// Fail counts one peer that could not be reached, did not answer in time, or answered with nonsense.
func (t *Tally) Fail() { t.note(func(c *Coverage) { c.Unreachable++ }) }

// Limit notes that the answer ended at the limit of the query, and that there is more.
func (t *Tally) Limit() { t.note(func(c *Coverage) { c.More = true }) }

// Count notes n more things that fit, in the answer or not; a negative n says that they cannot be counted.
func (t *Tally) Count(n int) {
	t.note(func(*Coverage) {
		if t.total += n; n < 0 || t.total < 0 {
			t.total = -1 << 31
		}
	})
}

// Total returns how many things fit, as far as anybody knows; false if they were not counted.
func (t *Tally) Total() (n int, ok bool) {
	t.note(func(*Coverage) { n = t.total })
	return max(n, 0), n >= 0
}

// Truncate notes that a deadline, or a bound that is not the limit of the query, cut the answer.
func (t *Tally) Truncate() { t.note(func(c *Coverage) { c.Truncated = true }) }

// See notes the age of something in the answer: when its record was issued.
func (t *Tally) See(issued time.Time) {
	t.note(func(c *Coverage) {
		if c.Oldest.IsZero() || issued.Before(c.Oldest) {
			c.Oldest = issued
		}
	})
}

// Coverage returns what was counted so far.
func (t *Tally) Coverage() Coverage {
	var now Coverage
	t.note(func(c *Coverage) { now = *c })
	return now
}
