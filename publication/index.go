package publication

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/td"
)

// An Index finds publications in constant time by id, name, reference, hash or key. It implements [interact.Finder] for the calls of
// peers, and dht.Local. Only a [Publisher] changes it. It is safe for concurrent use.
type Index struct {
	owner did.DID
	sees  func(p *did.Principal, d *td.Description) bool // directory.Options.Sees; nil: everything is visible

	// mu owns what follows.
	mu       sync.RWMutex
	all      map[string]*Publication   // by thing id, withdrawn ones included
	refs     map[string]*Publication   // by exact reference; this and those below without withdrawn ones
	hashes   map[[32]byte]*Publication // by the hash of the TD
	keys     map[[32]byte]*Publication // by the key of the record
	names    map[string][]*Publication // by name
	ends     ends                      // of the registrations
	ending   backoff.Waker             // wakes when the first end is another one
	expected map[string][]string       // callers of Things that are about to be loaded, by thing id

	loading atomic.Pointer[loading] // nil when all stored publications are in the index
}

// NewIndex returns an empty index of the Things of owner, which is the node. sees is that of directory.Options, with nil for no limits.
func NewIndex(owner did.DID, sees func(p *did.Principal, d *td.Description) bool) *Index {
	return &Index{owner: owner, sees: sees, all: map[string]*Publication{}, refs: map[string]*Publication{}, hashes: map[[32]byte]*Publication{},
		keys: map[[32]byte]*Publication{}, names: map[string][]*Publication{}, ends: ends{things: map[string]*end{}}, ending: backoff.NewWaker()}
}

// set replaces the publication of p's Thing.
func (x *Index) set(p *Publication) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.removeLocked(p.Thing)
	x.all[p.Thing] = p
	if d := p.Description; d != nil {
		if x.ends.set(p.Thing, p.Registration.Expires) {
			x.ending.Wake()
		}
		x.refs[d.Ref()], x.hashes[d.Record.Hash], x.keys[d.Record.Key()] = p, p, p
		name := d.Name()
		x.names[name] = append(x.names[name], p)
	}
}

func (x *Index) remove(thing string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.removeLocked(thing)
}

func (x *Index) removeLocked(thing string) {
	old := x.all[thing]
	delete(x.all, thing)
	if old == nil || old.Description == nil {
		return
	}
	x.ends.remove(thing)
	delete(x.refs, old.Description.Ref())
	delete(x.hashes, old.Description.Record.Hash)
	delete(x.keys, old.Description.Record.Key())
	name := old.Description.Name()
	if x.names[name] = slices.DeleteFunc(x.names[name], func(p *Publication) bool { return p == old }); len(x.names[name]) == 0 {
		delete(x.names, name)
	}
}

// Get returns the publication of a Thing by its id, withdrawn or not, or nil. It loads the Thing if that is still to be done.
func (x *Index) Get(thing string) *Publication {
	p, _ := x.loaded(thing)
	return p
}

// loaded is Get for a change of the Thing, which must not take one that cannot be loaded for a new one.
func (x *Index) loaded(thing string) (*Publication, error) {
	p := x.known(thing)
	if l := x.loading.Load(); p == nil && l != nil {
		err := l.thing(thing)
		return x.known(thing), err
	}
	return p, nil
}

// known is Get without loading, for callers that hold locks.
func (x *Index) known(thing string) *Publication {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.all[thing]
}

// Description returns the description of a Thing that this node offers now, by its id, or nil.
func (x *Index) Description(thing string) *td.Description {
	if p := x.Get(thing); p != nil {
		return p.Description
	}
	return nil
}

// Offers reports whether this node offers a Thing with the id now.
func (x *Index) Offers(thing string) bool { return x.Description(thing) != nil }

// Find returns the publication in force that ref names: by exact reference, id or name. A name of two Things names neither.
func (x *Index) Find(ref string) *Publication {
	return x.find(ref, func(*Publication) bool { return true })
}

// find is Find among the publications for which visible returns true.
func (x *Index) find(ref string, visible func(*Publication) bool) *Publication {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if p := x.refs[ref]; p != nil && visible(p) {
		return p
	}
	if p := x.all[ref]; p != nil && p.Description != nil && visible(p) {
		return p
	}
	var found *Publication
	for _, p := range x.names[ref] {
		switch {
		case !visible(p):
		case found != nil:
			return nil
		default:
			found = p
		}
	}
	return found
}

// isVisible reports whether the caller of ctx may receive the description of p, or know of its withdrawal.
func (x *Index) isVisible(ctx context.Context, p *Publication) bool {
	if x.sees == nil {
		return true
	}
	d := p.Description
	if d == nil {
		d = directory.DescribeWithdrawn(cmp.Or(p.Owner, x.owner), p.Thing, p.Audience)
	}
	return directory.Allows(x.sees, did.PrincipalOf(ctx), d)
}

// Locate returns the agent of a Thing that this node offers, if the caller of ctx may receive its description. The calls of peers end here:
// the node does not relay. The error is an [*interact.Error] of code NotFound or Withdrawn.
func (x *Index) Locate(ctx context.Context, ref string) (interact.Thing, error) {
	if x.IsLoading() {
		if err := x.Await(ctx, td.ParseRef(ref)); err != nil {
			return nil, interact.AsError(err)
		}
	}
	if p := x.find(ref, func(p *Publication) bool { return x.isVisible(ctx, p) }); p != nil {
		return p.Agent, nil
	}
	if p := x.Get(td.ParseRef(ref).Name); p != nil && x.isVisible(ctx, p) {
		return nil, x.missing(ref)
	}
	return nil, interact.NotOffered(ref)
}

