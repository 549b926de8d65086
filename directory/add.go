package directory

import (
	"slices"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory/embedding"
	"github.com/lmosd/lmosd/directory/eviction"
	"github.com/lmosd/lmosd/directory/index"
	"github.com/lmosd/lmosd/directory/persist"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// Add adds what this node publishes: a verified description, or the verified tombstone or moved record of a Thing (whose Thing is nil). It
// reports whether anything changed; a known record changes nothing.
//
// The error is an [*interact.Error]: [interact.RolledBack] if a newer record is known, [interact.Expired], or [interact.Overloaded] if the
// directory is full; a description whose record names Options.Self as a host is always accepted.
func (d *Directory) Add(desc *td.Description) (changed bool, err error) {
	return d.put(desc, published)
}

// An origin is the origin of a description.
type origin int

const (
	received    origin = iota // from other nodes
	published                 // by this node
	restored                  // arrivalFrom the store, of other nodes
	restoredOwn               // from the store, of this node
)

// put adds a verified description.
func (d *Directory) put(desc *td.Description, from origin) (changed bool, err error) {
	return d.putWith(desc, from, arrival{})
}

// putWith is put with the vector, used flag and share of an arrival.
func (d *Directory) putWith(desc *td.Description, from origin, with arrival) (changed bool, err error) {
	r := desc.Record
	if !alive(r, time.Now()) {
		return false, interact.Errorf(interact.Expired, "publish it again",
			"the description of %s expired at %s", r.Thing, formatTime(r.Expires))
	}
	if r.Host != "" {
		return d.putHost(desc, from, with)
	}
	key := r.Key()
	var refused error
	if from == received && !d.isGranted(key) {
		if refused = d.refuses(r.Owner); refused != nil && r.Kind == td.KindTD {
			return false, refused
		}
	}
	own := (from == published || from == restoredOwn) && d.hostedHere(r)
	in := d.prepare(key, desc, from == received || from == restored)
	in.used, in.via = with.used, with.via
	in.restored = from == restored || from == restoredOwn
	in.published = from == published
	if in.view != nil {
		in.view.vector.Store(with.vector)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.entries[key]
	if refused != nil && (e == nil || e.view == nil || r.Seq <= e.seq) { // otherwise it withdraws what is known of a node that was refused later
		return false, refused
	}
	if e != nil {
		if known, err := d.compareLocked(e, desc); known || err != nil {
			d.markOwnLocked(e, own && known)
			return false, err
		}
		own = own || e.own && d.hostedHere(r)
	}
	if err := d.roomLocked(e, in, own); err != nil {
		return false, err
	}
	if e == nil {
		e = &entry{Item: eviction.Item{Key: key}}
		d.entries[key] = e
		// Until setLocked below, the entry is removed.
		d.removed.Add(e)
	}
	d.setLocked(e, in, own)
	if from == received || from == published {
		d.store.Mark(persist.Seqs, key)
	} else {
		e.stored = true
	}
	return true, nil
}

// refuses returns the error of Options.Admits for a node.
func (d *Directory) refuses(node did.DID) error {
	if d.opts.Admits == nil {
		return nil
	}
	return d.opts.Admits(node)
}

// An arrival is an incoming description with the values that are computed without the lock.
type arrival struct {
	desc      *td.Description
	view      *view // nil for a tombstone or moved record
	labels    []index.Label
	restored  bool // it was stored before the restart
	published bool // this node has signed it
	sameTerms bool // by is not computed: the terms are those of the known description

	vector *embedding.Vector // or nil
	used   bool              // a caller requested it before the restart
	via    string            // the share of the forwarding peer, see Options.Share
}

// prepare returns the arrival of a description, of another node or of this one.
func (d *Directory) prepare(key [32]byte, desc *td.Description, foreign bool) *arrival {
	if desc.Record.Kind != td.KindTD {
		return &arrival{desc: desc}
	}
	var was *view
	d.mu.RLock()
	if e := d.entries[key]; e != nil {
		was = e.view
	}
	d.mu.RUnlock()
	v := newOwnView
	if foreign {
		v = func(desc *td.Description) *view { return newForeignView(desc, was) }
	}
	in := &arrival{desc: desc, view: d.views.adopt(v(desc), desc), sameTerms: was != nil && refreshes(was.record, desc.Record)}
	if !in.sameTerms {
		in.labels = index.Labels(desc)
	}
	return in
}

// terms returns the terms of an arrival. It computes them only if the known description has changed since prepare, which is rare.
func (in *arrival) terms() []index.Label {
	if in.labels == nil {
		in.labels, in.sameTerms = index.Labels(in.desc), false
	}
	return in.labels
}

// markOwnLocked marks an entry as published by this node, which needs it after it lost its store.
func (d *Directory) markOwnLocked(e *entry, own bool) {
	if own && e.view != nil && !e.own {
		d.setOwnLocked(e, true)
		d.updateTierLocked(e)
		d.countNameLocked(e, e.view.record, true, false)
		d.store.Mark(persist.Seqs, e.Key)
	}
}

// hostedHere reports whether the record names this node as a host.
func (d *Directory) hostedHere(r *td.Record) bool {
	return d.opts.Self != "" && slices.ContainsFunc(r.Hosts, func(h td.Host) bool { return h.Node == d.opts.Self })
}

// compareLocked compares a record with the known one. known reports that the record is known; the error is RolledBack if the known record
// has precedence.
func (d *Directory) compareLocked(e *entry, desc *td.Description) (known bool, err error) {
	r := desc.Record
	switch {
	case r.Seq > e.seq:
		return false, nil
	case r.Seq < e.seq:
		d.count.inc(&d.count.RolledBack)
		return false, d.rolledBackLocked(e, r, "an older record arrived")
	case e.hosting != nil:
		return false, d.rolledBackLocked(e, r, "its owner has signed a grant with this number")
	}
	cur := e.record()
	if cur == nil {
		// Only the sequence number is known: this is its record. A tombstone changes nothing.
		return r.Kind != td.KindTD, nil
	}
	if sameRecord(cur, r) {
		return true, nil
	}
	return false, d.equivocationLocked(e, cur, r)
}

func (d *Directory) rolledBackLocked(e *entry, r *td.Record, why string) error {
	return interact.Errorf(interact.RolledBack, "", "%s of %s: %s (seq %d, known %d)", r.Thing, r.Owner.Short(), why, r.Seq, e.seq).
		Then(interact.StepShow, exactRef(r))
}

// setOwnLocked sets whether this node publishes a live e.
func (d *Directory) setOwnLocked(e *entry, own bool) {
	bytes := e.bytes
	d.setSizeLocked(e, 0)
	e.own = own
	d.setSizeLocked(e, bytes)
	if own {
		d.own.Add(e.at.Slot)
	} else {
		d.own.Remove(e.at.Slot)
	}
}

// roomLocked evicts entries for an arrival, or returns an error if it does not fit: in number, if it is new, and in bytes.
func (d *Directory) roomLocked(e *entry, in *arrival, own bool) error {
	if own {
		return nil
	}
	if in.view != nil {
		return d.makeRoomLocked(e, in)
	}
	if e == nil && len(d.removed) >= d.opts.Max {
		// Known Things can always be withdrawn. At the limit, tombstones of unknown Things are rejected, so that they cannot evict others.
		return d.noRoomLocked(in, "the limit of withdrawn Things is reached")
	}
	return nil
}

// setSizeLocked sets the memory of the description of e.
func (d *Directory) setSizeLocked(e *entry, bytes int) {
	more := bytes - e.bytes
	e.bytes = bytes
	if e.own {
		return
	}
	owner := e.view.record.Owner
	d.bytes += more
	if d.ownerBytes[owner] += more; d.ownerBytes[owner] == 0 {
		delete(d.ownerBytes, owner)
	}
}

// setLocked updates e with an arrival.
func (d *Directory) setLocked(e *entry, in *arrival, own bool) {
	r := in.desc.Record
	if r.Grant == nil {
		if e.hosting != nil {
			e.keepUntil(grantMemory(e.hosting.grant, time.Now()))
		}
		d.endHostingLocked(e)
	} else {
		e.keepUntil(grantMemory(r.Grant, time.Now()))
	}
	e.seq = r.Seq
	e.keepUntil(droppableAt(r))
	if in.view != nil {
		d.setLiveLocked(e, in, own)
		d.count.inc(&d.count.Added)
	} else {
		d.withdrawLocked(e, r, in.published)
		d.count.inc(&d.count.Withdrawn)
	}
	d.notifyLocked(e)
	if e.due().Before(d.wakeAt) {
		d.wake.Wake()
	}
}

// notifyLocked calls Options.OnChange for e, unless hosts have signed its records.
func (d *Directory) notifyLocked(e *entry) {
	if d.opts.OnChange != nil && e.hosting == nil { // each host has a record of its own
		r := e.record()
		d.opts.OnChange(e.Key, e.seq, r != nil && r.Audience == td.Public)
	}
}

// setLiveLocked makes e live with the description of an arrival.
func (d *Directory) setLiveLocked(e *entry, in *arrival, own bool) {
	was := e.view
	d.room.Leave(&e.Item)
	if was == nil {
		d.removed.Remove(e)
		d.dropTombstoneLocked(e)
	} else {
		d.countHostsLocked(e, false)
		d.setSizeLocked(e, 0)
	}
	e.view, e.bound = in.view, nil
	if was != nil && was.shown.Load() {
		e.view.shown.Store(true)
	}
	switch {
	case was == nil:
		d.live.Add(e)
		d.addToIndexLocked(e, in)
		d.initReachableLocked(e)
		d.changed.add(logEntry{kind: Added, reason: Published, thing: e.view})
	case refreshes(was.record, e.view.record):
		d.live.Fix(e) // its terms are unchanged
		e.view.vector.Store(was.vector.Load())
		d.shareLocked(e.view)
		d.index.Refresh(e.at, e.view.record)
	default:
		d.live.Fix(e)
		d.removeFromIndexLocked(e)
		d.addToIndexLocked(e, in)
		d.initReachableLocked(e)
		d.changed.add(logEntry{kind: Changed, reason: Published, thing: e.view, was: was})
	}
	d.queueVectorLocked(e)
	d.Received(e.view.record, time.Now())
	d.countHostsLocked(e, true)
	d.setOwnLocked(e, own)
	d.setSizeLocked(e, viewSize(e.view, e.at.Terms()))
	e.used = e.used || in.used
	d.room.Credit(&e.Item, in.via)
	d.updateTierLocked(e)
	if was == nil {
		d.countNameLocked(e, nil, own, in.restored)
	} else {
		d.countNameLocked(e, was.record, own, in.restored)
	}
}

// addToIndexLocked adds e to the index.
func (d *Directory) addToIndexLocked(e *entry, in *arrival) {
	e.at = d.index.Add(e.view.record, in.terms())
	if int(e.at.Slot) == len(d.slots) {
		d.slots, d.audiences = append(d.slots, nil), append(d.audiences, 0)
	}
	audience := e.view.record.Audience
	d.slots[e.at.Slot], d.audiences[e.at.Slot] = e, audience
	d.byAudience[audience]++
	d.shareLocked(e.view)
	if isUnnamed(in.desc) {
		d.unnamed.Add(e.at.Slot)
	}
	if audience != td.Public {
		d.restricted.Add(e.at.Slot)
	} else {
		d.publicVersion++
	}
}

// isUnnamed reports whether the index does not find a Thing by its name: the title of its record is shortened, or another one.
func isUnnamed(desc *td.Description) bool {
	return !desc.Record.HasName(desc.Name())
}

// initReachableLocked records the reachability with which a new e is reported to watchers.
func (d *Directory) initReachableLocked(e *entry) {
	e.reportedDown.Store(!d.IsReachable(e.view.record, time.Now()))
}

// shareLocked lets a new view share strings with the index. The record of an unpacked view already shares them.
func (d *Directory) shareLocked(v *view) {
	if v.whole == nil {
		d.index.Share(v.record)
	}
}

// removeFromIndexLocked removes e from the index.
func (d *Directory) removeFromIndexLocked(e *entry) {
	d.own.Remove(e.at.Slot)
	d.unnamed.Remove(e.at.Slot)
	d.byAudience[d.audiences[e.at.Slot]]--
	if d.restricted.Has(e.at.Slot) {
		d.restricted.Remove(e.at.Slot)
	} else {
		d.publicVersion++
	}
	d.index.Remove(e.at)
	d.slots[e.at.Slot] = nil
	e.at = index.Position{}
}

// refreshes reports whether a record only extends the validity.
func refreshes(was, r *td.Record) bool {
	return was.Hash == r.Hash && was.Title == r.Title &&
		slices.EqualFunc(was.Hosts, r.Hosts, func(a, b td.Host) bool { return a.Node == b.Node })
}

// removeLocked makes a live e removed.
func (d *Directory) removeLocked(e *entry, why Reason) {
	d.changed.add(logEntry{kind: Removed, reason: why, thing: e.view})
	if why == Expired || why == Evicted {
		d.endHostingLocked(e)
	}
	d.room.Leave(&e.Item)
	d.uncountNameLocked(e)
	d.countHostsLocked(e, false)
	d.setSizeLocked(e, 0)
	d.live.Remove(e)
	d.removeFromIndexLocked(e)
	d.embeddings.Dequeue(e.Key)
	e.view, e.bound, e.own = nil, nil, false
	d.removed.Add(e)
	d.store.Mark(persist.Seqs, e.Key)
	d.notifyLocked(e)
	d.limitRemovedLocked()
}

// limitRemovedLocked drops removed entries beyond the limit, those that expire first.
func (d *Directory) limitRemovedLocked() {
	for len(d.removed) > 2*d.opts.Max {
		d.forgetLocked(d.removed[0])
	}
}

// withdrawLocked makes e removed with a tombstone. It keeps the names of the Thing, so that a lookup by name returns that it was withdrawn.
func (d *Directory) withdrawLocked(e *entry, r *td.Record, own bool) {
	g := newTombstone(r, nil, own)
	if e.view != nil {
		g.names = e.view.record.Names()
		why := Withdrawn
		if r.Kind == td.KindMoved {
			why = Moved
		}
		d.removeLocked(e, why)
	} else if e.tombstone != nil {
		g.names = e.tombstone.names
		d.dropTombstoneLocked(e)
	}
	d.removed.Fix(e)
	if len(r.Raw) <= maxTombstone {
		e.tombstone = g
		d.tombstones.add(e)
	}
}

func (d *Directory) dropTombstoneLocked(e *entry) {
	if e.tombstone != nil {
		d.tombstones.remove(e)
		e.tombstone = nil
		d.notifyLocked(e)
	}
}

// forgetLocked drops a removed e.
func (d *Directory) forgetLocked(e *entry) {
	d.endHostingLocked(e)
	d.dropTombstoneLocked(e)
	d.removed.Remove(e)
	delete(d.entries, e.Key)
	if e.stored {
		d.store.Mark(persist.Seqs, e.Key)
	} else {
		d.store.Unmark(persist.Seqs, e.Key) // it was never written
	}
}

// record returns the record of e, or nil if only its sequence number is known.
func (e *entry) record() *td.Record {
	switch {
	case e.view != nil:
		return e.view.record
	case e.tombstone != nil:
		return e.tombstone.record
	}
	return nil
}

// sameRecord reports whether a and b are equal except for an inline TD.
func sameRecord(a, b *td.Record) bool {
	bareA, bareB := *a, *b
	bareA.Inline, bareB.Inline = nil, nil
	return bareA.Compare(&bareB) == 0
}

// formatTime formats a time for users.
func formatTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// exactRef returns the unambiguous reference of the Thing of r.
func exactRef(r *td.Record) string { return (&td.Description{Record: r}).Ref() }
