package gateway

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"path"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/interact/rest/server"
)

// tdJSON is the media type of a Thing Description (TD 1.1 §9).
const tdJSON = "application/td+json"

// serve responds to one request: checks for requests of browsers, then the route. Errors become problem documents.
func (g *Gateway) serve(w http.ResponseWriter, r *http.Request) {
	start, rec := time.Now(), &recorder{ResponseWriter: w}
	g.guard.moveQueryToken(r)
	r = g.guard.identify(r)
	defer func() { g.metrics.request(routeOf(r), rec.status, time.Since(start)) }()
	defer g.recoverPanic(rec, r)
	rec.Header().Set("X-Content-Type-Options", "nosniff")
	if err := g.guard.checkBrowser(r); err != nil {
		g.fail(rec, r, err)
		return
	}
	body := g.limitBodyTime(w, r)
	r.Body = body
	g.routes.ServeHTTP(rec, r)
	if !isInProcess(r) {
		discardBody(body)
	}
}

// routeOf returns the path of the pattern that r matched, without the values in it; "none" without a match.
func routeOf(r *http.Request) string {
	_, path, both := strings.Cut(r.Pattern, " ")
	switch {
	case both:
		return path
	case r.Pattern != "":
		return r.Pattern
	default:
		return "none"
	}
}

// recoverPanic responds in place of a handler that panicked.
func (g *Gateway) recoverPanic(w *recorder, r *http.Request) {
	v := recover()
	switch {
	case v == nil:
		return
	case v == http.ErrAbortHandler:
		panic(v)
	}
	g.log.Error("handler panicked", "route", routeOf(r), "panic", v, "stack", string(debug.Stack()))
	if w.status != 0 {
		panic(http.ErrAbortHandler) // the client must see that the response is incomplete
	}
	g.fail(w, r, interact.Errorf(interact.Internal, "see the log of the node, and report it", "the request failed in the node"))
}

// fail writes err as a problem document (RFC 9457).
func (g *Gateway) fail(w http.ResponseWriter, r *http.Request, err error) {
	if e := interact.AsError(err); e.Code == interact.Internal {
		g.log.Error("request failed", "route", routeOf(r), "code", e.Code.String(), "err", err)
	}
	problem.Write(w, r, err)
}

// A handler responds to a request, or returns an error before it wrote anything.
type handler func(w http.ResponseWriter, r *http.Request) error

// protect runs h for authorized callers and, except for reads, only until the gateway drains.
func (g *Gateway) protect(a access, h handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := g.guard.authorize(r, a)
		if err == nil {
			err = g.runUnlessDraining(a, func() error { return h(w, r) })
		}
		if err != nil {
			g.fail(w, r, err)
		}
	})
}

// runUnlessDraining runs f so that a drain waits for it.
func (g *Gateway) runUnlessDraining(a access, f func() error) error {
	if a == open {
		return f()
	}
	if !g.gate.Enter() {
		if a == read {
			return f()
		}
		return errShuttingDown()
	}
	defer g.gate.Leave()
	return f()
}

// errShuttingDown returns the error of a request to a node that drains.
func errShuttingDown() error {
	return interact.Errorf(interact.ShuttingDown, "try again when the node is back", "the node is shutting down")
}

// newRoutes returns the routes of the gateway. The mux handles only paths that it does not redirect: some clients fail on redirects, and an
// id may contain "//" (WoT Discovery §7.3; RFC 3986 §3.3).
func (g *Gateway) newRoutes() http.Handler {
	mux := http.NewServeMux()
	for pattern, h := range g.fixedRoutes() {
		mux.Handle(pattern, h)
	}
	interactions, description := g.interactions(call), g.interactions(g.directoryAccess())
	named := g.refRoutes()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := r.URL.EscapedPath()
		if r.Pattern = tdd.Pattern(r); r.Pattern != "" {
			g.directory.ServeHTTP(w, r)
			return
		}
		if id, below := server.ThingID(r, "/things/"); id != "" {
			r.SetPathValue("id", id)
			if r.Pattern = interactionPattern(below); below == "td" {
				description.ServeHTTP(w, r)
			} else {
				interactions.ServeHTTP(w, r)
			}
			return
		}
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

// interactionPattern returns the pattern of a route below a Thing, without the values in it.
func interactionPattern(below string) string {
	parts := strings.Split(below, "/")
	pattern := "/things/{id}/" + parts[0]
	if len(parts) > 1 {
		pattern += map[bool]string{false: "/{name}", true: "/{subscription}"}[parts[0] == "subscriptions"]
	}
	if len(parts) > 2 {
		pattern += map[bool]string{false: "/observable", true: "/{run}"}[parts[0] == "actions"]
	}
	return pattern
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

// A recorder records the status of a response; zero means that nothing was written.
type recorder struct {
	http.ResponseWriter
	status int
}

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *recorder) Write(b []byte) (int, error) {
	w.status = cmp.Or(w.status, http.StatusOK)
	return w.ResponseWriter.Write(b)
}

// Hijack implements [http.Hijacker], for WebSockets.
func (w *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.status = http.StatusSwitchingProtocols
	return http.NewResponseController(w.ResponseWriter).Hijack()
}

// Unwrap implements the method of [http.ResponseController].
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// headerOnly is a ResponseWriter that keeps only the header.
type headerOnly struct{ header http.Header }

func (d headerOnly) Header() http.Header         { return d.header }
func (d headerOnly) Write(b []byte) (int, error) { return len(b), nil }
func (d headerOnly) WriteHeader(int)             {}

// limitBodyTime limits the time for the body of r to arrive.
func (g *Gateway) limitBodyTime(w http.ResponseWriter, r *http.Request) *timedBody {
	body := &timedBody{ReadCloser: r.Body, control: http.NewResponseController(w)}
	if body.arrived.Store(r.ContentLength == 0); !body.arrived.Load() {
		body.deadline(time.Now().Add(g.o.timeouts.body))
	}
	return body
}

// A timedBody is a request body with a deadline. The deadline is removed at the end of the body: then the server reads to detect a
// disconnect of the client, and cannot distinguish it from a deadline.
type timedBody struct {
	io.ReadCloser
	control *http.ResponseController
	arrived atomic.Bool // completely; the handler may read in another goroutine
	mu      sync.Mutex  // held during a read: discardBody may read concurrently with the handler
}

func (b *timedBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.arrived.Store(true)
		b.deadline(time.Time{})
	}
	return n, err
}

func (b *timedBody) deadline(t time.Time) {
	_ = b.control.SetReadDeadline(t) // in-process, there are no deadlines
}

// discardBody sends the response, then discards the rest of the body. If the connection were closed at once, a client that still sends would
// get a broken connection instead of the response.
func discardBody(body *timedBody) {
	if body.arrived.Load() {
		return
	}
	if body.control.Flush() == nil {
		_, _ = io.CopyN(io.Discard, body, maxIgnored)
	}
}

// writeJSON writes v as one JSON document.
func writeJSON(w http.ResponseWriter, status int, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("encode the response: %w", err)
	}
	tdd.WriteBytes(w, status, interact.JSON, b.Bytes())
	return nil
}
