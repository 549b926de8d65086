// Package testhost creates libp2p hosts for tests: in a simulated network, and on loopback.
package testhost

import (
	"fmt"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	mocknet "github.com/libp2p/go-libp2p/p2p/net/mock"
	ma "github.com/multiformats/go-multiaddr"
)

// A Network is a simulated network.
type Network struct {
	mocknet.Mocknet
	T testing.TB
}

// NewNetwork returns a network with a latency. It closes its hosts when the test ends.
func NewNetwork(t testing.TB, latency time.Duration) *Network {
	t.Helper()
	n := &Network{Mocknet: mocknet.New(), T: t}
	n.SetLinkDefaults(mocknet.LinkOptions{Latency: latency})
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// Add adds a host with a marshaled private key and an IP address of its own.
func (n *Network) Add(key []byte) host.Host {
	n.T.Helper()
	h, err := n.AddPeer(unmarshal(n.T, key), ma.StringCast(fmt.Sprintf("/ip4/10.0.%d.1/tcp/4242", 1+len(n.Peers()))))
	if err != nil {
		n.T.Fatal(err)
	}
	return h
}

// Connect links two hosts and connects them.
func (n *Network) Connect(a, b host.Host) {
	n.T.Helper()
	if _, err := n.LinkPeers(a.ID(), b.ID()); err != nil {
		n.T.Fatal(err)
	}
	if _, err := n.ConnectPeers(a.ID(), b.ID()); err != nil {
		n.T.Fatal(err)
	}
}

// Listen returns a host with a marshaled private key that listens on addr. It closes the host when the test ends.
func Listen(t testing.TB, key []byte, addr string) host.Host {
	t.Helper()
	h, err := libp2p.New(libp2p.Identity(unmarshal(t, key)), libp2p.ListenAddrStrings(addr), libp2p.DisableMetrics(), libp2p.DisableRelay())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func unmarshal(t testing.TB, key []byte) crypto.PrivKey {
	t.Helper()
	k, err := crypto.UnmarshalPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return k
}
