package noderecord

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/p2p/host/eventbus"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/internal/backoff"
)

// Times of an [Announcer].
const (
	lookPause    = time.Second      // between looks whether the node offers something
	leastPause   = 10 * time.Second // between two records
	mostPause    = 10 * time.Minute // between attempts of a node without peers
	gossipPeriod = time.Hour        // for nodes that have missed the last record
	storePeriod  = Life / 4
)

// AnnouncerOptions configure [NewAnnouncer]. All but Log are required.
type AnnouncerOptions struct {
	Host host.Host
	// Addrs selects those of the host that others are told, at most [MaxAddrs], the best first.
	Addrs func(all []ma.Multiaddr) []ma.Multiaddr
	// Offers reports whether the node offers something to all nodes. If not, its addresses are not announced.
	Offers func() bool
	// Gossip sends a record to the connected nodes, and returns their number.
	Gossip func(ctx context.Context, r *Record) (peers int, err error)
	// Store stores a record in the DHT, and returns the number of replicas.
	Store func(ctx context.Context, r *Record) (replicas int, err error)
	Log   *slog.Logger // nil discards
}

// An Announcer announces the record of this node: at once after a change of its addresses, and again before others forget it.
type Announcer struct {
	o AnnouncerOptions

	// The rest is owned by Run.
	last             *Record
	gossiped, stored time.Time // zero: not yet
	tried            time.Time
	failures         int
}

// NewAnnouncer returns an announcer.
func NewAnnouncer(o AnnouncerOptions) *Announcer {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return &Announcer{o: o}
}

// Run announces the record until ctx ends.
func (a *Announcer) Run(ctx context.Context) error {
	events, err := a.o.Host.EventBus().Subscribe(new(event.EvtLocalAddressesUpdated), eventbus.Name("record of this node"))
	if err != nil {
		return err
	}
	changed := backoff.NewWaker() // an announcement takes seconds, and a full subscription stops the host
	var work sync.WaitGroup
	work.Go(func() { changed.Loop(ctx, func() time.Duration { return a.announce(ctx, time.Now()) }) })
	defer work.Wait()
	defer func() { _ = events.Close() }()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case _, ok := <-events.Out():
			if !ok {
				return nil
			}
			changed.Wake()
		}
	}
}

// announce announces what is due, and returns when it must be called again.
func (a *Announcer) announce(ctx context.Context, now time.Time) time.Duration {
	addrs := a.o.Addrs(a.o.Host.Addrs())
	if len(addrs) == 0 || !a.o.Offers() {
		return lookPause
	}
	if changed := a.last == nil || !equal(a.last.Addrs, addrs); changed {
		a.gossiped, a.stored, a.failures = time.Time{}, time.Time{}, 0
	}
	gossip, store := now.Sub(a.gossiped) >= gossipPeriod, now.Sub(a.stored) >= storePeriod
	if !gossip && !store {
		return min(gossipPeriod-now.Sub(a.gossiped), storePeriod-now.Sub(a.stored))
	}
	if wait := a.tried.Add(min(leastPause<<min(a.failures, 6), mostPause)).Sub(now); wait > 0 {
		return wait
	}
	r, err := Sign(a.o.Host.Peerstore().PrivKey(a.o.Host.ID()), addrs, now)
	if err != nil {
		a.o.Log.Error("record of this node not signed", "err", err)
		return mostPause
	}
	a.last, a.tried = r, now
	a.failures++
	if gossip {
		if n, err := a.o.Gossip(ctx, r); err == nil && n > 0 {
			a.gossiped = now.Add(-backoff.Jitter(gossipPeriod/10, 1))
		} else if err != nil {
			a.o.Log.Debug("record of this node not announced", "err", err)
		}
	}
	if store {
		if n, err := a.o.Store(ctx, r); err == nil && n > 0 {
			a.stored = now.Add(-backoff.Jitter(storePeriod/10, 1))
		} else if err != nil {
			a.o.Log.Debug("record of this node not stored", "err", err)
		}
	}
	if !a.gossiped.IsZero() && !a.stored.IsZero() {
		a.failures = 0
	}
	return leastPause
}

// equal compares addresses in any order.
func equal(a, b []ma.Multiaddr) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(x ma.Multiaddr) bool { return !slices.ContainsFunc(b, x.Equal) })
}
