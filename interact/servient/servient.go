// Package servient turns descriptions into Things: it exposes the agents of this node and consumes Things of other nodes and of the local
// network.
//
// It has the table of the protocol bindings ([Options] configure them), the tasks of long-running actions and the shared subscriptions.
// The term is that of WoT Architecture: a servient exposes and consumes Things.
package servient

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"net/url"
	"runtime/debug"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/interact/hub"
	"github.com/lmosd/lmosd/interact/rest"
	"github.com/lmosd/lmosd/interact/task"
	"github.com/lmosd/lmosd/policy"
	"github.com/lmosd/lmosd/policy/access"
	"github.com/lmosd/lmosd/td"
)

// Options configure a [Servient].
type Options struct {
	// Credentials, CallerSecret (rest.Options) and Webhook are for the agents of this node only. A nil Webhook supports no webhooks.
	Credentials  credentials.Store
	CallerSecret func(thing string, to *url.URL) string
	Webhook      rest.Receiver
	// Direct is DirectOff, DirectSecure or DirectAny.
	Direct string
	// NoValidation turns off the checks of messages against descriptions.
	NoValidation bool
	// Tasks limits long-running actions. Bound and Log are set by New.
	Tasks task.Options
	// Subscriptions is hub.Options.SubscriptionsPerCaller; 0 means its default.
	Subscriptions int
	// Policy limits calls of each agent. It is required.
	Policy *policy.Policy
	// Bridges that are a bridge.TunnelGuard apply Policy to the messages in tunnels of their protocol.
	Bridges []bridge.Bridge
	// Tracer records spans; nil records none.
	Tracer interact.Tracer
	// Stage measures the calls of agents: stage is "agent", and protocol is a scheme, or "inside" for an agent of this process. It is
	// required.
	Stage func(stage, protocol string) interact.Middleware
	// Log is required.
	Log *slog.Logger
}

// A Servient exposes and consumes Things. Its methods are safe for concurrent use.
type Servient struct {
	o      Options
	own    *bindings // of the agents of this node
	direct *bindings // of the agents of other nodes; nil if Options.Direct is DirectOff
	hub    *hub.Hub
	tasks  *task.Runner
}

// New returns a servient.
func New(o Options) *Servient {
	o.Tasks.Log, o.Tasks.Bound = o.Log, o.Policy.Bound
	s := &Servient{
		o: o,
		// The queue of an agent (Policy) limits its calls, so its connections need no limit.
		own:    newBindings(bindingOptions{credentials: o.Credentials, callerSecret: o.CallerSecret, webhook: o.Webhook, conns: -1, log: o.Log}),
		direct: guardedBindings(o.Direct, o.Log),
		hub:    hub.New(hub.Options{SubscriptionsPerCaller: o.Subscriptions, Log: o.Log}),
		tasks:  task.New(o.Tasks),
	}
	o.Policy.OnDelegationEnd(s.tasks.CancelLent)
	return s
}

// Run works until ctx ends.
func (s *Servient) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.hub.Run(ctx) })
	g.Go(func() error { return s.tasks.Run(ctx) })
	return g.Wait()
}

// Count returns the numbers of the tasks of the agents of this node by state, and of the subscriptions and observations of their consumers.
func (s *Servient) Count() (tasks map[interact.Status]int, subscriptions int) {
	_, subscriptions = s.hub.Count()
	return s.tasks.States(), subscriptions
}

// CancelOf cancels the running tasks of a node and its consumers.
func (s *Servient) CancelOf(node did.DID) { s.tasks.CancelOf(node) }

// Drain waits until the running tasks have ended, or ctx ends.
func (s *Servient) Drain(ctx context.Context) { s.tasks.Drain(ctx) }

// Close ends tasks and subscriptions and closes the connections to agents.
func (s *Servient) Close() {
	s.tasks.Close()
	s.hub.Close()
	if s.direct != nil {
		s.direct.close()
	}
	s.own.close()
}

