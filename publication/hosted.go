package publication

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// Times of hosting.
const (
	adoptPause = time.Minute // between grants of one Thing that are adopted from other hosts
	drainWait  = 500 * time.Millisecond
	// GrantWarning is how long before its end a grant is reported.
	GrantWarning = 2 * 24 * time.Hour
)

// ownerOf returns the owner of the Thing of pub.
func (p *Publisher) ownerOf(pub *Publication) did.DID {
	if pub.Owner != "" {
		return pub.Owner
	}
	return p.o.Signer.DID()
}

// notOwn is the error for a publication of this node with the id of a Thing that it hosts for another owner.
func notOwn(hosted *Publication) error {
	return interact.Errorf(interact.Forbidden, "use another id, or end the hosting first", "this node hosts %s for %s", hosted.Thing, hosted.Owner).
		Then(interact.StepShow, hosted.Thing)
}

// Host offers a Thing of another owner, which a grant permits this node, and announces that. Handler answers for the Thing as long as this process lives; nil has the
// agent called over the forms of the TD, which lead to an agent of this host. A later grant of the Thing replaces an earlier one. Callers are those of [WithCallers].
//
// The error is an [*interact.Error]: [interact.Forbidden] if the grant does not name this node, [interact.Expired], [interact.ClockSkew],
// [interact.RolledBack] if the owner has signed a newer statement, or [interact.Invalid].
func (p *Publisher) Host(ctx context.Context, grant, body []byte, handler interact.Thing) (*Result, error) {
	start := time.Now()
	if err := p.o.Disk.Room(); err != nil {
		return nil, err
	}
	g, err := td.ParseGrant(grant)
	if err == nil {
		err = g.Check(ctx, p.o.Verifier, body, start)
	}
	if err != nil {
		return nil, interact.Errorf(interact.Invalid, "sign the grant again, and pass the TD that was signed with it", "%v", err)
	}
	if err := p.permits(g, start); err != nil {
		return nil, err
	}
	pub, created, err := p.host(ctx, g, body, handler, start)
	if err != nil {
		return nil, interact.AsError(err)
	}
	res := p.announced(ctx, pub, "hosted", start)
	res.Name, res.Created = pub.Description.Name(), created
	return res, nil
}

// permits returns an error if g does not permit this node to host a Thing at now.
func (p *Publisher) permits(g *td.Grant, now time.Time) error {
	const skew = 5 * time.Minute
	self := p.o.Signer.DID()
	switch {
	case g.Owner == self:
		return interact.Errorf(interact.Invalid, "sign grants with a key that is on no node", "the owner of %s is this node", g.Thing)
	case !g.Names(self):
		return interact.Errorf(interact.Forbidden, "have it signed for "+string(self), "grant %d of %s does not name this node", g.Number, g.Thing).Then(interact.StepID)
	case g.Audience == td.Private:
		return interact.Errorf(interact.Invalid, "use another lmosd:visibility", "%s is private: no other node could find it", g.Thing)
	case g.Issued.After(now.Add(skew)):
		return interact.Errorf(interact.ClockSkew, "set the clock of the owner, or of this node", "grant %d of %s is signed in %v", g.Number, g.Thing,
			g.Issued.Sub(now).Round(time.Second))
	case !now.Before(g.Expires):
		return interact.Errorf(interact.Expired, "ask the owner for a new one", "grant %d of %s ended at %s", g.Number, g.Thing, g.Expires.Format(time.RFC3339))
	}
	return nil
}

