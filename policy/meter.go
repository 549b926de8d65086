package policy

import (
	"sync"
	"time"

	"github.com/lmosd/lmosd/internal/ratelimit"
)

// A meter is a token bucket that the consumers of a node, or the callers of an agent, share. All together have one rate, of which one may
// use what the others leave. Each has an equal part: when the bucket is below half, each gets only tokens of its own part. A nil meter sets
// no limit. It is safe for concurrent use.
type meter struct {
	limit ratelimit.Limit

	mu    sync.Mutex
	all   ratelimit.Bucket             // owned by mu
	parts map[string]*ratelimit.Bucket // by name; at most maxParts and that of otherNames; owned by mu
}

// maxParts is the number of separate parts. Other names share one, under a name that no caller has.
const (
	maxParts   = 64
	otherNames = "*"
)

func newMeter(perSecond float64, burst int) *meter {
	if perSecond <= 0 {
		return nil
	}
	return &meter{limit: ratelimit.Limit{Rate: perSecond, Burst: float64(max(burst, 1))}, parts: map[string]*ratelimit.Bucket{}}
}

// take takes a token of the part of name, or returns how long to wait for one (see waitFor).
func (m *meter) take(name string) time.Duration {
	if m == nil {
		return 0
	}
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	part := m.partLocked(name, now)
	n := float64(len(m.parts))
	share := ratelimit.Limit{Rate: m.limit.Rate / n, Burst: max(m.limit.Burst/n, 1)}
	switch {
	case n > 1 && part.Wait(share, 1, now) > 0 && float64(m.all.Left(m.limit, now)) <= m.limit.Burst/2:
		return waitFor(part, share, now)
	case !m.all.Take(m.limit, 1, now):
		return waitFor(&m.all, m.limit, now)
	}
	part.Take(share, 1, now)
	return 0
}

// partLocked returns the part of name. Before it adds one, it drops full parts, which equal new ones.
func (m *meter) partLocked(name string, now time.Time) *ratelimit.Bucket {
	if p := m.parts[name]; p != nil {
		return p
	}
	for n, p := range m.parts {
		if p.IsFull(now) {
			delete(m.parts, n)
		}
	}
	if len(m.parts) >= maxParts {
		name = otherNames
	}
	if m.parts[name] == nil {
		m.parts[name] = &ratelimit.Bucket{}
	}
	return m.parts[name]
}

// full reports whether m equals a new meter.
func (m *meter) full(now time.Time) bool {
	if m == nil {
		return true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.all.IsFull(now)
}
