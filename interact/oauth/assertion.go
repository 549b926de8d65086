package oauth

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/lmosd/lmosd/interact/credentials"
)

// lives is the lifetime of an assertion. It is used at once; clocks differ.
const lives = 2 * time.Minute

// minRSA is the minimum size of RSA keys, in bits (RFC 7518 §3.3).
const minRSA = 2048

// A key signs client assertions.
type key struct {
	signer    crypto.Signer
	algorithm string // RFC 7518 §3.1, RFC 8037 §3.1, RFC 9864 §2.2
	id        string // of the header; empty: none
	audience  string
}

// key returns the key of a credential, with an algorithm that s accepts.
func (s Server) key(own credentials.Credential) (key, error) {
	signer, err := own.PrivateKey()
	if err != nil {
		return key{}, err
	}
	can := algorithms(signer)
	if len(can) == 0 {
		return key{}, fmt.Errorf("unsupported private key: expected Ed25519, P-256, P-384, P-521, or RSA with at least %d bits", minRSA)
	}
	k := key{signer: signer, algorithm: can[0], id: own.Kid, audience: cmp.Or(own.Aud, s.Issuer, s.TokenEndpoint)}
	if len(s.Algorithms) == 0 {
		return k, nil
	}
	both := slices.IndexFunc(can, func(a string) bool { return slices.Contains(s.Algorithms, a) })
	if both < 0 {
		return key{}, fmt.Errorf("the private key supports %s, the authorization server accepts %s", list(can), list(s.Algorithms))
	}
	k.algorithm = can[both]
	return k, nil
}

// algorithms returns the algorithms of a key, the most common first.
func algorithms(signer crypto.Signer) []string {
	switch public := signer.Public().(type) {
	case *rsa.PublicKey:
		if public.N.BitLen() >= minRSA {
			return []string{"RS256", "PS256"}
		}
	case *ecdsa.PublicKey:
		switch public.Params().BitSize {
		case 256:
			return []string{"ES256"}
		case 384:
			return []string{"ES384"}
		case 521:
			return []string{"ES512"}
		}
	case ed25519.PublicKey:
		return []string{"EdDSA", "Ed25519"}
	}
	return nil
}

// assertion returns a client assertion for the audience of the key (RFC 7523 §2.2, §3). Each has another jti.
func (k key) assertion(client string, now time.Time) (string, error) {
	header, err := json.Marshal(struct {
		Algorithm string `json:"alg"`
		Type      string `json:"typ"`
		ID        string `json:"kid,omitempty"`
	}{k.algorithm, "client-authentication+jwt", k.id})
	if err != nil {
		return "", err
	}
	claims, err := json.Marshal(struct {
		Issuer   string `json:"iss"`
		Subject  string `json:"sub"`
		Audience string `json:"aud"`
		Issued   int64  `json:"iat"`
		Expires  int64  `json:"exp"`
		ID       string `json:"jti"`
	}{client, client, k.audience, now.Unix(), now.Add(lives).Unix(), rand.Text()})
	if err != nil {
		return "", err
	}
	signed := base64.RawURLEncoding.EncodeToString(header) + "." + base64.RawURLEncoding.EncodeToString(claims)
	signature, err := k.sign([]byte(signed))
	if err != nil {
		return "", errors.New("signing with the private key failed")
	}
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature), nil
}

func (k key) sign(text []byte) ([]byte, error) {
	var o crypto.SignerOpts
	switch k.algorithm {
	case "EdDSA", "Ed25519":
		return k.signer.Sign(rand.Reader, text, crypto.Hash(0))
	case "ES384":
		o = crypto.SHA384
	case "ES512":
		o = crypto.SHA512
	case "PS256":
		o = &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash, Hash: crypto.SHA256} // RFC 7518 §3.5
	default:
		o = crypto.SHA256
	}
	h := o.HashFunc().New()
	h.Write(text)
	signature, err := k.signer.Sign(rand.Reader, h.Sum(nil), o)
	public, curve := k.signer.Public().(*ecdsa.PublicKey)
	if err != nil || !curve {
		return signature, err
	}
	// Both numbers in the size of the curve, instead of ASN.1 (RFC 7518 §3.4).
	var pair struct{ R, S *big.Int }
	if _, err := asn1.Unmarshal(signature, &pair); err != nil {
		return nil, err
	}
	size := (public.Params().BitSize + 7) / 8
	out := make([]byte, 2*size)
	pair.R.FillBytes(out[:size])
	pair.S.FillBytes(out[size:])
	return out, nil
}
