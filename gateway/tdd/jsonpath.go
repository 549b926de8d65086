package tdd

import (
	"errors"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/theory/jsonpath"
	"github.com/theory/jsonpath/registry"
	"github.com/theory/jsonpath/spec"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/lazyregexp"
)

// jsonpath serves a JSONPath query (RFC 9535) over the array of Enriched TDs (WoT Discovery §7.3.3.2).
//
// The library parses the query and evaluates filters. This package walks the segments and counts each step. A filter cannot be interrupted,
// so its cost is limited before it runs (see weigh).
func (s *Server) jsonpath(w http.ResponseWriter, r *http.Request) error {
	query, err := queryOf(r)
	if err != nil {
		return err
	}
	return s.search(w, r, inJSONPath, query, s.evalJSONPath)
}

func (s *Server) evalJSONPath(b *budget, query string) (queryResult, error) {
	p := &pathRun{budget: b}
	if err := p.parse(query); err != nil {
		return queryResult{}, err
	}
	return s.runJSONPath(p)
}

// batchSize is the number of Things in memory for a query over single Things; other queries need all Things in memory.
const batchSize = 256

// runJSONPath runs p over all Things.
func (s *Server) runJSONPath(p *pathRun) (queryResult, error) {
	all, out := s.allThings(p.budget.ctx), &resultArray{budget: p.budget}
	part := batchSize
	if !p.isPerThing() {
		release, err := s.admitWhole(p.budget, all)
		if err != nil {
			return queryResult{}, err
		}
		defer release()
		part = max(len(all), 1)
	}
	for begin := 0; begin == 0 || begin < len(all); begin += part {
		if err := out.add(p.run(s.values(p.budget, all[begin:min(begin+part, len(all))]))); err != nil {
			return queryResult{}, err
		}
	}
	return out.end(), nil
}

// admitWhole waits until a query may have all Things in memory: one query at a time. It rejects the query if they are too large.
func (s *Server) admitWhole(b *budget, all []Item) (release func(), err error) {
	size := 0
	for _, d := range all {
		if size += len(d.TD); size > maxWhole {
			return nil, interact.Errorf(interact.Usage,
				"use /search/jsonpath with a query that begins with $[?…], $[*] or $..name and has no other $",
				"the query needs all Things at once, which have more than %d bytes", maxWhole)
		}
	}
	if size*decodedPart <= s.o.Cache {
		return func() {}, nil
	}
	timer := time.NewTimer(time.Until(b.deadline))
	defer timer.Stop()
	select {
	case s.wholeSlot <- struct{}{}:
		return func() { <-s.wholeSlot }, nil
	case <-timer.C:
		b.check()
		return nil, interact.Errorf(interact.Overloaded, "try again in a moment", "another query holds all Things in memory")
	case <-b.ctx.Done():
		return nil, b.ctx.Err()
	}
}

func (s *Server) values(b *budget, things []Item) []any {
	values := make([]any, len(things))
	for i, d := range things {
		b.addSteps(1)
		values[i] = s.value(d)
	}
	return values
}

// A pathRun is one query.
type pathRun struct {
	*budget
	segments  []*spec.Segment
	roots     int // number of $
	testSteps int // steps of one test of a filter
	weight    int // how often one test of a filter may visit each value below; 0: it visits few
	patterns  map[string]pattern
	root      any
}

// A pattern is a regular expression with its number of instructions; nil matches nothing.
type pattern struct {
	*regexp.Regexp
	program int
}

// parse parses the query. It renames match and search to replace the functions of the library, which compiles a regular expression on each
// call.
func (p *pathRun) parse(query string) error {
	var err error
	bare := inJSONPath.withoutStrings(query)
	if p.weight, err = weigh(bare); err != nil {
		return err
	}
	p.roots, p.testSteps = strings.Count(bare, "$"), 1+len(query)/64
	var renamed strings.Builder
	for part, quoted := range inJSONPath.parts(query) {
		if !quoted {
			part = call().ReplaceAllString(part, "${1}_(")
		}
		renamed.WriteString(part)
	}
	own := registry.New()
	for name, whole := range map[string]bool{"match_": true, "search_": false} {
		if err := own.Register(name, spec.FuncLogical, twoValues, p.matcher(whole)); err != nil {
			return err
		}
	}
	path, err := jsonpath.NewParser(jsonpath.WithRegistry(own)).Parse(renamed.String())
	if err != nil {
		return interact.Errorf(interact.Usage, "for example $[?@.title=='Lamp'] (RFC 9535)", "the query is not JSONPath: %s",
			Clip(err.Error()))
	}
	p.segments = path.Query().Segments()
	return nil
}

