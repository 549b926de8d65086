// Package agent is the Go SDK: [Serve] exposes actions, properties and events through the local node, and [Call] invokes actions of
// other agents.
//
//	err := agent.Serve(ctx, agent.Agent{Name: "weather"},
//		agent.Action("getWeather", func(ctx context.Context, in Question) (string, error) { … }))
//
// The agent connects to the node with one WebSocket (see interact/ws), so that it needs no port and no address. If the connection breaks, the
// agent reconnects; in between, the node keeps it registered for a while. The Thing Description follows from the Go types: inputs are
// validated before a function receives them.
package agent

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"log/slog"
	"net/url"
	"os"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/ws"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/td"
)

// An Agent has the metadata of an agent, and the address of its node. Only Name is required.
type Agent struct {
	// Name is the title, by which other agents refer to it.
	Name string
	// ID is a URI; empty means that the node generates one from its DID and the name.
	ID          string
	Description string
	// Version is the version of the agent, "1.0.0".
	Version string
	// Capabilities are the ids by which others find the agent, "urn:example:weather".
	Capabilities []string
	// Tool declares a tool instead of an agent (@type lmos:Tool).
	Tool bool
	// For are callers that may find and call the agent, in addition to those of the access rules of the node, as these name them.
	For []string
	// Key is a key of the agent's own: its DID is the owner of the agent, and keeps its id when the agent moves to another node. The key stays in this
	// process, which signs the TD and, each 12 h, a grant for the node. Nil: the node owns the agent.
	Key did.Signer
	// Roles are roles of the node's credential that an agent with a key has when it calls others as [Mesh] does; none by default.
	Roles []string
	// Node is the URL or the socket of the node, and Token its token; empty means those of this host, see [Local].
	Node, Token string
	// Ready, if not nil, is called with the id each time the node has registered the agent.
	Ready func(id string)
	Log   *slog.Logger
}

// A Part is one affordance of an agent: the result of [Action], [Stream], [Property], [State] or [Event].
type Part interface{ add(*server) error }

// An Option sets metadata of a part.
type Option func(about map[string]any)

// Doc sets the description of a part.
func Doc(text string) Option { return func(about map[string]any) { about["description"] = text } }

// Safe declares that an action changes no state, so that it may be repeated (TD 1.1 "safe").
func Safe() Option {
	return func(about map[string]any) { about["safe"], about["idempotent"] = true, true }
}

// Idempotent declares that repeated calls with the same input have the effect of one call (TD 1.1 "idempotent").
func Idempotent() Option { return func(about map[string]any) { about["idempotent"] = true } }

// Async declares a long action: the node runs it as a task that continues without its caller (TD 1.1 "synchronous": false).
func Async() Option { return func(about map[string]any) { about["synchronous"] = false } }

// Serve publishes the parts as one agent until ctx ends; then the agent is withdrawn and the result is nil. It reconnects, with pauses of
// up to 5 s. The error is an [*interact.Error]: no node at the start, a rejected agent, or invalid parts.
func Serve(ctx context.Context, a Agent, parts ...Part) error {
	td, thing, err := New(a, parts...)
	if err != nil {
		return err
	}
	if a.Node == "" {
		a.Node, a.Token = Local()
	}
	return attach(ctx, Node{Addr: a.Node, Token: a.Token, For: a.For, Key: a.Key, Roles: a.Roles}, ws.AttachOptions{TD: td, Thing: thing, Log: a.Log}, a.Ready)
}

// Attach publishes any Thing, as [Serve] does: td is its TD, complete or a draft without forms; node is the URL or the socket of the node,
// and token its token. Ready, if not nil, is called with the id each time the node has registered the Thing. A nil log discards.
func Attach(ctx context.Context, node, token string, td []byte, thing interact.Thing, ready func(id string),
	log *slog.Logger) error {
	return attach(ctx, Node{Addr: node, Token: token}, ws.AttachOptions{TD: td, Thing: thing, Log: log}, ready)
}

