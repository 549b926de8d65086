// Package node builds and runs one lmosd: its identity, its host on the network, its stores, and the wiring between them.
//
// One interaction, in the order of the code:
//
//  1. A consumer asks its own node: HTTP (gateway, interact/rest) or `lmosd call`, which is HTTP too.
//  2. The binding decodes to an interact.Message and sets From.
//  3. The mesh is interact.Chain(Router(directory), trace, metrics, policy, limit): a few lines in [New].
//  4. Router asks directory.Locate: a thing that this node offers is a local Thing, else the verified description's hosts
//     are asked.
//  5. interact/stream takes a pooled stream to the host (or opens one for long or large interactions), writes the frame and
//     yields the replies.
//  6. On the host: service, memory, deadline, one frame, the identity of the authenticated peer as From, then the host's
//     own chain, which ends at what the host offers: a node relays for nobody.
//  7. The agent's binding (interact/rest) is asked; its replies come back through the same loops.
//  8. Cancel travels the same way: consumer gone, context, loop left, stream reset, context on the host, request aborted.
package node

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math"
	"path/filepath"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/discovery/mdns"
	"golang.org/x/sync/errgroup"

	"github.com/lmosd/lmosd/dht"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/aries"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/gateway"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/rest"
	"github.com/lmosd/lmosd/interact/stream"
	"github.com/lmosd/lmosd/policy"
	"github.com/lmosd/lmosd/pubsub"
	"github.com/lmosd/lmosd/td"
)

// Options of a node. The zero value runs in memory, listens nowhere and serves no HTTP: what a test needs. Package configs
// makes the options of a daemon from its file.
type Options struct {
	// Key is the node's identity. Nil opens Dir/identity.pem, or makes a throw-away key without a Dir.
	Key *keystore.Key
	// Dir is the data directory; empty keeps everything in memory. One process holds it at a time.
	Dir string
	// Engine is the storage engine; empty means pebble.
	Engine string
	// Name is what people call the node; empty means the host's name.
	Name             string
	Version, Profile string
	// Network is part of every protocol name: nodes of two networks never meet. Empty means "lmos". Lower-case letters,
	// digits and hyphens, 32 at most.
	Network string
	// Listen are multiaddrs. If ListenExplicit, a busy port is an error; else a free one is taken.
	Listen         []string
	ListenExplicit bool
	// Announce replaces the addresses that peers learn; NoAnnounce drops those with a prefix.
	Announce, NoAnnounce []string
	// Bootstrap are multiaddrs with /p2p of nodes to join.
	Bootstrap []string
	// MDNS finds nodes of the same network on the local network.
	MDNS bool
	// Loopback lets the node dial 127.0.0.1: tests and testnets.
	Loopback bool
	// PublicOnly withholds private addresses from peers.
	PublicOnly bool
	// Lean drops what a small machine can do without: Noise, and two of six gossip links.
	Lean bool
	NAT  NAT
	// DHTMode is "server", "client" or "auto"; empty means server. Diversity keeps the routing table from being one subnet.
	DHTMode   string
	Diversity bool
	// Lifetime is how long a record of this node is valid without a refresh, at most 24 h; 0 means that.
	Lifetime time.Duration
	Limits   Limits
	// MaxThings bounds the directory; 0 means its default.
	MaxThings int
	Policy    policy.Rules
	// Timeout ends an interaction without a deadline of its own. 0 means 30 s.
	Timeout time.Duration
	// Credentials is the file with the secrets that agents ask for; empty means Dir/credentials.json.
	Credentials string
	// HTTP serves the API; nil serves only [Node.Client].
	HTTP *HTTP
	// Metrics counts; nil makes its own. Nodes that share a process need one each.
	Metrics *gateway.Metrics
	// Host is a libp2p host to use instead of making one; simulations set it. The node closes it.
	Host host.Host
	Log  *slog.Logger
}

// HTTP says how the API is served.
type HTTP struct {
	// Listen is host:port; empty serves the socket only. If Explicit, a busy port is an error; else a free one is taken.
	Listen   string
	Explicit bool
	// Socket is the path of the administrator's unix socket; empty means none.
	Socket string
	// NoAuth lets everybody on this machine change the node. It is refused beyond loopback.
	NoAuth bool
	// HideMetrics serves no /metrics.
	HideMetrics bool
	// Hosts are names besides loopback under which browsers may ask.
	Hosts []string
}

