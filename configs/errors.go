package configs

import (
	"fmt"
	"strings"

	"github.com/lmosd/lmosd/interact"
)

// A Problem is one error of a configuration.
type Problem struct {
	Code   interact.Code   `json:"-"`
	Where  string          `json:"where"` // "lmosd.yaml:2:3", "env LMOSD_…" or "flag --…"
	Key    string          `json:"key,omitempty"`
	Reason string          `json:"reason"`
	Hint   string          `json:"hint,omitempty"`
	Next   []interact.Step `json:"next,omitempty"`
	// Source shows the line of the file with its neighbors and a caret below the column; empty outside a file.
	Source string `json:"source,omitempty"`
}

// An Error has all problems of a configuration, at least one. It wraps an [*interact.Error] of the first one.
type Error struct{ Problems []Problem }

// Error returns the first problem on one line, and the number of others.
func (e *Error) Error() string {
	text := e.Problems[0].line()
	if more := len(e.Problems) - 1; more > 0 {
		text += fmt.Sprintf(" (and %d more)", more)
	}
	return text
}

// Unwrap returns the first problem as the error that commands and programs see.
func (e *Error) Unwrap() error {
	first := e.Problems[0]
	return &interact.Error{Code: first.Code, Title: e.Error(), Hint: first.Hint, Next: first.Next, Source: first.Source}
}

func (p *Problem) line() string { return p.Where + ": " + p.Reason }

// A place is the origin of a value.
type place struct {
	text      string // "/etc/lmosd/lmosd.yaml", "env LMOSD_…", "flag --…", "profile lan"
	line, col int    // from 1; 0 outside a file
	source    []byte // the whole file, for the excerpt
}

// origin returns the place without the column, as `config show --origin` prints it.
func (p place) origin() string {
	if p.line == 0 {
		return p.text
	}
	return fmt.Sprintf("%s:%d", p.text, p.line)
}

func (p place) String() string {
	if p.line == 0 {
		return p.text
	}
	return fmt.Sprintf("%s:%d:%d", p.text, p.line, p.col)
}

// excerpt returns the line of p between its neighbors, with a caret below the column.
func (p place) excerpt() string {
	if p.line == 0 {
		return ""
	}
	// A tab would move the text but not the caret.
	lines := strings.Split(strings.TrimRight(strings.ReplaceAll(string(p.source), "\t", " "), "\n"), "\n")
	var b strings.Builder
	for n := max(1, p.line-1); n <= min(len(lines), p.line+1); n++ {
		mark := ' '
		if n == p.line {
			mark = '>'
		}
		fmt.Fprintf(&b, "%c %3d | %s\n", mark, n, strings.TrimRight(lines[n-1], "\r "))
		if n == p.line {
			fmt.Fprintf(&b, "      | %s^\n", strings.Repeat(" ", max(0, p.col-1)))
		}
	}
	return strings.TrimRight(b.String(), "\n")
}

// problems collects the problems of a configuration.
type problems struct{ list []Problem }

// add adds a problem. Without a hint, its step lists the keys. The caller may change the result.
func (ps *problems) add(code interact.Code, at place, key, hint, format string, args ...any) *Problem {
	p := Problem{Code: code, Where: at.String(), Key: key, Reason: fmt.Sprintf(format, args...), Hint: hint, Source: at.excerpt()}
	if hint == "" {
		p.Hint, p.Next = "see the keys and their values", interact.Next(interact.StepConfig)
	}
	ps.list = append(ps.list, p)
	return &ps.list[len(ps.list)-1]
}

// secret adds a problem without its line, which contains a secret.
func (ps *problems) secret(at place, key, hint string) {
	at.source = nil
	where := Problem{Code: interact.InlineSecret, Where: at.String(), Key: key,
		Reason: "the value of " + key + " is written in the configuration itself",
		Hint:   hint}
	ps.list = append(ps.list, where)
}

func (ps *problems) err() error {
	if len(ps.list) == 0 {
		return nil
	}
	return &Error{ps.list}
}

// Suggest returns the candidate that is most similar to word, or "" if more than a third of the letters differ.
func Suggest(word string, candidates []string) string {
	best, least := "", len(word)/3+1
	for _, c := range candidates {
		if d := distance(strings.ToLower(word), strings.ToLower(c), least); d < least || d == least && best == "" {
			best, least = c, d
		}
	}
	return best
}

// distance returns the number of insertions, deletions, changes and swaps of letters between a and b, or more than most if the lengths
// alone exceed it.
func distance(a, b string, most int) int {
	if max(len(a), len(b))-min(len(a), len(b)) > most || len(b) > 256 {
		return most + 1
	}
	var before []int
	last := make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}

// didYouMean returns the hint for an unknown name, or other without a similar one.
func didYouMean(word string, candidates []string, other string) string {
	if s := Suggest(word, candidates); s != "" {
		return fmt.Sprintf("did you mean %q?", s)
	}
	return other
}
