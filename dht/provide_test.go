package dht

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	kb "github.com/libp2p/go-libp2p-kbucket"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/td"
)

func TestKeysOf(t *testing.T) {
	t.Parallel()
	keys := keysOf(&td.Record{Thing: "urn:x", Capabilities: []string{
		"ask", "urn:telekom:billing", "urn:telekom:capability:billing:read:all",
	}})
	want := []provideKey{thingKey("urn:x"), nameKey("X")}
	for _, l := range []string{
		"ask", "telekom", "telekom:billing", "telekom:capability", "telekom:capability:billing", "telekom:capability:billing:read",
	} {
		want = append(want, capabilityKey(l))
	}
	if !slices.Equal(keys, want) {
		t.Errorf("got %d keys, want %d: id, name, and each level once, the general ones first", len(keys), len(want))
	}
	var many []string
	for i := range td.MaxCaps {
		many = append(many, fmt.Sprintf("a%d:b:c:d", i))
	}
	keys = keysOf(&td.Record{Thing: "urn:x", Capabilities: many})
	if len(keys) != maxKeys || keys[2] != capabilityKey("a0") || keys[63] != capabilityKey("a61") {
		t.Errorf("got %d keys, want the id, the name and the first levels", len(keys))
	}
	if c := capabilityKey("telekom").cid(); c.String() != "bafkreifxrdtbc3ovz66gancmzfbenlvc7k4333gpyemkbb3n3t5seildfi" {
		t.Errorf("the key of a level has changed: %s", c)
	}
}

func TestProvidedKeysAreShared(t *testing.T) {
	t.Parallel()
	o := newProvidedKeys()
	if due := o.add("a", []provideKey{"1", "2"}); len(due) != 2 {
		t.Errorf("%d keys due, want 2", len(due))
	}
	now := time.Now()
	for _, k := range []provideKey{"1", "2"} {
		o.recordRound(k, 20, 20, 20, now, 1)
	}
	if due := o.add("b", []provideKey{"2", "3"}); !slices.Equal(due, []provideKey{"3"}) {
		t.Errorf("%q due, want the new key", due)
	}
	if due := o.add("a", []provideKey{"1"}); len(due) != 0 || o.len() != 3 {
		t.Errorf("%q due of %d keys; want none of 3", due, o.len())
	}
	o.remove("b")
	if o.len() != 1 {
		t.Errorf("%d keys are left, want 1", o.len())
	}
	o.remove("b")
	o.remove("a")
	if o.len() != 0 {
		t.Errorf("%d keys are left, want 0", o.len())
	}
	o.recordRound("1", 20, 20, 20, now, 1) // comes late, and must not bring it back
	if o.len() != 0 {
		t.Error("a removed key is due")
	}
}

func TestProvidedKeysBecomeDue(t *testing.T) {
	t.Parallel()
	now := time.Now()
	tests := []struct {
		name          string
		taken, wanted int
		rounds        int
		want          time.Duration
	}{
		{"all have it", 20, 20, 1, provideEvery},
		{"a small network", 3, 3, 1, thinEvery},
		{"some have not taken it", 15, 20, 1, thinEvery},
		{"not stored", 0, 20, 1, time.Second},
		{"not stored 3 times", 0, 20, 3, 4 * time.Second},
		{"never stored", 0, 20, 60, retryLast},
		{"never a peer", 0, 0, 60, retryAlone},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			o := newProvidedKeys()
			o.add("a", []provideKey{"1"})
			for range tt.rounds {
				o.recordRound("1", tt.taken, tt.wanted, 20, now, 1)
			}
			keys, pause := o.due(now, 10)
			if len(keys) != 0 || pause != tt.want {
				t.Errorf("due again in %v, want %v", pause, tt.want)
			}
			if keys, _ = o.due(now.Add(tt.want), 10); len(keys) != 1 {
				t.Error("it does not come due")
			}
		})
	}
	if provideEvery > providerAge/2 || thinEvery > providerAge/2 {
		t.Error("renewed less than twice in the life of a provider record")
	}
}

// TestRegions checks the result of a lookup against all nodes of a network.
func TestRegions(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(3, 4))
	for _, size := range []int{1, 5, 19, 20, 21, 40, 300} {
		var all []peer.ID
		for i := range size {
			all = append(all, testPeer(t, i))
		}
		var keys []provideKey
		for range 200 {
			keys = append(keys, capabilityKey(fmt.Sprint(rnd.Uint64())))
		}
		keys = sortByPosition(keys)
		var r *region
		lookups := 0
		for _, k := range keys {
			exact := closestTo(all, k, 20)
			if !r.has(k) {
				r = newRegion(k, exact, 20)
				lookups++
			}
			if len(r.peers) != len(exact) {
				t.Fatalf("%d nodes: %d peers, want %d", size, len(r.peers), len(exact))
			}
			if n := common(r.peers, exact); n < min(8, len(exact)) {
				t.Errorf("%d nodes: only %d of the closest", size, n)
			}
		}
		if most := 1 + size/5; lookups > most {
			t.Errorf("%d nodes: %d look-ups for 200 keys, want %d at most", size, lookups, most)
		}
	}
}

func closestTo(all []peer.ID, k provideKey, n int) []peer.ID {
	sorted := kb.SortClosestPeers(all, kb.ConvertKey(string(k)))
	return sorted[:min(n, len(sorted))]
}

func common(a, b []peer.ID) (n int) {
	for _, p := range a {
		if slices.Contains(b, p) {
			n++
		}
	}
	return n
}
