package schema

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"pgregory.net/rapid"

	"github.com/lmosd/lmosd/internal/jcs"
)

func decodeJSON(t testing.TB, s string) any {
	t.Helper()
	v, err := jcs.Decode([]byte(s), 8<<20)
	if err != nil {
		t.Fatalf("%s: %v", s, err)
	}
	return v
}

// weather returns the TD of the tests of package td.
func weather(t testing.TB) string {
	t.Helper()
	b, err := os.ReadFile("../testdata/weather.td.json")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestCheck(t *testing.T) {
	t.Parallel()
	const input = `{"type": "object", "properties": {"question": {"type": "string", "minLength": 3},
		"interactionMode": {"type": "string", "enum": ["text", "voice"]}, "count": {"type": "integer", "minimum": 1, "maximum": 5}},
		"required": ["question", "interactionMode"]}`
	tests := []struct{ name, schema, value, want string }{
		{"a good input", input, `{"question": "Rain?", "interactionMode": "text", "count": 5, "more": true}`, ``},
		{"a missing member", input, `{"interactionMode": "text"}`, `"question" is missing`},
		{"two missing members", input, `{}`, `"interactionMode" is missing; "question" is missing`},
		{"a wrong type", input, `[]`, `expected object, got array`},
		{"a wrong type inside", input, `{"question": 7, "interactionMode": "text"}`,
			`/question: expected string, got number`},
		{"a value that is not allowed", input, `{"question": "Rain?", "interactionMode": "smoke"}`,
			`/interactionMode: must be "text" or "voice"`},
		{"too short", input, `{"question": "?", "interactionMode": "text"}`,
			`/question: must have at least 3 characters, has 1`},
		{"half", input, `{"question": "Rain?", "interactionMode": "text", "count": 1.5}`,
			`/count: expected integer, got number`},
		{"too little", input, `{"question": "Rain?", "interactionMode": "text", "count": 0}`,
			`/count: must be at least 1, is 0`},
		{"too much", input, `{"question": "Rain?", "interactionMode": "text", "count": 6}`,
			`/count: must be at most 5, is 6`},

		{"an integer with a point", `{"type": "integer"}`, `3.0`, ``},
		{"a number for an integer", `{"type": "number"}`, `3`, ``},
		{"null", `{"type": "null"}`, `null`, ``},
		{"null for a string", `{"type": "string"}`, `null`, `expected string, got null`},
		{"one of two types", `{"type": ["string", "null"]}`, `null`, ``},
		{"none of two types", `{"type": ["string", "null"]}`, `true`, `expected string or null, got boolean`},
		{"a constant", `{"const": {"a": [1]}}`, `{"a": [1]}`, ``},
		{"another constant", `{"const": "x"}`, `"y"`, `must be "x"`},
		{"three values", `{"enum": [1, 2, {"a": 1}]}`, `3`, `must be one of 1, 2, {"a":1}`},
		{"code points, not bytes", `{"maxLength": 3}`, `"äöü"`, ``},
		{"one too many", `{"maxLength": 1}`, `"äö"`, `must have at most 1 character, has 2`},
		{"a pattern", `{"pattern": "^[a-z]+$"}`, `"abc"`, ``},
		{"against a pattern", `{"pattern": "^[a-z]+$"}`, `"ABC"`, `does not match the pattern ^[a-z]+$`},
		{"a pattern that only ECMA 262 has", `{"pattern": "^(?=a)"}`, `"b"`, ``},
		{"more than", `{"exclusiveMinimum": 0}`, `0`, `must be more than 0, is 0`},
		{"less than", `{"exclusiveMaximum": 1}`, `1`, `must be less than 1, is 1`},
		{"a multiple as written", `{"multipleOf": 0.1}`, `0.3`, ``},
		{"no multiple", `{"multipleOf": 0.1}`, `0.35`, `must be a multiple of 0.1, is 0.35`},
		{"elements", `{"items": {"type": "string"}}`, `["a", 1, "b", null]`,
			`/1: expected string, got number; /3: expected string, got null`},
		{"too few elements", `{"minItems": 2}`, `[1]`, `must have at least 2 elements, has 1`},
		{"too many elements", `{"maxItems": 1}`, `[1, 2]`, `must have at most 1 element, has 2`},
		{"a tuple of TD 1.1", `{"items": [{"type": "string"}, {"type": "number"}]}`, `["a", "b", true]`,
			`/1: expected number, got string`},
		{"a tuple that ends", `{"items": [{"type": "string"}], "additionalItems": false}`, `["a", "b"]`,
			`/1: is not allowed here`},
		{"a tuple of later drafts", `{"prefixItems": [{"type": "string"}], "items": {"type": "number"}}`,
			`["a", 1, "b"]`, `/2: expected number, got string`},
		{"an element twice", `{"uniqueItems": true}`, `[{"a": 1, "b": 2}, 1, {"b": 2, "a": 1}]`,
			`elements 0 and 2 are equal`},
		{"too few members", `{"minProperties": 1}`, `{}`, `must have at least 1 member, has 0`},
		{"an unknown member", `{"properties": {"userName": {}}, "additionalProperties": false}`, `{"username": 1}`,
			`"username" is not allowed; did you mean "userName"?`},
		{"the rest", `{"properties": {"a": {}}, "additionalProperties": {"type": "number"}}`, `{"a": "x", "b": "x"}`,
			`/b: expected number, got string`},
		{"members by pattern are not checked", `{"patternProperties": {"^x": {}}, "additionalProperties": false}`,
			`{"xy": 1}`, ``},
		{"nothing is allowed", `{"properties": {"a": false}}`, `{"a": 1}`, `/a: is not allowed here`},
		{"a name with a slash", `{"properties": {"a/b~c": {"type": "string"}}}`, `{"a/b~c": 1}`,
			`/a~1b~0c: expected string, got number`},

		{"all of them", `{"allOf": [{"minimum": 1}, {"maximum": 2}]}`, `3`, `must be at most 2, is 3`},
		{"a condition that holds", `{"if": {"type": "string"}, "then": {"minLength": 2}, "else": false}`, `"x"`,
			`must have at least 2 characters, has 1`},
		{"a condition that does not hold", `{"if": {"type": "string"}, "then": false, "else": {"minimum": 2}}`, `1`,
			`must be at least 2, is 1`},
		{"a condition of nothing", `{"if": false}`, `1`, ``},
		{"an element is there", `{"contains": {"type": "string"}}`, `[1, "a"]`, ``},
		{"an element is not there", `{"contains": {"type": "string"}}`, `[1]`, `has no element of a kind that is required`},
		{"no element need be there", `{"contains": {"type": "string"}, "minContains": 0}`, `[1]`, ``},
		{"a name", `{"propertyNames": {"pattern": "^a"}}`, `{"ab": 1, "ba": 1}`, `"ba" is not allowed as a name here`},
		{"not", `{"not": {"type": "string"}}`, `"x"`, `has a form that is not allowed`},
		{"any, the first", `{"anyOf": [{"type": "string"}, {"type": "number"}]}`, `"x"`, ``},
		{"any, no type fits", `{"anyOf": [{"type": "string"}, {"type": "number"}]}`, `true`,
			`expected string or number, got boolean`},
		{"any, one type fits", `{"anyOf": [{"type": "string", "minLength": 2}, {"type": "null"}]}`, `"x"`,
			`must have at least 2 characters, has 1`},
		{"any, inside one type", `{"anyOf": [{"type": "object", "required": ["a"]}, {"type": "array"}]}`, `{}`,
			`"a" is missing`},
		{"one of constants", `{"oneOf": [{"const": "a"}, {"const": "b"}]}`, `"c"`, `must be "a" or "b"`},
		{"one of forms", `{"oneOf": [{"minimum": 5}, {"multipleOf": 2}]}`, `3`, `fits none of the 2 alternatives`},
		{"both", `{"oneOf": [{"minimum": 5}, {"multipleOf": 2}]}`, `6`,
			`fits more than one of the alternatives, where exactly one is allowed`},
		{"exactly one", `{"oneOf": [{"minimum": 5}, {"multipleOf": 2}]}`, `7`, ``},
		{"exactly one, the last", `{"oneOf": [{"minimum": 5}, {"multipleOf": 2}]}`, `4`, ``},

		{"a local reference", `{"$defs": {"p": {"type": "string"}}, "properties": {"a": {"$ref": "#/$defs/p"}}}`,
			`{"a": 1}`, `/a: expected string, got number`},
		{"a reference with escapes", `{"$defs": {"a/b c": {"type": "string"}}, "items": {"$ref": "#/$defs/a~1b%20c"}}`,
			`[1]`, `/0: expected string, got number`},
		{"a reference into a list", `{"prefixItems": [{"type": "string"}], "items": {"$ref": "#/prefixItems/0"}}`,
			`["a", 1]`, `/1: expected string, got number`},
		{"a tree", `{"properties": {"next": {"$ref": "#"}, "v": {"type": "number"}}}`, `{"next": {"next": {"v": "x"}}}`,
			`/next/next/v: expected number, got string`},
		{"a reference to nothing", `{"$ref": "#/nowhere"}`, `1`, ``},
		{"a reference to an anchor", `{"$ref": "#anchor"}`, `1`, ``},

		{"a time", `{"format": "date-time"}`, `"2026-01-31T12:00:00.5+01:00"`, ``},
		{"no time", `{"format": "date-time"}`, `"2026-01-31"`, `is not a date and time like "2026-01-31T12:00:00Z"`},
		{"a date", `{"format": "date"}`, `"2026-02-30"`, `is not a date like "2026-01-31"`},
		{"a time of day", `{"format": "time"}`, `"12:00:00Z"`, ``},
		{"a mail address", `{"format": "email"}`, `"Bob <bob@example.com>"`, `is not a mail address`},
		{"a mail address with a name of one label", `{"format": "email"}`, `"bob@localhost"`, ``},
		{"a mail address with letters outside ASCII, which is idn-email", `{"format": "email"}`, `"bób@example.com"`, `is not a mail address`},
		{"an address", `{"format": "ipv4"}`, `"1.2.3"`, `is not an IPv4 address`},
		{"an address of version 6", `{"format": "ipv6"}`, `"::1"`, ``},
		{"a URI", `{"format": "uri"}`, `"/relative"`, `is not a URI with a scheme`},
		{"a relative URI", `{"format": "uri-reference"}`, `"/relative"`, ``},
		{"a UUID", `{"format": "uuid"}`, `"6f1d3a7a-1f97-4e6b-b45f-f3c2e1c84c7"`, `is not a UUID`},
		{"an unknown format", `{"format": "colour"}`, `"x"`, ``},
		{"a format of a number", `{"format": "date"}`, `5`, ``},
		{"true", `true`, `1`, ``},
		{"false", `false`, `1`, `is not allowed here`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			issues := Parse(decodeJSON(t, tt.schema)).Check(decodeJSON(t, tt.value))
			var got []string
			for _, issue := range issues {
				got = append(got, issue.String())
			}
			if s := strings.Join(got, "; "); s != tt.want {
				t.Errorf("got %q, want %q", s, tt.want)
			}
		})
	}
}

