package client

import (
	"cmp"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v3/jwt"
	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/oauthex"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/interact/oauth"
	"github.com/lmosd/lmosd/internal/netguard"
)

// An issuer is an authorization server that approves all valid requests.
type issuer struct {
	*httptest.Server
	methods     []string         // client authentication methods; nil: clients have no secrets
	clientsOnly bool             // without manual logins and PKCE
	key         crypto.PublicKey // of a client with signed assertions
	more        map[string]any   // members of its metadata

	duringToken func() // called during a token request; may be nil

	mu             sync.Mutex
	requiredScopes []string       // required scopes
	asked          map[string]int // requests, by path or grant type
	codes          map[string]url.Values
	tokens         map[string][]string // scopes
	refresh        string              // the valid refresh token
}

func newIssuer(t *testing.T) *issuer {
	i := &issuer{asked: map[string]int{}, codes: map[string]url.Values{}, tokens: map[string][]string{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/oauth-authorization-server", i.describe)
	mux.HandleFunc("POST /register", i.register)
	mux.HandleFunc("GET /authorize", i.authorize)
	mux.HandleFunc("POST /token", i.token)
	mux.HandleFunc("POST /revoke", i.revoke)
	i.Server = httptest.NewServer(mux)
	t.Cleanup(i.Close)
	return i
}

func reply(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}

func (i *issuer) describe(w http.ResponseWriter, _ *http.Request) {
	if i.clientsOnly {
		reply(w, 200, map[string]any{"issuer": i.URL, "token_endpoint": i.URL + "/token", "grant_types_supported": []string{"client_credentials"},
			"token_endpoint_auth_methods_supported": i.methods, "token_endpoint_auth_signing_alg_values_supported": []string{"ES256", "PS256"}})
		return
	}
	methods := i.methods
	if methods == nil {
		methods = []string{"none"}
	}
	said := map[string]any{"issuer": i.URL, "authorization_endpoint": i.URL + "/authorize", "token_endpoint": i.URL + "/token",
		"registration_endpoint": i.URL + "/register", "code_challenge_methods_supported": []string{"S256"}, "response_types_supported": []string{"code"},
		"token_endpoint_auth_methods_supported": methods, "grant_types_supported": []string{"authorization_code", "client_credentials", "refresh_token"},
		"authorization_response_iss_parameter_supported": true, "scopes_supported": []string{"read", "offline_access"}}
	maps.Copy(said, i.more)
	reply(w, 200, said)
}

func (i *issuer) count(what string) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.asked[what]++
	return i.asked[what]
}

func (i *issuer) seen(what string) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.asked[what]
}

func (i *issuer) register(w http.ResponseWriter, r *http.Request) {
	var c oauthex.ClientRegistrationMetadata
	_ = json.NewDecoder(r.Body).Decode(&c)
	if c.ApplicationType != "native" || len(c.RedirectURIs) != 1 || !slices.Contains(c.GrantTypes, "refresh_token") {
		reply(w, 400, map[string]string{"error": "invalid_client_metadata"})
		return
	}
	reply(w, 201, map[string]any{"client_id": fmt.Sprint("client-", i.count("register")), "redirect_uris": c.RedirectURIs})
}

func (i *issuer) authorize(w http.ResponseWriter, r *http.Request) {
	i.count("authorize")
	q := r.URL.Query()
	code := rand.Text()
	i.mu.Lock()
	i.codes[code] = q
	i.mu.Unlock()
	back := url.Values{"code": {code}, "state": {q.Get("state")}, "iss": {i.URL}}
	http.Redirect(w, r, q.Get("redirect_uri")+"?"+back.Encode(), http.StatusFound)
}

