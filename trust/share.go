package trust

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/proof"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/internal/jcs"
)

// partnerListType is the type of the list of an organization's partners, which an issuer signs for the members.
const partnerListType = "PartnerList"

// A partnerList is the list of the partners of an organization.
type partnerList struct {
	Type         string     `json:"type"`
	Organization did.DID    `json:"organization"`
	Version      uint64     `json:"version"`
	ValidUntil   time.Time  `json:"validUntil"`
	Partners     []*partner `json:"partners"`
}

// partnerListLife is the validity of a list.
const partnerListLife = 30 * 24 * time.Hour

const partnersFile = "partners.json"

// sharePartnersLocked stores the partners. An issuer signs their list for the members.
func (t *Trust) sharePartnersLocked() error {
	if t.org != nil && t.org.IsIssuer() {
		if err := t.signPartnersLocked(); err != nil {
			return err
		}
	}
	return t.saveLocked()
}

func (t *Trust) signPartnersLocked() error {
	signer, method, err := t.org.Signer()
	if err != nil {
		return err
	}
	now := t.now().UTC().Truncate(time.Second)
	list := partnerList{Type: partnerListType, Organization: t.org.DID(), Version: max(t.book.Shared+1, uint64(max(now.Unix(), 0))),
		ValidUntil: now.Add(partnerListLife), Partners: []*partner{}}
	for _, p := range t.book.Partners {
		if p.Shared && !p.removed() {
			list.Partners = append(list.Partners, p)
		}
	}
	text, err := json.Marshal(list)
	if err != nil {
		return err
	}
	doc, err := jcs.Object(text, maxBook)
	if err != nil {
		return err
	}
	p, err := proof.Sign(doc, signer, proof.Options{Created: now, Method: method})
	if err != nil {
		return err
	}
	doc["proof"] = p
	raw, err := jcs.Append(nil, doc)
	if err != nil {
		return err
	}
	if err := t.store(t.org.SCID(), partnersFile, raw); err != nil {
		return err
	}
	t.book.Shared = list.Version
	return nil
}

// serveSharedLocked returns the list of partners as it was signed.
func (t *Trust) serveSharedLocked() (*response, error) {
	raw, err := os.ReadFile(t.file(t.org.SCID(), partnersFile))
	if err != nil {
		return nil, refused
	}
	return &response{Body: raw}, nil
}

// takePartners replaces the shared partners by those of a newer list, whose logs it gets from the node that has the list.
func (t *Trust) takePartners(ctx context.Context, from did.DID, raw []byte) (changed bool, err error) {
	doc, err := jcs.Object(raw, maxResponse)
	if err != nil {
		return false, err
	}
	t.mu.RLock()
	a := t.ownLocked()
	var docs resolver
	var owner did.DID
	if a != nil {
		owner = a.log.DID()
		docs = resolver{owner: a.log}
	}
	t.mu.RUnlock()
	if a == nil {
		return false, nil
	}
	v, err := proof.Verify(ctx, doc, proof.Check{Resolver: docs, Now: t.now()})
	if err != nil {
		return false, err
	}
	text, err := json.Marshal(v.Document)
	if err != nil {
		return false, err
	}
	list := &partnerList{}
	if err := json.Unmarshal(text, list); err != nil {
		return false, err
	}
	switch {
	case list.Type != partnerListType || v.Owner != owner || list.Organization != v.Owner || len(list.Partners) > maxPartners:
		return false, errors.New("not a list of partners of the own organization")
	case t.now().After(list.ValidUntil):
		return false, errors.New("the list of partners has expired")
	}
	logs := map[string]*webvh.Log{}
	for _, p := range list.Partners {
		if p == nil || webvh.SCID(p.DID) == "" || checkName(p.Name) != nil {
			return false, errors.New("a partner in the list is not valid")
		}
		if l, err := t.logOf(ctx, from, webvh.SCID(p.DID)); err == nil {
			logs[l.SCID()] = l
		} else {
			return false, fmt.Errorf("the log of partner %s: %w", p.Name, err)
		}
	}
	if changed, err = t.replacePartners(list, logs, raw); changed {
		t.o.OnNames()
	}
	return changed, err
}

// logOf returns the log of an organization: the stored one, or that of a node.
func (t *Trust) logOf(ctx context.Context, from did.DID, scid string) (*webvh.Log, error) {
	t.mu.RLock()
	if a := t.authorities[scid]; a != nil {
		defer t.mu.RUnlock()
		return a.log, nil
	}
	t.mu.RUnlock()
	r, err := t.ask(ctx, from, &request{Op: opGet, Known: []known{{SCID: scid, Kind: kindLog}}})
	if err != nil {
		return nil, err
	}
	l, err := webvh.Verify(r.Body, webvh.Check{Now: t.now()})
	if err == nil && l.SCID() != scid {
		err = errors.New("the log is of another organization")
	}
	return l, err
}

func (t *Trust) replacePartners(list *partnerList, logs map[string]*webvh.Log, raw []byte) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.org == nil || list.Version <= t.book.Shared {
		return false, nil
	}
	next := slices.Clone(t.book.Partners)
	for i, old := range next {
		listed := slices.ContainsFunc(list.Partners, func(p *partner) bool { return webvh.SCID(p.DID) == webvh.SCID(old.DID) })
		if old.Shared && !listed && !old.removed() {
			gone := *old
			gone.Removed = t.now()
			next[i] = &gone
			t.dismissLocked(webvh.SCID(old.DID))
		}
	}
	for _, p := range list.Partners {
		scid := webvh.SCID(p.DID)
		p.Shared = true
		if i := slices.IndexFunc(next, func(old *partner) bool { return webvh.SCID(old.DID) == scid }); i >= 0 {
			old := next[i]
			if old.RemovedHere && !p.Since.After(old.Removed) {
				continue
			}
			p.Name, p.Forked = old.Name, old.Forked // the name is that of the rules of this node
			next[i] = p
		} else {
			if slices.ContainsFunc(next, func(old *partner) bool { return old.Name == p.Name }) {
				t.o.Log.Warn("partner not added: its name is taken here", "name", p.Name, "organization", string(p.DID))
				continue
			}
			next = append(next, p)
		}
		if err := t.store(scid, "log.jsonl", logs[scid].Bytes()); err != nil {
			return false, err
		}
		if a := t.authorities[scid]; a != nil {
			a.partner = p
		} else {
			t.addAuthorityLocked(newAuthority(scid, logs[scid], p))
		}
	}
	if err := t.store(t.org.SCID(), partnersFile, raw); err != nil {
		return false, err
	}
	t.book.Partners, t.book.Shared = next, list.Version
	return true, t.saveLocked()
}

// shareDue signs the list of partners again after half of its life.
func (t *Trust) shareDue() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.org == nil || !t.org.IsIssuer() || t.book.Shared == 0 || t.now().Sub(time.Unix(int64(t.book.Shared), 0)) < partnerListLife/2 {
		return
	}
	if err := t.sharePartnersLocked(); err != nil {
		t.o.Log.Warn("list of partners not signed", "err", err)
	}
}
