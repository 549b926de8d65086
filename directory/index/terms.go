package index

import (
	"iter"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/lmosd/lmosd/internal/textmatch"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/scheme"
)

// A Kind is the kind of a term.
type Kind uint8

// The kinds of terms.
const (
	Capability Kind = iota // a prefix of a capability, by levels
	Owner
	Host
	Action
	Property
	Event
	Type
	Protocol     // a scheme, or an alias
	Organization // as claimed, see td.Thing.ClaimedOrganizations
	Version      // of a capability
	Name         // a display name, see td.Ref
	Word         // the root of a word of td.Thing.Texts
	kinds
)

// Limits of the terms of one Thing.
const (
	MaxWords    = 512  // distinct words; further ones are not indexed
	maxFacets   = 1024 // other terms
	maxVersion  = 256  // bytes of a version; longer ones are ignored
	maxPrefixes = 12   // levels of a capability; deeper ones are checked one by one
)

// A Label is a term with a weight.
type Label struct {
	kind   Kind
	text   string
	weight byte // of a word; else 0
}

// Labels returns the distinct terms of a Thing.
func Labels(d *td.Description) []Label {
	s := mentionBuffers.Get().(*mentionBuffer)
	defer s.done()
	s.facets = s.facets[:0]
	for k, text := range facets(d) {
		s.facets = append(s.facets, Label{kind: k, text: text})
		if len(s.facets) == maxFacets {
			break
		}
	}
	slices.SortFunc(s.facets, func(a, b Label) int {
		if a.kind != b.kind {
			return int(a.kind) - int(b.kind)
		}
		return strings.Compare(a.text, b.text)
	})
	distinct := slices.Compact(s.facets)
	roots, lengths := s.mentions(d.Thing)
	all := append(make([]Label, 0, len(distinct)+len(roots)), distinct...)
	for i := range roots {
		all = append(all, Label{Word, roots[i].root, roots[i].weight(&lengths)})
	}
	return all
}

// facets yields all terms but words, with duplicates.
func facets(d *td.Description) iter.Seq2[Kind, string] {
	return func(yield func(Kind, string) bool) {
		_ = yield(Owner, string(d.Record.Owner)) &&
			each(yield, Host, nodesOf(d)) && each(yield, Name, slices.Values(d.Record.Names())) &&
			each(yield, Capability, levelsOf(d)) && each(yield, Type, typesOf(d)) &&
			each(yield, Action, folded(d.Actions)) && each(yield, Property, folded(d.Properties)) &&
			each(yield, Event, folded(d.Events)) && each(yield, Version, versionsOf(d)) && each(yield, Protocol, protocolsOf(d)) &&
			each(yield, Organization, d.ClaimedOrganizations())
	}
}

// each yields terms of one kind.
func each(yield func(Kind, string) bool, k Kind, texts iter.Seq[string]) bool {
	for text := range texts {
		if !yield(k, text) {
			return false
		}
	}
	return true
}

func nodesOf(d *td.Description) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, h := range d.Record.Hosts {
			if !yield(string(h.Node)) {
				return
			}
		}
	}
}

func typesOf(d *td.Description) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, t := range d.Types {
			if !yield(td.TypeKey(t)) {
				return
			}
		}
	}
}

// versionsOf yields the versions of capabilities that queries can compare.
func versionsOf(d *td.Description) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, c := range d.Capabilities {
			if _, ok := td.Normal(c.ID); ok && c.Version != "" && len(c.Version) <= maxVersion && !yield(c.Version) {
				return
			}
		}
	}
}

func levelsOf(d *td.Description) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, capability := range d.Terms() {
			for p := range prefixes(capability) {
				if !yield(p) {
					return
				}
			}
		}
	}
}

// folded yields the names of affordances, case-folded.
func folded[T any](affordances map[string]T) iter.Seq[string] {
	return func(yield func(string) bool) {
		for name := range affordances {
			if !yield(foldName(name)) {
				return
			}
		}
	}
}

// protocolsOf yields the protocols of the schemes of a Thing.
func protocolsOf(d *td.Description) iter.Seq[string] {
	return func(yield func(string) bool) {
		for name := range d.Protocols() {
			for p := range scheme.Matching(name) {
				if !yield(p) {
					return
				}
			}
		}
	}
}

