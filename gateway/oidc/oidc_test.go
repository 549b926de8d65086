package oidc

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v3"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/policy/access"
)

// The subject of a valid token is a consumer of this node with the rights and roles that the configuration maps its token to.
func TestAValidToken(t *testing.T) {
	t.Parallel()
	v, _ := start(t, configured())
	for name, d := range map[string]*draft{
		"ES256":                       valid(),
		"RS256":                       {alg: jose.RS256, key: private()[jose.RS256], kid: "rs", header: valid().header, claims: valid().claims},
		"PS256":                       {alg: jose.PS256, key: private()[jose.PS256], kid: "rs", header: valid().header, claims: valid().claims},
		"EdDSA":                       {alg: jose.EdDSA, key: private()[jose.EdDSA], kid: "ed", header: valid().header, claims: valid().claims},
		"without an id of the key":    {alg: jose.ES256, key: private()[jose.ES256], header: valid().header, claims: valid().claims},
		"the type of a media type":    valid().typ("application/AT+JWT"),
		"the type JWT":                valid().typ("JWT"),
		"no type":                     valid().typ(nil),
		"several audiences":           valid().with("aud", []string{"https://other.example", audience}),
		"scopes as a list":            valid().with("scope", nil).with("scp", []string{"openid", "lmos.call"}),
		"a lifetime with a fraction":  valid().with("exp", float64(time.Now().Unix())+300.5),
		"expired within the skew":     valid().with("exp", time.Now().Add(-50*time.Second).Unix()),
		"not before, within the skew": valid().with("nbf", time.Now().Add(50*time.Second).Unix()),
		"an object in the groups":     valid().with("groups", []any{"adjusters", map[string]any{"a": 1}, 7}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := find(t, v, d.sign(t))
			p := g.Principal()
			if p.Name != "oidc:acme:alice" || p.ID() != "local#oidc:acme:alice" || p.Via != did.OIDC || p.Relation != did.Local || !p.Scoped() {
				t.Errorf("the principal is %+v", p)
			}
			if !slices.Equal(p.Scopes, []string{"call"}) || !slices.Equal(p.Roles, []string{"adjuster"}) || p.Expires.IsZero() {
				t.Errorf("scopes %q, roles %q, until %v", p.Scopes, p.Roles, p.Expires)
			}
			if !g.AllowsCalls() || !g.Allows(access.Invoke, nil) || !g.Allows(access.Find, nil) || g.Allows(access.Manage, nil) || g.IsUnlimited() || g.IsOperator() {
				t.Error("the grant permits other operations than to call")
			}
		})
	}
}

// Claims in objects, and names of claims with dots, map to roles; without mapped scopes a subject has no rights.
func TestMappedClaims(t *testing.T) {
	t.Parallel()
	v, _ := start(t, configured())
	g := find(t, v, valid().with("scope", "openid call lmos.CALL").with("groups", "heads").with("realm_access", map[string]any{"roles": []string{"auditor"}}).
		with("https://acme.example/team", "blue").sign(t))
	if p := g.Principal(); len(p.Scopes) != 0 || !slices.Equal(p.Roles, []string{"adjuster", "auditor", "blue", "head"}) {
		t.Errorf("scopes %q, roles %q", p.Scopes, p.Roles)
	}
	if g.AllowsCalls() || g.Allows(access.Find, nil) {
		t.Error("a token without mapped scopes has rights")
	}
	g = find(t, v, valid().with("scope", "lmos.weather lmos.admin").sign(t))
	weather := &access.Target{ID: "urn:weather", Names: []string{"weather"}}
	if !g.Allows(access.Manage, nil) || g.Allows(access.Invoke, nil) || g.Allows(access.Write, weather) || !g.Allows(access.Find, weather) {
		t.Error("the rights are not those of the scopes")
	}
}

