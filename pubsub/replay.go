package pubsub

import (
	"sync"

	"github.com/lmosd/lmosd/td"
)

// maxReplay is how many things the replay state remembers at least; at most it holds twice as many, of about 400 bytes.
const maxReplay = 1 << 15

// replay remembers the newest record of each thing that gossip brought. It is apart from what the node knows
// otherwise: a record that came by another way must still be forwarded when gossip brings it for the first time.
//
// It has two generations: what was touched lately is in young; when young is full it becomes old, and what was old is
// forgotten. So it is bounded, and the things that are refreshed stay.
type replay struct {
	max int

	mu          sync.Mutex
	recent, old map[[32]byte]last // owned by mu
}

// last is what was heard last of a thing.
type last struct {
	record td.Record // only what td's order of records needs
	now    shards    // where this record was heard
	ever   shards    // where any record of the thing was heard
}

// standing says how a record stands to what was heard of its thing before.
type standing int

const (
	older   standing = iota // than what was heard
	again                   // the same, on the same shard
	further                 // the same, on a shard where it was not yet
	newest
)

// note remembers that r was heard on a shard and says how it stands.
func (p *replay) note(shard byte, r *td.Record) standing {
	key, next := r.Key(), essence(r)
	p.mu.Lock()
	defer p.mu.Unlock()
	known, ok := p.getLocked(key)
	how := older
	switch order := next.Compare(&known.record); {
	case !ok || order > 0:
		known, how = last{record: next, ever: known.ever}, newest
	case order == 0 && known.now.has(shard):
		how = again
	case order == 0:
		how = further
	}
	if how != older {
		known.now |= 1 << shard
		known.ever |= 1 << shard
	}
	p.putLocked(key, known)
	return how
}

// seenOn returns the shards on which records of a thing were heard.
func (p *replay) seenOn(key [32]byte) shards {
	p.mu.Lock()
	defer p.mu.Unlock()
	known, _ := p.getLocked(key)
	return known.ever
}

func (p *replay) getLocked(key [32]byte) (last, bool) {
	if l, ok := p.recent[key]; ok {
		return l, true
	}
	l, ok := p.old[key]
	return l, ok
}

func (p *replay) putLocked(key [32]byte, l last) {
	if p.recent == nil {
		p.recent = map[[32]byte]last{}
	}
	if _, ok := p.recent[key]; !ok && len(p.recent) >= p.max {
		p.old, p.recent = p.recent, map[[32]byte]last{}
	}
	p.recent[key] = l
}

// essence returns what orders r among the records of its thing. The TD inside is no part of it: two copies of one
// record, with and without it, are the same.
func essence(r *td.Record) td.Record {
	e := *r
	e.Owner, e.Thing, e.Hosts, e.Capabilities = "", "", nil, nil
	e.Title, e.Summary, e.Successor, e.Inline, e.Raw = "", "", "", nil, nil
	return e
}
