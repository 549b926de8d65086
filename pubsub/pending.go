package pubsub

import "sync"

// maxWaiting is how many records may wait for a first neighbour, counted per shard.
const maxWaiting = 4096

// waiting holds what was announced while nobody listened: the newest record of each thing, per shard.
type waiting struct {
	max int

	mu      sync.Mutex
	records [Shards]map[[32]byte][]byte // owned by mu
}

// keep remembers a record, in place of an earlier one of the same thing. It returns 1 if there is no room, else 0.
func (w *waiting) keep(shard byte, key [32]byte, record []byte) (dropped uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	of := w.records[shard]
	if of == nil {
		of = map[[32]byte][]byte{}
		w.records[shard] = of
	}
	if _, ok := of[key]; !ok && len(of) >= w.max {
		return 1
	}
	of[key] = record
	return 0
}

// drop forgets the record of a thing, because a newer one is on its way.
func (w *waiting) drop(shard byte, key [32]byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.records[shard], key)
}

// empty reports whether nothing waits for a shard.
func (w *waiting) empty(shard byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.records[shard]) == 0
}

// take returns the records of a shard, which then wait no longer.
func (w *waiting) take(shard byte) map[[32]byte][]byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	of := w.records[shard]
	w.records[shard] = nil
	return of
}
