package dht

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/td"
)

// titles returns the sorted titles of Things.
func titles(all []*td.Record) (names []string) {
	for _, r := range all {
		names = append(names, r.Title)
	}
	slices.Sort(names)
	return names
}

// TestFindQueriesEveryBranch has providers of different branches, and one of both, which is queried once.
func TestFindQueriesEveryBranch(t *testing.T) {
	t.Parallel()
	simulate(t, 5, func(t *testing.T, _ *simulated, nodes []*node) {
		nodes[0].offer(t, nodes[0].thing(t, "Apple", 1, "urn:fruit:apple"))
		nodes[1].offer(t, nodes[1].thing(t, "Traffic", 1, "urn:traffic"))
		nodes[2].offer(t, nodes[2].thing(t, "Pear", 1, "urn:fruit:pear"))
		nodes[2].offer(t, nodes[2].thing(t, "Jam", 1, "urn:traffic:jam"))
		nodes[3].offer(t, nodes[3].thing(t, "Other", 1, "urn:other"))
		fruit, traffic := td.Query{Capability: []string{"fruit"}}, td.Query{Capability: []string{"traffic"}}
		exact := td.Query{ID: nodes[3].record(t, nodes[3].held.things[0]).Thing, Owner: nodes[3].key.DID()}
		for _, tt := range []struct {
			name  string
			q     td.Query
			want  []string
			asked int
		}{
			{"two branches", td.Query{Or: []td.Query{fruit, traffic}}, []string{"Apple", "Jam", "Pear", "Traffic"}, 3},
			{"its own, and one more", td.Query{Capability: []string{"traffic:jam"}, Or: []td.Query{fruit}},
				[]string{"Apple", "Jam", "Pear"}, 2},
			{"and one thing exactly", td.Query{Or: []td.Query{{Capability: []string{"fruit:apple"}}, exact}},
				[]string{"Apple", "Other"}, 2},
			{"but not", td.Query{Or: []td.Query{fruit, traffic}, Not: []td.Query{{Capability: []string{"fruit:pear"}}}},
				[]string{"Apple", "Jam", "Traffic"}, 3},
			{"a branch without a key", td.Query{Protocol: "http", Or: []td.Query{fruit}},
				[]string{"Apple", "Jam", "Other", "Pear", "Traffic"}, 4},
			{"no match", td.Query{Capability: []string{"fruit"}, Protocol: "mqtt"}, nil, 2},
			{"a host", td.Query{Capability: []string{"fruit"}, Host: nodes[2].key.DID()}, []string{"Pear"}, 2},
			{"all of a host", td.Query{Host: nodes[2].key.DID()}, []string{"Jam", "Pear"}, 4},
		} {
			all, c := nodes[4].found(t, tt.q)
			if !slices.Equal(titles(all), tt.want) || c.Asked != tt.asked || !c.Complete() {
				t.Errorf("%s: found %v, coverage %+v; want %v of %d", tt.name, titles(all), c, tt.want, tt.asked)
			}
		}
	})
}

// TestIndexRole has an index node with Things of other hosts. Queries without a key go to it first, then to connected peers.
func TestIndexRole(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSimulated(t)
		defer s.close()
		nodes := s.mesh(20)
		all := &held{verifier: nodes[0].o.Verifier}
		for i, n := range nodes {
			thing := n.thing(t, fmt.Sprint("Thing ", i), 1, fmt.Sprint("urn:kind", i))
			n.offer(t, thing)
			all.add(thing)
		}
		client := s.add(nodes[0], func(o *Options) { o.Mode = ModeClient })
		joined(t, []*node{nodes[0], client})
		s.wait(10 * time.Second)
		found, c := client.found(t, td.Query{Text: "thing"})
		if len(found) != maxConnected || c.Asked != maxConnected {
			t.Errorf("without an index: found %d, coverage %+v", len(found), c)
		}
		index := s.add(nodes[3], func(o *Options) { o.Index = all.Hosted })
		own := index.thing(t, "Its own", 1, "urn:own")
		index.held.add(own)
		s.wait(noIndexAge)
		if found, c = client.found(t, td.Query{Text: "thing", Limit: 20}); len(found) != 20 || c.Asked != 1 {
			t.Errorf("found %d, coverage %+v; want all, of one", len(found), c)
		}
		found, c = client.found(t, td.Query{Text: "thing"})
		if len(found) != 20 || c.Asked != maxConnected && c.Asked != maxConnected+1 {
			t.Errorf("found %d, coverage %+v; want the connected peers queried too", len(found), c)
		}
		n := 0
		for r, err := range client.Query(t.Context(), index.host.ID(), td.Query{}) {
			if err != nil || client.record(t, r).Title != "Its own" {
				t.Errorf("all hosted Things: %v", err)
			}
			n++
		}
		if n != 1 {
			t.Errorf("it hosts %d", n)
		}
		s.kill(index)
		if _, c = client.found(t, td.Query{Text: "thing"}); c.Unreachable != 1 {
			t.Errorf("coverage %+v, want the index unreachable", c)
		}
		if _, c = client.found(t, td.Query{Text: "thing"}); !c.Complete() {
			t.Errorf("coverage %+v, want no second query", c)
		}
	})
}

// An index node without results does not prevent queries to the others.
func TestFindQueriesOtherIndexes(t *testing.T) {
	t.Parallel()
	var x indexes
	var known []peer.AddrInfo
	for i := range knownIndex {
		known = append(known, peer.AddrInfo{ID: testPeer(t, i)})
	}
	x.set(known, time.Now())
	asked := map[peer.ID]bool{}
	for range 200 {
		some, ok := x.get(time.Now())
		if !ok || len(some) != maxIndexes {
			t.Fatalf("%d of them, %v", len(some), ok)
		}
		for _, ai := range some {
			asked[ai.ID] = true
		}
	}
	if len(asked) != knownIndex || known[0].ID != testPeer(t, 0) {
		t.Errorf("%d of %d are queried", len(asked), knownIndex)
	}
}

