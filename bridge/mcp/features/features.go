// Package features maps a Thing Description to MCP tools, prompts and resources, and maps calls and results between both.
//
//	features.go  the features of a TD: tools (tool.go), prompts (prompt.go) and resources (resource.go), with unique
//	             names (names.go), schemas (schema.go) and completions (complete.go)
//	content.go   results of calls; turn.go, of turns of a conversation with an A2A agent; errors.go, of failures
//	input.go     input requests to the client, and its responses
//	task.go      tasks
//
// The package is stateless; package aggregator serves the features. Package mcp does the reverse: it imports MCP servers as Things.
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

// Features are the MCP features of a Thing. They are immutable. The zero value has none.
type Features struct {
	// Desc is the description of the Thing.
	Desc *td.Description
	// Alias is the unique short name of the Thing. It is part of the lmos: URIs.
	Alias string
	// Tools and Prompts are sorted by name, Resources and Templates by URI.
	Tools     []*Tool
	Prompts   []*Prompt
	Resources []*Resource
	Templates []*Resource
	// Omitted is the number of tools, prompts and resources that do not fit into the TD ([Features.With]).
	Omitted int

	byTool   map[string]*Tool
	byPrompt map[string]*Prompt
}

// verbatim are the terms of a TD that hold members of an MCP server unchanged.
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

// Of returns the features of a Thing. Affordances without an equivalent in MCP are left out.
func Of(d *td.Description) *Features {
	var doc struct {
		Actions    map[string]verbatim `json:"actions"`
		Properties map[string]verbatim `json:"properties"`
		Omitted    any                 `json:"mcp:omitted"`
	}
	_ = json.Unmarshal(d.Thing.Raw, &doc) // terms of another type are ignored
	f := &Features{Desc: d, Alias: aliasOf(d), byTool: map[string]*Tool{}, byPrompt: map[string]*Prompt{}}
	server := Tunnel(d.Thing) != ""
	if server {
		f.Omitted = omitted(doc.Omitted)
	}
	for _, key := range slices.Sorted(maps.Keys(d.Thing.Actions)) {
		v := doc.Actions[key]
		if !server || interact.Readable(v.Name) != v.Name {
			v.Name = ""
		}
		f.addAction(key, d.Thing.Actions[key], v)
	}
	isAgent := bridge.ActionOfType(d.Thing, bridge.A2AOperation) != ""
	for _, key := range slices.Sorted(maps.Keys(d.Thing.Properties)) {
		switch {
		case server:
			f.addResource(key, d.Thing.Properties[key], doc.Properties[key])
		case isAgent: // its property lists the tasks of this node, which are those of all callers
		default:
			f.addProperty(key, d.Thing.Properties[key])
		}
	}
	for _, key := range slices.Sorted(maps.Keys(d.Thing.Events)) {
		f.addEvent(key, d.Thing.Events[key])
	}
	slices.SortFunc(f.Tools, func(a, b *Tool) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(f.Prompts, func(a, b *Prompt) int { return strings.Compare(a.Name, b.Name) })
	byURI := func(a, b *Resource) int { return strings.Compare(a.URI+a.Template, b.URI+b.Template) }
	slices.SortFunc(f.Resources, byURI)
	slices.SortFunc(f.Templates, byURI)
	return f
}

// Renewed returns the features of d: f itself if the description is the same. The receiver may be nil.
func (f *Features) Renewed(d *td.Description) *Features {
	if f != nil && f.Desc.Record.Hash == d.Record.Hash {
		return f
	}
	return Of(d)
}

// Tool returns a tool by name; nil if there is none.
func (f *Features) Tool(name string) *Tool { return f.byTool[name] }

// Prompt returns a prompt by name; nil if there is none.
func (f *Features) Prompt(name string) *Prompt { return f.byPrompt[name] }

// ToolOf returns the tool of an action; nil if there is none.
func (f *Features) ToolOf(action string) *Tool {
	for _, t := range f.Tools {
		if t.Key == action && t.kind == interact.InvokeAction {
			return t
		}
	}
	return nil
}

// Params returns the arguments that headers repeat, by tool. Tools with invalid annotations have none: clients drop them.
func (f *Features) Params() map[string][]protocol.Param {
	all := map[string][]protocol.Param{}
	for _, t := range f.Tools {
		if params, err := protocol.Params(t.Input); err == nil && len(params) > 0 {
			all[t.Name] = params
		}
	}
	return all
}

// Tunnel returns the action that carries MCP messages; empty if the Thing is not an MCP server.
func Tunnel(t *td.Thing) string { return bridge.ActionOfType(t, bridge.MCPSession) }