// The rules for the scopes are those of the node, too: they permit a subject what its scopes say, and nothing to other callers.
func TestRulesOfScopes(t *testing.T) {
	t.Parallel()
	v, _ := start(t, configured())
	b := access.NewBuilder(access.Options{Untrusted: access.UntrustedNone})
	if err := v.Rules(b); err != nil {
		t.Fatal(err)
	}
	if err := b.AddRule("policy.yaml:3", access.Rule{Deny: []string{"oidc:acme:eve"}, To: []string{"*"}}); err != nil {
		t.Fatal(err)
	}
	set, caller := b.Build(), find(t, v, valid().sign(t)).Principal()
	eve := find(t, v, valid().with("sub", "eve").sign(t)).Principal()
	weather := &access.Target{ID: "urn:weather", Names: []string{"weather"}}
	for name, c := range map[string]struct {
		who  *did.Principal
		op   access.Op
		want bool
	}{
		"a call":                   {caller, access.Invoke, true},
		"to find":                  {caller, access.Find, true},
		"to manage":                {caller, access.Manage, false},
		"another subject":          {did.Consumer(did.OIDC, "oidc:acme:bob"), access.Invoke, false},
		"a denied subject":         {eve, access.Invoke, false},
		"a token of the same name": {did.Consumer(did.Token, "call"), access.Invoke, false},
		"a node that states it":    {&did.Principal{DID: "did:key:z", Node: "did:key:z", Via: did.Peer, Name: "oidc:acme:alice"}, access.Invoke, false},
	} {
		if got := set.Decide(c.who, access.Request{Op: c.op, Target: weather, Affordance: "getWeather"}); got.Allow != c.want {
			t.Errorf("%s: got %+v, want %v", name, got, c.want)
		}
	}
}

