package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"

	"github.com/modelcontextprotocol/go-sdk/oauthex"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/interact/oauth"
	"github.com/lmosd/lmosd/internal/netguard"
)

const (
	maxDocument = 256 << 10 // bytes of metadata
	maxScopes   = 64
	maxIssuers  = 16
)

// A challenge is what a server says when it lets nobody in (RFC 6750 §3, RFC 9728 §5.1).
type challenge struct {
	code     string // "insufficient_scope"
	scopes   []string
	metadata string // where the server says more
}

// challengeOf reads the challenges of an answer. What cannot be read says nothing.
func challengeOf(h http.Header) (ch challenge) {
	all, _ := oauthex.ParseWWWAuthenticate(h.Values("WWW-Authenticate"))
	for _, c := range all {
		if c.Scheme != "bearer" {
			continue
		}
		if ch.metadata == "" {
			ch.metadata = c.Params["resource_metadata"]
		}
		if ch.code == "" {
			ch.code = c.Params["error"]
		}
		ch.scopes = union(ch.scopes, strings.Fields(c.Params["scope"]))
	}
	ch.scopes = ch.scopes[:min(len(ch.scopes), maxScopes)]
	return ch
}

// A way is where tokens for a server are to be had, and for what.
type way struct {
	as       *oauthex.AuthServerMeta
	resource string   // what the server calls itself
	scopes   []string // that it wants
}

// offers tells whether a grant type is to be had (RFC 8414 §2).
func (w *way) offers(grant string) bool {
	if w.as.GrantTypesSupported == nil {
		return grant == "authorization_code"
	}
	return slices.Contains(w.as.GrantTypesSupported, grant)
}

// server is the authorization server, to be asked for tokens.
func (w *way) server() oauth.Server {
	return oauth.Server{Issuer: w.as.Issuer, TokenEndpoint: w.as.TokenEndpoint, Methods: w.as.TokenEndpointAuthMethodsSupported,
		Algorithms: w.as.TokenEndpointAuthSigningAlgValuesSupported}
}

// grant is one without a token, of a client.
func (w *way) grant(c oauth.Client) oauth.Grant {
	return oauth.Grant{Issuer: w.as.Issuer, TokenEndpoint: w.as.TokenEndpoint, Resource: w.resource,
		ClientID: c.ID, ClientSecret: c.Secret, Method: c.Method, Algorithm: c.Algorithm()}
}

// known is a grant without a token, of the client that this host is by the operator's credential.
func (w *way) known(own credentials.Credential) (oauth.Grant, error) {
	c, err := w.server().Client(own)
	return w.grant(c), err
}

const wellKnown = "/.well-known/oauth-protected-resource"

// discover finds the authorization server of the server: by the place that a challenge names, else by that of the server's path, else by
// that of its host (RFC 9728 §3; MCP 2026-07-28, "Protected resource metadata discovery"). A server that has none of them is one of
// 2025-03-26, and its host is the authorization server.
func (l *Login) discover(ctx context.Context, ch challenge) (*way, error) {
	at, err := url.Parse(l.o.Server)
	if err != nil {
		return nil, err
	}
	root := at.Scheme + "://" + at.Host
	self := &url.URL{Scheme: at.Scheme, Host: at.Host, Path: at.Path, RawPath: at.RawPath}
	w := &way{scopes: ch.scopes}
	var first error
	for _, place := range []struct{ at, resource string }{
		{ch.metadata, l.o.Server},
		{root + wellKnown + strings.TrimSuffix(self.EscapedPath(), "/"), l.o.Server},
		{root + wellKnown, root},
	} {
		if place.at == "" {
			continue
		}
		meta, err := l.metadata(ctx, place.at, place.resource)
		if first == nil {
			first = err
		}
		if meta == nil {
			continue
		}
		if len(w.scopes) == 0 {
			w.scopes = meta.ScopesSupported[:min(len(meta.ScopesSupported), maxScopes)]
		}
		w.resource = meta.Resource
		w.as, err = l.authority(ctx, l.choose(meta.AuthorizationServers))
		return w, err
	}
	if first != nil {
		return nil, first
	}
	w.resource = l.o.Server
	w.as, err = l.authority(ctx, root)
	return w, err
}

