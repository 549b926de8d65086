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

// Limits of a query (required by WoT Discovery §8.1). Work is counted in steps: one is a visited value, 16 bytes of text, or 64 bytes times
// instructions of a regular expression.
const (
	maxQuery   = 4 << 10   // bytes of text
	maxNesting = 32        // nested brackets
	maxSteps   = 20e6      // of work
	maxBytes   = 128 << 20 // of memory at once, without the Things
	maxFound   = 1 << 20   // values between two steps
	maxAnswer  = 32 << 20  // bytes of the result
	maxProgram = 1000      // instructions of a regular expression
	maxPattern = 256       // bytes of a regular expression
	maxMatch   = 16 << 20  // instructions times bytes of one match, which cannot be interrupted
	maxWhole   = 32 << 20  // bytes of TDs, if a query needs all in memory
)

// A budget limits the cost of a query. Exceeding it panics with an *abort, which runQuery recovers: the libraries that run queries cannot be
// stopped in another way.
type budget struct {
	ctx        context.Context
	deadline   time.Time
	timeout    time.Duration
	stepLimit  int // maximal number of steps
	steps      int
	untilCheck int // steps until the next check of the clock
	bytes      int // of memory that a library may still reference
}

type abort struct{ err error }

func (b *budget) fail(code interact.Code, format string, args ...any) {
	panic(&abort{interact.Errorf(code, "select less: use members and conditions that fewer Things have", format, args...)})
}

// addSteps counts n steps.
func (b *budget) addSteps(n int) {
	b.steps += n
	if b.untilCheck -= n; b.untilCheck > 0 {
		return
	}
	b.untilCheck = 1024
	b.check()
}

// addBytes counts n bytes that a library may reference until the query ends. They are never subtracted, because libraries do not report what
// they release.
func (b *budget) addBytes(n int) {
	b.bytes += n
	b.checkBytes(0)
}

// checkBytes ends a query that temporarily needs n bytes more than the limit permits.
func (b *budget) checkBytes(n int) {
	if b.bytes+n > maxBytes {
		b.fail(interact.Overloaded, "the query requires more than %d MiB of memory and was stopped", maxBytes>>20)
	}
}

// check ends a query beyond its limit of time or steps.
func (b *budget) check() {
	switch {
	case b.ctx.Err() != nil:
		panic(&abort{b.ctx.Err()})
	case time.Now().After(b.deadline):
		b.fail(interact.Overloaded, "the query took longer than %s and was stopped", b.timeout)
	case b.steps > b.stepLimit:
		b.fail(interact.Overloaded, "the query requires more than %d steps and was stopped", b.stepLimit)
	}
}

func newBudget(ctx context.Context, timeout time.Duration) *budget {
	return &budget{ctx: ctx, deadline: time.Now().Add(timeout), timeout: timeout, stepLimit: maxSteps}
}

// addMatch counts one match of a regular expression with program instructions against text bytes.
func (b *budget) addMatch(program, text int) {
	if program*text > maxMatch {
		b.fail(interact.Overloaded, "a regular expression of the query is too large for a text of %d bytes", text)
	}
	b.addSteps(program * text / 64)
}

// A resultArray is the JSON array of the results of a query. Values are encoded immediately, so that they need not stay in memory.
type resultArray struct {
	*budget
	n    int
	body []byte
}

// add appends values.
func (a *resultArray) add(values []any) error {
	for _, v := range values {
		if a.n++; a.n > maxFound {
			a.fail(interact.Overloaded, "the query finds more than %d values", maxFound)
		}
		before := len(a.body)
		a.body = append(a.body, ',')
		var err error
		if a.body, err = jcs.Append(a.body, v); err != nil { // XPath can produce values that are not numbers, and invalid UTF-8
			return interact.Errorf(interact.Usage, "change the query", "a result of the query has no JSON form: %v", err)
		}
		if a.addSteps(1 + (len(a.body)-before)/64); len(a.body) > maxAnswer {
			a.fail(interact.Overloaded, "the query finds more than %d bytes", maxAnswer)
		}
	}
	return nil
}

// end returns the array.
func (a *resultArray) end() queryResult {
	if len(a.body) == 0 {
		return queryResult{typeJSON, []byte("[]\n")}
	}
	a.body[0] = '['
	return queryResult{typeJSON, append(a.body, ']', '\n')}
}

// A language is the syntax of a query language, as far as the limits depend on it.
type language struct {
	escapes bool // a backslash in a string escapes the next character
}

var (
	inJSONPath = language{escapes: true} // RFC 9535 §2.3.1.1
	inXPath    = language{}              // XPath 1.0 §3.7, Literal
)

// checkQuery rejects queries that are empty, too long or nested too deeply to be parsed cheaply.
func checkQuery(lang language, query string) error {
	switch {
	case query == "":
		return interact.Errorf(interact.Usage, "?query=…", "the query is missing")
	case len(query) > maxQuery:
		return interact.Errorf(interact.Usage, "shorten it", "the query has %d bytes, the limit is %d", len(query), maxQuery)
	}
	if !utf8.ValidString(query) {
		return interact.Errorf(interact.Usage, "percent-encode it as UTF-8", "the query is not UTF-8")
	}
	depth := 0
	for _, c := range lang.withoutStrings(query) {
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

// parts yields the parts of a query; strings include their quotes.
func (l language) parts(query string) iter.Seq2[string, bool] {
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

// withoutStrings returns a query without its strings.
func (l language) withoutStrings(query string) string {
	var b strings.Builder
	for part, quoted := range l.parts(query) {
		if !quoted {
			b.WriteString(part)
		}
	}
	return b.String()
}

// checkPattern returns the number of instructions of a regular expression, 0 for an invalid one. It rejects large expressions.
func checkPattern(pattern string) (program int, err error) {
	if len(pattern) > maxPattern {
		return 0, interact.Errorf(interact.Usage, "shorten it", "a regular expression has %d bytes, the limit is %d", len(pattern),
			maxPattern)
	}
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return 0, nil // it matches nothing
	}
	code, err := syntax.Compile(re.Simplify())
	if err != nil {
		return 0, nil // it matches nothing
	}
	if len(code.Inst) > maxProgram {
		return 0, interact.Errorf(interact.Usage, "use fewer repetitions", "a regular expression is too large: %s", Clip(pattern))
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
