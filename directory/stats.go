package directory

import "sync/atomic"

// Stats has counters since [New], and current sizes.
type Stats struct {
	Own   int // things that this node publishes
	Known int // things that are known, own ones included
	Gone  int // withdrawn and expired Things with a known sequence number
	Down  int // nodes that count as down
	Bytes int // approximate memory of descriptions of others and the index
	Words int // distinct word roots in the index

	Added         uint64 // new descriptions and new records of known ones
	Withdrawn     uint64 // tombstones and moves
	Expired       uint64
	RolledBack    uint64 // records older than the known one
	Equivocations uint64 // different records with one seq: equivocation, see [Directory.Equivocations]
	Refused       uint64 // no room
	Evicted       uint64 // evicted for others
	Invalid       uint64 // failed verification
	Dropped       uint64 // records dropped because of a full queue
	Fetches       uint64 // fetches of TDs
	Unfetched     uint64 // failed fetches
	Corrupt       uint64 // corrupt entries of the store
	Probes        uint64 // of nodes that were down
}

type counts struct {
	added, withdrawn, expired, rolledBack, equivocations, refused, evicted, invalid, dropped, fetches, unfetched, corrupt atomic.Uint64
}

// Stats returns the counters.
func (d *Directory) Stats() Stats {
	s := Stats{
		Added:         d.count.added.Load(),
		Withdrawn:     d.count.withdrawn.Load(),
		Expired:       d.count.expired.Load(),
		RolledBack:    d.count.rolledBack.Load(),
		Equivocations: d.count.equivocations.Load(),
		Refused:       d.count.refused.Load(),
		Evicted:       d.count.evicted.Load(),
		Invalid:       d.count.invalid.Load(),
		Dropped:       d.count.dropped.Load(),
		Fetches:       d.count.fetches.Load(),
		Unfetched:     d.count.unfetched.Load(),
		Corrupt:       d.count.corrupt.Load(),
	}
	s.Down, s.Probes = d.Counts()
	d.mu.RLock()
	defer d.mu.RUnlock()
	s.Own, s.Known, s.Gone = d.own.Len(), len(d.living), len(d.gone)
	s.Bytes, s.Words = d.weight+d.index.Bytes(), d.index.Words()
	return s
}
