package openapi

import (
	"maps"
	"math"
	"slices"
	"strings"
)

// A walk is the position of the converter in a schema.
type walk struct {
	op    *operation
	input bool     // of an action; else its output
	exact bool     // inside of oneOf: a branch that accepts more values could be a second match
	above []string // for each schema around this one, the reference to it; empty without one
}

// schema returns a schema of TD 1.1 §5.3.2, with the additional keywords of JSON Schema that td.Schema supports. A part that cannot be
// converted becomes {}, which accepts everything.
func (c *converter) schema(s object, w walk) map[string]any {
	c.nodes--
	if !s.exists() || c.nodes < 0 {
		return map[string]any{}
	}
	if s.ref != "" && slices.Contains(w.above, s.ref) {
		c.warn("schemas", "%s contains itself: its second occurrence accepts all values",
			clip(strings.TrimPrefix(s.ref, "#/components/schemas/"), 100))
		return map[string]any{}
	}
	w.above = append(slices.Clip(w.above), s.ref)
	out := c.keywords(s, w)
	if types := typesOf(s); s.flag("nullable") || len(types) > 1 && slices.Contains(types, "null") {
		out = orNull(out)
	}
	return out
}

// orNull also allows null (OpenAPI 3.0.4 §4.7.24.2, nullable), unless it is allowed already, because exactly one of oneOf must match.
func orNull(s map[string]any) map[string]any {
	if admitsNull(s) {
		return s
	}
	if list, ok := s["oneOf"].([]any); ok && s["type"] == nil && s["enum"] == nil && s["const"] == nil && s["allOf"] == nil &&
		s["anyOf"] == nil && s["not"] == nil {
		s["oneOf"] = append(slices.Clip(list), map[string]any{"type": "null"})
		return s
	}
	outer := map[string]any{"oneOf": []any{s, map[string]any{"type": "null"}}}
	for _, name := range []string{"title", "description", "default"} { // they apply to both
		if v, ok := s[name]; ok {
			outer[name] = v
			delete(s, name)
		}
	}
	return outer
}

// admitsNull reports whether a schema of this package accepts null.
func admitsNull(s map[string]any) bool {
	if t, ok := s["type"]; ok && t != "null" {
		return false
	}
	if list, ok := s["enum"].([]any); ok && !slices.Contains(list, any(nil)) {
		return false
	}
	if v, ok := s["const"]; ok && v != nil {
		return false
	}
	fits := func(branch any) bool { m, ok := branch.(map[string]any); return ok && admitsNull(m) }
	for name, ok := range map[string]func([]any) bool{
		"oneOf": func(l []any) bool { return slices.ContainsFunc(l, fits) },
		"anyOf": func(l []any) bool { return slices.ContainsFunc(l, fits) },
		"allOf": func(l []any) bool { return !slices.ContainsFunc(l, func(b any) bool { return !fits(b) }) },
	} {
		if list, is := s[name].([]any); is && !ok(list) {
			return false
		}
	}
	return s["not"] == nil
}

// keywords returns the converted s without null.
func (c *converter) keywords(s object, w walk) map[string]any {
	out := map[string]any{}
	c.types(s, out)
	if c.texts {
		setText(out, "title", clip(s.text("title"), 100))
		setText(out, "description", clip(s.text("description"), 300))
	}
	if len(w.above) > c.depth {
		return out
	}
	c.values(s, out)
	c.bounds(s, out)
	c.parts(s, w, out)
	c.branches(s, w, out)
	c.unsupported(s, w)
	return out
}

func setText(out map[string]any, name, text string) {
	if text != "" {
		out[name] = text
	}
}

// typesOf returns the types of a schema: one or, since OpenAPI 3.1, several.
func typesOf(s object) []string {
	if _, several := s.members["type"].([]any); several {
		types := s.texts("type")
		if slices.Contains(s.elements("type"), nil) { // null without quotes in YAML
			types = append(types, "null")
		}
		return types
	}
	if one := s.text("type"); one != "" {
		return []string{one}
	}
	return nil
}

// jsonTypes are the types of JSON Schema, without null.
var jsonTypes = []string{"object", "array", "string", "number", "integer", "boolean"}

