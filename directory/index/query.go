package index

import (
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/textmatch"
	"github.com/lmosd/lmosd/td"
)

// A Choice is the result of the lists for a query: all matches, and perhaps more unless it is exact. It is valid until the index changes.
type Choice struct {
	Exact bool

	x          *Index
	every      bool     // all Things match
	slots      []uint32 // otherwise the matches: by slot, unless there are scores
	exclusions []exclusion
	// scores are the word scores of slots, 0 to 1; nil if the query has no words, or if every.
	scores []float32
}

// Ranked reports whether the choice has scores, see [Choice.Top].
func (c *Choice) Ranked() bool { return !c.every && (c.scores != nil || len(c.slots) == 0) }

// An exclusion is the result of one of Not.
type exclusion struct {
	lists   []*List
	matches Set // nil without words
}

func (e exclusion) has(slot uint32) bool {
	return (e.matches == nil || e.matches.Has(slot)) && inAll(e.lists, slot)
}

// All yields the chosen slots: by id if it is every Thing, otherwise in any order.
func (c *Choice) All() iter.Seq[uint32] {
	slots := slices.Values(c.slots)
	if c.every {
		slots = c.x.order.from(0, 0)
	}
	if len(c.exclusions) == 0 {
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

func (c *Choice) excludes(slot uint32) bool {
	return slices.ContainsFunc(c.exclusions, func(e exclusion) bool { return e.has(slot) })
}

// Count returns the number of slots of [Choice.All].
func (c *Choice) Count() int {
	switch {
	case len(c.exclusions) > 0:
		n := 0
		for range c.All() {
			n++
		}
		return n
	case c.every:
		return c.x.order.n
	}
	return len(c.slots)
}

// Choose returns the choice for q, of Things that are in all of within.
func (x *Index) Choose(q *td.Query, within ...*List) Choice {
	c := Choice{x: x, Exact: true}
	ranked := false
	var chosen []branch
	for one := range q.Branches() {
		b := x.branch(one, within)
		c.Exact = c.Exact && b.exact
		c.every = c.every || b.every
		ranked = ranked || b.scores != nil
		if b.every || len(b.slots) > 0 {
			chosen = append(chosen, b)
		}
	}
	for i := range q.Not[:min(len(q.Not), td.MaxBranches)] {
		if not := &q.Not[i]; not.HasCriteria() {
			x.exclude(&c, not)
		}
	}
	if !c.every {
		c.slots, c.scores = merge(chosen, ranked)
	}
	return c
}

// exclude removes the matches of not from a choice, or leaves them to be checked.
func (x *Index) exclude(c *Choice, not *td.Query) {
	lists, exact, ok := x.listsFor(not, nil)
	switch {
	case !ok: // no matches
	case !exact:
		c.Exact = false
	default:
		e := exclusion{lists: lists}
		if words := textmatch.Content(not.Text); len(words) > 0 {
			e.matches = x.matching(words)
		}
		c.exclusions = append(c.exclusions, e)
	}
}

// A branch is the result of one alternative.
type branch struct {
	every  bool
	slots  []uint32
	scores []float32 // nil without words
	exact  bool
}

// branch checks the members of the shortest list only.
func (x *Index) branch(q *td.Query, within []*List) branch {
	lists, exact, ok := x.listsFor(q, within)
	words := textmatch.Content(q.Text)
	switch {
	case !ok:
		return branch{exact: true}
	case len(words) > 0:
		slots, scores := x.score(words, lists)
		return branch{slots: slots, scores: scores, exact: exact}
	case len(lists) == 0:
		return branch{every: true, exact: exact}
	}
	b := branch{exact: exact}
	if len(lists) == 1 {
		b.slots = make([]uint32, 0, lists[0].Len())
	}
	for slot := range common(lists) {
		b.slots = append(b.slots, slot)
	}
	return b
}

// common yields the slots that are in all of lists, of which there is one at least. It sorts them.
func common(lists []*List) iter.Seq[uint32] {
	slices.SortFunc(lists, func(a, b *List) int { return a.Len() - b.Len() })
	return func(yield func(uint32) bool) {
		for _, part := range lists[0].parts() {
			for _, p := range part {
				if slot := p.slot(); inAll(lists[1:], slot) && !yield(slot) {
					return
				}
			}
		}
	}
}

// Candidates yields the slots of a query for an id, a name or a capability, and perhaps others, in any order. It is a faster [Index.Choose].
func (x *Index) Candidates(q *td.Query) iter.Seq[uint32] {
	lists, _, ok := x.listsFor(q, nil)
	if !ok || len(lists) == 0 {
		return func(func(uint32) bool) {}
	}
	return common(lists)
}

// merge unites branches. Matches of a branch without words have the highest score.
func merge(all []branch, ranked bool) (slots []uint32, scores []float32) {
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
	if ranked {
		for _, slot := range slots {
			scores = append(scores, best[slot])
		}
	}
	return slots, scores
}

// versionsFor adds the list of versions in the range, unless the lists are short already.
func (x *Index) versionsFor(q *td.Query, lists []*List, exact, ok bool) ([]*List, bool, bool) {
	if slices.ContainsFunc(lists, func(l *List) bool { return l.Len() <= fewVersions }) {
		return lists, false, ok
	}
	in, all := x.versions(q.Version)
	if !all {
		return lists, false, ok
	}
	// The capability and the version in the range may belong to different capabilities of a Thing.
	return append(lists, in), exact && len(q.Capability) == 0, ok && in.Len() > 0
}

// ofOrganization returns the Things of the organization of q; exact is false if some are only hosted by its members.
func (x *Index) ofOrganization(q *td.Query) (in *List, exact bool) {
	in = &List{}
	add := func(k Kind, text string) {
		for _, part := range x.List(k, text).parts() {
			in.few = append(in.few, part...)
		}
	}
	if q.Claimed {
		add(Organization, td.OrganizationKey(q.Organization))
	}
	if q.Members != nil {
		for _, node := range q.Members.Nodes {
			add(Owner, string(node))
		}
		if q.Claimed {
			add(Organization, td.OrganizationKey(q.Members.ID))
		}
	}
	unique := func() int {
		slices.Sort(in.few)
		in.few = slices.Compact(in.few)
		return len(in.few)
	}
	owned := unique()
	if q.Members != nil {
		for _, node := range q.Members.Nodes {
			add(Host, string(node))
		}
	}
	return in, unique() == owned
}

// fewVersions is the number of Things that are faster to check one by one.
const fewVersions = 100

// maxVersions is the number of different versions that are compared with a range.
const maxVersions = 10_000

// versions returns the Things with a version of a capability in a range; ok is false if there are too many versions.
func (x *Index) versions(text string) (in *List, ok bool) {
	in = &List{}
	r, err := td.ParseRange(text)
	switch {
	case err != nil:
		return in, true
	case x.ids[Version].n > maxVersions:
		return nil, false
	}
	for id := range x.ids[Version].all() {
		if r.Has(x.terms[id].text) {
			for _, part := range x.terms[id].list.parts() {
				in.few = append(in.few, part...)
			}
		}
	}
	slices.Sort(in.few)
	in.few = slices.Compact(in.few)
	return in, true
}

// inAll reports whether slot is in each list.
func inAll(lists []*List, slot uint32) bool {
	for _, l := range lists {
		if !l.Has(slot) {
			return false
		}
	}
	return true
}

// listsFor returns lists whose intersection has all matches of q except for words, and only those if exact. ok is false if there are none.
func (x *Index) listsFor(q *td.Query, within []*List) (lists []*List, exact, ok bool) {
	lists, exact, ok = slices.Clip(within), true, true
	want := func(k Kind, text string) {
		l := x.List(k, text)
		lists = append(lists, l)
		ok = ok && l.Len() > 0
	}
	if q.ID != "" {
		named := x.Named(q.ID)
		lists, ok = append(lists, named), ok && named.Len() > 0
	}
	for _, c := range q.Capability {
		prefix, whole, normal := deepest(c)
		if !normal {
			return nil, true, false
		}
		exact = exact && whole
		want(Capability, prefix)
	}
	for _, one := range []struct {
		kind      Kind
		text      string
		normalize func(string) string
	}{
		{Owner, string(q.Owner), nil}, {Host, string(q.Host), nil}, {Action, q.Action, foldName},
		{Name, q.Name, td.NameKey}, {Property, q.Property, foldName}, {Event, q.Event, foldName}, {Type, q.Type, td.TypeKey},
		{Protocol, q.Protocol, strings.ToLower},
	} {
		switch {
		case one.text == "":
		case one.normalize == nil:
			want(one.kind, one.text)
		default:
			want(one.kind, one.normalize(one.text))
		}
	}
	if q.Organization != "" {
		in, owned := x.ofOrganization(q)
		lists, exact, ok = append(lists, in), exact && owned, ok && in.Len() > 0
	}
	if q.Version != "" {
		return x.versionsFor(q, lists, exact, ok)
	}
	return lists, exact, ok
}

// In returns a part of the chosen Things by id. Only Things for which keep returns true count; nil keeps all.
func (c *Choice) In(offset, limit int, keep func(slot uint32) bool) (slots []uint32) {
	x := c.x
	if !c.every && len(c.slots) <= fewToSort {
		for slot := range c.All() {
			if keep == nil || keep(slot) {
				slots = append(slots, slot)
			}
		}
		slices.SortFunc(slots, func(a, b uint32) int { return compareThings(x.records[a], x.records[b]) })
		from := min(offset, len(slots))
		return slots[from : from+min(limit, len(slots)-from)]
	}
	inOrder := c.All()
	if !c.every {
		in := c.members()
		inOrder = func(yield func(uint32) bool) {
			for slot := range x.order.from(0, 0) {
				if in.Has(slot) && !c.excludes(slot) && !yield(slot) {
					return
				}
			}
		}
	} else if len(c.exclusions) == 0 && keep == nil {
		inOrder, offset = x.order.from(x.order.nth(min(offset, x.order.n))), 0
	}
	for slot := range inOrder {
		switch {
		case keep != nil && !keep(slot):
		case len(slots) == limit:
			return slots
		case offset > 0:
			offset--
		default:
			slots = append(slots, slot)
		}
	}
	return slots
}

// After returns at most limit chosen Things that follow the Thing of an id and an owner, by id and then owner. That Thing need not be chosen, nor in
// the index. Only Things for which keep returns true count; nil keeps all.
func (c *Choice) After(id string, owner did.DID, limit int, keep func(slot uint32) bool) (slots []uint32) {
	x, last := c.x, &td.Record{Thing: id, Owner: owner}
	before := func(slot uint32) bool { return compareThings(x.records[slot], last) <= 0 }
	if !c.every && len(c.slots) <= fewToSort {
		slots = slices.DeleteFunc(c.In(0, len(c.slots), keep), before)
		return slots[:min(limit, len(slots))]
	}
	in := c.members()
	for slot := range x.order.from(x.order.seek(before)) {
		if len(slots) >= limit {
			break
		}
		if (in == nil || in.Has(slot)) && !c.excludes(slot) && (keep == nil || keep(slot)) {
			slots = append(slots, slot)
		}
	}
	return slots
}

// members returns the slots of a choice as a set; nil: all.
func (c *Choice) members() Set {
	if c.every {
		return nil
	}
	in := NewSet(len(c.x.records))
	for _, slot := range c.slots {
		in.Add(slot)
	}
	return in
}

// fewToSort is the number of Things that are faster to sort than to find in the order of all.
const fewToSort = 256

// A Scored is a slot with its score, 0 to 1.
type Scored struct {
	Slot  uint32
	Score float64
}

// Grade rounds a score for comparison to four digits, so that floating-point errors do not affect the order.
func Grade(score float64) int { return int(score*10_000 + 0.5) }

// grades is the number of grades.
const grades = 10_000 + 2

// maxTied is the number of Things with equal scores that are ordered by owner; others are ignored.
const maxTied = 4096

// Top returns the best of a ranked choice, in any order, and their total number. Only Things for which keep returns true count; nil keeps
// all.
func (c *Choice) Top(most int, keep func(slot uint32) bool) (best []Scored, total int) {
	c.reject(keep)
	if len(c.slots) <= most {
		for i := range c.slots {
			best = append(best, c.scored(i))
		}
		return best, len(c.slots)
	}
	// A histogram of grades replaces sorting.
	var counts [grades]int32
	for _, score := range c.scores {
		counts[Grade(float64(score))]++
	}
	last, above := grades-1, 0 // number of Things above the last grade
	for above+int(counts[last]) < most {
		above += int(counts[last])
		last--
	}
	var tied []Scored
	for i, score := range c.scores {
		switch g := Grade(float64(score)); {
		case g > last:
			best = append(best, c.scored(i))
		case g == last && len(tied) < maxTied:
			tied = append(tied, c.scored(i))
		}
	}
	slices.SortFunc(tied, func(a, b Scored) int { return compareOwners(c.x.records[a.Slot], c.x.records[b.Slot]) })
	return append(best, tied[:min(len(tied), most-above)]...), len(c.slots)
}

func (c *Choice) scored(i int) Scored { return Scored{c.slots[i], float64(c.scores[i])} }

// reject removes the matches of Not, and the slots for which keep returns false.
func (c *Choice) reject(keep func(slot uint32) bool) {
	if len(c.exclusions) == 0 && keep == nil {
		return
	}
	n, excludes := 0, len(c.exclusions) > 0
	for i, slot := range c.slots {
		if (!excludes || !c.excludes(slot)) && (keep == nil || keep(slot)) {
			c.slots[n], c.scores[n] = slot, c.scores[i]
			n++
		}
	}
	c.slots, c.scores = c.slots[:n], c.scores[:n]
}
