package configs

import (
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// SchemaID is the identifier of the JSON Schema of a configuration file; it never changes for one [APIVersion].
const SchemaID = "urn:lmosd:schema:config:v1"

// SchemaFile is the name under which editors find the schema beside a configuration file.
const SchemaFile = "lmosd.schema.json"

// schemaLine is the first line of a configuration file: editors with the YAML language server read it.
const schemaLine = "# yaml-language-server: $schema=" + SchemaFile

// A schemaNode is a JSON Schema. Members are in the order of the file.
type schemaNode struct {
	Schema      string       `json:"$schema,omitempty"`
	ID          string       `json:"$id,omitempty"`
	Title       string       `json:"title,omitempty"`
	Description string       `json:"description,omitempty"`
	Type        any          `json:"type,omitempty"`
	Enum        []any        `json:"enum,omitempty"`
	Default     any          `json:"default,omitempty"`
	Pattern     string       `json:"pattern,omitempty"`
	Minimum     *int         `json:"minimum,omitempty"`
	Maximum     *int         `json:"maximum,omitempty"`
	Items       *schemaNode  `json:"items,omitempty"`
	Reloadable  *bool        `json:"x-reloadable,omitempty"`
	Env         string       `json:"x-env,omitempty"`
	Properties  *schemaProps `json:"properties,omitempty"`
	Additional  *bool        `json:"additionalProperties,omitempty"`
}

type schemaProps struct {
	names []string
	of    map[string]*schemaNode
}

// MarshalJSON keeps the order.
func (p *schemaProps) MarshalJSON() ([]byte, error) {
	text := []byte("{")
	for i, name := range p.names {
		b, err := json.Marshal(p.of[name])
		if err != nil {
			return nil, err
		}
		if i > 0 {
			text = append(text, ',')
		}
		text = append(append(append(text, quoted(name)...), ':'), b...)
	}
	return append(text, '}'), nil
}

// child returns the schema of a member, and makes that of a section.
func (n *schemaNode) child(name string) *schemaNode {
	if n.Properties == nil {
		n.Properties, n.Additional = &schemaProps{of: map[string]*schemaNode{}}, new(bool)
	}
	c := n.Properties.of[name]
	if c == nil {
		c = &schemaNode{Type: []string{"object", "null"}}
		n.Properties.names, n.Properties.of[name] = append(n.Properties.names, name), c
	}
	return c
}

// patterns are the forms of values with units.
var patterns = map[string]string{
	"duration": `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`,
	"size":     `^[0-9]+(\.[0-9]+)? ?(TiB|GiB|MiB|KiB|TB|GB|MB|kB|B)$`,
	"rate":     `^[0-9]+(\.[0-9]+)?/(s|m|h)$`,
}

// Schema returns the JSON Schema (2020-12) of a configuration file, made of [Config]: descriptions, enumerations, defaults, ranges, and whether a
// running node applies a change (x-reloadable).
func Schema() []byte {
	root := &schemaNode{Schema: "https://json-schema.org/draft/2020-12/schema", ID: SchemaID, Title: "Configuration of lmosd", Type: "object"}
	docs := fieldDocs()
	for f := range Default().fields() {
		n := root
		levels := strings.Split(f.key, ".")
		for _, level := range levels[:len(levels)-1] {
			n = n.child(level)
		}
		if parent := docs[f.owner.Name()+"."]; n != root {
			n.Description = parent
		}
		*n.child(levels[len(levels)-1]) = f.schema(docs[f.owner.Name()+"."+f.field.Name])
	}
	b, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		panic(err) // texts and numbers always encode
	}
	return append(b, '\n')
}

// schema returns the schema of a key. null leaves the key unchanged.
func (f field) schema(doc string) schemaNode {
	reloadable := slices.Contains(reloadable, f.key)
	n := schemaNode{Description: doc, Reloadable: &reloadable, Env: Key{Name: f.key}.Env(), Pattern: patterns[f.kind()]}
	switch kind := f.kind(); kind {
	case "bool":
		n.Type, n.Default = []string{"boolean", "null"}, f.value.Bool()
	case "int":
		n.Type, n.Default = []string{"integer", "null"}, int(f.value.Int())
		n.Minimum, n.Maximum = f.bound("min"), f.bound("max")
	case "list":
		n.Type, n.Default, n.Items = []string{"array", "null"}, f.texts(), &schemaNode{Type: "string"}
	case "mappings":
		n.Type, n.Default, n.Items = []string{"array", "null"}, []any{}, schemaOf(f.value.Type().Elem())
	default:
		n.Type, n.Default = []string{"string", "null"}, f.texts()[0]
	}
	for _, v := range f.values() {
		n.Enum = append(n.Enum, v)
	}
	if n.Enum != nil {
		n.Enum = append(n.Enum, nil)
	}
	return n
}

// bound returns the number of a tag min or max.
func (f field) bound(tag string) *int {
	n, err := strconv.Atoi(f.field.Tag.Get(tag))
	if err != nil {
		return nil
	}
	return &n
}

// schemaOf returns the schema of a struct of texts, lists and maps.
func schemaOf(t reflect.Type) *schemaNode {
	n := &schemaNode{}
	switch t.Kind() {
	case reflect.Struct:
		n.Type = "object"
		for i := range t.NumField() {
			name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
			*n.child(name) = *schemaOf(t.Field(i).Type)
		}
	case reflect.Slice:
		n.Type, n.Items = "array", schemaOf(t.Elem())
	case reflect.Map:
		n.Type = "object"
	default:
		n.Type = "string"
	}
	return n
}
