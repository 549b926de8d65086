// Package node builds and runs one node: identity, libp2p host, storage and wiring.
//
// One interaction, in the order of the code:
//
//  1. A consumer sends a request to its own node: by HTTP (gateway, interact/rest/server), WebSocket, MQTT, CoAP, MCP or A2A, or by `lmosd call`.
//  2. The binding decodes it to an interact.Message and sets From, the principal that it authenticated.
//  3. The message passes the chain of the mesh: trace, spans, metrics, policy, limits and ledger, a few lines in openMesh, to the router.
//  4. The router calls directory.Locate. A Thing that this node offers is a local Thing. For any other, the paths are tried, best first: the
//     hosts of the verified description, then its forms, as far as Options.Direct permits (interact/servient).
//  5. interact/stream takes a session to the host, writes the frame and yields the replies.
//  6. The host checks service, memory, deadline and frame, and sets From to the authenticated peer. Its own chain ends at the Things that it
//     offers: nodes do not relay.
//  7. The agent is inside its limits, tasks and shared subscriptions (interact/servient). Its binding is called last, and the replies return
//     through the same loops.
//  8. A cancellation takes the same path: the consumer disconnects, the context ends, the loop ends, the stream is reset, the context at the
//     host ends, and the request to the agent is aborted.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	ds "github.com/ipfs/go-datastore"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/dht"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/aries"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/directory/embedding"
	"github.com/lmosd/lmosd/directory/presence"
	"github.com/lmosd/lmosd/directory/route"
	"github.com/lmosd/lmosd/discovery/explore"
	"github.com/lmosd/lmosd/gateway"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/coap"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/interact/mqtt"
	"github.com/lmosd/lmosd/interact/rest"
	"github.com/lmosd/lmosd/interact/servient"
	"github.com/lmosd/lmosd/interact/stream"
	"github.com/lmosd/lmosd/interact/task"
	"github.com/lmosd/lmosd/interact/ws"
	"github.com/lmosd/lmosd/internal/storage"
	"github.com/lmosd/lmosd/node/status"
	"github.com/lmosd/lmosd/p2p"
	"github.com/lmosd/lmosd/policy"
	"github.com/lmosd/lmosd/publication"
	"github.com/lmosd/lmosd/pubsub"
	"github.com/lmosd/lmosd/pubsub/reconcile"
	"github.com/lmosd/lmosd/pubsub/suspicion"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/telemetry"
)

// A Node is one running lmosd. Its methods are safe for concurrent use between New and Close.
type Node struct {
	*status.Reporter
	opts        Options
	log         *slog.Logger
	key         *keystore.Key
	host        host.Host
	peers       *p2p.Peers // of host
	stores      *stores
	offerStore  ds.Batching // with copies, as taskStore
	taskStore   ds.Batching
	verifier    *td.Verifier
	policy      *policy.Policy
	metrics     *gateway.Metrics
	tracer      interact.Tracer // nil records nothing
	callbacks   *rest.Callbacks // receives webhooks of the agents of this node
	servient    *servient.Servient
	streams     *stream.Binding // calls other nodes
	ledger      *task.Ledger    // of the tasks that consumers of this node started
	sockets     *ws.Server
	broker      *mqtt.Broker // nil without Options.MQTT
	coap        *coap.Server // nil without Options.CoAP
	dht         *dht.DHT
	sync        *reconcile.Reconciler
	suspicion   *suspicion.Detector
	gossip      *pubsub.PubSub
	dir         *directory.Directory
	presence    *presence.Monitor
	publisher   *publication.Publisher
	offered     *publication.Index   // what this node offers; publisher writes it
	local       introducer           // announces this node on the local network; nil if that is off
	discoveries *explore.Discoveries // what others introduce there
	router      *route.Router
	embedder    embedding.Embedder // nil: words are compared
	mesh        interact.Thing
	gateway     *gateway.Gateway // listens only with Options.HTTP
	self        []byte           // the node's own signed TD

	bootstrap *p2p.Bootstrap
	life      context.Context // ends with the node; background work hangs on it
	end       context.CancelFunc
	work      sync.WaitGroup // what runs in the background
	// beginning is held while work is begun, and while life ends: nothing is begun after that.
	beginning sync.Mutex
	aside     string         // where the damaged store is that was there at the start
	gate      interact.Gate  // of what consumers of this node call
	drainFor  time.Duration  // with calls of peers that run when the node stops
	closers   []func() error // in the order of opening
}

