package index

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/lmosd/lmosd/internal/textmatch"
	"github.com/lmosd/lmosd/td"
)

// vocabulary finds the words that are like a given one, without looking at all of them. Words are places in Index.terms.
type vocabulary struct {
	sorted  chunks[uint32]     // by text, for beginnings
	buckets map[bucket][]shape // for typos, which leave the first letter and nearly the length
}

// A bucket holds the words that begin with the same byte and have as many letters.
type bucket struct {
	first   byte
	letters uint8
}

// A shape is a word, and which letters it has: a typo changes at most two of these.
type shape struct{ letters, term uint32 }

// lettersOf returns a set of the letters of a word; letters other than a to z share six places.
func lettersOf(word string) (set uint32) {
	for _, r := range word {
		if 'a' <= r && r <= 'z' {
			set |= 1 << (r - 'a')
		} else {
			set |= 1 << (26 + r%6)
		}
	}
	return set
}

func bucketOf(word string) bucket {
	return bucket{word[0], uint8(min(utf8.RuneCountInString(word), 255))}
}

func (v *vocabulary) place(terms []term, text string) (part, at int) {
	return v.sorted.seek(func(id uint32) bool { return terms[id].text < text })
}

func (v *vocabulary) add(terms []term, id uint32) {
	text := terms[id].text
	part, at := v.place(terms, text)
	v.sorted.insert(part, at, id)
	if v.buckets == nil {
		v.buckets = map[bucket][]shape{}
	}
	b := bucketOf(text)
	terms[id].shape = uint32(len(v.buckets[b]))
	v.buckets[b] = append(v.buckets[b], shape{lettersOf(text), id})
}

func (v *vocabulary) remove(terms []term, id uint32) {
	text := terms[id].text
	part, at := v.place(terms, text)
	v.sorted.remove(part, at)
	b := bucketOf(text)
	shapes, at := v.buckets[b], int(terms[id].shape)
	last := len(shapes) - 1
	shapes[at] = shapes[last]
	terms[shapes[at].term].shape = uint32(at)
	if v.buckets[b] = shapes[:last]; last == 0 {
		delete(v.buckets, b)
	}
}

// A sense is a word that somebody may mean by another one.
type sense struct {
	term  uint32
	close float32 // 0 to 1
}

// Bounds of how much of the vocabulary one word that is asked for stands for: the closest and the most common.
const (
	maxSenses = 256
	maxBegins = 4096 // words with its beginning that are looked at
)

// senses returns the words that are like the asked one (words.Like), the closest first.
func (x *Index) senses(asked string) []sense {
	root := textmatch.Root(asked)
	var all []sense
	if id, ok := x.ids[Word][root]; ok {
		all = append(all, sense{id, 1})
	}
	if utf8.RuneCountInString(root) >= minPrefix {
		all = x.beginning(root, all)
	}
	if most := textmatch.Typos(utf8.RuneCountInString(root)); most > 0 && !strings.ContainsFunc(root, unicode.IsDigit) {
		all = x.mistyped(root, most, all)
	}
	slices.SortFunc(all, func(a, b sense) int {
		ta, tb := &x.terms[a.term], &x.terms[b.term]
		return cmp.Or(cmp.Compare(b.close, a.close), cmp.Compare(tb.list.Len(), ta.list.Len()), strings.Compare(ta.text, tb.text))
	})
	return all[:min(len(all), maxSenses)]
}

// beginning appends the longer words that begin with root.
func (x *Index) beginning(root string, all []sense) []sense {
	n := 0
	for id := range x.words.sorted.from(x.words.place(x.terms, root)) {
		text := x.terms[id].text
		if n++; n > maxBegins || !strings.HasPrefix(text, root) {
			break
		}
		if text != root {
			all = append(all, sense{id, closeness(root, text)})
		}
	}
	return all
}

// mistyped appends the words that differ from root in most letters at most, and do not begin with it.
func (x *Index) mistyped(root string, most int, all []sense) []sense {
	runes, letters := utf8.RuneCountInString(root), lettersOf(root)
	for n := runes - most; n <= runes+most; n++ {
		for _, s := range x.words.buckets[bucket{root[0], uint8(n)}] {
			if bits.OnesCount32(s.letters^letters) > 2*most {
				continue
			}
			text := x.terms[s.term].text
			if strings.HasPrefix(text, root) {
				continue
			}
			if close := closeness(root, text); close > 0 {
				all = append(all, sense{s.term, close})
			}
		}
	}
	return all
}

// maxSought is how many words of a question are looked up.
const maxSought = 8

// A Sought is a word of a question and what is known of it.
type Sought struct {
	word   string
	rarity float64
	senses []sense
}