func TestNilSchemaAcceptsEverything(t *testing.T) {
	t.Parallel()
	var s *Schema
	if got := s.Check(map[string]any{"a": 1.0}); got != nil {
		t.Errorf("got %v", got)
	}
	if s.Type() != "" || s.Property("a") != nil || s.Properties() != nil && len(s.Properties()) > 0 || s.Required() != nil ||
		s.Items() != nil || s.Enum() != nil || s.Value() != nil {
		t.Error("a nil schema has keywords")
	}
	if Parse("x") != nil || Parse(nil) != nil {
		t.Error("a string is a schema")
	}
}

func TestSchemaDescriptions(t *testing.T) {
	t.Parallel()
	s := Parse(decodeJSON(t, `{"$defs": {"mode": {"enum": ["text", "voice"]}}, "properties": {
		"b": {"$ref": "#/$defs/mode"}, "a": {"type": ["integer", "null"]}, "c": {"items": {"type": "boolean"}}, "d": {"const": 1},
		"e": {"properties": {}}, "f": {}, "g": {"$ref": "#/properties/g"}}, "required": ["b", "a"]}`))
	if got, want := s.Properties(), []string{"a", "b", "c", "d", "e", "f", "g"}; !slices.Equal(got, want) {
		t.Errorf("properties: got %v, want %v", got, want)
	}
	if got, want := s.Required(), []string{"b", "a"}; !slices.Equal(got, want) {
		t.Errorf("required: got %v, want %v", got, want)
	}
	var types []string
	for _, name := range s.Properties() {
		types = append(types, s.Property(name).Type())
	}
	if want := []string{"integer", "string", "array", "number", "object", "", ""}; !slices.Equal(types, want) {
		t.Errorf("types: got %v, want %v", types, want)
	}
	if got := s.Property("c").Items().Type(); got != "boolean" {
		t.Errorf("items: got %q", got)
	}
	if got := s.Property("b").Enum(); !cmp.Equal(got, []any{"text", "voice"}) {
		t.Errorf("enum: got %v", got)
	}
	if s.Type() != "object" || s.Property("x") != nil || !cmp.Equal(s.Property("d").Enum(), []any{1.0}) {
		t.Error("type, an unknown property, or a constant")
	}
}

