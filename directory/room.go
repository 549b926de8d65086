package directory

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory/eviction"
	"github.com/lmosd/lmosd/directory/index"
	"github.com/lmosd/lmosd/directory/persist"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// maxEvictions is the maximum number of evictions for one arrival.
const maxEvictions = 64

// tierLocked returns the tier of a Thing of others. e is its entry, which must not be in d.room, or nil.
func (d *Directory) tierLocked(e *entry, v *view, units int) eviction.Tier {
	rec := v.record
	if d.opts.Trust != nil {
		if amount, _ := TrustIn(rec, d.opts.Trust); amount >= 1 {
			return eviction.Trusted
		}
	}
	switch {
	case e != nil && e.used:
		return eviction.Used
	case d.isLinked(rec) && d.room.FitsLinked(units):
		return eviction.Linked
	case e != nil && e.view != nil && e.view.shown.Load() || v.shown.Load() || d.IsReachable(rec, time.Now()):
		return eviction.Unrequested
	}
	return eviction.Stale
}

// isLinked reports whether a host that has signed a record of the Thing is connected, which proves the host.
func (d *Directory) isLinked(r *td.Record) bool {
	return d.opts.Connected != nil && slices.ContainsFunc(r.Hosts, func(h td.Host) bool {
		return (h.Node == r.Owner || r.Grant != nil) && d.opts.Connected(h.Node)
	})
}

// updateTierLocked moves e to its current tier.
func (d *Directory) updateTierLocked(e *entry) {
	d.room.Leave(&e.Item)
	if e.view == nil || e.own {
		return
	}
	owner, units := e.view.record.Owner, d.units(e.bytes)
	d.room.Set(&e.Item, d.tierLocked(e, e.view, units), units, string(owner), d.opts.Connected != nil && d.opts.Connected(owner))
}

// units returns the units of a Thing of a number of bytes.
func (d *Directory) units(bytes int) int { return 1 + bytes/(d.opts.Bytes/d.opts.Max+1) }

// updateTiers updates the tiers of the Things of a host.
func (d *Directory) updateTiers(node did.DID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range slices.Collect(d.liveEntriesLocked(d.index.List(index.Host, string(node)).All(), time.Now())) {
		if !e.own {
			d.updateTierLocked(e)
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
	return d.room.LinkChanged(string(node), now)
}

// makeRoomLocked evicts others until an arrival fits, or returns an error.
func (d *Directory) makeRoomLocked(e *entry, in *arrival) error {
	if why := d.exceededOwnerLimitLocked(e, in); why != "" {
		return d.noRoomLocked(in, why)
	}
	full := d.exceededLimitLocked(e, in)
	if full == "" {
		return nil
	}
	d.incompleteUntil = time.Now().Add(maxLifetime)
	if e != nil {
		d.room.Leave(&e.Item) // so that it is not evicted for itself
		defer d.updateTierLocked(e)
	}
	a := eviction.Applicant{Units: d.units(viewSize(in.view, len(in.labels))), Owner: string(in.view.record.Owner), Via: in.via}
	a.Tier = d.tierLocked(e, in.view, a.Units)
	for range maxEvictions {
		victim, why := d.room.Victim(a)
		if victim == nil {
			return d.noRoomLocked(in, full+", and "+why)
		}
		d.evictLocked(d.entries[victim.Key])
		if full = d.exceededLimitLocked(e, in); full == "" {
			return nil
		}
	}
	return d.noRoomLocked(in, full)
}

func (d *Directory) noRoomLocked(in *arrival, why string) error {
	d.count.inc(&d.count.Refused)
	return interact.Errorf(interact.Overloaded, "the node looks it up in the mesh on demand; raise directory.max_things to keep more",
		"no room for %s: %s", in.desc.Record.Thing, why)
}

// evictLocked evicts an entry. Its sequence number is kept as long as the memory for withdrawn Things has room.
func (d *Directory) evictLocked(e *entry) {
	d.count.inc(&d.count.Evicted)
	e.used = false
	d.removeLocked(e, Evicted)
	if len(d.removed) > d.opts.Max {
		d.forgetLocked(e)
	}
}

// exceededOwnerLimitLocked returns the limit of the owner that an arrival exceeds, or "".
func (d *Directory) exceededOwnerLimitLocked(e *entry, in *arrival) string {
	owner, known := in.view.record.Owner, e != nil && e.view != nil
	more := d.moreLocked(e, in)
	switch {
	case !known && d.index.List(index.Owner, string(owner)).Len() >= d.opts.PerOwner:
		return fmt.Sprintf("the limit of %d descriptions of its owner is reached", d.opts.PerOwner)
	case more > 0 && d.ownerBytes[owner]+more > d.opts.share():
		return fmt.Sprintf("the descriptions of its owner take %d bytes of memory", d.ownerBytes[owner])
	}
	return ""
}

// exceededLimitLocked returns the limit of the directory that an arrival of others exceeds, or "".
func (d *Directory) exceededLimitLocked(e *entry, in *arrival) string {
	more := d.moreLocked(e, in)
	taken := d.bytes + d.index.Bytes()
	if taken+more+index.MaxCost(len(in.labels)) > d.opts.Bytes {
		more += d.index.Cost(in.labels)
	}
	switch {
	case (e == nil || e.view == nil) && len(d.live)-d.own.Len() >= d.opts.Max:
		return fmt.Sprintf("the limit of %d descriptions is reached", d.opts.Max)
	case more > 0 && taken+more > d.opts.Bytes:
		return fmt.Sprintf("descriptions take %d bytes of memory", taken)
	}
	return ""
}

// moreLocked returns the additional memory of an arrival.
func (d *Directory) moreLocked(e *entry, in *arrival) int {
	switch {
	case e == nil || e.view == nil:
		return viewSize(in.view, len(in.labels))
	case in.sameTerms:
		return viewSize(in.view, e.at.Terms()) - e.bytes
	}
	return viewSize(in.view, len(in.labels)) - e.bytes
}

// IsIncomplete reports whether the index may lack Things of the mesh, because it was full within the last day, the lifetime of a record.
func (d *Directory) IsIncomplete() bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.isIncompleteLocked(time.Now())
}

// isIncompleteLocked is Lacks. It does not cover the time before a restart.
func (d *Directory) isIncompleteLocked(now time.Time) bool {
	return now.Before(d.incompleteUntil) || len(d.live)-d.own.Len() >= d.opts.Max
}

// Fill returns the fill level of the index with Things of others: 1 is full.
func (d *Directory) Fill() float64 {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return max(float64(len(d.live)-d.own.Len())/float64(d.opts.Max), float64(d.bytes+d.index.Bytes())/float64(d.opts.Bytes))
}

// withoutUse is the context key of [WithoutUse].
type withoutUse struct{}

// WithoutUse returns a context in which [Directory.Get] does not count as a request: lookups that no user caused must not raise the value of
// a Thing.
func WithoutUse(ctx context.Context) context.Context {
	return context.WithValue(ctx, withoutUse{}, true)
}

// recordUse records that a local caller requested exactly this Thing.
func (d *Directory) recordUse(key [32]byte) {
	d.mu.RLock()
	e := d.entries[key]
	known := e == nil || e.view == nil || e.own || e.used
	if known && e != nil {
		e.UsedAgain.Store(true)
	}
	d.mu.RUnlock()
	if known {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if e := d.entries[key]; e != nil && e.view != nil && !e.own {
		e.used = true
		d.updateTierLocked(e)
		d.store.Mark(persist.Seqs, key)
	}
}
