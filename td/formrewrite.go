package td

import (
	"maps"
	"slices"

	"github.com/lmosd/lmosd/td/schema"
)

// A FormRewrite configures [Thing.RewriteForms]: a node serves the Things of other nodes to consumers that only support HTTP and WebSocket.
type FormRewrite struct {
	// Forms returns the forms of an affordance, best first. kind is "properties", "actions" or "events", and name is that of the
	// affordance; both are empty for the Thing itself. For each scheme of the forms, its forms together should have all operations ops
	// (TD 1.1 §5.3.4.2). The result has Href (absolute), ContentType, Subprotocol, Ops, ResponseType and HTTPMethod of each form, if they
	// are set. An affordance without forms is omitted.
	Forms func(kind, name string, ops []string) []Form
	// Original is the address of the TD as its owner signed it, for a link "alternate". Empty: no link.
	Original string
	// Bearer requires a token of consumers (RFC 6750). Without it the security is "nosec".
	Bearer bool
}

// RewriteForms returns the TD of t with other forms, as canonical JSON, without proof and registration. The result follows the rules of the
// universally consumable TD: both TD contexts, no base, absolute hrefs, one simple security scheme, arrays instead of single strings, a type
// for each property, synchronous for each action, and in links, version and actions only members that all clients support. Each rule is
// required by a known client. The title, capabilities, metadata, schemas and URI variables of the owner stay. An action without
// "synchronous" becomes synchronous.
//
// The result may be larger than [MaxTD]. The error is a [*ValidationError]; it is nil for a result of [Parse].
func (t *Thing) RewriteForms(r FormRewrite) ([]byte, error) {
	// decode returns a new document, which is changed below.
	doc, err := decode(t.Raw)
	if err != nil {
		return nil, err
	}
	w := &formRewriter{FormRewrite: r, doc: doc, base: newBase(text(doc["base"]))}
	w.root()
	w.links()
	all := w.affordances()
	if forms := w.forms("", "", w.thingOps(all)); len(forms) > 0 {
		doc["forms"] = forms
	}
	return bytesOf(doc), nil
}

// A formRewriter changes a decoded TD in place.
type formRewriter struct {
	FormRewrite
	doc  map[string]any
	base *base
}

// root sets the members of the Thing itself. The owner's profile and schemaDefinitions apply to the owner's forms only.
func (w *formRewriter) root() {
	for _, name := range []string{"proof", "registration", "base", "forms", "profile", "schemaDefinitions"} {
		delete(w.doc, name)
	}
	w.doc["@context"] = w.contexts()
	scheme, name := map[string]any{"scheme": "nosec"}, "nosec_sc"
	if w.Bearer {
		scheme, name = map[string]any{"scheme": "bearer", "in": "header"}, "bearer_sc"
	}
	w.doc["securityDefinitions"], w.doc["security"] = map[string]any{name: scheme}, []any{name}
	if version := object(w.doc["version"]); version != nil {
		only(version, versionMembers)
	}
}

// contexts returns the two TD contexts, the discovery context, and the contexts of the owner, without the context of the removed proof.
func (w *formRewriter) contexts() []any {
	all := []any{Context10, Context11, ContextDiscovery}
	for _, c := range contexts(w.doc) {
		if _, isText := c.(string); !isText || c != ContextProof && !slices.Contains(all[:3], c) {
			all = append(all, c)
		}
	}
	declared := func(c any) bool {
		return prefixes[0].isNamespace(text(c)) || prefixes[0].isNamespace(text(object(c)["lmos"]))
	}
	if !slices.ContainsFunc(all, declared) {
		all = append(all, map[string]any{"lmos": ContextLMOS})
	}
	return all
}

func (w *formRewriter) links() {
	var all []any
	for _, v := range array(w.doc["links"]) {
		link := object(v)
		only(link, linkMembers)
		link["href"] = w.base.resolve(text(link["href"]))
		if lang, isText := link["hreflang"].(string); isText {
			link["hreflang"] = []any{lang}
		}
		all = append(all, link)
	}
	if w.Original != "" {
		all = append(all, map[string]any{"rel": "alternate", "type": "application/td+json", "href": w.Original})
	}
	delete(w.doc, "links")
	if len(all) > 0 {
		w.doc["links"] = all
	}
}

