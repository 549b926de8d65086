package terminal

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode"

	"github.com/mattn/go-isatty"
)

// A Screen is an output stream with its features and its width.
type Screen struct {
	io.Writer
	TTY   bool // it is a terminal
	Width int  // of a terminal, in columns
	Live  bool // a terminal whose lines can be erased, not one that tests pretend
	file  *os.File
	color bool
	ascii bool // a terminal whose locale has other characters than UTF-8
}

// Colors of a terminal (ECMA-48 §8.3.117), for [Screen.Paint].
const (
	Red    = "31"
	Green  = "32"
	Yellow = "33"
	Bold   = "1"
	Dim    = "2"
)

// NewScreen returns the screen of w in the environment of getenv: LMOSD_FORCE_TTY=WIDTH makes any stream a terminal; NO_COLOR, CLICOLOR=0
// and TERM=dumb disable colors, CLICOLOR_FORCE enables them for other streams. In a locale without UTF-8, the marks of this program are ASCII.
func NewScreen(w io.Writer, getenv func(string) string) *Screen {
	s := &Screen{Writer: w, Width: defaultWidth}
	if f, ok := w.(*os.File); ok && isatty.IsTerminal(f.Fd()) {
		s.TTY, s.Width, s.Live, s.file = true, terminalWidth(f), getenv("TERM") != "dumb", f
	}
	if forced := getenv("LMOSD_FORCE_TTY"); forced != "" {
		s.TTY, s.Width = true, defaultWidth
		if n, err := strconv.Atoi(forced); err == nil && n > 0 {
			s.Width = n
		}
	}
	force := getenv("CLICOLOR_FORCE")
	s.color = s.TTY && getenv("TERM") != "dumb" && getenv("CLICOLOR") != "0" || force != "" && force != "0"
	if getenv("NO_COLOR") != "" {
		s.color = false
	}
	if s.TTY && !unicodeLocale(getenv) {
		s.ascii, s.Writer = true, asciiWriter{w}
	}
	return s
}

// unicodeLocale reports whether the locale of the environment has UTF-8 (POSIX.1-2024 §8.2); without a locale it is assumed.
func unicodeLocale(getenv func(string) string) bool {
	locale := strings.ToLower(cmp.Or(getenv("LC_ALL"), getenv("LC_CTYPE"), getenv("LANG"), "utf-8"))
	return strings.Contains(locale, "utf-8") || strings.Contains(locale, "utf8")
}

// marks are the characters that this program uses beside ASCII, with their replacements in a locale without UTF-8.
var marks = strings.NewReplacer("✓", "+", "✗", "x", "●", "*", "…", "...", "·", "-", "—", "-", "–", "-", "→", "->", "≈", "~", "µ", "u",
	"▁", "_", "▂", "_", "▃", ".", "▄", ".", "▅", "-", "▆", "=", "▇", "+", "█", "#")

// Plain returns text with the marks that s can show.
func (s *Screen) Plain(text string) string {
	if !s.ascii {
		return text
	}
	return marks.Replace(text)
}

// An asciiWriter replaces marks. A mark is in one write.
type asciiWriter struct{ to io.Writer }

// Write implements [io.Writer].
func (w asciiWriter) Write(p []byte) (int, error) {
	if _, err := marks.WriteString(w.to, string(p)); err != nil {
		return 0, err
	}
	return len(p), nil
}

const defaultWidth = 80

// Resize sets Width to that of the terminal now, and returns its lines; 24 if they are unknown.
func (s *Screen) Resize() (lines int) {
	lines = 24
	if s.file != nil {
		if w, h := terminalSize(s.file); w > 0 && h > 0 {
			s.Width, lines = w, h
		}
	}
	return lines
}

// Is reports whether r is a terminal.
func Is(r io.Reader) bool {
	f, ok := r.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}

// PageWidth returns the width of a page of text, such as help: that of a terminal within bounds, else 80 columns.
func (s *Screen) PageWidth() int {
	if !s.TTY {
		return defaultWidth
	}
	return min(max(s.Width, 40), 120)
}

// Line writes text and a line end. It ignores errors, because there is no other stream to report them.
func (s *Screen) Line(text string) { _, _ = fmt.Fprintln(s, text) }

// Item writes text after its mark, which has a width in columns; on a terminal, long text is wrapped below itself.
func (s *Screen) Item(mark string, width int, text string) {
	lines := []string{s.Plain(OneLine(text))}
	if s.TTY {
		if s.Width-width < minValue { // the value is below its mark
			if strings.TrimSpace(mark) != "" {
				s.Line(mark)
			}
			width = 2 * gap
			mark = strings.Repeat(" ", width)
		}
		lines = wrap(lines[0], max(s.Width-width, minValue/2))
	}
	for _, line := range lines {
		s.Line(mark + line)
		mark = strings.Repeat(" ", width)
	}
}

// Print writes lines unchanged.
func (s *Screen) Print(lines string) { _, _ = io.WriteString(s, lines) }

// Paint returns text in a color, if s has colors.
func (s *Screen) Paint(color, text string) string {
	if !s.color || text == "" || color == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

// Printable returns text without control characters: untrusted text (titles, outputs, errors) must not move the cursor, change colors, or
// change the writing direction. Line ends and tabs are kept.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case unicode.IsControl(r), r >= '\u202a' && r <= '\u202e', r >= '\u2066' && r <= '\u2069', r == '\u200e', r == '\u200f':
			return '\ufffd'
		}
		return r
	}, text)
}

// OneLine returns text as printable words with single spaces.
func OneLine(text string) string { return Printable(strings.Join(strings.Fields(text), " ")) }
