// Package lookalike finds names that look alike: in each group of them one is the original, which the others resemble.
//
// The original is the name of a Thing of this node, else of a trusted owner, else the name known for the longest time; of those known before
// a restart, one in plain ASCII. So a new key can only mark newer names as lookalikes.
package lookalike

import (
	"cmp"
	"hash/maphash"
	"slices"

	"github.com/lmosd/lmosd/internal/confusable"
)

// maxAlike limits the recorded names of one skeleton. Later ones resemble the original as well.
const maxAlike = 64

// A Class is the precedence of an owner among names that look alike.
type Class uint8

// The classes of owners, in ascending precedence.
const (
	Other Class = iota
	Trusted
	Own
	classes
)

// Names groups names by the hash of their skeleton. It is not synchronized.
type Names struct {
	seed   maphash.Seed
	groups map[uint64][]*nameCount // the original first
	added  uint64                  // since of the newest name
}

// A nameCount is a name with the number of its Things.
type nameCount struct {
	name   string
	things [classes]int
	since  uint64 // order of addition; 0: known before the restart
}

// New returns an empty Names.
func New() *Names { return &Names{seed: maphash.MakeSeed(), groups: map[uint64][]*nameCount{}} }

// alike returns the group of names that look like name, with its key.
func (l *Names) alike(name string) (key uint64, group []*nameCount) {
	key = maphash.String(l.seed, confusable.Skeleton(name))
	return key, l.groups[key]
}

// find is alike with the index of name in the group, or -1.
func (l *Names) find(name string) (key uint64, group []*nameCount, at int) {
	key, group = l.alike(name)
	return key, group, slices.IndexFunc(group, func(n *nameCount) bool { return n.name == name })
}

// Add adds a Thing to a name. kept reports that it was known before the restart. Add returns false if the name is empty or does not fit into
// the group; such a name is never the original.
func (l *Names) Add(name string, c Class, kept bool) bool {
	key, group, at := l.find(name)
	if at < 0 {
		if name == "" || len(group) >= maxAlike && c == Other {
			return false
		}
		n := &nameCount{name: name}
		if !kept {
			l.added++
			n.since = l.added
		}
		at, group = len(group), append(group, n)
	}
	group[at].things[c]++
	l.set(key, group)
	return true
}

// Remove removes a Thing that was added to a name.
func (l *Names) Remove(name string, c Class) {
	key, group, at := l.find(name)
	if at < 0 {
		return
	}
	if group[at].things[c]--; group[at].things == [classes]int{} {
		group = slices.Delete(group, at, at+1)
	}
	l.set(key, group)
}

// Original returns the original that name looks like; empty if it is the original itself, or looks like no known name.
func (l *Names) Original(name string) string {
	_, group := l.alike(name)
	if name == "" || len(group) == 0 || group[0].name == name {
		return ""
	}
	return group[0].name
}

// set moves the original of a group to the front.
func (l *Names) set(key uint64, group []*nameCount) {
	if len(group) == 0 {
		delete(l.groups, key)
		return
	}
	first := slices.Index(group, slices.MinFunc(group, originality))
	group[0], group[first] = group[first], group[0]
	l.groups[key] = group
}

// originality orders names that look alike, the original first.
func originality(a, b *nameCount) int {
	for c := Own; c > Other; c-- {
		if (a.things[c] > 0) != (b.things[c] > 0) {
			if a.things[c] > 0 {
				return -1
			}
			return 1
		}
	}
	return cmp.Or(cmp.Compare(a.since, b.since), cmp.Compare(notASCII(a.name), notASCII(b.name)), cmp.Compare(a.name, b.name))
}

// notASCII returns the number of bytes of a name that are not ASCII.
func notASCII(name string) (n int) {
	for i := range len(name) {
		if name[i] >= 0x80 {
			n++
		}
	}
	return n
}
