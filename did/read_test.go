package did_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lmosd/lmosd/did"
)

const example = did.DID("did:web:a.example")

// Public keys for the documents below: the Ed25519 key of the counting seed, and one on P-256.
const (
	edJWK   = `{"kty":"OKP","crv":"Ed25519","x":"A6EHv_POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg"}`
	p256JWK = `{"kty":"EC","crv":"P-256","x":"fyNYMN0976ci7xqiSdag3buk-ZCwgXU4kz9XNkBlNUI",` +
		`"y":"hW2ojTNfH7Jbi8--CJUo3OCbH3y5n91g-IMA9MLMbTU"}`
)

// document returns a document of example with the members added.
func document(members string) []byte {
	return fmt.Appendf(nil, `{"id":%q,%s}`, example, members)
}

// method returns a verification method "#k" of a type with one more member.
func method(typ, member string) string {
	return fmt.Sprintf(`{"id":"#k","type":%q,"controller":%q,%s}`, typ, example, member)
}

func TestKeyForms(t *testing.T) {
	t.Parallel()
	pub, err := counting.Key()
	if err != nil {
		t.Fatal(err)
	}
	x, err := did.Agreement(pub)
	if err != nil {
		t.Fatal(err)
	}
	edBase58 := did.EncodeBase58(pub)[1:]
	xBase58 := did.EncodeBase58(x)[1:]
	for _, c := range []struct {
		name, typ, member string
		keyType           string
		size              int
	}{
		{"multikey", "Multikey", `"publicKeyMultibase":"` + countingBody + `"`, did.Ed25519, 32},
		{"multikey in base64url", "Multikey", `"publicKeyMultibase":"u7QEDoQe_884Qvh1w3RjnS8CZZ-TWMJulDV8d3IZkElUxuA"`, did.Ed25519, 32},
		{"X25519 multikey", "Multikey", `"publicKeyMultibase":"` + countingX + `"`, did.X25519, 32},
		{"P-256 multikey", "Multikey", `"publicKeyMultibase":"` + string(p256[8:]) + `"`, did.P256, 33},
		{"2020 suite", "Ed25519VerificationKey2020", `"publicKeyMultibase":"` + countingBody + `"`, did.Ed25519, 32},
		{"2018 suite", "Ed25519VerificationKey2018", `"publicKeyBase58":"` + edBase58 + `"`, did.Ed25519, 32},
		{"X25519 of 2019", "X25519KeyAgreementKey2019", `"publicKeyBase58":"` + xBase58 + `"`, did.X25519, 32},
		{"X25519 of 2020", "X25519KeyAgreementKey2020", `"publicKeyMultibase":"` + countingX + `"`, did.X25519, 32},
		{"JSON Web Key", "JsonWebKey", `"publicKeyJwk":` + edJWK, did.Ed25519, 32},
		{"JSON Web Key of 2020", "JsonWebKey2020", `"publicKeyJwk":` + edJWK, did.Ed25519, 32},
		{"P-256 JSON Web Key", "JsonWebKey2020", `"publicKeyJwk":` + p256JWK, did.P256, 33},
		{"2018 suite with a JSON Web Key", "Ed25519VerificationKey2018", `"publicKeyJwk":` + edJWK, did.Ed25519, 32},
		{"unknown curve", "JsonWebKey2020", `"publicKeyJwk":{"kty":"EC","crv":"secp256k1","x":"AA","y":"AA"}`, "", 0},
		{"unknown codec", "Multikey", `"publicKeyMultibase":"` + did.EncodeBase58([]byte("\xee\x01key")) + `"`, "", 0},
		{"base58 of an unknown type", "EcdsaSecp256k1VerificationKey2019", `"publicKeyBase58":"2345"`, "", 0},
		{"unknown form", "EcdsaSecp256k1RecoveryMethod2020", `"blockchainAccountId":"eip155:1:0x89a9"`, "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			doc, err := did.ParseDocument(document(`"verificationMethod":[`+method(c.typ, c.member)+`]`), example)
			if err != nil {
				t.Fatal(err)
			}
			m := doc.Method(string(example) + "#k")
			if m == nil || m.Type != c.typ || m.KeyType != c.keyType || len(m.PublicKey) != c.size || m.Controller != example {
				t.Fatalf("method %+v", m)
			}
			switch {
			case c.keyType == did.Ed25519 && string(m.PublicKey) != string(pub), c.keyType == did.X25519 && string(m.PublicKey) != string(x):
				t.Errorf("key %x", m.PublicKey)
			}
		})
	}
}

