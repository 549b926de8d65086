// Package chain has the log of a group: a chain of signed entries, each with the hash of the one before it.
//
// The id of a group is the hash of its first entry, so that the log proves itself. Admins sign the entries; a member that joins or leaves signs
// a statement, which the entry contains. Two admins may sign at the same time: the entries then form a tree, and each member chooses the
// same branch from the same entries, in whatever order they arrived (see choose.go). The log is what remains of a group that was dissolved.
//
// Sources: did:webvh 1.0 (hashes, versionId); docs/decisions/0053-groups.md.
package chain

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/proof"
	"github.com/lmosd/lmosd/internal/jcs"
)

// maxBranches limits the branches of a chain.
const maxBranches = 64

// A Chain has the entries of a group, of all branches. It is not safe for concurrent use.
type Chain struct {
	first  *node
	nodes  map[string]*node // by ID
	path   []*node          // from the first entry to the head
	pin    *node            // of the path
	leaves int
}

// A node is an entry in the tree.
type node struct {
	*Entry
	before *node
	next   []*node
	state  *State // nil: it is computed from an earlier one
	ends   bool   // the group, with this entry
}

// New returns the chain of a new group, whose first entry s signs. It fills in the kind, and the role of the member, who is s.
func New(o Op, s did.Signer, now time.Time) (*Chain, error) {
	o.Kind, o.Member.DID, o.Member.Role = Create, s.DID(), Admin
	raw, err := sign(&o, "", 1, s, now.UTC().Truncate(time.Millisecond))
	if err != nil {
		return nil, err
	}
	return begin(raw, now)
}

// Read returns the chain of a log: one entry per line, the first one first, and each after its predecessor. The errors are those of
// [Chain.Add].
func Read(log []byte, now time.Time) (*Chain, error) {
	var c *Chain
	n := 0
	for line := range bytes.SplitSeq(log, []byte("\n")) {
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var err error
		if n++; c == nil {
			c, err = begin(line, now)
		} else {
			_, err = c.Add(line, now)
		}
		if err != nil {
			return nil, fmt.Errorf("entry %d: %w", n, err)
		}
	}
	if c == nil {
		return nil, invalid("the log is empty")
	}
	return c, nil
}

// begin returns a chain with its first entry.
func begin(raw []byte, now time.Time) (*Chain, error) {
	e, err := read(raw)
	switch {
	case err != nil:
		return nil, err
	case e.Number != 1:
		return nil, fmt.Errorf("%w: the entry %s is not the first one of a group", ErrUnlinked, e.ID)
	case e.Signer != e.Op.Member.DID:
		return nil, invalid("the first entry is not signed by the first admin")
	}
	if err := e.verify(now); err != nil {
		return nil, err
	}
	s := &State{Group: groupOf(e.ID)}
	s.apply(&e.Op, e)
	n := &node{Entry: e, state: s}
	return &Chain{first: n, nodes: map[string]*node{e.ID: n}, path: []*node{n}, pin: n, leaves: 1}, nil
}

// groupOf returns the id of the group with a first entry.
func groupOf(first string) string { return strings.TrimPrefix(first, "1-") }

// Group returns the id of the group: 46 characters, the hash of its first entry.
func (c *Chain) Group() string { return groupOf(c.first.ID) }

// Len returns the number of entries of all branches.
func (c *Chain) Len() int { return len(c.nodes) }

// Head returns the newest entry of the chosen branch.
func (c *Chain) Head() *Entry { return c.head().Entry }

func (c *Chain) head() *node { return c.path[len(c.path)-1] }

// State returns the state of the chosen branch.
func (c *Chain) State() *State { return c.stateOf(c.head()) }

// Has reports whether an entry is known.
func (c *Chain) Has(id string) bool { return c.nodes[id] != nil }

// Counts reports whether an entry is on the chosen branch.
func (c *Chain) Counts(id string) bool {
	n := c.nodes[id]
	return n != nil && n.Number <= len(c.path) && c.path[n.Number-1] == n
}

// Path returns the entries of the chosen branch, from the first one.
func (c *Chain) Path() []*Entry {
	all := make([]*Entry, len(c.path))
	for i, n := range c.path {
		all[i] = n.Entry
	}
	return all
}

// Bytes returns the log of the chosen branch, an entry per line.
func (c *Chain) Bytes() []byte {
	var b bytes.Buffer
	for _, n := range c.path {
		b.Write(n.Raw)
		b.WriteByte('\n')
	}
	return b.Bytes()
}

