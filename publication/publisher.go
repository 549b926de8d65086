package publication

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	ds "github.com/ipfs/go-datastore"
	"golang.org/x/sync/errgroup"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/proof"
	"github.com/lmosd/lmosd/did/rotation"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/internal/keylock"
	"github.com/lmosd/lmosd/td"
)

// A Directory indexes descriptions (directory.Directory).
type Directory interface {
	Add(d *td.Description) (changed bool, err error)
	Get(ctx context.Context, ref string) (*td.Description, error)
	// Seq returns the highest sequence number, or number of a grant, that was seen of a Thing; SeqAt that of a host of it. 0 if none was.
	Seq(owner did.DID, thing string) uint64
	SeqAt(owner did.DID, thing string, host did.DID) uint64
	// Grant returns the newest grant that was seen of a Thing, and the nodes that host it; nil if none was.
	Grant(owner did.DID, thing string) (g *td.Grant, hosts []did.DID)
	// Len returns how many Things are known in the mesh.
	Len() (local, known int)
	// Away records whether the agent of d does not answer its host, as node reports.
	SetAway(d *td.Description, node did.DID, away bool)
	// Answered records that the agent of d has answered. It is called for each reply.
	Answered(d *td.Description)
}

// A Disk reports the state of the disk below Options.Store. Its errors are [*interact.Error]s.
type Disk interface {
	// Room returns an error of code DiskFull if nothing can be stored now.
	Room() error
	// Failed returns the error for the failure of a read or a write.
	Failed(err error) error
}

// Options configure a [Publisher]. All but Access, MemberOf, Roles, CallerSecrets, Rotation, ProbePause, Pings, Dial and OnRestricted are required.
type Options struct {
	Signer   did.Signer
	Verifier *td.Verifier
	Index    *Index      // of Signer's DID; the publisher fills it
	Store    ds.Batching // whose writes are durable when they return
	Disk     Disk
	Lifetime time.Duration    // of a record
	Hosts    func() []td.Host // how the node is reached, for its records
	// Bind returns the agent of d, before its first use. Handler is nil if the agent is called over the forms of d. Watch must be the innermost layer around the
	// handler or the binding.
	Bind      func(d *td.Description, handler interact.Thing, watch interact.Middleware) interact.Thing
	Directory Directory
	Gossip    Gossip
	DHT       DHT
	// Access are the access rules, which get those for the callers of publications (see [WithCallers]). Nil: there are none.
	Access AccessRules
	// CallerSecrets has the secrets of [WithCallerSecret]. Nil: there are none.
	CallerSecrets *CallerSecrets
	// MemberOf returns the organization that new descriptions name as that of their owner, unless they name one; empty: none. Nil: none is named.
	MemberOf func() did.DID
	// Roles returns those in the credential of this node. Nil: it has none.
	Roles func() []string
	// Go runs f in the background with a context that ends when the node closes. It reports false, and runs nothing, once the node closes.
	Go func(f func(ctx context.Context)) bool
	// Pings probe a host and port, by scheme, where a TCP connection is not possible. A scheme over UDP without one is not probed.
	Pings map[string]func(ctx context.Context, addr string) error
	// Dial opens the connections of probes, in place of Pings. Nil: those of package net are used, and Pings.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// OnRestricted is called with each new record of a restricted Thing, which [Index.Restricted] returns. It must not block. Nil: nothing is
	// called.
	OnRestricted func(s *td.Signed)
	// Rotation is the replacement of the key of the node that is not completed: the store may have entries of both keys. Nil: there is none.
	Rotation *rotation.Pending
	// ProbePause is the shortest interval between probes of one agent; zero means 5 s.
	ProbePause time.Duration
	Log        *slog.Logger
}

// A Publisher publishes, withdraws and moves the Things of a node. Its methods are safe for concurrent use.
type Publisher struct {
	o        Options
	schedule *schedule
	attached attached
	probes   chan struct{} // an element per agent that is being probed

	// While a Thing gets its next record its lock of things is held, so that no two records have one sequence number, and turn for reading. The
	// changes of different Things run at once and share the waits for the disk. Changes of several Things hold turn for writing.
	turn   sync.RWMutex
	things keylock.Locks
	// draining is set when this node stops: its records say so.
	draining atomic.Bool
	orphans  orphans
}

