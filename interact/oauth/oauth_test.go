package oauth

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v3/jwt"

	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// keyFile writes a private key as a credential needs it.
func keyFile(t *testing.T, key crypto.Signer) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "client.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func curve(t *testing.T, c elliptic.Curve) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(c, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func bits(t *testing.T, n int) crypto.Signer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, n)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// An assertion is signed with an algorithm of the key that the server accepts, and names the client and the audience.
func TestAssertions(t *testing.T) {
	t.Parallel()
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	big, small := bits(t, 2048), bits(t, 1024)
	for name, test := range map[string]struct {
		key    crypto.Signer
		server Server
		own    credentials.Credential
		want   string // the algorithm, or what is wrong
		aud    string
	}{
		"P-256":               {curve(t, elliptic.P256()), Server{Issuer: "https://as"}, credentials.Credential{Kid: "k1"}, "ES256", "https://as"},
		"P-384":               {curve(t, elliptic.P384()), Server{Issuer: "https://as/t"}, credentials.Credential{}, "ES384", "https://as/t"},
		"P-521":               {curve(t, elliptic.P521()), Server{TokenEndpoint: "https://as/token"}, credentials.Credential{}, "ES512", "https://as/token"},
		"Ed25519":             {ed, Server{Issuer: "https://as"}, credentials.Credential{Aud: "https://other"}, "EdDSA", "https://other"},
		"RSA":                 {big, Server{Issuer: "https://as", Methods: []string{SecretBasic, PrivateKeyJWT}}, credentials.Credential{}, "RS256", "https://as"},
		"RSA with PSS":        {big, Server{Issuer: "https://as", Algorithms: []string{"ES256", "PS256"}}, credentials.Credential{Password: "pw"}, "PS256", "https://as"},
		"another algorithm":   {big, Server{Algorithms: []string{"ES256", "none\n"}}, credentials.Credential{}, "RS256, PS256, the authorization server accepts ES256", ""},
		"a short key":         {small, Server{}, credentials.Credential{}, "expected Ed25519", ""},
		"P-224":               {curve(t, elliptic.P224()), Server{}, credentials.Credential{}, "expected Ed25519", ""},
		"no assertions":       {big, Server{Methods: []string{SecretBasic}}, credentials.Credential{}, "it accepts client_secret_basic", ""},
		"no secrets, no keys": {big, Server{Methods: []string{Public}}, credentials.Credential{Password: "pw"}, "it accepts none", ""},
	} {
		test.own.Username, test.own.PrivateKeyFile = "https://me.example/client", keyFile(t, test.key)
		c, err := test.server.Client(test.own)
		if test.aud == "" {
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.ContainsAny(err.Error(), "\n") {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil || c.Algorithm() != test.want || c.Secret != "" || fmt.Sprintf("%+v %#v", c, c) != "the client https://me.example/client the client https://me.example/client" {
			t.Errorf("%s: %v, %v, %s", name, c, err, c.Algorithm())
			continue
		}
		now := time.Now()
		text, err := c.key.assertion(c.ID, now)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		signed, err := jwt.ParseSigned(text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var claims jwt.Claims
		if err := signed.Claims(test.key.Public(), &claims); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		is := jwt.Expected{Issuer: c.ID, Subject: c.ID, Audience: jwt.Audience{test.aud}, Time: now}
		h := signed.Headers[0]
		if err := claims.ValidateWithLeeway(is, 0); err != nil || len(claims.Audience) != 1 || len(claims.ID) < 20 ||
			claims.Expiry.Time().Sub(now) > lives || h.Algorithm != test.want || h.KeyID != test.own.Kid || h.ExtraHeaders["typ"] != "client-authentication+jwt" {
			t.Errorf("%s: %+v, %+v, %v", name, claims, h, err)
		}
	}
}

// Clients authenticate with a method that the server accepts, and get what it grants.
func TestTokens(t *testing.T) {
	t.Parallel()
	var asked []string
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, secret, _ := r.BasicAuth()
		_ = r.ParseForm()
		asked = append(asked, strings.Join(strings.Fields(r.Method+" "+id+" "+secret+" "+r.PostForm.Encode()), " "))
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"access_token":"a","token_type":"bearer","expires_in":60,"scope":"x y","refresh_token":"r"}`)
	}))
	defer site.Close()
	h := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for name, test := range map[string]struct {
		methods []string
		own     credentials.Credential
		want    string
	}{
		"basic":             {[]string{SecretPost, SecretBasic}, credentials.Credential{Username: "m e", Password: "p:w"}, "POST m+e p%3Aw grant_type=client_credentials&resource=r"},
		"where none says":   {nil, credentials.Credential{Username: "me", Password: "pw"}, "POST me pw grant_type=client_credentials&resource=r"},
		"in the body":       {[]string{SecretPost}, credentials.Credential{Username: "me", Password: "pw"}, "POST client_id=me&client_secret=pw&grant_type=client_credentials&resource=r"},
		"without a secret":  {nil, credentials.Credential{Username: "me"}, "POST client_id=me&grant_type=client_credentials&resource=r"},
		"with an assertion": {[]string{PrivateKeyJWT}, credentials.Credential{Username: "me", PrivateKeyFile: keyFile(t, curve(t, elliptic.P256()))}, "jwt-bearer"},
	} {
		s := Server{TokenEndpoint: site.URL, Methods: test.methods}
		c, err := s.Client(test.own)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := s.Token(t.Context(), h, c, nil); err != nil {
			t.Errorf("%s, for nothing: %v", name, err)
		}
		asked = nil
		params := url.Values{"resource": {"r"}}
		got, err := s.Token(t.Context(), h, c, params)
		if err != nil || got.Access != "a" || got.Refresh != "r" || !slices.Equal(got.Scopes, []string{"x", "y"}) ||
			time.Until(got.Expires) > time.Minute || time.Until(got.Expires) < 30*time.Second || len(params) != 1 {
			t.Errorf("%s: %+v, %v; %v", name, got, err, params)
		}
		if len(asked) != 1 || asked[0] != test.want && !(c.Method == PrivateKeyJWT && strings.Contains(asked[0], test.want) && !strings.Contains(asked[0], "client_id")) {
			t.Errorf("%s: asked %q", name, asked)
		}
	}
}

var errAway = errors.New("it hangs up")

// A says is an authorization server that says one thing.
type says struct {
	code         int
	header, body string
}

func (s says) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.code == 0 {
		return nil, fmt.Errorf("%w%s", errAway, s.body)
	}
	return &http.Response{Status: fmt.Sprint(s.code, " ", s.body), StatusCode: s.code, Header: http.Header{"Content-Type": {s.header}, "Location": {"https://elsewhere.example/pw"}},
		Body: io.NopCloser(strings.NewReader(s.body)), Request: r}, nil
}

func ask(ctx context.Context, said says) (Token, error) {
	s := Server{TokenEndpoint: "https://as.example/token?key=in-the-address"}
	return s.Token(ctx, &http.Client{Transport: said}, Client{ID: "me", Secret: "hunter2", Method: SecretBasic}, url.Values{"refresh_token": {"again"}})
}

// The error of a server is reported in a few words, without secrets.
func TestInvalidTokens(t *testing.T) {
	t.Parallel()
	const form = "application/x-www-form-urlencoded"
	for name, test := range map[string]struct {
		said says
		want string
	}{
		"a refusal":                  {says{401, "application/json", `{"error":"invalid_client","error_description":"not hunter2"}`}, "401 invalid_client"},
		"a refusal in 200":           {says{200, "application/json", `{"error":"invalid_scope"}`}, "200 invalid_scope"},
		"a refusal as a form":        {says{400, form, "error=invalid_grant"}, "400 invalid_grant"},
		"a secret in it":             {says{400, "application/json", `{"error":"was hunter2"}`}, "400 (its words repeat a secret)"},
		"the refresh token in it":    {says{400, form, "error=again"}, "400 (its words repeat a secret)"},
		"lines":                      {says{400, "application/json", `{"error":"a\n\u001b[31mb"}`}, "400 a"},
		"a page":                     {says{502, "text/html", "<html>hunter2"}, "502"},
		"a redirect":                 {says{307, "", ""}, "307"},
		"no JSON":                    {says{200, "application/json", "<"}, "cannot parse"},
		"nothing":                    {says{200, "application/json", "{}"}, "missing access_token"},
		"another kind of token":      {says{200, "application/json", `{"access_token":"a","token_type":"DPoP"}`}, "expected a bearer token, got type DPoP"},
		"a kind that is a secret":    {says{200, "application/json", `{"access_token":"a","token_type":"hunter2"}`}, "repeat a secret"},
		"a secret as it was sent":    {says{400, "application/json", `{"error":"Basic bWU6aHVudGVyMg=="}`}, "repeat a secret"},
		"a kind that is the token":   {says{200, "application/json", `{"access_token":"bWU6","token_type":"is bWU6"}`}, "repeat a secret"},
		"nobody":                     {says{}, "it hangs up"},
		"no HTTP, with a secret":     {says{body: " hunter2"}, "repeat a secret"},
		"no HTTP, without an end":    {says{body: strings.Repeat("a\n", 2000)}, "it hangs up"},
		"far too much":               {says{200, "application/json", `{"access_token":"` + strings.Repeat("a", 2<<20)}, "cannot parse"},
		"an error that has no bound": {says{400, "application/json", `{"error":"` + strings.Repeat("a", 2000) + `"}`}, "aaa"},
	} {
		_, err := ask(t.Context(), test.said)
		if err == nil || !strings.Contains(err.Error(), test.want) || len(err.Error()) > 300 {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, secret := range []string{"hunter2", "again", "in-the-address", "elsewhere", "bWU6", "\n", "\x1b"} {
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%s: %q has %q", name, err, secret)
			}
		}
	}
	if _, err := ask(t.Context(), says{}); !errors.Is(err, errAway) {
		t.Errorf("%q has no cause", err)
	}
	for _, said := range []string{`{"access_token":"a"}`, `{"access_token":"a","expires_in":0}`, `{"access_token":"a","expires_in":-60,"token_type":"BEARER"}`} {
		if got, err := ask(t.Context(), says{200, "application/json", said}); err != nil || !got.Expires.IsZero() {
			t.Errorf("%s: it expires at %v, %v", said, got.Expires, err)
		}
	}
}

// A token is renewed half a minute before its end; one that lives for less than a minute, at its half.
func TestDue(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	for name, test := range map[string]struct {
		age, left time.Duration
		want      bool
	}{
		"an hour left":        {0, time.Hour, false},
		"half a minute left":  {time.Hour, 31 * time.Second, false},
		"less":                {time.Hour, 29 * time.Second, true},
		"over":                {time.Hour, -time.Second, true},
		"a short one":         {4 * time.Second, 6 * time.Second, false},
		"the half of it gone": {6 * time.Second, 4 * time.Second, true},
	} {
		if got := Due(now.Add(-test.age), now.Add(test.left), now); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if Due(now, time.Time{}, now.Add(time.Hour)) || Due(time.Time{}, now.Add(time.Minute), now) || !Due(time.Time{}, now.Add(20*time.Second), now) {
		t.Error("of what is not known")
	}
}

// Whatever a server answers is a token or an error of one line, and nothing breaks.
func FuzzTokens(f *testing.F) {
	f.Add(200, "application/json", `{"access_token":"a","token_type":"Bearer","expires_in":"60","scope":"x"}`)
	f.Add(200, "text/plain", "access_token=a&expires_in=99999999999999999999&scope=x%20y")
	f.Add(400, "application/json; charset=x", `{"error":"hunter2"}`)
	f.Add(200, "application/json", `{"access_token":"a","token_type":"\u2028"}`)
	f.Fuzz(func(t *testing.T, code int, header, body string) {
		if code < 200 || code > 599 {
			return
		}
		got, err := ask(t.Context(), says{code, header, body})
		if err == nil && (got.Access == "" || code > 299) {
			t.Errorf("%+v", got)
		}
		if err != nil && (strings.ContainsAny(err.Error(), "\n\r\x1b\u2028") || strings.Contains(err.Error(), "hunter2") || len(err.Error()) > 1000) {
			t.Errorf("%q", err)
		}
	})
}

// What a client is said to be by metadata of a stranger breaks nothing, either.
func FuzzServers(f *testing.F) {
	f.Add(`["private_key_jwt"]`, `["ES256"]`, "https://as")
	f.Add(`["none","client_secret_post"]`, `[]`, "")
	dir := f.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		f.Fatal(err)
	}
	file := filepath.Join(dir, "ec.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, methods, algorithms, issuer string) {
		s := Server{Issuer: issuer, TokenEndpoint: "https://as/token"}
		_ = json.Unmarshal([]byte(methods), &s.Methods)
		_ = json.Unmarshal([]byte(algorithms), &s.Algorithms)
		c, err := s.Client(credentials.Credential{Username: "me", Password: "hunter2", PrivateKeyFile: file})
		if err != nil && (strings.ContainsAny(err.Error(), "\n\r\x1b") || strings.Contains(err.Error(), "hunter2")) {
			t.Errorf("%q", err)
		}
		if err != nil || c.Method != PrivateKeyJWT {
			return
		}
		text, err := c.key.assertion(c.ID, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		signed, err := jwt.ParseSigned(text)
		var claims jwt.Claims
		if err != nil || signed.Claims(key.Public(), &claims) != nil || claims.Subject != "me" {
			t.Errorf("%s: %v", text, err)
		}
	})
}