// missing is the error for a Thing that is not offered.
func (x *Index) missing(ref string) error {
	p := x.Get(td.ParseRef(ref).Name)
	switch {
	case p == nil || p.Withdrawn.IsZero() || p.Owner != "": // other nodes may host it
	case p.Moved != "":
		return interact.Errorf(interact.Withdrawn, "", "%s has moved to %s at %s", p.Thing, p.Moved, p.Withdrawn.UTC().Format(time.RFC3339)).
			Then(interact.StepShow, successorOf(p.Thing, p.Moved).String())
	default:
		return interact.Errorf(interact.Withdrawn, "see what is offered now", "%s was withdrawn at %s",
			p.Thing, p.Withdrawn.UTC().Format(time.RFC3339)).Then(interact.StepFind)
	}
	return interact.NotOffered(ref)
}

// Of returns the publication that d describes, which may be withdrawn; nil if this node has none. A record that only names this node as
// a host does not count: the owner must be this node, or one whose Thing this node has agreed to host.
func (x *Index) Of(d *td.Description) *Publication {
	if p := x.Get(d.Record.Thing); p != nil && cmp.Or(p.Owner, x.owner) == d.Record.Owner {
		return p
	}
	return nil
}

// Has reports whether this node offers d.
func (x *Index) Has(d *td.Description) bool { return x.AgentOf(d) != nil }

// AgentOf returns the agent of d if this node offers d, else nil.
func (x *Index) AgentOf(d *td.Description) interact.Thing {
	if p := x.Of(d); p != nil {
		return p.Agent
	}
	return nil
}

// Agent returns the grant of an agent with a key of its own that is at this node, and its roles: one whose Thing a process of this host handles, or with
// roles. Nil for other owners.
func (x *Index) Agent(owner did.DID) (grant []byte, roles []string) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, p := range x.all {
		if p.Owner == owner && p.isAgent() {
			return p.Grant, p.Roles
		}
	}
	return nil, nil
}

// byKey returns the publication in force whose record has the key, or nil.
func (x *Index) byKey(key [32]byte) *Publication {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.keys[key]
}

// All returns all publications in no order, withdrawn ones included.
func (x *Index) All() []*Publication {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return slices.Collect(maps.Values(x.all))
}

// things yields the ids of all publications, withdrawn ones included. The loop must not change the index.
func (x *Index) things() iter.Seq[string] {
	return func(yield func(string) bool) {
		x.mu.RLock()
		defer x.mu.RUnlock()
		for thing := range x.all {
			if !yield(thing) {
				return
			}
		}
	}
}

// Count returns the number of publications in force that the caller of ctx sees.
func (x *Index) Count(ctx context.Context) (n int) {
	for _, p := range x.All() {
		if p.Description != nil && x.isVisible(ctx, p) {
			n++
		}
	}
	return n
}

// Restricted returns the records that only their host gives out, of the Things of this node that the caller of ctx may find: with their TDs,
// and those of withdrawn Things.
func (x *Index) Restricted(ctx context.Context) (all []*td.Signed) {
	if x.awaitAll(ctx) != nil {
		return nil
	}
	for _, p := range x.All() {
		if p.isRestricted() && p.Audience != td.Private && p.Signed != nil && x.isVisible(ctx, p) {
			all = append(all, p.Signed)
		}
	}
	return all
}

// Names reports whether a public description of this node names an organization as that of its owner.
func (x *Index) Names(organization did.DID) bool {
	return x.hasPublic(func(d *td.Description) bool { return d.MemberOf == organization })
}

// HasPublic reports whether this node offers something to all nodes.
func (x *Index) HasPublic() bool { return x.hasPublic(func(*td.Description) bool { return true }) }

func (x *Index) hasPublic(fits func(*td.Description) bool) bool {
	return slices.ContainsFunc(x.All(), func(p *Publication) bool { return p.Description != nil && !p.isRestricted() && fits(p.Description) })
}

// Hosted implements dht.Local: it returns the public records that match q and that the caller of ctx may receive, up to its limit.
func (x *Index) Hosted(ctx context.Context, q td.Query) []*td.Signed {
	if x.Await(ctx, td.Ref{Name: q.ID}) != nil {
		return nil
	}
	candidates := x.All()
	if q.ID != "" {
		candidates = []*Publication{x.Get(q.ID)}
	}
	var out []*td.Signed
	for _, p := range candidates {
		if p != nil && !p.isRestricted() && q.Match(p.Description) && x.isVisible(ctx, p) && len(out) < q.Max() {
			out = append(out, p.Signed)
		}
	}
	return out
}

// Body implements dht.Local: it returns the TD with the SHA-256 hash, if the caller of ctx may receive it.
func (x *Index) Body(ctx context.Context, hash [32]byte) ([]byte, bool) {
	p := x.byHash(hash)
	if p == nil && x.awaitAll(ctx) == nil {
		p = x.byHash(hash)
	}
	if p == nil || !x.isVisible(ctx, p) {
		return nil, false
	}
	return p.Signed.TD, true
}

func (x *Index) byHash(hash [32]byte) *Publication {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.hashes[hash]
}
