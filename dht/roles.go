package dht

import (
	"context"
	"iter"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/peer"
)

// Nodes with a role are the providers of its key. A node with the role index serves searches from its whole directory: free text,
// which has no key, and terms with too many providers. One with the role relay lets others be reached through it.
const (
	roleIndex   = "index"
	roleRelay   = "relay"
	knownRelay  = 16                     // found per lookup
	maxIndexes  = 4                      // queried per search, a random choice: every node can claim the role
	knownIndex  = 16                     // found per lookup
	indexAge    = 10 * time.Minute       // lifetime of found nodes
	noIndexAge  = time.Minute            // lifetime of an empty result
	indexLookup = 500 * time.Millisecond // per lookup
)

// roleKey returns the provider key of a role.
func roleKey(role string) provideKey { return newKey("role/" + role) }

// provideRoles provides the keys of the roles of this node until ctx ends; reprovide renews them. The role relay follows the reachability of the
// host.
func (d *DHT) provideRoles(ctx context.Context) error {
	events, err := d.host.EventBus().Subscribe(new(event.EvtLocalReachabilityChanged))
	if err != nil {
		return err
	}
	defer events.Close()
	if d.o.Index != nil {
		d.provideRole(ctx, roleIndex)
	}
	for relays := false; ; {
		switch is := d.o.Relay != nil && d.o.Relay(); {
		case is && !relays:
			d.provideRole(ctx, roleRelay)
			relays = true
		case !is && relays:
			d.provided.remove(roleName(roleRelay))
			relays = false
		}
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-events.Out():
			if !ok {
				return nil
			}
		}
	}
}

func (d *DHT) provideRole(ctx context.Context, role string) {
	d.provide(ctx, d.provided.add(roleName(role), []provideKey{roleKey(role)}))
}

// roleName returns the name of a role among the Things: no Thing has an empty owner.
func roleName(role string) string { return thingName("", role) }

// Relays yields nodes with the role relay, as they are found: they state it themselves.
func (d *DHT) Relays(ctx context.Context) iter.Seq[peer.AddrInfo] {
	return d.withRole(ctx, roleRelay, knownRelay)
}

// withRole yields admitted nodes with a role.
func (d *DHT) withRole(ctx context.Context, role string, most int) iter.Seq[peer.AddrInfo] {
	return func(yield func(peer.AddrInfo) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		for ai := range d.kad.FindProvidersAsync(ctx, roleKey(role).cid(), most) {
			if ai.ID != d.host.ID() && d.admits(ai.ID) && !yield(ai) {
				return
			}
		}
	}
}

// indexes are the nodes with the role index of the last lookup. It is safe for concurrent use; the zero value is empty.
type indexes struct {
	mu    sync.Mutex
	known []peer.AddrInfo // owned by mu
	until time.Time       // owned by mu
}

// get returns some known nodes, unless they expired.
func (x *indexes) get(now time.Time) (some []peer.AddrInfo, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return someOf(x.known), now.Before(x.until)
}

// someOf returns up to maxIndexes of all.
func someOf(all []peer.AddrInfo) []peer.AddrInfo {
	all = slices.Clone(all)
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:min(len(all), maxIndexes)]
}

func (x *indexes) set(known []peer.AddrInfo, now time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.known, x.until = known, now.Add(indexAge)
	if len(known) == 0 {
		x.until = now.Add(noIndexAge)
	}
}

// drop removes a node that did not respond.
func (x *indexes) drop(p peer.ID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.known = slices.DeleteFunc(slices.Clone(x.known), func(ai peer.AddrInfo) bool { return ai.ID == p })
}

// indexPeers returns some nodes with the role index.
func (d *DHT) indexPeers(ctx context.Context) []peer.AddrInfo {
	if known, ok := d.indexes.get(time.Now()); ok {
		return known
	}
	outer := ctx
	ctx, cancel := context.WithTimeout(ctx, indexLookup)
	defer cancel()
	found := slices.Collect(d.withRole(ctx, roleIndex, knownIndex))
	if len(found) > 0 || outer.Err() == nil && d.Size() > 0 { // otherwise an empty result has no meaning
		d.indexes.set(found, time.Now())
	}
	return someOf(found)
}
