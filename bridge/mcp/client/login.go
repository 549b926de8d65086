package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/oauthex"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/interact/oauth"
)

// Names of the secrets of a server in the credentials file, under its address:
//
//	{"https://mcp.example/mcp": {
//	  "bearer": {"origin": "https://mcp.example", "token": "…"},
//	  "header": {"origin": "https://mcp.example", "username": "X-Api-Key", "key": "…"},
//	  "oauth":  {"origin": "https://login.example", "username": "client id", "password": "client secret"},
//	  "oauth":  {"origin": "https://login.example", "username": "client id", "private_key_file": "client.pem"},
//	  "oauth":  {"origin": "https://login.example", "username": "client id", "token": "refresh token"}
//	}}
//
// Each request contains the bearer token and the header. The oauth credentials, of one of these three kinds, are used after a denied request
// (RFC 9728, RFC 8414). They are sent only to a token endpoint at their origin, whichever endpoint the metadata of the server names.
const (
	bearer = "bearer"
	header = "header"
	client = "oauth"
)

const (
	// retryInterval is the minimum time between two logins with the same result.
	retryInterval = 10 * time.Second
	// reloadInterval bounds the use of a grant after it was revoked ([credentials.Store.Forget]), for example by another process.
	reloadInterval = 2 * time.Second
	// authTimeout bounds one request to an authorization server.
	authTimeout = 30 * time.Second
)

// LoginOptions configure a login. Server is required.
type LoginOptions struct {
	// Server is the exposed address, the key of the secrets.
	Server string
	// Credentials holds the secrets and stores the grants.
	Credentials credentials.Store
	// Transport sends the requests; nil means [http.DefaultTransport]. Requests to addresses that a server named pass a filter, see
	// ssrfFilter.
	Transport *http.Transport
	// Show opens an address in the browser of the user and returns at once. Nil means that there is no interactive user: the error of a
	// login that needs one names the command.
	Show func(ctx context.Context, address string) error
	// ClientID identifies this host for interactive logins: an id registered at the authorization server, or the https URL of a Client ID
	// Metadata Document. Empty means the client in the credentials, or dynamic registration.
	ClientID string
	// Port is the loopback port of the redirect listener; 0 means any free port.
	Port int
	Log  *slog.Logger
}

// A Login authenticates the requests to one server. It obtains tokens from the authorization server of the MCP server: by refresh, with
// client credentials, or with an interactive login (OAuth 2.1; MCP 2026-07-28 and 2025-11-25, "Authorization"; its extension "OAuth
// Client Credentials", SEP-1046). It is safe for concurrent use.
type Login struct {
	o    LoginOptions
	http *http.Client // for authorization servers and metadata

	obtaining chan struct{} // holds a token while a grant is being obtained

	// mu guards the following fields.
	mu        sync.Mutex
	lastRead  time.Time            // last read of the file of grants
	active    *activeGrant         // authenticates the requests
	revoked   []oauth.Grant        // grants that this login revoked
	requested map[string]time.Time // last requests for a grant, by issuer and scopes
	lastErr   error                // last failure, and its time
	failedAt  time.Time
}

// NewLogin returns a login.
func NewLogin(o LoginOptions) *Login {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	l := &Login{o: o, obtaining: make(chan struct{}, 1), requested: map[string]time.Time{}}
	l.http = &http.Client{Transport: newSSRFFilter(l), CheckRedirect: checkRedirects, Timeout: authTimeout}
	return l
}

// Close closes idle connections, including those to the server.
func (l *Login) Close() { l.http.CloseIdleConnections() }

// Add adds the authentication to req. A token that is about to expire is renewed first.
func (l *Login) Add(ctx context.Context, req *http.Request) {
	if c, err := l.o.Credentials.Lookup(l.o.Server, header, l.o.Server); err == nil && c.Key != "" {
		req.Header.Set(c.Username, c.Key)
	}
	h := l.current(reloadInterval)
	if h != nil && stale(h.Grant) && (h.Refresh != "" || h.target != nil) {
		h = l.renewed(ctx, h)
	}
	if h != nil {
		req.Header.Set("Authorization", "Bearer "+h.Access)
	} else if c, err := l.o.Credentials.Lookup(l.o.Server, bearer, l.o.Server); err == nil && c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
}

// An activeGrant is a grant with its state. It is immutable once it is Login.active.
type activeGrant struct {
	oauth.Grant
	target  *authTarget
	stored  bool // the grant, or the one that it replaces, is in the file or was at the last read
	unsaved bool // not yet in the file
}

func stale(g oauth.Grant) bool { return oauth.Due(g.Granted, g.Expires, time.Now()) }

