package node

import (
	"context"
	"fmt"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/dht"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/aries"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/directory/embedding"
	"github.com/lmosd/lmosd/directory/presence"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/servient"
	"github.com/lmosd/lmosd/interact/stream"
	"github.com/lmosd/lmosd/p2p"
	"github.com/lmosd/lmosd/p2p/noderecord"
	"github.com/lmosd/lmosd/publication"
	"github.com/lmosd/lmosd/pubsub"
	"github.com/lmosd/lmosd/pubsub/reconcile"
	"github.com/lmosd/lmosd/pubsub/suspicion"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/trust"
)

// A mesh is the part of a node that works with other nodes. It announces what this node offers, collects the records of others in the directory,
// detects which hosts are reachable, and carries calls between nodes. Its parts call each other: a part gets functions for the parts that are
// created after it, which are called once peers connect.
type mesh struct {
	verifier  *td.Verifier
	servient  *servient.Servient
	streams   *stream.Binding // calls other nodes
	dht       *dht.DHT
	gossip    *pubsub.PubSub
	directory *directory.Directory
	index     *publication.Index // of what this node offers
	nodes     *noderecord.Book
	publisher *publication.Publisher
	sync      *reconcile.Reconciler
	records   reconcile.Set // what sync compares
	suspicion *suspicion.Detector
	monitor   *presence.Monitor
}

// openMesh opens the mesh. A nil embedder means lexical search.
func (n *Node) openMesh(embedder embedding.Embedder) (*mesh, error) {
	m := &mesh{servient: n.servient,
		verifier: td.NewVerifier(did.Resolvers(map[string]did.Resolver{"key": did.Fallback(did.Keys(), aries.Resolver())})),
		index:    publication.NewIndex(n.DID(), n.policy.Finds)}
	m.nodes = noderecord.NewBook(n.opts.Network, func(id did.DID) bool { return m.directory != nil && m.directory.Hosts(id) })
	if err := n.openCarriers(m); err != nil {
		return nil, err
	}
	var err error
	if m.directory, err = directory.New(directory.Options{Store: n.stores.Fast, Verifier: m.verifier, Sources: []directory.Source{m.dht},
		Fetch: m.dht.Body, Bind: m.bind, Self: n.DID(), Own: m.index, Max: n.opts.MaxThings, Log: n.opts.Log,
		Latency: n.network.peers.Latency, Connected: n.network.peers.IsConnected, Share: n.network.peers.Share, Trust: n.policy.Trust,
		Embedder: embedder, OnChange: m.changed, Organizations: n.network.trust, Admits: n.policy.Connects, Sees: n.policy.Finds, Scope: n.policy.Scope,
		Probe:  func(ctx context.Context, id did.DID) error { return m.monitor.Dial(ctx, id) },
		OnDown: func(id did.DID) { m.monitor.OnDown(id) }}); err != nil {
		return nil, fmt.Errorf("open the directory: %w", err)
	}
	n.life.onClose(m.directory.Close)
	n.life.onRun(m.directory.Run)

	m.publisher = publication.New(publication.Options{Signer: n.key, Verifier: m.verifier, Index: m.index, Store: n.stores.Own, Disk: n.stores, Rotation: n.stores.Rotation,
		Lifetime: n.opts.Lifetime, Hosts: n.network.records, MemberOf: n.network.trust.MemberOf, Roles: n.network.trust.Roles, Bind: n.servient.Expose, Directory: m.directory, Gossip: m.gossip, DHT: m.dht, Access: n.policy,
		CallerSecrets: n.stores.CallerSecrets, Go: n.life.background, OnRestricted: func(*td.Signed) { n.network.thingsChanged() }, Pings: servient.Pings, ProbePause: n.opts.probePause, Dial: n.opts.Sites.Dial, Log: n.opts.Log})
	n.life.onRun(m.publisher.Run)
	n.network.trust.Serve(trust.Things{Restricted: m.index.Restricted, Moved: m.directory.Handed, Named: m.index.Names, Agent: m.index.Agent, Signer: n.key, Ingest: m.directory.IngestRestricted})
	return m, n.openSync(m)
}

