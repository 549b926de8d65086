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
	"github.com/lmosd/lmosd/internal/jcs"
)

// statusType is the type of a status statement: what an issuer, or a member of the own organization, knows of an organization.
const statusType = "OrganizationStatus"

// A status is a status statement. That of an issuer has a proof by its issuing key, for one question of one node; that of a member has none,
// because the connection proves the member.
type status struct {
	Type         string            `json:"type"`
	Organization did.DID           `json:"organization"`
	Node         did.DID           `json:"node"`     // the node that answers
	Audience     did.DID           `json:"audience"` // the node that asks
	Nonce        string            `json:"nonce"`
	Head         string            `json:"head"`
	Length       uint64            `json:"length"` // of the log
	Versions     map[string]uint64 `json:"versions"`
	Settled      bool              `json:"settled"` // the node knows what others revoked
}

const nonceSize = 16

// confirm asks a node for the state of an organization, and gets what is newer there. It returns nil if the node is now evidence.
func (t *Trust) confirm(ctx context.Context, id did.DID, scid string) error {
	ctx, cancel := context.WithTimeout(ctx, confirmTime)
	defer cancel()
	nonce := make([]byte, nonceSize)
	_, _ = rand.Read(nonce)
	r, err := t.ask(ctx, id, &request{Op: opStatus, SCID: scid, Nonce: nonce})
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
	st, method, err := t.readStatus(ctx, a, r.Body)
	if errors.Is(err, proof.ErrProof) {
		t.fetchAll(ctx, id, []known{{SCID: scid, Kind: kindLog, Version: 1 << 62}})
		st, method, err = t.readStatus(ctx, a, r.Body)
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
	newer := []known{{SCID: scid, Kind: kindLog, Version: st.Length, Head: st.Head}}
	t.fetchAll(ctx, id, newer)
	t.mu.RLock()
	for m, version := range st.Versions {
		if a.keys[m] != "" {
			newer = append(newer, known{SCID: scid, Kind: kindList, Method: m, Version: version})
		}
	}
	t.mu.RUnlock()
	t.fetchAll(ctx, id, newer)
	t.mu.Lock()
	defer t.mu.Unlock()
	if method != "" && a.partner == nil {
		t.issuers[id] = method
	}
	for _, k := range newer {
		if a.lacks(k) && !(k.Kind == kindLog && k.Version < uint64(a.log.Len())) {
			return fmt.Errorf("the node did not deliver what it has: kind %d, version %d", k.Kind, k.Version)
		}
	}
	if method != "" && a.partner == nil {
		if err := t.bindLocked(method, id); err != nil {
			return err
		}
	}
	a.witnessed(id, method, t.now())
	return nil
}

// mayTestify returns an error unless the statement of a node can confirm an organization: it holds an issuing key, or it is a confirmed member
// of the own organization that knows the state. Such a member brings the lists of issuers that are away.
func (t *Trust) mayTestify(ctx context.Context, a *authority, id did.DID, st *status, method string) error {
	check := func() error {
		t.mu.Lock()
		defer t.mu.Unlock()
		isIssuer := method != "" && slices.Contains(a.issuers(t.now()), method)
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
	isNewer := st.Length > uint64(a.log.Len())
	t.mu.RUnlock()
	if err != nil && method != "" && isNewer { // the key may be new
		t.fetchAll(ctx, id, []known{{SCID: a.scid, Kind: kindLog, Version: st.Length, Head: st.Head}})
		err = check()
	}
	return err
}

// confirmTime limits one confirmation, with what it gets.
const confirmTime = 15 * time.Second

// readStatus reads a statement, and verifies its proof if it has one. method is the issuing key, or "".
func (t *Trust) readStatus(ctx context.Context, a *authority, raw []byte) (st *status, method string, err error) {
	doc, err := jcs.Object(raw, maxRequest)
	if err != nil {
		return nil, "", err
	}
	if doc["proof"] != nil {
		t.mu.RLock()
		owner := a.log.DID()
		docs := resolver{owner: a.log}
		t.mu.RUnlock()
		v, err := proof.Verify(ctx, doc, proof.Check{Resolver: docs, Now: t.now()})
		if err != nil {
			return nil, "", err
		}
		if v.Owner != owner {
			return nil, "", fmt.Errorf("%w: signed by %s", proof.ErrProof, v.Owner.Short())
		}
		doc, method = v.Document, v.Method
	}
	text, err := json.Marshal(doc)
	if err != nil {
		return nil, "", err
	}
	st = &status{}
	if err := json.Unmarshal(text, st); err != nil {
		return nil, "", err
	}
	if st.Type != statusType || len(st.Versions) > maxKnown {
		return nil, "", errors.New("not a status statement")
	}
	return st, method, nil
}

// serveStatus answers what this node knows of an organization: an issuer of the own one to all nodes, since its log names its key anyway, and
// others to members of the own organization.
func (t *Trust) serveStatus(id did.DID, q *request) (*response, error) {
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
	st := &status{Type: statusType, Organization: a.log.DID(), Node: t.self, Audience: id, Nonce: base64.RawURLEncoding.EncodeToString(q.Nonce),
		Head: a.log.Head(), Length: uint64(a.log.Len()), Versions: map[string]uint64{}, Settled: t.firstHandLocked(a)}
	if known {
		st.Versions = a.versions()
	}
	org := t.org
	t.mu.Unlock()
	if !isIssuer && !known {
		return nil, refused
	}
	text, err := json.Marshal(st)
	if err != nil || !isIssuer {
		return &response{Body: text}, err
	}
	doc, err := jcs.Object(text, maxRequest)
	if err != nil {
		return nil, err
	}
	signer, method, err := org.Signer()
	if err != nil {
		return nil, userError(err)
	}
	p, err := proof.Sign(doc, signer, proof.Options{Created: t.now(), Method: method})
	if err != nil {
		return nil, err
	}
	doc["proof"] = p
	raw, err := jcs.Append(nil, doc)
	return &response{Body: raw}, err
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
func (t *Trust) settledLocked(a *authority) bool { return t.settledForLocked(a, "") }

// settledForLocked is settledLocked for decisions about one node, whose own connection does not count.
func (t *Trust) settledForLocked(a *authority, subject did.DID) bool {
	own := t.ownMethodLocked(a)
	others := slices.DeleteFunc(a.issuers(t.now()), func(method string) bool { return method == own })
	switch {
	case own == "":
		return len(a.evidence) > 0
	case len(others) == 0:
		return true
	}
	for node := range a.evidence {
		if node != subject {
			return true
		}
	}
	return t.now().Sub(t.started) > aloneFor && t.meetsMembersLocked(a, subject)
}

// meetsMembersLocked reports whether a member of an organization other than subject is connected.
func (t *Trust) meetsMembersLocked(a *authority, subject did.DID) bool {
	for id, n := range t.nodes {
		if id != subject && id != t.self && n.hello != nil && n.credential != nil && webvh.SCID(n.credential.Issuer) == a.scid && n.principal.Barred == "" {
			return true
		}
	}
	return false
}

// firstHandLocked reports whether this node knows the state of an organization from an issuer. The word of a member is not passed on:
// nodes that are out of date cannot confirm each other.
func (t *Trust) firstHandLocked(a *authority) bool {
	if a.partner == nil {
		return t.settledLocked(a)
	}
	for _, w := range a.evidence {
		if w.method != "" {
			return true
		}
	}
	return false
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
	if a == nil || a.good() >= 2 && !t.isUnboundLocked(a) {
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
	if addrs = slices.Clone(addrs); a.good() > 0 {
		addrs = nil
	}
	t.mu.Unlock()
	for _, addr := range addrs {
		if id := nodeIn(addr); id != "" && id != t.self && t.mayAsk(id, scid) {
			err := t.meet(ctx, id, addr)
			if err == nil {
				err = t.confirm(ctx, id, scid)
			}
			t.o.Log.Debug("issuer asked for the state of an organization", "organization", scid, "peer", id.Short(), "err", err)
		}
	}
}

// candidatesLocked returns up to 4 connected nodes that may know the state of an organization.
func (t *Trust) candidatesLocked(a *authority) (all []did.DID) {
	for id, n := range t.nodes {
		if n.hello == nil || id == t.self || n.credential == nil || n.principal.Barred != "" {
			continue
		}
		if a.isGood(id) {
			continue
		}
		theirs := webvh.SCID(n.credential.Issuer)
		if (theirs == a.scid || t.org != nil && theirs == t.org.SCID()) && len(all) < 4 && t.mayAskLocked(id, a.scid) {
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
