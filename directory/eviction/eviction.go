// Package eviction selects the Thing that leaves a full index, so that the owners and forwarders of records have shares (decision 28).
//
// Anyone can create keys and name any hosts in a record, so only proven facts count: the owner's signature, a connection to an owner that is
// its own host, a request of a local caller, and the forwarding peer. Each Thing of others has a tier. The least valuable one is evicted
// first, and only for a more valuable one:
//
//	not requested, host down  →  the owner with the most, above a modest share  →  the forwarder with the most  →  not used recently
//
// Things of this node are not recorded, and those of trusted owners are never evicted. A new key gets a modest share if it is connected, or
// else the free part of its forwarding peer's share, which all new keys of that peer have in common.
package eviction

import (
	"sync/atomic"

	"github.com/lmosd/lmosd/internal/heap"
)

// A Tier is the value of a Thing of others.
type Tier uint8

// The tiers, in ascending value.
const (
	Stale       Tier = iota // not requested, and its hosts are down
	Unrequested             // not requested
	Linked                  // not requested, but its owner hosts it and is connected
	Used                    // a local caller requested exactly this Thing
	Trusted                 // its owner is fully trusted
)

const (
	// modestPart is the part of the index that an owner may use before others are preferred.
	modestPart  = 256
	leastModest = 4
	// linkedPart is the part of the index for tier Linked, so that an adversary gains nothing by connections with many keys.
	linkedPart = 2
	// secondChances is the number of used Things that are passed over because they were used again.
	secondChances = 8
)

// A Room has the Things of others in an index. It is not synchronized. A change costs two heap operations.
type Room struct {
	shown      func(*Item) bool
	modest     int // units
	mostLinked int // units
	linked     int // units of tier Linked
	stale      bag
	used       bag
	hand       int    // of a clock over used: index of the next candidate
	owners     shares // of Unrequested and Linked
	forwarders shares // of Unrequested
}

// An Item is the state of a Thing in a [Room].
type Item struct {
	Key       [32]byte
	UsedAgain atomic.Bool // used since [Room.Victim] passed it over

	in    bool
	tier  Tier
	units int // 1, or more for more than the average memory
	owner string
	via   string // the share of the forwarding peer; empty: unknown
	at    [2]int // index in the bag of its tier, and in that of its forwarder
}

// Tier returns the tier of the last [Room.Set].
func (e *Item) Tier() Tier { return e.tier }

// Via returns the share of the peer that forwarded the Thing, see [Room.Credit].
func (e *Item) Via() string { return e.via }

// New returns a room for a number of Things. shown reports whether a Thing was shown to a local caller.
func New(most int, shown func(*Item) bool) *Room {
	return &Room{shown: shown, modest: max(most/modestPart, leastModest), mostLinked: most / linkedPart,
		owners: shares{by: map[string]*share{}}, forwarders: shares{by: map[string]*share{}, bag: 1}}
}

// A bag is an unordered set of items; of selects the index in Item.at.
type bag struct {
	of  int
	all []*Item
}

func (b *bag) add(e *Item) {
	e.at[b.of] = len(b.all)
	b.all = append(b.all, e)
}

func (b *bag) remove(e *Item) {
	at, last := e.at[b.of], len(b.all)-1
	b.all[at] = b.all[last]
	b.all[at].at[b.of] = at
	b.all[last] = nil
	b.all = b.all[:last]
}

func (b *bag) last() *Item {
	if len(b.all) == 0 {
		return nil
	}
	return b.all[len(b.all)-1]
}

// A share is the usage of one owner or forwarder.
type share struct {
	name      string
	units     int
	plain     bag
	linked    bag  // of an owner
	connected bool // the owner, at the last [Room.Set]
	heapIndex int
}

// Before orders shares by size, the largest first.
func (s *share) Before(o *share) bool { return s.units > o.units }

// Position implements [heap.Element].
func (s *share) Position() *int { return &s.heapIndex }

// shares finds the largest share.
type shares struct {
	bag  int // of share.plain
	by   map[string]*share
	heap heap.Heap[*share]
}

// of returns the share of a name, and creates it if necessary.
func (s *shares) of(name string) *share {
	one := s.by[name]
	if one == nil {
		one = &share{name: name, plain: bag{of: s.bag}}
		s.by[name] = one
		s.heap.Add(one)
	}
	return one
}

// charge adds units to a share, or subtracts them; an empty share is dropped.
func (s *shares) charge(one *share, units int) {
	one.units += units
	if one.units > 0 {
		s.heap.Fix(one)
		return
	}
	s.heap.Remove(one)
	delete(s.by, one.name)
}

