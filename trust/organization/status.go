package organization

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/vc"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/weblocation"
)

// Times of status lists.
const (
	ListLife  = time.Hour           // the validity of a list
	FreshAge  = 10 * time.Second    // a fresh list is at most this old
	Exclusion = 30 * 24 * time.Hour // a revoked member is excluded for this long, whatever credential it has
)

// listFolder is the folder of the status lists at the location of the DID, next to did.jsonl.
const listFolder = "lmosd/status/"

// ListID returns the id of the status list of an issuing key, which is a URL: "https://acme.example/.well-known/lmosd/status/i1.json" for
// "did:webvh:…:acme.example#i1". It returns "" if method is not a DID URL of a did:webvh.
func ListID(method string) string {
	id, fragment, ok := strings.Cut(method, "#")
	if !ok {
		return ""
	}
	u, err := weblocation.URL(webvh.Location(did.DID(id)), listFolder+fragment+".json")
	if err != nil {
		return ""
	}
	return u
}

// listID returns the id of the own list. o.mu is held.
func (o *Organization) listID() string { return ListID(o.method) }

// List returns the status list of this issuer. It signs a new one if the newest is older than half of its validity, or if fresh is set and it
// is older than [FreshAge]. The versions rise from start to start. The error wraps [ErrNotIssuer].
func (o *Organization) List(fresh bool) (*vc.List, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.method == "" {
		return nil, ErrNotIssuer
	}
	now := o.now()
	if l := o.list; l != nil {
		age := now.Sub(l.From)
		if age >= -time.Second && age <= ListLife/2 && (!fresh || age <= FreshAge) {
			return l, nil
		}
	}
	return o.signList(now)
}

// signList signs a list of the book. o.mu is held.
func (o *Organization) signList(now time.Time) (*vc.List, error) {
	if err := o.checkClock(now); err != nil {
		return nil, err
	}
	l := vc.NewList(o.listID(), o.log.DID()).With(o.book.Set...)
	l.Revoked = map[did.DID]time.Time{}
	for _, m := range o.book.Members {
		if end := m.Revoked.Add(Exclusion); !m.Revoked.IsZero() && now.Before(end) {
			l.Revoked[m.DID] = end
		}
	}
	// The time, so that a list that is signed after the folder was restored from a backup is above those that peers have.
	version := max(o.book.Version+1, uint64(max(now.Unix(), 0)))
	signed, err := vc.IssueList(l, version, now, now.Add(ListLife), o.issuing, o.method)
	if err != nil {
		return nil, err
	}
	if err := o.write(listFile, signed.Raw); err != nil {
		return nil, err
	}
	o.book.Version, o.list = version, signed
	return signed, nil
}

// Revoke excludes a member for 30 days, whatever credential it has, ends all credentials of this issuer for it and for the agents that it
// hosts, and returns the new status list. It revokes a new key that did not complete the replacement of the member's key, too. The revocation is durable before it returns. The member may be one that another issuer admitted.
// An issuer cannot revoke itself; the issuing key of a revoked node is removed by [Organization.RemoveIssuer]. The error wraps [ErrNotIssuer].
func (o *Organization) Revoke(member did.DID) (*vc.List, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.method == "" {
		return nil, ErrNotIssuer
	}
	if d, err := did.Parse(string(member)); err != nil || d.Method() != "key" {
		return nil, interact.Errorf(interact.Usage, "", "expected the did:key of a member, got %q", interact.Excerpt(string(member), 100))
	}
	if member == o.node {
		return nil, interact.Errorf(interact.Usage, "revoke it at another issuer", "this node issues the list and cannot revoke itself")
	}
	now := o.now()
	b := o.book.clone()
	for _, m := range b.successors(member) {
		b.revoke(m, now)
	}
	b.revoke(member, now)
	if err := b.checkRoom(member, now); err != nil {
		return nil, err
	}
	o.list = nil
	if err := o.storeBook(b); err != nil {
		return nil, err
	}
	return o.signList(now)
}

// checkRoom returns an error if the status list has no room for the revocation of a member.
func (b *book) checkRoom(member did.DID, now time.Time) error {
	if n := b.excluded(now); n > vc.MaxRevoked {
		return fmt.Errorf("revoke %s: %d members are excluded at this time, the most that are possible: remove the issuing key instead", member.Short(), vc.MaxRevoked)
	}
	return nil
}