func TestParseDocumentRejects(t *testing.T) {
	t.Parallel()
	good := `"publicKeyMultibase":"` + countingBody + `"`
	vm := func(m string) []byte { return document(`"verificationMethod":[` + m + `]`) }
	for _, c := range []struct {
		name string
		raw  []byte
	}{
		{"empty", nil},
		{"no JSON", []byte("<html>")},
		{"array", []byte("[]")},
		{"no id", []byte("{}")},
		{"id of another DID", []byte(`{"id":"did:web:b.example"}`)},
		{"id in other case", []byte(`{"id":"did:web:A.example"}`)},
		{"id that is a number", []byte(`{"id":7}`)},
		{"duplicate member", []byte(`{"id":"did:web:a.example","id":"did:web:a.example"}`)},
		{"too large", document(`"x":"` + strings.Repeat("x", did.MaxDocument) + `"`)},
		{"context that is a number", document(`"@context":1`)},
		{"context with a number", document(`"@context":["https://www.w3.org/ns/did/v1",1]`)},
		{"controller that is no DID", document(`"controller":"me"`)},
		{"controller that is a number", document(`"controller":1`)},
		{"alias that is a number", document(`"alsoKnownAs":[1]`)},
		{"methods that are a number", document(`"verificationMethod":1`)},
		{"method that is text", document(`"verificationMethod":["#k"]`)},
		{"method without id", vm(`{"type":"Multikey",` + good + `}`)},
		{"method whose id is the DID", vm(`{"id":"did:web:a.example",` + good + `}`)},
		{"method with a bad controller", vm(`{"id":"#k","type":"Multikey","controller":"me",` + good + `}`)},
		{"two methods with one id", vm(method("Multikey", good) + "," + method("Multikey", good))},
		{"two ids that become one", vm(method("Multikey", good) + `,{"id":"did:web:a.example#k","type":"Multikey"}`)},
		{"embedded method with a known id", document(`"verificationMethod":[` + method("Multikey", good) +
			`],"authentication":[` + method("Multikey", good) + `]`)},
		{"too many methods", vm(manyMethods(did.MaxMethods + 1))},
		{"too many references", document(`"authentication":["#k"` + strings.Repeat(`,"#k"`, did.MaxMethods) + `]`)},
		{"reference that is a number", document(`"authentication":[1]`)},
		{"relationship that is a number", document(`"authentication":1`)},
		{"key in two forms", vm(method("Multikey", good+`,"publicKeyJwk":`+edJWK))},
		{"key of another algorithm", vm(method("Ed25519VerificationKey2020", `"publicKeyMultibase":"`+countingX+`"`))},
		{"short key", vm(method("Ed25519VerificationKey2018", `"publicKeyBase58":"2345"`))},
		{"key that is not base58", vm(method("Ed25519VerificationKey2018", `"publicKeyBase58":"0OIl"`))},
		{"key that is a number", vm(method("Multikey", `"publicKeyMultibase":7`))},
		{"key in an unknown base", vm(method("Multikey", `"publicKeyMultibase":"f00"`))},
		{"short X25519 key", vm(method("Multikey", `"publicKeyMultibase":"`+did.EncodeBase58([]byte("\xec\x01short"))+`"`))},
		{"weak X25519 key", vm(method("Multikey", `"publicKeyMultibase":"`+did.EncodeBase58(append([]byte{0xec, 1}, make([]byte, 32)...))+`"`))},
		{"point off its curve", vm(method("JsonWebKey2020", `"publicKeyJwk":`+strings.Replace(p256JWK, `"y":"h`, `"y":"g`, 1)))},
		{"multikey point off its curve", vm(method("Multikey", `"publicKeyMultibase":"`+
			did.EncodeBase58(append([]byte{0x80, 0x24, 9}, make([]byte, 32)...))+`"`))},
		{"short JSON Web Key", vm(method("JsonWebKey2020", `"publicKeyJwk":{"kty":"OKP","crv":"Ed25519","x":"AA"}`))},
		{"short point", vm(method("JsonWebKey2020", `"publicKeyJwk":{"kty":"EC","crv":"P-256","x":"AA","y":"AA"}`))},
		{"point without y", vm(method("JsonWebKey2020", `"publicKeyJwk":`+p256JWK[:strings.Index(p256JWK, `,"y"`)]+`}`))},
		{"private JSON Web Key", vm(method("JsonWebKey2020", `"publicKeyJwk":`+strings.Replace(edJWK, `{`, `{"d":"AA",`, 1)))},
		{"secretKeyMultibase", vm(method("Multikey", `"secretKeyMultibase":"z3u2"`))},
		{"privateKeyBase58", vm(method("Ed25519VerificationKey2018", good+`,"privateKeyBase58":"2345"`))},
		{"service that is text", document(`"service":["#td"]`)},
		{"services that are a number", document(`"service":1`)},
		{"service type that is a number", document(`"service":[{"id":"#td","type":1}]`)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if doc, err := did.ParseDocument(c.raw, example); !errors.Is(err, did.ErrInvalid) {
				t.Errorf("%+v, %v; want ErrInvalid", doc, err)
			}
		})
	}
}

