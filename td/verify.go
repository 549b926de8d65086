package td

import (
	"crypto/ed25519"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
)

// Errors of records. The gossip validators ignore a record if correct nodes may disagree about the error; otherwise they reject it.
var (
	ErrTooLarge  = errors.New("too large")
	ErrMalformed = errors.New("malformed")
	ErrVersion   = errors.New("unknown version")
	ErrSignature = errors.New("signature does not verify")
	ErrOwner     = errors.New("signed by another key than the owner's")
	ErrExpired   = errors.New("expired")
	ErrFuture    = errors.New("issued in the future")
	ErrHash      = errors.New("the TD does not match the record")
	ErrNoTD      = errors.New("the TD is missing; fetch it by hash")
	ErrAudience  = errors.New("the audience of the record is not the visibility of the TD")
)

// maxCached limits the records that a [Verifier] caches, about 100 bytes each. It keeps at least the most recently used half.
const maxCached = 16 << 10

// A Verifier verifies records and descriptions and caches the results. It is safe for concurrent use.
type Verifier struct {
	keys did.Resolver
	// recent and older have the SHA-256 of all bytes of the encoded records whose signature and inline TD are valid. The result depends on
	// no other data, because the owner's key is in the record. Times are checked at each call. Invalid records are not cached, so that they
	// cannot evict valid ones.
	mu            sync.Mutex
	recent, older map[[32]byte]bool // owned by mu
}

// NewVerifier returns a verifier that resolves the keys of proofs with r. Records need no resolver, because their owners are did:keys.
func NewVerifier(r did.Resolver) *Verifier {
	return &Verifier{keys: r, recent: map[[32]byte]bool{}}
}

// Record decodes and verifies an encoded record at the time now: size, strict deterministic CBOR, bounds, signature, the TD inside if there
// is one, times. A record is valid from 5 minutes before it was issued until 5 minutes after it expires, because clocks differ. The error
// wraps one of the Err values of this package. The record keeps raw, which the caller must not change.
func (v *Verifier) Record(raw []byte, now time.Time) (*Record, error) {
	r, _, err := v.record(raw, now)
	return r, err
}

// record is [Verifier.Record], and returns the TD inside if it was decompressed.
func (v *Verifier) record(raw []byte, now time.Time) (*Record, []byte, error) {
	r, w, err := decodeRecord(raw)
	if err != nil {
		return nil, nil, err
	}
	td, err := v.cached(raw, func() ([]byte, error) { return r.authenticate(w) })
	if err != nil {
		return nil, nil, err
	}
	if err := r.checkTime(now); err != nil {
		return nil, nil, err
	}
	return r, td, nil
}

// cached calls check, unless check has succeeded for raw before.
func (v *Verifier) cached(raw []byte, check func() ([]byte, error)) (td []byte, err error) {
	key := sha256.Sum256(raw)
	v.mu.Lock()
	recent, older := v.recent[key], v.older[key]
	v.mu.Unlock()
	if recent {
		return nil, nil
	}
	if !older {
		if td, err = check(); err != nil {
			return td, err
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.recent) >= maxCached/2 {
		v.recent, v.older = map[[32]byte]bool{}, v.recent
	}
	v.recent[key] = true
	return td, nil
}

// authenticate checks the signature, then the TD inside, which it returns.
func (r *Record) authenticate(w *wireRecord) ([]byte, error) {
	key, err := r.Signer().Key()
	if err != nil {
		return nil, fmt.Errorf("record: %w: owner: %w", ErrMalformed, err)
	}
	// The domain string precedes the signed bytes, so that no other signature of the same key is valid for a record.
	if !ed25519.Verify(key, w.message, w.Signature) {
		return nil, fmt.Errorf("record of %s: %w", r.Thing, ErrSignature)
	}
	if r.Grant != nil {
		if err := r.Grant.verify(); err != nil {
			return nil, err
		}
	}
	if len(r.Inline) == 0 {
		return nil, nil
	}
	return r.decompressTD()
}
