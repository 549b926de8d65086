package td

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/did/proof"
	"github.com/lmosd/lmosd/internal/jcs"
)

// attested returns a record by k for exactly these bytes, so that the hash of an invalid TD is valid.
func attested(t testing.TB, k *keystore.Key, id string, td []byte) *Signed {
	t.Helper()
	record := forge(t, k, func(w *wireRecord) {
		hash := sha256.Sum256(td)
		w.Hash, w.Size, w.Thing = hash[:], uint64(len(td)), id
	})
	return &Signed{Record: record, TD: td}
}

// withProof returns doc with a proof by k.
func withProof(t testing.TB, k did.Signer, raw string, o proof.Options) []byte {
	t.Helper()
	p, err := proof.Sign(decodeJSON(t, raw).(map[string]any), k, o)
	if err != nil {
		t.Fatal(err)
	}
	return addMember([]byte(raw), "proof", bytesOf(p))
}

func TestVerifyFindsTheTD(t *testing.T) {
	t.Parallel()
	s := published(t, readFile(t, "weather.td.json"), signer(t, 1), 7)
	bare, err := s.WithoutTD()
	if err != nil {
		t.Fatal(err)
	}
	v := NewVerifier(did.Keys())
	for name, signed := range map[string]*Signed{
		"given":              s,
		"given, not inside":  bare,
		"inside":             {Record: s.Record},
		"inside, once known": {Record: s.Record},
	} {
		d, err := signed.Verify(context.Background(), v, epoch)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if !bytes.Equal(d.Signed.TD, s.TD) {
			t.Errorf("%s: another TD", name)
		}
	}
	if _, err := (&Signed{Record: bare.Record}).Verify(context.Background(), v, epoch); !errors.Is(err, ErrNoTD) {
		t.Errorf("without a TD: %v", err)
	}
}