// Each of these tokens is refused with the code for a token that is not valid, and with the reason.
func TestRefusedTokens(t *testing.T) {
	t.Parallel()
	strict := configured()
	strict.Type = "at+jwt"
	secret, err := x509.MarshalPKIXPublicKey(private()[jose.RS256].Public())
	if err != nil {
		t.Fatal(err)
	}
	withPublicKey := func(form []byte) string {
		text := unsigned(t, `{"alg":"HS256","typ":"at+jwt","kid":"rs"}`, nil)
		mac := hmac.New(sha256.New, form)
		mac.Write([]byte(strings.TrimSuffix(text, ".")))
		return text + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
	}
	good := valid().sign(t)
	parts := strings.Split(good, ".")
	withKey := func(header string, value any) string { // signed by a key that the token itself names
		d := valid()
		d.key, d.header = newECDSA(t), map[jose.HeaderKey]any{"typ": "at+jwt", jose.HeaderKey(header): value}
		return d.sign(t)
	}
	own := newECDSA(t)
	forged := valid()
	forged.key = own
	const unknown = "not a token of the node"
	for name, c := range map[string]struct {
		token, reason string
	}{
		"none":                           {unsigned(t, `{"alg":"none","typ":"at+jwt"}`, nil), unknown},
		"None":                           {unsigned(t, `{"alg":"None","typ":"at+jwt","kid":"es"}`, nil), unknown},
		"HMAC with the public key":       {withPublicKey(secret), unknown},
		"HMAC with the PEM":              {withPublicKey(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: secret})), unknown},
		"an algorithm not permitted":     {(&draft{alg: jose.ES384, key: private()[jose.ES384], kid: "es384", header: valid().header, claims: valid().claims}).sign(t), "algorithm"},
		"wrong audience":                 {valid().with("aud", "https://other.example").sign(t), "audience"},
		"a part of the audience":         {valid().with("aud", audience+".evil.example").sign(t), "audience"},
		"no audience":                    {valid().with("aud", nil).sign(t), "audience"},
		"the audience in an object":      {valid().with("aud", map[string]any{audience: 1}).sign(t), "audience"},
		"wrong issuer":                   {valid().with("iss", "https://login.evil.example").sign(t), unknown},
		"the issuer with a slash":        {valid().with("iss", issuerURL+"/").sign(t), unknown},
		"the issuer in other letters":    {valid().with("iss", nil).with("ISS", issuerURL).sign(t), unknown},
		"expired":                        {valid().with("exp", time.Now().Add(-61*time.Second).Unix()).sign(t), "expired"},
		"no expiry":                      {valid().with("exp", nil).sign(t), "expiry"},
		"an expiry of null":              {unsignedClaims(t, "exp", nil), "expiry"},
		"an expiry as text":              {valid().with("exp", "4102444800").sign(t), "expiry"},
		"not yet valid":                  {valid().with("nbf", time.Now().Add(65*time.Second).Unix()).sign(t), "valid from"},
		"issued in the future":           {valid().with("iat", time.Now().Add(65*time.Second).Unix()).sign(t), "valid from"},
		"no subject":                     {valid().with("sub", nil).sign(t), "subject"},
		"an empty subject":               {valid().with("sub", "").sign(t), "subject"},
		"a subject of 256 bytes":         {valid().with("sub", strings.Repeat("a", 256)).sign(t), "subject"},
		"a subject with a line":          {valid().with("sub", "a\nLmos-Caller: local").sign(t), "subject"},
		"a subject that is a list":       {valid().with("sub", []string{"alice"}).sign(t), "subject"},
		"an ID token, by its nonce":      {valid().typ("JWT").with("nonce", "n").sign(t), "ID token"},
		"an ID token, by a hash":         {valid().typ(nil).with("at_hash", "h").sign(t), "ID token"},
		"a logout token":                 {valid().typ("logout+jwt").sign(t), "type"},
		"a DPoP proof":                   {valid().typ("dpop+jwt").sign(t), "type"},
		"bound by DPoP":                  {valid().with("cnf", map[string]any{"jkt": "x"}).sign(t), "bound to a key"},
		"bound by TLS":                   {valid().with("cnf", map[string]any{"x5t#S256": "x"}).sign(t), "bound to a key"},
		"an unknown critical header":     {withCritical(t), unknown},
		"b64 as a critical header":       {unsigned(t, `{"alg":"ES256","kid":"es","crit":["b64"],"b64":false}`, make([]byte, 64)), unknown},
		"an empty critical header":       {unsigned(t, `{"alg":"ES256","kid":"es","crit":[]}`, make([]byte, 64)), unknown},
		"two dots missing":               {strings.Join(parts, ""), unknown},
		"one dot missing":                {parts[0] + "." + parts[1], unknown},
		"a dot too many":                 {good + ".", unknown},
		"no signature":                   {parts[0] + "." + parts[1] + ".", "signature"},
		"a signature of another token":   {parts[0] + "." + strings.Split(valid().with("sub", "eve").sign(t), ".")[1] + "." + parts[2], "signature"},
		"another signature":              {forged.sign(t), "signature"},
		"the key in the header":          {withKey("jwk", published("es", own)), "signature"},
		"the address of keys":            {withKey("jku", "https://evil.example/jwks"), "signature"},
		"the address of a certificate":   {withKey("x5u", "https://evil.example/cert"), "signature"},
		"the id of a key of other type":  {unsigned(t, `{"alg":"RS256","typ":"at+jwt","kid":"es"}`, make([]byte, 256)), "key is not one"},
		"a name of the key as a path":    {unsigned(t, `{"alg":"ES256","typ":"at+jwt","kid":"../../dev/null"}`, make([]byte, 64)), "key is not one"},
		"JSON serialization":             {`{"payload":"e30","signatures":[{"protected":"e30","signature":""}],"a":"..","b":1}`, unknown},
		"a payload that is a list":       {strings.Replace(good, parts[1], base64.RawURLEncoding.EncodeToString([]byte(`["iss"]`)), 1), unknown},
		"a token of 16 KiB and one byte": {good + strings.Repeat("A", maxToken+1-len(good)), unknown},
		"a token of 1 MB":                {good + strings.Repeat("A", 1<<20), unknown},
		"empty":                          {"", unknown},
		"a token of the node":            {"lmos_0000000000000000000000000000000000000000000000000", unknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v, a := start(t, configured())
			find(t, v, valid().sign(t)) // the keys are known
			before := a.count()
			code, title := codeOf(t, v, c.token)
			if code != interact.TokenRejected || !strings.Contains(title, c.reason) {
				t.Errorf("got %v %q, want the reason %q", code, title, c.reason)
			}
			if len(c.token) > 100 && strings.Contains(title, c.token[:40]) {
				t.Errorf("the error contains the token: %q", title)
			}
			if a.count() != before {
				t.Error("the token caused a request")
			}
			if len(v.all[0].grants) != 1 {
				t.Errorf("%d tokens are remembered", len(v.all[0].grants))
			}
		})
	}
	t.Run("another type than configured", func(t *testing.T) {
		t.Parallel()
		v, _ := start(t, strict)
		find(t, v, valid().sign(t))
		if _, title := codeOf(t, v, valid().typ("JWT").sign(t)); !strings.Contains(title, "type") {
			t.Error(title)
		}
	})
}

