package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode"

	"github.com/mattn/go-isatty"
)

// A screen is a stream that text is written to: what it shows, and how wide it is.
type screen struct {
	io.Writer
	tty   bool // people read it
	width int  // columns of a terminal
	color bool
}

// Colours of a terminal (ECMA-48 §8.3.117).
const (
	red    = "31"
	green  = "32"
	yellow = "33"
	bold   = "1"
	dim    = "2"
)

// newScreen returns the screen of w. LMOSD_FORCE_TTY=WIDTH makes any stream a terminal; NO_COLOR, CLICOLOR=0 and
// TERM=dumb take the colour away, CLICOLOR_FORCE brings it back to a stream that is none.
func newScreen(w io.Writer, env []string) *screen {
	s := &screen{Writer: w, width: defaultWidth}
	if f, ok := w.(*os.File); ok && isatty.IsTerminal(f.Fd()) {
		s.tty, s.width = true, terminalWidth(f)
	}
	if forced := variable(env, "LMOSD_FORCE_TTY"); forced != "" {
		s.tty, s.width = true, defaultWidth
		if n, err := strconv.Atoi(forced); err == nil && n > 0 {
			s.width = n
		}
	}
	force := variable(env, "CLICOLOR_FORCE")
	s.color = s.tty && variable(env, "TERM") != "dumb" && variable(env, "CLICOLOR") != "0" || force != "" && force != "0"
	if variable(env, "NO_COLOR") != "" {
		s.color = false
	}
	return s
}

const defaultWidth = 80

// variable returns the last value of a variable in env, "" without one.
func variable(env []string, name string) string {
	value := ""
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			value = v
		}
	}
	return value
}

// line writes text and the end of a line. A stream that cannot be written to has nobody who could be told.
func (s *screen) line(text string) { _, _ = fmt.Fprintln(s, text) }

// item writes text behind what marks it, which is width columns wide; on a terminal, what is too long for a line goes on below.
func (s *screen) item(mark string, width int, text string) {
	lines := []string{oneLine(text)}
	if s.tty {
		lines = wrap(lines[0], max(s.width-width, minValue))
	}
	for _, line := range lines {
		s.line(mark + line)
		mark = strings.Repeat(" ", width)
	}
}

// text writes lines as they are.
func (s *screen) text(lines string) { _, _ = io.WriteString(s, lines) }

// paint returns text in a colour, if s shows any.
func (s *screen) paint(color, text string) string {
	if !s.color || text == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

// printable returns text without what would command a terminal: what strangers wrote (titles, answers, errors) must not
// move the cursor, change colours, or turn the direction of writing. Line ends and tabs stay.
func printable(text string) string {
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

// oneLine returns text as printable words with single spaces.
func oneLine(text string) string { return printable(strings.Join(strings.Fields(text), " ")) }
