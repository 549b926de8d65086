// Package did implements DID Core: identifiers, DID documents, did:key, and the [Signer] and [Resolver] interfaces.
//
// A node has one Ed25519 key. Its did:key and its libp2p PeerID are two encodings of that key, which this package converts. No function
// sends a request: did:key documents are computed, other documents are parsed by [ParseDocument]. Sources: W3C DID Core 1.0; did:key (W3C
// CCG); Controlled Identifiers 1.0 (multikeys); libp2p peer ids.
package did

import (
	"context"
	"errors"
)

// A DID is a decentralized identifier in its canonical spelling, for example
// "did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH". Values come from [Parse], [FromKey] or [FromPeer];
// equal DIDs are equal strings, so that they can be compared with == and be keys of maps. A value converted from any other string has not
// been checked: [DID.Key] and [DID.Peer] check it, the other methods do not.
//
// These three accept only did:keys of Ed25519 keys that can sign (see [CheckKey]), in their canonical spelling. [ParseForeign] also accepts
// did:keys of other algorithms, which occur in foreign documents and are never the DID of a node or an owner. The zero value identifies no
// subject.
type DID string

// Errors of resolution. They are wrapped with the DID and the cause.
var (
	// ErrNotFound means that the DID is well formed and no document was found.
	ErrNotFound = errors.New("DID not found")
	// ErrInvalid means that the text is not a canonical DID, or that its key is unusable.
	ErrInvalid = errors.New("invalid DID")
	// ErrMethod means that no resolver of this node supports the DID's method.
	ErrMethod = errors.New("DID method not supported")
	// ErrLegacyUnsupported means that the program was built without the reader of legacy formats (build tag noaries).
	ErrLegacyUnsupported = errors.New("legacy DID formats are not built into this program")
)

// A Purpose is the purpose of a signature. The signature covers it, as the domain string or as a member of the message, so that a
// signature for one purpose never verifies for another.
type Purpose = string

// The purposes that a [Signer] accepts.
const (
	// PurposeAssertion signs a Data Integrity proof with proofPurpose assertionMethod. The message is exactly the 64
	// bytes of hashData (Data Integrity EdDSA §3.3.4), which cover the purpose.
	PurposeAssertion Purpose = "assertionMethod"
	// PurposeRecord signs the record of a description: the signed bytes are "lmos-td-v1:" and the message. "v1" is the version of the
	// purpose, not of the record.
	PurposeRecord Purpose = "lmos-td-v1:"
	// PurposeInvitation signs an invitation of an organization with one of its issuing keys: the signed bytes are "lmos-invite-v1:" and
	// the message, a map in CBOR.
	PurposeInvitation Purpose = "lmos-invite-v1:"
	// PurposeAudit signs a checkpoint of the audit log: the signed bytes are "lmos-audit-v1:" and the message, the line of the
	// checkpoint in JSON without its signature.
	PurposeAudit Purpose = "lmos-audit-v1:"
	// PurposeRotation signs a statement that a node replaces its key, with both keys: the signed bytes are "lmos-rotate-v1:" and the
	// message, a map in CBOR.
	PurposeRotation Purpose = "lmos-rotate-v1:"
	// PurposeNode signs the addresses of a node: the signed bytes are "lmos-node-v1:" and the message, a map in CBOR.
	PurposeNode Purpose = "lmos-node-v1:"
	// PurposeGrant signs that nodes may host a Thing (td.Grant): the signed bytes are "lmos-grant-v1:" and the message, a map in CBOR.
	PurposeGrant Purpose = "lmos-grant-v1:"
	// PurposeUCAN signs a UCAN (package did/ucan). The message is the map of its envelope in DAG-CBOR: the Varsig header, and the payload of a
	// delegation or an invocation of version 1.0.0.
	PurposeUCAN Purpose = "ucan"
	// PurposeCard signs an A2A agent card as a JWS. The message is its signing input (RFC 7515 §5.1) with the header
	// {"alg":"EdDSA","typ":"JOSE","kid":…}.
	PurposeCard Purpose = "a2a-agent-card"
)

// A Signer signs with a key that it does not disclose.
type Signer interface {
	// DID names the key. Its document lists it under assertionMethod.
	DID() DID
	// Sign signs msg for purpose and returns the 64 bytes of an Ed25519 signature. An unknown purpose, or a message of
	// the wrong form for it, is an error.
	Sign(purpose Purpose, msg []byte) ([]byte, error)
}

// A Resolver finds DID documents.
type Resolver interface {
	// Resolve returns the document of id. The error wraps [ErrNotFound], [ErrInvalid] or [ErrMethod].
	Resolve(ctx context.Context, id DID) (*Document, error)
}
