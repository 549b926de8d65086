// Package node builds and runs one node: identity, libp2p host, storage and wiring.
//
// [New] opens the parts in the order of open. A call passes them as follows:
//
//  1. A consumer sends a request to its own node: by HTTP (gateway, interact/rest/server), WebSocket, MQTT, CoAP, MCP or A2A, or by `lmosd call`.
//  2. The binding decodes it to an interact.Message and sets From, the principal that it authenticated.
//  3. The message passes the chain of openCalls: spans, trace, times, metrics, journal, shutdown gate, policy, limits, ledger of tasks, router.
//  4. The router calls explore.View.Locate, which asks the directory. A Thing that this node offers is a local Thing. For any other, the paths
//     are tried, best first: the hosts of the verified description, then its forms, as far as Options.Direct permits (interact/servient).
//  5. interact/stream takes a session to the host, writes the frame and yields the replies.
//  6. The host checks service, memory, deadline and frame, and sets From to the authenticated peer. Its own chain ends at the Things that it
//     offers: nodes do not relay.
//  7. The agent is inside its limits, tasks and shared subscriptions (interact/servient). Its binding is called last, and the replies return
//     through the same loops.
//  8. A cancellation takes the same path: the consumer disconnects, the context ends, the loop ends, the stream is reset, the context at the
//     host ends, and the request to the agent is aborted.
package node

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/audit"
	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/directory/presence"
	"github.com/lmosd/lmosd/directory/route"
	"github.com/lmosd/lmosd/discovery/explore"
	"github.com/lmosd/lmosd/gateway"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/gateway/tokens"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/interact/rest"
	"github.com/lmosd/lmosd/interact/servient"
	"github.com/lmosd/lmosd/interact/task"
	"github.com/lmosd/lmosd/internal/storage"
	"github.com/lmosd/lmosd/node/datadir"
	"github.com/lmosd/lmosd/node/status"
	"github.com/lmosd/lmosd/node/topology"
	"github.com/lmosd/lmosd/p2p"
	"github.com/lmosd/lmosd/policy"
	"github.com/lmosd/lmosd/publication"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/telemetry"
)

// A Node is one running lmosd. Its methods are safe for concurrent use between New and Close.
type Node struct {
	opts      Options
	life      *lifecycle
	key       *keystore.Key
	stores    *datadir.Stores
	policy    *policy.Policy
	metrics   *gateway.Metrics
	network   *network
	tracer    interact.Tracer // nil records nothing
	callbacks *rest.Callbacks // receives webhook events of the agents of this node
	servient  *servient.Servient
	ledger    *task.Ledger // of the tasks that consumers of this node started
	mesh      *mesh
	router    *route.Router
	reporter  *status.Reporter
	local     introducer // announces the API on the local network; nil if that is off
	view      explore.View
	exported  exported
	listeners *listeners
	gateway   *gateway.Gateway // listens only with Options.HTTP
	gate      interact.Gate    // of the calls of this node's consumers
}

// New opens everything that a node needs and listens. On failure it closes, in reverse order, what it has opened, and Options.Host. Errors that
// a user can fix are [*interact.Error]s with a hint.
//
// A store with damaged files is moved aside, and the node starts with the copies of its entries (datadir.Stores.Restore).
func New(o Options) (*Node, error) {
	n, err := open(o, "")
	if o.Dir == "" || o.Host != nil || !storage.Damaged(err) {
		return n, err
	}
	aside, moved := storage.Aside(o.Dir)
	if moved != nil {
		return nil, errors.Join(err, moved)
	}
	if o.Log != nil {
		o.Log.Error("damaged store moved aside", "to", aside, "err", err)
	}
	return open(o, aside)
}

