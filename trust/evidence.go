package trust

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/proof"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/trust/authority"
	"github.com/lmosd/lmosd/trust/exchange"
	"github.com/lmosd/lmosd/trust/partners"
)

const nonceSize = 16

// confirm asks a node for the state of an organization, and gets what is newer there. It returns nil if the node is now evidence.
func (t *Trust) confirm(ctx context.Context, id did.DID, scid string) error {
	ctx, cancel := context.WithTimeout(ctx, confirmTime)
	defer cancel()
	nonce := make([]byte, nonceSize)
	_, _ = rand.Read(nonce)
	r, err := t.net.Ask(ctx, id, &exchange.Request{Op: exchange.OpStatus, SCID: scid, Nonce: nonce})
	if err != nil {
		return err
	}
	t.mu.RLock()
	a := t.authorities[scid]
	t.mu.RUnlock()
	if a == nil {
		return errors.New("the organization is not known any more")
	}
	// The log first: the key may be new. Whatever it claims, a log and a list are taken only if they verify.
	read := func() (*authority.Statement, string, error) {
		t.mu.RLock()
		l := a.Log()
		t.mu.RUnlock()
		return authority.ReadStatement(ctx, r.Body, l, t.now())
	}
	st, method, err := read()
	if errors.Is(err, proof.ErrProof) {
		t.fetchAll(ctx, id, []exchange.Known{{SCID: scid, Kind: exchange.KindLog, Version: 1 << 62}})
		st, method, err = read()
	}
	switch {
	case err != nil:
		return err
	case method != "" && st.Versions[method] == 0:
		return errors.New("the statement has no versions: the node does not know this one")
	case st.Node != id || st.Audience != t.self || st.Nonce != base64.RawURLEncoding.EncodeToString(nonce) || webvh.SCID(st.Organization) != scid:
		return errors.New("the statement answers another question")
	}
	if err := t.mayTestify(ctx, a, id, st, method); err != nil {
		return err
	}
	newer := []exchange.Known{{SCID: scid, Kind: exchange.KindLog, Version: st.Length, Head: st.Head}}
	t.fetchAll(ctx, id, newer)
	t.mu.RLock()
	for m, version := range st.Versions {
		if a.Key(m) != "" {
			newer = append(newer, exchange.Known{SCID: scid, Kind: exchange.KindList, Method: m, Version: version})
		}
	}
	t.mu.RUnlock()
	t.fetchAll(ctx, id, newer)
	t.mu.RLock()
	for _, k := range newer {
		if a.lacks(k) && !(k.Kind == exchange.KindLog && k.Version < uint64(a.Log().Len())) {
			t.mu.RUnlock()
			return fmt.Errorf("the node did not deliver what it has: kind %d, version %d", k.Kind, k.Version)
		}
	}
	t.mu.RUnlock()
	if method != "" && a.partner == nil {
		if err := t.bind(method, id); err != nil {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	a.Witness(id, method, t.now())
	return nil
}

// bind notes durably which node has an issuing key of the own organization, so that its revocation excludes the key.
func (t *Trust) bind(method string, node did.DID) error {
	t.writing.Lock()
	defer t.writing.Unlock()
	if t.book.IssuerNodes[method] == node {
		return nil
	}
	return t.editWriting(func(b *partners.Book) error {
		b.Bind(method, node)
		return nil
	})
}

// mayTestify returns an error unless the statement of a node can confirm an organization: it holds an issuing key, or it is a confirmed member
// of the own organization that knows the state. Such a member brings the lists of issuers that are away.
func (t *Trust) mayTestify(ctx context.Context, a *trusted, id did.DID, st *authority.Statement, method string) error {
	check := func() error {
		t.mu.Lock()
		defer t.mu.Unlock()
		isIssuer := method != "" && a.IsIssuer(method, t.now())
		isMember := method == "" && t.nodeLocked(id).principal.Relation == did.Own // confirmed by another node than itself
		if bound := t.issuerLocked(a, method); isIssuer && a.partner == nil && bound != "" && bound != id {
			return fmt.Errorf("the issuing key is of %s", bound.Short())
		}
		if !isIssuer && !isMember || !st.Settled && t.ownMethodLocked(a) == "" {
			return errors.New("the node cannot confirm the organization")
		}
		return nil
	}
	err := check()
	t.mu.RLock()
	isNewer := st.Length > uint64(a.Log().Len())
	t.mu.RUnlock()
	if err != nil && method != "" && isNewer { // the key may be new
		t.fetchAll(ctx, id, []exchange.Known{{SCID: a.SCID(), Kind: exchange.KindLog, Version: st.Length, Head: st.Head}})
		err = check()
	}
	return err
}

// confirmTime limits one confirmation, with what it gets.
const confirmTime = 15 * time.Second

// serveStatus answers what this node knows of an organization: an issuer of the own one to all nodes, since its log names its key anyway, and
// others to members of the own organization.
func (t *Trust) serveStatus(id did.DID, q *exchange.Request) (*exchange.Response, error) {
	if len(q.Nonce) != nonceSize {
		return nil, interact.Errorf(interact.Invalid, "", "expected a nonce of %d bytes", nonceSize)
	}
	t.mu.Lock()
	a := t.authorities[q.SCID]
	if a == nil {
		t.mu.Unlock()
		return nil, refused
	}
	if a.partner != nil && !t.firstHandLocked(a) && t.mayGetLocked(t.nodeLocked(id).principal, a) {
		t.mu.Unlock()
		t.confirmOne(t.ctx, q.SCID)
		t.mu.Lock()
	}
	isIssuer := a.partner == nil && t.org.IsIssuer()
	known := t.mayGetLocked(t.nodeLocked(id).principal, a)
	st := &authority.Statement{Type: authority.StatementType, Organization: a.Log().DID(), Node: t.self, Audience: id, Nonce: base64.RawURLEncoding.EncodeToString(q.Nonce),
		Head: a.Log().Head(), Length: uint64(a.Log().Len()), Versions: map[string]uint64{}, Settled: t.firstHandLocked(a)}
	if known {
		st.Versions = a.Versions()
	}
	org := t.org
	t.mu.Unlock()
	if !isIssuer && !known {
		return nil, refused
	}
	if !isIssuer {
		text, err := json.Marshal(st)
		return &exchange.Response{Body: text}, err
	}
	raw, err := org.Sign(st)
	return &exchange.Response{Body: raw}, userError(err)
}

// settled reports whether this node knows what the other issuers of its organization revoked.
func (t *Trust) settled() bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	a := t.ownLocked()
	return a != nil && t.settledLocked(a)
}

// settledLocked reports whether this node knows the state of an organization: a witness confirmed it, or no other issuer exists. An issuer
// whose siblings are away is settled after it was connected to members for a while: they have the lists of the others.
func (t *Trust) settledLocked(a *trusted) bool { return t.settledForLocked(a, "") }

// settledForLocked is settledLocked for decisions about one node, whose own connection does not count.
func (t *Trust) settledForLocked(a *trusted, subject did.DID) bool {
	switch own := t.ownMethodLocked(a); {
	case own == "":
		return a.HasWitness("")
	case !a.HasOtherIssuer(own, t.now()):
		return true
	}
	return a.HasWitness(subject) || t.now().Sub(t.started) > authority.AloneFor && t.meetsMembersLocked(a, subject)
}

// meetsMembersLocked reports whether a member of an organization other than subject is connected.
func (t *Trust) meetsMembersLocked(a *trusted, subject did.DID) bool {
	for id, n := range t.members[a.SCID()] {
		if id != subject && id != t.self && n.hello != nil && n.principal.Barred == "" {
			return true
		}
	}
	return false
}

// firstHandLocked reports whether this node knows the state of an organization from an issuer. The word of a member is not passed on:
// nodes that are out of date cannot confirm each other.
func (t *Trust) firstHandLocked(a *trusted) bool {
	if a.partner == nil {
		return t.settledLocked(a)
	}
	return a.HasIssuerWitness()
}

// confirmPause is the least pause between two questions to one node about one organization.
const confirmPause = quick - quick/4

// A question identifies a question to a node.
type question struct {
	node did.DID
	scid string
}

// confirmDue asks nodes about the organizations whose state is not confirmed by two of them.
func (t *Trust) confirmDue(ctx context.Context) {
	t.mu.RLock()
	scids := sortedKeys(t.authorities)
	t.mu.RUnlock()
	for _, scid := range scids {
		t.confirmOne(ctx, scid)
	}
}

// confirmOne asks connected nodes about an organization, and if none of them confirms it, the issuers at their known addresses.
func (t *Trust) confirmOne(ctx context.Context, scid string) {
	t.mu.Lock()
	a := t.authorities[scid]
	if a == nil || a.Good() >= 2 && !t.isUnboundLocked(a) {
		t.mu.Unlock()
		return
	}
	ask := t.candidatesLocked(a)
	t.mu.Unlock()
	for _, id := range ask {
		err := t.confirm(ctx, id, scid)
		t.o.Log.Debug("state of an organization asked for", "organization", scid, "peer", id.Short(), "err", err)
	}
	t.mu.Lock()
	addrs := t.book.Issuers
	if a.partner != nil {
		addrs = a.partner.Addrs
	}
	if addrs = slices.Clone(addrs); a.Good() > 0 {
		addrs = nil
	}
	t.mu.Unlock()
	for _, addr := range addrs {
		if id := exchange.NodeIn(addr); id != "" && id != t.self && t.mayAsk(id, scid) {
			err := t.introduce(ctx, id, addr)
			if err == nil {
				err = t.confirm(ctx, id, scid)
			}
			t.o.Log.Debug("issuer asked for the state of an organization", "organization", scid, "peer", id.Short(), "err", err)
		}
	}
}

// confirmAgain asks for the state of the own organization at once, if this node does not know it and a node has delivered a document. The last
// question to that node may have been too early: without the document, its answer counts for nothing.
func (t *Trust) confirmAgain(from did.DID, scid string) {
	t.mu.Lock()
	a := t.ownLocked()
	waits := a != nil && a.SCID() == scid && !t.settledLocked(a)
	if waits {
		delete(t.asked, question{from, scid})
	}
	t.mu.Unlock()
	if waits {
		t.start(func(ctx context.Context) {
			t.confirmOne(ctx, scid)
			t.update()
		})
	}
}

// candidatesLocked returns up to 4 connected nodes that may know the state of an organization.
func (t *Trust) candidatesLocked(a *trusted) (all []did.DID) {
	for id, n := range t.online {
		if id == t.self || n.credential == nil || n.principal.Barred != "" {
			continue
		}
		if a.IsGood(id) {
			continue
		}
		theirs := webvh.SCID(n.credential.Issuer)
		if (theirs == a.SCID() || t.org != nil && theirs == t.org.SCID()) && len(all) < 4 && t.mayAskLocked(id, a.SCID()) {
			all = append(all, id)
		}
	}
	return all
}

func (t *Trust) mayAsk(id did.DID, scid string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mayAskLocked(id, scid)
}

// mayAskLocked reports whether a question is due, and notes that it is asked now.
func (t *Trust) mayAskLocked(id did.DID, scid string) bool {
	q, now := question{id, scid}, t.now()
	if at, ok := t.asked[q]; ok && now.Sub(at).Abs() < t.o.confirmPause {
		return false
	}
	if len(t.asked) > maxNodes {
		clear(t.asked)
	}
	t.asked[q] = now
	return true
}
