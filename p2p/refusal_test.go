package p2p

import (
	"errors"
	"testing"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did"
)

// TestWhoIsRefusedIsTold: over each transport, a dialler learns that it was the policy of the peer, whichever end of the connection is
// quicker, and is not connected; who was admitted since is not refused any more.
func TestWhoIsRefusedIsTold(t *testing.T) {
	t.Parallel()
	for name, addr := range map[string]string{"TCP": anyTCP, "QUIC": "/ip4/127.0.0.1/udp/0/quic-v1"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			caller := started(t, Options{Listen: []string{addr}})
			no := started(t, Options{Listen: []string{addr}, Admits: func(id did.DID) error {
				if raw, err := id.Peer(); err == nil && peer.ID(raw) == caller.ID() {
					return errors.New("denied")
				}
				return nil
			}})
			other := started(t, Options{Listen: []string{addr}})
			for range 5 {
				_ = caller.Connect(t.Context(), peer.AddrInfo{ID: no.ID(), Addrs: no.Addrs()}) // it may be connected for a moment
				if !caller.Refused(no.ID()) {
					t.Fatal("the dialler does not know that it was refused")
				}
				if no.Network().Connectedness(caller.ID()) == network.Connected {
					t.Error("who is refused is connected")
				}
			}
			if err := caller.Connect(t.Context(), peer.AddrInfo{ID: other.ID(), Addrs: other.Addrs()}); err != nil || caller.Refused(other.ID()) {
				t.Errorf("a peer that admits everybody: %v, refused %v", err, caller.Refused(other.ID()))
			}
		})
	}
}
