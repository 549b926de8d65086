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

// inputs converts a message to the signed bytes, by purpose.
var inputs = map[did.Purpose]func(msg []byte) ([]byte, error){
	did.PurposeAssertion:  hashData,
	did.PurposeRecord:     record,
	did.PurposeInvitation: mapFor(did.PurposeInvitation),
	did.PurposeRotation:   mapFor(did.PurposeRotation),
	did.PurposeNode:       mapFor(did.PurposeNode),
	did.PurposeGrant:      mapFor(did.PurposeGrant),
	did.PurposeAudit:      checkpoint,
	did.PurposeUCAN:       ucan,
	did.PurposeCard:       card,
}

// domains are the prefixes of the bytes that are signed with the same key for other uses: by libp2p for handshakes, signed envelopes and
// gossip, and here for records, invitations, rotations, addresses, grants, checkpoints and UCANs. An envelope has a length before its name, so that the names are also compared at offset 1.
var domains = []string{
	did.PurposeRecord,
	did.PurposeInvitation,
	did.PurposeRotation,
	did.PurposeNode,
	did.PurposeGrant,
	did.PurposeAudit,
	ucanStart,
	"noise-libp2p-static-key:",
	"libp2p-tls-handshake:",
	"libp2p-pubsub:",
	"libp2p-PeerID",
	"libp2p-peer-record",
	"libp2p-relay-rsvp",
}

// hashData returns msg if its 64 bytes cannot be another input. It rejects real hashes with a probability of about 2^-88.
func hashData(msg []byte) ([]byte, error) {
	if len(msg) != hashSize {
		return nil, fmt.Errorf("expected hash data of %d bytes, got %d", hashSize, len(msg))
	}
	for _, d := range domains {
		if bytes.HasPrefix(msg, []byte(d)) || bytes.HasPrefix(msg[1:], []byte(d)) {
			return nil, fmt.Errorf("the message begins with %q and is not hash data", d)
		}
	}
	// JSON Web Signatures and HTTP message signatures sign text.
	if !bytes.ContainsFunc(msg, func(r rune) bool { return r < ' ' && r != '\n' || r > '~' }) {
		return nil, errors.New("the message is text, not hash data")
	}
	return msg, nil
}

// record returns the message with its domain.
func record(msg []byte) ([]byte, error) {
	input := append([]byte(did.PurposeRecord), msg...)
	if len(msg) == 0 || len(input) == hashSize {
		return nil, fmt.Errorf("a record cannot have %d bytes", len(msg))
	}
	return input, nil
}

// mapFor returns the form of the messages of a purpose, CBOR maps with less than 24 keys: the message with its domain.
func mapFor(purpose did.Purpose) func(msg []byte) ([]byte, error) {
	return func(msg []byte) ([]byte, error) {
		input := append([]byte(purpose), msg...)
		if len(msg) == 0 || msg[0] < 0xa0 || msg[0] > 0xb7 || len(input) == hashSize {
			return nil, fmt.Errorf("expected a map in CBOR, got %d bytes", len(msg))
		}
		return input, nil
	}
}

// checkpoint returns the message, the beginning of a JSON object, with its domain.
func checkpoint(msg []byte) ([]byte, error) {
	input := append([]byte(did.PurposeAudit), msg...)
	if !bytes.HasPrefix(msg, []byte("{")) || len(input) == hashSize {
		return nil, fmt.Errorf("expected a checkpoint of the audit log in JSON, got %d bytes", len(msg))
	}
	return input, nil
}

// ucanStart begins the signed bytes of a UCAN in DAG-CBOR: a map of two keys, "h" with the Varsig header of Ed25519 over DAG-CBOR, and a
// text of 14 bytes that begins with "ucan/".
const ucanStart = "\xa2\x61h\x48\x34\x01\xed\x01\xed\x01\x13\x71\x6eucan/"

// ucan returns msg if it begins like the envelope of a delegation or an invocation, whose payload is a map.
func ucan(msg []byte) ([]byte, error) {
	payload, ok := bytes.CutPrefix(msg, []byte(ucanStart+"dlg@1.0.0"))
	if !ok {
		payload, ok = bytes.CutPrefix(msg, []byte(ucanStart+"inv@1.0.0"))
	}
	if !ok || len(payload) == 0 || payload[0] < 0xa0 || payload[0] > 0xb7 || len(msg) == hashSize {
		return nil, errors.New("not the envelope of a UCAN delegation or invocation")
	}
	return msg, nil
}

// cardHeader is the beginning of the header of a card's JWS: its type differs from that of a JWT and of other uses of JWS.
const cardHeader = `{"alg":"EdDSA","typ":"JOSE","kid":"`

// card returns msg if it is the signing input of a card: the base64url of the header, a dot, and the base64url of an object. No record and
// no libp2p input begins like this, and hash data is never text.
func card(msg []byte) ([]byte, error) {
	first, second, both := bytes.Cut(msg, []byte("."))
	header, err := base64.RawURLEncoding.Strict().DecodeString(string(first))
	if err != nil || !both || !bytes.HasPrefix(header, []byte(cardHeader)) {
		return nil, errors.New("not the signing input of a card")
	}
	if body, err := base64.RawURLEncoding.Strict().DecodeString(string(second)); err != nil || !bytes.HasPrefix(body, []byte("{")) {
		return nil, errors.New("the payload is not a card")
	}
	return msg, nil
}
