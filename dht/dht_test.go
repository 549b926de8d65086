package dht

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	kad "github.com/libp2p/go-libp2p-kad-dht"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/internal/poll"
	"github.com/lmosd/lmosd/td"
)

func TestPublishGetFind(t *testing.T) {
	t.Parallel()
	t.Run("over loopback", func(t *testing.T) {
		t.Parallel()
		nodes := loopbackMesh(t, 5)
		acquainted(t, nodes, len(nodes)-1)
		publishGetFind(t, nodes, false)
	})
	t.Run("simulated", func(t *testing.T) {
		simulate(t, 5, func(t *testing.T, _ *simulated, nodes []*node) { publishGetFind(t, nodes, true) })
	})
}

// publishGetFind publishes a thing of the second of five nodes, and gets and finds it from all. Whether everybody has
// answered in time is for simulated time to say.
func publishGetFind(t *testing.T, nodes []*node, inTime bool) {
	s := nodes[1].thing(t, "Weather", 1, "urn:example:weather:forecast")
	want := nodes[1].record(t, s)
	r := nodes[1].offer(t, s)
	if r.Replicas != 4 || r.Wanted != 4 || !r.enough() {
		t.Errorf("got %+v, want all four others", r)
	}
	for i, n := range nodes {
		got, err := n.Get(t.Context(), want.Owner, want.Thing)
		if err != nil {
			t.Fatalf("node %d: Get: %v", i, err)
		}
		if d := n.verified(t, got); d.Title != "Weather" {
			t.Errorf("node %d: got %q", i, d.Title)
		}
		if i == 1 {
			continue // it does not query itself
		}
		for _, q := range []td.Query{
			{Capability: []string{"urn:example:weather:forecast"}},
			{Capability: []string{"example:weather"}},
			{Capability: []string{"example", "Example/Weather"}},
			{Action: "ask"},
			{ID: want.Thing},
			{ID: want.Thing, Owner: want.Owner},
			{Text: "weather"},
			{Owner: want.Owner},
			{Type: "agent"},
			{Capability: []string{"example:weather"}, Text: "something", Type: "agent", Action: "ask", Owner: want.Owner},
		} {
			all, c := n.found(t, q)
			for again := 0; !inTime && !c.Complete() && len(all) == 0 && again < 20; again++ { // a node that answers too late on a busy machine
				all, c = n.found(t, q)
			}
			if len(all) != 1 || all[0].Thing != want.Thing {
				t.Errorf("node %d: %+v: found %d", i, q, len(all))
			}
			if c.Asked == 0 || inTime && !c.Complete() {
				t.Errorf("node %d: %+v: coverage %+v", i, q, c)
			}
		}
		all, c := n.found(t, td.Query{Capability: []string{"urn:example:traffic"}})
		if len(all) != 0 || inTime && !c.Complete() {
			t.Errorf("node %d: found %d Things that do not exist, coverage %+v", i, len(all), c)
		}
	}
}

func TestGetMissingRecord(t *testing.T) {
	t.Parallel()
	nodes := loopbackMesh(t, 2)
	_, err := nodes[0].Get(t.Context(), nodes[0].key.DID(), "urn:none")
	if !errors.Is(err, did.ErrNotFound) || errors.Is(err, ErrNoPeers) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
	alone := start(t, 9, loopback(t, 9), nil)
	_, err = alone.Get(t.Context(), alone.key.DID(), "urn:none")
	if !errors.Is(err, did.ErrNotFound) || !errors.Is(err, ErrNoPeers) {
		t.Errorf("alone: got %v, want ErrNoPeers", err)
	}
}

func TestPublishAlone(t *testing.T) {
	t.Parallel()
	n := start(t, 0, loopback(t, 0), nil)
	s := n.thing(t, "Lonely", 1, "x")
	r, err := n.Publish(t.Context(), s)
	if !errors.Is(err, ErrNoReplicas) || !errors.Is(err, ErrNoPeers) || r.Replicas != 0 || r.enough() {
		t.Errorf("got %+v, %v; want no replicas for want of peers", r, err)
	}
	if _, err := n.Provide(t.Context(), n.record(t, s)); !errors.Is(err, ErrNoReplicas) {
		t.Errorf("Provide: got %v, want no replicas", err)
	}
	rec := n.record(t, s)
	if _, err := n.Get(t.Context(), rec.Owner, rec.Thing); err != nil {
		t.Errorf("the node's own record: %v", err)
	}
	if s := n.Stats(); s.Provided == 0 || s.Values.Entries != 1 {
		t.Errorf("stats %+v", s)
	}
}