// A Node is the node of an agent.
type Node struct {
	Addr, Token string        // its URL or its socket
	For         []string      // callers that may find and call the agent ([Agent.For])
	Key         did.Signer    // that of the agent ([Agent.Key]); nil: none
	Visibility  td.Visibility // of the TD of an agent with a key, if the TD states none
	Roles       []string      // of the node, which an agent with a key has when it calls others
}

// attach attaches the Thing of o.
func attach(ctx context.Context, to Node, o ws.AttachOptions, ready func(id string)) error {
	address, err := socketOf(to.Addr)
	if err != nil {
		return err
	}
	o.URL, o.Dial, o.Token = address.URL, address.Dial, to.Token
	if q := (url.Values{"for": to.For, "role": to.Roles}).Encode(); q != "" {
		o.URL += "?" + q
	}
	if to.Key != nil {
		k, err := newKeyed(ctx, to, &o)
		if err != nil {
			return err
		}
		defer k.close()
		o.Changing = k.next
	}
	return reattach(ctx, o, ready)
}

// AttachChanging is [Attach] for a Thing whose TD changes: now returns the TD, and a channel that is closed when the TD has changed.
func AttachChanging(ctx context.Context, to Node, now func() (td []byte, changed <-chan struct{}), thing interact.Thing,
	ready func(id string), log *slog.Logger) error {
	return attach(ctx, to, ws.AttachOptions{Changing: now, Thing: thing, Log: log}, ready)
}

// New returns the draft of the TD and the Thing of an agent, for programs that publish it themselves: to a node in the same process
// (node.Node.Offer, after td.Draft), or over another connection.
func New(a Agent, parts ...Part) (td []byte, thing interact.Thing, err error) {
	s, err := newServer(a, parts)
	if err != nil {
		return nil, nil, err
	}
	return s.td, s, nil
}

// maxPause is the longest pause between two attempts to connect.
const maxPause = 5 * time.Second

// reattach attaches again when the connection breaks after the first success.
func reattach(ctx context.Context, o ws.AttachOptions, ready func(id string)) error {
	registered := false
	pauses := backoff.Backoff{First: maxPause / 64, Max: maxPause}
	o.Registered = func(id string) {
		registered = true
		pauses.Reset()
		if ready != nil {
			ready(id)
		}
	}
	for {
		err := ws.Attach(ctx, o)
		switch {
		case ctx.Err() != nil:
			return nil
		case !registered, !isTemporary(err):
			return err
		}
		if pauses.Sleep(ctx) != nil {
			return nil
		}
	}
}

// isTemporary reports whether err is a connection error, which is retried.
func isTemporary(err error) bool {
	e, ok := errors.AsType[*interact.Error](err)
	return !ok || e.Code.Retryable() || e.Code == interact.Cancelled
}

// A server is the Thing behind the connection.
type server struct {
	about      map[string]any // the TD, while it is built
	td         []byte
	actions    map[string]interact.Func
	properties map[string]*property
	events     map[string]*topic
	inputs     interact.InputWaiter // the inputs that running actions require
}

func newServer(a Agent, parts []Part) (*server, error) {
	if a.Name == "" {
		return nil, interact.Errorf(interact.BadTD, `agent.Agent{Name: "weather"}`, "the agent has no name")
	}
	s := &server{about: describe(a), actions: map[string]interact.Func{}, properties: map[string]*property{},
		events: map[string]*topic{}}
	for _, p := range parts {
		if err := p.add(s); err != nil {
			return nil, err
		}
	}
	var err error
	s.td, err = json.Marshal(s.about)
	return s, err
}

func describe(a Agent) map[string]any {
	about := map[string]any{"title": a.Name, "@type": "lmos:Agent"}
	if a.Tool {
		about["@type"] = "lmos:Tool"
	}
	for name, value := range map[string]string{"id": a.ID, "description": a.Description} {
		if value != "" {
			about[name] = value
		}
	}
	if a.Version != "" {
		about["version"] = map[string]any{"instance": a.Version}
	}
	var caps []any
	for _, id := range a.Capabilities {
		caps = append(caps, map[string]any{"id": id, "name": id})
	}
	if caps != nil {
		about["lmos:capabilities"] = caps
	}
	return about
}