// current returns the active grant: at first the last stored one, later the one with which another process replaced it; nil if it was
// revoked. The file is read again if the last read is longer ago than maxAge.
func (l *Login) current(maxAge time.Duration) *activeGrant {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := l.lastRead.IsZero()
	if !first && (l.active == nil || !l.active.stored || time.Since(l.lastRead) < maxAge) {
		return l.active
	}
	l.lastRead = time.Now()
	all, err := oauth.GrantsOf(l.o.Credentials).All()
	if err != nil { // the file is unreadable: no change
		return l.active
	}
	kept := all[l.o.Server]
	i := slices.IndexFunc(kept, func(g oauth.Grant) bool { return first || g.Issuer == l.active.Issuer })
	switch {
	case i < 0:
		l.active = nil
	case first || kept[i].Access != l.active.Access && !kept[i].Granted.Before(l.active.Granted.Truncate(time.Second)):
		// A refresh token that another process has used is invalid, and its use may revoke the whole grant (RFC 9700 §4.14.2).
		l.active = &activeGrant{Grant: kept[i], stored: true}
	}
	return l.active
}

// renewed returns h after an attempt to renew it; nil if it was revoked. After a failed attempt it returns h unchanged: the server
// decides whether the token is valid.
func (l *Login) renewed(ctx context.Context, h *activeGrant) *activeGrant {
	if !l.enter(ctx) {
		return h
	}
	defer l.leave()
	if now := l.current(0); now != h || l.recent(h.Access) != nil {
		return now // renewed by another request, revoked, or just failed
	}
	fresh, err := *h, error(nil)
	if h.target != nil {
		fresh, err = l.clientCredentials(ctx, h.target, h.Scopes)
	} else {
		fresh.Grant, err = l.refresh(ctx, h.Grant)
	}
	if err != nil {
		l.fail(l.loginError(h.target, "token renewal failed for the MCP server", nil, err))
		return h
	}
	fresh.unsaved = true
	l.adopt(ctx, fresh)
	return l.current(reloadInterval)
}

