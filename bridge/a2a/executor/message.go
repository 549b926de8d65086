package executor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// Actions returns the names of the actions that are skills, sorted.
func Actions(t *td.Thing) []string {
	var names []string
	for name, a := range t.Actions {
		if !bridge.IsTunnel(a.Types) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Modes returns the media types that a Thing accepts and returns: JSON, text, and those of its forms.
func Modes(t *td.Thing) (in, out []string) {
	in = []string{interact.JSON, "text/plain"}
	out = slices.Clone(in)
	add := func(list []string, media string) []string {
		if media = interact.MediaType(media); !slices.Contains(list, media) {
			list = append(list, media)
		}
		return list
	}
	for _, name := range Actions(t) {
		for _, f := range t.Actions[name].Forms {
			in, out = add(in, f.ContentType), add(out, f.ResponseType)
		}
	}
	return in, out
}

// accepts reports whether one of modes covers media; "*/*" and "image/*" are wildcards.
func accepts(modes []string, media string) bool {
	media = interact.MediaType(media)
	return slices.ContainsFunc(modes, func(m string) bool {
		m = interact.MediaType(m)
		kind, wild := strings.CutSuffix(m, "/*")
		return m == media || wild && (kind == "*" || strings.HasPrefix(media, kind+"/"))
	})
}

// checkModes rejects parts that the Thing does not accept, and clients that accept none of its outputs (A2A 1.0 §3.3.2).
func (a *agent) checkModes(p *protocol.Send) *protocol.Error {
	in, out := Modes(a.thing.Desc)
	for i, part := range p.Message.Parts {
		if part.URL == nil && !accepts(in, part.Media()) && !strings.HasPrefix(part.Media(), "text/") && !td.IsJSON(part.Media()) {
			return protocol.Errorf(protocol.ContentTypeUnsupported, "part %d is %s; the agent accepts %s", i, interact.Clip(part.Media(), 64),
				strings.Join(in, ", "))
		}
	}
	wants := p.Configuration.Modes
	if len(wants) > 0 && !slices.ContainsFunc(out, func(m string) bool { return accepts(wants, m) }) {
		return protocol.Errorf(protocol.ContentTypeUnsupported, "the client accepts none of the agent's output types: %s", strings.Join(out, ", "))
	}
	return nil
}

// An invocation is the action and input that a message selects. Without an action the message is ambiguous.
type invocation struct {
	action, media string
	data          []byte
}

// invocation selects the action of a message: the one that it names, the only one, the only one whose schema its data match, or for
// text the one that takes free text. If none of these exists, it returns nil.
func (a *agent) invocation(m *protocol.Message) (*invocation, error) {
	names := Actions(a.thing.Desc)
	name, err := SkillOf(m)
	if err == nil && name == "" {
		name, err = a.matchAction(m, names)
	}
	switch {
	case err != nil:
		return nil, err
	case name == "" && len(names) == 0:
		return nil, protocol.Errorf(protocol.UnsupportedOperation, "%s has no skills", a.thing.Desc.Name())
	case name == "":
		return nil, nil
	case !slices.Contains(names, name):
		return nil, protocol.Errorf(protocol.InvalidParams, "%s has no skill %q", a.thing.Desc.Name(), interact.Clip(name, 64)).
			At("message.metadata.skillId")
	}
	return inputOf(a.thing.Desc.Actions[name], name, m)
}

// SkillOf returns the skill that the metadata of a message or of its parts name; empty if they name none. Two different names are an error.
func SkillOf(m *protocol.Message) (string, error) {
	all := []json.RawMessage{m.Metadata}
	for _, p := range m.Parts {
		all = append(all, p.Metadata)
	}
	found := ""
	for _, raw := range all {
		var meta struct {
			Skill string `json:"skillId"`
		}
		_ = json.Unmarshal(raw, &meta) // application-defined metadata may have any form
		if found != "" && meta.Skill != "" && meta.Skill != found {
			return "", protocol.Errorf(protocol.InvalidParams, "the message names two different skills").At("message.metadata.skillId")
		}
		if meta.Skill != "" {
			found = meta.Skill
		}
	}
	return found, nil
}

// textActions are the names of actions that take free text.
var textActions = []string{"ask", "chat", "sendMessage"}

func (a *agent) matchAction(m *protocol.Message, names []string) (string, error) {
	if len(names) == 1 {
		return names[0], nil
	}
	if data := dataOf(m); data != nil {
		schemas := Schemas(a.thing.Desc)
		v, err := decoded(arguments(data))
		fit := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
			s := schemas[name].schema(a.thing.Desc.Actions[name].Input)
			return err != nil || s == nil || s.Type() == "" || len(s.Check(v)) > 0
		})
		if len(fit) == 1 {
			return fit[0], nil
		}
		return "", nil
	}
	for _, name := range textActions {
		if slices.Contains(names, name) {
			return name, nil
		}
	}
	return "", nil
}

