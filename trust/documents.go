package trust

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/vc"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/trust/exchange"
	"github.com/lmosd/lmosd/trust/organization"
	"github.com/lmosd/lmosd/trust/partners"
)

// sharedLocked returns the documents that a node may get: those of the own organization and of its own, and all for members of the own one.
func (t *Trust) sharedLocked(p *did.Principal) []exchange.Known {
	var all []exchange.Known
	if t.things.Load() != nil && p.Relation >= did.Partner {
		all = append(all, exchange.Known{Kind: exchange.KindThings})
	}
	if p.Relation == did.Own && t.org != nil && t.book.Shared > 0 {
		all = append(all, exchange.Known{SCID: t.org.SCID(), Kind: exchange.KindPartners, Version: t.book.Shared, Head: t.book.SharedHead})
	}
	if p.Relation == did.Own {
		all = append(all, t.checkpointLocked()...)
	}
	if t.isOutdatedLocked(t.nodes[p.Node]) {
		all = append(all, exchange.Known{SCID: t.org.SCID(), Kind: exchange.KindRoles})
	}
	for _, scid := range t.soughtLocked() { // the own organization first
		if a := t.authorities[scid]; a != nil && t.mayGetLocked(p, a) {
			all = append(all, knownOf(a)...)
		}
	}
	return all[:min(len(all), exchange.MaxKnown)]
}

// isOutdatedLocked reports whether a node is a member that should renew its credential at this issuer.
func (t *Trust) isOutdatedLocked(n *node) bool {
	return n != nil && n.credential != nil && n.principal.Barred == "" && t.org != nil && t.org.IsOutdated(n.credential)
}

// mayGetLocked reports whether a node may learn about an organization: members of the own organization about all, partners about the own one
// and themselves. Pending members of these, too: they may bring what is missing.
func (t *Trust) mayGetLocked(p *did.Principal, a *trusted) bool {
	n := t.nodes[p.Node]
	if p.Barred != "" || n == nil || n.credential == nil {
		return false
	}
	theirs := webvh.SCID(n.credential.Issuer)
	if t.authorities[theirs] == nil || p.Relation == did.Untrusted && p.Pending == "" {
		return false
	}
	return a.partner == nil || a.SCID() == theirs || t.org != nil && theirs == t.org.SCID()
}

