package index

import (
	"hash/maphash"
	"iter"
)

// A table finds the terms of one kind by their text. It takes a third of the memory of a map with the texts, which the terms have already. The zero
// value is empty.
type table struct {
	slots []entry // a power of two of them; a free one is zero
	n     int
}

// An entry has a part of the hash of a text, which decides its place, in the upper 32 bits, and in the lower ones the index of the term plus 1.
type entry uint64

func (e entry) hash() uint32 { return uint32(e >> 32) }
func (e entry) term() uint32 { return uint32(e) - 1 }

// seed is secret, so that no author of texts can make them collide.
var seed = maphash.MakeSeed()

func hashOf(text string) uint32 { return uint32(maphash.String(seed, text)) }

// find returns the index of the term with a text.
func (t *table) find(terms []term, text string) (id uint32, ok bool) {
	at, ok := t.seek(terms, text)
	if !ok {
		return 0, false
	}
	return t.slots[at].term(), true
}

// seek returns the place of the term with a text, or the free one where its search ends.
func (t *table) seek(terms []term, text string) (at int, ok bool) {
	if len(t.slots) == 0 {
		return 0, false
	}
	hash := hashOf(text)
	for at = t.home(hash); t.slots[at] != 0; at = t.next(at) {
		if e := t.slots[at]; e.hash() == hash && terms[e.term()].text == text {
			return at, true
		}
	}
	return at, false
}

func (t *table) home(hash uint32) int { return int(hash) & (len(t.slots) - 1) }
func (t *table) next(at int) int      { return (at + 1) & (len(t.slots) - 1) }

// add adds a term whose text is not in the table.
func (t *table) add(text string, id uint32) {
	if t.n++; 4*t.n > 3*len(t.slots) {
		old := t.slots
		t.slots = make([]entry, max(8, 2*len(old)))
		for _, e := range old {
			if e != 0 {
				t.place(e)
			}
		}
	}
	t.place(entry(hashOf(text))<<32 | entry(id+1))
}

func (t *table) place(e entry) {
	at := t.home(e.hash())
	for t.slots[at] != 0 {
		at = t.next(at)
	}
	t.slots[at] = e
}

// remove removes the term with a text.
func (t *table) remove(terms []term, text string) {
	free, ok := t.seek(terms, text)
	if !ok {
		return
	}
	t.n--
	// A later entry moves to the free place, unless its search begins behind it.
	for at := t.next(free); t.slots[at] != 0; at = t.next(at) {
		distance := (at - t.home(t.slots[at].hash())) & (len(t.slots) - 1)
		if distance >= (at-free)&(len(t.slots)-1) {
			t.slots[free], free = t.slots[at], at
		}
	}
	t.slots[free] = 0
}

// all yields the indexes of the terms, in any order.
func (t *table) all() iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for _, e := range t.slots {
			if e != 0 && !yield(e.term()) {
				return
			}
		}
	}
}
