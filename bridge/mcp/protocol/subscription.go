package protocol

import (
	"encoding/json"
	"slices"
)

// MaxURIs bounds the resources, and the tasks, of one subscription.
const MaxURIs = 256

// A Filter selects the notifications of a subscription (MCP 2026-07-28, "Subscriptions").
type Filter struct {
	Tools     bool     `json:"toolsListChanged,omitempty"`
	Prompts   bool     `json:"promptsListChanged,omitempty"`
	Resources bool     `json:"resourcesListChanged,omitempty"`
	URIs      []string `json:"resourceSubscriptions,omitempty"`
	Tasks     []string `json:"taskIds,omitempty"`
}

// Filter returns the filter of the listen request m. The error has the code [InvalidParams].
func (m *Message) Filter() (f Filter, _ *Error) {
	raw, err := m.Param("notifications")
	if err != nil || raw == nil || json.Unmarshal(raw, &f) != nil || len(f.URIs) > MaxURIs || len(f.Tasks) > MaxURIs {
		return f, Errorf(InvalidParams, "expected an object as notifications, with at most %d resources and tasks each", MaxURIs)
	}
	return f, nil
}

// Matches reports whether f selects a notification of a changed list or resource.
func (f *Filter) Matches(n *Message) bool {
	switch n.Method() {
	case ToolsChanged:
		return f.Tools
	case PromptsChanged:
		return f.Prompts
	case ResourcesChanged:
		return f.Resources
	case ResourceUpdated:
		return slices.Contains(f.URIs, n.Text("uri"))
	}
	return false
}

// Notification returns a notification for the subscription of the listen request m. It sets the _meta of params.
func (m *Message) Notification(method string, params map[string]any) *Message {
	params["_meta"] = map[string]any{MetaSubscription: json.RawMessage(m.ID())}
	return Request("", method, params)
}

// Acknowledgment returns the first notification for the listen request m: the filter that the server supports.
func (m *Message) Acknowledgment(f Filter) *Message {
	return m.Notification(Acknowledged, map[string]any{"notifications": f})
}

// EndSubscription returns the response to the listen request m, with which the server ends the subscription.
func (m *Message) EndSubscription() *Message {
	return Respond(m.ID(), map[string]any{"resultType": "complete", "_meta": map[string]any{MetaSubscription: json.RawMessage(m.ID())}})
}
