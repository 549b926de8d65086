package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/auth"
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

// A Login adds the secrets of a store to the requests to one server. It is safe for concurrent use.
type Login struct {
	store  credentials.Store
	server string
	http   *http.Client

	mu     sync.Mutex
	tokens oauth2.TokenSource // nil before the server has asked for them
}

// NewLogin returns the login of the server at an address.
func NewLogin(store credentials.Store, server string, transport http.RoundTripper) *Login {
	return &Login{store: store, server: server, http: &http.Client{Transport: transport, CheckRedirect: stay}}
}

// Add adds to req what there is for the server; denied is the answer with which it has refused what there was, or nil. The error is an
// [*interact.Error] of code Unauthenticated.
func (l *Login) Add(ctx context.Context, req *http.Request, denied *http.Response) error {
	if denied != nil {
		if err := l.ask(ctx, denied); err != nil {
			return err
		}
	}
	if c, err := l.store.Lookup(l.server, header, l.server); err == nil && c.Key != "" {
		req.Header.Set(c.Username, c.Key)
	}
	l.mu.Lock()
	tokens := l.tokens
	l.mu.Unlock()
	if tokens == nil {
		if c, err := l.store.Lookup(l.server, bearer, l.server); err == nil && c.Token != "" {
			req.Header.Set("Authorization", "Bearer "+c.Token)
		}
		return nil
	}
	token, err := tokens.Token()
	if err != nil {
		return unauthenticated("the authorization server gives no token", safe(err))
	}
	token.SetAuthHeader(req)
	return nil
}

// safe is an error without what a server wrote into it.
func safe(err error) error {
	if e, ok := errors.AsType[*oauth2.RetrieveError](err); ok {
		return fmt.Errorf("%s %s", e.Response.Status, interact.Readable(interact.Clip(e.ErrorCode, 64)))
	}
	return err
}

func unauthenticated(title string, err error) error {
	return &interact.Error{Code: interact.Unauthenticated, Title: title, Err: err,
		Hint: "see what the credentials file says of this server; docs/agents.md"}
}

// ask finds out where tokens are to be had for the server, and takes the secret that goes there.
func (l *Login) ask(ctx context.Context, denied *http.Response) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	as, scopes, err := l.discover(ctx, denied)
	if err != nil {
		return unauthenticated("the MCP server wants a login, and does not say where", err)
	}
	c, err := l.store.Lookup(l.server, oauth, as.TokenEndpoint)
	if err != nil {
		return unauthenticated(fmt.Sprintf("the MCP server wants a login at %s", interact.Clip(as.TokenEndpoint, 200)), err)
	}
	life := context.WithValue(context.WithoutCancel(ctx), oauth2.HTTPClient, l.http)
	if c.Token != "" {
		o := oauth2.Config{ClientID: c.Username, ClientSecret: c.Password, Endpoint: oauth2.Endpoint{TokenURL: as.TokenEndpoint}}
		l.tokens = o.TokenSource(life, &oauth2.Token{RefreshToken: c.Token})
		return nil
	}
	o := clientcredentials.Config{ClientID: c.Username, ClientSecret: c.Password, TokenURL: as.TokenEndpoint, Scopes: scopes,
		EndpointParams: url.Values{"resource": {l.server}}}
	l.tokens = o.TokenSource(life)
	return nil
}

// discover reads the metadata of the server and of its authorization server (RFC 9728 §3, RFC 8414 §3).
func (l *Login) discover(ctx context.Context, denied *http.Response) (as *oauthex.AuthServerMeta, scopes []string, err error) {
	at, err := url.Parse(l.server)
	if err != nil {
		return nil, nil, err
	}
	challenges, _ := oauthex.ParseWWWAuthenticate(denied.Header.Values("WWW-Authenticate"))
	places := []string{}
	for _, c := range challenges {
		if v := c.Params["resource_metadata"]; v != "" {
			places = append(places, v)
		}
		scopes = append(scopes, strings.Fields(c.Params["scope"])...)
	}
	const wellKnown = "/.well-known/oauth-protected-resource"
	root := &url.URL{Scheme: at.Scheme, Host: at.Host}
	places = append(places, root.String()+wellKnown+strings.TrimSuffix(at.Path, "/"), root.String()+wellKnown)
	for i, place := range places {
		resource := l.server
		if i == len(places)-1 {
			resource = root.String()
		}
		var meta *oauthex.ProtectedResourceMetadata
		if meta, err = oauthex.GetProtectedResourceMetadata(ctx, place, resource, l.http); err != nil || meta == nil || len(meta.AuthorizationServers) == 0 {
			continue
		}
		if len(scopes) == 0 {
			scopes = meta.ScopesSupported
		}
		as, err = auth.GetAuthServerMetadata(ctx, meta.AuthorizationServers[0], l.http)
		if err == nil && as == nil {
			err = errors.New("the authorization server does not describe itself")
		}
		return as, scopes, err
	}
	if err == nil {
		err = errors.New("it names no authorization server")
	}
	return nil, nil, err
}
