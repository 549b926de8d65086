package node

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	ds "github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/query"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// Times of an offer. All are jittered by a tenth, so that a mesh that started at once does not speak at once.
const (
	tellEvery  = 10 * time.Minute // a new record by gossip; half its life if that is less
	retryEvery = 15 * time.Second // while nobody has it
	buriedFor  = 25 * time.Hour   // a tombstone: longer than anything signed before it
)

// An offer is one thing that this node offers, or has withdrawn and must keep burying. It is stored as JSON.
type offer struct {
	Thing     string     `json:"thing"`
	Seq       uint64     `json:"seq"`
	Signed    *td.Signed `json:"signed"`
	Withdrawn time.Time  `json:"withdrawn,omitzero"`

	desc  *td.Description // nil when withdrawn
	bound interact.Thing  // asks the agent; nil when withdrawn
	here  bool            // the agent is in this process and ends with it: not stored
}

// A reach is what the mesh knows of an offer: when gossip and the DHT last took a record of it. It outlives the records.
type reach struct {
	told, replicated time.Time     // zero while nobody has it
	tried            time.Time     // the last attempt
	wait             time.Duration // until gossip repeats it, jittered
	busy             bool          // being told now
}

// offers are what this node offers. It is the one writer of the node's own sequence numbers.
type offers struct {
	signer did.Signer
	store  ds.Batching
	verify *td.Verifier
	life   time.Duration // of a record; the DHT gets a new one after a quarter of it
	hosts  func() []td.Host
	bind   func(*td.Description) interact.Thing
	add    func(*td.Description) (bool, error) // into the directory

	mu sync.RWMutex
	// all, refs and reach are owned by mu. An offer is replaced, never changed.
	all   map[[32]byte]*offer
	refs  map[string]*offer // by exact ref, id, and unique name
	reach map[[32]byte]*reach

	// turn is held while an offer gets its next record, so that no two have one sequence number. It is taken before mu.
	turn sync.Mutex
}

func newOffers(signer did.Signer, store ds.Batching, v *td.Verifier, life time.Duration) *offers {
	return &offers{signer: signer, store: store, verify: v, life: life,
		all: map[[32]byte]*offer{}, refs: map[string]*offer{}, reach: map[[32]byte]*reach{}}
}

// load reads what was offered before the last stop and offers it again. An entry that does not read is an error: what was
// acknowledged must not vanish silently.
func (o *offers) load(ctx context.Context, now time.Time) error {
	res, err := o.store.Query(ctx, query.Query{})
	if err != nil {
		return storeError("store", err)
	}
	defer res.Close()
	for r := range res.Next() {
		if r.Error != nil {
			return storeError("store", r.Error)
		}
		var of offer
		if err := json.Unmarshal(r.Value, &of); err != nil {
			return storeError("store", fmt.Errorf("read the offer %s: %w", r.Key, err))
		}
		if err := o.revive(ctx, &of, now); err != nil {
			return err
		}
	}
	return nil
}

// revive puts a stored offer back. Its record may have expired while the node was down, so it gets a new one.
func (o *offers) revive(ctx context.Context, of *offer, now time.Time) error {
	if !of.Withdrawn.IsZero() {
		if now.After(of.Withdrawn.Add(buriedFor)) {
			return o.forget(ctx, of.Thing)
		}
		o.all[td.Key(o.signer.DID(), of.Thing)] = of
		return nil
	}
	t, err := td.Parse(of.Signed.TD)
	if err != nil {
		return storeError("store", fmt.Errorf("read the TD of %s: %w", of.Thing, err))
	}
	_, err = o.put(ctx, t, nil, max(of.Seq+1, millis(now)), now)
	return err
}

// put signs t, stores it durably and makes it findable here. An agent in this process, if it is not nil, is asked itself.
func (o *offers) put(ctx context.Context, t *td.Thing, agent interact.Thing, seq uint64, now time.Time) (*offer, error) {
	signed, err := td.Sign(t, o.signer, td.Lease{Seq: seq, Now: now, Lifetime: o.life, Hosts: o.hosts()})
	if err != nil {
		return nil, err
	}
	desc, err := signed.Verify(ctx, o.verify, now)
	if err != nil {
		return nil, fmt.Errorf("verify what was just signed: %w", err)
	}
	of := &offer{Thing: t.ID, Seq: seq, Signed: signed, desc: desc, bound: agent, here: agent != nil}
	if agent == nil {
		of.bound = o.bind(desc)
	}
	return of, o.keep(ctx, of)
}

