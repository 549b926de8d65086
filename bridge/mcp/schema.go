package mcp

import (
	"bytes"
	"encoding/json"
	"strings"
)

// Bounds of the conversion of a schema. Parts beyond allow any value.
const (
	maxLevels = 24
	maxParts  = 2000
)

// dataSchema converts a JSON Schema to a data schema (TD 1.1 §5.3.2). The result never rejects a value that the schema allows: constructs
// without an equivalent, such as conditions or external references, are dropped. It is nil if raw is not a schema.
func dataSchema(raw json.RawMessage) map[string]any {
	var v any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if d.Decode(&v) != nil {
		return nil
	}
	root, ok := v.(map[string]any)
	if !ok {
		return nil
	}
	if dialect, _ := root["$schema"].(string); dialect != "" && !strings.Contains(dialect, "://json-schema.org/") {
		return map[string]any{}
	}
	delete(root, "$id") // local references refer to the root
	s, _ := new(conversion).schema(root, 0)
	return s
}

type conversion struct{ parts int }

// schema converts one schema. exact reports whether the result is equivalent, so that it can be used where a weaker schema would reject
// more, as in "not".
func (c *conversion) schema(v any, depth int) (out map[string]any, exact bool) {
	in, ok := v.(map[string]any)
	if c.parts++; c.parts > maxParts || depth > maxLevels || !ok {
		if v == false {
			return map[string]any{"not": map[string]any{}}, true
		}
		return map[string]any{}, v == true
	}
	if _, elsewhere := in["$id"]; elsewhere {
		return map[string]any{}, false // its references refer to itself
	}
	out, exact = make(map[string]any, len(in)), true
	for key, value := range in {
		if !c.keyword(out, key, value, depth) {
			exact = false
		}
	}
	if in["patternProperties"] != nil {
		delete(out, "additionalProperties")
	}
	if list, ok := in["type"].([]any); ok && !typed(out, list) {
		exact = false
	}
	return out, exact
}

// typed sets a list of types.
func typed(out map[string]any, list []any) bool {
	if out["anyOf"] != nil {
		return false
	}
	var each []any
	for _, t := range list {
		name, _ := t.(string)
		if !types[name] {
			return false
		}
		each = append(each, map[string]any{"type": name})
	}
	if len(each) > 0 {
		out["anyOf"] = each
	}
	return true
}

var types = map[string]bool{"object": true, "array": true, "string": true, "number": true, "integer": true, "boolean": true, "null": true}

// keyword converts one member and reports whether the result is equivalent.
func (c *conversion) keyword(out map[string]any, key string, value any, depth int) bool {
	switch key {
	case "title", "description", "$comment", "$schema", "examples", "default", "deprecated", "readOnly", "writeOnly", "$anchor":
		if text, ok := value.(string); ok && (key == "title" || key == "description") || key == "default" {
			out[key] = value
			if ok {
				out[key] = clip(text, maxText)
			}
		}
		return true // no constraint
	case "const":
		out[key] = value
		return true
	case "properties", "$defs", "definitions":
		return c.named(out, key, value, depth)
	case "oneOf", "anyOf", "allOf", "prefixItems":
		return c.several(out, key, value, depth)
	case "items", "additionalProperties":
		if _, tuple := value.([]any); tuple {
			return false
		}
		s, exact := c.schema(value, depth+1)
		if out[key] = s; value == false && key == "additionalProperties" {
			out[key] = false
		}
		return exact
	case "not":
		s, exact := c.schema(value, depth+1)
		if exact {
			out[key] = s
		}
		return exact
	}
	return plain(out, key, value)
}

// plain copies a member that is valid in both.
func plain(out map[string]any, key string, value any) (ok bool) {
	switch key {
	case "type":
		name, one := value.(string)
		_, many := value.([]any) // see typed
		ok = many || types[name]
		if !one {
			return ok
		}
	case "enum":
		list, _ := value.([]any)
		ok = len(list) > 0
	case "required":
		list, _ := value.([]any)
		ok = list != nil
		for _, name := range list {
			_, text := name.(string)
			ok = ok && text
		}
	case "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "minItems", "maxItems",
		"minProperties", "maxProperties":
		_, ok = value.(json.Number)
	case "pattern", "format", "contentEncoding", "contentMediaType":
		_, ok = value.(string)
	case "uniqueItems":
		_, ok = value.(bool)
	case "$ref":
		ref, _ := value.(string)
		ok = ref == "#" || strings.HasPrefix(ref, "#/")
	}
	if ok {
		out[key] = value
	}
	return ok
}

func (c *conversion) named(out map[string]any, key string, value any, depth int) (exact bool) {
	in, ok := value.(map[string]any)
	if !ok {
		return false
	}
	all := make(map[string]any, len(in))
	exact = true
	for name, s := range in {
		one, same := c.schema(s, depth+1)
		all[name], exact = one, exact && same
	}
	out[key] = all
	return exact
}

func (c *conversion) several(out map[string]any, key string, value any, depth int) (exact bool) {
	in, ok := value.([]any)
	if !ok || len(in) == 0 {
		return false
	}
	all := make([]any, len(in))
	exact = true
	for i, s := range in {
		one, same := c.schema(s, depth+1)
		all[i], exact = one, exact && same
	}
	if key == "oneOf" && !exact {
		return false // weaker alternatives would reject values that match two
	}
	out[key] = all
	return exact
}
