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
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
)

// Names of the secrets of a server in the credentials file, under its address:
//
//	{"https://mcp.example/mcp": {
//	  "bearer": {"origin": "https://mcp.example", "token": "…"},
//	  "header": {"origin": "https://mcp.example", "username": "X-Api-Key", "key": "…"},
//	  "oauth":  {"origin": "https://login.example", "username": "client id", "password": "client secret"},
//	  "oauth":  {"origin": "https://login.example", "username": "client id", "token": "refresh token"}
//	}}
//
// The first two go with each request. The third is asked for when the server refuses one (RFC 9728, RFC 8414), and goes to its origin,
// that of the token endpoint, and nowhere else: no answer of a server can send it to another.
const (
	bearer = "bearer"
	header = "header"
	oauth  = "oauth"
)

const (
	early = 30 * time.Second // before a token expires it is renewed
	// again is how long nobody asks a second time for what was granted and did not help, nor where nothing was to be had.
	again = 10 * time.Second
	// asTimeout bounds one request to an authorization server.
	asTimeout = 30 * time.Second
)

// LoginOptions say how a server is logged in at. Server is needed.
type LoginOptions struct {
	// Server is the address that was exposed: by it secrets are found and kept.
	Server string
	// Credentials has the secrets, and keeps what is granted.
	Credentials credentials.Store
	// Transport makes the requests; nil means that of net/http. Addresses that a server names are asked through a fence, see below.
	Transport *http.Transport
	// Show has somebody open an address in a browser, and returns at once. Nil: there is nobody, and what needs a person is refused
	// with the command that asks one.
	Show func(ctx context.Context, address string) error
	// ClientID is what this host calls itself where a person is asked: an id that the authorization server gave out, or the https
	// address of a Client ID Metadata Document. Empty: that of the credentials, or one that is registered for the purpose.
	ClientID string
	// Port is where the browser comes back to, on loopback; 0 means a free one.
	Port int
	Log  *slog.Logger
}

// A Login adds to the requests to one server what it needs to be let in, and gets it from the server's authorization server: it renews
// what was granted, asks for what a client may ask by itself, or has a person asked (OAuth 2.1; MCP 2026-07-28 and 2025-11-25,
// "Authorization"). It is safe for concurrent use.
type Login struct {
	o    LoginOptions
	http *http.Client // for authorization servers, and what says where they are

	turn chan struct{} // holds a token while somebody gets a grant

	// The rest is owned by mu.
	mu     sync.Mutex
	loaded bool
	now    *credentials.Grant   // what goes with requests
	asked  map[string]time.Time // when what was asked for last, by issuer and scopes
	failed error                // of the last try, and when
	when   time.Time
}

// NewLogin returns the login of a server.
func NewLogin(o LoginOptions) *Login {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	l := &Login{o: o, turn: make(chan struct{}, 1), asked: map[string]time.Time{}}
	l.http = &http.Client{Transport: newFence(l), CheckRedirect: stay, Timeout: asTimeout}
	return l
}

// Close closes the connections that nobody uses: to the server, too.
func (l *Login) Close() { l.http.CloseIdleConnections() }

// Add adds to req what there is for the server. What is about to expire is renewed first.
func (l *Login) Add(ctx context.Context, req *http.Request) {
	if c, err := l.o.Credentials.Lookup(l.o.Server, header, l.o.Server); err == nil && c.Key != "" {
		req.Header.Set(c.Username, c.Key)
	}
	g := l.current()
	if g == nil {
		if c, err := l.o.Credentials.Lookup(l.o.Server, bearer, l.o.Server); err == nil && c.Token != "" {
			req.Header.Set("Authorization", "Bearer "+c.Token)
		}
		return
	}
	if stale(g) && g.Refresh != "" {
		g = l.renewed(ctx, g)
	}
	req.Header.Set("Authorization", "Bearer "+g.Access)
}

func stale(g *credentials.Grant) bool { return !g.Expires.IsZero() && time.Until(g.Expires) < early }

// current is the grant that goes with requests: at first what was kept last.
func (l *Login) current() *credentials.Grant {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.loaded {
		l.loaded = true
		if kept := l.o.Credentials.Grants(l.o.Server); len(kept) > 0 {
			l.now = &kept[0]
		}
	}
	return l.now
}

// renewed is g after a try to renew it. What cannot be renewed goes as it is: the server says what it thinks of it.
func (l *Login) renewed(ctx context.Context, g *credentials.Grant) *credentials.Grant {
	if !l.enter(ctx) {
		return g
	}
	defer l.leave()
	if now := l.current(); now != g || l.recent(g.Access) != nil {
		return now // somebody was faster, or it has just failed
	}
	fresh, err := l.refresh(ctx, *g)
	if err != nil {
		l.fail(l.wants("the login at the MCP server cannot be renewed", nil, err))
		return g
	}
	l.adopt(ctx, fresh)
	return l.current()
}

