package mcp

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/yosida95/uritemplate/v3"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// Namespace is the IRI of the terms that say in a description what is MCP's own:
//
//	mcp:name                            what the server calls a tool or a prompt
//	mcp:inputSchema, mcp:outputSchema   a tool's, as the server wrote them; input and output are as near as a data schema comes
//	mcp:destructive, mcp:openWorld      hints of a tool; readOnlyHint and idempotentHint are safe and idempotent
//	mcp:uri, mcp:uriTemplate            of a resource, which is a property
//	lmosd:unlisted                       true of a server whose lists are private (cacheScope): its node tells nobody of it (bridge.Import.PublishPrivate)
//	mcp:omitted                         how many tools, prompts and resources a description has no room for ([More] lists the tools)
//	mcp:icons, mcp:meta                 of any of them, if they are small
//	mcp:capabilities, mcp:protocolVersions, mcp:serverInfo   of the server
const Namespace = "https://lmosd.dev/ns/mcp#"

// omitted is the term that says how much is not described.
const omitted = "mcp:omitted"

// Types of actions.
const (
	toolType   = "mcp:Tool"
	promptType = "mcp:Prompt"
)

// Bounds of a description, in bytes. What is larger is said with fewer words, and what is still larger is left out: MCP clients see
// all of it through the tunnel.
const (
	maxDraft      = td.MaxTD - 4<<10 // room for the proof, and for what the operator adds
	maxAffordance = 24 << 10
	maxText       = 4 << 10
	maxExtra      = 2 << 10 // of what is passed on as it is
	maxShort      = 160     // of a text where room is short
	maxTitle      = 200
	formRoom      = 120 // of a form, beside the name
)

// An index leads from the names of a description to what the server calls them.
type index struct {
	actions    map[string]called
	properties map[string]resource
}

// A called thing is a tool or a prompt.
type called struct {
	prompt bool
	name   string
}

// A draft grows to a description.
type draft struct {
	c     *catalogue
	parts []part
	index *index
	// omitted is how many tools, prompts and resources there is no room for.
	omitted int
}

// A part is one affordance.
type part struct {
	kind, key string // "actions", "properties"
	what      string // for warnings
	full      map[string]any
	lean      map[string]any // with fewer words
	size      [2]int         // in bytes, full and lean
	enter     func(key string)
}

// describe makes the draft of a description of what a server offers, and the index to it. What cannot be described is left out, with a
// warning of the catalogue.
func (c *catalogue) describe(target string, o bridge.Import) ([]byte, *index, error) {
	d := &draft{c: c, index: &index{actions: map[string]called{}, properties: map[string]resource{}}}
	d.actions()
	d.properties()
	head := c.head(target, o)
	raw, err := json.Marshal(head)
	if err != nil {
		return nil, nil, interact.AsError(err)
	}
	d.fit(maxDraft - len(raw))
	if d.omitted > 0 {
		head[omitted] = d.omitted
		head["actions"].(map[string]any)[More] = moreAction // which head made
	}
	for _, p := range d.parts {
		all, _ := head[p.kind].(map[string]any)
		if all == nil {
			all = map[string]any{}
			head[p.kind] = all
		}
		all[p.key] = p.full
		p.enter(p.key)
	}
	doc, err := json.Marshal(head)
	return doc, d.index, err
}

// head is what is said of the server itself.
func (c *catalogue) head(target string, o bridge.Import) map[string]any {
	name := cmp.Or(o.Name, title(c.info.Server.Title), title(c.info.Server.Name), title(target), "mcp")
	doc := map[string]any{
		"@context": []any{td.Context10, td.Context11, map[string]any{"lmos": td.ContextLMOS, "mcp": Namespace}},
		"@type":    "lmos:Tool", "title": name,
		"actions": map[string]any{Tunnel: map[string]any{"@type": bridge.MCPSession, "title": "MCP", "synchronous": true,
			"description": "Carries the Model Context Protocol, one message a line. MCP clients use it through their own node."}},
	}
	if text := cmp.Or(o.Description, clip(c.info.Instructions, maxText)); text != "" {
		doc["description"] = text
	}
	if c.private && !o.PublishPrivate {
		doc["lmosd:unlisted"] = true
	}
	var caps []any
	for _, id := range o.Capabilities {
		caps = append(caps, map[string]any{"id": id, "name": id})
	}
	if len(caps) > 0 {
		doc["lmos:capabilities"] = caps
	}
	if v := c.info.Server.Version; v != "" {
		doc["version"] = map[string]any{"instance": clip(v, 64)}
	}
	for key, path := range map[string][]string{"mcp:capabilities": {"capabilities"}, "mcp:protocolVersions": {"supportedVersions"},
		"mcp:serverInfo": {"_meta", protocol.MetaServer}} {
		raw := json.RawMessage(nil)
		if r, err := protocol.Parse([]byte(`{"jsonrpc":"2.0","id":1,"result":` + string(c.info.Discovered) + `}`)); err == nil {
			raw, _ = r.InResult(path...)
		}
		if len(raw) > 0 && len(raw) <= maxExtra && accepted(map[string]any{key: raw}) == nil {
			doc[key] = raw
		}
	}
	return doc
}

