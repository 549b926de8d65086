package facade

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/mcp/wire"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// Scheme is that of the URIs of what is a resource here only.
const Scheme = "lmos://"

// promptType is the @type of an action that is a prompt.
const promptType = "mcp:Prompt"

// A use is what becomes of a call of a tool.
type use uint8

const (
	invoke use = iota // an action is invoked
	get               // a property is read
	set               // a property is written
)

// offers is what a thing offers, in the words of MCP. It is read-only.
type offers struct {
	desc       *td.Thing
	hash       [32]byte // of the description
	ref, alias string
	owner      did.DID
	byTool     map[string]*tool
	byPrompt   map[string]*prompt
	// Each in the order of its names.
	tools     []*tool
	prompts   []*prompt
	resources []*resource
	templates []*resource
}

// A tool of a thing.
type tool struct {
	Name        string          `json:"name"`
	Title       string          `json:"title,omitempty"`
	Description string          `json:"description,omitempty"`
	Input       json.RawMessage `json:"inputSchema"`
	Output      json.RawMessage `json:"outputSchema,omitempty"`
	Annotations *hints          `json:"annotations,omitempty"`
	Meta        map[string]any  `json:"_meta,omitempty"`

	use   use
	key   string // of the action or property
	shape shape
	wraps bool // the structured content has the output as a member
	long  bool // it is a task if the caller takes one
	asks  bool // it is how one talks with an agent
	turns bool // it is a turn of a conversation (bridge.Turn)
}

// hints are annotations of a tool.
type hints struct {
	ReadOnly    bool  `json:"readOnlyHint,omitempty"`
	Destructive *bool `json:"destructiveHint,omitempty"`
	Idempotent  bool  `json:"idempotentHint,omitempty"`
	OpenWorld   *bool `json:"openWorldHint,omitempty"`
}

// A prompt of a thing.
type prompt struct {
	Name        string     `json:"name"`
	Title       string     `json:"title,omitempty"`
	Description string     `json:"description,omitempty"`
	Arguments   []argument `json:"arguments,omitempty"`

	key string
}

type argument struct {
	Name        string `json:"name"`
	Title       string `json:"title,omitempty"`
	Description string `json:"description,omitempty"`
	Required    bool   `json:"required,omitempty"`
}

// A resource of a thing, or a template of such.
type resource struct {
	URI         string `json:"uri,omitempty"`
	Template    string `json:"uriTemplate,omitempty"`
	Name        string `json:"name"`
	Title       string `json:"title,omitempty"`
	Description string `json:"description,omitempty"`
	Media       string `json:"mimeType,omitempty"`

	raw  string // the URI, or template, that the server itself has; of a thing that is passed through
	key  string // of the property or event
	vars map[string]*td.Schema
	// event tells that it is the latest events; told, that its changes can be listened to.
	event, told bool
}

// verbatim is what a description keeps of an MCP server as that says it.
type verbatim struct {
	Name        string          `json:"mcp:name"`
	Input       json.RawMessage `json:"mcp:inputSchema"`
	Output      json.RawMessage `json:"mcp:outputSchema"`
	URI         string          `json:"mcp:uri"`
	Template    string          `json:"mcp:uriTemplate"`
	Destructive *bool           `json:"mcp:destructive"`
	OpenWorld   *bool           `json:"mcp:openWorld"`
	Skill       string          `json:"a2a:skill"`
}