// unsignedClaims returns a signed token with one claim, also of null.
func unsignedClaims(t testing.TB, name string, value any) string {
	d := valid()
	d.claims[name] = value
	return d.sign(t)
}

func withCritical(t testing.TB) string {
	d := valid()
	d.header["crit"], d.header["exp"] = []string{"exp"}, 1
	text := d.sign(t)
	raw, err := base64.RawURLEncoding.DecodeString(strings.Split(text, ".")[0])
	if err != nil || !strings.Contains(string(raw), `"crit":["exp"]`) {
		t.Fatalf("the header is %s (%v)", raw, err)
	}
	return text
}

// Keys in the header of a token that a key of the provider signed are ignored.
func TestKeysInHeadersAreIgnored(t *testing.T) {
	t.Parallel()
	v, a := start(t, configured())
	find(t, v, valid().sign(t))
	before := a.count()
	for header, value := range map[string]any{"jwk": published("x", newECDSA(t)), "jku": "https://evil.example/jwks", "x5u": "https://evil.example/cert"} {
		d := valid().with("jti", header)
		d.header = map[jose.HeaderKey]any{"typ": "at+jwt", jose.HeaderKey(header): value}
		if g := find(t, v, d.sign(t)); g.Name != "oidc:acme:alice" {
			t.Errorf("%s: %s", header, g.Name)
		}
	}
	if a.count() != before {
		t.Error("a header caused a request")
	}
}

// When the provider signs with a new key, its tokens are accepted after one request for the keys. Tokens of a key that is not published any more
// end, with the interactions that they permit. Tokens with unknown keys cause one request in five seconds.
func TestKeyRotated(t *testing.T) {
	t.Parallel()
	private()
	synctest.Test(t, func(t *testing.T) {
		v, a := start(t, configured())
		old := find(t, v, valid().sign(t))
		if a.count() != 2 {
			t.Fatalf("%d requests for the first keys", a.count())
		}
		next := valid()
		next.key, next.kid = newECDSA(t), "next"
		text := next.sign(t)
		if code, _ := codeOf(t, v, text); code != interact.TokenRejected || a.count() != 2 {
			t.Fatalf("before the key is published: %v after %d requests", code, a.count())
		}
		time.Sleep(minPause)
		a.set(func() { a.keys = []jose.JSONWebKey{published("next", next.key)} })
		if g := find(t, v, text); g.Name != "oidc:acme:alice" || a.count() != 4 {
			t.Fatalf("%s after %d requests", g.Name, a.count())
		}
		for i := range 100 { // made up
			d := valid()
			d.key, d.kid = private()[jose.ES256], fmt.Sprint("k", i)
			codeOf(t, v, d.sign(t))
		}
		if a.count() != 4 {
			t.Errorf("unknown keys caused %d requests", a.count()-4)
		}
		if cause := interact.AsError(old.Context().Err()); cause == nil || old.Context().Err() == nil {
			t.Error("the grant of the withdrawn key continues")
		}
		if code, title := codeOf(t, v, valid().sign(t)); code != interact.TokenRejected || !strings.Contains(title, "key is not one") {
			t.Errorf("a token of the withdrawn key: %v %q", code, title)
		}
	})
}