func manyMethods(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(`{"id":"#k%d","type":"X"}`, i))
	}
	return strings.Join(all, ",")
}

func TestParseDocumentInFull(t *testing.T) {
	t.Parallel()
	raw := []byte(`{
	  "@context": ["https://www.w3.org/ns/did/v1.1", {"x": "https://x.example/"}],
	  "id": "did:web:a.example",
	  "controller": ["did:web:b.example", "` + string(p256) + `"],
	  "alsoKnownAs": "` + string(counting) + `",
	  "verificationMethod": [
	    {"id": "#k", "type": "Multikey", "controller": "did:web:b.example", "publicKeyMultibase": "` + countingBody + `"},
	    {"id": "did:web:a.example#x", "type": "Other"}
	  ],
	  "assertionMethod": ["#k", "did:web:b.example#other"],
	  "authentication": "did:web:a.example#k",
	  "keyAgreement": [{"id": "#agree", "type": "Multikey", "publicKeyMultibase": "` + countingX + `"}],
	  "service": [
	    {"id": "#td", "type": ["WotThing", "Other"], "serviceEndpoint": "https://a.example/td"},
	    {"id": "https://a.example/#s", "type": "DIDCommMessaging", "serviceEndpoint": [{"uri": "https://a.example", "accept": []}]},
	    {"type": "Empty"}
	  ]
	}`)
	doc, err := did.ParseDocument(raw, "")
	if err != nil {
		t.Fatal(err)
	}
	pub, err := counting.Key()
	if err != nil {
		t.Fatal(err)
	}
	x, err := did.Agreement(pub)
	if err != nil {
		t.Fatal(err)
	}
	want := &did.Document{
		Raw:         raw,
		ID:          example,
		Controller:  []did.DID{"did:web:b.example", p256},
		AlsoKnownAs: []string{string(counting)},
		VerificationMethod: []did.VerificationMethod{
			{ID: "did:web:a.example#k", Type: "Multikey", Controller: "did:web:b.example", KeyType: did.Ed25519, PublicKey: pub},
			{ID: "did:web:a.example#x", Type: "Other", Controller: example},
			{ID: "did:web:a.example#agree", Type: "Multikey", Controller: example, KeyType: did.X25519, PublicKey: x},
		},
		AssertionMethod: []string{"did:web:a.example#k", "did:web:b.example#other"},
		Authentication:  []string{"did:web:a.example#k"},
		KeyAgreement:    []string{"did:web:a.example#agree"},
		Service: []did.Service{
			{ID: "did:web:a.example#td", Type: []string{"WotThing", "Other"}, Endpoint: []byte(`"https://a.example/td"`)},
			{ID: "https://a.example/#s", Type: []string{"DIDCommMessaging"}, Endpoint: []byte(`[{"accept":[],"uri":"https://a.example"}]`)},
			{Type: []string{"Empty"}, Endpoint: []byte("null")},
		},
	}
	if diff := cmp.Diff(want, doc); diff != "" {
		t.Error(diff)
	}
}

