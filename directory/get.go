package directory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory/eviction"
	"github.com/lmosd/lmosd/directory/index"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/confusable"
	"github.com/lmosd/lmosd/td"
)

// Get returns the Thing that ref names (see [td.Ref]): by id, by id and owner, by owner if it has one Thing, by name, or by a prefix of the
// owner's key. Of several with one id or name, those of this node have precedence, then those of trusted owners; the result is unique if the
// first group has one member. A full id that the index lacks is looked up in the sources. A name is looked up in the sources if the index
// may lack Things ([Directory.IsIncomplete]) and the name is not that of an established Thing or of one that was requested before.
//
// For a moved Thing Get returns the successor (td.Record.SuccessorRef), if its new owner publishes it.
//
// The error is an [*interact.Error]: [interact.NotFound] with a suggestion, [interact.Ambiguous] with up to 8 exact references,
// [interact.Withdrawn] with the time and the successor; or it wraps the error of ctx. Things that the caller of ctx may not see are unknown,
// also to the errors.
func (d *Directory) Get(ctx context.Context, ref string) (*td.Description, error) {
	asked := td.ParseRef(ref)
	desc, err := d.get(ctx, asked)
	for range maxMoves {
		moved, ok := errors.AsType[*movedError](err)
		if !ok {
			if err == nil && ctx.Value(withoutUse{}) == nil {
				d.recordUse(desc.Record.Key())
			}
			return desc, err
		}
		moved.to.Organization = asked.Organization // the successor of a member's Thing may be another's
		successor, next := d.get(ctx, moved.to)
		if next != nil && interact.AsError(next).Code == interact.NotFound {
			return nil, err // the move is the last known state
		}
		desc, err = successor, next
	}
	if _, ok := errors.AsType[*movedError](err); ok {
		return nil, interact.Errorf(interact.Withdrawn, "", "%s has moved more than %d times, or in a cycle", ref, maxMoves).Then(interact.StepFind)
	}
	return desc, err
}

// maxMoves is the number of moves that Get follows.
const maxMoves = 4

// A movedError has the reference of the successor.
type movedError struct{ to td.Ref }

func (e *movedError) Error() string {
	return "this node knows no Thing of that name of the new owner"
}

// get is Get without following moves. The error wraps a movedError if the Thing has moved.
func (d *Directory) get(ctx context.Context, ref td.Ref) (*td.Description, error) {
	if d.opts.Own != nil {
		if err := d.opts.Own.Await(ctx, ref); err != nil {
			return nil, err
		}
	}
	by, r := d.reader(ctx), reference{Ref: ref}
	if r.Organization != "" {
		m, id, err := d.membership(ctx, r.Organization, true)
		if err != nil {
			return nil, err
		}
		r.members, r.organization = m, id
	}
	known := d.named(&by, r)
	remote := r.Exact() || d.IsIncomplete() && ctx.Value(withoutUse{}) == nil
	if len(known) > 0 && (r.Exact() || !remote || d.isFamiliar(known)) {
		return d.pick(r, known)
	}
	if _, full := fullOwner(r.Ref); len(known) == 0 && (!remote || full) {
		// With an owner the tombstone decides. Without one, any owner could have signed it, so the sources are queried first.
		if err := d.withdrawn(&by, r); err != nil {
			return nil, err
		}
	}
	var failed error
	if remote && len(d.opts.Sources) > 0 {
		var more []*td.Description
		more, failed = d.lookUp(ctx, r)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("look up %s: %w", r, ctx.Err())
		}
		if r.members != nil {
			r.members.Nodes = d.opts.Organizations.MembersOf(r.organization)
		}
		known = d.named(&by, r)
		if len(known) == 0 || !r.Exact() && !d.isFamiliar(known) {
			// The index is full, but the Thing was found.
			for _, desc := range more {
				if by.sees(desc) && r.fits(desc.Record) && !d.hasNewer(desc.Record) && d.viewOf(desc.Record.Owner, desc.Record.Thing) == nil {
					known = append(known, newView(desc))
				}
			}
		}
	}
	if len(known) > 0 {
		return d.pick(r, known)
	}
	if err := d.withdrawn(&by, r); err != nil {
		return nil, err
	}
	return nil, d.notFound(&by, r, failed)
}