// prefixes yields the prefixes of a normal capability id by levels, shortest first, at most maxPrefixes. The first four are those of
// td.Levels.
func prefixes(capability string) iter.Seq[string] {
	// Separators are equivalent: "a/b" and "a:b" have the same levels. A normal id has no empty level.
	joined := strings.ReplaceAll(capability, "/", ":")
	for strings.HasPrefix(joined, "urn:") {
		joined = joined[len("urn:"):]
	}
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

// deepest returns the longest indexed prefix of a capability id, and whether that is the whole id; ok is false if the id has no normal form.
func deepest(capability string) (prefix string, whole, ok bool) {
	id, ok := td.Normal(capability)
	if !ok {
		return "", false, false
	}
	n := 0
	for p := range prefixes(id) {
		prefix = p
		n++
	}
	return prefix, n < maxPrefixes || strings.Count(id, ":")+strings.Count(id, "/") < maxPrefixes, true
}

// foldName normalizes names that strings.EqualFold considers equal: it writes the first of all letters that fold to each other.
func foldName(s string) string {
	return strings.Map(func(r rune) rune {
		least := r
		for o := unicode.SimpleFold(r); o != r; o = unicode.SimpleFold(o) {
			least = min(least, o)
		}
		return least
	}, s)
}

// The weight of a word by its fields. It is computed once per Thing, as in BM25F: each field counts more if it is shorter, the fields are
// added, and the sum saturates, so that repetition gains little.
const (
	saturation  = 0.5 // sum at which a word has half of the weight
	lengthShare = 0.3 // part of a field's count that depends on its length
)

var (
	fieldWeights = [td.Fields]float64{td.FieldTitle: 3, td.FieldCapability: 2.5, td.FieldAction: 2, td.FieldExample: 1.5,
		td.FieldDescription: 1, td.FieldDetail: 0.6}
	// usualLengths are the usual numbers of words of the fields.
	usualLengths = [td.Fields]float64{td.FieldTitle: 3, td.FieldCapability: 12, td.FieldAction: 6, td.FieldExample: 20,
		td.FieldDescription: 25, td.FieldDetail: 40}
)

// A mention is a root in a Thing.
type mention struct {
	root   string
	counts [td.Fields]uint16
	word   string // its first form in the field with the highest weight
	field  td.Field
}

// A mentionBuffer has the buffers for splitting a Thing into words. Its results are valid until done.
type mentionBuffer struct {
	positions map[string]int
	all       []mention
	words     []string // of one text
	facets    []Label
}

var mentionBuffers = sync.Pool{New: func() any { return &mentionBuffer{positions: make(map[string]int, 128)} }}

// done returns s to the pool.
func (s *mentionBuffer) done() {
	clear(s.positions)
	clear(s.all)
	if clear(s.words[:cap(s.words)]); cap(s.words) > MaxWords {
		s.words = nil
	}
	clear(s.facets[:cap(s.facets)])
	mentionBuffers.Put(s)
}

// mentions returns the roots in the texts of a Thing, in order, and the number of words of each field.
func (s *mentionBuffer) mentions(t *td.Thing) (all []mention, lengths [td.Fields]int) {
	positions, all := s.positions, s.all[:0]
	for text := range t.Texts() {
		s.words = textmatch.AppendWords(s.words[:0], text.Text)
		for _, w := range s.words {
			lengths[text.Field]++
			root := textmatch.Root(w)
			at, known := positions[root]
			if !known {
				if len(all) == MaxWords {
					continue
				}
				at = len(all)
				positions[root] = at
				all = append(all, mention{root: root, word: w, field: text.Field})
			}
			m := &all[at]
			if text.Field < m.field {
				m.word, m.field = w, text.Field
			}
			if m.counts[text.Field] < 1000 {
				m.counts[text.Field]++
			}
		}
	}
	s.all = all
	return all, lengths
}

// weight returns the weight of a word, 1 to 255 for 0 to 1.
func (m *mention) weight(lengths *[td.Fields]int) byte {
	sum := 0.0
	for f, n := range m.counts {
		if n > 0 {
			long := 1 - lengthShare + lengthShare*float64(lengths[f])/usualLengths[f]
			sum += fieldWeights[f] * float64(n) / max(long, 1)
		}
	}
	return max(byte(255*sum/(sum+saturation)+0.5), 1)
}

// closeness returns the similarity of two roots, 0 to 1. It is above 0 exactly if textmatch.Like is true.
func closeness(a, b string) float32 {
	switch {
	case a == b:
		return 1
	case a == "" || b == "" || a[0] != b[0]:
		return 0
	case utf8.RuneCountInString(a) >= minPrefix && strings.HasPrefix(b, a):
		return 0.6 + 0.3*float32(len(a))/float32(len(b))
	}
	n := utf8.RuneCountInString(a)
	most := textmatch.Typos(n)
	if most == 0 || strings.ContainsFunc(a, unicode.IsDigit) {
		return 0
	}
	switch textmatch.Distance([]rune(a), []rune(b), most) {
	case 1:
		return 0.75
	case 2:
		if most == 2 {
			return 0.55
		}
	}
	return 0
}

// minPrefix is the number of letters of a prefix that matches a word, see textmatch.Like.
const minPrefix = 3
