package did

import (
	"crypto/ecdh"
	"crypto/elliptic"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math/big"
	"strings"

	"github.com/mr-tron/base58"
)

// Names of key types in [VerificationMethod.KeyType]. The bytes in PublicKey are: 32 for Ed25519 and X25519, a
// compressed point (SEC 1 §2.3.3) for the elliptic curves, the multikey's bytes for the others.
const (
	Ed25519   = "Ed25519"
	X25519    = "X25519"
	P256      = "P-256"
	P384      = "P-384"
	P521      = "P-521"
	Secp256k1 = "secp256k1"
)

// A material is a public key, read from any of its forms. keyType is empty if the algorithm is unknown.
type material struct {
	keyType string
	key     []byte
}

// codecs are the multicodec codes of public keys; size 0 allows any size.
var codecs = map[uint64]struct {
	keyType string
	size    int
}{
	0xed:   {Ed25519, 32},
	0xec:   {X25519, 32},
	0xe7:   {Secp256k1, 33},
	0x1200: {P256, 33},
	0x1201: {P384, 49},
	0x1202: {P521, 67},
	0xea:   {"BLS12-381-G1", 48},
	0xeb:   {"BLS12-381-G2", 96},
	0x1205: {"RSA", 0},
}

// splitMultikey reads a multicodec code and the key after it (Controlled Identifiers §2.2.2), and checks the key.
func splitMultikey(b []byte) (material, error) {
	code, n := binary.Uvarint(b)
	if n <= 0 || n > 1 && b[n-1] == 0 { // a last byte of zero: not the shortest encoding of the number
		return material{}, errors.New("no multicodec code before the key")
	}
	c, ok := codecs[code]
	if !ok {
		return material{}, nil
	}
	m := material{c.keyType, b[n:]}
	if c.size != 0 && len(m.key) != c.size {
		return material{}, fmt.Errorf("expected a %s key of %d bytes, got %d", c.keyType, c.size, len(m.key))
	}
	return m, m.check()
}

// check rejects weak Ed25519 keys ([CheckKey]), X25519 keys with which every agreement results in zero, and points that are not on their
// curve. secp256k1, BLS and RSA are not checked, because they are not used here.
func (m material) check() error {
	switch m.keyType {
	case Ed25519:
		return CheckKey(m.key)
	case X25519:
		return checkAgreement(m.key)
	case P256, P384, P521:
		if x, _ := elliptic.UnmarshalCompressed(curves[m.keyType], m.key); x == nil {
			return fmt.Errorf("the %s key is not a compressed point of the curve", m.keyType)
		}
	}
	return nil
}

var curves = map[string]elliptic.Curve{P256: elliptic.P256(), P384: elliptic.P384(), P521: elliptic.P521()}

// anyX25519 is a fixed private key, used only to test whether the agreement with a public key results in zero.
var anyX25519 = func() *ecdh.PrivateKey {
	k, err := ecdh.X25519().NewPrivateKey(make([]byte, 32)) // clamped: 2^254
	if err != nil {
		panic(err)
	}
	return k
}()

func checkAgreement(key []byte) error {
	pub, err := ecdh.X25519().NewPublicKey(key)
	if err == nil {
		_, err = anyX25519.ECDH(pub) // RFC 7748 §6.1: zero for the points of small order
	}
	if err != nil {
		return errors.New("the X25519 key has small order or a wrong length")
	}
	return nil
}

// multikeyText reads publicKeyMultibase: base58btc, or base64url (Controlled Identifiers §2.4).
func multikeyText(s string) ([]byte, error) {
	if rest, ok := strings.CutPrefix(s, "u"); ok {
		return base64.RawURLEncoding.Strict().DecodeString(rest)
	}
	return DecodeBase58(s)
}

// readMultibase reads publicKeyMultibase.
func readMultibase(s string) (material, error) {
	b, err := multikeyText(s)
	if err != nil {
		return material{}, err
	}
	return splitMultikey(b)
}

// readBase58 reads publicKeyBase58 of the suites before 2020; the type determines the algorithm.
func readBase58(s, typ string) (material, error) {
	want := suites[typ]
	if want == "" || len(s) > MaxLength {
		return material{}, nil
	}
	b, err := base58.Decode(s)
	switch {
	case err != nil:
		return material{}, errors.New("publicKeyBase58 is not base58btc")
	case len(b) != 32:
		return material{}, fmt.Errorf("expected a key of type %s with 32 bytes, got %d", typ, len(b))
	}
	m := material{want, b}
	return m, m.check()
}

// readJWK reads publicKeyJwk (RFC 7517, RFC 8037). The material of other curves than those below is unknown.
func readJWK(jwk map[string]any) (material, error) {
	for name := range jwk {
		if isPrivateJWK(name) {
			return material{}, fmt.Errorf("publicKeyJwk has the private member %q", name)
		}
	}
	kty, _ := jwk["kty"].(string)
	crv, _ := jwk["crv"].(string)
	switch {
	case kty == "OKP" && (crv == Ed25519 || crv == X25519):
		x, err := jwkBytes(jwk, "x", 32)
		if err != nil {
			return material{}, err
		}
		m := material{crv, x}
		return m, m.check()
	case kty == "EC" && curves[crv] != nil:
		return readPoint(jwk, crv)
	}
	return material{}, nil
}

func readPoint(jwk map[string]any, crv string) (material, error) {
	curve := curves[crv]
	size := (curve.Params().BitSize + 7) / 8
	x, err := jwkBytes(jwk, "x", size)
	if err != nil {
		return material{}, err
	}
	y, err := jwkBytes(jwk, "y", size)
	if err != nil {
		return material{}, err
	}
	m := material{crv, append([]byte{2 | y[size-1]&1}, x...)}
	_, got := elliptic.UnmarshalCompressed(curve, m.key)
	if got == nil || got.Cmp(new(big.Int).SetBytes(y)) != 0 {
		return material{}, fmt.Errorf("the %s key is not a point of the curve", crv)
	}
	return m, nil
}

func jwkBytes(jwk map[string]any, name string, size int) ([]byte, error) {
	s, _ := jwk[name].(string)
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(b) != size {
		return nil, fmt.Errorf("%q of publicKeyJwk is not the base64url of %d bytes", name, size)
	}
	return b, nil
}

// isPrivateJWK reports whether a member holds private or symmetric key material (RFC 7518 §6).
func isPrivateJWK(name string) bool {
	switch name {
	case "d", "p", "q", "dp", "dq", "qi", "oth", "k":
		return true
	}
	return false
}

// suites are the types of verification methods that fix the algorithm.
var suites = map[string]string{
	"Ed25519VerificationKey2018": Ed25519,
	"Ed25519VerificationKey2020": Ed25519,
	"X25519KeyAgreementKey2019":  X25519,
	"X25519KeyAgreementKey2020":  X25519,
}
