package directory

import (
	"cmp"
	"hash/maphash"
	"slices"

	"github.com/lmosd/lmosd/internal/confusable"
	"github.com/lmosd/lmosd/td"
)

// maxAlike limits the recorded names of one skeleton. Later ones are marked as well.
const maxAlike = 64

// A class is the precedence of an owner among names that look alike.
type class uint8

const (
	classOther   class = iota
	classTrusted       // Options.Trust is more than a half
	classOwn           // this node publishes it
	classes
)

// lookalikes finds names that look alike: it groups names by the hash of their skeleton. In each group one name is the original, which the
// others resemble: that of a Thing of this node, or of a trusted owner, or the one known for the longest time; of those known before a
// restart, one in plain ASCII. So a new key can mark only names that are newer. It is owned by Directory.mu.
type lookalikes struct {
	seed   maphash.Seed
	groups map[uint64][]*countedName // the original first
	born   uint64                    // of the newest name
}

// A countedName is a name with the number of its Things.
type countedName struct {
	name   string
	things [classes]int
	born   uint64 // 0: known before the restart
}

func (l *lookalikes) start() { l.seed, l.groups = maphash.MakeSeed(), map[uint64][]*countedName{} }

func (l *lookalikes) key(name string) uint64 {
	return maphash.String(l.seed, confusable.Skeleton(name))
}

// shownName returns the display name of a record's Thing.
func shownName(r *td.Record) string {
	return td.NameKey((&td.Thing{Title: r.Title, ID: r.Thing}).Name())
}

// count adds a Thing to a name. kept reports that it was known before the restart. It returns false if the name does not fit into the group;
// such a name is never the original.
func (l *lookalikes) count(name string, c class, kept bool) bool {
	key := l.key(name)
	group := l.groups[key]
	at := slices.IndexFunc(group, func(n *countedName) bool { return n.name == name })
	if at < 0 {
		if len(group) >= maxAlike && c == classOther {
			return false
		}
		n := &countedName{name: name}
		if !kept {
			l.born++
			n.born = l.born
		}
		at, group = len(group), append(group, n)
	}
	group[at].things[c]++
	l.set(key, group)
	return true
}

// discount removes a Thing from a name.
func (l *lookalikes) discount(name string, c class) {
	key := l.key(name)
	group := l.groups[key]
	at := slices.IndexFunc(group, func(n *countedName) bool { return n.name == name })
	if at < 0 {
		return
	}
	if group[at].things[c]--; group[at].things == [classes]int{} {
		group = slices.Delete(group, at, at+1)
	}
	l.set(key, group)
}

// set moves the original of a group to the front.
func (l *lookalikes) set(key uint64, group []*countedName) {
	if len(group) == 0 {
		delete(l.groups, key)
		return
	}
	first := slices.Index(group, slices.MinFunc(group, originality))
	group[0], group[first] = group[first], group[0]
	l.groups[key] = group
}

// countNameLocked counts a living e for its name, and removes it from that of was, which may be nil. The new name is counted first, so that an
// unchanged name keeps its age.
func (d *Directory) countNameLocked(e *entry, was *td.Record, own, kept bool) {
	name, c := shownName(e.view.record), d.classOf(e.view.record, own)
	looked, look := e.nameCounted, e.nameClass
	if looked && was != nil && look == c && shownName(was) == name {
		return
	}
	e.nameCounted, e.nameClass = name != "" && d.lookalikes.count(name, c, kept), c
	if looked && was != nil {
		d.lookalikes.discount(shownName(was), look)
	}
}

// uncountNameLocked removes e.
func (d *Directory) uncountNameLocked(e *entry) {
	if e.nameCounted {
		d.lookalikes.discount(shownName(e.view.record), e.nameClass)
		e.nameCounted = false
	}
}

// originality orders names that look alike, the original first.
func originality(a, b *countedName) int {
	for c := classOwn; c > classOther; c-- {
		if (a.things[c] > 0) != (b.things[c] > 0) {
			if a.things[c] > 0 {
				return -1
			}
			return 1
		}
	}
	return cmp.Or(cmp.Compare(a.born, b.born), cmp.Compare(letters(a.name), letters(b.name)), cmp.Compare(a.name, b.name))
}

// letters returns the number of bytes of a name that are not ASCII.
func letters(name string) (n int) {
	for i := range len(name) {
		if name[i] >= 0x80 {
			n++
		}
	}
	return n
}

// classOf returns the class of a Thing of an owner.
func (d *Directory) classOf(r *td.Record, own bool) class {
	if own {
		return classOwn
	}
	if d.opts.Trust != nil {
		if amount, _ := d.opts.Trust(r.Owner); amount > 0.5 {
			return classTrusted
		}
	}
	return classOther
}

// Resembles returns the original name that the name of a Thing looks like: of this node, of a trusted owner, or older; empty if there is none.
func (d *Directory) Resembles(r *td.Record) string {
	name := shownName(r)
	d.mu.RLock()
	defer d.mu.RUnlock()
	group := d.lookalikes.groups[d.lookalikes.key(name)]
	if name == "" || len(group) == 0 || group[0].name == name {
		return ""
	}
	return group[0].name
}
