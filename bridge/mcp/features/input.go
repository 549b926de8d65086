package features

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
)

// capabilities are the client capabilities in a request.
type capabilities struct {
	Elicitation *struct {
		Form, URL *struct{}
	} `json:"elicitation"`
	Sampling   *struct{}                  `json:"sampling"`
	Roots      *struct{}                  `json:"roots"`
	Extensions map[string]json.RawMessage `json:"extensions"`
}

func capabilitiesOf(m *protocol.Message) (c capabilities) {
	if raw, err := m.Param("_meta", protocol.MetaCapabilities); err == nil {
		_ = json.Unmarshal(raw, &c) // malformed capabilities are absent ones
	}
	return c
}

func (c *capabilities) tasks() bool { return c.Extensions[protocol.Tasks] != nil }

// form reports whether the client supports forms. An elicitation capability without members means forms.
func (c *capabilities) form() bool {
	return c.Elicitation != nil && (c.Elicitation.Form != nil || c.Elicitation.URL == nil)
}
func (c *capabilities) url() bool { return c.Elicitation != nil && c.Elicitation.URL != nil }

// NeedTasks returns an error if the client of a request does not support tasks; otherwise nil.
func NeedTasks(m *protocol.Message) *protocol.Error {
	if can := capabilitiesOf(m); can.tasks() {
		return nil
	}
	return protocol.Errorf(protocol.MissingCapability, "the client does not support the Tasks extension").With(map[string]any{
		"requiredCapabilities": map[string]any{"extensions": map[string]any{protocol.Tasks: struct{}{}}}})
}

// An InputRequest is a request to the client (MCP 2026-07-28, "Multi round-trip requests").
type InputRequest struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params,omitempty"`
}

// Members of generated forms.
const (
	textMember = "message"
	jsonMember = "json"
)

// Requests converts inputs to requests to the client of m. The error is [protocol.MissingCapability] if the client does not support one
// of them.
func Requests(in interact.Inputs, m *protocol.Message) (map[string]InputRequest, *protocol.Error) {
	can, out := capabilitiesOf(m), map[string]InputRequest{}
	for _, key := range slices.Sorted(maps.Keys(in)) {
		one := in[key]
		r, ok, lacks := requestFor(one, can)
		if !ok {
			return nil, protocol.Errorf(protocol.MissingCapability, "the client does not support this input request: %s",
				interact.Clip(one.Message, 256)).With(map[string]any{"requiredCapabilities": lacks})
		}
		out[key] = r
	}
	return out, nil
}

func requestFor(in interact.Input, can capabilities) (r InputRequest, ok bool, lacks map[string]any) {
	none := struct{}{}
	switch in.Kind {
	case interact.InputModel:
		return InputRequest{protocol.Sample, orEmpty(in.Params)}, can.Sampling != nil, map[string]any{"sampling": none}
	case interact.InputRoots:
		return InputRequest{protocol.ListRoots, in.Params}, can.Roots != nil, map[string]any{"roots": none}
	case interact.InputURL:
		r = InputRequest{protocol.Elicit, in.Params}
		if !isElicitation(in.Params, "url") {
			r.Params = protocol.Encode(map[string]any{"mode": "url", "message": in.Message, "url": in.URL})
		}
		return r, can.url(), map[string]any{"elicitation": map[string]any{"url": none}}
	}
	r = InputRequest{protocol.Elicit, in.Params}
	if in.Kind != interact.InputForm || !isElicitation(in.Params, "form") {
		r.Params = protocol.Encode(map[string]any{"mode": "form", "message": in.Message, "requestedSchema": formOf(in)})
	}
	return r, can.form(), map[string]any{"elicitation": map[string]any{"form": none}}
}

// isElicitation reports whether the verbatim params of an input are those of an elicitation. Inputs of agents of other protocols have
// other params.
func isElicitation(params json.RawMessage, mode string) bool {
	var p struct {
		Mode    string
		Message *string
		URL     *string         `json:"url"`
		Schema  json.RawMessage `json:"requestedSchema"`
	}
	if json.Unmarshal(params, &p) != nil || p.Message == nil || (p.Mode != mode && (p.Mode != "" || mode != "form")) {
		return false
	}
	return mode == "url" && p.URL != nil || mode == "form" && len(p.Schema) > 0
}

func orEmpty(object json.RawMessage) json.RawMessage {
	if len(object) == 0 {
		return json.RawMessage("{}")
	}
	return object
}

// formOf returns the form for an input: its schema if clients can render it, otherwise one field for text or JSON.
func formOf(in interact.Input) any {
	field := func(name, description string) any {
		return map[string]any{"type": "object", "required": []string{name},
			"properties": map[string]any{name: map[string]any{"type": "string", "description": description}}}
	}
	switch {
	case in.Kind == interact.InputMessage:
		return field(textMember, "the answer")
	case isFlat(in.Schema):
		return in.Schema
	case len(in.Schema) == 0:
		return map[string]any{"type": "object", "properties": struct{}{}}
	}
	return field(jsonMember, interact.Clip("JSON that matches "+string(in.Schema), MaxText))
}

// Answers parses the inputResponses of m. It returns the answers and the inputs that are still open. Unknown keys are ignored.
func Answers(open interact.Inputs, m *protocol.Message) (interact.Answers, interact.Inputs, *protocol.Error) {
	given := map[string]json.RawMessage{}
	if raw, _ := m.Param("inputResponses"); raw != nil && json.Unmarshal(raw, &given) != nil {
		return nil, nil, protocol.Errorf(protocol.InvalidParams, "expected an object as inputResponses")
	}
	answers, left := interact.Answers{}, interact.Inputs{}
	for key, in := range open {
		response, ok := given[key]
		if !ok {
			left[key] = in
			continue
		}
		a, e := answerTo(in, response)
		if e != nil {
			return nil, nil, e
		}
		answers[key] = a
	}
	return answers, left, nil
}

// answerTo parses the response to one input.
func answerTo(in interact.Input, response json.RawMessage) (a interact.Answer, _ *protocol.Error) {
	bad := protocol.Errorf(protocol.InvalidParams, "malformed input response")
	if in.Kind == interact.InputModel || in.Kind == interact.InputRoots {
		return interact.Answer{Action: interact.Accept, Content: response}, nil
	}
	if json.Unmarshal(response, &a) != nil || !slices.Contains([]string{interact.Accept, interact.Decline, interact.Dismiss}, a.Action) {
		return a, bad
	}
	if a.Action != interact.Accept || in.Kind == interact.InputURL {
		a.Content = nil
		return a, nil
	}
	var fields map[string]json.RawMessage
	if len(a.Content) > 0 && json.Unmarshal(a.Content, &fields) != nil {
		return a, bad
	}
	var text string
	switch {
	case in.Kind == interact.InputMessage:
		a.Content = fields[textMember]
	case len(in.Schema) > 0 && !isElicitation(in.Params, "form") && !isFlat(in.Schema):
		if json.Unmarshal(fields[jsonMember], &text) != nil || !json.Valid([]byte(text)) {
			return a, protocol.Errorf(protocol.InvalidParams, "expected JSON in the input response")
		}
		a.Content = json.RawMessage(text)
	}
	return a, nil
}
