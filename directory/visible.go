package directory

import (
	"context"
	"encoding/binary"
	"math"
	"slices"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory/index"
	"github.com/lmosd/lmosd/td"
)

// ByRelation is an [Options.Sees] without rules: all callers see public descriptions, consumers of this node see all, and members of its
// organization all but private ones and those for named callers.
func ByRelation(p *did.Principal, d *td.Description) bool {
	switch {
	case d.Visibility == td.Public:
		return true
	case p == nil:
		return false
	}
	return p.Relation == did.Local || p.Relation == did.Own && d.Visibility <= td.Organization
}

// ScopeByRelation is the [Options.Scope] of ByRelation.
func ScopeByRelation(p *did.Principal) (s td.Scope) {
	for v := range s.All {
		s.All[v] = td.Visibility(v) == td.Public || p != nil && (p.Relation == did.Local || p.Relation == did.Own && td.Visibility(v) <= td.Organization)
	}
	return s
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
	ask   func(p *did.Principal, d *td.Description) bool // Options.Sees; nil: everything is visible
	p     *did.Principal
	scope td.Scope
	peer  bool // another node: restricted Things are not visible
}

// unlimited is the reader who sees everything.
func unlimited() reader {
	return reader{scope: td.Scope{All: [td.Private + 1]bool{true, true, true, true, true}}}
}

// reader returns the reader of ctx.
func (d *Directory) reader(ctx context.Context) reader { return d.readerFor(did.PrincipalOf(ctx)) }

func (d *Directory) readerFor(p *did.Principal) reader {
	switch {
	case d.opts.Sees == nil || isProcess(p):
		return unlimited()
	case d.opts.Scope == nil:
		return reader{ask: d.opts.Sees, p: p, scope: td.Scope{All: [td.Private + 1]bool{true}, Each: [td.Private + 1]bool{false, true, true, true, true}}}
	}
	return reader{ask: d.opts.Sees, p: p, scope: d.opts.Scope(p)}
}

// peerOf returns the reader of ctx, which is another node.
func (d *Directory) peerOf(ctx context.Context) reader {
	r := d.reader(ctx)
	r.peer = true
	r.scope.All, r.scope.Each = [td.Private + 1]bool{r.scope.All[td.Public]}, [td.Private + 1]bool{r.scope.Each[td.Public]}
	return r
}

// sees reports whether a description is visible.
func (r *reader) sees(desc *td.Description) bool {
	return r.seesAs(desc.Record.Audience, func() *td.Description { return desc })
}

// seesView is sees for a stored description, which is unpacked only if necessary.
func (r *reader) seesView(v *view) bool { return r.seesAs(v.record.Audience, v.peek) }

// seesTombstone is sees for a withdrawn Thing.
func (r *reader) seesTombstone(rec *td.Record) bool {
	return r.seesAs(rec.Audience, func() *td.Description { return DescribeWithdrawn(rec.Owner, rec.Thing, rec.Audience) })
}

func (r *reader) seesAs(audience td.Visibility, describe func() *td.Description) bool {
	if r.scope.Decides(audience) {
		return r.scope.All[audience]
	}
	return r.ask != nil && (audience == td.Public || !r.peer) && r.ask(r.p, describe())
}

// A sight finds the slots that a reader may see. It is valid while Directory.mu is held.
type sight struct {
	d      *Directory
	r      *reader
	except index.Set // that must be asked for; nil: none
	asked  []uint32  // those of except
	// everything is true if all live Things are visible, and public if all public ones are.
	everything, public bool
	// cheap is true if few public Things must be asked for. Otherwise the caller does so without the lock, because they are unpacked for that.
	cheap bool
}

