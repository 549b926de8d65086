package trust

import (
	"context"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/vc"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/internal/heap"
	"github.com/lmosd/lmosd/trust/authority"
	"github.com/lmosd/lmosd/trust/exchange"
)

// A node is what is known of another node. Trust.mu owns it.
type node struct {
	id         did.DID
	credential *vc.Credential   // the newest that it showed; nil: none
	principal  *did.Principal   // never nil
	hello      chan struct{}    // closed when it is known who it is, as far as it says; nil: no connection
	done       bool             // hello is closed
	turn       *turn            // of the connections that are not decided; nil: there are none
	lacking    []exchange.Known // what it has and this node lacks
	learning   bool             // a goroutine gets that
	place      int              // in register.ends
}

// Before and Position implement [heap.Element]: the credential that ends first is first.
func (n *node) Before(o *node) bool { return n.credential.Until.Before(o.credential.Until) }

// Position returns the place in the heap.
func (n *node) Position() *int { return &n.place }

// A register has the nodes, and those whose standing may have changed since the last update. Trust.mu owns it.
type register struct {
	nodes   map[did.DID]*node
	online  map[did.DID]*node            // those with a connection
	members map[string]map[did.DID]*node // those with a credential, by the SCID of its issuer
	ends    heap.Heap[*node]             // of credentials that have not ended
	touched map[did.DID]bool             // to be evaluated
	updated time.Time                    // the last time
	alone   bool                         // this node may have missed what happened before its start, at that time
}

func newRegister() register {
	return register{nodes: map[did.DID]*node{}, online: map[did.DID]*node{}, members: map[string]map[did.DID]*node{}, touched: map[did.DID]bool{}, alone: true}
}

// setCredential stores the credential of a node, which may be nil.
func (r *register) setCredential(n *node, c *vc.Credential) {
	if old := n.credential; old != nil {
		scid := webvh.SCID(old.Issuer)
		if delete(r.members[scid], n.id); len(r.members[scid]) == 0 {
			delete(r.members, scid)
		}
		if n.place >= 0 {
			r.ends.Remove(n)
		}
	}
	n.place = -1
	if n.credential = c; c == nil {
		return
	}
	scid := webvh.SCID(c.Issuer)
	if r.members[scid] == nil {
		r.members[scid] = map[did.DID]*node{}
	}
	r.members[scid][n.id] = n
	r.ends.Add(n)
}

// forget removes a node.
func (r *register) forget(n *node) {
	r.setCredential(n, nil)
	delete(r.nodes, n.id)
	delete(r.online, n.id)
}

// touchMembersLocked notes that the standing of all members of an organization may have changed.
func (t *Trust) touchMembersLocked(scid string) {
	for id := range t.members[scid] {
		t.touched[id] = true
	}
}

// maxNodes limits the nodes whose credentials are kept. Those without one are kept while they are connected.
const maxNodes = 1 << 14

// waitFor limits the time in which a new peer shows its credential before its first call is decided.
const waitFor = 2 * time.Second

// Principal returns the current principal of a node, never nil. It does not block. The same pointer means the same standing. A nil Trust knows
// no organization.
func (t *Trust) Principal(id did.DID) *did.Principal {
	if t == nil {
		return did.NodePrincipal(id, "")
	}
	t.mu.RLock()
	if n := t.nodes[id]; n != nil {
		defer t.mu.RUnlock()
		return n.principal
	}
	t.mu.RUnlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.nodeLocked(id).principal
}

