// Package offer says a thing of the mesh in the words of MCP, without serving it:
//
//	offer.go     what its description offers: tools (tool.go), prompts (prompt.go) and resources (resource.go), under names that are
//	             theirs alone (names.go), with schemas (schema.go) and values that complete an argument (complete.go)
//	content.go   what came of a call, as the result; turn.go, of a turn of a conversation with an A2A agent; errors.go, of a failure
//	input.go     what a run wants to know, as its client is asked, and the answers
//	task.go      how a run stands, as a task
//
// All of it is of values, and keeps nothing: package facade serves it. Package mcp has the way back, servers of MCP as things.
//
// Sources: MCP 2026-07-28, "Tools", "Prompts", "Resources", "Completion", "Elicitation", "Sampling", "Roots", "Multi round-trip
// requests", extension "Tasks"; WoT Thing Description 1.1.
package features

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// An Offer is what a thing offers, in the words of MCP. It is read-only. The zero value offers nothing.
type Offer struct {
	// Desc is what it was made of.
	Desc *td.Description
	// Alias is the short name of the thing, which no other has. It is in the URIs of what is a resource here only.
	Alias string
	// Tools and Prompts are in the order of their names, Resources and Templates in that of their URIs.
	Tools     []*Tool
	Prompts   []*Prompt
	Resources []*Resource
	Templates []*Resource
	// Omitted is how many tools, prompts and resources a server has that its description has no room for. What is here may not be all then
	// ([Offer.With]).
	Omitted int

	byTool   map[string]*Tool
	byPrompt map[string]*Prompt
}

// verbatim is what a description keeps of an MCP server as that says it.
type verbatim struct {
	Name        string          `json:"mcp:name"`
	Input       json.RawMessage `json:"mcp:inputSchema"`
	Output      json.RawMessage `json:"mcp:outputSchema"`
	URI         string          `json:"mcp:uri"`
	Template    string          `json:"mcp:uriTemplate"`
	Destructive *bool           `json:"mcp:destructive"`
	OpenWorld   *bool           `json:"mcp:openWorld"`
	Skill       string          `json:"a2a:skill"`
}

// Of reads a description. What cannot be said in MCP is left out.
func Of(d *td.Description) *Offer {
	var doc struct {
		Actions    map[string]verbatim `json:"actions"`
		Properties map[string]verbatim `json:"properties"`
		Omitted    any                 `json:"mcp:omitted"`
	}
	_ = json.Unmarshal(d.Thing.Raw, &doc) // it is a description; a term that is something else is left out
	o := &Offer{Desc: d, Alias: aliasOf(d), byTool: map[string]*Tool{}, byPrompt: map[string]*Prompt{}}
	server := Tunnel(d.Thing) != ""
	if server {
		o.Omitted = omitted(doc.Omitted)
	}
	for _, key := range slices.Sorted(maps.Keys(d.Thing.Actions)) {
		v := doc.Actions[key]
		if !server || interact.Readable(v.Name) != v.Name {
			v.Name = ""
		}
		o.addAction(key, d.Thing.Actions[key], v)
	}
	talks := speaksA2A(d.Thing)
	for _, key := range slices.Sorted(maps.Keys(d.Thing.Properties)) {
		switch {
		case server:
			o.addResource(key, d.Thing.Properties[key], doc.Properties[key])
		case talks: // it is the tasks of this node, whoever asked for them
		default:
			o.addProperty(key, d.Thing.Properties[key])
		}
	}
	for _, key := range slices.Sorted(maps.Keys(d.Thing.Events)) {
		o.addEvent(key, d.Thing.Events[key])
	}
	slices.SortFunc(o.Tools, func(a, b *Tool) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(o.Prompts, func(a, b *Prompt) int { return strings.Compare(a.Name, b.Name) })
	byURI := func(a, b *Resource) int { return strings.Compare(a.URI+a.Template, b.URI+b.Template) }
	slices.SortFunc(o.Resources, byURI)
	slices.SortFunc(o.Templates, byURI)
	return o
}

// Renewed is what d offers: o if that was made of the same description, else it is made anew. A nil offer is of none.
func (o *Offer) Renewed(d *td.Description) *Offer {
	if o != nil && o.Desc.Record.Hash == d.Record.Hash {
		return o
	}
	return Of(d)
}

// Tool returns the tool of that name; nil if there is none.
func (o *Offer) Tool(name string) *Tool { return o.byTool[name] }

// Prompt returns the prompt of that name; nil if there is none.
func (o *Offer) Prompt(name string) *Prompt { return o.byPrompt[name] }

// ToolOf returns the tool that an action is; nil if it is none.
func (o *Offer) ToolOf(action string) *Tool {
	for _, t := range o.Tools {
		if t.Key == action && t.kind == interact.InvokeAction {
			return t
		}
	}
	return nil
}

// Params are the arguments that headers repeat, by tool. A tool whose schema says it in a wrong way has none: clients drop it.
func (o *Offer) Params() map[string][]protocol.Param {
	all := map[string][]protocol.Param{}
	for _, t := range o.Tools {
		if params, err := protocol.Params(t.Input); err == nil && len(params) > 0 {
			all[t.Name] = params
		}
	}
	return all
}

// Tunnel returns the action of a thing that carries MCP; empty for a thing that is no MCP server.
func Tunnel(t *td.Thing) string {
	for _, key := range slices.Sorted(maps.Keys(t.Actions)) {
		if slices.Contains(t.Actions[key].Types, bridge.MCPSession) {
			return key
		}
	}
	return ""
}

// speaksA2A reports whether a thing is an A2A agent.
func speaksA2A(t *td.Thing) bool {
	for _, a := range t.Actions {
		if slices.Contains(a.Types, bridge.A2AOperation) {
			return true
		}
	}
	return false
}