// types adds the type. Several types become a oneOf, because a schema of TD 1.1 has one type.
func (c *converter) types(s object, out map[string]any) {
	var types []string
	all := typesOf(s)
	for _, t := range all {
		if slices.Contains(jsonTypes, t) && !slices.Contains(types, t) {
			types = append(types, t)
		} else if t != "null" {
			c.warn("schemas", "the type %q is not a JSON type", clip(t, 40))
		}
	}
	if slices.Contains(types, "number") { // otherwise an integer would match twice
		types = slices.DeleteFunc(types, func(t string) bool { return t == "integer" })
	}
	switch {
	case len(types) == 1:
		out["type"] = types[0]
	case len(types) > 1 && len(s.elements("oneOf")) == 0 && len(s.elements("enum")) == 0:
		var branches []any
		for _, t := range types {
			branches = append(branches, map[string]any{"type": t})
		}
		out["oneOf"] = branches
	case len(all) == 1 && all[0] == "null":
		out["type"] = "null"
	}
}

// values adds enum, const and default.
func (c *converter) values(s object, out map[string]any) {
	const deepest = 8 // a value is inside a schema, and one limit applies to both
	if list := s.elements("enum"); len(list) > 0 && c.affords(list) && depthOf(list) <= deepest {
		if _, typed := out["type"]; typed { // nullable covers null
			list = slices.DeleteFunc(slices.Clone(list), func(v any) bool { return v == nil })
		}
		switch {
		case len(list) == 1 && list[0] == nil:
			out["const"] = nil
		case len(list) > 0:
			out["enum"] = list
		}
	}
	if v, ok := s.members["const"]; ok && c.affords(v) && depthOf(v) <= deepest {
		out["const"] = v
	}
	if v := s.members["default"]; v != nil && c.affords(v) && depthOf(v) <= deepest {
		out["default"] = v
	}
}

// affords subtracts a value from the schemas that remain. It reports false if the value is too large for the description; then it is not read to
// its end.
func (c *converter) affords(v any) bool {
	switch v := v.(type) {
	case string:
		c.nodes -= len(v) / 8
	case []any:
		for _, e := range v {
			if c.nodes--; !c.affords(e) {
				return false
			}
		}
	case map[string]any:
		for name, e := range v {
			if c.nodes -= 1 + len(name)/8; !c.affords(e) {
				return false
			}
		}
	}
	return c.nodes >= 0
}

func depthOf(v any) int {
	deepest := 0
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			deepest = max(deepest, depthOf(e))
		}
	case map[string]any:
		for _, e := range v {
			deepest = max(deepest, depthOf(e))
		}
	}
	return deepest + 1
}

// bounds adds the limits of numbers, texts, arrays and objects.
func (c *converter) bounds(s object, out map[string]any) {
	limit(s, out, "minimum", "exclusiveMinimum", func(a, b float64) bool { return a >= b })
	limit(s, out, "maximum", "exclusiveMaximum", func(a, b float64) bool { return a <= b })
	if n, ok := s.number("multipleOf"); ok && n > 0 {
		out["multipleOf"] = n
	}
	for _, name := range []string{"minLength", "minItems", "minProperties"} {
		if n, ok := s.number(name); ok && n > 0 {
			out[name] = math.Ceil(n)
		}
	}
	for _, name := range []string{"maxLength", "maxItems", "maxProperties"} {
		if n, ok := s.number(name); ok && n >= 0 {
			out[name] = math.Floor(n)
		}
	}
	if pattern := s.text("pattern"); c.affords(pattern) {
		setText(out, "pattern", pattern)
	}
	switch format := s.text("format"); {
	case format == "byte": // OpenAPI 3.0.4 §4.4
		out["contentEncoding"] = "base64"
	case slices.Contains(typesOf(s), "string") && format != "binary":
		setText(out, "format", clip(format, 40))
	}
	if s.flag("uniqueItems") {
		out["uniqueItems"] = true
	}
}

// limit adds a limit of a number. The exclusive one is a flag of the other one in OpenAPI 3.0, and a number of its own in 3.1 (JSON Schema
// 2020-12 §6.2.5): of two numbers the stricter one counts.
func limit(s object, out map[string]any, name, exclusive string, stricter func(a, b float64) bool) {
	n, ok := s.number(name)
	if isFlag, _ := s.members[exclusive].(bool); isFlag {
		name = exclusive
	} else if e, isNumber := s.members[exclusive].(float64); isNumber && (!ok || stricter(e, n)) {
		name, n, ok = exclusive, e, true
	}
	if ok {
		out[name] = n
	}
}

