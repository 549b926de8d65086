package proof

import (
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/jcs"
)

// A signer signs with a key in memory, and returns err.
type signer struct {
	key ed25519.PrivateKey
	id  did.DID
	err error
}

func (s signer) DID() did.DID { return s.id }

func (s signer) Sign(purpose did.Purpose, msg []byte) ([]byte, error) {
	if purpose != did.PurposeAssertion || len(msg) != 64 {
		return nil, fmt.Errorf("purpose %q, %d bytes", purpose, len(msg))
	}
	return ed25519.Sign(s.key, msg), s.err
}

// newSigner returns the signer with the seed first, first+1, ….
func newSigner(t testing.TB, first byte) signer {
	t.Helper()
	seed := make([]byte, 32)
	for i := range seed {
		seed[i] = first + byte(i)
	}
	key := ed25519.NewKeyFromSeed(seed)
	id, err := did.FromKey(key.Public().(ed25519.PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	return signer{key: key, id: id}
}

func decode(t testing.TB, text string) map[string]any {
	t.Helper()
	m, err := jcs.Object([]byte(text), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func canonical(t testing.TB, v any) string {
	t.Helper()
	b, err := jcs.Append(nil, v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// The worked example: the document, its hash, the proof without its value, its hash, and the value.
const (
	goldenDoc = `{"@context":["https://www.w3.org/2022/wot/td/v1.1",{"@language":"en"}],` +
		`"id":"did:key:z6MkehRgf7yJbgaGfYsdoAsKdBPE3dj2CYhowQdcjqSJgvVd",` +
		`"properties":{"t":{"forms":[{"href":"https://example.com/t"}],"maximum":1e+21,"multipleOf":1e-7,"type":"number"}},` +
		`"security":["nosec_sc"],"securityDefinitions":{"nosec_sc":{"scheme":"nosec"}},"title":"Wetter ☀"}`
	goldenDocHash = "a13a7d00dcf3775f094c303002159f238090473e43c3a8eea160550d1d25e097"
	goldenConfig  = `{"created":"2026-11-20T12:00:00Z","cryptosuite":"eddsa-jcs-2022","proofPurpose":"assertionMethod",` +
		`"type":"DataIntegrityProof","verificationMethod":"did:key:z6MkehRgf7yJbgaGfYsdoAsKdBPE3dj2CYhowQdcjqSJgvVd` +
		`#z6MkehRgf7yJbgaGfYsdoAsKdBPE3dj2CYhowQdcjqSJgvVd"}`
	goldenConfigHash = "539b32673a448e8661d2b689a24c3952d4f8947c3fe043959dd2438c21fdb004"
	goldenValue      = "z4vu1o5u6NM1X4NCTjou5fVjaAcvPRmWucMzV9SJmQ4vwgNY698QATwKjnebeSQF4J8n9yT56bEoJNQGfXoSxJZL3"
)

func TestWorkedExample(t *testing.T) {
	t.Parallel()
	if len(goldenDoc) != 348 || len(goldenConfig) != 255 {
		t.Fatalf("the example has %d and %d bytes", len(goldenDoc), len(goldenConfig))
	}
	doc := decode(t, goldenDoc)
	if got := canonical(t, doc); got != goldenDoc {
		t.Errorf("canonical document\n%s\nwant\n%s", got, goldenDoc)
	}
	hash, err := hashData(decode(t, goldenConfig), doc)
	if err != nil || hex.EncodeToString(hash) != goldenConfigHash+goldenDocHash {
		t.Errorf("hash data %x, %v", hash, err)
	}
	proof, err := Sign(doc, newSigner(t, 0), Options{Created: noon})
	if err != nil {
		t.Fatal(err)
	}
	want := decode(t, goldenConfig)
	want["proofValue"] = goldenValue
	if diff := cmp.Diff(want, proof); diff != "" {
		t.Error(diff)
	}
	doc["proof"] = proof
	v, err := Verify(t.Context(), doc, Check{Now: noon})
	if err != nil || canonical(t, v.Document) != goldenDoc {
		t.Errorf("verified %v, %v", v, err)
	}
}

// signed returns the golden document with its proof.
func signed(t testing.TB) map[string]any {
	t.Helper()
	doc := decode(t, goldenDoc)
	proof := decode(t, goldenConfig)
	proof["proofValue"] = goldenValue
	doc["proof"] = proof
	return doc
}

// resign returns doc signed again by s after edit changed the proof before signing.
func resign(t testing.TB, doc map[string]any, s signer, edit func(proof map[string]any)) map[string]any {
	t.Helper()
	body := without(doc, "proof")
	config, err := configure(s.id, Options{Created: noon})
	if err != nil {
		t.Fatal(err)
	}
	edit(config)
	hash, err := hashData(config, body)
	if err != nil {
		t.Fatal(err)
	}
	config["proofValue"] = did.EncodeBase58(ed25519.Sign(s.key, hash))
	body["proof"] = config
	return body
}

func TestSignWritesTimesInUTC(t *testing.T) {
	t.Parallel()
	local := noon.In(time.FixedZone("", 3600)).Add(300 * time.Millisecond)
	proof, err := Sign(map[string]any{}, newSigner(t, 0), Options{Created: local, Expires: local.Add(time.Hour)})
	if err != nil || proof["created"] != "2026-11-20T12:00:00Z" || proof["expires"] != "2026-11-20T13:00:00Z" {
		t.Errorf("%v, %v", proof, err)
	}
}

func TestSignIsCreatedNowByDefault(t *testing.T) {
	t.Parallel()
	before := time.Now().Truncate(time.Second)
	doc := map[string]any{"a": "b"}
	proof, err := Sign(doc, newSigner(t, 0), Options{})
	if err != nil {
		t.Fatal(err)
	}
	doc["proof"] = proof
	v, err := Verify(t.Context(), doc, Check{})
	if err != nil || v.Created.Before(before) || v.Created.After(time.Now()) || !v.Expires.IsZero() {
		t.Errorf("%+v, %v", v, err)
	}
}

func TestSignKeepsTheDocument(t *testing.T) {
	t.Parallel()
	doc := decode(t, goldenDoc)
	if _, err := Sign(doc, newSigner(t, 0), Options{}); err != nil {
		t.Fatal(err)
	}
	if got := canonical(t, doc); got != goldenDoc {
		t.Errorf("document is now %s", got)
	}
}

func TestSignRejects(t *testing.T) {
	t.Parallel()
	good := newSigner(t, 0)
	broken := good
	broken.err = errors.New("the key is gone")
	web := good
	web.id = "did:web:example.com"
	for _, c := range []struct {
		name string
		doc  map[string]any
		s    signer
		o    Options
	}{
		{"signed document", map[string]any{"proof": map[string]any{}}, good, Options{}},
		{"document with an empty proof", map[string]any{"proof": nil}, good, Options{}},
		{"registration of a directory", map[string]any{"registration": map[string]any{}}, good, Options{}},
		{"value that is no JSON", map[string]any{"a": 1}, good, Options{}},
		{"signer that fails", map[string]any{}, broken, Options{}},
		{"signer without a key in its name", map[string]any{}, web, Options{}},
		{"end before the beginning", map[string]any{}, good, Options{Created: noon, Expires: noon}},
	} {
		proof, err := Sign(c.doc, c.s, c.o)
		e, ok := errors.AsType[*Error](err)
		if !ok || proof != nil || !errors.Is(err, ErrProof) || e.Type() != "https://w3id.org/security#PROOF_GENERATION_ERROR" {
			t.Errorf("%s: %v, %v", c.name, proof, err)
		}
	}
	if _, err := Sign(map[string]any{}, broken, Options{}); !errors.Is(err, broken.err) {
		t.Errorf("the cause is missing: %v", err)
	}
}

func TestVerifiedHasOwnerAndTimes(t *testing.T) {
	t.Parallel()
	s := newSigner(t, 0)
	doc := resign(t, decode(t, goldenDoc), s, func(p map[string]any) {
		p["expires"] = "2026-11-21T13:00:00.5+01:00"
		p["id"] = "urn:uuid:1"
		p["nonce"] = "x"
		p["unknown"] = []any{1.0}
	})
	doc["registration"] = map[string]any{"created": "2026-11-20T12:00:01Z"}
	before := canonical(t, doc)
	got, err := Verify(t.Context(), doc, Check{Now: noon})
	if err != nil {
		t.Fatal(err)
	}
	want := &Verified{
		Document: decode(t, goldenDoc),
		Owner:    s.id,
		Owners:   []did.DID{s.id},
		Method:   string(s.id) + "#" + s.id.Multibase(),
		Created:  noon,
		Expires:  noon.Add(24*time.Hour + 500*time.Millisecond),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if after := canonical(t, doc); after != before {
		t.Errorf("Verify changed its input to %s", after)
	}
}

// Every member of the proof is covered, including unknown ones.
func TestEveryMemberOfTheProofIsCovered(t *testing.T) {
	t.Parallel()
	doc := resign(t, decode(t, goldenDoc), newSigner(t, 0), func(p map[string]any) { p["nonce"], p["x"] = "a", "b" })
	proof := doc["proof"].(map[string]any)
	for name := range proof {
		changed := maps.Clone(proof)
		changed[name] = fmt.Sprint(changed[name], "x")
		removed := without(proof, name)
		for _, p := range []map[string]any{changed, removed} {
			doc["proof"] = p
			if v, err := Verify(t.Context(), doc, Check{Now: noon}); err == nil {
				t.Errorf("proof with another %q verified: %+v", name, v)
			}
		}
	}
	more := maps.Clone(proof)
	more["new"] = true
	doc["proof"] = more
	if _, err := Verify(t.Context(), doc, Check{Now: noon}); err == nil {
		t.Error("proof with one more member verified")
	}
}

func TestVerifyRejects(t *testing.T) {
	t.Parallel()
	s, other := newSigner(t, 0), newSigner(t, 100)
	golden := decode(t, goldenDoc)
	set := func(name string, value any) map[string]any {
		return resign(t, golden, s, func(p map[string]any) { p[name] = value })
	}
	drop := func(name string) map[string]any {
		return resign(t, golden, s, func(p map[string]any) { delete(p, name) })
	}
	value := func(v any) map[string]any {
		doc := signed(t)
		doc["proof"].(map[string]any)["proofValue"] = v
		return doc
	}
	with := func(name string, v any) map[string]any {
		doc := signed(t)
		doc[name] = v
		return doc
	}
	proof := func(v any) map[string]any { return with("proof", v) }
	one := signed(t)["proof"]
	for _, c := range []struct {
		name string
		doc  map[string]any
		want string // part of the message
	}{
		{"no proof", golden, "no proof"},
		{"proof that is text", proof("x"), "neither an object"},
		{"empty array of proofs", proof([]any{}), "array of 1 to 8"},
		{"nine proofs", proof([]any{one, one, one, one, one, one, one, one, one}), "array of 1 to 8"},
		{"array with text", proof([]any{one, "x"}), "not an object"},
		{"other type", set("type", "Ed25519Signature2020"), "type"},
		{"no type", drop("type"), "type"},
		{"other suite", set("cryptosuite", "eddsa-rdfc-2022"), "cryptosuite"},
		{"no suite", drop("cryptosuite"), "cryptosuite"},
		{"other purpose", set("proofPurpose", "authentication"), "proofPurpose"},
		{"no purpose", drop("proofPurpose"), "proofPurpose"},
		{"proof chain", set("previousProof", "urn:uuid:1"), "chain"},
		{"no created", drop("created"), "created"},
		{"created without zone", set("created", "2026-11-20T12:00:00"), "created"},
		{"created as date", set("created", "2026-11-20"), "created"},
		{"created as number", set("created", 1.0), "created"},
		{"created with a comma", set("created", "2026-11-20T12:00:00,5Z"), "created"},
		{"created with a short hour", set("created", "2026-11-20T2:00:00Z"), "created"},
		{"created with a short hour and a fraction", set("created", "2026-11-20T2:00:00.5Z"), "created"},
		{"created on no day", set("created", "2026-02-30T12:00:00Z"), "created"},
		{"created in no zone", set("created", "2026-11-20T12:00:00+15:00"), "created"},
		{"created in a long text", set("created", "2026-11-20T12:00:00."+strings.Repeat("0", 60)+"Z"), "created"},
		{"expires as number", set("expires", 1.0), "expires"},
		{"expires before created", set("expires", "2026-11-20T11:59:59Z"), "before"},
		{"expires null", set("expires", nil), "expires"},
		{"method of a foreign key", set("verificationMethod", string(other.id)+"#"+other.id.Multibase()), "does not verify"},
		{"method without fragment", set("verificationMethod", string(s.id)), "has no key"},
		{"method is the agreement key", set("verificationMethod", string(s.id)+"#"+agreement(t, s)), "does not list"},
		{"fragment of another key", set("verificationMethod", string(s.id)+"#"+other.id.Multibase()), "fragment"},
		{"method of another method", set("verificationMethod", "did:web:example.com#k"), "not supported"},
		{"relative method", set("verificationMethod", "#"+s.id.Multibase()), "verificationMethod"},
		{"no method", drop("verificationMethod"), "verificationMethod"},
		{"method of a weak key", set("verificationMethod", weakMethod()), "small order"},
		{"no value", value(nil), "proofValue"},
		{"value in base64url", value("u" + goldenValue[1:]), "proofValue"},
		{"value without multibase", value(goldenValue[1:]), "proofValue"},
		{"value of 63 bytes", value(did.EncodeBase58(make([]byte, 63))), "63 bytes"},
		{"value of 65 bytes", value(did.EncodeBase58(make([]byte, 65))), "65 bytes"},
		{"long value", value("z" + strings.Repeat("2", 100)), "longer"},
		{"value with a space", value(goldenValue + " "), "proofValue"},
		{"changed title", with("title", "Wetter"), "does not verify"},
		{"new member", with("support", "x"), "does not verify"},
		{"proof context without a document context", resign(t, without(golden, "@context"), s, context11), "@context"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			v, err := Verify(t.Context(), c.doc, Check{Now: noon})
			e, ok := errors.AsType[*Error](err)
			if !ok || v != nil || !errors.Is(err, ErrProof) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%+v, %v; want an error with %q", v, err, c.want)
			}
			if got := e.Type(); got != "https://w3id.org/security#PROOF_VERIFICATION_ERROR" {
				t.Errorf("type %s", got)
			}
		})
	}
}

func context11(p map[string]any) { p["@context"] = "https://www.w3.org/2022/wot/td/v1.1" }

func agreement(t testing.TB, s signer) string {
	t.Helper()
	x, err := did.Agreement(s.key.Public().(ed25519.PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	return did.EncodeBase58(append([]byte{0xec, 1}, x...))
}

// weakMethod returns the method of the key 0…0, a point of order 4.
func weakMethod() string {
	body := did.EncodeBase58(append([]byte{0xed, 1}, make([]byte, 32)...))
	return "did:key:" + body + "#" + body
}

func TestValidityPeriod(t *testing.T) {
	t.Parallel()
	doc := resign(t, decode(t, goldenDoc), newSigner(t, 0), func(p map[string]any) { p["expires"] = "2026-11-20T13:00:00Z" })
	for _, c := range []struct {
		name string
		now  time.Time
		ok   bool
	}{
		{"far too early", noon.Add(-24 * time.Hour), false},
		{"a second too early", noon.Add(-Skew - time.Second), false},
		{"clock behind within the skew", noon.Add(-Skew), true},
		{"at once", noon, true},
		{"just before the end", noon.Add(time.Hour), true},
		{"clock ahead within the skew", noon.Add(time.Hour + Skew), true},
		{"a second too late", noon.Add(time.Hour + Skew + time.Second), false},
	} {
		_, err := Verify(t.Context(), doc, Check{Now: c.now})
		if (err == nil) != c.ok || err != nil && (!errors.Is(err, ErrTime) || !errors.Is(err, ErrProof)) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	// Without expires a proof has no end; the record of the mesh has one.
	if _, err := Verify(t.Context(), signed(t), Check{Now: noon.AddDate(10, 0, 0)}); err != nil {
		t.Error(err)
	}
}

func TestAudience(t *testing.T) {
	t.Parallel()
	s := newSigner(t, 0)
	doc := func(domain, challenge any) map[string]any {
		return resign(t, decode(t, goldenDoc), s, func(p map[string]any) { p["domain"], p["challenge"] = domain, challenge })
	}
	const other, badDomain, badChallenge = "x", "INVALID_DOMAIN_ERROR", "INVALID_CHALLENGE_ERROR"
	for _, c := range []struct {
		name string
		doc  map[string]any
		c    Check
		kind string // of the error; empty: verified
	}{
		{"no requirement", doc("a.example", "1"), Check{}, ""},
		{"both fit", doc("a.example", "1"), Check{Domain: "a.example", Challenge: "1"}, ""},
		{"one of several domains fits", doc([]any{other, "a.example"}, "1"), Check{Domain: "a.example"}, ""},
		{"other domain", doc(other, "1"), Check{Domain: "a.example"}, badDomain},
		{"no domain", signed(t), Check{Domain: "a.example"}, badDomain},
		{"domain is an object", doc(map[string]any{}, "1"), Check{Domain: "a.example"}, badDomain},
		{"domains are objects", doc([]any{map[string]any{}}, "1"), Check{Domain: "a.example"}, badDomain},
		{"other challenge", doc("a.example", other), Check{Domain: "a.example", Challenge: "1"}, badChallenge},
		{"no challenge", signed(t), Check{Challenge: "1"}, badChallenge},
		{"challenge is an array", doc("a", []any{"1"}), Check{Challenge: "1"}, badChallenge},
	} {
		c.c.Now = noon
		_, err := Verify(t.Context(), c.doc, c.c)
		if c.kind == "" && err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if e, ok := errors.AsType[*Error](err); c.kind != "" && (!ok || e.Type() != "https://w3id.org/security#"+c.kind) {
			t.Errorf("%s: %v, want %s", c.name, err, c.kind)
		}
	}
}

func TestOtherPurpose(t *testing.T) {
	t.Parallel()
	doc := resign(t, decode(t, goldenDoc), newSigner(t, 0), func(p map[string]any) { p["proofPurpose"] = "authentication" })
	if _, err := Verify(t.Context(), doc, Check{Now: noon, Purpose: "authentication"}); err != nil {
		t.Error(err)
	}
	if _, err := Verify(t.Context(), signed(t), Check{Now: noon, Purpose: "authentication"}); err == nil {
		t.Error("an assertion was accepted as an authentication")
	}
}

// Foreign signers write @context into the proof. Contexts that were appended after signing do not reach the caller.
func TestProofContext(t *testing.T) {
	t.Parallel()
	s := newSigner(t, 0)
	lang := map[string]any{"@language": "en"}
	const td, sec = "https://www.w3.org/2022/wot/td/v1.1", "https://w3id.org/security/data-integrity/v2"
	for _, c := range []struct {
		name          string
		proof, doc    any // @context of each when it was signed
		arrived, want any // @context of the document as it arrived, and as it is returned; want nil: rejected
	}{
		{"the same text", td, td, td, td},
		{"the same array", []any{td, lang}, []any{td, lang}, []any{td, lang}, []any{td, lang}},
		{"text in the proof, array in the document", td, td, []any{td}, td},
		{"appended", []any{td, lang}, []any{td, lang}, []any{td, lang, sec}, []any{td, lang}},
		{"appended to a text", td, td, []any{td, sec}, td},
		{"object alone", lang, lang, lang, lang},
		{"prepended", []any{td}, []any{td}, []any{sec, td}, nil},
		{"removed", []any{td, sec}, []any{td, sec}, []any{td}, nil},
		{"swapped", []any{td, sec}, []any{td, sec}, []any{sec, td}, nil},
		{"changed object", []any{td, lang}, []any{td, lang}, []any{td, map[string]any{"@language": "de"}}, nil},
		{"empty array in the proof", []any{}, []any{}, []any{td}, nil},
		{"null in the proof", nil, td, td, nil},
		{"number in the proof", 1.0, td, td, nil},
		{"signed over another context", td, []any{td, sec}, []any{td, sec}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			doc := resign(t, map[string]any{"@context": c.doc, "a": "b"}, s, func(p map[string]any) { p["@context"] = c.proof })
			doc["@context"] = c.arrived
			v, err := Verify(t.Context(), doc, Check{Now: noon})
			if c.want == nil {
				if err == nil {
					t.Errorf("verified as %v", v.Document)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(map[string]any{"@context": c.want, "a": "b"}, v.Document); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Without @context in the proof, nothing can be appended.
func TestAppendedContextInvalidatesOwnProofs(t *testing.T) {
	t.Parallel()
	doc := signed(t)
	doc["@context"] = append(doc["@context"].([]any), "https://evil.example/v1")
	if _, err := Verify(t.Context(), doc, Check{Now: noon}); err == nil {
		t.Error("verified")
	}
}

func TestProofSets(t *testing.T) {
	t.Parallel()
	a, b := newSigner(t, 0), newSigner(t, 100)
	body := decode(t, goldenDoc)
	by := func(s signer, edit func(map[string]any)) any { return resign(t, body, s, edit)["proof"] }
	plain := func(map[string]any) {}
	ctx := func(p map[string]any) { p["@context"] = body["@context"] }
	short := func(p map[string]any) { p["@context"] = body["@context"].([]any)[:1] }
	bad := maps.Clone(by(a, plain).(map[string]any))
	bad["created"] = "2026-11-20T12:00:01Z"
	for _, c := range []struct {
		name   string
		proofs []any
		owners []did.DID // nil: rejected
	}{
		{"one", []any{by(a, plain)}, []did.DID{a.id}},
		{"two signers", []any{by(b, plain), by(a, plain)}, []did.DID{b.id, a.id}},
		{"the same signer twice", []any{by(a, plain), by(b, plain), by(a, plain)}, []did.DID{a.id, b.id}},
		{"with and without context", []any{by(a, plain), by(b, ctx)}, []did.DID{a.id, b.id}},
		{"one of two fails", []any{by(b, plain), bad}, nil},
		{"contexts differ", []any{by(a, plain), by(b, short)}, nil},
	} {
		doc := maps.Clone(body)
		doc["proof"] = c.proofs
		v, err := Verify(t.Context(), doc, Check{Now: noon})
		if c.owners == nil {
			if err == nil {
				t.Errorf("%s: verified by %v", c.name, v.Owners)
			}
			continue
		}
		if err != nil || !cmp.Equal(v.Owners, c.owners) || v.Owner != c.owners[0] {
			t.Errorf("%s: %+v, %v", c.name, v, err)
		}
	}
}

// resolver returns one document for every DID.
type resolver struct {
	doc *did.Document
	err error
}

func (r resolver) Resolve(context.Context, did.DID) (*did.Document, error) { return r.doc, r.err }

func TestKeyRules(t *testing.T) {
	t.Parallel()
	s := newSigner(t, 0)
	const web, key = did.DID("did:web:a.example"), "did:web:a.example#k"
	doc := resign(t, decode(t, goldenDoc), s, func(p map[string]any) { p["verificationMethod"] = key })
	pub := []byte(s.key.Public().(ed25519.PublicKey))
	method := did.VerificationMethod{ID: key, Type: "Multikey", Controller: web, KeyType: did.Ed25519, PublicKey: pub}
	with := func(edit func(d *did.Document, m *did.VerificationMethod)) resolver {
		d, m := &did.Document{ID: web, AssertionMethod: []string{key}}, method
		edit(d, &m)
		d.VerificationMethod = append(d.VerificationMethod, m)
		return resolver{doc: d}
	}
	lost := errors.New("no route")
	for _, c := range []struct {
		name  string
		r     resolver
		cause error // nil: any
		ok    bool
	}{
		{"listed key", with(func(*did.Document, *did.VerificationMethod) {}), nil, true},
		{"other relationship", with(func(d *did.Document, _ *did.VerificationMethod) {
			d.Authentication, d.AssertionMethod = d.AssertionMethod, nil
		}), nil, false},
		{"foreign controller", with(func(_ *did.Document, m *did.VerificationMethod) { m.Controller = "did:web:b.example" }), nil, false},
		{"other key type", with(func(_ *did.Document, m *did.VerificationMethod) { m.KeyType = did.P256 }), nil, false},
		{"unknown key", with(func(_ *did.Document, m *did.VerificationMethod) { m.KeyType, m.PublicKey = "", nil }), nil, false},
		{"short key", with(func(_ *did.Document, m *did.VerificationMethod) { m.PublicKey = pub[:31] }), did.ErrInvalid, false},
		{"weak key", with(func(_ *did.Document, m *did.VerificationMethod) { m.PublicKey = make([]byte, 32) }), did.ErrInvalid, false},
		{"other document", with(func(d *did.Document, _ *did.VerificationMethod) { d.ID = "did:web:b.example" }), nil, false},
		{"key is missing", with(func(_ *did.Document, m *did.VerificationMethod) { m.ID += "2" }), nil, false},
		{"resolver fails", resolver{err: lost}, lost, false},
	} {
		_, err := Verify(t.Context(), doc, Check{Now: noon, Resolver: c.r})
		if (err == nil) != c.ok || c.cause != nil && !errors.Is(err, c.cause) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
