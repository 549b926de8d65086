// Package textmatch splits text into words and matches words with tolerance for plurals, prefixes and typos.
package textmatch

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// Fold returns s in lower case and composed (NFC).
func Fold(s string) string {
	lower := strings.ToLower(s)
	if isASCII(lower) { // and so composed
		return lower
	}
	return norm.NFC.String(lower)
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// Split returns the folded words of s, which consist of letters, digits and marks. A name in camel case gives one word, and its
// parts: "getWeather" gives "getweather", "get", "weather".
func Split(s string) []string { return AppendWords(nil, s) }

// AppendWords is [Split], and appends the words to all.
func AppendWords(all []string, s string) []string {
	if isASCII(s) {
		return appendASCII(all, s)
	}
	for _, word := range strings.FieldsFunc(norm.NFC.String(s), func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.IsMark(r)
	}) {
		all = append(all, Fold(word))
		if parts := humps(word); len(parts) > 1 {
			for _, part := range parts {
				all = append(all, Fold(part))
			}
		}
	}
	return all
}

// appendASCII is AppendWords for ASCII: the words are parts of lower, which has the same offsets as s.
func appendASCII(all []string, s string) []string {
	lower := strings.ToLower(s)
	from := 0
	for i := range len(s) + 1 {
		if i < len(s) && ('a' <= lower[i] && lower[i] <= 'z' || '0' <= s[i] && s[i] <= '9') {
			continue
		}
		if from < i {
			all = append(all, lower[from:i])
			if s[from:i] != lower[from:i] {
				all = appendHumps(all, s[from:i], lower[from:i])
			}
		}
		from = i + 1
	}
	return all
}

// appendHumps appends the parts of a word in camel case, see humps, in lower case.
func appendHumps(all []string, word, lower string) []string {
	upper := func(i int) bool { return word[i] != lower[i] }
	letter := func(i int) bool { return 'a' <= word[i] && word[i] <= 'z' }
	from := 0
	for i := 1; i < len(word); i++ {
		if upper(i) && (letter(i-1) || i+1 < len(word) && upper(i-1) && letter(i+1)) {
			all, from = append(all, lower[from:i]), i
		}
	}
	if from > 0 {
		all = append(all, lower[from:])
	}
	return all
}

// humps returns the parts of a word in camel case: "HTTPServer" has "HTTP" and "Server".
func humps(word string) []string {
	if !strings.ContainsFunc(word, unicode.IsUpper) {
		return nil
	}
	var parts []string
	runes := []rune(word)
	from := 0
	for i := 1; i < len(runes); i++ {
		begins := unicode.IsUpper(runes[i]) && (unicode.IsLower(runes[i-1]) ||
			i+1 < len(runes) && unicode.IsUpper(runes[i-1]) && unicode.IsLower(runes[i+1]))
		if begins {
			parts, from = append(parts, string(runes[from:i])), i
		}
	}
	return append(parts, string(runes[from:]))
}

// stop are stop words of English and German.
var stop = func() map[string]bool {
	m := map[string]bool{}
	for _, w := range strings.Fields(`a about an and any are as at be by can could do does for from give has have how i in is it its
		me my of on or please show tell that the their there this to us was we what when where which who will with would you your
		agent agents tool tools something someone somebody anyone anybody find need want
		auf das dem den der die ein eine einen einer es für hat ich in ist kann mein mit oder und von was welche welcher wer wie wo zu
		zum zur`) {
		m[w] = true
	}
	return m
}()

// IsInformative reports whether a text has words that are not stop words.
func IsInformative(text string) bool {
	return slices.ContainsFunc(Split(text), func(w string) bool { return !stop[w] })
}

// Content returns the words of a query without stop words, or all if there are no others.
func Content(question string) []string {
	all := Split(question)
	content := slices.DeleteFunc(slices.Clone(all), func(w string) bool { return stop[w] })
	if len(content) == 0 {
		content = all
	}
	return content
}

// Root returns a word without the ending of an English plural: "forecasts" is "forecast", "cities" is "city". A word of another
// language may lose a letter, in the query and in the text alike.
func Root(word string) string {
	switch {
	case len(word) < 4 || !strings.HasSuffix(word, "s"), strings.HasSuffix(word, "ss"), strings.HasSuffix(word, "us"), strings.HasSuffix(word, "is"):
		return word
	case strings.HasSuffix(word, "ies") && len(word) > 4:
		return word[:len(word)-3] + "y"
	case strings.HasSuffix(word, "xes"), strings.HasSuffix(word, "ches"), strings.HasSuffix(word, "shes"), strings.HasSuffix(word, "sses"):
		return word[:len(word)-2]
	}
	return word[:len(word)-1]
}

// minPrefix is the minimum length of a matching prefix.
const minPrefix = 3

// Typos returns the number of tolerated typos in a word of a length.
func Typos(letters int) int {
	switch {
	case letters < 4, letters > 40: // a long text is not a word, and would take long
		return 0
	case letters < 8:
		return 1
	}
	return 2
}

// Like reports whether a matches b: b has the same root, begins with a, or differs by typos. The first letter and numbers must
// be equal.
func Like(a, b string) bool {
	ra, rb := Root(a), Root(b)
	if ra == rb {
		return true
	}
	n := utf8.RuneCountInString(ra)
	if n >= minPrefix && strings.HasPrefix(rb, ra) {
		return true
	}
	most := Typos(n)
	if most == 0 || ra[0] != rb[0] || strings.ContainsFunc(ra, unicode.IsDigit) {
		return false
	}
	return Distance([]rune(ra), []rune(rb), most) <= most
}

// Distance returns the restricted Damerau–Levenshtein distance of a and b, or most+1 if it exceeds most.
func Distance(a, b []rune, most int) int {
	if len(a)-len(b) > most || len(b)-len(a) > most {
		return most + 1
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range a {
		row[0] = i + 1
		least := row[0]
		for j := range b {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, last[j]+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
			least = min(least, row[j+1])
		}
		if least > most {
			return most + 1
		}
		before, last, row = last, row, before
	}
	return min(last[len(b)], most+1)
}
