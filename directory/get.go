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
	"github.com/lmosd/lmosd/directory/index"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/confusable"
	"github.com/lmosd/lmosd/td"
)

// Get returns the one thing that ref names (see [td.Ref]): by id, by id and owner, by owner if it has one thing, by
// name, or by the beginning of the owner's key. Of several that share an id or a name, what this node publishes comes first, then
// what trusted owners have; what comes first wins, if it is the only one. A full id that the index lacks is asked of the sources; a name is if the
// index may lack something ([Directory.Lacks]), unless it is that of a thing that is established or was asked for before: else the index says which is the only one.
//
// Of a thing that has moved it returns what it has become (td.Record.SuccessorRef), if its new owner offers that.
//
// The error is an [*interact.Error]: [interact.NotFound] with what may have been meant, [interact.Ambiguous] with up to
// eight exact references, [interact.Withdrawn] with the time, and where it has moved; or it wraps the error of ctx.
func (d *Directory) Get(ctx context.Context, ref string) (*td.Description, error) {
	desc, err := d.get(ctx, td.ParseRef(ref))
	for range maxMoves {
		moved, ok := errors.AsType[*movedError](err)
		if !ok {
			if err == nil && ctx.Value(glancing{}) == nil {
				d.use(desc.Record.Key())
			}
			return desc, err
		}
		heir, next := d.get(ctx, moved.to)
		if next != nil && interact.AsError(next).Code == interact.NotFound {
			return nil, err // that it has moved is the last that is known
		}
		desc, err = heir, next
	}
	if _, ok := errors.AsType[*movedError](err); ok {
		return nil, interact.Errorf(interact.Withdrawn, "lmosd find", "%s has moved more than %d times, or in a circle", ref, maxMoves)
	}
	return desc, err
}

// maxMoves is how often a thing may have moved, for who asks for it where it was first.
const maxMoves = 4

// A movedError says where a thing is looked for next.
type movedError struct{ to td.Ref }

func (e *movedError) Error() string {
	return "its new owner offers nothing of that name, as far as is known"
}

// get is Get of what has not moved. The error wraps a movedError if it has.
func (d *Directory) get(ctx context.Context, r td.Ref) (*td.Description, error) {
	known := d.named(r)
	asks := r.Exact() || d.Lacks() && ctx.Value(glancing{}) == nil
	if len(known) > 0 && (r.Exact() || !asks || d.familiar(known)) {
		return d.pick(r, known)
	}
	if _, full := fullOwner(r); len(known) == 0 && (!asks || full) {
		// Who else could know better? Without the owner, anybody's tombstone would do, so the sources are asked first.
		if err := d.withdrawn(r); err != nil {
			return nil, err
		}
	}
	var failed error
	if asks && len(d.opts.Sources) > 0 {
		var more []*td.Description
		more, failed = d.inquire(ctx, r)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("look for %s: %w", r, ctx.Err())
		}
		known = d.named(r)
		if len(known) == 0 || !r.Exact() && !d.familiar(known) {
			// A full index does not take what was found, but it was found.
			for _, desc := range more {
				if !d.overrules(desc.Record) && d.one(desc.Record.Owner, desc.Record.Thing) == nil {
					known = append(known, newView(desc))
				}
			}
		}
	}
	if len(known) > 0 {
		return d.pick(r, known)
	}
	if err := d.withdrawn(r); err != nil {
		return nil, err
	}
	return nil, d.notFound(r, failed)
}

// pick returns the only one of found, or the error that it is not.
func (d *Directory) pick(r td.Ref, found []*view) (*td.Description, error) {
	if len(found) == 1 {
		return d.views.describe(found[0]), nil
	}
	refs := make([]string, len(found))
	for i, v := range found {
		refs[i] = exactRef(v.record)
	}
	slices.Sort(refs)
	hint := "use one of " + strings.Join(refs[:min(len(refs), 8)], ", ")
	if len(refs) > 8 {
		hint += ", …"
	}
	return nil, interact.Errorf(interact.Ambiguous, hint, "%d agents match %q%s", len(found), r, d.alike(found))
}