// parts adds elements and members.
func (c *converter) parts(s object, w walk, out map[string]any) {
	if s.has("items") && !s.has("prefixItems") { // with prefixItems, items applies only to the other elements
		out["items"] = c.schema(s.schema("items"), w)
	}
	members, hidden := map[string]any{}, map[string]bool{}
	properties := s.object("properties")
	for _, name := range properties.names() {
		p := properties.schema(name)
		// OpenAPI 3.0.4 §4.7.24.2: readOnly members are not sent and writeOnly members are not returned, even if they are required.
		if w.input && p.flag("readOnly") || !w.input && p.flag("writeOnly") {
			hidden[name] = true
			continue
		}
		c.affords(name)
		members[name] = c.schema(p, w)
	}
	if len(members) > 0 {
		out["properties"] = members
	}
	all := s.texts("required")
	if c.nodes -= len(all); c.nodes >= 0 {
		if required := names(all, hidden); len(required) > 0 {
			out["required"] = required
		}
	}
	c.others(s, w, out)
}

// names returns the names in all, without duplicates and without the excluded ones.
func names(all []string, excluded map[string]bool) []any {
	var list []any
	seen := maps.Clone(excluded)
	for _, name := range all {
		if !seen[name] {
			seen[name] = true
			list = append(list, name)
		}
	}
	return list
}

// others sets the additional members. A consumer accepts undescribed members (TD 1.1 §5.3.1), so an output is never closed.
func (c *converter) others(s object, w walk, out map[string]any) {
	const name = "additionalProperties"
	switch allowed, isFlag := s.members[name].(bool); {
	case !isFlag && s.has(name):
		out[name] = c.schema(s.schema(name), w)
	case isFlag && !allowed && (w.input || w.exact):
		out[name] = false
	}
}

// branches adds alternatives and combinations.
func (c *converter) branches(s object, w walk, out map[string]any) {
	all := func(name string, w walk) []any {
		var list []any
		for _, branch := range s.list(name, schema) {
			list = append(list, c.schema(branch, w))
		}
		return list
	}
	one := w
	one.exact = true
	if list := all("oneOf", one); len(list) > 0 {
		out["oneOf"] = list
	}
	if list := all("anyOf", w); len(list) > 0 {
		out["anyOf"] = list
		// A value or null in the syntax of OpenAPI 3.1 becomes oneOf, which TD 1.1 supports.
		if i := slices.IndexFunc(list, isNull); len(list) == 2 && i >= 0 && out["oneOf"] == nil && !isNull(list[1-i]) &&
			!admitsNull(list[1-i].(map[string]any)) {
			out["oneOf"] = list
			delete(out, "anyOf")
		}
	}
	if s.has("not") {
		out["not"] = c.schema(s.schema("not"), w)
	}
	if list := all("allOf", w); len(list) > 0 && c.nodes >= 0 {
		combine(out, list)
	}
}

func isNull(s any) bool {
	m, ok := s.(map[string]any)
	return ok && len(m) == 1 && m["type"] == "null"
}

// plainMembers are the members of objects that can be merged.
var plainMembers = []string{"type", "title", "description", "properties", "required"}

// combine adds allOf. Objects that only add members to each other become one object, which TD 1.1 supports.
func combine(out map[string]any, all []any) {
	const most = 32 // merged objects; each merge reads all earlier members
	merged := maps.Clone(out)
	for _, branch := range all {
		if len(all) > most || !merge(merged, branch.(map[string]any)) {
			out["allOf"] = all
			return
		}
	}
	maps.Copy(out, merged)
}

// merge adds the members of one object to another. It returns false, with into partly changed, if one of them has other keywords.
func merge(into, from map[string]any) bool {
	for _, m := range []map[string]any{into, from} {
		for name := range m {
			if !slices.Contains(plainMembers, name) {
				return false
			}
		}
		if t, ok := m["type"]; ok && t != "object" {
			return false
		}
	}
	members := map[string]any{}
	for _, m := range []map[string]any{into, from} {
		p, _ := m["properties"].(map[string]any)
		for name, schema := range p {
			if members[name] != nil {
				return false // both schemas apply
			}
			members[name] = schema
		}
	}
	if len(members) > 0 {
		into["properties"] = members
	}
	required, _ := into["required"].([]any)
	more, _ := from["required"].([]any)
	seen := make(map[any]bool, len(required))
	for _, name := range required {
		seen[name] = true
	}
	required = slices.Clip(required)
	for _, name := range more {
		if !seen[name] {
			required = append(required, name)
		}
	}
	if len(required) > 0 {
		into["required"] = required
	}
	for _, name := range []string{"type", "title", "description"} {
		if into[name] == nil && from[name] != nil {
			into[name] = from[name]
		}
	}
	return true
}

