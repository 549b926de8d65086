package did

import (
	"fmt"

	"github.com/mr-tron/base58"
)

// peerPrefix precedes the 32 key bytes of an Ed25519 PeerID: identity multihash of 36 bytes, protobuf key type 1 (Ed25519), 32 bytes of
// data (libp2p peer ids §Keys).
const peerPrefix = "\x00\x24\x08\x01\x12\x20"

const peerLength = len(peerPrefix) + 32

// FromPeer returns the did:key of a PeerID in its binary form of 38 bytes. PeerIDs of RSA, ECDSA and secp256k1 keys
// have no did:key here. The error wraps [ErrInvalid].
func FromPeer(id []byte) (DID, error) {
	if len(id) != peerLength || string(id[:len(peerPrefix)]) != peerPrefix {
		return "", fmt.Errorf("%w: the PeerID is not that of an Ed25519 key", ErrInvalid)
	}
	return FromKey(id[len(peerPrefix):])
}

// OfPeer is like [FromPeer], and returns "" if the PeerID has no did:key.
func OfPeer[ID ~string](id ID) DID {
	node, _ := FromPeer([]byte(id)) // "" with an error
	return node
}

// ShortPeer returns the [DID.Short] of a PeerID for logs; a PeerID without a did:key as text.
func ShortPeer[ID ~string](id ID) string {
	if node := OfPeer(id); node != "" {
		return node.Short()
	}
	return base58.Encode([]byte(id))
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
