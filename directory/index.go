package directory

import (
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

// kind says what the text of a list is.
type kind int

const (
	byCapability kind = iota // a prefix of a capability, by levels
	byID
	byOwner
	byAction
	byType
	byName // what people call a thing, see td.Ref
	byWord
	kinds
)

// A list holds the slots of the entries that have something in common, ascending.
type list []uint32

// index finds entries by what their things have in common. It is plain data: its owner locks.
type index struct {
	slots []*entry // nil: free
	free  []uint32
	lists [kinds]map[string]list
	order list // all slots in use, by thing id and then owner
	own   list // what this node publishes
}

// Bounds of what one thing may put into the index.
const (
	maxWords    = 512 // distinct words; what has more is not found by the rest
	maxPrefixes = 12  // levels of a capability; deeper ones are sifted
)

// termsOf yields everything that a thing is found by. It yields the same whenever it is called with the same
// description, whatever the order of its maps, and may repeat itself.
func termsOf(d *td.Description) iter.Seq2[kind, string] {
	return func(yield func(kind, string) bool) {
		for _, capability := range d.Terms() {
			for p := range prefixes(capability) {
				if !yield(byCapability, p) {
					return
				}
			}
		}
		for name := range d.Actions {
			if !yield(byAction, foldName(name)) {
				return
			}
		}
		for _, t := range d.Types {
			if !yield(byType, bareType(t)) {
				return
			}
		}
		for _, name := range namesOf(d) {
			if !yield(byName, name) {
				return
			}
		}
		_ = yield(byID, d.Record.Thing) && yield(byOwner, string(d.Record.Owner)) && yieldWords(d, yield)
	}
}

// prefixes yields the prefixes of a normal capability id by levels, shortest first. The first four are those of
// td.Levels.
func prefixes(capability string) iter.Seq[string] {
	// Separators do not matter: "a/b" and "a:b" have the same levels. A normal id has no empty level.
	joined := strings.ReplaceAll(strings.TrimPrefix(capability, "urn:"), "/", ":")
	return func(yield func(string) bool) {
		n := 1
		for i := range len(joined) {
			if joined[i] != ':' {
				continue
			}
			if !yield(joined[:i]) || n == maxPrefixes {
				return
			}
			n++
		}
		yield(joined)
	}
}

// deepest returns the longest prefix of a capability id that the index has lists for, or false if the id has no normal
// form.
func deepest(capability string) (prefix string, ok bool) {
	id, ok := td.Normal(capability)
	if !ok {
		return "", false
	}
	for p := range prefixes(id) {
		prefix = p
	}
	return prefix, true
}

// bareType reduces the spellings of a type to one; some types that differ share it, and are sifted.
func bareType(t string) string {
	t = strings.TrimPrefix(t, td.ContextLMOS)
	return foldName(t[strings.LastIndexAny(t, ":/#")+1:])
}

// foldName makes names equal that differ in case only.
func foldName(s string) string { return strings.ToLower(strings.ToUpper(s)) }

// namesOf returns what people may call a thing: its title and the last part of its id.
func namesOf(d *td.Description) []string {
	id := d.Record.Thing
	names := []string{nameKey(d.Record.Title), nameKey(id[strings.LastIndexAny(id, ":/#")+1:])}
	slices.Sort(names)
	names = slices.Compact(names)
	if names[0] == "" {
		names = names[1:]
	}
	return names
}

// nameKey returns the form of a name in which names are compared. A title without a letter has no slug.
func nameKey(s string) string {
	if slug := td.Slug(s); slug != "" {
		return slug
	}
	return foldName(s)
}

// yieldWords yields the words that td.Query.Text is looked for in.
func yieldWords(d *td.Description, yield func(kind, string) bool) bool {
	left := maxWords
	words := func(text string) bool {
		for _, w := range td.Words(text) {
			if left--; left < 0 {
				return true
			}
			if !yield(byWord, w) {
				return false
			}
		}
		return true
	}
	for _, c := range d.Capabilities {
		if !words(c.ID) || !words(c.Name) || !words(c.Description) {
			return false
		}
	}
	// In their order: of more words than there is room for, these that were entered must be taken out again.
	for _, name := range slices.Sorted(maps.Keys(d.Actions)) {
		if !words(name) {
			return false
		}
	}
	return words(d.Title) && words(d.Description)
}

// add enters e, which has a description.
func (x *index) add(e *entry) {
	if n := len(x.free); n > 0 {
		e.slot, x.free = x.free[n-1], x.free[:n-1]
		x.slots[e.slot] = e
	} else {
		e.slot = uint32(len(x.slots))
		x.slots = append(x.slots, e)
	}
	for k, text := range termsOf(e.d) {
		if x.lists[k] == nil {
			x.lists[k] = map[string]list{}
		}
		l, known := x.lists[k][text]
		if !known {
			text = strings.Clone(text) // a word is part of a whole description, which would stay with it
		}
		x.lists[k][text] = l.with(e.slot)
	}
	at, _ := x.position(e.d)
	x.order = slices.Insert(x.order, at, e.slot)
}

// with returns l with slot in it. It takes l over.
func (l list) with(slot uint32) list {
	at, found := slices.BinarySearch(l, slot)
	if found {
		return l
	}
	return slices.Insert(l, at, slot)
}

// without returns l without slot. It takes l over.
func (l list) without(slot uint32) list {
	at, found := slices.BinarySearch(l, slot)
	if !found {
		return l
	}
	return slices.Delete(l, at, at+1)
}

// remove takes e out; d is the description that it was added with.
func (x *index) remove(e *entry, d *td.Description) {
	for k, text := range termsOf(d) {
		if l := x.lists[k][text].without(e.slot); len(l) > 0 {
			x.lists[k][text] = l
		} else {
			delete(x.lists[k], text)
		}
	}
	x.own = x.own.without(e.slot)
	if at, found := x.position(d); found {
		x.order = slices.Delete(x.order, at, at+1)
	}
	x.slots[e.slot] = nil
	x.free = append(x.free, e.slot)
}

// position returns where d is in the order, or belongs.
func (x *index) position(d *td.Description) (at int, found bool) {
	return slices.BinarySearchFunc(x.order, d.Record, func(slot uint32, r *td.Record) int {
		other := x.slots[slot].d.Record
		if c := strings.Compare(other.Thing, r.Thing); c != 0 {
			return c
		}
		return strings.Compare(string(other.Owner), string(r.Owner))
	})
}

// ownedBy returns how many things an owner has.
func (x *index) ownedBy(owner did.DID) int { return len(x.lists[byOwner][string(owner)]) }

// having yields the living entries of one list.
func (x *index) having(k kind, text string, now time.Time) iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		for _, slot := range x.lists[k][text] {
			if e := x.slots[slot]; alive(e.d.Record, now) && !yield(e) {
				return
			}
		}
	}
}

