package tdd

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"regexp"
	"regexp/syntax"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/jcs"
)

// Bounds of a query (WoT Discovery §8.1 asks for all of them).
const (
	maxQuery   = 4 << 10  // bytes of its text
	maxNesting = 32       // brackets in brackets
	maxSteps   = 20e6     // values that it looks at
	maxFound   = 1 << 20  // values between two steps of it
	maxAnswer  = 32 << 20 // bytes of what it finds
	maxProgram = 1000     // instructions of a regular expression
	maxPattern = 256      // bytes of one
)

// A budget is what a query may still cost. What passes it panics with a *stop, which search catches: a library that runs a query
// gives no other way out of it.
type budget struct {
	ctx   context.Context
	until time.Time
	limit time.Duration
	steps int
	look  int // steps until the clock is looked at
}

type stop struct{ err error }

func (b *budget) fail(code interact.Code, format string, args ...any) {
	panic(&stop{interact.Errorf(code, "ask for less: name members and conditions that fewer things have", format, args...)})
}

// step pays for n values that are looked at.
func (b *budget) step(n int) {
	b.steps += n
	if b.look -= n; b.look > 0 {
		return
	}
	b.look = 1024
	b.check()
}

// check ends a query whose time is over.
func (b *budget) check() {
	switch {
	case b.ctx.Err() != nil:
		panic(&stop{b.ctx.Err()})
	case time.Now().After(b.until):
		b.fail(interact.Overloaded, "the query took longer than %s and was stopped", b.limit)
	case b.steps > maxSteps:
		b.fail(interact.Overloaded, "the query looks at more than %d values and was stopped", int(maxSteps))
	}
}

// A found is what a query gave.
type found struct {
	media string
	body  []byte
}

// search answers a query: r's, with what run makes of it (tdd-search-large-tdds). It bounds how many run and how long.
func (s *Server) search(w http.ResponseWriter, r *http.Request, query string,
	run func(b *budget, query string) (found, error)) (err error) {
	if err := s.checkQuery(query); err != nil {
		return err
	}
	b := &budget{ctx: r.Context(), until: time.Now().Add(s.o.QueryTime), limit: s.o.QueryTime}
	timer := time.NewTimer(s.o.QueryTime)
	defer timer.Stop()
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-timer.C:
		return interact.Errorf(interact.Overloaded, "try again in a moment", "%d queries run already", s.o.Queries)
	case <-r.Context().Done():
		return r.Context().Err()
	}
	out, err := attempt(b, query, run)
	if err != nil {
		return err
	}
	w.Header().Add("Vary", "Accept-Encoding")
	if len(out.body) < 1<<10 || !takesGzip(r) {
		writeBytes(w, http.StatusOK, out.media, out.body)
		return nil
	}
	w.Header().Set("Content-Type", out.media)
	body, done := compressed(w, r)
	defer done()
	if r.Method != http.MethodHead {
		_, _ = body.Write(out.body) // a client that went away needs no answer
	}
	return nil
}

// attempt runs a query. What panics in it is over budget, or is something that the library can do no better with.
func attempt(b *budget, query string, run func(b *budget, query string) (found, error)) (out found, err error) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case *stop:
			err = v.err
		case runtime.Error:
			err = interact.Errorf(interact.Usage, "write it in another way", "the query cannot be run")
		default:
			err = interact.Errorf(interact.Usage, "correct the query", "%s", clip(fmt.Sprint(v)))
		}
	}()
	return run(b, query)
}

// queryOf reads the parameter query, percent-decoded once.
func queryOf(r *http.Request) (string, error) {
	q, err := params(r, "query")
	return q.Get("query"), err
}

