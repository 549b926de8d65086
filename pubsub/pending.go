package pubsub

import "sync"

// maxPending limits the records per shard that wait for a first peer.
const maxPending = 4096

// pending holds records that were announced without a listening peer: the newest record of each Thing, per shard.
type pending struct {
	max int

	mu      sync.Mutex
	records [Shards]map[[32]byte][]byte // owned by mu
}

// keep stores a record in place of an earlier one of the same Thing. It returns 1 if the shard is full, else 0.
func (w *pending) keep(shard byte, key [32]byte, record []byte) (dropped uint64) {
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

// drop removes the record of a Thing, because a newer one is published.
func (w *pending) drop(shard byte, key [32]byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.records[shard], key)
}

// empty reports whether no record waits for a shard.
func (w *pending) empty(shard byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.records[shard]) == 0
}

// take removes and returns the records of a shard.
func (w *pending) take(shard byte) map[[32]byte][]byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	of := w.records[shard]
	w.records[shard] = nil
	return of
}
