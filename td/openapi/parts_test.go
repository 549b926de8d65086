package openapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/lmosd/lmosd/td"
)

func TestExpansion(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text string
		ok   bool
	}{
		"plain":              {"a: [1, 2]", true},
		"an alias":           {"a: &x [1, 2]\nb: *x\nc: *x", true},
		"an alias of itself": {"a: &x [*x]", false},
		"two of each other":  {"a: &x {b: &y [*x]}\nc: *y", false},
		"too deep":           {strings.Repeat("[", maxDepth+3) + strings.Repeat("]", maxDepth+3), false},
		"deep enough":        {strings.Repeat("[", maxDepth-3) + strings.Repeat("]", maxDepth-3), true},
		"a thousand names":   {manyNames(1000), true},
		"too many names":     {manyNames(12000), false},
	} {
		var node yaml.Node
		if err := yaml.Unmarshal([]byte(c.text), &node); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if n := (&expansion{known: map[*yaml.Node]int{}}).of(&node, 0); (n <= maxValues) != c.ok {
			t.Errorf("%s: expands to %d values", name, n)
		}
	}
}

// manyNames returns a mapping of n names.
func manyNames(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "n%d: 1\n", i)
	}
	return b.String()
}

func TestLimits(t *testing.T) {
	t.Parallel()
	for in, c := range map[string]struct {
		values int
		ok     bool
	}{
		`{"a":[1,2,3],"default":{"b":[4]},"properties":{"c":{}}}`: {20, true},
		`[` + strings.Repeat("1,", 20) + `1]`:                     {20, false},
		`{"enum":[` + strings.Repeat("1,", 20) + `1]}`:            {20, false},
		`{"default":` + nested(maxDepth+1) + `}`:                  {1000, false},
		nested(maxDepth + 2):                                      {1000, false},
		nested(maxDepth - 1):                                      {1000, true},
	} {
		tree, err := decode([]byte(in))
		if err != nil {
			t.Fatal(err)
		}
		check := checker{document: &document{}, values: c.values}
		if ok := check.check(tree, 0, true); ok != c.ok || check.issue != nil || check.values >= c.values {
			t.Errorf("%.40s: within the limits: %v, %v, %d values left", in, ok, check.issue, check.values)
		}
	}
}

func TestReferences(t *testing.T) {
	t.Parallel()
	root, err := decode([]byte(`{"a":{"$ref":"#/b~1c"},"b/c":{"d":[{"e":1},{"$ref":"#/a"}]},"true":true,"loop":{"$ref":"#/loop"},"%":{},"n":1}`))
	if err != nil {
		t.Fatal(err)
	}
	for ref, want := range map[string]string{
		"#/a":                            "/b~1c",
		"#/b~1c/d/0":                     "/b~1c/d/0",
		"#/b~1c/d/1":                     "/b~1c",
		"#/%25":                          "/%25",
		"#":                              "",
		"#/true":                         "error: expected an object, got true",
		"#/b~1c/d/1/d/0":                 "/b~1c/d/1/d/0",
		"#/b~1c/d/01":                    "error: leads to nothing",
		"#/loop/x":                       "error: too many others",
		"#/" + strings.Repeat("x", 1024): "error: too long",
		"#/loop":                         "error: leads to itself",
		"#/n":                            "error: expected an object, got a number",
		"#/b~1c/d/2":                     "error: leads to nothing",
		"#/b~1c/d/-1":                    "error: leads to nothing",
		"#/n/x":                          "error: leads to nothing",
		"#/%":                            "error: not a JSON pointer",
		"":                               "error: leads out of the document",
		"other.yaml#/a":                  "error: leads out of the document",
		"https://a.test":                 "error: leads out of the document",
	} {
		d := &document{root: root.(map[string]any)}
		o := d.follow(map[string]any{"$ref": ref}, "/x", part)
		if problem, wrong := strings.CutPrefix(want, "error: "); wrong != (d.err != nil) || wrong == o.exists() ||
			wrong && !strings.Contains(d.err.Error(), problem) || !wrong && o.at != want {
			t.Errorf("%s: got %q, %v, want %q", ref, o.at, d.err, want)
		}
	}
}

