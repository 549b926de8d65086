package organization

import (
	"fmt"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/vc"
	"github.com/lmosd/lmosd/interact"
)

// ReplacePause is the time after which the key of a member can be replaced again: each replacement needs a place in the status list.
const ReplacePause = 24 * time.Hour

// Replace gives a new key of a member its roles, and returns a credential of the new key. With complete, which the new key requests, it revokes
// the old key and makes the new key the host of its agents. Both may be repeated. c is a valid credential of one of the keys, of any issuer; it
// may be nil if this issuer knows the key that requests. The caller has checked that the member holds both keys.
//
// The error wraps [ErrNotIssuer], [ErrNotMember], or [ErrRevoked] if one of the keys was revoked before the replacement.
func (o *Organization) Replace(from, to did.DID, c *vc.Credential, complete bool) (*vc.Credential, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.method == "" {
		return nil, ErrNotIssuer
	}
	now, b := o.now(), o.book.clone()
	if c != nil {
		if err := o.follow(&b, c); err != nil {
			return nil, err
		}
	}
	if err := o.bindReplacement(&b, from, to, complete, now); err != nil {
		return nil, err
	}
	if i, known := b.find(from); complete && (!known || b.Members[i].Revoked.IsZero()) {
		b.revoke(from, now)
		if err := b.checkRoom(from, now); err != nil {
			return nil, err
		}
		for i := range b.Members {
			if m := &b.Members[i]; m.Host == from {
				m.Host = to
				if err := b.renumber(i); err != nil {
					return nil, err
				}
			}
		}
		o.list = nil
	}
	return o.issue(b, to, nil, 0)
}

// bindReplacement makes a new key the successor of a member's key, and a member with its roles. A key replaces one other key. o.mu is held.
func (o *Organization) bindReplacement(b *book, from, to did.DID, complete bool, now time.Time) error {
	i, known := b.find(from)
	switch j, successor := b.find(to); {
	case successor && b.Members[j].Replaces == from:
		return nil
	case successor && (b.Members[j].Replaces != "" || !complete):
		return interact.Errorf(interact.Usage, "make another key", "%s is a member already, and cannot replace another key", to.Short())
	case successor: // another issuer has confirmed it
		b.Members[j].Replaces = from
		return nil
	case !known || b.Members[i].Host != "":
		return fmt.Errorf("%w: %s", ErrNotMember, from.Short())
	case !b.Members[i].Revoked.IsZero():
		return fmt.Errorf("%w: %s on %s", ErrRevoked, from.Short(), b.Members[i].Revoked.Format(time.RFC3339))
	case b.Members[i].Replaces != "" && now.Sub(b.Members[i].Admitted) < ReplacePause:
		return interact.Errorf(interact.Forbidden, "try again tomorrow", "the key of %s was replaced within the last %d hours", from.Short(), int(ReplacePause.Hours()))
	}
	if err := o.checkExcluded(now, from, to); err != nil {
		return err
	}
	return b.admit(Member{DID: to, Roles: b.Members[i].Roles, Admitted: now.UTC().Truncate(time.Second), Replaces: from})
}

// Replaced reports whether this issuer knows that a key is the successor of another one.
func (o *Organization) Replaced(from, to did.DID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	i, known := o.book.find(to)
	return known && o.book.Members[i].Replaces == from
}

// successors returns the new keys that did not complete the replacement of a member's key.
func (b *book) successors(member did.DID) (all []did.DID) {
	if i, known := b.find(member); known && !b.Members[i].Revoked.IsZero() {
		return nil
	}
	for _, m := range b.Members {
		if m.Replaces == member {
			all = append(all, m.DID)
		}
	}
	return all
}
