package schema

import (
	"maps"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits of one check, for hostile schemas and values: a check takes at most a third of a second.
const (
	maxSteps   = 1 << 20  // pairs of a schema part and a value part, and work of the same cost
	maxNesting = 256      // nested schema parts, references included
	maxMatched = 16 << 10 // bytes of a string; patterns of longer ones are not checked
)

// Check returns the issues of value, at most 32, in the order of the value. Pointers are relative to value. The value fits if there
// are none.
func (s *Schema) Check(value any) []Issue {
	node := s.Value()
	if node == nil {
		return nil
	}
	w := &walk{root: s.whole()}
	w.value(node, value)
	if w.steps > maxSteps {
		return []Issue{{Reason: "the value is too large, or the schema too complex, to be checked"}}
	}
	return SortIssues(w.issues)
}

// fits reports whether value fits. It returns false, too, if a bound left a keyword unchecked. It is faster than Check.
func (s *Schema) fits(value any) bool {
	w := &walk{root: s.whole(), quick: true, strict: true}
	w.value(s.Value(), value)
	return !w.done()
}

// A walk is one check. It stops at maxIssues issues, or after maxSteps.
type walk struct {
	root   *root
	path   []any // of the value
	steps  int
	depth  int
	issues []Issue

	quick  bool // stop at the first issue, which sets failed and has no text
	strict bool // fail where a limit leaves a keyword unchecked
	failed bool
}

func (w *walk) done() bool { return w.failed || w.steps > maxSteps || len(w.issues) > maxIssues }

// canSpend counts n units of work, see spend, and reports whether the walk may continue.
func (w *walk) canSpend(n int) bool {
	w.spend(n)
	return !w.done()
}

// spend counts n small units of work, such as bytes or names. A step may read a list that is as long as the schema.
func (w *walk) spend(n int) { w.steps += n / 8 }

// skip marks a keyword as unchecked because of a bound.
func (w *walk) skip() {
	if w.strict {
		w.steps = maxSteps + 1
	}
}

func (w *walk) fail(reason func() string) {
	switch {
	case w.quick:
		w.failed = true
	case !w.done():
		w.issues = append(w.issues, Issue{Pointer: Pointer(w.path...), Reason: reason()})
	}
}

// fixed returns the argument of fail for a fixed reason.
func fixed(reason string) func() string { return func() string { return reason } }

// matches reports whether v fits a branch.
func (w *walk) matches(schema, v any) bool {
	fits, _ := w.branch(schema, v, true)
	return fits
}

// branch checks v against a branch and returns its issues, or none if quick is set.
func (w *walk) branch(schema, v any, quick bool) (fits bool, issues []Issue) {
	outer := *w
	w.issues, w.failed, w.quick = nil, false, quick
	w.value(schema, v)
	fits, issues = !w.failed && len(w.issues) == 0, w.issues
	w.issues, w.failed, w.quick = outer.issues, outer.failed, outer.quick
	w.steps += 3 // a branch costs more than a step inside it
	return fits, issues
}

func (w *walk) value(schema, v any) {
	w.steps++
	switch s := schema.(type) {
	case bool:
		if !s {
			w.fail(fixed("is not allowed here"))
		}
	case map[string]any:
		w.node(node{raw: s}, v)
	case *compiled:
		w.node(node{compiled: s}, v)
	}
}

func (w *walk) node(s node, v any) {
	if w.depth++; w.depth > maxNesting {
		w.steps = maxSteps + 1
	}
	if !w.done() {
		w.keywords(s, v)
	}
	w.depth--
}

func (w *walk) keywords(s node, v any) {
	seen := 0
	if types, ok := s.get(kwType); ok {
		seen++
		if !w.hasType(types, v) {
			w.fail(func() string { return wantType(slices.Collect(texts(types)), v) })
			return
		}
	}
	if want, ok := s.get(kwConst); ok {
		seen++
		if !w.equal(v, want) {
			w.fail(func() string { return wantOneOf([]any{want}) })
			return
		}
	}
	if list, ok := s.value(kwEnum).([]any); ok {
		seen++
		if !slices.ContainsFunc(list, func(want any) bool { return w.equal(v, want) }) {
			w.fail(func() string { return wantOneOf(list) })
			return
		}
	}
	if ref, ok := s.value(kwRef).(string); ok {
		seen++
		w.spend(len(ref))
		if s.compiled != nil {
			w.value(s.compiled.target, v)
		} else {
			w.value(w.root.lookup(ref), v)
		}
	}
	if seen == s.len() {
		return
	}
	switch v := v.(type) {
	case map[string]any:
		if s.mayHave(forObjects) {
			w.object(s, v)
		}
	case []any:
		if s.mayHave(forArrays) {
			w.array(s, v)
		}
	case string:
		if s.mayHave(forText) {
			w.text(s, v)
		}
	case float64:
		if s.mayHave(forNumbers) {
			w.number(s, v)
		}
	}
	if s.mayHave(forAll) {
		w.branches(s, v)
	}
}

// hasType reports whether v has one of types, or types is empty.
func (w *walk) hasType(types, v any) bool {
	w.spend(4 * max(1, len(array(types))))
	none := true
	for t := range texts(types) {
		if isType(t, v) {
			return true
		}
		none = false
	}
	return none
}

func isType(typ string, v any) bool {
	if typ == "integer" {
		f, isNumber := v.(float64)
		return isNumber && f == math.Trunc(f)
	}
	return TypeOf(v) == typ
}

// equal compares decoded values and counts its work.
func (w *walk) equal(a, b any) bool {
	w.steps++
	if w.done() {
		return false
	}
	switch a := a.(type) {
	case string:
		w.spend(len(a) / 64)
		return a == b
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, w.equal)
	case map[string]any:
		b, ok := b.(map[string]any)
		return ok && maps.EqualFunc(a, b, w.equal)
	}
	return a == b
}

