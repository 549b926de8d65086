package node

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	ds "github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/query"
	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	"github.com/libp2p/go-libp2p/core/record"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

const (
	snapshotEvery = 5 * time.Minute
	snapshotMax   = 256
	foundMax      = 256
	redialIn      = 2 * time.Second // how long a lost peer has to answer before its things are marked unreachable
)

// seeds are where the node begins: what the user configured, the peers it knew before its last stop, and those that mDNS
// finds. With them a node comes back without its bootstrap nodes.
type seeds struct {
	fixed []peer.AddrInfo
	store ds.Batching
	log   *slog.Logger

	mu sync.Mutex
	// known and fresh are owned by mu. known is the snapshot, fresh what mDNS found.
	known []peer.AddrInfo
	fresh map[peer.ID]peer.AddrInfo
	queue chan peer.AddrInfo
}

func newSeeds(bootstrap []string, store ds.Batching, log *slog.Logger) (*seeds, error) {
	s := &seeds{store: store, log: log, fresh: map[peer.ID]peer.AddrInfo{}, queue: make(chan peer.AddrInfo, 32)}
	for _, text := range bootstrap {
		info, err := peer.AddrInfoFromString(text)
		if err != nil {
			return nil, &interact.Error{Code: interact.ConfigInvalid, Title: "mesh.bootstrap has no address of a peer: " + text, Err: err,
				Hint: "copy a line that `lmosd run` prints, like /ip4/192.0.2.7/udp/4667/quic-v1/p2p/12D3KooW…"}
		}
		s.fixed = append(s.fixed, *info)
	}
	s.known = s.restore()
	return s, nil
}

// list returns every seed, configured ones first.
func (s *seeds) list() []peer.AddrInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := append([]peer.AddrInfo(nil), s.fixed...)
	for _, p := range s.fresh {
		all = append(all, p)
	}
	return append(all, s.known...)
}

// found takes a peer from mDNS. It does not block; when too many come at once the rest is announced again anyway.
func (s *seeds) found(p peer.AddrInfo) {
	s.mu.Lock()
	if len(s.fresh) < foundMax {
		s.fresh[p.ID] = p
	}
	s.mu.Unlock()
	select {
	case s.queue <- p:
	default:
	}
}

// run connects to what mDNS finds and keeps the snapshot.
func (s *seeds) run(h host.Host) func(context.Context) error {
	return func(ctx context.Context) error {
		tick := time.NewTicker(snapshotEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				s.save(context.WithoutCancel(ctx), h)
				return ctx.Err()
			case <-tick.C:
				s.save(ctx, h)
			case p := <-s.queue:
				dial, cancel := context.WithTimeout(ctx, 5*time.Second)
				if err := h.Connect(dial, p); err != nil && ctx.Err() == nil {
					s.log.Debug("a node on the local network did not answer", "peer", p.ID, "err", err)
				}
				cancel()
			}
		}
	}
}

// save writes the signed peer records of the connected peers. A snapshot replaces the last one; an empty one does not: a
// node that lost everybody still knows whom to ask.
func (s *seeds) save(ctx context.Context, h host.Host) {
	book, ok := peerstore.GetCertifiedAddrBook(h.Peerstore())
	if !ok {
		return
	}
	now := map[ds.Key][]byte{}
	for _, p := range h.Network().Peers() {
		if env := book.GetPeerRecord(p); env != nil && len(now) < snapshotMax {
			if b, err := env.Marshal(); err == nil {
				now[ds.NewKey(p.String())] = b
			}
		}
	}
	if len(now) == 0 {
		return
	}
	if err := s.replace(ctx, now); err != nil {
		s.log.Warn("the peer snapshot was not written", "err", err)
	}
}

func (s *seeds) replace(ctx context.Context, now map[ds.Key][]byte) error {
	batch, err := s.store.Batch(ctx)
	if err != nil {
		return err
	}
	old, err := s.store.Query(ctx, query.Query{KeysOnly: true})
	if err != nil {
		return err
	}
	for r := range old.Next() {
		if _, keep := now[ds.RawKey(r.Key)]; r.Error == nil && !keep {
			err = errors.Join(err, batch.Delete(ctx, ds.RawKey(r.Key)))
		}
	}
	for k, b := range now {
		err = errors.Join(err, batch.Put(ctx, k, b))
	}
	return errors.Join(err, batch.Commit(ctx), s.store.Sync(ctx, ds.NewKey("/")))
}

