// Package dht publishes, resolves and provides signed records in a Kademlia DHT, and fetches records directly from the nodes that
// host them.
//
// The DHT is go-libp2p-kad-dht with a prefix of its own, /lmos/<network>, so that it never merges with another network.
// Three things travel: records under the hash of owner and thing ([DHT.Publish], [DHT.Get]); provider records that say which
// node hosts something with a capability ([DHT.Provide]); and, over the protocol /lmos/<network>/records/1, the answers of
// those nodes ([DHT.Find], [DHT.Body]). A provider record is a hint. Only what a node answers with is a record, and only
// verification makes that a description.
//
// The library trusts the shape of replies and reads large frames, so nothing here uses its own sender or an unguarded
// handler, in any mode, clients included: see sender (rules S1 to S12) and guard (rules G1 to G8).
package dht

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
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
	// ErrNoReplicas says that no other node has taken what was published or provided.
	ErrNoReplicas = errors.New("no other node has taken it")
	// ErrNewer says that the mesh holds a record of this thing that wins over the one that was published.
	ErrNewer = errors.New("a newer record is out")
	// ErrNoPeers says that there was nobody to ask.
	ErrNoPeers = errors.New("no peers in the DHT yet")

	errClosed = errors.New("DHT closed")
)

// A Mode says whether a node answers the DHT requests of others.
type Mode string

// Modes of a DHT.
const (
	// ModeAuto, also meant by "", serves while the node is believed reachable: with Options.PublishPrivate from the start
	// until AutoNAT says otherwise, without it from when AutoNAT says so.
	ModeAuto Mode = "auto"
	// ModeServer always serves. Behind a NAT that poisons the routing tables of a public network.
	ModeServer Mode = "server"
	// ModeClient never serves.
	ModeClient Mode = "client"
)

// Local is what this node holds itself. Both methods are called by several goroutines at once and must not block.
type Local interface {
	// Body returns the TD with the SHA-256 hash, if this node has it.
	Body(hash [32]byte) ([]byte, bool)
	// Hosted returns at most q.Limit records that match q of things that this node answers for.
	Hosted(q td.Query) []*td.Signed
}

// Options says how a DHT works. All fields but Network may be zero: a public node with its records in memory.
type Options struct {
	// Network is the name of the mesh, part of every protocol id: lower case letters, digits, "." and "-", 1 to 63. Required.
	Network string
	// Mode says whether this node serves others; empty means ModeAuto.
	Mode Mode
	// Store keeps the records of others over a restart; nil keeps them in memory. It belongs to the caller, who closes it
	// after [DHT.Close]. Writes need not be synced.
	Store ds.Batching
	// BootstrapPeers returns peers to join through. It is called whenever the routing table is low, so that what it returns may
	// change. Nil means none.
	BootstrapPeers func() []peer.AddrInfo
	// Verifier verifies records; nil means one that knows did:key.
	Verifier *td.Verifier
	// Local is what this node answers others with; nil answers with nothing.
	Local Local
	// Index gives the node the role "index": it answers what others search from all that it knows, and says so in the DHT. It
	// returns at most q.Limit verified records that match q, is called by several goroutines at once, and must not block. Nil is
	// no such role.
	Index func(q td.Query) []*td.Signed
	// States says of things, by the keys of their records, how their agents at this node are: as many states as keys, within ctx. It
	// is called by several goroutines at once. Nil says that none is here.
	States func(ctx context.Context, keys [][32]byte) []AgentState
	// Evidence is given both of two different records of one thing with one seq, which its owner must never sign, when the DHT
	// meets them. They are valid; of a thing that it asks for, a caller is given one of them only. It must not block. Nil drops
	// them.
	Evidence func(s *td.Signed)
	// Missed is told of each peer that a search asked, that did not answer in time and to which there is no connection: it may be
	// gone, or far away. It must not block. Nil is told nothing.
	Missed func(id peer.ID)
	// Reached is told of each peer that a search asked: true if it answered, false if it could not be dialled. It must not
	// block. Nil drops it.
	Reached func(id peer.ID, ok bool)
	// Down reports whether a peer is known to be gone: as long as there is no connection to it, a search counts it as unreachable
	// and does not wait for it. It must be quick, and whoever says it must find out when the peer is back. Nil means nobody is.
	Down func(id peer.ID) bool
	// Admits says who may take part: whose requests are served, who is in the routing table, and who is asked. Nil admits
	// every node. Peers whose key is not Ed25519 are always refused. It is called often and must be quick.
	Admits func(did.DID) error
	// K is how many nodes keep a record, and the bucket size. All nodes of a network have the same. Zero means 20; with
	// fewer, more records are lost when many nodes vanish at once. Less than 11 is refused: tables that are full with ten
	// peers make the library refresh them without end.
	K int
	// Diversity bounds how many peers of one IP group the routing table takes: 2 per bucket, 3 in all. For public networks
	// only; on one subnet it would cap the table at 3.
	Diversity bool
	// PublishPrivate lets private and loopback addresses into provider records and the address book.
	PublishPrivate bool
	// Log takes what happens; nil discards it.
	Log *slog.Logger
}