// New opens everything a node needs and listens. On failure it closes, in reverse, what it had opened, and Options.Host.
// What a user can mend is an [*interact.Error] with a hint.
//
// A store whose files are damaged is moved aside, and the node starts with what was saved: see damage.go.
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
		o.Log.Error("the store is damaged and was moved aside", "to", aside, "err", err)
	}
	return open(o, aside)
}

// open opens a node; aside is where its damaged store was moved, or empty.
func open(o Options, aside string) (*Node, error) {
	n := &Node{opts: o, aside: aside, drainFor: drainFor}
	n.life, n.end = context.WithCancel(context.Background())
	if o.Host != nil {
		n.onClose(o.Host.Close)
	}
	for _, step := range []func() error{
		n.settle,           // nothing is opened for options that cannot work
		n.openDir,          // first: nothing else may touch a directory that another process holds
		n.openNetwork,      // the host, without listening: handlers come before the first peer
		n.openAgents,       // what asks the agents of this host
		n.openMesh,         // directory, DHT, gossip, streams, and the chains between them
		n.openPorts,        // now peers may come
		n.openPublications, // needs the addresses that listening gave
		n.openListeners,    // other protocols
		n.openLocal,        // local announcements; the name there is also a host name of the API
		n.openHTTP,         // last: who can ask finds everything there
	} {
		if err := step(); err != nil {
			return nil, errors.Join(err, n.Close())
		}
	}
	return n, nil
}

func (n *Node) onClose(f func() error) { n.closers = append(n.closers, f) }

func (n *Node) settle() (err error) {
	n.opts, err = n.opts.withDefaults()
	n.log = n.opts.Log
	return err
}

func (n *Node) openDir() error {
	if n.opts.Dir != "" {
		release, err := lockDir(n.opts.Dir)
		if err != nil {
			return err
		}
		n.onClose(release)
	}
	var err error
	if n.key, err = openKey(&n.opts); err != nil {
		return err
	}
	if n.stores, err = openStores(n.opts.Engine, n.opts.Dir, storage.Options{Log: n.log, Free: n.opts.free}); err != nil {
		return err
	}
	n.onClose(n.stores.Close)
	var home string
	if n.stores, home, err = n.stores.of(n.opts.Network); err != nil {
		return err
	}
	if home != n.opts.Network {
		n.log.Info("the data folder keeps this network apart from the one that it was made in", "network", n.opts.Network, "other", home)
	}
	return n.openCopied()
}

func (n *Node) openNetwork() (err error) {
	n.opts.Policy.Self = n.key.DID()
	n.policy = policy.New(n.opts.Policy)
	n.verifier = td.NewVerifier(did.Resolvers(map[string]did.Resolver{"key": did.Fallback(did.Keys(), aries.Resolver())}))
	if n.metrics = n.opts.Metrics; n.metrics == nil {
		n.metrics = gateway.NewMetrics()
	}
	if err := n.openHost(); err != nil {
		return err
	}
	if n.host.ID() != peer.ID(n.key.Peer()) {
		return fmt.Errorf("the host is %s and the key that of %s", n.host.ID(), n.key.DID())
	}
	n.peers = p2p.NewPeers(p2p.PeersOptions{Host: n.host, Network: n.opts.Network, Admits: n.policy.Admits, Trust: n.policy.Trust, Ranges: n.opts.Ranges})
	n.bootstrap, err = p2p.NewBootstrap(n.host, n.opts.Bootstrap, n.stores.peers(), n.log)
	return err
}

