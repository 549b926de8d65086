package partners

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/lmosd/lmosd/did"
)

// ListType is the type of a [List].
const ListType = "PartnerList"

// ListLife is the validity of a list.
const ListLife = 30 * 24 * time.Hour

// A List is the list of the partners of an organization, with the former ones, which an issuer signs for the members.
type List struct {
	Type         string     `json:"type"`
	Organization did.DID    `json:"organization"`
	Version      uint64     `json:"version"`
	ValidUntil   time.Time  `json:"validUntil"`
	Partners     []*Partner `json:"partners"`
}

// List returns the list of this book, with the next version.
func (b *Book) List(organization did.DID, now time.Time) *List {
	now = now.UTC().Truncate(time.Second)
	l := &List{Type: ListType, Organization: organization, Version: max(b.Shared+1, uint64(max(now.Unix(), 0))), ValidUntil: now.Add(ListLife),
		Partners: []*Partner{}}
	for _, p := range b.Partners {
		c := *p
		c.Forked, c.Other = false, ""
		l.Partners = append(l.Partners, &c)
	}
	return l
}

// Check returns an error unless the list is one of an organization that is valid now.
func (l *List) Check(organization did.DID, now time.Time) error {
	switch {
	case l.Type != ListType || l.Organization != organization || len(l.Partners) > MaxPartners:
		return errors.New("not a list of partners of the own organization")
	case now.After(l.ValidUntil):
		return errors.New("the list of partners has expired")
	}
	for _, p := range l.Partners {
		if !p.valid() {
			return errors.New("a partner in the list is not valid")
		}
	}
	return nil
}

// IsDue reports whether half of the life of the newest list has passed.
func (b *Book) IsDue(now time.Time) bool {
	return b.Shared > 0 && now.Sub(time.Unix(int64(b.Shared), 0)) >= ListLife/2
}

// IsNewer reports whether a list with a version and a hash replaces the newest one. Two issuers may sign lists of one version.
func (b *Book) IsNewer(version uint64, head string) bool {
	return version > b.Shared || version == b.Shared && head > b.SharedHead
}

// Merge adds what a list states to the book: of two entries of one organization, the later one counts, and the end of a partnership counts
// more than other changes to it. All nodes that merge the same lists, in any order, agree, except on names: that of a partner here stays
// what it is, because rules name it. isBehind reports that the list lacks a part of the book. own is the own organization.
func (b *Book) Merge(l *List, own did.DID) (isBehind bool) {
	listed := map[string]bool{}
	for _, p := range l.Partners {
		listed[p.SCID()] = true
		c, old := *p, b.Find(p.SCID())
		c.Forked, c.Other = false, ""
		if old == nil {
			c.Name = b.FreeName(p.Name, p.DID, own)
			_ = b.Put(&c) // one that does not fit is left out
			continue
		}
		switch order := p.compare(old); {
		case order < 0:
			isBehind = true
		case order > 0:
			if c.Name, c.DID = old.Name, old.DID; p.Chosen == old.Chosen {
				c.Forked, c.Other = old.Forked, old.Other
			}
			_ = b.Put(&c)
		}
	}
	return isBehind || slices.ContainsFunc(b.Partners, func(p *Partner) bool { return !listed[p.SCID()] })
}

// compare returns a positive number if p replaces q, an entry of the same organization, a negative one if q replaces p, and 0 if they state
// the same.
func (p *Partner) compare(q *Partner) int {
	if c := p.Since.Compare(q.Since); c != 0 {
		return c
	}
	if p.IsRemoved() != q.IsRemoved() {
		if p.IsRemoved() {
			return 1
		}
		return -1
	}
	return cmp.Or(p.Changed.Compare(q.Changed), bytes.Compare(p.stated(), q.stated()))
}

// stated returns what lists state about a partner, without what differs from node to node.
func (p *Partner) stated() []byte {
	c := *p
	c.Name, c.DID, c.Forked, c.Other = "", "", false, ""
	text, _ := json.Marshal(c) // strings, times and flags only
	return text
}