// TestProvideCatchesUp provides without peers; a peer that joins later finds the Thing.
func TestProvideCatchesUp(t *testing.T) {
	t.Parallel()
	a := start(t, 0, loopback(t, 0), nil)
	s := a.thing(t, "Early", 1, "urn:early")
	a.held.add(s)
	if _, err := a.Provide(t.Context(), a.record(t, s)); !errors.Is(err, ErrNoReplicas) {
		t.Fatalf("Provide: got %v, want no replicas", err)
	}
	b := start(t, 1, loopback(t, 1), seededBy(a))
	joined(t, []*node{a, b})
	eventuallyFinds(t, b, td.Query{Capability: []string{"early"}})
}

// eventuallyFinds waits until n finds something: in real time an answer may come too late on a busy machine.
func eventuallyFinds(t *testing.T, n *node, q td.Query) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for len(mustFind(t, n, q)) == 0 {
		if backoff.Sleep(ctx, 50*time.Millisecond) != nil {
			t.Fatal("it is never found")
		}
	}
}

func mustFind(t *testing.T, n *node, q td.Query) []*td.Record {
	t.Helper()
	all, _ := n.found(t, q)
	return all
}

func TestPublishRefusesBadRecords(t *testing.T) {
	t.Parallel()
	n := start(t, 0, loopback(t, 0), nil)
	s := n.thing(t, "Weather", 1, "x")
	forged := strings.Replace(string(s.Record), "Weather", "Leather", 1)
	tests := map[string]struct {
		record []byte
		want   error
	}{
		"forged":    {[]byte(forged), td.ErrSignature},
		"garbage":   {[]byte("garbage"), td.ErrMalformed},
		"too large": {make([]byte, td.MaxRecord+1), td.ErrTooLarge},
		"empty":     {nil, td.ErrMalformed},
	}
	for name, tt := range tests {
		if _, err := n.Publish(t.Context(), &td.Signed{Record: tt.record}); !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, want %v", name, err, tt.want)
		}
	}
}

func TestNewerRecordWins(t *testing.T) {
	t.Parallel()
	simulate(t, 3, func(t *testing.T, net *simulated, nodes []*node) {
		old, newer := nodes[0].thing(t, "Weather", 1, "x"), nodes[0].thing(t, "Weather", 2, "x")
		if _, err := nodes[0].Publish(t.Context(), newer); err != nil {
			t.Fatal(err)
		}
		if _, err := nodes[0].Publish(t.Context(), old); !errors.Is(err, ErrNewer) {
			t.Errorf("an older record on this node: got %v, want ErrNewer", err)
		}
		// A node without its store learns the newest record from the others.
		other := net.add(nodes[1])
		joined(t, append(nodes[1:], other))
		r, err := other.Publish(t.Context(), old)
		if !errors.Is(err, ErrNewer) || r.Replicas != 0 {
			t.Errorf("an older record at another node: got %+v, %v; want ErrNewer", r, err)
		}
		rec := nodes[0].record(t, newer)
		for i, n := range nodes {
			got, err := n.Get(t.Context(), rec.Owner, rec.Thing)
			if err != nil || n.record(t, got).Seq != 2 {
				t.Errorf("node %d: got %v, want seq 2", i, err)
			}
		}
		if _, err := nodes[0].Publish(t.Context(), newer); err != nil {
			t.Errorf("the same record again: %v", err)
		}
	})
}

func TestGetReturnsTombstone(t *testing.T) {
	t.Parallel()
	simulate(t, 3, func(t *testing.T, net *simulated, nodes []*node) {
		s := nodes[0].thing(t, "Weather", 1, "x")
		rec := nodes[0].record(t, s)
		nodes[0].offer(t, s)
		grave, err := td.SignTombstone(nodes[0].key, rec.Thing, td.Lease{Seq: 2, Now: time.Now(), Lifetime: 24 * time.Hour}, false)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := nodes[0].Publish(t.Context(), grave); err != nil {
			t.Fatal(err)
		}
		got, err := nodes[2].Get(t.Context(), rec.Owner, rec.Thing)
		if err != nil {
			t.Fatal(err)
		}
		if r := nodes[2].record(t, got); r.Kind != td.KindTombstone || got.TD != nil {
			t.Errorf("got kind %d, want a tombstone", r.Kind)
		}
	})
}

