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
	b := m.filledLocked(p, now)
	allowed := b.tokens >= 1
	if allowed {
		b.tokens--
	}
	m.buckets[p] = b
	return allowed
}

// charge takes n tokens of p afterwards, for what its request turned out to cost. There may be fewer than none then, but no
// fewer than a full bucket makes good.
func (m *meter) charge(p peer.ID, n float64, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.filledLocked(p, now)
	b.tokens = max(b.tokens-n, -m.burst)
	m.buckets[p] = b
}

// filledLocked returns the bucket of p as it is at the time now.
func (m *meter) filledLocked(p peer.ID, now time.Time) bucket {
	b, ok := m.buckets[p]
	if !ok {
		return bucket{tokens: m.burst, at: now}
	}
	b.tokens = min(m.burst, b.tokens+now.Sub(b.at).Seconds()*m.rate)
	b.at = now
	return b
}

// sweepLocked forgets buckets that are full again, once in the time that filling one takes: a full bucket and none are the
// same. So the map holds the peers of that time, or twice that, only, and each of those has held a connection.
func (m *meter) sweepLocked(now time.Time) {
	refill := time.Duration(m.burst / m.rate * float64(time.Second))
	if now.Sub(m.swept) < refill {
		return
	}
	m.swept = now
	for p, b := range m.buckets {
		if b.tokens+now.Sub(b.at).Seconds()*m.rate >= m.burst {
			delete(m.buckets, p)
		}
	}
}
