package schema

import (
	"slices"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/internal/jcs"
)

func FuzzCheck(f *testing.F) {
	f.Add(`{"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}`, `{"a": {}}`)
	f.Add(`{"anyOf": [{"$ref": "#/$defs/x"}, {"pattern": "(a{9}){9}"}], "$defs": {"x": {"oneOf": [true, false]}}}`, `"aaa"`)
	f.Add(`{"items": [{"minLength": -1}], "additionalItems": {"multipleOf": 1e-300}, "uniqueItems": true}`, `[1, 1e308, 1]`)
	f.Add(`{"enum": [{}], "const": [], "not": {"format": "date-time"}, "minimum": "x"}`, `"2026"`)
	f.Add(`{"$ref": "#/%zz/~2/-1", "allOf": {}, "prefixItems": 1}`, `null`)
	f.Fuzz(func(t *testing.T, schema, value string) {
		s, err := jcs.Decode([]byte(schema), 1<<14)
		if err != nil {
			return
		}
		v, err := jcs.Decode([]byte(value), 1<<14)
		if err != nil {
			return
		}
		compiled := Parse(s)
		issues := compiled.Check(v)
		if compiled != nil && compiled.fits(v) && len(issues) > 0 {
			t.Fatalf("fits, but has the issues %v", issues)
		}
		if len(issues) > maxIssues {
			t.Fatalf("%d issues", len(issues))
		}
		for _, issue := range issues {
			_, found := find(v, slices.Collect(pointerPath(issue.Pointer)))
			if !found && !strings.Contains(issue.Pointer, "%") { // pointerPath unescapes %
				t.Fatalf("%v points to nothing", issue)
			}
		}
		compiled.Type()
		for _, name := range compiled.Properties() {
			compiled.Property(name).Items().Type()
		}
	})
}

// FuzzCheckThing compares both checks of a TD with the library.
func FuzzCheckThing(f *testing.F) {
	f.Add([]byte(weather(f)))
	f.Add([]byte(everything))
	f.Add([]byte(`{"@context": [1, {}], "links": 1, "security": {}, "properties": {"p": 1}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		v, err := jcs.Decode(raw, 128<<10)
		doc := object(v)
		if err != nil || doc == nil {
			return
		}
		want := sorted(ofLibrary().check(doc))
		valid := len(want) == 0
		if fits := ofThings().quick.fits(doc); fits != valid {
			t.Fatalf("fits: %v, the library: %v", fits, valid)
		}
		if issues := sorted(CheckThing(doc)); !slices.Equal(issues, want) {
			t.Fatalf("got the issues\n%v\nwant\n%v", issues, want)
		}
	})
}
