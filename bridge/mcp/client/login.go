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
// The first two go with each request. The third is used when the server refuses one (RFC 9728, RFC 8414), and goes to its origin,
// that of the token endpoint, and nowhere else: no answer of a server can send it to another.
const (
	bearer = "bearer"
	header = "header"
	client = "oauth"
)

const (
	// again is how long nobody asks a second time for what was granted and did not help, nor where nothing was to be had.
	again = 10 * time.Second
	// lookEach is how long what was granted may be used after it was forgotten ([credentials.Store.Forget]), by another process
	// say.
	lookEach = 2 * time.Second
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
// "Authorization"; its extension "OAuth Client Credentials", SEP-1046). It is safe for concurrent use.
type Login struct {
	o    LoginOptions
	http *http.Client // for authorization servers, and what says where they are

	turn chan struct{} // holds a token while somebody gets a grant

	// The rest is owned by mu.
	mu     sync.Mutex
	looked time.Time            // into the file of grants
	now    *held                // what goes with requests
	ended  []oauth.Grant        // that were forgotten, by this login
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
	h := l.current(lookEach)
	if h != nil && stale(h.Grant) && (h.Refresh != "" || h.by != nil) {
		h = l.renewed(ctx, h)
	}
	if h != nil {
		req.Header.Set("Authorization", "Bearer "+h.Access)
	} else if c, err := l.o.Credentials.Lookup(l.o.Server, bearer, l.o.Server); err == nil && c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
}

// A held is a grant, and the way on which this host got it by itself; nil if a person let it in. It is read-only once it is now.
type held struct {
	oauth.Grant
	by    *way
	filed bool // it, or the one whose place it takes, is in the file, or was when it was looked into
	anew  bool // it is not in the file yet
}

func stale(g oauth.Grant) bool { return oauth.Due(g.Granted, g.Expires, time.Now()) }

// current is what goes with requests: at first what was kept last, then what another process has kept in its place, and nothing
// when that was forgotten. It was looked for in the file so long ago at most.
func (l *Login) current(ago time.Duration) *held {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := l.looked.IsZero()
	if !first && (l.now == nil || !l.now.filed || time.Since(l.looked) < ago) {
		return l.now
	}
	l.looked = time.Now()
	all, err := oauth.GrantsOf(l.o.Credentials).All()
	if err != nil { // it says nothing of what is kept
		return l.now
	}
	kept := all[l.o.Server]
	i := slices.IndexFunc(kept, func(g oauth.Grant) bool { return first || g.Issuer == l.now.Issuer })
	switch {
	case i < 0:
		l.now = nil
	case first || kept[i].Access != l.now.Access && !kept[i].Granted.Before(l.now.Granted.Truncate(time.Second)):
		// Of a refresh token that another process has used the issuer takes nothing more, and may take back all (RFC 9700 §4.14.2).
		l.now = &held{Grant: kept[i], filed: true}
	}
	return l.now
}

// renewed is h after a try to renew it; nil if it was forgotten. What cannot be renewed goes as it is: the server says what it thinks
// of it.
func (l *Login) renewed(ctx context.Context, h *held) *held {
	if !l.enter(ctx) {
		return h
	}
	defer l.leave()
	if now := l.current(0); now != h || l.recent(h.Access) != nil {
		return now // somebody was faster, or it was forgotten, or it has just failed
	}
	fresh, err := *h, error(nil)
	if h.by != nil {
		fresh, err = l.alone(ctx, h.by, h.Scopes)
	} else {
		fresh.Grant, err = l.refresh(ctx, h.Grant)
	}
	if err != nil {
		l.fail(l.wants(h.by, "the login at the MCP server cannot be renewed", nil, err))
		return h
	}
	fresh.anew = true
	l.adopt(ctx, fresh)
	return l.current(lookEach)
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
	if now := l.current(0); now != nil && now.Access != used {
		return true, nil // somebody was faster
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

// recent is the error of the last try, if it was a moment ago and nothing was granted since: a server that denies everything does not keep
// its authorization server busy.
func (l *Login) recent(used string) error {
	l.mu.Lock()
	failed, when := l.failed, l.when
	l.mu.Unlock()
	if failed == nil || time.Since(when) >= again || slices.ContainsFunc(oauth.GrantsOf(l.o.Credentials).Of(l.o.Server), func(g oauth.Grant) bool {
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

// adopt has h go with requests, and keeps what a person granted, or what cannot be had again. What takes the place of a grant that was
// forgotten meanwhile is forgotten, too.
func (l *Login) adopt(ctx context.Context, h held) {
	l.mu.Lock()
	l.now, l.failed = &h, nil
	l.mu.Unlock()
	if !h.anew || oauth.GrantsOf(l.o.Credentials).Path() == "" || h.by != nil || h.Refresh == "" && l.o.Show == nil {
		return // what a client gets by itself it gets again
	}
	ctx, kept, err := context.WithoutCancel(ctx), true, error(nil)
	if h.filed {
		kept, err = oauth.GrantsOf(l.o.Credentials).Renew(ctx, l.o.Server, h.Grant)
	} else {
		err = oauth.GrantsOf(l.o.Credentials).Keep(ctx, l.o.Server, h.Grant)
	}
	if err != nil {
		l.o.Log.Warn("a login cannot be kept, and is lost when lmosd ends", "issuer", h.Issuer, "err", err)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.now = nil; kept {
		l.now = &held{Grant: h.Grant, filed: true}
	}
}

// find gets a grant that is not the one that was used: the one that another process has kept, the renewed one, or a new one.
func (l *Login) find(ctx context.Context, status int, ch challenge, used string) (held, error) {
	w, err := l.discover(ctx, ch)
	if err != nil {
		return held{}, nowhere(err)
	}
	kept := l.kept(w)
	helps := status == http.StatusUnauthorized || covers(kept.Scopes, ch.scopes)
	if helps && kept.Access != used && kept.Access != "" && !stale(kept.Grant) {
		return kept, nil
	}
	own, missing := l.o.Credentials.Lookup(l.o.Server, client, w.as.TokenEndpoint)
	if own.Token != "" && kept.Refresh == "" {
		if kept.Grant, missing = w.known(own); missing == nil {
			kept.Refresh = own.Token
		}
	}
	if kept.Refresh != "" && status == http.StatusUnauthorized {
		g, err := l.refresh(ctx, kept.Grant)
		if err == nil {
			return held{Grant: g, filed: kept.filed, anew: true}, nil
		}
		missing = err
	}
	// What is not enough is asked for together with what is more (2026-07-28, "Step-up").
	scopes := union(kept.Scopes, w.scopes)
	person := l.o.Show != nil && (w.byHand() == nil || !own.Confidential())
	if !person && !own.Confidential() {
		if own == (credentials.Credential{}) && kept.Refresh == "" {
			missing = fmt.Errorf("%s: %w", l.o.Credentials.Name(), missing)
		}
		return held{}, l.wants(w, "the MCP server wants a login at "+interact.Clip(w.as.Issuer, 200), ch.scopes, missing)
	}
	if err := l.once(w.as.Issuer, scopes); err != nil {
		return held{}, err
	}
	h := held{anew: true}
	if person {
		h.Grant, err = l.consent(ctx, w, own, scopes)
	} else {
		h, err = l.alone(ctx, w, scopes)
	}
	if err != nil {
		return h, l.wants(w, "the authorization server gives no token", ch.scopes, safe(err))
	}
	return h, nil
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

// kept is what there is of an issuer, if anything.
func (l *Login) kept(w *way) held {
	for _, g := range oauth.GrantsOf(l.o.Credentials).Of(l.o.Server) {
		if g.Issuer == w.as.Issuer {
			return held{Grant: g, filed: true}
		}
	}
	if now := l.current(0); now != nil && now.Issuer == w.as.Issuer {
		return *now
	}
	return held{}
}

// alone gets a grant for this host as such, with the secret or the key that the operator has given it (RFC 6749 §4.4; SEP-1046).
// It is held in memory only.
func (l *Login) alone(ctx context.Context, w *way, scopes []string) (held, error) {
	own, err := l.o.Credentials.Lookup(l.o.Server, client, w.as.TokenEndpoint)
	if err != nil {
		return held{}, fmt.Errorf("%s: %w", l.o.Credentials.Name(), err)
	}
	g, err := w.known(own)
	if err != nil {
		// Where the file is, is nobody's business elsewhere.
		l.o.Log.Warn("a client cannot say who it is", "server", shown(l.o.Server), "private_key_file", own.PrivateKeyFile, "err", err)
		return held{}, l.wants(w, "the host of the MCP server cannot say who it is", nil, err)
	}
	g.Scopes = scopes
	params := url.Values{}
	if len(scopes) > 0 {
		params.Set("scope", strings.Join(scopes, " "))
	}
	g, err = l.request(ctx, g, params)
	g.Refresh = "" // there is none to be had (RFC 6749 §4.4.3), and it would outlive the secret
	return held{Grant: g, by: w}, err
}

// refresh renews a grant (RFC 6749 §6).
func (l *Login) refresh(ctx context.Context, g oauth.Grant) (oauth.Grant, error) {
	return l.request(ctx, g, url.Values{"grant_type": {"refresh_token"}, "refresh_token": {g.Refresh}})
}

// client is what this host is to the issuer of g. Its key, if it has one, is the operator's.
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
			return s, c, fmt.Errorf("the key of the client %s: %w", interact.Readable(interact.Clip(g.ClientID, 200)), err)
		}
	}
	return s, c, nil
}

// request asks the token endpoint of g for a token, and returns g with it.
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
	g.Refresh = cmp.Or(t.Refresh, g.Refresh) // it may be another each time
	if t.Scopes != nil {
		g.Scopes = t.Scopes
	}
	return g, nil
}

// safe is an error without what a server wrote into it.
func safe(err error) error {
	if e, ok := errors.AsType[*oauthex.ClientRegistrationError](err); ok {
		return fmt.Errorf("it registers nobody: %s", interact.Readable(interact.Clip(e.ErrorCode, 64)))
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		return oauth.Plain(e)
	}
	return err
}

// wants says that this host has to be let in, and how.
func (l *Login) wants(w *way, title string, scopes []string, err error) error {
	if already, ok := errors.AsType[*interact.Error](err); ok {
		return already
	}
	return &interact.Error{Code: interact.Unauthenticated, Title: title, Err: err,
		Hint: interact.Readable(interact.Clip(l.hint(w, scopes), 500))}
}

// hint says who can let this host in: a person, or the operator, who gives it a secret or a key. The way is nil for what a person
// granted.
func (l *Login) hint(w *way, scopes []string) string {
	file := l.o.Credentials.Name() + " of its host: docs/agents.md"
	login := "on the host of the server: lmosd login " + interact.Quote("mcp:"+shown(l.o.Server))
	for _, s := range scopes {
		login += " --scope " + interact.Quote(s)
	}
	if w == nil {
		return login
	}
	own, err := l.o.Credentials.Lookup(l.o.Server, client, w.as.TokenEndpoint)
	switch {
	case err == nil && own.Confidential():
		return `see "oauth" of this server in ` + file
	case w.byHand() != nil:
		return fmt.Sprintf(`add {%q: {"oauth": {"origin": %q, "username": …, "password": …}}}, or with a "private_key_file", to %s`,
			shown(l.o.Server), credentials.OriginOf(w.as.TokenEndpoint), file)
	case l.o.Show != nil:
		return `see "oauth" of this server in ` + file
	case w.offers("client_credentials"):
		return login + "; or, for a host without a person, with a client in " + file
	}
	return login
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
