package gateway

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/gateway/sessions"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/gateway/tokens"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/rest/server"
	accessrules "github.com/lmosd/lmosd/policy/access"
	"github.com/lmosd/lmosd/td"
)

// access is the right that a route requires of its caller. Callers of the unix socket may use every route. A caller with an access token has
// the rights of its scopes only, also on loopback.
//
//	         loopback   beyond loopback   scope of a token
//	open     anyone     anyone            any
//	read     anyone     token             find
//	call     anyone     token             read, write, invoke, subscribe or call, of any Thing
//	admin    token      token             manage
//
// A route of one Thing needs the scope for that Thing, others for all Things. Policy in the mesh checks each message again.
// Reads of the directory are open with Options.OpenDirectory. While the node drains, it accepts reads and rejects calls and administration.
// Tokens of identity providers are access tokens in all that follows. [guard.identify] returns the principal of a caller.
type access uint8

const (
	open access = iota
	read
	call
	admin
)

// String returns the operation of scopes that permits a route.
func (a access) String() string { return [...]string{"open", "find", "call", "manage"}[min(a, admin)] }

// isTrusted reports whether r came over the unix socket, or from this process.
func isTrusted(r *http.Request) bool {
	p := did.PrincipalOf(r.Context())
	return p != nil && (p.Via == did.Socket || p.Via == did.Process)
}

// identify returns r with the principal that its listener or a token proves. A request that a proxy forwarded looks local but is not:
// without a token its sender is unproven. The context of r ends when its token expires or is revoked. release is called after r.
func (g *guard) identify(r *http.Request) (_ *http.Request, release func()) {
	release = func() {}
	token, ok := bearerToken(r.Header.Get("Authorization"))
	if isTrusted(r) {
		return r, release
	}
	if ok {
		if grant, err := g.find(r.Context(), token); err == nil {
			ctx := context.WithValue(did.WithPrincipal(r.Context(), grant.Principal()), grantKey{}, grant)
			if !grant.IsOperator() {
				ctx, release = endWith(ctx, grant.Context())
			}
			return r.WithContext(ctx), release
		}
	}
	if n := g.findSession(r); n != nil {
		return inSession(r, n)
	}
	if g.mayBeProxied(r) {
		return r.WithContext(did.WithPrincipal(r.Context(), did.Consumer(did.Unproven, ""))), release
	}
	return r, release
}

// mayBeProxied reports whether a proxy may have sent r, which then looks local but is not.
func (g *guard) mayBeProxied(r *http.Request) bool { return g.proxied || isForwarded(r.Header) }

// endWith returns ctx that ends with other, too, and with its cause.
func endWith(ctx, other context.Context) (_ context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

type grantKey struct{}

// grantOf returns the grant of the token in a request; nil without a valid one.
func grantOf(r *http.Request) *tokens.Grant {
	grant, _ := r.Context().Value(grantKey{}).(*tokens.Grant)
	return grant
}

// find returns the grant of a token. The error is an [*interact.Error] without a hint: Unauthenticated if the listener accepts no tokens,
// StatusUnknown if an identity provider cannot be reached, otherwise TokenRejected.
func (g *guard) find(ctx context.Context, token string) (*tokens.Grant, error) {
	switch {
	case g.plain:
		return nil, errPlain
	case g.tokens == nil:
		return nil, interact.Errorf(interact.TokenRejected, "", "this is not a token of the node")
	}
	return g.tokens.Find(ctx, token)
}

// errPlain is the error of a token that a network could read.
var errPlain = interact.Errorf(interact.Unauthenticated, "", "the address serves plain HTTP beyond loopback and accepts no tokens")

// isForwarded reports whether a proxy forwarded a request, by its headers (RFC 7239 and its predecessors).
func isForwarded(h http.Header) bool {
	for _, name := range [...]string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Prefix"} {
		if h[name] != nil {
			return true
		}
	}
	return false
}

