package did

import (
	"encoding/base32"
	"fmt"
	"math/big"
	"strings"

	"github.com/mr-tron/base58"
)

// peerPrefix precedes the 32 key bytes of an Ed25519 PeerID: identity multihash of 36 bytes, protobuf key type 1 (Ed25519), 32 bytes of
// data (libp2p peer ids §Keys).
const peerPrefix = "\x00\x24\x08\x01\x12\x20"

// cidPrefix precedes the multihash in the CID form of a PeerID: version 1, codec libp2p-key.
const cidPrefix = "\x01\x72"

const peerLength = len(peerPrefix) + 32

// FromPeer returns the did:key of a PeerID in its binary form of 38 bytes. PeerIDs of RSA, ECDSA and secp256k1 keys
// have no did:key here. The error wraps [ErrInvalid].
func FromPeer(id []byte) (DID, error) {
	if len(id) != peerLength || string(id[:len(peerPrefix)]) != peerPrefix {
		return "", fmt.Errorf("%w: the PeerID is not that of an Ed25519 key", ErrInvalid)
	}
	return FromKey(id[len(peerPrefix):])
}

// Peer returns the PeerID of a did:key in its binary form of 38 bytes. The errors are those of [DID.Key].
func (d DID) Peer() ([]byte, error) {
	pub, err := d.Key()
	if err != nil {
		return nil, err
	}
	return append([]byte(peerPrefix), pub...), nil
}

// PeerText returns the PeerID of a did:key as text, "12D3KooW…", or "" if d has none.
func (d DID) PeerText() string {
	id, err := d.Peer()
	if err != nil {
		return ""
	}
	return base58.Encode(id)
}

// ParsePeer reads the text of an Ed25519 PeerID: base58btc "12D3KooW…", or a CIDv1 in base32 "bafzaa…" or base36
// "k51…", each in its one spelling. The error wraps [ErrInvalid].
func ParsePeer(text string) (DID, error) {
	if len(text) > 80 { // the longest form, base32, has 65 characters
		return "", badPeer(text)
	}
	decode := decodePeerBase58
	switch {
	case strings.HasPrefix(text, "b"):
		decode = decodePeerBase32
	case strings.HasPrefix(text, "k"):
		decode = decodePeerBase36
	}
	id, ok := decode(text)
	if !ok {
		return "", badPeer(text)
	}
	d, err := FromPeer(id)
	if err != nil {
		return "", fmt.Errorf("PeerID %q: %w", cut(text), err)
	}
	return d, nil
}

func badPeer(text string) error {
	return fmt.Errorf("%w: %q is not a PeerID of the form 12D3KooW…, bafzaa… or k51…", ErrInvalid, cut(text))
}

func decodePeerBase58(text string) ([]byte, bool) {
	id, err := base58.Decode(text)
	return id, err == nil && base58.Encode(id) == text
}

// base32Lower is multibase 'b' (RFC 4648 §6 in lower case, without padding).
var base32Lower = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

func decodePeerBase32(text string) ([]byte, bool) {
	b, err := base32Lower.DecodeString(text[1:])
	if err != nil || base32Lower.EncodeToString(b) != text[1:] {
		return nil, false
	}
	return cutCID(b)
}

func decodePeerBase36(text string) ([]byte, bool) {
	// The CID begins with 01, so that the number has no leading zeros to lose.
	n, ok := new(big.Int).SetString(text[1:], 36)
	if !ok || n.Text(36) != text[1:] {
		return nil, false
	}
	return cutCID(n.Bytes())
}

func cutCID(b []byte) ([]byte, bool) {
	rest, ok := strings.CutPrefix(string(b), cidPrefix)
	return []byte(rest), ok
}
