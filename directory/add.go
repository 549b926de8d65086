package directory

import (
	"fmt"
	"slices"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// Add takes what this node publishes: a verified description, or the verified tombstone or moved record of a thing
// (whose Thing is nil). It reports whether anything changed; the record that is already known changes nothing.
//
// The error is an [*interact.Error]: [interact.RolledBack] if something newer is known, [interact.Expired], or
// [interact.Overloaded] if the directory is full; a description whose record names Options.Self as a host is taken
// even then.
func (d *Directory) Add(desc *td.Description) (changed bool, err error) {
	return d.put(desc, published)
}

// An origin says how a description came here.
type origin int

const (
	heard     origin = iota // from others
	published               // by this node
	kept                    // from the store: heard
	keptOwn                 // from the store: published
)

// put takes a verified description.
func (d *Directory) put(desc *td.Description, from origin) (changed bool, err error) {
	r := desc.Record
	if !alive(r, time.Now()) {
		return false, interact.Errorf(interact.Expired, "publish it again",
			"the description of %s expired at %s", r.Thing, stamp(r.Expires))
	}
	key := r.Key()
	own := (from == published || from == keptOwn) && d.hostedHere(r)
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.entries[key]
	if e != nil {
		if known, err := d.compareLocked(e, desc); known || err != nil {
			d.adoptLocked(e, own && known)
			return false, err
		}
		own = own || e.own && d.hostedHere(r)
	}
	if err := d.roomLocked(e, desc, own); err != nil {
		return false, err
	}
	if e == nil {
		e = &entry{key: key}
		d.entries[key] = e
		// Until it is set below, it is gone, and of no use to anybody.
		d.gone.add(e)
	}
	d.setLocked(e, desc, own)
	if from == heard || from == published {
		d.markLocked(key)
	}
	return true, nil
}

// adoptLocked notes that this node publishes what it had learned from others, after it lost its store.
func (d *Directory) adoptLocked(e *entry, own bool) {
	if own && e.d != nil && !e.own {
		d.ownLocked(e, true)
		d.markLocked(e.key)
	}
}

// hostedHere reports whether the record says that this node hosts the thing.
func (d *Directory) hostedHere(r *td.Record) bool {
	return d.opts.Self != "" && slices.ContainsFunc(r.Hosts, func(h td.Host) bool { return h.Node == d.opts.Self })
}

// compareLocked holds a record against what is known of its thing. It is known if there is nothing to do, and the
// error is RolledBack if what is known wins.
func (d *Directory) compareLocked(e *entry, desc *td.Description) (known bool, err error) {
	r := desc.Record
	switch {
	case r.Seq > e.seq:
		return false, nil
	case r.Seq < e.seq:
		d.count.rolledBack.Add(1)
		return false, d.rolledBackLocked(e, r, "an older record of it came")
	}
	cur := e.record()
	if cur == nil {
		// Only the seq is remembered: this is its record, or as good. What buries has nothing left to do.
		return r.Kind != td.KindTD, nil
	}
	if sameRecord(cur, r) {
		return true, nil
	}
	return false, d.forkLocked(e, cur, r)
}

// forkLocked decides between two different records of one seq, which its owner must never sign: most likely two
// programs use one key. The error is RolledBack if the known one stays. Which one stays is the same on every node.
func (d *Directory) forkLocked(e *entry, cur, r *td.Record) error {
	d.count.forks.Add(1)
	stays := cur.Compare(r) >= 0
	if !e.fork { // once: who makes forks could fill the log with them
		e.fork = true
		d.log.Warn("equivocation: two records with one seq", "owner", r.Owner, "thing", r.Thing, "seq", r.Seq, "stays", stays)
	}
	if stays {
		return d.rolledBackLocked(e, r, "another record with the same seq came; two programs may use one key")
	}
	return nil
}

func (d *Directory) rolledBackLocked(e *entry, r *td.Record, why string) error {
	return interact.Errorf(interact.RolledBack, "lmosd show "+interact.Quote(exactRef(r)),
		"%s of %s: %s (seq %d, known %d)", r.Thing, r.Owner.Short(), why, r.Seq, e.seq)
}

// ownLocked notes whether this node publishes a living e.
func (d *Directory) ownLocked(e *entry, own bool) {
	bytes := e.bytes
	d.weighLocked(e, 0)
	e.own = own
	d.weighLocked(e, bytes)
	if own {
		d.index.own = d.index.own.with(e.slot)
	} else {
		d.index.own = d.index.own.without(e.slot)
	}
}

// roomLocked returns an error if desc does not fit: in number, if it would be new, and in bytes.
func (d *Directory) roomLocked(e *entry, desc *td.Description, own bool) error {
	if own {
		return nil
	}
	full := ""
	if desc.Record.Kind == td.KindTD {
		full = d.fullLocked(e, desc)
	} else if e == nil && len(d.gone) >= d.opts.Max {
		// What was met here can be withdrawn at any time. Graves of strangers stop here, so that nobody can push out
		// others'.
		full = "the memory for withdrawn things is full"
	}
	if full == "" {
		return nil
	}
	d.count.refused.Add(1)
	return interact.Errorf(interact.Overloaded, "wait until others expire, or raise the directory's limits",
		"no room for %s: %s", desc.Record.Thing, full)
}

// fullLocked says why there is no room for the description of somebody else, or "".
func (d *Directory) fullLocked(e *entry, desc *td.Description) string {
	owner, more, known := desc.Record.Owner, weigh(desc), e != nil && e.d != nil
	if known {
		more -= e.bytes
	}
	switch {
	case !known && len(d.living)-len(d.index.own) >= d.opts.Max:
		return fmt.Sprintf("%d descriptions are kept already", d.opts.Max)
	case !known && d.index.ownedBy(owner) >= d.opts.PerOwner:
		return fmt.Sprintf("%d descriptions of its owner are kept already", d.opts.PerOwner)
	case more > 0 && d.weight+more > d.opts.Bytes:
		return fmt.Sprintf("descriptions take %d bytes of memory already", d.weight)
	case more > 0 && d.weights[owner]+more > d.opts.share():
		return fmt.Sprintf("descriptions of its owner take %d bytes of memory already", d.weights[owner])
	}
	return ""
}

// weigh returns about how much memory a description takes in the index, in bytes: its text, the typed view of each part, and
// the words by which it alone may be found.
func weigh(desc *td.Description) int {
	const (
		thing, affordance, form, variable = 1 << 10, 512, 320, 64
		ofText                            = 3 // raw, decoded, folded
	)
	bytes := thing + ofText*(len(desc.Raw)+len(desc.Record.Raw)) + min(len(desc.Raw)/4, maxWords)*8
	part := func(a *td.Affordance) {
		bytes += affordance + variable*len(a.URIVariables)
		for i := range a.Forms {
			bytes += form + len(a.Forms[i].Href)
		}
	}
	for _, p := range desc.Properties {
		part(&p.Affordance)
	}
	for _, a := range desc.Actions {
		part(&a.Affordance)
	}
	for _, e := range desc.Events {
		part(&e.Affordance)
	}
	return bytes + form*(len(desc.Forms)+len(desc.Links))
}

// weighLocked sets what the description of e takes.
func (d *Directory) weighLocked(e *entry, bytes int) {
	more := bytes - e.bytes
	e.bytes = bytes
	if e.own {
		return
	}
	owner := e.d.Record.Owner
	d.weight += more
	if d.weights[owner] += more; d.weights[owner] == 0 {
		delete(d.weights, owner)
	}
}

// setLocked makes desc what is known of e.
func (d *Directory) setLocked(e *entry, desc *td.Description, own bool) {
	r := desc.Record
	e.seq, e.until = r.Seq, forgettable(r)
	if r.Kind == td.KindTD {
		d.liveLocked(e, desc, own)
		d.count.added.Add(1)
	} else {
		d.buryLocked(e, r)
		d.count.withdrawn.Add(1)
	}
	if e.due().Before(d.asleep) {
		d.nudge()
	}
}

// liveLocked makes e living with desc.
func (d *Directory) liveLocked(e *entry, desc *td.Description, own bool) {
	was := e.d
	if was == nil {
		d.gone.remove(e)
		d.dropGraveLocked(e)
	} else {
		d.tallyLocked(e, false)
		d.weighLocked(e, 0)
	}
	e.d, e.bound = desc, nil
	switch {
	case was == nil:
		d.living.add(e)
		d.index.add(e)
	case was.Record.Hash == desc.Record.Hash && was.Record.Title == desc.Record.Title:
		d.living.fix(e) // a refresh: nothing that it is found by has changed
	default:
		d.living.fix(e)
		d.index.remove(e, was)
		d.index.add(e)
	}
	d.tallyLocked(e, true)
	d.ownLocked(e, own)
	d.weighLocked(e, weigh(desc))
}

// endLocked makes a living e gone.
func (d *Directory) endLocked(e *entry) {
	d.tallyLocked(e, false)
	d.weighLocked(e, 0)
	d.living.remove(e)
	d.index.remove(e, e.d)
	e.d, e.bound, e.own = nil, nil, false
	d.gone.add(e)
	d.markLocked(e.key)
	d.boundGoneLocked()
}

// boundGoneLocked forgets those of the gone that would be forgotten first, if there are too many.
func (d *Directory) boundGoneLocked() {
	for len(d.gone) > 2*d.opts.Max {
		d.forgetLocked(d.gone[0])
	}
}

// buryLocked makes e gone with a grave. What the thing was called is remembered, so that who asks for it by name
// learns that it was withdrawn.
func (d *Directory) buryLocked(e *entry, r *td.Record) {
	g := newGrave(r, nil)
	if e.d != nil {
		g.names = namesOf(e.d)
		d.endLocked(e)
	} else if e.grave != nil {
		g.names = e.grave.names
		d.dropGraveLocked(e)
	}
	d.gone.fix(e)
	if len(r.Raw) <= maxGrave {
		e.grave = g
		d.graves.add(e)
	}
}

func (d *Directory) dropGraveLocked(e *entry) {
	if e.grave != nil {
		d.graves.remove(e)
		e.grave = nil
	}
}

// forgetLocked drops all memory of a gone e.
func (d *Directory) forgetLocked(e *entry) {
	d.dropGraveLocked(e)
	d.gone.remove(e)
	delete(d.entries, e.key)
	d.markLocked(e.key)
}

// record returns the record that e holds, or nil if only its seq is remembered.
func (e *entry) record() *td.Record {
	switch {
	case e.d != nil:
		return e.d.Record
	case e.grave != nil:
		return e.grave.record
	}
	return nil
}

// sameRecord reports whether a and b are copies of one record, whether the TD is inside or not.
func sameRecord(a, b *td.Record) bool {
	bareA, bareB := *a, *b
	bareA.Inline, bareB.Inline = nil, nil
	return bareA.Compare(&bareB) == 0
}

// stamp writes a time for people.
func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// exactRef returns the reference that names the thing of r and nothing else.
func exactRef(r *td.Record) string { return (&td.Description{Record: r}).Ref() }
