package interact

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Count returns n with its noun: 1 agent, 2 agents. All texts for people that count use it.
func Count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

// Readable returns untrusted text on one line for display: control characters and those that change the direction of text become
// spaces.
func Readable(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == utf8.RuneError || unicode.Is(unicode.Bidi_Control, r) {
			return ' '
		}
		return r
	}, text)
	return strings.Join(strings.Fields(text), " ")
}

// Clip cuts text to at most n bytes at a character boundary, with "…" at the cut.
func Clip(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + "…"
}

// Excerpt returns untrusted text for display: on one line, cut to n bytes. See [Readable] and [Clip].
func Excerpt(text string, n int) string { return Clip(Readable(text), n) }
