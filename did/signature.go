package did

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/sha512"
	"math/big"
)

// Algorithm returns the JWS algorithm of the signatures that the key makes: "EdDSA", "ES256" for P-256, "ES384" for P-384 (RFC 7518 §3.4, RFC
// 8037 §3.1); empty for other types.
func (m *VerificationMethod) Algorithm() string {
	switch m.KeyType {
	case Ed25519:
		return "EdDSA"
	case P256:
		return "ES256"
	case P384:
		return "ES384"
	}
	return ""
}

// Verifies reports whether the key has signed message with its [VerificationMethod.Algorithm]. A signature of an elliptic curve is two numbers of
// the size of the curve.
func (m *VerificationMethod) Verifies(message, signature []byte) bool {
	switch m.KeyType {
	case Ed25519:
		return CheckKey(m.PublicKey) == nil && ed25519.Verify(m.PublicKey, message, signature)
	case P256:
		sum := sha256.Sum256(message)
		return verifyECDSA(elliptic.P256(), m.PublicKey, sum[:], signature)
	case P384:
		sum := sha512.Sum384(message)
		return verifyECDSA(elliptic.P384(), m.PublicKey, sum[:], signature)
	}
	return false
}

// verifyECDSA verifies a signature; key is a compressed point.
func verifyECDSA(curve elliptic.Curve, key, hash, signature []byte) bool {
	size := (curve.Params().BitSize + 7) / 8
	x, y := elliptic.UnmarshalCompressed(curve, key)
	if x == nil || len(signature) != 2*size {
		return false
	}
	point := make([]byte, 1+2*size)
	point[0] = 4 // uncompressed (SEC 1 §2.3.3)
	x.FillBytes(point[1 : 1+size])
	y.FillBytes(point[1+size:])
	public, err := ecdsa.ParseUncompressedPublicKey(curve, point)
	if err != nil {
		return false
	}
	return ecdsa.Verify(public, hash, new(big.Int).SetBytes(signature[:size]), new(big.Int).SetBytes(signature[size:]))
}
