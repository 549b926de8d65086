package chain

import (
	"cmp"
	"slices"

	"github.com/lmosd/lmosd/did"
)

// choose chooses the branch that counts, from the first entry on. It depends on the entries and on the pinned one, not on the order of their
// arrival. Where entries follow the same one, that counts
//
//  1. which ends the group, signed by one of the admins before the fork whom the other branch does not remove,
//  2. else, which more of the admins before the fork support: they changed a role, removed a member, ended the group, or approved that,
//  3. else, whose branch is signed by the admin of longest standing who did not sign the other,
//  4. else, which removes a member,
//  5. else, with the lower id.
//
// An admin who was removed can sign entries that follow one before its removal, with any time and any hash. Rules 2 and 3 do not let a junior
// one win alone. No rule on entries alone stops a senior one, or several: the entries before their removal cannot be distinguished from those
// of honest admins. The pin does: a branch that leaves the pinned one before the pin has the support of those admins only who neither signed
// the pinned branch nor were removed in it. So a mesh that was split for hours still agrees, and the past cannot be rewritten. Adding a member
// is no support, because nodes sign it for invitations without their operators.
func (c *Chain) choose() {
	at := c.first
	c.path = append(c.path[:0], at)
	for len(at.next) > 0 {
		best := at.next[0]
		if len(at.next) > 1 {
			best = c.choice(at)
		}
		at = best
		c.path = append(c.path, at)
	}
	if head := c.head(); head.state == nil {
		head.state = c.stateOf(head)
	}
}

// A branch is what the entries from one on say about the admins before a fork. The sets have their places in the order of seniority.
type branch struct {
	*node
	signed  []int // entries of the branch
	support []int // signed entries that count as support
	removed []int // in the branch, by one of them
	enders  []int // signed the end of the group
}

// choice returns which of the entries after one counts.
func (c *Chain) choice(at *node) *node {
	admins := seniority(c.stateOf(at))
	var all []*branch
	for _, n := range at.next {
		all = append(all, n.branch(admins))
	}
	slices.SortFunc(all, func(a, b *branch) int { return cmp.Compare(a.ID, b.ID) })
	if kept := c.pinnedIn(all, at); kept != nil {
		if c.pin.ends {
			return kept.node
		}
		all = slices.DeleteFunc(all, func(b *branch) bool { return b != kept && !b.fresh(kept).beats(kept) })
		if len(all) > 1 {
			all = slices.DeleteFunc(all, func(b *branch) bool { return b == kept })
		}
	}
	best := all[0]
	for _, b := range all[1:] {
		if b.beats(best) {
			best = b
		}
	}
	return best.node
}

// pinnedIn returns the branch with the pinned entry, if that is after at.
func (c *Chain) pinnedIn(all []*branch, at *node) *branch {
	if c.pin.Number <= at.Number {
		return nil
	}
	n := c.pin
	for n.Number > at.Number+1 {
		n = n.before
	}
	for _, b := range all {
		if b.node == n {
			return b
		}
	}
	return nil
}

// fresh returns b with the support that counts against a pinned branch.
func (b *branch) fresh(pinned *branch) *branch {
	f := *b
	lacks := func(place int) bool {
		return slices.Contains(pinned.signed, place) || slices.Contains(pinned.removed, place)
	}
	f.support = slices.DeleteFunc(slices.Clone(b.support), lacks)
	f.enders = slices.DeleteFunc(slices.Clone(b.enders), lacks)
	return &f
}

// beats reports whether b counts and a does not.
func (b *branch) beats(a *branch) bool {
	return cmp.Or(cmp.Compare(b.endsGroup(a), a.endsGroup(b)), cmp.Compare(len(b.support), len(a.support)), bySeniority(b.signed, a.signed),
		cmp.Compare(b.removes(), a.removes()), cmp.Compare(a.ID, b.ID)) > 0
}

func (b *branch) endsGroup(other *branch) int {
	if slices.ContainsFunc(b.enders, func(place int) bool { return !slices.Contains(other.removed, place) }) {
		return 1
	}
	return 0
}

func (b *branch) removes() int {
	if b.Op.Kind == Remove {
		return 1
	}
	return 0
}

// bySeniority compares sets of places: that with the lowest place which the other one lacks is greater.
func bySeniority(a, b []int) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return cmp.Compare(b[i], a[i])
		}
	}
	return cmp.Compare(len(a), len(b))
}

// seniority returns the places of the admins: the one who has been an admin for the longest time has the place 0.
func seniority(s *State) map[did.DID]int {
	var all []Member
	for _, m := range s.Members {
		if m.Role == Admin {
			all = append(all, m)
		}
	}
	slices.SortStableFunc(all, func(a, b Member) int { return cmp.Compare(a.Since, b.Since) })
	places := map[did.DID]int{}
	for i, m := range all {
		places[m.DID] = i
	}
	return places
}

// branch returns what the entries from n on say about admins.
func (n *node) branch(admins map[did.DID]int) *branch {
	b := &branch{node: n}
	add := func(set *[]int, id did.DID) {
		if place, ok := admins[id]; ok && !slices.Contains(*set, place) {
			*set = append(*set, place)
		}
	}
	for queue := []*node{n}; len(queue) > 0; {
		m := queue[len(queue)-1]
		queue = append(queue[:len(queue)-1], m.next...)
		add(&b.signed, m.Signer)
		if m.Op.Kind != Add {
			add(&b.support, m.Signer)
		}
		if _, known := admins[m.Signer]; known && m.Op.Kind == Remove {
			add(&b.removed, m.Op.Member.DID)
		}
		if m.ends {
			add(&b.enders, m.Signer)
		}
	}
	for _, set := range [][]int{b.signed, b.support, b.removed} {
		slices.Sort(set)
	}
	return b
}
