package reconcile

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"iter"
	"math/bits"
	"slices"
	"sync"
)

// Sizes of the leaves of the tree. With two thresholds, one item that is added and removed does not split and join a leaf each time.
const (
	maxLeaf    = 64 // items; with more a leaf is split
	joinedLeaf = 16 // items; with as few a branch becomes a leaf
	keyDepth   = 64 // nibbles of a key
)

// An item is the key of a Thing ([td.Key]) and the seq of its newest record.
type item struct {
	key [32]byte
	seq uint64
}

// digest returns SHA-256 of key and seq as four words of a number.
func (it item) digest() (d total) {
	var b [40]byte
	copy(b[:], it.key[:])
	binary.BigEndian.PutUint64(b[32:], it.seq)
	h := sha256.Sum256(b[:])
	for i := range d {
		d[i] = binary.BigEndian.Uint64(h[8*i:])
	}
	return d
}

// A total is a sum of digests modulo 2^256, the last word the lowest. XOR would be weaker: of 256 chosen items some cancel each other out.
type total [4]uint64

func (t *total) add(o total) {
	var carry uint64
	for i := 3; i >= 0; i-- {
		t[i], carry = bits.Add64(t[i], o[i], carry)
	}
}

func (t *total) sub(o total) {
	var borrow uint64
	for i := 3; i >= 0; i-- {
		t[i], borrow = bits.Sub64(t[i], o[i], borrow)
	}
}

// A fingerprint describes the items of a node in a range: their number, and the first 16 bytes of SHA-256 of number and total.
type fingerprint struct {
	count uint32
	hash  [16]byte
}

func newFingerprint(count int, t total) fingerprint {
	var b [36]byte
	binary.BigEndian.PutUint32(b[:], uint32(count))
	for i, w := range t {
		binary.BigEndian.PutUint64(b[4+8*i:], w)
	}
	sum := sha256.Sum256(b[:])
	return fingerprint{count: uint32(count), hash: [16]byte(sum[:16])}
}

// A Set holds the items of this node. The zero value is an empty set. It is safe for concurrent use.
//
// It is a tree over the nibbles of keys with a count and a fingerprint in each node, so that a change and the fingerprint of a range cost
// O(log n). Keys are hashes, which keeps the tree flat. An item takes 44 to 70 bytes. Views do not change: a change copies the nodes on its path
// that a view may use.
type Set struct {
	mu    sync.Mutex
	epoch uint64 // all of these are owned by mu; trees of earlier epochs never change
	root  *tree
}

// A tree is a branch with kids or a leaf with items.
type tree struct {
	epoch uint64
	count int
	total total
	kids  *[16]*tree // nil in a leaf; a kid without items is nil
	items []item     // of a leaf, sorted by key
}

// Put sets the seq of the newest record of the Thing with a key.
func (s *Set) Put(key [32]byte, seq uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, known := s.root.get(key)
	if known && old.seq == seq {
		return
	}
	c := change{item: item{key, seq}}
	c.by = c.item.digest()
	if known {
		c.by.sub(old.digest())
	} else {
		c.more = 1
	}
	s.root = s.apply(s.root, 0, &c)
}

// Delete removes the Thing with a key.
func (s *Set) Delete(key [32]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, known := s.root.get(key)
	if !known {
		return
	}
	c := change{item: old, more: -1}
	c.by.sub(old.digest())
	s.root = s.apply(s.root, 0, &c)
}

// Len returns the number of items.
func (s *Set) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.root.size()
}

// view returns the set as it is now. It never changes and is read without a lock; nil is an empty one.
func (s *Set) view() *tree {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch++
	return s.root
}

// A change is the effect of a Put or Delete on each node on the path to its item.
type change struct {
	item item
	by   total
	more int // 1: a new item; 0: another seq; -1: a removed item
}

// apply returns n with a change applied, or nil if it is empty then.
func (s *Set) apply(n *tree, depth int, c *change) *tree {
	n = s.own(n)
	n.count += c.more
	n.total.add(c.by)
	switch {
	case n.count == 0:
		return nil
	case n.kids == nil:
		n.set(c)
		if len(n.items) > maxLeaf && depth < keyDepth {
			s.split(n, depth)
		}
		return n
	}
	kid := &n.kids[nibble(&c.item.key, depth)]
	*kid = s.apply(*kid, depth+1, c)
	if c.more < 0 && n.count <= joinedLeaf {
		n.items = slices.AppendSeq(make([]item, 0, n.count), n.all(nil))
		n.kids = nil
	}
	return n
}

