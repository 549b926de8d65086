package features

import (
	"fmt"
	"strings"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/td"
)

// maxCompleted bounds the values of a completion (MCP 2026-07-28, "Completion").
const maxCompleted = 100

// Complete responds to completion/complete with the values that the TD allows for an argument of a prompt or a variable of a resource
// template. Tools have no completion in MCP.
func (f *Features) Complete(m *protocol.Message) *protocol.Message {
	name := m.Text("argument", "name")
	var schema *td.Schema
	switch m.Text("ref", "type") {
	case "ref/prompt":
		p := f.byPrompt[m.Text("ref", "name")]
		if p == nil {
			return protocol.RespondError(m.ID(), protocol.Errorf(protocol.InvalidParams, "unknown prompt"))
		}
		schema = f.Desc.Thing.Actions[p.Key].Input.Property(name)
	case "ref/resource":
		r := f.templateOf(m.Text("ref", "uri"))
		if r == nil {
			return protocol.RespondError(m.ID(), protocol.Errorf(protocol.InvalidParams, "unknown resource template"))
		}
		schema = r.vars[name]
	default:
		return protocol.RespondError(m.ID(), protocol.Errorf(protocol.InvalidParams, "expected a reference to a prompt or a resource"))
	}
	values := withPrefix(valuesOf(schema), m.Text("argument", "value"))
	shown := values[:min(len(values), maxCompleted)]
	return protocol.Respond(m.ID(), map[string]any{"resultType": "complete",
		"completion": map[string]any{"values": shown, "total": len(values), "hasMore": len(shown) < len(values)}})
}

// templateOf returns the resource template with the URI template or a matching URI.
func (f *Features) templateOf(uri string) *Resource {
	for _, r := range f.Templates {
		if r.Template == uri {
			return r
		}
	}
	if r := f.Resource(uri); r != nil && r.Template != "" {
		return r
	}
	return nil
}

// valuesOf returns the values that a schema enumerates, as text.
func valuesOf(s *td.Schema) (all []string) {
	if s == nil {
		return nil
	}
	for _, v := range s.Enum() {
		all = append(all, fmt.Sprint(v))
	}
	if all == nil && s.Type() == "boolean" {
		all = []string{"true", "false"}
	}
	return all
}

// withPrefix returns the values that begin with a prefix, without regard to case.
func withPrefix(all []string, prefix string) []string {
	matching := []string{} // never null
	for _, v := range all {
		if len(v) >= len(prefix) && strings.EqualFold(v[:len(prefix)], prefix) {
			matching = append(matching, v)
		}
	}
	return matching
}