// Wait waits until a connected node has shown its credential, at most 2 s from its connection. A nil Trust does not wait.
func (t *Trust) Wait(ctx context.Context, id did.DID) {
	if t == nil {
		return
	}
	t.mu.RLock()
	n := t.nodes[id]
	var hello chan struct{}
	if n != nil && !n.done {
		hello = n.hello
	}
	t.mu.RUnlock()
	if hello == nil {
		return
	}
	timer := time.NewTimer(waitFor)
	defer timer.Stop()
	select {
	case <-hello:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// nodeLocked returns the state of a node, which it creates if there is none.
func (t *Trust) nodeLocked(id did.DID) *node {
	n := t.nodes[id]
	if n == nil {
		if len(t.nodes) >= maxNodes {
			t.pruneLocked()
		}
		n = &node{id: id, place: -1}
		n.principal = t.evaluateLocked(id, n, t.now())
		t.nodes[id] = n
	}
	return n
}

// pruneLocked forgets nodes that are not connected: first those without a credential, then others.
func (t *Trust) pruneLocked() {
	for _, all := range []bool{false, true} {
		for _, n := range t.nodes {
			if len(t.nodes) < maxNodes*3/4 {
				return
			}
			if n.hello == nil && (all || n.credential == nil) {
				t.forget(n)
			}
		}
	}
}

// evaluateLocked returns the principal of a node at this time.
func (t *Trust) evaluateLocked(id did.DID, n *node, now time.Time) *did.Principal {
	p := did.NodePrincipal(id, "")
	if id == t.self {
		p.Relation = did.Own
		if c := t.credentialLocked(); c != nil {
			p.Org, p.Roles = c.Issuer, c.Roles
		}
		t.addGroupsLocked(p)
		return p
	}
	if t.distrusted[id] {
		p.Barred = did.Distrusted
		return p
	}
	if own := t.ownLocked(); own != nil && own.Excludes(id, now) {
		p.Barred = "the own organization revoked the node"
		return p
	}
	p.Attested = t.attestedLocked(id, now)
	t.addStandingLocked(p, n, now)
	defer t.addGroupsLocked(p)
	if p.Relation == did.Untrusted && p.Barred == "" {
		for a := range t.allLocked() {
			if a.Excludes(id, now) {
				p.Barred = "its organization revoked the node"
				break
			}
		}
	}
	return p
}

// addStandingLocked adds what the credential of a node proves.
func (t *Trust) addStandingLocked(p *did.Principal, n *node, now time.Time) {
	c := n.credential
	if c == nil {
		return
	}
	a := t.authorities[webvh.SCID(c.Issuer)]
	switch {
	case a == nil:
		return
	case a.Excludes(c.Subject, now):
		p.Barred = "its organization revoked the node"
		return
	case a.Revokes(c, now): // only this credential: the member may renew it
		return
	case a.partner != nil && (a.partner.Forked || a.partner.HasEnded(now)):
		return
	}
	problem, pending := a.Check(c, p.Node, t.ownMethodLocked(a), t.settledForLocked(a, p.Node), now)
	if problem != "" {
		return
	}
	member := *p
	member.Org, member.Expires, member.Relation, member.Roles = a.DID(), c.Until, did.Own, c.Roles
	if a.partner != nil {
		member.Relation = did.Partner
		if len(a.partner.Roles) > 0 {
			member.Roles = slices.DeleteFunc(slices.Clone(c.Roles), func(role string) bool { return !slices.Contains(a.partner.Roles, role) })
		}
	}
	if pending != "" {
		p.Pending, p.Unconfirmed = pending, &member
		return
	}
	*p = member
}

// ownMethodLocked returns the DID URL of the issuing key of this node in an organization, or "".
func (t *Trust) ownMethodLocked(a *trusted) string {
	if t.org == nil || t.org.SCID() != a.SCID() {
		return ""
	}
	_, method, err := t.org.Signer()
	if err != nil {
		return ""
	}
	return method
}

// credentialLocked returns the valid credential of this node, or nil.
func (t *Trust) credentialLocked() *vc.Credential {
	if t.org == nil {
		return nil
	}
	c := t.org.Credential()
	if c == nil || t.now().After(c.Until) {
		return nil
	}
	return c
}

func equalStanding(a, b *did.Principal) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Relation == b.Relation && a.Org == b.Org && a.Barred == b.Barred && a.Pending == b.Pending && a.Expires.Equal(b.Expires) &&
		slices.Equal(a.Roles, b.Roles) && slices.Equal(a.Groups, b.Groups) && slices.Equal(a.Agents, b.Agents) && slices.Equal(a.Attested, b.Attested) && equalStanding(a.Unconfirmed, b.Unconfirmed)
}

// allLocked returns the organizations that count here, and the former ones.
func (t *Trust) allLocked() iter.Seq[*trusted] {
	return func(yield func(*trusted) bool) {
		for _, a := range t.authorities {
			if !yield(a) {
				return
			}
		}
		for _, a := range t.former {
			if !yield(a) {
				return
			}
		}
	}
}

// dueLocked returns the nodes whose standing may have changed since the last call, by documents, connections or time.
func (t *Trust) dueLocked(now time.Time) map[did.DID]bool {
	due := t.touched
	t.touched = map[did.DID]bool{}
	due[t.self] = true
	if alone := now.Sub(t.started) <= authority.AloneFor; alone != t.alone {
		if t.alone = alone; t.ownLocked() != nil {
			t.ownLocked().Touch()
		}
	}
	for a := range t.allLocked() {
		if a.partner != nil && a.partner.HasEnded(now) != a.ended {
			a.ended = !a.ended
			a.Touch()
		}
		members, nodes := a.TakeChanges(now)
		maps.Copy(due, nodes)
		if members {
			for id := range t.members[a.SCID()] {
				due[id] = true
			}
		}
	}
	t.touchEndedLocked(due, now)
	for len(t.ends) > 0 && now.After(t.ends[0].credential.Until.Add(vc.Skew)) {
		n := t.ends[0]
		t.ends.Remove(n)
		n.place = -1
		due[n.id] = true
	}
	if now.Before(t.updated) { // the clock was set back
		for id, n := range t.nodes {
			due[id] = true
			if n.credential != nil && n.place < 0 {
				t.ends.Add(n)
			}
		}
	}
	t.updated = now
	return due
}

// update evaluates the nodes whose standing may have changed, and reports the changes.
func (t *Trust) update() {
	changed := map[did.DID][2]*did.Principal{} // before and after
	t.mu.Lock()
	now := t.now()              // in the order of the updates
	for again := true; again; { // a node that is barred may have been the reason to confirm others
		again = false
		for id := range t.dueLocked(now) {
			n := t.nodes[id]
			if n == nil {
				continue
			}
			before := n.principal
			if !t.evaluateAgainLocked(n, now) {
				continue
			}
			again = again || n.principal.Barred != before.Barred
			if c, ok := changed[id]; ok {
				before = c[0]
			}
			changed[id] = [2]*did.Principal{before, n.principal}
		}
	}
	t.mu.Unlock()
	for id, c := range changed {
		t.standingChanged(id, c[0], c[1])
	}
}

// evaluateAgainLocked evaluates a node, and reports whether its standing has changed.
func (t *Trust) evaluateAgainLocked(n *node, now time.Time) bool {
	p, before := t.evaluateLocked(n.id, n, now), n.principal
	if equalStanding(p, before) {
		return false
	}
	n.principal = p
	if p.Barred != before.Barred {
		t.touchSiblingsLocked(n)
	}
	return true
}

// touchSiblingsLocked notes that a member of the own organization has come, gone, or was barred: an issuer whose sibling issuers are away
// counts its members' connections as evidence about each other.
func (t *Trust) touchSiblingsLocked(n *node) {
	own := t.ownLocked()
	if own == nil || n.credential == nil || webvh.SCID(n.credential.Issuer) != own.SCID() {
		return
	}
	if method := t.ownMethodLocked(own); method != "" && own.HasOtherIssuer(method, t.now()) {
		own.Touch()
	}
}

// standingChanged reports a changed standing. A node that became a member or a partner has documents that this node did not take from it
// before, and may have asked before this node knew it.
func (t *Trust) standingChanged(id did.DID, before, after *did.Principal) {
	t.o.OnChange(id, before, after)
	if id == t.self || after.Relation < did.Partner && !after.Grouped() {
		return
	}
	t.learn(id, []exchange.Known{{Kind: exchange.KindThings}})
	if after.Relation < did.Partner {
		t.announceThings(id) // to a member of a group, which hello does not
		return
	}
	t.start(func(ctx context.Context) {
		t.hello(ctx, id)
		if before.Relation < did.Partner {
			t.present(ctx, id)
		}
	})
}
