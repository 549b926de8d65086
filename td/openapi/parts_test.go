package openapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/oasdiff/yaml3"
)

func TestWork(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]int{
		``:       0,
		`1`:      1,
		`{}`:     2 + 1, // the opening brace counts as inside, the closing one as outside
		`[1]`:    2 + 2 + 1,
		`[[1]]`:  2 + 3 + 3 + 2 + 1,
		`"[[["`:  5, // text has no depth
		`["\""]`: 2*5 + 1,
	} {
		if got := work([]byte(in)); got != want {
			t.Errorf("%s: got %d, want %d", in, got, want)
		}
	}
}

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

func TestNormalizer(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`{"minimum":1,"exclusiveMinimum":true}`:                    `{"minimum":1,"exclusiveMinimum":true}`,
		`{"exclusiveMinimum":1}`:                                   `{"minimum":1,"exclusiveMinimum":true}`,
		`{"exclusiveMinimum":1,"minimum":1}`:                       `{"minimum":1,"exclusiveMinimum":true}`,
		`{"exclusiveMinimum":1,"minimum":2}`:                       `{"minimum":2}`,
		`{"exclusiveMaximum":1,"maximum":2}`:                       `{"maximum":1,"exclusiveMaximum":true}`,
		`{"properties":{"exclusiveMinimum":{"type":"number"}}}`:    `{"properties":{"exclusiveMinimum":{"type":"number"}}}`,
		`{"properties":{"default":true,"enum":false}}`:             `{"properties":{"default":{},"enum":{"not":{}}}}`,
		`{"default":{"exclusiveMinimum":1,"items":true}}`:          `{"default":{"exclusiveMinimum":1,"items":true}}`,
		`{"example":{"properties":{"a":true}}}`:                    `{"example":{"properties":{"a":true}}}`,
		`{"responses":{"default":{"exclusiveMinimum":1}}}`:         `{"responses":{"default":{"minimum":1,"exclusiveMinimum":true}}}`,
		`{"anyOf":[true,{"not":false}],"items":false}`:             `{"anyOf":[{},{"not":{"not":{}}}],"items":{"not":{}}}`,
		`{"properties":3,"items":[true],"allOf":"x","oneOf":null}`: `{"properties":3,"items":[true],"allOf":"x","oneOf":null}`,
	} {
		got, expected := decoded(t, in), decoded(t, want)
		n := normalizer{values: maxValues}
		n.schema(got, 0)
		if diff := cmp.Diff(expected, got); diff != "" {
			t.Errorf("%s: %s", in, diff)
		}
		if n.deep || n.values >= maxValues {
			t.Errorf("%s: nothing was counted", in)
		}
	}
}

// decoded returns JSON, decoded like a document.
func decoded(t *testing.T, text string) any {
	t.Helper()
	v, err := decode([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestNormalizerLimits(t *testing.T) {
	t.Parallel()
	for in, c := range map[string]struct{ many, deep bool }{
		`{"a":[1,2,3],"default":{"b":[4]},"properties":{"c":{}}}`: {false, false},
		`[` + strings.Repeat("1,", 20) + `1]`:                     {true, false},
		`{"enum":[` + strings.Repeat("1,", 20) + `1]}`:            {true, false},
		`{"default":` + nested(maxDepth+1) + `}`:                  {true, true},
		nested(maxDepth + 2):                                      {true, true},
	} {
		n := normalizer{values: 20}
		if c.deep {
			n.values = 1000
		}
		n.schema(decoded(t, in), 0)
		if (n.values < 0 || n.deep) != c.many || n.deep != c.deep {
			t.Errorf("%.40s: %d values left, too deep: %v", in, n.values, n.deep)
		}
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