// New returns a publisher. [Publisher.Open] reads what the store has.
func New(o Options) *Publisher {
	if o.Access != nil {
		o.Access.AddSource(o.Index.addRules)
	}
	known := func() int { _, known := o.Directory.Len(); return known }
	return &Publisher{o: o, probes: make(chan struct{}, maxProbes), attached: attached{agents: map[string]*attachedAgent{}},
		schedule: &schedule{index: o.Index, lifetime: o.Lifetime, known: known, states: map[string]*state{}}}
}

// Run returns the error of [Publisher.Load], repeats announcements, and withdraws Things whose registrations end, and those whose agents do not attach again after a restart, until
// ctx ends.
func (p *Publisher) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.AwaitLoad(ctx) })
	g.Go(func() error { return p.repeat(ctx) })
	g.Go(func() error { return p.endOrphans(ctx) })
	g.Go(func() error { return p.endRegistrations(ctx) })
	return g.Wait()
}

// A Result describes a change of a publication.
type Result struct {
	*Publication
	Name      string
	Created   bool       // the Thing was not offered before
	Warnings  []td.Issue // of Publish, for the author of the TD
	Successor string     // the exact reference of the Thing at its new owner, if that is known to offer it
	Reach     Reach      // when Publish, Withdraw or Move returned
	Took      time.Duration
	// CallerSecret is the secret that [WithCallerSecret] made. Nothing else returns it.
	CallerSecret string
}

// IsPending reports whether no other node had received the record, and some are to receive it.
func (r *Result) IsPending() bool {
	return r.Reach.GossipPeers == 0 && r.Reach.Replicas == 0 && !r.isRestricted()
}

// Publish completes and signs a TD, stores it durably and announces it. The Thing is withdrawn when its registration expires. Handler
// answers for the Thing, within the schemas of its TD, as long as this process lives; nil has the agent called over the forms of the TD.
// When Publish returns, this node offers the Thing whatever happens to the process; the result shows how far the announcement has come.
func (p *Publisher) Publish(ctx context.Context, raw []byte, handler interact.Thing, r Registration) (*Result, error) {
	start := time.Now()
	if err := p.o.Disk.Room(); err != nil {
		return nil, err
	}
	secret, err := p.makeCallerSecret(ctx, raw, handler != nil)
	if err != nil {
		return nil, interact.AsError(err)
	}
	made, err := p.publish(ctx, raw, handler, r)
	if err != nil {
		return nil, interact.AsError(err)
	}
	res := p.announced(ctx, made.Publication, "published", start)
	res.Name, res.Created, res.Warnings, res.CallerSecret = made.Description.Name(), made.Created, made.Warnings, secret
	return res, nil
}

// publish is Publish without the announcement. The result has the publication, whether it is new, and the warnings.
func (p *Publisher) publish(ctx context.Context, raw []byte, handler interact.Thing, r Registration) (*Result, error) {
	callers, given := callersOf(ctx)
	audience, err := p.audienceOf(callers)
	if err != nil {
		return nil, err
	}
	if p.o.MemberOf != nil {
		raw = td.WithMemberOf(raw, p.o.MemberOf())
	}
	t, err := td.Complete(raw, p.o.Signer.DID())
	if err != nil {
		return nil, err
	}
	defer p.lock(t.ID)()
	now := time.Now()
	old, err := p.o.Index.loaded(t.ID)
	if err != nil {
		return nil, err
	}
	created := old == nil || old.Description == nil
	if old != nil && old.Owner != "" && old.Withdrawn.IsZero() {
		return nil, notOwn(old)
	}
	if !given && !created && len(old.For) > 0 {
		callers, audience = old.For, old.Audience
	}
	if t, err = td.Restrict(t, audience, p.o.Signer.DID()); err != nil {
		return nil, err
	}
	if handler == nil && old != nil && isThroughMesh(t) {
		handler = old.handler // Forms through the mesh lead to the handler of this process, if there is one.
	}
	withdrawn, err := p.withdrawPublic(cmp.Or(old, p.orphans.get(t.ID)), t, now)
	if err != nil {
		return nil, err
	}
	seq := p.nextSeq(old, t.ID, now)
	if withdrawn != nil {
		seq++ // after the tombstone
	}
	pub, err := p.sign(ctx, t, handler, seq, now)
	if err != nil {
		return nil, err
	}
	pub.Public, pub.For = withdrawn, callers
	warnings := t.Warnings
	if len(callers) > 0 {
		warnings = slices.Concat(warnings, beyond(t.Visibility, audience))
	}
	var was Registration
	if !created {
		was = old.Registration
	}
	pub.Registration = r.At(now, was)
	if err := p.keep(ctx, pub); err != nil {
		return nil, err
	}
	if err := p.grant(old, pub); err != nil {
		return nil, err
	}
	p.schedule.reset(pub.Thing)
	_, err = p.o.Directory.Add(pub.Description)
	return &Result{Publication: pub, Created: created, Warnings: warnings}, err
}