// A guard decides which callers may use which routes. It is read-only, except for names, which [Gateway.apply] replaces.
type guard struct {
	tokens    Tokens // nil: no caller over TCP is authenticated
	tokenFile string
	things    func(ctx context.Context, ref string) (*td.Description, error)
	noAuth    bool
	loopback  bool // only this host reaches the listener
	plain     bool // others can read what is sent to the listener
	proxied   bool // a proxy may be in front of the listener
	names     *atomic.Pointer[webNames]
	scheme    string // of the listener
	public    string // the origin of Options.PublicURL; empty: none
	// publicPath is whether that URL has a path.
	publicPath bool
	sessions   *sessions.Store // nil: none
	bridges    []string        // the paths of bridges; those with a final slash are prefixes
}

func newGuard(o Options, l net.Listener) guard {
	g := guard{tokens: o.Tokens, tokenFile: o.TokenFile, noAuth: o.NoAuth, names: new(atomic.Pointer[webNames]),
		scheme: o.scheme()}
	if o.Directory != nil {
		g.things = o.Directory.Get
	}
	g.loopback = l != nil && isLoopback(l.Addr())
	g.plain = l != nil && !g.loopback && !o.IsEncrypted()
	g.proxied = o.PublicURL != "" || o.Proxy
	if u, err := url.Parse(o.PublicURL); err == nil && u.Host != "" {
		g.public, g.publicPath = u.Scheme+"://"+u.Host, strings.Trim(u.Path, "/") != ""
	}
	if !o.NoConsole {
		g.sessions = sessions.New()
	}
	for _, b := range o.Bridges {
		for _, pattern := range b.Paths() {
			path, _, _ := strings.Cut(pattern, "{")
			g.bridges = append(g.bridges, path)
		}
	}
	g.names.Store(newWebNames(o.hosts(o.Hosts), o.Origins))
	return g
}