// TestFindReportsEquivocation has two records of one thing with one sequence number at different nodes. A query returns one of them;
// both are reported.
func TestFindReportsEquivocation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSimulated(t)
		defer s.close()
		nodes := s.mesh(5)
		var mu sync.Mutex
		reported := map[string]bool{}
		late := s.add(nodes[0], func(o *Options) {
			o.Mode = ModeClient
			o.Evidence = func(s *td.Signed) {
				mu.Lock()
				defer mu.Unlock()
				reported[string(s.Record)] = true
			}
		})
		joined(t, []*node{nodes[0], late})
		s.wait(10 * time.Second)
		one := nodes[0].thing(t, "Twin", 5, "urn:twin")
		other := nodes[0].sign(t, "Twin", "The other one.", 5, "urn:twin")
		rec := nodes[0].record(t, one)
		if id := nodes[0].record(t, other).Thing; id != rec.Thing {
			t.Fatalf("the test has two things: %s and %s", rec.Thing, id)
		}
		for i, n := range nodes {
			if err := n.keep(t.Context(), valueKeyOf(rec.Owner, rec.Thing), []*td.Signed{one, other}[i%2].Record); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := late.Get(t.Context(), rec.Owner, rec.Thing); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		defer mu.Unlock()
		if len(reported) != 2 || !reported[string(one.Record)] || !reported[string(other.Record)] {
			t.Errorf("%d records reported, want both", len(reported))
		}
	})
}

// TestPoisonedProviderRecords has provider records of nodes that were never there, and of one that hosts something else. They are
// hints: their results are not shown, and they do not hide other providers.
func TestPoisonedProviderRecords(t *testing.T) {
	t.Parallel()
	const dead = 40
	simulate(t, 5, func(t *testing.T, s *simulated, nodes []*node) {
		real := nodes[1].thing(t, "Real", 1, "urn:fruit:apple")
		nodes[1].offer(t, real)
		bait := nodes[2].thing(t, "Bait", 1, "urn:bait")
		nodes[2].held.add(bait)
		// It answers every query with unrelated records.
		pusher := s.add(nodes[0], func(o *Options) { o.Local = allRecords{o.Local.(*held)} })
		pusher.held.add(pusher.thing(t, "Pushed", 1, "urn:pushed"))
		joined(t, append(nodes, pusher))
		key := []byte(capabilityKey("fruit"))
		for _, n := range nodes {
			for i := range dead {
				ghost := peer.AddrInfo{ID: testPeer(t, 5000+i)}
				if err := n.kad.ProviderStore().AddProvider(t.Context(), key, ghost); err != nil {
					t.Fatal(err)
				}
			}
			for _, p := range []*node{nodes[2], pusher} {
				if err := n.kad.ProviderStore().AddProvider(t.Context(), key, p.info()); err != nil {
					t.Fatal(err)
				}
			}
		}
		all, c := nodes[4].found(t, td.Query{Capability: []string{"fruit"}})
		if !slices.Equal(titles(all), []string{"Real"}) {
			t.Errorf("found %v, want the existing Thing", titles(all))
		}
		if c.Answered != 3 || c.Unreachable != dead || c.Asked != dead+3 || c.Complete() {
			t.Errorf("coverage %+v, want three answers of %d", c, dead+3)
		}
	})
}

// allRecords is a Local that answers every query with all its records.
type allRecords struct{ *held }

func (e allRecords) Hosted(context.Context, td.Query) []*td.Signed { return e.things }

// TestNewClientFindsCapability counts the messages with which a node without an index, that has just joined, finds one thing
// with a capability: DHT messages of every type, and record requests (as in the costs of the DHT, N = 200, K = 20, warm servers).
func TestNewClientFindsCapability(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const size, clients = 200, 5
		s := newSimulated(t)
		defer s.close()
		nodes := slices.Clone(s.warm(size))
		var capabilities []string
		for i, n := range nodes[:20] {
			id := fmt.Sprintf("urn:kind%d:thing", i)
			n.offer(t, n.thing(t, fmt.Sprint("Thing ", i), 1, id))
			capabilities = append(capabilities, id)
		}
		var counts []int
		for i := range clients {
			client := s.add(nodes[30+i], func(o *Options) { o.Mode = ModeClient })
			acquainted(t, []*node{client}, 10)
			s.wait(20 * time.Second) // joining has its own messages
			for j := range 8 {
				before := messages(client)
				all, c := client.found(t, td.Query{Capability: []string{capabilities[(7*i+j)%len(capabilities)]}, Limit: 1})
				s.wait(time.Second) // messages in transit are counted as well
				if len(all) != 1 || c.Answered != 1 || c.Unreachable != 0 {
					t.Errorf("found %d, coverage %+v", len(all), c)
				}
				counts = append(counts, messages(client)-before)
			}
		}
		slices.Sort(counts)
		t.Logf("%d searches: median %d messages, 90 %% within %d, at most %d", len(counts), counts[len(counts)/2],
			counts[len(counts)*9/10], counts[len(counts)-1])
		if median := counts[len(counts)/2]; median > 6 {
			t.Errorf("median %d messages, want 6 at most", median)
		}
	})
}

// messages returns the number of messages that a node has sent: DHT messages and record requests.
func messages(n *node) int {
	s := n.Stats()
	sum := s.Queried
	for _, c := range s.Calls {
		sum += c.Sent
	}
	return int(sum)
}
