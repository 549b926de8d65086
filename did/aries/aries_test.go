//go:build !noaries

package aries

import (
	"bytes"
	"context"
	"crypto/ecdh"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hyperledger/aries-framework-go/pkg/vdr/fingerprint"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) {
	timeout = 10 * time.Minute
	testmain.Run(m)
}

// Two independent implementations give the same did:key to a key, in both directions.
func TestDIDOfRandomKeysAgreesWithAries(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for n := range uint64(10000) {
		var b [16]byte
		binary.BigEndian.PutUint64(b[:], seed)
		binary.BigEndian.PutUint64(b[8:], n)
		secret := sha256.Sum256(b[:])
		pub := ed25519.NewKeyFromSeed(secret[:]).Public().(ed25519.PublicKey)
		own, err := did.FromKey(pub)
		if err != nil {
			t.Fatal(err)
		}
		name, method := fingerprint.CreateDIDKey(pub)
		if string(own) != name || method != name+"#"+own.Multibase() {
			t.Fatalf("seed %d, key %d: did.FromKey gives %s, aries %s", seed, n, own, name)
		}
		if back, err := fingerprint.PubKeyFromDIDKey(string(own)); err != nil || !bytes.Equal(back, pub) {
			t.Fatalf("seed %d, key %d: aries reads %x, %v", seed, n, back, err)
		}
	}
}

const counting = did.DID("did:key:z6MkehRgf7yJbgaGfYsdoAsKdBPE3dj2CYhowQdcjqSJgvVd")

// For Ed25519 both resolvers list the same keys under the same names; only the type names differ.
func TestBothResolversAgreeOnEd25519(t *testing.T) {
	t.Parallel()
	want, err := did.Keys().Resolve(t.Context(), counting)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Resolver().Resolve(t.Context(), counting)
	if err != nil {
		t.Fatal(err)
	}
	for i := range got.VerificationMethod {
		want.VerificationMethod[i].Type = got.VerificationMethod[i].Type
	}
	want.Raw, got.Raw = nil, nil
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// multikey returns the did:key of a key with a multicodec code.
func multikey(code uint64, key []byte) did.DID {
	return did.DID("did:key:" + did.EncodeBase58(append(binary.AppendUvarint(nil, code), key...)))
}

// point returns a compressed point of a curve that belongs to a fixed private key.
func point(t testing.TB, e ecdh.Curve, c elliptic.Curve) []byte {
	t.Helper()
	private := make([]byte, (c.Params().BitSize+7)/8)
	private[len(private)-1] = 42
	k, err := e.NewPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	b := k.PublicKey().Bytes()
	half := len(b) / 2
	return append([]byte{2 | b[len(b)-1]&1}, b[1:1+half]...)
}

func TestResolverSupportsOtherAlgorithms(t *testing.T) {
	t.Parallel()
	bls := make([]byte, 96)
	bls[0] = 0xa0
	for _, c := range []struct {
		keyType string
		code    uint64
		key     []byte
	}{
		{did.P256, 0x1200, point(t, ecdh.P256(), elliptic.P256())},
		{did.P384, 0x1201, point(t, ecdh.P384(), elliptic.P384())},
		{did.P521, 0x1202, point(t, ecdh.P521(), elliptic.P521())},
		{"BLS12-381-G2", 0xeb, bls},
	} {
		id := multikey(c.code, c.key)
		doc, err := Resolver().Resolve(t.Context(), id)
		if err != nil {
			t.Errorf("%s: %v", c.keyType, err)
			continue
		}
		key := string(id) + "#" + id.Multibase()
		m := doc.Method(key)
		if m == nil || m.KeyType != c.keyType || !bytes.Equal(m.PublicKey, c.key) || m.Controller != id || doc.ID != id {
			t.Errorf("%s: %+v", c.keyType, doc)
		}
		for _, relationship := range []string{"authentication", "assertionMethod", "keyAgreement"} {
			if !doc.Allows(relationship, key) {
				t.Errorf("%s: not listed under %s", c.keyType, relationship)
			}
		}
		if again, err := Resolver().Resolve(t.Context(), id); err != nil || cmp.Diff(doc, again) != "" {
			t.Errorf("%s: the document is not always the same: %v\n%s", c.keyType, err, cmp.Diff(doc, again))
		}
	}
}

func TestResolverRejects(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		name string
		ctx  context.Context
		id   did.DID
		want error
	}{
		{"other method", t.Context(), "did:web:a.example", did.ErrMethod},
		{"an empty DID", t.Context(), "", did.ErrMethod},
		{"X25519", t.Context(), "did:key:z6LSgTMiVvjkfQd8CF1kWasYZKBqtAYf6h8TC3yDfjPgDbWQ", did.ErrMethod},
		{"secp256k1", t.Context(), multikey(0xe7, append([]byte{2}, make([]byte, 32)...)), did.ErrMethod},
		{"unknown code", t.Context(), multikey(0x55, make([]byte, 40)), did.ErrMethod},
		{"weak Ed25519 key", t.Context(), multikey(0xed, make([]byte, 32)), did.ErrInvalid},
		{"point off its curve", t.Context(), multikey(0x1200, append([]byte{9}, make([]byte, 32)...)), did.ErrInvalid},
		{"base64url form", t.Context(), "did:key:u7QEDoQe", did.ErrInvalid},
		{"context that has ended", ended, counting, context.Canceled},
	} {
		if doc, err := Resolver().Resolve(c.ctx, c.id); !errors.Is(err, c.want) {
			t.Errorf("%s: %+v, %v; want %v", c.name, doc, err, c.want)
		}
	}
}