// sightLocked returns the sight of a reader.
func (d *Directory) sightLocked(r *reader) sight {
	s := sight{d: d, r: r}
	asked := 0 // public Things
	except := func(slot uint32, allowed bool) {
		v := d.audiences[slot]
		if r.scope.All[v] == allowed || s.except != nil && s.except.Has(slot) {
			return
		}
		if s.except == nil {
			s.except = index.NewSet(len(d.slots))
		}
		if v == td.Public {
			asked++
		}
		s.except.Add(slot)
		s.asked = append(s.asked, slot)
	}
	named := func(queries []td.Query, allowed bool) {
		changes := false // what is visible
		for v, n := range d.byAudience {
			changes = changes || n > 0 && r.scope.All[v] != allowed
		}
		if len(queries) == 0 || !changes {
			return
		}
		for i := range queries {
			for slot := range d.index.Candidates(&queries[i]) {
				except(slot, allowed)
			}
		}
		for slot := range d.unnamed.All() {
			except(slot, allowed)
		}
	}
	named(r.scope.Allow, true)
	named(r.scope.Deny, false)
	s.cheap = !r.scope.Each[td.Public] && asked <= fewToKeep
	s.public = s.cheap && asked == 0 && r.scope.All[td.Public]
	s.everything = s.except == nil
	for v, n := range d.byAudience {
		s.everything = s.everything && (n == 0 || r.scope.All[v] && !r.scope.Each[v])
	}
	return s
}

// has reports whether the Thing in a slot is visible.
func (s *sight) has(slot uint32) bool {
	v := s.d.audiences[slot]
	if s.r.scope.Each[v] || s.except != nil && s.except.Has(slot) {
		return s.r.seesView(s.d.slots[slot].view)
	}
	return s.r.scope.All[v]
}

// filter returns has, or nil if all slots pass.
func (s *sight) filter() func(slot uint32) bool {
	switch {
	case s.everything:
		return nil
	case s.r.scope.Each == [td.Private + 1]bool{}: // the usual one, which is asked for many slots
		all, audiences, except := s.r.scope.All, s.d.audiences, s.except
		return func(slot uint32) bool {
			if except != nil && except.Has(slot) {
				return s.has(slot)
			}
			return all[audiences[slot]]
		}
	}
	return s.has
}

// countLocked returns the number of visible slots of a choice.
func (s *sight) countLocked(c *index.Choice) int {
	total := c.Count()
	switch {
	case s.everything:
		return total
	case total == s.d.index.Len() && !slices.Contains(s.r.scope.Each[:], true): // the choice has all Things
		total = 0
		for v, n := range s.d.byAudience {
			if s.r.scope.All[v] {
				total += n
			}
		}
		for _, slot := range s.asked {
			if s.r.scope.All[s.d.audiences[slot]] {
				total--
			}
			if s.has(slot) {
				total++
			}
		}
		return total
	}
	total = 0
	for slot := range c.All() {
		if s.has(slot) {
			total++
		}
	}
	return total
}

// Count is [Directory.Len] of the Things that the caller of ctx may see.
func (d *Directory) Count(ctx context.Context) (local, known int) {
	own := d.page(ctx, &td.Query{}, 0, 0, &d.own)
	all := d.page(ctx, &td.Query{}, 0, 0)
	return own.Total, all.Total
}

// CountByHost returns the number of Things at each host, of those that the caller of ctx may see.
func (d *Directory) CountByHost(ctx context.Context) map[did.DID]int {
	counts := map[did.DID]int{}
	d.dropExpired(time.Now())
	r := d.reader(ctx)
	d.mu.RLock()
	if s := d.sightLocked(&r); s.everything {
		defer d.mu.RUnlock()
		for host := range d.index.Texts(index.Host) {
			if n := d.index.List(index.Host, host).Len(); n > 0 {
				counts[did.DID(host)] = n
			}
		}
		return counts
	}
	d.mu.RUnlock()
	for _, item := range d.page(ctx, &td.Query{}, 0, math.MaxInt).Items {
		for _, h := range item.view.record.Hosts {
			counts[h.Node]++
		}
	}
	return counts
}

// versionLocked returns the version of the lists of a reader: Things that are not visible do not change it.
func (d *Directory) versionLocked(s *sight) (version uint64) {
	slots := d.index.Slots()
	if s.public {
		version, slots = d.publicVersion, d.restricted.All()
	}
	for slot := range slots {
		if s.has(slot) {
			e := d.slots[slot]
			version += digestOf(e.Key, e.view.record)
		}
	}
	return version
}

// digestOf returns a number for the state of a Thing.
func digestOf(key [32]byte, r *td.Record) uint64 {
	return binary.LittleEndian.Uint64(key[:]) ^ binary.LittleEndian.Uint64(r.Hash[:])
}