func (p *Publisher) host(ctx context.Context, g *td.Grant, body []byte, handler interact.Thing, now time.Time) (pub *Publication, created bool, err error) {
	callers, given := callersOf(ctx)
	if _, err := p.audienceOf(callers); err != nil {
		return nil, false, err
	}
	if err := p.checkRoles(rolesOf(ctx)); err != nil {
		return nil, false, err
	}
	p.turn.Lock()
	defer p.turn.Unlock()
	old, err := p.o.Index.loaded(g.Thing)
	if err != nil {
		return nil, false, err
	}
	known, _ := p.o.Directory.Grant(g.Owner, g.Thing)
	switch {
	case old != nil && p.ownerOf(old) != g.Owner, old == nil && p.orphans.get(g.Thing) != nil && p.ownerOf(p.orphans.get(g.Thing)) != g.Owner:
		return nil, false, interact.Errorf(interact.Forbidden, "use another id", "this node has a Thing of another owner with the id %s", g.Thing).
			Then(interact.StepShow, g.Thing)
	case p.o.Directory.Seq(g.Owner, g.Thing) > g.Number, old != nil && old.grant != nil && old.grant.Number > g.Number:
		return nil, false, interact.Errorf(interact.RolledBack, "use the newest grant, or sign another one", "the owner of %s has signed a newer statement than grant %d",
			g.Thing, g.Number)
	case known != nil && known.Number == g.Number && !bytes.Equal(known.Raw, g.Raw):
		return nil, false, interact.Errorf(interact.RolledBack, "sign a grant with a higher number, and stop the other program with the key",
			"two programs use the key of the owner of %s: there is another grant %d", g.Thing, g.Number)
	case old != nil && old.Description != nil && old.Audience != g.Audience:
		return nil, false, interact.Errorf(interact.Invalid, "end the hosting first", "%s changes its audience from %s to %s", g.Thing, old.Audience, g.Audience)
	}
	if handler == nil {
		if handler, err = p.attachedTo(old, body); err != nil {
			return nil, false, err
		}
	}
	if handler != nil {
		if other := p.attachedWith(g); other != nil {
			return nil, false, interact.Errorf(interact.Invalid, "use one key for each agent", "the key of %s is that of %s, which is attached to this node",
				nameOf(g), other.Description.Ref()).Then(interact.StepShow, other.Description.Ref())
		}
	}
	pub = &Publication{Thing: g.Thing, Owner: g.Owner, Grant: g.Raw, Audience: g.Audience, For: callers, grant: g, Signed: &td.Signed{TD: body}, handler: handler}
	if old != nil && !given {
		pub.For = old.For
	}
	pub.Roles = rolesOf(ctx)
	created = old == nil || old.Description == nil
	if old == nil {
		old = pub
	}
	pub.Seq = p.nextSeq(old, g.Thing, now)
	if pub, err = p.signHosted(ctx, pub, now); err != nil {
		return nil, false, err
	}
	if err := p.grant(old, pub); err != nil {
		return nil, false, err
	}
	p.schedule.reset(g.Thing)
	_, err = p.o.Directory.Add(pub.Description)
	return pub, created, err
}

// signHosted signs and stores the record of pub, a Thing of another owner, for this node. pub has its seq, its grant and the TD.
func (p *Publisher) signHosted(ctx context.Context, pub *Publication, now time.Time) (*Publication, error) {
	lease := p.lease(pub.Seq, now)
	if p.draining.Load() {
		lease.State = td.Draining
	}
	signed, err := pub.grant.Sign(pub.Signed.TD, p.o.Signer, lease)
	if err != nil {
		return nil, err
	}
	d, err := signed.Verify(ctx, p.o.Verifier, now)
	if err != nil {
		return nil, fmt.Errorf("verify the new signature: %w", err)
	}
	same := pub.Description != nil && pub.Description.Record.Hash == d.Record.Hash
	pub.Signed, pub.Description = signed, d
	if !same {
		p.bind(pub, pub.handler)
	}
	return pub, p.keep(ctx, pub)
}

// checkRoles checks that this node has the roles.
func (p *Publisher) checkRoles(roles []string) error {
	if len(roles) == 0 {
		return nil
	}
	var own []string
	if p.o.Roles != nil {
		own = p.o.Roles()
	}
	for _, role := range roles {
		if !slices.Contains(own, role) {
			return interact.Errorf(interact.Forbidden, "ask an issuer of the organization for it, or leave it out", "this node does not have the role %q, so that it cannot give it to an agent",
				interact.Excerpt(role, 80))
		}
	}
	return nil
}

// attachedWith returns another Thing of the owner of g that a process of this host handles, or nil: the key of an agent identifies one agent.
func (p *Publisher) attachedWith(g *td.Grant) *Publication {
	for _, pub := range p.o.Index.hosted() {
		if pub.handler != nil && pub.Owner == g.Owner && pub.Thing != g.Thing {
			return pub
		}
	}
	return nil
}

