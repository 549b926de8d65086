// Package terminal formats colors, tables, durations, sizes and log lines for terminals. Into a pipe the same things go in full,
// without colours, for programs. Nothing that strangers wrote commands the terminal. It knows nothing of lmosd.
package terminal

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode"

	"github.com/mattn/go-isatty"
)

// A Screen is a stream that text is written to: what it shows, and how wide it is.
type Screen struct {
	io.Writer
	TTY   bool // people read it
	Width int  // in columns, of a terminal
	color bool
}

// Colours of a terminal (ECMA-48 §8.3.117), for [Screen.Paint].
const (
	Red    = "31"
	Green  = "32"
	Yellow = "33"
	Bold   = "1"
	Dim    = "2"
)

// NewScreen returns the screen of w in the environment that getenv reads: LMOSD_FORCE_TTY=WIDTH makes any stream a terminal;
// NO_COLOR, CLICOLOR=0 and TERM=dumb take the colour away, CLICOLOR_FORCE brings it back to a stream that is none.
func NewScreen(w io.Writer, getenv func(string) string) *Screen {
	s := &Screen{Writer: w, Width: defaultWidth}
	if f, ok := w.(*os.File); ok && isatty.IsTerminal(f.Fd()) {
		s.TTY, s.Width = true, terminalWidth(f)
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
	return s
}

const defaultWidth = 80

// Is reports whether r is a terminal.
func Is(r io.Reader) bool {
	f, ok := r.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}

// Line writes text and the end of a line. A stream that cannot be written to has nobody who could be told.
func (s *Screen) Line(text string) { _, _ = fmt.Fprintln(s, text) }

// Item writes text behind what marks it, which is width columns wide; on a terminal, what is too long for a line goes on below.
func (s *Screen) Item(mark string, width int, text string) {
	lines := []string{OneLine(text)}
	if s.TTY {
		lines = wrap(lines[0], max(s.Width-width, minValue))
	}
	for _, line := range lines {
		s.Line(mark + line)
		mark = strings.Repeat(" ", width)
	}
}

// Print writes lines as they are.
func (s *Screen) Print(lines string) { _, _ = io.WriteString(s, lines) }

// Paint returns text in a colour, if s shows any.
func (s *Screen) Paint(color, text string) string {
	if !s.color || text == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

// Printable returns text without what would command a terminal: what strangers wrote (titles, answers, errors) must not
// move the cursor, change colours, or turn the direction of writing. Line ends and tabs stay.
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
