package p2p

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	ds "github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/query"
	dssync "github.com/ipfs/go-datastore/sync"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did/didtest"
)

func bootstrapOf(t testing.TB, h *Host, store ds.Batching, configured ...string) *Bootstrap {
	t.Helper()
	b, err := NewBootstrap(BootstrapOptions{Host: h, Configured: configured, Store: store, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func inMemory() ds.Batching { return dssync.MutexWrap(ds.NewMapDatastore()) }

// connected returns two hosts that are connected.
func connected(t testing.TB) (a, b *Host) {
	t.Helper()
	a, b = started(t, Options{Listen: []string{anyTCP}}), started(t, Options{Listen: []string{anyTCP}})
	if err := dial(t, a, b); err != nil {
		t.Fatal(err)
	}
	return a, b
}

func TestBootstrapPeerOrder(t *testing.T) {
	t.Parallel()
	a, b := connected(t)
	store := inMemory()
	bootstrapOf(t, a, store).save(t.Context())
	c := peer.AddrInfo{ID: peer.ID(didtest.NewKey().Peer()), Addrs: addrs(t, "/ip4/192.0.2.1/tcp/1")}
	s := bootstrapOf(t, b, store, FullAddrs(a)...)
	s.HandlePeerFound(c)
	list := s.Peers()
	if len(list) != 3 || list[0].ID != a.ID() || list[1].ID != c.ID || list[2].ID != b.ID() {
		t.Fatalf("got %v; want the configured, the found and the saved peer", list)
	}
	if got := list[2].Addrs; len(got) != 1 || got[0].String()+"/p2p/"+b.ID().String() != FullAddrs(b)[0] {
		t.Errorf("the saved peer is at %v, want %v", got, FullAddrs(b))
	}
	if _, err := NewBootstrap(BootstrapOptions{Host: b, Configured: []string{"/ip4/192.0.2.1/tcp/1"}, Store: store, Log: slog.New(slog.DiscardHandler)}); err == nil {
		t.Error("an address without a peer was accepted")
	}
}

func TestSnapshotKeepsTheLastPeers(t *testing.T) {
	t.Parallel()
	a, b := connected(t)
	s := bootstrapOf(t, a, inMemory())
	s.save(t.Context())
	if err := a.Network().ClosePeer(b.ID()); err != nil {
		t.Fatal(err)
	}
	s.save(t.Context())
	if got := s.restore(); len(got) != 1 || got[0].ID != b.ID() {
		t.Errorf("without peers the snapshot is %v, want the last peer", got)
	}
	c := started(t, Options{Listen: []string{anyTCP}})
	if err := dial(t, a, c); err != nil {
		t.Fatal(err)
	}
	s.save(t.Context())
	if got := s.restore(); len(got) != 1 || got[0].ID != c.ID() {
		t.Errorf("the snapshot is %v, want the connected peer", got)
	}
}

func TestSnapshotDropsDamagedEntries(t *testing.T) {
	t.Parallel()
	a, b := connected(t)
	store := inMemory()
	for i, entry := range []string{"garbage", "{}", `{"ID":"x","Addrs":[]}`, `{"ID":"` + b.ID().String() + `","Addrs":["nowhere"]}`} {
		if err := store.Put(t.Context(), ds.NewKey(fmt.Sprint(i)), []byte(entry)); err != nil {
			t.Fatal(err)
		}
	}
	s := bootstrapOf(t, a, store)
	if got := s.snapshot; len(got) != 0 {
		t.Errorf("got %v of garbage", got)
	}
	s.save(t.Context())
	if got := s.restore(); len(got) != 1 {
		t.Errorf("got %v, want the one good entry", got)
	}
}

// A faulty store reads nothing.
type faulty struct{ ds.Batching }

func (faulty) Query(context.Context, query.Query) (query.Results, error) {
	return nil, errors.New("the cable is out")
}

func TestSnapshotFailureIsLogged(t *testing.T) {
	t.Parallel()
	a, _ := connected(t)
	var log bytes.Buffer
	s, err := NewBootstrap(BootstrapOptions{Host: a, Store: faulty{inMemory()}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil || len(s.Peers()) != 0 {
		t.Fatalf("got %v, %v; want to start without peers", s, err)
	}
	s.save(t.Context())
	if text := log.String(); !strings.Contains(text, "snapshot not read") || !strings.Contains(text, "snapshot not written") {
		t.Errorf("the log has %s", text)
	}
}

func TestFoundPeersAreBounded(t *testing.T) {
	t.Parallel()
	s := bootstrapOf(t, made(t, Options{}), inMemory())
	for range 2 * maxFound {
		s.HandlePeerFound(peer.AddrInfo{ID: peer.ID(didtest.NewKey().Peer())}) // never blocks
	}
	if got := len(s.Peers()); got != maxFound {
		t.Errorf("%d are kept, want %d", got, maxFound)
	}
}