// offersOf reads a description. What cannot be said in MCP is left out.
func offersOf(d *td.Description) *offers {
	var doc struct {
		Actions    map[string]verbatim `json:"actions"`
		Properties map[string]verbatim `json:"properties"`
	}
	_ = json.Unmarshal(d.Thing.Raw, &doc) // it is a description; a term that is something else is left out
	o := &offers{desc: d.Thing, hash: d.Record.Hash, ref: d.Ref(), alias: aliasOf(d), owner: d.Record.Owner, byTool: map[string]*tool{},
		byPrompt: map[string]*prompt{}}
	server := tunnelOf(d.Thing) != ""
	for _, key := range slices.Sorted(maps.Keys(d.Thing.Actions)) {
		v := doc.Actions[key]
		if !server || interact.Readable(v.Name) != v.Name {
			v.Name = ""
		}
		o.addAction(key, d.Thing.Actions[key], v)
	}
	talks := speaksA2A(d.Thing)
	for _, key := range slices.Sorted(maps.Keys(d.Thing.Properties)) {
		switch {
		case server:
			o.addResource(key, d.Thing.Properties[key], doc.Properties[key])
		case talks: // it is the tasks of this node, whoever asked for them
		default:
			o.addProperty(key, d.Thing.Properties[key])
		}
	}
	for _, key := range slices.Sorted(maps.Keys(d.Thing.Events)) {
		o.addEvent(key, d.Thing.Events[key])
	}
	slices.SortFunc(o.tools, func(a, b *tool) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(o.prompts, func(a, b *prompt) int { return strings.Compare(a.Name, b.Name) })
	byURI := func(a, b *resource) int { return strings.Compare(a.URI+a.Template, b.URI+b.Template) }
	slices.SortFunc(o.resources, byURI)
	slices.SortFunc(o.templates, byURI)
	return o
}

// tunnelOf returns the action of a thing that carries MCP; empty for a thing that is no MCP server.
func tunnelOf(t *td.Thing) string {
	for _, key := range slices.Sorted(maps.Keys(t.Actions)) {
		if slices.Contains(t.Actions[key].Types, bridge.MCPSession) {
			return key
		}
	}
	return ""
}

// speaksA2A reports whether a thing is an A2A agent.
func speaksA2A(t *td.Thing) bool {
	for _, a := range t.Actions {
		if slices.Contains(a.Types, bridge.A2AOperation) {
			return true
		}
	}
	return false
}

func (o *offers) addAction(key string, a *td.Action, v verbatim) {
	switch {
	case bridge.IsTunnel(a.Types):
		return
	case slices.Contains(a.Types, promptType):
		o.addPrompt(key, a, v)
		return
	}
	t := &tool{Title: a.Title, Description: a.Description, key: key, long: a.Synchronous != nil && !*a.Synchronous,
		Annotations: &hints{ReadOnly: a.Safe, Idempotent: a.Idempotent, Destructive: v.Destructive, OpenWorld: v.OpenWorld}}
	t.asks = (key == "ask" || key == "chat") && (slices.Contains(o.desc.Types, "lmos:Agent") || slices.Contains(o.desc.Types, "Agent"))
	if t.turns = slices.Contains(a.Types, bridge.TurnAction); t.turns {
		t.asks = v.Skill == "" // what says something to the agent itself
	}
	switch {
	case t.turns && t.asks:
		t.shape = shape{schema: json.RawMessage(askInput)}
		t.Title, t.Description = "Ask "+o.desc.Name(), strings.TrimSpace("Says something to "+o.desc.Name()+", and returns its answer. "+o.desc.Description)
	case t.turns:
		t.shape = shape{schema: json.RawMessage(turnInput)}
	case t.asks:
		t.shape = asking(a)
	default:
		t.shape = shapeOf(a.Input, a.URIVariables, valueMember)
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
	name := plain(key, maxName)
	switch {
	case v.Name != "":
		name = v.Name // it is the server's to say, and what it answers to
	case t.asks:
		name = plain("ask_"+cmp.Or(ascii(o.desc.Name()), o.alias), maxName)
	}
	o.addTool(t, name)
}

// asking is how one says something to an agent: in words, if it takes anything.
func asking(a *td.Action) shape {
	if a.Input.Type() == "" && len(a.URIVariables) == 0 {
		return shape{member: "message", schema: json.RawMessage(`{"type":"object","properties":{"message":{"type":"string",` +
			`"description":"what is said to the agent"}},"required":["message"],"additionalProperties":false}`)}
	}
	return shapeOf(a.Input, a.URIVariables, "message")
}

// addTool gives a tool its name. Of two that want the same, the second gets its hash behind it; one that has even that is left out.
func (o *offers) addTool(t *tool, name string) {
	if o.byTool[name] != nil {
		name = hashed(name, "\x00"+t.key, maxName)
	}
	if o.byTool[name] != nil {
		return
	}
	if t.Name = name; t.Title == "" && t.key != name {
		t.Title = t.key
	}
	o.byTool[name] = t
	o.tools = append(o.tools, t)
}

func (o *offers) addPrompt(key string, a *td.Action, v verbatim) {
	p := &prompt{Name: cmp.Or(v.Name, plain(key, maxName)), Title: a.Title, Description: a.Description, key: key}
	required := a.Input.Required()
	for _, name := range a.Input.Properties() {
		member := object(a.Input.Property(name).Value())
		title, _ := member["title"].(string)
		words, _ := member["description"].(string)
		p.Arguments = append(p.Arguments, argument{name, title, words, slices.Contains(required, name)})
	}
	if o.byPrompt[p.Name] == nil {
		o.byPrompt[p.Name] = p
		o.prompts = append(o.prompts, p)
	}
}

// addResource adds what is a resource of a server.
func (o *offers) addResource(key string, p *td.Property, v verbatim) {
	r := &resource{Name: key, Title: p.Title, Description: p.Description, Media: mediaOf(p.Forms)}
	switch {
	case v.URI != "":
		r.raw, r.URI, r.told = v.URI, Scheme+o.alias+served+v.URI, p.Observable
		o.resources = append(o.resources, r)
	case v.Template != "":
		r.raw, r.Template = v.Template, Scheme+o.alias+served+v.Template
		o.templates = append(o.templates, r)
	}
}

// served stands before the URI that a server's resource has there.
const served = "/mcp/"

// addProperty adds a resource, and tools: many clients show no resources to models.
func (o *offers) addProperty(key string, p *td.Property) {
	uri := Scheme + o.alias + "/properties/" + url.PathEscape(key)
	r := &resource{Name: key, Title: p.Title, Description: p.Description, Media: mediaOf(p.Forms), key: key, vars: p.URIVariables}
	switch {
	case p.WriteOnly:
	case len(p.URIVariables) > 0:
		r.Template = uri + "{?" + strings.Join(slices.Sorted(maps.Keys(p.URIVariables)), ",") + "}"
		o.templates = append(o.templates, r)
	default:
		r.URI, r.told = uri, p.Observable
		o.resources = append(o.resources, r)
	}
	title := cmp.Or(p.Title, key)
	if !p.WriteOnly {
		t := &tool{Title: "Read " + title, Description: p.Description, use: get, key: key, Annotations: &hints{ReadOnly: true},
			shape: shapeOf(nil, p.URIVariables, valueMember)}
		t.Input = t.shape.schema
		t.Output, t.wraps = outputOf(p.Schema)
		o.addTool(t, plain("get_"+key, maxName))
	}
	if !p.ReadOnly {
		t := &tool{Title: "Set " + title, Description: p.Description, use: set, key: key, Annotations: &hints{Idempotent: true}}
		if t.shape = (shape{schema: written(wrapped(p.Schema, valueMember, true)), member: valueMember}); len(p.URIVariables) > 0 {
			t.shape = shapeOf(p.Schema, p.URIVariables, valueMember)
		}
		t.Input = t.shape.schema
		o.addTool(t, plain("set_"+key, maxName))
	}
}

// mediaOf is the media type in which a property is read first.
func mediaOf(forms []td.Form) string {
	for _, f := range forms {
		if slices.Contains(f.Ops, "readproperty") && f.ResponseType != "" {
			return f.ResponseType
		}
	}
	return "application/json"
}

func (o *offers) addEvent(key string, e *td.Event) {
	o.resources = append(o.resources, &resource{URI: Scheme + o.alias + "/events/" + url.PathEscape(key), Name: key, Title: e.Title,
		Description: strings.TrimSpace(e.Description + " (The latest events, while somebody listens.)"), Media: "application/json",
		key: key, event: true, told: true})
}

// headers are the arguments that headers repeat. A tool whose schema says it in a wrong way has none: clients drop it.
func (o *offers) headers() headersOf {
	all := headersOf{}
	for _, t := range o.tools {
		if params, err := wire.Params(t.Input); err == nil && len(params) > 0 {
			all[t.Name] = params
		}
	}
	return all
}

// find returns the resource that a URI names, and the values of its variables.
func (o *offers) find(uri string) (*resource, url.Values) {
	for _, r := range o.resources {
		if r.URI == uri {
			return r, nil
		}
	}
	head, query, _ := strings.Cut(uri, "?")
	for _, r := range o.templates {
		if before, _, _ := strings.Cut(r.Template, "{?"); r.raw == "" && before == head {
			if values, err := url.ParseQuery(query); err == nil {
				return r, values
			}
		}
	}
	return nil, nil
}