func (i *issuer) token(w http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm()
	i.count(r.Form.Get("grant_type"))
	if i.duringToken != nil {
		i.duringToken()
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	scopes, ok := strings.Fields(r.Form.Get("scope")), false
	switch r.Form.Get("grant_type") {
	case "authorization_code":
		q := i.codes[r.Form.Get("code")]
		delete(i.codes, r.Form.Get("code"))
		sum := sha256.Sum256([]byte(r.Form.Get("code_verifier")))
		scopes = strings.Fields(q.Get("scope"))
		ok = q.Get("code_challenge") == base64.RawURLEncoding.EncodeToString(sum[:]) && q.Get("code_challenge_method") == "S256" &&
			q.Get("resource") == r.Form.Get("resource") && q.Get("redirect_uri") == r.Form.Get("redirect_uri") && q.Get("client_id") == cmp.Or(r.Form.Get("client_id"), q.Get("client_id"))
	case "refresh_token":
		ok = r.Form.Get("refresh_token") == i.refresh && i.refresh != ""
		scopes = []string{"read"}
	case "client_credentials":
		ok = i.isAuthenticated(r)
	}
	if !ok || r.Form.Get("resource") == "" || i.key != nil && !i.isAuthenticated(r) {
		reply(w, 400, map[string]string{"error": "invalid_grant", "error_description": "secret-in-words"})
		return
	}
	access := rand.Text()
	i.tokens[access] = scopes
	said := map[string]any{"access_token": access, "token_type": "Bearer", "expires_in": 3600, "scope": strings.Join(scopes, " ")}
	if r.Form.Get("grant_type") != "client_credentials" {
		i.refresh = rand.Text() // rotated with each request
		said["refresh_token"] = i.refresh
	}
	reply(w, 200, said)
}

// isAuthenticated reports whether a client is authenticated.
func (i *issuer) isAuthenticated(r *http.Request) bool {
	takes := func(method string) bool { return slices.Contains(i.methods, method) }
	if text := r.Form.Get("client_assertion"); text != "" {
		var claims jwt.Claims
		signed, err := jwt.ParseSigned(text)
		return err == nil && takes("private_key_jwt") && signed.Claims(i.key, &claims) == nil && !r.Form.Has("client_id") &&
			claims.Validate(jwt.Expected{Issuer: "me", Subject: "me", Audience: jwt.Audience{i.URL}, Time: time.Now()}) == nil
	}
	if id, secret, ok := r.BasicAuth(); ok {
		return takes("client_secret_basic") && id == "me" && secret == "pw"
	}
	return takes("client_secret_post") && r.Form.Get("client_id") == "me" && r.Form.Get("client_secret") == "pw"
}

// revoke invalidates a token, and with a refresh token all of them (RFC 7009 §2.1).
func (i *issuer) revoke(w http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm()
	i.count("revoke " + r.Form.Get("token_type_hint"))
	i.mu.Lock()
	defer i.mu.Unlock()
	if r.Form.Get("client_id") == "" {
		reply(w, 401, map[string]string{"error": "invalid_client"})
		return
	}
	delete(i.tokens, r.Form.Get("token"))
	if r.Form.Get("token") == i.refresh {
		i.refresh = ""
		clear(i.tokens)
	}
}

// forget invalidates all access tokens, and with everything also the refresh token.
func (i *issuer) forget(everything bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	clear(i.tokens)
	if everything {
		i.refresh = ""
	}
}

// guarded serves an MCP server of the Go SDK that accepts tokens of i.
func (i *issuer) guarded(t *testing.T) string {
	var at string
	verify := func(_ context.Context, token string, _ *http.Request) (*auth.TokenInfo, error) {
		i.mu.Lock()
		defer i.mu.Unlock()
		if scopes, ok := i.tokens[token]; ok {
			return &auth.TokenInfo{Scopes: scopes, Expiration: time.Now().Add(time.Hour)}, nil
		}
		return nil, auth.ErrInvalidToken
	}
	at, _ = served(t, true, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			place := strings.TrimSuffix(at, "/mcp") + wellKnown + "/mcp"
			if strings.HasPrefix(r.URL.Path, "/.well-known/") {
				auth.ProtectedResourceMetadataHandler(&oauthex.ProtectedResourceMetadata{Resource: at, AuthorizationServers: []string{i.URL},
					ScopesSupported: []string{"read"}}).ServeHTTP(w, r)
				return
			}
			i.mu.Lock()
			granted, known := i.tokens[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")]
			needs := i.requiredScopes
			i.mu.Unlock()
			if known && !covers(granted, needs) {
				i.count("403")
				w.Header().Set("WWW-Authenticate", `Bearer error="insufficient_scope", scope="`+strings.Join(needs, " ")+`", resource_metadata="`+place+`"`)
				w.WriteHeader(http.StatusForbidden)
				return
			}
			if !known {
				i.count("401")
			}
			auth.RequireBearerToken(verify, &auth.RequireBearerTokenOptions{ResourceMetadataURL: place, Scopes: []string{"read"}})(h).ServeHTTP(w, r)
		})
	})
	return at
}

