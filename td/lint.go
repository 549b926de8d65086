package td

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/td/schema"
)

// A linter collects features of a valid TD that a known client does not support. Each rule names the client (docs: "Universally consumable
// Thing Descriptions").
type linter struct {
	doc   map[string]any
	t     *Thing
	found []Issue
}

// warnings returns the warnings about a valid TD.
func warnings(doc map[string]any, t *Thing) []Issue {
	l := &linter{doc: doc, t: t}
	l.lintRoot()
	l.lintLinks()
	l.lintNames()
	l.lintSecurity()
	for name, v := range object(doc["properties"]) {
		l.lintProperty(schema.Pointer("properties", name), object(v))
	}
	for name, v := range object(doc["actions"]) {
		l.lintAction(schema.Pointer("actions", name), object(v))
	}
	(&checker{doc: doc}).eachForm(l.lintForm)
	l.lintOrder()
	l.lintLanguages()
	return schema.SortIssues(l.found)
}

func (l *linter) warn(pointer, format string, args ...any) {
	l.found = append(l.found, Issue{Pointer: pointer, Reason: fmt.Sprintf(format, args...)})
}

func (l *linter) lintRoot() {
	list := contexts(l.doc)
	if !slices.Contains(list, any(Context10)) {
		l.warn("/@context", "without %q first, a fresh install of node-wot rejects the TD", Context10)
	}
	if l.t.Base != "" {
		l.warn("/base", "kotlin-wot prepends the base to absolute hrefs, too: use absolute hrefs instead")
	}
	if _, isText := l.doc["security"].(string); isText {
		l.warn("/security", "kotlin-wot expects an array")
	}
	for _, p := range missingPrefixes(l.doc) {
		l.warn("/@context", `{%q: %q} is missing, and %s: terms are used`, p.name, p.namespace, p.name)
	}
}

// The members of links, actions and version that kotlin-wot supports. It rejects a TD with others.
var (
	linkMembers   = []string{"href", "type", "rel", "anchor", "sizes", "hreflang"}
	actionMembers = []string{"@type", "title", "titles", "description", "descriptions", "forms", "uriVariables", "input",
		"output", "safe", "idempotent", "synchronous"}
	versionMembers = []string{"instance", "model"}
)

func (l *linter) lintMembers(pointer string, m map[string]any, known []string) {
	for name := range m {
		if !slices.Contains(known, name) {
			l.warn(pointer+schema.Pointer(name), "kotlin-wot rejects a TD with an unknown member here")
		}
	}
}

func (l *linter) lintLinks() {
	l.lintMembers("/version", object(l.doc["version"]), versionMembers)
	for i, v := range array(l.doc["links"]) {
		m := object(v)
		l.lintMembers(schema.Pointer("links", i), m, linkMembers)
		if _, isText := m["hreflang"].(string); isText {
			l.warn(schema.Pointer("links", i, "hreflang"), "kotlin-wot expects an array")
		}
	}
}

// lintNames finds names that two affordances share: node-wot and the WebSocket dialects address affordances by name alone.
func (l *linter) lintNames() {
	for name := range object(l.doc["actions"]) {
		if _, ok := l.t.Properties[name]; ok {
			l.warn(schema.Pointer("actions", name), "a property has the same name")
		}
	}
	for name := range object(l.doc["events"]) {
		_, property := l.t.Properties[name]
		if _, action := l.t.Actions[name]; property || action {
			l.warn(schema.Pointer("events", name), "a property or an action has the same name")
		}
	}
}

func (l *linter) lintSecurity() {
	for name, s := range l.t.SecurityDefs {
		if s.Scheme == "combo" || s.Scheme == "auto" {
			l.warn(schema.Pointer("securityDefinitions", name, "scheme"), "kotlin-wot does not support the scheme %q", s.Scheme)
		}
	}
	if len(l.t.Security) > 1 {
		l.warn("/security", "several names are deprecated in TD 1.1, and kotlin-wot does not support combo, their replacement")
	}
}

