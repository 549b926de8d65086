// Package dht publishes, resolves and provides signed records in a Kademlia DHT, and fetches records directly from the nodes that
// host them.
//
// The DHT is go-libp2p-kad-dht with the protocol prefix /lmos/<network>, so that it never merges with another network. It carries
// records under the hash of owner and Thing ([DHT.Publish], [DHT.Get]) and provider records, which name the nodes that host a
// capability ([DHT.Provide]). Those nodes answer queries over the protocol /lmos/<network>/records/1 ([DHT.Find], [DHT.Body]). A
// provider record is only a pointer: records come from the node it names, and must be verified.
//
// The library trusts the structure of replies and reads large frames. This package therefore replaces its sender and wraps its
// handlers, in all modes: see sender (rules S1 to S12) and guard (rules G1 to G9).
package dht

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	ds "github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/namespace"
	dssync "github.com/ipfs/go-datastore/sync"
	kad "github.com/libp2p/go-libp2p-kad-dht"
	pb "github.com/libp2p/go-libp2p-kad-dht/pb"
	"github.com/libp2p/go-libp2p-kad-dht/records"
	record "github.com/libp2p/go-libp2p-record"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"golang.org/x/sync/errgroup"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/lazyregexp"
	"github.com/lmosd/lmosd/p2p/noderecord"
	"github.com/lmosd/lmosd/td"
)

// Parameters of the DHT. MaxRecordAge is the longest lifetime of an ordinary record.
const (
	bucketSize      = 20
	minBucket       = 11
	alpha           = 3
	beta            = 3
	maxRecordAge    = 24 * time.Hour
	valueSweep      = time.Hour
	refreshPeriod   = 10 * time.Minute
	providerAge     = 24 * time.Hour
	providerAddrAge = 30 * time.Minute
	providerSweep   = time.Hour
)

// Errors of the DHT's methods, documented where they are returned.
var (
	// ErrNoReplicas means that no other node stored the published or provided record.
	ErrNoReplicas = errors.New("no other node stored it")
	// ErrNewer means that a newer record of the Thing is in the mesh.
	ErrNewer = errors.New("a newer record exists")
	// ErrNoPeers means that there is no peer to query.
	ErrNoPeers = errors.New("no peers in the DHT yet")

	errClosed = errors.New("DHT closed")
)

// A Mode determines whether a node answers the DHT requests of others.
type Mode string

// Modes of a DHT.
const (
	// ModeAuto, also meant by "", serves while the node is reachable, by the event of its host: with Options.PublishPrivate also while that is
	// unknown, without it only when it is certain.
	ModeAuto Mode = "auto"
	// ModeServer always serves. Behind a NAT it damages the routing tables of a public network.
	ModeServer Mode = "server"
	// ModeClient never serves.
	ModeClient Mode = "client"
)

// Local is the data of this node. Both methods are called concurrently and must not block. The context has the principal of the peer that
// sent the query (did.PrincipalOf, Options.Principal), or that of this process.
type Local interface {
	// Body returns the TD with the SHA-256 hash, if it is stored and the caller may receive it.
	Body(ctx context.Context, hash [32]byte) ([]byte, bool)
	// Hosted returns at most q.Limit matching public records of Things that this node hosts and the caller may find.
	Hosted(ctx context.Context, q td.Query) []*td.Signed
}