// A provider that publishes no keys for a while is asked again in the background; known keys stay in use for a day.
func TestProviderDown(t *testing.T) {
	t.Parallel()
	private()
	synctest.Test(t, func(t *testing.T) {
		v, a := start(t, configured())
		a.set(func() { a.down = true })
		refused := func(d *draft) *interact.Error {
			t.Helper()
			_, err := v.Find(t.Context(), d.sign(t))
			e, ok := errors.AsType[*interact.Error](err)
			if !ok || e.Code != interact.StatusUnknown || !e.Code.Retryable() || e.RetryAfter <= 0 || !strings.Contains(e.Title, "identity provider acme cannot be reached") {
				t.Fatalf("got %v %+v", err, e)
			}
			return e
		}
		refused(valid())
		before := a.count()
		if e := refused(valid()); a.count() != before || e.RetryAfter > minPause {
			t.Errorf("%d more requests; again in %v", a.count()-before, e.RetryAfter)
		}
		if i := v.Issuers()[0]; i.Err == nil || i.Keys != 0 || !i.Since.IsZero() || i.Name != "acme" || i.URL != issuerURL || len(i.Scopes) != 3 {
			t.Errorf("the state is %+v", i)
		}
		time.Sleep(minPause)
		a.set(func() { a.down = false })
		find(t, v, valid().sign(t))
		since := time.Now()
		if i := v.Issuers()[0]; i.Err != nil || i.Keys != 4 || !i.Since.Equal(since) {
			t.Errorf("the state is %+v", i)
		}

		a.set(func() { a.down = true })
		for range 23 {
			time.Sleep(time.Hour)
			find(t, v, valid().sign(t))
			synctest.Wait()
		}
		if i := v.Issuers()[0]; i.Err == nil || i.Keys != 4 || !i.Since.Equal(since) {
			t.Errorf("the state is %+v", i)
		}
		d := valid() // with a key that may be new
		d.kid = "next"
		refused(d)
		long := valid().with("exp", time.Now().Add(48*time.Hour).Unix())
		find(t, v, long.sign(t))
		time.Sleep(2 * time.Hour)
		refused(long)
		a.set(func() { a.down = false })
		time.Sleep(minPause)
		find(t, v, long.sign(t))
	})
}

