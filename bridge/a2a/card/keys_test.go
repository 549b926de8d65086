package card

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/did"
)

// A ring resolves key sets by URL, and did:web documents by DID.
type ring map[string]string

func (r ring) Resolve(ctx context.Context, id did.DID) (*did.Document, error) {
	if text, ok := r[string(id)]; ok {
		return did.ParseDocument([]byte(text), id)
	}
	return did.Keys().Resolve(ctx, id)
}

func (r ring) KeySet(_ context.Context, jku string) ([]byte, error) {
	if text, ok := r[jku]; ok {
		return []byte(text), nil
	}
	return nil, errors.New("not taken")
}

// A signer signs text with an algorithm.
type signer struct {
	alg  string
	jwk  string // without its id
	sign func(text []byte) []byte
}

func uint256(n *big.Int) []byte { return n.FillBytes(make([]byte, 32)) }

func signers(t *testing.T) (all map[string]signer, compressed []byte) {
	t.Helper()
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	x, y := uint256(ec.X), uint256(ec.Y)
	rs, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	sum := func(text []byte) []byte { s := sha256.Sum256(text); return s[:] }
	return map[string]signer{
		"ES256": {"ES256", fmt.Sprintf(`"kty":"EC","crv":"P-256","x":%q,"y":%q`, b64.EncodeToString(x), b64.EncodeToString(y)), func(text []byte) []byte {
			r, s, err := ecdsa.Sign(rand.Reader, ec, sum(text))
			if err != nil {
				t.Fatal(err)
			}
			return append(uint256(r), uint256(s)...)
		}},
		"RS256": {"RS256", fmt.Sprintf(`"kty":"RSA","n":%q,"e":"AQAB"`, b64.EncodeToString(rs.N.Bytes())), func(text []byte) []byte {
			s, err := rsa.SignPKCS1v15(rand.Reader, rs, crypto.SHA256, sum(text))
			if err != nil {
				t.Fatal(err)
			}
			return s
		}},
		"EdDSA": {"EdDSA", fmt.Sprintf(`"kty":"OKP","crv":"Ed25519","x":%q`, b64.EncodeToString(public)), func(text []byte) []byte { return ed25519.Sign(private, text) }},
	}, elliptic.MarshalCompressed(elliptic.P256(), ec.X, ec.Y)
}

// signedWith is the golden card with a signature under header.
func signedWith(s signer, header string) []byte {
	protected := b64.EncodeToString([]byte(header))
	signature := b64.EncodeToString(s.sign([]byte(protected + "." + b64.EncodeToString([]byte(goldenPayload)))))
	return []byte(strings.TrimSuffix(goldenPayload, "}") + `,"signatures":[{"protected":"` + protected + `","signature":"` + signature + `"}]}`)
}

