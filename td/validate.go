package td

import (
	_ "embed"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/lmosd/lmosd/internal/jcs"
)

//go:embed schema/td-1.1.json
var schemaText []byte

// A rulebook is the compiled schema of a TD, the same for who asks for yes or no, and its text, where the reasons stand.
type rulebook struct {
	schema *jsonschema.Schema
	quick  *shape
	text   any
}

// rules compiles the embedded schema at its first use, some milliseconds; a program that reads no TD does not pay for
// it. It is a constant in another form: nothing changes it later.
var rules = sync.OnceValue(func() *rulebook {
	text, err := jcs.Decode(schemaText, len(schemaText))
	if err != nil {
		panic(fmt.Sprintf("embedded schema: %v", err))
	}
	const id = "urn:lmosd:schema:td-1.1"
	c := jsonschema.NewCompiler()
	c.UseLoader(nowhere{})
	c.AssertFormat()
	c.RegisterFormat(&jsonschema.Format{Name: "uri", Validate: asFormat(isURI)})
	c.RegisterFormat(&jsonschema.Format{Name: "date-time", Validate: asFormat(isDateTime)})
	if err := c.AddResource(id, text); err != nil {
		panic(fmt.Sprintf("embedded schema: %v", err))
	}
	schema := c.MustCompile(id)
	return &rulebook{schema, shapes{}.of(schema), text}
})

func asFormat(valid func(string) bool) func(any) error {
	return func(v any) error {
		if s, ok := v.(string); ok && !valid(s) {
			return errors.New("wrong format")
		}
		return nil
	}
}

// nowhere loads nothing: no schema comes from the network or a file.
type nowhere struct{}

func (nowhere) Load(url string) (any, error) { return nil, fmt.Errorf("%s is not loaded", url) }

// checkSchema reports what in the TD does not fit the schema. Nearly all do: whether it fits is asked first, for a tenth of the
// time, and only then why not.
func (c *checker) checkSchema() {
	if rules().quick.fits(c.doc) {
		return
	}
	var failed *jsonschema.ValidationError
	if !errors.As(rules().schema.Validate(c.doc), &failed) {
		return
	}
	c.explain(failed)
}

// explain puts the failure into plain words, its leaves first of all.
func (c *checker) explain(e *jsonschema.ValidationError) {
	pointer, rule := pointerOf(e.InstanceLocation), rules().rule(e.SchemaURL)
	switch k := e.ErrorKind.(type) {
	case *kind.Type:
		v, _ := find(c.doc, e.InstanceLocation)
		c.breaks(rule, pointer, "%s", wantType(k.Want, v))
		return
	case *kind.Required:
		for _, name := range k.Missing {
			c.breaks(rule, pointer, "%s", missing(name))
		}
		return
	case *kind.PropertyNames:
		for _, cause := range e.Causes { // their place is the name
			c.breaks(rules().rule(cause.SchemaURL), pointer, "%s", rules().reason(cause.SchemaURL))
		}
		return
	}
	if reason := rules().reason(e.SchemaURL); reason != "" && !isGroup(e.ErrorKind) {
		c.breaks(rule, pointer, "%s", reason)
		return
	}
	if reason := plain(e.ErrorKind); reason != "" {
		c.breaks(rule, pointer, "%s", reason)
		return
	}
	for _, cause := range e.Causes {
		if _, names := cause.ErrorKind.(*kind.PropertyNames); names {
			cause.InstanceLocation = e.InstanceLocation // the library's own is overwritten while it goes on
		}
		c.explain(cause)
	}
	if len(e.Causes) == 0 {
		c.breaks(rule, pointer, "has a form that is not allowed here")
	}
}

// isGroup tells whether a failure only holds others together.
func isGroup(k jsonschema.ErrorKind) bool {
	switch k.(type) {
	case *kind.Schema, *kind.Group, *kind.Reference, *kind.AllOf:
		return true
	}
	return false
}

// plain returns the words for a failure that explains itself, or "".
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
func (r *rulebook) reason(location string) string {
	return text(object(last(r.parts(location)))["reason"])
}

// rule names the rule that the part of the schema at location is, or is in, if the official schema does not hold it; or "".
func (r *rulebook) rule(location string) (name string) {
	for _, part := range r.parts(location) {
		if rule, ok := object(part)["rule"].(string); ok {
			name = rule
		}
	}
	return name
}

// parts are the schema and its parts on the way to location; none if that is nowhere.
func (r *rulebook) parts(location string) []any {
	_, fragment, _ := strings.Cut(location, "#")
	all := []any{r.text}
	for _, name := range pointerPath(fragment) {
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
	var b strings.Builder
	for _, name := range location {
		b.WriteByte('/')
		b.WriteString(pointerEscape(name))
	}
	return b.String()
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

// pointerPath returns the names of a JSON pointer in its URI fragment form (RFC 6901 §6).
func pointerPath(fragment string) []string {
	if fragment == "" {
		return nil
	}
	if plain, err := url.PathUnescape(fragment); err == nil {
		fragment = plain
	}
	names := strings.Split(fragment[1:], "/")
	for i, n := range names {
		names[i] = strings.ReplaceAll(strings.ReplaceAll(n, "~1", "/"), "~0", "~")
	}
	return names
}