// A grant ends when its token expires.
func TestGrantEnds(t *testing.T) {
	t.Parallel()
	private()
	synctest.Test(t, func(t *testing.T) {
		v, _ := start(t, configured())
		text := valid().sign(t)
		g := find(t, v, text)
		if find(t, v, text) != g {
			t.Error("a known token was verified again")
		}
		time.Sleep(5*time.Minute + maxSkew - time.Second)
		if find(t, v, text) != g || g.Context().Err() != nil {
			t.Error("the grant ended early")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if g.Context().Err() == nil {
			t.Error("the grant continues")
		}
		if _, title := codeOf(t, v, text); !strings.Contains(title, "expired") {
			t.Error(title)
		}
	})
}

// Many tokens of one provider take a bounded place, and those that are not valid take none.
func TestRememberedTokensAreBounded(t *testing.T) {
	t.Parallel()
	v, _ := start(t, configured())
	first := valid().sign(t)
	g, p := find(t, v, first), v.all[0]
	for i := range 3 {
		d := valid().with("jti", i)
		d.key = newECDSA(t)
		codeOf(t, v, d.sign(t))
	}
	if find(t, v, first) != g || len(p.grants) != 1 {
		t.Errorf("%d tokens are remembered", len(p.grants))
	}
	who, k := g.Principal(), p.keys[0]
	for i := range 2 * maxGrants {
		p.remember(sha256.Sum256([]byte(fmt.Sprint(i))), &k, who, v.rules)
	}
	if len(p.grants) > maxGrants {
		t.Errorf("%d tokens are remembered", len(p.grants))
	}
}

// A node sends requests to the issuer only, and uses only documents of that issuer within the limits.
func TestDocumentsOfProviders(t *testing.T) {
	t.Parallel()
	const meta = "/.well-known/openid-configuration"
	weak := `{"keys":[{"kty":"RSA","kid":"rs","n":"` + base64.RawURLEncoding.EncodeToString(append([]byte{0x80}, make([]byte, 127)...)) + `","e":"AQAB"},{"kty":"oct","k":"c2VjcmV0"},{"kty":"OKP","crv":"X25519","x":"` + base64.RawURLEncoding.EncodeToString(make([]byte, 32)) + `"},7]}`
	for name, c := range map[string]struct{ path, answer, reason string }{
		"another issuer":             {meta, `{"issuer":"https://evil.example","jwks_uri":"` + issuerURL + `/jwks"}`, "states to be the issuer"},
		"keys at another host":       {meta, `{"issuer":"` + issuerURL + `","jwks_uri":"https://evil.example/jwks"}`, "another host"},
		"keys without TLS":           {meta, `{"issuer":"` + issuerURL + `","jwks_uri":"http://login.acme.example/jwks"}`, "another host"},
		"no address of keys":         {meta, `{"issuer":"` + issuerURL + `"}`, "another host"},
		"metadata that are no JSON":  {meta, `<html>`, "not valid"},
		"metadata of more than 1 MB": {meta, strings.Repeat(" ", maxDocument+1), "larger than"},
		"keys of more than 1 MB":     {"/jwks", strings.Repeat(" ", maxDocument+1), "larger than"},
		"keys that are no JSON":      {"/jwks", `hello`, "not a JWK Set"},
		"no keys":                    {"/jwks", `{"keys":[]}`, "no keys"},
		"only keys of other kinds":   {"/jwks", weak, "no keys"},
		"too many keys":              {"/jwks", `{"keys":[` + strings.Repeat(`{},`, maxKeys) + `{}]}`, "at most"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v, a := start(t, configured())
			a.answers = map[string]string{c.path: c.answer}
			if code, _ := codeOf(t, v, valid().sign(t)); code != interact.StatusUnknown {
				t.Errorf("got %v", code)
			}
			if i := v.Issuers()[0]; i.Err == nil || !strings.Contains(i.Err.Error(), c.reason) {
				t.Errorf("the state is %+v, want %q", i, c.reason)
			}
		})
	}
}

