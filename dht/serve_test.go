package dht

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	ds "github.com/ipfs/go-datastore"
	dssync "github.com/ipfs/go-datastore/sync"
	"github.com/libp2p/go-libp2p/core/network"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/internal/streamserver"
	"github.com/lmosd/lmosd/td"
)

// panicky is a Local with a bug.
type panicky struct{}

func (panicky) Body(context.Context, [32]byte) ([]byte, bool) { panic("a bug") }
func (panicky) Hosted(context.Context, td.Query) []*td.Signed { panic("a bug") }

func TestRecordServerSurvivesPanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		net := newSimulated(t)
		defer net.close()
		a := net.add(nil, func(o *Options) { o.Local = panicky{} })
		b := net.add(a)
		joined(t, []*node{a, b})
		for range 3 {
			if _, err := b.fetchBody(t.Context(), a.host.ID(), [32]byte{}); err == nil || errors.Is(err, errRemote) {
				t.Errorf("got %v, want a reset", err)
			}
		}
		if n := a.Stats().Panics; n != 3 {
			t.Errorf("%d panics counted, want 3", n)
		}
	})
}

func TestRecordServerLimitsResponse(t *testing.T) {
	t.Parallel()
	simulate(t, 2, func(t *testing.T, _ *simulated, nodes []*node) {
		a, b := nodes[0], nodes[1]
		for i := range maxResults + 10 {
			a.held.add(a.thing(t, fmt.Sprint("Thing ", i), 1, "urn:many"))
		}
		count := func(q td.Query) (n int, truncated bool) {
			truncated, err := b.queryRecords(t.Context(), a.host.ID(), newFindRequest(q), func(s *td.Signed) (bool, error) {
				if n++; s.TD != nil {
					t.Error("a TD was sent with a record that contains it")
				}
				return true, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			return n, truncated
		}
		for _, tt := range []struct {
			limit, want int
			truncated   bool
		}{{0, maxResults, true}, {1000, maxResults, true}, {5, 5, true}} {
			if n, cut := count(td.Query{Limit: tt.limit}); n != tt.want || cut != tt.truncated {
				t.Errorf("limit %d: got %d, truncated %v; want %d", tt.limit, n, cut, tt.want)
			}
		}
		if n, cut := count(td.Query{ID: "urn:none"}); n != 0 || cut {
			t.Errorf("nothing: got %d, truncated %v", n, cut)
		}
		n := 0
		for _, err := range b.Query(t.Context(), a.host.ID(), td.Query{}) {
			if n++; err != nil {
				t.Error(err)
			}
		}
		if n != maxResults {
			t.Errorf("Ask: got %d, want %d", n, maxResults)
		}
		for range b.Query(t.Context(), a.host.ID(), td.Query{}) {
			break
		}
	})
}

func TestRecordServerLimitsTDs(t *testing.T) {
	t.Parallel()
	simulate(t, 2, func(t *testing.T, _ *simulated, nodes []*node) {
		a, b := nodes[0], nodes[1]
		size := 0
		for i := 0; size < 2*maxBodies; i++ {
			s := a.bigThing(t, fmt.Sprint("Thing ", i))
			size += len(s.TD)
			a.held.add(s)
		}
		bytes, without := 0, 0
		_, err := b.queryRecords(t.Context(), a.host.ID(), newFindRequest(td.Query{}), func(s *td.Signed) (bool, error) {
			bytes += len(s.TD)
			if s.TD == nil {
				without++
			}
			return true, nil
		})
		if err != nil || bytes > maxBodies || bytes < maxBodies/2 || without == 0 {
			t.Errorf("got TDs of %d bytes, %d records without; %v", bytes, without, err)
		}
	})
}

func TestRecordServerRejects(t *testing.T) {
	t.Parallel()
	tests := map[string][]byte{
		"garbage":      streamserver.AppendFrame(nil, []byte("garbage")),
		"empty":        {0},
		"too large":    streamserver.AppendFrame(nil, make([]byte, maxRecordsRequest+1)),
		"4 GiB":        {0x80, 0x80, 0x80, 0x80, 0x10},
		"half a frame": {10, 1, 2},
	}
	simulate(t, 2, func(t *testing.T, net *simulated, nodes []*node) {
		a, b := nodes[0], nodes[1]
		for name, in := range tests {
			st, err := b.host.NewStream(t.Context(), a.host.ID(), b.records)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = st.Write(in)
			start := time.Now()
			if out, err := io.ReadAll(st); err == nil || len(out) > 0 {
				t.Errorf("%s: got %d bytes and %v, want a reset", name, len(out), err)
			}
			if took := time.Since(start); took > recordsTime+time.Second {
				t.Errorf("%s: reset after %v", name, took)
			}
		}
		net.wait(time.Second)
		if n := a.Stats().Refused; n != uint64(len(tests)) {
			t.Errorf("%d refused, want %d", n, len(tests))
		}
	})
}

func TestRecordServerLimitsPeers(t *testing.T) {
	t.Parallel()
	simulate(t, 2, func(t *testing.T, net *simulated, nodes []*node) {
		a, b := nodes[0], nodes[1]
		var open []network.Stream
		for range maxPeerRequests {
			st, err := b.host.NewStream(t.Context(), a.host.ID(), b.records)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = st.Write([]byte{10})
			open = append(open, st)
		}
		net.wait(time.Second)
		if _, err := b.fetchBody(t.Context(), a.host.ID(), [32]byte{}); err == nil || errors.Is(err, errRemote) {
			t.Errorf("a request beyond the slots: got %v, want a reset", err)
		}
		for _, st := range open {
			_ = st.Reset()
		}
		net.wait(time.Second)
		refused := 0
		for range 2 * recordsRequestBurst {
			if _, err := b.fetchBody(t.Context(), a.host.ID(), [32]byte{}); !errors.Is(err, errRemote) {
				refused++
			}
		}
		if refused == 0 || refused > recordsRequestBurst {
			t.Errorf("%d of %d requests were refused", refused, 2*recordsRequestBurst)
		}
	})
}

func TestRecordServerReservesMemory(t *testing.T) {
	t.Parallel()
	n := start(t, 0, loopback(t, 0), nil)
	frame, err := encodeMessage(&recordsRequest{Op: opBody, Hash: make([]byte, 32)}, maxRecordsRequest)
	if err != nil {
		t.Fatal(err)
	}
	st := &script{r: bytes.NewReader(frame), from: testPeer(t, 1), scope: memory{full: true}}
	n.recordServer.handle(st)
	if got := network.StreamErrorCode(st.code.Load()); got != network.StreamResourceLimitExceeded || st.wrote.Len() != 0 {
		t.Errorf("reset with %#x, %d bytes written; want %#x and none", got, st.wrote.Len(), network.StreamResourceLimitExceeded)
	}
	st = &script{r: bytes.NewReader(frame), from: testPeer(t, 1)}
	n.recordServer.handle(st)
	if st.scope.held != 0 || st.scope.peak == 0 || st.code.Load() != 0 {
		t.Errorf("%d bytes held, %d at the peak, reset with %d", st.scope.held, st.scope.peak, st.code.Load())
	}
}

// TestStaleAddresses finds a provider whose address is not in its provider records any more.
func TestStaleAddresses(t *testing.T) {
	t.Parallel()
	simulate(t, 4, func(t *testing.T, net *simulated, nodes []*node) {
		a, b := nodes[1], nodes[2]
		a.offer(t, a.thing(t, "Old", 1, "urn:old"))
		if err := net.net.DisconnectPeers(a.host.ID(), b.host.ID()); err != nil {
			t.Fatal(err)
		}
		b.host.Peerstore().ClearAddrs(a.host.ID())
		if all := mustFind(t, b, td.Query{Capability: []string{"old"}}); len(all) != 1 {
			t.Errorf("found %d", len(all))
		}
	})
}

// TestRestart stops a node and starts another one with its store: the stored records remain.
func TestRestart(t *testing.T) {
	t.Parallel()
	store := dssync.MutexWrap(ds.NewMapDatastore())
	keep := func(o *Options) { o.Store = store }
	simulate(t, 3, func(t *testing.T, net *simulated, nodes []*node) {
		i, h := net.host()
		n := net.start(i, h, seededBy(nodes[0]), keep)
		joined(t, append(nodes, n))
		s := nodes[1].thing(t, "Kept", 1, "urn:kept")
		nodes[1].offer(t, s)
		before := n.Stats()
		n.stop()
		again := net.start(i, h, seededBy(nodes[0]), keep)
		if err := again.Wait(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		after := again.Stats()
		if before.Values.Entries != 1 || after.Values.Entries != 1 || after.Values.Bytes != before.Values.Bytes {
			t.Errorf("values before %+v and after %+v", before.Values, after.Values)
		}
		// Providers are written in batches, or when the store is closed.
		if after.Providers.Entries == 0 {
			t.Error("the providers are gone")
		}
		for _, other := range nodes {
			net.kill(other)
		}
		rec := again.record(t, s)
		if _, err := again.Get(t.Context(), rec.Owner, rec.Thing); err != nil {
			t.Errorf("alone: %v", err)
		}
	})
}

func TestFilterAddrs(t *testing.T) {
	t.Parallel()
	var addrs []ma.Multiaddr
	for _, a := range []string{
		"/ip4/127.0.0.1/tcp/1", "/ip4/10.0.0.1/tcp/1", "/ip4/93.184.216.34/tcp/1", "/ip6/2606:2800::1/udp/1/quic-v1",
	} {
		addrs = append(addrs, testAddr(t, a))
	}
	if got := (Options{}).filterAddrs(addrs); len(got) != 2 || !got[0].Equal(addrs[2]) {
		t.Errorf("public: got %v", got)
	}
	if got := (Options{PublishPrivate: true}).filterAddrs(addrs); len(got) != 4 {
		t.Errorf("private: got %v", got)
	}
	for range 5 {
		addrs = append(addrs, addrs...)
	}
	if got := (Options{PublishPrivate: true}).filterAddrs(addrs); len(got) != maxAddrs {
		t.Errorf("many: got %d", len(got))
	}
}

// TestPublicNodeProvidesNoPrivateThings has only a private address, and may not publish it.
func TestPublicNodeProvidesNoPrivateThings(t *testing.T) {
	t.Parallel()
	public := func(o *Options) { o.PublishPrivate = false }
	synctest.Test(t, func(t *testing.T) {
		net := newSimulated(t)
		defer net.close()
		a := net.add(nil, public)
		b := net.add(a, public)
		joined(t, []*node{a, b})
		hosts := []td.Host{{Node: testSigner(t, 90).DID(), Addrs: []string{"/ip4/10.0.0.1/tcp/1", "/ip4/93.184.216.34/tcp/1"}}}
		if got := a.hostsOf(&td.Record{Hosts: hosts}); len(got) != 1 || len(got[0].Addrs) != 1 {
			t.Errorf("a record leads to %v", got)
		}
		s := b.thing(t, "Hidden", 1, "urn:hidden")
		if _, err := b.Provide(t.Context(), b.record(t, s)); !errors.Is(err, ErrNoReplicas) {
			t.Errorf("got %v, want ErrNoReplicas", err)
		}
		if c := b.Stats().Calls["ADD_PROVIDER"]; c.Sent != 0 {
			t.Errorf("%d provider records were sent", c.Sent)
		}
	})
}