func TestBodyOfALargeTD(t *testing.T) {
	t.Parallel()
	simulate(t, 3, func(t *testing.T, net *simulated, nodes []*node) {
		s := nodes[0].bigThing(t, "Big", "urn:big")
		rec := nodes[0].record(t, s)
		if len(rec.Inline) != 0 {
			t.Fatal("the TD is inside the record")
		}
		nodes[0].offer(t, s)
		got, err := nodes[2].Get(t.Context(), rec.Owner, rec.Thing)
		if err != nil {
			t.Fatal(err)
		}
		if d := nodes[2].verified(t, got); d.Title != "Big" {
			t.Errorf("got %q", d.Title)
		}
		for f, err := range nodes[2].Find(t.Context(), td.Query{Capability: []string{"big"}}) {
			if err != nil || nodes[2].verified(t, f).Title != "Big" {
				t.Errorf("Find: got %v, %v", f, err)
			}
		}
		if b, err := nodes[0].Body(t.Context(), rec); err != nil || len(b) != rec.Size {
			t.Errorf("at home: %d bytes, %v", len(b), err)
		}
		other := *rec
		other.Hash[0]++
		if _, err := nodes[2].Body(t.Context(), &other); !errors.Is(err, errRemote) {
			t.Errorf("an unknown hash: got %v", err)
		}
		net.kill(nodes[0])
		if _, err := nodes[2].Body(t.Context(), rec); err == nil {
			t.Error("a dead host gave a TD")
		}
		if _, err := nodes[2].Body(t.Context(), &td.Record{Thing: "x", Kind: td.KindTombstone}); err == nil {
			t.Error("a tombstone has a TD")
		}
	})
}

// faultyLocal is a Local that answers with records of other nodes.
type faultyLocal struct{ *held }

func (l faultyLocal) Body(context.Context, [32]byte) ([]byte, bool) {
	return []byte(`{"title":"another TD"}`), true
}

func (l faultyLocal) Hosted(ctx context.Context, q td.Query) []*td.Signed {
	good := l.held.Hosted(ctx, q)
	return append([]*td.Signed{{Record: []byte("garbage")}}, good...)
}

func TestInvalidResponsesAreCounted(t *testing.T) {
	t.Parallel()
	simulate(t, 3, func(t *testing.T, net *simulated, nodes []*node) {
		bad := net.add(nodes[0], func(o *Options) { o.Local = faultyLocal{o.Local.(*held)} })
		joined(t, append(nodes, bad))
		big := bad.bigThing(t, "Big", "urn:fruit:apple")
		bad.offer(t, big)
		nodes[1].offer(t, nodes[1].thing(t, "Honest", 1, "urn:fruit:pear"))
		all, c := nodes[2].found(t, td.Query{Capability: []string{"fruit"}})
		if len(all) != 1 || all[0].Title != "Honest" {
			t.Errorf("found %d, want the one of the unmodified node", len(all))
		}
		if c.Asked != 2 || c.Answered != 1 || c.Unreachable != 1 {
			t.Errorf("coverage %+v, want one of two", c)
		}
		if _, err := nodes[2].Body(t.Context(), bad.record(t, big)); !errors.Is(err, errBody) {
			t.Errorf("another TD: got %v", err)
		}
		if s := nodes[2].Stats(); s.QueriesFailed < 2 {
			t.Errorf("%d failures counted, want two at least", s.QueriesFailed)
		}
	})
}

func TestUnprovide(t *testing.T) {
	t.Parallel()
	simulate(t, 3, func(t *testing.T, net *simulated, nodes []*node) {
		a, b := nodes[0].thing(t, "A", 1, "urn:fruit:apple"), nodes[0].thing(t, "B", 1, "urn:fruit:pear")
		nodes[0].offer(t, a)
		nodes[0].offer(t, b)
		before := nodes[0].Stats().Provided
		rec := nodes[0].record(t, a)
		nodes[0].held.drop(a)
		nodes[0].Unprovide(rec.Owner, rec.Thing)
		nodes[0].Unprovide(rec.Owner, rec.Thing) // twice is once
		if got := nodes[0].Stats().Provided; got != before-3 {
			t.Errorf("%d keys provided, want %d: fruit, pear and the action stay", got, before-3)
		}
		// Others still have the provider record, and the provider returns no result.
		all, c := nodes[2].found(t, td.Query{Capability: []string{"fruit:apple"}})
		if len(all) != 0 || c.Asked != 1 || c.Answered != 1 || c.Truncated {
			t.Errorf("found %d, coverage %+v; want one peer queried, with an empty response", len(all), c)
		}
		if all := mustFind(t, nodes[2], td.Query{Capability: []string{"fruit"}}); len(all) != 1 || all[0].Title != "B" {
			t.Errorf("found %d of the others, want B", len(all))
		}
	})
}

