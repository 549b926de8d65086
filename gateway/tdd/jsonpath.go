package tdd

import (
	"errors"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/theory/jsonpath"
	"github.com/theory/jsonpath/registry"
	"github.com/theory/jsonpath/spec"

	"github.com/lmosd/lmosd/interact"
)

// jsonpath answers a query in JSONPath (RFC 9535) over the array of Enriched TDs (WoT Discovery §7.3.3.2).
//
// The library reads the query and tests filters; the steps between are walked here, where each is paid for. What a filter itself
// looks at cannot be stopped, so that its cost is bounded before (see weigh).
func (s *Server) jsonpath(w http.ResponseWriter, r *http.Request) error {
	query, err := queryOf(r)
	if err != nil {
		return err
	}
	return s.search(w, r, query, func(b *budget, query string) (found, error) {
		p := &pathRun{budget: b}
		if err := p.read(query); err != nil {
			return found{}, err
		}
		values, err := s.selected(p, query)
		if err != nil {
			return found{}, err
		}
		body, err := appendValues(b, values)
		return found{typeJSON, body}, err
	})
}

// atOnce is how many things a query that looks at each thing alone runs over at a time; others need all in memory, up to maxWhole
// bytes of TDs.
const (
	atOnce   = 256
	maxWhole = 64 << 20
)

// selected runs p over everything.
func (s *Server) selected(p *pathRun, query string) ([]any, error) {
	all := s.everything()
	if !p.alone(query) {
		size := 0
		for _, d := range all {
			if size += len(d.TD); size > maxWhole {
				return nil, interact.Errorf(interact.Usage, "begin with $[?…] or $[*], and use $ nowhere else",
					"the query looks at all things at once, and they have more than %d bytes", maxWhole)
			}
		}
		return p.run(s.values(p.budget, all)), nil
	}
	var out []any
	for part := range slices.Chunk(all, atOnce) {
		out = append(out, p.run(s.values(p.budget, part))...)
		if len(out) > maxFound {
			p.fail(interact.Overloaded, "the query finds more than %d values", maxFound)
		}
	}
	return out, nil
}

func (s *Server) values(b *budget, things []Item) []any {
	values := make([]any, len(things))
	for i, d := range things {
		b.step(1)
		values[i] = s.value(d)
	}
	return values
}

// A pathRun is one query.
type pathRun struct {
	*budget
	segments []*spec.Segment
	heavy    bool // a filter may look at many values
	patterns map[string]*regexp.Regexp
	root     any
}

