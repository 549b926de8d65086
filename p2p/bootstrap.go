package p2p

import (
	"context"
	"errors"
	"log/slog"
	"slices"
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

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/backoff"
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

// Bootstrap keeps the peers through which a node joins its mesh: the configured ones, also those of /dnsaddr names, those it was connected to before its last stop, and
// those that mDNS finds. With them a node joins again without its configured peers. It is safe for concurrent use.
type Bootstrap struct {
	host       host.Host
	configured []peer.AddrInfo
	names      []ma.Multiaddr // configured, too: /dnsaddr
	resolver   network.MultiaddrDNSResolver
	store      ds.Batching
	log        *slog.Logger
	queue      chan peer.AddrInfo // peers to dial

	mu       sync.Mutex
	snapshot []peer.AddrInfo            // owned by mu
	found    map[peer.ID]peer.AddrInfo  // by mDNS and Connect; owned by mu
	resolved map[string][]peer.AddrInfo // by name; owned by mu
}

// NewBootstrap returns the bootstrap peers of h. Store keeps the snapshot of connected peers. The error is of code ConfigInvalid if a
// configured address is not a multiaddr with a peer ID, or /dnsaddr with a domain.
func NewBootstrap(h host.Host, configured []string, store ds.Batching, log *slog.Logger) (*Bootstrap, error) {
	b := &Bootstrap{host: h, store: store, log: log, found: map[peer.ID]peer.AddrInfo{}, resolved: map[string][]peer.AddrInfo{},
		resolver: systemNames, queue: make(chan peer.AddrInfo, 32)}
	for _, text := range configured {
		if name, err := ma.NewMultiaddr(text); err == nil && isName(name) {
			b.names = append(b.names, name)
			continue
		}
		info, err := peer.AddrInfoFromString(text)
		if err != nil {
			return nil, &interact.Error{Code: interact.ConfigInvalid, Title: "expected the address of a peer in mesh.bootstrap, got " + text, Err: err,
				Hint: "copy an address of that node, like /ip4/192.0.2.7/udp/4667/quic-v1/p2p/12D3KooW…", Next: interact.Next(interact.StepID)}
		}
		b.configured = append(b.configured, *info)
	}
	b.snapshot = b.restore()
	return b, nil
}

// Peers returns all bootstrap peers: first the configured ones, last those of the snapshot.
func (b *Bootstrap) Peers() []peer.AddrInfo {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := slices.Clone(b.configured)
	for _, name := range b.names {
		all = append(all, b.resolved[name.String()]...)
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
		b.log.Debug("dial of a found peer failed", "peer", p.ID, "err", err)
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
