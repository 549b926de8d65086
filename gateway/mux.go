package gateway

import (
	"context"
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/rest/server"
)

// newRoutes returns the routes of the gateway. The mux handles only paths that it does not redirect: some clients fail on redirects, and an
// id may contain "//" (WoT Discovery §7.3; RFC 3986 §3.3).
func (g *Gateway) newRoutes() http.Handler {
	mux := http.NewServeMux()
	fixed := g.fixedRoutes()
	for pattern, h := range fixed {
		mux.Handle(pattern, h)
	}
	interactions, description := g.interactions(call), g.interactions(g.directoryAccess())
	named := g.refRoutes()
	g.index = newIndex(indexOf(fixed), named)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if id, below := server.ThingID(r, "/things/"); id != "" && below != "" {
			if r.Pattern = interactionPattern(below); below == "td" {
				description.ServeHTTP(w, r)
			} else {
				interactions.ServeHTTP(w, r)
			}
			return
		}
		if r.Pattern = tdd.Pattern(r); r.Pattern != "" {
			g.directory.ServeHTTP(w, r)
			return
		}
		p := r.URL.EscapedPath()
		for prefix, methods := range named {
			if ref := refAfter(p, prefix); ref != "" {
				r.SetPathValue("ref", ref)
				r.Pattern = prefix + "{ref}"
				g.dispatch(methods, w, r)
				return
			}
		}
		if _, pattern := mux.Handler(r); pattern == "" || !isClean(p) {
			g.fail(w, r, muxError(mux, w, r))
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// fixedRoutes returns the routes without parameters, by pattern of the mux.
func (g *Gateway) fixedRoutes() map[string]http.Handler {
	routes := map[string]http.Handler{
		"GET /v1/status":          g.protect(read, g.status),
		"GET /v1/id":              g.protect(read, g.identity),
		"GET /v1/peers":           g.protect(read, g.peers),
		"POST /v1/peers":          g.protect(admin, g.connect),
		"GET /v1/net":             g.protect(read, g.net),
		"GET /v1/find":            g.protect(read, g.find),
		"POST /v1/route":          g.protect(call, g.route),
		"POST /v1/publish":        g.protect(admin, g.postPublish),
		"GET /v1/hosting":         g.protect(admin, g.whole(g.listHosted)),
		"POST /v1/hosting":        g.protect(admin, g.postHosting),
		"GET /v1/tasks":           g.protect(read, g.listTasks),
		"GET /v1/policy":          g.protect(admin, g.getPolicy),
		"POST /v1/policy/rules":   g.protect(admin, g.whole(g.postRule)),
		"DELETE /v1/policy/rules": g.protect(admin, g.deleteRules),
		"GET /v1/policy/rights":   g.protect(admin, g.whole(g.rights)),
		"POST /v1/trust/why":      g.protect(admin, g.whole(g.why)),
		"GET /v1/tokens":          g.protect(admin, g.listTokens),
		"POST /v1/tokens":         g.protect(admin, g.createToken),
		"GET /healthz":            g.protect(open, g.healthy),
		"GET /readyz":             g.protect(open, g.ready),
		"GET /version":            g.protect(read, g.version),
	}
	maps.Copy(routes, g.agentsRoutes())
	maps.Copy(routes, g.topologyRoutes())
	maps.Copy(routes, g.trustRoutes())
	maps.Copy(routes, g.groupRoutes())
	maps.Copy(routes, g.delegationRoutes())
	maps.Copy(routes, g.metadataRoutes())
	maps.Copy(routes, g.activityRoutes())
	maps.Copy(routes, g.operatorRoutes())
	maps.Copy(routes, g.consoleRoutes())
	if g.o.Callbacks != nil {
		routes["POST "+callbacksPath+"{callback}"] = g.protect(open, func(w http.ResponseWriter, r *http.Request) error {
			g.o.Callbacks.ServeHTTP(w, r)
			return nil
		})
	}
	if g.o.WS != nil {
		routes["GET "+socketRoute] = g.protect(open, g.serveSocket) // serveSocket authorizes the caller
	}
	for _, b := range g.o.Bridges {
		use := new(bridgeUse)
		g.bridgeUses = append(g.bridgeUses, use)
		for _, path := range b.Paths() {
			routes[path] = g.bridge(b, use)
		}
	}
	if !g.o.HideMetrics {
		scrape := g.metrics.handler(g)
		routes["GET /metrics"] = g.protect(read, func(w http.ResponseWriter, r *http.Request) error {
			if p := did.PrincipalOf(r.Context()); p == nil || p.Relation != did.Local { // metrics count what the caller may not see
				return interact.Errorf(interact.Unauthenticated, g.guard.tokenHint(), "metrics need the token of the node")
			}
			scrape.ServeHTTP(w, r)
			return nil
		})
	}
	return routes
}

// refRoutes returns the methods of the routes that end with a reference or an id, by the prefix of the path.
func (g *Gateway) refRoutes() map[string]map[string]http.Handler {
	return map[string]map[string]http.Handler{
		"/v1/agents/":  g.agentMethods(),
		"/v1/tasks/":   {http.MethodGet: g.protect(read, g.getTask), http.MethodDelete: g.protect(admin, g.cancelTask)},
		"/v1/tokens/":  {http.MethodDelete: g.protect(admin, g.revokeToken)},
		"/v1/calls/":   {http.MethodGet: g.protect(admin, g.getCall)},
		"/v1/hosting/": {http.MethodPost: g.protect(admin, g.withdrawGranted), http.MethodDelete: g.protect(admin, g.whole(g.deleteHosting))},
		"/v1/move/":    {http.MethodPost: g.protect(admin, g.postMove)},
		"/v1/paths/":   {http.MethodGet: g.protect(read, g.paths)},
		"/v1/logs/":    g.logMethods(),
		"/v1/ping/":    {http.MethodPost: g.protect(call, g.ping)},
	}
}

// agentMethods are the methods of /v1/agents/{ref}.
func (g *Gateway) agentMethods() map[string]http.Handler {
	return map[string]http.Handler{
		http.MethodGet:    g.protect(read, g.getAgent),
		http.MethodDelete: g.protect(admin, g.deleteAgent),
	}
}

// bridge returns the handler of a bridge. Agent Cards require the rights of reading the directory; CORS preflights of cards are open.
func (g *Gateway) bridge(b Bridge, use *bridgeUse) http.Handler {
	h := g.bridged(b, use)
	calls, cards, preflights := g.protect(call, h), g.protect(g.directoryAccess(), h), g.protect(open, h)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case isCard(r) && r.Method == http.MethodOptions:
			preflights.ServeHTTP(w, r)
		case isCard(r):
			cards.ServeHTTP(w, r)
		default:
			calls.ServeHTTP(w, r)
		}
	})
}

