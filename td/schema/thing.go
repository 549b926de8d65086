package schema

import (
	"cmp"
	_ "embed"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"unicode/utf8"

	"github.com/lmosd/lmosd/internal/jcs"
)

//go:embed td-1.1.json
var thingText []byte

// A thingSchema is the JSON Schema of a TD in two forms: for a fast check, and as a document with the texts of the issues.
type thingSchema struct {
	quick *Schema
	full  explanation
}

// ofThings compiles the embedded schema on first use. It is read-only afterwards.
var ofThings = sync.OnceValue(func() *thingSchema {
	text, err := jcs.Decode(thingText, len(thingText))
	if err != nil {
		panic(fmt.Sprintf("embedded schema: %v", err))
	}
	quick := compile(text)
	return &thingSchema{&Schema{node: quick, root: &root{doc: quick}}, explanation{&root{doc: text}}}
})

// CheckThing returns the issues of a decoded TD that violates the JSON Schema of TD 1.1, unsorted. Most TDs are valid, so a fast check
// without causes comes first. The other one has no limits of its own: the schema is that of lmosd, and a TD has limits.
func CheckThing(doc map[string]any) []Issue {
	if ofThings().quick.fits(doc) {
		return nil
	}
	e := ofThings().full
	return e.part(e.root.doc, "", "", doc)
}

// An explanation finds all issues of a TD, with the members "reason" and "rule" of the schema. It is safe for concurrent use.
type explanation struct{ root *root }

// A finding collects the issues of one value by one object of the schema.
type finding struct {
	reason, rule, pointer string
	issues                []Issue
}

// add adds an issue. The reason that the schema states is preferred to text.
func (f *finding) add(text string) { f.plain(cmp.Or(f.reason, text)) }

// plain adds an issue with this text.
func (f *finding) plain(text string) {
	f.issues = append(f.issues, Issue{Pointer: f.pointer, Reason: text, Rule: f.rule})
}

// wrongForm is the text of an issue without a better one.
const wrongForm = "has a form that is not allowed here"

// part returns the issues of v, at pointer, by a part of the schema. rule is that of the object around the part.
func (e explanation) part(schema any, rule, pointer string, v any) []Issue {
	s, ok := schema.(map[string]any)
	if !ok {
		if schema == false {
			return []Issue{{Pointer: pointer, Reason: "is not allowed here", Rule: rule}}
		}
		return nil
	}
	f := &finding{rule: rule, pointer: pointer}
	if own, ok := s["rule"].(string); ok {
		f.rule = own
	}
	f.reason, _ = s["reason"].(string)
	if e.single(f, s, v); len(f.issues) > 0 {
		return f.issues
	}
	if ref, ok := s["$ref"].(string); ok {
		f.issues = append(f.issues, e.part(e.root.lookup(ref), "", pointer, v)...)
	}
	switch v := v.(type) {
	case map[string]any:
		e.object(f, s, v)
	case []any:
		e.array(f, s, v)
	case string:
		e.text(f, s, v)
	case float64:
		if least, ok := s["minimum"].(float64); ok && v < least {
			f.add("must be at least " + Show(least))
		}
		if below, ok := s["exclusiveMinimum"].(float64); ok && v <= below {
			f.add("must be more than " + Show(below))
		}
	}
	e.branches(f, s, v)
	return f.issues
}

// single adds the issue of the value as a whole. Further issues of such a value say nothing new.
func (e explanation) single(f *finding, s map[string]any, v any) {
	types := slices.Collect(texts(s["type"]))
	want, fixed := s["const"]
	list, listed := s["enum"].([]any)
	name, _ := s["format"].(string)
	text, isText := v.(string)
	switch valid := formats[name].valid; {
	case len(types) > 0 && !slices.ContainsFunc(types, func(t string) bool { return isType(t, v) }):
		f.plain(wantType(inOrder(types), v))
	case fixed && !reflect.DeepEqual(v, want):
		f.add(wantOneOf([]any{want}))
	case listed && !slices.ContainsFunc(list, func(want any) bool { return reflect.DeepEqual(v, want) }):
		f.add(wantOneOf(list))
	case isText && valid != nil && !valid(text):
		f.add(wrongForm)
	}
}

