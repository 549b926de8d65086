package schema

import (
	"maps"
	"slices"
	"strings"
)

// A schemaForm is the form in which a keyword holds schemas.
type schemaForm uint8

const (
	one    schemaForm = iota + 1 // a schema
	list                         // an array of schemas
	either                       // a schema, or an array of schemas
	named                        // an object with schemas as members
)

// schemaForms are the keywords that hold schemas (JSON Schema 2020-12 §10.2 and §10.3, draft 7 §6.4, TD 1.1 §5.3.2).
var schemaForms = map[string]schemaForm{
	"additionalProperties": one, "additionalItems": one, "not": one, "if": one, "then": one, "else": one, "contains": one,
	"propertyNames": one, "unevaluatedItems": one, "unevaluatedProperties": one,
	"items": either,
	"allOf": list, "anyOf": list, "oneOf": list, "prefixItems": list,
	"properties": named, "patternProperties": named, "$defs": named, "definitions": named, "dependentSchemas": named,
}

// Rewrite returns a copy of the schema v in which edit has replaced each part, the inner ones first. edit may change the object that it
// receives. Values that are not schemas, such as constants, are shared with v.
func Rewrite(v any, edit func(part any) any) any {
	m, ok := v.(map[string]any)
	if !ok {
		return edit(v)
	}
	out := make(map[string]any, len(m))
	for keyword, value := range m {
		all, isList := value.([]any)
		byName := object(value)
		switch form := schemaForms[keyword]; {
		case form == one, form == either && !isList:
			value = Rewrite(value, edit)
		case (form == list || form == either) && isList:
			parts := make([]any, len(all))
			for i, part := range all {
				parts[i] = Rewrite(part, edit)
			}
			value = parts
		case form == named && byName != nil:
			parts := make(map[string]any, len(byName))
			for name, part := range byName {
				parts[name] = Rewrite(part, edit)
			}
			value = parts
		}
		out[keyword] = value
	}
	return edit(out)
}

// Rebase adapts the references of a schema part to a schema that becomes a part of another one: "#/x" becomes pointer + "/x". It
// changes part.
func Rebase(part any, pointer string) any {
	m := object(part)
	if ref, ok := m["$ref"].(string); ok && IsLocal(ref) {
		m["$ref"] = pointer + ref[1:]
	}
	return part
}

// IsLocal reports whether a reference leads to the schema itself or to a part of it.
func IsLocal(ref string) bool { return ref == "#" || strings.HasPrefix(ref, "#/") }

// ValueMember holds an input that is not an object, next to URI variables.
const ValueMember = "value"

// WithVariables returns the schema of an object that has the members of input and one for each of variables. An input that is not an object
// becomes the member "value". A member of input takes precedence over a variable of the same name. The members in required are required in
// addition to those of input.
func WithVariables(input *Schema, variables map[string]*Schema, required []string) *Schema {
	doc, members, names := map[string]any{}, map[string]any{}, []any{}
	inMember := func(name string, s *Schema) {
		at := "#" + Pointer("properties", name)
		members[name] = Rewrite(s.Value(), func(part any) any { return Rebase(part, at) })
	}
	switch t := input.Type(); {
	case t == "object":
		for keyword, v := range input.object() {
			if !input.restrictsMembers(keyword, 0) {
				doc[keyword] = v
			}
		}
		maps.Copy(members, object(doc["properties"]))
		names = slices.Clone(array(doc["required"]))
	case t != "":
		inMember(ValueMember, input)
		names = append(names, ValueMember)
	}
	for name, s := range variables {
		if _, both := members[name]; !both {
			inMember(name, s)
		}
	}
	for _, name := range required {
		if !slices.Contains(names, any(name)) {
			names = append(names, name)
		}
	}
	doc["type"], doc["properties"] = "object", members
	if delete(doc, "required"); len(names) > 0 {
		doc["required"] = names
	}
	return Parse(doc)
}

// maxBranches limits the depth of nested alternatives in restrictsMembers.
const maxBranches = 8

// restrictsMembers reports whether a keyword of s, itself or in a part, restricts all members of an object together, so that additional URI
// variables would violate it. The host later checks the input without the variables.
func (s *Schema) restrictsMembers(keyword string, depth int) bool {
	var parts []any
	switch v := s.Keyword(keyword); keyword {
	case "const", "enum", "minProperties", "maxProperties", "propertyNames", "not", "if":
		return true
	case "allOf", "anyOf", "oneOf":
		parts = array(v)
	}
	return depth == maxBranches && len(parts) > 0 || slices.ContainsFunc(parts, func(v any) bool {
		part := s.part(v)
		for name := range part.object() {
			if name == "additionalProperties" || part.restrictsMembers(name, depth+1) {
				return true
			}
		}
		return false
	})
}