// units returns the usage of a name.
func (s *shares) units(name string) int {
	if one := s.by[name]; one != nil {
		return one.units
	}
	return 0
}

// most returns the largest share; nil if there is none.
func (s *shares) most() *share {
	if len(s.heap) == 0 {
		return nil
	}
	return s.heap[0]
}

// Modest returns the units that an owner may use before others are preferred.
func (r *Room) Modest() int { return r.modest }

// FitsLinked reports whether a Thing of a number of units fits into the part for tier Linked.
func (r *Room) FitsLinked(units int) bool { return r.linked+units <= r.mostLinked }

// LinkChanged reports whether an owner has Things of tier Unrequested or Linked, and was not in this connection state at the last [Room.Set].
func (r *Room) LinkChanged(owner string, connected bool) bool {
	one := r.owners.by[owner]
	return one != nil && one.connected != connected
}

// Set sets the tier and the units of a Thing of others, and adds it to the room. connected is the state of the connection to its owner.
func (r *Room) Set(e *Item, t Tier, units int, owner string, connected bool) {
	r.Leave(e)
	e.units, e.owner = units, owner
	r.enter(e, t)
	if one := r.owners.by[owner]; one != nil {
		one.connected = connected
	}
}

func (r *Room) enter(e *Item, t Tier) {
	e.in, e.tier = true, t
	switch t {
	case Stale:
		r.stale.add(e)
	case Used:
		r.used.add(e)
	case Unrequested, Linked:
		owner := r.owners.of(e.owner)
		if t == Linked {
			owner.linked.add(e)
			r.linked += e.units
		} else {
			owner.plain.add(e)
			by := r.forwarders.of(e.via)
			by.plain.add(e)
			r.forwarders.charge(by, e.units)
		}
		r.owners.charge(owner, e.units)
	}
}

// Leave removes a Thing, if it is in the room.
func (r *Room) Leave(e *Item) {
	if !e.in {
		return
	}
	e.in = false
	switch e.tier {
	case Stale:
		r.stale.remove(e)
	case Used:
		r.used.remove(e)
	case Unrequested, Linked:
		owner := r.owners.of(e.owner)
		if e.tier == Linked {
			owner.linked.remove(e)
			r.linked -= e.units
		} else {
			owner.plain.remove(e)
			by := r.forwarders.of(e.via)
			by.plain.remove(e)
			r.forwarders.charge(by, -e.units)
		}
		r.owners.charge(owner, -e.units)
	}
}

// Credit records a forwarder of a Thing: of several, the one with the smaller share. It may remove the Thing: [Room.Set] adds it again.
func (r *Room) Credit(e *Item, via string) {
	if e.via == "" || r.forwarders.units(via)+e.units < r.forwarders.units(e.via) {
		r.Leave(e)
		e.via = via
	}
}

// An Applicant is a Thing to be added.
type Applicant struct {
	Tier       Tier
	Units      int
	Owner, Via string
}

// Victim returns the Thing to evict for an applicant, or the reason why there is none.
func (r *Room) Victim(a Applicant) (e *Item, why string) {
	for e = r.stale.last(); e != nil && r.shown(e); e = r.stale.last() {
		r.Leave(e)
		r.enter(e, Unrequested) // it was shown since
	}
	if a.Tier == Stale {
		return nil, "its hosts are down"
	}
	if e != nil {
		return e, ""
	}
	big, mine := r.owners.most(), r.owners.units(a.Owner)+a.Units
	if a.Tier <= Linked && mine > r.modest && (big == nil || mine >= big.units) {
		return nil, "its owner has used its share"
	}
	if big != nil && big.units > r.modest {
		if e := big.plain.last(); e != nil {
			return e, ""
		}
		return big.linked.last(), ""
	}
	by := r.forwarders.most()
	switch {
	case by == nil && a.Tier < Used:
		return nil, "all of them are in use"
	case by == nil:
		return r.leastRecent(), "all of them are trusted"
	case a.Tier == Unrequested && r.forwarders.units(a.Via)+a.Units >= by.units:
		return nil, "the peer that forwarded it has used its share"
	}
	return by.plain.last(), ""
}

// leastRecent returns a used Thing, if possible one that was not used since the hand passed it; nil if there is none.
func (r *Room) leastRecent() *Item {
	all := r.used.all
	if len(all) == 0 {
		return nil
	}
	for range min(secondChances, len(all)-1) {
		if !all[r.hand%len(all)].UsedAgain.Swap(false) {
			break
		}
		r.hand++
	}
	return all[r.hand%len(all)]
}
