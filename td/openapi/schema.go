package openapi

import (
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/lmosd/lmosd/td"
)

// A walk is the position of the converter in a schema.
type walk struct {
	op    *operation
	input bool // of an action; else its output
	exact bool // inside of oneOf: a branch that accepts more values could be a second match
	above []*openapi3.Schema
}

// schema returns a schema of TD 1.1 §5.3.2, with the additional keywords of JSON Schema that td.Schema supports. A part that cannot be
// converted becomes {}, which accepts everything.
func (c *converter) schema(ref *openapi3.SchemaRef, w walk) map[string]any {
	c.nodes--
	if ref == nil || ref.Value == nil || c.nodes < 0 {
		return map[string]any{}
	}
	s := ref.Value
	if slices.Contains(w.above, s) {
		c.warn("schemas", "%s contains itself: its second occurrence accepts all values",
			clip(strings.TrimPrefix(ref.Ref, "#/components/schemas/"), 100))
		return map[string]any{}
	}
	w.above = append(slices.Clip(w.above), s)
	out := c.keywords(s, w)
	if s.Nullable || s.Type.Includes("null") && len(*s.Type) > 1 {
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
func (c *converter) keywords(s *openapi3.Schema, w walk) map[string]any {
	out := map[string]any{}
	c.types(s, out)
	if c.texts {
		setText(out, "title", clip(s.Title, 100))
		setText(out, "description", clip(s.Description, 300))
	}
	if len(w.above) > c.depth {
		return out
	}
	c.values(s, out)
	bounds(s, out)
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

// jsonTypes are the types of JSON Schema, without null.
var jsonTypes = []string{"object", "array", "string", "number", "integer", "boolean"}

// types adds the type. Several types become a oneOf, because a schema of TD 1.1 has one type.
func (c *converter) types(s *openapi3.Schema, out map[string]any) {
	var types []string
	for _, t := range s.Type.Slice() {
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
	case len(types) > 1 && len(s.OneOf) == 0 && len(s.Enum) == 0:
		var branches []any
		for _, t := range types {
			branches = append(branches, map[string]any{"type": t})
		}
		out["oneOf"] = branches
	case s.Type.Is("null"):
		out["type"] = "null"
	}
}

// values adds enum, const and default.
func (c *converter) values(s *openapi3.Schema, out map[string]any) {
	const deepest = 8 // a value is inside a schema, and one limit applies to both
	if list := s.Enum; len(list) > 0 && depthOf(list) <= deepest {
		if _, typed := out["type"]; typed { // nullable covers null
			list = slices.DeleteFunc(slices.Clone(list), func(v any) bool { return v == nil })
		}
		switch c.nodes -= len(list); {
		case len(list) == 1 && list[0] == nil: // see load: the library supports no other form
			out["const"] = nil
		case len(list) > 0:
			out["enum"] = list
		}
	}
	if v := s.Const; v != nil && depthOf(v) <= deepest {
		out["const"] = v
	}
	if v := s.Default; v != nil && depthOf(v) <= deepest {
		out["default"] = v
	}
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
func bounds(s *openapi3.Schema, out map[string]any) {
	limit := func(name string, v *float64, exclusive bool) {
		if v == nil || math.IsInf(*v, 0) || math.IsNaN(*v) {
			return
		}
		if exclusive {
			name = "exclusive" + strings.ToUpper(name[:1]) + name[1:]
		}
		out[name] = *v
	}
	limit("minimum", s.Min, s.ExclusiveMin.IsTrue())
	limit("maximum", s.Max, s.ExclusiveMax.IsTrue())
	if s.MultipleOf != nil && *s.MultipleOf > 0 {
		limit("multipleOf", s.MultipleOf, false)
	}
	for name, n := range map[string]uint64{"minLength": s.MinLength, "minItems": s.MinItems, "minProperties": s.MinProps} {
		if n > 0 {
			out[name] = float64(n)
		}
	}
	for name, n := range map[string]*uint64{"maxLength": s.MaxLength, "maxItems": s.MaxItems, "maxProperties": s.MaxProps} {
		if n != nil {
			out[name] = float64(*n)
		}
	}
	setText(out, "pattern", s.Pattern)
	switch {
	case s.Format == "byte": // OpenAPI 3.0.4 §4.4
		out["contentEncoding"] = "base64"
	case s.Type.Includes("string") && s.Format != "binary":
		setText(out, "format", clip(s.Format, 40))
	}
	if s.UniqueItems {
		out["uniqueItems"] = true
	}
}

// parts adds elements and members.
func (c *converter) parts(s *openapi3.Schema, w walk, out map[string]any) {
	if s.Items != nil && s.PrefixItems == nil { // with prefixItems, items applies only to the other elements
		out["items"] = c.schema(s.Items, w)
	}
	members, hidden := map[string]any{}, map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		p := s.Properties[name]
		// OpenAPI 3.0.4 §4.7.24.2: readOnly members are not sent and writeOnly members are not returned, even if they are required.
		if p != nil && p.Value != nil && (w.input && p.Value.ReadOnly || !w.input && p.Value.WriteOnly) {
			hidden[name] = true
			continue
		}
		members[name] = c.schema(p, w)
	}
	if len(members) > 0 {
		out["properties"] = members
	}
	if c.nodes -= len(s.Required); c.nodes >= 0 {
		if required := names(s.Required, hidden); len(required) > 0 {
			out["required"] = required
		}
	}
	c.others(s.AdditionalProperties, w, out)
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
func (c *converter) others(a openapi3.AdditionalProperties, w walk, out map[string]any) {
	switch {
	case a.Schema != nil:
		out["additionalProperties"] = c.schema(a.Schema, w)
	case a.Has != nil && !*a.Has && (w.input || w.exact):
		out["additionalProperties"] = false
	}
}

// branches adds alternatives and combinations.
func (c *converter) branches(s *openapi3.Schema, w walk, out map[string]any) {
	all := func(refs openapi3.SchemaRefs, w walk) []any {
		var list []any
		for _, r := range refs {
			list = append(list, c.schema(r, w))
		}
		return list
	}
	one := w
	if one.exact = true; len(s.OneOf) > 0 {
		out["oneOf"] = all(s.OneOf, one)
	}
	if list := all(s.AnyOf, w); len(list) > 0 {
		out["anyOf"] = list
		// A value or null in the syntax of OpenAPI 3.1 becomes oneOf, which TD 1.1 supports.
		if i := slices.IndexFunc(list, isNull); len(list) == 2 && i >= 0 && out["oneOf"] == nil && !isNull(list[1-i]) &&
			!admitsNull(list[1-i].(map[string]any)) {
			out["oneOf"] = list
			delete(out, "anyOf")
		}
	}
	if s.Not != nil {
		out["not"] = c.schema(s.Not, w)
	}
	if list := all(s.AllOf, w); len(list) > 0 && c.nodes >= 0 {
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

// unsupported warns of dropped keywords. Extensions without a field in the library are ignored.
func (c *converter) unsupported(s *openapi3.Schema, w walk) {
	left := unsupportedKeywords(s)
	for name := range s.Extensions {
		left[name] = name != "deprecated" && !strings.HasPrefix(name, "x-")
	}
	for _, name := range slices.Sorted(maps.Keys(left)) {
		if left[name] {
			c.warn(w.op.where(), "%s in a schema is left out", clip(name, 60))
		}
	}
}

// unsupportedKeywords returns the keywords of s from JSON Schema 2020-12 that restrict values and that OpenAPI 3.0 does not have.
func unsupportedKeywords(s *openapi3.Schema) map[string]bool {
	return map[string]bool{
		"prefixItems": s.PrefixItems != nil, "contains": s.Contains != nil, "minContains": s.MinContains != nil,
		"maxContains": s.MaxContains != nil, "patternProperties": s.PatternProperties != nil,
		"dependentSchemas": s.DependentSchemas != nil, "dependentRequired": s.DependentRequired != nil,
		"propertyNames": s.PropertyNames != nil, "if": s.If != nil, "then": s.Then != nil, "else": s.Else != nil,
		"unevaluatedItems":      s.UnevaluatedItems.Has != nil || s.UnevaluatedItems.Schema != nil,
		"unevaluatedProperties": s.UnevaluatedProperties.Has != nil || s.UnevaluatedProperties.Schema != nil,
		"$dynamicRef":           s.DynamicRef != "", "$dynamicAnchor": s.DynamicAnchor != "", "contentSchema": s.ContentSchema != nil,
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
func (op *operation) variable(p *openapi3.Parameter) (schema map[string]any, as listing) {
	switch {
	case p.Schema != nil:
		schema = op.schema(p.Schema, walk{op: op, input: true})
	case len(p.Content) > 0:
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
	text := p.Description
	if p.Required && p.In == openapi3.ParameterInQuery {
		schema["lmosd:required"] = true
		op.prefixes["lmosd"] = td.NamespaceLMOSD
		text = strings.TrimSpace(text + " Required.")
	}
	if text != "" && !op.bare {
		schema["description"] = clip(text, 300)
	}
	return schema, as
}

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

// listingOf returns the encoding of a list in the URL (OpenAPI 3.0.4 §4.7.12.2, style and explode; RFC 6570 §3.2).
func listingOf(p *openapi3.Parameter) listing {
	style, explode := p.Style, p.In == openapi3.ParameterInQuery // the defaults: form exploded, simple not
	if p.Explode != nil {
		explode = *p.Explode
	}
	switch {
	case p.In == openapi3.ParameterInQuery && style != "" && style != openapi3.SerializationForm:
		return oneOf // separated by spaces or pipes
	case explode:
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
