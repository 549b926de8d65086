package directory

import "sync/atomic"

// Stats counts what happened since [New], and what there is.
type Stats struct {
	Own   int // things that this node publishes
	Known int // things that are known, own ones included
	Gone  int // things that are not, but must not come back older than they were
	Down  int // nodes that could not be reached lately
	Bytes int // that descriptions of others and the index take, about
	Words int // distinct roots of words in the index

	Added      uint64 // new descriptions and new records of known ones
	Withdrawn  uint64 // tombstones and moves
	Expired    uint64
	RolledBack uint64 // older records than the known one
	Forks      uint64 // different records of one seq: equivocation, see [Directory.Forks]
	Refused    uint64 // no room
	Evicted    uint64 // left for others when there was no room
	Invalid    uint64 // not verified
	Dropped    uint64 // offers that did not fit into a queue
	Fetches    uint64 // TDs that had to be fetched
	Unfetched  uint64 // of these, those that could not be
	Corrupt    uint64 // entries of the store that could not be read
	Probes     uint64 // of nodes that were down
}

type counts struct {
	added, withdrawn, expired, rolledBack, forks, refused, evicted, invalid, dropped, fetches, unfetched, corrupt, probes atomic.Uint64
}

// Stats returns the counters.
func (d *Directory) Stats() Stats {
	s := Stats{
		Down:       d.reach.count(),
		Added:      d.count.added.Load(),
		Withdrawn:  d.count.withdrawn.Load(),
		Expired:    d.count.expired.Load(),
		RolledBack: d.count.rolledBack.Load(),
		Forks:      d.count.forks.Load(),
		Refused:    d.count.refused.Load(),
		Evicted:    d.count.evicted.Load(),
		Invalid:    d.count.invalid.Load(),
		Dropped:    d.count.dropped.Load(),
		Fetches:    d.count.fetches.Load(),
		Unfetched:  d.count.unfetched.Load(),
		Corrupt:    d.count.corrupt.Load(),
		Probes:     d.count.probes.Load(),
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	s.Own, s.Known, s.Gone = d.own.Len(), len(d.living), len(d.gone)
	s.Bytes, s.Words = d.weight+d.index.Bytes(), d.index.Words()
	return s
}
