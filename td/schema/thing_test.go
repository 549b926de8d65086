package schema

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/internal/jcs"
)

// everything has all elements of the schema.
const everything = `{
	"@context": ["https://www.w3.org/2022/wot/td/v1.1", {"@direction": "ltr", "x": "urn:x"}], "@type": ["a", "b"],
	"id": "urn:example:all", "title": "All", "titles": {"en": "All"}, "version": {"instance": "1"}, "base": "http://x/",
	"created": "2026-01-31T12:00:00Z", "security": ["a"], "profile": "urn:p", "proof": {}, "registration": {},
	"securityDefinitions": {"a": {"scheme": "apikey", "in": "uri", "name": "k"}, "b": {"scheme": "basic", "in": "header"},
		"c": {"scheme": "oauth2", "flow": "code", "authorization": "x", "token": "y", "scopes": ["s"]}, "auto": {"scheme": "auto"},
		"d": {"scheme": "oauth2", "flow": "client", "token": "y"}, "combo": {"scheme": "combo", "oneOf": ["a", "b"]}},
	"links": [{"href": "x", "rel": "icon", "sizes": "16x16", "hreflang": ["en", "de-DE"]}, {"href": "y", "hreflang": "en"}],
	"forms": [{"href": "x", "op": "readallproperties"}],
	"uriVariables": {"u": {"type": "string"}}, "schemaDefinitions": {"s": {"type": "null"}},
	"properties": {"p": {"type": "object", "observable": true, "properties": {"q": {"items": [{"type": "integer", "minimum": 1}],
		"minItems": 0, "maxItems": 3, "multipleOf": 0.5}}, "required": ["q"],
		"forms": [{"href": "x{?u}", "op": ["readproperty"], "contentType": "a/b", "response": {"contentType": "a/b"},
			"additionalResponses": [{"success": true, "schema": "s"}], "scopes": "s"}]}},
	"actions": {"a": {"safe": true, "input": {"oneOf": [{"enum": [1]}], "minLength": 1},
		"forms": [{"href": "x", "op": "invokeaction"}]}},
	"events": {"e": {"data": {"items": {"type": "number"}}, "forms": [{"href": "x", "op": ["subscribeevent"]}]}}}`

// The fast check and the library accept the same changed TDs, and the issues of the others are the same.
func TestThingsAgreeWithTheLibrary(t *testing.T) {
	t.Parallel()
	for _, text := range []string{everything, weather(t)} {
		doc := decodeJSON(t, text)
		if err := ofLibrary().compiled.Validate(doc); err != nil {
			t.Fatal("the unchanged TD:", err)
		}
		n, bad := 0, 0
		mutate(doc, func(what string) {
			n++
			thing, isObject := doc.(map[string]any)
			if !isObject {
				t.Fatal("no object")
			}
			want := sorted(ofLibrary().check(thing))
			if len(want) > 0 {
				bad++
			}
			if got := ofThings().quick.fits(doc); got != (len(want) == 0) {
				t.Errorf("%s: fits is %v, the issues of the library are %v", what, got, want)
			}
			if got := sorted(CheckThing(thing)); !slices.Equal(got, want) {
				t.Errorf("%s: got the issues\n%v\nwant\n%v", what, got, want)
			}
		})
		if n < 200 || bad < n/5 || bad == n {
			t.Errorf("%d of %d changes are invalid: the test has too little effect", bad, n)
		}
	}
}

// sorted returns all issues in one order, each once.
func sorted(issues []Issue) []Issue {
	slices.SortFunc(issues, func(a, b Issue) int {
		return cmp.Or(strings.Compare(a.Pointer, b.Pointer), strings.Compare(a.Reason, b.Reason), strings.Compare(a.Rule, b.Rule))
	})
	return slices.Compact(issues)
}

// mutate calls check after each of many small changes of v, and reverts each.
func mutate(v any, check func(what string)) {
	strange := []any{nil, true, 0.0, -1.0, 1.5, "", "x", "tm:ThingModel", "tm:extends", "oauth2", "combo", "device",
		[]any{}, []any{"object"}, []any{1.0}, []any{nil}, map[string]any{},
		map[string]any{"type": "array", "scheme": "digest", "href": "", "forms": []any{}}}
	switch v := v.(type) {
	case map[string]any:
		for name, was := range v {
			delete(v, name)
			check("without " + name)
			for _, other := range strange {
				v[name] = other
				check(fmt.Sprintf("%s is %v", name, other))
			}
			v[name] = was
			mutate(was, check)
		}
	case []any:
		for i, was := range v {
			for _, other := range strange {
				v[i] = other
				check(fmt.Sprintf("element %d is %v", i, other))
			}
			v[i] = was
			mutate(was, check)
		}
	}
}

// The walk supports all keywords of the schema of TDs. It ignores others, so the fast check would accept TDs that a new keyword rejects.
func TestWalkHasTheKeywordsOfTheThingSchema(t *testing.T) {
	t.Parallel()
	known := []string{"$ref", "$defs", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "type", "enum", "const", "format",
		"required", "properties", "additionalProperties", "minProperties", "maxProperties", "propertyNames", "items", "contains",
		"minItems", "uniqueItems", "minLength", "maxLength", "pattern", "minimum", "exclusiveMinimum",
		"$schema", "$id", "title", "description", "reason", "rule"} // the last six are annotations
	text, err := jcs.Decode(thingText, len(thingText))
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	Rewrite(text, func(part any) any {
		for keyword := range object(part) {
			used[keyword] = true
		}
		return part
	})
	if len(used) < 20 {
		t.Fatalf("%d keywords: the walk is broken", len(used))
	}
	for keyword := range used {
		if !slices.Contains(known, keyword) {
			t.Errorf("the schema has the keyword %q", keyword)
		}
	}
}
