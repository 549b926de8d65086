package foreign

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/aries"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/interact"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func newWallet(t *testing.T) *aries.Wallet {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	w, err := aries.NewWallet(key)
	if errors.Is(err, did.ErrLegacyUnsupported) {
		t.Skip("this build has no aries")
	} else if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestRolesOfACredential(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name            string
		claims          map[string]any
		types           []string
		permitted, want []string
	}{
		{"several", map[string]any{"roles": []any{"adjuster", "admin"}}, nil, []string{"adjuster", "clerk"}, []string{"adjuster"}},
		{"one", map[string]any{"role": "adjuster"}, nil, []string{"adjuster"}, []string{"adjuster"}},
		{"one in the list", map[string]any{"roles": "adjuster"}, nil, []string{"adjuster"}, []string{"adjuster"}},
		{"both", map[string]any{"role": "a", "roles": []any{"b"}}, nil, []string{"a", "b"}, []string{"a", "b"}},
		{"of a type", nil, []string{"https://claims.example/Adjuster"}, []string{"adjuster=https://claims.example/Adjuster"}, []string{"adjuster"}},
		{"of another type", nil, []string{"https://claims.example/Clerk"}, []string{"adjuster=https://claims.example/Adjuster"}, nil},
		{"the type as a word", map[string]any{"role": "adjuster"}, nil, []string{"adjuster=https://claims.example/Adjuster"}, nil},
		{"twice", map[string]any{"role": "adjuster"}, []string{"A"}, []string{"adjuster", "adjuster=A"}, []string{"adjuster"}},
		{"numbers and objects", map[string]any{"roles": []any{1.0, map[string]any{"id": "adjuster"}}}, nil, []string{"adjuster"}, nil},
		{"nothing permitted", map[string]any{"role": "adjuster"}, nil, nil, nil},
	} {
		got := (&Credential{Credential: &aries.Credential{Claims: c.claims, Types: c.types}}).Roles(c.permitted)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestVerifyHasACode(t *testing.T) {
	t.Parallel()
	w, subject := newWallet(t), didtest.Key(1).DID()
	issue := func(from, until time.Time) []byte {
		raw, err := w.Issue(subject, from, until, "adjuster")
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	good := issue(noon, noon.Add(time.Hour))
	status, err := w.Sign(map[string]any{"@context": []any{"https://www.w3.org/2018/credentials/v1", "https://w3id.org/security/suites/ed25519-2020/v1",
		"https://w3id.org/vc/status-list/2021/v1"}, "type": []any{"VerifiableCredential"}, "issuer": string(w.DID()), "issuanceDate": "2026-11-20T12:00:00Z",
		"expirationDate": "2026-11-20T13:00:00Z", "credentialSubject": map[string]any{"id": string(subject)},
		"credentialStatus": map[string]any{"id": "https://l.example/1#3", "type": "StatusList2021Entry", "statusListCredential": "https://l.example/1",
			"statusListIndex": "3", "statusPurpose": "revocation"}}, noon)
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		name     string
		ctx      context.Context
		raw      []byte
		resolver did.Resolver
		want     interact.Code
	}{
		{"good", t.Context(), good, did.Keys(), 0},
		{"expired", t.Context(), issue(noon.Add(-2*time.Hour), noon.Add(-time.Hour)), did.Keys(), interact.CredentialExpired},
		{"not valid yet", t.Context(), issue(noon.Add(time.Hour), noon.Add(2*time.Hour)), did.Keys(), interact.CredentialExpired},
		{"no JSON", t.Context(), []byte("x"), did.Keys(), interact.CredentialInvalid},
		{"of a status list", t.Context(), status, did.Keys(), interact.StatusUnknown},
		{"of an issuer that does not count", t.Context(), good, failing{ErrIssuer}, interact.IssuerUntrusted},
		{"of an issuer without a document", t.Context(), good, failing{did.ErrNotFound}, interact.CredentialInvalid},
		{"of an issuer that does not answer", t.Context(), good, failing{errors.New("connection refused")}, interact.Unreachable},
		{"canceled", ended, good, did.Keys(), interact.Cancelled},
	} {
		got, err := Verify(c.ctx, c.raw, aries.Check{Resolver: c.resolver, Subject: subject, Now: noon})
		if c.want == 0 {
			if err != nil || got.Hash != Hash(good) {
				t.Errorf("%s: %+v, %v", c.name, got, err)
			}
		} else if err == nil || interact.AsError(err).Code != c.want {
			t.Errorf("%s: %+v, %v; want %s", c.name, got, err, c.want)
		}
	}
}

type failing struct{ err error }

// Resolve returns the error.
func (f failing) Resolve(context.Context, did.DID) (*did.Document, error) { return nil, f.err }

// A build without aries says so.
func TestWithoutAries(t *testing.T) {
	t.Parallel()
	_, err := Verify(t.Context(), []byte("{}"), aries.Check{Resolver: did.Keys()})
	x := interact.AsError(err)
	if x.Code != interact.CredentialInvalid {
		t.Fatal(err)
	}
	_, unsupported := aries.NewWallet(ed25519.NewKeyFromSeed(make([]byte, 32)))
	if says := strings.Contains(x.Title, "no support for credentials of the data model 1.1"); says != errors.Is(unsupported, did.ErrLegacyUnsupported) {
		t.Errorf("the message is %q", x.Title)
	}
}

func TestHeldCredentials(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "presentations.json")
	if all, err := Read(path); err != nil || all != nil {
		t.Errorf("a missing file: %v, %v", all, err)
	}
	one := &Held{Credential: `{"a":1}`, Issuer: "did:web:a.example", Types: []string{"RoleCredential"}, Until: noon}
	all, err := With(nil, one, noon)
	if err != nil {
		t.Fatal(err)
	}
	two := &Held{Credential: `{"a": 2}`, Until: noon.Add(time.Hour), To: []did.DID{didtest.Key(1).DID()}}
	if all, err = With(all, two, noon); err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	if again, err := With(all, &Held{Credential: `{"a":1}`, Until: noon}, noon); err != nil || len(again) != 2 {
		t.Errorf("the same credential twice: %v, %v", again, err)
	}
	if later, err := With(all, &Held{Credential: `{"a":3}`}, noon.Add(time.Minute)); err != nil || len(later) != 2 {
		t.Errorf("an expired one stays: %v, %v", later, err)
	}
	if err := Write(path, all); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	back, err := Read(path)
	if err != nil || len(back) != 2 || back[1].Credential != two.Credential || back[0].Hash() != Hash([]byte(`{"a":1}`)) {
		t.Errorf("%+v, %v", back, err)
	}
	if !one.IsFor("did:key:x", did.Partner) || one.IsFor("did:key:x", did.Untrusted) || two.IsFor("did:key:x", did.Own) || !two.IsFor(didtest.Key(1).DID(), did.Untrusted) {
		t.Error("shown to the wrong nodes")
	}
	full := slices.Repeat([]*Held{two}, MaxHeld)
	if _, err := With(full, &Held{Credential: "x"}, noon); interact.AsError(err).Code != interact.Usage {
		t.Error(err)
	}
	for name, text := range map[string]string{"no JSON": "x", "another version": `{"version":2}`, "null": `{"version":1,"credentials":[null]}`, "large": strings.Repeat(" ", maxFile+1)} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if all, err := Read(path); err == nil {
			t.Errorf("%s: %v", name, all)
		}
	}
}

func TestServed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{`{"id":"a"}`: 1, `[{"id":"a"},{}]`: 2, `{"verifiableCredential":[{},{},{}]}`: 3, `{"verifiableCredential":{}}`: 1, `[]`: 0,
		`<html>`: 0, ``: 0, "[" + strings.Repeat("1,", 99) + "1]": maxServed} {
		if got := Served([]byte(text)); len(got) != want {
			t.Errorf("%.40s: %d, want %d", text, len(got), want)
		}
	}
}

func FuzzServed(f *testing.F) {
	f.Add([]byte(`{"verifiableCredential":[{},1,null]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, one := range Served(raw) {
			if len(one) > 0 && !json.Valid(one) {
				t.Fatalf("%q of %q is not JSON", one, raw)
			}
		}
	})
}
