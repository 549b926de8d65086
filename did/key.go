package did

import (
	"crypto/ed25519"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"

	"filippo.io/edwards25519"
	"github.com/mr-tron/base58"
)

const keyPrefix = "did:key:"

// FromKey returns the did:key of an Ed25519 public key. The error wraps [ErrInvalid]; see [CheckKey].
func FromKey(pub ed25519.PublicKey) (DID, error) {
	if err := CheckKey(pub); err != nil {
		return "", err
	}
	return fromChecked(pub), nil
}

func fromChecked(pub []byte) DID {
	var b [34]byte
	b[0], b[1] = 0xed, 0x01
	copy(b[2:], pub)
	return DID(keyPrefix + "z" + base58.Encode(b[:]))
}

// Key returns the public key of a did:key. The error wraps [ErrMethod] for other methods and for did:keys of other
// algorithms, and [ErrInvalid] for a text that [Parse] rejects. The caller owns the result.
func (d DID) Key() (ed25519.PublicKey, error) {
	if !isEd25519(string(d)) {
		return nil, fmt.Errorf("%w: %q has no Ed25519 key in its name", ErrMethod, d.Short())
	}
	return keyOf(string(d))
}

// isEd25519 reports whether s looks like the did:key of an Ed25519 key: ed 01 and 32 bytes always begin with z6Mk.
func isEd25519(s string) bool { return strings.HasPrefix(s, keyPrefix+"z6Mk") }

// keyOf returns the key of a text that begins with did:key:. It accepts only the canonical spelling.
func keyOf(s string) (ed25519.PublicKey, error) {
	body := s[len(keyPrefix):]
	if err := checkKeyBody(body); err != nil {
		return nil, invalid(s, err.Error())
	}
	b, err := base58.Decode(body[1:])
	if err != nil {
		return nil, invalid(s, "not base58btc")
	}
	if len(b) != 34 || b[0] != 0xed || b[1] != 0x01 {
		return nil, invalid(s, "not the 32 bytes of an Ed25519 key")
	}
	pub := ed25519.PublicKey(b[2:])
	if err := CheckKey(pub); err != nil {
		return nil, invalid(s, err.Error())
	}
	// Base58 has one spelling for each value. The decoder may accept others.
	if base58.Encode(b) != body[1:] {
		return nil, invalid(s, "not the canonical spelling")
	}
	return pub, nil
}

// checkKeyBody returns a specific error for each common wrong form.
func checkKeyBody(body string) error {
	switch {
	case strings.ContainsAny(body, "#/?"):
		return errors.New("expected a DID without path, query and fragment")
	case strings.HasPrefix(body, "u"):
		return errors.New("expected the base58btc form z6Mk…, got base64url")
	case strings.Contains(body, ":"):
		return errors.New("a did:key has no version")
	case !strings.HasPrefix(body, "z"):
		return errors.New("expected z at the start of the key")
	case len(body) != 48:
		return fmt.Errorf("expected 48 characters after did:key:, got %d", len(body))
	}
	return nil
}

// CheckKey rejects weak public keys: those that are not points of the curve, those in a second encoding, and those of small order, for which
// signatures can be forged. crypto/ed25519 and libp2p accept them. About 8,192 valid keys are cached. It is
// safe for concurrent use. The error wraps [ErrInvalid].
func CheckKey(pub ed25519.PublicKey) error {
	if len(pub) != ed25519.PublicKeySize {
		return fmt.Errorf("%w: expected an Ed25519 key of 32 bytes, got %d", ErrInvalid, len(pub))
	}
	key := [32]byte(pub)
	if validKeys.has(key) {
		return nil
	}
	if err := checkPoint(pub); err != nil {
		return err
	}
	validKeys.add(key)
	return nil
}

func checkPoint(pub []byte) error {
	p, err := new(edwards25519.Point).SetBytes(pub)
	if err != nil {
		return fmt.Errorf("%w: the Ed25519 key is not a point of the curve", ErrInvalid)
	}
	if [32]byte(p.Bytes()) != [32]byte(pub) {
		return fmt.Errorf("%w: the Ed25519 key is not in its canonical encoding", ErrInvalid)
	}
	if new(edwards25519.Point).MultByCofactor(p).Equal(edwards25519.NewIdentityPoint()) == 1 {
		return fmt.Errorf("%w: the Ed25519 key has small order", ErrInvalid)
	}
	return nil
}

// validKeys caches keys that passed checkPoint.
var validKeys keyCache

// A keyCache has two generations of at most generationSize keys. When the recent one is full it becomes the older one. A key that is found
// in the older one is added to the recent one, so that keys in use stay.
type keyCache struct {
	mu            sync.Mutex
	recent, older map[[32]byte]struct{} // owned by mu
}

const generationSize = 4096

func (c *keyCache) has(key [32]byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.recent[key]; ok {
		return true
	}
	_, ok := c.older[key]
	if ok {
		c.addLocked(key)
	}
	return ok
}

func (c *keyCache) add(key [32]byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addLocked(key)
}

func (c *keyCache) addLocked(key [32]byte) {
	if c.recent == nil || len(c.recent) >= generationSize {
		c.recent, c.older = make(map[[32]byte]struct{}), c.recent
	}
	c.recent[key] = struct{}{}
}

// Agreement returns the X25519 public key derived from an Ed25519 key (RFC 7748 §4.1): the keyAgreement key of its
// did:key document. The error wraps [ErrInvalid].
func Agreement(pub ed25519.PublicKey) ([]byte, error) {
	if err := CheckKey(pub); err != nil {
		return nil, err
	}
	p, err := new(edwards25519.Point).SetBytes(pub)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return p.BytesMontgomery(), nil
}

// agreementMultibase returns the multikey "z6LS…" of an X25519 key.
func agreementMultibase(x []byte) string { return EncodeBase58(append([]byte{0xec, 0x01}, x...)) }

// EncodeBase58 returns the multibase form of b in base58btc: 'z' and the digits.
func EncodeBase58(b []byte) string { return "z" + base58.Encode(b) }

// DecodeBase58 reads the multibase form 'z…' of base58btc, at most [MaxLength] characters: the time it takes grows with
// the square of the length. The error wraps [ErrInvalid].
func DecodeBase58(s string) ([]byte, error) {
	digits, ok := strings.CutPrefix(s, "z")
	if !ok || digits == "" || len(s) > MaxLength {
		return nil, fmt.Errorf("%w: %q is not base58btc of the form z… with at most %d characters", ErrInvalid, cut(s), MaxLength)
	}
	b, err := base58.Decode(digits)
	if err != nil {
		return nil, fmt.Errorf("%w: %q is not base58btc", ErrInvalid, cut(s))
	}
	return b, nil
}

// Hash returns the SHA-256 multihash of b in base58btc, without a multibase prefix: 46 characters that begin with "Qm". The logs of did:webvh
// and of groups link their entries by it (did:webvh 1.0, SCID and entry hash).
func Hash(b []byte) string {
	sum := sha256.Sum256(b)
	return EncodeBase58(append([]byte{0x12, 0x20}, sum[:]...))[1:]
}

// IsHash reports whether s is what [Hash] returns for some input.
func IsHash(s string) bool {
	if len(s) != 46 {
		return false
	}
	b, err := DecodeBase58("z" + s)
	return err == nil && len(b) == 34 && b[0] == 0x12 && b[1] == 0x20
}

func cut(s string) string {
	if len(s) > 64 {
		return s[:64] + "…"
	}
	return s
}
