package trust

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/vc"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/trust/organization"
)

// exchangeTime limits one exchange.
const exchangeTime = 10 * time.Second

// openStream opens a stream to a connected node. If there are addresses, it connects to the node first.
func (t *Trust) openStream(ctx context.Context, id did.DID, addrs ...string) (network.Stream, error) {
	p, err := peerOf(id)
	if err != nil {
		return nil, err
	}
	if len(addrs) > 0 {
		info := peer.AddrInfo{ID: p}
		for _, text := range addrs {
			if a, err := ma.NewMultiaddr(text); err == nil {
				info.Addrs = append(info.Addrs, a)
			}
		}
		if err := t.o.Host.Connect(ctx, info); err != nil {
			return nil, err
		}
	}
	s, err := t.o.Host.NewStream(network.WithNoDial(ctx, "trust"), p, Protocol(t.o.Network))
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = s.SetDeadline(deadline)
	}
	return s, nil
}

// meet connects to a node and says hello.
func (t *Trust) meet(ctx context.Context, id did.DID, addrs ...string) error {
	ctx, cancel := context.WithTimeout(ctx, exchangeTime)
	defer cancel()
	s, err := t.openStream(ctx, id, addrs...)
	if err != nil {
		return err
	}
	_ = s.Reset()
	p, err := peerOf(id)
	if err != nil {
		return err
	}
	return t.hello(ctx, id, p)
}

// ask sends one request to a node and returns its response. An error of the node is an [*interact.Error] that is Remote.
func (t *Trust) ask(ctx context.Context, id did.DID, q *request, addrs ...string) (*response, error) {
	ctx, cancel := context.WithTimeout(ctx, exchangeTime)
	defer cancel()
	s, err := t.openStream(ctx, id, addrs...)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return exchange(s, q)
}

func exchange(s network.Stream, q *request) (*response, error) {
	if err := writeFrame(s, q); err != nil {
		return nil, errors.Join(err, s.Reset())
	}
	r := &response{}
	if err := readFrame(s, maxResponse, r); err != nil {
		return nil, errors.Join(err, s.Reset())
	}
	if r.Code != 0 {
		code := interact.Code(r.Code)
		if _, ok := interact.ParseCode(code.String()); !ok {
			code = interact.Internal
		}
		return nil, &interact.Error{Code: code, Title: interact.Excerpt(r.Title, 500), Hint: interact.Excerpt(r.Hint, 500), Remote: true}
	}
	return r, nil
}

// hello introduces two peers: both learn which organizations they have in common, and show their credentials if the other looks for them.
func (t *Trust) hello(ctx context.Context, id did.DID, p peer.ID) error {
	s, err := t.o.Host.NewStream(network.WithNoDial(ctx, "trust"), p, Protocol(t.o.Network))
	if err != nil {
		return err
	}
	defer s.Close()
	_ = s.SetDeadline(time.Now().Add(exchangeTime))
	t.mu.RLock()
	mine := t.soughtLocked()
	t.mu.RUnlock()
	q := &request{Op: opSeek}
	for _, scid := range mine {
		q.Seeks = append(q.Seeks, seek(scid, t.self, id))
	}
	r, err := exchange(s, q)
	if err != nil {
		return err
	}
	common := slices.DeleteFunc(mine, func(scid string) bool { return !containsSeek(r.Seeks, seek(scid, id, t.self)) })
	if len(common) == 0 {
		return nil
	}
	second := &request{Op: opHello}
	t.mu.RLock()
	if c := t.credentialLocked(); c != nil && slices.Contains(common, webvh.SCID(c.Issuer)) {
		second.Credential = c.Raw
	}
	t.mu.RUnlock()
	if r, err = exchange(s, second); err != nil {
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
		if !slices.Contains(all, scid) && len(all) < maxSeeks {
			all = append(all, scid)
		}
	}
	return all
}

func containsSeek(all [][]byte, one []byte) bool {
	return slices.ContainsFunc(all, func(s []byte) bool { return string(s) == string(one) })
}

// sharedLocked returns the documents that a node may get: those of the own organization and of its own, and all for members of the own one.
func (t *Trust) sharedLocked(p *did.Principal) []known {
	var all []known
	if t.things.Load() != nil && p.Relation >= did.Partner {
		all = append(all, known{Kind: kindThings})
	}
	if p.Relation == did.Own && t.org != nil && t.book.Shared > 0 {
		all = append(all, known{SCID: t.org.SCID(), Kind: kindPartners, Version: t.book.Shared})
	}
	for _, scid := range t.soughtLocked() { // the own organization first
		if a := t.authorities[scid]; a != nil && t.mayGetLocked(p, a) {
			all = append(all, a.known()...)
		}
	}
	return all[:min(len(all), maxKnown)]
}