// openHost makes the host, unless one was given.
func (n *Node) openHost() error {
	o := &n.opts
	if n.host = o.Host; n.host != nil {
		return nil
	}
	h, err := p2p.New(p2p.Options{Key: n.key, Version: o.Version, Network: o.Network,
		Listen: o.Listen, ListenExplicit: o.ListenExplicit, Announce: o.Announce, NoAnnounce: o.NoAnnounce, PublicOnly: o.PublicOnly,
		Admits: n.policy.Admits, Loopback: o.Loopback, DialPublic: o.Internet,
		NoNoise: o.NoNoise, NAT: o.NAT, Limits: o.Limits, Metrics: n.metrics.Registerer(), Log: n.log})
	if err != nil {
		return err
	}
	n.onClose(h.Close)
	n.host = h
	return nil
}

// openAgents opens what stands around the agents of this host: bindings, tasks, shared subscriptions, spans.
func (n *Node) openAgents() error {
	if n.opts.Telemetry.Endpoint != "" {
		o := n.opts.Telemetry
		o.Service, o.Version, o.Node, o.Log = "lmosd", n.opts.Version, string(n.DID()), n.log
		t, err := telemetry.New(n.life, o)
		if err != nil {
			return err
		}
		n.tracer = t
		n.onClose(func() error { return flush(t) })
	}
	creds, err := credentials.Load(n.opts.Credentials)
	if err != nil {
		return err
	}
	n.callbacks = rest.NewCallbacks("") // until the API listens
	n.servient = servient.New(servient.Options{Credentials: creds, Webhook: n.callbacks, Direct: n.opts.Direct, NoValidation: n.opts.NoValidation,
		Tasks: n.opts.Tasks, Subscriptions: n.opts.Policy.Subscriptions, Policy: n.policy, Bridges: n.opts.Bridges, Tracer: n.tracer,
		Stage: n.metrics.Stage, Log: n.log})
	n.onClose(func() error { n.servient.Close(); return nil })
	if n.ledger, err = task.NewLedger(n.taskStore, task.LedgerOptions{Log: n.log}); err != nil {
		return n.stores.Failed(err)
	}
	return nil
}

// flushFor bounds how long the last spans may take to leave.
const flushFor = 2 * time.Second

func flush(t *telemetry.Tracer) error {
	ctx, cancel := context.WithTimeout(context.Background(), flushFor)
	defer cancel()
	// A collector that is away keeps nobody from stopping; the tracer has messages so in the log.
	_ = t.Close(ctx)
	return nil
}

// maxServed is the number of calls of other nodes, waiting ones included, and of their subscriptions, up to which no call is rejected
// for want of slots.
const maxServed = 4096

