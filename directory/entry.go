package directory

import (
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/directory/eviction"
	"github.com/lmosd/lmosd/directory/index"
	"github.com/lmosd/lmosd/directory/lookalike"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// An entry is the state of one Thing of one owner. It is owned by Directory.mu.
//
//	         newer record        tombstone, move, expiry
//	absent ──────────────▶ live ─────────────────────────▶ removed ──▶ absent
//	                        ▲                                 │    when no older record can be valid
//	                        └─────────────────────────────────┘
//	                                   newer record
type entry struct {
	eviction.Item // of Directory.room

	seq uint64 // the highest known
	// until is when the entry may be dropped, once it is removed.
	until              time.Time
	view               *view           // nil when removed
	tombstone          *tombstone      // nil when live, and when removed by expiration
	bound              interact.Thing  // of Options.Bind for view, or nil
	at                 index.Position  // in the index, when live
	bytes              int             // memory of view and terms, see viewSize; 0 when removed
	heapIndex          int             // index in Directory.live or removed
	own                bool            // this node publishes it
	stored             bool            // the store has it, or will have it after the current write
	used               bool            // a caller requested exactly this Thing; reset when an eviction passes it over
	reportedDown       atomic.Bool     // it was reported to watchers as unreachable, see reportHost
	nameClass          lookalike.Class // of the owner, for the name; see lookalikes
	nameCounted        bool            // it is counted in lookalikes
	equivocationLogged bool            // an equivocation was logged
	hosting            *hosting        // of a Thing that its owner has granted to nodes, else nil
	hostsDue           time.Time       // when the record of the first host expires
}

// A tombstone is the tombstone or moved record of a Thing. Of a record with more than maxTombstone bytes only the sequence number is kept.
type tombstone struct {
	record *td.Record // without its capabilities
	names  []string   // earlier names
	own    bool       // this node has signed it
}

const maxTombstone = 2 << 10

func newTombstone(r *td.Record, names []string, own bool) *tombstone {
	slim := *r
	slim.Capabilities = nil
	return &tombstone{record: &slim, names: names, own: own}
}

// A record of an owner is valid for at most a day; clocks may differ by 5 minutes.
const (
	maxLifetime = 24 * time.Hour
	maxSkew     = 5 * time.Minute
)

// droppableAt returns when no record that r supersedes can be valid any more, nor r itself.
func droppableAt(r *td.Record) time.Time {
	t := r.Issued.Add(maxLifetime)
	if r.Expires.After(t) {
		t = r.Expires
	}
	return t.Add(2 * maxSkew)
}

// alive reports whether r is valid at now.
func alive(r *td.Record, now time.Time) bool { return now.Before(r.Expires) }

// due returns when e expires or can be dropped.
func (e *entry) due() time.Time {
	switch {
	case e.view == nil:
		return e.until
	case e.hosting != nil:
		return e.hostsDue
	}
	return e.view.record.Expires
}

// Before orders entries by due.
func (e *entry) Before(o *entry) bool { return e.due().Before(o.due()) }

// Position implements [heap.Element].
func (e *entry) Position() *int { return &e.heapIndex }

// tombstones finds withdrawn Things by id and by earlier names.
type tombstones struct {
	byID, byName map[string][]*entry
	// handed are the moves of restricted Things that this node has signed.
	handed map[*entry]bool
}

func (g *tombstones) add(e *entry) {
	if g.byID == nil {
		g.byID, g.byName, g.handed = map[string][]*entry{}, map[string][]*entry{}, map[*entry]bool{}
	}
	if r := e.tombstone.record; e.tombstone.own && r.Kind == td.KindMoved && r.Audience != td.Public {
		g.handed[e] = true
	}
	g.byID[e.tombstone.record.Thing] = append(g.byID[e.tombstone.record.Thing], e)
	for _, n := range e.tombstone.names {
		g.byName[n] = append(g.byName[n], e)
	}
}

func (g *tombstones) remove(e *entry) {
	delete(g.handed, e)
	without(g.byID, e.tombstone.record.Thing, e)
	for _, n := range e.tombstone.names {
		without(g.byName, n, e)
	}
}

// without removes e from the list of name.
func without(lists map[string][]*entry, name string, e *entry) {
	list := lists[name]
	for i, other := range list {
		if other == e {
			list[i] = list[len(list)-1]
			list = list[:len(list)-1]
			break
		}
	}
	if len(list) == 0 {
		delete(lists, name)
		return
	}
	lists[name] = list
}