// actions are the tools and the prompts.
func (d *draft) actions() {
	var all []entry
	for _, t := range d.c.tools {
		all = append(all, entry{"tool", t.Name, t.Name})
	}
	for _, p := range d.c.prompts {
		all = append(all, entry{"prompt", p.Name, p.Name})
	}
	names := keys(all, Tunnel, More)
	for i, t := range d.c.tools {
		full, lean := t.action()
		d.add(part{kind: "actions", key: names[i], what: "the tool " + t.Name, full: full, lean: lean,
			enter: func(key string) { d.index.actions[key] = called{name: t.Name} }}, badTool(t))
	}
	for i, p := range d.c.prompts {
		d.add(part{kind: "actions", key: names[len(d.c.tools)+i], what: "the prompt " + p.Name, full: p.action(maxText), lean: p.action(maxShort),
			enter: func(key string) { d.index.actions[key] = called{true, p.Name} }}, badPrompt(p))
	}
}

// errHidden is of a name with control characters, characters of no width, or such that turn the direction of text: two names that are
// not the same would look the same.
var errHidden = errors.New("its name has characters that nobody sees")

func hides(name string) bool {
	return !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool {
		return unicode.Is(unicode.C, r) || unicode.Is(unicode.Zl, r) || unicode.Is(unicode.Zp, r)
	})
}

// badPrompt says why a prompt cannot be called.
func badPrompt(p prompt) error {
	switch {
	case p.Name == "":
		return errors.New("it has no name")
	case hides(p.Name):
		return errHidden
	}
	return nil
}

// badTool says why a tool cannot be called.
func badTool(t tool) error {
	var in map[string]json.RawMessage
	switch {
	case t.Name == "":
		return errors.New("it has no name")
	case hides(t.Name):
		return errHidden
	case len(t.Input) > 0 && string(t.Input) != "null" && json.Unmarshal(t.Input, &in) != nil:
		return fmt.Errorf("its inputSchema is no object")
	}
	_, err := protocol.Params(t.Input)
	return err
}

// action is a tool in full, and with fewer words.
func (t *tool) action() (full, lean map[string]any) {
	full = t.say(toolType, maxText)
	full["safe"], full["idempotent"] = t.Annotations.ReadOnly, t.Annotations.ReadOnly || t.Annotations.Idempotent
	full["input"] = map[string]any{"type": "object"}
	if t.Title == "" && t.Annotations.Title != "" {
		full["title"] = title(t.Annotations.Title)
	}
	if v := t.Annotations.Destructive; v != nil {
		full["mcp:destructive"] = *v
	}
	if v := t.Annotations.OpenWorld; v != nil {
		full["mcp:openWorld"] = *v
	}
	lean = map[string]any{}
	if in := dataSchema(t.Input); in != nil {
		full["mcp:inputSchema"] = t.Input
		for key, v := range full {
			lean[key] = v
		}
		if in["type"] == nil {
			in["type"] = "object"
		}
		full["input"] = in
	}
	for key, v := range full {
		if lean[key] == nil {
			lean[key] = v
		}
	}
	for _, key := range []string{"mcp:icons", "mcp:meta"} {
		delete(lean, key)
	}
	if text, ok := full["description"].(string); ok {
		lean["description"] = clip(text, maxShort)
	}
	if out := dataSchema(t.Output); out != nil {
		full["output"], full["mcp:outputSchema"] = open(out), t.Output
	}
	return full, lean
}

// open lets an object have members beside those of its schema: what a result has beside its structured content ([output]).
func open(schema map[string]any) map[string]any {
	delete(schema, "additionalProperties")
	return schema
}

// action is a prompt.
func (p *prompt) action(room int) map[string]any {
	a := p.say(promptType, room)
	a["safe"], a["idempotent"], a["synchronous"] = true, true, true
	properties, required := map[string]any{}, []string{}
	for _, arg := range p.Arguments {
		s := map[string]any{"type": "string"}
		if arg.Title != "" {
			s["title"] = title(arg.Title)
		}
		if arg.Description != "" {
			s["description"] = clip(arg.Description, room)
		}
		if properties[arg.Name] = s; arg.Required {
			required = append(required, arg.Name)
		}
	}
	input := map[string]any{"type": "object", "properties": properties}
	if len(required) > 0 {
		input["required"] = required
	}
	a["input"] = input
	a["output"] = map[string]any{"type": "object", "properties": map[string]any{"messages": map[string]any{"type": "array"}}}
	return a
}

// say is what tools and prompts have in common.
func (n *named) say(kind string, room int) map[string]any {
	a := map[string]any{"@type": kind, "mcp:name": n.Name}
	n.words(a, room)
	return a
}

func (n *named) words(a map[string]any, room int) {
	if n.Title != "" {
		a["title"] = title(n.Title)
	}
	if n.Description != "" {
		a["description"] = clip(n.Description, room)
	}
	for key, raw := range map[string]json.RawMessage{"mcp:icons": n.Icons, "mcp:meta": n.Meta} {
		if len(raw) > 0 && len(raw) <= maxExtra && room == maxText && string(raw) != "null" {
			a[key] = raw
		}
	}
}

