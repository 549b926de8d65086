package dht

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
	"golang.org/x/sync/errgroup"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/p2p/relay"
)

const (
	minTable    = 10               // peers in the routing table below which bootstrap peers are dialed
	firstPause  = time.Second      // between attempts to join; it doubles
	maxPause    = 30 * time.Second // between attempts to join; at most checkPause
	dialTimeout = 10 * time.Second // for one bootstrap peer
	maxDials    = 8                // concurrent dials
	checkPause  = time.Minute      // between checks of a table with minTable peers
	waitPause   = 20 * time.Millisecond
)

// bootstrapPeers returns the bootstrap peers for the library: none before Run.
func (d *DHT) bootstrapPeers() []peer.AddrInfo {
	if !d.joining.Load() {
		return nil
	}
	return d.o.BootstrapPeers()
}

// join dials the seeds, and again whenever the table is low: a node that starts before its seed joins later. It ends with ctx.
func (d *DHT) join(ctx context.Context) {
	pauses := backoff.Backoff{First: firstPause, Max: maxPause}
	for {
		d.faults.sweep()
		pause := pauses.Next()
		reached := d.dialBootstrapPeers(ctx, pause)
		switch isSmall := d.Size() < minTable; {
		case !isSmall:
			pauses.Reset()
			pause = checkPause
		case reached > 0:
			pauses.Reset()
			pause = pauses.Next()
		}
		if backoff.Sleep(ctx, backoff.Jitter(pause, 0.1)) != nil {
			return
		}
	}
}

// dialBootstrapPeers dials the bootstrap peers that are not connected, if the routing table is small, and returns the number reached. Those that fail are
// dialed again after retry, unless others are reached.
func (d *DHT) dialBootstrapPeers(ctx context.Context, retry time.Duration) (reached int) {
	if d.Size() >= minTable {
		return 0
	}
	var absent []peer.AddrInfo
	for _, ai := range d.o.BootstrapPeers() {
		if ai.ID != d.host.ID() && d.admits(ai.ID) && d.host.Network().Connectedness(ai.ID) != network.Connected {
			absent = append(absent, ai)
		}
	}
	if len(absent) > 0 {
		reached = d.dialAll(ctx, absent, retry)
	}
	if reached > 0 || d.Size() == 0 {
		// The library adds connected peers to the table, and searches for more.
		_ = d.kad.Bootstrap(ctx)
	}
	return reached
}

func (d *DHT) dialAll(ctx context.Context, peers []peer.AddrInfo, retry time.Duration) int {
	var reached atomic.Int32
	var g errgroup.Group
	g.SetLimit(maxDials)
	for _, ai := range peers {
		g.Go(func() error {
			err := d.dialBootstrapPeer(ctx, ai)
			if d.o.OnBootstrap(ai.ID, err, retry); err == nil {
				reached.Add(1)
			}
			return nil
		})
	}
	_ = g.Wait()
	return int(reached.Load())
}

func (d *DHT) dialBootstrapPeer(ctx context.Context, ai peer.AddrInfo) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if !throughRelay(ai) {
		// Ignores the back-off of the swarm, which grows to 5 minutes.
		ctx = network.WithForceDirectDial(ctx, "lmos bootstrap")
	}
	err := d.host.Connect(ctx, ai)
	if err != nil {
		d.log.Debug("bootstrap peer not reached", "peer", did.ShortPeer(ai.ID), "err", err)
		return err
	}
	d.log.Debug("bootstrap peer reached", "peer", did.ShortPeer(ai.ID))
	return nil
}

func throughRelay(ai peer.AddrInfo) bool { return slices.ContainsFunc(ai.Addrs, relay.IsCircuit) }

// Wait returns when the routing table has n peers, or with the error of ctx.
func (d *DHT) Wait(ctx context.Context, n int) error {
	for d.Size() < n {
		if backoff.Sleep(ctx, waitPause) != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// maxAddrs limits the stored and sent addresses of a peer.
const maxAddrs = 8

// filterAddrs returns the addresses that may enter provider records and the address book.
func (o Options) filterAddrs(addrs []ma.Multiaddr) []ma.Multiaddr {
	kept := make([]ma.Multiaddr, 0, min(len(addrs), maxAddrs))
	for _, a := range addrs {
		if len(kept) == maxAddrs {
			break
		}
		if o.PublishPrivate || manet.IsPublicAddr(a) {
			kept = append(kept, a)
		}
	}
	return kept
}