// Options configure a DHT. Only Network is required: the zero value of the others is a public node with records in memory.
type Options struct {
	// Network is the name of the mesh, part of every protocol id: lower case letters, digits, "." and "-", 1 to 63. Required.
	Network string
	// Mode determines whether this node serves others; empty means ModeAuto.
	Mode Mode
	// Store keeps the records of others across restarts; nil keeps them in memory. The caller closes it after [DHT.Close]. Writes
	// need not be synced.
	Store ds.Batching
	// BootstrapPeers returns peers to join through. It is called whenever the routing table is low, so that its result may
	// change. Nil means none.
	BootstrapPeers func() []peer.AddrInfo
	// Verifier verifies records; nil means a new one for did:key.
	Verifier *td.Verifier
	// Local is the data served to other nodes; nil means none.
	Local Local
	// Nodes receives the records of nodes that were looked for; nil means a book that only they use.
	Nodes *noderecord.Book
	// Index gives the node the role "index": it answers searches from its whole directory, and is provided as such in the DHT.
	// Index returns at most q.Limit matching verified public records that the caller may find, is called concurrently, and must not block.
	// Nil means no such role.
	Index func(ctx context.Context, q td.Query) []*td.Signed
	// Relay reports whether the node has the role "relay": it is provided as a node through which others can be reached. It is called again after
	// each event of the reachability of the host. Nil means no such role.
	Relay func() bool
	// Principal returns the principal of a peer, for Local, Index and States. It must be fast. Nil means a principal without an
	// organization.
	Principal func(node did.DID) *did.Principal
	// States returns the states of agents at this node, one per record key, within ctx. It is called concurrently. Nil means that
	// there are no agents.
	States func(ctx context.Context, keys [][32]byte) []AgentState
	// Evidence receives two different valid records of one Thing with one sequence number (an equivocation of the owner). A query
	// for the Thing returns only one of them. Evidence must not block. Nil discards them.
	Evidence func(s *td.Signed)
	// OnBootstrap receives the result of each dial of a bootstrap peer, and the time after which a failed one is repeated. It must not block. Nil
	// discards it.
	OnBootstrap func(id peer.ID, err error, retry time.Duration)
	// OnTimeout receives each peer of a search that did not answer in time and is not connected: it may have failed, or be slow. It
	// must not block. Nil discards it.
	OnTimeout func(id peer.ID)
	// OnResult receives the result for each peer of a search: true if it answered, false if a dial failed. It must not block. Nil
	// discards it.
	OnResult func(id peer.ID, ok bool)
	// Down reports whether a peer is known as failed: without a connection to it, a search counts it as unreachable and does not
	// wait. It must be fast, and its owner must detect the return of the peer. Nil means that no peer is.
	Down func(id peer.ID) bool
	// Admits returns an error for nodes that may not take part: they are neither queried nor in the routing table. The host rejects their
	// streams (p2p.Gate). Nil admits all nodes, but never peers with other keys than Ed25519. It is called often and must be fast.
	Admits func(did.DID) error
	// Stores reports whether a node may store records and provider records here. It must be fast. Nil lets all admitted nodes.
	Stores func(did.DID) bool
	// K is the number of replicas of a record, and the bucket size, equal on all nodes of a network. 0 means 20; lower values lose
	// more records when many nodes fail at once. The minimum is 11: the library refreshes full tables of 10 peers without end.
	K int
	// Diversity limits the peers of one IP group in the routing table: 2 per bucket, 3 in total. For public networks only; in one
	// subnet it would limit the table to 3 peers.
	Diversity bool
	// PublishPrivate allows private and loopback addresses in provider records and the address book.
	PublishPrivate bool
	// Log receives messages; nil discards them.
	Log *slog.Logger
}

// Protocols returns the ids of both stream protocols of a network, for the limits of the resource manager.
func Protocols(network string) (kad, records protocol.ID) {
	prefix := protocol.ID("/lmos/" + network)
	return prefix + "/kad/1.0.0", prefix + "/records/1"
}

// A DHT is the participant of this node in the DHT of its network. It is safe for concurrent use.
type DHT struct {
	o       Options
	host    host.Host
	records protocol.ID
	log     *slog.Logger
	stats   *counters

	kad          *kad.IpfsDHT
	guard        *guard
	sender       *sender
	messenger    *pb.ProtocolMessenger
	validator    record.Validator
	values       *records.ValueStore // in the datastore of the library
	valueDS      *quota
	providerDS   *quota
	recordServer *recordServer
	provided     *providedKeys
	faults       *faults
	indexes      indexes

	// joining returns the bootstrap peers to the library. Run sets it, because no peer may be dialed before all handlers are set.
	joining atomic.Bool
}

var networkName = lazyregexp.New(`^[a-z0-9][a-z0-9.-]{0,62}$`)

