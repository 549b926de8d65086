package backoff

import (
	"sync"
	"time"
)

// A Budget limits further tries after failures: to a tenth of the calls, and to three per second without calls, so that many callers of what fails do not multiply its load. Its zero value is ready. It is safe for concurrent
// use.
type Budget struct {
	mu     sync.Mutex
	tokens float64   // further tries that are permitted now
	filled time.Time // zero: never used
}

const (
	retriesPerSecond = 3.0 // also the most that time alone gives
	retriesPerCall   = 0.1
	maxRetries       = 100.0 // of the last thousand calls
)

// Call counts a call.
func (b *Budget) Call(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fillLocked(now)
	b.tokens = min(b.tokens+retriesPerCall, maxRetries)
}

// Take reports whether a further try is permitted, and counts it.
func (b *Budget) Take(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fillLocked(now); b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

func (b *Budget) fillLocked(now time.Time) {
	elapsed := time.Second
	if !b.filled.IsZero() {
		elapsed = now.Sub(b.filled)
	}
	if b.tokens < retriesPerSecond {
		b.tokens = min(b.tokens+retriesPerSecond*elapsed.Seconds(), retriesPerSecond)
	}
	b.filled = now
}