// pick returns the only one of found, or an error.
func (d *Directory) pick(r reference, found []*view) (*td.Description, error) {
	if len(found) == 1 {
		return d.views.describe(found[0]), nil
	}
	refs := make([]string, len(found))
	for i, v := range found {
		refs[i] = exactRef(v.record)
	}
	slices.Sort(refs)
	e := interact.Errorf(interact.Ambiguous, "use an exact reference", "%d agents match %q%s", len(found), r, d.lookalikeNote(found))
	e.Next = interact.UseOne(refs)
	return nil, e
}

// lookalikeNote returns a text about names that look like others, because a reference does not show which letters it has.
func (d *Directory) lookalikeNote(found []*view) (text string) {
	seen := map[string]bool{}
	for _, v := range found {
		name := shownName(v.record)
		of := d.Resembles(v.record)
		if of == "" || seen[name] || len(seen) == maxMarks {
			continue
		}
		seen[name] = true
		text += fmt.Sprintf("; %q looks like %q", name, of)
		if odd := confusable.Odd(name, of); odd != "" {
			text += " (" + odd + ")"
		}
	}
	return text
}

// maxMarks limits the names that an error mentions.
const maxMarks = 3

// named returns the live Things of a reference by the first rule of [Directory.Get] that matches, of those that are visible.
func (d *Directory) named(by *reader, r reference) []*view {
	d.mu.RLock()
	defer d.mu.RUnlock()
	now := time.Now()
	if found := d.ownedLocked(by, d.index.Named(r.Name), r, now); len(found) > 0 {
		return d.preferLocked(found)
	}
	if r.Exact() {
		if strings.HasPrefix(r.Name, "did:") {
			return d.ownedLocked(by, d.index.List(index.Owner, r.Name), r, now)
		}
		return nil
	}
	if found := d.ownedLocked(by, d.index.List(index.Name, td.NameKey(r.Name)), r, now); len(found) > 0 {
		return d.preferLocked(found)
	}
	if r.Organization != "" {
		return nil
	}
	return d.byKeyLocked(by, r.Name, now)
}

// preferLocked returns the preferred ones of found: those of this node, then those of trusted owners, so that an untrusted owner cannot hide
// them with an equal name or id. Between untrusted owners there is no preference, not even for one that was used before: otherwise
// inspecting an impostor would make the name refer to it.
func (d *Directory) preferLocked(found []*view) []*view {
	if len(found) < 2 {
		return found
	}
	best, most := found[:0:0], -1
	for _, v := range found {
		switch precedence := d.precedenceLocked(v); {
		case precedence > most:
			best, most = []*view{v}, precedence
		case precedence == most:
			best = append(best, v)
		}
	}
	return best
}

// Established reports whether a Thing belongs to this node or a trusted owner, so that others cannot make its name ambiguous.
func (d *Directory) Established(r *td.Record) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	e := d.entries[r.Key()]
	return e != nil && e.view != nil && d.precedenceLocked(e.view) > 0
}

// isFamiliar reports whether one of the Things of a name is established, or was requested before: then the sources are not queried.
func (d *Directory) isFamiliar(found []*view) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return slices.ContainsFunc(found, func(v *view) bool {
		e := d.entries[v.record.Key()]
		return e != nil && e.view != nil && (e.used || d.precedenceLocked(e.view) > 0)
	})
}

// Namesakes returns exact references to further Things of a name, at most limit, after desc in precedence.
func (d *Directory) Namesakes(ctx context.Context, ref string, desc *td.Description, limit int) (refs []string) {
	r := reference{Ref: td.ParseRef(ref)}
	if r.Exact() || r.Organization != "" {
		return nil
	}
	by := d.reader(ctx)
	d.mu.RLock()
	defer d.mu.RUnlock()
	for _, v := range d.ownedLocked(&by, d.index.List(index.Name, td.NameKey(r.Name)), r, time.Now()) {
		if v.record.Key() != desc.Record.Key() && len(refs) < limit {
			refs = append(refs, exactRef(v.record))
		}
	}
	return refs
}

func (d *Directory) precedenceLocked(v *view) int {
	e := d.entries[v.record.Key()]
	switch {
	case e.own:
		return 2
	case e.Tier() == eviction.Trusted:
		return 1
	}
	return 0
}

// ownedLocked returns the visible members of a list with the owner of a reference.
func (d *Directory) ownedLocked(by *reader, l *index.List, r reference, now time.Time) []*view {
	var found []*view
	for e := range d.liveEntriesLocked(l.All(), now) {
		if r.fits(e.view.record) && by.seesView(e.view) {
			found = append(found, e.view)
		}
	}
	return found
}

