package dht

import (
	"bytes"
	"context"
	"slices"

	kb "github.com/libp2p/go-libp2p-kbucket"
	"github.com/libp2p/go-libp2p/core/peer"
	"golang.org/x/sync/errgroup"
)

// maxLookups limits the concurrent lookups.
const maxLookups = 8

// A region is a part of the key space with known nodes: the result of one lookup for the neighbors of its key.
type region struct {
	center kb.ID
	peers  []peer.ID // the K closest to the center
	depth  int       // keys with more than depth leading bits in common with the center lie in the region
	whole  bool      // the network has fewer than K nodes, so that the region is all of it
}

// newRegion returns the region around key, whose closest peers were looked up.
//
// All nodes that share more leading bits with key than the farthest of peers are in peers, and are the closest to every other key
// that shares as many. If they are at least a quarter of K, peers are used for such keys: these nodes are exactly their closest,
// and the others are near. If they are fewer, the region is empty.
func newRegion(key provideKey, peers []peer.ID, k int) *region {
	r := &region{center: kb.ConvertKey(string(key)), peers: peers, whole: len(peers) < k, depth: 256}
	var shared []int
	for _, p := range peers {
		shared = append(shared, kb.CommonPrefixLen(r.center, kb.ConvertPeerID(p)))
	}
	if r.whole || len(shared) == 0 {
		return r
	}
	farthest := slices.Min(shared)
	inside := 0
	for _, n := range shared {
		if n > farthest {
			inside++
		}
	}
	if 4*inside >= k {
		r.depth = farthest
	}
	return r
}

// has reports whether the peers of r can be used for key.
func (r *region) has(key provideKey) bool {
	return r != nil && (r.whole || kb.CommonPrefixLen(r.center, kb.ConvertKey(string(key))) > r.depth)
}

// closestOfAll returns the peers to send each key to, with few lookups: one for a network of fewer than K nodes, otherwise about
// one per K/2 nodes or per key, whichever is less. Keys with a failed lookup are omitted.
func (d *DHT) closestOfAll(ctx context.Context, keys []provideKey) map[peer.ID][]provideKey {
	keys = sortByPosition(keys)
	first, err := d.closest(ctx, string(keys[0]))
	if err != nil {
		d.log.Debug("no peers for provider keys", "keys", len(keys), "err", err)
		return nil
	}
	near := newRegion(keys[0], first, d.o.K)
	found := make([][]peer.ID, len(keys))
	part := (len(keys) + maxLookups - 1) / maxLookups
	var g errgroup.Group
	for from := 0; from < len(keys); from += part {
		to := min(from+part, len(keys))
		g.Go(func() error { return d.lookUp(ctx, near, keys[from:to], found[from:to]) })
	}
	if err := g.Wait(); err != nil {
		d.log.Debug("look-up of a provider key failed", "err", err)
	}
	byPeer := map[peer.ID][]provideKey{}
	for i, peers := range found {
		for _, p := range peers {
			byPeer[p] = append(byPeer[p], keys[i])
		}
	}
	return byPeer
}

// lookUp sets the peers of each of keys, which are sorted neighbors, in found. near is the first region.
func (d *DHT) lookUp(ctx context.Context, near *region, keys []provideKey, found [][]peer.ID) error {
	for i, k := range keys {
		if !near.has(k) {
			peers, err := d.closest(ctx, string(k))
			if err != nil {
				return err
			}
			near = newRegion(k, peers, d.o.K)
		}
		found[i] = near.peers
	}
	return nil
}

// sortByPosition returns keys in the order of the key space.
func sortByPosition(keys []provideKey) []provideKey {
	return slices.SortedFunc(slices.Values(keys), func(a, b provideKey) int {
		return bytes.Compare(kb.ConvertKey(string(a)), kb.ConvertKey(string(b)))
	})
}
