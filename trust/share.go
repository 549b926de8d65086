package trust

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/trust/authority"
	"github.com/lmosd/lmosd/trust/exchange"
	"github.com/lmosd/lmosd/trust/organization"
	"github.com/lmosd/lmosd/trust/partners"
)

const partnersFile = "partners.json"

// share signs the list of the partners in b for the members, if this node is an issuer. writing is held, and mu is not.
func (t *Trust) share(b *partners.Book) error {
	if t.org == nil || !t.org.IsIssuer() {
		return nil
	}
	list := b.List(t.org.DID(), t.now())
	raw, err := t.org.Sign(list)
	if err != nil {
		return err
	}
	_, method, err := t.org.Signer()
	if err != nil {
		return err
	}
	return t.keepList(b, list.Version, method, raw)
}

// keepList stores a list as the newest one, with the issuing key that signed it.
func (t *Trust) keepList(b *partners.Book, version uint64, method string, raw []byte) error {
	b.Shared, b.SharedHead, b.SharedBy = version, headOf(raw), method
	return t.folder(t.org.SCID()).Write(partnersFile, raw)
}

// headOf returns the hash by which nodes distinguish lists of one version.
func headOf(raw []byte) string {
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:16])
}

// takePartners merges a list of partners, with the logs that this node lacks, which it gets from the node that has the list. If the list
// lacks what this issuer knows, another issuer did not know it: this one signs a list with both.
func (t *Trust) takePartners(ctx context.Context, from did.DID, raw []byte) (changed bool, err error) {
	t.mu.RLock()
	own := t.ownLocked()
	var l *webvh.Log
	if own != nil {
		l = own.Log()
	}
	t.mu.RUnlock()
	if l == nil {
		return false, nil
	}
	list := &partners.List{}
	method, err := authority.Verify(ctx, raw, l, t.now(), list)
	if err != nil {
		return false, err
	}
	if !t.isOwnIssuer(method) {
		return false, fmt.Errorf("the list of partners is signed by %s, which is revoked", method)
	}
	if err := list.Check(l.DID(), t.now()); err != nil {
		return false, err
	}
	logs := map[string]*webvh.Log{}
	for _, p := range list.Partners {
		if p.IsRemoved() {
			continue
		}
		if logs[p.SCID()], err = t.logOf(ctx, from, p); err != nil {
			return false, fmt.Errorf("the log of partner %s: %w", p.Name, err)
		}
	}
	changed, err = t.mergePartners(list, logs, method, raw)
	if changed {
		t.o.OnNames()
	}
	return changed, err
}

// logOf returns the log of a listed partner: the one that counts here, or that of a node if there is none, or if the operator of an issuer
// chose another. A log that a node has may not contradict the stored one of a former partner.
func (t *Trust) logOf(ctx context.Context, from did.DID, p *partners.Partner) (*webvh.Log, error) {
	t.mu.RLock()
	a := t.authorities[p.SCID()]
	if a != nil && (p.Chosen == "" || a.Log().Has(p.Chosen)) {
		defer t.mu.RUnlock()
		return a.Log(), nil
	}
	t.mu.RUnlock()
	r, err := t.net.Ask(ctx, from, &exchange.Request{Op: exchange.OpGet, Known: []exchange.Known{{SCID: p.SCID(), Kind: exchange.KindLog}}})
	if err != nil {
		return nil, err
	}
	l, err := webvh.Verify(r.Body, webvh.Check{Now: t.now()})
	switch {
	case err != nil:
		return nil, err
	case l.SCID() != p.SCID():
		return nil, errors.New("the log is of another organization")
	case p.Chosen != "" && !l.Has(p.Chosen):
		return nil, errors.New("it is not the history that the operator chose")
	case p.Chosen != "":
		return l, organization.CheckLog(nil, l)
	}
	return t.notOlder(l)
}

// notOlder returns a log, or the stored one of the organization, of a former partner too, if that is newer. They may not contradict each other.
func (t *Trust) notOlder(l *webvh.Log) (*webvh.Log, error) {
	stored, err := t.folder(l.SCID()).Log()
	if err != nil {
		return nil, err
	}
	err = organization.CheckLog(stored, l)
	if errors.Is(err, organization.ErrRollback) {
		return stored, nil
	}
	return l, err
}

// mergePartners puts a list in force.
func (t *Trust) mergePartners(list *partners.List, logs map[string]*webvh.Log, method string, raw []byte) (changed bool, err error) {
	t.writing.Lock()
	defer t.writing.Unlock()
	if t.org == nil || !t.book.IsNewer(list.Version, headOf(raw)) || !t.isOwnIssuer(method) {
		return false, nil
	}
	err = t.editWriting(func(b *partners.Book) error {
		behind := b.Merge(list, t.org.DID())
		for scid, l := range logs { // first: a partner without its log counts for nothing
			p, a := b.Find(scid), t.authorities[scid]
			switch {
			case p == nil || p.IsRemoved():
			case a == nil:
				err = t.folder(scid).WriteLog(l)
			case p.Chosen != "" && !a.Log().Has(p.Chosen):
				c := *p
				c.DID = l.DID()
				err = errors.Join(t.folder(scid).WriteOther(a.Log()), t.useLog(a, l), b.Put(&c))
			}
			if err != nil {
				return err
			}
		}
		if err := t.keepList(b, list.Version, method, raw); err != nil || !behind {
			return err
		}
		return t.share(b)
	})
	if err != nil {
		return false, err
	}
	for scid, l := range logs {
		if p := t.book.Find(scid); p != nil && !p.IsRemoved() && t.authorities[scid] == nil {
			err = errors.Join(err, t.addTrusted(p, l))
		}
	}
	return true, err
}

// addTrusted makes a partner, whose log is stored, one whose credentials count. writing is held, and mu is not.
func (t *Trust) addTrusted(p *partners.Partner, l *webvh.Log) error {
	a, err := t.load(l, p)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.former = slices.DeleteFunc(t.former, func(old *trusted) bool {
		if old.SCID() != a.SCID() {
			return false
		}
		t.touchExcludedLocked(old)
		return true
	})
	t.authorities[a.SCID()] = a
	return nil
}

// isOwnIssuer reports whether an issuing key of the own organization is valid: it is in the log, and no other issuer has revoked it.
func (t *Trust) isOwnIssuer(method string) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	own := t.ownLocked()
	return own != nil && own.IsIssuer(method, t.now())
}

// shareDue signs the list of partners again after half of its life, and if the issuing key that signed it is not valid any more: other members
// do not take such a list.
func (t *Trust) shareDue() {
	t.writing.Lock()
	defer t.writing.Unlock()
	if t.org == nil || t.book.Shared == 0 || !t.book.IsDue(t.now()) && t.isOwnIssuer(t.book.SharedBy) {
		return
	}
	if _, method, err := t.org.Signer(); err != nil || !t.isOwnIssuer(method) {
		return
	}
	if err := t.editWriting(t.share); err != nil {
		t.o.Log.Warn("list of partners not signed", "err", err)
	}
}
