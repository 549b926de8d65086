package td

import (
	"maps"
	"slices"

	"github.com/lmosd/lmosd/td/schema"
)

// A Rehosting says how somebody else than its owner offers a thing: a node, for consumers that speak HTTP and WebSocket only.
type FormRewrite struct {
	// Forms returns the forms of an affordance, best first. kind is "properties", "actions" or "events" and name the
	// affordance's; both are empty for the thing itself. ops are the operations to be offered (TD 1.1 §5.3.4.2): the forms
	// together should offer each of them, over every scheme that they have. Of a form Href (absolute), ContentType, Subprotocol,
	// Ops, ResponseType and HTTPMethod are written, where they are set. An affordance without forms is left out.
	Forms func(kind, name string, ops []string) []Form
	// Original is the address of the TD that the owner signed, for a link "alternate". Empty makes no link.
	Original string
	// Bearer tells that consumers show a token (RFC 6750); without it there is no security.
	Bearer bool
}

// RewriteForms returns a TD of t with other forms, as canonical JSON. It is unsigned, for a node changed it: proof and registration
// are gone. It holds every rule of the universally consumable TD, each of which a known client needs: both TD contexts, no base,
// absolute hrefs, one plain security scheme, arrays where a text would do, a type of every property, synchronous in every
// action, and no members that clients do not know in links, version and actions. What the owner says of the thing stays:
// title, capabilities, metadata, schemas, and variables of addresses, which a consumer still gives. An action of which the owner
// does not say whether it is synchronous is called so.
//
// The result may be larger than [MaxTD]. The error is a [*ValidationError], and there is none for what [Parse] made.
func (t *Thing) RewriteForms(r FormRewrite) ([]byte, error) {
	// Decoded anew: it is changed below, and what came from the mesh is not kept decoded.
	doc, err := decode(t.Raw)
	if err != nil {
		return nil, err
	}
	h := &formRewriter{FormRewrite: r, doc: doc, base: newBase(text(doc["base"]))}
	h.root()
	h.links()
	all := h.affordances()
	if forms := h.forms("", "", h.thingOps(all)); len(forms) > 0 {
		doc["forms"] = forms
	}
	return bytesOf(doc), nil
}

// A rehoster changes a decoded TD in place.
type formRewriter struct {
	FormRewrite
	doc  map[string]any
	base *base
}

// root sets what a thing has once. The owner's profile and additional responses speak of the owner's forms.
func (h *formRewriter) root() {
	for _, gone := range []string{"proof", "registration", "base", "forms", "profile", "schemaDefinitions"} {
		delete(h.doc, gone)
	}
	h.doc["@context"] = h.contexts()
	scheme, name := map[string]any{"scheme": "nosec"}, "nosec_sc"
	if h.Bearer {
		scheme, name = map[string]any{"scheme": "bearer", "in": "header"}, "bearer_sc"
	}
	h.doc["securityDefinitions"], h.doc["security"] = map[string]any{name: scheme}, []any{name}
	if version := object(h.doc["version"]); version != nil {
		only(version, versionMembers)
	}
}

// contexts returns the two TD contexts, that of discovery, and the owner's own. The data integrity context goes with the proof.
func (h *formRewriter) contexts() []any {
	first := []string{Context10, Context11, ContextDiscovery}
	all := []any{Context10, Context11, ContextDiscovery}
	for _, c := range contexts(h.doc) {
		if uri, isText := c.(string); !isText || uri != ContextProof && !slices.Contains(first, uri) {
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

func (h *formRewriter) links() {
	var all []any
	for _, v := range array(h.doc["links"]) {
		link := object(v)
		only(link, linkMembers)
		link["href"] = h.base.resolve(text(link["href"]))
		if lang, isText := link["hreflang"].(string); isText {
			link["hreflang"] = []any{lang}
		}
		all = append(all, link)
	}
	if h.Original != "" {
		all = append(all, map[string]any{"rel": "alternate", "type": "application/td+json", "href": h.Original})
	}
	delete(h.doc, "links")
	if len(all) > 0 {
		h.doc["links"] = all
	}
}

// affordances gives each affordance its forms, and returns the operations that are offered, of all together.
func (h *formRewriter) affordances() map[string]bool {
	offered := map[string]bool{}
	for kind, prepare := range map[string]func(map[string]any) []string{
		"properties": rewriteProperty, "actions": rewriteAction, "events": rewriteEvent,
	} {
		all := object(h.doc[kind])
		for _, name := range sortedKeys(all) {
			a := object(all[name])
			ops := prepare(a)
			if a["forms"] = h.forms(kind, name, ops); len(array(a["forms"])) == 0 {
				delete(all, name)
				continue
			}
			for _, op := range ops {
				offered[op] = true
			}
		}
	}
	return offered
}

func rewriteProperty(p map[string]any) []string {
	if _, ok := p["type"]; !ok {
		p["type"] = guessType(p)
	}
	var ops []string
	if !flag(p["writeOnly"]) {
		ops = append(ops, "readproperty")
	}
	if !flag(p["readOnly"]) {
		ops = append(ops, "writeproperty")
	}
	if flag(p["observable"]) {
		ops = append(ops, "observeproperty", "unobserveproperty")
	}
	return ops
}

// guessType returns the type of a property that names none, without which a client cannot read the whole TD. Where nothing tells,
// it is an object, or text if its forms carry something else than JSON.
func guessType(p map[string]any) string {
	if typ := parseSchema(p).Type(); typ != "" {
		return typ
	}
	for _, choice := range []string{"oneOf", "anyOf", "allOf"} {
		for _, v := range array(p[choice]) {
			if m := object(v); m != nil && parseSchema(m).Type() != "" {
				return parseSchema(m).Type()
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

// thingOps are the operations on the thing as a whole that are of use: all properties of which none can be read are not.
func (h *formRewriter) thingOps(offered map[string]bool) []string {
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
		if offered[of.one] {
			ops = append(ops, of.all...)
		}
	}
	return ops
}

// forms writes what Forms returns as JSON does.
func (h *formRewriter) forms(kind, name string, ops []string) []any {
	if len(ops) == 0 {
		return nil
	}
	var all []any
	for _, f := range h.Forms(kind, name, ops) {
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
		words := make([]any, len(f.Ops))
		for i, op := range f.Ops {
			words[i] = op
		}
		m["op"] = words
		all = append(all, m)
	}
	return all
}

// only deletes the members of m that are not known.
func only(m map[string]any, known []string) {
	maps.DeleteFunc(m, func(name string, _ any) bool { return !slices.Contains(known, name) })
}
