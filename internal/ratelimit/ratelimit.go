// Package ratelimit provides token buckets, single and per key, and limits of concurrent operations per key. The time is an argument of
// every call, so that callers and tests choose it.
package ratelimit

import (
	"math"
	"sync"
	"time"
)

// A Limit is the size and the rate of a token bucket. With a Rate of zero or less there is no limit.
type Limit struct {
	Rate  float64 // tokens per second
	Burst float64 // tokens in a full bucket, at least 1
}

// Every returns the limit of burst tokens in a full bucket, and one more after each.
func Every(burst int, each time.Duration) Limit {
	return Limit{Rate: float64(time.Second) / float64(each), Burst: float64(burst)}
}

// longest bounds all computed times, so that their sums do not overflow.
const longest = 30 * 365 * 24 * time.Hour

// cost returns the time that n tokens take to fill, rounded down, so that a full bucket always holds Burst single tokens.
func (l Limit) cost(n float64) time.Duration {
	return time.Duration(min(n/l.Rate*float64(time.Second), float64(longest)))
}

// A Bucket is the state of one token bucket: the time at which it is full again. The zero Bucket is full. If the Limit of
// a call differs from that of the last one, the tokens scale with it. A Bucket is not safe for concurrent use.
type Bucket struct{ full time.Time }

// debt is the time until the bucket is full.
func (b *Bucket) debt(now time.Time) time.Duration { return max(0, b.full.Sub(now)) }

// Take removes n tokens if the bucket holds them, and reports whether it did.
func (b *Bucket) Take(l Limit, n float64, now time.Time) bool {
	if b.Wait(l, n, now) > 0 {
		return false
	}
	b.add(l, n, now)
	return true
}

// Wait returns how long it takes until the bucket holds n tokens; 0 means that it holds them now. A bucket never holds
// more than Burst; for a larger n the result is the time to fill n tokens.
func (b *Bucket) Wait(l Limit, n float64, now time.Time) time.Duration {
	if l.Rate <= 0 {
		return 0
	}
	return max(0, b.debt(now)+l.cost(n)-l.cost(l.Burst))
}

// Charge removes n tokens for completed work. The number of tokens may become negative, but not less than -Burst.
func (b *Bucket) Charge(l Limit, n float64, now time.Time) {
	b.add(l, n, now)
	if most := now.Add(2 * l.cost(l.Burst)); l.Rate > 0 && b.full.After(most) {
		b.full = most
	}
}

func (b *Bucket) add(l Limit, n float64, now time.Time) {
	if l.Rate > 0 {
		b.full = now.Add(b.debt(now) + l.cost(n))
	}
}

// Left returns the number of whole tokens, which is negative after a [Bucket.Charge] beyond the last one. It is Burst without a limit.
func (b *Bucket) Left(l Limit, now time.Time) int {
	const rounding = 1e-6 // of floating-point numbers: the time itself is rounded in favor of the caller
	return int(math.Floor(l.Burst - b.debt(now).Seconds()*max(l.Rate, 0) + rounding))
}

// IsFull reports whether the bucket is full, like a new one.
func (b *Bucket) IsFull(now time.Time) bool { return !b.full.After(now) }

// A Limiter has a [Bucket] for each key. It removes full buckets. It is safe for concurrent use.
type Limiter[K comparable] struct {
	limit Limit
	max   int

	mu      sync.Mutex
	buckets map[K]*Bucket // at most max and that of the zero K; owned by mu
	swept   time.Time     // owned by mu
}

// NewLimiter returns a limiter with at most most keys. Further keys share the bucket of the zero K.
func NewLimiter[K comparable](l Limit, most int) *Limiter[K] {
	return &Limiter[K]{limit: l, max: most, buckets: map[K]*Bucket{}}
}

// Take removes n tokens of k and returns 0. With fewer tokens it removes none and returns the time to wait.
func (l *Limiter[K]) Take(k K, n float64, now time.Time) time.Duration {
	if l.limit.Rate <= 0 {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.bucketLocked(k, now)
	wait := b.Wait(l.limit, n, now)
	if wait == 0 {
		b.add(l.limit, n, now)
	}
	return wait
}

// Charge removes n tokens of k, see [Bucket.Charge].
func (l *Limiter[K]) Charge(k K, n float64, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bucketLocked(k, now).Charge(l.limit, n, now)
}

// Len returns the number of stored keys.
func (l *Limiter[K]) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.buckets)
}

func (l *Limiter[K]) bucketLocked(k K, now time.Time) *Bucket {
	if b := l.buckets[k]; b != nil {
		return b
	}
	l.sweepLocked(now)
	if len(l.buckets) >= l.max {
		var shared K
		k = shared
		if b := l.buckets[k]; b != nil {
			return b
		}
	}
	b := &Bucket{}
	l.buckets[k] = b
	return b
}

// sweepLocked removes full buckets, at most once per fill time of a bucket, and once per second without room.
func (l *Limiter[K]) sweepLocked(now time.Time) {
	pause := l.limit.cost(l.limit.Burst)
	if len(l.buckets) >= l.max {
		pause = min(pause, time.Second)
	}
	if now.Sub(l.swept) < pause {
		return
	}
	l.swept = now
	for k, b := range l.buckets {
		if b.IsFull(now) {
			delete(l.buckets, k)
		}
	}
}
