package features

import (
	"fmt"
	"strings"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/td"
)

// maxCompleted is how many values an answer has (MCP 2026-07-28, "Completion").
const maxCompleted = 100

// Complete answers completion/complete: what the description says that an argument of a prompt, or a variable of a template, may
// be. Of tools nothing is completed: their schemas have the values, and the protocol has no reference to a tool.
func (o *Offer) Complete(m *protocol.Message) *protocol.Message {
	name := m.Text("argument", "name")
	var schema *td.Schema
	switch m.Text("ref", "type") {
	case "ref/prompt":
		p := o.byPrompt[m.Text("ref", "name")]
		if p == nil {
			return protocol.RespondError(m.ID(), protocol.Errorf(protocol.InvalidParams, "there is no such prompt"))
		}
		schema = o.Desc.Thing.Actions[p.Key].Input.Property(name)
	case "ref/resource":
		r := o.template(m.Text("ref", "uri"))
		if r == nil {
			return protocol.RespondError(m.ID(), protocol.Errorf(protocol.InvalidParams, "there is no such template"))
		}
		schema = r.vars[name]
	default:
		return protocol.RespondError(m.ID(), protocol.Errorf(protocol.InvalidParams, "a prompt or a resource is completed"))
	}
	values := begin(valuesOf(schema), m.Text("argument", "value"))
	shown := values[:min(len(values), maxCompleted)]
	return protocol.Respond(m.ID(), map[string]any{"resultType": "complete",
		"completion": map[string]any{"values": shown, "total": len(values), "hasMore": len(shown) < len(values)}})
}

// template returns the template that is spelled so, or that a URI is of.
func (o *Offer) template(uri string) *Resource {
	for _, r := range o.Templates {
		if r.Template == uri {
			return r
		}
	}
	if r := o.Resource(uri); r != nil && r.Template != "" {
		return r
	}
	return nil
}

// valuesOf are the values that a schema allows, if it names them, as they are typed.
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

// begin are those of all that begin with a word, in capitals or not.
func begin(all []string, word string) []string {
	some := []string{}
	for _, v := range all {
		if len(v) >= len(word) && strings.EqualFold(v[:len(word)], word) {
			some = append(some, v)
		}
	}
	return some
}