// descend checks a part of the value.
func descend[T string | int](w *walk, step T, schema, v any) {
	if w.quick {
		w.value(schema, v)
		return
	}
	w.path = append(w.path, step)
	w.value(schema, v)
	w.path = w.path[:len(w.path)-1]
}

func (w *walk) object(s node, v map[string]any) {
	required := s.value(kwRequired)
	w.spend(4*len(array(required)) + 8*len(v))
	for name := range texts(required) {
		if _, ok := v[name]; !ok {
			w.fail(func() string { return missing(name) })
		}
	}
	w.count(s, kwMinProperties, kwMaxProperties, len(v), "member", "members")
	properties, names := object(s.value(kwProperties)), s.value(kwPropertyNames)
	rest, limited := s.get(kwAdditionalProperties)
	limited = limited && s.value(kwPatternProperties) == nil
	if len(properties) == 0 && !limited && names == nil {
		return
	}
	member := func(name string) {
		if names != nil && !w.matches(names, name) {
			w.fail(func() string { return Show(name) + " is not allowed as a name here" })
		}
		if p, ok := properties[name]; ok {
			descend(w, name, p, v[name])
		} else if limited && rest == false {
			w.spend(8 * len(properties))
			w.fail(func() string { return Show(name) + " is not allowed" + closest(name, properties) })
		} else if limited {
			descend(w, name, rest, v[name])
		}
	}
	if w.quick { // in any order
		for name := range v {
			if !w.done() {
				member(name)
			}
		}
		return
	}
	for _, name := range sortedKeys(v) {
		if !w.done() {
			member(name)
		}
	}
}

// closest returns a suggestion if a known member differs from name only in case, spaces or punctuation.
func closest(name string, known map[string]any) string {
	letters := func(s string) string {
		return strings.Map(func(r rune) rune {
			if unicode.IsLetter(r) || unicode.IsDigit(r) || unicode.IsMark(r) {
				return unicode.ToLower(r)
			}
			return -1
		}, s)
	}
	for _, k := range sortedKeys(known) {
		if strings.EqualFold(k, name) || letters(k) == letters(name) {
			return "; did you mean " + Show(k) + "?"
		}
	}
	return ""
}

// count checks the minimum and maximum number of parts of a value.
func (w *walk) count(s node, least, most keyword, n int, one, many string) {
	has := func(words string, limit float64) func() string {
		unit := many
		if limit == 1 {
			unit = one
		}
		return func() string {
			return words + " " + strconv.FormatFloat(limit, 'f', -1, 64) + " " + unit + ", has " + strconv.Itoa(n)
		}
	}
	if limit, ok := s.value(least).(float64); ok && float64(n) < limit {
		w.fail(has("must have at least", limit))
	}
	if limit, ok := s.value(most).(float64); ok && float64(n) > limit {
		w.fail(has("must have at most", limit))
	}
}

func (w *walk) array(s node, v []any) {
	w.count(s, kwMinItems, kwMaxItems, len(v), "element", "elements")
	if s.value(kwUniqueItems) == true {
		w.unique(v)
	}
	if some, ok := s.get(kwContains); ok && s.value(kwMinContains) == nil &&
		!slices.ContainsFunc(v, func(e any) bool { return w.done() || w.matches(some, e) }) {
		w.fail(fixed("has no element of a kind that is required"))
	}
	// "items" with a list is the tuple of draft 7, which TD 1.1 uses; "prefixItems" is that of later drafts.
	tuple, rest := array(s.value(kwPrefixItems)), s.value(kwItems)
	if list, ok := rest.([]any); ok {
		tuple, rest = list, s.value(kwAdditionalItems)
	}
	if len(tuple) == 0 && rest == nil {
		return
	}
	for i, e := range v {
		if w.done() {
			return
		}
		if i < len(tuple) {
			descend(w, i, tuple[i], e)
		} else if rest != nil {
			descend(w, i, rest, e)
		}
	}
}

