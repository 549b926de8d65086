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
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/rest/server"
)

// An access is what a route needs of its caller. Callers of the unix socket may do everything.
//
//	         loopback   beyond loopback
//	open     anyone     anyone
//	read     anyone     token
//	call     anyone     token
//	admin    token      token
//
// What is read of the directory is open with Options.OpenDirectory.
//
// Reads are answered while the node drains, calls and administration are not. Who a caller is to the mesh, [guard.identified] says.
type access uint8

const (
	open access = iota
	read
	call
	admin
)

// trusted reports whether r came over the unix socket, or from this process.
func trusted(r *http.Request) bool {
	p := did.PrincipalOf(r.Context())
	return p != nil && (p.Via == did.Socket || p.Via == did.Process)
}

// identified returns r with the principal that it proved: what its listener says of all who come by it, or the token. A request that
// a proxy passed on looks local and is not: without a token nothing is known of who sends it.
func (g *guard) identified(r *http.Request) *http.Request {
	switch token, ok := bearer(r.Header.Get("Authorization")); {
	case trusted(r):
		return r
	case ok && g.isToken(token):
		return r.WithContext(did.WithPrincipal(r.Context(), operator))
	case g.proxied || forwarded(r.Header):
		return r.WithContext(did.WithPrincipal(r.Context(), did.Consumer(did.Unproven, "")))
	}
	return r
}

// Operator is the name of the node's own token.
const Operator = "operator"

var operator = did.Consumer(did.Token, Operator)

// forwarded reports whether a proxy says that it passed a request on (RFC 7239, and what was used before).
func forwarded(h http.Header) bool {
	for _, name := range [...]string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if h[name] != nil {
			return true
		}
	}
	return false
}

// A guard decides who may ask. It is read-only.
type guard struct {
	token     [sha256.Size]byte // of Options.Token; compared in place of it, so that its length does not show
	hasToken  bool
	tokenFile string
	noAuth    bool
	loopback  bool // only this host reaches the listener
	proxied   bool // a proxy may stand before the listener
	hosts     map[string]bool
	origins   []string
}

func newGuard(o Options, l net.Listener) guard {
	g := guard{token: sha256.Sum256([]byte(o.Token)), hasToken: o.Token != "", tokenFile: o.TokenFile, noAuth: o.NoAuth,
		hosts: map[string]bool{"localhost": true}, origins: o.Origins}
	g.loopback = l != nil && isLoopback(l.Addr())
	g.proxied = o.PublicURL != ""
	for _, h := range o.Hosts {
		g.hosts[strings.ToLower(hostName(h))] = true
	}
	return g
}