func TestFromText(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ schema, text, want string }{
		{`{"type": "integer"}`, "5", "5"},
		{`{"type": "integer"}`, "5.5", `"5.5"`},
		{`{"type": "string"}`, "5", `"5"`},
		{`{}`, "true", `"true"`},
		{`{"type": "boolean"}`, "true", "true"},
		{`{"type": "null"}`, "null", `"null"`},
		{`{"type": "string"}`, "\xff", `"\ufffd"`},
	} {
		if got := string(Parse(decodeJSON(t, tt.schema)).FromText(tt.text)); got != tt.want {
			t.Errorf("%q by %s: got %s, want %s", tt.text, tt.schema, got, tt.want)
		}
	}
}

// A check takes bounded time and memory for all schemas and values, and sends no request.
func TestHostileSchemasAreCheap(t *testing.T) {
	t.Parallel()
	doubling := `"d0": {}`
	for i := range 60 {
		doubling += fmt.Sprintf(`, "d%d": {"allOf": [{"$ref": "#/$defs/d%d"}, {"$ref": "#/$defs/d%d"}]}`, i+1, i, i)
	}
	ones := "[" + strings.Repeat("1,", 200_000) + "1]"
	const tooComplex = "the value is too large, or the schema too complex, to be checked"
	tests := []struct{ name, schema, value, want string }{
		{"a reference to itself", `{"$ref": "#"}`, `1`, tooComplex},
		{"a circle", `{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}`, `1`,
			tooComplex},
		{"a circle in alternatives", `{"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}`, `1`, tooComplex},
		{"doubling", `{"$ref": "#/$defs/d60", "$defs": {` + doubling + `}}`, `1`, tooComplex},
		{"a remote reference", `{"$ref": "http://127.0.0.1:1/x"}`, `1`, ""},
		{"a file", `{"$ref": "file:///etc/passwd"}`, `1`, ""},
		{"a large repetition", `{"pattern": "(a{500}){500}"}`, `"b"`, ""},
		{"a large program", `{"pattern": "^[a-z]{900}[a-z]{900}$"}`, `"B"`, ""},
		{"a long pattern", `{"pattern": "` + strings.Repeat("x", 2000) + `"}`, `"b"`, ""},
		{"a nested repetition", `{"pattern": "^(a+)+$"}`, `"` + strings.Repeat("a", 16_000) + `b"`,
			"does not match the pattern ^(a+)+$"},
		{"a long string", `{"pattern": "^(a+)+$"}`, `"` + strings.Repeat("a", 1<<20) + `b"`, ""},
		{"many wrong elements", `{"items": {"type": "string"}}`, ones, "/0: expected string, got number"},
		{"many elements and alternatives",
			`{"items": {"oneOf": [` + strings.Repeat(`{"const": 2},`, 999) + `{"const": 1}]}}`, ones, tooComplex},
		{"many patterns", `{"anyOf": [` + patterns(2000) + `]}`, `"x"`, ""},
		{"60 levels", strings.Repeat(`{"items":`, 60) + `{}` + strings.Repeat(`}`, 60),
			strings.Repeat("[", 60) + strings.Repeat("]", 60), ""},
		{"a long list of types, often", expensiveSchema(`{"type": [` + strings.Repeat(`"null",`, 10_000) + `"string"]}`), `"x"`, tooComplex},
		{"a long list of names, often", expensiveSchema(`{"required": [` + strings.Repeat(`"a",`, 10_000) + `"a"]}`), `{"a": 1}`, tooComplex},
		{"a long reference, often", expensiveSchema(`{"$ref": "#/x` + strings.Repeat("~1", 10_000) + `"}`), `1`, tooComplex},
		{"a long constant, often", expensiveSchema(`{"const": ` + ones[:80_000] + `1]}`), ones[:80_000] + "1]", tooComplex},
		{"a wide value, often", expensiveSchema(`{"minProperties": 1}`), `{"a":1` + names(10_000) + `}`, tooComplex},
		{"a slow pattern, often", expensiveSchema(`{"pattern": "(a|aa|[a-z]{1,100}){1,3}$"}`),
			`"` + strings.Repeat("a", 16_000) + `"`, tooComplex},
		{"a slow division, often", expensiveSchema(`{"multipleOf": 5e-324}`), `1.7e308`, tooComplex},
		{"a long reported value, often", expensiveSchema(`{"anyOf": [{"const": ` + ones[:80_000] + `1]}, {}]}`), `1`, tooComplex},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			schema, value := Parse(decodeJSON(t, tt.schema)), decodeJSON(t, tt.value)
			issues := schema.Check(value) // without limits, some of these would take minutes or longer
			got := ""
			if len(issues) > 0 {
				got = issues[0].String()
			}
			if got != tt.want || len(issues) > maxIssues {
				t.Errorf("got %q and %d issues, want %q", got, len(issues), tt.want)
			}
		})
	}
}