func TestFindStopsAtTheLimit(t *testing.T) {
	t.Parallel()
	simulate(t, 3, func(t *testing.T, net *simulated, nodes []*node) {
		for i := range 5 {
			nodes[0].offer(t, nodes[0].thing(t, fmt.Sprint("Thing ", i), 1, "urn:many"))
		}
		all, c := nodes[2].found(t, td.Query{Capability: []string{"many"}, Limit: 3})
		if len(all) != 3 || !c.More || c.Truncated {
			t.Errorf("found %d, coverage %+v; want three and more to come", len(all), c)
		}
		all, c = nodes[2].found(t, td.Query{Capability: []string{"many"}})
		if len(all) != 5 || c.Truncated {
			t.Errorf("found %d, coverage %+v; want five and no more", len(all), c)
		}
		for range nodes[2].Find(t.Context(), td.Query{Capability: []string{"many"}}) {
			break // must release everything: goleak watches
		}
	})
}

func TestFindWithUnreachablePeers(t *testing.T) {
	t.Parallel()
	simulate(t, 4, func(t *testing.T, net *simulated, nodes []*node) {
		nodes[0].offer(t, nodes[0].thing(t, "Gone", 1, "urn:fruit"))
		nodes[1].offer(t, nodes[1].thing(t, "Here", 1, "urn:fruit"))
		net.kill(nodes[0])
		var mu sync.Mutex
		reported := map[string]int{}
		record := func(what any, p peer.ID) {
			mu.Lock()
			defer mu.Unlock()
			reported[fmt.Sprint(what, " ", p)]++
		}
		nodes[3].o.OnTimeout = func(p peer.ID) { record("timeout", p) }
		nodes[3].o.OnResult = func(p peer.ID, ok bool) { record(ok, p) }
		all, c := nodes[3].found(t, td.Query{Capability: []string{"fruit"}})
		if gone, here := nodes[0].host.ID(), nodes[1].host.ID(); reported[fmt.Sprint("false ", gone)] != 1 || reported[fmt.Sprint("true ", here)] != 1 || len(reported) != 2 {
			t.Errorf("reported %v", reported)
		}
		clear(reported)
		hasty, cancel := context.WithTimeout(t.Context(), -1)
		defer cancel()
		newSearch(nodes[3].DHT, td.Query{Counter: new(td.CoverageCounter)}).queryPeer(hasty, peer.AddrInfo{ID: nodes[0].host.ID()})
		if reported[fmt.Sprint("timeout ", nodes[0].host.ID())] != 1 || len(reported) != 1 {
			t.Errorf("after a timeout: reported %v", reported)
		}
		if len(all) != 1 || all[0].Title != "Here" {
			t.Errorf("found %d, want the hosted one", len(all))
		}
		if c.Asked != 2 || c.Unreachable != 1 || c.Complete() {
			t.Errorf("coverage %+v, want one unreachable", c)
		}
	})
}

// TestFindSkipsDownPeers: a failed peer is counted, and queried only if it is connected.
func TestFindSkipsDownPeers(t *testing.T) {
	t.Parallel()
	simulate(t, 4, func(t *testing.T, net *simulated, nodes []*node) {
		nodes[0].offer(t, nodes[0].thing(t, "Gone", 1, "urn:fruit"))
		nodes[1].offer(t, nodes[1].thing(t, "Here", 1, "urn:fruit"))
		gone, client := nodes[0].host.ID(), nodes[3]
		client.o.Down = func(p peer.ID) bool { return p == gone }
		if all, c := client.found(t, td.Query{Capability: []string{"fruit"}}); len(all) != 2 || !c.Complete() {
			t.Errorf("found %v, coverage %+v; want both while there is a connection", titles(all), c)
		}
		net.kill(nodes[0])
		client.o.OnResult = func(p peer.ID, _ bool) {
			if p == gone {
				t.Error("it was dialled")
			}
		}
		client.Forget(gone)
		before := client.Stats().Queried
		all, c := client.found(t, td.Query{Capability: []string{"fruit"}})
		if !slices.Equal(titles(all), []string{"Here"}) || c.Asked != 2 || c.Unreachable != 1 || client.Stats().Queried != before+1 {
			t.Errorf("found %v, coverage %+v, queried %d; want one queried and one unreachable", titles(all), c, client.Stats().Queried-before)
		}
		if client.kad.RoutingTable().Find(gone) != "" {
			t.Error("it is in the routing table")
		}
	})
}