// alike says of the names of things that they look like others: a reference does not show which letters it has.
func (d *Directory) alike(found []*view) (text string) {
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

// maxMarks bounds the names that an error marks.
const maxMarks = 3

// named returns the living things that a reference names, in the order of the ways that [Directory.Get] lists: what
// one way finds hides what later ones would.
func (d *Directory) named(r td.Ref) []*view {
	d.mu.RLock()
	defer d.mu.RUnlock()
	now := time.Now()
	if found := d.ownedLocked(d.index.Named(r.Name), r, now); len(found) > 0 {
		return d.preferLocked(found)
	}
	if r.Exact() {
		if strings.HasPrefix(r.Name, "did:") {
			return d.ownedLocked(d.index.List(index.Owner, r.Name), r, now)
		}
		return nil
	}
	if found := d.ownedLocked(d.index.List(index.Name, td.NameKey(r.Name)), r, now); len(found) > 0 {
		return d.preferLocked(found)
	}
	return d.byKeyLocked(r.Name, now)
}

// preferLocked returns those of found that come before the others: what this node publishes, then what trusted owners have. An untrusted
// owner who takes a name or an id must not hide them. Between untrusted owners nothing decides, not even that one was used here: whoever
// inspects an impostor would make the name mean the impostor.
func (d *Directory) preferLocked(found []*view) []*view {
	if len(found) < 2 {
		return found
	}
	best, most := found[:0:0], -1
	for _, v := range found {
		switch merit := d.meritLocked(v); {
		case merit > most:
			best, most = []*view{v}, merit
		case merit == most:
			best = append(best, v)
		}
	}
	return best
}

// Established reports whether a thing is of this node or of a trusted owner: no name that somebody else chooses makes its name ambiguous.
func (d *Directory) Established(r *td.Record) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	e := d.entries[r.Key()]
	return e != nil && e.view != nil && d.meritLocked(e.view) > 0
}

// familiar reports whether one of those that a name names is established, or was asked for here before: then nobody else is looked for.
func (d *Directory) familiar(found []*view) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return slices.ContainsFunc(found, func(v *view) bool {
		e := d.entries[v.record.Key()]
		return e != nil && e.view != nil && (e.used || d.meritLocked(e.view) > 0)
	})
}

// Namesakes returns exact references to others whom a name names, too, at most limit: they came after desc.
func (d *Directory) Namesakes(ref string, desc *td.Description, limit int) (refs []string) {
	r := td.ParseRef(ref)
	if r.Exact() {
		return nil
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	for _, v := range d.ownedLocked(d.index.List(index.Name, td.NameKey(r.Name)), r, time.Now()) {
		if v.record.Key() != desc.Record.Key() && len(refs) < limit {
			refs = append(refs, exactRef(v.record))
		}
	}
	return refs
}

func (d *Directory) meritLocked(v *view) int {
	e := d.entries[v.record.Key()]
	switch {
	case e.own:
		return 2
	case e.stands.tier == trusted:
		return 1
	}
	return 0
}

// ownedLocked returns the members of a list that the owner of a reference has.
func (d *Directory) ownedLocked(l *index.List, r td.Ref, now time.Time) []*view {
	var found []*view
	for e := range d.livingLocked(l.All(), now) {
		if r.Owns(e.view.record.Owner) {
			found = append(found, e.view)
		}
	}
	return found
}

// byKeyLocked returns the things of the owners whose key begins with text.
func (d *Directory) byKeyLocked(text string, now time.Time) []*view {
	prefix := strings.TrimSuffix(text, "…")
	if !strings.HasPrefix(prefix, "z6Mk") {
		return nil
	}
	var found []*view
	for owner := range d.index.Texts(index.Owner) {
		if strings.HasPrefix(did.DID(owner).Multibase(), prefix) {
			found = append(found, d.ownedLocked(d.index.List(index.Owner, owner), td.Ref{}, now)...)
		}
	}
	return found
}

// withdrawn returns the error that a thing of that name was withdrawn or moved, or nil.
func (d *Directory) withdrawn(r td.Ref) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	lists := d.graves.byID[r.Name]
	if !r.Exact() {
		lists = slices.Concat(lists, d.graves.byName[td.NameKey(r.Name)])
	}
	var last *td.Record
	several := false // owners: whoever withdraws last must not say where the others' things are
	for _, e := range lists {
		rec := e.grave.record
		if !r.Owns(rec.Owner) {
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
	case last.Kind == td.KindMoved:
		e := interact.Errorf(interact.Withdrawn, "lmosd show "+interact.Quote(last.SuccessorRef().String()),
			"%s has moved to %s at %s", last.Thing, last.Successor, stamp(last.Issued))
		if !several {
			e.Err = &movedError{last.SuccessorRef()}
		}
		return e
	}
	return interact.Errorf(interact.Withdrawn, "lmosd find", "%s was withdrawn by its owner %s at %s",
		last.Thing, last.Owner.Short(), stamp(last.Issued))
}

// inquire asks the sources for what a full id or a name names. It returns what they found, and how they failed.
func (d *Directory) inquire(ctx context.Context, r td.Ref) ([]*td.Description, error) {
	ctx, cancel := context.WithTimeout(ctx, d.opts.Timeout)
	defer cancel()
	owner, ok := fullOwner(r)
	if ok && r.Exact() {
		return d.inquireOwner(ctx, owner, r.Name)
	}
	var found []*td.Description
	tally := &td.CoverageCounter{}
	q := td.Query{ID: r.Name, Limit: 9, Counter: tally}
	if !r.Exact() {
		q.ID, q.Name = "", r.Name
	}
	if ok {
		q.Owner = owner
	}
	for desc, err := range d.Find(ctx, q) {
		if err != nil {
			break // the caller looks at its own ctx
		}
		if r.Owns(desc.Record.Owner) {
			found = append(found, desc)
		}
	}
	if c := tally.Coverage(); c.Asked > c.Answered {
		return found, fmt.Errorf("%d of %d did not answer", c.Asked-c.Answered, c.Asked)
	}
	return found, nil
}

// fullOwner returns the owner of a reference, if it is not only the beginning of one.
func fullOwner(r td.Ref) (did.DID, bool) {
	owner := r.Owner
	if !strings.HasPrefix(owner, "did:") {
		owner = "did:key:" + owner
	}
	id, err := did.Parse(owner)
	return id, err == nil
}

// inquireOwner asks all sources for the newest record of a thing and learns what they have.
func (d *Directory) inquireOwner(ctx context.Context, owner did.DID, thing string) ([]*td.Description, error) {
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
				if desc, _, why = d.take(ctx, signed); errors.Is(why, errUnfetched) {
					err = why
				}
			}
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil && !errors.Is(err, did.ErrNotFound):
				failed = append(failed, err)
			case desc != nil && desc.Record.Owner == owner && desc.Record.Thing == thing &&
				(newest == nil || desc.Record.Seq > newest.Record.Seq):
				newest = desc
			}
		})
	}
	g.Wait()
	if newest == nil {
		return nil, errors.Join(failed...)
	}
	return []*td.Description{newest}, nil
}

