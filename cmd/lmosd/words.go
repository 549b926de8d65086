package main

import (
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/mattn/go-runewidth"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/gateway"
)

// shortKey is how many letters of an owner's key are shown: enough to be unique among what one person sees, and a prefix
// that every command takes.
const shortKey = 12

// copyable returns a reference of g that can be copied into the next command.
func copyable(g gateway.Agent) string {
	key := g.Owner.Multibase()
	if g.Name == "" || key == "" {
		return g.Ref
	}
	return g.Name + "@" + key[:min(len(key), shortKey)]
}

// fullName returns the name of g with the whole key of its owner.
func fullName(g gateway.Agent) string {
	if key := g.Owner.Multibase(); g.Name != "" && key != "" {
		return g.Name + "@" + key
	}
	return g.Ref
}

// state says whether g can be called now.
func state(g gateway.Agent) string {
	switch {
	case g.Local:
		return "here"
	case g.Reachable:
		return "reachable"
	}
	return "unreachable"
}

// ago returns the time since t in the largest unit that is not zero: 3s, 2m, 5h, 9d.
func ago(t, now time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return span(now.Sub(t))
}

// span returns d in the largest unit that is not zero.
func span(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// millis returns a number of milliseconds with its unit: 40 µs, 0.4 ms, 14 ms, 1.2 s.
func millis(ms float64) string {
	switch {
	case ms > 0 && ms < 0.1:
		return fmt.Sprintf("%.0f µs", ms*1000)
	case ms >= 1000:
		return fmt.Sprintf("%.1f s", ms/1000)
	case ms >= 10:
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.1f ms", ms)
}

// size returns a number of bytes with its unit.
func size(n int) string {
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f kB", float64(n)/1000)
}

// count returns n with the word for one or many.
func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func joinDIDs(ids []did.DID) string {
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = string(id)
	}
	return strings.Join(texts, ",")
}

// shell returns word as one word of a shell. Names, ids and capabilities come from strangers, and are copied into commands.
func shell(word string) string {
	if word != "" && !strings.ContainsFunc(word, special) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// special reports whether r could mean something to a shell. Letters of any script and "…" do not.
func special(r rune) bool {
	return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.IsMark(r) && !strings.ContainsRune("@%+=:,./-_…", r)
}

// wrap breaks text between words into lines of at most width columns. A longer word has a line of its own.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		switch {
		case line == "":
			line = word
		case runewidth.StringWidth(line)+1+runewidth.StringWidth(word) <= width:
			line += " " + word
		default:
			lines, line = append(lines, line), word
		}
	}
	return append(lines, line)
}
