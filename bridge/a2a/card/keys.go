package card

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/jcs"
)

// A SetFinder is a resolver that also fetches key sets (RFC 7517 §5), at the URLs that signatures name in "jku". It decides which URLs
// are trusted, because a key set does not identify its owner. The error is the reason of a refusal.
type SetFinder interface {
	KeySet(ctx context.Context, jku string) ([]byte, error)
}

// Limits of a key set.
const (
	MaxKeySet = 64 << 10 // bytes
	maxKeys   = 100
	maxRSA    = 8192 // bits
)

// verifies reports whether signature is valid for text under the algorithm (RFC 7518 §3, RFC 8037 §3.1). It is false if the algorithm
// requires another type of key.
func verifies(alg string, key crypto.PublicKey, text, signature []byte) bool {
	sum := sha256.Sum256(text)
	switch key := key.(type) {
	case ed25519.PublicKey:
		return (alg == "EdDSA" || alg == "Ed25519") && len(key) == ed25519.PublicKeySize && ed25519.Verify(key, text, signature)
	case *ecdsa.PublicKey:
		if alg != "ES256" || key.Curve != elliptic.P256() || len(signature) != 64 {
			return false
		}
		return ecdsa.Verify(key, sum[:], new(big.Int).SetBytes(signature[:32]), new(big.Int).SetBytes(signature[32:]))
	case *rsa.PublicKey:
		return alg == "RS256" && rsa.VerifyPKCS1v15(key, crypto.SHA256, sum[:], signature) == nil
	}
	return false
}

// algorithms are the supported algorithms.
var algorithms = []string{"EdDSA", "Ed25519", "ES256", "RS256"}

// A jwsHeader is the signer as a protected header names it.
type jwsHeader struct{ alg, kid, jku string }

// readHeader decodes a protected header. It rejects "crit", which requires unknown extensions (RFC 7515 §4.1.11).
func readHeader(protected string) (c jwsHeader, err error) {
	raw, err := b64.DecodeString(protected)
	if err != nil {
		return c, fmt.Errorf("%w: its header is not base64url", ErrUnknownKey)
	}
	header, err := jcs.Object(raw, 8<<10)
	if err != nil {
		return c, fmt.Errorf("%w: its header is not JSON", ErrUnknownKey)
	}
	c.alg, _ = header["alg"].(string)
	c.kid, _ = header["kid"].(string)
	c.jku, _ = header["jku"].(string)
	if _, critical := header["crit"]; critical || !slices.Contains(algorithms, c.alg) {
		return c, fmt.Errorf("%w: unsupported algorithm %q", ErrUnknownKey, c.alg)
	}
	return c, nil
}

// find returns the key that a header names, and the name of the key. A kid that is a DID URL is resolved; otherwise the key is in the
// key set at jku.
func (c jwsHeader) find(ctx context.Context, r did.Resolver) (crypto.PublicKey, string, error) {
	var key crypto.PublicKey
	var err error
	name := c.kid
	if sets, ok := r.(SetFinder); c.jku != "" && ok && !strings.HasPrefix(c.kid, "did:") {
		name = c.jku + "#" + c.kid
		var set []byte
		if set, err = sets.KeySet(ctx, c.jku); err == nil {
			key, err = keyInSet(set, c)
		}
	} else {
		key, err = keyOfDID(ctx, c.kid, r)
	}
	if err != nil {
		return nil, "", fmt.Errorf("%w: %w", ErrUnknownKey, err)
	}
	return key, name, nil
}

// keyOfDID returns a verification method that is allowed for assertions.
func keyOfDID(ctx context.Context, kid string, r did.Resolver) (crypto.PublicKey, error) {
	u, err := did.ParseURL(kid)
	if err != nil {
		return nil, err
	}
	if text, ok := strings.CutPrefix(string(u.DID), "did:key:zDn"); ok { // P-256, which a resolver of Ed25519 keys does not support
		return keyOfP256("zDn"+text, u)
	}
	document, err := r.Resolve(ctx, u.DID)
	if err != nil {
		return nil, err
	}
	method := document.Method(kid)
	if method == nil || !document.Allows("assertionMethod", kid) {
		return nil, fmt.Errorf("%s has no such assertion method", u.DID)
	}
	switch method.KeyType {
	case did.Ed25519:
		return ed25519.PublicKey(method.PublicKey), nil
	case did.P256:
		return point(method.PublicKey)
	}
	return nil, fmt.Errorf("unsupported key type %s", method.KeyType)
}

