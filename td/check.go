package td

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/td/schema"
)

// A checker collects the issues of a TD.
type checker struct {
	doc    map[string]any
	inURI  map[string]bool // names of URI variables for the keys of security schemes
	errors []Issue
}

func (c *checker) fail(pointer, format string, args ...any) {
	c.errors = append(c.errors, Issue{Pointer: pointer, Reason: fmt.Sprintf(format, args...)})
}

// violation adds an issue of a rule that the official JSON Schema of TD 1.1 does not have (Issue.Rule).
func (c *checker) violation(rule, pointer, format string, args ...any) {
	c.fail(pointer, format, args...)
	c.errors[len(c.errors)-1].Rule = rule
}

// wrongType adds an issue of an LMOS member of a wrong type.
func (c *checker) wrongType(pointer string, v any, want ...string) {
	c.violation("LMOS, description", pointer, "%s", schema.WrongType(pointer, v, want...).Reason)
}

// ownLimit is the rule of limits that no standard defines.
const ownLimit = "a limit of lmosd"

// check validates against the schema, and then checks rules that a schema cannot express: references to names, rules between members, and
// limits in bytes. These checks tolerate wrong types, so that one run reports all issues.
func (c *checker) check() {
	c.errors = append(c.errors, schema.CheckThing(c.doc)...)
	c.checkContext()
	c.checkID()
	c.checkBase()
	c.checkSecurity()
	c.checkLinks()
	c.checkLMOS()
	c.checkVisibility()
	c.checkMemberOf()
	c.eachForm(c.checkForm)
	for name, v := range object(c.doc["properties"]) {
		c.checkProperty(schema.Pointer("properties", name), object(v))
	}
}

// checkContext checks the order of TD 1.1 §5.3.1.1: in a TD for consumers of both versions, the context of 1.0 is first and that of 1.1
// second.
func (c *checker) checkContext() {
	list := array(c.doc["@context"])
	v10, v11 := slices.Index(list, any(Context10)), slices.Index(list, any(Context11))
	switch {
	case v10 > 0:
		c.violation("td-context", schema.Pointer("@context", v10), "the context of TD 1.0 must come first")
	case v10 == 0 && v11 > 1:
		c.violation("td-context", schema.Pointer("@context", v11), "the context of TD 1.1 must come second, right after that of TD 1.0")
	case v10 < 0 && v11 > 0:
		c.violation("td-context", schema.Pointer("@context", v11), "the context of TD 1.1 must come first")
	}
}

func (c *checker) checkID() {
	if id := text(c.doc["id"]); len(id) > MaxID {
		c.violation(ownLimit, "/id", "has %d bytes; an id may have %d", len(id), MaxID)
	}
}

// checkBase limits the variables of the base, and its size times the number of relative hrefs. Without the limit, the resolved addresses of
// a TD in a record of 500 bytes could take 20 MB.
func (c *checker) checkBase() {
	const most = 16
	base := text(c.doc["base"])
	switch names, ok := templateVars(base); {
	case !ok:
		c.violation("RFC 6570 §2", "/base", "an unmatched brace: %s is not a URI template", schema.Show(base))
	case len(names) > most:
		c.violation(ownLimit, "/base", "may have %d variables, has %d", most, len(names))
	case base != "" && len(base)*c.countRelative() > 4*MaxTD:
		c.violation(ownLimit, "/base", "has %d bytes, too many for so many relative addresses; make it shorter, or the addresses absolute",
			len(base))
	}
}

// countRelative returns the number of references that are resolved against the base.
func (c *checker) countRelative() int {
	n := 0
	count := func(v any) {
		if !hasScheme(text(object(v)["href"])) {
			n++
		}
	}
	c.eachForm(func(p formEntry) { count(p.form) })
	for _, link := range array(c.doc["links"]) {
		count(link)
	}
	return n
}

// checkSecurity checks that each security name is defined (TD 1.1 §5.3.3).
func (c *checker) checkSecurity() {
	defs := object(c.doc["securityDefinitions"])
	c.checkNames("/security", c.doc["security"], defs)
	c.inURI = map[string]bool{}
	variables := object(c.doc["uriVariables"])
	for name, v := range defs {
		s := object(v)
		for _, of := range []string{"oneOf", "allOf"} {
			c.checkNames(schema.Pointer("securityDefinitions", name, of), s[of], defs)
		}
		if variable := text(s["name"]); text(s["in"]) == "uri" && variable != "" {
			c.inURI[variable] = true
			if _, both := variables[variable]; both {
				c.violation("td-security-uri-variables-distinct", schema.Pointer("uriVariables", variable),
					"has the name of a variable of the security scheme %s", schema.Show(name))
			}
		}
	}
}

