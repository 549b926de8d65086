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

// vocabulary finds words that are similar to a given one without a scan. Words are indexes in Index.terms.
type vocabulary struct {
	sorted  chunks[uint32]     // by text, for prefixes
	buckets map[bucket][]shape // for typos, which keep the first letter and nearly the length
}

// A bucket has the words with the same first byte and number of letters.
type bucket struct {
	first   byte
	letters uint8
}

// A shape is a word with the set of its letters: a typo changes at most two of them.
type shape struct{ letters, term uint32 }

// lettersOf returns a set of the letters of a word; letters other than a to z share six bits.
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

func (v *vocabulary) position(terms []term, text string) (part, at int) {
	return v.sorted.seek(func(id uint32) bool { return terms[id].text < text })
}

func (v *vocabulary) add(terms []term, id uint32) {
	text := terms[id].text
	part, at := v.position(terms, text)
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
	part, at := v.position(terms, text)
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

// A sense is an indexed word that is similar to a query word.
type sense struct {
	term  uint32
	close float32 // 0 to 1
}

// Limits of the senses of one query word: the closest and most frequent ones.
const (
	maxSenses = 256
	maxBegins = 4096 // checked words that begin with it
)

// senses returns the words similar to the query word (textmatch.Like), the closest first.
func (x *Index) senses(word string) []sense {
	root := textmatch.Root(word)
	var all []sense
	if id, ok := x.ids[Word].find(x.terms, root); ok {
		all = append(all, sense{id, 1})
	}
	if utf8.RuneCountInString(root) >= minPrefix {
		all = x.appendPrefixed(root, all)
	}
	if most := textmatch.Typos(utf8.RuneCountInString(root)); most > 0 && !strings.ContainsFunc(root, unicode.IsDigit) {
		all = x.appendTypos(root, most, all)
	}
	slices.SortFunc(all, func(a, b sense) int {
		ta, tb := &x.terms[a.term], &x.terms[b.term]
		return cmp.Or(cmp.Compare(b.close, a.close), cmp.Compare(tb.list.Len(), ta.list.Len()), strings.Compare(ta.text, tb.text))
	})
	return all[:min(len(all), maxSenses)]
}

// appendPrefixed appends the longer words that begin with root.
func (x *Index) appendPrefixed(root string, all []sense) []sense {
	n := 0
	for id := range x.words.sorted.from(x.words.position(x.terms, root)) {
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

// appendTypos appends the words that differ from root in at most most letters, and do not begin with it.
func (x *Index) appendTypos(root string, most int, all []sense) []sense {
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

// maxSearchWords is the number of words of a query that are looked up.
const maxSearchWords = 8

// A SearchWord is a word of a query with its senses.
type SearchWord struct {
	word   string
	rarity float64
	senses []sense
}

// Lookup looks up the words of a query.
func (x *Index) Lookup(words []string) []SearchWord {
	words = words[:min(len(words), maxSearchWords)]
	all := make([]SearchWord, len(words))
	for i, word := range words {
		s := SearchWord{word: word, senses: x.senses(word)}
		// The rarity of an indexed word is its own; otherwise that of its senses.
		count := 0
		for _, m := range s.senses {
			if count > 0 && s.senses[0].close == 1 && m.close < 1 {
				break
			}
			count += x.terms[m.term].list.Len()
		}
		s.rarity = rarity(min(count, x.order.n), x.order.n)
		all[i] = s
	}
	return all
}

// matching returns the Things with a sense of one of the query words.
func (x *Index) matching(words []string) Set {
	set := NewSet(len(x.records))
	for _, s := range x.Lookup(words) {
		for _, m := range s.senses {
			for slot := range x.terms[m.term].list.All() {
				set.Add(slot)
			}
		}
	}
	return set
}

// A scratch is the memory of one search: scores by slot. It is zero between searches.
type scratch struct {
	sums    []float32
	best    []float32 // for the current word
	hit     []uint32  // slots with a sum
	touched []uint32  // slots with a best
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// score returns the Things of all lists with a sense of one of the query words, in any order, and their scores: the sum over the words of
// rarity and weight, relative to the maximum.
func (x *Index) score(words []string, lists []*List) (slots []uint32, scores []float32) {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	if short := len(x.records) - len(s.sums); short > 0 {
		s.sums, s.best = append(s.sums, make([]float32, short)...), append(s.best, make([]float32, short)...)
	}
	all := x.Lookup(words)
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

// scoreWord adds the score of the closest sense to each Thing.
func (x *Index) scoreWord(s *scratch, one SearchWord, share float32) {
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

// rarity returns the weight of a word with a number of matches among all Things (the idf of BM25).
func rarity(count, all int) float64 {
	return math.Log(1 + (float64(all-count)+0.5)/(float64(count)+0.5))
}

// A Hit is a query word that a Thing has.
type Hit struct {
	Asked string   // the query word
	Found string   // the word of the Thing
	Field td.Field // the field with the highest weight that has it
	Score float64  // its part of the score of the Thing
}

// Compare returns the query words that a Thing has. Their scores add up to the score of [Choice.Top].
func Compare(words []SearchWord, t *td.Thing) (hits []Hit) {
	s := mentionBuffers.Get().(*mentionBuffer)
	defer s.done()
	all, lengths := s.mentions(t)
	total := 0.0
	for _, one := range words {
		total += one.rarity
	}
	for _, one := range words {
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