// A fallback uses both resolvers: did.Keys for Ed25519 keys, this one for the others.
func TestFallbackAfterDIDKey(t *testing.T) {
	t.Parallel()
	r := did.Fallback(did.Keys(), Resolver())
	other := multikey(0x1200, point(t, ecdh.P256(), elliptic.P256()))
	for id, typ := range map[did.DID]string{counting: "Multikey", other: "JsonWebKey2020"} {
		if doc, err := r.Resolve(t.Context(), id); err != nil || doc.VerificationMethod[0].Type != typ {
			t.Errorf("%s: %+v, %v", id, doc, err)
		}
	}
}

func fixtures(t testing.TB) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.json")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no fixtures: %v", err)
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

// Both readers return the same result for every document that both support.
func TestReadersAgreeOnFixtures(t *testing.T) {
	t.Parallel()
	for name, raw := range fixtures(t) {
		if name == "legacy-2017" { // did.ParseDocument does not read its keys in hex
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want, err := did.ParseDocument(raw, "")
			if err != nil {
				t.Fatal(err)
			}
			got, err := ReadDocument(raw)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestLegacyDocuments(t *testing.T) {
	t.Parallel()
	pub, err := counting.Key()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]*did.Document{
		"legacy-2017": {
			ID: "did:sov:WRfXPg8dantKVubE3HX8pw",
			VerificationMethod: []did.VerificationMethod{{
				ID: "did:sov:WRfXPg8dantKVubE3HX8pw#key-1", Type: "Ed25519VerificationKey2018",
				Controller: "did:sov:WRfXPg8dantKVubE3HX8pw", KeyType: did.Ed25519, PublicKey: pub,
			}},
			Authentication: []string{"did:sov:WRfXPg8dantKVubE3HX8pw#key-1"},
			Service: []did.Service{{
				ID: "did:sov:WRfXPg8dantKVubE3HX8pw#inbox", Type: []string{"SocialWebInboxService"},
				Endpoint: []byte(`"https://social.example/83hfh37dj"`),
			}},
		},
		"legacy-2019": {
			ID: "did:example:21tDAKCERh95uGgKbJNHYp",
			VerificationMethod: []did.VerificationMethod{{
				ID: "did:example:21tDAKCERh95uGgKbJNHYp#keys-1", Type: "Ed25519VerificationKey2018",
				Controller: "did:example:21tDAKCERh95uGgKbJNHYp", KeyType: did.Ed25519, PublicKey: pub,
			}},
			Authentication: []string{"did:example:21tDAKCERh95uGgKbJNHYp#keys-1"},
		},
	} {
		raw := fixtures(t)[name]
		got, err := ReadDocument(raw)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want.Raw = raw
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestReadDocumentRejects(t *testing.T) {
	t.Parallel()
	const head = `{"@context":["https://www.w3.org/ns/did/v1"],"id":"did:web:a.example",`
	method := func(members string) string {
		return `{"id":"#k","type":"Ed25519VerificationKey2018","controller":"did:web:a.example",` + members + `}`
	}
	good := did.EncodeBase58([]byte("0123456789abcdef0123456789abcdef"))[1:]
	for _, c := range []struct{ name, raw string }{
		{"empty", ""},
		{"no JSON", "<xml/>"},
		{"array", "[]"},
		{"null", "null"},
		{"duplicate name", head + `"id":"did:web:b.example"}`},
		{"too large", head + `"x":"` + strings.Repeat("x", did.MaxDocument) + `"}`},
		{"no id", `{"@context":["https://www.w3.org/ns/did/v1"]}`},
		{"id that is no DID", `{"@context":["https://www.w3.org/ns/did/v1"],"id":"me"}`},
		{"unknown context", `{"@context":["https://x.example/"],"id":"did:web:a.example"}`},
		{"weak key", head + `"verificationMethod":[` + method(`"publicKeyBase58":"`+strings.Repeat("1", 32)+`"`) + `]}`},
		{"short key", head + `"verificationMethod":[` + method(`"publicKeyBase58":"2345"`) + `]}`},
		{"key without form", head + `"verificationMethod":[` + method(`"x":"y"`) + `]}`},
		{"very long key", head + `"verificationMethod":[` + method(`"publicKeyBase58":"`+strings.Repeat("2", 9000)+`"`) + `]}`},
		{"private key", head + `"verificationMethod":[` + method(`"publicKeyBase58":"`+good+`","privateKeyBase58":"2345"`) + `]}`},
		{"private JSON Web Key", head + `"verificationMethod":[` +
			method(`"publicKeyJwk":{"kty":"OKP","crv":"Ed25519","x":"AA","d":"AA"}`) + `]}`},
		{"two methods with one id", head + `"authentication":[` + method(`"publicKeyHex":"`+
			hexKey("a")+`"`) + `],"assertionMethod":[` + method(`"publicKeyHex":"`+hexKey("b")+`"`) + `]}`},
		{"reference to no key", head + `"authentication":["#other"]}`},
		{"reference that is a number", head + `"authentication":[1]}`},
	} {
		if doc, err := ReadDocument([]byte(c.raw)); !errors.Is(err, did.ErrInvalid) {
			t.Errorf("%s: %+v, %v; want ErrInvalid", c.name, doc, err)
		} else if text := err.Error(); len(text) > 600 || strings.Contains(text, "\n") {
			t.Errorf("%s: the message is not one short line: %s", c.name, text)
		}
	}
}

// hexKey returns a valid public key that is derived from text.
func hexKey(text string) string {
	seed := sha256.Sum256([]byte(text))
	return fmt.Sprintf("%x", ed25519.NewKeyFromSeed(seed[:]).Public())
}

func TestPanicsAreRecovered(t *testing.T) {
	t.Parallel()
	err := recovered(t.Context(), func() error { panic("nil loader") })
	if err == nil || !strings.Contains(err.Error(), "nil loader") {
		t.Error(err)
	}
}

func TestCallTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := make(chan struct{})
		start := time.Now()
		err := recovered(t.Context(), func() error { <-stuck; return nil })
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != timeout {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		close(stuck)
		synctest.Wait()
	})
}

func FuzzReadDocument(f *testing.F) {
	for _, raw := range fixtures(f) {
		f.Add(raw)
	}
	f.Add([]byte(`{"@context":["https://w3id.org/did/v1"],"id":"did:sov:a1","service":[{"type":"IndyAgent"}],"publicKey":[{}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		doc, err := ReadDocument(raw)
		if err != nil {
			if !errors.Is(err, did.ErrInvalid) {
				t.Fatalf("%v wraps no ErrInvalid", err)
			}
			return
		}
		if _, err := did.ParseForeign(string(doc.ID)); err != nil {
			t.Fatal(err)
		}
		for _, m := range doc.VerificationMethod {
			if m.KeyType == did.Ed25519 && did.CheckKey(m.PublicKey) != nil {
				t.Fatalf("weak key %x", m.PublicKey)
			}
		}
	})
}
