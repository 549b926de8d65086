package directory

import (
	"context"
	"encoding/binary"
	"slices"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory/index"
	"github.com/lmosd/lmosd/td"
)

// ByRelation is an [Options.Sees] without rules: all callers see public descriptions, consumers of this node see all, and members of its
// organization all but private ones.
func ByRelation(p *did.Principal, d *td.Description) bool {
	switch {
	case d.Visibility == td.Public:
		return true
	case p == nil:
		return false
	}
	return p.Relation == did.Local || p.Relation == did.Own && d.Visibility < td.Private
}

// AllByRelation is the [Options.SeesAll] of ByRelation.
func AllByRelation(p *did.Principal, v td.Visibility) bool {
	return v == td.Public || p != nil && (p.Relation == did.Local || p.Relation == did.Own && v < td.Private)
}

// Allows reports whether sees, which may be nil, lets p receive d. This process receives everything.
func Allows(sees func(p *did.Principal, d *td.Description) bool, p *did.Principal, d *td.Description) bool {
	return sees == nil || isProcess(p) || sees(p, d)
}

// isProcess reports whether p is this process.
func isProcess(p *did.Principal) bool { return p != nil && p.Via == did.Process }

// DescribeWithdrawn returns the description that [Options.Sees] gets for a withdrawn Thing. It has only an id, an owner and a visibility.
func DescribeWithdrawn(owner did.DID, thing string, audience td.Visibility) *td.Description {
	return &td.Description{Thing: &td.Thing{ID: thing, Visibility: audience}, Record: &td.Record{Owner: owner, Thing: thing, Audience: audience}}
}

// Sees reports whether the caller of ctx may receive a description, which need not be in the directory.
func (d *Directory) Sees(ctx context.Context, desc *td.Description) bool {
	r := d.reader(ctx)
	return r.sees(desc)
}

// A reader is a caller who reads the directory.
type reader struct {
	ask    func(p *did.Principal, d *td.Description) bool // Options.Sees; nil: everything is visible
	p      *did.Principal
	all    [td.Private + 1]bool // by visibility: all Things with it are visible
	public bool                 // all public Things are visible
	peer   bool                 // another node: restricted Things are not visible
}

// unlimited is the reader who sees everything.
func unlimited() reader {
	return reader{public: true, all: [td.Private + 1]bool{true, true, true, true}}
}

// reader returns the reader of ctx.
func (d *Directory) reader(ctx context.Context) reader { return d.readerFor(did.PrincipalOf(ctx)) }

func (d *Directory) readerFor(p *did.Principal) reader {
	if d.opts.Sees == nil || isProcess(p) {
		return unlimited()
	}
	r := reader{ask: d.opts.Sees, p: p}
	for v := range r.all {
		if d.opts.SeesAll == nil {
			r.all[v] = td.Visibility(v) == td.Public
		} else {
			r.all[v] = d.opts.SeesAll(p, td.Visibility(v))
		}
	}
	r.public = r.all[td.Public]
	return r
}

// peerOf returns the reader of ctx, which is another node.
func (d *Directory) peerOf(ctx context.Context) reader {
	r := d.reader(ctx)
	r.peer = true
	r.all = [td.Private + 1]bool{r.public}
	return r
}

// seesAll reports whether everything is visible.
func (r *reader) seesAll() bool { return !slices.Contains(r.all[:], false) }

// sees reports whether a description is visible.
func (r *reader) sees(desc *td.Description) bool {
	return r.decided(desc.Record.Audience) || r.asks(desc.Record.Audience) && r.ask(r.p, desc)
}

// seesView is sees for a stored description, which is unpacked only if necessary.
func (r *reader) seesView(v *view) bool {
	return r.decided(v.record.Audience) || r.asks(v.record.Audience) && r.ask(r.p, v.peek())
}

// seesTombstone is sees for a withdrawn Thing.
func (r *reader) seesTombstone(rec *td.Record) bool {
	return r.decided(rec.Audience) || r.asks(rec.Audience) && r.ask(r.p, DescribeWithdrawn(rec.Owner, rec.Thing, rec.Audience))
}

// decided reports whether all descriptions with an audience are visible.
func (r *reader) decided(audience td.Visibility) bool { return r.all[audience] }

// asks reports whether Options.Sees decides about descriptions with an audience.
func (r *reader) asks(audience td.Visibility) bool {
	return r.ask != nil && (audience == td.Public || !r.peer)
}

// visibleLocked reports whether all live Things are visible, so that none needs a check.
func (d *Directory) visibleLocked(r *reader) bool {
	return r.public && (r.seesAll() || d.restricted.Len() == 0)
}

// hiddenLocked yields the restricted matches of a query that the index decides alone, and that are not visible.
func (d *Directory) hiddenLocked(r *reader, q *td.Query, within []*index.List) (hidden []uint32) {
	if d.visibleLocked(r) || d.restricted.Len() == 0 {
		return nil
	}
	c := d.index.Choose(q, append(slices.Clone(within), &d.restricted)...)
	for slot := range c.All() {
		if !r.seesView(d.slots[slot].view) {
			hidden = append(hidden, slot)
		}
	}
	return hidden
}

// Count is [Directory.Len] of the Things that the caller of ctx may see.
func (d *Directory) Count(ctx context.Context) (local, known int) {
	own := d.page(ctx, &td.Query{}, 0, 0, &d.own)
	all := d.page(ctx, &td.Query{}, 0, 0)
	return own.Total, all.Total
}

// versionLocked returns the version of the lists for a reader who sees all public Things: restricted Things that are not visible do not
// change it.
func (d *Directory) versionLocked(r *reader) uint64 {
	version := d.publicVersion
	for slot := range d.restricted.All() {
		if e := d.slots[slot]; r.seesView(e.view) {
			version += digestOf(e.Key, e.view.record)
		}
	}
	return version
}

// digestOf returns a number for the state of a Thing.
func digestOf(key [32]byte, r *td.Record) uint64 {
	return binary.LittleEndian.Uint64(key[:]) ^ binary.LittleEndian.Uint64(r.Hash[:])
}
