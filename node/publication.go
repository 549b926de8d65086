package node

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	ds "github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/query"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/proof"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/td"
)

// buriedFor is the life of a tombstone: longer than anything signed before it.
const buriedFor = 25 * time.Hour

// An offer is one thing that this node offers, or has withdrawn and must keep burying. It is stored as JSON.
type offer struct {
	Thing     string     `json:"thing"`
	Seq       uint64     `json:"seq"`
	Signed    *td.Signed `json:"signed"`
	Withdrawn time.Time  `json:"withdrawn,omitzero"`
	Moved     did.DID    `json:"moved,omitempty"` // whose it is since it was withdrawn here
	// Registration is what the directory says of the thing, and when it ends.
	Registration tdd.Registration `json:"registration,omitzero"`
	// Attached marks a thing that a process answers: only the mark is stored, with the capabilities of its record. After a restart
	// the thing is withdrawn unless a process offers it again in time ([offers.orphans]).
	Attached     bool     `json:"attached,omitempty"`
	Capabilities []string `json:"capabilities,omitempty"`

	desc  *td.Description // nil when withdrawn
	agent interact.Thing  // in this process, with which it ends; nil if it is asked over its forms
	bound interact.Thing  // asks the agent; nil when withdrawn
	warns []td.Issue      // for the author; what is verified has none
}

// isUnlisted reports whether nobody is told of it: a thing that says so.
func (of *offer) isUnlisted() bool { return of.desc != nil && of.desc.Unlisted }

// isUnlisted reports whether key is of a thing that this node offers and tells nobody of.
func (o *offers) isUnlisted(key [32]byte) bool {
	_, is := o.unlisted.Load(key)
	return is
}

// listed drops what nobody is told of.
func (o *offers) listed(all []*td.Signed) []*td.Signed {
	var not []*offer
	for _, of := range o.everything() {
		if of.isUnlisted() {
			not = append(not, of)
		}
	}
	return slices.DeleteFunc(all, func(s *td.Signed) bool {
		return slices.ContainsFunc(not, func(of *offer) bool {
			return bytes.Equal(s.Record, of.Signed.Record) || bytes.Equal(s.Record, of.desc.Record.Bare())
		})
	})
}

// description is what the directory is told: the tombstone's when withdrawn.
func (of *offer) description(ctx context.Context, v *td.Verifier, now time.Time) (*td.Description, error) {
	if of.desc != nil {
		return of.desc, nil
	}
	return of.Signed.Verify(ctx, v, now)
}

// over reports whether a tombstone has outlived all that it buries, or nobody need be told any more where a thing has moved.
func (of *offer) over(now time.Time) bool {
	return !of.Withdrawn.IsZero() && now.After(of.Withdrawn.Add(buriedAs(of.Moved)))
}

// buriedAs is how long others are told that a thing is gone; moved is its new owner, or empty.
func buriedAs(moved did.DID) time.Duration {
	if moved != "" {
		return movedFor
	}
	return buriedFor
}

// offers are what this node offers. It is the one writer of the node's own sequence numbers. Each step forward is stored
// durably before anybody hears of it.
type offers struct {
	signer did.Signer
	store  ds.Batching
	verify *td.Verifier
	life   time.Duration // of a record; the DHT gets a new one after a quarter of it
	hosts  func() []td.Host
	bind   func(d *td.Description, agent interact.Thing) interact.Thing // agent is nil if d's forms are asked
	add    func(*td.Description) (bool, error)                          // into the directory
	known  func(thing string) uint64                                    // the highest seq that the directory has seen; 0: none
	things func() int                                                   // how many things the mesh has, as far as is known
	failed func(error) error                                            // says which store failed, and what to do

	// unlisted has the keys of records of things that this node offers and tells nobody of. It has a lock of its own: the directory asks
	// it while it is locked itself.
	unlisted sync.Map

	// mu owns the shelf and reach. An offer is replaced, never changed.
	mu sync.RWMutex
	shelf
	reach map[string]*reach // by thing id
	// orphans were attached when the node last ended, by thing id; owned by turn.
	orphans map[string]*offer

	// turn is held while an offer gets its next record, so that no two have one sequence number. It is taken before mu.
	turn sync.Mutex
}

func newOffers(signer did.Signer, store ds.Batching, v *td.Verifier, life time.Duration) *offers {
	return &offers{signer: signer, store: store, verify: v, life: life, shelf: newShelf(), reach: map[string]*reach{}, orphans: map[string]*offer{},
		known: func(string) uint64 { return 0 }, things: func() int { return 0 }, failed: func(err error) error { return err }}
}