// approveInBrowser opens an address as the browser of a user that approves the request.
func approveInBrowser(ctx context.Context, address string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err == nil {
		resp.Body.Close()
	}
	return err
}

func loginFor(t *testing.T, at string, o LoginOptions) *Login {
	o.Server, o.Transport = at, &http.Transport{}
	l := NewLogin(o)
	t.Cleanup(l.Close)
	return l
}

func storeIn(t *testing.T) credentials.Store {
	t.Helper()
	store, err := credentials.Load(filepath.Join(t.TempDir(), "credentials.json"))
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// A login is needed once: tokens are refreshed, stored, and used by running and later processes.
func TestInteractiveLogin(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	at := i.guarded(t)
	store := storeIn(t)
	node := dialled(t, Options{URL: at, Login: loginFor(t, at, LoginOptions{Credentials: store})})
	refusedOnce := func() {
		t.Helper()
		said, _, err := call(t, node, "x") // a connected client gets a response
		if err != nil {
			said = fmt.Sprint(interact.AsError(err).Code, err, interact.AsError(err).Next)
		}
		if !strings.Contains(said, "LMOS-1401") || !strings.Contains(said, "mcp:"+at) || strings.Contains(said, "secret") {
			t.Fatalf("there was no login: %s", said)
		}
	}
	works := func(what string) {
		t.Helper()
		if got, _, err := call(t, node, "x"); err != nil || !strings.Contains(got, `"result"`) {
			t.Fatalf("%s: %s, %v", what, got, err)
		}
	}
	refusedOnce()
	g, err := loginFor(t, at, LoginOptions{Credentials: store, Show: approveInBrowser}).Authorize(t.Context(), []string{"write"})
	if err != nil || !slices.Equal(g.Scopes, []string{"read", "write", "offline_access"}) || g.Issuer != i.URL || g.Refresh == "" {
		t.Fatalf("%+v, %v", g, err)
	}
	if said := fmt.Sprintf("%v %+v %#v", g, g, &g); strings.Contains(said, g.Access) {
		t.Errorf("the grant is formatted as %s", said)
	}
	works("after the login")
	i.forget(false)
	works("after a renewal")
	if kept := oauth.GrantsOf(store).Of(at); len(kept) != 1 || kept[0].Refresh == g.Refresh || i.seen("refresh_token") != 1 {
		t.Errorf("kept is %d, requests %v", len(kept), maps.Collect(maps.All(i.asked)))
	}
	node = dialled(t, Options{URL: at, Login: loginFor(t, at, LoginOptions{Credentials: store})})
	works("after a restart")
	if i.seen("refresh_token") != 1 || i.seen("authorize") != 1 {
		t.Errorf("requests %v", maps.Collect(maps.All(i.asked)))
	}
	i.forget(true)
	refusedOnce()
	refused := i.seen("refresh_token")
	refusedOnce()
	if i.seen("refresh_token") != refused {
		t.Error("a refused login is repeated at once")
	}
}

// Concurrent rejected requests cause one login; expiring tokens are refreshed before use.
func TestConcurrentRequestsShareALogin(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	at := i.guarded(t)
	l := loginFor(t, at, LoginOptions{Show: approveInBrowser})
	b := dialled(t, Options{URL: at, Login: l})
	var work sync.WaitGroup
	for n := range 8 {
		work.Go(func() {
			if _, _, err := call(t, b, fmt.Sprint(n)); err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
	l.mu.Lock()
	soon := *l.active
	soon.Expires = time.Now().Add(15 * time.Second)
	soon.Granted = soon.Expires.Add(-time.Hour)
	l.active = &soon
	l.mu.Unlock()
	if _, _, err := call(t, b, "x"); err != nil || i.seen("refresh_token") != 1 || i.seen("authorize") != 1 || i.seen("register") != 1 {
		t.Errorf("%v; requests %v", err, maps.Collect(maps.All(i.asked)))
	}
}

// Redirects of a browser are accepted only from the authorization server of the login.
func TestRedirectParameters(t *testing.T) {
	t.Parallel()
	as := &oauthex.AuthServerMeta{Issuer: "https://as.example"}
	strict := &oauthex.AuthServerMeta{Issuer: "https://as.example", AuthorizationResponseIssParameterSupported: true}
	for name, test := range map[string]struct {
		as         *oauthex.AuthServerMeta
		said, says string
	}{
		"a code":                    {as, "code=1", ""},
		"and whose it is":           {strict, "code=1&iss=https://as.example", ""},
		"it should say whose it is": {strict, "code=1", "missing issuer"},
		"another's":                 {as, "code=1&iss=https://evil.example", "evil"},
		"almost the same":           {strict, "code=1&iss=https://as.example/", "unexpected issuer"},
		"two of them":               {as, "code=1&iss=https://as.example&iss=https://evil.example", "duplicate parameter"},
		"two codes":                 {as, "code=1&code=2", "duplicate parameter"},
		"a refusal":                 {as, "error=access_denied", "access_denied"},
		"another's refusal":         {as, "error=access_denied&iss=https://evil.example", "evil"},
		"nothing":                   {as, "", "missing code"},
	} {
		said, err := url.ParseQuery(test.said)
		if err != nil {
			t.Fatal(err)
		}
		if err := checkRedirect(said, test.as); (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A redirect without the state of the login changes nothing.
func TestRedirectListener(t *testing.T) {
	t.Parallel()
	d, err := newRedirectListener(0)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	for path, want := range map[string]int{"/callback?code=1": 400, "/callback?code=1&state=x": 400, "/?state=" + d.state: 400} {
		resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get(strings.TrimSuffix(d.url, "/callback") + path)
		if err != nil || resp.StatusCode != want {
			t.Fatalf("%s: %v, %v", path, resp, err)
		}
		resp.Body.Close()
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if said, err := d.wait(ctx); err == nil {
		t.Errorf("a wrong state is accepted: %v", said)
	}
	if err := approveInBrowser(t.Context(), d.url+"?code=7&state="+d.state); err != nil {
		t.Fatal(err)
	}
	if said, err := d.wait(t.Context()); err != nil || said.Get("code") != "7" {
		t.Errorf("the redirect has %v, %v", said, err)
	}
}

// A remote server cannot direct requests to this host or its network.
func TestSSRFFilter(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	inside := httptest.NewUnstartedServer(nil)
	inside.StartTLS()
	defer inside.Close()
	for name, test := range map[string]struct {
		server, as string
		show       bool
		says       string
	}{
		"a server here":                {"http://127.0.0.1:1/mcp", i.URL, false, ""},
		"elsewhere, without TLS":       {"https://mcp.example/mcp", "http://as.example", false, "TLS required"},
		"elsewhere, to this machine":   {"https://mcp.example/mcp", inside.URL, false, "loopback"},
		"and where a person is":        {"https://mcp.example/mcp", inside.URL, true, "local address"},
		"by plain HTTP":                {"https://mcp.example/mcp", i.URL, false, "loopback"},
		"a private network":            {"https://mcp.example/mcp", "https://10.1.2.3", false, "private"},
		"the keys of a cloud":          {"https://mcp.example/mcp", "https://169.254.169.254", true, "local address"},
		"the keys of a cloud, by IPv6": {"https://mcp.example/mcp", "https://[fe80::1]", true, "local address"},
		"no address":                   {"https://mcp.example/mcp", "https://user@as.example", false, "invalid URL"},
	} {
		o := LoginOptions{}
		if test.show {
			o.Show = approveInBrowser
		}
		l := loginFor(t, test.server, o)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		_, err := l.authority(ctx, test.as)
		cancel()
		if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for at, want := range map[string]bool{"169.254.169.254:443": false, "[fe80::1]:443": false, "127.0.0.1:443": false, "[::ffff:127.0.0.1]:443": false,
		"0.0.0.0:443": false, "10.1.2.3:443": true, "192.0.2.1:443": true} {
		if err := rejectLocal("tcp", at, nil); (err == nil) != want || err != nil && !errors.As(err, new(*netguard.Error)) {
			t.Errorf("with an interactive user, %s: %v", at, err)
		}
	}
}

// The metadata of a login is searched at the well-known paths; the first valid one is used.
func TestDiscovery(t *testing.T) {
	t.Parallel()
	const as, oidc = "/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"
	for name, test := range map[string]struct {
		resources map[string]string // by path
		servers   map[string]string // by place: the path of the issuer
		challenge string
		want      string // the path of the resource, and of the issuer; or the error
	}{
		"where the challenge says": {map[string]string{"/x.json": "/mcp", wellKnown: ""}, map[string]string{as: ""}, "/x.json", "/mcp at "},
		"at the path":              {map[string]string{wellKnown + "/mcp": "/mcp", wellKnown: ""}, map[string]string{as: ""}, "", "/mcp at "},
		"at the root":              {map[string]string{wellKnown: ""}, map[string]string{as: ""}, "", " at "},
		"the challenge lies":       {map[string]string{"/x.json": "/other", wellKnown + "/mcp": "/mcp"}, map[string]string{as: ""}, "/x.json", "/mcp at "},
		"all of them lie":          {map[string]string{wellKnown + "/mcp": "/other", wellKnown: "/third"}, map[string]string{as: ""}, "", "unexpected resource"},
		"of 2025-03-26":            {nil, map[string]string{as: ""}, "", "/mcp at "},
		"none":                     {nil, nil, "", "has no metadata"},
		"a tenant":                 {map[string]string{wellKnown: ""}, map[string]string{as + "/t": "/t"}, "", " at /t"},
		"a tenant of OpenID":       {map[string]string{wellKnown: ""}, map[string]string{oidc + "/t": "/t"}, "", " at /t"},
		"that of a path":           {map[string]string{wellKnown: ""}, map[string]string{"/t" + oidc: "/t"}, "", " at /t"},
		"another tenant":           {map[string]string{wellKnown: ""}, map[string]string{as + "/t": "/u"}, "", "unexpected issuer"},
		"almost the tenant":        {map[string]string{wellKnown: ""}, map[string]string{as + "/t": "/t/"}, "", "unexpected issuer"},
		"without PKCE":             {map[string]string{wellKnown: ""}, map[string]string{as + "/t": "/t plain"}, "", "does not support PKCE"},
	} {
		var site *httptest.Server
		site = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			issuer := ""
			for _, at := range test.servers {
				issuer = strings.TrimSuffix(strings.ReplaceAll(at, "/u", "/t"), "/")
			}
			if path, ok := test.resources[r.URL.Path]; ok {
				reply(w, 200, map[string]any{"resource": site.URL + path, "authorization_servers": []string{site.URL + strings.TrimSuffix(issuer, " plain")}})
				return
			}
			path, ok := test.servers[r.URL.Path]
			if !ok {
				http.NotFound(w, r)
				return
			}
			path, plain := strings.CutSuffix(path, " plain")
			method := "S256"
			if plain {
				method = "plain"
			}
			reply(w, 200, map[string]any{"issuer": site.URL + path, "token_endpoint": site.URL + "/token", "authorization_endpoint": site.URL + "/a",
				"code_challenge_methods_supported": []string{method}})
		}))
		ch := challenge{}
		if test.challenge != "" {
			ch.metadata = site.URL + test.challenge
		}
		l := loginFor(t, site.URL+"/mcp", LoginOptions{})
		got := ""
		w, err := l.discover(t.Context(), ch)
		if err == nil {
			err = w.checkCodeFlow()
		}
		if err != nil {
			got = err.Error()
		} else {
			got = strings.TrimPrefix(w.resource, site.URL) + " at " + strings.TrimPrefix(w.as.Issuer, site.URL)
		}
		if !strings.Contains(test.want, " at ") && strings.Contains(got, test.want) {
			got = test.want
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
		l.Close()
		site.Close()
	}
}

// The metadata of a server must be about that server.
func TestResources(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ said, says string }{
		"itself":              {`{"resource":"https://a.example/mcp","authorization_servers":["https://as.example"]}`, ""},
		"with a slash":        {`{"resource":"https://a.example/mcp/","authorization_servers":["https://as.example"]}`, ""},
		"another":             {`{"resource":"https://evil.example/mcp","authorization_servers":["https://as.example"]}`, "evil.example"},
		"the host":            {`{"resource":"https://a.example","authorization_servers":["https://as.example"]}`, "unexpected resource"},
		"without a server":    {`{"resource":"https://a.example/mcp"}`, "no authorization server"},
		"no document":         {`<html>`, "invalid resource metadata"},
		"too much of it":      {`{"resource":"` + strings.Repeat("x", maxDocument) + `"}`, "invalid resource metadata"},
		"another kind of it":  {`{"resource":7}`, "invalid resource metadata"},
		"a name in two lines": {`{"resource":"https://evil.example/\n\u001b[31m"}`, "unexpected resource"},
	} {
		meta, err := readResource([]byte(test.said), "https://a.example/mcp")
		if (err == nil) != (test.says == "") || err != nil && (!strings.Contains(err.Error(), test.says) || strings.ContainsAny(err.Error(), "\n\x1b")) {
			t.Errorf("%s: %v, %v", name, meta, err)
		}
	}
}

// The metadata of an authorization server must be about that server, and is requested from its host.
func FuzzAuthorities(f *testing.F) {
	f.Add("https://as.example/t/", `{"issuer":"https://as.example/t/","token_endpoint":"https://as.example/t/token"}`)
	f.Add("https://as.example", `{"issuer":"https://as.example"}`)
	f.Add("https://as.example/%2f?x#y", `{"token_endpoint":7}`)
	l := NewLogin(LoginOptions{Server: "https://mcp.example/mcp"})
	f.Cleanup(l.Close)
	f.Fuzz(func(t *testing.T, issuer, document string) {
		if l.checkURL(issuer) != nil {
			return
		}
		u, _ := url.Parse(issuer)
		for _, place := range metadataURLs(issuer) {
			at, bad := url.Parse(place)
			if bad != nil || at.Host != u.Host || at.RawQuery != "" || !strings.Contains(at.Path, "/.well-known/") {
				t.Errorf("the metadata of %q is requested from %q, %v", issuer, place, bad)
			}
		}
		if as, err := readAuthority([]byte(document), issuer); err == nil && (as.Issuer != issuer || as.TokenEndpoint == "") {
			t.Errorf("%q is accepted", document)
		}
	})
}

// Metadata and challenges of a server are limited in size, and invalid ones are errors.
func FuzzDenials(f *testing.F) {
	f.Add(`Bearer error="insufficient_scope", scope="a b", resource_metadata="https://a.example/x"`, `{"resource":"https://a.example"}`)
	f.Add(`Basic realm="x", Bearer scope=a`, `{"resource":"https://a.example/","authorization_servers":[""]}`)
	f.Fuzz(func(t *testing.T, header, document string) {
		ch := challengeOf(http.Header{"Www-Authenticate": {header, header}})
		if len(ch.scopes) > maxScopes {
			t.Errorf("%d scopes", len(ch.scopes))
		}
		if meta, err := readResource([]byte(document), "https://a.example"); err == nil && (len(meta.AuthorizationServers) == 0 ||
			strings.TrimSuffix(meta.Resource, "/") != "https://a.example") {
			t.Errorf("%q is accepted", document)
		}
	})
}
