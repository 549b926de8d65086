package index

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/lmosd/lmosd/internal/textmatch"
	"github.com/lmosd/lmosd/td"
)

// The index finds exactly the words that textmatch.Like accepts, without a scan.
func TestSensesAreAllWordsAlike(t *testing.T) {
	t.Parallel()
	letters := rapid.StringOfN(rapid.SampledFrom([]rune("aabceéstx1ß界")), 1, 10, -1)
	rapid.Check(t, func(rt *rapid.T) {
		var x Index
		var all []string
		for range rapid.IntRange(1, 60).Draw(rt, "words") {
			root := textmatch.Root(textmatch.Fold(letters.Draw(rt, "word")))
			if _, known := x.ids[Word].find(x.terms, root); !known {
				x.term(Word, root)
				all = append(all, root)
			}
		}
		for range rapid.IntRange(0, 20).Draw(rt, "gone") {
			gone := rapid.SampledFrom(all).Draw(rt, "which")
			if id, ok := x.ids[Word].find(x.terms, gone); ok && len(all) > 1 {
				x.drop(id)
				all = slices.DeleteFunc(all, func(w string) bool { return w == gone })
			}
		}
		asked := textmatch.Fold(letters.Draw(rt, "asked"))
		if rapid.Bool().Draw(rt, "near") {
			asked = rapid.SampledFrom(all).Draw(rt, "of") + "s"
		}
		var got, want []string
		for _, s := range x.senses(asked) {
			got = append(got, x.terms[s.term].text)
			if s.close <= 0 || s.close > 1 {
				rt.Errorf("%q is %v close to %q", asked, s.close, got[len(got)-1])
			}
		}
		for _, root := range all {
			// The root of a root can differ: indexed words are compared unchanged.
			if closeness(textmatch.Root(asked), root) > 0 {
				want = append(want, root)
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			rt.Errorf("%q: got %q, want %q", asked, got, want)
		}
	})
}

func TestClosenessAgreesWithLike(t *testing.T) {
	t.Parallel()
	letters := rapid.StringOfN(rapid.SampledFrom([]rune("aabcest1ß")), 1, 12, -1)
	rapid.Check(t, func(rt *rapid.T) {
		a, b := letters.Draw(rt, "a"), letters.Draw(rt, "b")
		if rapid.Bool().Draw(rt, "near") {
			b = a + b[:1]
		}
		if got := closeness(textmatch.Root(a), textmatch.Root(b)) > 0; got != textmatch.Like(a, b) {
			rt.Errorf("%q and %q: got %v", a, b, got)
		}
	})
	for _, c := range []struct{ a, better, worse string }{
		{"weather", "weather", "weathers1"}, {"weather", "wether", "wethr"}, {"fore", "forest", "forecasting"},
	} {
		if closeness(c.a, c.better) <= closeness(c.a, c.worse) {
			t.Errorf("%s is not closer to %s than %s", c.better, c.a, c.worse)
		}
	}
}

// A prefix of many words has the closest and most common of them.
func TestSensesAreBounded(t *testing.T) {
	t.Parallel()
	var x Index
	for i := range 3 * maxSenses {
		x.term(Word, "con"+strings.Repeat("a", i/26)+string(rune('a'+i%26)))
	}
	all := x.senses("con")
	if len(all) != maxSenses || x.terms[all[0].term].text != "cona" {
		t.Errorf("%d senses, first %q", len(all), x.terms[all[0].term].text)
	}
}

func TestWeights(t *testing.T) {
	t.Parallel()
	long := &td.Thing{ID: "urn:1", Title: "Weather"}
	long.Description = strings.Repeat("clouds rain wind ", 60) + "weather"
	long.Capabilities = []td.Capability{{ID: "urn:example:forecast", Description: "hail", Examples: []string{"will it snow"}}}
	weights := map[string]byte{}
	all, lengths := mentionBuffers.Get().(*mentionBuffer).mentions(long)
	for _, m := range all {
		weights[m.root] = m.weight(&lengths)
	}
	for _, c := range []struct{ more, less string }{
		{"weather", "forecast"}, {"forecast", "snow"}, {"snow", "hail"}, {"rain", "hail"},
	} {
		if weights[c.more] <= weights[c.less] {
			t.Errorf("%s weighs %d, not more than %s with %d", c.more, weights[c.more], c.less, weights[c.less])
		}
	}
	if weights["weather"] < 205 {
		t.Errorf("a word of the title weighs %d of 255", weights["weather"])
	}
}

func TestFacets(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		name := rapid.StringOfN(rapid.SampledFrom([]rune("kK\u212asSſßẞiIİıΩωµμéÉ")), 0, 4, -1)
		a, b := name.Draw(rt, "a"), name.Draw(rt, "b")
		if got := foldName(a) == foldName(b); got != strings.EqualFold(a, b) {
			rt.Errorf("%q and %q: got %v", a, b, got)
		}
	})
}
