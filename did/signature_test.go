package did

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"testing"
)

func TestSignaturesOfKeyTypes(t *testing.T) {
	t.Parallel()
	message := []byte("message")
	sum256, sum384 := sha256.Sum256(message), sha512.Sum384(message)
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []signatureCase{
		{Ed25519, "EdDSA", public, ed25519.Sign(private, message)},
		ecdsaCase(t, P256, "ES256", elliptic.P256(), sum256[:]),
		ecdsaCase(t, P384, "ES384", elliptic.P384(), sum384[:]),
	} {
		m, signature := &VerificationMethod{KeyType: c.keyType, PublicKey: c.key}, c.signature
		if m.Algorithm() != c.alg || !m.Verifies(message, signature) {
			t.Errorf("%s: algorithm %q, the signature does not verify", c.keyType, m.Algorithm())
		}
		changed := append([]byte(nil), signature...)
		changed[5] ^= 1
		for name, bad := range map[string][]byte{"changed": changed, "short": signature[1:], "long": append([]byte{0}, signature...), "empty": nil} {
			if m.Verifies(message, bad) {
				t.Errorf("%s: a signature that is %s verifies", c.keyType, name)
			}
		}
		if m.Verifies([]byte("other"), signature) {
			t.Errorf("%s: another message verifies", c.keyType)
		}
	}
	weak := &VerificationMethod{KeyType: Ed25519, PublicKey: make([]byte, 32)}
	other := &VerificationMethod{KeyType: Secp256k1, PublicKey: make([]byte, 33)}
	for _, m := range []*VerificationMethod{weak, other, {KeyType: P256, PublicKey: make([]byte, 33)}} {
		if m.Verifies(message, make([]byte, 64)) {
			t.Errorf("%s: a key that is none verifies", m.KeyType)
		}
	}
}

type signatureCase struct {
	keyType, alg   string
	key, signature []byte
}

// ecdsaCase returns a new key of a curve and its signature of a hash.
func ecdsaCase(t *testing.T, keyType, alg string, curve elliptic.Curve, hash []byte) signatureCase {
	t.Helper()
	private, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	r, s, err := ecdsa.Sign(rand.Reader, private, hash)
	if err != nil {
		t.Fatal(err)
	}
	size := (curve.Params().BitSize + 7) / 8
	signature := make([]byte, 2*size)
	r.FillBytes(signature[:size])
	s.FillBytes(signature[size:])
	point, err := private.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return signatureCase{keyType, alg, append([]byte{2 | point[len(point)-1]&1}, point[1:1+size]...), signature}
}