// withdrawPublic returns the public tombstone of a Thing that is published as t, which is restricted, and whose publication old was public.
// The tombstone has the next sequence number. The result is nil if no other node can have a public record of the Thing.
func (p *Publisher) withdrawPublic(old *Publication, t *td.Thing, now time.Time) (*td.Signed, error) {
	switch {
	case t.Visibility == td.Public || old == nil:
		return nil, nil
	case old.isRestricted():
		return old.Public, nil
	case !old.Withdrawn.IsZero():
		return old.Signed, nil
	}
	lease := p.lease(p.nextSeq(old, t.ID, now), now)
	lease.Lifetime = tombstoneLifetime
	return td.SignTombstone(p.o.Signer, t.ID, lease, false, old.shards()...)
}

// announced announces pub, logs the change and returns the result.
func (p *Publisher) announced(ctx context.Context, pub *Publication, change string, start time.Time) *Result {
	res := &Result{Publication: pub, Reach: p.announceSoon(ctx, pub)}
	res.Took = time.Since(start)
	log := p.o.Log
	if pub.Moved != "" {
		log = log.With("to", pub.Moved)
	}
	log.Info("agent "+change, "agent", agentName(pub), "thing", pub.Thing, "seq", pub.Seq, "replicas", res.Reach.Replicas, "gossip", res.Reach.GossipPeers, "took", res.Took)
	return res
}

// agentName returns the name of a publication for logs: that in its id if its description is not kept.
func agentName(pub *Publication) string {
	if pub.Description == nil {
		return td.ParseRef(pub.Thing).Name
	}
	return pub.Description.Name()
}

// Registered returns the registration of a Thing that this node offers; false for all others.
func (p *Publisher) Registered(r *td.Record) (Registration, bool) {
	if r.Owner != p.o.Signer.DID() {
		return Registration{}, false
	}
	pub := p.o.Index.Get(r.Thing)
	if pub == nil || pub.Description == nil {
		return Registration{}, false
	}
	return pub.Registration, true
}

// Extend changes the registration of a Thing of this node, and nothing else. It is durable when Extend returns.
func (p *Publisher) Extend(ctx context.Context, thing string, r Registration) error {
	if err := p.o.Disk.Room(); err != nil {
		return err
	}
	if err := p.extend(ctx, thing, r, time.Now()); err != nil {
		return interact.AsError(err)
	}
	return nil
}

func (p *Publisher) extend(ctx context.Context, thing string, r Registration, now time.Time) error {
	defer p.lock(thing)()
	old, err := p.o.Index.loaded(thing)
	if err != nil {
		return err
	}
	if old == nil || old.Description == nil {
		return p.o.Index.missing(thing)
	}
	next := *old
	next.Registration = r.Renewed(now, old.Registration)
	return p.keep(ctx, &next)
}

