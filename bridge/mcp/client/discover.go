package client

import (
	"cmp"
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
	maxDocument = 256 << 10 // bytes of a metadata document
	maxScopes   = 64
	maxIssuers  = 16
)

// A challenge is the content of WWW-Authenticate (RFC 6750 §3, RFC 9728 §5.1).
type challenge struct {
	code     string // for example "insufficient_scope"
	scopes   []string
	metadata string // URL of the resource metadata
}

// challengeOf parses the Bearer challenges of a response. Malformed ones are ignored.
func challengeOf(h http.Header) (ch challenge) {
	all, _ := oauthex.ParseWWWAuthenticate(h.Values("WWW-Authenticate"))
	for _, c := range all {
		if c.Scheme != "bearer" {
			continue
		}
		ch.metadata = cmp.Or(ch.metadata, c.Params["resource_metadata"])
		ch.code = cmp.Or(ch.code, c.Params["error"])
		ch.scopes = union(ch.scopes, strings.Fields(c.Params["scope"]))
	}
	ch.scopes = ch.scopes[:min(len(ch.scopes), maxScopes)]
	return ch
}

// An authTarget is an authorization server, and the resource and scopes to request from it.
type authTarget struct {
	as       *oauthex.AuthServerMeta
	resource string   // identifier of the MCP server
	scopes   []string // required scopes
}

// supports reports whether the server supports a grant type (RFC 8414 §2).
func (t *authTarget) supports(grant string) bool {
	if t.as.GrantTypesSupported == nil {
		return grant == "authorization_code"
	}
	return slices.Contains(t.as.GrantTypesSupported, grant)
}

// server returns the token endpoint and its authentication methods.
func (t *authTarget) server() oauth.Server {
	return oauth.Server{Issuer: t.as.Issuer, TokenEndpoint: t.as.TokenEndpoint, Methods: t.as.TokenEndpointAuthMethodsSupported,
		Algorithms: t.as.TokenEndpointAuthSigningAlgValuesSupported}
}

// grant returns a grant without a token, for a client.
func (t *authTarget) grant(c oauth.Client) oauth.Grant {
	return oauth.Grant{Issuer: t.as.Issuer, TokenEndpoint: t.as.TokenEndpoint, Resource: t.resource,
		ClientID: c.ID, ClientSecret: c.Secret, Method: c.Method, Algorithm: c.Algorithm()}
}

// known returns a grant without a token, for the client in the credentials file.
func (t *authTarget) known(own credentials.Credential) (oauth.Grant, error) {
	c, err := t.server().Client(own)
	return t.grant(c), err
}

const wellKnown = "/.well-known/oauth-protected-resource"

// discover finds the authorization server of the MCP server. It tries the metadata URL of the challenge, the well-known URL for the path
// of the server, and that for its host (RFC 9728 §3; MCP 2026-07-28, "Protected resource metadata discovery"). Without metadata, the host
// itself is the authorization server, as in 2025-03-26.
func (l *Login) discover(ctx context.Context, ch challenge) (*authTarget, error) {
	at, err := url.Parse(l.o.Server)
	if err != nil {
		return nil, err
	}
	root := at.Scheme + "://" + at.Host
	self := &url.URL{Scheme: at.Scheme, Host: at.Host, Path: at.Path, RawPath: at.RawPath}
	target := &authTarget{scopes: ch.scopes}
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
		first = cmp.Or(first, err)
		if meta == nil {
			continue
		}
		if len(target.scopes) == 0 {
			target.scopes = meta.ScopesSupported[:min(len(meta.ScopesSupported), maxScopes)]
		}
		target.resource = meta.Resource
		target.as, err = l.authority(ctx, l.choose(meta.AuthorizationServers))
		return target, err
	}
	if first != nil {
		return nil, first
	}
	target.resource = l.o.Server
	target.as, err = l.authority(ctx, root)
	return target, err
}

// choose returns the first issuer with credentials in the file, else the first issuer (RFC 9728 §7.6).
func (l *Login) choose(issuers []string) string {
	for _, issuer := range issuers[:min(len(issuers), maxIssuers)] {
		if _, err := l.o.Credentials.Lookup(l.o.Server, client, issuer); err == nil {
			return issuer
		}
	}
	return issuers[0]
}

// metadata returns the resource metadata at a URL; nil if there is none.
func (l *Login) metadata(ctx context.Context, at, resource string) (*oauthex.ProtectedResourceMetadata, error) {
	if err := l.checkURL(at); err != nil {
		return nil, err
	}
	raw, err := l.document(ctx, at)
	if raw == nil || err != nil {
		return nil, err
	}
	return readResource(raw, resource)
}

// document returns the metadata document at a URL; nil if there is none.
func (l *Login) document(ctx context.Context, at string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	resp, err := l.http.Do(req)
	if err != nil {
		return nil, withoutServerText(err)
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode >= 400 && resp.StatusCode < 500:
		return nil, nil
	case resp.StatusCode != http.StatusOK:
		host := interact.Readable(interact.Clip(req.URL.Host, 200))
		return nil, fmt.Errorf("%s responded %d to a metadata request", host, resp.StatusCode)
	}
	return io.ReadAll(io.LimitReader(resp.Body, maxDocument+1))
}

