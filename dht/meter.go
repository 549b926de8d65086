package dht

import (
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
)

// A meter gives each peer a bucket of tokens. It is safe for concurrent use.
type meter struct {
	rate  float64 // tokens per second
	burst float64

	// buckets and swept are owned by mu.
	mu      sync.Mutex
	buckets map[peer.ID]bucket
	swept   time.Time
}

type bucket struct {
	tokens float64
	at     time.Time
}

func newMeter(rate, burst float64) *meter {
	return &meter{rate: rate, burst: burst, buckets: map[peer.ID]bucket{}}
}

// take takes a token of p at the time now, and reports whether there was one.
func (m *meter) take(p peer.ID, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sweepLocked(now)
	b, ok := m.buckets[p]
	if !ok {
		b = bucket{tokens: m.burst, at: now}
	}
	b.tokens = min(m.burst, b.tokens+now.Sub(b.at).Seconds()*m.rate)
	b.at = now
	allowed := b.tokens >= 1
	if allowed {
		b.tokens--
	}
	m.buckets[p] = b
	return allowed
}

// sweepLocked forgets buckets that are full again, once in the time that filling one takes: a full bucket and none are the
// same. So the map holds the peers of that time only, and each of those has held a connection.
func (m *meter) sweepLocked(now time.Time) {
	refill := time.Duration(m.burst / m.rate * float64(time.Second))
	if now.Sub(m.swept) < refill {
		return
	}
	m.swept = now
	for p, b := range m.buckets {
		if now.Sub(b.at) >= refill {
			delete(m.buckets, p)
		}
	}
}
