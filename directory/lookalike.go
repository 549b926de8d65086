package directory

import (
	"cmp"
	"hash/maphash"
	"slices"

	"github.com/lmosd/lmosd/internal/confusable"
	"github.com/lmosd/lmosd/td"
)

// maxAlike bounds the names of one skeleton that are remembered. Of more, those that come later are marked all the same.
const maxAlike = 64

// A class says how much the owner of a thing counts where names look alike.
type class uint8

const (
	classOther   class = iota
	classTrusted       // Options.Trust says more than half
	classOwn           // this node publishes it
	classes
)

// lookalikes finds names that look alike: names are grouped by the hash of their skeleton, which is made once for each thing. In each
// group one name is the original; all others resemble it. It is the name of a thing of this node, else of a trusted owner, else the one that is known
// longest; of those known since before a restart, one that is plain ASCII. A key made just now can so mark nobody's name but that of who came
// after it. It is owned by Directory.mu.
type lookalikes struct {
	seed   maphash.Seed
	groups map[uint64][]*lookName // the original first
	born   uint64                 // of the name that came last
}

// A lookName is one name, and how many things have it.
type lookName struct {
	name   string
	things [classes]int
	born   uint64 // 0: it was kept from before
}

func (l *lookalikes) start() { l.seed, l.groups = maphash.MakeSeed(), map[uint64][]*lookName{} }

func (l *lookalikes) key(name string) uint64 {
	return maphash.String(l.seed, confusable.Skeleton(name))
}

// shownName is what lists call the thing of a record.
func shownName(r *td.Record) string {
	return td.NameKey((&td.Thing{Title: r.Title, ID: r.Thing}).Name())
}

// count notes one more thing of a name. kept says that it was known before the restart. It reports false if there is no room for the
// name, which then is never the original.
func (l *lookalikes) count(name string, c class, kept bool) bool {
	key := l.key(name)
	group := l.groups[key]
	at := slices.IndexFunc(group, func(n *lookName) bool { return n.name == name })
	if at < 0 {
		if len(group) >= maxAlike && c == classOther {
			return false
		}
		n := &lookName{name: name}
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

// discount notes one thing less of a name.
func (l *lookalikes) discount(name string, c class) {
	key := l.key(name)
	group := l.groups[key]
	at := slices.IndexFunc(group, func(n *lookName) bool { return n.name == name })
	if at < 0 {
		return
	}
	if group[at].things[c]--; group[at].things == [classes]int{} {
		group = slices.Delete(group, at, at+1)
	}
	l.set(key, group)
}

// set puts the original of a group first.
func (l *lookalikes) set(key uint64, group []*lookName) {
	if len(group) == 0 {
		delete(l.groups, key)
		return
	}
	first := slices.Index(group, slices.MinFunc(group, originality))
	group[0], group[first] = group[first], group[0]
	l.groups[key] = group
}

// lookLocked counts a living e for its name, and no longer for that of was, which may be nil. The new comes first: who keeps a name keeps
// how long it is known.
func (d *Directory) lookLocked(e *entry, was *td.Record, own, kept bool) {
	name, c := shownName(e.view.record), d.classOf(e.view.record, own)
	looked, look := e.looked, e.look
	if looked && was != nil && look == c && shownName(was) == name {
		return
	}
	e.looked, e.look = name != "" && d.looks.count(name, c, kept), c
	if looked && was != nil {
		d.looks.discount(shownName(was), look)
	}
}

// unlookLocked counts e out.
func (d *Directory) unlookLocked(e *entry) {
	if e.looked {
		d.looks.discount(shownName(e.view.record), e.look)
		e.looked = false
	}
}

// originality orders names that look alike, the original first.
func originality(a, b *lookName) int {
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

// letters returns how many bytes of a name are no ASCII.
func letters(name string) (n int) {
	for i := range len(name) {
		if name[i] >= 0x80 {
			n++
		}
	}
	return n
}

// classOf returns the class of a thing of an owner.
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

// Resembles returns the name that the name of a thing looks like, of a thing of this node, of a trusted owner, or known for longer; empty if
// there is none. Nothing is done to it: two things whose names look alike stay two things.
func (d *Directory) Resembles(r *td.Record) string {
	name := shownName(r)
	d.mu.RLock()
	defer d.mu.RUnlock()
	group := d.looks.groups[d.looks.key(name)]
	if name == "" || len(group) == 0 || group[0].name == name {
		return ""
	}
	return group[0].name
}
