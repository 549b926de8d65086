package td

import (
	"maps"
	"math"
	"math/big"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// A Schema is a data schema of TD 1.1 §5.3.2, with the keywords of JSON Schema that are in wide use beside: local
// $ref, anyOf, allOf, not, additionalProperties, prefixItems, uniqueItems, minProperties, maxProperties. Keywords that
// it does not know ask nothing. A nil *Schema accepts everything. It is read-only and safe for concurrent use.
//
// A schema may come from anybody. It is walked as it is, without being compiled: that costs nothing before the first
// check, follows no reference out of the schema, stops at [maxSteps], and tells at most 32 issues.
type Schema struct {
	node any // object or boolean
	root *schemaRoot
}

// A schemaRoot is what all parts of one schema share: the target of local references, and the compiled patterns.
type schemaRoot struct {
	doc any

	mu       sync.Mutex
	patterns map[string]*pattern // owned by mu; nil for a pattern that is not checked
}

// A pattern is a compiled pattern and how many instructions it has.
type pattern struct {
	*regexp.Regexp
	size int
}

// Bounds of one check. They keep a hostile schema, or a hostile value, cheap: a check takes a third of a second at most.
const (
	maxSteps    = 1 << 20  // pairs of a schema part and a value part that are looked at, and what costs as much
	maxNesting  = 256      // schema parts within schema parts, references included
	maxPatterns = 256      // compiled patterns of a schema
	maxPattern  = 1024     // bytes of a pattern; a longer one is not checked
	maxProgram  = 1024     // instructions of a compiled pattern; a larger one is not checked
	maxMatched  = 16 << 10 // bytes of a string that is matched; a longer one is not
)

// schemaOf returns the schema v, or nil if v is absent or no schema.
func schemaOf(v any) *Schema {
	if m := object(v); m != nil {
		return asSchema(m)
	}
	return nil
}

func asSchema(m map[string]any) *Schema { return &Schema{node: m, root: &schemaRoot{doc: m}} }

// ParseSchema reads a data schema from decoded JSON: an object, or a boolean that accepts everything or nothing.
// Anything else gives nil. The caller must not change v afterwards.
func ParseSchema(v any) *Schema {
	switch v.(type) {
	case map[string]any, bool:
		return &Schema{node: v, root: &schemaRoot{doc: v}}
	}
	return nil
}

// Value returns the schema as decoded JSON, or nil. The caller must not change it.
func (s *Schema) Value() any {
	if s == nil {
		return nil
	}
	return s.node
}

// Type returns the JSON type that the schema asks for: object, array, string, number, integer, boolean or null. Without
// "type" it is what const, enum, properties or items allow; "" if that says nothing either.
func (s *Schema) Type() string {
	m := s.object()
	if list := texts(m["type"]); len(list) > 0 {
		return list[0]
	}
	if v, ok := m["const"]; ok {
		return kindOf(v)
	}
	if list := array(m["enum"]); len(list) > 0 {
		return kindOf(list[0])
	}
	switch {
	case m["properties"] != nil:
		return "object"
	case m["items"] != nil:
		return "array"
	}
	return ""
}

// Property returns the schema of a member, or nil if the schema does not name it.
func (s *Schema) Property(name string) *Schema { return s.part(object(s.object()["properties"])[name]) }

// Items returns the schema of the elements, or nil if the schema has none, or one for each element.
func (s *Schema) Items() *Schema { return s.part(s.object()["items"]) }

func (s *Schema) part(v any) *Schema {
	switch v.(type) {
	case map[string]any, bool:
		return &Schema{node: v, root: s.root}
	}
	return nil
}

// Properties returns the names of the members that the schema names, sorted.
func (s *Schema) Properties() []string { return sortedKeys(object(s.object()["properties"])) }

// Required returns the names of the members that must be there, in the order of the schema.
func (s *Schema) Required() []string { return texts(s.object()["required"]) }

// Enum returns the allowed values, decoded, or nil if others are allowed too.
func (s *Schema) Enum() []any {
	m := s.object()
	if v, ok := m["const"]; ok {
		return []any{v}
	}
	return array(m["enum"])
}

// object returns the members of s, references followed.
func (s *Schema) object() map[string]any {
	m := object(s.Value())
	for range maxNesting {
		ref, ok := m["$ref"].(string)
		if !ok {
			return m
		}
		if m = object(s.root.lookup(ref)); m == nil {
			return nil
		}
	}
	return nil
}

// lookup returns what a local reference "#/…" points to, or true, which accepts everything: for a reference out of the
// schema, to an anchor, or to nothing.
func (r *schemaRoot) lookup(ref string) any {
	fragment, local := strings.CutPrefix(ref, "#")
	if !local || fragment != "" && fragment[0] != '/' {
		return true
	}
	v := r.doc
	for _, name := range pointerPath(fragment) {
		var ok bool
		if v, ok = step(v, name); !ok {
			return true
		}
	}
	return v
}

func step(v any, name string) (any, bool) {
	if list, ok := v.([]any); ok {
		i, err := strconv.Atoi(name)
		if err != nil || i < 0 || i >= len(list) {
			return nil, false
		}
		return list[i], true
	}
	next, ok := object(v)[name]
	return next, ok
}

// pattern returns the compiled form of a pattern, or nil if it is not checked: because it is none in RE2 (ECMA 262 has
// more), or too large.
func (r *schemaRoot) pattern(p string) *pattern {
	r.mu.Lock()
	defer r.mu.Unlock()
	re, known := r.patterns[p]
	if known || len(r.patterns) >= maxPatterns {
		return re
	}
	if r.patterns == nil {
		r.patterns = make(map[string]*pattern)
	}
	re = compile(p)
	r.patterns[p] = re
	return re
}

func compile(p string) *pattern {
	if len(p) > maxPattern {
		return nil
	}
	tree, err := syntax.Parse(p, syntax.Perl)
	if err != nil {
		return nil
	}
	program, err := syntax.Compile(tree.Simplify())
	if err != nil || len(program.Inst) > maxProgram {
		return nil
	}
	re, err := regexp.Compile(p)
	if err != nil {
		return nil
	}
	return &pattern{re, len(program.Inst)}
}

// Check reports what in value (decoded JSON: nil, bool, float64, string, []any, map[string]any) does not fit the
// schema, at most 32 issues, in the order of the value. Pointers are relative to value. Nothing means that it fits.
func (s *Schema) Check(value any) []Issue {
	node := s.Value()
	if node == nil {
		return nil
	}
	w := &walk{root: s.root}
	w.value(node, value)
	if w.steps > maxSteps {
		return []Issue{{Reason: "the value is too large, or the schema too complex, to be checked"}}
	}
	return tidy(w.issues)
}

// A walk is one check. It stops, with what it has, when it has maxIssues issues or has taken maxSteps.
type walk struct {
	root   *schemaRoot
	path   []any // where the value stands
	steps  int
	depth  int
	issues []Issue
}

func (w *walk) done() bool { return w.steps > maxSteps || len(w.issues) > maxIssues }

// affords is spend, and tells whether the walk goes on.
func (w *walk) affords(n int) bool {
	w.spend(n)
	return !w.done()
}

// spend counts n small things, such as bytes or names that are looked at: a list in a schema may be as long as the schema,
// and be walked at each step.
func (w *walk) spend(n int) { w.steps += n / 8 }

func (w *walk) fail(reason string) {
	if !w.done() {
		w.issues = append(w.issues, Issue{Pointer: at(w.path...), Reason: reason})
	}
}

// try checks v against a branch without telling its issues, and returns them.
func (w *walk) try(schema, v any) []Issue {
	branch := &walk{root: w.root, path: slices.Clone(w.path), steps: w.steps, depth: w.depth}
	branch.value(schema, v)
	w.steps = branch.steps + 3 // a branch costs more than a step inside it
	return branch.issues
}

func (w *walk) value(schema, v any) {
	w.steps++
	w.depth++
	defer func() { w.depth-- }()
	switch s := schema.(type) {
	case bool:
		if !s {
			w.fail("is not allowed here")
		}
	case map[string]any:
		if w.depth > maxNesting {
			w.steps = maxSteps + 1
		}
		if !w.done() {
			w.keywords(s, v)
		}
	}
}

func (w *walk) keywords(s map[string]any, v any) {
	types := texts(s["type"])
	if w.spend(4 * len(types)); !isOneOf(types, v) {
		w.fail(wantType(types, v))
		return
	}
	if want, ok := s["const"]; ok && !w.equal(v, want) {
		w.fail(wantOneOf([]any{want}))
		return
	}
	if list, ok := s["enum"].([]any); ok && !slices.ContainsFunc(list, func(want any) bool { return w.equal(v, want) }) {
		w.fail(wantOneOf(list))
		return
	}
	if ref, ok := s["$ref"].(string); ok {
		w.spend(len(ref))
		w.value(w.root.lookup(ref), v)
	}
	switch v := v.(type) {
	case map[string]any:
		w.object(s, v)
	case []any:
		w.array(s, v)
	case string:
		w.text(s, v)
	case float64:
		w.number(s, v)
	}
	w.branches(s, v)
}

// isOneOf tells whether v has one of types, or none is asked for.
func isOneOf(types []string, v any) bool {
	return len(types) == 0 || slices.ContainsFunc(types, func(t string) bool { return isType(t, v) })
}

func isType(typ string, v any) bool {
	f, isNumber := v.(float64)
	switch typ {
	case "integer":
		return isNumber && f == math.Trunc(f)
	default:
		return kindOf(v) == typ
	}
}

// equal compares decoded values, and counts what it looks at.
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

func (w *walk) in(step any, schema, v any) {
	w.path = append(w.path, step)
	w.value(schema, v)
	w.path = w.path[:len(w.path)-1]
}

func (w *walk) object(s, v map[string]any) {
	required := texts(s["required"])
	w.spend(4*len(required) + 8*len(v))
	for _, name := range required {
		if _, ok := v[name]; !ok {
			w.fail(missing(name))
		}
	}
	w.count(s, "Properties", len(v), "member", "members")
	properties := object(s["properties"])
	rest, limited := s["additionalProperties"]
	limited = limited && s["patternProperties"] == nil
	for _, name := range sortedKeys(v) {
		if w.done() {
			return
		}
		if p, ok := properties[name]; ok {
			w.in(name, p, v[name])
		} else if limited && rest == false {
			w.spend(8 * len(properties))
			w.fail(show(name) + " is not allowed" + closest(name, properties))
		} else if limited {
			w.in(name, rest, v[name])
		}
	}
}

// closest hints at the member that was probably meant.
func closest(name string, known map[string]any) string {
	for _, k := range sortedKeys(known) {
		if strings.EqualFold(k, name) || Slug(k) == Slug(name) {
			return "; did you mean " + show(k) + "?"
		}
	}
	return ""
}

// count checks min… and max… of how many parts a value has.
func (w *walk) count(s map[string]any, what string, n int, one, many string) {
	name := func(limit float64) string {
		unit := many
		if limit == 1 {
			unit = one
		}
		return strconv.FormatFloat(limit, 'f', -1, 64) + " " + unit
	}
	if limit, ok := s["min"+what].(float64); ok && float64(n) < limit {
		w.fail("must have at least " + name(limit) + ", has " + strconv.Itoa(n))
	}
	if limit, ok := s["max"+what].(float64); ok && float64(n) > limit {
		w.fail("must have at most " + name(limit) + ", has " + strconv.Itoa(n))
	}
}

func (w *walk) array(s map[string]any, v []any) {
	w.count(s, "Items", len(v), "element", "elements")
	if s["uniqueItems"] == true {
		w.unique(v)
	}
	// "items" with a list is the tuple of draft 7, which TD 1.1 uses; "prefixItems" is that of later drafts.
	tuple, rest := array(s["prefixItems"]), s["items"]
	if list, ok := rest.([]any); ok {
		tuple, rest = list, s["additionalItems"]
	}
	for i, e := range v {
		if w.done() {
			return
		}
		if i < len(tuple) {
			w.in(i, tuple[i], e)
		} else if rest != nil {
			w.in(i, rest, e)
		}
	}
}

func (w *walk) unique(v []any) {
	seen := make(map[string]int, len(v))
	for i, e := range v {
		key := string(bytesOf(e))
		w.steps += 1 + len(key)/64
		if first, ok := seen[key]; ok {
			w.fail("elements " + strconv.Itoa(first) + " and " + strconv.Itoa(i) + " are equal")
			return
		}
		seen[key] = i
		if w.done() {
			return
		}
	}
}

func (w *walk) text(s map[string]any, v string) {
	if s["minLength"] != nil || s["maxLength"] != nil {
		w.spend(len(v) / 16)
		w.count(s, "Length", utf8.RuneCountInString(v), "character", "characters")
	}
	if p, ok := s["pattern"].(string); ok && len(v) <= maxMatched {
		// A match looks at each instruction once per byte, at worst.
		if re := w.root.pattern(p); re != nil && w.affords(len(v)*re.size/2) && !re.MatchString(v) {
			w.fail("does not match the pattern " + cut(p, 80))
		}
	}
	if f, ok := formats[text(s["format"])]; ok && w.affords(len(v)/4) && !f.valid(v) {
		w.fail("is not " + f.name)
	}
}

func (w *walk) number(s map[string]any, v float64) {
	bound := func(keyword, words string, broken func(limit float64) bool) {
		if limit, ok := s[keyword].(float64); ok && broken(limit) {
			w.fail("must be " + words + " " + show(limit) + ", is " + show(v))
		}
	}
	bound("minimum", "at least", func(limit float64) bool { return v < limit })
	bound("maximum", "at most", func(limit float64) bool { return v > limit })
	bound("exclusiveMinimum", "more than", func(limit float64) bool { return v <= limit })
	bound("exclusiveMaximum", "less than", func(limit float64) bool { return v >= limit })
	bound("multipleOf", "a multiple of", func(unit float64) bool {
		return unit > 0 && w.affords(512) && !isMultiple(v, unit)
	})
}

// isMultiple compares what was written, not what binary64 makes of it: 0.3 is a multiple of 0.1.
func isMultiple(v, unit float64) bool {
	exact := func(f float64) *big.Rat {
		r, _ := new(big.Rat).SetString(strconv.FormatFloat(f, 'g', -1, 64))
		return r
	}
	return new(big.Rat).Quo(exact(v), exact(unit)).IsInt()
}

func (w *walk) branches(s map[string]any, v any) {
	for _, branch := range array(s["allOf"]) {
		w.value(branch, v)
	}
	if not, ok := s["not"]; ok && len(w.try(not, v)) == 0 {
		w.fail("has a form that is not allowed")
	}
	if list := array(s["anyOf"]); len(list) > 0 {
		w.alternatives(list, v, false)
	}
	if list := array(s["oneOf"]); len(list) > 0 {
		w.alternatives(list, v, true)
	}
}

// alternatives checks v against branches of which one must fit: exactly one, or at least one.
func (w *walk) alternatives(branches []any, v any, exactly bool) {
	var failed [][]Issue
	for i, branch := range branches {
		if w.done() {
			return
		}
		issues := w.try(branch, v)
		if len(issues) > 0 {
			failed = append(failed, issues)
			continue
		}
		if !exactly {
			return
		}
		if i+1-len(failed) > 1 {
			w.fail("fits more than one of the alternatives, where exactly one is allowed")
			return
		}
	}
	if len(failed) == len(branches) {
		w.explain(branches, failed, v)
	}
}

// explain tells why no branch fits: what the only branch of the right type has against v; else the types, or the
// values, that would be right.
func (w *walk) explain(branches []any, failed [][]Issue, v any) {
	var types []string
	var values []any
	var near []Issue
	count := 0
	for i, branch := range branches {
		s := (&Schema{node: branch, root: w.root}).object()
		wanted := texts(s["type"])
		if w.spend(4 * len(wanted)); !isOneOf(wanted, v) {
			types = append(types, wanted...)
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
		w.fail(wantType(slices.Compact(types), v))
	case count == 1:
		w.issues = append(w.issues, near...)
	case len(values) >= count:
		w.fail(wantOneOf(values))
	default:
		w.fail("fits none of the " + strconv.Itoa(len(branches)) + " alternatives")
	}
}