// load reads what was offered before the last stop and offers it again. An entry that does not read is an error of code
// StoreCorrupt: what was acknowledged must not vanish silently. The caller holds turn.
func (o *offers) load(ctx context.Context, now time.Time) error {
	res, err := o.store.Query(ctx, query.Query{})
	if err != nil {
		return o.failed(err)
	}
	defer res.Close()
	for r := range res.Next() {
		if r.Error != nil {
			return o.failed(r.Error)
		}
		of, err := o.read(r.Entry)
		if err != nil {
			return o.failed(fmt.Errorf("read the offer %s: %w", r.Key, err))
		}
		if o.get(of.Thing) != nil || o.orphans[of.Thing] != nil {
			continue // it is here since the start, when others had to wait for room on the disk
		}
		if err := o.revive(ctx, of, now); err != nil {
			return err
		}
	}
	return nil
}

// read decodes an entry of the store. Entries of another key than this node's are errors: it cannot sign for them.
func (o *offers) read(e query.Entry) (*offer, error) {
	var of offer
	if err := json.Unmarshal(e.Value, &of); err != nil {
		return nil, err
	}
	if !of.Attached && (of.Signed == nil || len(of.Signed.Record) == 0) || !of.Attached && of.Withdrawn.IsZero() && of.Signed.TD == nil {
		return nil, errors.New("it is not complete")
	}
	if ds.RawKey(e.Key) != o.storeKey(of.Thing) {
		return nil, fmt.Errorf("it is not %s's: was identity.pem replaced?", o.signer.DID().Short())
	}
	return &of, nil
}

// revive puts a stored offer back. Its record may have expired while the node was down, so it gets a new one.
func (o *offers) revive(ctx context.Context, of *offer, now time.Time) error {
	switch {
	case of.over(now):
		if err := o.forget(ctx, of); !codeIs(err, interact.DiskFull) {
			return err
		}
		return nil
	case of.Attached:
		o.orphans[of.Thing] = of
		return nil
	case !of.Withdrawn.IsZero():
		o.mu.Lock()
		defer o.mu.Unlock()
		o.set(of)
		return nil
	}
	t, err := td.Parse(of.Signed.TD)
	if err != nil {
		return o.failed(fmt.Errorf("read the TD of %s: %w", of.Thing, err))
	}
	_, err = o.again(ctx, of, t, now)
	if errors.Is(err, proof.ErrTime) {
		_, err = o.signAnew(ctx, of, now)
	}
	if codeIs(err, interact.DiskFull) {
		return o.asBefore(ctx, of, now)
	}
	if _, told := errors.AsType[*interact.Error](err); err == nil || told {
		return err
	}
	return o.failed(fmt.Errorf("offer %s again: %w", of.Thing, err))
}

// asBefore puts a stored offer back with the record that it had: a new one could not be stored, and what is not stored nobody is
// told. One that has expired meanwhile is not offered until it is signed anew, see renew.
func (o *offers) asBefore(ctx context.Context, of *offer, now time.Time) error {
	desc, err := of.Signed.Verify(ctx, o.verify, now)
	if err != nil {
		return nil
	}
	of.desc, of.bound = desc, o.bind(desc, nil)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.set(of)
	return nil
}

// registration returns that of a thing in force, or none.
func (o *offers) registration(thing string) (r tdd.Registration) {
	if old := o.get(thing); old != nil && old.desc != nil {
		r = old.Registration
	}
	return r
}

// registered returns the registration of a thing in force of this node; false for all others.
func (o *offers) registered(r *td.Record) (tdd.Registration, bool) {
	if r.Owner != o.signer.DID() {
		return tdd.Registration{}, false
	}
	of := o.get(r.Thing)
	if of == nil || of.desc == nil {
		return tdd.Registration{}, false
	}
	return of.Registration, true
}

// register changes when a thing ends, and stores that durably.
func (o *offers) register(ctx context.Context, thing string, r tdd.Registration, now time.Time) error {
	o.turn.Lock()
	defer o.turn.Unlock()
	old := o.get(thing)
	if old == nil || old.desc == nil {
		return o.missing(thing)
	}
	next := *old
	next.Registration = r.Renewed(now, old.Registration)
	return o.keep(ctx, &next)
}

// sign makes the offer of t. An agent in this process, if it is not nil, is asked itself.
func (o *offers) sign(ctx context.Context, t *td.Thing, agent interact.Thing, seq uint64, now time.Time) (*offer, error) {
	signed, err := td.Sign(t, o.signer, td.Lease{Seq: seq, Now: now, Lifetime: o.life, Hosts: o.hosts()})
	if err != nil {
		return nil, err
	}
	desc, err := signed.Verify(ctx, o.verify, now)
	if err != nil {
		return nil, fmt.Errorf("verify what was just signed: %w", err)
	}
	return &offer{Thing: t.ID, Seq: seq, Signed: signed, desc: desc, agent: agent, bound: o.bind(desc, agent), warns: t.Warnings}, nil
}