// checkBrowser rejects requests that a foreign web page may have sent: a Host that is not of this node (DNS rebinding), and all but GET and HEAD
// from a foreign origin. It also rejects GETs that open a WebSocket, which is a channel for calls, and GETs that read from an agent, which
// works for them and whose timing is visible to the page.
func (g *guard) checkBrowser(r *http.Request) error {
	if isTrusted(r) {
		return nil // browsers do not open unix sockets
	}
	if !g.isHostAllowed(r) {
		return interact.Errorf(interact.Forbidden, "use "+g.scheme+"://127.0.0.1, or add the name to http.hosts",
			"the name %q is not one of this node's", tdd.Clip(r.Host))
	}
	reads := (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.URL.Path != socketRoute
	if isCard(r) && (reads || r.Method == http.MethodOptions) {
		return nil // any page may read it (A2A 1.0 §8.2)
	}
	if !(reads && !isInteraction(r)) && !g.isOriginAllowed(r) {
		return interact.Errorf(interact.Forbidden, "send the request from the page of the node, or from a program",
			"a web page of origin %q may not send this request", tdd.Clip(r.Header.Get("Origin")))
	}
	return g.checkPage(r, reads)
}

// checkPage returns an error if a page of the node sent r and needs a session for it, or more than a session. Without one a page looks only: a
// user of this machine, a page of another port with the cookie, or an answer of an agent could otherwise use what programs of this machine may. A token makes
// a request that of a program.
func (g *guard) checkPage(r *http.Request, reads bool) error {
	switch {
	case sessionOf(r) != nil && g.isBridge(r.URL.Path):
		return interact.Errorf(interact.Forbidden, "use the paths below /things, or a token", "a session does not speak the protocols of bridges")
	case grantOf(r) != nil || sessionOf(r) != nil || !g.isPage(r) || r.URL.Path == sessionPath || reads && !g.worksAgent(r):
		return nil
	case r.Header[api.SessionHeader] != nil:
		return interact.Errorf(interact.Unauthenticated, "sign in again", "the session has ended, or one of its two secrets is missing").Then(interact.StepConsole)
	}
	return interact.Errorf(interact.Unauthenticated, "sign in", "without a session a page can only look: %s %s needs one", tdd.Clip(r.Method),
		tdd.Clip(r.URL.Path)).Then(interact.StepConsole)
}

// isPage reports whether a page of the node, or the address bar of a browser, sent r. Pages of Options.Origins are programs that the
// operator trusts. Clients of bridges may send the Origin of their endpoint, but no Fetch Metadata, which browsers add.
func (g *guard) isPage(r *http.Request) bool {
	origins, sites := r.Header["Origin"], r.Header["Sec-Fetch-Site"]
	switch {
	case len(origins) == 0 && len(sites) == 0, len(origins) == 1 && slices.Contains(g.names.Load().origins, origins[0]):
		return false
	}
	return len(sites) > 0 || !g.isBridge(r.URL.Path)
}

// worksAgent reports whether a GET of r makes an agent or a bridge work, or listens to agents: a property, events, the state of an action, a WebSocket.
func (g *guard) worksAgent(r *http.Request) bool {
	_, below := server.ThingID(r, "/things/")
	path := r.URL.Path
	ofGroup := strings.HasPrefix(path, "/v1/groups/") && strings.HasSuffix(path, "/events")
	return below != "" && below != "td" || ofGroup || path == socketRoute || g.isBridge(path)
}

// isBridge reports whether a bridge serves a path.
func (g *guard) isBridge(path string) bool {
	return slices.ContainsFunc(g.bridges, func(own string) bool {
		return path == own || strings.HasSuffix(own, "/") && strings.HasPrefix(path, own)
	})
}

// isInteraction reports whether r causes work at an agent, the mesh or this node: routes below a Thing except its description, and
// searches.
func isInteraction(r *http.Request) bool {
	for _, costly := range [...]string{"/v1/find", "/v1/agents", "/v1/paths/", "/v1/tasks", "/v1/groups/", "/v1/events", "/v1/topology", "/search/", "/events", "/a2a/"} {
		if strings.HasPrefix(r.URL.Path, costly) {
			return true
		}
	}
	_, below := server.ThingID(r, "/things/")
	return below != "" && below != "td"
}

// isCard reports whether r is for the Agent Card of an A2A agent or of the node.
func isCard(r *http.Request) bool {
	path := r.URL.Path
	for _, file := range []string{"/.well-known/agent-card.json", "/.well-known/agent.json"} {
		if path == file || strings.HasPrefix(path, "/a2a/") && strings.HasSuffix(path, file) {
			return true
		}
	}
	return false
}

// moveQueryToken moves a token from the query to the Authorization header, for EventSource and WebSocket in browsers, which
// cannot set headers. Other requests may not use it, because URLs are logged and stored. Tokens of nodes are removed from the query of
// every request, so that they do not reach an agent as a URI variable.
func (g *guard) moveQueryToken(r *http.Request) {
	if !strings.Contains(r.URL.RawQuery, "token") && !strings.Contains(r.URL.RawQuery, "%") {
		return
	}
	query := r.URL.Query()
	given := query["token"]
	// With Authorization, token is a URI variable; callers of the unix socket need no token.
	forNode := !isTrusted(r) && r.Header.Get("Authorization") == "" && r.Method == http.MethodGet &&
		(r.URL.Path == socketRoute || strings.Contains(r.Header.Get("Accept"), "text/event-stream"))
	left := slices.DeleteFunc(slices.Clone(given), func(token string) bool { return forNode || g.isToken(token) })
	if len(left) == len(given) {
		return
	}
	if query["token"] = left; len(left) == 0 {
		query.Del("token")
	}
	r.URL.RawQuery = query.Encode()
	if forNode {
		r.Header.Set("Authorization", "Bearer "+given[0])
	}
}

// isToken reports whether a text is a token of this node, valid or not, or has the form of one.
func (g *guard) isToken(token string) bool {
	if token == "" {
		return false // most requests on loopback have none
	}
	if g.tokens == nil {
		return tokens.Is(token)
	}
	return g.tokens.Is(token)
}

func (g *guard) isHostAllowed(r *http.Request) bool {
	host := hostName(r.Host)
	if !isPortValid(r.Host) {
		return false
	}
	// Only clients older than browsers send no Host (HTTP/1.0).
	if host == "" || g.names.Load().hosts[strings.ToLower(host)] {
		return true
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	ip = ip.Unmap().WithZone("")
	return ip.IsLoopback() || ip == localIP(r)
}

// localIP returns the address of this host that r was sent to.
func localIP(r *http.Request) netip.Addr {
	tcp, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	ip, _ := netip.AddrFromSlice(tcp.IP) // the zero Addr equals no other
	return ip.Unmap().WithZone("")
}

// hostName returns host without its port, brackets and final dot.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"), ".")
}

// isPortValid reports whether host has no port, or one that is a number (RFC 3986 §3.2.3).
func isPortValid(host string) bool {
	_, port, err := net.SplitHostPort(host)
	if err != nil || port == "" {
		return true // isHostAllowed rejects a malformed host as a name
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}

// isOriginAllowed reports whether r has the node's own or an allowed origin, or is not from a browser. Without Origin, Sec-Fetch-Site decides
// (Fetch Metadata §2.4).
func (g *guard) isOriginAllowed(r *http.Request) bool {
	switch origins := r.Header.Values("Origin"); {
	case len(origins) == 0:
		site := r.Header.Get("Sec-Fetch-Site")
		return site == "" || site == "same-origin" || site == "none"
	case len(origins) > 1:
		return false
	case slices.Contains(g.names.Load().origins, origins[0]), g.public != "" && strings.EqualFold(origins[0], g.public):
		return true
	default:
		u, err := url.Parse(origins[0])
		return err == nil && u.Scheme == g.scheme && u.Host != "" && strings.EqualFold(u.Host, r.Host)
	}
}

// allowOrigin lets the page of an allowed origin read the response (Fetch §3.2, CORS). It returns true if it has answered r, the preflight
// of such a page. Pages cannot send credentials of the browser: the API has none.
func (g *guard) allowOrigin(w http.ResponseWriter, r *http.Request) bool {
	own := g.names.Load().origins
	if len(own) == 0 {
		return false
	}
	h, origin := w.Header(), r.Header.Get("Origin")
	h.Add("Vary", "Origin")
	if !slices.Contains(own, origin) {
		return false
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", "*")
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE")
	h.Set("Access-Control-Allow-Headers", r.Header.Get("Access-Control-Request-Headers"))
	h.Set("Access-Control-Max-Age", "600")
	if r.Header.Get("Access-Control-Request-Private-Network") == "true" {
		h.Set("Access-Control-Allow-Private-Network", "true")
	}
	w.WriteHeader(http.StatusNoContent)
	return true
}

// authorize returns an error if r, which has been identified, may not use a route that requires a. A token that is not valid is an error on
// loopback, too, if it has the form of an access token: its owner relies on it. Other values there are for an agent.
func (g *guard) authorize(r *http.Request, a access) error {
	if a == open || isTrusted(r) {
		return nil
	}
	if n := sessionOf(r); n != nil {
		if rights := rightsIn(r, n); a > accessOf(rights) {
			return interact.Errorf(interact.Forbidden, "sign in with more rights", "%s %s needs a session with more rights than %s", tdd.Clip(r.Method),
				tdd.Clip(r.URL.Path), rights).Then(interact.StepConsole)
		} else if n.Maker.Grant == nil {
			return nil
		}
	}
	if grant := grantOf(r); grant != nil {
		return g.checkScopes(r, grant, a)
	}
	token, ok := bearerToken(r.Header.Get("Authorization"))
	if g.loopback && (a < admin || g.noAuth) && !g.isToken(token) {
		return nil
	}
	if !ok && g.plain {
		return interact.Errorf(interact.Unauthenticated, plainHint, "%s %s needs a token, and the address serves plain HTTP beyond loopback and accepts none",
			tdd.Clip(r.Method), tdd.Clip(r.URL.Path))
	}
	if !ok {
		return interact.Errorf(interact.Unauthenticated, g.tokenHint(), "%s %s needs the token of the node", tdd.Clip(r.Method),
			tdd.Clip(r.URL.Path))
	}
	_, err := g.find(r.Context(), token)
	if err == nil { // it was created a moment ago
		err = errNotIdentified
	}
	rejected := *interact.AsError(err)
	switch {
	case g.plain:
		rejected.Hint = plainHint
	case rejected.Code == interact.StatusUnknown:
		rejected.Hint = "try again"
	default:
		rejected.Hint = g.tokenHint()
	}
	return &rejected
}

var errNotIdentified = interact.Errorf(interact.TokenRejected, "", "the token was not valid when the request began")

// plainHint is the advice for callers of a listener that accepts no tokens.
const plainHint = "use the unix socket; or set http.tls.cert and http.tls.key there"

// checkScopes returns a [*scopeError] if the scopes of a token do not permit r a route that requires a.
func (g *guard) checkScopes(r *http.Request, grant *tokens.Grant, a access) error {
	var op accessrules.Op
	switch a {
	case read:
		op = accessrules.Find
	case call:
		if grant.AllowsCalls() {
			return nil
		}
	case admin:
		op = accessrules.Manage
	}
	if op != "" && (grant.Allows(op, nil) || !grant.IsUnlimited() && g.allowsThing(r, grant, op)) {
		return nil
	}
	hint, scope := "create a token with the scope "+a.String(), a.String()
	if grant.Principal().Via == did.OIDC {
		hint, scope = "request a token with a scope that http.oidc maps to "+scope, ""
	}
	return &scopeError{interact.Errorf(interact.Forbidden, hint, "the scopes of the token %s do not permit %s %s",
		grant.Name, tdd.Clip(r.Method), tdd.Clip(r.URL.Path)), scope}
}

// allowsThing reports whether the scopes of a token permit an operation on the Thing that the path of r names.
func (g *guard) allowsThing(r *http.Request, grant *tokens.Grant, op accessrules.Op) bool {
	ref := thingOf(r)
	if ref == "" || g.things == nil {
		return false
	}
	d, err := g.things(r.Context(), ref)
	return err == nil && grant.Allows(op, accessrules.TargetOf(d.Thing, d.Name()))
}

// thingOf returns the reference of the Thing that the path of r names, or "".
func thingOf(r *http.Request) string {
	if id, _ := server.ThingID(r, "/things/"); id != "" {
		return id
	}
	for _, prefix := range [...]string{"/v1/agents/", "/v1/paths/", "/v1/ping/", "/v1/move/"} {
		if ref := refAfter(r.URL.EscapedPath(), prefix); ref != "" {
			return ref
		}
	}
	return ""
}

// A scopeError is the error of a caller whose token has not the scope that a route requires.
type scopeError struct {
	err   *interact.Error
	scope string // that would permit it; empty: it is not known
}

// Error implements error.
func (e *scopeError) Error() string { return e.err.Error() }

// Unwrap returns the [*interact.Error].
func (e *scopeError) Unwrap() error { return e.err }

// caller returns the sender of r for a bridge. A bridge distinguishes callers by their credentials.
func (g *guard) caller(r *http.Request) bridge.Caller {
	c := bridge.Caller{Operator: isTrusted(r), Authorization: r.Header.Get("Authorization")}
	grant := grantOf(r)
	if token, ok := bearerToken(c.Authorization); ok && c.Operator {
		grant, _ = g.find(r.Context(), token) // the token of the operator changes nothing
	}
	switch {
	case grant != nil && grant.IsOperator():
		return bridge.Caller{Operator: true}
	case grant != nil:
		c.Operator = c.Operator || grant.Allows(accessrules.Manage, nil)
	}
	if grantOf(r) != nil { // its principal distinguishes the caller, also with another token of an identity provider
		c.Authorization = ""
	}
	return c
}

// AnnouncedPort returns the TCP port at which other hosts can read the directory without a token, for announcements; 0 if they cannot. A
// directory with TLS is not announced: no certificate has the name of a host on the local network.
func (g *Gateway) AnnouncedPort() uint16 {
	addr, ok := g.Addr().(*net.TCPAddr)
	if !ok || g.guard.loopback || g.cert != nil || g.directoryAccess() != open {
		return 0
	}
	return addr.AddrPort().Port()
}

// directoryAccess returns the access that reads of the directory require.
func (g *Gateway) directoryAccess() access {
	if g.o.OpenDirectory {
		return open
	}
	return read
}

func (g *guard) tokenHint() string {
	switch {
	case g.tokens == nil:
		return "the node accepts changes only over its unix socket"
	case g.tokenFile == "":
		return "send Authorization: Bearer and the token, or use the unix socket"
	default:
		return "export LMOSD_TOKEN=$(cat " + g.tokenFile + ")"
	}
}

// bearerToken returns the token of an Authorization header (RFC 6750 §2.1). Other values, such as the "null" of some clients, mean anonymous.
func bearerToken(header string) (token string, ok bool) {
	scheme, token, _ := strings.Cut(strings.TrimSpace(header), " ")
	token = strings.TrimSpace(token)
	return token, strings.EqualFold(scheme, "Bearer") && token != ""
}
