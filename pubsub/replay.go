package pubsub

import (
	"sync"

	"github.com/lmosd/lmosd/td"
)

// maxReplay is the minimum number of Things with replay state; the maximum is twice as many, of about 400 bytes each.
const maxReplay = 1 << 15

// replay holds the newest record of each Thing received over gossip. It is separate from the index of the node: a record that came
// over another path must still be forwarded when gossip delivers it first.
//
// It has two generations: recent holds the entries used last. When it is full it becomes old, and the previous old is dropped. The
// state is bounded, and Things that are refreshed stay.
type replay struct {
	max int

	mu          sync.Mutex
	recent, old map[[32]byte]last // owned by mu
}

// last is the newest record received of a Thing.
type last struct {
	record td.Record // only the fields that order records
	now    shards    // on which this record was received
	ever   shards    // on which any record of the Thing was received
}

// order is the relation of a record to the records received before.
type order int

const (
	older      order = iota // than the newest received
	repeated                // the newest, on a shard where it was received
	onNewShard              // the newest, on another shard
	newest
)

// note records that r was received on a shard and returns its order.
func (p *replay) note(shard byte, r *td.Record) order {
	key, next := r.CarrierKey(), essence(r)
	p.mu.Lock()
	defer p.mu.Unlock()
	known, ok := p.getLocked(key)
	how := older
	switch order := next.Compare(&known.record); {
	case !ok || order > 0:
		known, how = last{record: next, ever: known.ever}, newest
	case order == 0 && known.now.has(shard):
		how = repeated
	case order == 0:
		how = onNewShard
	}
	if how != older {
		known.now |= 1 << shard
		known.ever |= 1 << shard
	}
	p.putLocked(key, known)
	return how
}

// seenOn returns the shards on which records of a Thing were received.
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

// essence returns the fields that order r among the records of its Thing. The TD inside is not part of it: copies of a record with
// and without it are equal.
func essence(r *td.Record) td.Record {
	e := *r
	e.Owner, e.Thing, e.Host, e.Grant, e.Hosts, e.Capabilities = "", "", "", nil, nil, nil
	e.Title, e.Summary, e.Successor, e.Inline, e.Raw = "", "", "", nil, nil
	return e
}