// A member of another kind is a problem with its place, and what reads it goes on as without it.
func TestMembersOfAnotherKind(t *testing.T) {
	t.Parallel()
	for member, read := range map[string]func(object){
		"text":         func(o object) { o.text("a/b") },
		"true":         func(o object) { o.flag("a/b") },
		"a number":     func(o object) { o.number("a/b") },
		"a list":       func(o object) { o.elements("a/b") },
		"an object":    func(o object) { o.object("a/b") },
		"text, got a ": func(o object) { o.texts("list") },
	} {
		d := &document{root: map[string]any{"list": []any{1.0}}}
		for _, value := range []any{"x", true, 1.0, []any{}, map[string]any{}} {
			d.root["a/b"] = value
			read(d.whole())
		}
		if d.err == nil || !strings.Contains(d.err.Error(), "expected "+member) ||
			!strings.Contains(d.err.Error(), "/a~1b") && !strings.Contains(d.err.Error(), "/list/0") {
			t.Errorf("%s: got %v", member, d.err)
		}
		absent := &document{root: map[string]any{"a/b": nil}}
		if read(absent.whole()); absent.err != nil {
			t.Errorf("%s: null: got %v", member, absent.err)
		}
	}
}

// Members beside a reference apply in OpenAPI 3.1, and in path items of all versions.
func TestMembersBesideReferences(t *testing.T) {
	t.Parallel()
	const text = `
openapi: %s
info: {title: x, version: 20240115}
servers: [{url: 'http://a'}]
paths:
  /a:
    $ref: '#/components/pathItems/Base'
    post:
      operationId: do
      requestBody:
        content:
          application/json:
            schema:
              type: object
              required: [id, name]
              properties:
                id: {$ref: '#/components/schemas/Name', readOnly: true}
                name: {$ref: '#/components/schemas/Name', title: Its name, default: a, maxLength: 5}
      responses: {}
components:
  pathItems:
    Base: {get: {operationId: look, responses: {}}, x-examples: {Get: {$ref: ./get.json}}}
  schemas:
    Name: {type: string, title: A name, minLength: 1}
`
	for version, want := range map[string]string{
		"3.0.3": `{"properties":{"id":{"minLength":1,"title":"A name","type":"string"},"name":{"minLength":1,"title":"A name","type":"string"}},` +
			`"required":["id","name"],"type":"object"}`,
		"3.1.0": `{"properties":{"name":{"allOf":[{"maxLength":5}],"default":"a","minLength":1,"title":"Its name","type":"string"}},` +
			`"required":["name"],"type":"object"}`,
	} {
		thing, warnings := convert(t, fmt.Sprintf(text, version), Options{})
		if thing.Actions["look"] == nil || thing.Actions["do"] == nil || len(warnings) > 0 || thing.Version != "20240115" {
			t.Fatalf("%s: got %v, %q, version %s", version, slices.Sorted(maps.Keys(thing.Actions)), warnings, thing.Version)
		}
		if got, _ := json.Marshal(thing.Actions["do"].Input.Value()); string(got) != want {
			t.Errorf("%s: got %s, want %s", version, got, want)
		}
	}
}

// Small documents whose parts are used very often, with large parts, end early.
func TestWorkIsLimited(t *testing.T) {
	t.Parallel()
	var uses, members, parameters, items strings.Builder
	for i := range 4000 {
		fmt.Fprintf(&uses, `"p%d":{"$ref":"#/components/schemas/A"},`, i)
		fmt.Fprintf(&members, `"unknown%d":1,`, i)
		fmt.Fprintf(&parameters, `{"name":"h%d","in":"header"},`, i)
	}
	for i := range 900 {
		fmt.Fprintf(&items, `"/%d":{"$ref":"#/paths/~10"},`, i+1)
	}
	const head = `{"openapi":"3.1.0","servers":[{"url":"http://a"}],"paths":{`
	body := `"/0":{"post":{"requestBody":{"content":{"application/json":{"schema":{"type":"object","properties":{` + uses.String() +
		`"z":{}}}}}}}}},"components":{"schemas":{"A":`
	for name, c := range map[string]struct{ doc, problem string }{
		"long patterns":   {head + body + `{"pattern":"` + strings.Repeat("x", 1<<20) + `"}}}}`, ""},
		"large values":    {head + body + `{"default":[` + strings.Repeat(`"x",`, 200_000) + `1]}}}}`, ""},
		"many keywords":   {head + body + `{` + members.String() + `"type":"string"}}}}`, "used too often"},
		"many parameters": {head + items.String() + `"/0":{"parameters":[` + parameters.String() + `{}],"get":{}}}}`, "used too often"},
		"long references": {"openapi: 3.0.0\nservers: [{url: 'http://a'}]\nr: &r '#" + strings.Repeat("/", 2<<20) + "'\nl: [" +
			strings.Repeat("{$ref: *r},", 100_000) + "]\n", "is too long"},
		"deep references": {"openapi: 3.0.0\nservers: [{url: 'http://a'}]\nr: &r '#" + strings.Repeat("/a", 80) + "'\na: " + nested(79) +
			"\nl: [" + strings.Repeat("{$ref: *r},", 100_000) + "]\n", "used too often"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			raw, _, err := Convert([]byte(c.doc), Options{})
			var v *td.ValidationError
			if c.problem == "" && err != nil || c.problem != "" && (!errors.As(err, &v) || !strings.Contains(err.Error(), c.problem)) {
				t.Errorf("got %d bytes, %v", len(raw), err)
			}
		})
	}
}

