//go:build !noaries

package aries

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hyperledger/aries-framework-go/component/models/ld/processor"
	"github.com/hyperledger/aries-framework-go/component/models/signature/api"
	"github.com/hyperledger/aries-framework-go/component/models/signature/verifier"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/jcs"
)

// noon is a time at which the credentials of testdata are valid.
var noon = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

func keys() did.Resolver {
	return did.Resolvers(map[string]did.Resolver{"key": did.Fallback(did.Keys(), Resolver())})
}

// credentials returns those that interop/credentials.mjs made with an independent implementation.
func credentials(t testing.TB) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob("testdata/credentials/*.json")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no credentials: %v", err)
	}
	out := map[string][]byte{}
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		out[strings.TrimSuffix(filepath.Base(path), ".json")] = raw
	}
	return out
}

func TestCredentialsOfAnotherImplementation(t *testing.T) {
	t.Parallel()
	for name, raw := range credentials(t) {
		if name == "domain-linkage" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := VerifyCredential(t.Context(), raw, Check{Resolver: keys(), Now: noon})
			if err != nil {
				t.Fatal(err)
			}
			want := &Credential{ID: "urn:uuid:5a0bdb1c-6c0e-4d5a-8e7c-0a5f4c7d2b11", Issuer: got.Issuer, Subject: counting,
				Types: []string{"RoleCredential"}, Claims: map[string]any{"roles": []any{"adjuster", "admin"}},
				From: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC), Until: time.Date(2099, 11, 20, 12, 0, 0, 0, time.UTC),
				Method: string(got.Issuer) + "#" + got.Issuer.Multibase()}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The credential that identity.foundation served in 2020 verifies with the contexts of this package.
func TestDomainLinkageOfItsSpecification(t *testing.T) {
	t.Parallel()
	raw := credentials(t)["domain-linkage"]
	c, err := VerifyCredential(t.Context(), raw, Check{Resolver: keys(), Now: time.Date(2021, 1, 1, 0, 0, 0, 0, time.UTC)})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(c.Types, []string{"DomainLinkageCredential"}) || c.Claims["origin"] != "https://identity.foundation" || c.Subject != c.Issuer {
		t.Errorf("%+v", c)
	}
	if _, err := VerifyCredential(t.Context(), raw, Check{Resolver: keys(), Now: noon}); !errors.Is(err, ErrExpired) {
		t.Error(err)
	}
}

// A single changed byte of a credential leads to an error, or leaves what was signed as it is.
func TestEachByteIsSigned(t *testing.T) {
	t.Parallel()
	raw := credentials(t)["ed25519-2020"]
	want, err := VerifyCredential(t.Context(), raw, Check{Resolver: keys(), Now: noon})
	if err != nil {
		t.Fatal(err)
	}
	for i := range raw {
		changed := slices.Clone(raw)
		changed[i] ^= 1
		if got, err := VerifyCredential(t.Context(), changed, Check{Resolver: keys(), Now: noon}); err == nil && cmp.Diff(want, got) != "" {
			t.Fatalf("byte %d: %s", i, cmp.Diff(want, got))
		}
	}
}

// An issuer signs whatever a test wants.
type issuer struct{ *Wallet }

func newIssuer(t testing.TB, name string) issuer {
	t.Helper()
	seed := sha256.Sum256([]byte(name))
	w, err := NewWallet(ed25519.NewKeyFromSeed(seed[:]))
	if err != nil {
		t.Fatal(err)
	}
	return issuer{w}
}

// proves returns a proof of a document, with some members in place of the usual ones.
func (i issuer) proves(t testing.TB, doc, members map[string]any) map[string]any {
	t.Helper()
	p, err := i.prove(doc, members)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const contextStatus = "https://w3id.org/vc/status-list/2021/v1"

// document returns a credential without a proof.
func (i issuer) document() map[string]any {
	return map[string]any{"@context": []any{contextCredentials, context2020, ContextRoles}, "id": "urn:example:1",
		"type": []any{"VerifiableCredential", "RoleCredential"}, "issuer": string(i.id), "issuanceDate": "2026-11-20T12:00:00Z",
		"expirationDate": "2027-11-20T12:00:00Z", "credentialSubject": map[string]any{"id": string(counting), "roles": []any{"adjuster"}}}
}

func marshal(t testing.TB, v any) []byte {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// signed returns a document with its proof.
func (i issuer) signed(t testing.TB, doc map[string]any) map[string]any {
	t.Helper()
	doc["proof"] = i.proves(t, doc, nil)
	return doc
}

// A trick is a change of a credential before it is signed, and after.
type trick struct {
	name          string
	before, after func(doc map[string]any)
	want          error
	text          string // a part of the message
}

func subject(doc map[string]any) map[string]any { return doc["credentialSubject"].(map[string]any) }

func TestVerifyCredentialRefuses(t *testing.T) {
	t.Parallel()
	i, other := newIssuer(t, "issuer"), newIssuer(t, "other")
	set := func(name string, v any) func(map[string]any) {
		return func(doc map[string]any) { doc[name] = v }
	}
	remove := func(name string) func(map[string]any) {
		return func(doc map[string]any) { delete(doc, name) }
	}
	inProof := func(name string, v any) func(map[string]any) {
		return func(doc map[string]any) { doc["proof"].(map[string]any)[name] = v }
	}
	wrong := func(doc map[string]any) map[string]any {
		p := maps.Clone(doc["proof"].(map[string]any))
		p["proofValue"] = did.EncodeBase58(make([]byte, 64))
		return p
	}
	for _, c := range []trick{
		// Proofs.
		{name: "without proof", after: remove("proof"), text: "no proof"},
		{name: "null proof", after: set("proof", nil), text: "no proof"},
		{name: "empty array of proofs", after: set("proof", []any{}), text: "0 proofs"},
		{name: "two proofs of which one is wrong", after: func(doc map[string]any) { doc["proof"] = []any{doc["proof"], wrong(doc)} }, text: "2 proofs"},
		{name: "two proofs of which the first is wrong", after: func(doc map[string]any) { doc["proof"] = []any{wrong(doc), doc["proof"]} }, text: "2 proofs"},
		{name: "array with a number", after: set("proof", []any{1}), text: "no proof"},
		{name: "proof with another signature", after: func(doc map[string]any) { doc["proof"] = wrong(doc) }, text: "does not verify"},
		{name: "proof by a key of another DID", after: func(doc map[string]any) {
			delete(doc, "proof")
			doc["proof"] = other.proves(t, doc, nil)
		}, text: "signed by"},
		{name: "proof by another key in the name of the issuer", after: func(doc map[string]any) {
			delete(doc, "proof")
			doc["proof"] = other.proves(t, doc, map[string]any{"verificationMethod": i.method})
		}, text: "does not verify"},
		{name: "proof by a key that is not in the document", after: inProof("verificationMethod", string(i.id)+"#"+string(other.id.Multibase())), text: "verificationMethod"},
		{name: "wrong purpose", after: func(doc map[string]any) {
			delete(doc, "proof")
			doc["proof"] = i.proves(t, doc, map[string]any{"proofPurpose": "authentication"})
		}, text: "purpose"},
		{name: "purpose changed", after: inProof("proofPurpose", "authentication"), text: "purpose"},
		{name: "proof that expires, which would not be signed", after: inProof("expires", "2030-01-01T00:00:00Z"), text: "expires"},
		{name: "proof with a nonce, which would not be signed", after: inProof("nonce", "abc"), text: "nonce"},
		{name: "proof for a domain", after: inProof("domain", "a.example"), text: "domain"},
		{name: "proof with a context", after: inProof("@context", contextCredentials), text: "@context"},
		{name: "unknown suite", after: inProof("type", "BbsBlsSignature2020"), text: "BbsBlsSignature2020"},
		{name: "proof from the future", after: func(doc map[string]any) {
			delete(doc, "proof")
			doc["proof"] = i.proves(t, doc, map[string]any{"created": "2027-01-01T00:00:00Z"})
		}, want: ErrNotYet},
		{name: "proof without a time", after: func(doc map[string]any) { delete(doc["proof"].(map[string]any), "created") }, text: "created"},
		{name: "suite without its context", before: set("@context", []any{contextCredentials, ContextRoles}), text: "not be signed"},

		// Times and subject.
		{name: "expired", before: set("expirationDate", "2026-11-30T00:00:00Z"), want: ErrExpired},
		{name: "not valid yet", before: set("issuanceDate", "2026-12-02T00:00:00Z"), want: ErrNotYet},
		{name: "no expiry", before: remove("expirationDate"), text: "no expirationDate"},
		{name: "expiry that is no time", before: set("expirationDate", "soon"), text: "expirationDate"},
		{name: "expiry as a list", before: set("expirationDate", []any{"2027-11-20T12:00:00Z", "2028-11-20T12:00:00Z"}), text: "expirationDate"},
		{name: "expires before it begins", before: set("expirationDate", "2026-11-19T12:00:00Z"), text: "before"},
		{name: "validUntil of the model 2.0", before: set("validUntil", "2026-11-21T12:00:00Z"), text: "validUntil"},
		{name: "no subject", before: remove("credentialSubject"), text: "credentialSubject"},
		{name: "subject without an id", before: func(doc map[string]any) { delete(subject(doc), "id") }, text: "credentialSubject.id"},
		{name: "subject that is no DID", before: func(doc map[string]any) { subject(doc)["id"] = "https://me.example" }, text: "credentialSubject.id"},
		{name: "two subjects", before: func(doc map[string]any) {
			doc["credentialSubject"] = []any{subject(doc), map[string]any{"id": string(i.id)}}
		}, text: "one object"},
		{name: "issuer that is no DID", before: set("issuer", "https://issuer.example"), text: "issuer"},
		{name: "no credential", before: set("type", []any{"RoleCredential"}), text: "VerifiableCredential"},
		{name: "status of an unknown type", before: set("credentialStatus", map[string]any{"id": "urn:a", "type": "urn:SomeStatus"}), text: "SomeStatus"},
		{name: "status as a reference", before: set("credentialStatus", "https://list.example/1#3"), text: "credentialStatus"},

		// Contexts.
		{name: "remote context", after: set("@context", []any{contextCredentials, context2020, "https://contexts.example/v1"}), text: "contexts.example"},
		{name: "context of a file", after: set("@context", []any{contextCredentials, "file:///etc/passwd"}), text: "file:"},
		{name: "inline context that redefines a term", after: set("@context", []any{contextCredentials, context2020, ContextRoles,
			map[string]any{"roles": "https://lmosd.dev/ns/lmosd#role"}}), text: "inline"},
		{name: "inline context with a default vocabulary", after: set("@context", []any{contextCredentials, context2020,
			map[string]any{"@vocab": "https://vocabulary.example/"}}), text: "inline"},
		{name: "other order of contexts", after: set("@context", []any{ContextRoles, contextCredentials, context2020}), text: "first context"},
		{name: "no context", after: remove("@context"), text: "@context"},
		{name: "model 2.0", after: set("@context", []any{"https://www.w3.org/ns/credentials/v2"}), text: "first context"},
		{name: "context in the subject", after: func(doc map[string]any) {
			subject(doc)["@context"] = map[string]any{"admin": "https://lmosd.dev/ns/lmosd#roles"}
		}, text: "keyword"},

		// What the canonicalization drops.
		{name: "member that no context defines", after: set("admin", true), text: "not be signed"},
		{name: "claim that no context defines", after: func(doc map[string]any) { subject(doc)["clearance"] = "secret" }, text: "not be signed"},
		{name: "claim that no context defines, signed", before: func(doc map[string]any) { subject(doc)["clearance"] = "secret" }, text: "not be signed"},
		{name: "type that no context defines", after: set("type", []any{"VerifiableCredential", "RoleCredential", "AdminCredential"}), text: "does not verify"},
		{name: "nested member that no context defines", before: func(doc map[string]any) {
			subject(doc)["role"] = map[string]any{"id": "urn:example:role"}
		}, after: func(doc map[string]any) {
			subject(doc)["role"] = map[string]any{"id": "urn:example:role", "level": 7}
		}, text: "not be signed"},
		{name: "status with a relative id", after: set("credentialStatus", map[string]any{"id": "list", "type": "StatusList2021Entry",
			"statusListCredential": "https://l.example", "statusListIndex": "1", "statusPurpose": "revocation"}), text: "not be signed"},
		{name: "holder that is no IRI", after: set("holder", "somebody"), text: "not be signed"},
		{name: "issuer as an object with more", after: set("issuer", map[string]any{"id": string(i.id), "name": "Bank of England"}), text: "not be signed"},
		{name: "null", after: set("holder", nil), text: "null"},
		{name: "empty array", after: set("evidence", []any{}), text: "empty array"},
		{name: "array in an array", after: func(doc map[string]any) { subject(doc)["roles"] = []any{[]any{"adjuster"}} }, text: "array in an array"},
		{name: "number with a fraction", before: func(doc map[string]any) { subject(doc)["role"] = 0.5 }, text: "integer"},
		{name: "repeated role", after: func(doc map[string]any) { subject(doc)["roles"] = []any{"adjuster", "adjuster"} }, text: "not be signed"},

		// Other forms of the same statements.
		{name: "graph", after: func(doc map[string]any) { doc["@graph"] = []any{map[string]any{"id": "urn:x"}} }, text: "keyword"},
		{name: "keyword in place of a member", after: func(doc map[string]any) {
			doc["@id"] = doc["id"]
			delete(doc, "id")
		}, text: "keyword"},
		{name: "status hidden behind its IRI", before: set("credentialStatus", map[string]any{"id": "https://l.example/1#3", "type": "StatusList2021Entry",
			"statusListCredential": "https://l.example/1", "statusListIndex": "3", "statusPurpose": "revocation"}), after: func(doc map[string]any) {
			doc["https://www.w3.org/2018/credentials#credentialStatus"] = doc["credentialStatus"]
			delete(doc, "credentialStatus")
		}, text: "IRI"},
		{name: "status moved to another object with the id of the credential", before: func(doc map[string]any) {
			subject(doc)["role"] = map[string]any{"id": "urn:example:1"}
			delete(doc, "id")
		}, after: func(doc map[string]any) {
			doc["id"] = "urn:example:1"
		}, text: "repeated"},
		{name: "claims moved to another object with the id of the subject", after: func(doc map[string]any) {
			doc["evidence"] = map[string]any{"id": string(counting), "roles": subject(doc)["roles"]}
		}, text: "repeated"},
		{name: "blank node", after: func(doc map[string]any) { doc["holder"] = "_:b0" }, text: "blank node"},
		{name: "many objects without an id", after: func(doc map[string]any) {
			all := make([]any, maxBlank+1)
			for n := range all {
				all[n] = map[string]any{"role": "x"}
			}
			doc["evidence"] = all
		}, text: "have no id"},

		// JSON.
		{name: "1 MB", after: set("evidence", strings.Repeat("x", 1<<20)), text: "bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			doc := i.document()
			if slices.Contains([]string{"status hidden behind its IRI", "status with a relative id", "status of an unknown type"}, c.name) {
				doc["@context"] = []any{contextCredentials, context2020, contextStatus, ContextRoles}
			}
			if c.before != nil {
				c.before(doc)
			}
			doc = i.signed(t, doc)
			if c.after != nil {
				c.after(doc)
			}
			want := c.want
			if want == nil {
				want = ErrCredential
			}
			got, err := VerifyCredential(t.Context(), marshal(t, doc), Check{Resolver: keys(), Now: noon})
			if !errors.Is(err, want) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%+v, %v; want %v with %q", got, err, want, c.text)
			} else if text := err.Error(); len(text) > 600 || strings.Contains(text, "\n") {
				t.Errorf("the message is not one short line: %s", text)
			}
		})
	}
}

// The document of a test is accepted, so that each refusal above has the reason that it names; so are forms with the same statements.
func TestVerifyCredentialAccepts(t *testing.T) {
	t.Parallel()
	i := newIssuer(t, "issuer")
	for _, c := range []trick{
		{name: "as it is"},
		{name: "array of one proof", after: func(doc map[string]any) { doc["proof"] = []any{doc["proof"]} }},
		{name: "array of one subject", after: func(doc map[string]any) { doc["credentialSubject"] = []any{subject(doc)} }},
		{name: "issuer as an object", after: func(doc map[string]any) { doc["issuer"] = map[string]any{"id": string(i.id)} }},
		{name: "no id", before: func(doc map[string]any) { delete(doc, "id") }},
		{name: "type as an IRI", before: func(doc map[string]any) {
			doc["type"] = []any{"VerifiableCredential", "https://claims.example/Adjuster"}
		}},
	} {
		doc := i.document()
		if c.before != nil {
			c.before(doc)
		}
		doc = i.signed(t, doc)
		if c.after != nil {
			c.after(doc)
		}
		got, err := VerifyCredential(t.Context(), marshal(t, doc), Check{Resolver: keys(), Now: noon})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		} else if got.Issuer != i.id || got.Subject != counting || cmp.Diff(got.Claims, map[string]any{"roles": []any{"adjuster"}}) != "" {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}

func TestWallet(t *testing.T) {
	t.Parallel()
	i := newIssuer(t, "issuer")
	raw, err := i.Issue(counting, noon, noon.Add(time.Hour), "adjuster", "admin")
	if err != nil {
		t.Fatal(err)
	}
	c, err := VerifyCredential(t.Context(), raw, Check{Resolver: keys(), Now: noon})
	if err != nil || c.Issuer != i.DID() || cmp.Diff(c.Claims, map[string]any{"roles": []any{"adjuster", "admin"}}) != "" {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestStatusIsRead(t *testing.T) {
	t.Parallel()
	i := newIssuer(t, "issuer")
	doc := i.document()
	doc["@context"] = []any{contextCredentials, context2020, contextStatus, ContextRoles}
	doc["credentialStatus"] = map[string]any{"id": "https://l.example/1#3", "type": "StatusList2021Entry", "statusListCredential": "https://l.example/1",
		"statusListIndex": "3", "statusPurpose": "revocation"}
	got, err := VerifyCredential(t.Context(), marshal(t, i.signed(t, doc)), Check{Resolver: keys(), Now: noon})
	if err != nil || cmp.Diff(got.Status, &Status{List: "https://l.example/1", Index: "3", Purpose: "revocation"}) != "" {
		t.Errorf("%+v, %v", got, err)
	}
}

// The module accepts what this package refuses. If that ends, so may the checks.
func TestModuleAcceptsWhatIsRefused(t *testing.T) {
	t.Parallel()
	i := newIssuer(t, "issuer")
	m, err := keyOf(t.Context(), keys(), did.URL{DID: i.id, Fragment: i.id.Multibase()})
	if err != nil {
		t.Fatal(err)
	}
	v, err := verifier.New(resolved{}, &careless{suite{name: "Ed25519Signature2020", key: m}})
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(map[string]any){
		"empty array of proofs":    func(doc map[string]any) { doc["proof"] = []any{} },
		"undefined claim":          func(doc map[string]any) { subject(doc)["clearance"] = "secret" },
		"unsigned time of a proof": func(doc map[string]any) { doc["proof"].(map[string]any)["expires"] = "2030-01-01T00:00:00Z" },
	} {
		doc := i.signed(t, i.document())
		change(doc)
		if err := v.VerifyObject(doc, processor.WithDocumentLoader(loader{})); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestJWSHeaders(t *testing.T) {
	t.Parallel()
	encode := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	for name, jws := range map[string]string{
		"empty":           "",
		"with content":    encode(`{"alg":"EdDSA","b64":false,"crit":["b64"]}`) + ".e30.AA",
		"encoded content": encode(`{"alg":"EdDSA"}`) + "..AA",
		"none":            encode(`{"alg":"none","b64":false,"crit":["b64"]}`) + "..AA",
		"HMAC":            encode(`{"alg":"HS256","b64":false,"crit":["b64"]}`) + "..AA",
		"other algorithm": encode(`{"alg":"ES256","b64":false,"crit":["b64"]}`) + "..AA",
		"key in header":   encode(`{"alg":"EdDSA","b64":false,"crit":["b64"],"jwk":{}}`) + "..AA",
		"unknown crit":    encode(`{"alg":"EdDSA","b64":false,"crit":["b64","x"]}`) + "..AA",
		"alg twice":       encode(`{"alg":"ES256","alg":"EdDSA","b64":false,"crit":["b64"]}`) + "..AA",
		"not base64":      "e30=..AA",
		"bad signature":   encode(`{"alg":"EdDSA","b64":false,"crit":["b64"]}`) + "..A=",
		"very long":       strings.Repeat("A", 2000) + "..AA",
	} {
		p := &embedded{suite: "JsonWebSignature2020"}
		err := p.readJWS(jws)
		if err == nil {
			err = p.fits(&did.VerificationMethod{KeyType: did.Ed25519})
		}
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// A document is the resolver of itself.
type document struct{ *did.Document }

func (d document) Resolve(context.Context, did.DID) (*did.Document, error) { return d.Document, nil }

func TestKeyOfIssuer(t *testing.T) {
	t.Parallel()
	i := newIssuer(t, "issuer")
	raw := marshal(t, i.signed(t, i.document()))
	for name, change := range map[string]func(*did.Document){
		"not listed under assertionMethod": func(d *did.Document) { d.AssertionMethod = nil },
		"listed for authentication only":   func(d *did.Document) { d.Authentication, d.AssertionMethod = d.AssertionMethod, nil },
		"controlled by another":            func(d *did.Document) { d.VerificationMethod[0].Controller = counting },
		"document of another":              func(d *did.Document) { d.ID = counting },
		"key of another type":              func(d *did.Document) { d.VerificationMethod[0].KeyType = did.Secp256k1 },
		"P-256 key for an Ed25519 suite":   func(d *did.Document) { d.VerificationMethod[0].KeyType = did.P256 },
		"no keys":                          func(d *did.Document) { d.VerificationMethod = nil },
	} {
		doc, err := did.Keys().Resolve(t.Context(), i.id)
		if err != nil {
			t.Fatal(err)
		}
		change(doc)
		if c, err := VerifyCredential(t.Context(), raw, Check{Resolver: document{doc}, Now: noon}); !errors.Is(err, ErrCredential) {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
	if _, err := VerifyCredential(t.Context(), raw, Check{Resolver: did.Resolvers(nil), Now: noon}); !errors.Is(err, did.ErrMethod) {
		t.Errorf("unknown method: %v", err)
	}
}

func TestVerifyEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := VerifyCredential(ctx, credentials(t)["ed25519-2020"], Check{Resolver: keys(), Now: noon}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Verifications share the decoded contexts.
func TestVerifyAtOnce(t *testing.T) {
	t.Parallel()
	all := credentials(t)
	var g sync.WaitGroup
	for _, raw := range all {
		for range 3 {
			g.Go(func() {
				if _, err := VerifyCredential(t.Context(), raw, Check{Resolver: keys(), Now: noon}); err != nil && !errors.Is(err, ErrExpired) {
					t.Error(err)
				}
			})
		}
	}
	g.Wait()
}

// A term has one meaning in all contexts of a credential, so that a name in a verified credential says what was signed.
func TestContextsDefineEachTermOnce(t *testing.T) {
	t.Parallel()
	meaning, core := map[string]string{}, map[string]string{}
	for _, url := range documentContexts {
		c, ok := contexts()[url].(map[string]any)
		if !ok {
			t.Fatalf("%s is not built in", url)
		}
		terms(t, c["@context"], map[string]string{}, func(name, iri string, prefix bool) {
			if old, ok := meaning[name]; ok && old != iri {
				t.Errorf("%s: %q is %s and %s", url, name, old, iri)
			}
			meaning[name] = iri
			if prefix {
				return
			}
			if old, ok := core[iri]; ok && old != name {
				t.Errorf("%s: %q and %q are both %s", url, name, old, iri)
			}
			core[iri] = name
		})
	}
}

// terms calls each with the terms of a context.
func terms(t *testing.T, v any, prefixes map[string]string, each func(name, iri string, prefix bool)) {
	if list, ok := v.([]any); ok {
		for _, entry := range list {
			terms(t, entry, prefixes, each)
		}
		return
	}
	c, ok := v.(map[string]any)
	if !ok {
		t.Fatalf("context %v", v)
	}
	prefixes = maps.Clone(prefixes)
	for name, def := range c {
		if s, ok := def.(string); ok && (strings.HasSuffix(s, "#") || strings.HasSuffix(s, "/")) {
			prefixes[name] = s
		}
	}
	for name, def := range c {
		if strings.HasPrefix(name, "@") {
			if name != "@version" && name != "@protected" {
				t.Errorf("context with %s", name)
			}
			continue
		}
		m, ok := def.(map[string]any)
		if !ok {
			m = map[string]any{"@id": def}
		}
		iri, _ := m["@id"].(string)
		prefix, rest, _ := strings.Cut(iri, ":")
		if p, ok := prefixes[prefix]; ok {
			iri = p + rest
		}
		each(name, iri, prefixes[name] != "")
		for member, v := range m {
			switch member {
			case "@id", "@type":
			case "@container":
				if v != "@set" && v != "@graph" {
					t.Errorf("%s has the container %v", name, v)
				}
			case "@context":
				if name != "RsaSignature2018" { // it lacks the prefixes that it uses
					terms(t, v, prefixes, each)
				}
			default:
				t.Errorf("%s has the member %s", name, member)
			}
		}
	}
}

func FuzzVerifyCredential(f *testing.F) {
	for _, raw := range credentials(f) {
		f.Add(raw)
	}
	i := newIssuer(f, "issuer")
	doc := i.signed(f, i.document())
	f.Add(marshal(f, doc))
	subject(doc)["clearance"] = map[string]any{"@value": []any{nil, map[string]any{}}}
	f.Add(marshal(f, doc))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := VerifyCredential(t.Context(), raw, Check{Resolver: keys(), Now: noon})
		if err != nil {
			if c != nil {
				t.Fatal("a credential and an error")
			}
			return
		}
		if c.Subject == "" || c.Issuer == "" || c.Until.Before(c.From) || noon.Add(-Skew).After(c.Until) {
			t.Fatalf("%+v", c)
		}
		if _, err := jcs.Append(nil, c.Claims); err != nil {
			t.Fatal(err)
		}
	})
}

func BenchmarkVerifyCredential(b *testing.B) {
	for name, raw := range credentials(b) {
		if name == "domain-linkage" {
			continue
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := VerifyCredential(b.Context(), raw, Check{Resolver: keys(), Now: noon}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

var _ api.SignatureSuite = (*suite)(nil)