// expensiveSchema returns a schema that visits part 2^17 times.
func expensiveSchema(part string) string {
	s := `{"$ref": "#/$defs/d17", "$defs": {"d0": ` + part
	for i := range 17 {
		s += fmt.Sprintf(`, "d%d": {"allOf": [{"$ref": "#/$defs/d%d"}, {"$ref": "#/$defs/d%d"}]}`, i+1, i, i)
	}
	return s + `}}`
}

func names(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"n%d":1`, i)
	}
	return b.String()
}

func patterns(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(`{"type": "string", "pattern": "^a{%d}%d$"}`, i%900, i))
	}
	return strings.Join(all, ",")
}

func TestCheckIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	s := Parse(decodeJSON(t, `{"items": {"pattern": "^a+$"}}`))
	value := decodeJSON(t, `["a", "b"]`)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if got := s.Check(value); len(got) != 1 {
				t.Errorf("got %v", got)
			}
		})
	}
	wg.Wait()
}

// drawSchema returns a schema of the keywords that [Schema] supports, and drawValue values that may match it.
func drawSchema(t *rapid.T, depth int) any {
	s := map[string]any{}
	maybe := func(keyword string, draw func() any) {
		if rapid.IntRange(0, 3).Draw(t, "has "+keyword) == 0 {
			s[keyword] = draw()
		}
	}
	number := func() any { return float64(rapid.IntRange(-2, 4).Draw(t, "number")) }
	count := func() any { return float64(rapid.IntRange(0, 3).Draw(t, "count")) }
	kinds := []any{"object", "array", "string", "number", "integer", "boolean", "null"}
	maybe("type", func() any { return rapid.SampledFrom(kinds).Draw(t, "type") })
	maybe("enum", func() any {
		return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) any { return drawValue(t, 1) }), 1, 3).Draw(t, "enum")
	})
	maybe("const", func() any { return drawValue(t, 1) })
	for _, k := range []string{"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"} {
		maybe(k, number)
	}
	for _, k := range []string{"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"} {
		maybe(k, count)
	}
	maybe("multipleOf", func() any { return rapid.SampledFrom([]any{0.1, 0.5, 1.0, 2.0}).Draw(t, "multipleOf") })
	maybe("pattern", func() any { return rapid.SampledFrom([]any{"^a", "b$", "^[ab]*$"}).Draw(t, "pattern") })
	maybe("uniqueItems", func() any { return rapid.Bool().Draw(t, "unique") })
	maybe("required", func() any { return []any{"a"} })
	if depth > 0 {
		sub := func() any { return drawSchema(t, depth-1) }
		several := func() any { return []any{sub(), sub()} }
		maybe("properties", func() any { return map[string]any{"a": sub(), "b": sub()} })
		maybe("additionalProperties", func() any {
			if rapid.Bool().Draw(t, "closed") {
				return false
			}
			return sub()
		})
		maybe("items", sub)
		maybe("prefixItems", several)
		maybe("allOf", several)
		maybe("anyOf", several)
		maybe("oneOf", several)
		maybe("not", sub)
		maybe("if", sub)
		maybe("then", sub)
		maybe("else", sub)
		maybe("contains", sub)
		maybe("propertyNames", sub)
	}
	return s
}

func drawValue(t *rapid.T, depth int) any {
	switch rapid.IntRange(0, 3+2*min(depth, 1)).Draw(t, "kind") {
	case 0:
		return nil
	case 1:
		return rapid.Bool().Draw(t, "bool")
	case 2:
		return rapid.SampledFrom([]float64{-1, 0, 0.3, 1, 2, 2.5}).Draw(t, "float")
	case 3:
		return rapid.SampledFrom([]string{"", "a", "ab", "äß", "bbbb"}).Draw(t, "string")
	case 4:
		list := []any{}
		for range rapid.IntRange(0, 3).Draw(t, "len") {
			list = append(list, drawValue(t, depth-1))
		}
		return list
	}
	m := map[string]any{}
	for _, name := range []string{"a", "b", "c"} {
		if rapid.Bool().Draw(t, name) {
			m[name] = drawValue(t, depth-1)
		}
	}
	return m
}

// The walk and a JSON Schema library accept the same values.
func TestCheckAgreesWithTheLibrary(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		schema, value := drawSchema(t, 2), drawValue(t, 2)
		c := jsonschema.NewCompiler()
		if err := c.AddResource("urn:test:schema", schema); err != nil {
			t.Fatal(err)
		}
		compiled, err := c.Compile("urn:test:schema")
		if err != nil {
			t.Fatal(err)
		}
		failed := compiled.Validate(value)
		issues := Parse(schema).Check(value)
		if fits := Parse(schema).fits(value); fits != (failed == nil) {
			t.Fatalf("schema %s\nvalue %s\nlibrary: %v\nfits: %v", toJSON(schema), toJSON(value), failed, fits)
		}
		if (failed == nil) != (len(issues) == 0) {
			t.Fatalf("schema %s\nvalue %s\nlibrary: %v\nhere: %v", toJSON(schema), toJSON(value), failed, issues)
		}
		for _, issue := range issues {
			if _, found := find(value, slices.Collect(pointerPath(issue.Pointer))); !found {
				t.Fatalf("%v points to nothing in %s", issue, toJSON(value))
			}
		}
	})
}

func toJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// The embedded schema accepts a valid TD, refuses an empty one, and has no pattern that is skipped because of its size.
func TestEmbeddedSchema(t *testing.T) {
	t.Parallel()
	if issues := CheckThing(decodeJSON(t, weather(t)).(map[string]any)); len(issues) > 0 {
		t.Error(issues)
	}
	if issues := CheckThing(map[string]any{}); len(issues) != 4 {
		t.Errorf("an empty object: %v", issues)
	}
	Rewrite(ofThings().full.root.doc, func(part any) any {
		if p, ok := object(part)["pattern"].(string); ok && ofThings().full.root.pattern(p) == nil {
			t.Errorf("the pattern %s is not checked", p)
		}
		return part
	})
}

// The library accepts the same mail addresses.
func TestEmailAgreesWithTheLibrary(t *testing.T) {
	t.Parallel()
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("urn:test:email", map[string]any{"format": "email"}); err != nil {
		t.Fatal(err)
	}
	email := c.MustCompile("urn:test:email")
	valid := 0
	check := func(t interface{ Errorf(string, ...any) }, s string) {
		err := email.Validate(s)
		if err == nil {
			valid++
		}
		if got := isEmail(s); got != (err == nil) {
			t.Errorf("%q: got %v, the library %v", s, got, err)
		}
	}
	long := strings.Repeat("a", 64)
	for _, s := range []string{"a@b", "a.b@c.d", ".a@b", "a.@b", "a..b@c", `"a b"@c`, `"a\b"@c`, `"@c`, "a@[127.0.0.1]", "a@[1.2.3]", "a@[01.2.3.4]",
		"a@[IPv6:::1]", "a@[IPv6:::1%x]", "a@[IPv6:1.2.3.4]", "a@[::1]", "a@-b", "a@b-", "a@b.", "a@.", "a@", "@b", "ä@b", "a@ä", "a@b@c", "a", "", "a b@c",
		long + "@b", long + "a@b", "a@" + long, "a@" + long[1:], "a@" + strings.Repeat(long[1:]+".", 3) + long[4:], "a@" + strings.Repeat(long[1:]+".", 4)} {
		check(t, s)
	}
	rapid.Check(t, func(t *rapid.T) {
		check(t, rapid.StringOfN(rapid.RuneFrom([]rune(`ab1.-@"\[]:é_ `)), 0, 12, -1).Draw(t, "s"))
	})
	if valid < 10 {
		t.Errorf("%d addresses are valid: the test has too little effect", valid)
	}
}
