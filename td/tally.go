package td

import (
	"sync"
	"time"
)

// Coverage says how complete an answer is.
type Coverage struct {
	Asked       int       `json:"asked"`
	Answered    int       `json:"answered"`
	Unreachable int       `json:"unreachable"`
	Oldest      time.Time `json:"oldest,omitzero"`
	Truncated   bool      `json:"truncated"`
}

// Complete reports whether everyone who was asked has answered in full.
func (c Coverage) Complete() bool { return c.Asked == c.Answered && !c.Truncated }

// A Tally collects a [Coverage] while a query runs. It is safe for concurrent use; the zero value is ready, and a nil
// Tally counts nothing.
type Tally struct {
	mu sync.Mutex
	c  Coverage // owned by mu
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

// Truncate notes that a limit or a deadline cut the answer.
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
