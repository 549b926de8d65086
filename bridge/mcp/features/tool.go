package features

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// A Tool is an action, or the reading or writing of a property (MCP 2026-07-28, "Tools").
type Tool struct {
	Name        string          `json:"name"`
	Title       string          `json:"title,omitempty"`
	Description string          `json:"description,omitempty"`
	Input       json.RawMessage `json:"inputSchema"`
	Output      json.RawMessage `json:"outputSchema,omitempty"`
	Annotations *Hints          `json:"annotations,omitempty"`
	Meta        map[string]any  `json:"_meta,omitempty"`

	// Key is the name of the action or property.
	Key string `json:"-"`

	kind      interact.Type // of the message of a call
	shape     shape
	isWrapped bool   // the structured content contains the output as a member
	isLong    bool   // a call is a task if the client supports tasks
	isChat    bool   // the tool sends a message to an agent
	isTurn    bool   // a call is a turn of a conversation (bridge.Turn)
	uri       string // of output other than text, image or audio
}

// Hints are the annotations of a tool.
type Hints struct {
	ReadOnly    bool  `json:"readOnlyHint,omitempty"`
	Destructive *bool `json:"destructiveHint,omitempty"`
	Idempotent  bool  `json:"idempotentHint,omitempty"`
	OpenWorld   *bool `json:"openWorldHint,omitempty"`
}

// IsTool reports whether an action is a tool: all are, except protocol tunnels and prompts.
func IsTool(a *td.Action) bool {
	return !bridge.IsTunnel(a.Types) && !slices.Contains(a.Types, promptType)
}

func (f *Features) addAction(key string, a *td.Action, v verbatim) {
	switch {
	case bridge.IsTunnel(a.Types):
		return
	case slices.Contains(a.Types, promptType):
		f.addPrompt(key, a, v)
		return
	}
	t := &Tool{Title: a.Title, Description: a.Description, Key: key, kind: interact.InvokeAction,
		isLong:      a.Synchronous != nil && !*a.Synchronous,
		Annotations: &Hints{ReadOnly: a.Safe, Idempotent: a.Idempotent, Destructive: v.Destructive, OpenWorld: v.OpenWorld}}
	thing := f.Desc.Thing
	t.isChat = (key == "ask" || key == "chat") && (slices.Contains(thing.Types, "lmos:Agent") || slices.Contains(thing.Types, "Agent"))
	if t.isTurn = slices.Contains(a.Types, bridge.TurnAction); t.isTurn {
		t.isChat = v.Skill == "" // a message to the agent itself, not to one of its skills
	}
	switch {
	case t.isTurn && t.isChat:
		t.shape = shape{schema: json.RawMessage(askInput)}
		t.Title = "Ask " + thing.Name()
		t.Description = strings.TrimSpace("Sends a message to " + thing.Name() + " and returns its response. " + thing.Description)
	case t.isTurn:
		t.shape = shape{schema: json.RawMessage(turnInput)}
	case t.isChat:
		t.shape = askShape(a)
	default:
		t.shape = shapeOf(a.Input, &a.Affordance, valueMember)
	}
	t.Input = t.shape.schema
	if t.Output, t.isWrapped = outputOf(a.Output); t.isTurn {
		t.Output, t.isWrapped = json.RawMessage(turnOutput), false
	}
	if usable(v.Input) {
		t.Input, t.shape = v.Input, shape{schema: v.Input}
	}
	if usable(v.Output) {
		t.Output, t.isWrapped = v.Output, false
	}
	name := plain(key, MaxName)
	switch {
	case v.Name != "":
		name = v.Name // the name at the MCP server
	case t.isChat:
		name = plain("ask_"+cmp.Or(ascii(thing.Name()), f.Alias), MaxName)
	}
	f.addTool(t, name)
}

// askShape returns the shape of a tool that sends a message to an agent: text, if the action has no input schema.
func askShape(a *td.Action) shape {
	if a.Input.Type() == "" && len(a.URIVariables) == 0 {
		return shape{member: "message", schema: json.RawMessage(`{"type":"object","properties":{"message":{"type":"string",` +
			`"description":"the message to the agent"}},"required":["message"],"additionalProperties":false}`)}
	}
	return shapeOf(a.Input, &a.Affordance, "message")
}

// addTool adds a tool. If the name is taken, a hash is appended; if that is taken too, the tool is left out.
func (f *Features) addTool(t *Tool, name string) {
	if f.byTool[name] != nil {
		name = hashed(name, "\x00"+t.Key, MaxName)
	}
	if f.byTool[name] != nil {
		return
	}
	if t.Name = name; t.Title == "" && t.Key != name {
		t.Title = t.Key
	}
	t.uri = scheme + f.Alias + "/actions/" + t.Key + "/output"
	f.byTool[name] = t
	f.Tools = append(f.Tools, t)
}

// Under returns the name of the tool in the aggregate, under the alias of its Thing.
func (t *Tool) Under(alias string) string {
	if t.isChat {
		return plain("ask_"+alias, MaxName)
	}
	return joined(alias, t.Name)
}

// Message converts a tools/call request to a message to the Thing. The sender sets the Thing, the id and the deadline. The second result
// is the turn of a conversation; nil if the tool takes none. The error describes a malformed request.
func (t *Tool) Message(m *protocol.Message) (_ *interact.Message, turnOf *bridge.Turn, _ *protocol.Error) {
	data, e := t.shape.input(m)
	if e != nil {
		return nil, nil, e
	}
	can := capabilitiesOf(m)
	msg := &interact.Message{Type: t.kind, Name: t.Key, Data: data, Detach: (t.isLong || t.isTurn) && can.tasks()}
	if t.isTurn {
		if turnOf, e = turn(m, can); e != nil {
			return nil, nil, e
		}
		msg.ContentType, msg.Data = bridge.TurnType, protocol.Encode(turnOf)
	}
	return msg, turnOf, nil
}

// input converts the arguments of a call to the input of the Thing.
func (s *shape) input(m *protocol.Message) ([]byte, *protocol.Error) {
	raw, err := m.Param("arguments")
	switch {
	case err != nil:
		return nil, protocol.Errorf(protocol.InvalidParams, "duplicate member in arguments")
	case raw != nil && raw[0] != '{' && string(raw) != "null":
		return nil, protocol.Errorf(protocol.InvalidParams, "expected an object as arguments")
	case s.none || raw == nil || string(raw) == "null":
		return nil, nil
	case s.member == "":
		return raw, nil
	}
	value, err := m.Param("arguments", s.member)
	if err != nil {
		return nil, protocol.Errorf(protocol.InvalidParams, "duplicate member in arguments")
	}
	return value, nil
}