func TestFindCancelled(t *testing.T) {
	t.Parallel()
	nodes := loopbackMesh(t, 2)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var errs []error
	for _, err := range nodes[0].Find(ctx, td.Query{Capability: []string{"x"}}) {
		errs = append(errs, err)
	}
	if len(errs) != 1 || !errors.Is(errs[0], context.Canceled) {
		t.Errorf("got %v, want context.Canceled", errs)
	}
	for _, err := range nodes[0].Find(t.Context(), td.Query{Text: strings.Repeat("x", maxTerm+1)}) {
		if !errors.Is(err, errWire) {
			t.Errorf("an endless text: got %v", err)
		}
	}
}

func TestFindOutsideTheMesh(t *testing.T) {
	t.Parallel()
	gone := start(t, 5, loopback(t, 5), nil)
	info := gone.info()
	gone.stop()
	_ = gone.host.Close()
	n := start(t, 0, loopback(t, 0), func() []peer.AddrInfo { return []peer.AddrInfo{info} })
	if _, c := n.found(t, td.Query{Capability: []string{"x"}}); c.Complete() {
		t.Errorf("coverage %+v is complete without peers", c)
	}
	alone := start(t, 1, loopback(t, 1), nil)
	if _, c := alone.found(t, td.Query{Capability: []string{"x"}}); !c.Complete() {
		t.Errorf("coverage %+v of a mesh of one node is incomplete", c)
	}
}

// A node that may not take part is neither asked nor in the routing table. Its requests do not arrive: see p2p.Gate.
func TestAdmits(t *testing.T) {
	t.Parallel()
	rejected := testSigner(t, 2).DID()
	admits := func(o *Options) {
		o.Admits = func(id did.DID) error {
			if id == rejected {
				return errors.New("not a member")
			}
			return nil
		}
	}
	synctest.Test(t, func(t *testing.T) {
		net := newSimulated(t)
		defer net.close()
		a := net.add(nil, admits)
		b := net.add(a, admits)
		c := net.add(a)
		joined(t, []*node{a, b})
		if err := c.host.Connect(t.Context(), a.info()); err != nil {
			t.Fatal(err)
		}
		a.offer(t, a.thing(t, "Secret", 1, "urn:secret"))
		net.wait(time.Minute)
		if n := a.Size(); n != 1 {
			t.Errorf("%d peers in the table, want the member", n)
		}
		c.offer(t, c.thing(t, "Offered", 1, "urn:offered"))
		if all := mustFind(t, b, td.Query{Capability: []string{"offered"}}); len(all) != 0 {
			t.Errorf("the member found %d of the rejected node", len(all))
		}
		if all := mustFind(t, b, td.Query{Capability: []string{"secret"}}); len(all) != 1 {
			t.Errorf("the member found %d", len(all))
		}
	})
}

func TestClientsFindAndAreFound(t *testing.T) {
	t.Parallel()
	simulate(t, 3, func(t *testing.T, net *simulated, nodes []*node) {
		client := net.add(nodes[0], func(o *Options) { o.Mode = ModeClient })
		joined(t, append(nodes, client))
		client.offer(t, client.thing(t, "Mobile", 1, "urn:mobile"))
		if all := mustFind(t, nodes[2], td.Query{Capability: []string{"mobile"}}); len(all) != 1 {
			t.Errorf("a server found %d of the client", len(all))
		}
		nodes[1].offer(t, nodes[1].thing(t, "Fixed", 1, "urn:fixed"))
		if all := mustFind(t, client, td.Query{Capability: []string{"fixed"}}); len(all) != 1 {
			t.Errorf("the client found %d", len(all))
		}
		for _, p := range nodes[0].Peers() {
			if p == client.host.ID() {
				t.Error("a client is in a routing table")
			}
		}
	})
}

