package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
)

var colors = regexp.MustCompile("\x1b\\[[0-9;]*m")

// shownScreens are commands whose output for people is held at narrow widths.
var shownScreens = []string{"peers", "find", "find weather --explain", "status", "task ls", "show weather", "org status", "org ls", "trust status", "trust ls",
	"events", "calls", "bridges", "bridges discovered", "net", "doctor", "group ls", "policy ls", "hosting ls", "errors ls"}

// nameColumns is the room for the name of a value, before a word that is too wide for the rest.
const nameColumns = 16

// No line is wider than the terminal, except for words that are copied.
func TestScreensAreNotWrapped(t *testing.T) {
	t.Parallel()
	env := home(t, withToken(newFakeNode(t))...)
	for _, line := range shownScreens {
		for _, columns := range []int{40, 80} {
			r := lmosd(t.Context(), append(env, fmt.Sprintf("LMOSD_FORCE_TTY=%d", columns)), "", strings.Fields(line)...)
			if r.out == "" {
				t.Errorf("lmosd %s prints nothing: %s", line, r.errors)
			}
			for text := range strings.Lines(r.out) {
				text = colors.ReplaceAllString(strings.TrimSuffix(text, "\n"), "")
				copied := slices.ContainsFunc(strings.Fields(text), func(word string) bool { return terminal.Columns(word) > columns-nameColumns })
				if n := terminal.Columns(text); n > columns && !copied {
					t.Errorf("lmosd %s has %d columns on a terminal of %d: %s", line, n, columns, text)
				}
			}
		}
	}
}

// Colors are for terminals, as the variables of the environment say; a locale without UTF-8 has ASCII, and no output of a pipe changes.
func TestColorsOfScreens(t *testing.T) {
	t.Parallel()
	env := home(t, withToken(newFakeNode(t))...)
	for _, test := range []struct {
		env    []string
		colors bool
	}{
		{nil, false}, {[]string{"TERM=dumb"}, false}, {[]string{"CLICOLOR=1"}, false}, {[]string{"CLICOLOR_FORCE=1"}, true},
		{[]string{"LMOSD_FORCE_TTY=80"}, true}, {[]string{"LMOSD_FORCE_TTY=80", "NO_COLOR=1"}, false}, {[]string{"LMOSD_FORCE_TTY=80", "CLICOLOR=0"}, false},
		{[]string{"LMOSD_FORCE_TTY=80", "TERM=dumb"}, false}, {[]string{"LMOSD_FORCE_TTY=80", "NO_COLOR=1", "LC_ALL=C"}, false},
		{[]string{"NO_COLOR=1", "CLICOLOR_FORCE=1"}, false},
	} {
		for _, line := range []string{"status", "find", "doctor", "net", "find nothing --exit-status", "--help"} {
			r := lmosd(t.Context(), append(env, test.env...), "", strings.Fields(line)...)
			if strings.Contains(r.out+r.errors, "\x1b") && !test.colors {
				t.Errorf("lmosd %s with %v has colors", line, test.env)
			}
			if len(test.env) == 3 && strings.ContainsFunc(r.out+r.errors, func(c rune) bool { return c > 126 }) {
				t.Errorf("lmosd %s with %v is not ASCII: %s%s", line, test.env, r.out, r.errors)
			}
		}
		r := lmosd(t.Context(), append(env, test.env...), "", "status")
		if len(r.out) == 0 || test.colors && test.env[0] != "CLICOLOR_FORCE=1" && !strings.Contains(r.out, "\x1b") {
			t.Errorf("lmosd status with %v has no colors: %q", test.env, r.out)
		}
	}
}
