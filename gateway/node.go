package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/web"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/interact/rest/server"
	"github.com/lmosd/lmosd/publication"
)

// fixedRoutes returns the routes without parameters, by pattern of the mux.
func (g *Gateway) fixedRoutes() map[string]http.Handler {
	routes := map[string]http.Handler{
		"GET /v1/status":   g.protect(read, g.status),
		"GET /v1/id":       g.protect(read, g.identity),
		"GET /v1/peers":    g.protect(read, g.peers),
		"POST /v1/peers":   g.protect(admin, g.connect),
		"GET /v1/find":     g.protect(read, g.find),
		"POST /v1/route":   g.protect(call, g.route),
		"POST /v1/publish": g.protect(admin, g.postPublish),
		"GET /v1/tasks":    g.protect(read, g.listTasks),
		"GET /healthz":     g.protect(open, g.healthy),
		"GET /readyz":      g.protect(open, g.ready),
		"GET /version":     g.protect(read, g.version),
	}
	if id, ok := web.Of(g.o.PublicURL); ok {
		routes["GET /.well-known/did.json"] = g.protect(open, func(w http.ResponseWriter, _ *http.Request) error {
			td := strings.TrimSuffix(g.o.PublicURL, "/") + "/.well-known/wot"
			tdd.WriteBytes(w, http.StatusOK, "application/did+json", web.Document(id, g.o.Status.Status().DID, td))
			return nil
		})
	}
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
		for _, path := range b.Paths() {
			routes[path] = g.bridge(b)
		}
	}
	if !g.o.HideMetrics {
		scrape := g.metrics.handler(g)
		routes["GET /metrics"] = g.protect(read, func(w http.ResponseWriter, r *http.Request) error {
			scrape.ServeHTTP(w, r)
			return nil
		})
	}
	return routes
}

// bridge returns the handler of a bridge. Agent Cards require the rights of reading the directory; CORS preflights of cards are open.
func (g *Gateway) bridge(b Bridge) http.Handler {
	calls, cards, preflights := g.protect(call, g.bridged(b)), g.protect(g.directoryAccess(), g.bridged(b)), g.protect(open, g.bridged(b))
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
func (g *Gateway) bridged(b Bridge) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		ctx, cancel := context.WithCancel(bridge.WithCaller(r.Context(), g.guard.caller(r)))
		defer cancel()
		defer context.AfterFunc(g.streamCtx, cancel)()
		b.ServeHTTP(w, r.WithContext(ctx))
		return nil
	}
}

func (g *Gateway) status(w http.ResponseWriter, _ *http.Request) error {
	s := g.o.Status.Status()
	s.APIVersion, s.Kind, s.API = api.APIVersion, "Status", g.URL()
	if g.gate.Closed() {
		s.State = "draining"
	}
	if s.Warnings == nil {
		s.Warnings = []api.Warning{}
	}
	return writeJSON(w, http.StatusOK, s)
}

func (g *Gateway) identity(w http.ResponseWriter, r *http.Request) error {
	s := g.o.Status.Status()
	id := api.Identity{APIVersion: api.APIVersion, Kind: "Identity", DID: s.DID, PeerID: s.PeerID, Name: s.Name}
	doc, err := did.Keys().Resolve(r.Context(), s.DID)
	if err != nil {
		return err
	}
	id.Document = doc.Raw
	return writeJSON(w, http.StatusOK, id)
}

func (g *Gateway) peers(w http.ResponseWriter, _ *http.Request) error {
	list := api.PeerList{APIVersion: api.APIVersion, Kind: "PeerList", Items: g.o.Peers.List()}
	if list.Items == nil {
		list.Items = []api.Peer{}
	}
	return writeJSON(w, http.StatusOK, list)
}

func (g *Gateway) connect(w http.ResponseWriter, r *http.Request) error {
	if err := server.CheckContentType(r, interact.JSON); err != nil {
		return err
	}
	body, err := problem.ReadBody(w, r, 4<<10)
	if err != nil {
		return err
	}
	var req api.ConnectRequest
	if json.Unmarshal(body, &req) != nil || req.Addr == "" {
		return interact.Errorf(interact.Invalid, `send {"addr":"/ip4/192.0.2.1/tcp/4667/p2p/12D3Koo…"}`,
			"expected a JSON object with the addr of a peer")
	}
	if err := g.o.Peers.Connect(r.Context(), req.Addr); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (g *Gateway) postPublish(w http.ResponseWriter, r *http.Request) error {
	if err := server.CheckContentType(r, tdTypes...); err != nil {
		return err
	}
	raw, err := problem.ReadBody(w, r, int64(g.o.MaxTD))
	if err != nil {
		return err
	}
	p, err := g.publish(r.Context(), raw, publication.Registration{})
	if err != nil {
		return err
	}
	status := http.StatusOK
	if p.Created {
		status = http.StatusCreated
		w.Header().Set("Location", tdd.ThingPath(p.ID))
	}
	return writeJSON(w, status, p)
}

// healthy succeeds while the process serves, and fails when it begins to stop.
func (g *Gateway) healthy(w http.ResponseWriter, _ *http.Request) error {
	if g.gate.Closed() {
		return errShuttingDown()
	}
	return writeJSON(w, http.StatusOK, map[string]string{"status": "pass"})
}

// A check is one entry of GET /readyz?verbose.
type check struct {
	Name    string  `json:"name"`
	Status  string  `json:"status"` // pass, warn or fail
	Message string  `json:"message,omitempty"`
	Elapsed float64 `json:"elapsed_ms"`
}

func (g *Gateway) ready(w http.ResponseWriter, r *http.Request) error {
	q, err := tdd.Params(r, "verbose")
	if err != nil {
		return err
	}
	start := time.Now()
	err = g.o.Status.Ready()
	elapsed := milliseconds(time.Since(start))
	if g.gate.Closed() {
		err = errShuttingDown()
	}
	if q.Has("verbose") {
		return writeChecks(w, check{Name: "node", Elapsed: elapsed}, err, g.o.Status.Status().Warnings)
	}
	if err != nil {
		return interact.Errorf(interact.NotReady, "", "the node is not ready: %v", err).Then(interact.StepStatus)
	}
	return writeJSON(w, http.StatusOK, map[string]string{"status": "pass"})
}

// writeChecks reports whether the node serves, and its warnings.
func writeChecks(w http.ResponseWriter, c check, err error, warnings []api.Warning) error {
	status := http.StatusOK
	c.Status = "pass"
	if err != nil {
		status, c.Status, c.Message = http.StatusServiceUnavailable, "fail", err.Error()
	}
	checks := []check{c}
	for _, one := range warnings {
		checks = append(checks, check{Name: one.Title, Status: "warn", Message: one.Code + ": " + one.Text})
	}
	return writeJSON(w, status, map[string]any{"status": c.Status, "checks": checks})
}

func milliseconds(d time.Duration) float64 {
	return float64(d.Round(time.Microsecond)) / float64(time.Millisecond)
}

func (g *Gateway) version(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, api.Version{APIVersion: api.APIVersion, Kind: "Version",
		Version: g.o.Status.Status().Version,
		Commit:  commit(), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH})
}

// commit returns the revision of the program, or "" if the build did not record it.
var commit = sync.OnceValue(func() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return ""
})