// choose returns the first issuer for which the operator has put credentials, else the first of all (RFC 9728 §7.6).
func (l *Login) choose(issuers []string) string {
	for _, issuer := range issuers[:min(len(issuers), maxIssuers)] {
		if _, err := l.o.Credentials.Lookup(l.o.Server, client, issuer); err == nil {
			return issuer
		}
	}
	return issuers[0]
}

// metadata reads what a server says of itself at a place: nil if it says nothing there.
func (l *Login) metadata(ctx context.Context, at, resource string) (*oauthex.ProtectedResourceMetadata, error) {
	if err := l.mayAsk(at); err != nil {
		return nil, err
	}
	raw, err := l.document(ctx, at)
	if raw == nil || err != nil {
		return nil, err
	}
	return readResource(raw, resource)
}

// document gets metadata at a place: nil if there are none.
func (l *Login) document(ctx context.Context, at string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	resp, err := l.http.Do(req)
	if err != nil {
		return nil, safe(err)
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode >= 400 && resp.StatusCode < 500:
		return nil, nil
	case resp.StatusCode != http.StatusOK:
		host := interact.Readable(interact.Clip(req.URL.Host, 200))
		return nil, fmt.Errorf("%s answers %d when it is asked for its metadata", host, resp.StatusCode)
	}
	return io.ReadAll(io.LimitReader(resp.Body, maxDocument+1))
}

// readResource reads metadata of a resource, which has to be the one that was asked for (RFC 9728 §3.3).
func readResource(raw []byte, resource string) (*oauthex.ProtectedResourceMetadata, error) {
	var meta oauthex.ProtectedResourceMetadata
	if len(raw) > maxDocument || json.Unmarshal(raw, &meta) != nil {
		return nil, errors.New("what the server says of itself is no JSON document of OAuth")
	}
	switch {
	case strings.TrimSuffix(meta.Resource, "/") != strings.TrimSuffix(resource, "/"):
		return nil, fmt.Errorf("the server says that it is %s", interact.Readable(interact.Clip(meta.Resource, 200)))
	case len(meta.AuthorizationServers) == 0:
		return nil, errors.New("the server names no authorization server")
	}
	return &meta, nil
}

// authority reads the metadata of an authorization server: of OAuth or OpenID Connect, in the places that there are (RFC 8414 §3;
// OpenID Connect Discovery §4).
func (l *Login) authority(ctx context.Context, issuer string) (*oauthex.AuthServerMeta, error) {
	if err := l.mayAsk(issuer); err != nil {
		return nil, err
	}
	for _, at := range places(issuer) {
		raw, err := l.document(ctx, at)
		if err != nil {
			return nil, err
		}
		if raw == nil {
			continue
		}
		as, err := readAuthority(raw, issuer)
		if err != nil {
			return nil, err
		}
		return as, l.mayAsk(as.TokenEndpoint)
	}
	return nil, errors.New("the authorization server does not describe itself")
}

// places are where an issuer describes itself, the first that does counts.
func places(issuer string) []string {
	u, err := url.Parse(issuer)
	if err != nil {
		return nil
	}
	const plain, openID = "/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"
	root, path := u.Scheme+"://"+u.Host, strings.TrimSuffix(u.EscapedPath(), "/")
	if path == "" {
		return []string{root + plain, root + openID}
	}
	return []string{root + plain + path, root + openID + path, root + path + openID}
}