// keep stores of durably, then makes it the offer of its thing.
func (o *offers) keep(ctx context.Context, of *offer) error {
	key := td.Key(o.signer.DID(), of.Thing)
	if !of.here {
		b, err := json.Marshal(of)
		if err != nil {
			return err
		}
		if err := o.store.Put(ctx, storeKey(key), b); err != nil {
			return storeError("store", err)
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if old := o.all[key]; old != nil && old.Seq > of.Seq {
		return nil // A newer one came while this was signed.
	}
	o.all[key] = of
	o.renameLocked()
	return nil
}

func (o *offers) forget(ctx context.Context, thing string) error {
	key := td.Key(o.signer.DID(), thing)
	o.mu.Lock()
	delete(o.all, key)
	o.renameLocked()
	o.mu.Unlock()
	return o.store.Delete(ctx, storeKey(key))
}

// renameLocked rebuilds refs. A name that two offers share names neither.
func (o *offers) renameLocked() {
	refs, taken := make(map[string]*offer, 3*len(o.all)), map[string]bool{}
	for _, of := range o.all {
		if of.desc == nil {
			continue
		}
		refs[of.desc.Ref()], refs[of.Thing] = of, of
		if name := of.desc.Name(); taken[name] {
			delete(refs, name)
		} else if _, isID := refs[name]; !isID {
			refs[name], taken[name] = of, true
		}
	}
	o.refs = refs
}

// Locate returns the agent of a thing that this node offers. Peers are answered through it, so that a node relays for
// nobody. It implements interact.Finder.
func (o *offers) Locate(_ context.Context, ref string) (interact.Thing, error) {
	o.mu.RLock()
	of := o.refs[ref]
	o.mu.RUnlock()
	if of == nil {
		return nil, o.missing(ref)
	}
	return of.bound, nil
}

// missing says why ref is not offered.
func (o *offers) missing(ref string) error {
	r := td.ParseRef(ref)
	o.mu.RLock()
	defer o.mu.RUnlock()
	for _, of := range o.all {
		if of.Thing == r.Name && !of.Withdrawn.IsZero() {
			return interact.Errorf(interact.Withdrawn, "lmosd find shows what is offered now", "%s was withdrawn at %s",
				r.Name, of.Withdrawn.UTC().Format(time.RFC3339))
		}
	}
	return interact.Errorf(interact.NotFound, "lmosd find shows where it is now", "this node does not offer %s", ref)
}

// has reports whether this node offers d.
func (o *offers) has(d *td.Description) bool {
	o.mu.RLock()
	defer o.mu.RUnlock()
	of := o.all[td.Key(d.Record.Owner, d.Record.Thing)]
	return of != nil && of.desc != nil
}

// agentOf returns the agent of d if this node offers d, else nil.
func (o *offers) agentOf(d *td.Description) interact.Thing {
	o.mu.RLock()
	defer o.mu.RUnlock()
	if of := o.all[td.Key(d.Record.Owner, d.Record.Thing)]; of != nil {
		return of.bound
	}
	return nil
}

// list returns the offers in force, by thing id.
func (o *offers) list() []*offer {
	o.mu.RLock()
	defer o.mu.RUnlock()
	all := slices.DeleteFunc(slices.Collect(maps.Values(o.all)), func(of *offer) bool { return of.desc == nil })
	slices.SortFunc(all, func(a, b *offer) int { return strings.Compare(a.Thing, b.Thing) })
	return all
}

// Hosted returns the records that answer q; Body returns a TD by its hash. They are what this node vouches for towards
// peers (dht.Local): never what others merely claim to be here.
func (o *offers) Hosted(q td.Query) []*td.Signed {
	var out []*td.Signed
	for _, of := range o.list() {
		if q.Match(of.desc) {
			out = append(out, of.Signed)
		}
	}
	return out
}

// Body returns the TD with the given SHA-256.
func (o *offers) Body(hash [32]byte) ([]byte, bool) {
	for _, of := range o.list() {
		if of.desc.Record.Hash == hash {
			return of.Signed.TD, true
		}
	}
	return nil, false
}

// publish completes and signs a TD and offers it; agent is nil for one that is asked over the forms of the TD.
func (o *offers) publish(ctx context.Context, raw []byte, agent interact.Thing) (of *offer, created bool, err error) {
	t, err := td.Complete(raw, o.signer.DID())
	if err != nil {
		return nil, false, err
	}
	o.turn.Lock()
	defer o.turn.Unlock()
	now := time.Now()
	old := o.get(t.ID)
	of, err = o.put(ctx, t, agent, o.nextSeq(old, now), now)
	if err != nil {
		return nil, false, err
	}
	if _, err := o.add(of.desc); err != nil {
		return nil, false, err
	}
	return of, old == nil || old.desc == nil, nil
}

// withdraw buries a thing that this node offers.
func (o *offers) withdraw(ctx context.Context, thing string) (*offer, error) {
	o.turn.Lock()
	defer o.turn.Unlock()
	now := time.Now()
	of, err := o.bury(ctx, o.get(thing), thing, now)
	if err != nil {
		return nil, err
	}
	d, err := of.Signed.Verify(ctx, o.verify, now)
	if err != nil {
		return nil, fmt.Errorf("verify the tombstone: %w", err)
	}
	_, err = o.add(d)
	return of, err
}

func (o *offers) bury(ctx context.Context, old *offer, thing string, now time.Time) (*offer, error) {
	seq := o.nextSeq(old, now)
	var shards []string // who listened for the thing must hear that it is gone
	if old != nil && old.desc != nil {
		shards = old.desc.Record.Capabilities
	}
	signed, err := td.Bury(o.signer, thing, td.Lease{Seq: seq, Now: now, Lifetime: buriedFor}, false, shards...)
	if err != nil {
		return nil, err
	}
	of := &offer{Thing: thing, Seq: seq, Signed: signed, Withdrawn: now}
	return of, o.keep(ctx, of)
}

// renew gives an offer a new record, so that readers see that its host lives. A tombstone stays as it is: it only travels
// again.
func (o *offers) renew(ctx context.Context, of *offer) (*offer, error) {
	o.turn.Lock()
	defer o.turn.Unlock()
	now := time.Now()
	if of = o.get(of.Thing); of == nil || of.desc == nil {
		return of, nil
	}
	seq := o.nextSeq(of, now)
	signed, err := td.Renew(of.desc, o.signer, td.Lease{Seq: seq, Now: now, Lifetime: o.life, Hosts: o.hosts()})
	if err != nil {
		return nil, err
	}
	desc, err := signed.Verify(ctx, o.verify, now)
	if err != nil {
		return nil, err
	}
	next := &offer{Thing: of.Thing, Seq: seq, Signed: signed, desc: desc, bound: of.bound, here: of.here}
	if err := o.keep(ctx, next); err != nil {
		return nil, err
	}
	_, err = o.add(desc)
	return next, err
}

func (o *offers) get(thing string) *offer {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return o.all[td.Key(o.signer.DID(), thing)]
}

// nextSeq survives the loss of the store: milliseconds since 1970 are past every number that was given before.
func (o *offers) nextSeq(old *offer, now time.Time) uint64 {
	if old == nil {
		return millis(now)
	}
	return max(old.Seq+1, millis(now))
}

func millis(t time.Time) uint64 { return uint64(t.UnixMilli()) }

func storeKey(key [32]byte) ds.Key { return ds.NewKey(fmt.Sprintf("%x", key)) }

// A telling is an offer that the mesh must hear of again, and by which carrier.
type telling struct {
	of          *offer
	gossip, dht bool
}

// due returns what must be told at the time now, and marks it as being told. Nothing is due while there is nobody to tell.
func (o *offers) due(now time.Time, listeners bool) []telling {
	o.mu.Lock()
	defer o.mu.Unlock()
	var out []telling
	for key, of := range o.all {
		r := o.reachLocked(key)
		t := telling{of: of, gossip: now.Sub(r.told) >= r.wait, dht: now.Sub(r.replicated) >= o.life/4}
		pending := r.told.IsZero() || r.replicated.IsZero()
		if r.busy || !listeners || !t.gossip && !t.dht || pending && now.Sub(r.tried) < retryEvery {
			continue
		}
		r.busy, r.tried = true, now
		out = append(out, t)
	}
	return out
}

func (o *offers) reachLocked(key [32]byte) *reach {
	r := o.reach[key]
	if r == nil {
		r = &reach{wait: jitter(min(tellEvery, o.life/2))}
		o.reach[key] = r
	}
	return r
}

// busy marks an offer as being told, or no longer.
func (o *offers) busy(of *offer, busy bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	r := o.reachLocked(td.Key(o.signer.DID(), of.Thing))
	r.busy, r.tried = busy, time.Now()
}

// told and replicated note that the mesh has the offer.
func (o *offers) told(of *offer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	r := o.reachLocked(td.Key(o.signer.DID(), of.Thing))
	r.told, r.wait = time.Now(), jitter(min(tellEvery, o.life/2))
}

func (o *offers) replicated(of *offer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.reachLocked(td.Key(o.signer.DID(), of.Thing)).replicated = time.Now()
}

// pending counts the offers that nobody else knows yet.
func (o *offers) pending() int {
	o.mu.RLock()
	defer o.mu.RUnlock()
	n := 0
	for key, of := range o.all {
		if r := o.reach[key]; of.desc != nil && (r == nil || r.told.IsZero() && r.replicated.IsZero()) {
			n++
		}
	}
	return n
}

// jitter returns d, up to a tenth sooner or later.
func jitter(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1)
}