// TestAlgorithms verifies foreign signatures: with keys of key sets, did:key and did:web.
func TestAlgorithms(t *testing.T) {
	t.Parallel()
	all, compressed := signers(t)
	const at = "https://keys.example/jwks.json"
	es, ed, rs := all["ES256"], all["EdDSA"], all["RS256"]
	p256 := did.EncodeBase58(append([]byte{0x80, 0x24}, compressed...))
	key := "did:key:" + p256
	web := func(material string) string {
		return `{"id":"did:web:x.example","verificationMethod":[{"id":"did:web:x.example#1","type":"JsonWebKey2020","controller":"did:web:x.example",` + material + `}],"assertionMethod":["did:web:x.example#1"]}`
	}
	set := func(keys ...string) string { return `{"keys":[` + strings.Join(keys, ",") + `]}` }
	with := func(s signer, more string) string { return "{" + s.jwk + more + "}" }
	header := func(alg, more string) string { return `{"alg":"` + alg + `","typ":"JOSE"` + more + `}` }
	named := `,"kid":"k1","jku":"` + at + `"`
	for name, test := range map[string]struct {
		card []byte
		ring ring
		want string // the form, or the error
	}{
		"ES256":                         {signedWith(es, header("ES256", named)), ring{at: set(with(rs, `,"kid":"k0"`), with(es, `,"kid":"k1","alg":"ES256","use":"sig","key_ops":["verify"]`))}, "proto"},
		"RS256":                         {signedWith(rs, header("RS256", named)), ring{at: set(with(rs, `,"kid":"k1"`))}, "proto"},
		"EdDSA of a set":                {signedWith(ed, header("EdDSA", named)), ring{at: set(with(ed, `,"kid":"k1"`))}, "proto"},
		"the only key":                  {signedWith(es, header("ES256", `,"jku":"`+at+`"`)), ring{at: set(with(es, ""))}, "proto"},
		"did:key of P-256":              {signedWith(es, header("ES256", `,"kid":"`+key+"#"+p256+`"`)), ring{}, "proto"},
		"did:web with a JWK":            {signedWith(es, header("ES256", `,"kid":"did:web:x.example#1"`)), ring{"did:web:x.example": web(`"publicKeyJwk":{` + es.jwk + `}`)}, "proto"},
		"did:web with a multikey":       {signedWith(es, header("ES256", `,"kid":"did:web:x.example#1"`)), ring{"did:web:x.example": web(`"publicKeyMultibase":"` + p256 + `"`)}, "proto"},
		"a DID beside a set":            {signedWith(es, header("ES256", `,"kid":"`+key+"#"+p256+`","jku":"`+at+`"`)), ring{at: set(with(ed, ""))}, "proto"},
		"another's key":                 {signedWith(es, header("ES256", named)), ring{at: set(with(newOtherKey(t), `,"kid":"k1"`))}, "wrong"},
		"a key of another kind":         {signedWith(es, header("ES256", named)), ring{at: set(with(ed, `,"kid":"k1"`))}, "wrong"},
		"another algorithm in the head": {signedWith(es, header("RS256", named)), ring{at: set(with(es, `,"kid":"k1"`))}, "wrong"},
		"one letter":                    {bytes.Replace(signedWith(es, header("ES256", named)), []byte("Echo agent"), []byte("Echo agemt"), 1), ring{at: set(with(es, `,"kid":"k1"`))}, "wrong"},
		"a signature that is too short": {bytes.Replace(signedWith(es, header("ES256", named)), []byte(`"signature":"`), []byte(`"signature":"AA","x":"`), 1), ring{at: set(with(es, `,"kid":"k1"`))}, "wrong"},
		"a set that is not taken":       {signedWith(es, header("ES256", named)), ring{}, "unknown"},
		"a key for another algorithm":   {signedWith(es, header("ES256", named)), ring{at: set(with(es, `,"kid":"k1","alg":"ES384"`))}, "unknown"},
		"a key to encrypt with":         {signedWith(es, header("ES256", named)), ring{at: set(with(es, `,"kid":"k1","use":"enc"`))}, "unknown"},
		"a key that may not verify":     {signedWith(es, header("ES256", named)), ring{at: set(with(es, `,"kid":"k1","key_ops":["encrypt"]`))}, "unknown"},
		"no such key":                   {signedWith(es, header("ES256", named)), ring{at: set(with(es, `,"kid":"k2"`), `7`, `{"kty":7}`)}, "unknown"},
		"no id, and two keys":           {signedWith(es, header("ES256", `,"jku":"`+at+`"`)), ring{at: set(with(es, ""), with(ed, ""))}, "unknown"},
		"a set that is none":            {signedWith(es, header("ES256", named)), ring{at: "<html>"}, "unknown"},
		"a set that is too large":       {signedWith(es, header("ES256", named)), ring{at: set(with(es, `,"kid":"k1"`)) + strings.Repeat(" ", MaxKeySet)}, "unknown"},
		"too many keys":                 {signedWith(es, header("ES256", named)), ring{at: set(strings.TrimSuffix(strings.Repeat("1,", maxKeys+1), ","))}, "unknown"},
		"a point off the curve":         {signedWith(es, header("ES256", named)), ring{at: set(fmt.Sprintf(`{"kid":"k1","kty":"EC","crv":"P-256","x":%q,"y":%[1]q}`, b64.EncodeToString(make([]byte, 32))))}, "unknown"},
		"a short RSA key":               {signedWith(rs, header("RS256", named)), ring{at: set(`{"kid":"k1","kty":"RSA","n":"AQAB","e":"AQAB"}`)}, "unknown"},
		"an exponent of one":            {signedWith(rs, header("RS256", named)), ring{at: set(strings.Replace(with(rs, `,"kid":"k1"`), "AQAB", "AQ", 1))}, "unknown"},
		"a key that is no base64":       {signedWith(es, header("ES256", named)), ring{at: set(`{"kid":"k1","kty":"EC","crv":"P-256","x":"%"}`)}, "unknown"},
		"an unknown algorithm":          {signedWith(es, header("ES512", named)), ring{at: set(with(es, `,"kid":"k1"`))}, "unknown"},
		"none":                          {signedWith(es, header("none", named)), ring{at: set(with(es, `,"kid":"k1"`))}, "unknown"},
		"a did:key with another's name": {signedWith(es, header("ES256", `,"kid":"`+key+`#z6Mk"`)), ring{}, "unknown"},
		"a did:web that is not there":   {signedWith(es, header("ES256", `,"kid":"did:web:y.example#1"`)), ring{}, "unknown"},
		"a did:web that may not assert": {signedWith(es, header("ES256", `,"kid":"did:web:x.example#2"`)), ring{"did:web:x.example": web(`"publicKeyMultibase":"` + p256 + `"`)}, "unknown"},
	} {
		v, err := Verify(t.Context(), test.card, test.ring)
		got := "error"
		switch {
		case err == nil:
			got = v.Form
		case errors.Is(err, ErrSignature):
			got = "wrong"
		case errors.Is(err, ErrUnknownKey):
			got = "unknown"
		}
		if got != test.want {
			t.Errorf("%s: %s (%v), want %s", name, got, err, test.want)
		}
	}
	v, err := Verify(t.Context(), signedWith(es, header("ES256", named)), ring{at: set(with(es, `,"kid":"k1"`))})
	if err != nil || v.Key != at+"#k1" {
		t.Errorf("the key is %+v, %v", v, err)
	}
	// A resolver without key sets does not find the keys in them.
	if _, err := Verify(t.Context(), signedWith(es, header("ES256", named)), did.Keys()); !errors.Is(err, ErrUnknownKey) {
		t.Errorf("without key sets: %v", err)
	}
}

