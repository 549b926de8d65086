package agent

import (
	"cmp"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"
)

// maxDepth limits the nesting of types; deeper values have no schema.
const maxDepth = 12

// schemaFor returns the data schema of T (TD 1.1 §5.3.2), as far as its Go type determines it; nil for [None] and non-JSON types, an empty
// schema for any value. Struct fields have the names of their json tags. Fields with omitempty, omitzero or a pointer are optional. Fields
// that encoding/json writes as null if they are nil may be null. The tag desc is the description.
func schemaFor[T any]() map[string]any {
	t := reflect.TypeFor[T]()
	switch t {
	case reflect.TypeFor[None](), reflect.TypeFor[Chunks](), reflect.TypeFor[Data]():
		return nil
	}
	return schemaOf(t, 0)
}

func typeName[T any]() string { return fmt.Sprint(reflect.TypeFor[T]()) }

var (
	timeType = reflect.TypeFor[time.Time]()
	rawType  = reflect.TypeFor[json.RawMessage]()
	textType = reflect.TypeFor[encoding.TextMarshaler]()
	jsonType = reflect.TypeFor[json.Marshaler]()
)

func schemaOf(t reflect.Type, depth int) map[string]any {
	switch {
	case depth > maxDepth, t == rawType:
		return map[string]any{}
	case t == timeType:
		return map[string]any{"type": "string", "format": "date-time"}
	case t.Implements(jsonType):
		return map[string]any{} // encoded by its own methods
	case t.Implements(textType):
		return map[string]any{"type": "string"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return orNull(schemaOf(t.Elem(), depth+1))
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return map[string]any{"type": "integer"}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return map[string]any{"type": "integer", "minimum": 0}
	case reflect.Float32, reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Slice, reflect.Array:
		return listSchema(t, depth)
	case reflect.Map:
		return map[string]any{"type": "object"}
	case reflect.Struct:
		return structSchema(t, depth)
	}
	return map[string]any{}
}

// orNull returns a schema of the values of s and null.
func orNull(s map[string]any) map[string]any {
	if s["type"] == nil { // any type, or null already
		return s
	}
	return map[string]any{"oneOf": []any{s, map[string]any{"type": "null"}}}
}

func listSchema(t reflect.Type, depth int) map[string]any {
	if t.Elem().Kind() == reflect.Uint8 && t.Kind() == reflect.Slice {
		return map[string]any{"type": "string", "contentEncoding": "base64"}
	}
	s := map[string]any{"type": "array", "items": schemaOf(t.Elem(), depth+1)}
	if t.Kind() == reflect.Array {
		s["minItems"], s["maxItems"] = t.Len(), t.Len()
	}
	return s
}

func structSchema(t reflect.Type, depth int) map[string]any {
	properties, required := members{of: map[string]any{}}, []any{}
	for _, f := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || name == "-" && options == "" || f.Anonymous && name == "" || inNamed(t, f) {
			continue
		}
		name = cmp.Or(name, f.Name)
		optional := strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero")
		s := fieldSchema(f.Type, optional, depth+1)
		if desc := f.Tag.Get("desc"); desc != "" {
			s["description"] = desc
		}
		properties.put(name, s)
		if !optional && f.Type.Kind() != reflect.Pointer {
			required = append(required, name)
		}
	}
	s := map[string]any{"type": "object", "properties": properties}
	if len(required) > 0 {
		s["required"] = required
	}
	return s
}

// members is an object in the order of struct fields, in which forms show them.
type members struct {
	names []string
	of    map[string]any
}

func (m *members) put(name string, v any) {
	if _, again := m.of[name]; !again {
		m.names = append(m.names, name)
	}
	m.of[name] = v
}

func (m members) MarshalJSON() ([]byte, error) {
	out := []byte{'{'}
	for i, name := range m.names {
		if i > 0 {
			out = append(out, ',')
		}
		key, err := json.Marshal(name)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(m.of[name])
		if err != nil {
			return nil, err
		}
		out = append(append(append(out, key...), ':'), value...)
	}
	return append(out, '}'), nil
}

// fieldSchema returns the schema of a field; one that is omitted when nil is never null.
func fieldSchema(t reflect.Type, optional bool, depth int) map[string]any {
	switch kind := t.Kind(); {
	case optional && kind == reflect.Pointer:
		return schemaOf(t.Elem(), depth)
	case !optional && (kind == reflect.Slice || kind == reflect.Map):
		return orNull(schemaOf(t, depth))
	}
	return schemaOf(t, depth)
}

// inNamed reports whether f is in an embedded struct that has its own name in JSON, so that it is not a member of t.
func inNamed(t reflect.Type, f reflect.StructField) bool {
	for i := 1; i < len(f.Index); i++ {
		outer := t.FieldByIndex(f.Index[:i])
		if name, _, _ := strings.Cut(outer.Tag.Get("json"), ","); name != "" {
			return true
		}
	}
	return false
}
