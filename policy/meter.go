package policy

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// A meter is a bucket that several share: that of a node, of which each of its consumers has a part, or that of an agent. What they take
// together is one rate, however many they are. One takes the whole rate while the others leave it. Each has an equal part that no
// other takes: below half of the bucket each gets tokens of its own part only. A nil meter sets no limit. It is safe for concurrent use.
type meter struct {
	all *rate.Limiter

	mu    sync.Mutex
	parts map[string]*rate.Limiter // by name; at most maxParts and that of otherNames; owned by mu
}

// maxParts is how many have a part of their own. Others share one, under a name that nobody has.
const (
	maxParts   = 64
	otherNames = "*"
)

func newMeter(perSecond float64, burst int) *meter {
	all := bucket(perSecond, burst)
	if all == nil {
		return nil
	}
	return &meter{all: all, parts: map[string]*rate.Limiter{}}
}

// take takes a token of the part of name. If there is none it returns how long to wait for one, as the function take does.
func (m *meter) take(name string) time.Duration {
	if m == nil {
		return 0
	}
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	part := m.partLocked(name, now)
	if len(m.parts) > 1 && part.TokensAt(now) < 1 && m.all.TokensAt(now) <= float64(m.all.Burst())/2 {
		return waitFor(part, now)
	}
	wait := take(m.all, now)
	if wait == 0 {
		part.AllowN(now, 1)
	}
	return wait
}

// partLocked returns the part of name. If it is new, those that are full, since nobody has asked for a while, are forgotten, and the
// parts are made equal again.
func (m *meter) partLocked(name string, now time.Time) *rate.Limiter {
	if p := m.parts[name]; p != nil {
		return p
	}
	for n, p := range m.parts {
		if full(p, now) {
			delete(m.parts, n)
		}
	}
	if len(m.parts) >= maxParts {
		name = otherNames
		if p := m.parts[name]; p != nil {
			return p
		}
	}
	p := rate.NewLimiter(m.all.Limit(), m.all.Burst())
	m.parts[name] = p
	n := len(m.parts)
	for _, p := range m.parts {
		p.SetLimitAt(now, m.all.Limit()/rate.Limit(n))
		p.SetBurstAt(now, max(m.all.Burst()/n, 1))
	}
	return p
}

// full reports whether a new meter would be the same.
func (m *meter) full(now time.Time) bool { return m == nil || full(m.all, now) }
