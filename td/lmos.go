package td

import (
	"cmp"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/td/schema"
)

// TypeKey returns the name of a type as [Thing.HasType] compares it: in lower case, and for the LMOS types without prefix and namespace. The
// namespace does not end in "/" or "#", so JSON-LD does not expand the prefix, and "Agent", "lmos:Agent", "…/v1Agent", "…/v1#Agent" and
// "…/v1/Agent" are all in use (LMOS "Description").
func TypeKey(typ string) string {
	bare, ok := strings.CutPrefix(typ, "lmos:")
	if rest, isAbsolute := strings.CutPrefix(typ, ContextLMOS); !ok && isAbsolute {
		bare = strings.TrimLeft(rest, "#/")
	}
	return strings.ToLower(bare)
}

// lmosTerm returns the member of m that is an LMOS term in any spelling; key is the spelling. The prefixed form has precedence. With bare,
// the name alone is a spelling, too.
func lmosTerm(m map[string]any, name string, bare bool) (key string, value any) {
	if len(m) == 0 {
		return "", nil
	}
	var room [128]byte
	for _, prefix := range lmosPrefixes {
		key := append(append(room[:0], prefix...), name...)
		if v, ok := m[string(key)]; ok { // a lookup does not allocate
			return string(key), v
		}
	}
	if v, ok := m[name]; ok && bare {
		return name, v
	}
	return "", nil
}

// lmosPrefixes are the prefixes of an LMOS term, in the order of their precedence.
var lmosPrefixes = [...]string{"lmos:", ContextLMOS, ContextLMOS + "#", ContextLMOS + "/"}

// A prefix is the JSON-LD prefix of a vocabulary.
type prefix struct {
	name, namespace string
	depth           int // maximum depth of members with the prefix
}

var prefixes = []prefix{{"lmos", ContextLMOS, 0}, {"lmosd", NamespaceLMOSD, 5}} // 5: properties, name, forms, index, member

// missingPrefixes returns the prefixes of types and members of a TD that its context does not declare.
func missingPrefixes(doc map[string]any) (missing []prefix) {
	for _, p := range prefixes {
		declares := func(c any) bool {
			return p.isNamespace(text(c)) || p.isNamespace(text(object(c)[p.name]))
		}
		if p.isUsed(doc) && !slices.ContainsFunc(contexts(doc), declares) {
			missing = append(missing, p)
		}
	}
	return missing
}

func (p prefix) isNamespace(context string) bool {
	return strings.TrimRight(context, "/#") == strings.TrimRight(p.namespace, "#")
}

// isUsed reports whether a type or a member has the prefix.
func (p prefix) isUsed(doc map[string]any) bool {
	has := func(s string) bool { return strings.HasPrefix(s, p.name+":") }
	var inside func(v any, depth int) bool
	inside = func(v any, depth int) bool {
		for _, e := range array(v) {
			if depth > 0 && inside(e, depth-1) {
				return true
			}
		}
		for name, part := range object(v) {
			if has(name) || depth > 0 && !dataMembers[name] && inside(part, depth-1) {
				return true
			}
		}
		return false
	}
	return slices.ContainsFunc(texts(doc["@type"]), has) || inside(doc, p.depth)
}

// member returns the declaration of the prefix in @context.
func (p prefix) member() string { return `"` + p.name + `": "` + p.namespace + `"` }

// contexts returns the entries of @context: strings and maps.
func contexts(doc map[string]any) []any {
	if list, ok := doc["@context"].([]any); ok {
		return list
	}
	return []any{doc["@context"]}
}

// lmosRoot returns an LMOS member of the TD itself. The name alone is accepted only if @context has the LMOS context as a string.
func lmosRoot(doc map[string]any, name string) (key string, value any) {
	bare := slices.ContainsFunc(contexts(doc), func(c any) bool { return prefixes[0].isNamespace(text(c)) })
	return lmosTerm(doc, name, bare)
}

// readCapabilities returns lmos:capabilities: objects, their members with or without prefix, or plain strings.
func readCapabilities(doc map[string]any) []Capability {
	_, value := lmosRoot(doc, "capabilities")
	var all []Capability
	for _, v := range array(value) {
		if c := readCapability(v); c.ID != "" {
			all = append(all, c)
		}
	}
	return all
}

func readCapability(v any) Capability {
	if id, ok := v.(string); ok {
		return Capability{ID: id, Name: id}
	}
	m := object(v)
	get := func(name string) any { _, v := lmosTerm(m, name, true); return v }
	c := Capability{
		ID: text(get("id")), Name: text(get("name")), Version: scalar(get("version")),
		Description: text(get("description")), Examples: texts(get("examples")),
	}
	c.ID = cmp.Or(c.ID, c.Name)
	return c
}

// scalar returns a string, or the text of a number, because authors forget quotes: "version": 1.0.
func scalar(v any) string {
	if f, ok := v.(float64); ok {
		return string(bytesOf(f))
	}
	return text(v)
}

// readMetadata returns lmos:metadata, or nil.
func readMetadata(doc map[string]any) *Metadata {
	_, value := lmosRoot(doc, "metadata")
	m := object(value)
	if m == nil {
		return nil
	}
	get := func(of map[string]any, name string) any { _, v := lmosTerm(of, name, true); return v }
	vendor, model := object(get(m, "vendor")), object(get(m, "model"))
	interaction := object(get(m, "interaction"))
	return &Metadata{
		VendorName: text(get(vendor, "name")), VendorURL: text(get(vendor, "url")),
		ModelName: text(get(model, "name")), ModelProvider: text(get(model, "provider")),
		Languages: texts(get(interaction, "supportedLanguages")), Modes: texts(get(interaction, "interactionMode")),
		Raw: bytesOf(m),
	}
}

// checkLMOS checks the LMOS members.
func (c *checker) checkLMOS() {
	if key, value := lmosRoot(c.doc, "metadata"); key != "" && object(value) == nil {
		c.wrongType(schema.Pointer(key), value, "object")
	}
	key, value := lmosRoot(c.doc, "capabilities")
	if key == "" {
		return
	}
	list, ok := value.([]any)
	if !ok {
		c.wrongType(schema.Pointer(key), value, "array")
		return
	}
	if len(list) > MaxCaps {
		c.violation("LMOS, description", schema.Pointer(key), "has %d capabilities; at most %d are allowed", len(list), MaxCaps)
	}
	for i, v := range list[:min(len(list), MaxCaps)] {
		c.checkCapability(schema.Pointer(key, i), v)
	}
}

func (c *checker) checkCapability(pointer string, v any) {
	if _, isText := v.(string); !isText && object(v) == nil {
		c.wrongType(pointer, v, "object", "string")
		return
	}
	id := readCapability(v).ID
	if key, value := lmosTerm(object(v), "id", true); key != "" {
		pointer += schema.Pointer(key)
		if _, ok := value.(string); !ok {
			c.wrongType(pointer, value, "string")
			return
		}
	}
	switch _, ok := Normal(id); {
	case id == "":
		c.violation("LMOS, description", pointer, `"id" is missing: a capability needs one, such as "urn:example:weather:forecast"`)
	case len(id) > MaxCapability:
		c.violation("LMOS, description", pointer, "expected a capability id of at most %d bytes, got %d", MaxCapability, len(id))
	case !ok:
		c.violation("LMOS, description", pointer, "expected a capability id of words separated by colons or slashes, got %s", schema.Show(id))
	}
}