// Add adds an entry. It reports whether the chosen branch has changed. An entry that is known changes nothing. The error wraps [ErrInvalid],
// [ErrUnlinked] if the predecessor is missing, [ErrTime], or [ErrFull].
func (c *Chain) Add(raw []byte, now time.Time) (changed bool, err error) {
	e, err := read(raw)
	if err != nil || c.nodes[e.ID] != nil {
		return false, err
	}
	s, err := c.check(e)
	if err == nil {
		err = e.verify(now) // last: it is the dearest
	}
	if err != nil {
		return false, err
	}
	before, old := c.nodes[e.Prev], c.head()
	n := &node{Entry: e, before: before, state: s, ends: s.Dissolved}
	if len(before.next) > 0 {
		c.leaves++
	}
	before.next = append(before.next, n)
	c.nodes[e.ID] = n
	if before == old { // more for the branch that counts: it stays
		c.path = append(c.path, n)
	} else {
		c.choose()
		for !c.Counts(c.pin.ID) {
			c.pin = c.pin.before
		}
	}
	if n.ends && c.head() == n {
		c.pin = n
	}
	c.prune()
	if n != c.head() && n.Number%keptStates != 0 {
		n.state = nil
	}
	c.forgetStates()
	return c.head() != old, nil
}

// check returns the state after an entry, or why it cannot be added.
func (c *Chain) check(e *Entry) (*State, error) {
	before := c.nodes[e.Prev]
	switch {
	case e.Number == 1:
		return nil, invalid("it is the first entry of another group")
	case before == nil:
		return nil, fmt.Errorf("%w: %s", ErrUnlinked, e.Prev)
	case !e.Time.After(before.Time):
		return nil, invalid("its time %s is not after that of its predecessor", stamp(e.Time))
	}
	return c.stateOf(before).after(e)
}

// prune forgets branches that do not count, if there are too many: only admins can have signed them.
func (c *Chain) prune() {
	for c.leaves > maxBranches {
		var last *node
		for _, n := range c.nodes {
			if len(n.next) == 0 && n != c.head() && (last == nil || n.ID > last.ID) {
				last = n
			}
		}
		for n := last; ; n = n.before {
			delete(c.nodes, n.ID)
			n.before.next = slices.DeleteFunc(n.before.next, func(m *node) bool { return m == n })
			if len(n.before.next) > 0 {
				break
			}
		}
		c.leaves--
	}
}

// Pin states that an entry of the branch that counts was known for a while ([PinAfter]): see choose.go. The end of the group is pinned at once.
func (c *Chain) Pin(id string) {
	if n := c.nodes[id]; c.Counts(id) && n.Number > c.pin.Number {
		c.pin = n
	}
}

// Pinned returns the ID of the pinned entry.
func (c *Chain) Pinned() string { return c.pin.ID }

// PinAfter is the age of an entry at a node with which it is pinned.
const PinAfter = 10 * time.Minute

// keptStates is the distance of entries whose state is kept.
const keptStates = 32

// forgetStates forgets the state of the entry before the head, unless it is one that is kept.
func (c *Chain) forgetStates() {
	for _, n := range c.path[max(0, len(c.path)-3):max(0, len(c.path)-1)] {
		if n.Number%keptStates != 0 && n.Number > 1 {
			n.state = nil
		}
	}
}

// stateOf returns the state after an entry.
func (c *Chain) stateOf(n *node) *State {
	var missing []*node
	at := n
	for ; at.state == nil; at = at.before {
		missing = append(missing, at)
	}
	s := at.state
	for _, m := range slices.Backward(missing) {
		next, err := s.after(m.Entry) // it was permitted before
		if err != nil {
			panic(fmt.Sprintf("the entry %s was accepted and is not now: %v", m.ID, err))
		}
		s = next
	}
	return s
}

// Sign returns a new entry after the head, signed by s, in JSON. It does not add it. The error is that of [Chain.Add] for the entry.
func (c *Chain) Sign(o Op, s did.Signer, now time.Time) ([]byte, error) {
	head := c.head()
	at := now.UTC().Truncate(time.Millisecond)
	if !at.After(head.Time) {
		at = head.Time.Add(time.Millisecond)
	}
	raw, err := sign(&o, head.ID, head.Number+1, s, at)
	if err != nil {
		return nil, err
	}
	e, err := read(raw)
	if err != nil {
		return nil, err
	}
	_, err = c.check(e)
	return raw, err
}

