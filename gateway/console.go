package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"

	"strings"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/gateway/sessions"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/interact/rest/server"
	"github.com/lmosd/lmosd/web"
)

// Paths of the console. Its page sends requests to sessionPath without a session.
const (
	consolePath = "/console/"
	sessionPath = consolePath + "session"
)

const (
	maxConsoleRequest = 1 << 10 // bytes of a body
	maxCookies        = 8       // of one name that are tried: a page of another port can add some
)

// consoleRoutes returns the routes of the console, and the index of the API, by pattern of the mux.
func (g *Gateway) consoleRoutes() map[string]http.Handler {
	routes := map[string]http.Handler{"GET /{$}": g.protect(open, g.root)}
	if g.sessions == nil {
		return routes
	}
	routes["POST /v1/console"] = g.protect(open, g.postConsole) // postConsole authorizes the caller
	routes["DELETE /v1/console"] = g.protect(admin, g.deleteConsole)
	routes["GET "+sessionPath] = g.protect(open, g.getSession)
	routes["POST "+sessionPath] = g.protect(open, g.postSession)
	routes["DELETE "+sessionPath] = g.protect(open, g.deleteSession)
	routes["GET "+strings.TrimSuffix(consolePath, "/")] = g.protect(open, redirectToConsole)
	files := web.New(g.o.ConsoleDir)
	routes["GET "+consolePath] = g.protect(open, func(w http.ResponseWriter, r *http.Request) error {
		if !files.Serve(w, r, strings.TrimPrefix(r.URL.Path, consolePath)) {
			return errNothing(r)
		}
		return nil
	})
	return routes
}

// redirectToConsole leads browsers to the console. The address is relative, for proxies with a path prefix; [http.Redirect] makes it absolute.
func redirectToConsole(w http.ResponseWriter, r *http.Request) error {
	if !strings.Contains(r.Header.Get("Accept"), "text/html") {
		return errNothing(r)
	}
	w.Header().Set("Location", strings.TrimPrefix(consolePath, "/"))
	w.Header().Set("Cache-Control", "no-cache")
	w.WriteHeader(http.StatusFound)
	return nil
}

// root leads browsers to the console, and gives programs the index of the API.
func (g *Gateway) root(w http.ResponseWriter, r *http.Request) error {
	w.Header().Add("Vary", "Accept")
	if g.sessions != nil && strings.Contains(r.Header.Get("Accept"), "text/html") {
		return redirectToConsole(w, r)
	}
	return writeJSON(w, http.StatusOK, g.index)
}

// newIndex returns the index of the API: its routes, ordered by path. patterns are those of the mux.
func newIndex(patterns []string, named map[string]map[string]http.Handler) api.Index {
	index := api.Index{APIVersion: api.APIVersion, Kind: "Index"}
	for _, pattern := range patterns {
		method, path, ok := strings.Cut(pattern, " ")
		if !ok { // a bridge has its own methods
			method, path = "", pattern
		}
		index.Items = append(index.Items, api.Route{Method: method, Path: strings.TrimSuffix(path, "{$}")})
	}
	for prefix, methods := range named {
		for method := range methods {
			index.Items = append(index.Items, api.Route{Method: method, Path: prefix + "{ref}"})
		}
	}
	for _, more := range indexOfThings {
		method, path, _ := strings.Cut(more, " ")
		index.Items = append(index.Items, api.Route{Method: method, Path: path})
	}
	slices.SortFunc(index.Items, func(a, b api.Route) int {
		return strings.Compare(a.Path+" "+a.Method, b.Path+" "+b.Method)
	})
	return index
}

// indexOfThings are the routes of the directory and of Things in the index, which have no patterns of the mux (WoT Discovery §7.3, TD 1.1 §8.3).
var indexOfThings = []string{"GET /.well-known/wot", "GET /things", "POST /things", "GET /things/{id}", "PUT /things/{id}", "PATCH /things/{id}",
	"DELETE /things/{id}", "GET /things/{id}/td", "GET /things/{id}/properties", "GET /things/{id}/properties/{name}",
	"PUT /things/{id}/properties/{name}", "GET /things/{id}/properties/{name}/observable", "POST /things/{id}/actions/{name}",
	"GET /things/{id}/actions/{name}/{run}", "POST /things/{id}/actions/{name}/{run}", "DELETE /things/{id}/actions/{name}/{run}",
	"GET /things/{id}/events/{name}", "POST /things/{id}/events/{name}", "GET /events", "GET /search/jsonpath", "GET /search/xpath"}

