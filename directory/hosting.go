package directory

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory/eviction"
	"github.com/lmosd/lmosd/directory/index"
	"github.com/lmosd/lmosd/directory/persist"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/boundedmap"
	"github.com/lmosd/lmosd/td"
)

// A hosting is what is known of the hosts of a Thing that its owner has granted to nodes. The entry of the Thing has the newest grant's number as its
// seq, and a description with all hosts that count. It is owned by Directory.mu.
type hosting struct {
	grant *td.Grant // the one in force: the newest known
	// records has the newest record of each host, without TDs inside; also those of hosts that have ended. The grant names all of them.
	records map[did.DID]*td.Record
}

// counts reports whether the Thing is reached through the host of r: an older grant suffices if the newest still names the host, for the same TD. So
// a renewal of the grant, and the removal of other hosts, interrupt nothing.
func (h *hosting) counts(r *td.Record, now time.Time) bool {
	return r.State != td.Ended && alive(r, now) && h.fits(r)
}

// fits reports whether the grant in force permits what r states.
func (h *hosting) fits(r *td.Record) bool { return h.grant.Names(r.Host) && r.Hash == h.grant.Hash }

// hosts returns the hosts that count, in the order of the grant, without draining ones if there are others; when the last of them expires; and when the
// first does.
func (h *hosting) hosts(now time.Time) (hosts []td.Host, last, first time.Time) {
	var draining []td.Host
	for _, node := range h.grant.Nodes {
		r := h.records[node]
		switch {
		case r == nil || !h.counts(r, now):
			continue
		case r.State == td.Draining:
			draining = append(draining, r.Hosts...)
		default:
			hosts = append(hosts, r.Hosts...)
		}
		if last.Before(r.Expires) {
			last = r.Expires
		}
		if first.IsZero() || r.Expires.Before(first) {
			first = r.Expires
		}
	}
	if len(hosts) == 0 {
		hosts = draining
	}
	return hosts, last, first
}

// isInForce reports whether the known grant is in force, and not g. Of two grants with one number all nodes choose the same one.
func (h *hosting) isInForce(g *td.Grant) bool {
	return cmp.Or(cmp.Compare(h.grant.Number, g.Number), h.grant.Expires.Compare(g.Expires), bytes.Compare(h.grant.Raw, g.Raw)) > 0
}

// with returns h with a record of a host, and the records that are dropped; h may be nil. It returns nil if the record changes nothing. The error says
// why the record does not count.
func (h *hosting) with(r *td.Record) (next *hosting, dropped []*td.Record, err error) {
	next = &hosting{grant: r.Grant, records: map[did.DID]*td.Record{}}
	if h != nil {
		known := h.records[r.Host]
		switch {
		case known == nil:
		case r.Seq < known.Seq:
			return nil, nil, fmt.Errorf("an older record of host %s arrived (seq %d, known %d)", r.Host.Short(), r.Seq, known.Seq)
		case sameRecord(known, r):
			return nil, nil, nil
		case r.Seq == known.Seq && known.Compare(r) > 0:
			return nil, nil, fmt.Errorf("another record of host %s with the same seq is known; two programs may use one key", r.Host.Short())
		}
		if h.isInForce(r.Grant) {
			next.grant = h.grant
		}
	}
	switch g := next.grant; {
	case !g.Names(r.Host):
		return nil, nil, fmt.Errorf("grant %d does not name host %s any longer", g.Number, r.Host.Short())
	case r.Hash != g.Hash:
		return nil, nil, fmt.Errorf("grant %d is of another TD than host %s has", g.Number, r.Host.Short())
	}
	if h != nil {
		for node, known := range h.records {
			switch {
			case node == r.Host:
			case next.fits(known):
				next.records[node] = known
			default:
				dropped = append(dropped, known)
			}
		}
	}
	slim := *r
	slim.Raw, slim.Inline = r.WithoutTD(), nil
	next.records[r.Host] = &slim
	return next, dropped, nil
}