// call matches a function whose argument is a regular expression.
var call = lazyregexp.New(`\b(match|search)\(`)

// twoValues are the arguments of match and search (RFC 9535 §2.4.6).
func twoValues(args []spec.FuncExprArg) error {
	if len(args) != 2 || !args[0].ConvertsTo(spec.FuncValue) || !args[1].ConvertsTo(spec.FuncValue) {
		return errors.New("expected a value and a regular expression")
	}
	return nil
}

// matcher returns the function match (whole) or search.
func (p *pathRun) matcher(whole bool) spec.Evaluator {
	return func(args []spec.PathValue) spec.PathValue {
		text, ok := valueOf(args[0])
		wanted, isText := valueOf(args[1])
		if !ok || !isText {
			return spec.LogicalFalse
		}
		p.addSteps(1 + (len(text)+len(wanted))/16)
		re := p.compile(wanted, whole)
		if re.Regexp == nil {
			return spec.LogicalFalse
		}
		p.addMatch(re.program, len(text))
		return spec.Logical(re.MatchString(text))
	}
}

func valueOf(arg spec.PathValue) (string, bool) {
	v := spec.ValueFrom(arg)
	if v == nil {
		return "", false
	}
	text, ok := v.Value().(string)
	return text, ok
}

// maxPatterns limits the cached regular expressions of a query, which may come from the searched values.
const maxPatterns = 64

// compile returns a compiled regular expression.
func (p *pathRun) compile(text string, whole bool) pattern {
	key := text
	if whole {
		key = `\A(?:` + text + `)\z`
	}
	if re, known := p.patterns[key]; known {
		return re
	}
	program, err := checkPattern(text)
	if err != nil {
		panic(&abort{err})
	}
	if p.addSteps(1024 + 16*program); p.patterns == nil || len(p.patterns) == maxPatterns {
		p.patterns = map[string]pattern{}
	}
	re, _ := regexp.Compile(translateDots(key)) // nil if it is invalid: see pattern
	p.patterns[key] = pattern{re, program}
	return p.patterns[key]
}

// translateDots replaces "." by its meaning in an I-Regexp: all but line ends (RFC 9485 §5.3).
func translateDots(pattern string) string {
	var b strings.Builder
	class := false
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; {
		case c == '\\' && i+1 < len(pattern):
			i++
			b.WriteString(pattern[i-1 : i+1])
			continue
		case c == '.' && !class:
			b.WriteString(`[^\n\r]`)
			continue
		case c == '[':
			class = true
		case c == ']':
			class = false
		}
		b.WriteByte(pattern[i])
	}
	return b.String()
}

// isPerThing reports whether the query visits each Thing independently, so that it may run over parts of the array.
func (p *pathRun) isPerThing() bool {
	if len(p.segments) == 0 || p.roots > 1 {
		return false
	}
	first := p.segments[0]
	if first.IsDescendant() { // the array itself has no members
		return !slices.ContainsFunc(first.Selectors(), func(sel spec.Selector) bool { _, named := sel.(spec.Name); return !named })
	}
	if len(first.Selectors()) != 1 {
		return false
	}
	switch first.Selectors()[0].(type) {
	case spec.WildcardSelector, *spec.FilterSelector:
		return true
	}
	return false
}

// run returns the results of the query in root.
func (p *pathRun) run(root []any) []any {
	p.root = root
	nodes := []any{p.root}
	for _, seg := range p.segments {
		var next []any
		for _, n := range nodes {
			next = p.visit(next, n, seg)
		}
		nodes = next
	}
	return nodes
}

// visit appends the results of a segment for a value (RFC 9535 §2.5).
func (p *pathRun) visit(out []any, v any, seg *spec.Segment) []any {
	p.addSteps(1)
	for _, sel := range seg.Selectors() {
		out = p.selectValues(out, v, sel)
	}
	if seg.IsDescendant() {
		p.addSteps(childCount(v))
		for child := range children(v) {
			out = p.visit(out, child, seg)
		}
	}
	return out
}

