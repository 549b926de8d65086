package keystore

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"

	"github.com/lmosd/lmosd/did"
)

// hashSize is the length of the hash data of a Data Integrity proof: two SHA-256.
const hashSize = 64

// inputs turns a message into the bytes that are signed, for each purpose there is.
var inputs = map[did.Purpose]func(msg []byte) ([]byte, error){
	did.PurposeAssertion: hashData,
	did.PurposeRecord:    record,
	did.PurposeCard:      card,
}

// domains begin the bytes that are signed under the same key for other uses: by libp2p for its handshakes, its signed
// envelopes and gossip, and here for records. The envelope has a length before its name, so that the names are also
// searched at 1.
var domains = []string{
	did.PurposeRecord,
	"noise-libp2p-static-key:",
	"libp2p-tls-handshake:",
	"libp2p-pubsub:",
	"libp2p-PeerID",
	"libp2p-peer-record",
	"libp2p-relay-rsvp",
}

// hashData lets 64 bytes pass that can be nothing but hashes. A hash that is refused here by accident is as likely as a
// preimage of 88 bits.
func hashData(msg []byte) ([]byte, error) {
	if len(msg) != hashSize {
		return nil, fmt.Errorf("hash data has %d bytes, this message has %d", hashSize, len(msg))
	}
	for _, d := range domains {
		if bytes.HasPrefix(msg, []byte(d)) || bytes.HasPrefix(msg[1:], []byte(d)) {
			return nil, fmt.Errorf("the message begins with %q and is no hash data", d)
		}
	}
	// JSON Web Signatures and HTTP message signatures sign text.
	if !bytes.ContainsFunc(msg, func(r rune) bool { return r < ' ' && r != '\n' || r > '~' }) {
		return nil, errors.New("the message is text and no hash data")
	}
	return msg, nil
}

// record puts the domain before the message.
func record(msg []byte) ([]byte, error) {
	input := append([]byte(did.PurposeRecord), msg...)
	if len(msg) == 0 || len(input) == hashSize {
		return nil, fmt.Errorf("no record has %d bytes", len(msg))
	}
	return input, nil
}

// cardHeader begins the header of a card's JWS: its type tells it from a JWT and from what others sign as a JWS.
const cardHeader = `{"alg":"EdDSA","typ":"JOSE","kid":"`

// card lets the signing input of a card pass: two texts in base64url, of which the first is the header and the second an object. No
// record and no use of libp2p begins like that, and no hash data is text.
func card(msg []byte) ([]byte, error) {
	first, second, both := bytes.Cut(msg, []byte("."))
	header, err := base64.RawURLEncoding.Strict().DecodeString(string(first))
	if err != nil || !both || !bytes.HasPrefix(header, []byte(cardHeader)) {
		return nil, errors.New("this is no signing input of a card")
	}
	if body, err := base64.RawURLEncoding.Strict().DecodeString(string(second)); err != nil || !bytes.HasPrefix(body, []byte("{")) {
		return nil, errors.New("what is to be signed is no card")
	}
	return msg, nil
}