// The certificate of a provider must be signed by the configured ones; redirects to another host are not followed.
func TestPrivateCertificates(t *testing.T) {
	t.Parallel()
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") }))
	t.Cleanup(elsewhere.Close)
	a := &authority{keys: []jose.JSONWebKey{published("es", private()[jose.ES256])}}
	var url string
	s := httptest.NewUnstartedServer(nil)
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/moved/.well-known/openid-configuration":
			http.Redirect(w, r, elsewhere.URL, http.StatusFound)
		case "/.well-known/openid-configuration":
			fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q}`, url, url+"/start")
		case "/start":
			http.Redirect(w, r, "/jwks", http.StatusFound)
		case "/jwks":
			k, _ := a.keys[0].MarshalJSON()
			w.Header().Set("Content-Type", "application/jwk-set+json")
			fmt.Fprintf(w, `{"keys":[%s]}`, k)
		}
	})
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // of clients that refuse the certificate
	s.StartTLS()
	url = s.URL
	t.Cleanup(s.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		ca, path, reason string
	}{
		"signed by the file":         {ca, "", ""},
		"unknown to the system":      {"", "", "certificate"},
		"a redirect to another host": {ca, "/moved", "another host"},
	} {
		t.Run(name, func(t *testing.T) {
			p := configured()
			p.Issuer, p.CA = s.URL+c.path, c.ca
			v, err := New([]Provider{p}, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer v.Close()
			_, err = v.Find(t.Context(), valid().with("iss", p.Issuer).sign(t))
			i := v.Issuers()[0]
			if c.reason == "" && (err != nil || i.Keys != 1) || c.reason != "" && (err == nil || i.Err == nil || !strings.Contains(i.Err.Error(), c.reason)) {
				t.Errorf("%v; the state is %+v", err, i)
			}
		})
	}
}

// Configurations that cannot be used are refused.
func TestCheck(t *testing.T) {
	t.Parallel()
	change := func(f func(*Provider)) []Provider { p := configured(); f(&p); return []Provider{p} }
	two := configured()
	two.Name = "globex"
	for name, c := range map[string]struct {
		all    []Provider
		reason string
	}{
		"a provider":             {[]Provider{configured()}, ""},
		"none":                   {nil, ""},
		"on this machine":        {change(func(p *Provider) { p.Issuer = "http://127.0.0.1:3000" }), ""},
		"no name":                {change(func(p *Provider) { p.Name = "" }), "name"},
		"a name with a colon":    {change(func(p *Provider) { p.Name = "a:b" }), "name"},
		"plain HTTP":             {change(func(p *Provider) { p.Issuer = "http://login.acme.example" }), "https"},
		"an issuer with a query": {change(func(p *Provider) { p.Issuer += "?a" }), "URL"},
		"no audience":            {change(func(p *Provider) { p.Audience = "" }), "audience"},
		"none as an algorithm":   {change(func(p *Provider) { p.Algorithms = []string{"none"} }), "algorithms"},
		"HMAC as an algorithm":   {change(func(p *Provider) { p.Algorithms = []string{"RS256", "HS256"} }), "algorithms"},
		"another type":           {change(func(p *Provider) { p.Type = "jwt" }), "type"},
		"an unknown right":       {change(func(p *Provider) { p.Scopes = map[string][]string{"a": {"delete"}} }), "unknown operation"},
		"a scope with a space":   {change(func(p *Provider) { p.Scopes = map[string][]string{"a b": {"call"}} }), "OAuth scope"},
		"a role with a space":    {change(func(p *Provider) { p.Claims = map[string]map[string][]string{"g": {"a": {"b c"}}} }), "role"},
		"two of one name":        {[]Provider{configured(), configured()}, "two identity providers have the name"},
		"two of one issuer":      {[]Provider{configured(), two}, "two identity providers have the issuer"},
		"five":                   {make([]Provider, 5), "at most 4"},
		"a file in the home":     {change(func(p *Provider) { p.CA = "~/ca.pem" }), "not expanded"},
		"too many rights":        {change(func(p *Provider) { p.Scopes = map[string][]string{"a": slices.Repeat([]string{"call"}, 65)} }), "at most 64"},
		"too many roles at once": {change(func(p *Provider) {
			p.Claims = map[string]map[string][]string{"g": {"a": slices.Repeat([]string{"b"}, 17)}}
		}), "roles"},
	} {
		if err := Check(c.all); (err == nil) != (c.reason == "") || err != nil && !strings.Contains(err.Error(), c.reason) {
			t.Errorf("%s: %v", name, err)
		}
	}
	p := configured()
	p.CA = filepath.Join(t.TempDir(), "missing.pem")
	if _, err := Open("", []Provider{p}, nil); err == nil || interact.AsError(err).Code != interact.ConfigInvalid {
		t.Errorf("without its file: %v", err)
	}
	s, err := Open("", []Provider{configured()}, nil)
	if err != nil || !s.Is(valid().sign(t)) || s.Is("eyJ.eyJ.") || len(s.Issuers()) != 1 {
		t.Errorf("the store: %v", err)
	}
	s.Close()
}

// A token of any bytes is refused, without a request, unless a key of the provider signed it.
func FuzzToken(f *testing.F) {
	v, _ := start(f, configured())
	good := valid().with("exp", 4102444800).sign(f)
	find(f, v, good)
	f.Add(good)
	f.Add(strings.ReplaceAll(good, ".", ""))
	f.Add(unsigned(f, `{"alg":"none"}`, nil))
	f.Add(unsigned(f, `{"alg":"ES256","kid":"es","crit":["b64"],"b64":false}`, make([]byte, 64)))
	f.Add(`{"payload":"","signatures":[{}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		tok, err := read(text)
		if err == nil && (tok.alg == "" || !slices.Contains(known, tok.alg) || len(text) > maxToken) {
			t.Errorf("read %+v", tok)
		}
		if err == nil {
			c, _ := parseClaims(tok.jws.UnsafePayloadWithoutVerification())
			if i, err := v.all[0].identify(tok.typ, c, time.Now()); err == nil {
				v.all[0].principal(i)
			}
		}
		g, err := v.Find(t.Context(), text)
		if err == nil && !sameParts(text, good) {
			t.Errorf("accepted as %s", g.Name)
		}
	})
}