// byKeyLocked returns the Things of owners whose key begins with text.
func (d *Directory) byKeyLocked(by *reader, text string, now time.Time) []*view {
	prefix := strings.TrimSuffix(text, "…")
	if !strings.HasPrefix(prefix, "z6Mk") {
		return nil
	}
	var found []*view
	for owner := range d.index.Texts(index.Owner) {
		if strings.HasPrefix(did.DID(owner).Multibase(), prefix) {
			found = append(found, d.ownedLocked(by, d.index.List(index.Owner, owner), reference{}, now)...)
		}
	}
	return found
}

// withdrawn returns the error for a withdrawn or moved Thing of a reference, or nil.
func (d *Directory) withdrawn(by *reader, r reference) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	lists := d.tombstones.byID[r.Name]
	if !r.Exact() {
		lists = slices.Concat(lists, d.tombstones.byName[td.NameKey(r.Name)])
	}
	var last *td.Record
	several := false // owners: the last withdrawal must not determine the successor of others' Things
	for _, e := range lists {
		rec := e.tombstone.record
		if !r.fits(rec) || !by.seesTombstone(rec) {
			continue
		}
		several = several || last != nil && rec.Owner != last.Owner
		if last == nil || rec.Issued.After(last.Issued) {
			last = rec
		}
	}
	switch {
	case last == nil:
		return nil
	case last.Kind == td.KindMoved && d.isFollowed(last):
		e := interact.Errorf(interact.Withdrawn, "", "%s has moved to %s at %s", last.Thing, last.Successor, formatTime(last.Issued)).
			Then(interact.StepShow, last.SuccessorRef().String())
		if !several {
			e.Err = &movedError{last.SuccessorRef()}
		}
		return e
	}
	return interact.Errorf(interact.Withdrawn, "", "%s was withdrawn by its owner %s at %s", last.Thing, last.Owner.Short(), formatTime(last.Issued)).
		Then(interact.StepFind)
}

// isFollowed reports whether references to a moved Thing lead to its successor; otherwise it is withdrawn. A refused owner may withdraw, for example if its key was revoked, but
// somebody else may have that key: its moves lead to trusted owners only.
func (d *Directory) isFollowed(moved *td.Record) bool {
	if d.refuses(moved.Owner) == nil {
		return true
	}
	amount := 0.0
	if d.opts.Trust != nil {
		amount, _ = d.opts.Trust(moved.Successor)
	}
	return amount >= 1
}

// lookUp queries the sources for a full id or a name. It returns the results and the failures.
func (d *Directory) lookUp(ctx context.Context, r reference) ([]*td.Description, error) {
	ctx, cancel := context.WithTimeout(ctx, d.opts.Timeout)
	defer cancel()
	owner, ok := fullOwner(r.Ref)
	if ok && r.Exact() {
		return d.lookUpOwned(ctx, owner, r.Name)
	}
	var found []*td.Description
	counter := &td.CoverageCounter{}
	q := td.Query{ID: r.Name, Limit: 9, Counter: counter}
	if !r.Exact() {
		q.ID, q.Name = "", r.Name
	}
	if ok {
		q.Owner = owner
	}
	q.Organization = r.Organization
	for desc, err := range d.Find(ctx, q) {
		if err != nil {
			break // the caller checks its own ctx
		}
		if r.fits(desc.Record) {
			found = append(found, desc)
		}
	}
	if c := counter.Coverage(); c.Asked > c.Answered {
		return found, fmt.Errorf("%d of %d peers did not answer", c.Asked-c.Answered, c.Asked)
	}
	return found, nil
}

// fullOwner returns the owner of a reference; ok is false if the reference has none, or only a prefix.
func fullOwner(r td.Ref) (id did.DID, ok bool) {
	owner := r.Owner
	if !strings.HasPrefix(owner, "did:") {
		owner = "did:key:" + owner
	}
	id, err := did.Parse(owner)
	return id, err == nil
}

