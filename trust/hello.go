package trust

import (
	"context"
	"slices"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/vc"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/trust/exchange"
)

// A turn is the hello on a new connection of a peer. Its end decides about the connection.
type turn struct {
	known context.Context // ends when it is known who the peer is, after [waitFor] at the latest
	end   context.CancelFunc
}

// connected begins a turn. A connection that begins beside an earlier one, or before the end of that one is reported, has a turn of its own if the
// earlier turn has ended: otherwise nothing would close it.
func (t *Trust) connected(_ network.Network, c network.Conn) {
	id, err := did.FromPeer([]byte(c.RemotePeer()))
	if err != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	n, dialled := t.nodeLocked(id), c.Stat().Direction == network.DirOutbound
	if n.turn != nil {
		if dialled { // the peer may have started again, before this node has noticed the end of the first connection
			t.background(func(ctx context.Context) { t.hello(ctx, id) })
		}
		return
	}
	if n.hello == nil {
		n.hello, n.done = make(chan struct{}), false
		t.online[id] = n
		t.touchSiblingsLocked(n)
	}
	its := &turn{}
	its.known, its.end = context.WithTimeout(t.ctx, waitFor)
	n.turn = its
	t.background(func(ctx context.Context) { t.runHello(ctx, id, its, dialled) })
}

// disconnected forgets the hello of a peer without connections.
func (t *Trust) disconnected(w network.Network, c network.Conn) {
	id, err := did.FromPeer([]byte(c.RemotePeer()))
	if err != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.nodes[id]
	if n == nil || isConnected(w, c.RemotePeer()) { // asked while mu is held: a connection that is reported meanwhile stays known
		return
	}
	t.endHelloLocked(n)
	n.hello, n.turn = nil, nil
	delete(t.online, id)
	if len(t.shown.of[id]) > 0 { // it shows them again
		delete(t.shown.of, id)
		t.touched[id] = true
	}
	t.touchSiblingsLocked(n)
	if n.credential == nil {
		t.forget(n)
	}
}

func isConnected(w network.Network, id peer.ID) bool {
	c := w.Connectedness(id)
	return c == network.Connected || c == network.Limited
}

// endHelloLocked ends the waiting for a hello.
func (t *Trust) endHelloLocked(n *node) {
	if n.turn != nil {
		n.turn.end()
	}
	if n.hello != nil && !n.done {
		n.done = true
		close(n.hello)
	}
}

// runHello exchanges credentials with a peer on a new connection: the dialing node begins. Then a peer that may not be connected is disconnected, from
// all connections that were reported before. A turn whose connection has ended decides nothing: a later connection has its own turn.
func (t *Trust) runHello(ctx context.Context, id did.DID, its *turn, dialled bool) {
	if dialled {
		t.present(ctx, id) // first: the peer may decide the first call after the hello
		t.hello(ctx, id)
	} else {
		<-its.known.Done()
		t.present(ctx, id)
	}
	t.mu.Lock()
	n := t.nodes[id]
	current := n != nil && n.turn == its
	if current {
		t.endHelloLocked(n)
		n.turn = nil
	}
	t.mu.Unlock()
	if current && ctx.Err() == nil {
		t.o.OnHello(id)
		t.met(id)
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
	t.mu.Lock()
	now, n := t.now(), t.nodeLocked(id)
	if n.credential == nil || !n.credential.From.After(c.From) || t.authorities[webvh.SCID(n.credential.Issuer)] == nil {
		t.touchSiblingsLocked(n) // it may be a member no longer
		t.setCredential(n, c)
		t.touchSiblingsLocked(n)
	}
	before := n.principal
	changed := t.evaluateAgainLocked(n, now)
	p := n.principal
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

// hello introduces two peers. An error is no concern of the caller: the node is what it was before.
func (t *Trust) hello(ctx context.Context, id did.DID, addrs ...string) {
	if err := t.introduce(ctx, id, addrs...); err != nil {
		t.o.Log.Debug("hello failed", "peer", id.Short(), "err", err)
	}
}

// introduce introduces two peers: both learn which organizations they have in common, and show their credentials if the other looks for
// them. If there are addresses, it connects to the node first.
func (t *Trust) introduce(ctx context.Context, id did.DID, addrs ...string) error {
	ctx, cancel := context.WithTimeout(ctx, exchange.Timeout)
	defer cancel()
	s, err := t.net.Open(ctx, id, addrs...)
	if err != nil {
		return err
	}
	defer s.Close()
	t.mu.RLock()
	mine := t.soughtLocked()
	t.mu.RUnlock()
	q := &exchange.Request{Op: exchange.OpSeek}
	for _, scid := range mine {
		q.Seeks = append(q.Seeks, exchange.Seek(scid, t.self, id))
	}
	r, err := s.Do(q)
	if err != nil {
		return err
	}
	common := slices.DeleteFunc(mine, func(scid string) bool { return !containsSeek(r.Seeks, exchange.Seek(scid, id, t.self)) })
	if len(common) == 0 {
		return nil
	}
	second := &exchange.Request{Op: exchange.OpHello}
	t.mu.RLock()
	if c := t.credentialLocked(); c != nil && slices.Contains(common, webvh.SCID(c.Issuer)) {
		second.Credential = c.Raw
	}
	t.mu.RUnlock()
	if r, err = s.Do(second); err != nil {
		return err
	}
	t.show(ctx, id, r.Credential)
	t.learn(id, r.Known)
	t.notify(id)
	return nil
}

// soughtLocked returns the organizations that this node looks for, the own one first.
func (t *Trust) soughtLocked() []string {
	var all []string
	if t.org != nil {
		all = append(all, t.org.SCID())
	}
	for _, scid := range sortedKeys(t.authorities) {
		if !slices.Contains(all, scid) && len(all) < exchange.MaxSeeks {
			all = append(all, scid)
		}
	}
	return all
}

func containsSeek(all [][]byte, one []byte) bool {
	return slices.ContainsFunc(all, func(s []byte) bool { return string(s) == string(one) })
}

// serveSeek answers with the organizations that both nodes look for.
func (t *Trust) serveSeek(id did.DID, q *exchange.Request) *exchange.Response {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := &exchange.Response{}
	for _, scid := range t.soughtLocked() {
		if containsSeek(q.Seeks, exchange.Seek(scid, id, t.self)) {
			r.Seeks = append(r.Seeks, exchange.Seek(scid, t.self, id))
		}
	}
	if len(r.Seeks) == 0 { // nothing follows
		t.endHelloLocked(t.nodeLocked(id))
	}
	return r
}

// serveHello takes the credential of a node, and shows the own one to members and partners.
func (t *Trust) serveHello(ctx context.Context, id did.DID, q *exchange.Request) *exchange.Response {
	shown := t.show(ctx, id, q.Credential)
	r := &exchange.Response{}
	t.mu.Lock()
	n := t.nodeLocked(id)
	t.endHelloLocked(n)
	if shown || t.isOutdatedLocked(n) {
		if c := t.credentialLocked(); c != nil {
			r.Credential = c.Raw
		}
		r.Known = t.sharedLocked(n.principal)
	}
	t.mu.Unlock()
	if shown {
		t.learn(id, q.Known)
	}
	return r
}