// Seek looks up the words of a question.
func (x *Index) Seek(asked []string) []Sought {
	asked = asked[:min(len(asked), maxSought)]
	all := make([]Sought, len(asked))
	for i, word := range asked {
		s := Sought{word: word, senses: x.senses(word)}
		// A word that is there as it was typed is as rare as it is; else, as what may be meant.
		say := 0
		for _, m := range s.senses {
			if say > 0 && s.senses[0].close == 1 && m.close < 1 {
				break
			}
			say += x.terms[m.term].list.Len()
		}
		s.rarity = rarity(min(say, x.order.n), x.order.n)
		all[i] = s
	}
	return all
}

// saying returns the things that have a word like one of those asked for.
func (x *Index) saying(asked []string) slotSet {
	said := newSlotSet(len(x.records))
	for _, s := range x.Seek(asked) {
		for _, m := range s.senses {
			for slot := range x.terms[m.term].list.All() {
				said.add(slot)
			}
		}
	}
	return said
}

// A scratch is the memory of one search: how well each thing fits, by slot. It is all zero between searches.
type scratch struct {
	sums    []float32
	best    []float32 // of the word that is looked at
	hit     []uint32  // slots whose sum is not zero
	touched []uint32  // slots whose best is not zero
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// score returns the things of all lists that have a word like one of those asked for, in no order, and how well they fit: the
// sum over the words of rarity and weight, of what could be had at most.
func (x *Index) score(asked []string, lists []*List) (slots []uint32, scores []float32) {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	if short := len(x.records) - len(s.sums); short > 0 {
		s.sums, s.best = append(s.sums, make([]float32, short)...), append(s.best, make([]float32, short)...)
	}
	all := x.Seek(asked)
	total := 0.0
	for _, one := range all {
		total += one.rarity
	}
	for _, one := range all {
		x.scoreWord(s, one, float32(one.rarity/total))
	}
	slots, scores = make([]uint32, 0, len(s.hit)), make([]float32, 0, len(s.hit))
	for _, slot := range s.hit {
		if inAll(lists, slot) {
			slots, scores = append(slots, slot), append(scores, min(s.sums[slot], 1))
		}
		s.sums[slot] = 0
	}
	s.hit = s.hit[:0]
	return slots, scores
}

// scoreWord adds to each thing how well its closest word fits.
func (x *Index) scoreWord(s *scratch, one Sought, share float32) {
	if len(one.senses) == 1 {
		per := share * one.senses[0].close / 255
		for _, part := range x.terms[one.senses[0].term].list.parts() {
			for _, p := range part {
				slot := p.slot()
				if s.sums[slot] == 0 {
					s.hit = append(s.hit, slot)
				}
				s.sums[slot] += per * float32(p.weight())
			}
		}
		return
	}
	for _, m := range one.senses {
		per := m.close / 255
		for _, part := range x.terms[m.term].list.parts() {
			for _, p := range part {
				slot, fit := p.slot(), per*float32(p.weight())
				if was := s.best[slot]; was == 0 {
					s.touched = append(s.touched, slot)
					s.best[slot] = fit
				} else if fit > was {
					s.best[slot] = fit
				}
			}
		}
	}
	for _, slot := range s.touched {
		if s.sums[slot] == 0 {
			s.hit = append(s.hit, slot)
		}
		s.sums[slot] += share * s.best[slot]
		s.best[slot] = 0
	}
	s.touched = s.touched[:0]
}

// rarity returns how much a word that so many of all things say tells of a thing (the idf of BM25).
func rarity(say, all int) float64 {
	return math.Log(1 + (float64(all-say)+0.5)/(float64(say)+0.5))
}

// A Hit is a word of a question that a thing has.
type Hit struct {
	Asked string   // the word of the question
	Found string   // the word that the thing has
	Field td.Field // the most telling field with it
	Score float64  // its part of the score of the thing
}

// Compare returns which words of a question that was looked up a thing has. Their scores add up to what [Choice.Top] has.
func Compare(asked []Sought, t *td.Thing) (hits []Hit) {
	s := readings.Get().(*reading)
	defer s.done()
	all, lengths := s.mentions(t)
	total := 0.0
	for _, one := range asked {
		total += one.rarity
	}
	for _, one := range asked {
		best, root := Hit{Asked: one.word}, textmatch.Root(one.word)
		for i := range all {
			m := &all[i]
			close := closeness(root, m.root)
			if close == 0 {
				continue
			}
			score := float64(close) * float64(m.weight(&lengths)) / 255 * one.rarity / total
			if score > best.Score || score == best.Score && score > 0 && m.word < best.Found {
				best.Score, best.Found, best.Field = score, m.word, m.field
			}
		}
		if best.Score > 0 {
			hits = append(hits, best)
		}
	}
	return hits
}
