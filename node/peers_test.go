package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	ds "github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/query"
	dssync "github.com/ipfs/go-datastore/sync"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/interact"
)

func seedsOver(t testing.TB, store ds.Batching, bootstrap ...string) *seeds {
	t.Helper()
	s, err := newSeeds(bootstrap, store, opened(t, Options{}).log)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func inMemory() ds.Batching { return dssync.MutexWrap(ds.NewMapDatastore()) }

func TestSeedsComeInOrderOfTrust(t *testing.T) {
	t.Parallel()
	a, b := start(t, quiet()), start(t, quiet())
	connect(t, a, b)
	store := inMemory()
	seedsOver(t, store).save(t.Context(), a.host)
	c := peer.AddrInfo{ID: peer.ID(newKey(t).Peer()), Addrs: addrs(t, "/ip4/192.0.2.1/tcp/1")}
	s := seedsOver(t, store, a.Addrs()...)
	s.found(c)
	list := s.list()
	if len(list) != 3 || list[0].ID != a.host.ID() || list[1].ID != c.ID || list[2].ID != b.host.ID() {
		t.Fatalf("got %v; want what was configured, what was found, what was known", list)
	}
	if got := list[2].Addrs; len(got) != 1 || got[0].String()+"/p2p/"+b.host.ID().String() != b.Addrs()[0] {
		t.Errorf("the known peer is at %v, want %v", got, b.Addrs())
	}
}

func TestTheSnapshotKeepsWhoWasThereLast(t *testing.T) {
	t.Parallel()
	a, b, c := start(t, quiet()), start(t, quiet()), start(t, quiet())
	store := inMemory()
	s := seedsOver(t, store)
	connect(t, a, b)
	s.save(t.Context(), a.host)
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	until(t, "the peer is gone", func() bool { return len(a.Peers()) == 0 })
	s.save(t.Context(), a.host)
	if got := s.restore(); len(got) != 1 || got[0].ID != b.host.ID() {
		t.Errorf("a node that lost everybody knows %v, want the last one", got)
	}
	connect(t, a, c)
	s.save(t.Context(), a.host)
	if got := s.restore(); len(got) != 1 || got[0].ID != c.host.ID() {
		t.Errorf("the snapshot is %v, want who is there now", got)
	}
}

func TestDamagedEntriesOfTheSnapshotAreDropped(t *testing.T) {
	t.Parallel()
	a, b := start(t, quiet()), start(t, quiet())
	connect(t, a, b)
	store := inMemory()
	for i, entry := range []string{"garbage", "{}", `{"ID":"x","Addrs":[]}`, `{"ID":"` + b.host.ID().String() + `","Addrs":["nowhere"]}`} {
		if err := store.Put(t.Context(), ds.NewKey(fmt.Sprint(i)), []byte(entry)); err != nil {
			t.Fatal(err)
		}
	}
	if got := seedsOver(t, store).known; len(got) != 0 {
		t.Errorf("got %v of garbage", got)
	}
	seedsOver(t, store).save(t.Context(), a.host)
	if got := seedsOver(t, store).known; len(got) != 1 {
		t.Errorf("got %v, want the one good entry", got)
	}
}

// A faulty store reads and writes nothing.
type faulty struct{ ds.Batching }

func (faulty) Query(context.Context, query.Query) (query.Results, error) {
	return nil, errors.New("the cable is out")
}

func TestAFailingSnapshotIsLogged(t *testing.T) {
	t.Parallel()
	a, b := start(t, quiet()), start(t, quiet())
	connect(t, a, b)
	var j journal
	s, err := newSeeds(nil, faulty{inMemory()}, j.logger())
	if err != nil || len(s.list()) != 0 {
		t.Fatalf("got %v, %v; want to begin without", s.list(), err)
	}
	s.save(t.Context(), a.host)
	if !j.has("snapshot was not read") || !j.has("snapshot was not written") {
		t.Errorf("the log has %s", j.text.String())
	}
}

func TestPeersThatMDNSFindsAreBounded(t *testing.T) {
	t.Parallel()
	n := opened(t, quiet())
	for range 2 * foundMax {
		n.HandlePeerFound(peer.AddrInfo{ID: peer.ID(newKey(t).Peer())}) // never blocks
	}
	if got := len(n.seeds.list()); got != foundMax {
		t.Errorf("%d are kept, want %d", got, foundMax)
	}
}

func TestWhatMDNSFindsIsDialled(t *testing.T) {
	t.Parallel()
	a, b := start(t, quiet()), start(t, quiet())
	a.HandlePeerFound(peer.AddrInfo{ID: peer.ID(newKey(t).Peer()), Addrs: addrs(t, "/ip4/127.0.0.1/tcp/"+unused(t))})
	a.HandlePeerFound(peer.AddrInfo{ID: b.host.ID(), Addrs: b.host.Addrs()})
	until(t, "they are connected", func() bool { return len(a.Peers()) == 1 })
}

func TestConnectSaysWhyNot(t *testing.T) {
	t.Parallel()
	o := quiet()
	o.Network = "another"
	n, other := start(t, quiet()), start(t, o)
	gone := "/ip4/127.0.0.1/tcp/" + unused(t) + "/p2p/" + other.host.ID().String()
	_, otherID, _ := strings.Cut(other.Addrs()[0], "/p2p/")
	wrong := strings.Replace(start(t, quiet()).Addrs()[0], "/p2p/", "/p2p/"+otherID+"#", 1)
	wrong, _, _ = strings.Cut(wrong, "#")
	for addr, want := range map[string]interact.Code{
		"":                           interact.Invalid,
		"127.0.0.1:4667":             interact.Invalid,
		"/ip4/127.0.0.1/tcp/4667":    interact.Invalid, // whose?
		"/ip4/127.0.0.1/tcp/1/p2p/x": interact.Invalid,
		gone:                         interact.Unreachable,
		wrong:                        interact.Unreachable, // somebody else answers there
	} {
		wantCode(t, n.Client().Connect(t.Context(), addr), want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := n.Connect(ctx, other.Addrs()[0]); err == nil {
		t.Error("connected after the caller had left")
	}
}

// TestNetworksDoNotMix: nodes of two networks may be connected, and learn nothing of each other.
func TestNetworksDoNotMix(t *testing.T) {
	t.Parallel()
	o := quiet()
	o.Network = "another"
	here, there := start(t, quiet()), start(t, o)
	ref := publish(t, there, tool("Echo", ""))
	third := start(t, o)
	connect(t, here, there)
	connect(t, third, there)
	knows(t, third, ref) // so there was time
	if has(here, ref) || here.gossip.Peers() != 0 || here.dht.Size() != 0 {
		t.Error("a node of another network has learned something")
	}
}

func TestStrangersAreNotGreeted(t *testing.T) {
	t.Parallel()
	n := start(t, quiet())
	for _, id := range []peer.ID{"", "garbage"} {
		n.greet(t.Context(), id)
		n.missed(t.Context(), id)
	}
	// Nothing is reached through this one, so nobody is dialled.
	n.missed(t.Context(), peer.ID(newKey(t).Peer()))
}