// read takes the query apart. The library compiles a regular expression each time that it meets one: match and search are
// renamed, so that ours are called.
func (p *pathRun) read(query string) error {
	var err error
	if p.heavy, err = weigh(outside(query)); err != nil {
		return err
	}
	var renamed strings.Builder
	for part, quoted := range pieces(query) {
		if !quoted {
			part = call.ReplaceAllString(part, "${1}_(")
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
		return interact.Errorf(interact.Usage, "$[?@.title=='Lamp'] is one (RFC 9535)", "the query is no JSONPath: %s",
			clip(err.Error()))
	}
	p.segments = path.Query().Segments()
	return nil
}

// call is a function that takes a regular expression.
var call = regexp.MustCompile(`\b(match|search)\(`)

// twoValues are the arguments of match and search (RFC 9535 §2.4.6).
func twoValues(args []spec.FuncExprArg) error {
	if len(args) != 2 || !args[0].ConvertsTo(spec.FuncValue) || !args[1].ConvertsTo(spec.FuncValue) {
		return errors.New("a value and a regular expression are needed")
	}
	return nil
}

// matcher is match if the whole text has to fit, else search.
func (p *pathRun) matcher(whole bool) spec.Evaluator {
	return func(args []spec.PathValue) spec.PathValue {
		text, ok := valueOf(args[0])
		pattern, isText := valueOf(args[1])
		if !ok || !isText {
			return spec.LogicalFalse
		}
		p.step(1 + len(text)/16)
		re := p.compiled(pattern, whole)
		return spec.Logical(re != nil && re.MatchString(text))
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

// maxPatterns is how many regular expressions a query keeps: it may take them from what it looks at.
const maxPatterns = 64

// compiled returns a regular expression, or nil for what is none: that fits nothing.
func (p *pathRun) compiled(pattern string, whole bool) *regexp.Regexp {
	key := pattern
	if whole {
		key = `\A(?:` + pattern + `)\z`
	}
	if re, known := p.patterns[key]; known {
		return re
	}
	if err := checkPattern(pattern); err != nil {
		panic(&stop{err})
	}
	if p.step(1024); p.patterns == nil || len(p.patterns) == maxPatterns {
		p.patterns = map[string]*regexp.Regexp{}
	}
	p.patterns[key], _ = regexp.Compile(dots(key)) // see above
	return p.patterns[key]
}

// dots has "." fit what it does in an I-Regexp: anything but the ends of lines (RFC 9485 §5.3).
func dots(pattern string) string {
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

// alone reports whether the query looks at each thing by itself: then any part of the array gives its part of the answer.
func (p *pathRun) alone(query string) bool {
	if len(p.segments) == 0 || p.segments[0].IsDescendant() || len(p.segments[0].Selectors()) != 1 ||
		strings.Count(outside(query), "$") > 1 {
		return false
	}
	switch p.segments[0].Selectors()[0].(type) {
	case spec.WildcardSelector, *spec.FilterSelector:
		return true
	}
	return false
}

// run returns what the query finds in root.
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

// visit appends what a segment finds in a value (RFC 9535 §2.5).
func (p *pathRun) visit(out []any, v any, seg *spec.Segment) []any {
	p.step(1)
	for _, sel := range seg.Selectors() {
		out = p.choose(out, v, sel)
	}
	if seg.IsDescendant() {
		for child := range children(v) {
			out = p.visit(out, child, seg)
		}
	}
	return out
}

// choose appends what a selector finds in a value (RFC 9535 §2.3).
func (p *pathRun) choose(out []any, v any, sel spec.Selector) []any {
	switch sel := sel.(type) {
	case *spec.FilterSelector:
		for child := range children(v) {
			p.step(1)
			if p.heavy {
				p.check()
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
	if p.step(1); len(out) > maxFound {
		p.fail(interact.Overloaded, "the query finds more than %d values", maxFound)
	}
	return out
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

// maxWeight bounds what one test of a filter looks at: about as many times what is in one thing. descent is about how often a
// value is looked at by each ".." that stands inside of another.
const (
	maxWeight = 256
	descent   = 16
)

// weigh refuses queries whose filters could run for long, and tells whether they may look at many values. It is given the text
// without its strings.
func weigh(text string) (heavy bool, err error) {
	w := weighFilters(text)
	switch {
	case w.root && (w.weight > 1 || w.many):
		return false, interact.Errorf(interact.Usage, "compare with one value, such as $[0].title",
			"a filter that uses $ may have no .. * : , or filter inside")
	case w.weight > maxWeight:
		return false, interact.Errorf(interact.Usage, "use fewer .. and , in filters", "a filter of the query looks at too much")
	}
	return w.weight > 1 || w.many, nil
}

// A filterWeight is what the filters of a query do.
type filterWeight struct {
	weight int
	root   bool // they use $
	many   bool // they use *, : or filters
}

// weighFilters reads the text of a query without its strings. Each ".." in a filter, and each further selector of a bracket in
// one, multiplies what it looks at.
func weighFilters(text string) filterWeight {
	w := filterWeight{weight: 1}
	type bracket struct {
		open      byte
		selectors int
	}
	var open []bracket
	filters := 0 // that we are in, by their brackets
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
				w.multiply(descent)
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