func (w *walk) unique(v []any) {
	seen := make(map[string]int, len(v))
	for i, e := range v {
		key := string(encode(e))
		w.steps += 1 + len(key)/64
		if first, ok := seen[key]; ok {
			w.fail(func() string { return "elements " + strconv.Itoa(first) + " and " + strconv.Itoa(i) + " are equal" })
			return
		}
		seen[key] = i
		if w.done() {
			return
		}
	}
}

func (w *walk) text(s node, v string) {
	if s.value(kwMinLength) != nil || s.value(kwMaxLength) != nil {
		w.spend(len(v) / 16)
		w.count(s, kwMinLength, kwMaxLength, utf8.RuneCountInString(v), "character", "characters")
	}
	if p, ok := s.value(kwPattern).(string); ok {
		w.pattern(p, v)
	}
	if name, ok := s.value(kwFormat).(string); ok {
		if f, known := formats[name]; known && w.canSpend(len(v)/4) && !f.valid(v) {
			w.fail(fixed("is not " + f.name))
		}
	}
}

func (w *walk) pattern(p, v string) {
	if len(v) > maxMatched {
		w.skip()
		return
	}
	switch re := w.root.pattern(p); {
	case re == nil:
		w.skip()
	case w.canSpend(len(v)*re.size/2) && !re.MatchString(v): // a match executes each instruction at most once per byte
		w.fail(func() string { return "does not match the pattern " + Cut(p, 80) })
	}
}

func (w *walk) number(s node, v float64) {
	bound := func(k keyword, words string, violates func(limit float64) bool) {
		if limit, ok := s.value(k).(float64); ok && violates(limit) {
			w.fail(func() string { return "must be " + words + " " + Show(limit) + ", is " + Show(v) })
		}
	}
	bound(kwMinimum, "at least", func(limit float64) bool { return v < limit })
	bound(kwMaximum, "at most", func(limit float64) bool { return v > limit })
	bound(kwExclusiveMinimum, "more than", func(limit float64) bool { return v <= limit })
	bound(kwExclusiveMaximum, "less than", func(limit float64) bool { return v >= limit })
	bound(kwMultipleOf, "a multiple of", func(unit float64) bool {
		return unit > 0 && w.canSpend(512) && !isMultiple(v, unit)
	})
}

// isMultiple compares the decimal numbers, not their binary64 values: 0.3 is a multiple of 0.1.
func isMultiple(v, unit float64) bool {
	exact := func(f float64) *big.Rat {
		r, _ := new(big.Rat).SetString(strconv.FormatFloat(f, 'g', -1, 64))
		return r
	}
	return new(big.Rat).Quo(exact(v), exact(unit)).IsInt()
}

func (w *walk) branches(s node, v any) {
	for _, branch := range array(s.value(kwAllOf)) {
		w.value(branch, v)
	}
	if not, ok := s.get(kwNot); ok && w.matches(not, v) {
		w.fail(fixed("has a form that is not allowed"))
	}
	if condition, ok := s.get(kwIf); ok {
		if w.matches(condition, v) {
			w.value(s.value(kwThen), v)
		} else {
			w.value(s.value(kwElse), v)
		}
	}
	if list := array(s.value(kwAnyOf)); len(list) > 0 {
		w.alternatives(list, v, false)
	}
	if list := array(s.value(kwOneOf)); len(list) > 0 {
		w.alternatives(list, v, true)
	}
}

// alternatives checks that v fits exactly one of branches, or at least one.
func (w *walk) alternatives(branches []any, v any, exactly bool) {
	var failed [][]Issue
	for i, branch := range branches {
		if w.done() {
			return
		}
		fits, issues := w.branch(branch, v, w.quick)
		if !fits {
			failed = append(failed, issues)
			continue
		}
		if !exactly {
			return
		}
		if i+1-len(failed) > 1 {
			w.fail(fixed("fits more than one of the alternatives, where exactly one is allowed"))
			return
		}
	}
	switch {
	case len(failed) < len(branches):
	case w.quick:
		w.failed = true
	default:
		w.explain(branches, failed, v)
	}
}

// explain adds the reason why no branch fits: the issues of the only branch of the right type, or else the allowed types or values.
func (w *walk) explain(branches []any, failed [][]Issue, v any) {
	var types []string
	var values []any
	var near []Issue
	count := 0
	for i, branch := range branches {
		s := w.root.part(branch).object()
		if !w.hasType(s["type"], v) {
			types = slices.AppendSeq(types, texts(s["type"]))
			continue
		}
		count++
		near = failed[i]
		if c, ok := s["const"]; ok {
			values = append(values, c)
		} else {
			values = append(values, array(s["enum"])...)
		}
	}
	switch {
	case count == 0:
		w.fail(func() string { return wantType(slices.Compact(types), v) })
	case count == 1:
		w.issues = append(w.issues, near...)
	case len(values) >= count:
		w.fail(func() string { return wantOneOf(values) })
	default:
		w.fail(fixed("fits none of the " + strconv.Itoa(len(branches)) + " alternatives"))
	}
}
