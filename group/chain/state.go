package chain

import (
	"fmt"
	"slices"

	"github.com/lmosd/lmosd/did"
)

// A State is what a branch says up to one entry. It is immutable.
type State struct {
	Group     string // the id of the group
	Name      string
	Labels    map[string]string
	Threshold int
	Join      []Rule
	Members   []Member // in the order in which they became members
	Former    []Former // in the order in which they left or were removed
	Pending   []Pending
	Dissolved bool
	moved     []movedFrom
}

// A Former member left, or was removed.
type Former struct {
	Member
	Until   int // the number of the entry that ended its membership
	Removed bool
}

// A Pending change needs the approval of more admins.
type Pending struct {
	Entry    string // its ID
	Op       Op
	Approved []did.DID // by these; those who are no admins any more do not count
}

// maxPending limits the pending changes; the oldest is dropped.
const maxPending = 32

// Member returns the member with a DID.
func (s *State) Member(id did.DID) (Member, bool) {
	at := slices.IndexFunc(s.Members, func(m Member) bool { return m.DID == id })
	if at < 0 {
		return Member{}, false
	}
	return s.Members[at], true
}

// movedFrom is a node through which a member was reached, until the entry by which it moved.
type movedFrom struct {
	node  did.DID
	until int
}

// At returns the members that are reached through a node.
func (s *State) At(node did.DID) (all []Member) {
	for _, m := range s.Members {
		if m.Node == node {
			all = append(all, m)
		}
	}
	return all
}

// Needed returns how many admins must agree to a change of the admins, and to the end of the group.
func (s *State) Needed() int { return min(s.Threshold, s.admins()) }

func (s *State) admins() (n int) {
	for _, m := range s.Members {
		if m.Role == Admin {
			n++
		}
	}
	return n
}

func (s *State) isAdmin(id did.DID) bool {
	m, ok := s.Member(id)
	return ok && m.Role == Admin
}

// after returns the state after an entry, or why the entry has no right to be there.
func (s *State) after(e *Entry) (*State, error) {
	switch {
	case s.Dissolved:
		return nil, fmt.Errorf("%w: %w", ErrInvalid, ErrDissolved)
	case !s.isAdmin(e.Signer):
		return nil, invalid("%s is no admin of the group", e.Signer.Short())
	case e.Op.Statement != nil && e.Op.Statement.Group != s.Group:
		return nil, invalid("the statement of the member is for another group")
	case e.Op.Kind != Remove && e.Op.Kind != Dissolve && e.Op.Kind != Approve && e.Number > MaxEntries-reserved:
		return nil, fmt.Errorf("%w: the log of the group has %d entries; dissolve it and create another group", ErrFull, e.Number-1)
	case e.Number > MaxEntries:
		return nil, fmt.Errorf("%w: the log of the group has %d entries", ErrFull, e.Number-1)
	}
	next := *s
	if e.Op.Kind == Approve {
		return next.approve(e)
	}
	if err := s.check(&e.Op); err != nil {
		return nil, err
	}
	if s.needsApproval(&e.Op) {
		at := max(0, len(s.Pending)+1-maxPending)
		next.Pending = append(slices.Clone(s.Pending[at:]), Pending{e.ID, e.Op, []did.DID{e.Signer}})
		return &next, nil
	}
	next.apply(&e.Op, e)
	return &next, nil
}

// needsApproval reports whether more admins must agree: to what admins are, and to the end of the group.
func (s *State) needsApproval(o *Op) bool {
	m, _ := s.Member(o.Member.DID)
	return s.Needed() > 1 && (o.Kind == Dissolve || o.Kind == Role && (m.Role == Admin || o.Member.Role == Admin) ||
		o.Kind == Remove && m.Role == Admin && o.Statement == nil)
}

