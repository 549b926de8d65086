package td

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/internal/jsonedit"
)

func TestParts(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, in string
		want     []string
	}{
		{"an empty array", `[ ]`, nil},
		{"an empty object", `{}`, nil},
		{"scalars", `[1,-2e5 , true,null ,"a,]\"}"]`, []string{"1", "-2e5", "true", "null", `"a,]\"}"`}},
		{"nested", `[[1,[2]], {"a":[3]}]`, []string{"[1,[2]]", `{"a":[3]}`}},
		{"members", ` {"a" : 1 , "b\"}":{"c":"]"}}`, []string{`"a" : 1`, `"b\"}":{"c":"]"}`}},
		{"a backslash at the end", `["\\","x"]`, []string{`"\\"`, `"x"`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := []byte(tt.in)
			var got []string
			for _, s := range parts(b, jsonedit.SkipSpace(b, 0)) {
				got = append(got, tt.in[s.from:s.to])
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAddMember(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`{}`:                   `{"x": 1}`,
		`{ }`:                  `{"x": 1 }`,
		`{"a":1}`:              `{"a":1,"x": 1}`,
		`{"a":1, "b":2}`:       `{"a":1, "b":2, "x": 1}`,
		"{\n  \"a\": 1\n}\n":   "{\n  \"a\": 1,\n  \"x\": 1\n}\n",
		" {\n\t\"a\": [{}]\n}": " {\n\t\"a\": [{}],\n\t\"x\": 1\n}",
	} {
		if got := string(addMember([]byte(in), "x", []byte("1"))); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

// An added member changes no other byte of any document.
func TestAddMemberKeepsTheRest(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		doc := map[string]any{}
		for _, name := range rapid.SliceOf(rapid.String()).Draw(t, "names") {
			if name != "x" {
				doc[name] = rapid.OneOf(rapid.String().AsAny(), rapid.SliceOf(rapid.String()).AsAny(),
					rapid.MapOf(rapid.String(), rapid.SliceOf(rapid.Bool())).AsAny(),
					rapid.SampledFrom([]any{nil, true, -0.5, "", "]\"}\\", []any{}, []any{"a,", []any{1.0}},
						map[string]any{}, map[string]any{"a": map[string]any{"x": nil}, "{": []any{false}}})).Draw(t, "value")
			}
		}
		raw, _ := json.Marshal(doc) // strings, lists and objects of them
		if rapid.Bool().Draw(t, "indented") {
			raw, _ = json.MarshalIndent(doc, rapid.SampledFrom([]string{"", " "}).Draw(t, "prefix"), "\t")
		}
		before, err := jcs.Object(raw, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		out := addMember(raw, "x", []byte(`"new"`))
		after, err := jcs.Object(out, 1<<20)
		if err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		if after["x"] != "new" {
			t.Fatalf("%s has no new member", out)
		}
		delete(after, "x")
		if diff := cmp.Diff(before, after); diff != "" {
			t.Fatal(diff)
		}
	})
}
