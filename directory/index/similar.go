package index

import (
	"strings"

	"github.com/lmosd/lmosd/internal/textmatch"
	"github.com/lmosd/lmosd/td"
)

// maxCompared limits the names that are compared, so that a wrong name costs little.
const maxCompared = 20_000

// SimilarName returns the known name that is most similar to name, or "". At most a third of the letters, and at most 3, may differ, in the
// whole name or in one of its words. Names for which isKnown returns false are ignored; nil ignores none.
func (x *Index) SimilarName(name string, isKnown func(name string) bool) string {
	want := []rune(td.NameKey(name))
	most := min(len(want)/3, 3)
	if most == 0 || len(want) > 100 {
		return ""
	}
	best, bestAt, looked := "", most+1, 0
	for known := range x.Texts(Name) {
		if looked++; looked > maxCompared {
			break
		}
		at := nameDistance(want, known, most)
		if (at < bestAt || at == bestAt && best != "" && known < best) && (isKnown == nil || isKnown(known)) {
			best, bestAt = known, at
		}
	}
	return best
}

// nameDistance returns the smallest distance of want to a name or one of its words, or a value above most.
func nameDistance(want []rune, name string, most int) int {
	least := textmatch.Distance(want, []rune(name), most)
	for word := range strings.SplitSeq(name, "-") {
		if len(word) < len(name) {
			least = min(least, textmatch.Distance(want, []rune(word), most))
		}
	}
	return least
}