// readResource parses the metadata of a resource and checks its identifier (RFC 9728 §3.3).
func readResource(raw []byte, resource string) (*oauthex.ProtectedResourceMetadata, error) {
	var meta oauthex.ProtectedResourceMetadata
	if len(raw) > maxDocument || json.Unmarshal(raw, &meta) != nil {
		return nil, errors.New("invalid resource metadata")
	}
	switch {
	case strings.TrimSuffix(meta.Resource, "/") != strings.TrimSuffix(resource, "/"):
		return nil, fmt.Errorf("unexpected resource in the metadata: %s", interact.Readable(interact.Clip(meta.Resource, 200)))
	case len(meta.AuthorizationServers) == 0:
		return nil, errors.New("no authorization server in the resource metadata")
	}
	return &meta, nil
}

// authority returns the metadata of an authorization server of OAuth or OpenID Connect (RFC 8414 §3; OpenID Connect Discovery §4).
func (l *Login) authority(ctx context.Context, issuer string) (*oauthex.AuthServerMeta, error) {
	if err := l.checkURL(issuer); err != nil {
		return nil, err
	}
	for _, at := range metadataURLs(issuer) {
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
		return as, l.checkURL(as.TokenEndpoint)
	}
	return nil, errors.New("the authorization server has no metadata")
}

// metadataURLs returns the URLs of the metadata of an issuer, in the order of preference.
func metadataURLs(issuer string) []string {
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

// readAuthority parses the metadata of an authorization server and compares its issuer exactly (RFC 8414 §3.3).
func readAuthority(raw []byte, issuer string) (*oauthex.AuthServerMeta, error) {
	var as oauthex.AuthServerMeta
	switch {
	case len(raw) > maxDocument || json.Unmarshal(raw, &as) != nil:
		return nil, errors.New("invalid authorization server metadata")
	case as.Issuer != issuer:
		return nil, fmt.Errorf("unexpected issuer in the authorization server metadata: %s", interact.Readable(interact.Clip(as.Issuer, 200)))
	case as.TokenEndpoint == "":
		return nil, errors.New("no token endpoint in the authorization server metadata")
	}
	return &as, nil
}

// checkURL rejects URLs that would expose secrets: without TLS, only the host of the server and loopback addresses are allowed.
func (l *Login) checkURL(address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.User != nil {
		return errors.New("invalid URL in the metadata")
	}
	own, _ := url.Parse(l.o.Server)
	if u.Scheme == "https" || u.Scheme == "http" && (netguard.IsLoopback(u.Hostname()) || own != nil && own.Host == u.Host) {
		return nil
	}
	return fmt.Errorf("TLS required for %s", interact.Readable(interact.Clip(u.Host, 200)))
}

// An ssrfFilter blocks requests to URLs that a server named, if they lead to this machine or its network. The MCP server itself, the
// issuers in the credentials file and those of stored grants are exempt: the operator chose them. With an interactive user private
// networks are allowed, but not this machine and not link-local addresses, where cloud providers serve credentials. An MCP server on this
// machine is trusted, since it could send such requests itself.
type ssrfFilter struct {
	l            *Login
	plain, other *http.Transport
}

func newSSRFFilter(l *Login) *ssrfFilter {
	plain := l.o.Transport
	if plain == nil {
		plain = http.DefaultTransport.(*http.Transport)
	}
	other := plain.Clone()
	other.DialContext = netguard.Public().DialContext
	if l.o.Show != nil {
		other.DialContext = (&net.Dialer{Timeout: authTimeout, Control: rejectLocal}).DialContext
	}
	return &ssrfFilter{l, plain, other}
}

func (f *ssrfFilter) RoundTrip(req *http.Request) (*http.Response, error) {
	if f.trusts(req.URL) {
		return f.plain.RoundTrip(req)
	}
	if f.plain.Proxy != nil {
		if proxy, err := f.plain.Proxy(req); err == nil && proxy != nil {
			return f.plain.RoundTrip(req) // the proxy applies its own rules
		}
	}
	return f.other.RoundTrip(req)
}

// CloseIdleConnections implements the method that [http.Client.CloseIdleConnections] calls.
func (f *ssrfFilter) CloseIdleConnections() {
	f.plain.CloseIdleConnections()
	f.other.CloseIdleConnections()
}

func (f *ssrfFilter) trusts(u *url.URL) bool {
	o := f.l.o
	own, err := url.Parse(o.Server)
	if err != nil {
		return false
	}
	if netguard.IsLoopback(own.Hostname()) || own.Hostname() == u.Hostname() {
		return true
	}
	if _, err := o.Credentials.Lookup(o.Server, client, u.String()); err == nil {
		return true
	}
	f.l.mu.Lock()
	known := f.l.revoked
	f.l.mu.Unlock()
	return slices.ContainsFunc(append(oauth.GrantsOf(o.Credentials).Of(o.Server), known...), func(g oauth.Grant) bool {
		origin := credentials.Origin(u)
		return origin == credentials.OriginOf(g.Issuer) || origin == credentials.OriginOf(g.TokenEndpoint)
	})
}

// rejectLocal blocks connections to this machine and to link-local addresses (RFC 3927, RFC 4291 §2.5). It runs after name resolution.
func rejectLocal(_, addr string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(addr)
	if at := to.Addr().Unmap(); err != nil || at.IsLoopback() || at.IsLinkLocalUnicast() || at.IsMulticast() || at.IsUnspecified() {
		return &netguard.Error{Host: addr, Reason: "local address"}
	}
	return nil
}
