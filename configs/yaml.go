package configs

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/yamltext"
)

// A setting is a key with its value, or the elements of a list, in their written form.
type setting struct {
	key    string
	values []string
	at     place
}

// A reader converts one file to settings.
type reader struct {
	name     string
	source   []byte
	shape    map[string]field // all keys of a Config; sections are fields of their prefix
	settings []setting
	*problems
}

// readYAML returns the settings of one file and adds all problems to ps.
func readYAML(name string, source []byte, ps *problems) []setting {
	r := &reader{name: name, source: source, shape: shape(), problems: ps}
	file, err := yamltext.Parse(r.source)
	if err != nil {
		r.syntax(err)
		return nil
	}
	for _, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		if len(r.settings) > 0 {
			r.add(interact.ConfigInvalid, r.at(doc.Body), "", "keep one document, without ---", "a second YAML document")
			break
		}
		r.section("", doc.Body)
	}
	return r.settings
}

// shape returns the keys of a Config by name. Sections have entries without a value.
func shape() map[string]field {
	m := map[string]field{"": {}}
	for f := range Default().fields() {
		m[f.key] = f
		for i := strings.LastIndexByte(f.key, '.'); i > 0; i = strings.LastIndexByte(f.key[:i], '.') {
			m[f.key[:i]] = field{}
		}
	}
	return m
}

// syntax reports an error of the parser at its token.
func (r *reader) syntax(err error) {
	at, message := place{text: r.name}, err.Error()
	var y yaml.Error
	if errors.As(err, &y) {
		message = y.GetMessage()
		at = r.place(y.GetToken())
	}
	r.add(interact.ConfigFile, at, "", "", "%s", message)
}

func (r *reader) at(n ast.Node) place { return r.place(n.GetToken()) }

func (r *reader) place(t *token.Token) place {
	p := place{text: r.name, source: r.source}
	if t != nil && t.Position != nil {
		p.line, p.col = t.Position.Line, t.Position.Column
	}
	return p
}

// section reads a mapping whose keys are below prefix ("" or "mesh.").
func (r *reader) section(prefix string, n ast.Node) {
	var entries []*ast.MappingValueNode
	switch n := n.(type) {
	case *ast.MappingNode:
		entries = n.Values
	case *ast.MappingValueNode:
		entries = []*ast.MappingValueNode{n}
	case *ast.NullNode:
		return // all keys below "mesh:" are commented out
	case *ast.CommentGroupNode:
		return
	default:
		r.add(interact.ConfigInvalid, r.at(n), strings.TrimSuffix(prefix, "."), "",
			"expected %s, got %s", r.sectionName(prefix), kindOf(n))
		return
	}
	for _, e := range entries {
		r.entry(prefix, e)
	}
}

func (r *reader) sectionName(prefix string) string {
	if prefix == "" {
		return "a mapping of keys"
	}
	return "a mapping of the keys of " + strings.TrimSuffix(prefix, ".")
}

func (r *reader) entry(prefix string, e *ast.MappingValueNode) {
	name, ok := scalar(e.Key)
	if !ok {
		r.add(interact.ConfigInvalid, r.at(e.Key), "", "write it out", "%s is not valid as a key", kindOf(e.Key))
		return
	}
	key := prefix + name
	f, known := r.shape[key]
	switch {
	case retired[key] != nil:
		p := r.add(interact.ConfigUnknown, r.at(e.Key), key, retired[key](valuesOf(e.Value)), "the key %q does not exist any more", name)
		p.Next = interact.Next(interact.StepMigrate)
	case !known || name == "" || strings.Contains(name, "."):
		r.unknown(prefix, name, r.at(e.Key))
	case !f.value.IsValid():
		r.section(key+".", e.Value)
	default:
		r.leaf(f, e.Value)
	}
}

// unknown reports an unknown key with a suggestion: a sibling with a similar name, else the same name in another section.
func (r *reader) unknown(prefix, name string, at place) {
	var siblings []string
	elsewhere := ""
	for _, key := range slices.Sorted(maps.Keys(r.shape)) {
		parent, last := split(key)
		switch {
		case key != "" && parent == prefix:
			siblings = append(siblings, last)
		case last == name:
			elsewhere = fmt.Sprintf("did you mean %q?", key)
		}
	}
	r.add(interact.ConfigUnknown, at, prefix+name, didYouMean(name, siblings, elsewhere), "unknown key %q", name)
}