// own returns n if no view has it, or a copy that may be changed.
func (s *Set) own(n *tree) *tree {
	switch {
	case n == nil:
		return &tree{epoch: s.epoch}
	case n.epoch == s.epoch:
		return n
	}
	mine := *n
	mine.epoch, mine.items = s.epoch, slices.Clone(n.items)
	if n.kids != nil {
		kids := *n.kids
		mine.kids = &kids
	}
	return &mine
}

// set changes the items of a leaf.
func (n *tree) set(c *change) {
	i, found := slices.BinarySearchFunc(n.items, c.item.key, compareKey)
	switch {
	case c.more < 0:
		n.items = slices.Delete(n.items, i, i+1)
	case found:
		n.items[i] = c.item
	default:
		if len(n.items) == cap(n.items) { // grow by a few, to save memory
			n.items = append(make([]item, 0, len(n.items)+4), n.items...)
		}
		n.items = slices.Insert(n.items, i, c.item)
	}
}

// split turns a leaf into a branch.
func (s *Set) split(n *tree, depth int) {
	items := n.items
	n.items, n.kids = nil, new([16]*tree)
	for len(items) > 0 {
		at := nibble(&items[0].key, depth)
		end := slices.IndexFunc(items, func(it item) bool { return nibble(&it.key, depth) != at })
		if end < 0 {
			end = len(items)
		}
		kid := &tree{epoch: s.epoch, count: end, items: slices.Clone(items[:end])}
		for _, it := range kid.items {
			kid.total.add(it.digest())
		}
		if end > maxLeaf && depth+1 < keyDepth {
			s.split(kid, depth+1)
		}
		n.kids[at], items = kid, items[end:]
	}
}

func (n *tree) size() int {
	if n == nil {
		return 0
	}
	return n.count
}

// get returns the item of a key.
func (n *tree) get(key [32]byte) (item, bool) {
	for depth := 0; n != nil; depth++ {
		if n.kids == nil {
			i, found := slices.BinarySearchFunc(n.items, key, compareKey)
			if !found {
				return item{}, false
			}
			return n.items[i], true
		}
		n = n.kids[nibble(&key, depth)]
	}
	return item{}, false
}

// fingerprint returns the fingerprint of the range of keys that begin with the nibbles of at.
func (n *tree) fingerprint(at []byte) fingerprint {
	n, exact := n.under(at)
	if n == nil {
		return newFingerprint(0, total{})
	}
	if exact {
		return newFingerprint(n.count, n.total)
	}
	var t total
	count := 0
	for it := range n.all(at) {
		count++
		t.add(it.digest())
	}
	return newFingerprint(count, t)
}

// under returns the node of a range; if not exact, it is a leaf that also has other items.
func (n *tree) under(at []byte) (of *tree, exact bool) {
	for _, x := range at {
		if n == nil || n.kids == nil {
			return n, false
		}
		n = n.kids[x]
	}
	return n, true
}

// all yields the items of the range of keys that begin with the nibbles of at, by key.
func (n *tree) all(at []byte) iter.Seq[item] {
	return func(yield func(item) bool) {
		n, exact := n.under(at)
		if n != nil {
			n.walk(func(it item) bool { return !exact && !begins(&it.key, at) || yield(it) })
		}
	}
}

func (n *tree) walk(yield func(item) bool) bool {
	for _, it := range n.items {
		if !yield(it) {
			return false
		}
	}
	if n.kids == nil {
		return true
	}
	for _, kid := range n.kids {
		if kid != nil && !kid.walk(yield) {
			return false
		}
	}
	return true
}

func compareKey(it item, key [32]byte) int { return bytes.Compare(it.key[:], key[:]) }

// nibble returns the i-th half byte of a key, from 0 to 15.
func nibble(key *[32]byte, i int) byte {
	if i%2 == 0 {
		return key[i/2] >> 4
	}
	return key[i/2] & 15
}

// begins reports whether a key begins with the nibbles of at.
func begins(key *[32]byte, at []byte) bool {
	for i, x := range at {
		if nibble(key, i) != x {
			return false
		}
	}
	return true
}
