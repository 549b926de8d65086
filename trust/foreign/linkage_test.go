package foreign

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"maps"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/aries"
)

// A signer makes entries of DID configurations.
type signer struct {
	key ed25519.PrivateKey
	id  did.DID
}

func newSigner(t testing.TB) signer {
	t.Helper()
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	id, err := did.FromKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return signer{key, id}
}

func (s signer) header() map[string]any {
	return map[string]any{"alg": "EdDSA", "kid": string(s.id) + "#" + s.id.Multibase()}
}

func (s signer) claims() map[string]any {
	return map[string]any{"iss": string(s.id), "sub": string(s.id), "nbf": noon.Unix(), "exp": noon.Add(time.Hour).Unix(), "vc": map[string]any{
		"@context": []any{"https://www.w3.org/2018/credentials/v1", aries.ContextLinkage}, "issuer": string(s.id),
		"type":              []any{"VerifiableCredential", "DomainLinkageCredential"},
		"credentialSubject": map[string]any{"id": string(s.id), "origin": "https://acme.example"}}}
}

func encode(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

func (s signer) jwt(t testing.TB, header, claims map[string]any) string {
	text := encode(t, header) + "." + encode(t, claims)
	return text + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(s.key, []byte(text)))
}

func configuration(t testing.TB, entries ...any) []byte {
	t.Helper()
	b, err := json.Marshal(map[string]any{"@context": aries.ContextLinkage, "linked_dids": entries})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestLinkedByJWT(t *testing.T) {
	t.Parallel()
	s, other := newSigner(t), newSigner(t)
	check := aries.Check{Resolver: did.Keys(), Now: noon.Add(time.Minute)}
	with := func(m map[string]any, name string, v any) map[string]any {
		m = maps.Clone(m)
		if m[name] = v; v == nil {
			delete(m, name)
		}
		return m
	}
	subject := func(name string, v any) map[string]any {
		c := s.claims()
		c["vc"].(map[string]any)["credentialSubject"].(map[string]any)[name] = v
		return c
	}
	good := s.jwt(t, s.header(), s.claims())
	for _, c := range []struct {
		name string
		raw  []byte
		ok   bool
	}{
		{"good", configuration(t, good), true},
		{"good with a type", configuration(t, s.jwt(t, with(s.header(), "typ", "JWT"), s.claims())), true},
		{"origin without a scheme, as in the specification", configuration(t, s.jwt(t, s.header(), subject("origin", "acme.example"))), true},
		{"after an entry of another DID", configuration(t, other.jwt(t, other.header(), other.claims()), good), true},
		{"after a wrong entry", configuration(t, "x", 7, s.jwt(t, s.header(), subject("origin", "https://other.example")), good), true},
		{"another origin", configuration(t, s.jwt(t, s.header(), subject("origin", "https://acme.example:8443"))), false},
		{"http", configuration(t, s.jwt(t, s.header(), subject("origin", "http://acme.example"))), false},
		{"another subject", configuration(t, s.jwt(t, s.header(), subject("id", string(other.id)))), false},
		{"another DID", configuration(t, other.jwt(t, other.header(), other.claims())), false},
		{"signed by another key", configuration(t, other.jwt(t, s.header(), s.claims())), false},
		{"key of another DID", configuration(t, other.jwt(t, other.header(), s.claims())), false},
		{"none", configuration(t, s.jwt(t, with(s.header(), "alg", "none"), s.claims())), false},
		{"HMAC", configuration(t, s.jwt(t, with(s.header(), "alg", "HS256"), s.claims())), false},
		{"critical member", configuration(t, s.jwt(t, with(s.header(), "crit", []any{"x"}), s.claims())), false},
		{"no key", configuration(t, s.jwt(t, with(s.header(), "kid", nil), s.claims())), false},
		{"no end", configuration(t, s.jwt(t, s.header(), with(s.claims(), "exp", nil))), false},
		{"expired", configuration(t, s.jwt(t, s.header(), with(s.claims(), "exp", noon.Add(-time.Hour).Unix()))), false},
		{"not valid yet", configuration(t, s.jwt(t, s.header(), with(s.claims(), "nbf", noon.Add(time.Hour).Unix()))), false},
		{"other type", configuration(t, s.jwt(t, s.header(), with(s.claims(), "vc", map[string]any{"type": []any{"VerifiableCredential"}}))), false},
		{"no entries", configuration(t), false},
		{"two parts", configuration(t, encode(t, s.header())+"."+encode(t, s.claims())), false},
		{"no JSON", []byte("<html>"), false},
		{"other context", []byte(`{"@context":"https://x.example","linked_dids":["` + good + `"]}`), false},
		{"other members", []byte(`{"@context":"` + aries.ContextLinkage + `","linked_dids":["` + good + `"],"x":1}`), false},
		{"1 MB", make([]byte, 1<<20), false},
	} {
		if err := Linked(t.Context(), c.raw, "https://acme.example", s.id, check); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestLinkedByProof(t *testing.T) {
	t.Parallel()
	w := newWallet(t)
	check := aries.Check{Resolver: did.Keys(), Now: noon.Add(time.Minute)}
	entry := func(change func(map[string]any)) any {
		doc := map[string]any{"@context": []any{"https://www.w3.org/2018/credentials/v1", "https://w3id.org/security/suites/ed25519-2020/v1", aries.ContextLinkage},
			"type": []any{"VerifiableCredential", "DomainLinkageCredential"}, "issuer": string(w.DID()), "issuanceDate": "2026-11-20T12:00:00Z",
			"expirationDate": "2026-11-20T13:00:00Z", "credentialSubject": map[string]any{"id": string(w.DID()), "origin": "https://acme.example"}}
		if change != nil {
			change(doc)
		}
		raw, err := w.Sign(doc, noon)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	for name, c := range map[string]struct {
		entry any
		ok    bool
	}{
		"good": {entry(nil), true},
		"another origin": {entry(func(doc map[string]any) {
			doc["credentialSubject"].(map[string]any)["origin"] = "https://other.example"
		}), false},
		"another subject": {entry(func(doc map[string]any) {
			doc["credentialSubject"].(map[string]any)["id"] = string(newSigner(t).id)
		}), false},
		"another type": {entry(func(doc map[string]any) { doc["type"] = []any{"VerifiableCredential"} }), false},
		"expired, within the skew": {entry(func(doc map[string]any) {
			doc["expirationDate"] = "2026-11-20T12:00:00Z"
			doc["issuanceDate"] = "2026-11-19T12:00:00Z"
		}), true},
		"long expired": {entry(func(doc map[string]any) {
			doc["expirationDate"] = "2026-11-19T13:00:00Z"
			doc["issuanceDate"] = "2026-11-19T12:00:00Z"
		}), false},
		"no expiry": {entry(func(doc map[string]any) { delete(doc, "expirationDate") }), false},
	} {
		if err := Linked(t.Context(), configuration(t, c.entry), "https://acme.example", w.DID(), check); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzLinked(f *testing.F) {
	s := newSigner(f)
	f.Add(configuration(f, s.jwt(f, s.header(), s.claims())))
	f.Add(configuration(f, map[string]any{"issuer": string(s.id)}, "a.b.c", nil))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if Linked(t.Context(), raw, "https://other.example", s.id, aries.Check{Resolver: did.Keys(), Now: noon}) == nil {
			t.Fatal("linked to an origin that nothing names")
		}
	})
}
