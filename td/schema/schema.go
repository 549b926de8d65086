// Package schema checks JSON values against data schemas (TD 1.1 §5.3.2), and Thing Descriptions against the JSON Schema of TD 1.1.
//
// A data schema may come from an untrusted author. It is interpreted without compilation: it takes no time before the first check, no
// reference leads out of it, and the time of each check is bounded. Schemas and values are decoded JSON: nil, bool, float64, string, []any
// and map[string]any.
package schema

import (
	"encoding/json"
	"fmt"
	"iter"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/internal/jsonedit"
)

// A Schema is a data schema of TD 1.1 §5.3.2, with more keywords of JSON Schema: local $ref, anyOf, allOf, not, if, then, else,
// additionalProperties, propertyNames, prefixItems, contains, uniqueItems, minProperties, maxProperties. Other keywords are ignored.
// A nil *Schema accepts all values. It is read-only and safe for concurrent use.
type Schema struct {
	node any // object or boolean
	root *root
	late *late // of a schema that is decoded on its first use, in place of node and root
}

// A root is shared by all parts of a schema: the target of local references, and the compiled patterns.
type root struct {
	doc any

	mu       sync.Mutex
	patterns map[string]*pattern // owned by mu; nil for a pattern that is not checked
}

// A pattern is a compiled pattern and its number of instructions.
type pattern struct {
	*regexp.Regexp
	size int
}

// Bounds of patterns. A pattern outside of them is not checked.
const (
	maxPatterns = 256  // compiled patterns of a schema
	maxPattern  = 1024 // bytes of a pattern
	maxProgram  = 1024 // instructions of a compiled pattern
)

// Parse returns the data schema v: an object, or a boolean that accepts all values or none. It returns nil for other values.
// The caller must not change v afterwards.
func Parse(v any) *Schema { return (&root{doc: v}).part(v) }

// Within returns the data schema that is an object within text: the member of the object at path. Text is valid JSON that has it, and is not
// changed afterwards. The schema is decoded on its first use, because a decoded one takes several times the memory of its text, and most are
// not used. Schemas may share text and path.
func Within(text *[]byte, path []string, member string) *Schema {
	l := &struct {
		Schema
		late
	}{late: late{text: text, path: path, member: member}}
	l.Schema.late = &l.late
	return &l.Schema
}

// A late is where a schema is that is decoded on its first use.
type late struct {
	text   *[]byte
	path   []string
	member string
	root   atomic.Pointer[root]
}

// whole returns the root of the schema. Of several that decode it at once, one result is used.
func (l *late) whole() *root {
	if r := l.root.Load(); r != nil {
		return r
	}
	text := *l.text
	for i := range len(l.path) + 1 {
		name := l.member
		if i < len(l.path) {
			name = l.path[i]
		}
		text = text[jsonedit.SkipSpace(text, 0):]
		members, err := jsonedit.Members(nil, text)
		at := members.Of(name)
		if err != nil || at.To == 0 {
			panic(fmt.Sprintf("td/schema: no member %q in the checked text", name))
		}
		text = text[at.From:at.To]
	}
	doc, err := jcs.View(text)
	if err != nil {
		panic("td/schema: a checked schema cannot be decoded: " + err.Error())
	}
	l.root.CompareAndSwap(nil, &root{doc: doc})
	return l.root.Load()
}

func (r *root) part(v any) *Schema {
	switch v.(type) {
	case map[string]any, bool:
		return &Schema{node: v, root: r}
	}
	return nil
}

// Value returns the schema as decoded JSON, or nil. The caller must not change it.
func (s *Schema) Value() any {
	switch {
	case s == nil:
		return nil
	case s.late != nil:
		return s.late.whole().doc
	}
	return s.node
}

// whole returns what s is a part of.
func (s *Schema) whole() *root {
	if s.late != nil {
		return s.late.whole()
	}
	return s.root
}

// Keyword returns the value of a keyword, references followed, or nil. The caller must not change it.
func (s *Schema) Keyword(name string) any { return s.object()[name] }

// Type returns the JSON type of the values: object, array, string, number, integer, boolean or null. Without "type" it follows from
// const, enum, properties or items; it is "" if these are missing, too.
func (s *Schema) Type() string {
	m := s.object()
	for name := range texts(m["type"]) {
		return name
	}
	if v, ok := m["const"]; ok {
		return TypeOf(v)
	}
	if list := array(m["enum"]); len(list) > 0 {
		return TypeOf(list[0])
	}
	switch {
	case m["properties"] != nil:
		return "object"
	case m["items"] != nil:
		return "array"
	}
	return ""
}

