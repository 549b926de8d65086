package node

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// A shelf holds offers so that each question finds its answer at once, however many there are.
type shelf struct {
	all    map[string]*offer            // by thing id; all have one owner
	refs   map[string]*offer            // those in force by exact reference
	hashes map[[32]byte]*offer          // those in force by the hash of their TD
	keys   map[[32]byte]*offer          // those in force by the key of their record
	names  map[string]map[string]*offer // those in force by name and id
}

func newShelf() shelf {
	return shelf{all: map[string]*offer{}, refs: map[string]*offer{}, hashes: map[[32]byte]*offer{}, keys: map[[32]byte]*offer{}, names: map[string]map[string]*offer{}}
}

// set makes of the offer of its thing.
func (s *shelf) set(of *offer) {
	s.remove(of.Thing)
	s.all[of.Thing] = of
	if d := of.desc; d != nil {
		s.refs[d.Ref()], s.hashes[d.Record.Hash], s.keys[d.Record.Key()] = of, of, of
		name := d.Name()
		if s.names[name] == nil {
			s.names[name] = map[string]*offer{}
		}
		s.names[name][of.Thing] = of
	}
}

func (s *shelf) remove(thing string) {
	old := s.all[thing]
	delete(s.all, thing)
	if old == nil || old.desc == nil {
		return
	}
	delete(s.refs, old.desc.Ref())
	delete(s.hashes, old.desc.Record.Hash)
	delete(s.keys, old.desc.Record.Key())
	name := old.desc.Name()
	if delete(s.names[name], thing); len(s.names[name]) == 0 {
		delete(s.names, name)
	}
}

// find returns the offer in force that ref names: by exact reference, by id, or by name. A name that two offers share names
// neither.
func (s *shelf) find(ref string) *offer {
	if of := s.refs[ref]; of != nil {
		return of
	}
	if of := s.all[ref]; of != nil && of.desc != nil {
		return of
	}
	if named := s.names[ref]; len(named) == 1 {
		for _, of := range named {
			return of
		}
	}
	return nil
}

// Locate returns the agent of a thing that this node offers. Peers are answered through it, so that a node relays for
// nobody. The error is an [*interact.Error] of code NotFound or Withdrawn. It implements interact.Finder.
func (o *offers) Locate(_ context.Context, ref string) (interact.Thing, error) {
	o.mu.RLock()
	of := o.find(ref)
	o.mu.RUnlock()
	if of == nil {
		return nil, o.missing(ref)
	}
	return of.bound, nil
}

// missing says why ref is not offered.
func (o *offers) missing(ref string) error {
	of := o.get(td.ParseRef(ref).Name)
	switch {
	case of == nil || of.Withdrawn.IsZero():
	case of.Moved != "":
		return interact.Errorf(interact.Withdrawn, "lmosd show "+interact.Quote(heir(of.Thing, of.Moved).String()), "%s has moved to %s at %s",
			of.Thing, of.Moved, of.Withdrawn.UTC().Format(time.RFC3339))
	default:
		return interact.Errorf(interact.Withdrawn, "lmosd find shows what is offered now", "%s was withdrawn at %s",
			of.Thing, of.Withdrawn.UTC().Format(time.RFC3339))
	}
	return interact.Errorf(interact.NotFound, "lmosd find shows where it is now", "this node does not offer %s", ref)
}

// has reports whether this node offers d.
func (o *offers) has(d *td.Description) bool { return o.agentOf(d) != nil }

// agentOf returns the agent of d if this node offers d, else nil. That a record names this node as a host is not enough: the
// owner must be this node.
func (o *offers) agentOf(d *td.Description) interact.Thing {
	if of := o.of(d); of != nil {
		return of.bound
	}
	return nil
}

// of returns the offer of d, which may be withdrawn; nil if this node has none.
func (o *offers) of(d *td.Description) *offer {
	if d.Record.Owner != o.signer.DID() {
		return nil
	}
	return o.get(d.Record.Thing)
}

// byKey returns the offer in force whose record has a key, or nil.
func (o *offers) byKey(key [32]byte) *offer {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return o.keys[key]
}

// everything returns the offers and the tombstones, in no order.
func (o *offers) everything() []*offer {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return slices.Collect(maps.Values(o.all))
}

// count returns how many offers are in force.
func (o *offers) count() int {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return len(o.refs)
}

// Hosted returns the records that answer q, up to its limit, but for what is unlisted; Body returns a TD by its hash. They are what this node vouches
// for towards peers (dht.Local): never what others merely claim to be here.
func (o *offers) Hosted(q td.Query) []*td.Signed {
	candidates := o.everything()
	if q.ID != "" {
		candidates = []*offer{o.get(q.ID)}
	}
	var out []*td.Signed
	for _, of := range candidates {
		if of != nil && !of.isUnlisted() && q.Match(of.desc) && len(out) < q.Max() {
			out = append(out, of.Signed)
		}
	}
	return out
}

// Body returns the TD with the given SHA-256.
func (o *offers) Body(hash [32]byte) ([]byte, bool) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	of := o.hashes[hash]
	if of == nil {
		return nil, false
	}
	return of.Signed.TD, true
}