// notFound says that nothing has a name, and what may have been meant. failed says why the answer may be incomplete.
func (d *Directory) notFound(r td.Ref, failed error) error {
	hint := "lmosd find"
	if near := d.near(r.Name); near != "" {
		hint = "lmosd show " + interact.Quote(near)
	}
	title := fmt.Sprintf("no agent matches %q", r)
	if failed != nil {
		title += ", as far as could be asked"
	}
	return &interact.Error{Code: interact.NotFound, Title: title, Hint: hint, Err: failed}
}

// Locate returns what asks the thing that ref names, made by Options.Bind. The errors are those of [Directory.Get], and
// [interact.Unreachable] if nothing here speaks to it. It implements interact.Finder.
func (d *Directory) Locate(ctx context.Context, ref string) (interact.Thing, error) {
	if t := d.route(ref); t != nil {
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
		return nil, interact.Errorf(interact.Unreachable, "lmosd show "+interact.Quote(desc.Ref()),
			"no binding of this node reaches %s", desc.Record.Thing)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if e := d.entries[key]; e != nil && e.view != nil && e.view.record == desc.Record {
		d.setBoundLocked(e, t)
		if ref == desc.Ref() {
			d.setRouteLocked(ref, e)
		}
	}
	return t, nil
}

// route returns what is bound to the thing that ref names with its owner, if that was asked for before and still lives.
func (d *Directory) route(ref string) interact.Thing {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if e := d.routes[ref]; e != nil && e.view != nil && alive(e.view.record, time.Now()) {
		if !e.again.Load() {
			e.again.Store(true)
		}
		return e.bound
	}
	return nil
}

// maxBound is how many things that can be asked are kept: each has its description unpacked, and more.
const maxBound = 4096

// setBoundLocked keeps what was bound to e, in place of what was bound first.
func (d *Directory) setBoundLocked(e *entry, t interact.Thing) {
	e.bound = t
	if d.bound = append(d.bound, e); len(d.bound) > maxBound {
		d.bound[0].bound = nil
		d.bound[0] = nil
		d.bound = d.bound[1:]
	}
}

// setRouteLocked remembers what ref names. An entry that was forgotten stays until there are too many.
func (d *Directory) setRouteLocked(ref string, e *entry) {
	if d.routes == nil || len(d.routes) > maxBound {
		d.routes = map[string]*entry{}
	}
	d.routes[ref] = e
}

// boundTo returns what was bound to desc before, or nil.
func (d *Directory) boundTo(key [32]byte, desc *td.Description) interact.Thing {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if e := d.entries[key]; e != nil && e.view != nil && e.view.record == desc.Record {
		return e.bound
	}
	return nil
}