func (l *Login) enter(ctx context.Context) bool {
	select {
	case l.turn <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (l *Login) leave() { <-l.turn }

// Anew gets what lets a request in that was denied, and reports whether to try again. The error is an [*interact.Error] of code
// Unauthenticated or Forbidden; false without one means that the answer stands: no login would change it.
func (l *Login) Anew(ctx context.Context, denied *http.Response) (bool, error) {
	ch := challengeOf(denied.Header)
	if denied.StatusCode == http.StatusForbidden && ch.code != "insufficient_scope" {
		return false, nil
	}
	if !l.enter(ctx) {
		return false, ctx.Err()
	}
	defer l.leave()
	used := strings.TrimPrefix(denied.Request.Header.Get("Authorization"), "Bearer ")
	if now := l.current(); now != nil && now.Access != used {
		return true, nil // somebody was faster
	}
	if err := l.recent(used); err != nil {
		return false, err
	}
	g, err := l.find(ctx, denied.StatusCode, ch, used)
	if err != nil {
		l.fail(err)
		return false, err
	}
	l.adopt(ctx, g)
	return true, nil
}

// recent is the error of the last try, if it was a moment ago and nothing was granted since: a server that denies everything does not keep
// its authorization server busy.
func (l *Login) recent(used string) error {
	l.mu.Lock()
	failed, when := l.failed, l.when
	l.mu.Unlock()
	if failed == nil || time.Since(when) >= again || slices.ContainsFunc(l.o.Credentials.Grants(l.o.Server), func(g credentials.Grant) bool {
		return g.Access != used && g.Granted.Add(time.Second).After(when)
	}) {
		return nil
	}
	return failed
}

func (l *Login) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed, l.when = err, time.Now()
}

// adopt has g go with requests, and keeps it.
func (l *Login) adopt(ctx context.Context, g credentials.Grant) {
	l.mu.Lock()
	fresh := l.now == nil || l.now.Access != g.Access
	l.now, l.failed = &g, nil
	l.mu.Unlock()
	if !fresh || l.o.Credentials.GrantsFile() == "" || g.Refresh == "" && l.o.Show == nil {
		return // what a client gets by itself it gets again
	}
	if err := l.o.Credentials.Keep(context.WithoutCancel(ctx), l.o.Server, g); err != nil {
		l.o.Log.Warn("a login cannot be kept, and is lost when lmosd ends", "issuer", g.Issuer, "err", err)
	}
}

// find gets a grant that is not the one that was used: the one that another process has kept, the renewed one, or a new one.
func (l *Login) find(ctx context.Context, status int, ch challenge, used string) (credentials.Grant, error) {
	w, err := l.discover(ctx, ch)
	if err != nil {
		return credentials.Grant{}, nowhere(err)
	}
	kept := l.kept(w)
	helps := status == http.StatusUnauthorized || covers(kept.Scopes, ch.scopes)
	if helps && kept.Access != used && kept.Access != "" && !stale(&kept) {
		return kept, nil
	}
	own, missing := l.o.Credentials.Lookup(l.o.Server, oauth, w.as.TokenEndpoint)
	if own.Token != "" && kept.Refresh == "" {
		kept = w.grant(own.Username, own.Password)
		kept.Refresh = own.Token
	}
	if kept.Refresh != "" && status == http.StatusUnauthorized {
		g, err := l.refresh(ctx, kept)
		if err == nil {
			return g, nil
		}
		missing = err
	}
	// What is not enough is asked for together with what is more (2026-07-28, "Step-up").
	scopes := union(kept.Scopes, w.scopes)
	person := l.o.Show != nil && w.offers("authorization_code")
	if !person && own.Password == "" {
		if own == (credentials.Credential{}) && kept.Refresh == "" {
			missing = fmt.Errorf("%s: %w", l.o.Credentials.Name(), missing)
		}
		return credentials.Grant{}, l.wants("the MCP server wants a login at "+interact.Clip(w.as.Issuer, 200), ch.scopes, missing)
	}
	if err := l.once(w.as.Issuer, scopes); err != nil {
		return credentials.Grant{}, err
	}
	var g credentials.Grant
	if person {
		g, err = l.consent(ctx, w, own, scopes)
	} else {
		g, err = l.alone(ctx, w, own, scopes)
	}
	if err != nil {
		return g, l.wants("the authorization server gives no token", ch.scopes, safe(err))
	}
	return g, nil
}

// once refuses to ask for what was asked for a moment ago.
func (l *Login) once(issuer string, scopes []string) error {
	key := issuer + " " + strings.Join(scopes, " ")
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.asked[key]) < again {
		return &interact.Error{Code: interact.Forbidden, Title: "the MCP server does not take what its authorization server grants",
			Hint: "ask those who run it what it needs"}
	}
	clear(l.asked) // the one before is enough to see a loop
	l.asked[key] = time.Now()
	return nil
}

