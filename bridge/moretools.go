package bridge

import (
	"context"
	"encoding/json"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// MoreTools is the @type of an action that lists the tools of an agent, if they do not all fit into its description. Its input is an
// object. With the members tool and arguments, the action calls that tool and returns its output. Otherwise it returns a [ToolPage]: the
// first one, or the one at the member cursor.
const MoreTools = "mcp:More"

// A ToolPage is a page of the list of tools. Next is the cursor of the next page; nil on the last page.
type ToolPage struct {
	Tools []Tool  `json:"tools"`
	Next  *string `json:"nextCursor,omitempty"`
}

// A Tool is a tool as its agent declares it. Input is a data schema; nil means any input.
type Tool struct {
	Name        string         `json:"name"`
	Title       string         `json:"title,omitempty"`
	Description string         `json:"description,omitempty"`
	Input       map[string]any `json:"input,omitempty"`
}

// MoreAction returns the name of the action of type [MoreTools] of a Thing; empty if the description has all tools.
func MoreAction(t *td.Thing) string { return ActionOfType(t, MoreTools) }

// Limits of the tools of one agent.
const (
	maxMore      = 2000
	maxMorePages = 64
)

// ListMoreTools returns all tools, at most 2,000. It calls invoke, which invokes the action, once per page. The error is that of invoke, or
// an [*interact.Error] for invalid output.
func ListMoreTools(ctx context.Context, invoke func(ctx context.Context, input []byte) (output []byte, err error)) (all []Tool, err error) {
	input := []byte("{}")
	for range maxMorePages {
		output, err := invoke(ctx, input)
		if err != nil {
			return nil, err
		}
		var page ToolPage
		if err := json.Unmarshal(output, &page); err != nil {
			return nil, &interact.Error{Code: interact.AgentFailed, Title: "invalid list of tools", Err: err,
				Hint: "report it to the operator of its host"}
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

// Schema returns the data schema of the input; nil if there is none or it is invalid.
func (t *Tool) Schema() *td.Schema {
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
