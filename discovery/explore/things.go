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

// A Discovered is a discovered thing: what this node itself says of what it found, and what asks it. It is read-only.
type Discovered struct {
	*td.Description
	Agent interact.Thing
	in    *introduction
	sum   [sha256.Size]byte // of what was found
}

// A store keeps the discovered things.
type store struct {
	offers func(id string) bool
	tell   func(kind directory.ChangeKind, thing, was *td.Description)
	signer did.Signer // signs what nobody else has, and ends with the process

	mu sync.RWMutex
	// what follows is owned by mu.
	all   map[string]*Discovered // by id
	state uint64                 // counts the changes of what is here
}

// signs reports whether owner is the key of the discovered things.
func (s *store) signs(owner string) bool {
	id := s.signer.DID()
	return owner == string(id) || owner == id.Multibase()
}

// most is how many things one host may introduce.
func (in *introduction) most() int {
	if in.home != "" {
		return maxThings
	}
	return maxPerSource
}

// fresh reports whether a thing is known as it was found now, for longer than until the next exploration.
func (s *store) fresh(in *introduction, id string, sum [sha256.Size]byte, now time.Time) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	h := s.all[id]
	return h != nil && h.in == in && h.sum == sum && h.Record.Expires.After(now.Add(visitEvery+time.Minute))
}

// room says why a thing of an introduction is not taken. The first who has an id keeps it.
func (s *store) room(in *introduction, id string) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.roomLocked(in, id)
}

func (s *store) roomLocked(in *introduction, id string) error {
	old, same, all := s.all[id], 0, 0
	for _, h := range s.all {
		if (h.in.home == "") != (in.home == "") {
			continue // the local network takes no place from what the operator has listed
		}
		if all++; h.in.From == in.From {
			same++
		}
	}
	switch {
	case old != nil && old.in == in:
		return nil
	case old != nil:
		return fmt.Errorf("%q is introduced by %q already", id, old.in.Instance)
	case s.offers(id):
		return fmt.Errorf("%q is a thing of this node", id)
	case same >= in.most():
		return fmt.Errorf("%s has %d things here already", in.From, same)
	case all >= maxThings:
		return fmt.Errorf("%d things that others introduced are known already", all)
	}
	return nil
}

// put takes a thing, unless the exploration that found it is over.
func (s *store) put(ctx context.Context, h *Discovered) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := h.Record.Thing
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.roomLocked(h.in, id); err != nil {
		return err
	}
	old := s.all[id]
	s.all[id] = h
	s.state++
	switch {
	case old == nil:
		s.tell(directory.Added, h.Description, nil)
	case old.sum != h.sum: // else it only lasts longer
		s.tell(directory.Changed, h.Description, old.Description)
	}
	return nil
}

// keep forgets all things of an introduction but those with the ids, and returns how many went.
func (s *store) keep(in *introduction, ids map[string]bool) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := len(s.all)
	for id, h := range s.all {
		if h.in == in && !ids[id] {
			s.forgetLocked(id)
		}
	}
	return before - len(s.all)
}

// sweep forgets what has not been found again for long.
func (s *store) sweep(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, h := range s.all {
		if !h.Record.Expires.After(now) {
			s.forgetLocked(id)
		}
	}
}

func (s *store) forgetLocked(id string) {
	h := s.all[id]
	delete(s.all, id)
	s.state++
	s.tell(directory.Gone, h.Description, nil)
}

// that returns the things in force that fits takes, by id.
func (s *store) that(fits func(d *td.Description) bool) []*Discovered {
	s.mu.RLock()
	defer s.mu.RUnlock()
	now := time.Now()
	var found []*Discovered
	for id, h := range s.all {
		if h.Record.Expires.After(now) && !s.offers(id) && fits(h.Description) {
			found = append(found, h)
		}
	}
	slices.SortFunc(found, func(a, b *Discovered) int { return strings.Compare(a.Record.Thing, b.Record.Thing) })
	return found
}

// After yields what q finds, and then the things of the local network that q asks for, as far as its limit has room: whatever a
// network introduces, it takes no place from what the mesh has.
func (d *Discoveries) After(found iter.Seq2[*td.Description, error], q td.Query) iter.Seq2[*td.Description, error] {
	return func(yield func(*td.Description, error) bool) {
		given := 0
		var failed error
		for d, err := range found {
			if failed = err; err != nil {
				break
			}
			if given++; !yield(d, nil) {
				return
			}
		}
		for _, h := range d.things.that(q.Match) {
			if q.Except[h.Record.Key()] {
				continue
			}
			q.Counter.CountMatches(1)
			if given++; given > q.Max() {
				q.Counter.SetMore()
				continue
			}
			q.Counter.NoteIssued(h.Record.Issued)
			if !yield(h.Description, nil) {
				return
			}
		}
		if failed != nil {
			yield(nil, failed)
		}
	}
}

// All returns the discovered things, by id, and a number that changes whenever they do.
func (d *Discoveries) All() (all []*Discovered, state uint64) {
	d.things.mu.RLock()
	state = d.things.state
	d.things.mu.RUnlock()
	all = d.things.that(func(*td.Description) bool { return true })
	return all, state + uint64(len(all))<<32 // what this node comes to offer itself is hidden, not forgotten
}

// Named returns the discovered thing that ref names, or nil if ref is for the directory to say, whose answer get gives. The
// mesh's thing comes before a discovered one with the same id, and with the same name if it is established; else a name that both have is
// [interact.Ambiguous].
func (d *Discoveries) Named(ctx context.Context, ref string,
	get func(context.Context, string) (*td.Description, error), established func(*td.Record) bool) (*Discovered, error) {
	r := td.ParseRef(ref)
	found := d.things.that(r.Match)
	if len(found) == 0 {
		return nil, nil
	}
	if r.Exact() && d.things.signs(r.Owner) {
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
		refs = append(refs, interact.Quote(known.Ref()))
	}
	for _, h := range found[:min(len(found), 8)] {
		refs = append(refs, interact.Quote(h.Ref()))
	}
	return nil, interact.Errorf(interact.Ambiguous, "use one of "+strings.Join(refs, ", "),
		"%q may be a thing that somebody introduced, or another", ref)
}
