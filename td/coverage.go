package td

import (
	"sync"
	"time"
)

// Coverage reports the completeness of an answer.
type Coverage struct {
	Asked       int `json:"asked"`
	Answered    int `json:"answered"`
	Unreachable int `json:"unreachable"`
	// Refused is the number of Things in the answer whose hosts refuse this node because of a policy.
	Refused int       `json:"refused"`
	Oldest  time.Time `json:"oldest,omitzero"`
	// Truncated reports that a deadline or another limit ended the search early, so that any Things may be missing.
	Truncated bool `json:"truncated"`
	// More reports that the answer ended at the limit of the query and that there is a next page.
	More bool `json:"more,omitempty"`
}

// Complete reports whether all queried peers have answered in full.
func (c Coverage) Complete() bool { return c.Asked == c.Answered && !c.Truncated }

// A CoverageCounter collects a [Coverage] while a query runs. It is safe for concurrent use. The zero value is ready, and a nil
// CoverageCounter counts nothing.
type CoverageCounter struct {
	mu sync.Mutex
	c  Coverage // owned by mu, as total
	// total is the number of matches; negative: unknown.
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

// CountAsked counts n queried peers.
func (t *CoverageCounter) CountAsked(n int) { t.update(func(c *Coverage) { c.Asked += n }) }

// CountAnswer counts a peer that returned a valid answer in time.
func (t *CoverageCounter) CountAnswer() { t.update(func(c *Coverage) { c.Answered++ }) }

// CountUnreachable counts a peer that could not be reached, did not answer in time, or returned an invalid answer.
func (t *CoverageCounter) CountUnreachable() { t.update(func(c *Coverage) { c.Unreachable++ }) }

// SetMore records that the answer ended at the limit of the query and that there are more matches.
func (t *CoverageCounter) SetMore() { t.update(func(c *Coverage) { c.More = true }) }

// CountMatches counts n further matches, in the answer or not; a negative n means that the number is unknown.
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

// SetTruncated records that a deadline, or a bound other than the limit of the query, truncated the answer.
func (t *CoverageCounter) SetTruncated() { t.update(func(c *Coverage) { c.Truncated = true }) }

// NoteIssued records the issue time of a record in the answer.
func (t *CoverageCounter) NoteIssued(issued time.Time) {
	t.update(func(c *Coverage) {
		if c.Oldest.IsZero() || issued.Before(c.Oldest) {
			c.Oldest = issued
		}
	})
}

// Coverage returns the current counts.
func (t *CoverageCounter) Coverage() Coverage {
	var now Coverage
	t.update(func(c *Coverage) { now = *c })
	return now
}