func TestNetworksDoNotMerge(t *testing.T) {
	t.Parallel()
	a := start(t, 0, loopback(t, 0), nil)
	b := start(t, 1, loopback(t, 1), seededBy(a), func(o *Options) { o.Network = "other" })
	if err := b.host.Connect(t.Context(), a.info()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.fetchBody(t.Context(), a.host.ID(), [32]byte{}); err == nil || errors.Is(err, errRemote) {
		t.Errorf("got an answer over networks: %v", err)
	}
	if a.Size() != 0 || b.Size() != 0 {
		t.Errorf("tables of %d and %d peers", a.Size(), b.Size())
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	h := loopback(t, 0)
	for name, o := range map[string]Options{
		"no network":           {},
		"slash in the network": {Network: "a/b"},
		"upper case":           {Network: "Main"},
		"endless network":      {Network: strings.Repeat("x", 64)},
		"unknown mode":         {Network: "test", Mode: "relay"},
		"tiny buckets":         {Network: "test", K: 4},
	} {
		if d, err := New(h, o); err == nil {
			t.Errorf("%s: no error", name)
			_ = d.Close()
		}
	}
	d, err := New(h, Options{Network: "test"})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if ids := h.Mux().Protocols(); containsAny(fmt.Sprint(ids), "lmos") {
		t.Errorf("handlers are left after Close: %v", ids)
	}
	inDHT, records := Protocols("main")
	if inDHT != "/lmos/main/kad/1.0.0" || records != "/lmos/main/records/1" {
		t.Errorf("protocols %s and %s", inDHT, records)
	}
	if _, ok := d.o.Local.Body(t.Context(), [32]byte{}); ok || len(d.o.Local.Hosted(t.Context(), td.Query{})) != 0 {
		t.Error("a node without Local holds something")
	}
}

func containsAny(s, part string) bool { return strings.Contains(s, part) }

func TestModes(t *testing.T) {
	t.Parallel()
	tests := []struct {
		o    Options
		want kad.ModeOpt
	}{
		{Options{}, kad.ModeAuto},
		{Options{Mode: ModeAuto}, kad.ModeAuto},
		{Options{Mode: ModeAuto, PublishPrivate: true}, kad.ModeAutoServer},
		{Options{Mode: ModeServer}, kad.ModeServer},
		{Options{Mode: ModeClient, PublishPrivate: true}, kad.ModeClient},
	}
	for _, tt := range tests {
		if got, err := tt.o.kadMode(); err != nil || got != tt.want {
			t.Errorf("%q, private %v: got %v, %v; want %v", tt.o.Mode, tt.o.PublishPrivate, got, err, tt.want)
		}
	}
}

// TestBootstrapPeerStartsLater starts a node before its bootstrap peer.
func TestBootstrapPeerStartsLater(t *testing.T) {
	t.Parallel()
	gone := loopback(t, 0)
	var seed atomic.Pointer[peer.AddrInfo]
	seed.Store(&peer.AddrInfo{ID: gone.ID(), Addrs: gone.Addrs()})
	_ = gone.Close()
	tried := make(chan struct{}, 100)
	late := start(t, 1, loopback(t, 1), func() []peer.AddrInfo {
		tried <- struct{}{}
		return []peer.AddrInfo{*seed.Load()}
	})
	<-tried
	<-tried // the first attempt has failed
	h := loopback(t, 0)
	seed.Store(&peer.AddrInfo{ID: h.ID(), Addrs: h.Addrs()})
	start(t, 0, h, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := late.Wait(ctx, 1); err != nil {
		t.Fatalf("it never joins: %v", err)
	}
}

// Nodes where a publisher may not store keep nothing of it, and are not counted as replicas.
func TestStoresDecidesAboutRecords(t *testing.T) {
	t.Parallel()
	denied := testSigner(t, 1).DID()
	nodes := loopbackMesh(t, 3, func(o *Options) { o.Stores = func(id did.DID) bool { return id != denied } })
	acquainted(t, nodes, 2)
	for i, want := range []int{2, 0, 2} {
		s := nodes[i].thing(t, fmt.Sprint("Thing", i), 1, "urn:example:weather")
		receipt, err := nodes[i].Publish(t.Context(), s)
		if receipt.Replicas != want || (want == 0) != errors.Is(err, ErrNoReplicas) {
			t.Errorf("node %d: published %+v, %v", i, receipt, err)
		}
		receipt, err = nodes[i].Provide(t.Context(), nodes[i].record(t, s))
		if want == 0 && nodes[0].Stats().RefusedWrites == 0 || want != 0 && receipt.Replicas != want {
			t.Errorf("node %d: provided %+v, %v", i, receipt, err)
		}
	}
	for i, want := range []int{1, 2, 1} {
		poll.Until(t, fmt.Sprint("the records of node ", i), func() bool { return nodes[i].Stats().Values.Entries >= want })
	}
}
