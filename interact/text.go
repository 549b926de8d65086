package interact

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Readable puts the words of somebody else on one line, so that they can be shown: what could move a terminal's cursor, or turn
// the direction of a text, is a space.
func Readable(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == utf8.RuneError || unicode.Is(unicode.Bidi_Control, r) {
			return ' '
		}
		return r
	}, text)
	return strings.Join(strings.Fields(text), " ")
}

// Clip cuts a text to at most n bytes at a character's border, and puts "…" behind what was cut.
func Clip(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + "…"
}
