package boundedmap

import "sync"

// Recent is a map that keeps the keys used last. It has two generations: when the newer one has Size keys, it becomes the older one, and the
// previous older one is dropped. Get adds a key of the older generation to the newer one. So a Recent has at most twice Size keys, and the
// Size keys used last are among them. It is safe for concurrent use.
type Recent[K comparable, V any] struct {
	// Size is the number of keys of a generation. It is set before the first use.
	Size int

	mu           sync.Mutex
	newer, older map[K]V // owned by mu
}

// Get returns the value of a key, and whether the map has it.
func (r *Recent[K, V]) Get(k K) (V, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, ok := r.newer[k]
	if ok {
		return v, true
	}
	if v, ok = r.older[k]; ok {
		r.putLocked(k, v)
	}
	return v, ok
}

// Put sets the value of a key.
func (r *Recent[K, V]) Put(k K, v V) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.putLocked(k, v)
}

func (r *Recent[K, V]) putLocked(k K, v V) {
	if _, ok := r.newer[k]; !ok && (r.newer == nil || len(r.newer) >= r.Size) {
		r.newer, r.older = map[K]V{}, r.newer
	}
	r.newer[k] = v
}

// Len returns the number of keys. A key of both generations counts twice.
func (r *Recent[K, V]) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.newer) + len(r.older)
}
