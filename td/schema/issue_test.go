package schema

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestPointer(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		path []any
		want string
	}{
		{nil, ""},
		{[]any{"a", 0, "b"}, "/a/0/b"},
		{[]any{"a/b", "~", ""}, "/a~1b/~0/"},
	} {
		if got := Pointer(tt.path...); got != tt.want {
			t.Errorf("%v: got %q, want %q", tt.path, got, tt.want)
		}
	}
}

// Issues are in document order: the whole before its parts, the second element before the tenth.
func TestSortIssues(t *testing.T) {
	t.Parallel()
	in := []Issue{{Pointer: "/b", Reason: "2"}, {Pointer: "/a/10", Reason: "x"}, {Pointer: "/a/2", Reason: "x"},
		{Pointer: "/a", Reason: "x"}, {Pointer: "/b", Reason: "1"}, {Pointer: "/b", Reason: "2"}, {Pointer: "", Reason: "x"},
		{Pointer: "/a/2/c", Reason: "x"}}
	want := []Issue{{Pointer: "", Reason: "x"}, {Pointer: "/a", Reason: "x"}, {Pointer: "/a/2", Reason: "x"},
		{Pointer: "/a/2/c", Reason: "x"}, {Pointer: "/a/10", Reason: "x"}, {Pointer: "/b", Reason: "1"}, {Pointer: "/b", Reason: "2"}}
	if got := SortIssues(in); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := SortIssues(nil); len(got) != 0 {
		t.Errorf("of nothing: %v", got)
	}
}

func TestPointerOrderIsTotal(t *testing.T) {
	t.Parallel()
	pointer := rapid.StringMatching(`(/(a|b|0|1|10|02|~0))*`)
	rapid.Check(t, func(t *rapid.T) {
		a, b := pointer.Draw(t, "a"), pointer.Draw(t, "b")
		if x, y := comparePointers(a, b), comparePointers(b, a); x != -y || a == b && x != 0 {
			t.Fatalf("%q and %q: %d and %d", a, b, x, y)
		}
		if strings.HasPrefix(b, a+"/") && comparePointers(a, b) >= 0 {
			t.Fatalf("%q comes after its part %q", a, b)
		}
	})
}

func TestWantOneOf(t *testing.T) {
	t.Parallel()
	var many []any
	for i := range 100 {
		many = append(many, fmt.Sprintf("value number %d", i))
	}
	for _, tt := range []struct {
		allowed []any
		want    string
	}{
		{[]any{"a"}, `must be "a"`},
		{[]any{"a", 1.0}, `must be "a" or 1`},
		{[]any{nil, true, []any{}}, `must be one of null, true, []`},
	} {
		if got := wantOneOf(tt.allowed); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
	if got := wantOneOf(many); len(got) > 500 || !strings.HasSuffix(got, " more") {
		t.Errorf("got %q", got)
	}
}

func TestCut(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		in   string
		n    int
		want string
	}{
		{"", 3, ""}, {"abc", 3, "abc"}, {"abcd", 3, "ab…"}, {"äöü", 3, "äöü"}, {"äöüß", 3, "äö…"}, {"abc", 1, "…"},
	} {
		if got := Cut(tt.in, tt.n); got != tt.want {
			t.Errorf("%q to %d: got %q, want %q", tt.in, tt.n, got, tt.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		s, n := rapid.String().Draw(t, "s"), rapid.IntRange(1, 20).Draw(t, "n")
		if got := Cut(s, n); utf8.RuneCountInString(got) > n || utf8.ValidString(s) && !utf8.ValidString(got) {
			t.Fatalf("%q to %d: got %q", s, n, got)
		}
	})
}

func TestTypeOf(t *testing.T) {
	t.Parallel()
	for want, v := range map[string]any{
		"null": nil, "boolean": true, "number": 1.0, "string": "", "array": []any{}, "object": map[string]any{}, "int": 1,
	} {
		if got := TypeOf(v); got != want {
			t.Errorf("%v: got %q, want %q", v, got, want)
		}
	}
}
