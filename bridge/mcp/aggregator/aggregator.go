// Package aggregator serves Things as MCP servers: one endpoint per Thing, and one for the whole mesh.
//
//	/mcp/things/{name}  one Thing under its own names (thing.go): calls (run.go), tasks (task.go) and subscriptions (listen.go,
//	                    subscriptions.go). An MCP server is passed through (passed.go)
//	/mcp                the whole mesh (mesh.go, meshlisten.go): tools to search, describe (search.go), call and read, and the
//	                    pinned features (pins.go)
//
// Package features has the mapping between Things and MCP.
//
// The servers of this package are stateless (2026-07-28); package backend adds sessions for clients of earlier revisions. A body of lines
// instead of one message, [LinesType], carries the standard input and output of a client; `lmosd mcp` sends it.
//
// Sources: MCP 2026-07-28, "Pagination", "Progress", "Multi round-trip requests", "Subscriptions", extension "Tasks".
package aggregator

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/mcp/features"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/bridge/mcp/server"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory/paging"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/opaque"
	"github.com/lmosd/lmosd/internal/ratelimit"
	"github.com/lmosd/lmosd/td"
)

// Bounds of the endpoints.
const (
	maxEndpoints = 256
	// endpointIdle exceeds the idle time of a session (server.Options).
	endpointIdle  = 40 * time.Minute
	sweepInterval = time.Minute
	// tunnelTimeout bounds the life of a tunnel. Clients open another.
	tunnelTimeout = 24 * time.Hour
)

// Options configure a [Handler].
type Options struct {
	// Mesh provides the Things. It is required. Request states contain the DID of its signer, so that another node can name the node that
	// issued them.
	Mesh bridge.Mesh
	// Pins are the features that /mcp lists besides its own tools: "thing" for all features of a Thing, or "thing/name" for one tool,
	// prompt, property or event. Pins after the first [maxPins] are ignored.
	Pins []string
	// Version is the version of lmosd, also for Things without a version. Empty means "dev".
	Version string
	// Log receives warnings; nil discards them.
	Log *slog.Logger
}

// A Handler serves the Things of a mesh. The caller must close it.
type Handler struct {
	o      Options
	ctx    context.Context
	cancel context.CancelFunc
	sealer *opaque.Sealer
	pages  *paging.Pages // of the results of mesh_search
	// listens limits the subscriptions of all clients to the mesh and to Things that are not MCP servers.
	listens *ratelimit.Inflight[string]
	mesh    *endpoint
	// The owners of the tasks and conversations of all Things, which outlive their endpoints.
	tasks, contexts bridge.Owners

	mu        sync.Mutex
	endpoints map[string]*endpoint // by the reference of the Thing
	swept     time.Time
	closed    bool
	closes    sync.WaitGroup // endpoints that are closing
}

// New returns a handler, which the caller must close.
func New(o Options) *Handler {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.Mesh = recovering{o.Mesh, o.Log}
	h := &Handler{o: o, sealer: opaque.New(string(o.Mesh.Signer().DID())), pages: paging.New(), endpoints: map[string]*endpoint{},
		listens: ratelimit.NewInflight[string](maxListens, allListens)}
	// Requests on behalf of all clients have the principal of the node.
	h.ctx, h.cancel = context.WithCancel(did.WithPrincipal(context.Background(), did.Consumer(did.Process, "")))
	m := newMesh(h)
	h.mesh = h.withSessions("the mesh", m)
	h.mesh.Handler = h.serve(h.mesh.server, m.headers)
	return h
}

// A recovering mesh converts a panic of a Thing to an error.
type recovering struct {
	bridge.Mesh
	log *slog.Logger
}

// Do implements [interact.Thing].
func (s recovering) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		ours := false // the loop body is running: its panics are not those of the Thing
		more := true  // the loop accepts more replies
		defer func() {
			if ours {
				return
			}
			if p := recover(); p != nil {
				s.log.Error("Thing panicked", "thing", m.Thing, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
				if more {
					yield(nil, interact.Errorf(interact.Internal, "see the log of the node", "the node failed during %s", m.Name))
				}
			}
		}()
		s.Mesh.Do(ctx, m)(func(r *interact.Message, err error) bool {
			ours = true
			more = yield(r, err)
			ours = false
			return more
		})
	}
}

// Paths returns the patterns of [http.ServeMux] that the handler serves.
func (h *Handler) Paths() []string { return []string{"/mcp", "/mcp/things/{name}"} }

// ServeHTTP implements [http.Handler].
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	if name == "" {
		h.mesh.serve(h, w, r)
		return
	}
	e, leave, err := h.enter(r.Context(), name)
	if err != nil {
		h.serveNotFound(w, r, err)
		return
	}
	defer leave()
	e.serve(h, w, r)
}

// serve returns the HTTP handler of a server.
func (h *Handler) serve(s protocol.Server, params func(context.Context, string) []protocol.Param) *server.Handler {
	return server.New(server.Options{Server: s, Params: params, Caller: callerOf, Log: h.o.Log})
}

// enter returns the endpoint of a Thing by name. The caller must call the function when the request ends.
func (h *Handler) enter(ctx context.Context, name string) (*endpoint, func(), error) {
	d, err := h.o.Mesh.Get(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	return h.use(d)
}

// use returns the endpoint of a Thing. It creates it if necessary.
func (h *Handler) use(d *td.Description) (*endpoint, func(), error) {
	ref, now := d.Ref(), time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, nil, interact.ShutdownError("try again in a moment")
	}
	h.sweepLocked(now)
	e := h.endpoints[ref]
	if e != nil && !e.describes(d) && e.tunnel != features.Tunnel(d.Thing) { // the Thing became an MCP server, or is one no longer
		h.dropLocked(ref)
		e = nil
	}
	if e == nil {
		if len(h.endpoints) >= maxEndpoints && !h.roomLocked() {
			return nil, nil, interact.Errorf(interact.Overloaded, "try again later", "%d Things are in use over MCP", maxEndpoints)
		}
		e = h.newEndpoint(d, ref, features.Tunnel(d.Thing))
		h.endpoints[ref] = e
	}
	e.describe(d)
	e.busy++
	e.used = now
	return e, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		e.busy--
		e.used = time.Now()
	}, nil
}

// sweepLocked closes idle endpoints.
func (h *Handler) sweepLocked(now time.Time) {
	if now.Sub(h.swept) < sweepInterval {
		return
	}
	h.swept = now
	for ref, e := range h.endpoints {
		if e.busy == 0 && now.Sub(e.used) > endpointIdle {
			h.dropLocked(ref)
		}
	}
}

// roomLocked closes the endpoint that is idle the longest, and reports whether there was one.
func (h *Handler) roomLocked() bool {
	oldest := ""
	for ref, e := range h.endpoints {
		if e.busy == 0 && (oldest == "" || e.used.Before(h.endpoints[oldest].used)) {
			oldest = ref
		}
	}
	if oldest == "" {
		return false
	}
	h.dropLocked(oldest)
	return true
}

func (h *Handler) dropLocked(ref string) {
	e := h.endpoints[ref]
	delete(h.endpoints, ref)
	h.closes.Go(e.end)
}

// Close ends all sessions and calls, and waits for them.
func (h *Handler) Close() {
	h.cancel()
	h.mu.Lock()
	h.closed = true
	for _, ref := range slices.Sorted(maps.Keys(h.endpoints)) {
		h.dropLocked(ref)
	}
	h.mu.Unlock()
	h.mesh.end()
	h.closes.Wait()
}
