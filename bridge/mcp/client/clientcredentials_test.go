package client

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/backend"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/interact/oauth"
)

// keyed returns a credentials file for the server at, whose client has the secret members, with its key beside it, if any.
func keyed(t *testing.T, at, origin, members string, key crypto.Signer) credentials.Store {
	t.Helper()
	file := filepath.Join(t.TempDir(), "credentials.json")
	if key != nil {
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err == nil {
			err = os.WriteFile(filepath.Join(filepath.Dir(file), "me.pem"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return written(t, file, fmt.Sprintf(`{%q:{"oauth":{"origin":%q,%s}}}`, at, origin, members))
}

// callResult returns the result of a call: the response, or all members of an error.
func callResult(t *testing.T, b *backend.Backend) string {
	t.Helper()
	got, _, err := call(t, b, "x")
	if err != nil {
		e := interact.AsError(err)
		return fmt.Sprint(got, e.Code, e, e.Hint, e.Next)
	}
	return got
}

// Unattended hosts authenticate with the configured credentials, by a method that the authorization server supports. Otherwise the error
// names the missing setting, without secrets.
func TestClientCredentials(t *testing.T) {
	t.Parallel()
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	big, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	const secret, key = `"username":"me","password":"pw"`, `"username":"me","private_key_file":"me.pem"`
	for name, test := range map[string]struct {
		methods, members string
		key              crypto.Signer
		says             string
	}{
		"a secret, in the header": {"client_secret_basic", secret, nil, ""},
		"a secret, in the body":   {"client_secret_post", secret, nil, ""},
		"a key":                   {"private_key_jwt", key, curve, ""},
		"a key of RSA":            {"client_secret_basic private_key_jwt", key, big, ""},
		"both, and keys":          {"private_key_jwt", secret + `,"private_key_file":"me.pem"`, curve, ""},
		"both, and secrets":       {"client_secret_post", secret + `,"private_key_file":"me.pem"`, curve, ""},
		"both, by hand, too":      {"hand client_secret_basic private_key_jwt", key, curve, ""},
		"another secret":          {"client_secret_basic", `"username":"me","password":"hunter2"`, nil, "400 invalid_grant"},
		"another's key":           {"private_key_jwt", `"username":"you","private_key_file":"me.pem"`, curve, "400 invalid_grant"},
		"for another audience":    {"private_key_jwt", key + `,"aud":"https://other.example"`, curve, "400 invalid_grant"},
		"a key of another kind":   {"private_key_jwt", key, ed, "supports EdDSA, Ed25519, the authorization server accepts ES256, PS256"},
		"no key":                  {"private_key_jwt", key, nil, "the private key me.pem does not exist"},
		"a secret for a key":      {"private_key_jwt", secret, nil, "does not accept client secrets (it accepts private_key_jwt)"},
		"a key for a secret":      {"client_secret_basic", key, curve, "does not accept private_key_jwt"},
		"neither":                 {"private_key_jwt", `"username":"me"`, nil, `add {"HERE": {"oauth": {"origin": "`},
		"neither, by hand, too":   {"hand private_key_jwt", `"username":"me"`, nil, "{login [mcp:HERE read]}"},
	} {
		i := newIssuer(t)
		i.methods, i.clientsOnly = strings.Fields(strings.TrimPrefix(test.methods, "hand ")), !strings.HasPrefix(test.methods, "hand ")
		if test.key != nil {
			i.key = test.key.Public()
		}
		at := i.guarded(t)
		store := keyed(t, at, i.URL, test.members, test.key)
		b := dialled(t, Options{URL: at, Login: loginFor(t, at, LoginOptions{Credentials: store})})
		got := callResult(t, b)
		again := callResult(t, b)
		if test.says == "" && (!strings.Contains(got, `"result"`) || !strings.Contains(again, `"result"`) || i.seen("client_credentials") != 1) {
			t.Errorf("%s: %s, %s; requests %v", name, got, again, maps.Collect(maps.All(i.asked)))
		}
		if test.says != "" && (!strings.Contains(got, strings.ReplaceAll(test.says, "HERE", at)) || !strings.Contains(got, "LMOS-1401") ||
			!strings.Contains(got, "docs/agents.md") || i.seen("client_credentials") > 1) {
			t.Errorf("%s: %s, requests %v", name, got, maps.Collect(maps.All(i.asked)))
		}
		if strings.Contains(got, "hunter2") || strings.Contains(got, "secret-in-words") || strings.Contains(got, filepath.Dir(store.Path())) {
			t.Errorf("%s: %s", name, got)
		}
		if kept := oauth.GrantsOf(store).Of(at); len(kept) > 0 {
			t.Errorf("%s: the grant is stored", name)
		}
	}
}

// A token for client credentials is requested once for all calls, again before it expires or with more scopes, and used until it expires.
func TestClientCredentialsAreRenewed(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	i.clientsOnly, i.methods = true, []string{"private_key_jwt"}
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i.key = curve.Public()
	at := i.guarded(t)
	store := keyed(t, at, i.URL, `"username":"me","private_key_file":"me.pem"`, curve)
	l := loginFor(t, at, LoginOptions{Credentials: store})
	b := dialled(t, Options{URL: at, Login: l})
	var work sync.WaitGroup
	for range 8 {
		work.Go(func() {
			if got := callResult(t, b); !strings.Contains(got, `"result"`) {
				t.Error(got)
			}
		})
	}
	work.Wait()
	works := func(what string, grants int) {
		t.Helper()
		if got := callResult(t, b); !strings.Contains(got, `"result"`) || i.seen("client_credentials") != grants {
			t.Fatalf("%s: %s, requests %v", what, got, maps.Collect(maps.All(i.asked)))
		}
	}
	works("at first", 1)
	soon := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		h := *l.active
		h.Granted, h.Expires = time.Now().Add(-time.Hour), time.Now().Add(20*time.Second)
		l.active = &h
	}
	denied := i.seen("401")
	soon()
	works("before it ends", 2)
	if i.seen("401") != denied {
		t.Error("the token was renewed only after a denied request")
	}
	i.mu.Lock()
	i.requiredScopes = []string{"write"}
	i.mu.Unlock()
	works("with more scopes", 3)
	if g := l.current(0); !covers(g.Scopes, []string{"read", "write"}) || i.seen("403") != 1 {
		t.Errorf("the scopes are %q, after %d denied requests", g.Scopes, i.seen("403"))
	}
	soon()
	i.Close()
	works("without the authorization server", 3)
	i.forget(false)
	if got := callResult(t, b); !strings.Contains(got, "LMOS-1401") || !strings.Contains(got, "docs/agents.md") {
		t.Error(got)
	}
	if _, err := os.Stat(oauth.GrantsOf(store).Path()); err == nil {
		t.Error("a grant is stored")
	}
}

// A user may also approve a client with a key; the resulting tokens require the key.
func TestConfidentialClientLogin(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i.key, i.methods = curve.Public(), []string{"private_key_jwt"}
	at := i.guarded(t)
	store := keyed(t, at, i.URL, `"username":"me","private_key_file":"me.pem"`, curve)
	g, err := loginFor(t, at, LoginOptions{Credentials: store, Show: approveInBrowser}).Authorize(t.Context(), nil)
	if err != nil || g.Method != "private_key_jwt" || g.Algorithm != "ES256" || g.ClientSecret != "" || len(oauth.GrantsOf(store).Of(at)) != 1 {
		t.Fatalf("%v, %v", g, err)
	}
	i.forget(false)
	b := dialled(t, Options{URL: at, Login: loginFor(t, at, LoginOptions{Credentials: store})})
	if got := callResult(t, b); !strings.Contains(got, `"result"`) || i.seen("refresh_token") != 1 || i.seen("client_credentials") != 0 {
		t.Errorf("%s, requests %v", got, maps.Collect(maps.All(i.asked)))
	}
	clientsOnly := newIssuer(t)
	clientsOnly.clientsOnly = true
	at = clientsOnly.guarded(t)
	_, err = loginFor(t, at, LoginOptions{Credentials: storeIn(t), Show: approveInBrowser}).Authorize(t.Context(), nil)
	if e := interact.AsError(err); err == nil || !strings.HasPrefix(e.Error(), "authorization failed at "+clientsOnly.URL+": the authorization server does not support the authorization code flow") || !strings.Contains(e.Hint, `"username": …`) {
		t.Errorf("without the authorization code flow: %v", err)
	}
}

// Of several authorization servers the one with credentials is used; redirects of token requests are not followed.
func TestAuthorizationServerChoice(t *testing.T) {
	t.Parallel()
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a secret was sent to another server") }))
	defer elsewhere.Close()
	var own, site *httptest.Server
	own = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/token" {
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
			return
		}
		reply(w, 200, map[string]any{"issuer": own.URL, "token_endpoint": own.URL + "/token"})
	}))
	defer own.Close()
	site = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, wellKnown) {
			reply(w, 200, map[string]any{"resource": site.URL + "/mcp", "authorization_servers": []string{elsewhere.URL, own.URL}})
			return
		}
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer site.Close()
	store := keyed(t, site.URL+"/mcp", own.URL, `"username":"me","password":"pw"`, nil)
	b := dialled(t, Options{URL: site.URL + "/mcp", Login: loginFor(t, site.URL+"/mcp", LoginOptions{Credentials: store})})
	if got := callResult(t, b); !strings.Contains(got, "issued no token: 307") {
		t.Error(got)
	}
}