// openMesh is the wiring: who asks whom.
func (n *Node) openMesh() (err error) {
	n.streams = stream.New(n.host, stream.Options{Network: n.opts.Network, As: stream.NewPseudonyms(n.key).Of, Log: n.log, DialTimeout: n.dialTimeout(), MaxPerPeer: n.opts.Limits.Streams,
		Reach:   func(id did.DID, ok bool) { n.presence.Reached(id, ok) },
		Refused: n.peers.Refusal, MaxConcurrent: max(maxServed, n.policy.Most())})
	n.onClose(n.streams.Close)

	n.offered = publication.NewIndex(n.DID())
	var index func(q td.Query) []*td.Signed
	if n.opts.Index {
		index = func(q td.Query) []*td.Signed { return n.offered.Listed(n.dir.Known(q)) }
	}
	n.dht, err = dht.New(n.host, dht.Options{Index: index, Network: n.opts.Network, Mode: dht.Mode(n.opts.DHTMode), PublishPrivate: !n.opts.PublicOnly, Store: n.stores.fast,
		Seeds: n.bootstrap.Peers, Verifier: n.verifier, Local: n.offered, Admits: n.policy.Admits,
		States:    func(ctx context.Context, keys [][32]byte) []dht.AgentState { return n.publisher.States(ctx, keys) },
		Evidence:  func(s *td.Signed) { n.dir.Enqueue(s) },
		Reached:   func(p peer.ID, ok bool) { n.presence.PeerReached(p, ok) },
		Down:      func(p peer.ID) bool { return n.presence.IsDown(p) },
		Missed:    func(p peer.ID) { n.presence.Missed(p) },
		Diversity: n.opts.Diversity, Log: n.log})
	if err != nil {
		return fmt.Errorf("open the DHT: %w", err)
	}
	n.onClose(n.dht.Close)

	n.gossip, err = pubsub.New(n.host, pubsub.Options{Network: n.opts.Network, Verifier: n.verifier, Admits: n.policy.Admits,
		Degree: n.opts.GossipDegree, Deliver: func(s *td.Signed, _ *td.Record) { n.dir.Enqueue(s) }, Ban: n.peers.Ban, Log: n.log})
	if err != nil {
		return fmt.Errorf("open gossip: %w", err)
	}
	n.onClose(n.gossip.Close)

	if err := n.openSearch(); err != nil {
		return err
	}
	known := directory.Options{Store: n.stores.fast, Verifier: n.verifier, Sources: []directory.Source{n.dht},
		Fetch: n.dht.Body, Bind: n.bind, Self: n.key.DID(), Max: n.opts.MaxThings, Log: n.log,
		Latency: n.peers.Latency, Connected: n.peers.IsConnected, Share: n.peers.Share, Trust: n.policy.Trust, Embedder: n.embedder,
		Probe:  func(ctx context.Context, id did.DID) error { return n.presence.Dial(ctx, id) },
		OnDown: func(id did.DID) { n.presence.Lost(id) }}
	items := new(reconcile.Set)
	known.OnChange = func(key [32]byte, seq uint64, here bool) {
		if here && !n.offered.IsUnlisted(key) {
			items.Put(key, seq)
		} else {
			items.Delete(key)
		}
	}
	if n.dir, err = directory.New(known); err != nil {
		return fmt.Errorf("open the directory: %w", err)
	}
	n.onClose(n.dir.Close)

	n.publisher = publication.New(publication.Options{Signer: n.key, Verifier: n.verifier, Index: n.offered, Store: n.offerStore, Disk: n.stores,
		Lifetime: n.opts.Lifetime, Hosts: n.hosts, Bind: n.servient.Expose, Directory: n.dir, Gossip: n.gossip, DHT: n.dht, Go: n.later,
		Pings: servient.Pings, ProbePause: n.opts.probePause, Log: n.log})
	n.Reporter = &status.Reporter{DID: n.DID(), Name: n.opts.Name, Version: n.opts.Version, Profile: n.opts.Profile, Network: n.opts.Network,
		Dir: n.opts.Dir, DHTMode: n.opts.DHTMode, Started: time.Now(), API: n.API, InTheClear: func() bool { return n.opts.HTTP.inTheClear() },
		IsDraining: n.gate.Closed, Host: n.host, Peers: n.peers, Store: n.stores, Policy: n.policy, Directory: n.dir, DHT: n.dht, Gossip: n.gossip,
		Sync: n.sync, Suspicion: n.suspicion, Streams: n.streams, Publisher: n.publisher, Index: n.offered, Metrics: n.metrics}

	n.sync, err = reconcile.New(n.host, reconcile.Options{Network: n.opts.Network, Set: items, Get: n.dir.Signed,
		Offer: func(s *td.Signed) { n.dir.Ingest(n.life, s) }, Verifier: n.verifier, Admits: n.policy.Admits, Room: n.dir.Room,
		Now: n.opts.now, Log: n.log})
	if err != nil {
		return fmt.Errorf("open reconciliation: %w", err)
	}
	n.onClose(n.sync.Close)

	n.suspicion, err = suspicion.New(n.host, suspicion.Options{Network: n.opts.Network, Tracks: n.dir.Tracks,
		Probe:    func(ctx context.Context, id did.DID) (bool, error) { return n.presence.Probe(ctx, id) },
		OnFailed: func(id did.DID) { n.presence.Reached(id, false) }, Admits: n.policy.Admits, Log: n.log})
	if err != nil {
		return fmt.Errorf("open failure detection: %w", err)
	}
	n.onClose(n.suspicion.Close)
	n.presence = presence.New(presence.Options{Self: n.DID(), Host: n.host, Peers: n.peers, Directory: n.dir, DHT: n.dht, Suspicion: n.suspicion,
		Index: n.offered, Publisher: n.publisher, Go: n.later, Pause: n.opts.probePause, Log: n.log})
	n.Reporter = &status.Reporter{DID: n.DID(), Name: n.opts.Name, Version: n.opts.Version, Profile: n.opts.Profile, Network: n.opts.Network,
		Dir: n.opts.Dir, DHTMode: n.opts.DHTMode, Started: time.Now(), API: n.API, InTheClear: func() bool { return n.opts.HTTP.inTheClear() },
		IsDraining: n.gate.Closed, Host: n.host, Peers: n.peers, Store: n.stores, Policy: n.policy, Directory: n.dir, DHT: n.dht, Gossip: n.gossip,
		Sync: n.sync, Suspicion: n.suspicion, Streams: n.streams, Publisher: n.publisher, Index: n.offered, Metrics: n.metrics}

	// Spans come before Trace: a trace that begins here begins with its span, which says whether it is recorded.
	n.mesh = interact.Chain(interact.Router(finder{n}), interact.Spans(n.tracer, "mesh"), interact.Trace(n.opts.Timeout), interact.Timed(total),
		n.metrics.Middleware("mesh"), n.gate.Middleware(), n.policy.Gate(), n.policy.Limit(), n.ledger.Middleware())
	n.streams.Serve(interact.Chain(interact.Router(n.offered), interact.Spans(n.tracer, "stream"), interact.Trace(n.opts.Timeout), interact.Timed(atHost),
		n.metrics.Middleware("stream"), n.policy.Gate(), n.policy.Limit()))
	return nil
}

