package td

import (
	"fmt"
	"strings"
	"testing"
)

// maxIssues is the maximum number of issues of a [ValidationError].
const maxIssues = 32

func TestIssueText(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err  ValidationError
		want string
	}{
		{ValidationError{}, "invalid"},
		{ValidationError{Issues: []Issue{{Pointer: "", Reason: "is empty"}}}, "is empty"},
		{ValidationError{Issues: []Issue{{Pointer: "/a", Reason: "is empty"}}}, "/a: is empty"},
		{ValidationError{Issues: []Issue{{Pointer: "/a", Reason: "x"}, {Pointer: "/b", Reason: "y"}, {Pointer: "/c", Reason: "z"}}},
			"/a: x (and 2 more)"},
	} {
		if got := tt.err.Error(); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

// An expensive document is parsed in bounded time and memory: its size limits the number of issues and forms.
func TestHostileTDsAreCheap(t *testing.T) {
	t.Parallel()
	fill := func(before, unit, after string) string {
		var b strings.Builder
		for i := 0; b.Len() < MaxTD-2800-len(before)-len(after); i++ {
			b.WriteString(strings.ReplaceAll(unit, "#", fmt.Sprint(i)) + ",")
		}
		return before + strings.TrimSuffix(b.String(), ",") + after
	}
	base := `"base": "http://x/` + strings.Repeat("{b}", 16) + strings.Repeat("b", 1900) + `/"`
	tests := []struct {
		name, raw string
		issues    int
	}{
		{"invalid forms", tdWith(fill(`"actions": {"a": {"forms": [`, `#`, `]}}`)), maxIssues},
		{"invalid titles", tdWith(fill(`"titles": {`, `"#": 1`, `}`)), maxIssues},
		{"a long base for many forms", tdWith(base, `"uriVariables": {"b": {}}`,
			fill(`"properties": {`, `"#": {"forms": [{"href": "a"}]}`, `}`)), 1},
		{"many slow numbers", tdWith(fill(`"x": [`, `5e-324`, `]`)), 1},
		{"many schemes", tdWith(fill(`"actions": {"a": {"forms": [`, `{"href": "x#:"}`, `]}}`)), 0},
		{"many variables", tdWith(fill(`"actions": {"a": {"forms": [`, `{"href": "{a}{b}{c}{d}{e}{f}#"}`, `]}}`)), maxIssues},
		{"many uriVariables", tdWith(fill(`"uriVariables": {`, `"#": {}`, `}`)), 1},
		{"many contexts", strings.Replace(tdWith(), c11, fill("["+c11+",", `"#"`, "]"), 1), 0},
		{"many wrong contexts", strings.Replace(tdWith(), c11, fill("[", `"#"`, "]"), 1), 1},
		{"many definitions", strings.Replace(tdWith(), `"n": {`,
			fill(``, `"#": {"scheme": "apikey", "in": "uri", "name": "#"}`, `, "n": {`), 1), 0},
		{"many branches", tdWith(fill(`"properties": {"p": {"forms": [{"href": "a"}], "oneOf": [`, `{"type": "x"}`, `]}}`)), maxIssues},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if len(tt.raw) > MaxTD || len(tt.raw) < MaxTD/2 {
				t.Fatalf("%d bytes", len(tt.raw))
			}
			thing, err := Parse([]byte(tt.raw))
			if got := len(issuesOf(err)); got != tt.issues {
				t.Errorf("got %d issues, want %d: %v", got, tt.issues, err)
			}
			if err == nil && len(thing.Warnings) > maxIssues {
				t.Errorf("%d warnings", len(thing.Warnings))
			}
		})
	}
}
