package tdd

import (
	"context"
	"iter"
	"regexp"
	"regexp/syntax"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/jcs"
)

// Bounds of a query (WoT Discovery §8.1 asks for all of them). Work is counted in steps: one is a value that is looked at, 16
// bytes of text that are read, or 64 bytes that one instruction of a regular expression is tried on.
const (
	maxQuery   = 4 << 10   // bytes of its text
	maxNesting = 32        // brackets in brackets
	maxSteps   = 20e6      // of work
	maxBytes   = 128 << 20 // of memory that it may have at once, beside the things themselves
	maxFound   = 1 << 20   // values between two steps of it
	maxAnswer  = 32 << 20  // bytes of what it finds
	maxProgram = 1000      // instructions of a regular expression
	maxPattern = 256       // bytes of one
	maxMatch   = 16 << 20  // instructions by bytes, for one match: nobody can stop it
	maxWhole   = 32 << 20  // bytes of TDs, where a query needs all in memory
)

// A budget is what a query may still cost. What passes it panics with a *stop, which search catches: a library that runs a query
// gives no other way out of it.
type budget struct {
	ctx   context.Context
	until time.Time
	limit time.Duration
	most  int // steps
	steps int
	look  int // steps until the clock is looked at
	bytes int // of memory that a library may still have of what was made for it
}

type stop struct{ err error }

func (b *budget) fail(code interact.Code, format string, args ...any) {
	panic(&stop{interact.Errorf(code, "ask for less: name members and conditions that fewer things have", format, args...)})
}

// step pays for n steps.
func (b *budget) step(n int) {
	b.steps += n
	if b.look -= n; b.look > 0 {
		return
	}
	b.look = 1024
	b.check()
}

// hold pays for n bytes that are about to be made, and that a library may keep as long as the query runs. That it gives some of
// them back nobody tells: what is paid for is the most that there can be.
func (b *budget) hold(n int) {
	b.bytes += n
	b.room(0)
}

// room ends a query that has no room for n bytes, which it gives back itself.
func (b *budget) room(n int) {
	if b.bytes+n > maxBytes {
		b.fail(interact.Overloaded, "the query takes more than %d MiB of memory and was stopped", maxBytes>>20)
	}
}

// check ends a query whose time is over, or whose work is done.
func (b *budget) check() {
	switch {
	case b.ctx.Err() != nil:
		panic(&stop{b.ctx.Err()})
	case time.Now().After(b.until):
		b.fail(interact.Overloaded, "the query took longer than %s and was stopped", b.limit)
	case b.steps > b.most:
		b.fail(interact.Overloaded, "the query takes more than %d steps and was stopped", b.most)
	}
}

func newBudget(ctx context.Context, limit time.Duration) *budget {
	return &budget{ctx: ctx, until: time.Now().Add(limit), limit: limit, most: maxSteps}
}

// match pays for a regular expression of so many instructions that is about to be tried on a text.
func (b *budget) match(program, text int) {
	if program*text > maxMatch {
		b.fail(interact.Overloaded, "a regular expression of the query is too large for a text of %d bytes", text)
	}
	b.step(program * text / 64)
}

// An answer is the array of what a query finds, as it grows: values are written at once, and need not stay in memory.
type answer struct {
	*budget
	n    int
	body []byte
}

// add appends values, which are paid for.
func (a *answer) add(values []any) error {
	for _, v := range values {
		if a.n++; a.n > maxFound {
			a.fail(interact.Overloaded, "the query finds more than %d values", maxFound)
		}
		before := len(a.body)
		a.body = append(a.body, ',')
		var err error
		if a.body, err = jcs.Append(a.body, v); err != nil { // XPath can make what is no number, and cut characters in half
			return interact.Errorf(interact.Usage, "ask for something else", "what the query makes has no JSON form: %v", err)
		}
		if a.step(1 + (len(a.body)-before)/64); len(a.body) > maxAnswer {
			a.fail(interact.Overloaded, "the query finds more than %d bytes", maxAnswer)
		}
	}
	return nil
}

// end returns the array.
func (a *answer) end() found {
	if len(a.body) == 0 {
		return found{typeJSON, []byte("[]\n")}
	}
	a.body[0] = '['
	return found{typeJSON, append(a.body, ']', '\n')}
}

// A language is what the bounds have to know of one that queries are written in.
type language struct {
	escapes bool // a backslash in a string takes the next character with it
}

var (
	inJSONPath = language{escapes: true} // RFC 9535 §2.3.1.1
	inXPath    = language{}              // XPath 1.0 §3.7, Literal
)

// checkQuery refuses what is no query, too long, or nested so deep that reading it would cost too much.
func checkQuery(lang language, query string) error {
	switch {
	case query == "":
		return interact.Errorf(interact.Usage, "?query=…", "the query is missing")
	case len(query) > maxQuery:
		return interact.Errorf(interact.Usage, "shorten it", "the query has %d bytes, %d are possible", len(query), maxQuery)
	}
	if !utf8.ValidString(query) {
		return interact.Errorf(interact.Usage, "percent-encode it as UTF-8", "the query is not UTF-8")
	}
	depth := 0
	for _, c := range lang.outside(query) {
		switch c {
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			depth--
		}
		if depth > maxNesting {
			return interact.Errorf(interact.Usage, "flatten it", "the query is nested deeper than %d", maxNesting)
		}
	}
	return nil
}

// pieces yields the parts of a query, those that are strings with their quotes.
func (l language) pieces(query string) iter.Seq2[string, bool] {
	return func(yield func(part string, quoted bool) bool) {
		for query != "" {
			at := strings.IndexAny(query, `'"`)
			if at < 0 {
				at = len(query)
			}
			if at > 0 && !yield(query[:at], false) {
				return
			}
			if query = query[at:]; query == "" {
				return
			}
			end := 1
			for end < len(query) && query[end] != query[0] {
				if l.escapes && query[end] == '\\' {
					end++
				}
				end++
			}
			end = min(end+1, len(query))
			if !yield(query[:end], true) {
				return
			}
			query = query[end:]
		}
	}
}

// outside returns a query without its strings.
func (l language) outside(query string) string {
	var b strings.Builder
	for part, quoted := range l.pieces(query) {
		if !quoted {
			b.WriteString(part)
		}
	}
	return b.String()
}

// checkPattern returns how many instructions a regular expression has. It refuses those that would take long.
func checkPattern(pattern string) (program int, err error) {
	if len(pattern) > maxPattern {
		return 0, interact.Errorf(interact.Usage, "shorten it", "a regular expression has %d bytes, %d are possible", len(pattern),
			maxPattern)
	}
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return 0, nil // it fits nothing
	}
	code, err := syntax.Compile(re.Simplify())
	if err != nil {
		return 0, nil // likewise
	}
	if len(code.Inst) > maxProgram {
		return 0, interact.Errorf(interact.Usage, "repeat less", "a regular expression is too large: %s", clip(pattern))
	}
	return len(code.Inst), nil
}

// boundedRegexp compiles a regular expression of a query.
func boundedRegexp(pattern any) (any, error) {
	text, _ := pattern.(string)
	if _, err := checkPattern(text); err != nil {
		return nil, err
	}
	return regexp.Compile(text)
}