func (c *checker) checkNames(pointer string, v any, defs map[string]any) {
	if len(defs) == 0 { // the schema reports it once
		return
	}
	_, isList := v.([]any)
	for i, name := range texts(v) {
		if _, ok := defs[name]; ok {
			continue
		}
		at := pointer
		if isList {
			at += schema.Pointer(i)
		}
		c.violation("td-security", at, "%s is not in securityDefinitions", schema.Show(name))
	}
}

// uniqueRelations lists the link relations that may occur once (TD 1.1 §5.3.4.1).
var uniqueRelations = []string{"type", "collection", "predecessor-version"}

func (c *checker) checkLinks() {
	seen := map[string]bool{}
	for i, v := range array(c.doc["links"]) {
		rel := text(object(v)["rel"])
		if seen[rel] && slices.Contains(uniqueRelations, rel) {
			c.violation("TD 1.1 §5.3.4.1", schema.Pointer("links", i, "rel"), "a Thing Description may have one link %s", schema.Show(rel))
		}
		if rel == "tm:submodel" {
			c.violation("TD 1.1 §5.3.4.1", schema.Pointer("links", i, "rel"), `"tm:submodel" is for Thing Models only`)
		}
		seen[rel] = true
	}
}

// A formEntry is a form with its position in the TD.
type formEntry struct {
	pointer    string
	kind       string // properties, actions, events, or "" for a form of the Thing
	form       map[string]any
	affordance map[string]any // nil for a form of the Thing
}

// eachForm calls f with each form, those of affordances in the order of their names.
func (c *checker) eachForm(f func(p formEntry)) {
	for i, v := range array(c.doc["forms"]) {
		f(formEntry{schema.Pointer("forms", i), "", object(v), nil})
	}
	for _, kind := range []string{"properties", "actions", "events"} {
		all := object(c.doc[kind])
		for _, name := range sortedKeys(all) {
			a := object(all[name])
			for i, v := range array(a["forms"]) {
				f(formEntry{schema.Pointer(kind, name, "forms", i), kind, object(v), a})
			}
		}
	}
}

func (c *checker) checkForm(p formEntry) {
	c.checkNames(p.pointer+"/security", p.form["security"], object(c.doc["securityDefinitions"]))
	c.checkResponses(p)
	c.checkTemplate(p)
	if p.kind == "properties" {
		c.checkAccess(p)
	}
}

func (c *checker) checkResponses(p formEntry) {
	for i, v := range array(p.form["additionalResponses"]) {
		name, ok := object(v)["schema"].(string)
		if _, defined := object(c.doc["schemaDefinitions"])[name]; ok && !defined {
			c.violation("TD 1.1 §5.3.4.2, schema", p.pointer+schema.Pointer("additionalResponses", i, "schema"),
				"%s is not in schemaDefinitions", schema.Show(name))
		}
	}
}

// checkTemplate checks that the variables of a URI template are declared (TD 1.1 §5.3.4.2).
func (c *checker) checkTemplate(p formEntry) {
	href := text(p.form["href"])
	if !strings.ContainsAny(href, "{}") {
		return
	}
	names, ok := templateVars(href)
	if !ok {
		c.violation("RFC 6570 §2", p.pointer+"/href", "an unmatched brace: %s is not a URI template", schema.Show(href))
		return
	}
	for _, name := range names {
		if !c.declares(p, name) {
			c.violation("td-uriVariables-names", p.pointer+"/href", "the variable %s is in no uriVariables", schema.Show(name))
		}
	}
}

func (c *checker) declares(p formEntry, name string) bool {
	_, own := object(p.affordance["uriVariables"])[name]
	_, thing := object(c.doc["uriVariables"])[name]
	return own || thing || c.inURI[name]
}

// checkAccess checks the operations of a property's form against readOnly and writeOnly.
func (c *checker) checkAccess(p formEntry) {
	ops := texts(p.form["op"])
	if flag(p.affordance["readOnly"]) && slices.Contains(ops, "writeproperty") {
		c.violation("TD 1.1 §5.4, op", p.pointer+"/op", `"writeproperty" on a property that is readOnly`)
	}
	if flag(p.affordance["writeOnly"]) && slices.Contains(ops, "readproperty") {
		c.violation("TD 1.1 §5.4, op", p.pointer+"/op", `"readproperty" on a property that is writeOnly`)
	}
}

func (c *checker) checkProperty(pointer string, p map[string]any) {
	if flag(p["readOnly"]) && flag(p["writeOnly"]) {
		c.violation("TD 1.1 §5.4, op", pointer, "readOnly and writeOnly exclude each other")
	}
}
