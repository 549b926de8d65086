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

// maxEvictions is the most evictions for one arrival.
const maxEvictions = 64

// tierLocked returns the tier of a Thing of others: e is its entry, or nil, and not in d.room.
func (d *Directory) tierLocked(e *entry, v *view, units int) eviction.Tier {
	rec := v.record
	if d.opts.Trust != nil {
		if amount, _ := d.opts.Trust(rec.Owner); amount >= 1 {
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

// isLinked reports whether the owner of a record hosts the Thing itself and is connected, which proves the host.
func (d *Directory) isLinked(r *td.Record) bool {
	return d.opts.Connected != nil && slices.ContainsFunc(r.Hosts, func(h td.Host) bool { return h.Node == r.Owner }) &&
		d.opts.Connected(r.Owner)
}

// rankLocked moves e to its current tier.
func (d *Directory) rankLocked(e *entry) {
	d.room.Leave(&e.Item)
	if e.view == nil || e.own {
		return
	}
	owner, units := e.view.record.Owner, d.units(e.bytes)
	d.room.Set(&e.Item, d.tierLocked(e, e.view, units), units, string(owner), d.opts.Connected != nil && d.opts.Connected(owner))
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
	return d.room.LinkChanged(string(node), now)
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
		d.room.Leave(&e.Item) // it must not be evicted for itself
		defer d.rankLocked(e)
	}
	a := eviction.Applicant{Units: d.units(weigh(in.view, len(in.by))), Owner: string(in.view.record.Owner), Via: in.via}
	a.Tier = d.tierLocked(e, in.view, a.Units)
	for range maxEvictions {
		victim, why := d.room.Victim(a)
		if victim == nil {
			return d.noRoomLocked(in, full+", and "+why)
		}
		d.evictLocked(d.entries[victim.Key])
		if full = d.fullLocked(e, in); full == "" {
			return nil
		}
	}
	return d.noRoomLocked(in, full)
}

func (d *Directory) noRoomLocked(in *arrival, why string) error {
	d.count.inc(&d.count.Refused)
	return interact.Errorf(interact.Overloaded, "it is looked up in the mesh on demand; raise directory.max_things to keep more",
		"no room for %s: %s", in.desc.Record.Thing, why)
}

// evictLocked evicts an entry. Its sequence number is kept as long as the memory for withdrawn Things has room.
func (d *Directory) evictLocked(e *entry) {
	d.count.inc(&d.count.Evicted)
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
		d.rankLocked(e)
		d.store.Mark(persist.Seqs, key)
	}
}