// keep stores of durably, then makes it the offer of its thing.
func (o *offers) keep(ctx context.Context, of *offer) error {
	if stored := o.stored(of); stored != nil {
		b, err := json.Marshal(stored)
		if err != nil {
			return err
		}
		if err := o.store.Put(ctx, o.storeKey(of.Thing), b); err != nil {
			return o.failed(err)
		}
	}
	if key := td.Key(o.signer.DID(), of.Thing); of.isUnlisted() {
		o.unlisted.Store(key, true)
	} else {
		o.unlisted.Delete(key)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.set(of)
	return nil
}

// stored returns what is stored of an offer: of a thing that a process answers only a mark, once; nil if that is there already.
func (o *offers) stored(of *offer) *offer {
	if of.agent == nil {
		return of
	}
	mark := &offer{Thing: of.Thing, Seq: of.Seq, Attached: true, Capabilities: of.desc.Record.Capabilities}
	if old := o.get(of.Thing); old != nil && old.agent != nil && slices.Equal(old.desc.Record.Capabilities, mark.Capabilities) {
		return nil
	}
	return mark
}

// forget drops a tombstone that has outlived all that it buries.
func (o *offers) forget(ctx context.Context, of *offer) error {
	if err := o.store.Delete(ctx, o.storeKey(of.Thing)); err != nil {
		return o.failed(err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.remove(of.Thing)
	delete(o.reach, of.Thing)
	return nil
}

// publish completes and signs a TD and offers it, with a registration from now; agent is nil for one that is asked over the forms of
// the TD.
func (o *offers) publish(ctx context.Context, raw []byte, agent interact.Thing, r tdd.Registration) (of *offer, created bool, err error) {
	t, err := td.Complete(raw, o.signer.DID())
	if err != nil {
		return nil, false, err
	}
	o.turn.Lock()
	defer o.turn.Unlock()
	now := time.Now()
	old := o.get(t.ID)
	if agent == nil && old != nil && slices.Contains(slices.Collect(t.Protocols()), strings.TrimSuffix(td.MeshHref, ":")) {
		agent = old.agent // forms through the mesh lead to the agent that is here, if there is one
	}
	of, err = o.sign(ctx, t, agent, o.nextSeq(old, t.ID, now), now)
	if err != nil {
		return nil, false, err
	}
	of.Registration = r.At(now, o.registration(t.ID))
	if err := o.keep(ctx, of); err != nil {
		return nil, false, err
	}
	o.news(t.ID)
	if _, err := o.add(of.desc); err != nil {
		return nil, false, err
	}
	return of, old == nil || old.desc == nil, nil
}

// withdraw buries a thing of this node.
func (o *offers) withdraw(ctx context.Context, thing string) (*offer, error) {
	return o.end(ctx, thing, "")
}

// orphaned returns the things that were attached when the node last ended.
func (o *offers) orphaned() []string {
	o.turn.Lock()
	defer o.turn.Unlock()
	return slices.Sorted(maps.Keys(o.orphans))
}

// withdrawOrphan withdraws a thing whose process did not come back; the offer is nil for one that did.
func (o *offers) withdrawOrphan(ctx context.Context, thing string) (*offer, error) {
	o.turn.Lock()
	defer o.turn.Unlock()
	if o.get(thing) != nil {
		return nil, nil
	}
	return o.endLocked(ctx, thing, "")
}

// end withdraws a thing of this node, or says whose it is now. What is gone like that already stays as it is.
func (o *offers) end(ctx context.Context, thing string, moved did.DID) (*offer, error) {
	o.turn.Lock()
	defer o.turn.Unlock()
	return o.endLocked(ctx, thing, moved)
}

// endLocked is end for a caller that holds turn.
func (o *offers) endLocked(ctx context.Context, thing string, moved did.DID) (*offer, error) {
	now, old := time.Now(), cmp.Or(o.get(thing), o.orphans[thing])
	if old != nil && !old.Withdrawn.IsZero() && old.Moved == moved && old.Seq >= o.known(thing) {
		return old, nil
	}
	of, err := o.bury(ctx, old, thing, moved, now)
	if err != nil {
		return nil, err
	}
	o.news(thing)
	d, err := of.description(ctx, o.verify, now)
	if err != nil {
		return nil, fmt.Errorf("verify what buries it: %w", err)
	}
	_, err = o.add(d)
	return of, err
}

func (o *offers) bury(ctx context.Context, old *offer, thing string, moved did.DID, now time.Time) (*offer, error) {
	lease := td.Lease{Seq: o.nextSeq(old, thing, now), Now: now, Lifetime: buriedAs(moved)}
	var shards []string // who listened for the thing must hear that it is gone
	switch {
	case old != nil && old.desc != nil:
		shards = old.desc.Record.Capabilities
	case old != nil:
		shards = old.Capabilities
	}
	var signed *td.Signed
	var err error
	if moved == "" {
		signed, err = td.Bury(o.signer, thing, lease, false, shards...)
	} else {
		signed, err = td.Move(o.signer, thing, moved, lease, shards...)
	}
	if err != nil {
		return nil, err
	}
	of := &offer{Thing: thing, Seq: lease.Seq, Signed: signed, Withdrawn: now, Moved: moved}
	return of, o.keep(ctx, of)
}

// renew gives an offer a new record, so that readers see that its host lives. A tombstone stays as it is: it only travels
// again, until it is over. The answer is nil if there is nothing to tell any more.
func (o *offers) renew(ctx context.Context, thing string) (*offer, error) {
	o.turn.Lock()
	defer o.turn.Unlock()
	now := time.Now()
	of := o.get(thing)
	switch {
	case of == nil:
		return nil, nil
	case of.over(now):
		return nil, o.forget(ctx, of)
	case of.desc == nil:
		return of, nil
	}
	next, err := o.refresh(ctx, of, now)
	if errors.Is(err, proof.ErrTime) {
		next, err = o.signAnew(ctx, of, now)
	}
	if codeIs(err, interact.DiskFull) && now.Before(of.desc.Record.Expires) {
		return of, nil // it goes on as it is
	}
	if err != nil {
		return nil, err
	}
	_, err = o.add(next.desc)
	return next, err
}

// refresh keeps a new record of the same TD.
func (o *offers) refresh(ctx context.Context, of *offer, now time.Time) (*offer, error) {
	seq := o.nextSeq(of, of.Thing, now)
	signed, err := td.Renew(of.desc, o.signer, td.Lease{Seq: seq, Now: now, Lifetime: o.life, Hosts: o.hosts()})
	if err != nil {
		return nil, err
	}
	desc, err := signed.Verify(ctx, o.verify, now)
	if err != nil {
		return nil, err
	}
	next := &offer{Thing: of.Thing, Seq: seq, Signed: signed, Registration: of.Registration, desc: desc, agent: of.agent, bound: of.bound}
	return next, o.keep(ctx, next)
}

// signAnew signs a TD whose proof was made later than now: the clock was wrong then, or is now. Nobody would accept the
// proof, or this node would not start, until the clock is there again.
func (o *offers) signAnew(ctx context.Context, of *offer, now time.Time) (*offer, error) {
	raw, err := unproved(of.Signed.TD)
	if err != nil {
		return nil, err
	}
	t, err := td.Parse(raw)
	if err != nil {
		return nil, err
	}
	return o.again(ctx, of, t, now)
}

// again signs the TD of an offer anew; all else stays.
func (o *offers) again(ctx context.Context, of *offer, t *td.Thing, now time.Time) (*offer, error) {
	next, err := o.sign(ctx, t, of.agent, o.nextSeq(of, of.Thing, now), now)
	if err != nil {
		return nil, err
	}
	next.Registration = of.Registration
	return next, o.keep(ctx, next)
}

// unproved returns a TD without its proof, its members in the order that they had.
func unproved(raw []byte) ([]byte, error) {
	members, err := jcs.Members(raw)
	if err != nil {
		return nil, err
	}
	return jcs.Join(slices.DeleteFunc(members, func(m jcs.Member) bool { return m.Name == "proof" })), nil
}

// get returns what is known of a thing, withdrawn or not, or nil.
func (o *offers) get(thing string) *offer {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return o.all[thing]
}

// nextSeq survives the loss of the store: milliseconds since 1970 are past every number that was given before, and where a
// clock was wrong then, what the mesh knows is.
func (o *offers) nextSeq(old *offer, thing string, now time.Time) uint64 {
	seq := max(millis(now), o.known(thing)+1)
	if old != nil {
		seq = max(seq, old.Seq+1)
	}
	return seq
}

func millis(t time.Time) uint64 { return uint64(t.UnixMilli()) }

// storeKey names the entry of a thing by the hash of owner and id.
func (o *offers) storeKey(thing string) ds.Key {
	return ds.NewKey(fmt.Sprintf("%x", td.Key(o.signer.DID(), thing)))
}
