package did_test

import (
	"bytes"
	"crypto/ecdh"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha512"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/did"
)

// A vector is one key in all its spellings.
type vector struct {
	name, seed, pub, did, peer, x string
}

var vectors = []vector{
	{
		name: "zero seed",
		seed: strings.Repeat("00", 32),
		pub:  "3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29",
		did:  "did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp",
		peer: "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN",
		x:    "z6LShs9GGnqk85isEBzzshkuVWrVKsRp24GnDuHk8QWkARMW",
	},
	{
		name: "seed one",
		seed: strings.Repeat("00", 31) + "01",
		pub:  "4cb5abf6ad79fbf5abbccafcc269d85cd2651ed4b885b5869f241aedf0a5ba29",
		did:  "did:key:z6MkjchhfUsD6mmvni8mCdXHw216Xrm9bQe2mBH1P5RDjVJG",
		peer: "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp",
		x:    "z6LSrHyXiPBhUbvPUtyUCdf32sniiMGPTAesgHrtEa4FePtr",
	},
	{
		name: "counting seed",
		seed: "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
		pub:  "03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8",
		did:  "did:key:z6MkehRgf7yJbgaGfYsdoAsKdBPE3dj2CYhowQdcjqSJgvVd",
		peer: "12D3KooWA4Xop1JaT3MHxwYMkCepYsv4iPVopMXwCz5iHYdBfeSB",
		x:    "z6LSgTMiVvjkfQd8CF1kWasYZKBqtAYf6h8TC3yDfjPgDbWQ",
	},
	{
		name: "seed of ones",
		seed: strings.Repeat("ff", 32),
		pub:  "76a1592044a6e4f511265bca73a604d90b0529d1df602be30a19a9257660d1f5",
		did:  "did:key:z6MknSLrJoTcukLrE435hVNQT4JUhbvWLX4kUzqkEStBU8Vi",
		peer: "12D3KooWHoSyTgntm77sXShoeX9uNkqKNMhHxKtskaHqnA54SrSG",
		x:    "z6LSqoqh8iMwskCngE153EM3QxC4WGsuxhWjANX99VTMhPVk",
	},
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestVectors(t *testing.T) {
	t.Parallel()
	for _, v := range vectors {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			pub := ed25519.NewKeyFromSeed(unhex(t, v.seed)).Public().(ed25519.PublicKey)
			if hex.EncodeToString(pub) != v.pub {
				t.Fatalf("public key %x, want %s", pub, v.pub)
			}
			d, err := did.FromKey(pub)
			if err != nil || string(d) != v.did {
				t.Fatalf("FromKey = %q, %v; want %s", d, err, v.did)
			}
			if p, err := did.Parse(v.did); err != nil || p != d {
				t.Errorf("Parse = %q, %v", p, err)
			}
			if got := d.PeerText(); got != v.peer {
				t.Errorf("PeerText = %s, want %s", got, v.peer)
			}
			x, err := did.Agreement(pub)
			if got := did.EncodeBase58(append([]byte{0xec, 1}, x...)); err != nil || got != v.x {
				t.Errorf("Agreement = %s, %v; want %s", got, err, v.x)
			}
		})
	}
}

// The private half of the derived key (SHA-512 of the seed, first half) belongs to the public half.
func TestKeyAgreementMatchesThePrivateKey(t *testing.T) {
	t.Parallel()
	for _, v := range vectors {
		h := sha512.Sum512(unhex(t, v.seed))
		k, err := ecdh.X25519().NewPrivateKey(h[:32])
		if err != nil {
			t.Fatal(err)
		}
		x, err := did.Agreement(unhex(t, v.pub))
		if err != nil || !bytes.Equal(k.PublicKey().Bytes(), x) {
			t.Errorf("%s: %x, %v; want %x", v.name, x, err, k.PublicKey().Bytes())
		}
	}
}

func TestPeerInBinary(t *testing.T) {
	t.Parallel()
	for _, v := range vectors {
		id, err := did.DID(v.did).Peer()
		if err != nil || hex.EncodeToString(id) != "002408011220"+v.pub {
			t.Errorf("%s: Peer = %x, %v", v.name, id, err)
		}
		if d, err := did.FromPeer(id); err != nil || string(d) != v.did {
			t.Errorf("%s: FromPeer = %q, %v", v.name, d, err)
		}
	}
}

func TestRoundTripsOfRandomKeys(t *testing.T) {
	t.Parallel()
	for range 1000 {
		pub, _, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		d, err := did.FromKey(pub)
		if err != nil {
			t.Fatalf("FromKey(%x): %v", pub, err)
		}
		back, err := d.Key()
		if err != nil || !bytes.Equal(back, pub) {
			t.Fatalf("Key of %s = %x, %v; want %x", d, back, err, pub)
		}
	}
}
