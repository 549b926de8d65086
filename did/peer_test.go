package did_test

import (
	"crypto/ed25519"
	"errors"
	"testing"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did"
)

func TestFromPeerRejects(t *testing.T) {
	t.Parallel()
	good, err := zero.Peer()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		id   []byte
	}{
		{"empty", nil},
		{"short", good[:37]},
		{"long", append(append([]byte{}, good...), 0)},
		{"hashed", append([]byte{0x12, 0x20}, good[6:]...)},
		{"another key type", append([]byte{0, 0x24, 8, 2, 0x12, 0x20}, good[6:]...)},
	} {
		if d, err := did.FromPeer(c.id); !errors.Is(err, did.ErrInvalid) {
			t.Errorf("%s: %q, %v", c.name, d, err)
		}
	}
}

// libp2p computes the same PeerID for the same key.
func TestPeerAgreesWithLibp2p(t *testing.T) {
	t.Parallel()
	for seed := range byte(50) {
		pub := ed25519.NewKeyFromSeed(append(make([]byte, 31), seed)).Public().(ed25519.PublicKey)
		key, err := crypto.UnmarshalEd25519PublicKey(pub)
		if err != nil {
			t.Fatal(err)
		}
		id, err := peer.IDFromPublicKey(key)
		if err != nil {
			t.Fatal(err)
		}
		d, err := did.FromPeer([]byte(id))
		if err != nil || d.PeerText() != id.String() {
			t.Fatalf("%s: %s, %v", id, d.PeerText(), err)
		}
	}
}

// A log line has the short key of a node; a PeerID of another key as libp2p writes it.
func TestShortPeer(t *testing.T) {
	t.Parallel()
	raw, err := zero.Peer()
	if err != nil {
		t.Fatal(err)
	}
	if id := peer.ID(raw); did.OfPeer(id) != zero || did.ShortPeer(id) != zero.Short() {
		t.Errorf("%s: got %s, %s", zero, did.OfPeer(id), did.ShortPeer(id))
	}
	foreign := peer.ID("\x12\x20" + string(raw[6:]))
	if got := did.ShortPeer(foreign); got != foreign.String() || did.OfPeer(foreign) != "" {
		t.Errorf("got %s, want %s", got, foreign)
	}
}