// open opens a node; aside is the folder to which its damaged store was moved, or empty.
func open(o Options, aside string) (*Node, error) {
	o, err := o.withDefaults()
	n := &Node{opts: o, life: newLifecycle(o.Log)}
	if o.Host != nil {
		n.life.onClose(o.Host.Close)
	}
	for _, step := range []func() error{
		func() error { return err },              // invalid options open nothing
		func() error { return n.openDir(aside) }, // first: it fails if another process uses the directory
		n.openHost,                               // does not listen yet: handlers precede the first peer
		n.openAgents,                             // calls the agents of this host
		n.openDirectory,                          // with what fills it: DHT, gossip, reconciliation
		n.openLocal,                              // discovery on the local network
		n.openCalls,                              // the chains of calls
		n.listen,                                 // now peers may connect
		func() error { return n.mesh.publisher.Open(n.life.ctx) }, // publications contain the addresses of the listeners
		func() error {
			n.life.background(func(ctx context.Context) { _ = n.mesh.publisher.Load(ctx) })
			return nil
		}, // what opens next may wait for it
		n.openListeners, // of MQTT, CoAP and WebSocket
		n.openHTTP,      // last: the first request finds all other parts
	} {
		if err := step(); err != nil {
			return nil, errors.Join(err, n.Close())
		}
	}
	return n, nil
}

// openDir opens the data directory: lock, key and store.
func (n *Node) openDir(aside string) error {
	if n.opts.Dir != "" {
		release, err := datadir.Lock(n.opts.Dir)
		if err != nil {
			return err
		}
		n.life.onClose(release)
	}
	var err error
	if n.key, err = openKey(&n.opts); err != nil {
		return err
	}
	all, err := datadir.Open(n.opts.Engine, n.opts.Dir, storage.Options{Log: n.opts.Log, Free: n.opts.free})
	if err != nil {
		return err
	}
	n.life.onClose(all.Close)
	var home string
	if n.stores, home, err = all.Of(n.opts.Network, networkName().Match); err != nil {
		return err
	}
	if home != n.opts.Network {
		n.opts.Log.Info("network stored apart from the first one in the data directory", "network", n.opts.Network, "first", home)
	}
	n.life.onRun(func(ctx context.Context) error {
		if n.stores.Run(ctx) { // the disk was full, and has room now
			return n.mesh.publisher.Restore(n.life.ctx)
		}
		return nil
	})
	n.life.onClose(n.stores.CloseCopies)
	return n.stores.Restore(n.life.ctx, n.opts.Dir, n.opts.Network, aside, n.opts.Log)
}

func (n *Node) openHost() (err error) {
	if err := n.openTokens(); err != nil {
		return err
	}
	if err := n.openAudit(); err != nil {
		return err
	}
	t, err := n.openTrust()
	if err != nil {
		return datadir.Error(n.opts.Dir, err)
	}
	n.network = &network{self: n.DID(), trust: t}
	n.opts.Policy.Self, n.opts.Policy.Log = n.DID(), n.opts.Log
	if p := &n.opts.Policy; p.Principal == nil {
		p.Principal, p.Organization, p.Names, p.Unconfirmed = t.Principal, t.Named, t.Names, t.Unconfirmed
		p.Group = func(name string) (string, bool) { return n.network.groups.Named(name) }
	}
	n.opts.Policy.OnLoad = n.rulesChanged
	n.policy = policy.New(n.opts.Policy)
	n.stores.Tokens.OnChange(func() error {
		n.stores.Audit.Change(audit.ChangeToken, "access tokens changed")
		return n.policy.Load()
	})
	n.life.onRun(func(ctx context.Context) error { return n.policy.Run(ctx, n.opts.Log) })
	n.metrics = gateway.NewMetrics()
	n.stores.Audit.OnChange(n.metrics.Journal().Changed)
	return errors.Join(n.openNetwork(), n.policy.Load())
}

// openAgents opens the bindings, tasks and shared subscriptions of the agents of this host, and the spans.
func (n *Node) openAgents() error {
	if o := n.opts.Telemetry; o.Endpoint != "" {
		o.Service, o.Version, o.Node, o.Log = "lmosd", n.opts.Version, string(n.DID()), n.opts.Log
		t, err := telemetry.New(n.life.ctx, o)
		if err != nil {
			return err
		}
		n.tracer = t
		n.life.onClose(func() error { return flush(t) })
	}
	creds, err := credentials.Load(n.opts.Credentials)
	if err != nil {
		return err
	}
	if n.stores.CallerSecrets, err = publication.LoadCallerSecrets(n.opts.Dir); err != nil {
		return err
	}
	n.callbacks = rest.NewCallbacks("") // until the API listens
	n.servient = servient.New(servient.Options{Credentials: creds, CallerSecret: n.stores.CallerSecrets.Of, Webhook: n.callbacks, Direct: n.opts.Direct, NoValidation: n.opts.NoValidation,
		Tasks: n.opts.Tasks, Subscriptions: n.opts.Policy.Subscriptions, Policy: n.policy, Bridges: n.opts.Bridges, Tracer: n.tracer,
		Stage: n.metrics.Stage, Log: n.opts.Log})
	n.life.onClose(func() error { n.servient.Close(); return nil })
	n.life.onRun(n.servient.Run)
	if n.ledger, err = task.NewLedger(n.stores.Ledger, task.LedgerOptions{Log: n.opts.Log}); err != nil {
		return n.stores.Failed(err)
	}
	return nil
}

