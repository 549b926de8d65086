package mcp

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
)

// moreTools is the action of a server with more tools than its description contains. It lists all current tools in pages, or calls one. MCP
// clients use the tunnel instead.
const moreTools = "mcp-more"

// moreRoom is the size of the action in a description, in bytes.
const moreRoom = 2 << 10

// moreAction is the description of the action.
var moreAction = json.RawMessage(`{"@type":"` + bridge.MoreTools + `","title":"More tools",
 "description":"Lists all tools of the server, page by page, or calls the one that is named: the description has no room for all.",
 "input":{"type":"object","properties":{"tool":{"type":"string"},"arguments":{"type":"object"},"cursor":{"type":"string"}}},"output":{}}`)

type moreInput struct {
	Tool      string          `json:"tool"`
	Arguments json.RawMessage `json:"arguments"`
	Cursor    *string         `json:"cursor"`
}

func moreInputOf(m *interact.Message) (w moreInput, err error) {
	data, err := arguments(m)
	if err != nil {
		return w, err
	}
	if json.Unmarshal(data, &w) != nil || len(w.Arguments) > 0 && w.Arguments[0] != '{' {
		return w, interact.Errorf(interact.Invalid, `for example {"tool":"name","arguments":{}}`,
			"expected a tool with its arguments, or a cursor, as the input of %s", moreTools)
	}
	return w, nil
}

// more handles the action.
func (s *server) more(ctx context.Context, m *interact.Message, yield func(*interact.Message, error) bool) (*interact.Message, error) {
	w, err := moreInputOf(m)
	if err != nil {
		return nil, err
	}
	if w.Tool != "" {
		if len(w.Arguments) == 0 {
			w.Arguments = json.RawMessage("{}")
		}
		return s.callFeature(ctx, m, callTarget{name: w.Tool}, w.Arguments, yield)
	}
	params := map[string]any{}
	if w.Cursor != nil {
		params["cursor"] = *w.Cursor
	}
	r, err := s.send(ctx, protocol.ListTools, params, m, map[string]any{}, nil)
	if err != nil {
		return nil, err
	}
	page := bridge.ToolPage{Tools: []bridge.Tool{}}
	c := &serverFeatures{info: s.info.Load()}
	raw, _ := r.InResult("tools")
	for _, t := range readAll[tool](c, protocol.ListTools, raw) {
		if badTool(t) == nil {
			page.Tools = append(page.Tools, bridge.Tool{Name: t.Name, Title: title(t.Title), Description: clip(t.Description, maxText),
				Input: dataSchema(t.Input)})
		}
	}
	if raw, _ := r.InResult("nextCursor"); raw != nil && string(raw) != "null" {
		page.Next = new(string)
		if json.Unmarshal(raw, page.Next) != nil {
			return nil, fmt.Errorf("malformed cursor of the server: %w", protocol.Errorf(protocol.InternalError, "%.64s", raw))
		}
	}
	text, err := json.Marshal(page)
	if err != nil {
		return nil, err
	}
	return completed(m, value{data: text}), nil
}
