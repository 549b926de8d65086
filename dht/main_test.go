package dht

import (
	"context"
	"crypto/ed25519"
	"encoding/binary"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	ma "github.com/multiformats/go-multiaddr"
	"go.uber.org/goleak"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/td"
)

func TestMain(m *testing.M) {
	warm()
	goleak.VerifyTestMain(m)
}

// warm signs and verifies a thing before any test: the compressor that package td then makes has channels, which would
// belong to one test's bubble if a simulated test were the first to need it.
func warm() {
	key, err := keystore.FromSeed([32]byte(testKey(0).Seed()))
	if err != nil {
		panic(err)
	}
	const raw = `{"@context":"https://www.w3.org/2022/wot/td/v1.1","title":"Warm",
		"securityDefinitions":{"none":{"scheme":"nosec"}},"security":"none"}`
	thing, err := td.Complete([]byte(raw), key.DID())
	if err != nil {
		panic(err)
	}
	s, err := td.Sign(thing, key, td.Lease{Seq: 1, Now: time.Now(), Lifetime: time.Hour})
	if err != nil {
		panic(err)
	}
	s.TD = nil
	if _, err := s.Verify(context.Background(), td.NewVerifier(did.Keys()), time.Now()); err != nil {
		panic(err)
	}
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
