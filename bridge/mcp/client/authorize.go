package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"golang.org/x/oauth2"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/interact/oauth"
)

// loginTimeout bounds the time that the user has to log in.
const loginTimeout = 10 * time.Minute

// Authorize lets the user log in at the authorization server and stores the grant. It requests the scopes that the server requires and
// the given ones. `lmosd login` calls it. The error is an [*interact.Error] or the error of ctx.
func (l *Login) Authorize(ctx context.Context, scopes []string) (oauth.Grant, error) {
	if !l.enter(ctx) {
		return oauth.Grant{}, ctx.Err()
	}
	defer l.leave()
	ch, err := l.challenge(ctx)
	if err != nil {
		return oauth.Grant{}, err
	}
	target, err := l.discover(ctx, ch)
	if err != nil {
		return oauth.Grant{}, discoveryError(err)
	}
	own, _ := l.o.Credentials.Lookup(l.o.Server, client, target.as.TokenEndpoint)
	g, err := l.consent(ctx, target, own, union(target.scopes, scopes))
	if err != nil {
		if ctx.Err() != nil {
			return g, ctx.Err()
		}
		return g, l.loginError(target, "authorization failed at "+interact.Clip(target.as.Issuer, 200), nil, withoutServerText(err))
	}
	return g, oauth.GrantsOf(l.o.Credentials).Keep(ctx, l.o.Server, g)
}

// challenge sends a request without a token and returns the challenge of the response.
func (l *Login) challenge(ctx context.Context) (challenge, error) {
	m := protocol.Request("1", protocol.Discover, map[string]any{
		"_meta": map[string]any{protocol.MetaVersion: protocol.Modern, protocol.MetaCapabilities: struct{}{}}})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.o.Server, strings.NewReader(string(m.Bytes())))
	if err != nil {
		return challenge{}, interact.Errorf(interact.Usage, "for example mcp:https://mcp.example/mcp", "%v", err)
	}
	req.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"},
		"Mcp-Protocol-Version": {protocol.Modern}, "Mcp-Method": {protocol.Discover}}
	resp, err := l.http.Do(req)
	if err != nil {
		return challenge{}, &interact.Error{Code: interact.Unreachable, Title: "MCP server unreachable", Err: withoutServerText(err),
			Hint: unreachableHint}
	}
	drain(resp)
	return challengeOf(resp.Header), nil
}