// attachedTo returns the handler of a Thing whose forms lead to a process of this host, from its publication before; nil for other Things.
func (p *Publisher) attachedTo(old *Publication, body []byte) (interact.Thing, error) {
	t, err := td.Parse(body)
	switch {
	case err != nil:
		return nil, err
	case !isThroughMesh(t):
		return nil, nil
	case old == nil || old.handler == nil:
		return nil, interact.Errorf(interact.Invalid, "attach its process with the grant", "%s has no address: a process attached to this node answers for it", t.ID)
	}
	return old.handler, nil
}

// isThroughMesh reports whether forms of t lead to a handler of this node.
func isThroughMesh(t *td.Thing) bool {
	return slices.Contains(slices.Collect(t.Protocols()), strings.TrimSuffix(td.MeshHref, ":"))
}

// reviveHosted offers a stored Thing of another owner again. What does not permit it any longer is no error of the node: the Thing waits for a grant.
func (p *Publisher) reviveHosted(ctx context.Context, pub *Publication, now time.Time) error {
	g, err := td.ParseGrant(pub.Grant)
	if err != nil {
		return p.o.Disk.Failed(fmt.Errorf("read the grant of %s: %w", pub.Thing, err))
	}
	pub.grant = g
	next := *pub
	next.Seq = p.nextSeq(pub, pub.Thing, now)
	if _, err = p.signHosted(ctx, &next, now); err == nil {
		return nil
	}
	if codeIs(err, interact.DiskFull) {
		p.keepOld(ctx, pub, now)
		return nil
	}
	p.o.Log.Warn("Thing of another owner not offered again", "thing", pub.Thing, "owner", pub.Owner, "err", err)
	p.o.Index.set(pub)
	return nil
}

// keepOld publishes a stored publication with the record that it had: a new record could not be stored, and what is not stored is not
// announced. An expired one is not published until renew signs it.
func (p *Publisher) keepOld(ctx context.Context, pub *Publication, now time.Time) {
	d, err := pub.Signed.Verify(ctx, p.o.Verifier, now)
	if err != nil {
		return
	}
	pub.Description, pub.Audience = d, d.Visibility
	p.bind(pub, nil)
	p.o.Index.set(pub)
}

// grantEnded stops to offer pub, whose grant has ended. The caller holds the lock of the Thing.
func (p *Publisher) grantEnded(ctx context.Context, pub *Publication) error {
	p.o.Log.Warn("grant ended, the Thing is not offered any longer", "thing", pub.Thing, "owner", pub.Owner, "grant", pub.grant.Number)
	next := *pub
	next.Description, next.Agent, next.live, next.handler = nil, nil, nil, nil
	return p.keep(ctx, &next)
}

// IsAgent reports whether an agent with a key of its own, whose DID is agent, is at this node ([Index.Agent]).
func (p *Publisher) IsAgent(agent did.DID) bool {
	grant, _ := p.o.Index.Agent(agent)
	return grant != nil
}

// EndHosting stops to offer a Thing of another owner, and announces that.
func (p *Publisher) EndHosting(ctx context.Context, thing string) (*Result, error) {
	start := time.Now()
	p.turn.Lock()
	old := p.o.Index.Get(thing)
	var pub *Publication
	var err error
	if old == nil || old.Owner == "" || !old.Withdrawn.IsZero() {
		err = p.o.Index.missing(thing)
	} else {
		pub, err = p.endHostingLocked(ctx, old, start)
	}
	p.turn.Unlock()
	if err != nil {
		return nil, interact.AsError(err)
	}
	res := p.announced(ctx, pub, "not hosted any longer", start)
	res.Name = nameOf(pub.grant)
	return res, nil
}

// endHostingLocked stores the last record of a Thing of another owner.
func (p *Publisher) endHostingLocked(ctx context.Context, old *Publication, now time.Time) (*Publication, error) {
	pub := &Publication{Thing: old.Thing, Owner: old.Owner, Grant: old.Grant, Audience: old.Audience, Withdrawn: now, Seq: p.nextSeq(old, old.Thing, now),
		Signed: old.Signed, grant: old.grant, Capabilities: old.grant.Capabilities}
	lease := p.lease(pub.Seq, now)
	lease.State, lease.Lifetime = td.Ended, 24*time.Hour // as long as an earlier record may be valid
	signed, err := old.grant.Sign(nil, p.o.Signer, lease)
	switch {
	case errors.Is(err, td.ErrExpired): // nor is any earlier record valid
		err = p.remove(ctx, old)
		if pub.Signed = new(td.Signed); old.Signed != nil {
			pub.Signed.Record = old.Signed.Record
		}
	case err == nil:
		pub.Signed = signed
		err = p.keep(ctx, pub)
	}
	if err == nil {
		err = p.grant(old, pub)
	}
	if err != nil {
		return nil, err
	}
	p.schedule.reset(pub.Thing)
	if d, err := pub.describe(ctx, p.o.Verifier, now); err == nil {
		_, err = p.o.Directory.Add(d)
		if err != nil && !codeIs(err, interact.RolledBack) && !codeIs(err, interact.NotFound) { // the owner has ended it before, or no record is known any longer
			return nil, err
		}
	}
	return pub, nil
}

