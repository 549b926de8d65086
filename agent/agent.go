// Package agent is the Go SDK: [Serve] exposes actions, properties and events through the local node, and [Call] invokes actions of
// other agents.
//
//	err := agent.Serve(ctx, agent.Agent{Name: "weather"},
//		agent.Action("getWeather", func(ctx context.Context, in Question) (string, error) { … }))
//
// The agent dials the node (one WebSocket, see interact/ws), so that it needs no port and no address of its own; when the
// connection breaks it dials again, and the node keeps the agent's place for a while. The Thing Description is made of the Go
// types: what a caller sends fits the schema before a function sees it.
package agent

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"log/slog"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/ws"
	"github.com/lmosd/lmosd/internal/backoff"
)

// An Agent is what an agent says of itself, and where its node is. Only Name is needed.
type Agent struct {
	// Name is the title, by which others call the agent.
	Name string
	// ID is a URI; empty lets the node make one of its own DID and the name.
	ID          string
	Description string
	// Version is that of the agent, "1.0.0".
	Version string
	// Capabilities are ids under which others look for the agent, "urn:example:weather".
	Capabilities []string
	// Tool says that this is a tool and no agent (@type lmos:Tool).
	Tool bool
	// Node is the URL or the socket of the node, and Token its token; empty takes those of this machine, see [Local].
	Node, Token string
	// Ready is called each time the node has taken the agent, with its id. Nil is not called.
	Ready func(id string)
	Log   *slog.Logger
}

// A Part is one affordance of an agent: what [Action], [Stream], [Property], [State] and [Event] make.
type Part interface{ add(*server) error }

// An Option says more about a part.
type Option func(about map[string]any)

// Doc describes a part in words.
func Doc(text string) Option { return func(about map[string]any) { about["description"] = text } }

// Safe says that an action changes nothing, so that it may be asked twice (TD 1.1, safe).
func Safe() Option {
	return func(about map[string]any) { about["safe"], about["idempotent"] = true, true }
}

// Idempotent declares that repeated calls with the same input have the effect of one call (TD 1.1 "idempotent").
func Idempotent() Option { return func(about map[string]any) { about["idempotent"] = true } }

// Async says that an action takes long: the node runs it as a task that outlives its caller (TD 1.1, synchronous: false).
func Async() Option { return func(about map[string]any) { about["synchronous"] = false } }

// Serve offers the parts as one agent until ctx ends; then the agent is withdrawn and the result is nil. A broken connection is
// dialled again, with pauses up to five seconds. The error is an [*interact.Error]: that there is no node at first, that it
// refuses the agent, or what is wrong with the parts.
func Serve(ctx context.Context, a Agent, parts ...Part) error {
	td, thing, err := New(a, parts...)
	if err != nil {
		return err
	}
	if a.Node == "" {
		a.Node, a.Token = Local()
	}
	return Attach(ctx, a.Node, a.Token, td, thing, a.Ready, a.Log)
}

// Attach offers a thing of any kind, as [Serve] offers one that is made of parts: td is its description, complete or a draft
// without forms; node is the URL or the socket of the node, and token the node's token. Ready is called each time the node has
// taken the thing, with its id; nil is not called. A nil log discards.
func Attach(ctx context.Context, node, token string, td []byte, thing interact.Thing, ready func(id string),
	log *slog.Logger) error {
	o, err := socketOf(node)
	if err != nil {
		return err
	}
	o.Token, o.TD, o.Thing, o.Log = token, td, thing, log
	return keep(ctx, o, ready)
}

// AttachChanging is [Attach] for a thing whose description changes: now returns it, and a channel that is closed when there is another.
func AttachChanging(ctx context.Context, node, token string, now func() (td []byte, changed <-chan struct{}), thing interact.Thing,
	ready func(id string), log *slog.Logger) error {
	o, err := socketOf(node)
	if err != nil {
		return err
	}
	o.Token, o.Changing, o.Thing, o.Log = token, now, thing, log
	return keep(ctx, o, ready)
}

// New makes the draft of a description and the thing of an agent, for a program that offers them itself: to a node in its own
// process (node.Node.Offer, after td.Draft), or over another connection.
func New(a Agent, parts ...Part) (td []byte, thing interact.Thing, err error) {
	s, err := newServer(a, parts)
	if err != nil {
		return nil, nil, err
	}
	return s.td, s, nil
}

// longestPause is the longest time between two attempts to reach the node.
const longestPause = 5 * time.Second

// keep attaches again whenever the connection breaks after the first success.
func keep(ctx context.Context, o ws.AttachOptions, ready func(id string)) error {
	known := false
	pauses := backoff.Backoff{First: longestPause / 64, Max: longestPause}
	o.Registered = func(id string) {
		known = true
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
		case !known, !passing(err):
			return err
		}
		if pauses.Sleep(ctx) != nil {
			return nil
		}
	}
}

// passing reports whether err is of the connection, so that it is worth dialling again.
func passing(err error) bool {
	e, ok := errors.AsType[*interact.Error](err)
	return !ok || e.Code.Retryable() || e.Code == interact.Cancelled
}

// A server is the thing behind the connection.
type server struct {
	about      map[string]any // the description, as it grows
	td         []byte
	actions    map[string]interact.Func
	properties map[string]*property
	events     map[string]*topic
	parking    interact.Parking // of actions that ask
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

// put adds an affordance to the description. Two of one name are an error.
func (s *server) put(kind, name string, about map[string]any, options []Option) error {
	all, _ := s.about[kind].(map[string]any)
	if all == nil {
		all = map[string]any{}
		s.about[kind] = all
	}
	if name == "" || all[name] != nil {
		return interact.Errorf(interact.BadTD, "give each its own", "the name %q among the agent's %s is empty or taken", name, kind)
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
			return s.parking.Continue(m)
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
		return interact.Fail(interact.Errorf(interact.NotAllowed, "the node answers this for its agents",
			"an agent is not asked for %s", m.Type.Op()))
	}
	return interact.Fail(interact.Errorf(interact.NoAffordance, "see what it has", "there is no %q here", m.Name).Then(interact.StepShow))
}

// CallerOf returns who asks, to a function of an agent that has the context of a call; nil where nobody says: outside of a call, for
// events and observations, which are for many, and from a node that does not tell. It must not be changed. Its ID is what to keep
// something for a caller under; what is behind a node's # is that node's word.
func CallerOf(ctx context.Context) *did.Principal { return did.PrincipalOf(ctx) }

// Local returns where the node of this machine is, and the token: LMOSD_NODE and LMOSD_TOKEN if they are set, else the socket
// in the data folder if there is one, else the URL of the default port with the token of the data folder.
func Local() (node, token string) { return local() }

// Mesh returns a client of the node of this machine: to find, call, read, write and watch other agents. The caller closes it.
func Mesh() (*api.Client, error) {
	node, token := Local()
	return api.Dial(node, token)
}

// Call calls an action of an agent through the node of this machine, and decodes its output; a nil input is none, and an
// io.Reader or an [Upload] is sent while it is read. The parts of an output that comes as a stream are put together (see
// [interact.Join]), text decodes as a string, and what is neither JSON nor text as one in base64url. Without a deadline in ctx the node waits 30 s.
// The error is an [*interact.Error] or wraps a context error.
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
		return out, &interact.Error{Code: interact.AgentFailed, Title: "the output of " + action + " is no " + typeName[Out](),
			Hint: "see what it gives", Next: interact.Next(interact.StepShow, agent), Err: err}
	}
	return out, nil
}
