package index

import (
	"iter"
	"slices"
	"sort"
)

// maxChunk is how many values one chunk has at most: to move half of that costs less than to find the place.
const maxChunk = 512

// chunks is an ascending sequence in pieces, so that a change costs about the same at any length. Its owner knows the order.
type chunks[T any] struct {
	parts [][]T // none is empty
	n     int
}

// seek returns the place of the first value that is not before what is sought.
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

// nth returns the place of the ith value.
func (c *chunks[T]) nth(i int) (part, at int) {
	for part < len(c.parts) && i >= len(c.parts[part]) {
		i -= len(c.parts[part])
		part++
	}
	return part, i
}

// get returns the value at a place, if there is one.
func (c *chunks[T]) get(part, at int) (v T, ok bool) {
	if part >= len(c.parts) || at >= len(c.parts[part]) {
		return v, false
	}
	return c.parts[part][at], true
}

// insert puts v at a place that seek has returned.
func (c *chunks[T]) insert(part, at int, v T) {
	c.n++
	if last := len(c.parts) - 1; part > last {
		// What grows at its end, as most do, fills its chunks.
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

// remove takes out what is at a place.
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

// from yields the values from a place on.
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

// A posting is the slot of a thing, and above a list of words how much the word says of its thing, 0 to 255.
type posting uint32

// MaxSlots is how many things an index can have at once.
const MaxSlots = 1 << 24

func (p posting) slot() uint32 { return uint32(p >> 8) }
func (p posting) weight() byte { return byte(p) }

func post(slot uint32, weight byte) posting { return posting(slot<<8 | uint32(weight)) }

// A List holds the postings of the things that have something in common, by slot. The zero value is empty. Most lists are
// short: these are plain.
type List struct {
	few  []posting
	many *chunks[posting]
}

// maxFew is the length above which a list has chunks.
const maxFew = maxChunk

// Len returns how many slots there are; a nil list has none.
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

// parts returns the postings in pieces, by slot.
func (l *List) parts() [][]posting {
	switch {
	case l == nil:
		return nil
	case l.many != nil:
		return l.many.parts
	}
	return [][]posting{l.few}
}

// place returns the place of the first posting of l.many whose slot is not below slot: seek, for what is asked most.
func (l *List) place(slot uint32) (part, at int) {
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
		i, _ := l.place(slot)
		if i == len(parts) {
			return false
		}
		part = parts[i]
	}
	_, ok := slices.BinarySearchFunc(part, slot, compareSlots)
	return ok
}

// Add enters a slot.
func (l *List) Add(slot uint32) { l.add(post(slot, 0)) }

// add enters a posting; it reports whether its slot is new to the list.
func (l *List) add(p posting) bool {
	if l.many == nil {
		at, found := len(l.few), false
		if at > 0 && l.few[at-1].slot() >= p.slot() { // most come at the end
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
	part, at := l.place(p.slot())
	if o, ok := l.many.get(part, at); ok && o.slot() == p.slot() {
		return false
	}
	l.many.insert(part, at, p)
	return true
}

// Remove takes a slot out, if it is in the list.
func (l *List) Remove(slot uint32) {
	if l.many == nil {
		if at, found := slices.BinarySearchFunc(l.few, slot, compareSlots); found {
			l.few = slices.Delete(l.few, at, at+1)
		}
		return
	}
	part, at := l.place(slot)
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

// slotSet is a set of slots.
type slotSet []uint64

func newSlotSet(slots int) slotSet { return make(slotSet, (slots+63)/64) }

func (b slotSet) add(slot uint32)      { b[slot/64] |= 1 << (slot % 64) }
func (b slotSet) has(slot uint32) bool { return b[slot/64]&(1<<(slot%64)) != 0 }
