// Package facade serves the things of a mesh to MCP clients of both eras: each at an address of its own, and all of them at one.
//
//	/mcp/things/{name}  one thing with its own names (thing.go, offers.go). One that is an MCP server itself is passed through; an A2A
//	                    agent has tools that are turns of a conversation (turn.go)
//	/mcp                the whole mesh (mesh.go): tools to search, describe, call and read, and what is pinned (pins.go)
//
// What is here answers requests of 2026-07-28 only: clients of 2025-11-25 get package backend in between, which makes sessions of
// them. A body of lines in place of one message, [LinesType], carries what a client says on its standard output; `lmosd mcp` sends it.
//
// Sources: MCP 2026-07-28, "Tools", "Resources", "Prompts", "Multi round-trip requests", "Subscriptions", extension "Tasks"; WoT Thing
// Description 1.1.
package facade

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"maps"
	"mime"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/mcp/backend"
	"github.com/lmosd/lmosd/bridge/mcp/serve"
	"github.com/lmosd/lmosd/bridge/mcp/wire"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/seal"
	"github.com/lmosd/lmosd/td"
)

// LinesType is the media type of a body that is messages, one a line, both ways at once: what a client and a server say to each other on
// standard input and output, of either era. It is lmosd's own.
const LinesType = "application/x-ndjson"

// Bounds of what is kept.
const (
	maxFronts = 256
	// frontIdle is more than a session may be idle (serve.Options).
	frontIdle = 40 * time.Minute
	sweepEach = time.Minute
	// tunnelFor is how long a tunnel may last. Clients begin another.
	tunnelFor = 24 * time.Hour
)

// A Mesh has the things that are served (bridge.Mesh).
type Mesh interface {
	interact.Thing
	Get(ctx context.Context, ref string) (*td.Description, error)
	Find(ctx context.Context, q td.Query) iter.Seq2[*td.Description, error]
	Rank(ctx context.Context, q td.Query, found []*td.Description) []directory.Ranked
	Latest() uint64
	Watch(ctx context.Context, q td.Query, after uint64) iter.Seq2[directory.Change, error]
}

// Options are the settings of a [Handler].
type Options struct {
	// Mesh has what is served. It is needed.
	Mesh Mesh
	// Pins are what /mcp lists beside its own tools: "thing", for all that it offers, or "thing/name", for one tool, prompt, property
	// or event of it. At most [MaxPins]; those after are left out.
	Pins []string
	// Node is the name of the node in request states: a client whose retry arrives elsewhere is told where to go. Empty names nobody.
	Node string
	Log  *slog.Logger
}

// A Handler serves the things of a mesh. Close it when it is done.
type Handler struct {
	o      Options
	ctx    context.Context
	cancel context.CancelFunc
	sealer *seal.Sealer
	// listens are the subscriptions of all clients of things that are no MCP servers, and of the mesh.
	listens *wire.Quota
	mesh    *front

	mu     sync.Mutex
	fronts map[string]*front // by the reference of the thing
	swept  time.Time
	closed bool
	closes sync.WaitGroup // of fronts that are being closed
}

// A front is one server, and the HTTP at which it is served.
type front struct {
	server wire.Server
	*serve.Handler
	close func() // ends what stands behind the HTTP

	thing  *thing                    // nil: it is passed through, or is the mesh
	tunnel string                    // the action that it is passed through
	offers atomic.Pointer[offers]    // of what is passed through, as it was described last
	params atomic.Pointer[headersOf] // of its tools
	busy   int                       // owned by Handler.mu
	used   time.Time                 // owned by Handler.mu
}

// headersOf are the arguments that headers repeat, by tool.
type headersOf map[string][]wire.Param

// New returns a handler, which the caller closes.
func New(o Options) *Handler {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.Mesh = steady{o.Mesh, o.Log}
	h := &Handler{o: o, sealer: seal.New(o.Node), listens: wire.NewQuota(maxListens, allListens), fronts: map[string]*front{}}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	m := newMesh(h)
	h.mesh = h.both("the mesh", m)
	h.mesh.Handler = h.serve(h.mesh.server, m.headers)
	return h
}