// revoke marks a member as revoked and sets its entry and those of its agents.
func (b *book) revoke(member did.DID, at time.Time) {
	i, known := b.find(member)
	if !known {
		b.Members = slices.Insert(b.Members, i, Member{DID: member, Index: -1, Admitted: at.UTC().Truncate(time.Second)})
	}
	b.Members[i].Revoked = at.UTC().Truncate(time.Second)
	b.end(member)
}

// end sets the entries of a member and of the agents that it hosts.
func (b *book) end(member did.DID) {
	for _, m := range b.Members {
		if (m.DID == member || m.Host == member) && m.Index >= 0 {
			b.Set = insert(b.Set, m.Index)
		}
	}
}

// excluded returns the number of members that are excluded at this time.
func (b *book) excluded(now time.Time) (n int) {
	for _, m := range b.Members {
		if !m.Revoked.IsZero() && now.Before(m.Revoked.Add(Exclusion)) {
			n++
		}
	}
	return n
}

// Restore ends the exclusion of a member that this issuer revoked, and returns the new status list. The old credentials stay revoked: the
// member gets a new one. seen is the newest version of the own list that peers have, or 0 if it is not above the stored one. The error wraps
// [ErrNotIssuer], or [ErrNotMember] if this issuer did not revoke it.
func (o *Organization) Restore(member did.DID, seen uint64) (*vc.List, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.method == "" {
		return nil, ErrNotIssuer
	}
	b := o.book.clone()
	i, known := b.find(member)
	if !known || b.Members[i].Revoked.IsZero() {
		return nil, fmt.Errorf("%w: this issuer did not revoke %s", ErrNotMember, member.Short())
	}
	if b.Members[i].Index < 0 { // another issuer admitted it
		b.Members = slices.Delete(b.Members, i, i+1)
	} else {
		b.Members[i].Revoked = time.Time{}
	}
	b.Version = max(b.Version, seen)
	o.list = nil
	if err := o.storeBook(b); err != nil {
		return nil, err
	}
	return o.signList(o.now())
}

// MergeRevocations stores the revocations of a verified status list of the organization: this issuer then issues no credential for those
// members, and ends those that it issued. A set entry stays set, whatever a later list has; the exclusions are those of the newest version. A
// list of the own key that is above the stored version, because the folder was restored from a backup, is merged into the own list. It
// reports whether the own list changed, so that the caller sends the new one. Nodes that are not issuers ignore the call.
func (o *Organization) MergeRevocations(l *vc.List) (changed bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.method == "":
		return false, nil
	case l.Issuer != o.log.DID():
		return false, fmt.Errorf("%w: the list is of %s", vc.ErrInvalid, l.Issuer.Short())
	case l.ID != ListID(l.Method):
		return false, fmt.Errorf("%w: the list of %s has the id %.200q", vc.ErrInvalid, l.Method, l.ID)
	}
	b := o.book.clone()
	if l.Method == o.method {
		if l.Version <= b.Version {
			return false, nil
		}
		b.adopt(l)
	} else if !b.mergeOther(l, o.now()) && len(b.Set) == len(o.book.Set) {
		o.book = b // the version: not worth a write
		return false, nil
	}
	changed = len(b.Set) != len(o.book.Set) || l.Method == o.method
	if changed {
		o.list = nil
	}
	return changed, o.storeBook(b)
}

// adopt merges a list of the own key into the book.
func (b *book) adopt(l *vc.List) {
	b.Version = l.Version
	for i := range vc.MinEntries {
		if l.IsSet(i) {
			b.Set = insert(b.Set, i)
		}
	}
	for member, end := range l.Revoked {
		b.revoke(member, end.Add(-Exclusion))
	}
}

// mergeOther merges a list of another issuer, and reports whether it revokes more or less than before.
func (b *book) mergeOther(l *vc.List, now time.Time) bool {
	old, known := b.Others[l.ID]
	if !known && len(b.Others) >= maxOthers {
		return false
	}
	fresh := other{Version: max(old.Version, l.Version), Revoked: old.Revoked, Set: slices.Clone(old.Set)}
	if l.Version >= old.Version {
		fresh.Revoked = maps.Clone(l.Revoked)
	}
	for i := range min(l.Len(), 8*vc.MinEntries) {
		if l.IsSet(i) {
			fresh.Set = insert(fresh.Set, i)
		}
	}
	for member, end := range fresh.Revoked {
		if now.Before(end) {
			b.end(member)
		}
	}
	if b.Others == nil {
		b.Others = map[string]other{}
	}
	b.Others[l.ID] = fresh
	return len(fresh.Set) != len(old.Set) || !maps.EqualFunc(fresh.Revoked, old.Revoked, time.Time.Equal)
}
