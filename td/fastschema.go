package td

import (
	"math"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// A shape is a part of the compiled schema in a form that is quick to hold a value against: it says yes or no, and no reason. It
// has what the schema of a TD has; a test holds it against the keywords there.
type shape struct {
	never     bool // nothing fits
	types     typeSet
	among     []any // const or enum: scalars; nil: anything
	format    func(any) error
	all       []*shape // $ref and allOf
	any, one  []*shape
	not       *shape
	when      *shape // then or otherwise holds, by this
	then      *shape
	otherwise *shape

	required   []string
	members    map[string]*shape
	others     *shape
	names      *shape // of members
	minMembers int
	maxMembers int // 0: any number

	items, contains *shape
	minItems        int
	unique          bool

	minLength, maxLength int // in code points; 0: any
	pattern              jsonschema.Regexp

	least, above *float64
}

// A typeSet is a set of JSON types; empty, it has all.
type typeSet uint8

const (
	typeNull typeSet = 1 << iota
	typeBoolean
	typeNumber
	typeInteger
	typeString
	typeArray
	typeObject
)

var typeNames = map[string]typeSet{"null": typeNull, "boolean": typeBoolean, "number": typeNumber, "integer": typeInteger,
	"string": typeString, "array": typeArray, "object": typeObject}

// shapes makes shapes of schemas, one of each: they refer to each other in circles.
type shapes map[*jsonschema.Schema]*shape

func (all shapes) of(s *jsonschema.Schema) *shape {
	if s == nil {
		return nil
	}
	if known := all[s]; known != nil {
		return known
	}
	h := &shape{required: s.Required, pattern: s.Pattern}
	all[s] = h
	h.never = s.Bool != nil && !*s.Bool
	if s.Types != nil {
		for _, name := range s.Types.ToStrings() {
			h.types |= typeNames[name]
		}
	}
	if s.Enum != nil {
		h.among = s.Enum.Values
	}
	if s.Const != nil {
		h.among = []any{*s.Const}
	}
	if s.Format != nil {
		h.format = s.Format.Validate
	}
	all.combine(h, s)
	all.describeObject(h, s)
	h.items, h.contains, h.minItems, h.unique = all.of(s.Items2020), all.of(s.Contains), value(s.MinItems), s.UniqueItems
	h.minLength, h.maxLength = value(s.MinLength), value(s.MaxLength)
	if s.Minimum != nil {
		f, _ := s.Minimum.Float64()
		h.least = &f
	}
	if s.ExclusiveMinimum != nil {
		f, _ := s.ExclusiveMinimum.Float64()
		h.above = &f
	}
	return h
}

func (all shapes) combine(h *shape, s *jsonschema.Schema) {
	h.all, h.any, h.one = all.list(s.AllOf), all.list(s.AnyOf), all.list(s.OneOf)
	if s.Ref != nil {
		h.all = append(h.all, all.of(s.Ref))
	}
	h.not, h.when, h.then, h.otherwise = all.of(s.Not), all.of(s.If), all.of(s.Then), all.of(s.Else)
}

func (all shapes) describeObject(h *shape, s *jsonschema.Schema) {
	h.names = all.of(s.PropertyNames)
	h.minMembers, h.maxMembers = value(s.MinProperties), value(s.MaxProperties)
	if len(s.Properties) > 0 {
		h.members = make(map[string]*shape, len(s.Properties))
	}
	for name, member := range s.Properties {
		h.members[name] = all.of(member)
	}
	if others, ok := s.AdditionalProperties.(*jsonschema.Schema); ok {
		h.others = all.of(others)
	}
}

func (all shapes) list(schemas []*jsonschema.Schema) []*shape {
	var list []*shape
	for _, s := range schemas {
		list = append(list, all.of(s))
	}
	return list
}

func value(n *int) int {
	if n == nil {
		return 0
	}
	return *n
}

// fits reports whether a decoded value is valid.
func (h *shape) fits(v any) bool {
	if h == nil {
		return true
	}
	if h.never || h.types != 0 && h.types&typesOf(v) == 0 || !h.isAmong(v) || h.format != nil && h.format(v) != nil {
		return false
	}
	for _, part := range h.all {
		if !part.fits(v) {
			return false
		}
	}
	switch v := v.(type) {
	case map[string]any:
		if !h.fitsObject(v) {
			return false
		}
	case []any:
		if !h.fitsArray(v) {
			return false
		}
	case string:
		if !h.fitsText(v) {
			return false
		}
	case float64:
		if h.least != nil && v < *h.least || h.above != nil && v <= *h.above {
			return false
		}
	}
	return h.fitsAlternatives(v)
}

func typesOf(v any) typeSet {
	switch v := v.(type) {
	case nil:
		return typeNull
	case bool:
		return typeBoolean
	case float64:
		if v == math.Trunc(v) {
			return typeNumber | typeInteger
		}
		return typeNumber
	case string:
		return typeString
	case []any:
		return typeArray
	}
	return typeObject
}

func (h *shape) isAmong(v any) bool {
	if h.among == nil {
		return true
	}
	for _, one := range h.among {
		if one == v { // never of two objects or arrays: those here are scalars
			return true
		}
	}
	return false
}

func (h *shape) fitsObject(m map[string]any) bool {
	if len(m) < h.minMembers || h.maxMembers > 0 && len(m) > h.maxMembers {
		return false
	}
	for _, name := range h.required {
		if _, ok := m[name]; !ok {
			return false
		}
	}
	if h.members == nil && h.others == nil && h.names == nil {
		return true
	}
	for name, v := range m {
		if !h.names.fits(name) {
			return false
		}
		part, ok := h.members[name]
		if !ok {
			part = h.others
		}
		if !part.fits(v) {
			return false
		}
	}
	return true
}

func (h *shape) fitsArray(list []any) bool {
	if len(list) < h.minItems {
		return false
	}
	found := h.contains == nil
	for _, v := range list {
		if !h.items.fits(v) {
			return false
		}
		found = found || h.contains.fits(v)
	}
	return found && (!h.unique || isSet(list))
}

// isSet reports whether no element of list is there twice.
func isSet(list []any) bool {
	if len(list) < 2 {
		return true
	}
	seen := make(map[string]bool, len(list))
	for _, v := range list {
		seen[string(bytesOf(v))] = true
	}
	return len(seen) == len(list)
}

func (h *shape) fitsText(s string) bool {
	if h.minLength > 0 || h.maxLength > 0 {
		n := utf8.RuneCountInString(s)
		if n < h.minLength || h.maxLength > 0 && n > h.maxLength {
			return false
		}
	}
	return h.pattern == nil || h.pattern.MatchString(s)
}

func (h *shape) fitsAlternatives(v any) bool {
	if h.not != nil && h.not.fits(v) || h.any != nil && count(h.any, v) == 0 || h.one != nil && count(h.one, v) != 1 {
		return false
	}
	switch {
	case h.when == nil:
		return true
	case h.when.fits(v):
		return h.then.fits(v)
	}
	return h.otherwise.fits(v)
}

func count(parts []*shape, v any) (n int) {
	for _, part := range parts {
		if part.fits(v) {
			n++
		}
	}
	return n
}
