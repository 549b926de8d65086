package p2p

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	ds "github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/query"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/discovery/mdns"
	ma "github.com/multiformats/go-multiaddr"
	"golang.org/x/sync/errgroup"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/internal/netguard"
	"github.com/lmosd/lmosd/internal/weblocation"
)

const (
	snapshotFirst    = 5 * time.Second // after the start, for a node that is killed soon; the pauses double
	snapshotInterval = 5 * time.Minute // the longest pause
	maxSnapshot      = 256             // peers
	maxPeerAddrs     = 16              // of a peer in a snapshot
	maxFound         = 256             // peers that mDNS found
	maxFoundDials    = 8               // of them, dialed at once
	foundDialTimeout = 5 * time.Second
)

// BootstrapOptions configure a [Bootstrap].
type BootstrapOptions struct {
	// Host dials the peers. Required.
	Host host.Host
	// Configured are entries of mesh.bootstrap; see [CheckBootstrap].
	Configured []string
	// Organizations returns the documents of the organizations that a node without peers looks at: what it has stored of its own one and of
	// partners. Nil: none.
	Organizations func() []*did.Document
	// Alone is the time without peers after which the node does so. 0 is 30 s.
	Alone time.Duration
	// Store keeps the snapshot of connected peers. Required.
	Store ds.Batching
	Log   *slog.Logger // required
}

// Bootstrap keeps the peers through which a node joins its mesh: the configured ones, also those that a name or the document of an organization
// lists, those it was connected to before its last stop, and those that mDNS finds. With them a node joins again without its configured peers. It
// is safe for concurrent use.
type Bootstrap struct {
	host          host.Host
	entries       []*entry // of mesh.bootstrap; their states are owned by mu
	configured    []peer.AddrInfo
	names         []name // configured, too
	resolver      network.MultiaddrDNSResolver
	documents     did.Resolver // of configured organizations
	organizations func() []*did.Document
	alone         time.Duration
	guarded       did.Resolver // of organizations
	store         ds.Batching
	log           *slog.Logger
	queue         chan peer.AddrInfo // peers to dial

	mu       sync.Mutex
	snapshot []peer.AddrInfo            // owned by mu
	found    map[peer.ID]peer.AddrInfo  // by mDNS, Connect and in documents of organizations; owned by mu
	resolved map[string][]peer.AddrInfo // by name; owned by mu
}

// NewBootstrap returns the bootstrap peers of a host. The error is that of [CheckBootstrap].
func NewBootstrap(o BootstrapOptions) (*Bootstrap, error) {
	b := &Bootstrap{host: o.Host, organizations: o.Organizations, alone: cmp.Or(o.Alone, aloneFirst), store: o.Store, log: o.Log, found: map[peer.ID]peer.AddrInfo{}, resolved: map[string][]peer.AddrInfo{},
		resolver: systemNames, documents: documentsOf(weblocation.Options{}), guarded: documentsOf(weblocation.Options{Dial: netguard.Public().DialContext}),
		queue: make(chan peer.AddrInfo, 32)}
	for _, text := range o.Configured {
		info, n, err := b.parse(text)
		switch {
		case err != nil:
			return nil, err
		case n != nil:
			b.names = append(b.names, *n)
		default:
			b.configured = append(b.configured, *info)
		}
		b.addEntry(text, info)
	}
	b.snapshot = b.restore()
	return b, nil
}

// CheckBootstrap returns an error of code ConfigInvalid unless text is an entry of mesh.bootstrap: a multiaddr with /p2p, /dnsaddr with a domain, or
// a did:web or did:webvh.
func CheckBootstrap(text string) error {
	_, _, err := new(Bootstrap).parse(text)
	return err
}

// parse returns the peer of an entry of mesh.bootstrap, or the name that leads to peers.
func (b *Bootstrap) parse(text string) (*peer.AddrInfo, *name, error) {
	if id := did.DID(text); strings.HasPrefix(text, "did:") {
		if _, err := locate(id); err != nil {
			return nil, nil, &interact.Error{Code: interact.ConfigInvalid, Title: "expected a did:web or did:webvh in mesh.bootstrap, got " + interact.Excerpt(text, 200), Err: err,
				Hint: "copy the DID of an organization, like did:web:example.org"}
		}
		return nil, &name{text, func(ctx context.Context) ([]peer.AddrInfo, error) { return inDocument(ctx, b.documents, id) }}, nil
	}
	if a, err := ma.NewMultiaddr(text); err == nil && isName(a) {
		return nil, &name{text, func(ctx context.Context) ([]peer.AddrInfo, error) { return resolve(ctx, b.resolver, a) }}, nil
	}
	info, err := peer.AddrInfoFromString(text)
	if err != nil {
		return nil, nil, &interact.Error{Code: interact.ConfigInvalid, Title: "expected the address of a peer in mesh.bootstrap, got " + text, Err: err,
			Hint: "copy an address of that node, like /ip4/192.0.2.7/udp/4667/quic-v1/p2p/12D3KooW…", Next: interact.Next(interact.StepID)}
	}
	return info, nil, nil
}