// kept is the grant of an issuer, or none.
func (l *Login) kept(w *way) credentials.Grant {
	for _, g := range l.o.Credentials.Grants(l.o.Server) {
		if g.Issuer == w.as.Issuer {
			return g
		}
	}
	if now := l.current(); now != nil && now.Issuer == w.as.Issuer {
		return *now
	}
	return credentials.Grant{}
}

// alone gets a grant for this host as such (RFC 6749 §4.4).
func (l *Login) alone(ctx context.Context, w *way, own credentials.Credential, scopes []string) (credentials.Grant, error) {
	params := url.Values{}
	if len(scopes) > 0 {
		params.Set("scope", strings.Join(scopes, " "))
	}
	g := w.grant(own.Username, own.Password)
	g.Scopes = scopes
	return l.request(ctx, g, params)
}

// refresh renews a grant (RFC 6749 §6).
func (l *Login) refresh(ctx context.Context, g credentials.Grant) (credentials.Grant, error) {
	return l.request(ctx, g, url.Values{"grant_type": {"refresh_token"}, "refresh_token": {g.Refresh}})
}

// request asks the token endpoint of g for a token, and returns g with it. The client is that of g.
func (l *Login) request(ctx context.Context, g credentials.Grant, params url.Values) (credentials.Grant, error) {
	if g.Resource != "" {
		params.Set("resource", g.Resource)
	}
	style := oauth2.AuthStyleInHeader
	if g.Method != secretBasic {
		style = oauth2.AuthStyleInParams
	}
	// This way of that library asks with the parameters that are given, of whatever grant type; its others leave the resource out.
	o := clientcredentials.Config{ClientID: g.ClientID, ClientSecret: g.ClientSecret, TokenURL: g.TokenEndpoint, AuthStyle: style,
		EndpointParams: params}
	t, err := o.Token(context.WithValue(ctx, oauth2.HTTPClient, l.http))
	if err != nil {
		return g, safe(err)
	}
	if t.Type() != "Bearer" {
		return g, fmt.Errorf("a token of the type %s is no bearer token", interact.Readable(interact.Clip(t.TokenType, 64)))
	}
	g.Access, g.Expires = t.AccessToken, t.Expiry
	g.Refresh = cmp.Or(t.RefreshToken, g.Refresh) // it may be another each time
	if granted, ok := t.Extra("scope").(string); ok && granted != "" {
		g.Scopes = strings.Fields(granted)
	}
	return g, nil
}

// safe is an error without what a server wrote into it.
func safe(err error) error {
	if e, ok := errors.AsType[*oauth2.RetrieveError](err); ok {
		return fmt.Errorf("%s %s", e.Response.Status, interact.Readable(interact.Clip(e.ErrorCode, 64)))
	}
	if e, ok := errors.AsType[*oauthex.ClientRegistrationError](err); ok {
		return fmt.Errorf("it registers nobody: %s", interact.Readable(interact.Clip(e.ErrorCode, 64)))
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

// wants says that a person has to log in, and how.
func (l *Login) wants(title string, scopes []string, err error) error {
	if already, ok := errors.AsType[*interact.Error](err); ok {
		return already
	}
	hint := "see what the credentials file says of this server; docs/agents.md"
	if l.o.Show == nil {
		hint = "on the host of the server: lmosd login " + interact.Quote("mcp:"+shown(l.o.Server))
		for _, s := range scopes {
			hint += " --scope " + interact.Quote(s)
		}
	}
	return &interact.Error{Code: interact.Unauthenticated, Title: title, Err: err, Hint: interact.Readable(interact.Clip(hint, 500))}
}

// nowhere says that nobody can log in.
func nowhere(err error) error {
	return &interact.Error{Code: interact.Unauthenticated, Title: "the MCP server lets nobody in, and does not say where to log in", Err: err,
		Hint: "if it wants a token, put it into the credentials file of its host: docs/agents.md"}
}

// shown is an address without what may be a secret in it.
func shown(address string) string {
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

// union is what is in either, in order, each once.
func union(a, b []string) []string {
	all := slices.Clone(a)
	for _, s := range b {
		if !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return all
}