// keyOfP256 decodes a P-256 did:key (did:key method §3.1): multicodec 0x1200 before a compressed point.
func keyOfP256(text string, u did.URL) (crypto.PublicKey, error) {
	b, err := did.DecodeBase58(text)
	if err != nil || len(b) != 35 || b[0] != 0x80 || b[1] != 0x24 || u.Fragment != text {
		return nil, errors.New("invalid did:key of P-256")
	}
	return point(b[2:])
}

// point decodes a compressed P-256 point.
func point(b []byte) (crypto.PublicKey, error) {
	x, y := elliptic.UnmarshalCompressed(elliptic.P256(), b)
	if x == nil {
		return nil, errors.New("invalid P-256 point")
	}
	return ecdsa.ParseUncompressedPublicKey(elliptic.P256(), slices.Concat([]byte{4}, x.FillBytes(make([]byte, 32)), y.FillBytes(make([]byte, 32))))
}

// A jwk is a public key (RFC 7517, RFC 7518 §6, RFC 8037 §2).
type jwk struct {
	Type  string   `json:"kty"`
	Curve string   `json:"crv"`
	X     string   `json:"x"`
	Y     string   `json:"y"`
	N     string   `json:"n"`
	E     string   `json:"e"`
	ID    string   `json:"kid"`
	Alg   string   `json:"alg"`
	Use   string   `json:"use"`
	Ops   []string `json:"key_ops"`
}

// keyInSet returns the key of a header: the one with its id, or the only one.
func keyInSet(raw []byte, c jwsHeader) (crypto.PublicKey, error) {
	var set struct{ Keys []json.RawMessage }
	if len(raw) > MaxKeySet || json.Unmarshal(raw, &set) != nil || len(set.Keys) > maxKeys {
		return nil, errors.New("invalid key set")
	}
	for _, text := range set.Keys {
		var k jwk
		if json.Unmarshal(text, &k) != nil { // invalid keys are ignored (RFC 7517 §5)
			continue
		}
		if meant := k.ID == c.kid && c.kid != "" || c.kid == "" && len(set.Keys) == 1; meant && k.signs(c.alg) {
			return k.key()
		}
	}
	return nil, fmt.Errorf("the set has no key %q", c.kid)
}

// signs reports whether a key may be used with an algorithm.
func (k *jwk) signs(alg string) bool {
	return (k.Alg == "" || k.Alg == alg) && (k.Use == "" || k.Use == "sig") && (len(k.Ops) == 0 || slices.Contains(k.Ops, "verify"))
}

func (k *jwk) key() (crypto.PublicKey, error) {
	var parts [4][]byte
	for i, text := range []string{k.X, k.Y, k.N, k.E} {
		b, err := b64.DecodeString(text)
		if err != nil {
			return nil, errors.New("the key is not base64url")
		}
		parts[i] = b
	}
	x, y, n, e := parts[0], parts[1], new(big.Int).SetBytes(parts[2]), new(big.Int).SetBytes(parts[3])
	switch {
	case k.Type == "OKP" && k.Curve == "Ed25519" && did.CheckKey(x) == nil:
		return ed25519.PublicKey(x), nil
	case k.Type == "EC" && k.Curve == "P-256" && len(x) == 32 && len(y) == 32:
		return ecdsa.ParseUncompressedPublicKey(elliptic.P256(), slices.Concat([]byte{4}, x, y))
	case k.Type == "RSA" && n.BitLen() >= 2048 && n.BitLen() <= maxRSA && e.BitLen() > 1 && e.BitLen() < 32:
		return &rsa.PublicKey{N: n, E: int(e.Int64())}, nil
	}
	return nil, errors.New("unsupported key type")
}
