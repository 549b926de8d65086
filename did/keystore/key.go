package keystore

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"

	"github.com/lmosd/lmosd/did"
)

// A Key is a private key that cannot be read: all formats print its DID. It is a [did.Signer], and safe for concurrent use.
type Key struct {
	id  did.DID
	pub ed25519.PublicKey
	// private is a function, so that code that traverses values, such as fmt or the diff of a test, does not find the key.
	private func() ed25519.PrivateKey
}

var _ did.Signer = (*Key)(nil)

// FromSeed returns the key of a seed (RFC 8032 §5.1.5). It is for testnets, whose keys are reproducible. A key from a known seed is not
// secret.
func FromSeed(seed [32]byte) (*Key, error) { return fromPrivate(ed25519.NewKeyFromSeed(seed[:])) }

// New returns a new key, which is not stored.
func New() (*Key, error) {
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, err
	}
	return fromPrivate(private)
}

func fromPrivate(private ed25519.PrivateKey) (*Key, error) {
	pub := private.Public().(ed25519.PublicKey)
	id, err := did.FromKey(pub)
	if err != nil {
		return nil, err
	}
	return &Key{id: id, pub: pub, private: func() ed25519.PrivateKey { return private }}, nil
}

// DID returns the did:key of the key.
func (k Key) DID() did.DID { return k.id }

// Public returns the public key. The caller owns it.
func (k Key) Public() ed25519.PublicKey { return bytes.Clone(k.pub) }

// Peer returns the PeerID of the key in its binary form of 38 bytes.
func (k Key) Peer() []byte {
	id, err := k.id.Peer()
	if err != nil {
		panic(err) // the DID was made from a checked key
	}
	return id
}

// Libp2p returns the private key in libp2p's protobuf form, 68 bytes: 08 01 12 40, seed, public key. Only this method returns the private
// key. The libp2p host needs it for the handshakes of Noise and TLS, whose signed bytes begin with their own names and are never an input
// of [Key.Sign]. No other code may use the result.
func (k Key) Libp2p() []byte { return append([]byte{0x08, 0x01, 0x12, 0x40}, k.private()...) }

// Sign signs msg for purpose and returns 64 bytes. There are nine purposes; others are rejected:
//
//	assertionMethod   msg is the hash data of a Data Integrity proof, exactly 64 bytes, and is signed as it is
//	lmos-td-v1:       msg is a record in CBOR; "lmos-td-v1:" and msg are signed
//	lmos-invite-v1:   msg is an invitation in CBOR; "lmos-invite-v1:" and msg are signed
//	lmos-rotate-v1:   msg is a rotation in CBOR; "lmos-rotate-v1:" and msg are signed
//	lmos-node-v1:     msg is the addresses of a node in CBOR; "lmos-node-v1:" and msg are signed
//	lmos-grant-v1:    msg is a grant in CBOR; "lmos-grant-v1:" and msg are signed
//	lmos-audit-v1:    msg is a line of the audit log in JSON; "lmos-audit-v1:" and msg are signed
//	ucan              msg is the envelope of a UCAN delegation or invocation in DAG-CBOR, without its signature, and is signed as it is
//	a2a-agent-card    msg is the signing input of a JWS of a card: the base64url of a header of type JOSE, a dot, and text
//
// No input of one purpose is valid for another, or for the uses of the key by libp2p: hash data that begins with one of their names, or is
// all text, is rejected, and so are records, maps, envelopes and lines of the size of hash data.
func (k Key) Sign(purpose did.Purpose, msg []byte) ([]byte, error) {
	form, ok := inputs[purpose]
	if !ok {
		return nil, fmt.Errorf("sign as %s: unknown purpose %q", k.id.Short(), purpose)
	}
	input, err := form(msg)
	if err != nil {
		return nil, fmt.Errorf("sign as %s for %q: %w", k.id.Short(), purpose, err)
	}
	return ed25519.Sign(k.private(), input), nil
}

// String returns the DID.
func (k Key) String() string { return string(k.id) }

// GoString returns the DID, for %#v.
func (k Key) GoString() string { return "keystore.Key(" + string(k.id) + ")" }

// Format prints the DID for every verb, including the verbs that print fields or bytes of other types.
func (k Key) Format(f fmt.State, verb rune) {
	text := k.String()
	if verb == 'v' && f.Flag('#') {
		text = k.GoString()
	}
	// fmt reports errors of writing to its caller.
	_, _ = io.WriteString(f, text)
}

// MarshalJSON returns the DID as a JSON string.
func (k Key) MarshalJSON() ([]byte, error) { return json.Marshal(k.id) }

// LogValue returns the DID.
func (k Key) LogValue() slog.Value { return slog.StringValue(string(k.id)) }
