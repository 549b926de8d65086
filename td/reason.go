package td

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxIssues is how many issues are told at once; nobody reads more.
const maxIssues = 32

// at returns a JSON pointer (RFC 6901) of names and indexes.
func at(path ...any) string {
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

// tidy sorts issues by place, drops what is said twice, and keeps [maxIssues]; the last then tells how many are left
// out.
func tidy(all []Issue) []Issue {
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

// comparePointers orders by place: step by step, and numbers as numbers.
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

// wantType says that v has another type than wanted, of which there are seven.
func wantType(want []string, v any) string {
	return "expected " + strings.Join(want[:min(len(want), 7)], " or ") + ", got " + kindOf(v)
}

func kindOf(v any) string {
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

func missing(name string) string { return show(name) + " is missing" }

// wantOneOf lists the allowed values, at most a screen line of them.
func wantOneOf(allowed []any) string {
	var b strings.Builder
	for i, v := range allowed {
		s := show(v)
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

// show writes a value for a message: as JSON, cut to a length that fits a line. It looks at no more of the value than that.
func show(v any) string {
	switch v := v.(type) {
	case string:
		return strconv.Quote(cut(v, 60))
	case []any:
		return cut(string(bytesOf(clipped(v, 0))), 60)
	case map[string]any:
		return cut(string(bytesOf(clipped(v, 0))), 60)
	}
	return string(bytesOf(v))
}

// clipped returns the part of v that [show] has room for. What is nested deep, and an object whose many members would have
// to be sorted, is empty in it.
func clipped(v any, depth int) any {
	const most = 30 // of two characters each, at least
	switch v := v.(type) {
	case string:
		return cut(v, 64)
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
			few[cut(name, 64)] = clipped(e, depth+1)
		}
		return few
	}
	return v
}

// cut returns s with at most n code points, the last an ellipsis if something is missing.
func cut(s string, n int) string {
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
