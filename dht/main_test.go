package dht

import (
	"crypto/ed25519"
	"encoding/binary"
	"testing"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/internal/testmain"
	"github.com/lmosd/lmosd/td/tdtest"
)

func TestMain(m *testing.M) {
	tdtest.WarmUp()
	testmain.Run(m)
}

type (
	peerID     = peer.ID
	protocolID = protocol.ID
)

// testKey returns the i-th of the keys of tests, always the same.
func testKey(i int) ed25519.PrivateKey {
	seed := make([]byte, ed25519.SeedSize)
	binary.BigEndian.PutUint64(seed, uint64(i)+1)
	return ed25519.NewKeyFromSeed(seed)
}

func testPrivKey(t testing.TB, i int) crypto.PrivKey {
	t.Helper()
	k, err := crypto.UnmarshalEd25519PrivateKey(testKey(i))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func testPeer(t testing.TB, i int) peer.ID {
	t.Helper()
	id, err := peer.IDFromPrivateKey(testPrivKey(t, i))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func testAddr(t testing.TB, text string) ma.Multiaddr {
	t.Helper()
	a, err := ma.NewMultiaddr(text)
	if err != nil {
		t.Fatal(err)
	}
	return a
}
