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

	kind  interact.Type // of the message that a call is
	shape shape
	wraps bool   // the structured content has the output as a member
	long  bool   // it is a task if the caller takes one
	asks  bool   // it is how one talks with an agent
	turns bool   // it is a turn of a conversation (bridge.Turn)
	uri   string // of an output that is neither text nor a picture
}

// Hints are annotations of a tool.
type Hints struct {
	ReadOnly    bool  `json:"readOnlyHint,omitempty"`
	Destructive *bool `json:"destructiveHint,omitempty"`
	Idempotent  bool  `json:"idempotentHint,omitempty"`
	OpenWorld   *bool `json:"openWorldHint,omitempty"`
}

// IsTool reports whether an action is a tool: it is one unless it carries a protocol, or is a prompt.
func IsTool(a *td.Action) bool {
	return !bridge.IsTunnel(a.Types) && !slices.Contains(a.Types, promptType)
}

func (o *Offer) addAction(key string, a *td.Action, v verbatim) {
	switch {
	case bridge.IsTunnel(a.Types):
		return
	case slices.Contains(a.Types, promptType):
		o.addPrompt(key, a, v)
		return
	}
	t := &Tool{Title: a.Title, Description: a.Description, Key: key, kind: interact.InvokeAction,
		long:        a.Synchronous != nil && !*a.Synchronous,
		Annotations: &Hints{ReadOnly: a.Safe, Idempotent: a.Idempotent, Destructive: v.Destructive, OpenWorld: v.OpenWorld}}
	thing := o.Desc.Thing
	t.asks = (key == "ask" || key == "chat") && (slices.Contains(thing.Types, "lmos:Agent") || slices.Contains(thing.Types, "Agent"))
	if t.turns = slices.Contains(a.Types, bridge.TurnAction); t.turns {
		t.asks = v.Skill == "" // what says something to the agent itself
	}
	switch {
	case t.turns && t.asks:
		t.shape = shape{schema: json.RawMessage(askInput)}
		t.Title = "Ask " + thing.Name()
		t.Description = strings.TrimSpace("Says something to " + thing.Name() + ", and returns its answer. " + thing.Description)
	case t.turns:
		t.shape = shape{schema: json.RawMessage(turnInput)}
	case t.asks:
		t.shape = asking(a)
	default:
		t.shape = shapeOf(a.Input, &a.Affordance, valueMember)
	}
	t.Input = t.shape.schema
	if t.Output, t.wraps = outputOf(a.Output); t.turns {
		t.Output, t.wraps = json.RawMessage(turnOutput), false
	}
	if usable(v.Input) {
		t.Input, t.shape = v.Input, shape{schema: v.Input}
	}
	if usable(v.Output) {
		t.Output, t.wraps = v.Output, false
	}
	name := plain(key, MaxName)
	switch {
	case v.Name != "":
		name = v.Name // it is the server's to say, and what it answers to
	case t.asks:
		name = plain("ask_"+cmp.Or(ascii(thing.Name()), o.Alias), MaxName)
	}
	o.addTool(t, name)
}

// asking is how one says something to an agent: in words, if it takes anything.
func asking(a *td.Action) shape {
	if a.Input.Type() == "" && len(a.URIVariables) == 0 {
		return shape{member: "message", schema: json.RawMessage(`{"type":"object","properties":{"message":{"type":"string",` +
			`"description":"what is said to the agent"}},"required":["message"],"additionalProperties":false}`)}
	}
	return shapeOf(a.Input, &a.Affordance, "message")
}

// addTool gives a tool its name. Of two that want the same, the second gets its hash behind it; one that has even that is left out.
func (o *Offer) addTool(t *Tool, name string) {
	if o.byTool[name] != nil {
		name = hashed(name, "\x00"+t.Key, MaxName)
	}
	if o.byTool[name] != nil {
		return
	}
	if t.Name = name; t.Title == "" && t.Key != name {
		t.Title = t.Key
	}
	t.uri = scheme + o.Alias + "/actions/" + t.Key + "/output"
	o.byTool[name] = t
	o.Tools = append(o.Tools, t)
}

// Under is what a tool is called among those of other things, under the alias of its own.
func (t *Tool) Under(alias string) string {
	if t.asks {
		return plain("ask_"+alias, MaxName)
	}
	return joined(alias, t.Name)
}

// Message is what m, a tools/call of t, is to the thing. The name of that, an id and a deadline are the sender's to set. Said is the
// turn of a conversation that it is; nil: none. The error is why m is no call of t.
func (t *Tool) Message(m *protocol.Message) (_ *interact.Message, said *bridge.Turn, _ *protocol.Error) {
	data, e := t.shape.input(m)
	if e != nil {
		return nil, nil, e
	}
	can := capabilitiesOf(m)
	msg := &interact.Message{Type: t.kind, Name: t.Key, Data: data, Detach: (t.long || t.turns) && can.tasks()}
	if t.turns {
		if said, e = turn(m, can); e != nil {
			return nil, nil, e
		}
		msg.ContentType, msg.Data = bridge.TurnType, written(said)
	}
	return msg, said, nil
}

// input is what the arguments of a call are to the thing. The error is why they are none.
func (s *shape) input(m *protocol.Message) ([]byte, *protocol.Error) {
	raw, err := m.Param("arguments")
	switch {
	case err != nil:
		return nil, protocol.Errorf(protocol.InvalidParams, "the arguments name a member twice")
	case raw != nil && raw[0] != '{' && string(raw) != "null":
		return nil, protocol.Errorf(protocol.InvalidParams, "the arguments are an object")
	case s.none || raw == nil || string(raw) == "null":
		return nil, nil
	case s.member == "":
		return raw, nil
	}
	value, err := m.Param("arguments", s.member)
	if err != nil {
		return nil, protocol.Errorf(protocol.InvalidParams, "the arguments name a member twice")
	}
	return value, nil
}