func (l *Login) enter(ctx context.Context) bool {
	select {
	case l.obtaining <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (l *Login) leave() { <-l.obtaining }

// reauthorize obtains a grant after a denied request and reports whether to repeat the request. The error is an [*interact.Error] with
// the code Unauthenticated or Forbidden. False without an error means that no login would change the response.
func (l *Login) reauthorize(ctx context.Context, denied *http.Response) (bool, error) {
	ch := challengeOf(denied.Header)
	if denied.StatusCode == http.StatusForbidden && ch.code != "insufficient_scope" {
		return false, nil
	}
	if !l.enter(ctx) {
		return false, ctx.Err()
	}
	defer l.leave()
	used := strings.TrimPrefix(denied.Request.Header.Get("Authorization"), "Bearer ")
	if now := l.current(0); now != nil && now.Access != used {
		return true, nil // another request was faster
	}
	if err := l.recent(used); err != nil {
		return false, err
	}
	h, err := l.find(ctx, denied.StatusCode, ch, used)
	if err != nil {
		l.fail(err)
		return false, err
	}
	l.adopt(ctx, h)
	return true, nil
}

// recent returns the error of the last attempt, if it failed within retryInterval and no grant was stored since. It limits the load on
// the authorization server if the MCP server denies every request.
func (l *Login) recent(used string) error {
	l.mu.Lock()
	failed, when := l.lastErr, l.failedAt
	l.mu.Unlock()
	if failed == nil || time.Since(when) >= retryInterval {
		return nil
	}
	for _, g := range oauth.GrantsOf(l.o.Credentials).Of(l.o.Server) {
		if g.Access != used && g.Granted.Add(time.Second).After(when) {
			return nil
		}
	}
	return failed
}

func (l *Login) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastErr, l.failedAt = err, time.Now()
}

// adopt activates h. It stores a grant of an interactive login, and one that cannot be obtained again. If the grant that h replaces was
// revoked in between, h is dropped.
func (l *Login) adopt(ctx context.Context, h activeGrant) {
	l.mu.Lock()
	l.active, l.lastErr = &h, nil
	l.mu.Unlock()
	if !h.unsaved || oauth.GrantsOf(l.o.Credentials).Path() == "" || h.target != nil || h.Refresh == "" && l.o.Show == nil {
		return // a client credentials grant can be requested again
	}
	ctx, kept, err := context.WithoutCancel(ctx), true, error(nil)
	if h.stored {
		kept, err = oauth.GrantsOf(l.o.Credentials).Renew(ctx, l.o.Server, h.Grant)
	} else {
		err = oauth.GrantsOf(l.o.Credentials).Keep(ctx, l.o.Server, h.Grant)
	}
	if err != nil {
		l.o.Log.Warn("grant not stored, lost at shutdown", "issuer", h.Issuer, "err", err)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.active = nil; kept {
		l.active = &activeGrant{Grant: h.Grant, stored: true}
	}
}

// find returns another grant than the used one: one that another process stored, a refreshed one, or a new one.
func (l *Login) find(ctx context.Context, status int, ch challenge, used string) (activeGrant, error) {
	target, err := l.discover(ctx, ch)
	if err != nil {
		return activeGrant{}, discoveryError(err)
	}
	kept := l.kept(target)
	helps := status == http.StatusUnauthorized || covers(kept.Scopes, ch.scopes)
	if helps && kept.Access != used && kept.Access != "" && !stale(kept.Grant) {
		return kept, nil
	}
	own, missing := l.o.Credentials.Lookup(l.o.Server, client, target.as.TokenEndpoint)
	if own.Token != "" && kept.Refresh == "" {
		if kept.Grant, missing = target.known(own); missing == nil {
			kept.Refresh = own.Token
		}
	}
	if kept.Refresh != "" && status == http.StatusUnauthorized {
		g, err := l.refresh(ctx, kept.Grant)
		if err == nil {
			return activeGrant{Grant: g, stored: kept.stored, unsaved: true}, nil
		}
		missing = err
	}
	// The request for more scopes includes the granted ones (2026-07-28, "Step-up").
	scopes := union(kept.Scopes, target.scopes)
	interactive := l.o.Show != nil && (target.checkCodeFlow() == nil || !own.Confidential())
	if !interactive && !own.Confidential() {
		if own == (credentials.Credential{}) && kept.Refresh == "" {
			missing = fmt.Errorf("%s: %w", l.o.Credentials.Name(), missing)
		}
		return activeGrant{}, l.loginError(target, "the MCP server requires a login at "+interact.Clip(target.as.Issuer, 200), ch.scopes, missing)
	}
	if err := l.once(target.as.Issuer, scopes); err != nil {
		return activeGrant{}, err
	}
	h := activeGrant{unsaved: true}
	if interactive {
		h.Grant, err = l.consent(ctx, target, own, scopes)
	} else {
		h, err = l.clientCredentials(ctx, target, scopes)
	}
	if err != nil {
		return h, l.loginError(target, "the authorization server issued no token", ch.scopes, withoutServerText(err))
	}
	return h, nil
}

// once returns an error if the same grant was just requested.
func (l *Login) once(issuer string, scopes []string) error {
	key := issuer + " " + strings.Join(scopes, " ")
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.requested[key]) < retryInterval {
		return &interact.Error{Code: interact.Forbidden, Title: "the MCP server rejects the token of its authorization server",
			Hint: "ask its operator which authorization it requires"}
	}
	clear(l.requested) // one entry suffices to detect a loop
	l.requested[key] = time.Now()
	return nil
}

// kept returns the grant of an issuer, if there is one.
func (l *Login) kept(target *authTarget) activeGrant {
	for _, g := range oauth.GrantsOf(l.o.Credentials).Of(l.o.Server) {
		if g.Issuer == target.as.Issuer {
			return activeGrant{Grant: g, stored: true}
		}
	}
	if now := l.current(0); now != nil && now.Issuer == target.as.Issuer {
		return *now
	}
	return activeGrant{}
}

// clientCredentials obtains a grant for this host with the client secret or key in the credentials file (RFC 6749 §4.4; SEP-1046). It is
// kept in memory only.
func (l *Login) clientCredentials(ctx context.Context, target *authTarget, scopes []string) (activeGrant, error) {
	own, err := l.o.Credentials.Lookup(l.o.Server, client, target.as.TokenEndpoint)
	if err != nil {
		return activeGrant{}, fmt.Errorf("%s: %w", l.o.Credentials.Name(), err)
	}
	g, err := target.known(own)
	if err != nil {
		// The path of the key file goes to the log only.
		l.o.Log.Warn("client key unusable", "server", redacted(l.o.Server), "private_key_file", own.PrivateKeyFile, "err", err)
		return activeGrant{}, l.loginError(target, "invalid client credentials for the MCP server", nil, err)
	}
	g.Scopes = scopes
	params := url.Values{}
	if len(scopes) > 0 {
		params.Set("scope", strings.Join(scopes, " "))
	}
	g, err = l.request(ctx, g, params)
	g.Refresh = "" // not allowed (RFC 6749 §4.4.3), and it would outlive the secret
	return activeGrant{Grant: g, target: target}, err
}

// refresh renews a grant (RFC 6749 §6).
func (l *Login) refresh(ctx context.Context, g oauth.Grant) (oauth.Grant, error) {
	return l.request(ctx, g, url.Values{"grant_type": {"refresh_token"}, "refresh_token": {g.Refresh}})
}

// client returns the client of a grant. A private key comes from the credentials file.
func (l *Login) client(g oauth.Grant) (oauth.Server, oauth.Client, error) {
	s := oauth.Server{Issuer: g.Issuer, TokenEndpoint: g.TokenEndpoint, Methods: []string{g.Method}}
	c := oauth.Client{ID: g.ClientID, Secret: g.ClientSecret, Method: g.Method}
	if g.Method == oauth.PrivateKeyJWT {
		own, err := l.o.Credentials.Lookup(l.o.Server, client, g.TokenEndpoint)
		if err == nil {
			s.Algorithms = []string{g.Algorithm}
			c, err = s.Client(own)
		}
		if err != nil {
			return s, c, fmt.Errorf("key of client %s: %w", interact.Readable(interact.Clip(g.ClientID, 200)), err)
		}
	}
	return s, c, nil
}

// request requests a token at the token endpoint of g and returns g with it.
func (l *Login) request(ctx context.Context, g oauth.Grant, params url.Values) (oauth.Grant, error) {
	s, c, err := l.client(g)
	if err != nil {
		return g, err
	}
	if g.Resource != "" {
		params.Set("resource", g.Resource)
	}
	t, err := s.Token(ctx, l.http, c, params)
	if err != nil {
		return g, err
	}
	g.Access, g.Expires, g.Granted = t.Access, t.Expires, time.Now().UTC()
	g.Refresh = cmp.Or(t.Refresh, g.Refresh) // the server may rotate it
	if t.Scopes != nil {
		g.Scopes = t.Scopes
	}
	return g, nil
}

// withoutServerText returns an error without text from the server.
func withoutServerText(err error) error {
	if e, ok := errors.AsType[*oauthex.ClientRegistrationError](err); ok {
		return fmt.Errorf("client registration failed: %s", interact.Readable(interact.Clip(e.ErrorCode, 64)))
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		return oauth.Plain(e)
	}
	return err
}

// loginError returns the error of a missing login, with a hint.
func (l *Login) loginError(target *authTarget, title string, scopes []string, err error) error {
	if already, ok := errors.AsType[*interact.Error](err); ok {
		return already
	}
	hint, next := l.advice(target, scopes)
	return &interact.Error{Code: interact.Unauthenticated, Title: title, Err: err, Hint: interact.Readable(interact.Clip(hint, 500)), Next: next}
}

// advice describes how the host can be authenticated: by a user, or with a client secret or key. The target is nil for a grant of a user.
func (l *Login) advice(target *authTarget, scopes []string) (hint string, next []interact.Step) {
	const user = "log in on the host of the server"
	file := l.o.Credentials.Name() + " of its host: docs/agents.md"
	scopes = scopes[:min(len(scopes), interact.MaxStepArgs-1)] // a login also requests those that the server requires
	login := interact.Next(interact.StepLogin, append([]string{"mcp:" + redacted(l.o.Server)}, scopes...)...)
	if target == nil {
		return user, login
	}
	own, err := l.o.Credentials.Lookup(l.o.Server, client, target.as.TokenEndpoint)
	switch {
	case err == nil && own.Confidential():
		return `see "oauth" of this server in ` + file, nil
	case target.checkCodeFlow() != nil:
		return fmt.Sprintf(`add {%q: {"oauth": {"origin": %q, "username": …, "password": …}}}, or with a "private_key_file", to %s`,
			redacted(l.o.Server), credentials.OriginOf(target.as.TokenEndpoint), file), nil
	case l.o.Show != nil:
		return `see "oauth" of this server in ` + file, nil
	case target.supports("client_credentials"):
		return "a host without a user needs a client in " + file + "; a user can " + user, login
	}
	return user, login
}

// discoveryError returns the error of a server without usable metadata.
func discoveryError(err error) error {
	return &interact.Error{Code: interact.Unauthenticated, Title: "the MCP server requires a login but names no authorization server", Err: err,
		Hint: "if it requires a token, add the token to the credentials file of its host: docs/agents.md"}
}

// redacted returns an address without the parts that may contain secrets.
func redacted(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "…"
	}
	more := u.RawQuery != ""
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	if more {
		return u.String() + "?…"
	}
	return u.String()
}

func covers(have, want []string) bool {
	return !slices.ContainsFunc(want, func(s string) bool { return !slices.Contains(have, s) })
}

// union returns the elements of a and b without duplicates, in order.
func union(a, b []string) []string {
	all := slices.Clone(a)
	for _, s := range b {
		if !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return all
}