// putHost is putWith for the record of a host.
func (d *Directory) putHost(desc *td.Description, from origin, with arrival) (changed bool, err error) {
	r, now := desc.Record, time.Now()
	var refused error
	if from == received {
		refused = d.refuses(r.Host)
	}
	key := r.Key()
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.entries[key]
	if refused != nil && !e.endsAt(r) {
		return false, refused
	}
	var known *hosting
	if e != nil {
		known = e.hosting
		if known == nil && (r.Grant.Number < e.seq || r.Grant.Number == e.seq && e.record() != nil) {
			d.count.inc(&d.count.RolledBack)
			return false, d.rolledBackLocked(e, r, "its owner has signed a newer record")
		}
	}
	next, dropped, err := known.with(r)
	switch {
	case err != nil:
		d.count.inc(&d.count.RolledBack)
		return false, interact.Errorf(interact.RolledBack, "", "%s of %s: %v", r.Thing, r.Owner.Short(), err)
	case next == nil:
		return false, nil
	}
	hosts, last, first := next.hosts(now)
	base := desc
	if base.Thing == nil && e != nil && e.view != nil {
		base = e.view.peek() // of the same TD
	}
	switch {
	case len(hosts) > 0 && base.Thing != nil:
		in := d.prepareLocked(e, base.AtHosts(next.grant, hosts, last))
		in.used, in.via, in.restored = with.used, with.via, from == restored || from == restoredOwn
		if with.vector != nil {
			in.view.vector.Store(with.vector)
		}
		own := d.hostedHere(in.desc.Record) && (e != nil && e.own || r.Host == d.opts.Self && (from == published || from == restoredOwn))
		if err := d.roomLocked(e, in, own); err != nil {
			return false, err
		}
		if e == nil {
			e = &entry{Item: eviction.Item{Key: key}}
			d.entries[key] = e
			d.removed.Add(e)
		}
		d.setHostingLocked(e, next, dropped, first)
		d.setLocked(e, in, own)
	case e == nil:
		return false, interact.Errorf(interact.NotFound, "", "host %s ends a Thing that is not known: %s", r.Host.Short(), r.Thing)
	default:
		d.setHostingLocked(e, next, dropped, first)
		d.endHostsLocked(e)
	}
	if from == received || from == published {
		d.store.Mark(persist.Seqs, key)
	} else {
		e.stored = true
	}
	d.setHostLocked(e, next.records[r.Host])
	return true, nil
}

// endsAt reports whether r ends the hosting of e at a node that hosts it.
func (e *entry) endsAt(r *td.Record) bool {
	return r.State == td.Ended && e != nil && e.hosting != nil && e.hosting.records[r.Host] != nil && e.hosting.records[r.Host].State != td.Ended
}

// prepareLocked is prepare for a description whose record was changed under the lock.
func (d *Directory) prepareLocked(e *entry, desc *td.Description) *arrival {
	in := &arrival{desc: desc, view: d.views.adopt(newView(desc), desc)}
	if e != nil && e.view != nil && e.view.record.Hash == desc.Record.Hash {
		in.view.vector.Store(e.view.vector.Load())
	}
	if in.sameTerms = e != nil && e.view != nil && refreshes(e.view.record, desc.Record); !in.sameTerms {
		in.labels = index.Labels(desc)
	}
	return in
}

// A hostAt is the host of an entry.
type hostAt struct {
	*entry
	node did.DID
}

// setHostingLocked sets what is known of the hosts of e, of which the first one expires at due.
func (d *Directory) setHostingLocked(e *entry, h *hosting, dropped []*td.Record, due time.Time) {
	if e.hosting == nil && e.record() != nil && d.opts.OnChange != nil {
		d.opts.OnChange(e.Key, e.seq, false) // a record of the owner
	}
	e.hosting, e.hostsDue = h, due
	d.dropHostsLocked(dropped)
}

// setHostLocked sets the record of a host of e for carriers.
func (d *Directory) setHostLocked(e *entry, r *td.Record) {
	key := r.CarrierKey()
	d.hostKeys[key] = hostAt{e, r.Host}
	if d.opts.OnChange != nil {
		d.opts.OnChange(key, r.Seq, r.Audience == td.Public)
	}
}

// A retired is the record of a host that counts no longer. Peers to which it was announced may still ask for it: that it is missing would look like a
// violation, because one new grant retires the records of all hosts of a Thing.
type retired struct {
	record []byte
	at     time.Time
}

const (
	maxRetired = 4096
	retiredFor = 2 * time.Minute // a session of reconciliation takes less
)

// dropHostsLocked drops records of hosts.
func (d *Directory) dropHostsLocked(all []*td.Record) {
	now := time.Now()
	for _, r := range all {
		key := r.CarrierKey()
		if _, ok := d.hostKeys[key]; ok && r.Audience == td.Public {
			boundedmap.Put(&d.retired, key, retired{r.Raw, now}, maxRetired, func(r retired) bool { return now.Sub(r.at) > retiredFor })
		}
		delete(d.hostKeys, key)
		if d.opts.OnChange != nil {
			d.opts.OnChange(key, r.Seq, false)
		}
	}
}