// split returns the section of a key, with its dot, and the last level.
func split(key string) (section, last string) {
	i := strings.LastIndexByte(key, '.') + 1
	return key[:i], key[i:]
}

// leaf reads the value of a key. A null leaves the key unchanged, such as a list whose elements are all commented out.
func (r *reader) leaf(f field, n ast.Node) {
	at := r.at(n)
	if _, null := n.(*ast.NullNode); null {
		return
	}
	list, isList := n.(*ast.SequenceNode)
	switch {
	case isList && f.kind() == "list":
		r.list(f, list, at)
	case isList && f.kind() == "mappings":
		r.mappings(f, list, at)
	case isList || f.kind() == "mappings" || f.kind() == "list":
		r.add(interact.ConfigInvalid, at, f.key, r.example(f), "expected %s for %s, got %s", article(f.kind()), f.key, kindOf(n))
	default:
		r.scalar(f, n, at)
	}
}

func (r *reader) list(f field, n *ast.SequenceNode, at place) {
	values := []string{}
	for _, element := range n.Values {
		text, ok := scalar(element)
		if _, isString := element.(*ast.StringNode); !ok || !isString {
			r.add(interact.ConfigInvalid, r.at(element), f.key, "write it in quotes", "expected a string in %s, got %s", f.key,
				kindOf(element))
			return
		}
		values = append(values, text)
	}
	r.settings = append(r.settings, setting{f.key, values, at})
}

// mappings reads a list of mappings, as JSON.
func (r *reader) mappings(f field, n *ast.SequenceNode, at place) {
	var values []any
	err := yaml.NodeToValue(n, &values)
	text, bad := json.Marshal(values)
	if err = errors.Join(err, bad); err != nil {
		r.syntax(err)
		return
	}
	r.settings = append(r.settings, setting{f.key, []string{string(text)}, at})
}

func (r *reader) scalar(f field, n ast.Node, at place) {
	text, ok := scalar(n)
	if !ok || !fits(f.kind(), n) {
		r.add(interact.ConfigInvalid, at, f.key, r.example(f), "expected %s for %s, got %s", article(f.kind()), f.key, kindOf(n))
		return
	}
	r.settings = append(r.settings, setting{f.key, []string{text}, at})
}

// fits reports whether a YAML scalar is valid for a kind. A number is not a string: a name such as 1e3 would change.
func fits(kind string, n ast.Node) bool {
	switch n.(type) {
	case *ast.StringNode, *ast.LiteralNode:
		return kind != "bool" && kind != "int"
	case *ast.BoolNode:
		return kind == "bool"
	case *ast.IntegerNode:
		// "0" of a duration, size or rate gets the error of its parser, which names the unit.
		return kind != "bool" && kind != "string"
	case *ast.FloatNode:
		return kind == "duration" || kind == "size" || kind == "rate"
	}
	return false
}

// scalar returns the text of a scalar.
func scalar(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.BoolNode, *ast.IntegerNode, *ast.FloatNode:
		return n.GetToken().Value, true
	}
	return "", false
}

func kindOf(n ast.Node) string {
	switch n.(type) {
	case *ast.StringNode, *ast.LiteralNode:
		return "a string"
	case *ast.BoolNode:
		return "a bool"
	case *ast.IntegerNode, *ast.FloatNode:
		return "a number"
	case *ast.NullNode:
		return "nothing"
	case *ast.SequenceNode:
		return "a list"
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.AnchorNode, *ast.AliasNode, *ast.MergeKeyNode:
		return "an anchor, alias or merge key"
	case *ast.TagNode:
		return "a tag"
	}
	return "something else"
}

func article(kind string) string {
	switch kind {
	case "int":
		return "a whole number"
	case "mappings":
		return "a list of mappings"
	}
	return "a " + kind
}

// example returns the hint that shows a valid value.
func (r *reader) example(f field) string {
	_, last := split(f.key)
	return fmt.Sprintf("for example  %s: %s", last, f.yaml())
}

// MarshalYAML returns the YAML form of the JSON of v, members in the same order.
func MarshalYAML(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return yaml.JSONToYAML(b)
}

// MarshalJSON returns the keys of c in the order of the file, values with units as strings.
func (c *Config) MarshalJSON() ([]byte, error) { return yaml.YAMLToJSON(c.YAML(false)) }