// restore reads the snapshot. Entries that do not verify are dropped one by one.
func (s *seeds) restore() []peer.AddrInfo {
	res, err := s.store.Query(context.Background(), query.Query{Limit: snapshotMax})
	if err != nil {
		s.log.Warn("the peer snapshot was not read", "err", err)
		return nil
	}
	defer res.Close()
	var all []peer.AddrInfo
	for r := range res.Next() {
		if r.Error != nil {
			continue
		}
		if _, rec, err := record.ConsumeEnvelope(r.Value, peer.PeerRecordEnvelopeDomain); err == nil {
			if p, ok := rec.(*peer.PeerRecord); ok {
				all = append(all, peer.AddrInfo{ID: p.PeerID, Addrs: p.Addrs})
			}
		}
	}
	return all
}

// watchPeers follows who comes and goes: a new peer is asked what it offers, so that a late joiner knows its neighbours'
// things at once; the things of a lost peer that does not answer a redial are marked unreachable.
func (n *Node) watchPeers(ctx context.Context) error {
	sub, err := n.host.EventBus().Subscribe([]any{new(event.EvtPeerIdentificationCompleted), new(event.EvtPeerConnectednessChanged)})
	if err != nil {
		return err
	}
	defer sub.Close()
	var tasks sync.WaitGroup
	defer tasks.Wait()
	for _, p := range n.host.Network().Peers() {
		tasks.Go(func() { n.greet(ctx, p) })
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, ok := <-sub.Out():
			if !ok {
				return nil
			}
			switch e := e.(type) {
			case event.EvtPeerIdentificationCompleted:
				tasks.Go(func() { n.greet(ctx, e.Peer) })
			case event.EvtPeerConnectednessChanged:
				if e.Connectedness == network.NotConnected {
					tasks.Go(func() { n.missed(ctx, e.Peer) })
				}
			}
		}
	}
}

// greet asks a new peer for the records of what it offers. What comes is verified like everything else.
func (n *Node) greet(ctx context.Context, p peer.ID) {
	id, err := did.FromPeer([]byte(p))
	if err != nil {
		return
	}
	n.dir.Reach(id, true)
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for s, err := range n.dht.Ask(ctx, p, td.Query{Limit: snapshotMax}) {
		if err != nil {
			n.log.Debug("a new peer did not say what it offers", "peer", id, "err", err)
			return
		}
		n.dir.Offer(s)
	}
}

// missed tries a lost peer once more.
func (n *Node) missed(ctx context.Context, p peer.ID) {
	id, err := did.FromPeer([]byte(p))
	if err != nil || !n.dir.Hosts(id) {
		return // Nothing is reached through it.
	}
	ctx, cancel := context.WithTimeout(ctx, redialIn)
	defer cancel()
	err = n.host.Connect(network.WithForceDirectDial(ctx, "is it still there"), peer.AddrInfo{ID: p})
	if errors.Is(err, context.Canceled) {
		return
	}
	n.dir.Reach(id, err == nil)
}

// Connect dials a peer and remembers it for as long as the node runs.
func (n *Node) Connect(ctx context.Context, addr string) error {
	a, err := ma.NewMultiaddr(addr)
	if err == nil {
		var info *peer.AddrInfo
		if info, err = peer.AddrInfoFromP2pAddr(a); err == nil {
			return n.dial(ctx, *info)
		}
	}
	return &interact.Error{Code: interact.Invalid, Title: "not the address of a peer: " + addr, Err: err,
		Hint: "copy a line that `lmosd id` prints there, like /ip4/192.0.2.7/udp/4667/quic-v1/p2p/12D3KooW…"}
}

func (n *Node) dial(ctx context.Context, p peer.AddrInfo) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := n.host.Connect(ctx, p); err != nil {
		return &interact.Error{Code: interact.Unreachable, Title: "the peer does not answer", Err: err,
			Hint: "see that lmosd runs there, in the same network (" + n.opts.Network + "), and that a firewall lets the port through"}
	}
	n.seeds.found(p)
	return nil
}
