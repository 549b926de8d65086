package gateway

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/rest/server"
)

// access is the right that a route requires of its caller. Callers of the unix socket may use every route.
//
//	         loopback   beyond loopback
//	open     anyone     anyone
//	read     anyone     token
//	call     anyone     token
//	admin    token      token
//
// Reads of the directory are open with Options.OpenDirectory. While the node drains, it accepts reads and rejects calls and administration.
// [guard.identify] returns the principal of a caller.
type access uint8

const (
	open access = iota
	read
	call
	admin
)

// isTrusted reports whether r came over the unix socket, or from this process.
func isTrusted(r *http.Request) bool {
	p := did.PrincipalOf(r.Context())
	return p != nil && (p.Via == did.Socket || p.Via == did.Process)
}

// identify returns r with the principal that its listener or the token proves. A request that a proxy forwarded looks local but is not:
// without a token its sender is unproven.
func (g *guard) identify(r *http.Request) *http.Request {
	switch token, ok := bearerToken(r.Header.Get("Authorization")); {
	case isTrusted(r):
		return r
	case ok && g.isToken(token):
		return r.WithContext(did.WithPrincipal(r.Context(), operator))
	case g.proxied || isForwarded(r.Header):
		return r.WithContext(did.WithPrincipal(r.Context(), did.Consumer(did.Unproven, "")))
	}
	return r
}

// Operator is the name of the node's own token.
const Operator = "operator"

var operator = did.Consumer(did.Token, Operator)

// isForwarded reports whether a proxy forwarded a request, by its headers (RFC 7239 and its predecessors).
func isForwarded(h http.Header) bool {
	for _, name := range [...]string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if h[name] != nil {
			return true
		}
	}
	return false
}

// A guard decides which callers may use which routes. It is read-only.
type guard struct {
	token     [sha256.Size]byte // of Options.Token; comparing hashes hides its length
	hasToken  bool
	tokenFile string
	noAuth    bool
	loopback  bool // only this host reaches the listener
	proxied   bool // a proxy may be in front of the listener
	hosts     map[string]bool
	origins   []string
	scheme    string // of the listener
	public    string // the origin of Options.PublicURL; empty: none
}

func newGuard(o Options, l net.Listener) guard {
	g := guard{token: sha256.Sum256([]byte(o.Token)), hasToken: o.Token != "", tokenFile: o.TokenFile, noAuth: o.NoAuth,
		hosts: map[string]bool{"localhost": true}, origins: o.Origins, scheme: o.scheme()}
	g.loopback = l != nil && isLoopback(l.Addr())
	g.proxied = o.PublicURL != ""
	if u, err := url.Parse(o.PublicURL); err == nil && u.Host != "" {
		g.public = u.Scheme + "://" + u.Host
	}
	for _, h := range o.Hosts {
		g.hosts[strings.ToLower(hostName(h))] = true
	}
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
	if reads && !isInteraction(r) || g.isOriginAllowed(r) {
		return nil
	}
	return interact.Errorf(interact.Forbidden, "send the request from the page of the node, or from a program",
		"a web page of origin %q may not send this request", tdd.Clip(r.Header.Get("Origin")))
}

// isInteraction reports whether r causes work at an agent, the mesh or this node: routes below a Thing except its description, and
// searches.
func isInteraction(r *http.Request) bool {
	for _, costly := range []string{"/v1/find", "/search/", "/events", "/a2a/"} {
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

// moveQueryToken moves the token of the node from the query to the Authorization header, for EventSource and WebSocket in browsers, which
// cannot set headers. Other requests may not use it, because URLs are logged and stored. The token of the node is removed from the query of
// every request, so that it does not reach an agent as a URI variable.
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

func (g *guard) isToken(token string) bool {
	sum := sha256.Sum256([]byte(token))
	return g.hasToken && subtle.ConstantTimeCompare(sum[:], g.token[:]) == 1
}

func (g *guard) isHostAllowed(r *http.Request) bool {
	host := hostName(r.Host)
	if !isPortValid(r.Host) {
		return false
	}
	// Only clients older than browsers send no Host (HTTP/1.0).
	if host == "" || g.hosts[strings.ToLower(host)] {
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
	case slices.Contains(g.origins, origins[0]), g.public != "" && strings.EqualFold(origins[0], g.public):
		return true
	default:
		u, err := url.Parse(origins[0])
		return err == nil && u.Scheme == g.scheme && u.Host != "" && strings.EqualFold(u.Host, r.Host)
	}
}

// allowOrigin lets the page of an allowed origin read the response (Fetch §3.2, CORS). It returns true if it has answered r, the preflight
// of such a page. Pages cannot send credentials of the browser: the API has none.
func (g *guard) allowOrigin(w http.ResponseWriter, r *http.Request) bool {
	if len(g.origins) == 0 {
		return false
	}
	h, origin := w.Header(), r.Header.Get("Origin")
	h.Add("Vary", "Origin")
	if !slices.Contains(g.origins, origin) {
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

// authorize returns an error if r may not use a route that requires a.
func (g *guard) authorize(r *http.Request, a access) error {
	if a == open || isTrusted(r) || g.loopback && (a < admin || g.noAuth) {
		return nil
	}
	token, ok := bearerToken(r.Header.Get("Authorization"))
	if !ok {
		return interact.Errorf(interact.Unauthenticated, g.tokenHint(), "%s %s needs the token of the node", tdd.Clip(r.Method),
			tdd.Clip(r.URL.Path))
	}
	if !g.isToken(token) {
		return interact.Errorf(interact.TokenRejected, g.tokenHint(), "this is not the token of the node")
	}
	return nil
}

// caller returns the sender of r for a bridge.
func (g *guard) caller(r *http.Request) bridge.Caller {
	authorization := r.Header.Get("Authorization")
	if token, ok := bearerToken(authorization); ok && g.isToken(token) {
		return bridge.Caller{Operator: true}
	}
	return bridge.Caller{Operator: isTrusted(r), Authorization: authorization}
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
	case !g.hasToken:
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
