package ratelimit

import "sync"

// An Inflight limits the number of concurrent operations, per key and in total. It is safe for concurrent use.
type Inflight[K comparable] struct {
	each, all int

	mu    sync.Mutex
	byKey map[K]int // without zeros; owned by mu
	total int       // owned by mu
}

// NewInflight returns an Inflight with the limits each per key and all in total.
func NewInflight[K comparable](each, all int) *Inflight[K] {
	return &Inflight[K]{each: each, all: all, byKey: map[K]int{}}
}

// An Outcome is the result of [Inflight.Enter].
type Outcome int

// The outcomes of [Inflight.Enter].
const (
	Entered Outcome = iota
	KeyFull         // the limit of the key is reached
	AllFull         // the total limit is reached
)

// Enter takes a slot of k. After Entered, call [Inflight.Leave] once.
func (f *Inflight[K]) Enter(k K) Outcome {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.byKey[k] >= f.each:
		return KeyFull
	case f.total >= f.all:
		return AllFull
	}
	f.byKey[k]++
	f.total++
	return Entered
}

// Len returns the number of slots in use.
func (f *Inflight[K]) Len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.total
}

// Leave returns a slot of k.
func (f *Inflight[K]) Leave(k K) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byKey[k]--; f.byKey[k] == 0 {
		delete(f.byKey, k)
	}
	f.total--
}