func TestVerifyRejects(t *testing.T) {
	t.Parallel()
	k, other := signer(t, 1), signer(t, 2)
	now := proof.Options{Created: epoch}
	good := withProof(t, k, tdWith(`"id": "urn:x"`), now)
	tests := []struct {
		name   string
		signed *Signed
		want   error
	}{
		{"another TD", &Signed{Record: attested(t, k, "urn:x", good).Record, TD: append(bytes.Clone(good), ' ')},
			ErrHash},
		{"a TD of the same size",
			&Signed{Record: attested(t, k, "urn:x", good).Record,
				TD: bytes.Replace(good, []byte(`"T"`), []byte(`"U"`), 1)}, ErrHash},
		{"an empty TD", &Signed{Record: attested(t, k, "urn:x", good).Record, TD: []byte{}}, ErrHash},
		{"no JSON", attested(t, k, "urn:x", []byte("garbage")), ErrMalformed},
		{"a duplicate name",
			attested(t, k, "urn:x",
				bytes.Replace(good, []byte(`"title": "T"`), []byte(`"title": "T", "title": "T"`), 1)), ErrMalformed},
		{"a byte order mark", attested(t, k, "urn:x", append([]byte("\ufeff"), good...)), ErrMalformed},
		{"no object", attested(t, k, "urn:x", []byte("[]")), ErrMalformed},
		{"no proof", attested(t, k, "urn:x", []byte(tdWith(`"id": "urn:x"`))), ErrOwner},
		{"the proof of another owner", attested(t, k, "urn:x", withProof(t, other, tdWith(`"id": "urn:x"`), now)), ErrOwner},
		{"a copy in the record of another owner", attested(t, other, "urn:x", good), ErrOwner},
		{"a registration", attested(t, k, "urn:x", addMember(good, "registration", []byte("{}"))), ErrMalformed},
		{"a TD changed after signing", attested(t, k, "urn:x", bytes.Replace(good, []byte(`"T"`), []byte(`"U"`), 1)),
			ErrSignature},
		{"a context added after signing",
			attested(t, k, "urn:x", bytes.Replace(good, []byte(c11), []byte("["+c11+`, "https://evil.example"]`), 1)),
			ErrSignature},
		{"another id than the record's", attested(t, k, "urn:y", good), ErrHash},
		{"no id", attested(t, k, "urn:x", withProof(t, k, tdWith(), now)), ErrHash},
		{"a proof from the future",
			attested(t, k, "urn:x",
				withProof(t, k, tdWith(`"id": "urn:x"`), proof.Options{Created: epoch.Add(time.Hour)})), ErrExpired},
		{"a proof that ended", attested(t, k, "urn:x", withProof(t, k, tdWith(`"id": "urn:x"`),
			proof.Options{Created: epoch.Add(-2 * time.Hour), Expires: epoch.Add(-time.Hour)})), ErrExpired},
		{"a TD that breaks the rules", attested(t, k, "urn:x", withProof(t, k, `{"id": "urn:x"}`, now)), ErrMalformed},
		{"a record that is garbage", &Signed{Record: []byte("x"), TD: good}, ErrMalformed},
		{"nothing", &Signed{}, ErrMalformed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d, err := tt.signed.Verify(context.Background(), NewVerifier(did.Keys()), epoch)
			if !errors.Is(err, tt.want) || d != nil {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
	if _, err := attested(t, k, "urn:x", good).Verify(context.Background(), NewVerifier(did.Keys()), epoch); err != nil {
		t.Errorf("the valid TD: %v", err)
	}
}

// The error of an invalid TD contains the issues, that of an invalid proof the error of the proof.
func TestVerifyErrorsCarryTheCause(t *testing.T) {
	t.Parallel()
	k := signer(t, 1)
	v := NewVerifier(did.Keys())
	broken := withProof(t, k, `{"id": "urn:x"}`, proof.Options{Created: epoch})
	_, err := attested(t, k, "urn:x", broken).Verify(context.Background(), v, epoch)
	var invalid *ValidationError
	if !errors.As(err, &invalid) || len(invalid.Issues) != 4 {
		t.Errorf("got %v", err)
	}
	s := published(t, readFile(t, "weather.td.json"), k, 7)
	changed := bytes.Replace(s.TD, []byte("Europe"), []byte("Africa"), 1)
	_, err = attested(t, k, "urn:example:agent:weather", changed).Verify(context.Background(), v, epoch)
	if !errors.Is(err, proof.ErrProof) || !strings.Contains(err.Error(), "changed after signing") {
		t.Errorf("got %v", err)
	}
}

// A proof that claims another owner is rejected without resolving the owner.
func TestVerifySendsNoRequest(t *testing.T) {
	t.Parallel()
	k := signer(t, 1)
	resolver := &countingResolver{Resolver: did.Keys()}
	raw := bytes.Replace(withProof(t, k, tdWith(`"id": "urn:x"`), proof.Options{Created: epoch}),
		[]byte(`"verificationMethod":"`+string(k.DID())), []byte(`"verificationMethod":"did:web:evil.example`), 1)
	if _, err := attested(t, k, "urn:x", raw).Verify(context.Background(), NewVerifier(resolver), epoch); !errors.Is(err, ErrOwner) {
		t.Errorf("got %v, want %v", err, ErrOwner)
	}
	if resolver.n != 0 {
		t.Errorf("%d requests", resolver.n)
	}
}

// A countingResolver counts its calls.
type countingResolver struct {
	did.Resolver
	n int
}

func (c *countingResolver) Resolve(ctx context.Context, id did.DID) (*did.Document, error) {
	c.n++
	return c.Resolver.Resolve(ctx, id)
}

// Every changed byte of a signed TD is detected, even with a new record: a TD that verifies has equal content.
func TestEveryByteOfATD(t *testing.T) {
	t.Parallel()
	k := signer(t, 1)
	raw := published(t, readFile(t, "weather.td.json"), k, 7).TD
	canonical := func(td []byte) []byte {
		b, err := jcs.Append(nil, decodeJSON(t, string(td)))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	want := canonical(raw)
	v := NewVerifier(did.Keys())
	same := 0
	for i := range raw {
		changed := bytes.Clone(raw)
		changed[i] ^= []byte{0x01, 0x20, 0x02, 0x40}[i%4]
		if _, err := attested(t, k, "urn:example:agent:weather", changed).Verify(context.Background(), v, epoch); err != nil {
			continue
		}
		if !bytes.Equal(canonical(changed), want) {
			t.Fatalf("byte %d (%q for %q) accepted", i, changed[i], raw[i])
		}
		same++
	}
	t.Logf("%d of %d changes keep the content", same, len(raw))
}

// A foreign proof may list the signed contexts. Contexts that are appended later do not invalidate it, and are ignored: here the LMOS
// context, with which "capabilities" would become a statement that the owner did not sign.
func TestForeignProofWithContext(t *testing.T) {
	t.Parallel()
	k := signer(t, 1)
	raw := tdWith(`"id": "urn:x"`, `"capabilities": ["urn:banking"]`)
	config := map[string]any{
		"@context": Context11, "type": "DataIntegrityProof", "cryptosuite": "eddsa-jcs-2022",
		"created":            "2026-11-20T12:00:00Z",
		"verificationMethod": string(k.DID()) + "#" + k.DID().Multibase(), "proofPurpose": did.PurposeAssertion,
	}
	first, second := sha256.Sum256(bytesOf(config)), sha256.Sum256(bytesOf(decodeJSON(t, raw)))
	signature, err := k.Sign(did.PurposeAssertion, append(first[:], second[:]...))
	if err != nil {
		t.Fatal(err)
	}
	config["proofValue"] = did.EncodeBase58(signature)
	appended := strings.Replace(raw, c11, "["+c11+`, "`+ContextLMOS+`"]`, 1)
	if unverified := mustParse(t, appended).Capabilities; len(unverified) != 1 {
		t.Fatalf("unverified: %v", unverified)
	}
	d := verified(t, attested(t, k, "urn:x", addMember([]byte(appended), "proof", bytesOf(config))))
	if len(d.Capabilities) != 0 {
		t.Errorf("an unsigned capability: %v", d.Capabilities)
	}
}

func TestVerifierCachesResults(t *testing.T) {
	t.Parallel()
	k := signer(t, 1)
	v := NewVerifier(did.Keys())
	good := forge(t, k, func(*wireRecord) {})
	bad := forge(t, k, func(w *wireRecord) { w.Signature = make([]byte, 64) })
	for range 3 {
		if _, err := v.Record(good, epoch); err != nil {
			t.Fatal(err)
		}
		if _, err := v.Record(bad, epoch); !errors.Is(err, ErrSignature) {
			t.Fatalf("got %v", err)
		}
	}
	if n := len(v.recent); n != 1 {
		t.Errorf("%d records are cached, want only the valid one", n)
	}
	// The cache key covers all bytes: a valid record with an invalid inline TD is another record.
	invalid := forge(t, k, func(w *wireRecord) { w.Inline = []byte("x") })
	if _, err := v.Record(invalid, epoch); !errors.Is(err, ErrHash) {
		t.Errorf("got %v", err)
	}
}

func TestVerifierCacheIsBounded(t *testing.T) {
	t.Parallel()
	v := NewVerifier(did.Keys())
	checks := 0
	check := func(i int) {
		key := strconv.AppendInt(nil, int64(i), 10)
		if _, err := v.cached(key, func() ([]byte, error) { checks++; return nil, nil }); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2 * maxCached {
		check(i)
		check(0)
	}
	if n := len(v.recent) + len(v.older); n > maxCached || checks != 2*maxCached {
		t.Errorf("%d records are cached after %d checks; want at most %d after %d, because the first stays in use", n, checks,
			maxCached, 2*maxCached)
	}
}

func TestVerifierIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	v := NewVerifier(did.Keys())
	s := published(t, readFile(t, "weather.td.json"), signer(t, 1), 7)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 5 {
				d, err := s.Verify(context.Background(), v, epoch)
				if err != nil || d.Actions["getWeather"].Input.Check(map[string]any{}) == nil ||
					!(&Query{Text: "weather"}).Match(d) {
					t.Errorf("got %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// A known record is decoded and looked up in the cache, without a check of the signature: the hot path of gossip.
func TestKnownRecordAllocations(t *testing.T) {
	s, err := published(t, readFile(t, "weather.td.json"), signer(t, 1), 7).WithoutTD()
	if err != nil {
		t.Fatal(err)
	}
	v := NewVerifier(nil)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := v.Record(s.Record, epoch); err != nil {
			t.Fatal(err)
		}
	}); n > 60 {
		t.Errorf("%v allocations", n)
	}
}