// Withdraw withdraws a Thing of this node and announces that: one that it offers, or one that another process with its key offered and
// left behind.
func (p *Publisher) Withdraw(ctx context.Context, ref string) (*Result, error) {
	start := time.Now()
	d, err := p.o.Directory.Get(ctx, ref)
	if err != nil {
		return nil, err
	}
	if hosted := p.o.Index.Of(d); hosted != nil && hosted.Owner != "" {
		return p.EndHosting(ctx, hosted.Thing)
	}
	if d.Record.Owner != p.o.Signer.DID() {
		return nil, notOwned(d)
	}
	pub, err := p.end(ctx, d.Record.Thing, d.Record.Audience, "")
	if err != nil {
		return nil, interact.AsError(err)
	}
	res := p.announced(ctx, pub, "withdrawn", start)
	res.Name = d.Name()
	return res, nil
}

func notOwned(d *td.Description) error {
	hint := "its owner is " + string(d.Record.Owner)
	switch hosts := d.Record.Hosts; {
	case d.Record.Grant != nil:
		names := make([]string, 0, len(hosts))
		for _, h := range hosts {
			names = append(names, h.Node.Short())
		}
		return interact.Errorf(interact.Forbidden, hint+"; it ends at one of its hosts there: "+strings.Join(names, ", "), "only the owner of %s, whose key is on no node, can withdraw it",
			d.Name()).Then(interact.StepHosting)
	case len(hosts) > 0:
		hint = "run it on the node that published: " + string(hosts[0].Node)
	}
	return interact.Errorf(interact.Forbidden, hint, "%s belongs to another node; only its owner can withdraw it", d.Name())
}

// end withdraws a Thing of this node, or moves it to a new owner. A Thing in that state already is left as it is. audience is that of a Thing
// that another process published.
func (p *Publisher) end(ctx context.Context, thing string, audience td.Visibility, moved did.DID) (*Publication, error) {
	defer p.lock(thing)()
	return p.withdrawLocked(ctx, thing, audience, moved)
}

// lock locks a Thing until unlock is called.
func (p *Publisher) lock(thing string) (unlock func()) {
	p.turn.RLock()
	free := p.things.Lock(thing)
	return func() {
		free()
		p.turn.RUnlock()
	}
}

// withdrawLocked is end for a caller that holds the lock of the Thing.
func (p *Publisher) withdrawLocked(ctx context.Context, thing string, audience td.Visibility, moved did.DID) (*Publication, error) {
	pub, err := p.endLocked(ctx, thing, audience, moved)
	if err != nil {
		return nil, err
	}
	if err := p.o.CallerSecrets.remove(thing); err != nil {
		p.o.Log.Warn("caller secret of a withdrawn Thing not removed", "thing", thing, "err", err)
	}
	return pub, nil
}

// endLocked is withdrawLocked without the end of the caller secret, which the next key of the node continues to use.
func (p *Publisher) endLocked(ctx context.Context, thing string, audience td.Visibility, moved did.DID) (*Publication, error) {
	now := time.Now()
	old, err := p.o.Index.loaded(thing)
	if err != nil {
		return nil, err
	}
	old = cmp.Or(old, p.orphans.get(thing))
	if old != nil && !old.Withdrawn.IsZero() && old.Moved == moved && old.Seq >= p.known(thing) {
		return old, nil
	}
	if old != nil {
		audience = old.Audience
	}
	pub, err := p.signWithdrawal(ctx, old, thing, audience, moved, now)
	if err != nil {
		return nil, err
	}
	if err := p.grant(old, pub); err != nil {
		p.o.Log.Warn("callers of a withdrawn Thing not removed", "thing", thing, "err", err)
	}
	p.schedule.reset(thing)
	d, err := pub.describe(ctx, p.o.Verifier, now)
	if err != nil {
		return nil, fmt.Errorf("verify the record of the withdrawal: %w", err)
	}
	_, err = p.o.Directory.Add(d)
	return pub, err
}

// signWithdrawal stores the tombstone of a Thing, or the record of its move.
func (p *Publisher) signWithdrawal(ctx context.Context, old *Publication, thing string, audience td.Visibility, moved did.DID, now time.Time) (
	*Publication, error) {
	lease := p.lease(p.nextSeq(old, thing, now), now)
	lease.Lifetime, lease.Hosts, lease.Audience = withdrawalLifetime(moved), nil, audience
	shards := old.shards()
	var signed *td.Signed
	var err error
	if moved == "" {
		signed, err = td.SignTombstone(p.o.Signer, thing, lease, false, shards...)
	} else {
		signed, err = td.Move(p.o.Signer, thing, moved, lease, shards...)
	}
	if err != nil {
		return nil, err
	}
	pub := &Publication{Thing: thing, Seq: lease.Seq, Signed: signed, Withdrawn: now, Moved: moved, Audience: audience}
	if old != nil {
		pub.Public = old.Public
	}
	return pub, p.keep(ctx, pub)
}

