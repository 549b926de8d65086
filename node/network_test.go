package node

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	ds "github.com/ipfs/go-datastore"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// TestDirectorySeparatesNetworks uses one folder in two networks, one after the other, and in the first again.
func TestDirectorySeparatesNetworks(t *testing.T) {
	t.Parallel()
	other := start(t, quiet())
	theirs := publish(t, other, tool("Theirs", "urn:x:theirs"))
	o := quiet()
	o.Dir, o.Engine, o.Bootstrap = t.TempDir(), EnginePebble, other.Addrs()
	first := start(t, o)
	ours := publish(t, first, tool("Ours", "urn:x:ours"))
	knows(t, first, theirs)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}

	elsewhere := o
	elsewhere.Network, elsewhere.Bootstrap = "org2", nil
	second := start(t, elsewhere)
	if second.DID() != first.DID() {
		t.Errorf("the key is another: %s, was %s", second.DID(), first.DID())
	}
	if peers := second.network.bootstrap.Peers(); len(peers) != 0 {
		t.Errorf("peers of another network are remembered: %v", peers)
	}
	if agents := found(t, second); len(agents) != 0 {
		t.Errorf("agents of another network are listed: %+v", agents)
	}
	publish(t, second, tool("Apart", "urn:x:apart"))
	if err := second.stop(); err != nil {
		t.Fatal(err)
	}

	o.Bootstrap = nil
	back := start(t, o)
	until(t, "the node has found its peer again", func() bool { return len(back.network.peers.List()) == 1 })
	knows(t, back, theirs)
	knows(t, back, ours)
	if slices.ContainsFunc(found(t, back), func(a api.Agent) bool { return a.Title == "Apart" }) {
		t.Error("what was published in another network is listed")
	}
	if err := back.stop(); err != nil {
		t.Fatal(err)
	}
	knows(t, start(t, elsewhere), "urn:x:apart")
}

// TestDirectoryOfAnOlderVersion has no network noted: it is taken as that of the network in which it is opened first.
func TestDirectoryOfAnOlderVersion(t *testing.T) {
	t.Parallel()
	s, key := openStores(t, EngineMemory, ""), ds.NewKey("/a")
	if err := s.Own.Put(t.Context(), key, []byte("old")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		network string
		want    bool
	}{{"lmos", true}, {"org2", false}, {"lmos", true}} {
		part, home, err := s.Of(c.network, networkName().Match)
		if err != nil || home != "lmos" {
			t.Fatalf("%s: home is %q, %v", c.network, home, err)
		}
		for name, in := range map[string]ds.Batching{"own": part.Own, "fast": part.Fast} {
			k := key
			if name == "fast" {
				k = ds.NewKey("/own/a")
			}
			if got, err := in.Has(t.Context(), k); err != nil || got != c.want {
				t.Errorf("%s in %s: %v, %v, want %v", name, c.network, got, err, c.want)
			}
		}
	}
	if err := s.Durable.Put(t.Context(), ds.NewKey("/network"), []byte("no/network")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Of("lmos", networkName().Match); err == nil {
		t.Error("a damaged note is taken")
	}
}

// TestDamagedLogKeepsTheHomeNetwork: if a log loses only the name of the home network, its publications stay in that network.
func TestDamagedLogKeepsTheHomeNetwork(t *testing.T) {
	t.Parallel()
	dir, key := t.TempDir(), ds.NewKey("/a")
	s := openStores(t, EnginePebble, dir)
	part, _, err := s.Of("lmos", networkName().Match)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(part.Own.Put(t.Context(), key, []byte("ours")), s.Durable.Delete(t.Context(), ds.NewKey("/network")), s.Close()); err != nil {
		t.Fatal(err)
	}
	s = openStores(t, EnginePebble, dir)
	for network, want := range map[string]bool{"org2": false, "lmos": true} {
		part, home, err := s.Of(network, networkName().Match)
		if err != nil {
			t.Fatal(err)
		}
		if has, err := part.Own.Has(t.Context(), key); err != nil || has != want || home != "lmos" {
			t.Errorf("in %s, home %s, it is there: %v, %v", network, home, has, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestNetworksDoNotCallEachOther: two connected nodes of different networks share no protocol of lmosd. Neither can call the other,
// whichever dialed, and earlier protocol ids are not served.
func TestNetworksDoNotCallEachOther(t *testing.T) {
	t.Parallel()
	o, org2 := quiet(), quiet()
	org2.Network = "org2"
	nodes := []*running{start(t, o), start(t, org2)}
	connect(t, nodes[1], nodes[0])
	for i, n := range nodes {
		other := nodes[1-i]
		var asked bool
		agent := interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) {
			asked = true
			return m.Reply(interact.ActionStatus, interact.JSON, []byte("1")), nil
		})
		p, err := other.Offer(t.Context(), tool("Theirs", "urn:x:theirs"), agent)
		if err != nil {
			t.Fatal(err)
		}
		host := td.Host{Node: other.DID(), Addrs: other.Addrs()}
		_, err = interact.Call(t.Context(), n.mesh.streams.Thing(hosted([]td.Host{host})), &interact.Message{Type: interact.InvokeAction, Thing: p.Ref,
			Name: "echo", Data: []byte(`"x"`), From: did.Consumer(did.Process, "")})
		if e := interact.AsError(err); e == nil || e.Code != interact.Unreachable || !strings.Contains(errors.Unwrap(e).Error(), "mesh.network") || asked {
			t.Errorf("node %d calls one of another network: %v, asked: %t", i, err, asked)
		}
		spoken := other.network.Mux().Protocols()
		if !slices.Contains(spoken, protocol.ID("/lmos/"+other.opts.Network+"/interact/1")) {
			t.Errorf("node %d does not speak its own network's protocol: %v", 1-i, spoken)
		}
		ids := []protocol.ID{"/lmos/interact/1", "/lmos/sync/1", "/lmos/suspicion/1", "/lmos/records/1"}
		for _, id := range n.network.Mux().Protocols() {
			if strings.HasPrefix(string(id), "/lmos/") {
				ids = append(ids, id)
			}
		}
		for _, id := range ids {
			if slices.Contains(spoken, id) {
				t.Errorf("nodes of two networks share %s", id)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			if s, err := n.network.NewStream(ctx, peer.ID(other.key.Peer()), id); err == nil {
				_, err = s.Read(make([]byte, 1)) // negotiated lazily
				if _ = s.Reset(); err == nil {
					t.Errorf("node %d is answered on %s", i, id)
				}
			}
			cancel()
		}
	}
}
