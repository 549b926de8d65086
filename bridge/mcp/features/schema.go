package features

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/schema"
)

// noInput is the schema of a tool without input (MCP 2026-07-28, "Tools").
var noInput = json.RawMessage(`{"type":"object","additionalProperties":false}`)

// valueMember holds an input or output that is not an object.
const valueMember = schema.ValueMember

// A shape maps the arguments of a tool, which are an object, to the input of an action.
type shape struct {
	schema json.RawMessage // of the arguments
	// member holds an input that is not an object; empty if the arguments are the input.
	member string
	none   bool // the action has no input
}

// shapeOf returns the shape for the input s and the URI variables of a. member is the name for an input that is not an object.
func shapeOf(s *td.Schema, a *td.Affordance, member string) shape {
	switch {
	case s == nil && len(a.URIVariables) == 0:
		return shape{schema: noInput, none: true}
	case len(a.URIVariables) > 0:
		return shape{schema: protocol.Encode(translate(a.WithVariables(s).Value(), "#"))}
	case s.Type() == "object":
		root := object(translate(s.Value(), "#"))
		root["type"] = "object"
		return shape{schema: protocol.Encode(root)}
	}
	return shape{schema: protocol.Encode(wrapped(s, member, s.Type() != "")), member: member}
}

// wrapped returns the schema of an object with a value of s as member.
func wrapped(s *td.Schema, member string, required bool) map[string]any {
	out := map[string]any{"type": "object", "properties": map[string]any{member: translate(s.Value(), "#/properties/"+member)},
		"additionalProperties": false}
	if required {
		out["required"] = []string{member}
	}
	return out
}

// outputOf returns the schema of the structured content for an output; nil if it is unknown. isWrapped reports whether the output is a member
// of an object, because clients of 2025-11-25 accept only objects.
func outputOf(s *td.Schema) (schema json.RawMessage, isWrapped bool) {
	switch s.Type() {
	case "":
		return nil, false
	case "object":
		root := object(translate(s.Value(), "#"))
		root["type"] = "object"
		return protocol.Encode(root), false
	}
	return protocol.Encode(wrapped(s, valueMember, true)), true
}

// dropped are TD terms without meaning for JSON Schema and models.
var dropped = map[string]bool{"titles": true, "descriptions": true, "forms": true, "uriVariables": true, "observable": true, "safe": true,
	"idempotent": true, "synchronous": true}

// translate converts a TD data schema (TD 1.1 §5.3.2) to JSON Schema 2020-12, as a part of another schema at the pointer root. It drops
// references out of the schema, which clients do not resolve.
func translate(v any, root string) any {
	return schema.Rewrite(v, func(part any) any {
		m := object(part)
		if m == nil {
			if part == false {
				return false
			}
			return map[string]any{}
		}
		maps.DeleteFunc(m, func(name string, _ any) bool {
			return dropped[name] || strings.HasPrefix(name, "@") || strings.Contains(name, ":")
		})
		if ref, ok := m["$ref"]; ok && !isLocal(ref) {
			delete(m, "$ref")
		}
		if elements, ok := m["items"].([]any); ok { // one schema per element
			delete(m, "items")
			m["prefixItems"] = elements
		}
		return schema.Rebase(m, root)
	})
}

func isLocal(ref any) bool {
	s, _ := ref.(string)
	return schema.IsLocal(s)
}

func object(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}

// usable reports whether a JSON Schema in a TD can be the schema of a tool: it must describe an object.
func usable(schema json.RawMessage) bool {
	var s struct {
		Type any `json:"type"`
	}
	return len(schema) > 0 && bytes.HasPrefix(schema, []byte("{")) && json.Unmarshal(schema, &s) == nil && s.Type == "object"
}

// isFlat reports whether clients can render a schema as a form: an object without nested objects (MCP 2026-07-28, "Elicitation").
func isFlat(schema json.RawMessage) bool {
	var s struct {
		Type       any                       `json:"type"`
		Properties map[string]map[string]any `json:"properties"`
	}
	if json.Unmarshal(schema, &s) != nil || s.Type != "object" {
		return false
	}
	for _, p := range s.Properties {
		kind, _ := p["type"].(string)
		items := object(p["items"])
		if !slices.Contains([]string{"string", "number", "integer", "boolean"}, kind) &&
			!(kind == "array" && (items["enum"] != nil || items["anyOf"] != nil)) {
			return false
		}
	}
	return true
}