// ignored are the keywords that restrict no values, or that the functions above read.
var ignored = map[string]bool{
	"type": true, "nullable": true, "title": true, "description": true, "enum": true, "const": true, "default": true,
	"minimum": true, "maximum": true, "exclusiveMinimum": true, "exclusiveMaximum": true, "multipleOf": true,
	"minLength": true, "maxLength": true, "pattern": true, "format": true,
	"items": true, "minItems": true, "maxItems": true, "uniqueItems": true,
	"properties": true, "required": true, "additionalProperties": true, "minProperties": true, "maxProperties": true,
	"oneOf": true, "anyOf": true, "allOf": true, "not": true, "readOnly": true, "writeOnly": true,
	"deprecated": true, "discriminator": true, "example": true, "examples": true, "externalDocs": true, "xml": true,
	"allowEmptyValue": true, "contentEncoding": true, "contentMediaType": true,
	"$schema": true, "$id": true, "$anchor": true, "$comment": true, "$defs": true,
}

// unsupported warns of the other keywords of s, except for extensions.
func (c *converter) unsupported(s object, w walk) {
	for _, name := range s.names() {
		if s.has(name) && !ignored[name] && !strings.HasPrefix(name, "x-") {
			c.warn(w.op.where(), "%s in a schema is left out", clip(name, 60))
		}
	}
}

// A listing is the encoding of a list parameter in a URI template.
type listing uint8

const (
	noList   listing = iota // not a list
	oneOf                   // only one value
	joined                  // {name}: the values, separated by commas
	exploded                // {name*}: the name is repeated for each value
)

// variable returns the schema of a variable, or nil if the parameter cannot be one. TD 1.1 §5.3.1.1 does not allow arrays: the schema of a
// list accepts one value or, if the encoding supports it, several (td.Schema.Elements).
func (op *operation) variable(p parameter) (schema map[string]any, as listing) {
	switch {
	case p.spec.has("schema"):
		schema = op.schema(p.spec.schema("schema"), walk{op: op, input: true})
	case p.spec.has("content"):
		schema = map[string]any{"type": "string", "contentMediaType": "application/json"}
	default:
		schema = map[string]any{"type": "string"}
	}
	if schema["type"] == "array" {
		schema, as = op.list(schema, listingOf(p))
	}
	if schema == nil || as < joined && !isSingle(schema) {
		return nil, as
	}
	text := p.spec.text("description")
	if p.required && p.in == "query" {
		op.require(schema)
		text = strings.TrimSpace(text + " Required.")
	}
	if text != "" && !op.bare {
		schema["description"] = clip(text, 300)
	}
	return schema, as
}

// isUntyped reports whether the document has no schema for a parameter, which is a string then.
func isUntyped(p parameter) bool { return !p.spec.has("schema") && !p.spec.has("content") }

// list returns the schema of a variable that is a list in the document, or nil if its elements are not single values.
func (op *operation) list(array map[string]any, as listing) (map[string]any, listing) {
	one, _ := array["items"].(map[string]any)
	if len(one) == 0 {
		one = map[string]any{"type": "string"}
	}
	switch {
	case !isSingle(one):
		return nil, as
	case as == oneOf:
		return one, as
	case one["type"] == nil && one["enum"] == nil && one["const"] == nil && one["oneOf"] == nil: // else an array could be an element
		one = maps.Clone(one)
		one["type"] = "string"
	}
	several := maps.Clone(array)
	several["items"] = one
	for _, name := range []string{"title", "description", "default"} { // they describe the variable
		delete(several, name)
	}
	return map[string]any{"oneOf": []any{one, several}}, as
}

// listingOf returns the encoding of a list in the URL (RFC 6570 §3.2).
func listingOf(p parameter) listing {
	switch {
	case p.in == "query" && p.style != "" && p.style != "form":
		return oneOf // separated by spaces or pipes
	case p.explode:
		return exploded
	}
	return joined
}

// isSingle reports whether a schema and its parts have no type that allows objects or arrays.
func isSingle(s map[string]any) bool {
	if t := s["type"]; t == "object" || t == "array" || s["properties"] != nil || s["items"] != nil {
		return false
	}
	for _, name := range []string{"oneOf", "anyOf", "allOf"} {
		branches, _ := s[name].([]any)
		for _, b := range branches {
			if m, ok := b.(map[string]any); ok && !isSingle(m) {
				return false
			}
		}
	}
	return true
}
