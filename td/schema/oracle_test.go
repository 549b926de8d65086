package schema

import (
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/lmosd/lmosd/internal/jcs"
)

// The JSON Schema library is the oracle of the tests. The program does not use it: it compiles the schemas of five drafts when it is loaded.

// A library is the schema of TDs in the library, and as a document with the texts of the issues.
type library struct {
	compiled *jsonschema.Schema
	text     any
}

var ofLibrary = sync.OnceValue(func() *library {
	text, err := jcs.Decode(thingText, len(thingText))
	if err != nil {
		panic(err)
	}
	const id = "urn:lmosd:schema:td-1.1"
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	c.RegisterFormat(&jsonschema.Format{Name: "uri", Validate: asFormat(isURI)})
	c.RegisterFormat(&jsonschema.Format{Name: "date-time", Validate: asFormat(isDateTime)})
	if err := c.AddResource(id, text); err != nil {
		panic(err)
	}
	return &library{c.MustCompile(id), text}
})

func asFormat(valid func(string) bool) func(any) error {
	return func(v any) error {
		if s, ok := v.(string); ok && !valid(s) {
			return errors.New("wrong format")
		}
		return nil
	}
}

// check returns the issues of a decoded TD.
func (l *library) check(doc map[string]any) []Issue {
	var failed *jsonschema.ValidationError
	if !errors.As(l.compiled.Validate(doc), &failed) {
		return nil
	}
	c := &conversion{library: l, doc: doc}
	c.explain(failed)
	return c.issues
}

// A conversion converts an error of the library to issues.
type conversion struct {
	*library
	doc    map[string]any
	issues []Issue
}

func (c *conversion) add(rule, pointer, reason string) {
	c.issues = append(c.issues, Issue{Pointer: pointer, Reason: reason, Rule: rule})
}

// explain adds the issues of an error, or of its causes.
func (c *conversion) explain(e *jsonschema.ValidationError) {
	pointer, rule := pointerOf(e.InstanceLocation), c.rule(e.SchemaURL)
	switch k := e.ErrorKind.(type) {
	case *kind.Type:
		v, _ := find(c.doc, e.InstanceLocation)
		c.add(rule, pointer, wantType(k.Want, v))
		return
	case *kind.Required:
		for _, name := range k.Missing {
			c.add(rule, pointer, missing(name))
		}
		return
	case *kind.PropertyNames:
		for _, cause := range e.Causes { // their location is the name
			c.add(c.rule(cause.SchemaURL), pointer, c.reason(cause.SchemaURL))
		}
		return
	}
	if reason := c.reason(e.SchemaURL); reason != "" && !isGroup(e.ErrorKind) {
		c.add(rule, pointer, reason)
		return
	}
	if reason := plain(e.ErrorKind); reason != "" {
		c.add(rule, pointer, reason)
		return
	}
	for _, cause := range e.Causes {
		if _, names := cause.ErrorKind.(*kind.PropertyNames); names {
			cause.InstanceLocation = e.InstanceLocation // the library overwrites its own
		}
		c.explain(cause)
	}
	if len(e.Causes) == 0 {
		c.add(rule, pointer, "has a form that is not allowed here")
	}
}

// isGroup reports whether an error only groups its causes.
func isGroup(k jsonschema.ErrorKind) bool {
	switch k.(type) {
	case *kind.Schema, *kind.Group, *kind.Reference, *kind.AllOf:
		return true
	}
	return false
}

// plain returns the text of an error that needs no cause, or "".
func plain(k jsonschema.ErrorKind) string {
	switch k := k.(type) {
	case *kind.Enum:
		return wantOneOf(k.Want)
	case *kind.Const:
		return wantOneOf([]any{k.Want})
	case *kind.MinItems:
		if k.Want > 1 {
			return fmt.Sprintf("must have at least %d elements, has %d", k.Want, k.Got)
		}
		return "must not be empty"
	case *kind.MinProperties, *kind.MinLength: // the schema's only bound here is 1
		return "must not be empty"
	case *kind.MaxProperties:
		return fmt.Sprintf("may have %d members, has %d", k.Want, k.Got)
	case *kind.MaxLength:
		return fmt.Sprintf("may have %d characters, has %d", k.Want, k.Got)
	case *kind.Minimum:
		return "must be at least " + k.Want.RatString()
	case *kind.ExclusiveMinimum:
		return "must be more than " + k.Want.RatString()
	case *kind.FalseSchema:
		return "is not allowed here"
	}
	return ""
}

// reason returns the member "reason" of the part of the schema at location, a URL with a JSON pointer in its fragment.
func (s *library) reason(location string) string {
	reason, _ := object(last(s.parts(location)))["reason"].(string)
	return reason
}

// rule returns the name of the rule at location, or around it; or "".
func (s *library) rule(location string) (name string) {
	for _, part := range s.parts(location) {
		if rule, ok := object(part)["rule"].(string); ok {
			name = rule
		}
	}
	return name
}

// parts returns the schema and its parts on the path to location, or nil if the schema does not have the location.
func (s *library) parts(location string) []any {
	_, fragment, _ := strings.Cut(location, "#")
	all := []any{s.text}
	for name := range pointerPath(fragment) {
		next, ok := step(last(all), name)
		if !ok {
			return nil
		}
		all = append(all, next)
	}
	return all
}

func last(all []any) any {
	if len(all) == 0 {
		return nil
	}
	return all[len(all)-1]
}

func pointerOf(location []string) string {
	path := make([]any, len(location))
	for i, name := range location {
		path[i] = name
	}
	return Pointer(path...)
}

// find returns the value at a location in a document.
func find(v any, location []string) (any, bool) {
	ok := true
	for _, name := range location {
		if v, ok = step(v, name); !ok {
			return nil, false
		}
	}
	return v, ok
}

// pointerPath yields the names of a JSON pointer in its URI fragment form (RFC 6901 §6).
func pointerPath(fragment string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for rest := unescape(fragment); rest != ""; {
			var name string
			if name, rest = firstName(rest); !yield(name) {
				return
			}
		}
	}
}