// renewEnd returns pub, a Thing of another owner that is not offered any longer, as long as its last record is valid, else nil. The caller holds the lock of
// the Thing.
func (p *Publisher) renewEnd(ctx context.Context, pub *Publication, now time.Time) (*Publication, error) {
	if pub.Withdrawn.IsZero() {
		return nil, nil // its grant has ended
	}
	if _, err := p.o.Verifier.Record(pub.Signed.Record, now); err != nil {
		return nil, p.remove(ctx, pub)
	}
	return pub, nil
}

// followGrants brings the Things of other owners to what their owners have signed since: it adopts newer grants of the same TD that other hosts have
// announced, and ends what is granted or offered no longer.
func (p *Publisher) followGrants(ctx context.Context, now time.Time) {
	for _, pub := range p.o.Index.hosted() {
		if err := p.followGrant(ctx, pub, now); err != nil && ctx.Err() == nil {
			p.o.Log.Error("newer grant not followed", "thing", pub.Thing, "err", err)
		}
	}
}

func (p *Publisher) followGrant(ctx context.Context, pub *Publication, now time.Time) error {
	g, _ := p.o.Directory.Grant(pub.Owner, pub.Thing)
	newest := p.o.Directory.Seq(pub.Owner, pub.Thing)
	switch {
	case newest < pub.grant.Number, newest == pub.grant.Number && (g == nil || bytes.Equal(g.Raw, pub.grant.Raw)):
		return nil // of two grants with one number, the directory has the one that counts for all
	case g == nil || g.Number < newest:
		p.o.Log.Info("the owner has withdrawn a hosted Thing", "thing", pub.Thing, "owner", pub.Owner)
	case !g.Names(p.o.Signer.DID()):
		p.o.Log.Info("a newer grant does not name this node", "thing", pub.Thing, "owner", pub.Owner, "grant", g.Number)
	case p.permits(g, now) != nil:
		return nil
	case g.Hash != pub.grant.Hash || g.Audience != pub.grant.Audience:
		p.turn.Lock()
		defer p.turn.Unlock()
		if p.o.Index.Get(pub.Thing) != pub || pub.waiting == g.Number {
			return nil
		}
		next := *pub
		next.waiting = g.Number
		p.o.Index.set(&next)
		p.o.Log.Warn("a newer grant of another TD waits for the operator of this node", "thing", pub.Thing, "owner", pub.Owner, "grant", g.Number)
		return nil
	case now.Sub(pub.followed) < adoptPause:
		return nil
	default:
		return p.adopt(ctx, pub, g, now)
	}
	_, err := p.EndHosting(ctx, pub.Thing)
	if a, attached := pub.handler.(*attachedAgent); attached && err == nil {
		a.evict()
	}
	return err
}

// adopt replaces the grant of pub by a newer one of the same TD.
func (p *Publisher) adopt(ctx context.Context, pub *Publication, g *td.Grant, now time.Time) error {
	p.turn.Lock()
	if p.o.Index.Get(pub.Thing) != pub {
		p.turn.Unlock()
		return nil
	}
	next := *pub
	next.Grant, next.grant, next.followed, next.waiting, next.Seq = g.Raw, g, now, 0, p.nextSeq(pub, pub.Thing, now)
	signed, err := p.signHosted(ctx, &next, now)
	if err == nil {
		_, err = p.o.Directory.Add(signed.Description)
	}
	p.turn.Unlock()
	if err != nil {
		return err
	}
	p.o.Log.Info("newer grant adopted", "thing", pub.Thing, "owner", pub.Owner, "grant", g.Number)
	p.announceSoon(ctx, signed)
	return nil
}

