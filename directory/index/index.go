// Package index finds things by what they have in common: inverted lists by capability, owner, host, affordance, type, protocol,
// name and word, and an order by id. It knows no descriptions: a thing is a number, its slot, for which its user keeps the rest.
//
// The cost of a question follows the size of its answer, and that of a change the number of terms of one thing, whatever the
// number of things: lists are kept in chunks, and the words that are like a given one are found without a walk through all.
package index

import (
	"cmp"
	"iter"
	"maps"
	"strings"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

// An Index is plain data: its user locks. The zero value is empty.
type Index struct {
	// Version changes whenever something is entered or taken out. Its user sets where it begins.
	Version uint64

	records []*td.Record // by slot; nil: free
	free    []uint32
	terms   []term // those without a text are free
	spare   []uint32
	ids     [kinds]map[string]uint32 // places in terms
	words   vocabulary
	order   chunks[uint32] // all slots in use, by thing id and then owner
	bytes   int            // about what terms take
}

// A Place is where a thing is in an index.
type Place struct {
	Slot  uint32
	terms []uint32
}

// Terms returns how many terms the thing has.
func (p Place) Terms() int { return len(p.terms) }

// Len returns how many things there are.
func (x *Index) Len() int { return x.order.n }

// Words returns how many roots of words there are.
func (x *Index) Words() int { return len(x.ids[Word]) }

// Bytes returns about how many bytes all terms take, without their postings: these take about 12 for each term of a thing.
func (x *Index) Bytes() int { return x.bytes }

// A term is something that things are found by.
type term struct {
	text  string
	kind  Kind
	shape uint32 // of a word: its place in its bucket, see vocabulary
	list  List
}

// termBytes is about what a term takes beside its text and its postings.
const termBytes = 128

// List returns what has a term; nil if nothing has. It changes with the index.
func (x *Index) List(k Kind, text string) *List {
	if id, ok := x.ids[k][text]; ok {
		return &x.terms[id].list
	}
	return nil
}

// Texts yields the terms of a kind, in no order.
func (x *Index) Texts(k Kind) iter.Seq[string] { return maps.Keys(x.ids[k]) }

// Add enters a thing with its record and what it is found by. No two things have the same id and owner.
func (x *Index) Add(r *td.Record, by []Label) Place {
	var p Place
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

// Refresh gives a thing another record that says the same of it.
func (x *Index) Refresh(p Place, r *td.Record) { x.records[p.Slot] = r }

// Share has a record that nobody else has seen use the names that are here already.
func (x *Index) Share(r *td.Record) {
	if id, ok := x.ids[Owner][string(r.Owner)]; ok {
		r.Owner = did.DID(x.terms[id].text)
	}
	for i, h := range r.Hosts {
		if id, ok := x.ids[Host][string(h.Node)]; ok {
			r.Hosts[i].Node = did.DID(x.terms[id].text)
		}
	}
}

// term returns the place of a term, which is made if it is new.
func (x *Index) term(k Kind, text string) uint32 {
	if id, ok := x.ids[k][text]; ok {
		return id
	}
	text = strings.Clone(text) // it may be part of a whole description, which would stay with it
	var id uint32
	if n := len(x.spare); n > 0 {
		id, x.spare = x.spare[n-1], x.spare[:n-1]
	} else {
		id = uint32(len(x.terms))
		x.terms = append(x.terms, term{})
	}
	x.terms[id] = term{text: text, kind: k}
	if x.ids[k] == nil {
		x.ids[k] = map[string]uint32{}
	}
	x.ids[k][text] = id
	x.bytes += termBytes + len(text)
	if k == Word {
		x.words.add(x.terms, id)
	}
	return id
}

// Cost returns how many bytes would be new to the index.
func (x *Index) Cost(by []Label) (bytes int) {
	for _, l := range by {
		if _, known := x.ids[l.kind][l.text]; !known {
			bytes += termBytes + len(l.text)
		}
	}
	return bytes
}

// MaxCost is no less than [Index.Cost] of so many labels.
func MaxCost(labels int) int { return labels * (termBytes + td.MaxID) }

// drop forgets a term that nothing has any more.
func (x *Index) drop(id uint32) {
	t := &x.terms[id]
	if t.kind == Word {
		x.words.remove(x.terms, id)
	}
	delete(x.ids[t.kind], t.text)
	x.bytes -= termBytes + len(t.text)
	*t = term{}
	x.spare = append(x.spare, id)
}

// Remove takes a thing out.
func (x *Index) Remove(p Place) {
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

// position returns where a thing is in the order, or belongs.
func (x *Index) position(r *td.Record) (part, at int) {
	return x.order.seek(func(slot uint32) bool { return compareThings(x.records[slot], r) < 0 })
}

// compareThings orders things by id, and those of one id by owner.
func compareThings(a, b *td.Record) int {
	return cmp.Or(strings.Compare(a.Thing, b.Thing), strings.Compare(string(a.Owner), string(b.Owner)))
}

// compareOwners orders things by owner, and those of one owner by id.
func compareOwners(a, b *td.Record) int {
	return cmp.Or(strings.Compare(string(a.Owner), string(b.Owner)), strings.Compare(a.Thing, b.Thing))
}

// Named returns the things of an id, one of each owner. No list holds them: the order does.
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