// flushFor limits the export of the last spans.
const flushFor = 2 * time.Second

func flush(t *telemetry.Tracer) error {
	ctx, cancel := context.WithTimeout(context.Background(), flushFor)
	defer cancel()
	// An unreachable collector does not delay the end; the tracer logs the failure.
	_ = t.Close(ctx)
	return nil
}

// openDirectory opens the mesh with its directory, and the router and the status, which read it.
func (n *Node) openDirectory() error {
	search, closed, err := n.opts.Search.Open()
	n.life.onClose(closed)
	if err != nil {
		return err
	}
	if n.mesh, err = n.openMesh(search.Embedder); err != nil {
		return err
	}
	search.Find, search.State = n.mesh.directory.FindLocal, n.mesh.monitor.AgentState
	if n.router, err = route.New(search); err != nil {
		return err
	}
	m := n.mesh
	n.reporter = &status.Reporter{DID: n.DID(), Name: n.opts.Name, Version: n.opts.Version, Profile: n.opts.Profile, Network: n.opts.Network,
		Dir: n.opts.Dir, DHTMode: n.opts.DHTMode, Started: time.Now(), IsDraining: n.gate.Closed,
		Host: n.network.Host, Peers: n.network.peers, Store: n.stores, Policy: n.policy, Directory: m.directory, DHT: m.dht, Gossip: m.gossip,
		Sync: m.sync, Suspicion: m.suspicion, Streams: m.streams, Publisher: m.publisher, Index: m.index, Metrics: n.metrics,
		AuditEquivocations: n.stores.Audit.Equivocations, Late: n.life.loops.Late, Agents: n.servient.Count}
	return nil
}

// openCalls builds the chains between consumers and Things, and between peers and the Things of this node.
func (n *Node) openCalls() error {
	// Spans precede Trace: the span of a new trace decides whether the trace is recorded.
	calls := interact.Chain(interact.Router(n.view), interact.Spans(n.tracer, "mesh"), interact.Trace(n.opts.Timeout),
		interact.Timed(total), n.metrics.Middleware("mesh"), n.metrics.Journal().Middleware(n.DID()), n.gate.Middleware(), n.policy.Limit(), n.ledger.Middleware())
	n.exported = exported{calls, n.view, n.mesh.monitor, n.key, n.opts.HTTP.publicURL()}
	n.mesh.streams.Serve(interact.Chain(interact.Router(n.mesh.index), interact.Spans(n.tracer, "stream"), interact.Trace(n.opts.Timeout),
		interact.Timed(atHost), n.metrics.Middleware("stream"), n.policy.Settled(), n.policy.Limit()))
	return nil
}

// total sets the time that a consumer of this node observes. A call without a path to another node is local.
func total(t *interact.Timing, took time.Duration) {
	if t.Total = took; t.Path == "" {
		t.Path = "local"
	}
}

func atHost(t *interact.Timing, took time.Duration) { t.Host = took }

// listen opens the ports of the host. A given host listens already.
func (n *Node) listen() error {
	return n.network.own.Start()
}

