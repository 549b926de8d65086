// Package keylock provides one lock per key, for as long as a caller holds it or waits for it.
package keylock

import "sync"

// Locks has one lock for each key in use. The zero value is ready. It is safe for concurrent use.
type Locks struct {
	mu    sync.Mutex
	locks map[string]*lock // owned by mu
}

type lock struct {
	sync.Mutex
	users int // that hold it or wait for it; owned by Locks.mu
}

// Lock locks a key until unlock is called. Other keys are independent.
func (l *Locks) Lock(key string) (unlock func()) {
	l.mu.Lock()
	if l.locks == nil {
		l.locks = map[string]*lock{}
	}
	k := l.locks[key]
	if k == nil {
		k = &lock{}
		l.locks[key] = k
	}
	k.users++
	l.mu.Unlock()
	k.Lock()
	return func() {
		k.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		if k.users--; k.users == 0 {
			delete(l.locks, key)
		}
	}
}