// browser refuses what a web page of somebody else may have sent: a Host that is not ours (DNS rebinding), and anything
// but GET and HEAD from a foreign origin. A WebSocket is a GET that the page can talk through, and reading what an agent offers
// makes the agent work: the page sees at least how long it took.
func (g *guard) browser(r *http.Request) error {
	if trusted(r) {
		return nil // no browser opens a unix socket
	}
	if !g.hostAllowed(r) {
		return interact.Errorf(interact.Forbidden, "use http://127.0.0.1, or add the name to http.hosts",
			"the name %q is not one of this node's", clip(r.Host))
	}
	reads := (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.URL.Path != socketRoute
	if isCard(r) && (reads || r.Method == http.MethodOptions) {
		return nil // any page may read it (A2A 1.0 §8.2)
	}
	if reads && !isInteraction(r) || g.originAllowed(r) {
		return nil
	}
	return interact.Errorf(interact.Forbidden, "ask from the page that the node serves, or from a program",
		"a web page of origin %q may not change or call anything here", clip(r.Header.Get("Origin")))
}

// isInteraction reports whether r makes an agent, the mesh or this node work: whatever is below a thing, but for its description,
// and searches.
func isInteraction(r *http.Request) bool {
	for _, costly := range []string{"/v1/find", "/search/", "/events", "/a2a/"} {
		if strings.HasPrefix(r.URL.Path, costly) {
			return true
		}
	}
	_, below := server.ThingID(r, "/things/")
	return below != "" && below != "td"
}

// isCard reports whether r is for the card of an A2A agent, or of the node.
func isCard(r *http.Request) bool {
	path := r.URL.Path
	for _, file := range []string{"/.well-known/agent-card.json", "/.well-known/agent.json"} {
		if path == file || strings.HasPrefix(path, "/a2a/") && strings.HasSuffix(path, file) {
			return true
		}
	}
	return false
}

// tokenOfQuery takes the token of the node out of the query, where a browser has to put it: neither EventSource nor WebSocket
// sends headers that a page chooses. Nowhere else is it taken, for addresses are kept in many places. It must not reach an
// agent, as a variable of its address would: what stands there for the node goes no further, right or wrong, and the right
// token does not from any request.
func (g *guard) tokenOfQuery(r *http.Request) {
	if !strings.Contains(r.URL.RawQuery, "token") && !strings.Contains(r.URL.RawQuery, "%") {
		return
	}
	query := r.URL.Query()
	given := query["token"]
	// Who can send the header does, and means a variable; nobody needs a token on the unix socket.
	forNode := !trusted(r) && r.Header.Get("Authorization") == "" && r.Method == http.MethodGet &&
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

func (g *guard) hostAllowed(r *http.Request) bool {
	host := hostName(r.Host)
	if !portOK(r.Host) {
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
	ip, _ := netip.AddrFromSlice(tcp.IP) // an unusable one equals nothing
	return ip.Unmap().WithZone("")
}

// hostName returns host without its port, brackets and final dot.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"), ".")
}

// portOK reports whether host has no port, or one that is a number (RFC 3986 §3.2.3).
func portOK(host string) bool {
	_, port, err := net.SplitHostPort(host)
	if err != nil || port == "" {
		return true // without a port; a host that is nothing at all is not allowed as a name
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}

// originAllowed reports whether no browser sent r, or the page is ours. A browser names the page in Origin; where it
// leaves that out, Sec-Fetch-Site tells (Fetch Metadata §2.4).
func (g *guard) originAllowed(r *http.Request) bool {
	switch origins := r.Header.Values("Origin"); {
	case len(origins) == 0:
		site := r.Header.Get("Sec-Fetch-Site")
		return site == "" || site == "same-origin" || site == "none"
	case len(origins) > 1:
		return false
	case slices.Contains(g.origins, origins[0]):
		return true
	default:
		u, err := url.Parse(origins[0])
		return err == nil && u.Scheme == "http" && u.Host != "" && strings.EqualFold(u.Host, r.Host)
	}
}

// authorize reports why r may not use a route that needs a.
func (g *guard) authorize(r *http.Request, a access) error {
	if a == open || trusted(r) || g.loopback && (a < admin || g.noAuth) {
		return nil
	}
	token, ok := bearer(r.Header.Get("Authorization"))
	if !ok {
		return interact.Errorf(interact.Unauthenticated, g.tokenHint(), "%s %s needs the token of the node", clip(r.Method),
			clip(r.URL.Path))
	}
	if !g.isToken(token) {
		return interact.Errorf(interact.TokenRejected, g.tokenHint(), "this is not the token of the node")
	}
	return nil
}

// caller is what a bridge hears of who sends r.
func (g *guard) caller(r *http.Request) bridge.Caller {
	shown := r.Header.Get("Authorization")
	if token, ok := bearer(shown); ok && g.isToken(token) {
		return bridge.Caller{Operator: true}
	}
	return bridge.Caller{Operator: trusted(r), Authorization: shown}
}

// Introducible returns the TCP port at which other hosts read the directory without a token: what may be announced to them. It is
// 0 if nobody else reaches the API, or may not read it.
func (g *Gateway) Introducible() uint16 {
	addr, ok := g.Addr().(*net.TCPAddr)
	if !ok || g.guard.loopback || g.directoryAccess() != open {
		return 0
	}
	return addr.AddrPort().Port()
}

// directoryAccess is what reading the directory needs.
func (g *Gateway) directoryAccess() access {
	if g.o.OpenDirectory {
		return open
	}
	return read
}

func (g *guard) tokenHint() string {
	switch {
	case !g.hasToken:
		return "the node takes changes over its unix socket only"
	case g.tokenFile == "":
		return "send Authorization: Bearer and the token, or use the unix socket"
	default:
		return "export LMOSD_TOKEN=$(cat " + g.tokenFile + ")"
	}
}

// bearer returns the token of an Authorization header (RFC 6750 §2.1). Anything else, "null" of some clients included,
// is anonymous.
func bearer(header string) (token string, ok bool) {
	scheme, token, _ := strings.Cut(strings.TrimSpace(header), " ")
	token = strings.TrimSpace(token)
	return token, strings.EqualFold(scheme, "Bearer") && token != ""
}