// Protocols returns the ids of the two stream protocols of a network, for the limits of the resource manager.
func Protocols(network string) (kad, records protocol.ID) {
	prefix := protocol.ID("/lmos/" + network)
	return prefix + "/kad/1.0.0", prefix + "/records/1"
}

// A DHT is this node's part in the DHT of its network. It is safe for concurrent use.
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
	values       *records.ValueStore // over the datastore that the library serves from
	valueDS      *quota
	providerDS   *quota
	recordServer *recordServer
	offers       *offers
	faults       *faults
	indexes      indexes

	// joining gives the bootstrap peers to the library. Run sets it, because no peer may be dialled before all handlers are set.
	joining atomic.Bool
}

var networkName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,62}$`)

// New opens the DHT on h and sets its handlers. It dials nobody before Run. The caller closes it before h.
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
	d.offers = newOffers()
	d.faults = &faults{host: h, log: o.Log}
	d.validator = record.NamespacedValidator{namespaceTD: &validator{verifier: o.Verifier, equivocations: &equivocations{report: o.Evidence}}}
	if err := d.open(); err != nil {
		return nil, fmt.Errorf("open the DHT: %w", err)
	}
	d.recordServer = newRecordServer(d)
	h.SetStreamHandler(d.records, d.recordServer.handle)
	return d, nil
}

func (o Options) withDefaults() (Options, error) {
	if !networkName.MatchString(o.Network) {
		return o, fmt.Errorf("network name %q: want lower case letters, digits, dots and hyphens, 1 to 63", o.Network)
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
	if o.Local == nil {
		o.Local = nothing{}
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
	if o.Missed == nil {
		o.Missed = func(peer.ID) {}
	}
	if o.Reached == nil {
		o.Reached = func(peer.ID, bool) {}
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
	d.guard = newGuard(d.host, d.admits, d.stats, d.log)
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
		// AutoNAT knows public addresses only: with ModeAuto a private network would have no server at all.
		return kad.ModeAutoServer, nil
	}
	return kad.ModeAuto, nil
}

// kadOptions are the options of the library. There is no validator of public keys: every key here is inside its PeerID, so
// that nobody has a use for such records.
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

// newSender is called once, by kad.New. The sender works on the host itself: the guard is for what comes in.
func (d *DHT) newSender(_ host.Host, protos []protocol.ID) pb.MessageSenderWithDisconnect {
	d.sender = newSender(d.host, protos, d.o.K, d.stats, d.faults.note)
	return d.sender
}

// admits says whether p may take part.
func (d *DHT) admits(p peer.ID) bool {
	id, err := did.FromPeer([]byte(p))
	if err != nil {
		return false
	}
	return d.o.Admits == nil || d.o.Admits(id) == nil
}

// trusts says whether p may be asked DHT requests.
func (d *DHT) trusts(p peer.ID) bool { return !d.faults.has(p) && d.admits(p) }

// isDown says whether it is in vain to ask p.
func (d *DHT) isDown(p peer.ID) bool {
	return d.host.Network().Connectedness(p) != network.Connected && d.o.Down(p)
}

// Forget takes a peer that is gone out of the routing table, so that lookups do not begin with it. When it is heard of again, it
// is taken in again.
func (d *DHT) Forget(p peer.ID) { d.kad.RoutingTable().RemovePeer(p) }

// Run joins the network through the bootstrap peers, stays joined, and keeps what this node provides alive, until ctx ends. It
// returns when its last goroutine has.
func (d *DHT) Run(ctx context.Context) error {
	d.joining.Store(true)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { d.join(ctx); return nil })
	g.Go(func() error { d.offerRoles(ctx); d.reprovide(ctx); return nil })
	return g.Wait()
}

// Close takes the node out of the DHT. After it the datastore is the caller's to close. It is called once, after Run has
// returned.
func (d *DHT) Close() error {
	d.host.RemoveStreamHandler(d.records)
	d.recordServer.server.Close()
	// The handlers first: the library does not wait for them, and they use its stores.
	d.guard.close()
	err := d.kad.Close()
	// Until here the library may still call these, and goroutines that it does not wait for even later.
	d.sender.close()
	d.valueDS.close()
	d.providerDS.close()
	return err
}

// Size returns the number of peers in the routing table.
func (d *DHT) Size() int { return d.kad.RoutingTable().Size() }

// Peers returns the peers in the routing table, in no order.
func (d *DHT) Peers() []peer.ID { return d.kad.RoutingTable().ListPeers() }

// nothing is the Local of a node that hosts nothing.
type nothing struct{}

func (nothing) Body([32]byte) ([]byte, bool) { return nil, false }
func (nothing) Hosted(td.Query) []*td.Signed { return nil }