// total is the time that a consumer of this node sees; what took no other way was here.
func total(t *interact.Timing, took time.Duration) {
	if t.Total = took; t.Path == "" {
		t.Path = "local"
	}
}

func atHost(t *interact.Timing, took time.Duration) { t.Host = took }

// dialTimeout is short where peers are near: a node that is there answers within milliseconds, and one that is not should not
// keep a caller waiting.
func (n *Node) dialTimeout() time.Duration {
	if n.opts.Internet {
		return 5 * time.Second
	}
	return 2 * time.Second
}

func (n *Node) openPorts() error {
	if h, ok := n.host.(*p2p.Host); ok && n.opts.Host == nil { // a given host listens already
		return h.Start()
	}
	return nil
}

// openPublications publishes again what was published before the last stop.
func (n *Node) openPublications() error { return n.publisher.Restore(n.life) }

func (n *Node) openHTTP() error {
	var err error
	if n.gateway, err = n.newGateway(n.opts.HTTP); err != nil {
		return err
	}
	n.onClose(n.gateway.Close)
	if n.opts.HTTP.inTheClear() {
		n.log.Warn(status.ClearText, "code", "LMOS-W071", "listen", n.opts.HTTP.Listen, "hint", status.ClearHint)
	}
	if url := n.API(); url != "" { // agents of this node reach it there
		n.callbacks.Listen(url + gateway.CallbacksPath)
	}
	n.self, err = n.describe()
	return err
}

func openKey(o *Options) (*keystore.Key, error) {
	switch {
	case o.Key != nil:
		return o.Key, nil
	case o.Dir == "":
		return keystore.New()
	}
	path := filepath.Join(o.Dir, "identity.pem")
	k, err := keystore.Open(path)
	if err == nil {
		return k, nil
	}
	if lax, ok := errors.AsType[*keystore.PermissionError](err); ok {
		return nil, &interact.Error{Code: interact.KeyPermissions, Err: err, Hint: lax.Hint}
	}
	if storage.Full(err) {
		return nil, diskFull(o.Dir, err) // it is not there, and cannot be made
	}
	return nil, &interact.Error{Code: interact.KeyPermissions, Title: "the key of this node cannot be used", Err: err,
		Hint: "put " + path + " back as it was; without it the node becomes another, with another DID"}
}

// DID is the node's name: the did:key of its key.
func (n *Node) DID() did.DID { return n.key.DID() }

// Client asks the node's own API in this process, with the rights of its administrator.
func (n *Node) Client() *api.Client { return n.gateway.Inside() }

// API is the URL of the HTTP API, or empty.
func (n *Node) API() string { return n.gateway.URL() }