var networkName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,31}$`)

func (o Options) withDefaults() (Options, error) {
	o.Network = or(o.Network, "lmos")
	o.Profile = or(o.Profile, "default")
	o.Version = or(o.Version, "dev")
	o.Name = or(o.Name, hostname())
	o.Timeout = or(o.Timeout, 30*time.Second)
	o.Lifetime = or(o.Lifetime, 24*time.Hour)
	o.DHTMode = or(o.DHTMode, "server")
	o.Limits = o.Limits.withDefaults()
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Credentials == "" && o.Dir != "" {
		o.Credentials = filepath.Join(o.Dir, "credentials.json")
	}
	if !networkName.MatchString(o.Network) {
		return o, interact.Errorf(interact.ConfigInvalid, "use lower-case letters, digits and hyphens, at most 32: --mesh.network acme",
			"mesh.network %q is no network name", o.Network)
	}
	return o, nil
}

// A Node is one running lmosd. Its methods are safe for concurrent use between New and Close.
type Node struct {
	opts     Options
	log      *slog.Logger
	key      *keystore.Key
	started  time.Time
	host     host.Host
	stores   *stores
	verifier *td.Verifier
	policy   *policy.Policy
	metrics  *gateway.Metrics
	agents   *rest.Client    // asks the agents of this host
	streams  *stream.Binding // asks other nodes
	dht      *dht.DHT
	gossip   *pubsub.PubSub
	dir      *directory.Directory
	offers   *offers
	mesh     interact.Thing
	gateway  *gateway.Gateway // listens only with Options.HTTP
	self     []byte           // the node's own signed TD

	seeds    *seeds
	life     context.Context // ends with the node; background work hangs on it
	end      context.CancelFunc
	work     sync.WaitGroup // what Publish left running
	draining atomic.Bool
	closers  []func() error // in the order of opening
}

// New opens everything a node needs and listens. On failure it closes, in reverse, what it had opened.
func New(o Options) (*Node, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	n := &Node{opts: o, log: o.Log, started: time.Now()}
	n.life, n.end = context.WithCancel(context.Background())
	for _, step := range []func() error{
		n.openDir,     // first: nothing else may touch a directory that another process holds
		n.openNetwork, // the host, without listening: handlers come before the first peer
		n.openMesh,    // directory, DHT, gossip, streams, and the chains between them
		n.openPorts,   // now peers may come
		n.openOffers,  // needs the addresses that listening gave
		n.openHTTP,    // last: who can ask finds everything there
	} {
		if err := step(); err != nil {
			return nil, errors.Join(err, n.Close())
		}
	}
	return n, nil
}

func (n *Node) onClose(f func() error) { n.closers = append(n.closers, f) }

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
	n.opts.Key = n.key
	if n.stores, err = openStores(n.opts.Engine, n.opts.Dir, n.log); err != nil {
		return err
	}
	n.onClose(n.stores.close)
	return nil
}

func (n *Node) openNetwork() (err error) {
	n.policy = policy.New(n.opts.Policy)
	n.verifier = td.NewVerifier(did.Resolvers(map[string]did.Resolver{"key": did.Fallback(did.Keys(), aries.Resolver())}))
	if n.metrics = n.opts.Metrics; n.metrics == nil {
		n.metrics = gateway.NewMetrics()
		n.opts.Metrics = n.metrics
	}
	if n.host = n.opts.Host; n.host == nil {
		if n.host, err = newHost(&n.opts, &gater{admits: n.policy.Admits, loopback: n.opts.Loopback || n.opts.Profile != "public"}); err != nil {
			return err
		}
	}
	n.onClose(n.host.Close)
	n.seeds, err = newSeeds(n.opts.Bootstrap, n.stores.peers(), n.log)
	return err
}

// openMesh is the wiring: who asks whom.
func (n *Node) openMesh() error {
	creds, err := rest.LoadCredentials(n.opts.Credentials)
	if err != nil {
		return err
	}
	n.agents = rest.NewClient(rest.Options{Credentials: creds, Log: n.log})
	n.onClose(func() error { n.agents.Close(); return nil })

	n.streams = stream.New(n.host, stream.Options{Log: n.log, MaxPerPeer: n.opts.Limits.Streams, Reach: n.reached})
	n.onClose(n.streams.Close)

	n.offers = newOffers(n.key, n.stores.own(), n.verifier, n.opts.Lifetime)
	n.offers.hosts, n.offers.bind = n.hosts, n.agent
	n.offers.add = func(d *td.Description) (bool, error) { return n.dir.Add(d) }

	n.dht, err = dht.New(n.host, dht.Options{Network: n.opts.Network, Mode: dht.Mode(n.opts.DHTMode), PublishPrivate: !n.opts.PublicOnly, Store: n.stores.fast,
		Seeds: n.seeds.list, Verifier: n.verifier, Local: n.offers, Admits: n.policy.Admits,
		Diversity: n.opts.Diversity, Log: n.log})
	if err != nil {
		return fmt.Errorf("open the DHT: %w", err)
	}
	n.onClose(n.dht.Close)

	n.gossip, err = pubsub.New(n.host, pubsub.Options{Network: n.opts.Network, Verifier: n.verifier, Admits: n.policy.Admits,
		Degree: n.degree(), Deliver: func(s *td.Signed, _ *td.Record) { n.dir.Offer(s) }, Log: n.log})
	if err != nil {
		return fmt.Errorf("open gossip: %w", err)
	}
	n.onClose(n.gossip.Close)

	n.dir, err = directory.New(directory.Options{Store: n.stores.fast, Verifier: n.verifier, Sources: []directory.Source{n.dht},
		Fetch: n.dht.Body, Bind: n.bind, Self: n.key.DID(), Max: n.opts.MaxThings, Log: n.log})
	if err != nil {
		return fmt.Errorf("open the directory: %w", err)
	}
	n.onClose(n.dir.Close)

	n.mesh = interact.Chain(interact.Router(n.dir), interact.Trace(n.opts.Timeout), n.metrics.Wrap("mesh"), n.policy.Gate(), n.policy.Limit())
	n.streams.Serve(interact.Chain(interact.Router(n.offers), interact.Trace(n.opts.Timeout), n.metrics.Wrap("stream"), n.policy.Gate(), n.policy.Limit()))
	return nil
}

func (n *Node) degree() int {
	if n.opts.Lean {
		return 4
	}
	return 6
}

func (n *Node) openPorts() error {
	if n.opts.Host != nil || len(n.opts.Listen) == 0 {
		return nil
	}
	return n.listen()
}

func (n *Node) openOffers() error {
	if err := n.offers.load(n.life, time.Now()); err != nil {
		return err
	}
	for _, of := range n.offers.list() {
		if _, err := n.dir.Add(of.desc); err != nil {
			return fmt.Errorf("offer %s again: %w", of.Thing, err)
		}
	}
	return nil
}

func (n *Node) openHTTP() error {
	var err error
	if n.gateway, err = n.newGateway(n.opts.HTTP); err != nil {
		return err
	}
	n.onClose(n.gateway.Close)
	n.self, err = n.describe()
	return err
}

// Run works until ctx ends, then drains: new calls are refused, running ones finish, nothing that should live on is
// withdrawn. It returns after its last goroutine has.
func (n *Node) Run(ctx context.Context) error {
	base, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, work := errgroup.WithContext(base)
	for _, run := range []func(context.Context) error{n.dht.Run, n.gossip.Run, n.dir.Run, n.streams.Run, n.keepOffers, n.watchPeers, n.seeds.run(n.host), n.runMDNS} {
		g.Go(func() error { return ignoreEnd(run(work)) })
	}
	g.Go(func() error {
		defer stop() // Only now: what runs below is what draining calls still need.
		return n.serve(ctx, work)
	})
	return g.Wait()
}

// drainFor bounds how long running calls of peers are waited for.
const drainFor = 8 * time.Second

// serve answers until ctx ends, or work does because something failed, and then waits for what still runs.
func (n *Node) serve(ctx, work context.Context) error {
	var g errgroup.Group
	until, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(work, cancel)()
	g.Go(func() error { return ignoreEnd(n.gateway.Run(until)) })
	select {
	case <-ctx.Done():
	case <-work.Done():
	}
	n.draining.Store(true)
	patient, enough := context.WithTimeout(context.WithoutCancel(ctx), drainFor)
	defer enough()
	n.streams.Drain(patient)
	return g.Wait()
}

// Close releases what New opened, in reverse order.
func (n *Node) Close() error {
	n.end()
	n.work.Wait()
	var errs []error
	for i := len(n.closers) - 1; i >= 0; i-- {
		errs = append(errs, n.closers[i]())
	}
	n.closers = nil
	return errors.Join(errs...)
}

func ignoreEnd(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

func openKey(o *Options) (*keystore.Key, error) {
	switch {
	case o.Key != nil:
		return o.Key, nil
	case o.Dir == "":
		return keystore.New()
	}
	k, err := keystore.Open(filepath.Join(o.Dir, "identity.pem"))
	if errors.Is(err, keystore.ErrPermissions) {
		return nil, &interact.Error{Code: interact.KeyPermissions, Err: err, Hint: "chmod 700 " + o.Dir + " && chmod 600 " + o.Dir + "/identity.pem"}
	}
	return k, err
}

// DID is the node's name: the did:key of its key.
func (n *Node) DID() did.DID { return n.key.DID() }

// Client asks the node's own API in this process, with the rights of its administrator.
func (n *Node) Client() *gateway.Client { return n.gateway.Inside() }

// Mesh asks any thing, here or elsewhere.
func (n *Node) Mesh() interact.Thing { return n.mesh }

// Find reads the directory, then asks the mesh (directory.Directory.Find).
func (n *Node) Find(ctx context.Context, q td.Query) iter.Seq2[*td.Description, error] {
	return n.dir.Find(ctx, q)
}

// Get returns the one thing that ref names.
func (n *Node) Get(ctx context.Context, ref string) (*td.Description, error) {
	return n.dir.Get(ctx, ref)
}

// Known yields what the directory holds, and asks nobody.
func (n *Node) Known() iter.Seq[*td.Description] {
	return n.dir.FindLocal(td.Query{Limit: math.MaxInt})
}

// Reachable reports whether a host of d is not known to be down.
func (n *Node) Reachable(d *td.Description) bool { return n.offers.has(d) || n.dir.Reachable(d) }

// Hosted reports whether this node offers d.
func (n *Node) Hosted(d *td.Description) bool { return n.offers.has(d) }

// bind makes the Thing of a description: the agent itself if this node offers it, else its hosts. Only what was published
// here is ever asked directly: a stranger's record that names this node as host leads nowhere.
func (n *Node) bind(d *td.Description) interact.Thing {
	if agent := n.offers.agentOf(d); agent != nil {
		return agent
	}
	return interact.Chain(n.streams.Thing(d.Record.Hosts), interact.Named(d.Ref()), interact.Checked(d.Thing))
}

// agent asks an agent of this host over the forms of its TD. The binding checks what it sends: only it knows which members of
// the input are secrets that it adds itself.
func (n *Node) agent(d *td.Description) interact.Thing {
	return n.agents.Thing(d.Thing)
}

// hosts is how this node is reached, for the records that it signs.
func (n *Node) hosts() []td.Host {
	var addrs []string
	for _, a := range n.host.Addrs() {
		if s := a.String(); len(addrs) < td.MaxAddrs && len(s) <= td.MaxAddr {
			addrs = append(addrs, s)
		}
	}
	return []td.Host{{Node: n.key.DID(), Addrs: addrs}}
}

func (n *Node) reached(id did.DID, ok bool) { n.dir.Reach(id, ok) }

// HandlePeerFound receives the peers that mDNS finds. It implements mdns.Notifee and does not block.
func (n *Node) HandlePeerFound(p peer.AddrInfo) { n.seeds.found(p) }

func (n *Node) runMDNS(ctx context.Context) error {
	if !n.opts.MDNS {
		return nil
	}
	m := mdns.NewMdnsService(n.host, "_lmos-"+n.opts.Network+"._udp", n)
	if err := m.Start(); err != nil {
		// A host without multicast is no reason to stop: bootstrap addresses still lead to the mesh.
		n.log.Warn("no local discovery", "err", err)
		return nil
	}
	<-ctx.Done()
	return m.Close()
}

// addrs are the node's addresses with its PeerID, as peers write them.
func (n *Node) addrs() []string {
	var out []string
	for _, a := range n.host.Addrs() {
		out = append(out, a.String()+"/p2p/"+n.host.ID().String())
	}
	return out
}

// Addrs are the multiaddrs under which peers reach the node, with /p2p.
func (n *Node) Addrs() []string { return n.addrs() }

// API is the URL of the HTTP API, or empty.
func (n *Node) API() string { return n.gateway.URL() }
