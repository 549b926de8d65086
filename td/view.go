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

// schemaOf returns the data schema v, or nil if v is not an object.
func schemaOf(v any) *Schema {
	if m := object(v); m != nil {
		return parseSchema(m)
	}
	return nil
}

func parseSchema(m map[string]any) *Schema { return schema.Parse(m) }

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
	b := &builder{doc: doc, t: t, base: newBase(t.Base), vars: each(doc["uriVariables"], parseSchema)}
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
func each[T any](v any, read func(m map[string]any) *T) map[string]*T {
	m := object(v)
	if m == nil {
		return nil
	}
	all := make(map[string]*T, len(m))
	for name, v := range m {
		all[name] = read(object(v))
	}
	return all
}

func (b *builder) affordance(m map[string]any, ops []string) Affordance {
	a := Affordance{
		Types: texts(m["@type"]), Title: text(m["title"]), Description: text(m["description"]),
		Forms: b.forms(m["forms"], ops),
	}
	a.URIVariables = b.vars
	if own := each(m["uriVariables"], parseSchema); len(own) > 0 {
		// The affordance's own variables override those of the Thing (TD 1.1 §5.3.2).
		a.URIVariables = make(map[string]*Schema, len(b.vars)+len(own))
		maps.Copy(a.URIVariables, b.vars)
		maps.Copy(a.URIVariables, own)
	}
	return a
}

func (b *builder) property(m map[string]any) *Property {
	p := &Property{Schema: parseSchema(m), ReadOnly: flag(m["readOnly"]), WriteOnly: flag(m["writeOnly"]),
		Observable: flag(m["observable"])}
	p.Affordance = b.affordance(m, defaultPropertyOps(p.ReadOnly, p.WriteOnly))
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

func (b *builder) action(m map[string]any) *Action {
	a := &Action{
		Affordance: b.affordance(m, actionOps[:1:1]),
		Input:      schemaOf(m["input"]), Output: schemaOf(m["output"]),
		Safe: flag(m["safe"]), Idempotent: flag(m["idempotent"]),
	}
	if synchronous, ok := m["synchronous"].(bool); ok {
		a.Synchronous = &synchronous
	}
	return a
}

func (b *builder) event(m map[string]any) *Event {
	return &Event{
		Affordance:   b.affordance(m, eventOps[:2:2]),
		Subscription: schemaOf(m["subscription"]), Data: schemaOf(m["data"]),
		DataResponse: schemaOf(m["dataResponse"]), Cancellation: schemaOf(m["cancellation"]),
	}
}

func (b *builder) securityDefs() map[string]*SecurityScheme {
	return each(b.doc["securityDefinitions"], func(m map[string]any) *SecurityScheme {
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