// inOrder returns JSON types from simple to composite.
func inOrder(types []string) []string {
	order := []string{"null", "boolean", "number", "integer", "string", "array", "object"}
	return slices.DeleteFunc(order, func(t string) bool { return !slices.Contains(types, t) })
}

func (e explanation) object(f *finding, s, v map[string]any) {
	if least, ok := s["minProperties"].(float64); ok && float64(len(v)) < least {
		f.add("must not be empty") // the only bound of this schema is 1
	}
	if most, ok := s["maxProperties"].(float64); ok && float64(len(v)) > most {
		f.add(fmt.Sprintf("may have %v members, has %d", most, len(v)))
	}
	for name := range texts(s["required"]) {
		if _, ok := v[name]; !ok {
			f.plain(missing(name))
		}
	}
	properties := object(s["properties"])
	for name, member := range v {
		part, known := properties[name]
		if !known {
			part = s["additionalProperties"]
		}
		f.issues = append(f.issues, e.part(part, f.rule, f.pointer+Pointer(name), member)...)
		f.issues = append(f.issues, e.part(s["propertyNames"], f.rule, f.pointer, name)...)
	}
}

func (e explanation) array(f *finding, s map[string]any, v []any) {
	switch least, ok := s["minItems"].(float64); {
	case !ok || float64(len(v)) >= least:
	case least > 1:
		f.add(fmt.Sprintf("must have at least %v elements, has %d", least, len(v)))
	default:
		f.add("must not be empty")
	}
	if s["uniqueItems"] == true {
		seen := map[string]bool{}
		for _, one := range v {
			seen[string(encode(one))] = true
		}
		if len(seen) < len(v) {
			f.add(wrongForm)
		}
	}
	for i, one := range v {
		f.issues = append(f.issues, e.part(s["items"], f.rule, f.pointer+"/"+strconv.Itoa(i), one)...)
	}
	some, limited := s["contains"]
	if limited && !slices.ContainsFunc(v, func(one any) bool { return e.fits(some, one) }) {
		f.add(wrongForm)
	}
}

func (e explanation) text(f *finding, s map[string]any, v string) {
	n := utf8.RuneCountInString(v)
	if least, ok := s["minLength"].(float64); ok && float64(n) < least {
		f.add("must not be empty") // the only bound of this schema is 1
	}
	if most, ok := s["maxLength"].(float64); ok && float64(n) > most {
		f.add(fmt.Sprintf("may have %v characters, has %d", most, n))
	}
	if p, ok := s["pattern"].(string); ok && !e.root.pattern(p).MatchString(v) {
		f.add(wrongForm)
	}
}

// branches adds the issues by the parts of s that apply to the same value.
func (e explanation) branches(f *finding, s map[string]any, v any) {
	sub := func(part any) { f.issues = append(f.issues, e.part(part, f.rule, f.pointer, v)...) }
	if not, ok := s["not"]; ok && e.fits(not, v) {
		f.add(wrongForm)
	}
	for _, part := range array(s["allOf"]) {
		sub(part)
	}
	if list, ok := s["anyOf"].([]any); ok && e.count(list, v) == 0 {
		f.add(wrongForm)
	}
	if list, ok := s["oneOf"].([]any); ok && e.count(list, v) != 1 {
		f.add(wrongForm)
	}
	if condition, ok := s["if"]; ok {
		if e.fits(condition, v) {
			sub(s["then"])
		} else {
			sub(s["else"])
		}
	}
}

func (e explanation) fits(part, v any) bool { return len(e.part(part, "", "", v)) == 0 }

// count returns the number of parts that v fits.
func (e explanation) count(parts []any, v any) (n int) {
	for _, part := range parts {
		if e.fits(part, v) {
			n++
		}
	}
	return n
}
