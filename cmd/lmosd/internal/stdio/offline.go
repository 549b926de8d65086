package stdio

import (
	"cmp"
	"slices"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
)

// lists are the list methods, with the member of their results.
var lists = map[string]string{"tools/list": "tools", "prompts/list": "prompts", "resources/list": "resources",
	"resources/templates/list": "resourceTemplates"}

// offers are the capabilities that the node will declare.
var offers = map[string]any{"tools": changing, "prompts": changing, "resources": map[string]bool{"listChanged": true, "subscribe": true}}

var changing = map[string]bool{"listChanged": true}

// absent answers a request while no node runs, for clients that request the server capabilities only once: the server self has no tools,
// and its instructions are the hint. If met, a node ran before: then lists are not empty, and only an initialization is answered. Nil: the
// request is rejected with why.
func absent(m *protocol.Message, self protocol.Implementation, why error, met bool) *protocol.Message {
	e := interact.AsError(why)
	words := cmp.Or(e.Title, e.Error()) + ". Until then there are no tools: " + protocol.Hint(e)
	result := map[string]any{}
	switch list := lists[m.Method()]; {
	case m.Method() == protocol.Initialize:
		version := m.Text("protocolVersion")
		if !slices.Contains(protocol.LegacyRevisions, version) {
			version = protocol.Legacy
		}
		return protocol.Respond(m.ID(), map[string]any{"protocolVersion": version, "capabilities": offers, "serverInfo": self, "instructions": words})
	case m.Method() == "ping":
		return protocol.Respond(m.ID(), result)
	case m.Method() == protocol.Discover:
		result["supportedVersions"] = append([]string{protocol.Modern}, protocol.LegacyRevisions...)
		result["capabilities"], result["instructions"] = offers, words
		result["_meta"] = map[string]any{protocol.MetaServer: self}
	case list != "" && !met:
		result[list] = []any{}
	default:
		return nil
	}
	if m.IsModern() {
		result["resultType"], result["ttlMs"], result["cacheScope"] = "complete", 0, "private"
	}
	return protocol.Respond(m.ID(), result)
}
