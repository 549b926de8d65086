package oidc

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v3"

	"github.com/lmosd/lmosd/gateway/tokens"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

const (
	issuerURL = "https://login.acme.example"
	audience  = "https://node.acme.example"
)

// configured is a provider as an operator configures it.
func configured() Provider {
	return Provider{Name: "acme", Issuer: issuerURL, Audience: audience,
		Scopes: map[string][]string{"lmos.call": {"call"}, "lmos.weather": {"invoke:weather/getWeather"}, "lmos.admin": {"manage"}},
		Claims: map[string]map[string][]string{"groups": {"adjusters": {"adjuster"}, "heads": {"adjuster", "head"}},
			"realm_access.roles": {"auditor": {"auditor"}}, "https://acme.example/team": {"blue": {"blue"}}}}
}

// An authority is an identity provider in memory: a transport of HTTP that answers with its documents.
type authority struct {
	mu       sync.Mutex
	keys     []jose.JSONWebKey // published
	down     bool
	answers  map[string]string // other documents, by path
	requests int
}

func (a *authority) RoundTrip(r *http.Request) (*http.Response, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests++
	if a.down {
		return nil, errors.New("connection refused")
	}
	body, found := a.answers[r.URL.Path]
	switch {
	case found:
	case r.URL.Path == "/.well-known/openid-configuration":
		body = `{"issuer":"` + issuerURL + `","jwks_uri":"` + issuerURL + `/jwks"}`
	case r.URL.Path == "/jwks":
		raw, err := json.Marshal(jose.JSONWebKeySet{Keys: a.keys})
		if err != nil {
			return nil, err
		}
		body = string(raw)
	default:
		return &http.Response{StatusCode: 404, Status: "404 Not Found", Body: http.NoBody, Request: r}, nil
	}
	return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader([]byte(body))), Request: r}, nil
}

func (a *authority) set(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
}

func (a *authority) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.requests
}

// private are keys that tests sign with, by algorithm.
var private = sync.OnceValue(func() map[jose.SignatureAlgorithm]crypto.Signer {
	r, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	all := map[jose.SignatureAlgorithm]crypto.Signer{jose.RS256: r, jose.PS256: r}
	for alg, curve := range map[jose.SignatureAlgorithm]elliptic.Curve{jose.ES256: elliptic.P256(), jose.ES384: elliptic.P384()} {
		if all[alg], err = ecdsa.GenerateKey(curve, rand.Reader); err != nil {
			panic(err)
		}
	}
	if _, all[jose.EdDSA], err = ed25519.GenerateKey(rand.Reader); err != nil {
		panic(err)
	}
	return all
})

func newECDSA(t testing.TB) crypto.Signer {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// published returns the public part of a key.
func published(id string, k crypto.Signer) jose.JSONWebKey {
	return jose.JSONWebKey{Key: k.Public(), KeyID: id, Use: "sig"}
}

// A draft is a token before it is signed.
type draft struct {
	alg    jose.SignatureAlgorithm
	key    crypto.Signer
	kid    string
	header map[jose.HeaderKey]any
	claims map[string]any
}

// valid returns the draft of a valid token.
func valid() *draft {
	now := time.Now()
	return &draft{alg: jose.ES256, key: private()[jose.ES256], kid: "es", header: map[jose.HeaderKey]any{"typ": "at+jwt"},
		claims: map[string]any{"iss": issuerURL, "aud": audience, "sub": "alice", "exp": now.Add(5 * time.Minute).Unix(), "iat": now.Unix(),
			"client_id": "crm", "jti": "1", "scope": "openid lmos.call", "groups": []string{"adjusters", "others"}}}
}

// with returns the draft with another claim; nil removes it.
func (d *draft) with(name string, value any) *draft {
	d.claims = maps.Clone(d.claims)
	if d.claims[name] = value; value == nil {
		delete(d.claims, name)
	}
	return d
}

func (d *draft) typ(typ any) *draft {
	if d.header = map[jose.HeaderKey]any{"typ": typ}; typ == nil {
		d.header = nil
	}
	return d
}

func (d *draft) sign(t testing.TB) string {
	t.Helper()
	payload, err := json.Marshal(d.claims)
	if err != nil {
		t.Fatal(err)
	}
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: d.alg, Key: jose.JSONWebKey{Key: d.key, KeyID: d.kid}}, &jose.SignerOptions{ExtraHeaders: d.header})
	if err != nil {
		t.Fatal(err)
	}
	jws, err := s.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	text, err := jws.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// unsigned returns a token of a header, the claims of a valid token and any signature.
func unsigned(t testing.TB, header string, signature []byte) string {
	t.Helper()
	payload, err := json.Marshal(valid().claims)
	if err != nil {
		t.Fatal(err)
	}
	e := base64.RawURLEncoding
	return e.EncodeToString([]byte(header)) + "." + e.EncodeToString(payload) + "." + e.EncodeToString(signature)
}

// start returns a verifier for c, whose provider is an authority with the keys of private.
func start(t testing.TB, c Provider) (*Verifier, *authority) {
	t.Helper()
	a := &authority{}
	for id, alg := range map[string]jose.SignatureAlgorithm{"rs": jose.RS256, "es": jose.ES256, "es384": jose.ES384, "ed": jose.EdDSA} {
		a.keys = append(a.keys, published(id, private()[alg]))
	}
	v, err := New([]Provider{c}, nil)
	if err != nil {
		t.Fatal(err)
	}
	v.all[0].client.Transport = a
	t.Cleanup(func() { v.Close() })
	return v, a
}

// codeOf returns the code of a refusal, and fails if a token was accepted.
func codeOf(t testing.TB, v *Verifier, text string) (interact.Code, string) {
	t.Helper()
	g, err := v.Find(t.Context(), text)
	if err == nil {
		t.Fatalf("accepted, as %s", g.Name)
	}
	e, ok := errors.AsType[*interact.Error](err)
	if !ok {
		t.Fatalf("got %v, not an error of the model", err)
	}
	return e.Code, e.Title
}

func find(t testing.TB, v *Verifier, text string) *tokens.Grant {
	t.Helper()
	g, err := v.Find(t.Context(), text)
	if err != nil {
		t.Fatal(err)
	}
	return g
}
