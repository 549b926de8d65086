package directory

import (
	"cmp"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/words"
	"github.com/lmosd/lmosd/td"
)

// index finds entries by what their things have in common. It is plain data: its owner locks.
type index struct {
	slots []*entry // nil: free
	free  []uint32
	terms []term // those without a text are free
	spare []uint32
	ids   [kinds]map[string]uint32 // places in terms
	words vocabulary
	order chunks[uint32] // all slots in use, by thing id and then owner
	own   list           // what this node publishes
	bytes int            // about what terms take
	// version changes whenever something is entered or taken out.
	version uint64
}

// A term is something that things are found by.
type term struct {
	text  string
	kind  kind
	shape uint32 // of a word: its place in its bucket, see vocabulary
	list  list
}

// termBytes is about what a term takes beside its text and its postings.
const termBytes = 128

// list returns what has a term; nil if nothing has.
func (x *index) list(k kind, text string) *list {
	if id, ok := x.ids[k][text]; ok {
		return &x.terms[id].list
	}
	return nil
}

// add enters e, which has a view, with what it is found by.
func (x *index) add(e *entry, by []label) {
	if n := len(x.free); n > 0 {
		e.slot, x.free = x.free[n-1], x.free[:n-1]
		x.slots[e.slot] = e
	} else {
		e.slot = uint32(len(x.slots))
		x.slots = append(x.slots, e)
	}
	e.terms = make([]uint32, len(by))
	for i, l := range by {
		id := x.term(l.kind, l.text)
		e.terms[i] = id
		x.terms[id].list.add(post(e.slot, l.weight))
	}
	part, at := x.position(e)
	x.order.insert(part, at, e.slot)
	x.version++
	x.shareView(e.view)
}

// shareView has the record of a view that nobody has seen yet use the names that are here already.
func (x *index) shareView(v *view) {
	if v.whole != nil {
		return // it has the record of others
	}
	r := v.record
	if id, ok := x.ids[byOwner][string(r.Owner)]; ok {
		r.Owner = did.DID(x.terms[id].text)
	}
	for i, h := range r.Hosts {
		if id, ok := x.ids[byHost][string(h.Node)]; ok {
			r.Hosts[i].Node = did.DID(x.terms[id].text)
		}
	}
}

// term returns the place of a term, which is made if it is new.
func (x *index) term(k kind, text string) uint32 {
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
	if k == byWord {
		x.words.add(x.terms, id)
	}
	return id
}

// cost returns how many bytes would be new to the index.
func (x *index) cost(by []label) (bytes int) {
	for _, l := range by {
		if _, known := x.ids[l.kind][l.text]; !known {
			bytes += termBytes + len(l.text)
		}
	}
	return bytes
}

// drop forgets a term that nothing has any more.
func (x *index) drop(id uint32) {
	t := &x.terms[id]
	if t.kind == byWord {
		x.words.remove(x.terms, id)
	}
	delete(x.ids[t.kind], t.text)
	x.bytes -= termBytes + len(t.text)
	*t = term{}
	x.spare = append(x.spare, id)
}

// remove takes e out. Its view has the id and owner that it was added with.
func (x *index) remove(e *entry) {
	for _, id := range e.terms {
		l := &x.terms[id].list
		if l.remove(e.slot); l.len() == 0 {
			x.drop(id)
		}
	}
	e.terms = nil
	x.own.remove(e.slot)
	if part, at := x.position(e); x.isAt(part, at, e) {
		x.order.remove(part, at)
	}
	x.slots[e.slot] = nil
	x.free = append(x.free, e.slot)
	x.version++
}

// position returns where e is in the order, or belongs.
func (x *index) position(e *entry) (part, at int) {
	r := e.view.record
	return x.order.seek(func(slot uint32) bool { return compareThings(x.slots[slot].view.record, r) < 0 })
}

func (x *index) isAt(part, at int, e *entry) bool {
	slot, ok := x.order.get(part, at)
	return ok && slot == e.slot
}

// compareThings orders things by id, and those of one id by owner.
func compareThings(a, b *td.Record) int {
	return cmp.Or(strings.Compare(a.Thing, b.Thing), strings.Compare(string(a.Owner), string(b.Owner)))
}

// named returns the things of an id, one of each owner. No list holds them: the order does.
func (x *index) named(id string) *list {
	var l list
	for slot := range x.order.from(x.order.seek(func(slot uint32) bool { return x.slots[slot].view.record.Thing < id })) {
		if x.slots[slot].view.record.Thing != id {
			break
		}
		l.add(post(slot, 0))
	}
	return &l
}

// ownedBy returns how many things an owner has.
func (x *index) ownedBy(owner did.DID) int { return x.list(byOwner, string(owner)).len() }

// having yields the living entries of one list.
func (x *index) having(l *list, now time.Time) iter.Seq[*entry] { return x.living(slotsOf(l), now) }

// living yields the entries of slots that are valid at now; a zero now says that all are.
func (x *index) living(slots iter.Seq[uint32], now time.Time) iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		for slot := range slots {
			if e := x.slots[slot]; (now.IsZero() || alive(e.view.record, now)) && !yield(e) {
				return
			}
		}
	}
}

func slotsOf(l *list) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for p := range l.all() {
			if !yield(p.slot()) {
				return
			}
		}
	}
}

// A choice is what the lists say of a query: everything that it asks for, and perhaps more unless it is exact.
type choice struct {
	x     *index
	every bool     // all that there is
	slots []uint32 // else these: by slot, unless there are scores
	exact bool
	but   []exclusion
	// scores says how well the words of slots fit, 0 to 1, one for each; nil if the query has no words, or if every.
	scores []float32
}