// check returns why a change is not possible.
func (s *State) check(o *Op) error {
	m, known := s.Member(o.Member.DID)
	switch o.Kind {
	case Add:
		return s.checkAdd(o, m, known)
	case Dissolve:
		return nil
	}
	switch {
	case !known:
		return invalid("%s is no member", o.Member.DID.Short())
	case o.Statement != nil && o.Statement.number < m.last:
		return invalid("the statement of %s is older than its membership", m.DID.Short())
	case o.Kind == Role && m.Role == o.Member.Role:
		return invalid("%s has the role %s already", m.DID.Short(), m.Role)
	case m.Role == Admin && s.admins() == 1:
		return invalid("%s is the last admin: make another member an admin first, or dissolve the group", m.DID.Short())
	}
	return nil
}

// checkAdd also refuses old statements: one that was used, or signed before the member left, does not bring it back.
func (s *State) checkAdd(o *Op, m Member, known bool) error {
	switch {
	case known && m.Node == o.Member.Node:
		return invalid("%s is a member already", m.DID.Short())
	case known && m.Role != o.Member.Role && m.Role != Admin:
		return invalid("%s has the role %s; change that first", m.DID.Short(), m.Role)
	case !known && len(s.Members) >= MaxMembers:
		return fmt.Errorf("%w: a group has at most %d members", ErrFull, MaxMembers)
	}
	last := m.last
	for _, f := range s.Former {
		if f.DID == o.Member.DID {
			last = max(last, f.Until)
		}
	}
	if o.Statement.number < last {
		return invalid("the statement of %s is older than the last change of its membership", o.Member.DID.Short())
	}
	return nil
}

// approve adds an approval, and applies the change if there are enough. s is a copy.
func (s *State) approve(e *Entry) (*State, error) {
	at := slices.IndexFunc(s.Pending, func(p Pending) bool { return p.Entry == e.Op.Entry })
	if at < 0 {
		return nil, invalid("no change %.60q waits for an approval", e.Op.Entry)
	}
	p := s.Pending[at]
	if slices.Contains(p.Approved, e.Signer) {
		return nil, invalid("%s has approved it already", e.Signer.Short())
	}
	if err := s.check(&p.Op); err != nil {
		return nil, err
	}
	p.Approved = append(slices.Clone(p.Approved), e.Signer)
	s.Pending = slices.Clone(s.Pending)
	s.Pending[at] = p
	agree := 0
	for _, id := range p.Approved {
		if s.isAdmin(id) {
			agree++
		}
	}
	if agree >= s.Needed() {
		s.Pending = slices.Delete(s.Pending, at, at+1)
		s.apply(&p.Op, e)
	}
	return s, nil
}

// apply changes s, a copy, by a change that takes effect with an entry.
func (s *State) apply(o *Op, e *Entry) {
	at := slices.IndexFunc(s.Members, func(m Member) bool { return m.DID == o.Member.DID })
	switch {
	case o.Kind == Create:
		s.Name, s.Labels, s.Threshold, s.Join = o.Name, o.Labels, o.Threshold, o.Join
		fallthrough
	case o.Kind == Add && at < 0:
		m := o.Member
		m.Since, m.By, m.last = e.Number, e.Signer, e.Number
		s.Members = append(slices.Clip(s.Members), m)
	case o.Kind == Add:
		s.Members = slices.Clone(s.Members)
		m := &s.Members[at]
		s.moved = append(slices.Clip(s.moved), movedFrom{m.Node, e.Number})
		m.Node, m.Org, m.Until, m.By, m.last = o.Member.Node, o.Member.Org, o.Member.Until, e.Signer, e.Number
	case o.Kind == Role:
		s.Members = slices.Clone(s.Members)
		m := &s.Members[at]
		if o.Member.Role == Admin {
			m.Since = e.Number
		}
		m.Role, m.By = o.Member.Role, e.Signer
	case o.Kind == Remove:
		s.Former = append(slices.Clip(s.Former), Former{s.Members[at], e.Number, o.Statement == nil})
		s.Members = slices.Delete(slices.Clone(s.Members), at, at+1)
	case o.Kind == Dissolve:
		s.Dissolved = true
	}
}
