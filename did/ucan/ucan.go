// Package ucan issues and verifies UCAN 1.0 delegations and invocations: a host lets another DID use an action, that DID lets a third one,
// and the last one invokes it.
//
// Tokens are signed by Ed25519 keys in did:key form. A [Verifier] checks the tokens of one call against the rules of the specification and
// of lmosd. Sources: UCAN 1.0.0 (ucan-wg: spec, delegation, invocation, container),
// DAG-CBOR, Varsig 1.
package ucan

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/cbor"
)

// Bounds. Those of lifetimes and of the links are checked by [Verifier.Verify], the others when tokens are read.
const (
	MaxBytes      = 64 << 10            // one token, all tokens of a call, and a container
	MaxLinks      = 8                   // delegations of a chain
	MaxDelegation = 30 * 24 * time.Hour // until a delegation expires
	MaxInvocation = 5 * time.Minute     // until an invocation expires
)

// A Reason is the name of an error. It is the target of [errors.Is] for an [Error].
type Reason string

// The names of errors. The first eight are those of the official fixtures.
const (
	InvalidClaim     Reason = "InvalidClaim"     // malformed, no proofs, null subject at the root, command not covered
	UnavailableProof Reason = "UnavailableProof" // a proof is not among the tokens
	Expired          Reason = "Expired"
	TooEarly         Reason = "TooEarly"
	InvalidSignature Reason = "InvalidSignature"
	InvalidSubject   Reason = "InvalidSubject"  // the first issuer is not the subject, or a proof names another subject
	InvalidAudience  Reason = "InvalidAudience" // an issuer is not the audience of the link before
	MatchError       Reason = "MatchError"      // a statement of a policy is false
	Revoked          Reason = "Revoked"
	WrongExecutor    Reason = "WrongExecutor" // for another host
	TooLarge         Reason = "TooLarge"      // more bytes, links or steps than allowed
)

// Error returns the name.
func (r Reason) Error() string { return string(r) }

// An Error is why tokens are refused.
type Error struct {
	Reason Reason
	Token  CID           // the token that is refused, or the proof that is missing; zero: none of them
	By     time.Duration // of Expired and TooEarly: the distance to the bound, without the skew
	Detail string
}

// Error returns name and detail.
func (e *Error) Error() string {
	if e.Token == (CID{}) {
		return fmt.Sprintf("UCAN: %s: %s", e.Reason, e.Detail)
	}
	return fmt.Sprintf("UCAN %s: %s: %s", e.Token, e.Reason, e.Detail)
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Reason }

func failed(r Reason, token CID, format string, args ...any) error {
	return &Error{Reason: r, Token: token, Detail: fmt.Sprintf(format, args...)}
}

// A CID names a token: the SHA-256 of its bytes, as a CIDv1 of DAG-CBOR.
type CID [sha256.Size]byte

// cidPrefix is CIDv1, dag-cbor, sha2-256, 32 bytes.
var cidPrefix = []byte{0x01, 0x71, 0x12, 0x20}

// ParseCID reads the text form "zdpu…" (base58btc). The error wraps [InvalidClaim].
func ParseCID(s string) (CID, error) {
	if b, err := did.DecodeBase58(s); err == nil {
		if id, err := cidOf(b); err == nil && id.String() == s {
			return id, nil
		}
	}
	return CID{}, failed(InvalidClaim, CID{}, "%.80q is not the CID zdpu… of a UCAN", s)
}

// CIDOf returns the CID of the bytes of a token.
func CIDOf(token []byte) CID { return sha256.Sum256(token) }

func cidOf(b []byte) (CID, error) {
	hash, ok := bytes.CutPrefix(b, cidPrefix)
	if !ok || len(hash) != sha256.Size {
		return CID{}, failed(InvalidClaim, CID{}, "a link that is not the CID of a UCAN")
	}
	return CID(hash), nil
}

// String returns the text form, "zdpu…".
func (c CID) String() string { return did.EncodeBase58(append(bytes.Clone(cidPrefix), c[:]...)) }

// MarshalText returns the text form.
func (c CID) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads the text form.
func (c *CID) UnmarshalText(text []byte) (err error) {
	*c, err = ParseCID(string(text))
	return err
}

// link returns the link to the token in DAG-CBOR.
func (c CID) link() cbor.Link {
	return append(append(cbor.Link{0}, cidPrefix...), c[:]...)
}

func linksTo(ids []CID) []any {
	list := make([]any, len(ids))
	for i, id := range ids {
		list[i] = id.link()
	}
	return list
}

func cidsOf(list []any) ([]CID, error) {
	ids := make([]CID, len(list))
	for i, v := range list {
		link, ok := v.(cbor.Link)
		if !ok {
			return nil, failed(InvalidClaim, CID{}, "a list of proofs has a value that is not a link")
		}
		id, err := cidOf(link[1:])
		if err != nil {
			return nil, err
		}
		ids[i] = id
	}
	return ids, nil
}
