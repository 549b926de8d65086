package features

import (
	"cmp"
	"encoding/json"
	"slices"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// promptType is the @type of an action that is an MCP prompt.
const promptType = "mcp:Prompt"

// A Prompt is an action that returns messages for a model (MCP 2026-07-28, "Prompts").
type Prompt struct {
	Name        string     `json:"name"`
	Title       string     `json:"title,omitempty"`
	Description string     `json:"description,omitempty"`
	Arguments   []Argument `json:"arguments,omitempty"`

	// Key is the name of the action.
	Key string `json:"-"`
}

// An Argument is a text argument of a prompt.
type Argument struct {
	Name        string `json:"name"`
	Title       string `json:"title,omitempty"`
	Description string `json:"description,omitempty"`
	Required    bool   `json:"required,omitempty"`
}

func (f *Features) addPrompt(key string, a *td.Action, v verbatim) {
	p := &Prompt{Name: cmp.Or(v.Name, plain(key, MaxName)), Title: a.Title, Description: a.Description, Key: key}
	required := a.Input.Required()
	for _, name := range a.Input.Properties() {
		member := object(a.Input.Property(name).Value())
		title, _ := member["title"].(string)
		description, _ := member["description"].(string)
		p.Arguments = append(p.Arguments, Argument{name, title, description, slices.Contains(required, name)})
	}
	if f.byPrompt[p.Name] == nil {
		f.byPrompt[p.Name] = p
		f.Prompts = append(f.Prompts, p)
	}
}

// Under returns the name of the prompt in the aggregate, under the alias of its Thing.
func (p *Prompt) Under(alias string) string { return joined(alias, p.Name) }

// Message converts a prompts/get request to a message to the Thing, see [Tool.Message].
func (p *Prompt) Message(m *protocol.Message) (*interact.Message, *protocol.Error) {
	data, e := (&shape{}).input(m)
	if e != nil {
		return nil, e
	}
	if data == nil && len(p.Arguments) > 0 {
		data = []byte("{}")
	}
	return &interact.Message{Type: interact.InvokeAction, Name: p.Key, Data: data}, nil
}

// Result returns the result of prompts/get: the messages in the output, or the output as one message.
func (p *Prompt) Result(parts []interact.Part) map[string]any {
	out := map[string]any{"resultType": "complete"}
	if p.Description != "" {
		out["description"] = p.Description
	}
	data, media := []byte("null"), interact.JSON
	if len(parts) > 0 {
		data, media = interact.Join(parts)
	}
	b, value := blockOf(interact.Part{Data: data, ContentType: media}, "")
	var output struct {
		Description string            `json:"description"`
		Messages    []json.RawMessage `json:"messages"`
	}
	switch {
	case value != nil && json.Unmarshal(value, &output.Messages) == nil && output.Messages != nil:
		out["messages"] = output.Messages
	case value != nil && json.Unmarshal(value, &output) == nil && output.Messages != nil:
		if out["messages"] = output.Messages; output.Description != "" {
			out["description"] = output.Description
		}
	default:
		out["messages"] = []any{map[string]any{"role": "user", "content": b}}
	}
	return out
}