// notify sends to a node what it may get, so that it gets what it lacks.
func (t *Trust) notify(id did.DID) {
	t.mu.RLock()
	var all []exchange.Known
	if n := t.nodes[id]; n != nil {
		all = t.sharedLocked(n.principal)
	}
	t.mu.RUnlock()
	if len(all) > 0 {
		t.start(func(ctx context.Context) {
			if _, err := t.net.Ask(ctx, id, &exchange.Request{Op: exchange.OpHave, Known: all}); err != nil {
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
	exchange.Known
}

// begin waits until nothing else fetches the document from the node, and returns the function that ends the fetch.
func (f *fetches) begin(ctx context.Context, from did.DID, what exchange.Known) (end func(), err error) {
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
func (t *Trust) learn(id did.DID, all []exchange.Known) {
	if len(all) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.nodeLocked(id)
	n.lacking = append(n.lacking, all[:min(len(all), exchange.MaxKnown-len(n.lacking))]...)
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
func (t *Trust) fetchAll(ctx context.Context, id did.DID, all []exchange.Known) {
	for _, k := range slices.SortedFunc(slices.Values(all), func(a, b exchange.Known) int { return int(a.Kind) - int(b.Kind) }) {
		if t.lacks(id, k) {
			t.fetchOne(ctx, id, k)
		}
	}
}

// fetchOne gets a document, unless another fetch has got it.
func (t *Trust) fetchOne(ctx context.Context, id did.DID, k exchange.Known) {
	end, err := t.fetches.begin(ctx, id, k)
	if err != nil {
		return
	}
	defer end()
	if !t.lacks(id, k) {
		return
	}
	err = t.fetch(ctx, id, k)
	level, remote := slog.LevelWarn, (*interact.Error)(nil)
	switch {
	case err == nil || ctx.Err() != nil:
		return
	case errors.As(err, &remote) && remote.Remote && remote.Code == interact.NotFound: // it does not know this node yet, or not any more
		level = slog.LevelDebug
	}
	t.o.Log.Log(ctx, level, "trust document not taken", "peer", id.Short(), "organization", k.SCID, "kind", k.Kind, "err", err)
}

// lacks reports whether this node takes k from a node.
func (t *Trust) lacks(from did.DID, k exchange.Known) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	a := t.authorities[k.SCID]
	switch k.Kind {
	case exchange.KindThings:
		return true
	case exchange.KindCheckpoint:
		return t.lacksCheckpointLocked(from, k)
	case exchange.KindPartners:
		n := t.nodes[from]
		return a != nil && a.partner == nil && t.book.IsNewer(k.Version, k.Head) && n != nil && n.principal.Relation == did.Own
	case exchange.KindRoles: // the sender may be pending: without a new credential, this node gets no list that ends that
		n := t.nodes[from]
		return a != nil && a.partner == nil && n != nil && n.principal.Barred == "" && n.credential != nil && webvh.SCID(n.credential.Issuer) == a.SCID()
	}
	return a != nil && a.lacks(k)
}

// fetch gets one document from a node and takes it.
func (t *Trust) fetch(ctx context.Context, id did.DID, k exchange.Known) error {
	switch k.Kind {
	case exchange.KindThings:
		return t.fetchThings(ctx, id)
	case exchange.KindRoles:
		return t.renewAt(ctx, id)
	}
	r, err := t.net.Ask(ctx, id, &exchange.Request{Op: exchange.OpGet, Known: []exchange.Known{{SCID: k.SCID, Kind: k.Kind, Method: k.Method}}})
	if err != nil {
		return err
	}
	return t.take(ctx, id, k, r.Body)
}

// take verifies a document from a node, stores it and puts it in force. Nothing acts before it is durable.
func (t *Trust) take(ctx context.Context, from did.DID, k exchange.Known, raw []byte) (err error) {
	changed, own := false, t.ownVersion()
	switch k.Kind {
	case exchange.KindLog:
		changed, err = t.takeLog(k.SCID, raw)
	case exchange.KindList:
		changed, err = t.takeList(ctx, k.SCID, raw)
	case exchange.KindPartners:
		changed, err = t.takePartners(ctx, from, raw)
	case exchange.KindCheckpoint:
		err = t.takeCheckpoint(from, raw)
	}
	if !changed {
		return err
	}
	t.update() // also after an error: what is in force acts
	except := from
	if t.ownVersion() != own { // the sender does not have the list that this issuer signed after it
		except = ""
	}
	t.announce(k.SCID, except)
	if k.Kind == exchange.KindPartners { // peers may be of the new ones
		t.repeatHello()
	}
	t.confirmAgain(from, k.SCID)
	return err
}

// ownVersion returns the version of the status list of this issuer, or 0.
func (t *Trust) ownVersion() uint64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if a := t.ownLocked(); a != nil {
		if l := a.List(t.ownMethodLocked(a)); l != nil {
			return l.Version
		}
	}
	return 0
}

func (t *Trust) takeLog(scid string, raw []byte) (changed bool, err error) {
	l, err := webvh.Verify(raw, webvh.Check{Now: t.now()})
	if err != nil {
		return false, err
	}
	t.writing.Lock()
	defer t.writing.Unlock()
	a := t.authorities[scid]
	switch {
	case a == nil || l.SCID() != scid:
		return false, fmt.Errorf("expected the log of %s, got that of %s", scid, l.SCID())
	case l.Head() == a.Log().Head():
		return false, nil
	}
	forked := (*organization.ForkedError)(nil)
	if err := organization.CheckLog(a.Log(), l); errors.As(err, &forked) && a.partner != nil {
		return false, t.forked(a, l)
	} else if err != nil {
		return false, err
	}
	if err := t.useLog(a, l); err != nil || a.partner == nil || a.partner.DID == l.DID() {
		return err == nil, err
	}
	return true, t.editWriting(func(b *partners.Book) error {
		p := *a.partner
		p.DID = l.DID()
		return b.Put(&p)
	})
}

// useLog puts a log in force, which was checked. A node that the log makes an issuer signs its list at once: the other issuers wait for it. writing is
// held, and mu is not.
func (t *Trust) useLog(a *trusted, l *webvh.Log) error {
	r := a.AfterLog(l, t.now())
	if err := t.folder(a.SCID()).WriteRecord(a.Authority, r); err != nil {
		return err
	}
	if a.partner == nil {
		if err := t.org.SetLog(l); err != nil {
			return err
		}
	} else if err := t.folder(a.SCID()).WriteLog(l); err != nil {
		return err
	}
	t.mu.Lock()
	a.SetLog(l, r)
	t.mu.Unlock()
	if a.partner == nil {
		t.signOwnList()
	}
	return nil
}

// forked keeps a second history of the log of a partner as evidence, and suspends the partner, unless the operator has chosen the other one.
// writing is held, and mu is not.
func (t *Trust) forked(a *trusted, other *webvh.Log) error {
	p := a.partner
	if p.Chosen != "" && !other.Has(p.Chosen) {
		return fmt.Errorf("it is the history of %s that the operator did not choose", p.Name)
	}
	if err := t.folder(a.SCID()).WriteOther(other); err != nil {
		return err
	}
	if !p.Forked || p.Other != other.Head() {
		if err := t.editWriting(func(b *partners.Book) error {
			c := *p
			c.Forked, c.Other = true, other.Head()
			return b.Put(&c)
		}); err != nil {
			return err
		}
		t.start(func(context.Context) { t.update() })
	}
	return fmt.Errorf("the organization has two histories: compare them with its operator, and choose one for %s", p.Name)
}

func (t *Trust) takeList(ctx context.Context, scid string, raw []byte) (changed bool, err error) {
	t.mu.RLock()
	a := t.authorities[scid]
	var check vc.Check
	if a != nil {
		check = vc.Check{Resolver: resolver{a.DID(): a.Log()}, Now: t.now()}
	}
	t.mu.RUnlock()
	if a == nil {
		return false, nil
	}
	l, err := vc.VerifyList(ctx, raw, check)
	if err != nil && (l == nil || !errors.Is(err, vc.ErrExpired)) {
		return false, err
	}
	if l.ID != organization.ListID(l.Method) {
		return false, fmt.Errorf("the list of %s has the id of another key", l.Method)
	}
	t.writing.Lock()
	defer t.writing.Unlock()
	if old := a.List(l.Method); old != nil && l.Version <= old.Version || a.Key(l.Method) == "" || t.authorities[scid] != a {
		return false, nil
	}
	r := a.AfterList(l)
	if err := errors.Join(t.folder(scid).WriteRecord(a.Authority, r), t.folder(scid).WriteList(l)); err != nil {
		return false, err
	}
	t.mu.Lock()
	a.SetList(l, r, t.now())
	t.mu.Unlock()
	if a.partner == nil {
		if _, err := t.org.MergeRevocations(a.List(l.Method)); err != nil {
			return true, err
		}
		t.signOwnList()
	}
	return true, nil
}

// knownOf returns the documents of an organization with their versions.
func knownOf(a *trusted) []exchange.Known {
	all := []exchange.Known{{SCID: a.SCID(), Kind: exchange.KindLog, Version: uint64(a.Log().Len()), Head: a.Log().Head()}}
	for _, method := range a.Methods() {
		if l := a.List(method); l != nil {
			all = append(all, exchange.Known{SCID: a.SCID(), Kind: exchange.KindList, Method: method, Version: l.Version})
		}
	}
	return all
}

// lacks reports whether a document of an organization is newer than the one that is stored here.
func (a *trusted) lacks(k exchange.Known) bool {
	switch k.Kind {
	case exchange.KindLog:
		return k.Version > uint64(a.Log().Len()) || k.Version == uint64(a.Log().Len()) && k.Head != a.Log().Head()
	case exchange.KindList:
		l := a.List(k.Method)
		return a.Key(k.Method) != "" && (l == nil || k.Version > l.Version)
	}
	return false
}