// consent obtains a grant with the authorization code flow in a browser (RFC 6749 §4.1, RFC 7636, RFC 8252).
func (l *Login) consent(ctx context.Context, target *authTarget, own credentials.Credential, scopes []string) (oauth.Grant, error) {
	if err := target.checkCodeFlow(); err != nil {
		return oauth.Grant{}, err
	}
	if err := l.checkURL(target.as.AuthorizationEndpoint); err != nil {
		return oauth.Grant{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, loginTimeout)
	defer cancel()
	if slices.Contains(target.as.ScopesSupported, "offline_access") {
		scopes = union(scopes, []string{"offline_access"}) // needed for a refresh token (OpenID Connect Core §11)
	}
	redirect, err := newRedirectListener(l.o.Port)
	if err != nil {
		return oauth.Grant{}, err
	}
	defer redirect.close()
	g, err := l.register(ctx, target, own, redirect.url)
	if err != nil {
		return g, err
	}
	g.Scopes = scopes
	verifier := oauth2.GenerateVerifier()
	o := oauth2.Config{ClientID: g.ClientID, RedirectURL: redirect.url, Scopes: scopes,
		Endpoint: oauth2.Endpoint{AuthURL: target.as.AuthorizationEndpoint}}
	at := o.AuthCodeURL(redirect.state, oauth2.S256ChallengeOption(verifier), oauth2.SetAuthURLParam("resource", g.Resource))
	if err := l.o.Show(ctx, at); err != nil {
		return g, err
	}
	params, err := redirect.wait(ctx)
	if err != nil {
		return g, err
	}
	if err := checkRedirect(params, target.as); err != nil {
		return g, err
	}
	return l.request(ctx, g, url.Values{"grant_type": {"authorization_code"}, "code": {params.Get("code")}, "redirect_uri": {redirect.url},
		"code_verifier": {verifier}})
}

// checkCodeFlow returns an error if the authorization server does not support the authorization code flow, or not with PKCE (MCP
// 2026-07-28, "Authorization code protection").
func (t *authTarget) checkCodeFlow() error {
	switch {
	case !t.supports("authorization_code") || t.as.AuthorizationEndpoint == "":
		return errors.New("the authorization server does not support the authorization code flow")
	case !slices.Contains(t.as.CodeChallengeMethodsSupported, "S256"):
		return errors.New("the authorization server does not support PKCE with S256")
	}
	return nil
}

// checkRedirect validates the parameters of the redirect of an authorization server. The issuer is compared exactly (RFC 9207 §2.4).
func checkRedirect(params url.Values, as *oauthex.AuthServerMeta) error {
	iss := params.Get("iss")
	switch {
	case len(params["iss"]) > 1 || len(params["code"]) > 1:
		return errors.New("duplicate parameter in the redirect")
	case iss == "" && as.AuthorizationResponseIssParameterSupported:
		return errors.New("missing issuer in the redirect")
	case iss != "" && iss != as.Issuer:
		return fmt.Errorf("unexpected issuer in the redirect: %s", interact.Readable(interact.Clip(iss, 200)))
	case params.Get("error") != "":
		return fmt.Errorf("authorization server error %s", interact.Readable(interact.Clip(params.Get("error"), 64)))
	case params.Get("code") == "":
		return errors.New("missing code in the redirect")
	}
	return nil
}

// register returns a grant without a token, for the client of this host at an authorization server: the preregistered client, the client
// of a metadata document, or a newly registered one (MCP 2026-07-28, "Client registration").
func (l *Login) register(ctx context.Context, target *authTarget, own credentials.Credential, redirect string) (oauth.Grant, error) {
	document := strings.HasPrefix(l.o.ClientID, "https://")
	switch {
	case own.Username != "":
		return target.known(own)
	case l.o.ClientID != "" && (!document || target.as.ClientIDMetadataDocumentSupported):
		return target.grant(oauth.Client{ID: l.o.ClientID, Method: oauth.Public}), nil
	case target.as.RegistrationEndpoint == "":
		return oauth.Grant{}, errors.New("the authorization server does not register clients: register one there, and give its client id")
	}
	if err := l.checkURL(target.as.RegistrationEndpoint); err != nil {
		return oauth.Grant{}, err
	}
	method := oauth.Public // a native application cannot keep a secret (RFC 8252 §8.5)
	if !slices.Contains(target.as.TokenEndpointAuthMethodsSupported, oauth.Public) {
		method = target.server().Method("some")
	}
	r, err := oauthex.RegisterClient(ctx, target.as.RegistrationEndpoint, &oauthex.ClientRegistrationMetadata{
		RedirectURIs: []string{redirect}, TokenEndpointAuthMethod: method, GrantTypes: []string{"authorization_code", "refresh_token"},
		ResponseTypes: []string{"code"}, ClientName: "lmosd", SoftwareID: "lmosd", ApplicationType: "native"}, l.http)
	if err != nil {
		if _, rejected := errors.AsType[*oauthex.ClientRegistrationError](err); rejected {
			return oauth.Grant{}, withoutServerText(err)
		}
		return oauth.Grant{}, errors.New("client registration failed: " + interact.Readable(interact.Clip(withoutServerText(err).Error(), 200)))
	}
	c := oauth.Client{ID: r.ClientID, Secret: r.ClientSecret, Method: target.server().Method(r.ClientSecret)}
	if m := r.TokenEndpointAuthMethod; m == oauth.SecretBasic || m == oauth.SecretPost || m == oauth.Public {
		c.Method = m
	}
	return target.grant(c), nil
}

// A redirectListener is the loopback server that receives the redirect of the browser (RFC 8252 §7.3).
type redirectListener struct {
	url, state string
	redirect   chan url.Values
	server     *http.Server
	done       chan struct{}
}

func newRedirectListener(port int) (*redirectListener, error) {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return nil, &interact.Error{Code: interact.Usage, Title: "no port for the redirect of the browser", Err: err,
			Hint: "choose another port", Next: interact.Next(interact.StepOption, "port", "0")}
	}
	r := &redirectListener{url: "http://" + l.Addr().String() + "/callback", state: rand.Text(),
		redirect: make(chan url.Values, 1), done: make(chan struct{})}
	r.server = &http.Server{Handler: r, ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 64 << 10}
	go func() {
		defer close(r.done)
		_ = r.server.Serve(l)
	}()
	return r, nil
}

// ServeHTTP accepts one redirect with the state of this login and rejects all other requests.
func (l *redirectListener) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	params := r.URL.Query()
	if r.Method != http.MethodGet || r.URL.Path != "/callback" || params.Get("state") != l.state {
		http.Error(w, "Unknown login state.", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = io.WriteString(w, "Login complete. You can close this window.\n")
	select {
	case l.redirect <- params:
	default: // duplicate
	}
}

func (l *redirectListener) wait(ctx context.Context) (url.Values, error) {
	select {
	case params := <-l.redirect:
		return params, nil
	case <-ctx.Done():
		return nil, interact.Errorf(interact.Timeout, "log in again, and open the address that is shown", "login timed out")
	}
}

// close shuts the server down after the response to the browser.
func (l *redirectListener) close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if l.server.Shutdown(ctx) != nil {
		_ = l.server.Close()
	}
	<-l.done
}
