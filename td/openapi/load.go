package openapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/lmosd/lmosd/td"
	"github.com/oasdiff/yaml3"
)

// Limits of documents. The library decodes each part of a document once per level of its depth, so its work is the sum of the depths of all
// bytes. Usual documents are about 12 levels deep.
const (
	maxDepth  = 100
	maxValues = 1 << 20  // objects, arrays and single values, with YAML aliases expanded
	maxWork   = 64 << 20 // bytes times their depths
)

// load reads a document: it checks the size, decodes JSON or YAML, checks version and limits, and parses the result with the library.
func load(doc []byte) (*openapi3.T, error) {
	if len(doc) > MaxDocument {
		return nil, &td.ValidationError{TooLarge: true,
			Issues: []td.Issue{{Reason: fmt.Sprintf("has %d bytes; an OpenAPI document may have %d", len(doc), MaxDocument)}}}
	}
	tree, err := decode(bytes.TrimPrefix(doc, []byte("\ufeff")))
	if err != nil {
		return nil, &td.ValidationError{NotJSON: true, Issues: []td.Issue{{Reason: "neither JSON nor YAML: " + clip(err.Error(), 300)}}}
	}
	root, _ := tree.(map[string]any)
	switch version, _ := root["openapi"].(string); {
	case root["swagger"] != nil:
		return nil, invalid("/swagger", "is Swagger 2: convert the document to OpenAPI 3 first")
	case !strings.HasPrefix(version, "3."):
		return nil, invalid("/openapi", `is missing or not version 3: expected, for example, "openapi": "3.0.3"`)
	}
	if info, ok := root["info"].(map[string]any); ok { // 1.0 is a number in YAML
		switch v := info["version"].(type) {
		case json.Number, float64, int:
			info["version"] = fmt.Sprint(v)
		}
	}
	t := normalizer{values: maxValues}
	t.schema(root, 0)
	b, err := json.Marshal(root)
	if err != nil {
		return nil, invalid("", "cannot be read: "+clip(err.Error(), 300))
	}
	if t.values < 0 || t.deep || len(b) > 2*MaxDocument || work(b) > maxWork {
		return nil, &td.ValidationError{TooLarge: true, Issues: []td.Issue{{Reason: "is too large or too deep with expanded aliases"}}}
	}
	return parse(b)
}

// decode reads JSON, or YAML.
func decode(doc []byte) (any, error) {
	var tree any
	if bytes.HasPrefix(bytes.TrimLeft(doc, " \t\r\n"), []byte("{")) {
		d := json.NewDecoder(bytes.NewReader(doc))
		d.UseNumber()
		if err := d.Decode(&tree); err == nil {
			return tree, nil
		}
	}
	var node yaml.Node
	if err := yaml.Unmarshal(doc, &node); err != nil {
		return nil, err
	}
	// Aliases may be nested: the size of the expansion is computed first.
	if n := (&expansion{known: map[*yaml.Node]int{}}).of(&node, 0); n > maxValues {
		return nil, fmt.Errorf("more than %d values, or a cycle", maxValues)
	}
	if err := node.Decode(&tree); err != nil {
		return nil, err
	}
	return plain(tree), nil
}

// An expansion counts the values of YAML with expanded aliases, and the work for its mappings.
type expansion struct{ known map[*yaml.Node]int }

// of returns the number of values in n, or more than maxValues if there are too many, or they are too deep or cyclic.
func (e *expansion) of(n *yaml.Node, depth int) int {
	if size, ok := e.known[n]; ok {
		return size
	}
	if depth > maxDepth {
		return maxValues + 1
	}
	e.known[n] = maxValues + 1 // in a cycle
	size := 1
	if n.Kind == yaml.MappingNode { // the library compares each pair of names, so more than 10,000 names are rejected
		pairs := len(n.Content) / 2
		size += pairs * pairs / 100
	}
	for _, part := range n.Content {
		size = min(size+e.of(part, depth+1), maxValues+1)
	}
	if n.Alias != nil {
		size = min(size+e.of(n.Alias, depth+1), maxValues+1)
	}
	e.known[n] = size
	return size
}

// plain converts YAML to JSON values: names are strings, and dates stay as written.
func plain(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, e := range v {
			v[name] = plain(e)
		}
	case map[any]any:
		m := make(map[string]any, len(v))
		for name, e := range v {
			m[fmt.Sprint(name)] = plain(e)
		}
		return m
	case []any:
		for i, e := range v {
			v[i] = plain(e)
		}
	case time.Time:
		if v.Equal(v.Truncate(24 * time.Hour)) {
			return v.Format(time.DateOnly)
		}
		return v.Format(time.RFC3339Nano)
	}
	return v
}

// A normalizer counts the values of a document and converts features of OpenAPI 3.1 to those of 3.0, which the library supports.
type normalizer struct {
	values int // remaining
	deep   bool
}

// data are the members whose values are not schemas. They stay unchanged.
var data = map[string]bool{"default": true, "enum": true, "const": true, "example": true, "examples": true}

