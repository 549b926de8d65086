package node

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	ds "github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/query"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"golang.org/x/sync/errgroup"

	"github.com/lmosd/lmosd/interact"
)

const (
	snapshotFirst = 5 * time.Second // after the start: a node that is killed soon comes back too; the pauses double
	snapshotEvery = 5 * time.Minute // and are no longer than this
	snapshotMax   = 256
	addrsMax      = 16 // of a peer
	foundMax      = 256
	foundDials    = 8 // peers that mDNS found, dialled at once
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

// run connects to what mDNS finds and keeps the snapshot, the last one when ctx ends.
func (s *seeds) run(h host.Host) func(context.Context) error {
	return func(ctx context.Context) error {
		pause := snapshotFirst
		timer := time.NewTimer(pause)
		defer timer.Stop()
		var dials errgroup.Group
		dials.SetLimit(foundDials)
		defer dials.Wait()
		for {
			select {
			case <-ctx.Done():
				s.save(context.WithoutCancel(ctx), h)
				return ctx.Err()
			case <-timer.C:
				s.save(ctx, h)
				pause = min(2*pause, snapshotEvery)
				timer.Reset(pause)
			case p := <-s.queue:
				dials.Go(func() error { s.dial(ctx, h, p); return nil })
			}
		}
	}
}

func (s *seeds) dial(ctx context.Context, h host.Host, p peer.AddrInfo) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := h.Connect(ctx, p); err != nil && !errors.Is(err, context.Canceled) {
		s.log.Debug("a node on the local network did not answer", "peer", p.ID, "err", err)
	}
}

// save writes the connected peers and how they are reached. A snapshot replaces the last one; an empty one does not: a node
// that lost everybody still knows whom to ask.
func (s *seeds) save(ctx context.Context, h host.Host) {
	now := map[ds.Key][]byte{}
	for _, p := range h.Network().Peers() {
		info := h.Peerstore().PeerInfo(p)
		info.Addrs = info.Addrs[:min(len(info.Addrs), addrsMax)]
		if b, err := info.MarshalJSON(); err == nil && len(info.Addrs) > 0 && len(now) < snapshotMax {
			now[ds.NewKey(p.String())] = b
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
	defer old.Close()
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

// restore reads the snapshot. Entries that do not read are dropped one by one: who answers at an address has to prove its key
// anyway.
func (s *seeds) restore() []peer.AddrInfo {
	res, err := s.store.Query(context.Background(), query.Query{Limit: snapshotMax})
	if err != nil {
		s.log.Warn("the peer snapshot was not read", "err", err)
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