// properties are the resources and their templates.
func (d *draft) properties() {
	var all []entry
	list := append(append([]resource{}, d.c.resources...), d.c.templates...)
	for _, r := range list {
		all = append(all, entry{"resource", cmp.Or(r.Name, r.URI, r.Template), cmp.Or(r.URI, r.Template)})
	}
	for i, key := range keys(all) {
		r := list[i]
		full, err := r.property(key, d.c.caps, maxText)
		lean, _ := r.property(key, d.c.caps, maxShort)
		d.add(part{kind: "properties", key: key, what: "the resource " + cmp.Or(r.URI, r.Template), full: full, lean: lean,
			enter: func(key string) { d.index.properties[key] = r }}, err)
	}
}

// property is a resource, or a template of resources.
func (r *resource) property(key string, has abilities, room int) (map[string]any, error) {
	observable, ops := has.Resources != nil && has.Resources.Subscribe, []string{"readproperty"}
	if observable {
		ops = append(ops, "observeproperty", "unobserveproperty")
	}
	p := map[string]any{"readOnly": true, "observable": observable, "mcp:name": r.Name, "forms": []any{map[string]any{
		"href": td.MeshHref + "/properties/" + key, "contentType": mediaOf(r.Media, plainText), "op": ops}}}
	r.words(p, room)
	switch {
	case r.URI != "":
		p["mcp:uri"] = r.URI
		return p, nil
	case r.Template == "":
		return nil, fmt.Errorf("it has no URI")
	}
	t, err := uritemplate.New(r.Template)
	if err != nil {
		return nil, err
	}
	variables := map[string]any{}
	for _, name := range t.Varnames() {
		variables[name] = map[string]any{"type": "string"}
	}
	p["mcp:uriTemplate"] = r.Template
	if len(variables) > 0 {
		p["uriVariables"] = variables
	}
	return p, nil
}

// add takes a part up, unless it is bad.
func (d *draft) add(p part, bad error) {
	if bad == nil && p.key == "" {
		bad = fmt.Errorf("it is there twice")
	}
	for _, one := range []*map[string]any{&p.full, &p.lean} {
		if bad == nil {
			bad = accepted(map[string]any{p.kind: map[string]any{p.key: *one}})
		}
	}
	if bad != nil {
		d.c.warn("%s is left out: %v", interact.Clip(p.what, maxTitle), bad)
		return
	}
	for i, one := range []map[string]any{p.full, p.lean} {
		raw, _ := json.Marshal(one) // it was accepted
		p.size[i] = len(raw) + 2*len(p.key) + formRoom
	}
	if p.size[0] > maxAffordance {
		p.full, p.size[0] = p.lean, p.size[1]
	}
	if p.size[0] > maxAffordance {
		d.omitted++
		d.c.warn("%s is left out: it has more than %d bytes", interact.Clip(p.what, maxTitle), maxAffordance)
		return
	}
	d.parts = append(d.parts, p)
}

// accepted reports why members cannot be part of a description.
func accepted(members map[string]any) error {
	doc := map[string]any{"title": "x"}
	for key, v := range members {
		doc[key] = v
	}
	raw, err := json.Marshal(doc)
	if err == nil {
		raw, err = td.Draft(raw)
	}
	if err == nil {
		_, err = td.Parse(raw)
	}
	return err
}

// fit makes room: first with fewer words, then without what came last.
func (d *draft) fit(room int) {
	sum := func(i int) (n int) {
		for _, p := range d.parts {
			n += p.size[i]
		}
		return n
	}
	if d.omitted > 0 {
		room -= moreRoom
	}
	if sum(0) <= room {
		return
	}
	if d.omitted == 0 {
		room -= moreRoom
	}
	d.c.warn("the description is shortened: a Thing Description has %d bytes at most", td.MaxTD)
	for i := range d.parts {
		d.parts[i].full, d.parts[i].size[0] = d.parts[i].lean, d.parts[i].size[1]
	}
	all := len(d.parts)
	for n := sum(0); n > room; d.parts = d.parts[:len(d.parts)-1] {
		n -= d.parts[len(d.parts)-1].size[0]
	}
	if left := all - len(d.parts); left > 0 {
		d.omitted += left
		d.c.warn("%d of %d tools, prompts and resources are left out, for want of room; MCP clients have all of them", left, all)
	}
}

// title is a text of a server as a title: one line.
func title(text string) string { return clip(interact.Readable(text), maxTitle) }

// clip cuts a text to at most n bytes.
func clip(text string, n int) string {
	if !utf8.ValidString(text) {
		text = strings.ToValidUTF8(text, "\ufffd")
	}
	return interact.Clip(text, n)
}

// titleOf is the title of a draft.
func titleOf(draft []byte) string {
	var doc struct{ Title string }
	_ = json.Unmarshal(draft, &doc) // it was just made
	return doc.Title
}
