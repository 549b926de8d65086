package openapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/lmosd/lmosd/td"
)

// Limits of documents.
const (
	maxDepth  = 100
	maxValues = 1 << 20 // objects, arrays and single values, with YAML aliases expanded
)

// load reads a document: it checks the size, decodes JSON or YAML, and checks version, limits and references.
func load(doc []byte) (*document, error) {
	if len(doc) > MaxDocument {
		return nil, &td.ValidationError{TooLarge: true,
			Issues: []td.Issue{{Reason: fmt.Sprintf("has %d bytes; an OpenAPI document may have %d", len(doc), MaxDocument)}}}
	}
	tree, err := decode(bytes.TrimPrefix(doc, []byte("\ufeff")))
	if err != nil {
		return nil, &td.ValidationError{NotJSON: true, Issues: []td.Issue{{Reason: "neither JSON nor YAML: " + clip(err.Error(), 300)}}}
	}
	d := &document{}
	d.root, _ = tree.(map[string]any)
	switch version, _ := d.root["openapi"].(string); {
	case d.root["swagger"] != nil:
		return nil, invalid("/swagger", "is Swagger 2: convert the document to OpenAPI 3 first")
	case !strings.HasPrefix(version, "3."):
		return nil, invalid("/openapi", `is missing or not version 3: expected, for example, "openapi": "3.0.3"`)
	}
	c := checker{document: d, values: maxValues}
	switch within := c.check(d.root, 0, true); {
	case within:
		return d, nil
	case d.err != nil:
		return nil, d.err
	case c.issue != nil:
		return nil, invalid(clip(c.issue.Pointer, 300), c.issue.Reason)
	}
	return nil, &td.ValidationError{TooLarge: true, Issues: []td.Issue{{Reason: "is too large or too deep with expanded aliases"}}}
}

// decode reads JSON, or YAML.
func decode(doc []byte) (any, error) {
	var tree any
	if bytes.HasPrefix(bytes.TrimLeft(doc, " \t\r\n"), []byte("{")) {
		if err := json.NewDecoder(bytes.NewReader(doc)).Decode(&tree); err == nil {
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
	case int:
		return float64(v)
	case int64:
		return float64(v)
	case uint64:
		return float64(v)
	case time.Time:
		if v.Equal(v.Truncate(24 * time.Hour)) {
			return v.Format(time.DateOnly)
		}
		return v.Format(time.RFC3339Nano)
	}
	return v
}

// data are the members with values of any kind, in which "$ref" has no meaning. Extensions (x-) are others.
var data = map[string]bool{"default": true, "enum": true, "const": true, "example": true, "examples": true}

// A checker checks a document as a whole, also what no operation uses. It stops at the first problem.
type checker struct {
	*document
	values int       // that are left
	issue  *td.Issue // nil: a limit is exceeded
}

// check reports whether v and its parts are within the limits, have numbers that JSON has and, if references is true, references with a target.
func (c *checker) check(v any, depth int, references bool) bool {
	if c.values--; c.values < 0 || depth > maxDepth {
		return false
	}
	switch v := v.(type) {
	case float64:
		if math.IsInf(v, 0) || math.IsNaN(v) {
			c.issue = &td.Issue{Reason: "cannot be read: a number is infinite or undefined"}
			return false
		}
	case []any:
		for i, e := range v {
			if !c.check(e, depth+1, references) {
				return c.inside(strconv.Itoa(i))
			}
		}
	case map[string]any:
		if ref, ok := v["$ref"].(string); ok && references {
			if _, err := c.resolve(ref, 0); err != nil {
				c.issue = &td.Issue{Reason: "cannot be read: " + err.Error()}
				return false
			}
		}
		for _, name := range slices.Sorted(maps.Keys(v)) { // the first problem is always the same
			if !c.check(v[name], depth+1, references && !data[name] && !strings.HasPrefix(name, "x-")) {
				return c.inside(escape.Replace(name))
			}
		}
	}
	return true
}

// inside adds a token to the front of the place of the problem.
func (c *checker) inside(token string) bool {
	if c.issue != nil {
		c.issue.Pointer = "/" + token + c.issue.Pointer
	}
	return false
}
