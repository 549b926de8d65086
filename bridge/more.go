package bridge

import (
	"context"
	"encoding/json"
	"maps"
	"slices"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// MoreTools is the @type of the action of an agent that has more tools than its description has room for. Its input is an object: with
// the member tool, and arguments, the tool of that name is called, and the output is the tool's; else the output is a [MorePage], of which
// cursor asks for another than the first.
const MoreTools = "mcp:More"

// A MorePage is a part of all tools of an agent. Next is the cursor of the next; nil: there is none.
type MorePage struct {
	Tools []MoreTool `json:"tools"`
	Next  *string    `json:"nextCursor,omitempty"`
}

// A MoreTool is a tool as its agent says it. Input is a data schema; nil says nothing.
type MoreTool struct {
	Name        string         `json:"name"`
	Title       string         `json:"title,omitempty"`
	Description string         `json:"description,omitempty"`
	Input       map[string]any `json:"input,omitempty"`
}

// More returns the action of type [MoreTools] of a thing; empty if all that it has is described.
func More(t *td.Thing) string {
	for _, name := range slices.Sorted(maps.Keys(t.Actions)) {
		if slices.Contains(t.Actions[name].Types, MoreTools) {
			return name
		}
	}
	return ""
}

// Bounds of the tools of one agent.
const (
	maxMore      = 2000
	maxMorePages = 64
)

// ListMore returns all tools, by asking the action for one page after the other: ask gives it an input, and returns the output.
func ListMore(ctx context.Context, ask func(ctx context.Context, input []byte) (output []byte, err error)) (all []MoreTool, err error) {
	input := []byte("{}")
	for range maxMorePages {
		output, err := ask(ctx, input)
		if err != nil {
			return nil, err
		}
		var page MorePage
		if err := json.Unmarshal(output, &page); err != nil {
			return nil, &interact.Error{Code: interact.AgentFailed, Title: "the list of tools cannot be read", Hint: "its host is at fault", Err: err}
		}
		if all = append(all, page.Tools...); page.Next == nil || len(all) >= maxMore {
			return all[:min(len(all), maxMore)], nil
		}
		if input, err = json.Marshal(map[string]string{"cursor": *page.Next}); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Schema is the data schema of the input; nil if it says nothing that can be read.
func (t *MoreTool) Schema() *td.Schema {
	doc, err := json.Marshal(map[string]any{"title": "x", "actions": map[string]any{"x": map[string]any{"input": t.Input}}})
	if err != nil || t.Input == nil {
		return nil
	}
	if doc, err = td.Draft(doc); err != nil {
		return nil
	}
	thing, err := td.Parse(doc)
	if err != nil {
		return nil
	}
	return thing.Actions["x"].Input
}
