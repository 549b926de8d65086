package schema

import (
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/lmosd/lmosd/internal/jcs"
)

//go:embed td-1.1.json
var thingText []byte

// A thingSchema is the JSON Schema of a TD in three forms: for a fast check, for an error with its cause, and as a document with the texts
// of the errors.
type thingSchema struct {
	quick    *Schema
	compiled *jsonschema.Schema
	text     any
}

// ofThings compiles the embedded schema on first use, which takes some milliseconds. It is read-only afterwards.
var ofThings = sync.OnceValue(func() *thingSchema {
	text, err := jcs.Decode(thingText, len(thingText))
	if err != nil {
		panic(fmt.Sprintf("embedded schema: %v", err))
	}
	const id = "urn:lmosd:schema:td-1.1"
	c := jsonschema.NewCompiler()
	c.UseLoader(noLoader{})
	c.AssertFormat()
	c.RegisterFormat(&jsonschema.Format{Name: "uri", Validate: asFormat(isURI)})
	c.RegisterFormat(&jsonschema.Format{Name: "date-time", Validate: asFormat(isDateTime)})
	if err := c.AddResource(id, text); err != nil {
		panic(fmt.Sprintf("embedded schema: %v", err))
	}
	quick := compile(text)
	return &thingSchema{&Schema{node: quick, root: &root{doc: quick}}, c.MustCompile(id), text}
})

func asFormat(valid func(string) bool) func(any) error {
	return func(v any) error {
		if s, ok := v.(string); ok && !valid(s) {
			return errors.New("wrong format")
		}
		return nil
	}
}

// A noLoader prevents the library from loading schemas from the network and from files.
type noLoader struct{}

func (noLoader) Load(url string) (any, error) { return nil, fmt.Errorf("%s is not loaded", url) }

// CheckThing returns the issues of a decoded TD that violates the JSON Schema of TD 1.1, unsorted. Most TDs are valid, so a fast check
// without causes comes first.
func CheckThing(doc map[string]any) []Issue {
	if ofThings().quick.fits(doc) {
		return nil
	}
	var failed *jsonschema.ValidationError
	if !errors.As(ofThings().compiled.Validate(doc), &failed) {
		return nil
	}
	c := &explanation{doc: doc}
	c.explain(failed)
	return c.issues
}

// An explanation converts an error of the JSON Schema library to issues.
type explanation struct {
	doc    map[string]any
	issues []Issue
}

func (c *explanation) add(rule, pointer, reason string) {
	c.issues = append(c.issues, Issue{Pointer: pointer, Reason: reason, Rule: rule})
}

// explain adds the issues of an error, or of its causes.
func (c *explanation) explain(e *jsonschema.ValidationError) {
	pointer, rule := pointerOf(e.InstanceLocation), ofThings().rule(e.SchemaURL)
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
			c.add(ofThings().rule(cause.SchemaURL), pointer, ofThings().reason(cause.SchemaURL))
		}
		return
	}
	if reason := ofThings().reason(e.SchemaURL); reason != "" && !isGroup(e.ErrorKind) {
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
func (s *thingSchema) reason(location string) string {
	reason, _ := object(last(s.parts(location)))["reason"].(string)
	return reason
}

// rule returns the name of the rule at location, or around it, that the official schema does not have; or "".
func (s *thingSchema) rule(location string) (name string) {
	for _, part := range s.parts(location) {
		if rule, ok := object(part)["rule"].(string); ok {
			name = rule
		}
	}
	return name
}

// parts returns the schema and its parts on the path to location, or nil if the schema does not have the location.
func (s *thingSchema) parts(location string) []any {
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