// openCarriers opens the carriers of calls and records: streams, the DHT and gossip.
func (n *Node) openCarriers(m *mesh) (err error) {
	m.streams = stream.New(n.network.Host, stream.Options{Network: n.opts.Network, As: stream.NewPseudonyms(n.key).Of, Log: n.opts.Log, Addrs: m.nodes.Addrs, Find: func(ctx context.Context, id peer.ID) (peer.AddrInfo, error) { return m.dht.FindPeer(ctx, id) },
		Principal: n.policy.Principal, Agent: n.network.trust.Agent, Wait: n.network.trust.Wait, DialTimeout: n.opts.dialTimeout(), MaxPerPeer: n.opts.Limits.Streams, MaxConcurrent: max(maxServed, n.policy.Most()),
		Refused: n.network.peers.Refusal, Reach: func(id did.DID, ok bool) { m.monitor.SetReachable(id, ok) }})
	n.life.onClose(m.streams.Close)
	n.life.onRun(m.streams.Run)
	var search func(ctx context.Context, q td.Query) []*td.Signed
	if n.opts.Index {
		search = func(ctx context.Context, q td.Query) []*td.Signed { return m.directory.Known(ctx, q) }
	}
	m.dht, err = dht.New(n.network.Host, dht.Options{Index: search, Relay: n.network.own.CanServe, Network: n.opts.Network, Mode: dht.Mode(n.opts.DHTMode), PublishPrivate: !n.opts.PublicOnly,
		Store: n.stores.Fast, BootstrapPeers: n.network.bootstrap.Peers, Verifier: m.verifier, Local: m.index, Nodes: m.nodes, Admits: n.policy.Connects, Stores: n.policy.Stores, Principal: n.policy.Principal,
		States:    func(ctx context.Context, keys [][32]byte) []dht.AgentState { return m.publisher.States(ctx, keys) },
		Evidence:  func(s *td.Signed) { m.directory.Enqueue(s) },
		OnResult:  func(p peer.ID, ok bool) { m.monitor.OnResult(p, ok) },
		Down:      func(p peer.ID) bool { return m.monitor.IsDown(p) },
		OnTimeout: func(p peer.ID) { m.monitor.OnTimeout(p) }, OnBootstrap: n.network.bootstrap.Dialed,
		Diversity: n.opts.Diversity, Log: n.opts.Log})
	if err != nil {
		return fmt.Errorf("open the DHT: %w", err)
	}
	n.life.onClose(m.dht.Close)
	n.life.onRun(m.dht.Run)

	m.gossip, err = pubsub.New(n.network.Host, pubsub.Options{Network: n.opts.Network, Verifier: m.verifier,
		Degree: n.opts.GossipDegree, Deliver: func(s *td.Signed, _ *td.Record) { m.directory.Enqueue(s) }, Nodes: m.nodes, Ban: n.network.peers.Ban, Log: n.opts.Log})
	if err != nil {
		return fmt.Errorf("open gossip: %w", err)
	}
	n.life.onClose(m.gossip.Close)
	n.life.onRun(m.gossip.Run)
	n.life.onRun(noderecord.NewAnnouncer(noderecord.AnnouncerOptions{Host: n.network.Host, Signer: n.key, Network: n.opts.Network, Addrs: p2p.NodeAddrs, Offers: m.index.HasPublic, Gossip: m.gossip.AnnounceNode,
		Store: m.dht.PublishNode, Log: n.opts.Log}).Run)
	return nil
}

// openSync opens reconciliation and failure detection.
func (n *Node) openSync(m *mesh) (err error) {
	m.sync, err = reconcile.New(n.network.Host, reconcile.Options{Network: n.opts.Network, Set: &m.records, Get: m.directory.Signed,
		Ingest: func(s *td.Signed) { m.directory.Ingest(n.life.ctx, s) }, Verifier: m.verifier, Room: m.directory.Room,
		Now: n.opts.now, Log: n.opts.Log})
	if err != nil {
		return fmt.Errorf("open reconciliation: %w", err)
	}
	n.life.onClose(m.sync.Close)
	n.life.onRun(m.sync.Run)

	m.suspicion, err = suspicion.New(n.network.Host, suspicion.Options{Network: n.opts.Network, Tracks: m.directory.Tracks,
		Probe:    func(ctx context.Context, id did.DID) (bool, error) { return m.monitor.Probe(ctx, id) },
		OnFailed: func(id did.DID) { m.monitor.SetReachable(id, false) }, Log: n.opts.Log})
	if err != nil {
		return fmt.Errorf("open failure detection: %w", err)
	}
	n.life.onClose(m.suspicion.Close)
	n.life.onRun(m.suspicion.Run)
	m.monitor = presence.New(presence.Options{Self: n.DID(), Host: n.network.Host, Peers: n.network.peers, Directory: m.directory, DHT: m.dht,
		Suspicion: m.suspicion, Index: m.index, Publisher: m.publisher, Trust: n.policy.Trust, Go: n.life.background, Pause: n.opts.probePause,
		Log: n.opts.Log})
	n.life.onRun(m.monitor.Run)
	return nil
}

// bind returns the Thing of a description (servient.Servient.Bind). A record of another owner that names this node as a host never leads to an agent of
// this node.
func (m *mesh) bind(d *td.Description) interact.Thing {
	return m.servient.Bind(d, m.index.AgentOf(d), m.streams.Thing(d), m.monitor.Middleware(d))
}

// changed updates the records that reconciliation compares (directory.Options.OnChange).
func (m *mesh) changed(key [32]byte, seq uint64, here bool) {
	if here {
		m.records.Put(key, seq)
	} else {
		m.records.Delete(key)
	}
}

// maxServed is the number of calls of other nodes, with waiting ones and subscriptions, up to which no call is refused for lack of slots.
const maxServed = 4096

// dialTimeout is short where peers are near: a running node answers within milliseconds, and a stopped one must not delay a caller.
func (o *Options) dialTimeout() time.Duration {
	if o.Internet {
		return 5 * time.Second
	}
	return 2 * time.Second
}
