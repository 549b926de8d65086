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

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/backoff"
)

// Times of an [Announcer]. Each is jittered by a tenth, but for the first pause.
const (
	lookPause   = time.Second      // between looks whether the node offers something
	firstPause  = 10 * time.Second // between two records
	changePause = 5 * time.Minute  // at most, between the records of addresses that change again and again
	maxChanges  = 6                // one after the other, before the pauses grow
	alonePause  = 10 * time.Minute // at most, between attempts of a node without peers
	repeatAfter = time.Minute      // for nodes that have missed the record of a change
	period      = Life / 4
)

// AnnouncerOptions configure [NewAnnouncer]. All but Log are required.
type AnnouncerOptions struct {
	Host    host.Host
	Signer  did.Signer // of the host
	Network string
	// Addrs selects those of the host that others receive, at most [MaxAddrs], the best first.
	Addrs func(all []ma.Multiaddr) []ma.Multiaddr
	// Offers reports whether the node offers something to all nodes. If not, its addresses are not announced.
	Offers func() bool
	// Gossip sends a record to the connected nodes, and returns their number.
	Gossip func(ctx context.Context, r *Record) (peers int, err error)
	// Store stores a record in the DHT, and returns the number of replicas.
	Store func(ctx context.Context, r *Record) (replicas int, err error)
	Log   *slog.Logger // nil discards
}

// An Announcer announces the record of this node: at once after a change of its addresses, and again before others forget it. A node that offers
// nothing any more announces a record without addresses.
type Announcer struct {
	o AnnouncerOptions

	// The rest is owned by Run.
	last     *Record   // announced; nil: none yet
	next     time.Time // when it is announced again
	changes  int       // one after the other, which no quiet period has separated
	attempts int       // of the record, without a peer and a replica
	repeats  int       // of the record, for those that have missed it
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
	var addrs []ma.Multiaddr
	if a.o.Offers() {
		addrs = a.o.Addrs(a.o.Host.Addrs())
	}
	if a.last == nil && len(addrs) == 0 || a.last != nil && len(addrs) == 0 && len(a.last.Addrs) == 0 && a.attempts == 0 {
		return lookPause
	}
	due := a.next
	changed := a.last == nil || !equal(a.last.Addrs, addrs)
	if changed && a.last != nil {
		if now.Sub(a.last.Issued) > 2*changePause {
			a.changes = 0
		}
		due = a.last.Issued.Add(min(firstPause<<min(max(a.changes-maxChanges, 0), 5), changePause))
	}
	if wait := due.Sub(now); wait > 0 {
		return min(wait, lookPause) // what the node offers may change
	}
	r, err := Sign(a.o.Signer, a.o.Network, addrs, now)
	if err != nil {
		a.o.Log.Error("record of this node not signed", "err", err)
		return alonePause
	}
	if changed {
		a.attempts, a.repeats = 0, 0
		a.changes++
	}
	a.last = r
	peers, err := a.o.Gossip(ctx, r)
	if err != nil {
		a.o.Log.Info("record of this node not announced", "err", err)
	}
	replicas, err := a.o.Store(ctx, r)
	if err != nil {
		a.o.Log.Debug("record of this node not stored", "err", err)
	}
	switch {
	case peers == 0 || replicas == 0:
		a.attempts++
		a.next = now.Add(backoff.Jitter(min(firstPause<<min(a.attempts, 6), alonePause), 0.1))
	case a.repeats == 0:
		a.attempts, a.repeats = 0, 1
		a.next = now.Add(backoff.Jitter(repeatAfter, 0.1))
	default:
		a.attempts = 0
		a.next = now.Add(backoff.Jitter(period, 0.1))
	}
	return lookPause
}

// equal compares addresses in any order.
func equal(a, b []ma.Multiaddr) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(x ma.Multiaddr) bool { return !slices.ContainsFunc(b, x.Equal) })
}