// A steady mesh has things that may panic: that is an error to who asks, and ends nothing else.
type steady struct {
	Mesh
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

// serve answers a request, or a body of lines.
func (f *front) serve(h *Handler, w http.ResponseWriter, r *http.Request) {
	if media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); media == LinesType && r.Method == http.MethodPost {
		h.lines(f.server, w, r)
		return
	}
	f.ServeHTTP(w, r)
}

// absent tells the client of a thing that is not there so in its own words: a session that it had is over, and a new one is refused
// with the reason.
func (h *Handler) absent(w http.ResponseWriter, r *http.Request, err error) {
	s := refusing{unknown(err)}
	if media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); media == LinesType && r.Method == http.MethodPost {
		h.lines(s, w, r)
		return
	}
	once := h.serve(s, nil)
	defer once.Close()
	once.ServeHTTP(w, r)
}

// unknown is the error of a request to a thing that is not there, or cannot be told from another.
func unknown(err error) *wire.Error {
	e := fault(err)
	switch interact.AsError(err).Code {
	case interact.NotFound, interact.Ambiguous, interact.Withdrawn, interact.Expired, interact.Invalid:
		e.Code = wire.InvalidParams
	}
	return e
}

// A refusing server refuses all that it is asked.
type refusing struct{ why *wire.Error }

func (s refusing) Call(_ context.Context, m *wire.Message, _ func(*wire.Message) error) (*wire.Message, error) {
	return wire.Refuse(m.ID(), s.why), nil
}

func (s refusing) Session(ctx context.Context) (wire.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	return &refusal{s.why, ctx, cancel, make(chan *wire.Message)}, nil
}

// A refusal is a session with a refusing server.
type refusal struct {
	why    *wire.Error
	ctx    context.Context
	cancel context.CancelFunc
	said   chan *wire.Message
}

func (c *refusal) Read(context.Context) (*wire.Message, error) {
	select {
	case m := <-c.said:
		return m, nil
	case <-c.ctx.Done():
		return nil, io.EOF
	}
}

func (c *refusal) Write(ctx context.Context, m *wire.Message) error {
	if !m.IsRequest() {
		return nil
	}
	select {
	case c.said <- wire.Refuse(m.ID(), c.why):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.ctx.Done():
		return io.ErrClosedPipe
	}
}

func (c *refusal) Close() error {
	c.cancel()
	return nil
}

// serve makes the HTTP of a server.
func (h *Handler) serve(s wire.Server, params func(string) []wire.Param) *serve.Handler {
	return serve.New(serve.Options{Server: s, Params: params, Caller: callerOf, Log: h.o.Log})
}

// callerOf names who sends a request by what it showed of itself. The gateway has judged that.
func callerOf(r *http.Request) string {
	shown := r.Header.Get("Authorization")
	if shown == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(shown))
	return hex.EncodeToString(sum[:16])
}

// lines answers what comes line by line, until the client closes its end.
func (h *Handler) lines(s wire.Server, w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	if err := control.EnableFullDuplex(); err != nil {
		http.Error(w, "lines go both ways at once, which this connection cannot", http.StatusHTTPVersionNotSupported)
		return
	}
	_ = control.SetReadDeadline(time.Time{}) // a client may say nothing for hours
	w.Header().Set("Content-Type", LinesType)
	w.WriteHeader(http.StatusOK)
	if control.Flush() != nil {
		return
	}
	ctx := wire.WithCaller(r.Context(), callerOf(r))
	both := &duplex{Reader: r.Body, w: w, control: control}
	defer both.Close()
	if err := backend.Serve(ctx, s, wire.Lines(both), knownRevision); err != nil && ctx.Err() == nil {
		h.o.Log.Debug("a client of MCP on lines has left", "err", err)
	}
}

// knownRevision refuses requests of a revision that is not served. Those of the old era name none.
func knownRevision(_ context.Context, m *wire.Message) error {
	if !m.IsModern() {
		return nil
	}
	if bad := m.CheckVersion(); bad != nil {
		return bad
	}
	return nil
}

