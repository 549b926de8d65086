package dht

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
	"golang.org/x/sync/errgroup"

	"github.com/lmosd/lmosd/internal/backoff"
)

const (
	lowTable   = 10               // peers in the routing table below which seeds are dialled
	firstPause = time.Second      // between attempts to join; doubles
	longPause  = 30 * time.Second // and is no longer than this
	joinTime   = 10 * time.Second // of dialling one seed
	maxDials   = 8                // seeds dialled at once
	calmPause  = time.Minute      // between looks at a table that is not low
	waitPause  = 20 * time.Millisecond
)

// seeds are the peers to join through, for the library: none before Run.
func (d *DHT) seeds() []peer.AddrInfo {
	if !d.joining.Load() {
		return nil
	}
	return d.o.Seeds()
}

// join dials the seeds, and again whenever the table is low: a node that starts before its seed joins when the seed is
// there. It ends with ctx.
func (d *DHT) join(ctx context.Context) {
	pause := firstPause
	for {
		d.faults.sweep()
		reached := d.dialSeeds(ctx)
		switch {
		case d.Size() >= lowTable:
			pause = calmPause
		case reached > 0:
			pause = firstPause
		default:
			pause = min(2*pause, longPause)
		}
		if backoff.Sleep(ctx, backoff.Jitter(pause, 0.1)) != nil {
			return
		}
	}
}

// dialSeeds dials the seeds that are not connected, if the table is low, and returns how many answered.
func (d *DHT) dialSeeds(ctx context.Context) (reached int) {
	if d.Size() >= lowTable {
		return 0
	}
	var seeds []peer.AddrInfo
	for _, ai := range d.o.Seeds() {
		if ai.ID != d.host.ID() && d.admits(ai.ID) && d.host.Network().Connectedness(ai.ID) != network.Connected {
			seeds = append(seeds, ai)
		}
	}
	if len(seeds) > 0 {
		reached = d.dialAll(ctx, seeds)
	}
	if reached > 0 || d.Size() == 0 {
		// The library takes connected peers into the table again, and looks for more.
		_ = d.kad.Bootstrap(ctx)
	}
	return reached
}

func (d *DHT) dialAll(ctx context.Context, seeds []peer.AddrInfo) int {
	var reached atomic.Int32
	var g errgroup.Group
	g.SetLimit(maxDials)
	for _, ai := range seeds {
		g.Go(func() error {
			if d.dialSeed(ctx, ai) {
				reached.Add(1)
			}
			return nil
		})
	}
	_ = g.Wait()
	return int(reached.Load())
}

func (d *DHT) dialSeed(ctx context.Context, ai peer.AddrInfo) bool {
	ctx, cancel := context.WithTimeout(ctx, joinTime)
	defer cancel()
	if !throughRelay(ai) {
		// Past the swarm's own backoff, which grows to five minutes: the pauses here are the bound.
		ctx = network.WithForceDirectDial(ctx, "lmos seed")
	}
	err := d.host.Connect(ctx, ai)
	if err != nil {
		d.log.Debug("seed not reached", "peer", ai.ID, "err", err)
		return false
	}
	d.log.Info("seed reached", "peer", ai.ID)
	return true
}

func throughRelay(ai peer.AddrInfo) bool {
	for _, a := range ai.Addrs {
		if _, err := a.ValueForProtocol(ma.P_CIRCUIT); err == nil {
			return true
		}
	}
	return false
}

// Wait returns when the routing table has n peers, or with the error of ctx.
func (d *DHT) Wait(ctx context.Context, n int) error {
	for d.Size() < n {
		if backoff.Sleep(ctx, waitPause) != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// maxAddrs bounds the addresses of a peer that are stored and told.
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