// named are the members with schemas, or objects with schemas, by name: a response may have the name "default".
var named = map[string]bool{
	"properties": true, "patternProperties": true, "$defs": true, "schemas": true, "dependentSchemas": true,
	"responses": true, "parameters": true, "requestBodies": true, "headers": true, "callbacks": true, "content": true,
	"paths": true, "pathItems": true, "variables": true, "encoding": true, "webhooks": true,
}

// schema converts a value that may be a schema or contain some.
func (t *normalizer) schema(v any, depth int) {
	if t.values--; t.values < 0 || depth > maxDepth {
		t.deep = t.deep || depth > maxDepth
		return
	}
	switch v := v.(type) {
	case []any:
		for i := range v {
			t.schema(v[i], depth+1)
		}
	case map[string]any:
		exclusive(v, "exclusiveMinimum", "minimum", func(limit, other float64) bool { return limit >= other })
		if c, ok := v["const"]; ok && c == nil { // the library distinguishes null from absence only in a list
			delete(v, "const")
			v["enum"] = []any{nil}
		}
		exclusive(v, "exclusiveMaximum", "maximum", func(limit, other float64) bool { return limit <= other })
		for name, e := range v {
			switch m, isMap := e.(map[string]any); {
			case data[name]:
				t.count(e, depth+1)
			case named[name] && isMap:
				t.names(m, depth+1)
			case name == "items" || name == "not":
				v[name] = boolean(e)
				t.schema(v[name], depth+1)
			case name == "oneOf" || name == "anyOf" || name == "allOf":
				booleans(e)
				t.schema(e, depth+1)
			default:
				t.schema(e, depth+1)
			}
		}
	}
}

// names converts schemas by name; "default" has no special meaning here.
func (t *normalizer) names(m map[string]any, depth int) {
	t.values--
	for name, e := range m {
		m[name] = boolean(e)
		t.schema(m[name], depth+1)
	}
}

// count counts the values of an unchanged part.
func (t *normalizer) count(v any, depth int) {
	if t.values--; t.values < 0 || depth > maxDepth {
		t.deep = t.deep || depth > maxDepth
		return
	}
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			t.count(e, depth+1)
		}
	case map[string]any:
		for _, e := range v {
			t.count(e, depth+1)
		}
	}
}

// exclusive converts a numeric exclusive limit (JSON Schema 2020-12 §6.2.5) to a limit and a flag (OpenAPI 3.0); of two limits it keeps the
// stricter one.
func exclusive(m map[string]any, keyword, limit string, stricter func(limit, other float64) bool) {
	value, ok := number(m[keyword])
	if !ok {
		return
	}
	if other, ok := number(m[limit]); ok && !stricter(value, other) {
		delete(m, keyword)
		return
	}
	m[limit], m[keyword] = m[keyword], true
}

func number(v any) (float64, bool) {
	switch v := v.(type) {
	case json.Number:
		f, err := v.Float64()
		return f, err == nil
	case float64:
		return v, true
	case int:
		return float64(v), true
	}
	return 0, false
}

// boolean converts a schema that is true or false to an object.
func boolean(v any) any {
	switch v {
	case true:
		return map[string]any{}
	case false:
		return map[string]any{"not": map[string]any{}}
	}
	return v
}

func booleans(v any) {
	if all, ok := v.([]any); ok {
		for i := range all {
			all[i] = boolean(all[i])
		}
	}
}

// work returns the sum of the depths of all bytes of b, which is valid JSON.
func work(b []byte) int {
	sum, depth, quoted := 0, 1, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case quoted && c == '\\':
			i++
			sum += depth
		case c == '"':
			quoted = !quoted
		case !quoted && (c == '{' || c == '['):
			depth++
		case !quoted && (c == '}' || c == ']'):
			depth--
		}
		sum += depth
	}
	return sum
}

var errOutside = errors.New("a reference leads out of the document")

// parse parses the document with the library, and recovers from its panics on untrusted documents.
func parse(b []byte) (api *openapi3.T, err error) {
	defer func() {
		if r := recover(); r != nil {
			api, err = nil, invalid("", fmt.Sprintf("cannot be read: %v", r))
		}
	}()
	loader := openapi3.NewLoader()
	loader.IsExternalRefsAllowed = false
	loader.ReadFromURIFunc = func(*openapi3.Loader, *url.URL) ([]byte, error) { return nil, errOutside }
	if api, err = loader.LoadFromData(b); err == nil {
		return api, nil
	}
	reason := err.Error()
	switch {
	case strings.Contains(reason, "disallowed external reference"), strings.Contains(reason, errOutside.Error()):
		reason += "; bundle the document with the files that it refers to"
	case strings.HasPrefix(reason, "failed to unmarshal data: json error: "):
		reason, _, _ = strings.Cut(strings.TrimPrefix(reason, "failed to unmarshal data: json error: "), ", yaml error: ")
	}
	return nil, invalid("", "cannot be read: "+clip(reason, 300))
}