// mayGetLocked reports whether a node may learn about an organization: members of the own organization about all, partners about the own one
// and themselves. Pending members of these, too: they may bring what is missing.
func (t *Trust) mayGetLocked(p *did.Principal, a *authority) bool {
	n := t.nodes[p.Node]
	if p.Barred != "" || n == nil || n.credential == nil {
		return false
	}
	theirs := webvh.SCID(n.credential.Issuer)
	if t.authorities[theirs] == nil || p.Relation == did.Untrusted && p.Pending == "" {
		return false
	}
	return a.partner == nil || a.scid == theirs || t.org != nil && theirs == t.org.SCID()
}

// notify sends to a node what it may get, so that it gets what it lacks.
func (t *Trust) notify(id did.DID) {
	t.mu.RLock()
	var all []known
	if n := t.nodes[id]; n != nil {
		all = t.sharedLocked(n.principal)
	}
	t.mu.RUnlock()
	if len(all) > 0 {
		t.start(func(ctx context.Context) {
			if _, err := t.ask(ctx, id, &request{Op: opHave, Known: all}); err != nil {
				t.o.Log.Debug("trust documents not announced", "peer", id.Short(), "err", err)
			}
		})
	}
}

// announce notifies all connected nodes that may get a document of an organization, except the one that sent it.
func (t *Trust) announce(scid string, except did.DID) {
	t.mu.RLock()
	var to []did.DID
	if a := t.authorities[scid]; a != nil {
		to = t.peersLocked(func(p *did.Principal) bool { return p.Node != except && t.mayGetLocked(p, a) })
	}
	t.mu.RUnlock()
	for _, id := range to {
		t.notify(id)
	}
}

// fetches are the documents that are being fetched.
type fetches struct {
	mu  sync.Mutex
	all map[fetchKey]chan struct{} // closed at the end; owned by mu
}

// A fetchKey is a document without its version, and the node that has it: a slow node delays no other.
type fetchKey struct {
	from did.DID
	known
}

