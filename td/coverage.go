package td

import (
	"sync"
	"time"
)

// Coverage reports how complete an answer is.
type Coverage struct {
	Asked       int `json:"asked"`
	Answered    int `json:"answered"`
	Unreachable int `json:"unreachable"`
	// Refused is how many things of the answer are at hosts that do not talk with this node, because of a policy.
	Refused int       `json:"refused"`
	Oldest  time.Time `json:"oldest,omitzero"`
	// Truncated reports that a deadline or another limit ended the search early: what is missing is unknown.
	Truncated bool `json:"truncated"`
	// More says that the answer ended at the limit of the query: what follows is had by asking for it.
	More bool `json:"more,omitempty"`
}

// Complete reports whether everyone who was asked has answered in full.
func (c Coverage) Complete() bool { return c.Asked == c.Answered && !c.Truncated }

// A CoverageCounter collects a [Coverage] while a query runs. It is safe for concurrent use. The zero value is ready, and a nil
// CoverageCounter counts nothing.
type CoverageCounter struct {
	mu sync.Mutex
	c  Coverage // owned by mu, as total
	// total is how many things fit; negative: that cannot be counted.
	total int
}

func (t *CoverageCounter) update(f func(c *Coverage)) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	f(&t.c)
}

// CountAsked counts n peers that are being asked.
func (t *CoverageCounter) CountAsked(n int) { t.update(func(c *Coverage) { c.Asked += n }) }

// CountAnswer counts one peer that gave a valid answer in time.
func (t *CoverageCounter) CountAnswer() { t.update(func(c *Coverage) { c.Answered++ }) }

// CountUnreachable counts one peer that could not be reached, did not answer in time, or answered with nonsense.
func (t *CoverageCounter) CountUnreachable() { t.update(func(c *Coverage) { c.Unreachable++ }) }

// SetMore notes that the answer ended at the limit of the query, and that there is more.
func (t *CoverageCounter) SetMore() { t.update(func(c *Coverage) { c.More = true }) }

// CountMatches notes n more things that fit, in the answer or not; a negative n says that they cannot be counted.
func (t *CoverageCounter) CountMatches(n int) {
	t.update(func(*Coverage) {
		if t.total += n; n < 0 || t.total < 0 {
			t.total = -1 << 31
		}
	})
}

// Total returns the number of known matches; false if they were not counted.
func (t *CoverageCounter) Total() (n int, ok bool) {
	t.update(func(*Coverage) { n = t.total })
	return max(n, 0), n >= 0
}

// SetTruncated notes that a deadline, or a bound that is not the limit of the query, cut the answer.
func (t *CoverageCounter) SetTruncated() { t.update(func(c *Coverage) { c.Truncated = true }) }

// NoteIssued notes the age of something in the answer: when its record was issued.
func (t *CoverageCounter) NoteIssued(issued time.Time) {
	t.update(func(c *Coverage) {
		if c.Oldest.IsZero() || issued.Before(c.Oldest) {
			c.Oldest = issued
		}
	})
}

// Coverage returns what was counted so far.
func (t *CoverageCounter) Coverage() Coverage {
	var now Coverage
	t.update(func(c *Coverage) { now = *c })
	return now
}