// A duplex is a request and its answer as one stream.
type duplex struct {
	io.Reader
	w       http.ResponseWriter
	control *http.ResponseController
}

func (d *duplex) Write(p []byte) (int, error) {
	n, err := d.w.Write(p)
	return n, cmp.Or(err, d.control.Flush())
}

// Close ends a read that waits.
func (d *duplex) Close() error { return d.control.SetReadDeadline(time.Now()) }

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
	ref, tunnel := d.Ref(), tunnelOf(d.Thing)
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, nil, interact.Errorf(interact.ShuttingDown, "try again later", "the node is shutting down")
	}
	h.sweepLocked(now)
	f := h.fronts[ref]
	if f != nil && f.tunnel != tunnel { // it has become another kind of thing
		h.dropLocked(ref)
		f = nil
	}
	if f == nil {
		if len(h.fronts) >= maxFronts && !h.roomLocked() {
			return nil, nil, interact.Errorf(interact.Overloaded, "try again later", "%d things are being used over MCP already", maxFronts)
		}
		f = h.front(d, ref, tunnel)
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

// front makes the front of a thing.
func (h *Handler) front(d *td.Description, ref, tunnel string) *front {
	var f *front
	if tunnel != "" {
		back := backend.New(backend.Options{Name: d.Thing.Name(), Relay: true, Log: h.o.Log,
			Dial: func(ctx context.Context) (wire.Conn, error) {
				return wire.Lines(bridge.Dial(ctx, h.o.Mesh, &interact.Message{Type: interact.InvokeAction, Thing: ref, Name: tunnel,
					ID: interact.NewID(), Deadline: time.Now().Add(tunnelFor)})), nil
			}})
		f = &front{server: back, close: back.Close, tunnel: tunnel}
	} else {
		t := newThing(h, ref)
		f = h.both(d.Thing.Name(), t)
		f.thing = t
	}
	f.Handler = h.serve(f.server, func(tool string) []wire.Param { return (*f.params.Load())[tool] })
	return f
}

// A modern server answers requests of 2026-07-28.
type modern interface {
	Call(ctx context.Context, m *wire.Message, notify func(*wire.Message) error) (*wire.Message, error)
	close()
}

// A dual server has sessions of the old era, too.
type dual struct {
	modern
	back *backend.Backend
}

func (d *dual) Session(ctx context.Context) (wire.Conn, error) { return d.back.Session(ctx) }

// lone is a modern server as package backend sees one: it has no sessions of the old era. Whoever has one there is its caller.
type lone struct{ modern }

func (l lone) Call(ctx context.Context, m *wire.Message, notify func(*wire.Message) error) (*wire.Message, error) {
	return l.modern.Call(wire.WithCaller(ctx, wire.UserOf(ctx)), m, notify)
}

func (lone) Session(context.Context) (wire.Conn, error) { return nil, errors.ErrUnsupported }

// both gives a modern server sessions of the old era.
func (h *Handler) both(name string, m modern) *front {
	var work sync.WaitGroup
	back := backend.New(backend.Options{Name: name, Own: true, Log: h.o.Log, Dial: func(ctx context.Context) (wire.Conn, error) {
		here, there := net.Pipe()
		work.Go(func() { _ = backend.Serve(ctx, lone{m}, wire.Lines(there), nil) })
		return wire.Lines(here), nil
	}})
	return &front{server: &dual{m, back}, close: func() {
		back.Close()
		m.close()
		work.Wait()
	}}
}

// describe takes over a description.
func (f *front) describe(d *td.Description) {
	if old := f.offers.Load(); old != nil && old.hash == d.Record.Hash {
		return
	}
	o := offersOf(d)
	f.offers.Store(o)
	headers := o.headers()
	f.params.Store(&headers)
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

// end ends the sessions of a front, and then what stands behind them.
func (f *front) end() {
	f.Handler.Close()
	f.close()
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
