package directory

import "sync"

// Stats has counters since [New], and current sizes.
type Stats struct {
	Own     int // Things that this node publishes
	Known   int // all known Things
	Removed int // withdrawn and expired Things with a known sequence number
	Down    int // nodes that count as down
	Bytes   int // approximate memory of descriptions of others and the index
	Words   int // distinct word roots in the index

	Counters
	Probes uint64 // of nodes that were down
}

// Counters are counters of events.
type Counters struct {
	Added         uint64 // new descriptions and new records of known ones
	Withdrawn     uint64 // tombstones and moves
	Expired       uint64
	RolledBack    uint64 // records older than the known one
	Equivocations uint64 // different records with one seq, see [Directory.Equivocations]
	Refused       uint64 // no room
	Evicted       uint64 // evicted for others
	Invalid       uint64 // failed verification
	Dropped       uint64 // records dropped because of a full queue
	Fetches       uint64 // fetches of TDs
	Unfetched     uint64 // failed fetches
	Corrupt       uint64 // corrupt entries of the store
}

type counters struct {
	mu sync.Mutex // owns Counters
	Counters
}

// inc increments one of the counters.
func (c *counters) inc(n *uint64) {
	c.mu.Lock()
	*n++
	c.mu.Unlock()
}

// Stats returns the counters.
func (d *Directory) Stats() (s Stats) {
	s.Down, s.Probes = d.Counts()
	d.count.mu.Lock()
	s.Counters = d.count.Counters
	d.count.mu.Unlock()
	d.mu.RLock()
	defer d.mu.RUnlock()
	s.Own, s.Known, s.Removed = d.own.Len(), len(d.live), len(d.removed)
	s.Bytes, s.Words = d.bytes+d.index.Bytes(), d.index.Words()
	return s
}