// shards returns the capabilities of p, which may be nil: the nodes that follow them must receive its tombstone.
func (p *Publication) shards() []string {
	switch {
	case p == nil:
		return nil
	case p.Description != nil:
		return p.Description.Record.Capabilities
	}
	return p.Capabilities
}

// renew gives a publication a new record. A tombstone keeps its record until it expires. The result is nil if there is nothing left to
// announce.
func (p *Publisher) renew(ctx context.Context, thing string) (*Publication, error) {
	defer p.lock(thing)()
	now, pub := time.Now(), p.o.Index.Get(thing) // of the schedule, which has loaded ones only
	switch {
	case pub == nil:
		return nil, nil
	case pub.hasExpired(now):
		return nil, p.remove(ctx, pub)
	case pub.Description == nil && pub.Owner != "":
		return p.renewEnd(ctx, pub, now)
	case pub.Description == nil:
		return pub, nil
	}
	next, err := p.signRecord(ctx, pub, now)
	switch {
	case pub.Owner != "" && errors.Is(err, td.ErrExpired):
		return nil, p.grantEnded(ctx, pub)
	case pub.Owner == "" && errors.Is(err, proof.ErrTime):
		next, err = p.proveAgain(ctx, pub, now)
	}
	if codeIs(err, interact.DiskFull) && now.Before(pub.Description.Record.Expires) {
		return pub, nil // The old record is still valid.
	}
	if err != nil {
		return nil, err
	}
	_, err = p.o.Directory.Add(next.Description)
	return next, err
}

// signRecord stores a new record of the same TD.
func (p *Publisher) signRecord(ctx context.Context, pub *Publication, now time.Time) (*Publication, error) {
	next := *pub
	next.Seq = p.nextSeq(pub, pub.Thing, now)
	if pub.Owner != "" {
		return p.signHosted(ctx, &next, now)
	}
	signed, err := td.Renew(pub.Description, p.o.Signer, p.lease(next.Seq, now))
	if err != nil {
		return nil, err
	}
	if next.Description, err = pub.Description.Refresh(p.o.Verifier, signed.Record, now); err != nil {
		return nil, err
	}
	next.Signed = next.Description.Signed
	return &next, p.keep(ctx, &next)
}

// proveAgain signs a TD whose proof was made later than now: the clock was wrong then, or is wrong now. Until the clock reached that
// time again, peers would refuse the proof and this node would not start.
func (p *Publisher) proveAgain(ctx context.Context, pub *Publication, now time.Time) (*Publication, error) {
	raw, err := withoutProof(pub.Signed.TD)
	if err != nil {
		return nil, err
	}
	t, err := td.Parse(raw)
	if err != nil {
		return nil, err
	}
	return p.signAgain(ctx, pub, t, now)
}

// signAgain signs and stores t as the TD of pub's Thing.
func (p *Publisher) signAgain(ctx context.Context, pub *Publication, t *td.Thing, now time.Time) (*Publication, error) {
	next, err := p.sign(ctx, t, pub.handler, p.nextSeq(pub, pub.Thing, now), now)
	if err != nil {
		return nil, err
	}
	next.Registration, next.For, next.Public = pub.Registration, pub.For, pub.Public
	return next, p.keep(ctx, next)
}

// sign returns a publication of t.
func (p *Publisher) sign(ctx context.Context, t *td.Thing, handler interact.Thing, seq uint64, now time.Time) (*Publication, error) {
	d, err := p.o.Verifier.Sign(ctx, t, p.o.Signer, p.lease(seq, now))
	if err != nil {
		return nil, err
	}
	pub := &Publication{Thing: d.Record.Thing, Seq: seq, Signed: d.Signed, Description: d, Audience: d.Visibility, handler: handler}
	p.bind(pub, handler)
	return pub, nil
}

