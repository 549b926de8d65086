// Package aggregator serves Things as MCP servers: one endpoint per Thing, and one for the whole mesh.
//
//	/mcp/things/{name}  one thing with its own names (thing.go): its calls (run.go), tasks (task.go) and what is listened to
//	                    (listen.go, feeds.go). One that is an MCP server itself is passed through (front.go)
//	/mcp                the whole mesh (mesh.go, meshlisten.go): tools to search, describe (search.go), call and read, and what is
//	                    pinned (pins.go)
//
// What a thing offers, and all that is said of it in MCP, is of package offer: here it is served, as long as it takes.
//
// What is here answers requests of 2026-07-28 only: clients of 2025-11-25 get package backend in between, which makes sessions of
// them. A body of lines in place of one message, [LinesType], carries what a client says on its standard output; `lmosd mcp` sends it.
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
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/opaque"
	"github.com/lmosd/lmosd/internal/ratelimit"
	"github.com/lmosd/lmosd/td"
)

// Bounds of what is kept.
const (
	maxFronts = 256
	// frontIdle is more than a session may be idle (serve.Options).
	frontIdle = 40 * time.Minute
	sweepEach = time.Minute
	// tunnelFor is how long a tunnel may last. Clients begin another.
	tunnelFor = 24 * time.Hour
)

// Options are the settings of a [Handler].
type Options struct {
	// Mesh has what is served. It is needed. Request states name its signer: a client whose retry arrives elsewhere is told where to
	// go.
	Mesh bridge.Mesh
	// Pins are what /mcp lists beside its own tools: "thing", for all that it offers, or "thing/name", for one tool, prompt, property
	// or event of it. At most [MaxPins]; those after are left out.
	Pins []string
	// Version is that of lmosd: of the mesh as a server, and of things that say none of their own. Empty means "dev".
	Version string
	// Log gets what goes wrong; nil discards.
	Log *slog.Logger
}

// A Handler serves the things of a mesh. Close it when it is done.
type Handler struct {
	o      Options
	ctx    context.Context
	cancel context.CancelFunc
	sealer *opaque.Sealer
	pages  *directory.Pages // of mesh_search
	// listens are the subscriptions of all clients of things that are no MCP servers, and of the mesh.
	listens *ratelimit.Inflight[string]
	mesh    *front
	// The tasks and conversations of turns of all things, whose they are: fronts come and go.
	tasks, contexts bridge.Owners

	mu     sync.Mutex
	fronts map[string]*front // by the reference of the thing
	swept  time.Time
	closed bool
	closes sync.WaitGroup // of fronts that are being closed
}

// New returns a handler, which the caller closes.
func New(o Options) *Handler {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.Mesh = steady{o.Mesh, o.Log}
	h := &Handler{o: o, sealer: opaque.New(string(o.Mesh.Signer().DID())), pages: directory.NewPages(), listens: ratelimit.NewInflight[string](maxListens, allListens),
		fronts: map[string]*front{}}
	// What is done for all clients, the node asks itself.
	h.ctx, h.cancel = context.WithCancel(did.WithPrincipal(context.Background(), did.Consumer(did.Process, "")))
	m := newMesh(h)
	h.mesh = h.both("the mesh", m)
	h.mesh.Handler = h.serve(h.mesh.server, m.headers)
	return h
}

// A steady mesh has things that may panic: that is an error to who asks, and ends nothing else.
type steady struct {
	bridge.Mesh
	log *slog.Logger
}

// Do implements [interact.Thing].
func (s steady) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		ours := false // what runs is the loop, whose panics are not the thing's
		more := true  // the loop goes on
		defer func() {
			if ours {
				return
			}
			if p := recover(); p != nil {
				s.log.Error("a thing panicked", "thing", m.Thing, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
				if more {
					yield(nil, interact.Errorf(interact.Internal, "see the log of the node", "the node failed while it asked %s", m.Name))
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

// Paths are what it serves, as patterns of [http.ServeMux].
func (h *Handler) Paths() []string { return []string{"/mcp", "/mcp/things/{name}"} }

// ServeHTTP implements [http.Handler].
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	if name == "" {
		h.mesh.serve(h, w, r)
		return
	}
	f, leave, err := h.enter(r.Context(), name)
	if err != nil {
		h.absent(w, r, err)
		return
	}
	defer leave()
	f.serve(h, w, r)
}

// serve makes the HTTP of a server.
func (h *Handler) serve(s protocol.Server, params func(string) []protocol.Param) *server.Handler {
	return server.New(server.Options{Server: s, Params: params, Caller: callerOf, Log: h.o.Log})
}

// enter returns the front of the thing that name refers to, and what to do when the request is over.
func (h *Handler) enter(ctx context.Context, name string) (*front, func(), error) {
	d, err := h.o.Mesh.Get(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	return h.use(d)
}

// use returns the front of a thing, made if there is none.
func (h *Handler) use(d *td.Description) (*front, func(), error) {
	ref, now := d.Ref(), time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, nil, interact.Errorf(interact.ShuttingDown, "try again later", "the node is shutting down")
	}
	h.sweepLocked(now)
	f := h.fronts[ref]
	if f != nil && !f.describes(d) && f.tunnel != features.Tunnel(d.Thing) { // it has become another kind of thing
		h.dropLocked(ref)
		f = nil
	}
	if f == nil {
		if len(h.fronts) >= maxFronts && !h.roomLocked() {
			return nil, nil, interact.Errorf(interact.Overloaded, "try again later", "%d things are being used over MCP already", maxFronts)
		}
		f = h.front(d, ref, features.Tunnel(d.Thing))
		h.fronts[ref] = f
	}
	f.describe(d)
	f.busy++
	f.used = now
	return f, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		f.busy--
		f.used = time.Now()
	}, nil
}

// sweepLocked closes the fronts that nobody has used for a long time.
func (h *Handler) sweepLocked(now time.Time) {
	if now.Sub(h.swept) < sweepEach {
		return
	}
	h.swept = now
	for ref, f := range h.fronts {
		if f.busy == 0 && now.Sub(f.used) > frontIdle {
			h.dropLocked(ref)
		}
	}
}

// roomLocked closes the front that was not used for the longest time, if there is one that nobody uses.
func (h *Handler) roomLocked() bool {
	oldest := ""
	for ref, f := range h.fronts {
		if f.busy == 0 && (oldest == "" || f.used.Before(h.fronts[oldest].used)) {
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
	f := h.fronts[ref]
	delete(h.fronts, ref)
	h.closes.Go(f.end)
}

// Close ends all sessions and runs, and waits for them.
func (h *Handler) Close() {
	h.cancel()
	h.mu.Lock()
	h.closed = true
	for _, ref := range slices.Sorted(maps.Keys(h.fronts)) {
		h.dropLocked(ref)
	}
	h.mu.Unlock()
	h.mesh.end()
	h.closes.Wait()
}