// postConsole makes a link that begins a session, with at most the rights of the caller. The response is the only one with its code.
func (g *Gateway) postConsole(w http.ResponseWriter, r *http.Request) error {
	maker := sessions.Maker{Principal: did.PrincipalOf(r.Context()), Grant: grantOf(r)}
	switch {
	case sessionOf(r) != nil: // its links could outlive it
		return interact.Errorf(interact.Forbidden, "ask the node on its host", "a session makes no links for others").Then(interact.StepConsole)
	case maker.Grant == nil && !isTrusted(r):
		if err := g.guard.authorize(r, admin); err != nil {
			return err
		}
	}
	var req api.ConsoleRequest
	if err := readSmall(w, r, &req, `for example {"rights": "read"}`); err != nil {
		return err
	}
	rights, err := g.rightsOfLink(r, req.Rights)
	if err != nil {
		return err
	}
	page, err := g.consoleURL(r)
	if err != nil {
		return err
	}
	code, expires := g.sessions.NewLink(maker, rights)
	w.Header().Set("Cache-Control", "no-store")
	g.log.Info("console link created", "maker", maker.Principal.ID(), "rights", rights.String())
	return writeJSON(w, http.StatusOK, api.ConsoleLink{APIVersion: api.APIVersion, Kind: "ConsoleLink", URL: page + "#once=" + code,
		Expires: expires, Rights: rights.String()})
}

// rightsOfLink returns the rights of a link that the caller of r wants: those in text, or for "" all that it has. The error is that of a caller
// without them.
func (g *Gateway) rightsOfLink(r *http.Request, text string) (sessions.Rights, error) {
	want, err := sessions.Admin, error(nil)
	if text != "" {
		if want, err = sessions.ParseRights(text); err != nil {
			return sessions.None, err
		}
	}
	for have := sessions.Read; have <= want; have++ {
		if err := g.guard.authorize(r, accessOf(have)); err != nil {
			if text == "" && have > sessions.Read {
				return have - 1, nil
			}
			return sessions.None, err
		}
	}
	return want, nil
}

// accessOf returns the access that rights of a session permit.
func accessOf(r sessions.Rights) access {
	return [...]access{sessions.None: open, sessions.Read: read, sessions.Call: call, sessions.Admin: admin}[r]
}

// consoleURL returns the address of the console for the browser of the caller of r.
func (g *Gateway) consoleURL(r *http.Request) (string, error) {
	own := g.URL()
	switch {
	case own == "" && g.o.PublicURL == "":
		return "", interact.Errorf(interact.NoAffordance, "set http.listen", "the node has no address for browsers")
	case g.guard.plain:
		return "", errPlainSession
	case isTrusted(r) && g.guard.loopback: // the browser is on this host, whatever the address for others is
		return own + consolePath, nil
	}
	return g.baseURL(r) + consolePath, nil
}

var errPlainSession = interact.Errorf(interact.Forbidden, "set http.tls.cert and http.tls.key, or use the address of this machine only",
	"a session beyond this machine needs TLS: the network could read its secrets")

