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

// A SetFinder is a resolver that also finds sets of keys (RFC 7517 §5), at the addresses that signatures name in "jku". What it takes
// for one it answers for: a set says nothing of whose it is. The error is why not.
type SetFinder interface {
	KeySet(ctx context.Context, jku string) ([]byte, error)
}

// Limits of a set of keys.
const (
	maxSet  = 64 << 10 // bytes
	maxKeys = 100
	maxRSA  = 8192 // bits
)

// verifies reports whether signature is that of text, under the algorithm (RFC 7518 §3, RFC 8037 §3.1). A key of another kind verifies
// nothing.
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

// algorithms are those that are verified.
var algorithms = []string{"EdDSA", "Ed25519", "ES256", "RS256"}

// A claim is what a protected header says of who signed.
type claim struct{ alg, kid, jku string }

// readHeader reads a protected header. One with "crit" asks for what is not known here (RFC 7515 §4.1.11).
func readHeader(protected string) (c claim, err error) {
	raw, err := b64.DecodeString(protected)
	if err != nil {
		return c, fmt.Errorf("%w: its header is no base64url", ErrUnknownKey)
	}
	header, err := jcs.Object(raw, 8<<10)
	if err != nil {
		return c, fmt.Errorf("%w: its header is no JSON", ErrUnknownKey)
	}
	c.alg, _ = header["alg"].(string)
	c.kid, _ = header["kid"].(string)
	c.jku, _ = header["jku"].(string)
	if _, critical := header["crit"]; critical || !slices.Contains(algorithms, c.alg) {
		return c, fmt.Errorf("%w: %q is not verified here", ErrUnknownKey, c.alg)
	}
	return c, nil
}

// find returns the key that a header names, and what to call it. Who is named by a DID answers for itself; else the set at jku has
// the key.
func (c claim) find(ctx context.Context, r did.Resolver) (crypto.PublicKey, string, error) {
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

// keyOfDID finds a verification method that may assert.
func keyOfDID(ctx context.Context, kid string, r did.Resolver) (crypto.PublicKey, error) {
	u, err := did.ParseURL(kid)
	if err != nil {
		return nil, err
	}
	if text, ok := strings.CutPrefix(string(u.DID), "did:key:zDn"); ok { // of P-256, which a resolver of nodes' keys does not know
		return keyOfP256("zDn"+text, u)
	}
	document, err := r.Resolve(ctx, u.DID)
	if err != nil {
		return nil, err
	}
	method := document.Method(kid)
	if method == nil || !document.Allows("assertionMethod", kid) {
		return nil, fmt.Errorf("%s has no such key to assert with", u.DID)
	}
	switch method.KeyType {
	case did.Ed25519:
		return ed25519.PublicKey(method.PublicKey), nil
	case did.P256:
		return point(method.PublicKey)
	}
	return nil, fmt.Errorf("keys of %s are not verified with here", method.KeyType)
}

// keyOfP256 reads a did:key of P-256 (did:key method §3.1): multicodec 0x1200 before a compressed point.
func keyOfP256(text string, u did.URL) (crypto.PublicKey, error) {
	b, err := did.DecodeBase58(text)
	if err != nil || len(b) != 35 || b[0] != 0x80 || b[1] != 0x24 || u.Fragment != text {
		return nil, errors.New("it is no did:key of P-256")
	}
	return point(b[2:])
}

// point reads a compressed point of P-256.
func point(b []byte) (crypto.PublicKey, error) {
	x, y := elliptic.UnmarshalCompressed(elliptic.P256(), b)
	if x == nil {
		return nil, errors.New("it is no point of P-256")
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

// keyInSet finds the key that a header means: by its id, or the only one.
func keyInSet(raw []byte, c claim) (crypto.PublicKey, error) {
	var set struct{ Keys []json.RawMessage }
	if len(raw) > maxSet || json.Unmarshal(raw, &set) != nil || len(set.Keys) > maxKeys {
		return nil, errors.New("what is there is no set of keys")
	}
	for _, text := range set.Keys {
		var k jwk
		if json.Unmarshal(text, &k) != nil { // one that is not understood is passed over (RFC 7517 §5)
			continue
		}
		if meant := k.ID == c.kid && c.kid != "" || c.kid == "" && len(set.Keys) == 1; meant && k.signs(c.alg) {
			return k.key()
		}
	}
	return nil, fmt.Errorf("the set has no key %q", c.kid)
}

// signs reports whether a key may be one of an algorithm.
func (k *jwk) signs(alg string) bool {
	return (k.Alg == "" || k.Alg == alg) && (k.Use == "" || k.Use == "sig") && (len(k.Ops) == 0 || slices.Contains(k.Ops, "verify"))
}

func (k *jwk) key() (crypto.PublicKey, error) {
	var parts [4][]byte
	for i, text := range []string{k.X, k.Y, k.N, k.E} {
		b, err := b64.DecodeString(text)
		if err != nil {
			return nil, errors.New("the key is no base64url")
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
	return nil, errors.New("keys of its kind are not verified with here")
}