// dataOf returns the data of a message's only data part; nil if there is none, or several.
func dataOf(m *protocol.Message) json.RawMessage {
	var data json.RawMessage
	for _, p := range m.Parts {
		if p.Data != nil && data != nil {
			return nil
		} else if p.Data != nil {
			data = p.Data
		}
	}
	return data
}

// textOf joins the texts of a message.
func textOf(m *protocol.Message) string {
	var texts []string
	for _, p := range m.Parts {
		if p.Text != nil {
			texts = append(texts, *p.Text)
		}
	}
	return strings.Join(texts, "\n")
}

// arguments unwraps {"arguments": …}, which marks data as an input.
func arguments(data json.RawMessage) json.RawMessage {
	var m map[string]json.RawMessage
	if json.Unmarshal(data, &m) == nil && len(m) == 1 && m["arguments"] != nil {
		return m["arguments"]
	}
	return data
}

func decoded(raw json.RawMessage) (any, error) {
	v, _, err := interact.Value(raw, interact.JSON)
	return v, err
}

// inputOf returns the input of an action: the data, the bytes, or the text of a message.
func inputOf(action *td.Action, name string, m *protocol.Message) (*invocation, error) {
	if data := dataOf(m); data != nil {
		return &invocation{name, interact.JSON, arguments(data)}, nil
	}
	for _, p := range m.Parts {
		if p.Raw != nil {
			b, err := p.Bytes()
			if err != nil {
				return nil, protocol.Errorf(protocol.InvalidParams, "the raw part is not base64").At("message.parts")
			}
			return &invocation{name, p.Media(), b}, nil
		}
	}
	for _, p := range m.Parts {
		if p.URL != nil && textOf(m) == "" { // the node does not fetch it: the agent gets the URL
			return &invocation{name, interact.JSON, protocol.Encode(*p.URL)}, nil
		}
	}
	return &invocation{name, interact.JSON, inputFromText(action.Input, textOf(m), m.ContextID)}, nil
}

// inputFromText converts text to an input: a string, the request of the LMOS data model, the text itself if it is JSON that the schema
// accepts, or an object with the one text member of the schema.
func inputFromText(s *td.Schema, text, conversation string) []byte {
	plain := protocol.Encode(text)
	if s == nil && text == "" {
		return nil
	}
	v, err := decoded(json.RawMessage(text))
	if typ := s.Type(); typ == "string" || typ == "" && (err != nil || isText(v)) {
		return plain
	}
	if s.Property("messages").Type() == "array" {
		return protocol.Encode(map[string]any{"conversationContext": map[string]string{"conversationId": conversation},
			"messages": []any{map[string]string{"role": "user", "content": text, "format": "text"}}})
	}
	if err == nil && len(s.Check(v)) == 0 {
		return []byte(text)
	}
	if member := textMember(s); member != "" {
		return protocol.Encode(map[string]string{member: text})
	}
	if takesNothing(s) {
		return []byte("{}")
	}
	return plain // input validation reports the error
}

// takesNothing reports whether an input is an object without members to fill in.
func takesNothing(s *td.Schema) bool {
	return s.Type() == "object" && len(s.Properties()) == 0 && len(s.Check(map[string]any{})) == 0
}

func isText(v any) bool { _, is := v.(string); return is }

// textMember returns the member of an object that is the only text, or the only required member and a text.
func textMember(s *td.Schema) string {
	texts := slices.DeleteFunc(s.Properties(), func(name string) bool { return s.Property(name).Type() != "string" })
	if required := s.Required(); len(required) == 1 && slices.Contains(texts, required[0]) {
		return required[0]
	}
	if len(texts) == 1 {
		return texts[0]
	}
	return ""
}

// choices lists the skills, for users and for programs.
func (a *agent) choices() []protocol.Part {
	names := Actions(a.thing.Desc)
	var text strings.Builder
	fmt.Fprintf(&text, "Which skill of %s do you want? Name it in the metadata of the message as skillId, or answer with its name:",
		a.thing.Desc.Title)
	skills, schemas := []any{}, Schemas(a.thing.Desc)
	for _, name := range names {
		action := a.thing.Desc.Actions[name]
		fmt.Fprintf(&text, "\n- %s", name)
		if action.Description != "" {
			fmt.Fprintf(&text, ": %s", action.Description)
		}
		skill := map[string]any{"id": name}
		if schema := action.Input.Value(); schemas[name].Input != nil {
			skill["inputSchema"] = schemas[name].Input
		} else if schema != nil {
			skill["inputSchema"] = schema
		}
		if action.Title != "" && action.Title != name {
			skill["name"] = action.Title
		}
		skills = append(skills, skill)
	}
	return []protocol.Part{protocol.TextPart(text.String()), protocol.DataPart(protocol.Encode(map[string]any{"skills": skills}))}
}

