package explore

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// A Discovered is a discovered Thing: its description, signed by this node, and its agent. It is read-only.
type Discovered struct {
	*td.Description
	Agent interact.Thing
	in    *introduction
	sum   [sha256.Size]byte // of the found TD
}

// A store has the discovered Things.
type store struct {
	publishes func(id string) bool
	onChange  func(kind directory.ChangeKind, reason directory.Reason, thing, was *td.Description)
	signer    did.Signer // a key of this process

	mu sync.RWMutex
	// The following fields are owned by mu.
	all   map[string]*Discovered // by id
	state uint64                 // counts changes
}

// isSigner reports whether owner is the key of the discovered Things.
func (s *store) isSigner(owner string) bool {
	id := s.signer.DID()
	return owner == string(id) || owner == id.Multibase()
}

// limit returns the maximum number of Things of the host.
func (in *introduction) limit() int {
	if in.configuredHost != "" {
		return maxThings
	}
	return maxPerSource
}

// unchanged reports whether the found TD is unchanged, and its description valid until after the next exploration.
func (s *store) unchanged(in *introduction, id string, sum [sha256.Size]byte, now time.Time) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	t := s.all[id]
	return t != nil && t.in == in && t.sum == sum && t.Record.Expires.After(now.Add(visitInterval+time.Minute))
}

// checkLimits returns the reason to reject a Thing of an introduction, or nil. The first introduction with an id keeps it.
func (s *store) checkLimits(in *introduction, id string) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.checkLimitsLocked(in, id)
}

func (s *store) checkLimitsLocked(in *introduction, id string) error {
	old, same, all := s.all[id], 0, 0
	for _, t := range s.all {
		if (t.in.configuredHost == "") != (in.configuredHost == "") {
			continue // separate limits for the local network and for configured introductions
		}
		if all++; t.in.From == in.From {
			same++
		}
	}
	switch {
	case old != nil && old.in == in:
		return nil
	case old != nil:
		return fmt.Errorf("%q has introduced %q before", old.in.Instance, id)
	case s.publishes(id):
		return fmt.Errorf("%q is a Thing of this node", id)
	case same >= in.limit():
		return fmt.Errorf("limit of %d Things of %s reached", same, in.From)
	case all >= maxThings:
		return fmt.Errorf("limit of %d discovered Things reached", all)
	}
	return nil
}

// put stores a Thing, unless its exploration has ended.
func (s *store) put(ctx context.Context, t *Discovered) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := t.Record.Thing
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.checkLimitsLocked(t.in, id); err != nil {
		return err
	}
	old := s.all[id]
	s.all[id] = t
	s.state++
	switch {
	case old == nil:
		s.onChange(directory.Added, directory.Discovered, t.Description, nil)
	case old.sum != t.sum: // otherwise only its validity is extended
		s.onChange(directory.Changed, directory.Discovered, t.Description, old.Description)
	}
	return nil
}

// removeExcept removes the Things of an introduction, except the Things with the ids, and returns the number of removed Things.
func (s *store) removeExcept(in *introduction, ids map[string]bool) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := len(s.all)
	for id, t := range s.all {
		if t.in == in && !ids[id] {
			s.removeLocked(id)
		}
	}
	return before - len(s.all)
}

// removeExpired removes expired Things.
func (s *store) removeExpired(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, t := range s.all {
		if !t.Record.Expires.After(now) {
			s.removeLocked(id)
		}
	}
}

func (s *store) removeLocked(id string) {
	t := s.all[id]
	delete(s.all, id)
	s.state++
	s.onChange(directory.Removed, directory.Vanished, t.Description, nil)
}

// matching returns the valid Things that fits accepts, sorted by id.
func (s *store) matching(fits func(d *td.Description) bool) []*Discovered {
	s.mu.RLock()
	defer s.mu.RUnlock()
	now := time.Now()
	var found []*Discovered
	for id, t := range s.all {
		if t.Record.Expires.After(now) && !s.publishes(id) && fits(t.Description) {
			found = append(found, t)
		}
	}
	slices.SortFunc(found, func(a, b *Discovered) int { return strings.Compare(a.Record.Thing, b.Record.Thing) })
	return found
}

// After yields the results found, and then the discovered Things that match q and are visible, within its limit.
func (d *Discoveries) After(found iter.Seq2[*td.Description, error], q td.Query, visible func(*td.Description) bool) iter.Seq2[*td.Description, error] {
	return func(yield func(*td.Description, error) bool) {
		count := 0
		var failed error
		for d, err := range found {
			if failed = err; err != nil {
				break
			}
			if count++; !yield(d, nil) {
				return
			}
		}
		for _, t := range d.things.matching(func(d *td.Description) bool { return q.Match(d) && visible(d) }) {
			if q.Except[t.Record.Key()] {
				continue
			}
			q.Counter.CountMatches(1)
			if count++; count > q.Max() {
				q.Counter.SetMore()
				continue
			}
			q.Counter.NoteIssued(t.Record.Issued)
			if !yield(t.Description, nil) {
				return
			}
		}
		if failed != nil {
			yield(nil, failed)
		}
	}
}

// All returns the visible discovered Things, sorted by id, and a number that changes with them.
func (d *Discoveries) All(visible func(*td.Description) bool) (all []*Discovered, state uint64) {
	d.things.mu.RLock()
	state = d.things.state
	d.things.mu.RUnlock()
	all = d.things.matching(visible)
	return all, state + uint64(len(all))<<32 // a Thing that this node publishes is hidden without a change of state
}

// named returns the discovered Thing that ref names, or nil if the result of get, that of the directory, applies. A Thing of the mesh takes
// precedence over a discovered Thing with the same id, and, if it is established, over one with the same name. Otherwise a name of both is
// [interact.Ambiguous].
func (d *Discoveries) named(ctx context.Context, ref string,
	get func(context.Context, string) (*td.Description, error), established func(*td.Record) bool, visible func(*td.Description) bool) (
	*Discovered, error) {
	r := td.ParseRef(ref)
	found := d.things.matching(func(d *td.Description) bool { return r.Match(d) && visible(d) })
	if len(found) == 0 {
		return nil, nil
	}
	if r.Exact() && d.things.isSigner(r.Owner) {
		return found[0], nil
	}
	known, err := get(ctx, ref)
	if e, ok := errors.AsType[*interact.Error](err); ok && e.Code == interact.NotFound {
		if len(found) == 1 {
			return found[0], nil
		}
	} else if err != nil || r.Exact() || established(known.Record) {
		return nil, err
	}
	var refs []string
	if known != nil {
		refs = append(refs, known.Ref())
	}
	for _, t := range found[:min(len(found), 8)] {
		refs = append(refs, t.Ref())
	}
	e := interact.Errorf(interact.Ambiguous, "use an exact reference", "%q names an introduced Thing and another one", ref)
	e.Next = interact.UseOne(refs)
	return nil, e
}