// find yields the entries that q asks for, that are valid at now, and that are in all of within. It looks at the
// members of the shortest list only; a query that asks for nothing yields everything in order.
func (x *index) find(q *td.Query, now time.Time, within ...list) iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		lists, ok := x.listsFor(q, within)
		if !ok {
			return
		}
		if len(lists) == 0 {
			lists = []list{x.order}
		}
		slices.SortFunc(lists, func(a, b list) int { return len(a) - len(b) })
		for _, slot := range lists[0] {
			if !inAll(lists[1:], slot) {
				continue
			}
			e := x.slots[slot]
			if alive(e.d.Record, now) && q.Match(e.d) && !yield(e) {
				return
			}
		}
	}
}

// inAll reports whether slot is in each list.
func inAll(lists []list, slot uint32) bool {
	for _, l := range lists {
		if _, ok := slices.BinarySearch(l, slot); !ok {
			return false
		}
	}
	return true
}

// listsFor returns lists whose intersection holds all that q asks for, and perhaps more; ok is false if there is
// nothing.
func (x *index) listsFor(q *td.Query, within []list) (lists []list, ok bool) {
	lists, ok = slices.Clip(within), true
	want := func(k kind, text string) {
		l := x.lists[k][text]
		lists = append(lists, l)
		ok = ok && len(l) > 0
	}
	for _, c := range q.Capability {
		prefix, normal := deepest(c)
		if !normal {
			return nil, false
		}
		want(byCapability, prefix)
	}
	if q.ID != "" {
		want(byID, q.ID)
	}
	if q.Owner != "" {
		want(byOwner, string(q.Owner))
	}
	if q.Action != "" {
		want(byAction, foldName(q.Action))
	}
	if q.Type != "" {
		want(byType, bareType(q.Type))
	}
	if !ok || q.Text == "" {
		return lists, ok
	}
	return x.narrow(lists, q.Text)
}

// fewEnough is a length from which on sifting costs less than looking up words; maxSought is how many words are looked up
// at most, each of which costs a walk through the vocabulary.
const (
	fewEnough = 512
	maxSought = 4
)

// narrow adds the lists for words of a text; the rest is sifted.
func (x *index) narrow(lists []list, text string) ([]list, bool) {
	for i, word := range td.Words(text) {
		if i == maxSought || slices.ContainsFunc(lists, func(l list) bool { return len(l) <= fewEnough }) {
			break
		}
		l := x.containing(word)
		if len(l) == 0 {
			return nil, false
		}
		lists = append(lists, l)
	}
	return lists, true
}

// containing returns the slots of the things that have a word which contains part, ascending. It looks through the
// vocabulary, which grows far slower than the number of things.
func (x *index) containing(part string) list {
	var found []list
	for word, l := range x.lists[byWord] {
		if strings.Contains(word, part) {
			found = append(found, l)
		}
	}
	if len(found) == 1 {
		return found[0]
	}
	all := slices.Concat(found...)
	slices.Sort(all)
	return slices.Compact(all)
}
