package ucan

import (
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/lmosd/lmosd/internal/jcs"
)

// A selector is the steps to a value of the arguments.
type selector []step

// A step selects a key of a map, an element or a slice of a list or of bytes, or the values of a map.
type step struct {
	kind     stepKind
	key      string
	from, to *int64 // of an element: from. Of a slice: nil is the beginning or the end
	optional bool   // a failure is null
}

type stepKind int

const (
	selectKey stepKind = iota
	selectElement
	selectSlice
	selectValues
)

// parseSelector reads a selector, for example `.items[0]["unit price"]?`. It begins with a dot or ends with one.
func parseSelector(text string) (selector, error) {
	if text == "." {
		return nil, nil
	}
	rest, dotted := strings.CutPrefix(strings.TrimSuffix(text, "."), ".")
	if rest == "" || !dotted && len(rest) == len(text) {
		return nil, badSelector(text)
	}
	var s selector
	for first := true; rest != ""; first = false {
		if !first && rest[0] == '.' {
			rest = rest[1:]
		} else if !first && rest[0] != '[' {
			return nil, badSelector(text)
		}
		next, left, ok := parseStep(rest)
		if !ok {
			return nil, badSelector(text)
		}
		rest = strings.TrimLeft(left, "?")
		next.optional = len(rest) < len(left)
		s = append(s, next)
	}
	return s, nil
}

func badSelector(text string) error {
	return failed(InvalidClaim, CID{}, "%.80q is not a selector like .amount or .items[0]", text)
}

// parseStep reads a name, or brackets.
func parseStep(text string) (s step, rest string, ok bool) {
	if !strings.HasPrefix(text, "[") {
		n := strings.IndexFunc(text, func(r rune) bool { return r != '_' && r != '-' && !unicode.IsLetter(r) && !unicode.IsDigit(r) })
		if n < 0 {
			n = len(text)
		}
		first, _ := utf8.DecodeRuneInString(text)
		return step{kind: selectKey, key: text[:n]}, text[n:], n > 0 && (first == '_' || unicode.IsLetter(first))
	}
	if strings.HasPrefix(text, `["`) {
		n := quoted(text[1:])
		if n < 0 || !strings.HasPrefix(text[1+n:], "]") {
			return step{}, "", false
		}
		key, err := jcs.Decode([]byte(text[1:1+n]), n)
		if err != nil {
			return step{}, "", false
		}
		return step{kind: selectKey, key: key.(string)}, text[n+2:], true
	}
	inner, rest, closed := strings.Cut(text[1:], "]")
	if !closed {
		return step{}, "", false
	}
	if inner == "" {
		return step{kind: selectValues}, rest, true
	}
	from, to, slice := strings.Cut(inner, ":")
	s.kind = selectElement
	s.from, ok = parseIndex(from)
	if slice {
		s.kind = selectSlice
		var toOK bool
		s.to, toOK = parseIndex(to)
		ok = ok && toOK
	}
	return s, rest, ok && (s.from != nil || s.to != nil)
}

// parseIndex returns nil for no digits. Indices have at most 53 bits.
func parseIndex(digits string) (*int64, bool) {
	if digits == "" {
		return nil, true
	}
	n, err := strconv.ParseInt(digits, 10, 54)
	return &n, err == nil && strconv.FormatInt(n, 10) == digits
}

// quoted returns the length of the JSON string that text begins with, or -1.
func quoted(text string) int {
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return -1
}

// find returns the selected part of v, or false if it cannot be resolved. A missing key of a map gives null. It adds its steps to cost.
func (s selector) find(v any, cost *int) (any, bool) {
	for _, step := range s {
		*cost++
		if m, ok := v.(map[string]any); ok && step.kind == selectValues {
			*cost += len(m)
		}
		next, ok := step.find(v)
		if !ok && !step.optional {
			return nil, false
		}
		v = next
	}
	return v, true
}

func (s step) find(v any) (any, bool) {
	switch v := v.(type) {
	case map[string]any:
		switch s.kind {
		case selectKey:
			return v[s.key], true
		case selectValues:
			return values(v), true
		}
	case []any:
		switch s.kind {
		case selectValues:
			return v, true
		case selectElement:
			if i, ok := index(*s.from, len(v)); ok {
				return v[i], true
			}
		case selectSlice:
			from, to := bounds(s.from, s.to, len(v))
			return v[from:to], true
		}
	case []byte:
		switch s.kind {
		case selectElement:
			if i, ok := index(*s.from, len(v)); ok {
				return int64(v[i]), true
			}
		case selectSlice:
			from, to := bounds(s.from, s.to, len(v))
			return v[from:to], true
		}
	}
	return nil, false
}

// values returns the values of a map in the order of its keys in DAG-CBOR.
func values(m map[string]any) []any {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b string) int {
		if len(a) != len(b) {
			return len(a) - len(b)
		}
		return strings.Compare(a, b)
	})
	list := make([]any, len(keys))
	for i, k := range keys {
		list[i] = m[k]
	}
	return list
}

// index converts an index, which counts from the end if it is negative.
func index(i int64, n int) (int, bool) {
	if i < 0 {
		i += int64(n)
	}
	return int(i), 0 <= i && i < int64(n)
}

// bounds converts the bounds of a slice to a range of a list of n elements, which may be empty.
func bounds(from, to *int64, n int) (int, int) {
	at := func(bound *int64, absent int) int {
		if bound == nil {
			return absent
		}
		i := *bound
		if i < 0 {
			i += int64(n)
		}
		return int(min(max(i, 0), int64(n)))
	}
	low, high := at(from, 0), at(to, n)
	return low, max(low, high)
}
