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
// CoverageCounter ignores all calls.
type CoverageCounter struct {
	mu       sync.Mutex
	coverage Coverage // owned by mu
	total    int      // the number of matches; negative: unknown; owned by mu
}

func (c *CoverageCounter) update(f func(c *Coverage)) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.coverage)
}

// CountAsked counts n queried peers.
func (c *CoverageCounter) CountAsked(n int) { c.update(func(v *Coverage) { v.Asked += n }) }

// CountAnswer counts a peer that returned a valid answer in time.
func (c *CoverageCounter) CountAnswer() { c.update(func(v *Coverage) { v.Answered++ }) }

// CountUnreachable counts a peer that could not be reached, did not answer in time, or returned an invalid answer.
func (c *CoverageCounter) CountUnreachable() { c.update(func(v *Coverage) { v.Unreachable++ }) }

// SetMore records that the answer ended at the limit of the query and that there are more matches.
func (c *CoverageCounter) SetMore() { c.update(func(v *Coverage) { v.More = true }) }

// CountMatches counts n further matches, in the answer or not; a negative n means that the number is unknown.
func (c *CoverageCounter) CountMatches(n int) {
	c.update(func(*Coverage) {
		if c.total += n; n < 0 || c.total < 0 {
			c.total = -1 << 31
		}
	})
}

// Total returns the number of matches; ok is false if the number is unknown.
func (c *CoverageCounter) Total() (n int, ok bool) {
	c.update(func(*Coverage) { n = c.total })
	return max(n, 0), n >= 0
}

// SetTruncated records that a deadline, or a bound other than the limit of the query, truncated the answer.
func (c *CoverageCounter) SetTruncated() { c.update(func(v *Coverage) { v.Truncated = true }) }

// NoteIssued records the issue time of a record in the answer.
func (c *CoverageCounter) NoteIssued(issued time.Time) {
	c.update(func(v *Coverage) {
		if v.Oldest.IsZero() || issued.Before(v.Oldest) {
			v.Oldest = issued
		}
	})
}

// Coverage returns the current counts.
func (c *CoverageCounter) Coverage() (now Coverage) {
	c.update(func(v *Coverage) { now = *v })
	return now
}