// sign returns a signed entry.
func sign(o *Op, prev string, number int, s did.Signer, at time.Time) ([]byte, error) {
	op := o.document()
	doc := map[string]any{"versionTime": stamp(at), "op": op}
	if prev != "" {
		doc["prev"] = prev
	} else {
		op["nonce"] = rand.Text()
	}
	hash, err := hashOf(doc, prev)
	if err != nil {
		return nil, err
	}
	doc["versionId"] = fmt.Sprintf("%d-%s", number, hash)
	p, err := proof.Sign(doc, s, proof.Options{Created: at})
	if err != nil {
		return nil, err
	}
	doc["proof"] = p
	return jcs.Append(nil, doc)
}

// A Split is two entries after one, on different branches.
type Split struct {
	Before string
	Signer did.DID // of both: evidence against it; empty: different ones signed them
	IDs    []string
}

// Splits returns the places where the chain branches, in the order of their numbers.
func (c *Chain) Splits() (all []Split) {
	for _, n := range c.nodes {
		if len(n.next) < 2 {
			continue
		}
		f := Split{Before: n.ID, Signer: n.next[0].Signer}
		for _, m := range n.next {
			if f.IDs = append(f.IDs, m.ID); m.Signer != f.Signer {
				f.Signer = ""
			}
		}
		slices.Sort(f.IDs)
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b Split) int {
		return c.nodes[a.Before].Number*MaxEntries - c.nodes[b.Before].Number*MaxEntries + strings.Compare(a.Before, b.Before)
	})
	return all
}

// Locator returns ids by which another node finds the newest entry that both have: those of the chosen branch at growing distances from the
// head, and the ends of the other branches.
func (c *Chain) Locator() (ids []string) {
	for at, step := len(c.path)-1, 1; at > 0; at -= step {
		if ids = append(ids, c.path[at].ID); len(ids) > 8 {
			step *= 2
		}
	}
	ids = append(ids, c.first.ID)
	if c.leaves == 1 {
		return ids
	}
	for _, id := range slices.Sorted(maps.Keys(c.nodes)) {
		if n := c.nodes[id]; len(n.next) == 0 && n != c.head() {
			ids = append(ids, id)
		}
	}
	return ids
}

// Missing returns the entries that a node with a [Chain.Locator] may lack, each after its predecessor.
func (c *Chain) Missing(locator []string) (all []*Entry) {
	if c.leaves == 1 {
		return c.UpTo(len(c.path), locator)
	}
	has := map[*node]bool{}
	for _, id := range locator {
		for n := c.nodes[id]; n != nil && !has[n]; n = n.before {
			has[n] = true
		}
	}
	queue := []*node{c.first}
	for len(queue) > 0 {
		n := queue[0]
		queue = append(queue[1:], n.next...)
		if !has[n] {
			all = append(all, n.Entry)
		}
	}
	return all
}

// UpTo returns the entries of the chosen branch up to a number, without those that a node with a locator has.
func (c *Chain) UpTo(number int, locator []string) (all []*Entry) {
	from := 0
	for _, id := range locator {
		if c.Counts(id) {
			from = max(from, c.nodes[id].Number)
		}
	}
	for _, n := range c.path[min(from, len(c.path)):] {
		if n.Number <= number {
			all = append(all, n.Entry)
		}
	}
	return all
}

// Until returns the number of the last entry that a node may receive: that of the head for a node of a member, and that of the entry that
// ended the last membership for a node of a former one, or of one that moved. It returns 0 for other nodes.
func (c *Chain) Until(node did.DID) (number int) {
	s := c.State()
	if len(s.At(node)) > 0 {
		return c.head().Number
	}
	for _, f := range s.Former {
		if f.Node == node {
			number = max(number, f.Until)
		}
	}
	for _, m := range s.moved {
		if m.node == node {
			number = max(number, m.until)
		}
	}
	return number
}

// Lost returns the removals on branches that do not count, which an admin signed and which still apply: the member was not added again since.
// Their targets are to be treated as removed until an admin has signed it again.
func (c *Chain) Lost() (all []*Entry) {
	if c.leaves == 1 {
		return nil
	}
	s := c.State()
	for _, n := range c.nodes {
		if n.Op.Kind != Remove || c.Counts(n.ID) || !s.isAdmin(n.Signer) {
			continue
		}
		common := n.before
		for !c.Counts(common.ID) {
			common = common.before
		}
		if m, ok := s.Member(n.Op.Member.DID); ok && m.last <= common.Number {
			all = append(all, n.Entry)
		}
	}
	return all
}

// Entry returns an entry by its ID, of any branch, or nil.
func (c *Chain) Entry(id string) *Entry {
	if n := c.nodes[id]; n != nil {
		return n.Entry
	}
	return nil
}