// addAffordance adds an affordance to the TD. Its name must be unique.
func (s *server) addAffordance(kind, name string, about map[string]any, options []Option) error {
	all, _ := s.about[kind].(map[string]any)
	if all == nil {
		all = map[string]any{}
		s.about[kind] = all
	}
	if name == "" || all[name] != nil {
		return interact.Errorf(interact.BadTD, "use unique names", "the name %q among the agent's %s is empty or taken", name, kind)
	}
	for _, o := range options {
		o(about)
	}
	all[name] = about
	return nil
}

// Do implements [interact.Thing].
func (s *server) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	ctx = did.WithPrincipal(ctx, m.From)
	switch m.Type {
	case interact.InvokeAction:
		if f := s.actions[m.Name]; f != nil {
			return f(ctx, m)
		}
	case interact.ReadProperty, interact.WriteProperty, interact.ObserveProperty:
		if p := s.properties[m.Name]; p != nil {
			return p.do(ctx, m)
		}
	case interact.ReadAllProperties, interact.ReadMultipleProperties:
		return interact.Unary(s.readSome).Do(ctx, m)
	case interact.WriteMultipleProperties, interact.WriteAllProperties:
		return interact.Unary(s.writeSome).Do(ctx, m)
	case interact.ContinueAction:
		return interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) {
			return s.inputs.Continue(m)
		}).Do(ctx, m)
	case interact.SubscribeEvent:
		if t := s.events[m.Name]; t != nil {
			return listenTo(ctx, m, interact.Event, []source{t})
		}
	case interact.SubscribeAllEvents:
		return s.listenAll(ctx, m)
	case interact.ObserveAllProperties:
		return s.observeAll(ctx, m)
	default:
		return interact.Fail(interact.Errorf(interact.NotAllowed, "the node handles this operation",
			"agents do not support %s", m.Type.Op()))
	}
	return interact.Fail(interact.Errorf(interact.NoAffordance, "see its affordances", "unknown affordance %q", m.Name).Then(interact.StepShow))
}

// CallerOf returns the caller of the call with the context ctx. It is nil outside of a call, for events and observations, which have many
// receivers, and if the node does not send it. The result is read-only. Its ID is the key for data of the caller; the part after # is a
// claim of the caller's node.
func CallerOf(ctx context.Context) *did.Principal { return did.PrincipalOf(ctx) }

// Local returns the address of the node on this host, and the token: LMOSD_NODE and LMOSD_TOKEN if they are set, else the socket in the
// data folder if it exists, else the URL of the default port with the token of the data folder.
func Local() (node, token string) { return local() }

// Mesh returns a client of the node on this host, to find, call, read, write and watch other agents. The caller closes it. With LMOSD_AS, the DID of an
// agent with a key of its own that is attached to the node, it calls as that agent (api.Client.As).
func Mesh() (*api.Client, error) {
	node, token := Local()
	c, err := api.Dial(node, token)
	if err == nil {
		c.As(did.DID(os.Getenv("LMOSD_AS")))
	}
	return c, err
}

// Call invokes an action of an agent through the node on this host, and decodes its output; a nil input sends none, and an io.Reader or an
// [Upload] is sent while it is read. Partial outputs are joined (see [interact.Join]); text decodes as a string, and data that is neither
// JSON nor text as a string in base64url. Without a deadline in ctx the node waits 30 s. The error is an [*interact.Error] or wraps a
// context error.
func Call[Out any](ctx context.Context, agent, action string, input any) (Out, error) {
	var out Out
	mesh, err := Mesh()
	if err != nil {
		return out, err
	}
	defer mesh.Close()
	raw, err := call(ctx, mesh, agent, action, input)
	if err != nil || len(raw) == 0 {
		return out, err
	}
	if err := json.Unmarshal(raw, &out); err != nil {
		return out, &interact.Error{Code: interact.AgentFailed, Title: "the output of " + action + " is not of type " + typeName[Out](),
			Hint: "see the schema of its output", Next: interact.Next(interact.StepShow, agent), Err: err}
	}
	return out, nil
}