// bind sets the agent of pub.
func (p *Publisher) bind(pub *Publication, handler interact.Thing) {
	pub.live = p.newLiveness(pub.Description, handler)
	pub.Agent = &lateAgent{bind: p.o.Bind, desc: pub.Description, handler: handler, live: pub.live}
}

// A lateAgent is an agent that is bound on its first use: many Things have none for a long time.
type lateAgent struct {
	bind    func(d *td.Description, handler interact.Thing, watch interact.Middleware) interact.Thing
	desc    *td.Description
	handler interact.Thing
	live    *liveness
	once    sync.Once
	bound   interact.Thing // set by once
}

// Do implements [interact.Thing].
func (a *lateAgent) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	a.once.Do(func() { a.bound = a.bind(a.desc, a.handler, a.live.watch) })
	return a.bound.Do(ctx, m)
}

func (p *Publisher) lease(seq uint64, now time.Time) td.Lease {
	return td.Lease{Seq: seq, Now: now, Lifetime: p.o.Lifetime, Hosts: p.o.Hosts()}
}

// withoutProof returns a TD without its proof, with its members in the same order.
func withoutProof(raw []byte) ([]byte, error) {
	members, err := jcs.Members(raw)
	if err != nil {
		return nil, err
	}
	return jcs.Join(slices.DeleteFunc(members, func(m jcs.Member) bool { return m.Name == "proof" })), nil
}

// keep stores pub durably, then puts it into the index.
func (p *Publisher) keep(ctx context.Context, pub *Publication) error {
	if stored := p.stored(pub); stored != nil {
		b, err := json.Marshal(stored)
		if err != nil {
			return err
		}
		if err := p.o.Store.Put(ctx, p.storeKey(pub.Thing), b); err != nil {
			return p.o.Disk.Failed(err)
		}
	}
	p.o.Index.set(pub)
	return nil
}

// stored returns the stored form of pub: a mark if it has a handler, or nil if that mark is stored already.
func (p *Publisher) stored(pub *Publication) *Publication {
	if pub.handler == nil {
		return pub
	}
	mark := &Publication{Thing: pub.Thing, Seq: pub.Seq, Attached: true, Capabilities: pub.Description.Record.Capabilities, Audience: pub.Audience,
		Public: pub.Public, Owner: pub.Owner, Grant: pub.Grant}
	if old := p.o.Index.Get(pub.Thing); old != nil && old.handler != nil && slices.Equal(old.Description.Record.Capabilities, mark.Capabilities) &&
		old.Audience == mark.Audience && old.Public == mark.Public && bytes.Equal(old.Grant, mark.Grant) {
		return nil
	}
	return mark
}

// remove drops a withdrawal whose record has expired.
func (p *Publisher) remove(ctx context.Context, pub *Publication) error {
	if err := p.o.Store.Delete(ctx, p.storeKey(pub.Thing)); err != nil {
		return p.o.Disk.Failed(err)
	}
	p.o.Index.remove(pub.Thing)
	p.schedule.remove(pub.Thing)
	return nil
}

// nextSeq returns a sequence number that is higher than any before, even after the loss of the store: milliseconds since 1970 exceed all
// numbers of the past, and the directory has those of a clock that was ahead.
func (p *Publisher) nextSeq(old *Publication, thing string, now time.Time) uint64 {
	known := p.known(thing)
	if old != nil && old.Owner != "" {
		known = p.o.Directory.SeqAt(old.Owner, thing, p.o.Signer.DID())
	}
	seq := max(uint64(now.UnixMilli()), known+1)
	if old != nil {
		seq = max(seq, old.Seq+1)
	}
	return seq
}

func (p *Publisher) known(thing string) uint64 { return p.o.Directory.Seq(p.o.Signer.DID(), thing) }

// storeKey returns the key of a Thing of this node in the store.
func (p *Publisher) storeKey(thing string) ds.Key { return storeKey(p.o.Signer.DID(), thing) }

func codeIs(err error, code interact.Code) bool {
	e, ok := errors.AsType[*interact.Error](err)
	return ok && e.Code == code
}
