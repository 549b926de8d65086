package ratelimit

import "sync"

// An Inflight limits how many of something run at once, for each key and in all. It is safe for concurrent use.
type Inflight[K comparable] struct {
	each, all int

	mu    sync.Mutex
	byKey map[K]int // without zeros; owned by mu
	total int       // owned by mu
}

// NewInflight returns an Inflight of each for one key, and all for all keys together.
func NewInflight[K comparable](each, all int) *Inflight[K] {
	return &Inflight[K]{each: each, all: all, byKey: map[K]int{}}
}

// An Outcome is a free slot, or the limit that is reached.
type Outcome int

// The outcomes of [Inflight.Enter].
const (
	Entered Outcome = iota
	KeyFull         // the key has its number
	AllFull         // all keys together have theirs
)

// Enter takes a slot of k. Only after Entered must [Inflight.Leave] be called, once.
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

// Len returns how many slots of all keys are taken.
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