// Expose returns the Thing of an agent of this node. A nil handler means that the agent is called over the forms of d. A message passes, in
// this order: the access rules, the check against d, tasks, the limits of the agent, the shared subscriptions, operations on several affordances, the check
// of replies, the guards of tunnels, timing, spans, and watch.
func (s *Servient) Expose(d *td.Description, handler interact.Thing, watch interact.Middleware) interact.Thing {
	if handler == nil {
		paths := s.own.paths(d.Thing, 0)
		for i, p := range paths {
			paths[i].Thing = s.o.Stage("agent", p.Name)(p.Thing)
		}
		handler = interact.NewPaths(d.Thing, paths...)
	} else {
		handler = s.o.Stage("agent", "inside")(handler)
	}
	target := access.TargetOf(d.Thing, d.Name())
	layers := []interact.Middleware{s.o.Policy.Authorize(d.Thing, target, tunnel(d)), undelegated, s.checked(d.Thing), s.tasks.Middleware(d.Thing), s.limits(d),
		s.hub.Middleware(), interact.Composed(d.Thing)}
	if !s.o.NoValidation {
		layers = append(layers, interact.CheckedReplies(d.Thing))
	}
	layers = append(layers, s.guards(d, target)...)
	return interact.Chain(handler, append(layers, interact.Timed(func(t *interact.Timing, took time.Duration) { t.Agent = took }),
		interact.Spans(s.o.Tracer, "agent"), watch)...)
}

// limits returns the limit of an agent: that of the policy, or the concurrency that its description declares. An MCP session is long
// and mostly idle, so it is limited separately.
func (s *Servient) limits(d *td.Description) interact.Middleware {
	return s.o.Policy.LimitThing(d.ID, d.Concurrency, tunnel(d))
}

// tunnel returns whether an action of d is a tunnel, whose messages the guards check.
func tunnel(d *td.Description) func(action string) bool {
	return func(name string) bool {
		a := d.Actions[name]
		return a != nil && slices.Contains(a.Types, bridge.MCPSession)
	}
}

// guards returns the layers that apply the policy to the messages in the tunnels of d.
func (s *Servient) guards(d *td.Description, target *access.Target) (layers []interact.Middleware) {
	for _, b := range s.o.Bridges {
		g, ok := b.(bridge.TunnelGuard)
		if !ok {
			continue
		}
		// The tunnel itself counts against the limits of the node and of the agent.
		if w := g.Guard(d.Thing, func(_ context.Context, m *interact.Message) error { return s.o.Policy.Allows(m, target, d.Concurrency) }); w != nil {
			layers = append(layers, w)
		}
	}
	if len(layers) > 0 {
		layers = append(layers, s.recovered)
	}
	return layers
}

// recovered turns a panic of an agent into an error. A guard calls the agent in a goroutine of its own, where no other code recovers.
func (s *Servient) recovered(agent interact.Thing) interact.Thing {
	return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			inLoop, more := false, true // a panic of the consumer's loop is not the agent's
			defer func() {
				if inLoop {
					return
				}
				if p := recover(); p != nil {
					s.o.Log.Error("agent panicked", "thing", m.Thing, "name", m.Name, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
					if more {
						yield(nil, interact.Errorf(interact.Internal, "see the log of the host", "the host failed while it called %s", m.Name))
					}
				}
			}()
			agent.Do(ctx, m)(func(r *interact.Message, err error) bool {
				inLoop = true
				more = yield(r, err)
				inLoop = false
				return more
			})
		}
	})
}

// undelegated rejects messages of consumers of this node with a delegation, which is for another host.
func undelegated(t interact.Thing) interact.Thing {
	return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		if m.With != nil {
			return interact.Fail(interact.Errorf(interact.DelegationInvalid, "call an agent of that host, or leave the delegation out",
				"WrongExecutor: a call of %s at this node does not go to the host of the delegation, %s", m.Thing, m.With.Host.Short()))
		}
		return t.Do(ctx, m)
	})
}

// checked returns the check of requests against t.
func (s *Servient) checked(t *td.Thing) interact.Middleware {
	if s.o.NoValidation {
		return func(t interact.Thing) interact.Thing { return t }
	}
	return interact.Checked(t)
}

