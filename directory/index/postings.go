package index

import (
	"iter"
	"slices"
	"sort"
)

// maxChunk is the size limit of a chunk: moving half of it costs less than finding the position.
const maxChunk = 512

// chunks is an ascending sequence in chunks, so that the cost of a change hardly depends on the length. The caller defines the order.
type chunks[T any] struct {
	parts [][]T // none is empty
	n     int
}

// seek returns the position of the first value that is not less than the target.
func (c *chunks[T]) seek(before func(T) bool) (part, at int) {
	if last := len(c.parts) - 1; last >= 0 && before(c.parts[last][len(c.parts[last])-1]) {
		return last + 1, 0
	}
	part = sort.Search(len(c.parts), func(i int) bool { p := c.parts[i]; return !before(p[len(p)-1]) })
	if part == len(c.parts) {
		return part, 0
	}
	p := c.parts[part]
	return part, sort.Search(len(p), func(i int) bool { return !before(p[i]) })
}

// nth returns the position of the ith value.
func (c *chunks[T]) nth(i int) (part, at int) {
	for part < len(c.parts) && i >= len(c.parts[part]) {
		i -= len(c.parts[part])
		part++
	}
	return part, i
}

// get returns the value at a position, if there is one.
func (c *chunks[T]) get(part, at int) (v T, ok bool) {
	if part >= len(c.parts) || at >= len(c.parts[part]) {
		return v, false
	}
	return c.parts[part][at], true
}

// insert inserts v at a position of seek.
func (c *chunks[T]) insert(part, at int, v T) {
	c.n++
	if last := len(c.parts) - 1; part > last {
		// Appending, the most frequent case, fills the last chunk.
		if last < 0 || len(c.parts[last]) == maxChunk {
			c.parts = append(c.parts, []T{v})
			return
		}
		part, at = last, len(c.parts[last])
	}
	if len(c.parts[part]) == maxChunk {
		const half = maxChunk / 2
		upper := slices.Clone(c.parts[part][half:])
		clear(c.parts[part][half:])
		c.parts[part] = c.parts[part][:half]
		c.parts = slices.Insert(c.parts, part+1, upper)
		if at > half {
			part, at = part+1, at-half
		}
	}
	c.parts[part] = slices.Insert(c.parts[part], at, v)
}

// remove removes the value at a position.
func (c *chunks[T]) remove(part, at int) {
	c.n--
	c.parts[part] = slices.Delete(c.parts[part], at, at+1)
	if len(c.parts[part]) == 0 {
		c.parts = slices.Delete(c.parts, part, part+1)
		return
	}
	if next := part + 1; next < len(c.parts) && len(c.parts[part])+len(c.parts[next]) <= maxChunk/4 {
		c.parts[part] = append(c.parts[part], c.parts[next]...)
		c.parts = slices.Delete(c.parts, next, next+1)
	}
}

// from yields the values from a position on.
func (c *chunks[T]) from(part, at int) iter.Seq[T] {
	return func(yield func(T) bool) {
		for ; part < len(c.parts); part, at = part+1, 0 {
			for _, v := range c.parts[part][at:] {
				if !yield(v) {
					return
				}
			}
		}
	}
}

// A posting has a slot in its upper 24 bits, and in a list of words the weight, 0 to 255, in the lower 8.
type posting uint32

// MaxSlots is the limit of Things in an index.
const MaxSlots = 1 << 24

func (p posting) slot() uint32 { return uint32(p >> 8) }
func (p posting) weight() byte { return byte(p) }

func post(slot uint32, weight byte) posting { return posting(slot<<8 | uint32(weight)) }

// A List has the postings of the Things with a term, by slot. The zero value is empty. Short lists, the most frequent ones, are plain slices.
type List struct {
	few  []posting
	many *chunks[posting]
	last posting // none is higher: a higher one is appended without a search, which most are
}

// maxFew is the length above which a list has chunks.
const maxFew = maxChunk

// Len returns the number of slots; 0 for a nil list.
func (l *List) Len() int {
	switch {
	case l == nil:
		return 0
	case l.many != nil:
		return l.many.n
	}
	return len(l.few)
}

// All yields the slots, ascending.
func (l *List) All() iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for _, part := range l.parts() {
			for _, p := range part {
				if !yield(p.slot()) {
					return
				}
			}
		}
	}
}

// parts returns the postings in chunks, by slot.
func (l *List) parts() [][]posting {
	switch {
	case l == nil:
		return nil
	case l.many != nil:
		return l.many.parts
	}
	return [][]posting{l.few}
}

// position is chunks.seek for the first posting of l.many with at least slot, but faster.
func (l *List) position(slot uint32) (part, at int) {
	parts := l.many.parts
	first := posting(slot << 8)
	if end := parts[len(parts)-1]; end[len(end)-1] < first {
		return len(parts), 0
	}
	part = sort.Search(len(parts), func(i int) bool { return parts[i][len(parts[i])-1] >= first })
	p := parts[part]
	return part, sort.Search(len(p), func(i int) bool { return p[i] >= first })
}

func compareSlots(p posting, slot uint32) int { return int(p.slot()) - int(slot) }

// Has reports whether slot is in the list.
func (l *List) Has(slot uint32) bool {
	if l == nil {
		return false
	}
	part := l.few
	if l.many != nil {
		parts := l.many.parts
		i, _ := l.position(slot)
		if i == len(parts) {
			return false
		}
		part = parts[i]
	}
	_, ok := slices.BinarySearchFunc(part, slot, compareSlots)
	return ok
}

// Add adds a slot.
func (l *List) Add(slot uint32) { l.add(post(slot, 0)) }

// add adds a posting; it reports whether its slot is new to the list.
func (l *List) add(p posting) bool {
	last := p > l.last|0xFF
	l.last = max(l.last, p)
	if l.many == nil {
		at, found := len(l.few), false
		if !last {
			at, found = slices.BinarySearchFunc(l.few, p.slot(), compareSlots)
		}
		if found {
			return false
		}
		if len(l.few) < maxFew {
			l.few = slices.Insert(l.few, at, p)
			return true
		}
		l.many = &chunks[posting]{parts: [][]posting{l.few}, n: len(l.few)}
		l.few = nil
	}
	part, at := len(l.many.parts), 0
	if !last {
		part, at = l.position(p.slot())
		if o, ok := l.many.get(part, at); ok && o.slot() == p.slot() {
			return false
		}
	}
	l.many.insert(part, at, p)
	return true
}

// Remove removes a slot, if it is in the list.
func (l *List) Remove(slot uint32) {
	if l.many == nil {
		if at, found := slices.BinarySearchFunc(l.few, slot, compareSlots); found {
			l.few = slices.Delete(l.few, at, at+1)
		}
		return
	}
	part, at := l.position(slot)
	if o, ok := l.many.get(part, at); ok && o.slot() == slot {
		l.many.remove(part, at)
	}
	if l.many.n <= maxFew/4 {
		var few []posting
		for _, p := range l.many.parts {
			few = append(few, p...)
		}
		l.few, l.many = few, nil
	}
}

// A Set is a set of slots.
type Set []uint64

// NewSet returns an empty set for slots below a number.
func NewSet(slots int) Set { return make(Set, (slots+63)/64) }

// Add adds a slot.
func (b Set) Add(slot uint32) { b[slot/64] |= 1 << (slot % 64) }

// Has reports whether the set has a slot.
func (b Set) Has(slot uint32) bool { return b[slot/64]&(1<<(slot%64)) != 0 }
