// Package proof creates and verifies W3C Data Integrity proofs (eddsa-jcs-2022).
//
// The signed message has 64 bytes: the SHA-256 of the canonical proof without its proofValue, then the SHA-256 of the canonical document
// without its proof. Documents were decoded strictly by internal/jcs; callers use only the document that [Verify] returns. Sources: VC Data
// Integrity 1.0; Data Integrity EdDSA Cryptosuites 1.0 §3.3.
package proof

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/jcs"
)

// Fixed values of the members type and cryptosuite.
const (
	proofType   = "DataIntegrityProof"
	cryptosuite = "eddsa-jcs-2022"
)

// Skew is the permitted difference of the clocks of signer and verifier.
const Skew = 5 * time.Minute

// Options of a proof. Times are written in UTC and whole seconds.
type Options struct {
	Created time.Time // zero: now
	Expires time.Time // zero: the proof does not expire by itself
	// Method is the DID URL under which a document lists the key of the signer, such as "did:webvh:…#i1". Empty: the DID URL in its did:key
	// document.
	Method string
}

// Sign creates a proof of doc by s with the purpose assertionMethod; the caller attaches it as the member "proof". doc is decoded JSON and
// is not changed. Sign rejects a document with a proof or a member "registration", which only directories add. s must sign for a did:key.
// The error wraps [ErrProof] and is an [*Error].
func Sign(doc map[string]any, s did.Signer, o Options) (map[string]any, error) {
	proof, err := sign(doc, s, o)
	if err != nil {
		return nil, &Error{kind: "PROOF_GENERATION_ERROR", err: err}
	}
	return proof, nil
}

func sign(doc map[string]any, s did.Signer, o Options) (map[string]any, error) {
	for _, name := range []string{"proof", "registration"} {
		if _, ok := doc[name]; ok {
			return nil, fmt.Errorf("sign: the document has a member %q already; remove it first", name)
		}
	}
	config, err := configure(s.DID(), o)
	if err != nil {
		return nil, err
	}
	hash, err := hashData(config, doc)
	if err != nil {
		return nil, err
	}
	signature, err := s.Sign(did.PurposeAssertion, hash)
	if err != nil {
		return nil, fmt.Errorf("sign as %s: %w", s.DID().Short(), err)
	}
	config["proofValue"] = did.EncodeBase58(signature)
	return config, nil
}

// configure returns the proof without its value. It has no @context: some verifiers compare contexts by identity and would reject every
// document with an inline one, and without it no party can append contexts to a signed document.
func configure(signer did.DID, o Options) (map[string]any, error) {
	if _, err := signer.Key(); err != nil {
		return nil, fmt.Errorf("sign: the signer needs a did:key: %w", err)
	}
	if o.Created.IsZero() {
		o.Created = time.Now()
	}
	if o.Method == "" {
		o.Method = string(signer) + "#" + signer.Multibase()
	}
	config := map[string]any{
		"type":               proofType,
		"cryptosuite":        cryptosuite,
		"created":            stamp(o.Created),
		"verificationMethod": o.Method,
		"proofPurpose":       did.PurposeAssertion,
	}
	if !o.Expires.IsZero() {
		if !o.Expires.After(o.Created) {
			return nil, errors.New("sign: the proof expires before it is created")
		}
		config["expires"] = stamp(o.Expires)
	}
	return config, nil
}

// hashData returns the 64 bytes that are signed: the hash of the proof first (EdDSA Cryptosuites §3.3.4).
func hashData(config, doc map[string]any) ([]byte, error) {
	room := canonicals.Get().(*[]byte)
	defer canonicals.Put(room)
	buf, err := jcs.Append((*room)[:0], config)
	if err != nil {
		return nil, fmt.Errorf("proof: %w", err)
	}
	first := sha256.Sum256(buf)
	if buf, err = jcs.Append(buf[:0], doc); err != nil {
		return nil, fmt.Errorf("document: %w", err)
	}
	second := sha256.Sum256(buf)
	if cap(buf) <= maxCanonical {
		*room = buf
	}
	return append(first[:], second[:]...), nil
}

// canonicals has buffers for canonical forms.
var canonicals = sync.Pool{New: func() any { return new(make([]byte, 0, 8<<10)) }}

// maxCanonical is the maximum size of a kept buffer.
const maxCanonical = 64 << 10

// without returns a shallow copy of m without the names.
func without(m map[string]any, names ...string) map[string]any {
	m = maps.Clone(m)
	for _, name := range names {
		delete(m, name)
	}
	return m
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05Z") }
