package did_test

import (
	"crypto/ed25519"
	"errors"
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did"
)

// The CID form of the first vector, in the two bases that tools print.
const (
	zeroBase32 = "bafzaajaiaejcao3ke66m5nvefvrkhkgqfjxq243fgikxohpciotdvqciugfvtwrj"
	zeroBase36 = "k51qzi5uqu5dhnwe629wdlncpql6frppdpwnz4wtlcw816aysd5wwlk63g4wmh"
	zeroPeer   = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"
)

func TestParsePeerReadsThreeForms(t *testing.T) {
	t.Parallel()
	for _, text := range []string{zeroPeer, zeroBase32, zeroBase36} {
		if d, err := did.ParsePeer(text); err != nil || d != zero {
			t.Errorf("ParsePeer(%s) = %s, %v; want %s", text, d, err, zero)
		}
	}
	if got := zero.PeerText(); got != zeroPeer {
		t.Errorf("PeerText = %s, want %s", got, zeroPeer)
	}
}

func TestParsePeerRejects(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, text string }{
		{"empty", ""},
		{"a did:key", string(zero)},
		{"upper-case base32", "B" + strings.ToUpper(zeroBase32[1:])},
		{"base32 with an upper-case letter", strings.Replace(zeroBase32, "afz", "aFz", 1)},
		{"base32 with bits behind the end", zeroBase32[:len(zeroBase32)-1] + "k"},
		{"base32 with padding", zeroBase32 + "="},
		{"base32 of another codec", "bafkqaaa"},
		{"base36 with an upper-case letter", strings.Replace(zeroBase36, "k51", "k5L", 1)},
		{"base36 with a sign", "k+" + zeroBase36[1:]},
		{"base36 with a leading zero", "k0" + zeroBase36[1:]},
		{"base58 with a multibase letter", "z" + zeroPeer},
		{"trailing character", zeroPeer + "1"},
		{"space", " " + zeroPeer},
		{"RSA PeerID", "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"},
		{"secp256k1 PeerID", "16Uiu2HAmVQ1LcXmFJ3nFCJcYmnJDpWYPrrEPqPTCGSFmU4qZqT7M"},
		{"long", strings.Repeat("1", 10000)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if d, err := did.ParsePeer(c.text); !errors.Is(err, did.ErrInvalid) {
				t.Errorf("ParsePeer(%q) = %q, %v; want ErrInvalid", c.text, d, err)
			}
		})
	}
}

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

// libp2p computes the same PeerID for the same key, and parses ours.
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
		if p, err := did.ParsePeer(peer.ToCid(id).String()); err != nil || p != d {
			t.Fatalf("%s: %s, %v; want %s", peer.ToCid(id), p, err, d)
		}
	}
}

func FuzzParsePeer(f *testing.F) {
	for _, s := range []string{zeroPeer, zeroBase32, zeroBase36, "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N", "k", "b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := did.ParsePeer(s)
		if err != nil {
			return
		}
		if again, err := did.ParsePeer(d.PeerText()); err != nil || again != d {
			t.Fatalf("ParsePeer(%q) = %q, whose text gives %q, %v", s, d, again, err)
		}
	})
}
