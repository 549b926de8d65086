// Package testhost creates libp2p hosts for tests: in a simulated network, and on loopback.
package testhost

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	mocknet "github.com/libp2p/go-libp2p/p2p/net/mock"
	ma "github.com/multiformats/go-multiaddr"
	"github.com/multiformats/go-multistream"

	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/did/keystore"
)

// A Network is a simulated network in a synctest bubble.
type Network struct {
	mocknet.Mocknet
	T testing.TB

	mu    sync.Mutex
	conns []network.Conn
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

// AddPeer adds a host with a key and an address.
func (n *Network) AddPeer(k crypto.PrivKey, addr ma.Multiaddr) (host.Host, error) {
	h, err := n.Mocknet.AddPeer(k, addr)
	if err == nil {
		h.Network().Notify(&network.NotifyBundle{ConnectedF: func(_ network.Network, c network.Conn) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.conns = append(n.conns, c)
		}})
	}
	return h, err
}

// Close closes the hosts. It also resets the streams that were opened while their connection was closed: the simulation does not, and the
// bubble ends only after their goroutines.
func (n *Network) Close() error {
	err := n.Mocknet.Close()
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.conns {
		for _, s := range c.GetStreams() {
			_ = s.Reset()
		}
	}
	return err
}

// Add adds a host with a key and an IP address of its own. Both depend on the number of hosts only.
func (n *Network) Add() host.Host {
	n.T.Helper()
	i := 1 + len(n.Peers())
	h, err := n.AddPeer(privateKey(n.T, didtest.Key(1000+i)), ma.StringCast(fmt.Sprintf("/ip4/10.0.%d.1/tcp/4242", i)))
	if err != nil {
		n.T.Fatal(err)
	}
	return h
}

// Connect links two hosts and connects them, see [Connect].
func (n *Network) Connect(a, b host.Host) {
	n.T.Helper()
	if _, err := n.LinkPeers(a.ID(), b.ID()); err != nil {
		n.T.Fatal(err)
	}
	Connect(n.T, a, b)
}

// Connect connects two hosts that are not connected. It returns when both know the protocols of the other.
func Connect(t testing.TB, a, b host.Host) {
	t.Helper()
	waits := []func(){identification(t, a, b), identification(t, b, a)}
	if err := a.Connect(t.Context(), peer.AddrInfo{ID: b.ID(), Addrs: b.Addrs()}); err != nil {
		t.Fatal(err)
	}
	for _, wait := range waits {
		wait()
	}
}

// identification returns a function that waits until h has identified another host.
func identification(t testing.TB, h, other host.Host) (wait func()) {
	t.Helper()
	sub, err := h.EventBus().Subscribe([]any{new(event.EvtPeerIdentificationCompleted), new(event.EvtPeerIdentificationFailed)})
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		defer func() { _ = sub.Close() }()
		for e := range sub.Out() {
			switch e := e.(type) {
			case event.EvtPeerIdentificationCompleted:
				if e.Peer == other.ID() {
					return
				}
			case event.EvtPeerIdentificationFailed:
				if e.Peer == other.ID() {
					t.Fatal(e.Reason)
				}
			}
		}
	}
}

// Listen returns a host with a key that listens on addr. It closes the host when the test ends.
func Listen(t testing.TB, key *keystore.Key, addr string) host.Host {
	t.Helper()
	h, err := libp2p.New(libp2p.Identity(privateKey(t, key)), libp2p.ListenAddrStrings(addr), libp2p.DisableMetrics(), libp2p.DisableRelay())
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

func privateKey(t testing.TB, key *keystore.Key) crypto.PrivKey {
	t.Helper()
	k, err := crypto.UnmarshalPrivateKey(key.Libp2p())
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// OpenStream opens a stream of one protocol on the connection of h with another host, sends nothing, and returns when the other end has
// answered or closed it. The error is [multistream.ErrNotSupported] if no handler has the protocol, or that of the reset of the stream.
func OpenStream(t testing.TB, h host.Host, other peer.ID, id protocol.ID) error {
	t.Helper()
	s, err := h.Network().NewStream(network.WithNoDial(t.Context(), "test"), other)
	if err != nil {
		return err
	}
	defer func() { _ = s.Reset() }()
	if err := s.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := multistream.SelectOneOf([]protocol.ID{id}, s); err != nil {
		return err
	}
	_ = s.CloseWrite() // fails only after a reset, which Read returns
	if _, err := s.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// IsGated reports whether the other end reset a stream by its policy, before its handler.
func IsGated(err error) bool {
	return errors.Is(err, &network.StreamError{Remote: true, ErrorCode: network.StreamGated})
}