func (l *linter) lintProperty(pointer string, p map[string]any) {
	if _, ok := p["type"]; !ok {
		l.warn(pointer, `"type" is missing: kotlin-wot cannot read a property without it`)
	}
	l.lintValues(pointer, p)
}

// lintValues finds const, default and enum that contradict their schema.
func (l *linter) lintValues(pointer string, data map[string]any) {
	_, isConst := data["const"]
	if _, isEnum := data["enum"]; isEnum && isConst {
		l.warn(pointer, "has both const and enum: one of them is enough")
	}
	if v, ok := data["default"]; ok {
		if issues := schema.Parse(data).Check(v); len(issues) > 0 {
			l.warn(pointer+"/default", "does not fit its own schema: %s", issues[0])
		}
	}
}

func (l *linter) lintAction(pointer string, a map[string]any) {
	if _, ok := a["synchronous"]; !ok {
		l.warn(pointer, `"synchronous" is missing: the HTTP Basic Profile requires it`)
	}
	l.lintMembers(pointer, a, actionMembers)
	for _, name := range []string{"input", "output"} {
		l.lintValues(pointer+schema.Pointer(name), object(a[name]))
	}
}

func (l *linter) lintForm(p formEntry) {
	if href := text(p.form["href"]); !hasScheme(href) {
		l.warn(p.pointer+"/href", "is relative: some clients do not resolve it")
	}
	for _, name := range []string{"op", "security", "scopes"} {
		if _, isText := p.form[name].(string); isText {
			l.warn(p.pointer+schema.Pointer(name), "kotlin-wot expects an array")
		}
	}
}

// lintOrder checks the forms of each affordance together: most clients use the first one that they support.
func (l *linter) lintOrder() {
	for name, p := range l.t.Properties {
		l.lintForms(schema.Pointer("properties", name, "forms"), p.Forms)
	}
	for name, a := range l.t.Actions {
		l.lintForms(schema.Pointer("actions", name, "forms"), a.Forms)
	}
	for name, e := range l.t.Events {
		l.lintForms(schema.Pointer("events", name, "forms"), e.Forms)
	}
}

func (l *linter) lintForms(pointer string, forms []Form) {
	ws := slices.IndexFunc(forms, func(f Form) bool { return strings.HasPrefix(f.Scheme(), "ws") })
	http := slices.IndexFunc(forms, func(f Form) bool { return strings.HasPrefix(f.Scheme(), "http") })
	if ws >= 0 && ws < http {
		l.warn(pointer+schema.Pointer(ws), "node-wot sends no responses over WebSocket: put the http forms first")
	}
	sse := slices.IndexFunc(forms, func(f Form) bool { return f.Subprotocol == "sse" })
	poll := slices.IndexFunc(forms, func(f Form) bool { return f.Subprotocol == "longpoll" })
	if sse >= 0 && (poll < 0 || sse < poll) {
		l.warn(pointer+schema.Pointer(sse), "node-wot ignores named server-sent events: put a longpoll form first")
	}
	if len(forms) > 0 && !IsJSON(forms[0].ContentType) {
		l.warn(pointer+schema.Pointer(0), "kotlin-wot supports only JSON: put a JSON form first")
	}
	l.lintSchemes(pointer, forms)
}

// lintSchemes finds schemes that lack an operation of another scheme: kotlin-wot uses the first scheme that it supports, and then fails.
func (l *linter) lintSchemes(pointer string, forms []Form) {
	all := map[string]bool{}
	byScheme := map[string]map[string]bool{}
	for i := range forms {
		scheme := forms[i].Scheme()
		if byScheme[scheme] == nil {
			byScheme[scheme] = map[string]bool{}
		}
		for _, op := range forms[i].Ops {
			all[op], byScheme[scheme][op] = true, true
		}
	}
	for _, scheme := range sortedKeys(byScheme) {
		for _, op := range sortedKeys(all) {
			if !byScheme[scheme][op] {
				l.warn(pointer, "kotlin-wot uses only one scheme, and the %s forms lack %q", scheme, op)
			}
		}
	}
}