// endHostingLocked forgets the hosts of e.
func (d *Directory) endHostingLocked(e *entry) {
	if e.hosting != nil {
		d.dropHostsLocked(slices.Collect(maps.Values(e.hosting.records)))
		e.hosting = nil
	}
}

// endHostsLocked makes e, which no host has any longer, removed. It keeps what the hosts have signed, so that older records do not count.
func (d *Directory) endHostsLocked(e *entry) {
	e.seq = e.hosting.grant.Number
	e.keepUntil(grantMemory(e.hosting.grant, time.Now()))
	if e.view != nil {
		d.removeLocked(e, Withdrawn)
	} else {
		d.removed.Fix(e)
	}
}

// renewHostsLocked drops the hosts of e whose records have expired. It returns false if none is left.
func (d *Directory) renewHostsLocked(e *entry, now time.Time) bool {
	if e.hosting == nil {
		return false
	}
	hosts, last, first := e.hosting.hosts(now)
	if len(hosts) == 0 {
		return false
	}
	for _, r := range e.hosting.records {
		if !alive(r, now) {
			d.dropHostsLocked([]*td.Record{r}) // its sequence number is kept: an older one does not count
		}
	}
	e.hostsDue = first
	in := d.prepareLocked(e, e.view.peek().AtHosts(e.hosting.grant, hosts, last))
	d.setLocked(e, in, e.own && d.hostedHere(in.desc.Record))
	return true
}

// isKnownHostLocked reports whether the record of a host changes nothing.
func (d *Directory) isKnownHostLocked(e *entry, r *td.Record) bool {
	if e.hosting == nil {
		return r.Grant.Number < e.seq
	}
	next, _, err := e.hosting.with(r)
	return next == nil || err != nil
}

// signedLocked returns the newest record of a host.
func (h hostAt) signedLocked() *td.Signed {
	r := h.hosting.records[h.node]
	switch {
	case r.Audience != td.Public:
		return nil
	case h.view != nil && h.view.record.Hash == r.Hash:
		return &td.Signed{Record: r.Raw, TD: h.view.body()}
	}
	return &td.Signed{Record: r.Raw}
}

// SeqAt returns the highest known sequence number that a host has given to a Thing of another owner; 0 if there is none.
func (d *Directory) SeqAt(owner did.DID, thing string, host did.DID) uint64 {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if e := d.entries[td.Key(owner, thing)]; e != nil && e.hosting != nil && e.hosting.records[host] != nil {
		return e.hosting.records[host].Seq
	}
	return 0
}

// Grant returns the newest known grant of a Thing, and the nodes that are known to host it now, which may be fewer than it names; nil if there is none.
func (d *Directory) Grant(owner did.DID, thing string) (g *td.Grant, hosts []did.DID) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	e := d.entries[td.Key(owner, thing)]
	if e == nil || e.hosting == nil {
		return nil, nil
	}
	all, _, _ := e.hosting.hosts(time.Now())
	for _, h := range all {
		hosts = append(hosts, h.Node)
	}
	return e.hosting.grant, hosts
}

// grantMemory returns until when the number of a grant is kept: older grants may be valid for a full life from now on, whatever the clock of the owner
// says.
func grantMemory(g *td.Grant, now time.Time) time.Time {
	t := now
	if g.Issued.After(t) {
		t = g.Issued
	}
	return t.Add(td.GrantLife + 2*maxSkew)
}

// keepUntil extends the time for which e is kept when it is removed.
func (e *entry) keepUntil(t time.Time) {
	if e.until.Before(t) {
		e.until = t
	}
}

// stored returns the records of the hosts, first one that has the grant in force.
func (h *hosting) stored() (first []byte, others [][]byte) {
	var rest []*td.Record
	for _, r := range h.records {
		if first == nil && r.State != td.Ended && bytes.Equal(r.Grant.Raw, h.grant.Raw) {
			first = r.Raw
		} else {
			rest = append(rest, r)
		}
	}
	for _, r := range rest {
		if first == nil && r.State != td.Ended {
			first = r.Raw
		} else {
			others = append(others, r.Raw)
		}
	}
	return first, others
}

// isGranted reports whether a Thing has hosts that its owner has named. The owner, who is no node, may then withdraw it.
func (d *Directory) isGranted(key [32]byte) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	e := d.entries[key]
	return e != nil && e.hosting != nil
}

// TrustIn returns the trust in a Thing: that in its owner, or the highest in its hosts if its owner has granted it to nodes.
func TrustIn(r *td.Record, in func(did.DID) (amount float64, why string)) (most float64, why string) {
	first := true
	for node := range r.Responsible() {
		if amount, reason := in(node); first || amount > most {
			most, why, first = amount, reason, false
		}
	}
	return most, why
}