// affordances sets the forms of each affordance, and returns the operations of all affordances together.
func (w *formRewriter) affordances() map[string]bool {
	provided := map[string]bool{}
	for kind, prepare := range map[string]func(map[string]any) []string{
		"properties": rewriteProperty, "actions": rewriteAction, "events": rewriteEvent,
	} {
		all := object(w.doc[kind])
		for _, name := range sortedKeys(all) {
			a := object(all[name])
			ops := prepare(a)
			if a["forms"] = w.forms(kind, name, ops); len(array(a["forms"])) == 0 {
				delete(all, name)
				continue
			}
			for _, op := range ops {
				provided[op] = true
			}
		}
	}
	return provided
}

func rewriteProperty(p map[string]any) []string {
	if _, ok := p["type"]; !ok {
		p["type"] = guessType(p)
	}
	return accessOps(flag(p["readOnly"]), flag(p["writeOnly"]), flag(p["observable"]))
}

// guessType returns a type for a property without one, because a known client rejects a TD with such a property. The default is object, or
// string if a form has another content type than JSON.
func guessType(p map[string]any) string {
	if typ := schema.Parse(p).Type(); typ != "" {
		return typ
	}
	for _, choice := range []string{"oneOf", "anyOf", "allOf"} {
		for _, v := range array(p[choice]) {
			if m := object(v); m != nil && schema.Parse(m).Type() != "" {
				return schema.Parse(m).Type()
			}
		}
	}
	if v, ok := p["default"]; ok {
		return schema.TypeOf(v)
	}
	for _, f := range array(p["forms"]) {
		if !IsJSON(text(object(f)["contentType"])) {
			return "string"
		}
	}
	return "object"
}

func rewriteAction(a map[string]any) []string {
	only(a, actionMembers)
	if _, ok := a["synchronous"].(bool); !ok {
		a["synchronous"] = true
	}
	return slices.Clone(actionOps)
}

func rewriteEvent(map[string]any) []string { return slices.Clone(eventOps) }

// thingOps returns the operations on the Thing as a whole that have a corresponding operation of an affordance.
func (w *formRewriter) thingOps(provided map[string]bool) []string {
	var ops []string
	for _, of := range []struct {
		one string
		all []string
	}{
		{"readproperty", []string{"readallproperties", "readmultipleproperties"}},
		{"writeproperty", []string{"writeallproperties", "writemultipleproperties"}},
		{"observeproperty", []string{"observeallproperties", "unobserveallproperties"}},
		{"invokeaction", []string{"queryallactions"}},
		{"subscribeevent", []string{"subscribeallevents", "unsubscribeallevents"}},
	} {
		if provided[of.one] {
			ops = append(ops, of.all...)
		}
	}
	return ops
}

// forms returns the result of Forms as decoded JSON.
func (w *formRewriter) forms(kind, name string, ops []string) []any {
	if len(ops) == 0 {
		return nil
	}
	var all []any
	for _, f := range w.Forms(kind, name, ops) {
		m := map[string]any{"href": f.Href}
		for member, value := range map[string]string{
			"contentType": f.ContentType, "subprotocol": f.Subprotocol, "htv:methodName": f.HTTPMethod,
		} {
			if value != "" {
				m[member] = value
			}
		}
		if f.ResponseType != "" {
			m["response"] = map[string]any{"contentType": f.ResponseType}
		}
		names := make([]any, len(f.Ops))
		for i, op := range f.Ops {
			names[i] = op
		}
		m["op"] = names
		all = append(all, m)
	}
	return all
}

// only deletes the members of m that are not in known.
func only(m map[string]any, known []string) {
	maps.DeleteFunc(m, func(name string, _ any) bool { return !slices.Contains(known, name) })
}