func nested(n int) string { return strings.Repeat(`{"a":`, n) + "1" + strings.Repeat("}", n) }

func TestMerge(t *testing.T) {
	t.Parallel()
	type object = map[string]any
	members := func(names ...string) object {
		m := object{}
		for _, n := range names {
			m[n] = object{"type": "string"}
		}
		return m
	}
	for name, c := range map[string]struct {
		into, from, want object // nil: they are not merged
	}{
		"empty": {object{}, object{}, object{}},
		"members": {object{"properties": members("a")}, object{"properties": members("b")},
			object{"properties": members("a", "b")}},
		"a member of both": {object{"properties": members("a")}, object{"properties": members("a")}, nil},
		"required members": {object{"required": []any{"a"}}, object{"required": []any{"b", "a"}},
			object{"required": []any{"a", "b"}}},
		"titles": {object{"title": "A"}, object{"title": "B", "description": "d"},
			object{"title": "A", "description": "d"}},
		"a type":          {object{}, object{"type": "object"}, object{"type": "object"}},
		"no object":       {object{}, object{"type": "string"}, nil},
		"onto no object":  {object{"type": "array"}, object{}, nil},
		"alternatives":    {object{}, object{"oneOf": []any{}}, nil},
		"a closed object": {object{}, object{"additionalProperties": false}, nil},
	} {
		got := maps.Clone(c.into)
		if ok := merge(got, c.from); ok != (c.want != nil) {
			t.Errorf("%s: merged: %v", name, ok)
		} else if diff := cmp.Diff(c.want, got); ok && diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestClipCutsBetweenCharacters(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"": "", "abc": "abc", "abcd": "abc…", "äöü": "äöü", "äöüß": "äöü…"} {
		if got := clip(in, 3); got != want || !utf8.ValidString(got) {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

// TestExampleValuesMatchTheirSchemas checks the golden description as completed by a node: lint reports only unavoidable findings, and
// schemas accept the examples.
func TestExampleValuesMatchTheirSchemas(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile(filepath.Join("testdata", "nursery.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	thing, _ := convert(t, string(doc), Options{})
	for _, w := range thing.Warnings {
		if !strings.Contains(w.Reason, "JSON form first") { // images have none
			t.Errorf("lint: %s", w)
		}
	}
	input := thing.Actions["addPlant"].Input
	for text, fits := range map[string]bool{
		`{"name":"Quince","kind":"tree"}`:                                            true,
		`{"name":"Quince","kind":"tree","height":null,"origin":null,"tags":["a"]}`:   true,
		`{"name":"Quince","kind":"tree","care":{"how":"water","liters":2}}`:          true,
		`{"name":"Quince","kind":"tree","care":{"how":"water","liters":2,"more":1}}`: false,
		`{"name":"Quince","kind":"tree","height":0}`:                                 false,
		`{"name":"","kind":"tree"}`:                                                  false,
		`{"name":"Quince","kind":"weed"}`:                                            false,
		`{"kind":"tree"}`:                                                            false,
		`{"name":"Quince","kind":"tree","tags":["a","a"]}`:                           false,
		`{"name":"Quince","kind":"tree","prices":{"pot":1.25}}`:                      true,
		`{"name":"Quince","kind":"tree","prices":{"pot":1.255}}`:                     false,
		`{"name":"Quince","kind":"tree","origin":{"name":"Crete"}}`:                  true,
		`{"name":"Quince","kind":"tree","origin":{}}`:                                false,
	} {
		var v any
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		if issues := input.Check(v); (len(issues) == 0) != fits {
			t.Errorf("%s: got %v, want it to fit: %v", text, issues, fits)
		}
	}
	output := thing.Actions["getPlant"].Output
	if issues := output.Check(map[string]any{"id": 1.0, "name": "Quince", "kind": "tree", "new": true}); len(issues) > 0 {
		t.Errorf("a response with an undeclared member: %v", issues)
	}
}
