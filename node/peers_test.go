package node

import (
	"context"
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/interact"
)

func TestPeersFromMDNSAreDialed(t *testing.T) {
	t.Parallel()
	a, b := start(t, quiet()), start(t, quiet())
	a.network.bootstrap.HandlePeerFound(peer.AddrInfo{ID: peer.ID(didtest.NewKey().Peer()), Addrs: addrs(t, "/ip4/127.0.0.1/tcp/"+unused(t))})
	a.network.bootstrap.HandlePeerFound(peer.AddrInfo{ID: b.network.ID(), Addrs: b.network.Addrs()})
	until(t, "they are connected", func() bool { return len(a.network.peers.List()) == 1 })
}

func TestConnectReportsTheReason(t *testing.T) {
	t.Parallel()
	o := quiet()
	o.Network = "another"
	n, other := start(t, quiet()), start(t, o)
	gone := "/ip4/127.0.0.1/tcp/" + unused(t) + "/p2p/" + other.network.ID().String()
	_, otherID, _ := strings.Cut(other.Addrs()[0], "/p2p/")
	wrong := strings.Replace(start(t, quiet()).Addrs()[0], "/p2p/", "/p2p/"+otherID+"#", 1)
	wrong, _, _ = strings.Cut(wrong, "#")
	for addr, want := range map[string]interact.Code{
		"":                           interact.Invalid,
		"127.0.0.1:4667":             interact.Invalid,
		"/ip4/127.0.0.1/tcp/4667":    interact.Invalid, // whose?
		"/ip4/127.0.0.1/tcp/1/p2p/x": interact.Invalid,
		gone:                         interact.Unreachable,
		wrong:                        interact.Unreachable, // another node answers there
	} {
		wantCode(t, n.Client().Connect(t.Context(), addr), want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := n.network.peers.Connect(ctx, other.Addrs()[0]); err == nil {
		t.Error("connected after the caller had left")
	}
}

// TestNetworksAreSeparate: nodes of two networks may be connected, and learn nothing of each other.
func TestNetworksAreSeparate(t *testing.T) {
	t.Parallel()
	o := quiet()
	o.Network = "another"
	here, there := start(t, quiet()), start(t, o)
	ref := publish(t, there, tool("Echo", ""))
	third := start(t, o)
	connect(t, here, there)
	connect(t, third, there)
	knows(t, third, ref) // so there was time
	if has(here, ref) || here.mesh.gossip.Peers() != 0 || here.mesh.dht.Size() != 0 {
		t.Error("a node of another network has learned something")
	}
}