// bridged serves a bridge until the gateway ends. The end of the gateway ends the streams of the bridge.
func (g *Gateway) bridged(b Bridge, use *bridgeUse) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		defer func() { use.count(statusOf(w), time.Now()) }()
		ctx, cancel := context.WithCancel(bridge.WithCaller(r.Context(), g.guard.caller(r)))
		defer cancel()
		defer context.AfterFunc(g.streamCtx, cancel)()
		b.ServeHTTP(w, r.WithContext(ctx))
		return nil
	}
}

// interactionPattern returns the pattern of a route below a Thing, without the values in it.
func interactionPattern(below string) string {
	kind, names, isNamed := strings.Cut(below, "/")
	isDeep := strings.Contains(names, "/")
	switch {
	case kind == "actions" && isDeep:
		return "/things/{id}/actions/{name}/{run}"
	case kind == "actions" && isNamed:
		return "/things/{id}/actions/{name}"
	case isDeep:
		return "/things/{id}/" + kind + "/{name}/observable"
	case kind == "subscriptions":
		return "/things/{id}/subscriptions/{subscription}"
	case isNamed:
		return "/things/{id}/" + kind + "/{name}"
	}
	return "/things/{id}/" + kind
}

// isClean reports whether the mux accepts p without a redirect.
func isClean(p string) bool {
	c := path.Clean(p)
	return strings.HasPrefix(p, "/") && (c == p || c+"/" == p)
}

// refAfter returns the rest of an escaped path after prefix, unescaped once; or "".
func refAfter(escaped, prefix string) string {
	ref, ok := strings.CutPrefix(escaped, prefix)
	if !ok {
		return ""
	}
	if u, err := url.PathUnescape(ref); err == nil { // an escaped path is always valid
		ref = u
	}
	return ref
}

// muxError returns the error for the response that the mux would send: unknown path, or method not allowed.
func muxError(mux *http.ServeMux, w http.ResponseWriter, r *http.Request) error {
	if p := r.URL.EscapedPath(); isClean(p) {
		h, _ := mux.Handler(r)
		rec := &recorder{ResponseWriter: headerOnly{http.Header{}}}
		h.ServeHTTP(rec, r)
		if rec.status == http.StatusMethodNotAllowed {
			return tdd.NotAllowed(w, r, rec.Header().Get("Allow"))
		}
	}
	return errNothing(r)
}

// errNothing returns the error of an unknown path.
func errNothing(r *http.Request) error {
	return interact.Errorf(interact.NoAffordance, "GET /.well-known/wot describes the node, GET /things lists its directory",
		"nothing is served at %s", tdd.Clip(r.URL.Path))
}

// dispatch calls the handler of the method of r; HEAD is that of GET.
func (g *Gateway) dispatch(methods map[string]http.Handler, w http.ResponseWriter, r *http.Request) {
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	if h := methods[method]; h != nil {
		h.ServeHTTP(w, r)
		return
	}
	allow := slices.Collect(maps.Keys(methods))
	if methods[http.MethodGet] != nil {
		allow = append(allow, http.MethodHead)
	}
	slices.Sort(allow)
	g.fail(w, r, tdd.NotAllowed(w, r, strings.Join(allow, ", ")))
}
