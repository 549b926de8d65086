package terminal

import (
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/mattn/go-runewidth"

	"github.com/lmosd/lmosd/interact"
)

// Ago returns the time since t in the largest unit that is not zero: 3s, 2m, 5h, 9d.
func Ago(t, now time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return Span(now.Sub(t))
}

// Span returns d in the largest unit that is not zero.
func Span(d time.Duration) string {
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

// Millis returns a number of milliseconds with its unit: 40 µs, 0.4 ms, 14 ms, 1.2 s.
func Millis(ms float64) string {
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

// Size returns a number of bytes with its unit.
func Size(n int) string {
	switch {
	case n < 1e3:
		return fmt.Sprintf("%d B", n)
	case n < 1e6:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	case n < 1e9:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	}
	return fmt.Sprintf("%.1f GB", float64(n)/1e9)
}

// Count is [interact.Count].
func Count(n int, one, many string) string { return interact.Count(n, one, many) }

// Shell returns word as one word of a shell. Names, ids and capabilities are untrusted and are copied into commands.
func Shell(word string) string {
	if word != "" && !strings.ContainsFunc(word, special) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// special reports whether r may have a meaning in a shell. Letters of all scripts and "…" have none.
func special(r rune) bool {
	return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.IsMark(r) && !strings.ContainsRune("@%+=:,./-_…", r)
}

// Columns returns the width of text on a terminal: some characters have two columns, some none.
func Columns(text string) int { return runewidth.StringWidth(text) }

// Reflow breaks lines of text that are wider than width columns. A line that begins with a space stands alone, and continues below its second
// column; other lines are joined to paragraphs.
func Reflow(text string, width int) string {
	var b strings.Builder
	var paragraph []string
	flush := func() {
		if len(paragraph) > 0 {
			b.WriteString(strings.Join(wrap(strings.Join(paragraph, " "), width), "\n") + "\n")
			paragraph = nil
		}
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \n")
		if line != "" && line[0] != ' ' {
			paragraph = append(paragraph, line)
			continue
		}
		flush()
		b.WriteString(hang(line, width) + "\n")
	}
	flush()
	return b.String()
}

// hang breaks a line that is wider than width columns below its second column, which follows two spaces or more, or below its indentation.
func hang(line string, width int) string {
	if Columns(line) <= width {
		return line
	}
	indent := len(line) - len(strings.TrimLeft(line, " "))
	first, rest := line[:indent], line[indent:]
	if i := strings.Index(rest, "  "); i >= 0 {
		column := indent + i + len(rest[i:]) - len(strings.TrimLeft(rest[i:], " "))
		if Columns(line[:column]) <= width/2 {
			first, rest = line[:column], line[column:]
		}
	}
	below := strings.Repeat(" ", Columns(first))
	if strings.TrimSpace(first) == "" {
		below += "  " // of a line without a second column
	}
	lines := wrap(rest, max(width-len(below), minValue/2))
	return first + strings.Join(lines, "\n"+below)
}

// Cut returns text with at most width columns, with "…" at the cut.
func Cut(text string, width int) string {
	if width <= 0 {
		return ""
	}
	return runewidth.Truncate(text, width, "…")
}

// wrap breaks text between words into lines of at most width columns. A longer word is on its own line.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		switch {
		case line == "":
			line = word
		case Columns(line)+1+Columns(word) <= width:
			line += " " + word
		default:
			lines, line = append(lines, line), word
		}
	}
	return append(lines, line)
}