// maxPart is the size limit of a part, in bytes: clients limit events to 4 MiB.
const maxPart = 512 << 10

func textParts(text, media string) []protocol.Part {
	var parts []protocol.Part
	for {
		head := interact.Clip(text, maxPart)
		if len(head) < len(text) { // Clip appends an ellipsis
			head = text[:cut(text, maxPart)]
		}
		p := protocol.TextPart(head)
		if p.MediaType = media; media == "text/plain" {
			p.MediaType = ""
		}
		parts = append(parts, p)
		if text = text[len(head):]; text == "" {
			return parts
		}
	}
}

// cut returns the end of the last whole character before n.
func cut(text string, n int) int {
	for n > 0 && text[n]&0xC0 == 0x80 {
		n--
	}
	return n
}

// answersOf converts a message to the input that a run requires: answers by key, or data or text for the only open input.
func answersOf(m *protocol.Message, open interact.Inputs) (interact.Answers, *protocol.Error) {
	data := dataOf(m)
	var answers interact.Answers
	if json.Unmarshal(data, &answers) == nil && len(answers) > 0 && allKnown(answers, open) {
		return answers, nil
	}
	action := actionOf(m)
	answers = interact.Answers{}
	for key, in := range open {
		content, e := contentFor(in, m, data, len(open))
		if action == interact.Accept && e != nil {
			return nil, e
		}
		if action != interact.Accept {
			content = nil
		}
		answers[key] = interact.Answer{Action: action, Content: content}
	}
	return answers, nil
}

func allKnown(answers interact.Answers, open interact.Inputs) bool {
	for key, a := range answers {
		if _, asked := open[key]; !asked || a.Action == "" {
			return false
		}
	}
	return true
}

// actionOf returns whether a message accepts, declines or dismisses an input: accept, unless its metadata have another action.
func actionOf(m *protocol.Message) string {
	var meta struct {
		Action string `json:"action"`
	}
	_ = json.Unmarshal(m.Metadata, &meta) // application-defined metadata may have any form
	if meta.Action == interact.Decline || meta.Action == interact.Dismiss {
		return meta.Action
	}
	return interact.Accept
}

// contentFor returns the content of the answer to one input.
func contentFor(in interact.Input, m *protocol.Message, data json.RawMessage, asked int) (json.RawMessage, *protocol.Error) {
	switch {
	case in.Kind == interact.InputURL:
		return nil, nil // the client reports only that the user visited the URL
	case in.Kind == interact.InputMessage && data == nil:
		return protocol.Encode(textOf(m)), nil
	case asked > 1:
		return nil, protocol.Errorf(protocol.InvalidParams,
			`several inputs are required: send data {"key": {"action": "accept", "content": {…}}}`).At("message.parts")
	case data != nil:
		return data, nil
	}
	v, err := decoded(in.Schema)
	if err != nil {
		v = nil
	}
	return inputFromText(td.ParseSchema(v), textOf(m), ""), nil
}

// defaultTexts are default texts of inputs without a message.
var defaultTexts = map[string]string{
	interact.InputModel: "The agent requests a model response: answer with the result of sampling/createMessage (MCP) for the params.",
	interact.InputRoots: "The agent requests the list of folders: answer with the result of roots/list (MCP).",
}

// inputParts returns the state for the input that a run requires, and its text for users and programs.
func inputParts(in interact.Inputs) (protocol.State, []protocol.Part) {
	state := protocol.AuthRequired
	var texts []string
	var links []protocol.Part
	for _, key := range slices.Sorted(maps.Keys(in)) {
		if address := in[key].URL; address != "" {
			links = append(links, protocol.Part{URL: &address})
		}
		if in[key].Kind != interact.InputURL {
			state = protocol.InputRequired
		}
		texts = append(texts, strings.TrimSpace(cmp.Or(in[key].Message, defaultTexts[in[key].Kind])+" "+in[key].URL))
	}
	text := strings.TrimSpace(strings.Join(texts, "\n"))
	text = cmp.Or(text, "The agent requires input.")
	return state, append([]protocol.Part{protocol.TextPart(text), protocol.DataPart(protocol.Encode(map[string]any{"inputs": in}))}, links...)
}