// newOtherKey returns a new P-256 key.
func newOtherKey(t *testing.T) signer {
	all, _ := signers(t)
	return all["ES256"]
}

// TestSignatureOfJavaScriptLibrary verifies a card with security schemes that the JavaScript library signed: without them.
func TestSignatureOfJavaScriptLibrary(t *testing.T) {
	t.Parallel()
	with := strings.Replace(goldenPayload, `"skills"`, `"securitySchemes":{"b":{"httpAuthSecurityScheme":{"scheme":"Bearer"}}},"skills"`, 1)
	if got := verificationOf(t, signedAs(t, with, goldenPayload)); got != "library" {
		t.Errorf("the form is %s", got)
	}
	if got := verificationOf(t, signedAs(t, strings.Replace(with, "Echo agent", "Echo agemt", 1), goldenPayload)); got != "wrong" {
		t.Errorf("a changed card is %s", got)
	}
}

func FuzzKeySet(f *testing.F) {
	f.Add([]byte(`{"keys":[{"kid":"k","kty":"EC","crv":"P-256","x":"AA","y":"AA"},{"kid":"k","kty":"RSA","n":"AQAB","e":"AQAB"}]}`), `{"alg":"ES256","kid":"k","jku":"https://x"}`)
	f.Add([]byte(`{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`), `{"alg":"EdDSA"}`)
	f.Fuzz(func(t *testing.T, raw []byte, header string) {
		c, err := readHeader(b64.EncodeToString([]byte(header)))
		if err != nil {
			return
		}
		if key, err := keyInSet(raw, c); err == nil && verifies(c.alg, key, []byte("x"), []byte(header)) {
			t.Errorf("%s is a signature under %s", header, raw)
		}
		if !json.Valid(raw) {
			_, _, _ = c.find(t.Context(), ring{c.jku: string(raw)})
		}
	})
}