// lookUpOwned queries all sources for the newest record of a Thing and adds the results.
func (d *Directory) lookUpOwned(ctx context.Context, owner did.DID, thing string) ([]*td.Description, error) {
	var (
		mu     sync.Mutex // owns newest and failed
		newest *td.Description
		failed []error
		g      sync.WaitGroup
	)
	for _, s := range d.opts.Sources {
		g.Go(func() {
			signed, err := s.Get(ctx, owner, thing)
			var desc *td.Description
			if err == nil {
				var why error
				if desc, _, why = d.ingestResult(ctx, signed); errors.Is(why, errUnfetched) {
					err = why
				}
			}
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil && !errors.Is(err, did.ErrNotFound):
				failed = append(failed, err)
			case desc != nil && desc.Record.Owner == owner && desc.Record.Thing == thing &&
				(newest == nil || desc.Record.Number() > newest.Record.Number()):
				newest = desc
			}
		})
	}
	g.Wait()
	if newest != nil {
		return []*td.Description{newest}, nil
	}
	// The records of a Thing with several hosts are only at its hosts.
	var found []*td.Description
	for desc, err := range d.Find(ctx, td.Query{ID: thing, Limit: td.MaxGranted, Counter: &td.CoverageCounter{}}) {
		if err != nil {
			break // the caller checks its own ctx
		}
		if desc.Record.Owner == owner {
			found = append(found, desc)
		}
	}
	if len(found) == 0 {
		return nil, errors.Join(failed...)
	}
	return found, nil
}

// notFound returns the error for an unknown reference, with a suggestion. failed is the reason if the result may be incomplete.
func (d *Directory) notFound(by *reader, r reference, failed error) error {
	e := interact.NoAgent(r.String())
	d.mu.RLock()
	var isKnown func(name string) bool
	if !d.sightLocked(by).everything || r.Organization != "" {
		isKnown = func(name string) bool {
			return len(d.ownedLocked(by, d.index.List(index.Name, name), reference{Ref: td.Ref{Organization: r.Organization}, members: r.members}, time.Time{})) > 0
		}
	}
	near := d.index.SimilarName(r.Name, isKnown)
	d.mu.RUnlock()
	if near != "" {
		near = td.Ref{Name: near, Organization: r.Organization}.String()
		e.Next = interact.Next(interact.StepShow, near)
	}
	if failed != nil {
		e.Title += "; not all sources answered"
		e.Err = failed
	}
	return e
}

// Locate returns the Thing that ref names, made by Options.Bind. The errors are those of [Directory.Get], and [interact.Unreachable] if no
// form is supported. It implements interact.Finder.
func (d *Directory) Locate(ctx context.Context, ref string) (interact.Thing, error) {
	if t := d.resolvedThing(ctx, ref); t != nil {
		return t, nil
	}
	desc, err := d.Get(ctx, ref)
	if err != nil {
		return nil, err
	}
	key := desc.Record.Key()
	if t := d.boundTo(key, desc); t != nil {
		return t, nil
	}
	var t interact.Thing
	if d.opts.Bind != nil {
		t = d.opts.Bind(desc)
	}
	if t == nil {
		return nil, interact.Errorf(interact.Unreachable, "", "no binding of this node reaches %s", desc.Record.Thing).
			Then(interact.StepShow, desc.Ref())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if e := d.entries[key]; e != nil && e.view != nil && e.view.record == desc.Record {
		d.setBoundLocked(e, t)
		if ref == desc.Ref() {
			d.cacheResolvedLocked(ref, e)
		}
	}
	return t, nil
}

// resolvedThing returns the cached Thing of an exact reference, if it is still valid and visible.
func (d *Directory) resolvedThing(ctx context.Context, ref string) interact.Thing {
	by := d.reader(ctx)
	d.mu.RLock()
	defer d.mu.RUnlock()
	if e := d.resolved[ref]; e != nil && e.view != nil && alive(e.view.record, time.Now()) && by.seesView(e.view) {
		if !e.UsedAgain.Load() {
			e.UsedAgain.Store(true)
		}
		return e.bound
	}
	return nil
}

// maxBound is the number of cached Things: each has its description unpacked.
const maxBound = 4096

// setBoundLocked caches the Thing of e, in place of the oldest one.
func (d *Directory) setBoundLocked(e *entry, t interact.Thing) {
	e.bound = t
	if d.bound = append(d.bound, e); len(d.bound) > maxBound {
		d.bound[0].bound = nil
		d.bound[0] = nil
		d.bound = d.bound[1:]
	}
}

// cacheResolvedLocked caches the entry of a reference. A dropped entry stays until the limit is reached.
func (d *Directory) cacheResolvedLocked(ref string, e *entry) {
	if d.resolved == nil || len(d.resolved) > maxBound {
		d.resolved = map[string]*entry{}
	}
	d.resolved[ref] = e
}

// boundTo returns the cached Thing of desc, or nil.
func (d *Directory) boundTo(key [32]byte, desc *td.Description) interact.Thing {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if e := d.entries[key]; e != nil && e.view != nil && e.view.record == desc.Record {
		return e.bound
	}
	return nil
}