// Peers returns all bootstrap peers: first the configured ones, last those of the snapshot.
func (b *Bootstrap) Peers() []peer.AddrInfo {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := slices.Clone(b.configured)
	for _, name := range b.names {
		all = append(all, b.resolved[name.text]...)
	}
	for _, p := range b.found {
		all = append(all, p)
	}
	return append(all, b.snapshot...)
}

// HandlePeerFound adds a peer and has it dialed. It implements mdns.Notifee and does not block: mDNS announces again a peer for which the
// queue is full.
func (b *Bootstrap) HandlePeerFound(p peer.AddrInfo) {
	b.mu.Lock()
	if len(b.found) < maxFound {
		b.found[p.ID] = p
	}
	b.mu.Unlock()
	select {
	case b.queue <- p:
	default:
	}
}

// RunMDNS finds peers of the network on the local network until ctx ends. A host without multicast only logs that: the other bootstrap
// peers lead to the mesh.
func (b *Bootstrap) RunMDNS(ctx context.Context, network string) error {
	m := mdns.NewMdnsService(b.host, "_lmos-"+network+"._udp", b)
	if err := m.Start(); err != nil {
		b.log.Warn("local discovery of peers not started", "err", err)
		return nil
	}
	<-ctx.Done()
	return m.Close()
}

// Run dials the peers that are found, resolves the configured names, and keeps the snapshot, until ctx ends.
func (b *Bootstrap) Run(ctx context.Context) error {
	pauses := backoff.Backoff{First: snapshotFirst, Max: snapshotInterval}
	timer := time.NewTimer(pauses.Next())
	defer timer.Stop()
	var names sync.WaitGroup
	names.Go(func() { b.runNames(ctx) })
	names.Go(func() { b.runOrganizations(ctx) })
	defer names.Wait()
	var dials errgroup.Group
	dials.SetLimit(maxFoundDials)
	defer dials.Wait()
	for {
		select {
		case <-ctx.Done():
			b.save(context.WithoutCancel(ctx))
			return ctx.Err()
		case <-timer.C:
			b.save(ctx)
			timer.Reset(pauses.Next())
		case p := <-b.queue:
			dials.Go(func() error { b.dial(ctx, p); return nil })
		}
	}
}

func (b *Bootstrap) dial(ctx context.Context, p peer.AddrInfo) {
	ctx, cancel := context.WithTimeout(ctx, foundDialTimeout)
	defer cancel()
	if err := b.host.Connect(ctx, p); err != nil && !errors.Is(err, context.Canceled) {
		b.log.Debug("dial of a found peer failed", "peer", did.ShortPeer(p.ID), "err", err)
	}
}

// save writes a snapshot of the connected peers, which replaces the last one. Without connected peers the last one stays: a node that lost
// all peers still knows addresses to dial.
func (b *Bootstrap) save(ctx context.Context) {
	now := map[ds.Key][]byte{}
	for _, p := range b.host.Network().Peers() {
		info := b.host.Peerstore().PeerInfo(p)
		info.Addrs = info.Addrs[:min(len(info.Addrs), maxPeerAddrs)]
		if raw, err := info.MarshalJSON(); err == nil && len(info.Addrs) > 0 && len(now) < maxSnapshot {
			now[ds.NewKey(p.String())] = raw
		}
	}
	if len(now) == 0 {
		return
	}
	if err := b.replace(ctx, now); err != nil {
		b.log.Warn("peer snapshot not written", "err", err)
	}
}

func (b *Bootstrap) replace(ctx context.Context, now map[ds.Key][]byte) error {
	batch, err := b.store.Batch(ctx)
	if err != nil {
		return err
	}
	old, err := b.store.Query(ctx, query.Query{KeysOnly: true})
	if err != nil {
		return err
	}
	defer old.Close()
	for r := range old.Next() {
		if _, keep := now[ds.RawKey(r.Key)]; r.Error == nil && !keep {
			err = errors.Join(err, batch.Delete(ctx, ds.RawKey(r.Key)))
		}
	}
	for k, raw := range now {
		err = errors.Join(err, batch.Put(ctx, k, raw))
	}
	return errors.Join(err, batch.Commit(ctx), b.store.Sync(ctx, ds.NewKey("/")))
}

// restore reads the snapshot without its unreadable entries. A wrong address does no harm: a peer proves its key.
func (b *Bootstrap) restore() []peer.AddrInfo {
	res, err := b.store.Query(context.Background(), query.Query{Limit: maxSnapshot})
	if err != nil {
		b.log.Warn("peer snapshot not read", "err", err)
		return nil
	}
	defer res.Close()
	var all []peer.AddrInfo
	for r := range res.Next() {
		var info peer.AddrInfo
		if r.Error == nil && info.UnmarshalJSON(r.Value) == nil && info.ID != "" && len(info.Addrs) > 0 {
			all = append(all, info)
		}
	}
	return all
}