// deleteConsole ends all sessions.
func (g *Gateway) deleteConsole(w http.ResponseWriter, _ *http.Request) error {
	g.log.Info("sessions ended", "n", g.sessions.EndAll("all sessions were ended"))
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// getSession returns the session of r; without one its rights are "none".
func (g *Gateway) getSession(w http.ResponseWriter, r *http.Request) error {
	w.Header().Set("Cache-Control", "no-store")
	return writeJSON(w, http.StatusOK, g.describeSession(r, sessionOf(r)))
}

// describeSession returns the form of a session in the API; nil for none.
func (g *Gateway) describeSession(r *http.Request, n *sessions.Session) api.Session {
	s := api.Session{APIVersion: api.APIVersion, Kind: "Session", Rights: sessions.None.String()}
	if n != nil {
		s.Rights, s.Expires, s.Maker = rightsIn(r, n).String(), n.Expires, n.Principal.ID()
	}
	return s
}

// postSession begins the session of a link. The response is the only one with the key.
func (g *Gateway) postSession(w http.ResponseWriter, r *http.Request) error {
	var req api.SessionRequest
	if err := readSmall(w, r, &req, `send {"once": "…"}`); err != nil {
		return err
	}
	encrypted, err := g.guard.checkSecrecy(r)
	if err != nil {
		return err
	}
	most := sessions.Admin
	if g.guard.hasPrefix(r) {
		most = sessions.Read
	}
	n, cookie, key, err := g.sessions.Begin(req.Once, most)
	if err != nil {
		return err
	}
	name := cookieName(r)
	for _, old := range cookiesOf(r, name) {
		g.sessions.Forget(old)
	}
	http.SetCookie(w, &http.Cookie{Name: name, Value: cookie, Path: "/", MaxAge: int(sessions.Life.Seconds()), Secure: encrypted, HttpOnly: true,
		SameSite: http.SameSiteStrictMode})
	w.Header().Set("Cache-Control", "no-store")
	g.log.Info("session began", "maker", n.Principal.ID(), "rights", n.Rights.String(), "expires", n.Expires)
	answer := g.describeSession(r, n)
	answer.Key = key
	return writeJSON(w, http.StatusOK, answer)
}

// deleteSession ends the session of r, if it has one.
func (g *Gateway) deleteSession(w http.ResponseWriter, r *http.Request) error {
	if n := sessionOf(r); n != nil {
		http.SetCookie(w, &http.Cookie{Name: cookieName(r), Path: "/", MaxAge: -1, HttpOnly: true, SameSite: http.SameSiteStrictMode})
		g.log.Info("signed out", "maker", n.Principal.ID())
		defer g.sessions.End(n, "signed out") // ends the context of r
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// readSmall decodes the small JSON object in the body of r. The error has the hint.
func readSmall(w http.ResponseWriter, r *http.Request, into any, hint string) error {
	if err := server.CheckContentType(r, interact.JSON); err != nil {
		return err
	}
	raw, err := problem.ReadBody(w, r, maxConsoleRequest)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	err = d.Decode(into)
	if _, end := d.Token(); err != nil || end != io.EOF {
		return &interact.Error{Code: interact.Invalid, Title: "the body is not such a request", Hint: hint, Err: err}
	}
	return nil
}

type sessionKey struct{}

// sessionOf returns the session of a request; nil without one.
func sessionOf(r *http.Request) *sessions.Session {
	n, _ := r.Context().Value(sessionKey{}).(*sessions.Session)
	return n
}

// findSession returns the session whose cookie and key r has; nil without one.
func (g *guard) findSession(r *http.Request) *sessions.Session {
	key := r.Header["Lmos-Session"] // api.SessionHeader in its canonical form
	if len(key) != 1 || g.sessions == nil || g.plain {
		return nil
	}
	for _, cookie := range cookiesOf(r, cookieName(r)) {
		if n := g.sessions.Find(cookie, key[0]); n != nil {
			return n
		}
	}
	return nil
}

// inSession returns r with the principal of a session, the grant of its maker, and a context that ends with it. release is called after r.
func inSession(r *http.Request, n *sessions.Session) (_ *http.Request, release func()) {
	ctx := context.WithValue(did.WithPrincipal(r.Context(), n.Principal), sessionKey{}, n)
	if n.Maker.Grant != nil {
		ctx = context.WithValue(ctx, grantKey{}, n.Maker.Grant)
	}
	ctx, release = endWith(ctx, n.Context())
	return r.WithContext(ctx), release
}

// rightsIn returns the rights of a session in r.
func rightsIn(r *http.Request, n *sessions.Session) sessions.Rights {
	if isPrefixed(r.Header) {
		return min(n.Rights, sessions.Read)
	}
	return n.Rights
}

// cookieName returns the name of the cookie of sessions. Browsers send cookies to all ports of a host: with the port in the name, two nodes of a host
// do not sign each other out. It is the port that the browser uses.
func cookieName(r *http.Request) string {
	_, port, err := net.SplitHostPort(r.Host)
	if err != nil || port == "" {
		port = "0" // the default one of the scheme, which a proxy may know
	}
	return "lmosd-" + port
}

// cookiesOf returns the values of the cookies with a name, at most maxCookies.
func cookiesOf(r *http.Request, name string) (values []string) {
	for _, c := range r.CookiesNamed(name) {
		values = append(values, c.Value)
	}
	return values[:min(len(values), maxCookies)]
}

// isPrefixed reports whether a proxy serves the console below a path, where it shares its origin, and so the storage of the key, with other
// applications.
func isPrefixed(h http.Header) bool {
	return strings.Trim(h.Get("X-Forwarded-Prefix"), "/") != ""
}

// hasPrefix is isPrefixed for the beginning of a session, which names its origin: it also knows the path of Options.PublicURL.
func (g *guard) hasPrefix(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	return isPrefixed(r.Header) || g.publicPath && (origin == "" || strings.EqualFold(origin, g.public))
}

// checkSecrecy reports whether the browser of r uses TLS, to this node or to a proxy. The error is errPlainSession if it does not and the
// secrets would leave this machine.
func (g *guard) checkSecrecy(r *http.Request) (encrypted bool, err error) {
	origin := r.Header.Get("Origin") // which checkBrowser has accepted
	if r.TLS != nil || strings.HasPrefix(origin, "https://") {
		return true, nil
	}
	isLocal := !g.plain && localIP(r).IsLoopback() && isLoopbackName(hostName(r.Host))
	if u, err := url.Parse(origin); origin != "" && (err != nil || !isLoopbackName(u.Hostname())) || !isLocal {
		return false, errPlainSession
	}
	return false, nil
}

// isLoopbackName reports whether a host, without its port, is this machine for every browser.
func isLoopbackName(host string) bool {
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// indexOf returns the patterns of routes.
func indexOf(routes map[string]http.Handler) []string { return slices.Collect(maps.Keys(routes)) }