// sameParts reports whether two tokens have the same header and payload: other signatures of ECDSA may be valid, too.
func sameParts(a, b string) bool {
	return a[:max(strings.LastIndexByte(a, '.'), 0)] == b[:strings.LastIndexByte(b, '.')]
}

// The keys of a provider are those of its set that can verify signatures.
func FuzzKeys(f *testing.F) {
	for _, k := range private() {
		raw, err := jose.JSONWebKey{Key: k.Public(), KeyID: "k"}.MarshalJSON()
		if err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(`{"keys":[` + string(raw) + `]}`))
	}
	f.Add([]byte(`{"keys":[{"kty":"oct","k":"AA"}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		keys, err := parseKeys(raw)
		if (err == nil) != (len(keys) > 0) || len(keys) > maxKeys {
			t.Errorf("%d keys and %v", len(keys), err)
		}
		for _, k := range keys {
			if !slices.ContainsFunc(known, k.fits) && k.alg == "" {
				t.Errorf("a key of type %T fits no algorithm", k.public)
			}
		}
	})
}

func BenchmarkRemembered(b *testing.B) {
	v, _ := start(b, configured())
	text := valid().with("exp", 4102444800).sign(b)
	find(b, v, text)
	for b.Loop() {
		if _, err := v.Find(b.Context(), text); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkFirst(b *testing.B) {
	for _, c := range []struct {
		alg jose.SignatureAlgorithm
		kid string
	}{{jose.RS256, "rs"}, {jose.ES256, "es"}, {jose.EdDSA, "ed"}} {
		b.Run(string(c.alg), func(b *testing.B) {
			v, _ := start(b, configured())
			d := valid().with("exp", 4102444800)
			d.alg, d.kid, d.key = c.alg, c.kid, private()[c.alg]
			text := d.sign(b)
			find(b, v, text)
			for b.Loop() {
				clear(v.all[0].grants)
				if _, err := v.Find(b.Context(), text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A known token is found with one allocation: the copy of the text that is hashed. It is not parallel, because allocations are counted.
func TestAllocationsOfAKnownToken(t *testing.T) {
	v, _ := start(t, configured())
	text := valid().sign(t)
	find(t, v, text)
	if n := testing.AllocsPerRun(100, func() { _, _ = v.Find(t.Context(), text) }); n > 1 {
		t.Errorf("%v allocations", n)
	}
}
