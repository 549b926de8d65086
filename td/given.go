package td

import (
	"maps"
	"slices"
	"strings"
)

// valueMember holds an input that is no object beside the variables of an address (interact/rest, package comment).
const valueMember = "value"

// Given returns the schema of what a consumer gives when it asks for a, whose input has the schema input (nil: none): the variables
// of the address are members beside those of the input; where that is no object, it is the member "value". Without variables it is
// input itself. What an address cannot do without, and what "lmos:required" says of a variable, is required.
func (a *Affordance) Given(input *Schema) *Schema {
	if len(a.URIVariables) == 0 {
		return input
	}
	root, members, required := map[string]any{}, map[string]any{}, []any{}
	switch t := input.Type(); {
	case t == "object":
		maps.Copy(root, input.object())
		for name := range root {
			if input.closes(name, 0) {
				delete(root, name)
			}
		}
		maps.Copy(members, object(root["properties"]))
		required = slices.Clone(array(root["required"]))
	case t != "":
		members[valueMember], required = rebased(input.Value(), "#"+at("properties", valueMember)), append(required, valueMember)
	}
	for name, v := range a.URIVariables {
		if _, both := members[name]; !both {
			members[name] = rebased(v.Value(), "#"+at("properties", name))
		}
	}
	for _, name := range a.RequiredVariables() {
		if !slices.Contains(required, any(name)) {
			required = append(required, name)
		}
	}
	root["type"], root["properties"] = "object", members
	if delete(root, "required"); len(required) > 0 {
		root["required"] = required
	}
	return asSchema(root)
}

// maxBranches bounds how deep alternatives of alternatives are looked into.
const maxBranches = 8

// closes reports whether a keyword of s speaks of all members of an object together, itself or in a part, so that variables beside
// them would break it. Whether the input keeps it is then checked without them, by the host.
func (s *Schema) closes(keyword string, depth int) bool {
	var parts []any
	switch v := s.object()[keyword]; keyword {
	case "const", "enum", "minProperties", "maxProperties", "not":
		return true
	case "allOf", "anyOf", "oneOf":
		parts = array(v)
	}
	return depth == maxBranches && len(parts) > 0 || slices.ContainsFunc(parts, func(v any) bool {
		part := s.part(v)
		for name := range part.object() {
			if name == "additionalProperties" || part.closes(name, depth+1) {
				return true
			}
		}
		return false
	})
}

// Takes returns the schema of what a consumer gives when it invokes a; see [Affordance.Given].
func (a *Action) Takes() *Schema { return a.Given(a.Input) }

// RequiredVariables returns the names of the variables that each address of a needs, sorted: those outside of the query and the
// fragment in each of its forms, and those whose schema has "lmos:required", which is lmosd's own: TD 1.1 has no term for it.
func (a *Affordance) RequiredVariables() (names []string) {
	for _, name := range sortedKeys(a.URIVariables) {
		needed := len(a.Forms) > 0 && !slices.ContainsFunc(a.Forms, func(f Form) bool { return !needs(f.Href, name) })
		if needed || flag(a.URIVariables[name].object()["lmos:required"]) {
			names = append(names, name)
		}
	}
	return names
}

// needs reports whether a URI template has a hole without the variable name (RFC 6570 §3.2).
func needs(href, name string) bool {
	for {
		_, rest, ok := strings.Cut(href, "{")
		if !ok {
			return false
		}
		expression, after, _ := strings.Cut(rest, "}")
		if !strings.HasPrefix(expression, "?") && !strings.HasPrefix(expression, "&") && !strings.HasPrefix(expression, "#") {
			if names, _ := templateVars("{" + expression + "}"); slices.Contains(names, name) {
				return true
			}
		}
		href = after
	}
}

// rebased returns a schema whose references are to itself, as a part of another at the pointer root.
func rebased(v any, root string) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for name, part := range v {
			switch ref, _ := part.(string); {
			case name == "const" || name == "enum" || name == "default":
				out[name] = part
			case name == "$ref" && (ref == "#" || strings.HasPrefix(ref, "#/")):
				out[name] = root + ref[1:]
			default:
				out[name] = rebased(part, root)
			}
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, part := range v {
			out[i] = rebased(part, root)
		}
		return out
	}
	return v
}

// Elements returns the schema of the elements of a list, where s takes one: it is an array, or one of its alternatives is. Else nil.
// The variables of an address are single values in TD 1.1 (§5.3.1.1, uriVariables); one that may be a list, too, has both as
// alternatives, and is several values of its name in the address (RFC 6570 §3.2.1).
func (s *Schema) Elements() *Schema {
	m := s.object()
	if text(m["type"]) == "array" {
		if items := s.Items(); items != nil {
			return items
		}
		return &Schema{node: true, root: s.root}
	}
	for _, of := range []string{"oneOf", "anyOf"} {
		for _, branch := range array(m[of]) {
			if b := s.part(branch); text(b.object()["type"]) == "array" {
				return b.Elements()
			}
		}
	}
	return nil
}