// New opens the DHT on h and sets its handlers. It dials no peer before Run. The caller closes it before h.
func New(h host.Host, o Options) (*DHT, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if _, err := did.FromPeer([]byte(h.ID())); err != nil {
		return nil, fmt.Errorf("this node's key: %w", err)
	}
	d := &DHT{o: o, host: h, log: o.Log, stats: &counters{}}
	_, d.records = Protocols(o.Network)
	d.provided = newProvidedKeys()
	d.faults = &faults{host: h, log: o.Log}
	d.validator = record.NamespacedValidator{namespaceTD: &validator{verifier: o.Verifier, equivocations: &equivocations{report: o.Evidence}},
		namespaceNode: nodeValidator{o.Network}}
	if err := d.open(); err != nil {
		return nil, fmt.Errorf("open the DHT: %w", err)
	}
	d.recordServer = newRecordServer(d)
	h.SetStreamHandler(d.records, d.recordServer.handle)
	return d, nil
}

func (o Options) withDefaults() (Options, error) {
	if !networkName().MatchString(o.Network) {
		return o, fmt.Errorf("network name %q: expected 1 to 63 lower case letters, digits, dots and hyphens", o.Network)
	}
	if o.Store == nil {
		o.Store = dssync.MutexWrap(ds.NewMapDatastore())
	}
	if o.BootstrapPeers == nil {
		o.BootstrapPeers = func() []peer.AddrInfo { return nil }
	}
	if o.Verifier == nil {
		o.Verifier = td.NewVerifier(did.Keys())
	}
	if o.Nodes == nil {
		o.Nodes = noderecord.NewBook(o.Network, func(did.DID) bool { return false })
	}
	if o.Local == nil {
		o.Local = emptyLocal{}
	}
	o.K = cmp.Or(o.K, bucketSize)
	if o.K < minBucket {
		return o, fmt.Errorf("bucket size K of %d: want %d at least, or 0 for %d", o.K, minBucket, bucketSize)
	}
	if o.Evidence == nil {
		o.Evidence = func(*td.Signed) {}
	}
	if o.States == nil {
		o.States = func(_ context.Context, keys [][32]byte) []AgentState { return make([]AgentState, len(keys)) }
	}
	if o.Principal == nil {
		o.Principal = func(node did.DID) *did.Principal { return did.NodePrincipal(node, "") }
	}
	if o.OnBootstrap == nil {
		o.OnBootstrap = func(peer.ID, error, time.Duration) {}
	}
	if o.OnTimeout == nil {
		o.OnTimeout = func(peer.ID) {}
	}
	if o.OnResult == nil {
		o.OnResult = func(peer.ID, bool) {}
	}
	if o.Down == nil {
		o.Down = func(peer.ID) bool { return false }
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return o, nil
}

// open opens the stores and the library over them.
func (d *DHT) open() (err error) {
	ctx := context.Background() // the datastores are local
	store := namespace.Wrap(d.o.Store, ds.NewKey("dht/values"))
	if d.valueDS, err = newValues(ctx, store, d.host.ID()); err != nil {
		return err
	}
	store = namespace.Wrap(d.o.Store, ds.NewKey("dht/providers"))
	if d.providerDS, err = newProviders(ctx, store, d.host.ID()); err != nil {
		return err
	}
	d.values = records.NewValueStore(d.valueDS, d.validator, maxRecordAge)
	d.guard = newGuard(d.host, d.stores, d.stats, d.log)
	mode, err := d.o.kadMode()
	if err != nil {
		return err
	}
	if d.kad, err = kad.New(d.guard, d.kadOptions(mode)...); err != nil {
		d.guard.close()
		return err
	}
	d.faults.kad.Store(d.kad)
	d.messenger, err = pb.NewProtocolMessenger(d.sender)
	return err
}

func (o Options) kadMode() (kad.ModeOpt, error) {
	switch {
	case o.Mode == ModeServer:
		return kad.ModeServer, nil
	case o.Mode == ModeClient:
		return kad.ModeClient, nil
	case o.Mode != ModeAuto && o.Mode != "":
		return 0, fmt.Errorf("mode %q: want auto, server or client", o.Mode)
	case o.PublishPrivate:
		// AutoNAT supports only public addresses: with ModeAuto a private network would have no server.
		return kad.ModeAutoServer, nil
	}
	return kad.ModeAuto, nil
}

// kadOptions returns the options of the library. It has no validator of public keys: PeerIDs contain the keys, so such records are
// useless.
func (d *DHT) kadOptions(mode kad.ModeOpt) []kad.Option {
	opts := []kad.Option{
		kad.ProtocolPrefix(protocol.ID("/lmos/" + d.o.Network)),
		kad.Mode(mode),
		kad.Validator(d.validator),
		kad.ValueDatastore(d.valueDS), kad.ProviderDatastore(d.providerDS),
		kad.MaxRecordAge(maxRecordAge), kad.ValueGCInterval(valueSweep),
		kad.ProviderManagerOpts(records.ProvideValidity(providerAge), records.ProviderAddrTTL(providerAddrAge),
			records.CleanupInterval(providerSweep), records.Cache(noCache{})),
		kad.BucketSize(d.o.K), kad.Concurrency(alpha), kad.Resiliency(beta),
		kad.RoutingTableRefreshPeriod(refreshPeriod),
		kad.RoutingTableFilter(func(_ any, p peer.ID) bool { return d.trusts(p) }),
		kad.QueryFilter(func(_ any, ai peer.AddrInfo) bool { return d.trusts(ai.ID) && !d.isDown(ai.ID) }),
		kad.AddressFilter(d.o.filterAddrs),
		kad.BootstrapPeersFunc(d.bootstrapPeers),
		kad.WithCustomMessageSender(d.newSender),
		kad.OnRequestHook(d.guard.onRequest),
	}
	if d.o.Diversity {
		opts = append(opts, kad.RoutingTablePeerDiversityFilter(kad.NewRTPeerDiversityFilter(d.host, 2, 3)))
	}
	return opts
}

// newSender is called once, by kad.New. The sender uses the host itself: the guard is for inbound streams.
func (d *DHT) newSender(_ host.Host, protos []protocol.ID) pb.MessageSenderWithDisconnect {
	d.sender = newSender(d.host, protos, d.o.K, d.stats, d.faults.note)
	return d.sender
}

// admits reports whether p may take part.
func (d *DHT) admits(p peer.ID) bool {
	id, err := did.FromPeer([]byte(p))
	if err != nil {
		return false
	}
	return d.o.Admits == nil || d.o.Admits(id) == nil
}

// stores reports whether p may store records here.
func (d *DHT) stores(p peer.ID) bool {
	id, err := did.FromPeer([]byte(p))
	return err == nil && (d.o.Stores == nil || d.o.Stores(id))
}

// trusts reports whether DHT requests may be sent to p.
func (d *DHT) trusts(p peer.ID) bool { return !d.faults.has(p) && d.admits(p) }

// isDown reports whether queries of a peer would fail.
func (d *DHT) isDown(p peer.ID) bool {
	return d.host.Network().Connectedness(p) != network.Connected && d.o.Down(p)
}

// Forget removes a failed peer from the routing table, so that lookups do not begin with it. It can be added again.
func (d *DHT) Forget(p peer.ID) { d.kad.RoutingTable().RemovePeer(p) }

// Run joins the network through the seeds, keeps the routing table filled, and renews provider records until ctx ends. It returns
// after its last goroutine.
func (d *DHT) Run(ctx context.Context) error {
	d.joining.Store(true)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { d.join(ctx); return nil })
	g.Go(func() error { return d.provideRoles(ctx) })
	g.Go(func() error { d.reprovide(ctx); return nil })
	return g.Wait()
}

// Close removes the node from the DHT. Afterwards the caller may close the datastore. It is called once, after Run has returned.
func (d *DHT) Close() error {
	d.host.RemoveStreamHandler(d.records)
	d.recordServer.server.Close()
	// The handlers first: the library does not wait for them, and they use its stores.
	d.guard.close()
	err := d.kad.Close()
	// Until here the library may call these, and unattended goroutines of it even later.
	d.sender.close()
	d.valueDS.close()
	d.providerDS.close()
	return err
}

// Size returns the number of peers in the routing table.
func (d *DHT) Size() int { return d.kad.RoutingTable().Size() }

// Peers returns the peers in the routing table, in no order.
func (d *DHT) Peers() []peer.ID { return d.kad.RoutingTable().ListPeers() }

// emptyLocal is the Local of a node without data.
type emptyLocal struct{}

func (emptyLocal) Body(context.Context, [32]byte) ([]byte, bool) { return nil, false }
func (emptyLocal) Hosted(context.Context, td.Query) []*td.Signed { return nil }