// Drain announces that this node accepts no new calls of the Things that it hosts for others: other hosts get them. It takes 500 ms at most.
func (p *Publisher) Drain(ctx context.Context) {
	if p.draining.Swap(true) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, drainWait)
	defer cancel()
	var g sync.WaitGroup
	for _, pub := range p.o.Index.hosted() {
		if pub.Description == nil {
			continue
		}
		g.Go(func() {
			next, err := p.renew(ctx, pub.Thing)
			if err == nil && next != nil {
				p.announceSoon(ctx, next)
			}
			if err != nil {
				p.o.Log.Warn("other hosts not announced before the end", "thing", pub.Thing, "err", err)
			}
		})
	}
	g.Wait()
}

// hosted returns the publications of other owners that have not ended.
func (x *Index) hosted() (all []*Publication) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, p := range x.all {
		if p.Owner != "" && p.Withdrawn.IsZero() {
			all = append(all, p)
		}
	}
	return all
}

// A Hosted is the state of a Thing of another owner at this node.
type Hosted struct {
	Thing, Name string
	Grant       *td.Grant
	Offered     bool      // else its grant has ended
	Draining    bool      // this node stops
	Waiting     uint64    // the number of a newer grant of another TD, which the operator must bring; 0: none
	Hosts       []did.DID // that are known to host it now
}

// nameOf returns the name of a granted Thing, which td.Thing.Name derives from its title; without one the id.
func nameOf(g *td.Grant) string { return cmp.Or(td.Slug(g.Title), g.Thing) }

// Granted returns the Things of other owners at this node, sorted by id. It sends no request.
func (p *Publisher) Granted() []Hosted {
	var all []Hosted
	for _, pub := range p.o.Index.hosted() {
		_, hosts := p.o.Directory.Grant(pub.Owner, pub.Thing)
		all = append(all, Hosted{Thing: pub.Thing, Name: nameOf(pub.grant), Grant: pub.grant, Offered: pub.Description != nil, Draining: p.draining.Load(),
			Waiting: pub.waiting, Hosts: hosts})
	}
	slices.SortFunc(all, func(a, b Hosted) int { return strings.Compare(a.Thing, b.Thing) })
	return all
}

// WithdrawGranted adds the withdrawal that the owner of a Thing with hosts has signed, or its move to the next key of the owner, and announces it.
func (p *Publisher) WithdrawGranted(ctx context.Context, record []byte) (*Result, error) {
	start := time.Now()
	s := &td.Signed{Record: bytes.Clone(record)}
	d, err := s.Verify(ctx, p.o.Verifier, start)
	switch {
	case err != nil:
		return nil, interact.Errorf(interact.Invalid, "sign it again", "%v", err)
	case d.Record.Kind != td.KindTombstone && d.Record.Kind != td.KindMoved || d.Record.Owner == p.o.Signer.DID():
		return nil, interact.Errorf(interact.Invalid, "withdraw it at its node", "the record of %s does not withdraw a Thing of another owner", d.Record.Thing)
	}
	if _, err := p.o.Directory.Add(d); err != nil {
		return nil, err
	}
	res := &Result{Publication: &Publication{Thing: d.Record.Thing, Owner: d.Record.Owner, Seq: d.Record.Seq, Signed: s, Withdrawn: start, Moved: d.Record.Successor,
		Audience: d.Record.Audience}}
	if res.Moved != "" {
		if next, err := p.o.Directory.Get(ctx, d.Record.SuccessorRef().String()); err == nil {
			res.Successor = next.Ref()
		}
	}
	if res.isRestricted() {
		if p.o.OnRestricted != nil {
			p.o.OnRestricted(s)
		}
	} else if res.Reach, err = p.announceWithdrawal(ctx, s); err != nil {
		return nil, interact.AsError(err)
	}
	res.Took = time.Since(start)
	return res, nil
}

// announceWithdrawal announces a public withdrawal that is not of this node.
func (p *Publisher) announceWithdrawal(ctx context.Context, s *td.Signed) (reach Reach, err error) {
	if reach.GossipPeers, err = p.o.Gossip.Announce(ctx, s); err != nil {
		return reach, err
	}
	r, err := p.o.DHT.Publish(ctx, s)
	reach.Replicas, reach.Wanted = r.Replicas, r.Wanted
	return reach, unlessAlone(err)
}
