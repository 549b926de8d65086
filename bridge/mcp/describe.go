package mcp

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/yosida95/uritemplate/v3"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// namespace is the IRI of the terms for members of MCP in a Thing Description:
//
//	mcp:name                            name of a tool or prompt at the server
//	mcp:inputSchema, mcp:outputSchema   schemas of a tool, verbatim; input and output approximate them
//	mcp:destructive, mcp:openWorld      hints of a tool; readOnlyHint and idempotentHint are safe and idempotent
//	mcp:uri, mcp:uriTemplate            of a resource, which is a property
//	lmosd:visibility                    private for a server with private lists (cacheScope), which is not announced (bridge.Import.PublishPrivate)
//	mcp:omitted                         number of tools, prompts and resources that do not fit ([moreTools] lists the tools)
//	mcp:icons, mcp:meta                 of any of them, if small
//	mcp:capabilities, mcp:protocolVersions, mcp:serverInfo   of the server
const namespace = "https://lmosd.dev/ns/mcp#"

// omitted is the term for the number of omitted affordances.
const omitted = "mcp:omitted"

// Types of actions.
const (
	toolType   = "mcp:Tool"
	promptType = "mcp:Prompt"
)

// Bounds of a description, in bytes. Larger affordances are shortened, and then left out; MCP clients get all of them through the tunnel.
const (
	maxDraft      = td.MaxTD - 4<<10 // leaves room for the proof and for terms of the operator
	maxAffordance = 24 << 10
	maxText       = 4 << 10
	maxExtra      = 2 << 10 // of a verbatim member
	maxShort      = 160     // of a shortened text
	maxTitle      = 200
	formRoom      = 120 // of a form, besides the name
)

// An index maps the names in a description to those at the server.
type index struct {
	actions    map[string]callTarget
	properties map[string]resource
}

// A callTarget is a tool or a prompt.
type callTarget struct {
	prompt bool
	name   string
}

// A draft collects the parts of a description.
type draft struct {
	c     *serverFeatures
	parts []part
	index *index
	// omitted is the number of tools, prompts and resources that do not fit.
	omitted int
}

// A part is one affordance.
type part struct {
	kind, key string // "actions", "properties"
	what      string // for warnings
	full      map[string]any
	lean      map[string]any // shortened
	size      [2]int         // in bytes, full and lean
	enter     func(key string)
}