// begin waits until nothing else fetches the document from the node, and returns the function that ends the fetch.
func (f *fetches) begin(ctx context.Context, from did.DID, what known) (end func(), err error) {
	what.Version, what.Head = 0, ""
	k := fetchKey{from, what}
	for {
		f.mu.Lock()
		other := f.all[k]
		if other == nil {
			if f.all == nil {
				f.all = map[fetchKey]chan struct{}{}
			}
			done := make(chan struct{})
			f.all[k] = done
			f.mu.Unlock()
			return func() {
				f.mu.Lock()
				defer f.mu.Unlock()
				delete(f.all, k)
				close(done)
			}, nil
		}
		f.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// learn gets what a node has and this one lacks, in the background: one document after the other.
func (t *Trust) learn(id did.DID, all []known) {
	if len(all) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.nodeLocked(id)
	n.lacking = append(n.lacking, all[:min(len(all), maxKnown-len(n.lacking))]...)
	if n.learning || t.closed {
		return
	}
	n.learning = true
	t.background(func(ctx context.Context) {
		for {
			t.mu.Lock()
			next := n.lacking
			if n.lacking = nil; len(next) == 0 || ctx.Err() != nil {
				n.learning = false
				t.mu.Unlock()
				return
			}
			t.mu.Unlock()
			t.fetchAll(ctx, id, next)
		}
	})
}

// fetchAll gets what a node has and this one lacks: logs first, whose keys sign the others.
func (t *Trust) fetchAll(ctx context.Context, id did.DID, all []known) {
	for _, k := range slices.SortedFunc(slices.Values(all), func(a, b known) int { return int(a.Kind) - int(b.Kind) }) {
		if t.lacks(id, k) {
			t.fetchOne(ctx, id, k)
		}
	}
}

// fetchOne gets a document, unless another fetch has got it.
func (t *Trust) fetchOne(ctx context.Context, id did.DID, k known) {
	end, err := t.fetches.begin(ctx, id, k)
	if err != nil {
		return
	}
	defer end()
	if !t.lacks(id, k) {
		return
	}
	if err := t.fetch(ctx, id, k); err != nil && ctx.Err() == nil {
		t.o.Log.Warn("trust document rejected", "peer", id.Short(), "organization", k.SCID, "kind", k.Kind, "err", err)
	}
}

// lacks reports whether this node takes k from a node.
func (t *Trust) lacks(from did.DID, k known) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	a := t.authorities[k.SCID]
	switch k.Kind {
	case kindThings:
		return true
	case kindPartners:
		n := t.nodes[from]
		return a != nil && a.partner == nil && k.Version > t.book.Shared && n != nil && n.principal.Relation == did.Own
	}
	return a != nil && a.lacks(k)
}

// fetch gets one document from a node and takes it.
func (t *Trust) fetch(ctx context.Context, id did.DID, k known) error {
	if k.Kind == kindThings {
		return t.fetchThings(ctx, id)
	}
	r, err := t.ask(ctx, id, &request{Op: opGet, Known: []known{{SCID: k.SCID, Kind: k.Kind, Method: k.Method}}})
	if err != nil {
		return err
	}
	return t.take(ctx, id, k, r.Body)
}

// take verifies a document from a node, stores it and puts it in force. Nothing acts before it is durable.
func (t *Trust) take(ctx context.Context, from did.DID, k known, raw []byte) (err error) {
	changed := false
	switch k.Kind {
	case kindLog:
		changed, err = t.takeLog(k.SCID, raw)
	case kindList:
		changed, err = t.takeList(ctx, k.SCID, raw)
	case kindPartners:
		changed, err = t.takePartners(ctx, from, raw)
	}
	if err != nil || !changed {
		return err
	}
	t.update()
	t.announce(k.SCID, from)
	if k.Kind == kindPartners { // peers may be of the new ones
		t.repeatHello()
	}
	return nil
}

func (t *Trust) takeLog(scid string, raw []byte) (changed bool, err error) {
	l, err := webvh.Verify(raw, webvh.Check{Now: t.now()})
	if err != nil {
		return false, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.authorities[scid]
	switch {
	case a == nil || l.SCID() != scid:
		return false, fmt.Errorf("expected the log of %s, got that of %s", scid, l.SCID())
	case l.Head() == a.log.Head():
		return false, nil
	case a.partner == nil:
		if err := t.org.SetLog(l); err != nil {
			return false, err
		}
		a.setLog(t.org.Log())
		return true, nil
	}
	forked := (*organization.ForkedError)(nil)
	if err := organization.CheckLog(a.log, l); errors.As(err, &forked) {
		return false, t.forkedLocked(a, l)
	} else if err != nil {
		return false, err
	}
	if err := t.store(scid, "log.jsonl", l.Bytes()); err != nil {
		return false, err
	}
	a.setLog(l)
	if a.partner.DID != l.DID() {
		a.partner.DID = l.DID()
		err = t.saveLocked()
	}
	return true, err
}

// forkedLocked keeps the evidence of a second history, and suspends the partner if the newest version that is known has two successors or is
// replaced.
func (t *Trust) forkedLocked(a *authority, other *webvh.Log) error {
	if err := t.store(a.scid, "fork.jsonl", other.Bytes()); err != nil {
		return err
	}
	if !other.Has(a.log.Head()) && other.Len() >= a.log.Len() && !a.partner.Forked {
		a.partner.Forked = true
		if err := t.saveLocked(); err != nil {
			return err
		}
		t.background(func(context.Context) { t.update() })
	}
	return fmt.Errorf("the organization has two histories: compare them with its operator, and confirm %s", a.partner.Name)
}

func (t *Trust) takeList(ctx context.Context, scid string, raw []byte) (changed bool, err error) {
	t.mu.RLock()
	a := t.authorities[scid]
	var check vc.Check
	if a != nil {
		check = vc.Check{Resolver: resolver{a.log.DID(): a.log}, Now: t.now()}
	}
	t.mu.RUnlock()
	if a == nil {
		return false, nil
	}
	l, err := vc.VerifyList(ctx, raw, check)
	if err != nil && (l == nil || !errors.Is(err, vc.ErrExpired)) {
		return false, err
	}
	if l.ID != listID(l.Method) {
		return false, fmt.Errorf("the list of %s has the id of another key", l.Method)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	old := a.lists[l.Method]
	if old != nil && l.Version <= old.Version {
		return false, nil
	}
	if old != nil {
		l = l.Merge(old)
	}
	if err := t.store(scid, listName(l.Method), l.Raw); err != nil {
		return false, err
	}
	a.lists[l.Method] = l
	if a.partner == nil {
		if _, err := t.org.MergeRevocations(l); err != nil {
			return true, err
		}
		t.dropRevokedLocked(a)
		t.refreshOwnListLocked(a)
	}
	return true, nil
}
