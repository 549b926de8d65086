package trust

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/vc"
	"github.com/lmosd/lmosd/did/webvh"
)

// A node is what is known of another node. Trust.mu owns it.
type node struct {
	credential *vc.Credential // the newest that it showed; nil: none
	principal  *did.Principal // never nil
	hello      chan struct{}  // closed when it is known who it is, as far as it says; nil: no connection
	done       bool           // hello is closed
	lacking    []known        // what it has and this node lacks
	learning   bool           // a goroutine gets that
}

// maxNodes limits the nodes whose credentials are kept. Those without one are kept while they are connected.
const maxNodes = 1 << 14

// waitFor limits the time in which a new peer shows its credential before its first call is decided.
const waitFor = 2 * time.Second

// Principal returns the current principal of a node, never nil. It does not block. The same pointer means the same standing.
func (t *Trust) Principal(id did.DID) *did.Principal {
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
		n = &node{}
		n.principal = t.evaluateLocked(id, n, t.now())
		t.nodes[id] = n
	}
	return n
}

// pruneLocked forgets nodes that are not connected: first those without a credential, then others.
func (t *Trust) pruneLocked() {
	for _, all := range []bool{false, true} {
		for id, n := range t.nodes {
			if len(t.nodes) < maxNodes*3/4 {
				return
			}
			if n.hello == nil && (all || n.credential == nil) {
				delete(t.nodes, id)
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
		return p
	}
	if slices.Contains(t.book.Distrusted, id) {
		p.Barred = "the operator of this node distrusts the node"
		return p
	}
	for _, a := range t.authorities {
		if a.partner == nil && a.excludes(id, now) {
			p.Barred = "the own organization revoked the node"
			return p
		}
	}
	t.addStandingLocked(p, n, now)
	if p.Relation == did.Untrusted && p.Barred == "" {
		for _, a := range slices.Concat(slices.Collect(maps.Values(t.authorities)), t.former) {
			if a.excludes(id, now) {
				p.Barred = "its organization revoked the node"
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
	case a.excludes(c.Subject, now):
		p.Barred = "its organization revoked the node"
		return
	case a.revokes(c, now): // only this credential: the member may renew it
		return
	}
	problem, pending := a.check(c, p.Node, t.ownMethodLocked(a), t.settledForLocked(a, p.Node), now)
	if problem != "" {
		return
	}
	if p.Pending = pending; pending != "" {
		return
	}
	p.Org, p.Expires, p.Relation, p.Roles = a.log.DID(), c.Until, did.Own, c.Roles
	if a.partner != nil {
		p.Relation = did.Partner
		if len(a.partner.Roles) > 0 {
			p.Roles = slices.DeleteFunc(slices.Clone(c.Roles), func(role string) bool { return !slices.Contains(a.partner.Roles, role) })
		}
	}
}

// ownMethodLocked returns the DID URL of the issuing key of this node in an organization, or "".
func (t *Trust) ownMethodLocked(a *authority) string {
	if t.org == nil || t.org.SCID() != a.scid {
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
	return a.Relation == b.Relation && a.Org == b.Org && a.Barred == b.Barred && a.Pending == b.Pending && a.Expires.Equal(b.Expires) &&
		slices.Equal(a.Roles, b.Roles)
}

// update evaluates all nodes again and reports the changes.
func (t *Trust) update() {
	now := t.now()
	changed := map[did.DID][2]*did.Principal{} // before and after
	t.mu.Lock()
	for id, n := range t.nodes {
		if p := t.evaluateLocked(id, n, now); !equalStanding(p, n.principal) {
			changed[id] = [2]*did.Principal{n.principal, p}
			n.principal = p
		}
	}
	t.mu.Unlock()
	for id, c := range changed {
		t.standingChanged(id, c[0], c[1])
	}
}

// standingChanged reports a changed standing. A node that became a member or a partner has documents that this node did not take from it
// before, and may have asked before this node knew it.
func (t *Trust) standingChanged(id did.DID, before, after *did.Principal) {
	t.o.OnChange(id, before, after)
	if after.Relation < did.Partner || id == t.self {
		return
	}
	t.learn(id, []known{{Kind: kindThings}})
	if p, err := peerOf(id); err == nil {
		t.start(func(ctx context.Context) {
			if err := t.hello(ctx, id, p); err != nil {
				t.o.Log.Debug("hello failed", "peer", id.Short(), "err", err)
			}
		})
	}
}

// connected prepares the hello of a new peer.
func (t *Trust) connected(_ network.Network, c network.Conn) {
	id, err := did.FromPeer([]byte(c.RemotePeer()))
	if err != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.nodeLocked(id)
	if n.hello != nil {
		return
	}
	n.hello, n.done = make(chan struct{}), false
	dialled := c.Stat().Direction == network.DirOutbound
	t.background(func(ctx context.Context) { t.runHello(ctx, id, c.RemotePeer(), dialled) })
}

// disconnected forgets the hello of a peer without connections.
func (t *Trust) disconnected(w network.Network, c network.Conn) {
	id, err := did.FromPeer([]byte(c.RemotePeer()))
	if err != nil || w.Connectedness(c.RemotePeer()) == network.Connected || w.Connectedness(c.RemotePeer()) == network.Limited {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.nodes[id]
	if n == nil {
		return
	}
	t.endHelloLocked(n)
	if n.hello = nil; n.credential == nil {
		delete(t.nodes, id)
	}
}

// endHelloLocked ends the waiting for a hello.
func (t *Trust) endHelloLocked(n *node) {
	if n.hello != nil && !n.done {
		n.done = true
		close(n.hello)
	}
}

// runHello exchanges credentials with a new peer: the dialing node begins. Then a peer that may not be connected is disconnected.
func (t *Trust) runHello(ctx context.Context, id did.DID, p peer.ID, dialled bool) {
	if dialled {
		ctx, cancel := context.WithTimeout(ctx, exchangeTime)
		if err := t.hello(ctx, id, p); err != nil {
			t.o.Log.Debug("hello failed", "peer", id.Short(), "err", err)
		}
		cancel()
	} else {
		t.Wait(ctx, id)
	}
	t.mu.Lock()
	if n := t.nodes[id]; n != nil {
		t.endHelloLocked(n)
	}
	t.mu.Unlock()
	if ctx.Err() == nil {
		t.o.OnHello(id)
	}
}

// show stores the credential that a node has shown on its connection. It reports whether the credential counts here.
func (t *Trust) show(ctx context.Context, id did.DID, raw []byte) bool {
	if len(raw) == 0 {
		return false
	}
	c := t.verify(ctx, id, raw)
	if c == nil {
		return false
	}
	now := t.now()
	t.mu.Lock()
	n := t.nodeLocked(id)
	// Two credentials of one second have equal times: the later one counts.
	if n.credential == nil || !c.From.Before(n.credential.From) || t.authorities[webvh.SCID(n.credential.Issuer)] == nil {
		n.credential = c
	}
	before, p := n.principal, t.evaluateLocked(id, n, now)
	changed := !equalStanding(p, before)
	if changed {
		n.principal = p
	}
	t.mu.Unlock()
	if changed {
		t.standingChanged(id, before, p)
	}
	if p.Pending != "" {
		t.start(func(ctx context.Context) {
			t.confirmOne(ctx, webvh.SCID(c.Issuer))
			t.update()
		})
	}
	return p.Relation >= did.Partner || p.Pending != ""
}

// verify returns the verified credential of a node by an organization that counts here, or nil. Verified ones are remembered.
func (t *Trust) verify(ctx context.Context, id did.DID, raw []byte) *vc.Credential {
	t.mu.RLock()
	if n := t.nodes[id]; n != nil && n.credential != nil && string(n.credential.Raw) == string(raw) {
		c := n.credential
		t.mu.RUnlock()
		return c
	}
	resolver := t.resolverLocked()
	t.mu.RUnlock()
	c, err := vc.Verify(ctx, raw, vc.Check{Resolver: resolver, Now: t.now()})
	switch {
	case err != nil:
		t.o.Log.Debug("credential rejected", "peer", id.Short(), "err", err)
		return nil
	case c.Subject != id || c.Type != vc.Node:
		t.o.Log.Warn("credential of another node shown", "peer", id.Short(), "subject", c.Subject.Short())
		return nil
	}
	return c
}