// describe returns the draft of a description of a server, and its index. Affordances that cannot be described are left out with a
// warning.
func (c *serverFeatures) describe(target string, o bridge.Import) ([]byte, *index, error) {
	d := &draft{c: c, index: &index{actions: map[string]callTarget{}, properties: map[string]resource{}}}
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
		head["actions"].(map[string]any)[moreTools] = moreAction // set by head
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

// head returns the members that describe the server itself.
func (c *serverFeatures) head(target string, o bridge.Import) map[string]any {
	name := cmp.Or(o.Name, title(c.info.Server.Title), title(c.info.Server.Name), title(target), "mcp")
	doc := map[string]any{
		"@context": []any{td.Context10, td.Context11, map[string]any{"lmos": td.ContextLMOS, "mcp": namespace}},
		"@type":    "lmos:Tool", "title": name,
		"actions": map[string]any{tunnelAction: map[string]any{"@type": bridge.MCPSession, "title": "MCP", "synchronous": true,
			"description": "Carries the Model Context Protocol, one message per line. MCP clients use it through their own node."}},
	}
	if text := cmp.Or(o.Description, clip(c.info.Instructions, maxText)); text != "" {
		doc["description"] = text
	}
	if c.private && !o.PublishPrivate {
		doc["lmosd:visibility"] = td.Private.String()
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

// actions adds the tools and the prompts.
func (d *draft) actions() {
	var all []entry
	for _, t := range d.c.tools {
		all = append(all, entry{"tool", t.Name, t.Name})
	}
	for _, p := range d.c.prompts {
		all = append(all, entry{"prompt", p.Name, p.Name})
	}
	names := keys(all, tunnelAction, moreTools)
	for i, t := range d.c.tools {
		full, lean := t.action()
		d.add(part{kind: "actions", key: names[i], what: "the tool " + t.Name, full: full, lean: lean,
			enter: func(key string) { d.index.actions[key] = callTarget{name: t.Name} }}, badTool(t))
	}
	for i, p := range d.c.prompts {
		d.add(part{kind: "actions", key: names[len(d.c.tools)+i], what: "the prompt " + p.Name, full: p.action(maxText), lean: p.action(maxShort),
			enter: func(key string) { d.index.actions[key] = callTarget{true, p.Name} }}, badPrompt(p))
	}
}

// errHidden: names with invisible or direction-changing characters could look like other names.
var errHidden = errors.New("invisible characters in the name")

func hides(name string) bool {
	return !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool {
		return unicode.Is(unicode.C, r) || unicode.Is(unicode.Zl, r) || unicode.Is(unicode.Zp, r)
	})
}

// badPrompt returns why a prompt is not callable.
func badPrompt(p prompt) error {
	switch {
	case p.Name == "":
		return errors.New("missing name")
	case hides(p.Name):
		return errHidden
	}
	return nil
}

// badTool returns why a tool is not callable.
func badTool(t tool) error {
	var in map[string]json.RawMessage
	switch {
	case t.Name == "":
		return errors.New("missing name")
	case hides(t.Name):
		return errHidden
	case len(t.Input) > 0 && string(t.Input) != "null" && json.Unmarshal(t.Input, &in) != nil:
		return fmt.Errorf("expected an object as inputSchema")
	}
	_, err := protocol.Params(t.Input)
	return err
}

// action returns the action of a tool, in full and shortened.
func (t *tool) action() (full, lean map[string]any) {
	full = t.common(toolType, maxText)
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
		maps.Copy(lean, full)
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

// open allows additional members, which an output has besides the structured content ([output]).
func open(schema map[string]any) map[string]any {
	delete(schema, "additionalProperties")
	return schema
}

// action returns the action of a prompt.
func (p *prompt) action(room int) map[string]any {
	a := p.common(promptType, room)
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

// common returns the members that tools and prompts share.
func (n *named) common(kind string, room int) map[string]any {
	a := map[string]any{"@type": kind, "mcp:name": n.Name}
	n.addTexts(a, room)
	return a
}

func (n *named) addTexts(a map[string]any, room int) {
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

// properties adds the resources and resource templates.
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

// property returns the property of a resource or template.
func (r *resource) property(key string, has capabilities, room int) (map[string]any, error) {
	observable, ops := has.Resources != nil && has.Resources.Subscribe, []string{"readproperty"}
	if observable {
		ops = append(ops, "observeproperty", "unobserveproperty")
	}
	p := map[string]any{"readOnly": true, "observable": observable, "mcp:name": r.Name, "forms": []any{map[string]any{
		"href": td.MeshHref + "/properties/" + key, "contentType": mediaOf(r.Media, plainText), "op": ops}}}
	r.addTexts(p, room)
	switch {
	case r.URI != "":
		p["mcp:uri"] = r.URI
		return p, nil
	case r.Template == "":
		return nil, fmt.Errorf("missing URI")
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

// add adds a part unless it is invalid.
func (d *draft) add(p part, bad error) {
	if bad == nil && p.key == "" {
		bad = fmt.Errorf("duplicate")
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
		p.size[i] = len(protocol.Encode(one)) + 2*len(p.key) + formRoom
	}
	if p.size[0] > maxAffordance {
		p.full, p.size[0] = p.lean, p.size[1]
	}
	if p.size[0] > maxAffordance {
		d.omitted++
		d.c.warn("%s is left out: it exceeds %d bytes", interact.Clip(p.what, maxTitle), maxAffordance)
		return
	}
	d.parts = append(d.parts, p)
}

// accepted returns why members are invalid in a description.
func accepted(members map[string]any) error {
	doc := map[string]any{"title": "x"}
	maps.Copy(doc, members)
	raw, err := json.Marshal(doc)
	if err == nil {
		raw, err = td.Draft(raw)
	}
	if err == nil {
		_, err = td.Parse(raw)
	}
	return err
}

// fit reduces the description to the available room: it shortens all affordances, and then drops the last ones.
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
	d.c.warn("the description is shortened: the limit of a Thing Description is %d bytes", td.MaxTD)
	for i := range d.parts {
		d.parts[i].full, d.parts[i].size[0] = d.parts[i].lean, d.parts[i].size[1]
	}
	all := len(d.parts)
	for n := sum(0); n > room; d.parts = d.parts[:len(d.parts)-1] {
		n -= d.parts[len(d.parts)-1].size[0]
	}
	if left := all - len(d.parts); left > 0 {
		d.omitted += left
		d.c.warn("%d of %d tools, prompts and resources are left out for lack of room; MCP clients get all of them", left, all)
	}
}

// title returns a text of a server as one line.
func title(text string) string { return clip(interact.Readable(text), maxTitle) }

// clip cuts a text to at most n bytes.
func clip(text string, n int) string {
	if !utf8.ValidString(text) {
		text = strings.ToValidUTF8(text, "\ufffd")
	}
	return interact.Clip(text, n)
}

// titleOf returns the title of a draft.
func titleOf(draft []byte) string {
	var doc struct{ Title string }
	_ = json.Unmarshal(draft, &doc) // cannot fail: generated here
	return doc.Title
}
