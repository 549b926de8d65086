package td

import (
	"cmp"
	"maps"

	"github.com/lmosd/lmosd/td/schema"
)

// A builder builds the typed view of a TD, with the defaults of TD 1.1 §5.4.
type builder struct {
	doc  map[string]any
	t    *Thing
	base *base
	vars map[string]*Schema // the uriVariables of the Thing itself, shared by all affordances
}

// schema returns the data schema v, which is a member of the object at path in the TD, or nil if v is not an object.
func (b *builder) schema(v any, path []string, member string) *Schema {
	if object(v) == nil {
		return nil
	}
	return schema.Within(&b.t.Raw, path, member)
}

// variables returns the uriVariables v, which are at path in the TD.
func (b *builder) variables(v any, path ...string) map[string]*Schema {
	return each(v, func(name string, m map[string]any) *Schema { return b.schema(m, path, name) })
}

// view returns the typed view of a decoded, checked TD. It never fails.
func view(raw []byte, doc map[string]any) *Thing {
	t := &Thing{
		Raw: raw, ID: text(doc["id"]), Title: text(doc["title"]), Description: text(doc["description"]),
		Types: texts(doc["@type"]), Base: text(doc["base"]), Version: text(object(doc["version"])["instance"]),
		Security: texts(doc["security"]), Capabilities: readCapabilities(doc), Metadata: readMetadata(doc),
	}
	t.Visibility, t.MemberOf = readVisibility(doc), readMemberOf(doc)
	if n, ok := doc["lmosd:concurrency"].(float64); ok && n >= 1 && n <= 1<<20 {
		t.Concurrency = int(n)
	}
	b := &builder{doc: doc, t: t, base: newBase(t.Base)}
	b.vars = b.variables(doc["uriVariables"], "uriVariables")
	t.SecurityDefs = b.securityDefs()
	t.Forms = b.forms(doc["forms"], nil)
	t.Properties = each(doc["properties"], b.property)
	t.Actions = each(doc["actions"], b.action)
	t.Events = each(doc["events"], b.event)
	t.Links = b.links()
	t.terms = t.makeTerms()
	return t
}

// each converts the members of the object v with read; it returns nil if v is not an object.
func each[T any](v any, read func(name string, m map[string]any) *T) map[string]*T {
	m := object(v)
	if m == nil {
		return nil
	}
	all := make(map[string]*T, len(m))
	for name, v := range m {
		all[name] = read(name, object(v))
	}
	return all
}

// affordance returns what all kinds of affordances have; kind is the member of the TD that has them.
func (b *builder) affordance(kind, name string, m map[string]any, ops []string) Affordance {
	a := Affordance{
		Types: texts(m["@type"]), Title: text(m["title"]), Description: text(m["description"]),
		Forms: b.forms(m["forms"], ops),
	}
	a.URIVariables = b.vars
	if own := b.variables(m["uriVariables"], kind, name, "uriVariables"); len(own) > 0 {
		// The affordance's own variables override those of the Thing (TD 1.1 §5.3.2).
		a.URIVariables = make(map[string]*Schema, len(b.vars)+len(own))
		maps.Copy(a.URIVariables, b.vars)
		maps.Copy(a.URIVariables, own)
	}
	return a
}

// properties is the path of the properties of a TD.
var properties = []string{"properties"}

func (b *builder) property(name string, m map[string]any) *Property {
	p := &Property{Schema: b.schema(m, properties, name), ReadOnly: flag(m["readOnly"]), WriteOnly: flag(m["writeOnly"]),
		Observable: flag(m["observable"])}
	p.Affordance = b.affordance(properties[0], name, m, defaultPropertyOps(p.ReadOnly, p.WriteOnly))
	return p
}

func defaultPropertyOps(readOnly, writeOnly bool) []string {
	switch {
	case readOnly && !writeOnly:
		return propertyOps[:1:1]
	case writeOnly && !readOnly:
		return propertyOps[1:2:2]
	}
	return propertyOps[:2:2]
}

func (b *builder) action(name string, m map[string]any) *Action {
	at := []string{"actions", name}
	a := &Action{
		Affordance: b.affordance("actions", name, m, actionOps[:1:1]),
		Input:      b.schema(m["input"], at, "input"), Output: b.schema(m["output"], at, "output"),
		Safe: flag(m["safe"]), Idempotent: flag(m["idempotent"]),
	}
	if synchronous, ok := m["synchronous"].(bool); ok {
		a.Synchronous = &synchronous
	}
	return a
}

func (b *builder) event(name string, m map[string]any) *Event {
	at := []string{"events", name}
	part := func(member string) *Schema { return b.schema(m[member], at, member) }
	return &Event{
		Affordance:   b.affordance("events", name, m, eventOps[:2:2]),
		Subscription: part("subscription"), Data: part("data"), DataResponse: part("dataResponse"), Cancellation: part("cancellation"),
	}
}

func (b *builder) securityDefs() map[string]*SecurityScheme {
	return each(b.doc["securityDefinitions"], func(_ string, m map[string]any) *SecurityScheme {
		s := &SecurityScheme{Scheme: text(m["scheme"]), In: text(m["in"]), Name: text(m["name"]),
			OneOf: texts(m["oneOf"]), AllOf: texts(m["allOf"]), Raw: bytesOf(m)}
		s.In = cmp.Or(s.In, defaultIn[s.Scheme])
		return s
	})
}

// defaultIn is the default of "in" by scheme (TD 1.1 §5.4).
var defaultIn = map[string]string{"basic": "header", "digest": "header", "bearer": "header", "apikey": "query"}

func (b *builder) links() []Link {
	var links []Link
	for _, v := range array(b.doc["links"]) {
		m := object(v)
		links = append(links, Link{Href: b.base.resolve(text(m["href"])), Rel: text(m["rel"]), Type: text(m["type"])})
	}
	return links
}
