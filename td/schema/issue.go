package schema

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/lmosd/lmosd/internal/jcs"
)

// An Issue is one problem of a value: a position and a text.
type Issue struct {
	Pointer string `json:"field"` // JSON pointer (RFC 6901)
	Reason  string `json:"description"`
	// Rule names the broken rule if it is stricter than the official JSON Schema of TD 1.1: an assertion of the Recommendation
	// (td-…, sec-…), a section of a standard, or a limit of lmosd. It is empty for a violation of the schema.
	Rule string `json:"rule,omitempty"`
}

// String returns the issue on one line.
func (i Issue) String() string {
	if i.Pointer == "" {
		return i.Reason
	}
	return i.Pointer + ": " + i.Reason
}

// maxIssues is the maximum number of issues of one check.
const maxIssues = 32

// Pointer returns a JSON pointer (RFC 6901) of names and indexes.
func Pointer(path ...any) string {
	var b strings.Builder
	for _, p := range path {
		b.WriteByte('/')
		switch p := p.(type) {
		case string:
			b.WriteString(pointerEscape(p))
		case int:
			b.WriteString(strconv.Itoa(p))
		}
	}
	return b.String()
}

func pointerEscape(name string) string {
	if !strings.ContainsAny(name, "~/") {
		return name
	}
	return strings.ReplaceAll(strings.ReplaceAll(name, "~", "~0"), "/", "~1")
}

func unescape(fragment string) string {
	if plain, err := url.PathUnescape(fragment); err == nil {
		return plain
	}
	return fragment
}

// firstName returns the first name of a JSON pointer that is not empty, and the pointer without it.
func firstName(pointer string) (name, rest string) {
	name = pointer[1:]
	if i := strings.IndexByte(name, '/'); i >= 0 {
		name, rest = name[:i], name[i:]
	}
	if strings.Contains(name, "~") {
		name = strings.ReplaceAll(strings.ReplaceAll(name, "~1", "/"), "~0", "~")
	}
	return name, rest
}

// SortIssues sorts issues by pointer, removes duplicates, and keeps at most 32; the last one then has the number of the others.
func SortIssues(all []Issue) []Issue {
	slices.SortStableFunc(all, func(a, b Issue) int {
		return cmp.Or(comparePointers(a.Pointer, b.Pointer), strings.Compare(a.Reason, b.Reason))
	})
	all = slices.Compact(all)
	if len(all) <= maxIssues {
		return all
	}
	kept := all[:maxIssues:maxIssues]
	kept[maxIssues-1] = Issue{Reason: fmt.Sprintf("and %d more", len(all)-maxIssues+1)}
	return kept
}

// comparePointers orders pointers name by name, and indexes as numbers.
func comparePointers(a, b string) int {
	for a != "" && b != "" {
		var x, y string
		x, a, _ = strings.Cut(a, "/")
		y, b, _ = strings.Cut(b, "/")
		m, errX := strconv.Atoi(x)
		n, errY := strconv.Atoi(y)
		if x != y && errX == nil && errY == nil {
			return cmp.Compare(m, n)
		}
		if c := strings.Compare(x, y); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(a), len(b))
}

// WrongType returns the issue of the value v, which has none of the types want.
func WrongType(pointer string, v any, want ...string) Issue {
	return Issue{Pointer: pointer, Reason: wantType(want, v)}
}

func wantType(want []string, v any) string {
	return "expected " + strings.Join(want[:min(len(want), 7)], " or ") + ", got " + TypeOf(v)
}

// TypeOf returns the JSON type of a decoded value.
func TypeOf(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case float64:
		return "number"
	case string:
		return "string"
	case []any:
		return "array"
	case map[string]any:
		return "object"
	}
	return fmt.Sprintf("%T", v)
}

func missing(name string) string { return Show(name) + " is missing" }

// wantOneOf lists the allowed values, cut to about 400 bytes.
func wantOneOf(allowed []any) string {
	var b strings.Builder
	for i, v := range allowed {
		s := Show(v)
		switch {
		case i == 0:
		case i > 0 && b.Len()+len(s) > 400:
			return fmt.Sprintf("must be one of %s, and %d more", b.String(), len(allowed)-i)
		case i == len(allowed)-1 && i == 1:
			b.WriteString(" or ")
		default:
			b.WriteString(", ")
		}
		b.WriteString(s)
	}
	if len(allowed) > 2 {
		return "must be one of " + b.String()
	}
	return "must be " + b.String()
}

// Show returns a value as JSON for a message, cut to 60 characters. It does not read the rest of the value.
func Show(v any) string {
	switch v := v.(type) {
	case string:
		return strconv.Quote(Cut(v, 60))
	case []any:
		return Cut(string(encode(clipped(v, 0))), 60)
	case map[string]any:
		return Cut(string(encode(clipped(v, 0))), 60)
	}
	return string(encode(v))
}

// clipped returns the part of v that fits into the text of [Show]. Deeply nested values, and objects with many members, are empty in it:
// the members would have to be sorted.
func clipped(v any, depth int) any {
	const most = 30 // of two characters each, at least
	switch v := v.(type) {
	case string:
		return Cut(v, 64)
	case []any:
		if depth == 2 {
			return []any{}
		}
		few := make([]any, 0, min(len(v), most))
		for _, e := range v[:min(len(v), most)] {
			few = append(few, clipped(e, depth+1))
		}
		return few
	case map[string]any:
		few := map[string]any{}
		if depth == 2 || len(v) > most {
			return few
		}
		for name, e := range v {
			few[Cut(name, 64)] = clipped(e, depth+1)
		}
		return few
	}
	return v
}

// Cut returns s with at most n code points. The last one is an ellipsis if s is longer.
func Cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	count := 0
	last := 0 // where the n-th code point begins
	for i := range s {
		if count++; count == n {
			last = i
		} else if count > n {
			return s[:last] + "…"
		}
	}
	return s
}

// encode returns a decoded value as canonical JSON.
func encode(v any) []byte {
	b, err := jcs.Append(nil, v)
	if err != nil { // v was decoded from JSON
		return nil
	}
	return b
}