// checkQuery refuses what is no query, too long, or nested so deep that reading it would cost too much.
func (s *Server) checkQuery(query string) error {
	switch {
	case query == "":
		return interact.Errorf(interact.Usage, "?query=…", "the query is missing")
	case len(query) > maxQuery:
		return interact.Errorf(interact.Usage, "shorten it", "the query has %d bytes, %d are possible", len(query), maxQuery)
	}
	depth := 0
	for _, c := range outside(query) {
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
func pieces(query string) iter.Seq2[string, bool] {
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
				if query[end] == '\\' {
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
func outside(query string) string {
	var b strings.Builder
	for part, quoted := range pieces(query) {
		if !quoted {
			b.WriteString(part)
		}
	}
	return b.String()
}

// checkPattern refuses regular expressions that would take long: they run without being asked to stop.
func checkPattern(pattern string) error {
	if len(pattern) > maxPattern {
		return interact.Errorf(interact.Usage, "shorten it", "a regular expression has %d bytes, %d are possible", len(pattern),
			maxPattern)
	}
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return nil // it fits nothing
	}
	program, err := syntax.Compile(re.Simplify())
	if err == nil && len(program.Inst) > maxProgram {
		return interact.Errorf(interact.Usage, "repeat less", "a regular expression is too large: %s", clip(pattern))
	}
	return nil
}

// boundedRegexp compiles a regular expression of a query.
func boundedRegexp(pattern any) (any, error) {
	text, _ := pattern.(string)
	if err := checkPattern(text); err != nil {
		return nil, err
	}
	return regexp.Compile(text)
}

// decoded keeps TDs as values, so that a query need not read them again: those that fit. It is safe for concurrent use.
type decoded struct {
	most  int // bytes
	mu    sync.Mutex
	docs  map[[32]byte]*doc // by the hash of the TD; owned by mu
	bytes int               // of all; owned by mu
}

type doc struct {
	value any // with the registration; nobody changes it
	reg   Registration
	bytes int
}

// What decoded JSON takes, by its text: maps and strings.
const decodedPart = 8

// value returns the Enriched TD of d as a value.
func (s *Server) value(d Item) any {
	c, reg := &s.decoded, s.of(d.Record)
	c.mu.Lock()
	known := c.docs[d.Record.Hash]
	c.mu.Unlock()
	if known != nil && known.reg == reg {
		return known.value
	}
	raw := s.enrich(nil, d.TD, reg, time.Time{})
	v, err := jcs.Decode(raw, len(raw))
	if err != nil { // no TD that was verified
		return nil
	}
	fresh := &doc{value: v, reg: reg, bytes: decodedPart * len(raw)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.docs == nil {
		c.docs = map[[32]byte]*doc{}
	}
	if old := c.docs[d.Record.Hash]; old != nil {
		c.bytes -= old.bytes
		delete(c.docs, d.Record.Hash)
	}
	if c.bytes+fresh.bytes <= c.most {
		c.docs[d.Record.Hash] = fresh
		c.bytes += fresh.bytes
	}
	return v
}

// forget drops the values of what is not there any more. It is called with everything that is there.
func (c *decoded) forget(all []Item) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.docs) <= len(all) {
		return
	}
	there := make(map[[32]byte]bool, len(all))
	for _, d := range all {
		there[d.Record.Hash] = true
	}
	for hash, d := range c.docs {
		if !there[hash] {
			c.bytes -= d.bytes
			delete(c.docs, hash)
		}
	}
}

// everything returns what a query runs over.
func (s *Server) everything() []Item {
	all := s.o.Things.Page(All, 0, 0).Items
	s.decoded.forget(all)
	return all
}

// appendValues appends values as an array.
func appendValues(b *budget, values []any) ([]byte, error) {
	out := []byte{'['}
	for i, v := range values {
		if i > 0 {
			out = append(out, ',')
		}
		var err error
		before := len(out)
		if out, err = jcs.Append(out, v); err != nil {
			return nil, err
		}
		b.step(1 + (len(out)-before)/64)
		if len(out) > maxAnswer {
			b.fail(interact.Overloaded, "the query finds more than %d bytes", maxAnswer)
		}
	}
	return append(out, ']', '\n'), nil
}
