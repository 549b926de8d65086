package directory

import (
	"container/heap"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory/index"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// Eviction when the index is full (decision 28). Keys are free, and the hosts in a record are a claim of its signer, so only proven facts
// count: the owner's signature, a connection to an owner that is its own host, a request of a local caller, and the forwarding peer.
// Things of others have a tier each; the least valuable one is evicted first, and only for a more valuable one:
//
//	never requested, host gone  →  the owner with the most, above a modest share  →  the forwarder with the most  →  not used recently
//
// Things of this node and of trusted owners are never evicted. A new key gets a modest share if it is connected, or else the
// free part of its forwarding peer's share, which all new keys of that peer have in common.

// A tier is the value of a Thing of others.
type tier uint8

const (
	stale       tier = iota // shown to no caller, and its hosts are gone
	unrequested             // not requested
	linked                  // not requested, but its owner hosts it and is connected
	used                    // a local caller requested exactly this Thing
	trusted                 // its owner is fully trusted
)

const (
	// modestPart is the part of Options.Max that an owner may use before others are preferred.
	modestPart  = 256
	leastModest = 4
	// linkedPart is the part of Options.Max for tier linked, so that connecting with many keys gains nothing.
	linkedPart = 2
	// maxLeave is the most evictions for one arrival.
	maxLeave = 64
)

// room accounts the index for Things of others. Directory.mu owns it. A change costs two heap operations.
type room struct {
	modest    int // units
	mostLink  int // units of tier linked
	linked    int // units
	stale     bag
	used      bag
	owners    shares // of unasked and linked
	forwarder shares // of unasked
}

func newRoom(most int) room {
	return room{
		modest: max(most/modestPart, leastModest), mostLink: most / linkedPart,
		owners: shares{by: map[string]*share{}}, forwarder: shares{by: map[string]*share{}},
	}
}

// An evictionState is the position of an entry in a room.
type evictionState struct {
	in    bool
	tier  tier
	units int    // 1, or more for more memory than Options.Bytes/Options.Max
	via   string // the share of the forwarding peer; empty: unknown
	at    [2]int // index in the bag of its tier, and in that of its forwarder
}

// A bag is an unordered set of entries; of selects the index in standing.at.
type bag struct {
	of  int
	all []*entry
}

func (b *bag) add(e *entry) {
	e.eviction.at[b.of] = len(b.all)
	b.all = append(b.all, e)
}

func (b *bag) remove(e *entry) {
	at, last := e.eviction.at[b.of], len(b.all)-1
	b.all[at] = b.all[last]
	b.all[at].eviction.at[b.of] = at
	b.all[last] = nil
	b.all = b.all[:last]
}

func (b *bag) last() *entry {
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
	isLink    bool // its owner was connected at the last check
	heapIndex int
}

// shares finds the largest share.
type shares struct {
	by   map[string]*share
	heap []*share
}

func (s *shares) Len() int           { return len(s.heap) }
func (s *shares) Less(i, j int) bool { return s.heap[i].units > s.heap[j].units }
func (s *shares) Swap(i, j int) {
	s.heap[i], s.heap[j] = s.heap[j], s.heap[i]
	s.heap[i].heapIndex, s.heap[j].heapIndex = i, j
}
func (s *shares) Push(one any) {
	one.(*share).heapIndex = len(s.heap)
	s.heap = append(s.heap, one.(*share))
}
func (s *shares) Pop() any {
	last := len(s.heap) - 1
	one := s.heap[last]
	s.heap[last] = nil
	s.heap = s.heap[:last]
	return one
}

// of returns the share of a name, and creates it if necessary.
func (s *shares) of(name string) *share {
	one := s.by[name]
	if one == nil {
		one = &share{name: name}
		s.by[name] = one
		heap.Push(s, one)
	}
	return one
}

// charge adds units to a share, or subtracts them; an empty share is dropped.
func (s *shares) charge(one *share, units int) {
	one.units += units
	if one.units > 0 {
		heap.Fix(s, one.heapIndex)
		return
	}
	heap.Remove(s, one.heapIndex)
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

// enter adds an entry of others.
func (r *room) enter(e *entry, t tier) {
	e.eviction.in, e.eviction.tier = true, t
	switch t {
	case stale:
		r.stale.add(e)
	case used:
		r.used.add(e)
	case unrequested, linked:
		owner := r.owners.of(string(e.view.record.Owner))
		if t == linked {
			owner.linked.add(e)
			r.linked += e.eviction.units
		} else {
			owner.plain.add(e)
			by := r.forwarder.of(e.eviction.via)
			by.plain.of = 1
			by.plain.add(e)
			r.forwarder.charge(by, e.eviction.units)
		}
		r.owners.charge(owner, e.eviction.units)
	}
}

// leave removes an entry.
func (r *room) leave(e *entry) {
	if !e.eviction.in {
		return
	}
	e.eviction.in = false
	switch e.eviction.tier {
	case stale:
		r.stale.remove(e)
	case used:
		r.used.remove(e)
	case unrequested, linked:
		owner := r.owners.of(string(e.view.record.Owner))
		if e.eviction.tier == linked {
			owner.linked.remove(e)
			r.linked -= e.eviction.units
		} else {
			owner.plain.remove(e)
			by := r.forwarder.of(e.eviction.via)
			by.plain.remove(e)
			r.forwarder.charge(by, -e.eviction.units)
		}
		r.owners.charge(owner, -e.eviction.units)
	}
}

// An applicant is a Thing to be added.
type applicant struct {
	tier       tier
	units      int
	owner, via string
}

// victim returns the entry to evict for an applicant, or why there is none.
func (r *room) victim(a applicant) (e *entry, why string) {
	for e = r.stale.last(); e != nil && e.view.shown.Load(); e = r.stale.last() {
		r.leave(e)
		r.enter(e, unrequested) // it was shown since
	}
	if a.tier == stale {
		return nil, "its hosts are gone"
	}
	if e != nil {
		return e, ""
	}
	big, mine := r.owners.most(), r.owners.units(a.owner)+a.units
	if a.tier <= linked && mine > r.modest && (big == nil || mine >= big.units) {
		return nil, "its owner has its share"
	}
	if big != nil && big.units > r.modest {
		if e := big.plain.last(); e != nil {
			return e, ""
		}
		return big.linked.last(), ""
	}
	by := r.forwarder.most()
	switch {
	case by == nil && a.tier < used:
		return nil, "all of them are in use"
	case by == nil:
		return r.leastRecent(), "all of them are trusted"
	case a.tier == unrequested && r.forwarder.units(a.via)+a.units >= by.units:
		return nil, "the peer that brought it has its share"
	}
	return by.plain.last(), ""
}

// secondChances is the number of used Things that are passed over because they were used again.
const secondChances = 8

// leastRecent returns a used Thing that was not used recently, among a few samples; nil if there is none.
func (r *room) leastRecent() *entry {
	for range min(secondChances, len(r.used.all)-1) {
		e := r.used.all[0]
		if !e.usedAgain.Swap(false) {
			break
		}
		r.used.remove(e) // moves the last one to its index
		r.used.add(e)
	}
	if len(r.used.all) == 0 {
		return nil
	}
	return r.used.all[0]
}

// tierLocked returns the tier of a Thing of others: e is its entry, or nil, and not in d.room.
func (d *Directory) tierLocked(e *entry, v *view, units int) tier {
	rec := v.record
	if d.opts.Trust != nil {
		if amount, _ := d.opts.Trust(rec.Owner); amount >= 1 {
			return trusted
		}
	}
	switch {
	case e != nil && e.used:
		return used
	case d.isLinked(rec) && d.room.linked+units <= d.room.mostLink:
		return linked
	case e != nil && e.view != nil && e.view.shown.Load() || v.shown.Load() || d.reachable(rec, time.Now()):
		return unrequested
	}
	return stale
}

// isLinked reports whether the owner of a record hosts the Thing itself and is connected, which proves the host.
func (d *Directory) isLinked(r *td.Record) bool {
	return d.opts.Connected != nil && slices.ContainsFunc(r.Hosts, func(h td.Host) bool { return h.Node == r.Owner }) &&
		d.opts.Connected(r.Owner)
}

// rankLocked moves e to its current tier.
func (d *Directory) rankLocked(e *entry) {
	r := &d.room
	r.leave(e)
	if e.view == nil || e.own {
		return
	}
	e.eviction.units = d.units(e.bytes)
	r.enter(e, d.tierLocked(e, e.view, e.eviction.units))
	if one := r.owners.by[string(e.view.record.Owner)]; one != nil && d.opts.Connected != nil {
		one.isLink = d.opts.Connected(e.view.record.Owner)
	}
}

// units returns the units of a Thing of a number of bytes.
func (d *Directory) units(bytes int) int { return 1 + bytes/(d.opts.Bytes/d.opts.Max+1) }

// regrade updates the tiers of the Things of a host.
func (d *Directory) regrade(node did.DID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range slices.Collect(d.livingLocked(d.index.List(index.Host, string(node)).All(), time.Now())) {
		if !e.own {
			d.rankLocked(e)
		}
	}
}

// linkChanged reports whether node owns Things here, and its connection state has changed.
func (d *Directory) linkChanged(node did.DID) bool {
	if d.opts.Connected == nil {
		return false
	}
	now := d.opts.Connected(node)
	d.mu.RLock()
	defer d.mu.RUnlock()
	one := d.room.owners.by[string(node)]
	return one != nil && one.isLink != now
}

// makeRoomLocked evicts others until an arrival fits, or returns an error.
func (d *Directory) makeRoomLocked(e *entry, in *arrival) error {
	if why := d.overLocked(e, in); why != "" {
		return d.noRoomLocked(in, why)
	}
	full := d.fullLocked(e, in)
	if full == "" {
		return nil
	}
	d.lackUntil = time.Now().Add(maxLifetime)
	if e != nil {
		d.room.leave(e) // it must not be evicted for itself
		defer d.rankLocked(e)
	}
	a := applicant{units: d.units(weigh(in.view, len(in.by))), owner: string(in.view.record.Owner), via: in.via}
	a.tier = d.tierLocked(e, in.view, a.units)
	for range maxLeave {
		victim, why := d.room.victim(a)
		if victim == nil {
			return d.noRoomLocked(in, full+", and "+why)
		}
		d.evictLocked(victim)
		if full = d.fullLocked(e, in); full == "" {
			return nil
		}
	}
	return d.noRoomLocked(in, full)
}

func (d *Directory) noRoomLocked(in *arrival, why string) error {
	d.count.refused.Add(1)
	return interact.Errorf(interact.Overloaded, "it is looked up in the mesh on demand; raise directory.max_things to keep more",
		"no room for %s: %s", in.desc.Record.Thing, why)
}

// evictLocked evicts an entry. Its sequence number is kept as long as the memory for withdrawn Things has room.
func (d *Directory) evictLocked(e *entry) {
	d.count.evicted.Add(1)
	e.used = false
	d.endLocked(e, Evicted)
	if len(d.gone) > d.opts.Max {
		d.forgetLocked(e)
	}
}

// overLocked returns the limit of the owner that an arrival exceeds, or "".
func (d *Directory) overLocked(e *entry, in *arrival) string {
	owner, known := in.view.record.Owner, e != nil && e.view != nil
	more := d.moreLocked(e, in)
	switch {
	case !known && d.index.List(index.Owner, string(owner)).Len() >= d.opts.PerOwner:
		return fmt.Sprintf("%d descriptions of its owner are kept already", d.opts.PerOwner)
	case more > 0 && d.weights[owner]+more > d.opts.share():
		return fmt.Sprintf("descriptions of its owner take %d bytes of memory already", d.weights[owner])
	}
	return ""
}

// fullLocked returns the limit of the directory that an arrival of others exceeds, or "".
func (d *Directory) fullLocked(e *entry, in *arrival) string {
	more := d.moreLocked(e, in)
	taken := d.weight + d.index.Bytes()
	if taken+more+index.MaxCost(len(in.by)) > d.opts.Bytes {
		more += d.index.Cost(in.by)
	}
	switch {
	case (e == nil || e.view == nil) && len(d.living)-d.own.Len() >= d.opts.Max:
		return fmt.Sprintf("%d descriptions are kept already", d.opts.Max)
	case more > 0 && taken+more > d.opts.Bytes:
		return fmt.Sprintf("descriptions take %d bytes of memory already", taken)
	}
	return ""
}

// moreLocked returns the additional memory of an arrival.
func (d *Directory) moreLocked(e *entry, in *arrival) int {
	switch {
	case e == nil || e.view == nil:
		return weigh(in.view, len(in.by))
	case in.same:
		return weigh(in.view, e.at.Terms()) - e.bytes
	}
	return weigh(in.view, len(in.by)) - e.bytes
}

// Lacks reports whether the index may lack Things of the mesh, because it was full within the last day, the lifetime of a record.
func (d *Directory) Lacks() bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.lacksLocked(time.Now())
}

// lacksLocked is Lacks. It does not cover the time before a restart.
func (d *Directory) lacksLocked(now time.Time) bool {
	return now.Before(d.lackUntil) || len(d.living)-d.own.Len() >= d.opts.Max
}

// Fill returns the fill level of the index with Things of others: 1 is full.
func (d *Directory) Fill() float64 {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return max(float64(len(d.living)-d.own.Len())/float64(d.opts.Max), float64(d.weight+d.index.Bytes())/float64(d.opts.Bytes))
}

// notARequest marks the context of a lookup that is not a request.
type notARequest struct{}

// WithoutUse returns a context in which [Directory.Get] does not count as a request, for lookups that no user caused: they must not raise the
// value of a Thing.
func WithoutUse(ctx context.Context) context.Context {
	return context.WithValue(ctx, notARequest{}, true)
}

// use records that a local caller requested exactly this Thing.
func (d *Directory) use(key [32]byte) {
	d.mu.RLock()
	e := d.entries[key]
	known := e == nil || e.view == nil || e.own || e.used
	if known && e != nil {
		e.usedAgain.Store(true)
	}
	d.mu.RUnlock()
	if known {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if e := d.entries[key]; e != nil && e.view != nil && !e.own {
		e.used = true
		d.rankLocked(e)
		d.markLocked(key)
	}
}

// creditForwarderLocked records the forwarder of e: of several, the one with the smaller share.
func (d *Directory) creditForwarderLocked(e *entry, via string) {
	by := &d.room.forwarder
	if e.eviction.via == "" || by.units(via)+e.eviction.units < by.units(e.eviction.via) {
		d.room.leave(e)
		e.eviction.via = via
	}
}