// A Consumed is a Thing of another node.
type Consumed struct {
	interact.Thing
	Paths *interact.Paths
}

// Consume returns the Thing of another node. Its first path is mesh, whose far end checks the requests; the others are its forms, as far as
// Options.Direct permits. The access rules apply to the consumers of this node. Watch sees the results.
func (s *Servient) Consume(d *td.Description, mesh interact.Thing, watch interact.Middleware) *Consumed {
	paths := []interact.Path{{Name: "mesh", Thing: mesh}}
	if s.direct != nil {
		for _, p := range s.checkedPaths(s.direct, d, 1) {
			supports := p.Supports
			p.Supports = func(m *interact.Message) bool { return m.With == nil && (supports == nil || supports(m)) } // a delegation is for its host
			paths = append(paths, p)
		}
	}
	p := interact.NewPaths(d.Thing, paths...)
	authorize := s.o.Policy.Authorize(d.Thing, access.TargetOf(d.Thing, d.Name()), nil)
	return &Consumed{interact.Chain(p, authorize, interact.Named(d.Ref()), s.hub.Remote(), watch), p}
}

// A Mesh is a Thing at its other hosts.
type Mesh interface {
	interact.Thing
	// HasState reports whether one of the hosts has what m is about, such as a run.
	HasState(m *interact.Message) bool
}

// Bind returns the Thing of d: its agent at this node, if there is one and d names no other hosts; or the one of [Servient.Consume]; or, with an agent
// and other hosts, both. Then the agent is called, unless it cannot be reached, refuses, or takes more than twice the time of the other hosts.
func (s *Servient) Bind(d *td.Description, agent interact.Thing, mesh Mesh, watch interact.Middleware) interact.Thing {
	if agent != nil && len(d.Record.Hosts) < 2 {
		return agent
	}
	far := s.Consume(d, mesh, watch)
	if agent == nil {
		return far
	}
	p := localFirst(d.Thing, agent, far, mesh.HasState)
	return &Consumed{p, p}
}

// localFirst returns the paths to an agent of this node and to its other hosts, which are far. A message about what one of those has is for them.
func localFirst(t *td.Thing, agent, far interact.Thing, farHasState func(*interact.Message) bool) *interact.Paths {
	const local = "local"
	return interact.NewPaths(t,
		interact.Path{Name: local, Thing: agent, IsHost: true, Supports: func(m *interact.Message) bool {
			return m.With == nil && (m.Via == local || !farHasState(m)) // a delegation is for another host
		}},
		interact.Path{Name: "mesh", Thing: far, IsHost: true, Rank: 1, HasAddress: func(via string) bool { return via != local }})
}

// checkedPaths returns the paths of b to d, which check the requests here.
func (s *Servient) checkedPaths(b *bindings, d *td.Description, rank int) []interact.Path {
	paths := b.paths(d.Thing, rank)
	for i, p := range paths {
		paths[i].Thing = interact.Chain(p.Thing, s.checked(d.Thing), interact.Composed(d.Thing))
	}
	return paths
}

// A Connection calls discovered Things (explore.Connection).
type Connection struct {
	s        *Servient
	bindings *bindings
}

// Connect returns a connection that connects through dial only, and with TLS or DTLS only if secure. It presents no credentials.
func (s *Servient) Connect(dial Dialer, secure bool) *Connection {
	b := newBindings(bindingOptions{dial: dial, log: s.o.Log}).anonymous()
	if secure {
		b.permit = isSecure
	}
	return &Connection{s, b}
}

// Agent returns the Thing of d, or nil if no binding supports a form of d.
func (c *Connection) Agent(d *td.Description) interact.Thing {
	paths := c.s.checkedPaths(c.bindings, d, 0)
	if len(paths) == 0 {
		return nil
	}
	return interact.Chain(interact.NewPaths(d.Thing, paths...), undelegated, c.s.o.Policy.Authorize(d.Thing, access.TargetOf(d.Thing, d.Name()), nil),
		interact.Named(d.Ref()), c.s.hub.Middleware())
}

// Close closes the connections.
func (c *Connection) Close() error {
	c.bindings.close()
	return nil
}
