// Package index is an inverted index of Things by capability, owner, host, affordance, type, protocol, name and word, with an order by id. It
// does not store descriptions: a Thing is a number, its slot.
//
// The cost of a query depends on the size of its result, and that of a change on the number of terms of one Thing, not on the number of
// Things: lists are kept in chunks, and words similar to a given one are found without a scan.
package index

import (
	"cmp"
	"iter"
	"strings"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

// An Index is not synchronized. The zero value is empty.
type Index struct {
	// Version changes with each addition and removal. The user of the index sets the start value.
	Version uint64

	records []*td.Record // by slot; nil: free
	free    []uint32
	terms   []term // free ones have no text
	spare   []uint32
	ids     [kinds]table
	words   vocabulary
	order   chunks[uint32] // all slots in use, by thing id and then owner
	bytes   int            // approximate memory of terms
}

// A Position is the position of a Thing in an index.
type Position struct {
	Slot  uint32
	terms []uint32
}

// Terms returns the number of terms of the Thing.
func (p Position) Terms() int { return len(p.terms) }

// Len returns the number of Things.
func (x *Index) Len() int { return x.order.n }

// Words returns the number of word roots.
func (x *Index) Words() int { return x.ids[Word].n }

// Bytes returns the approximate memory of all terms, without their postings of about 12 bytes per term and Thing.
func (x *Index) Bytes() int { return x.bytes }

// A term is a key of the index.
type term struct {
	text  string
	kind  Kind
	shape uint32 // of a word: its index in its bucket, see vocabulary
	list  List
}

// termBytes is the approximate memory of a term without its text and postings.
const termBytes = 128

// List returns the Things with a term; nil if there are none. It changes with the index.
func (x *Index) List(k Kind, text string) *List {
	if id, ok := x.ids[k].find(x.terms, text); ok {
		return &x.terms[id].list
	}
	return nil
}

// Texts yields the terms of a kind, in any order.
func (x *Index) Texts(k Kind) iter.Seq[string] {
	return func(yield func(string) bool) {
		for id := range x.ids[k].all() {
			if !yield(x.terms[id].text) {
				return
			}
		}
	}
}

// Add adds a Thing with its record and terms. Id and owner together are unique.
func (x *Index) Add(r *td.Record, by []Label) Position {
	var p Position
	if n := len(x.free); n > 0 {
		p.Slot, x.free = x.free[n-1], x.free[:n-1]
		x.records[p.Slot] = r
	} else {
		p.Slot = uint32(len(x.records))
		x.records = append(x.records, r)
	}
	p.terms = make([]uint32, len(by))
	for i, l := range by {
		id := x.term(l.kind, l.text)
		p.terms[i] = id
		x.terms[id].list.add(post(p.Slot, l.weight))
	}
	part, at := x.position(r)
	x.order.insert(part, at, p.Slot)
	x.Version++
	return p
}

// Refresh replaces the record of a Thing by one with the same terms.
func (x *Index) Refresh(p Position, r *td.Record) { x.records[p.Slot] = r }

// Share lets a new record use the strings of the index.
func (x *Index) Share(r *td.Record) {
	if id, ok := x.ids[Owner].find(x.terms, string(r.Owner)); ok {
		r.Owner = did.DID(x.terms[id].text)
	}
	for i, h := range r.Hosts {
		if id, ok := x.ids[Host].find(x.terms, string(h.Node)); ok {
			r.Hosts[i].Node = did.DID(x.terms[id].text)
		}
	}
}

// term returns the index of a term, and creates it if necessary.
func (x *Index) term(k Kind, text string) uint32 {
	if id, ok := x.ids[k].find(x.terms, text); ok {
		return id
	}
	text = strings.Clone(text) // it may be a part of a whole description, which would stay in memory
	var id uint32
	if n := len(x.spare); n > 0 {
		id, x.spare = x.spare[n-1], x.spare[:n-1]
	} else {
		id = uint32(len(x.terms))
		x.terms = append(x.terms, term{})
	}
	x.terms[id] = term{text: text, kind: k}
	x.ids[k].add(text, id)
	x.bytes += termBytes + len(text)
	if k == Word {
		x.words.add(x.terms, id)
	}
	return id
}

// Cost returns the additional memory of terms, in bytes.
func (x *Index) Cost(by []Label) (bytes int) {
	for _, l := range by {
		if _, known := x.ids[l.kind].find(x.terms, l.text); !known {
			bytes += termBytes + len(l.text)
		}
	}
	return bytes
}

// MaxCost is an upper bound of [Index.Cost] for a number of labels.
func MaxCost(labels int) int { return labels * (termBytes + td.MaxID) }

// drop removes a term without postings.
func (x *Index) drop(id uint32) {
	t := &x.terms[id]
	if t.kind == Word {
		x.words.remove(x.terms, id)
	}
	x.ids[t.kind].remove(x.terms, t.text)
	x.bytes -= termBytes + len(t.text)
	*t = term{}
	x.spare = append(x.spare, id)
}

// Remove removes a Thing.
func (x *Index) Remove(p Position) {
	for _, id := range p.terms {
		l := &x.terms[id].list
		if l.Remove(p.Slot); l.Len() == 0 {
			x.drop(id)
		}
	}
	part, at := x.position(x.records[p.Slot])
	if slot, ok := x.order.get(part, at); ok && slot == p.Slot {
		x.order.remove(part, at)
	}
	x.records[p.Slot] = nil
	x.free = append(x.free, p.Slot)
	x.Version++
}

// position returns the position of a Thing in the order.
func (x *Index) position(r *td.Record) (part, at int) {
	return x.order.seek(func(slot uint32) bool { return compareThings(x.records[slot], r) < 0 })
}

// compareThings orders Things by id, then owner.
func compareThings(a, b *td.Record) int {
	return cmp.Or(strings.Compare(a.Thing, b.Thing), strings.Compare(string(a.Owner), string(b.Owner)))
}

// compareOwners orders Things by owner, then id.
func compareOwners(a, b *td.Record) int {
	return cmp.Or(strings.Compare(string(a.Owner), string(b.Owner)), strings.Compare(a.Thing, b.Thing))
}

// Slots yields the slots in use, by thing id and then owner.
func (x *Index) Slots() iter.Seq[uint32] { return x.order.from(0, 0) }

// Named returns the Things with an id, one per owner, from the order by id.
func (x *Index) Named(id string) *List {
	var l List
	for slot := range x.order.from(x.order.seek(func(slot uint32) bool { return x.records[slot].Thing < id })) {
		if x.records[slot].Thing != id {
			break
		}
		l.Add(slot)
	}
	return &l
}