// readAuthority reads metadata of an authorization server. They have to be those of the issuer, to the letter (RFC 8414 §3.3).
func readAuthority(raw []byte, issuer string) (*oauthex.AuthServerMeta, error) {
	var as oauthex.AuthServerMeta
	switch {
	case len(raw) > maxDocument || json.Unmarshal(raw, &as) != nil:
		return nil, errors.New("what the authorization server says of itself is no JSON document of OAuth")
	case as.Issuer != issuer:
		return nil, fmt.Errorf("the authorization server calls itself %s", interact.Readable(interact.Clip(as.Issuer, 200)))
	case as.TokenEndpoint == "":
		return nil, errors.New("the authorization server has no token endpoint")
	}
	return &as, nil
}

// mayAsk refuses addresses at which secrets could be overheard: only the server's own host, and this one, are asked without TLS.
func (l *Login) mayAsk(address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.User != nil {
		return errors.New("the server names what is no address")
	}
	own, _ := url.Parse(l.o.Server)
	if u.Scheme == "https" || u.Scheme == "http" && (loopback(u.Hostname()) || own != nil && own.Host == u.Host) {
		return nil
	}
	return fmt.Errorf("%s is not asked without TLS", interact.Readable(interact.Clip(u.Host, 200)))
}

func loopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback() || strings.EqualFold(host, "localhost")
}

// A fence keeps requests to addresses that a server named away from where strangers have no business: from this machine and its
// network. The server itself may be anywhere, for the operator named it; and so may what the operator's credentials name, and who has
// granted something. Where a person is asked, private networks are open, too, but not this machine, and not what is link-local: there
// clouds hand out keys. A server on this machine could look around by itself.
type fence struct {
	l            *Login
	plain, other *http.Transport
}

func newFence(l *Login) *fence {
	plain := l.o.Transport
	if plain == nil {
		plain = http.DefaultTransport.(*http.Transport)
	}
	other := plain.Clone()
	other.DialContext = netguard.Public().DialContext
	if l.o.Show != nil {
		other.DialContext = (&net.Dialer{Timeout: asTimeout, Control: notHere}).DialContext
	}
	return &fence{l, plain, other}
}

// RoundTrip implements [http.RoundTripper].
func (f *fence) RoundTrip(req *http.Request) (*http.Response, error) {
	if f.trusts(req.URL) {
		return f.plain.RoundTrip(req)
	}
	if f.plain.Proxy != nil {
		if proxy, err := f.plain.Proxy(req); err == nil && proxy != nil {
			return f.plain.RoundTrip(req) // the proxy connects, by its own rules
		}
	}
	return f.other.RoundTrip(req)
}

// CloseIdleConnections is for [http.Client.CloseIdleConnections].
func (f *fence) CloseIdleConnections() {
	f.plain.CloseIdleConnections()
	f.other.CloseIdleConnections()
}

func (f *fence) trusts(u *url.URL) bool {
	o := f.l.o
	own, err := url.Parse(o.Server)
	if err != nil {
		return false
	}
	if loopback(own.Hostname()) || own.Hostname() == u.Hostname() {
		return true
	}
	if _, err := o.Credentials.Lookup(o.Server, client, u.String()); err == nil {
		return true
	}
	f.l.mu.Lock()
	known := f.l.ended
	f.l.mu.Unlock()
	return slices.ContainsFunc(append(oauth.GrantsOf(o.Credentials).Of(o.Server), known...), func(g oauth.Grant) bool {
		origin := credentials.Origin(u)
		return origin == credentials.OriginOf(g.Issuer) || origin == credentials.OriginOf(g.TokenEndpoint)
	})
}

// notHere refuses a connection to this machine, or to what is link-local, when it is about to be made (RFC 3927, RFC 4291 §2.5).
func notHere(_, addr string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(addr)
	if at := to.Addr().Unmap(); err != nil || at.IsLoopback() || at.IsLinkLocalUnicast() || at.IsMulticast() || at.IsUnspecified() {
		return &netguard.Error{Host: addr, Why: "no authorization server is there"}
	}
	return nil
}