// Property returns the schema of a member, or nil if "properties" lacks it.
func (s *Schema) Property(name string) *Schema {
	return s.part(object(s.Keyword("properties"))[name])
}

// Items returns the schema of the elements, or nil if "items" is missing or has one schema for each element.
func (s *Schema) Items() *Schema { return s.part(s.Keyword("items")) }

func (s *Schema) part(v any) *Schema {
	if s == nil {
		return nil
	}
	return s.whole().part(v)
}

// Properties returns the names in "properties", sorted.
func (s *Schema) Properties() []string { return sortedKeys(object(s.Keyword("properties"))) }

// Required returns the names of the required members, in the order of the schema.
func (s *Schema) Required() []string { return slices.Collect(texts(s.Keyword("required"))) }

// Enum returns the allowed values, or nil if the schema does not list them.
func (s *Schema) Enum() []any {
	m := s.object()
	if v, ok := m["const"]; ok {
		return []any{v}
	}
	return array(m["enum"])
}

// Elements returns the schema of the elements if s accepts an array, by its type or as an alternative; otherwise nil. URI variables
// are single values in TD 1.1 (§5.3.1.1, uriVariables). A variable that may be a list has both forms as alternatives, and occurs
// several times in the URI (RFC 6570 §3.2.1).
func (s *Schema) Elements() *Schema {
	m := s.object()
	if m["type"] == "array" {
		if items := s.Items(); items != nil {
			return items
		}
		return s.part(true)
	}
	for _, keyword := range []string{"oneOf", "anyOf"} {
		for _, branch := range array(m[keyword]) {
			if b := s.part(branch); b.Keyword("type") == "array" {
				return b.Elements()
			}
		}
	}
	return nil
}

// FromText returns the JSON value of a text in a URI: a string if that fits s, else the number or boolean with this spelling if that fits.
func (s *Schema) FromText(text string) []byte {
	if len(s.Check(text)) > 0 {
		raw := []byte(text)
		if v, err := jcs.Decode(raw, len(raw)); err == nil && v != nil && len(s.Check(v)) == 0 {
			return raw
		}
	}
	quoted, _ := json.Marshal(text) // a string always has a JSON form
	return quoted
}

// object returns the keywords of s, references followed.
func (s *Schema) object() map[string]any {
	m := object(s.Value())
	for range maxNesting {
		ref, ok := m["$ref"].(string)
		if !ok {
			return m
		}
		if m = object(s.whole().lookup(ref)); m == nil {
			return nil
		}
	}
	return nil
}

// lookup returns the target of a local reference "#/…". It returns true, which accepts everything, for a reference out of the
// schema, to an anchor, or without a target.
func (r *root) lookup(ref string) any {
	fragment, local := strings.CutPrefix(ref, "#")
	if !local || fragment != "" && fragment[0] != '/' {
		return true
	}
	v := r.doc
	for rest := unescape(fragment); rest != ""; {
		var name string
		var ok bool
		name, rest = firstName(rest)
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

// pattern returns the compiled form of a pattern. It returns nil if the pattern is not checked: it is too large, or RE2 does not have
// its syntax (ECMA 262 has more).
func (r *root) pattern(p string) *pattern {
	r.mu.Lock()
	defer r.mu.Unlock()
	re, known := r.patterns[p]
	if known || len(r.patterns) >= maxPatterns {
		return re
	}
	if r.patterns == nil {
		r.patterns = make(map[string]*pattern)
	}
	re = compilePattern(p)
	r.patterns[p] = re
	return re
}

func compilePattern(p string) *pattern {
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

// The functions below return the zero value for a value of another type: a keyword of the wrong type is ignored.

func object(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}

func array(v any) []any {
	a, _ := v.([]any)
	return a
}

// texts yields a string, or the strings of an array.
func texts(v any) iter.Seq[string] {
	return func(yield func(string) bool) {
		if s, ok := v.(string); ok {
			yield(s)
			return
		}
		for _, e := range array(v) {
			if s, ok := e.(string); ok && !yield(s) {
				return
			}
		}
	}
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