// selectValues appends the results of a selector for a value (RFC 9535 §2.3).
func (p *pathRun) selectValues(out []any, v any, sel spec.Selector) []any {
	before := len(out)
	switch sel := sel.(type) {
	case *spec.FilterSelector:
		for child := range children(v) {
			if p.addSteps(p.testSteps); p.weight > 0 {
				looked := p.weight * p.countValues(child)
				p.addSteps(looked)
				p.checkBytes(looked * valueBytes)
			}
			if sel.Eval(child, p.root) {
				out = append(out, child)
			}
		}
	case spec.WildcardSelector:
		for child := range children(v) {
			out = append(out, child)
		}
	default: // a name, an index, a slice
		out = append(out, sel.Select(v, p.root)...)
	}
	p.addBytes((len(out) - before) * valueBytes)
	if p.addSteps(1 + (len(out)-before)/4); len(out) > maxFound {
		p.fail(interact.Overloaded, "the query finds more than %d values", maxFound)
	}
	return out
}

// valueBytes is the memory for a value in a list that grows.
const valueBytes = 32

// countValues returns the number of values in v, including v, and counts a step for each.
func (p *pathRun) countValues(v any) int {
	p.addSteps(1)
	n := 1
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			n += p.countValues(e)
		}
	case map[string]any:
		for _, e := range v {
			n += p.countValues(e)
		}
	}
	return n
}

// childCount returns the number of elements or members of v.
func childCount(v any) int {
	switch v := v.(type) {
	case []any:
		return len(v)
	case map[string]any:
		return len(v)
	}
	return 0
}

// children yields the elements of an array, or the values of an object by name.
func children(v any) func(yield func(any) bool) {
	return func(yield func(any) bool) {
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				if !yield(e) {
					return
				}
			}
		case map[string]any:
			for _, name := range slices.Sorted(maps.Keys(v)) {
				if !yield(v[name]) {
					return
				}
			}
		}
	}
}

// maxWeight limits how often one test of a filter visits the values of a Thing. descendantFactor is the assumed factor of a ".." within a
// filter.
const (
	maxWeight        = 256
	descendantFactor = 16
)

// valueComparison matches a comparison whose right side is not a literal: both sides may be large.
var valueComparison = lazyregexp.New(`[=!<>]\s*(?:[@$]|[a-z_]+\()`)

// weigh rejects queries whose filters could run for long, and returns the weight of pathRun. text is the query without its strings.
func weigh(text string) (weight int, err error) {
	w := weighFilters(text)
	switch {
	case w.root && (w.weight > 1 || w.many):
		return 0, interact.Errorf(interact.Usage, "compare with one value, such as $[0].title",
			"a filter with $ must not contain .. * : , or a filter")
	case w.weight > maxWeight:
		return 0, interact.Errorf(interact.Usage, "use fewer .. and , in filters", "a filter of the query visits too many values")
	}
	compared := len(valueComparison().FindAllStringIndex(text, -1))
	if w.weight > 1 || w.many || compared > 0 {
		return w.weight * max(compared, 1), nil
	}
	return 0, nil
}

// A filterWeight describes the filters of a query.
type filterWeight struct {
	weight int
	root   bool // they use $
	many   bool // they use *, : or filters
}

// weighFilters reads a query without its strings. In a filter, each ".." and each further selector of a bracket multiplies the weight.
func weighFilters(text string) filterWeight {
	w := filterWeight{weight: 1}
	type bracket struct {
		open      byte
		selectors int
	}
	var open []bracket
	filters := 0 // open filters; in has the depths of their brackets
	in := []int{}
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '[', '(':
			open = append(open, bracket{c, 1})
		case ']', ')':
			if n := len(open); n > 0 {
				if open[n-1].open == '[' && filters > 0 && (len(in) == 0 || in[len(in)-1] != n) {
					w.multiply(open[n-1].selectors)
				}
				open = open[:n-1]
				for len(in) > 0 && in[len(in)-1] > len(open) {
					in, filters = in[:len(in)-1], filters-1
				}
			}
		case ',':
			if n := len(open); n > 0 {
				open[n-1].selectors++
			}
		case '?':
			w.many = w.many || filters > 0
			in, filters = append(in, len(open)), filters+1
		case '*', ':':
			w.many = w.many || filters > 0
		case '$':
			w.root = w.root || filters > 0
		case '.':
			if filters > 0 && i+1 < len(text) && text[i+1] == '.' {
				w.multiply(descendantFactor)
				i++
			}
		}
	}
	return w
}

func (w *filterWeight) multiply(by int) {
	if w.weight <= maxWeight {
		w.weight *= by
	}
}