// openHTTP opens the API with the exports of the bridges.
func (n *Node) openHTTP() (err error) {
	o := gateway.Options{Mesh: n.exported.Thing, Directory: n.view, Router: n.router, Presence: n.mesh.monitor, Publisher: n.publications(),
		Status: n.reporter, Peers: n.network.peers, Metrics: n.metrics, Counters: n.reporter.Counters, Log: n.opts.Log,
		Tasks: n.tasks(), Policy: n.policy,
		Describe: tdd.Self{Signer: n.key, Name: n.opts.Name, Network: n.opts.Network, Version: n.opts.Version, Lifetime: n.opts.Lifetime,
			Hosts: n.network.records()}.TD,
		Listen: gateway.None, Socket: gateway.None}
	if t := n.network.trust; t != nil {
		o.Trust, o.Groups, o.Delegations = t, n.network.groups, n.network.lent
	}
	if h := n.opts.HTTP; h != nil {
		o.Tokens, o.TokenFile, o.NoAuth, o.Proxy = n.stores.Tokens, tokens.OperatorPath(n.opts.Dir), h.NoAuth, h.Proxy
		o.Listen, o.Explicit, o.Socket = cmp.Or(h.Listen, gateway.None), h.Explicit, cmp.Or(h.Socket, gateway.None)
		o.CertFile, o.KeyFile, o.Shared, o.Upgrade = h.CertFile, h.KeyFile, n.network.own.HTTP(), n.network.own.Upgrade
		o.Operation = h.Operation
		if n.local != nil {
			o.LocalName = n.local.Host()
		}
		for _, b := range n.opts.Bridges {
			served := b.Export(n.exported)
			n.life.onClose(func() error { served.Close(); return nil })
			o.Bridges = append(o.Bridges, served)
		}
		// Consumers on this host may receive webhooks at any address.
		o.WS, o.Callbacks, o.PrivateCallbacks = n.listeners.sockets, n.callbacks, n.opts.Direct == servient.DirectAny || onLoopback(h.Listen)
	}
	o.Topology = topology.New(topology.Options{Reporter: n.reporter, Trust: n.network.trust, For: o.LinksFor, Index: n.opts.Index, Relays: n.network.own.CanServe, Dial: n.mesh.monitor.Dial, Go: n.life.background, Log: n.opts.Log})
	if n.gateway, err = gateway.New(o); err != nil {
		return err
	}
	n.life.onClose(n.gateway.Close)
	return nil
}

func (n *Node) publications() gateway.Publications {
	return gateway.Publications{Publisher: n.mesh.publisher, Owner: n.DID(), Callers: n.policy.Callers}
}

func (n *Node) tasks() gateway.LedgerTasks {
	return gateway.LedgerTasks{Ledger: n.ledger, Mesh: n.exported.Thing, Directory: n.mesh.directory, Hosted: n.mesh.monitor.Hosted}
}

// exported is the mesh as consumers in this process use it (bridge.Mesh).
type exported struct {
	interact.Thing
	explore.View
	*presence.Monitor
	key       *keystore.Key
	publicURL string
}

// Signer implements [bridge.Mesh].
func (e exported) Signer() did.Signer { return e.key }

// PublicURL implements [bridge.Mesh].
func (e exported) PublicURL() string { return e.publicURL }

// Mesh returns the mesh as consumers in this process use it: its Things, local and remote, and their descriptions.
func (n *Node) Mesh() bridge.Mesh { return n.exported }

// Known yields the Things in the directory; it sends no request.
func (n *Node) Known() iter.Seq[*td.Description] { return n.view.Known(did.AsProcess(n.life.ctx)) }

// DID returns the DID of the node: the did:key of its key.
func (n *Node) DID() did.DID { return n.key.DID() }

// Client returns a client of the node's own API in this process, with all rights.
func (n *Node) Client() *api.Client { return n.gateway.InProcess() }

// API returns the URL of the HTTP API, or "".
func (n *Node) API() string { return n.gateway.URL() }

// MQTT and CoAP return the addresses of the listeners for MQTT and CoAP clients, or "".
func (n *Node) MQTT() string { return n.listeners.mqtt() }
func (n *Node) CoAP() string { return n.listeners.coap() }

// Addrs returns the multiaddrs of the node, with /p2p.
func (n *Node) Addrs() []string { return p2p.FullAddrs(n.network.Host) }

// Status returns the state of the node.
func (n *Node) Status() *api.Status {
	s := n.reporter.Status(did.AsProcess(n.life.ctx))
	s.API = n.API()
	return s
}

// Publish signs a TD, stores it durably and announces it.
func (n *Node) Publish(ctx context.Context, raw []byte) (*api.Publication, error) {
	return n.Offer(ctx, raw, nil)
}

// Offer publishes an agent that is part of this process (gateway.Publications.Publish).
func (n *Node) Offer(ctx context.Context, raw []byte, agent interact.Thing) (*api.Publication, error) {
	return n.publications().Publish(ctx, raw, agent, publication.Registration{})
}