// The LMOS protocol's own example (Digital identity): 2018 keys in base58, a WotThing service without its context.
func TestLMOSSample(t *testing.T) {
	t.Parallel()
	pub, err := counting.Key()
	if err != nil {
		t.Fatal(err)
	}
	raw := `{"@context":["https://www.w3.org/ns/did/v1"],"id":"did:web:telekom.example:agents:billing",
	  "controller":"did:web:telekom.example","verificationMethod":[{"id":"did:web:telekom.example:agents:billing#key-1",
	  "type":"Ed25519VerificationKey2018","controller":"did:web:telekom.example:agents:billing",
	  "publicKeyBase58":"` + did.EncodeBase58(pub)[1:] + `"}],"authentication":["did:web:telekom.example:agents:billing#key-1"],
	  "service":[{"id":"#td","type":"WotThing","serviceEndpoint":"https://agents.telekom.example/billing/td"}]}`
	doc, err := did.ParseDocument([]byte(raw), "did:web:telekom.example:agents:billing")
	if err != nil {
		t.Fatal(err)
	}
	const key = "did:web:telekom.example:agents:billing#key-1"
	if !doc.Allows("authentication", key) || doc.Allows("assertionMethod", key) || doc.Method(key) == nil {
		t.Errorf("relationships %+v", doc)
	}
	if s := doc.Service[0]; s.ID != "did:web:telekom.example:agents:billing#td" || s.Type[0] != "WotThing" {
		t.Errorf("service %+v", s)
	}
}

func TestAllowsSupportsFiveRelationships(t *testing.T) {
	t.Parallel()
	doc := &did.Document{
		Authentication: []string{"a"}, AssertionMethod: []string{"b"}, KeyAgreement: []string{"c"},
		CapabilityInvocation: []string{"d"}, CapabilityDelegation: []string{"e"},
	}
	for name, id := range map[string]string{
		"authentication": "a", "assertionMethod": "b", "keyAgreement": "c", "capabilityInvocation": "d", "capabilityDelegation": "e",
	} {
		if !doc.Allows(name, id) || doc.Allows(name, "x") {
			t.Errorf("%s", name)
		}
	}
	if doc.Allows("", "a") || doc.Allows("controller", "a") {
		t.Error("an unknown relationship allows something")
	}
}

func FuzzParseDocument(f *testing.F) {
	doc, err := did.Keys().Resolve(f.Context(), counting)
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(doc.Raw))
	f.Add(document(`"verificationMethod":[` + method("JsonWebKey", `"publicKeyJwk":`+p256JWK) + `],"authentication":["#k"]`))
	f.Add(document(`"service":[{"id":"#td","type":["WotThing"],"serviceEndpoint":{"uri":1}}]`))
	f.Add([]byte(`{"id":"did:web:a.example","controller":["did:web:b"],"alsoKnownAs":["x"],"@context":[{}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		doc, err := did.ParseDocument(raw, "")
		if err != nil {
			if !errors.Is(err, did.ErrInvalid) {
				t.Fatalf("%v wraps no ErrInvalid", err)
			}
			return
		}
		if again, err := did.ParseDocument(raw, doc.ID); err != nil || cmp.Diff(doc, again) != "" {
			t.Fatalf("read again: %v\n%s", err, cmp.Diff(doc, again))
		}
		if _, err := did.ParseForeign(string(doc.ID)); err != nil {
			t.Fatal(err)
		}
	})
}