// An exclusion is what one of Not takes out.
type exclusion struct {
	lists []*list
	said  slotSet // nil without words
}

func (e exclusion) has(slot uint32) bool {
	return (e.said == nil || e.said.has(slot)) && inAll(e.lists, slot)
}

// each yields the chosen slots: by slot, or in order if every.
func (c *choice) each() iter.Seq[uint32] {
	slots := slices.Values(c.slots)
	if c.every {
		slots = c.x.order.from(0, 0)
	}
	if len(c.but) == 0 {
		return slots
	}
	return func(yield func(uint32) bool) {
		for slot := range slots {
			if !c.excludes(slot) && !yield(slot) {
				return
			}
		}
	}
}

func (c *choice) excludes(slot uint32) bool {
	return slices.ContainsFunc(c.but, func(e exclusion) bool { return e.has(slot) })
}

// choose returns what the lists say of q, and of what is in all of within.
func (x *index) choose(q *td.Query, within ...*list) choice {
	c := choice{x: x, exact: true}
	said := false
	var chosen []branch
	for one := range q.Branches() {
		b := x.branch(one, within)
		c.exact = c.exact && b.exact
		c.every = c.every || b.every
		said = said || b.scores != nil
		if b.every || len(b.slots) > 0 {
			chosen = append(chosen, b)
		}
	}
	for i := range q.Not[:min(len(q.Not), td.MaxBranches)] {
		if not := &q.Not[i]; not.Asks() {
			x.exclude(&c, not)
		}
	}
	if !c.every {
		c.slots, c.scores = merge(chosen, said)
	}
	return c
}

// exclude takes what not fits out of a choice; or leaves it to be sifted.
func (x *index) exclude(c *choice, not *td.Query) {
	lists, exact, ok := x.listsFor(not, nil)
	switch {
	case !ok: // it fits nothing
	case !exact:
		c.exact = false
	default:
		e := exclusion{lists: lists}
		if asked := words.Content(not.Text); len(asked) > 0 {
			e.said = x.saying(asked)
			c.exact = c.exact && len(asked) <= maxSought
		}
		c.but = append(c.but, e)
	}
}

// A branch is what the lists say of one alternative.
type branch struct {
	every  bool
	slots  []uint32
	scores []float32 // nil without words
	exact  bool
}

// branch looks at the members of the shortest list only.
func (x *index) branch(q *td.Query, within []*list) branch {
	lists, exact, ok := x.listsFor(q, within)
	asked := words.Content(q.Text)
	switch {
	case !ok:
		return branch{exact: true}
	case len(asked) > 0:
		slots, scores := x.score(asked, lists)
		return branch{slots: slots, scores: scores, exact: exact}
	case len(lists) == 0:
		return branch{every: true, exact: exact}
	}
	b := branch{exact: exact}
	slices.SortFunc(lists, func(a, b *list) int { return a.len() - b.len() })
	if len(lists) == 1 {
		b.slots = make([]uint32, 0, lists[0].len())
	}
	for _, part := range lists[0].parts() {
		for _, p := range part {
			if slot := p.slot(); inAll(lists[1:], slot) {
				b.slots = append(b.slots, slot)
			}
		}
	}
	return b
}

// merge unites branches. What a branch without words has fits as well as can be.
func merge(all []branch, said bool) (slots []uint32, scores []float32) {
	switch len(all) {
	case 0:
		return nil, nil
	case 1:
		return all[0].slots, all[0].scores
	}
	best := map[uint32]float32{}
	for _, b := range all {
		for i, slot := range b.slots {
			score := float32(1)
			if b.scores != nil {
				score = b.scores[i]
			}
			best[slot] = max(best[slot], score)
		}
	}
	slots = slices.Sorted(maps.Keys(best))
	if said {
		for _, slot := range slots {
			scores = append(scores, best[slot])
		}
	}
	return slots, scores
}

// inAll reports whether slot is in each list.
func inAll(lists []*list, slot uint32) bool {
	for _, l := range lists {
		if !l.has(slot) {
			return false
		}
	}
	return true
}

// listsFor returns lists whose intersection holds all that q asks for but words: just that if exact, else perhaps more. ok is
// false if there is nothing.
func (x *index) listsFor(q *td.Query, within []*list) (lists []*list, exact, ok bool) {
	lists, exact, ok = slices.Clip(within), q.Version == "", true
	want := func(k kind, text string) {
		l := x.list(k, text)
		lists = append(lists, l)
		ok = ok && l.len() > 0
	}
	if q.ID != "" {
		named := x.named(q.ID)
		lists, ok = append(lists, named), named.len() > 0
	}
	for _, c := range q.Capability {
		prefix, whole, normal := deepest(c)
		if !normal {
			return nil, true, false
		}
		exact = exact && whole
		want(byCapability, prefix)
	}
	for _, one := range []struct {
		kind  kind
		asked string
		form  func(string) string
	}{
		{byOwner, string(q.Owner), nil}, {byHost, string(q.Host), nil}, {byAction, q.Action, foldName},
		{byProperty, q.Property, foldName}, {byEvent, q.Event, foldName}, {byType, q.Type, td.TypeKey},
		{byProtocol, q.Protocol, strings.ToLower}, {byOrganisation, q.Organisation, words.Fold},
	} {
		switch {
		case one.asked == "":
		case one.form == nil:
			want(one.kind, one.asked)
		default:
			want(one.kind, one.form(one.asked))
		}
	}
	return lists, exact, ok
}

// rarity returns how much a word that so many of all things say tells of a thing (the idf of BM25).
func rarity(say, all int) float64 {
	return math.Log(1 + (float64(all-say)+0.5)/(float64(say)+0.5))
}
