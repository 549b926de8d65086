package gateway

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
	accessrules "github.com/lmosd/lmosd/policy/access"
)

// tdJSON is the media type of a Thing Description (TD 1.1 §9).
const tdJSON = "application/td+json"

// noSniff is the value of a header field of every response, which is not changed.
var noSniff = []string{"nosniff"}

// serve responds to one request: checks for requests of browsers, then the route. Errors become problem documents.
func (g *Gateway) serve(w http.ResponseWriter, r *http.Request) {
	start, rec := time.Now(), &recorder{ResponseWriter: w, request: r}
	g.guard.moveQueryToken(r)
	r, release := g.guard.identify(r)
	defer release()
	defer func() { g.metrics.request(routeOf(r), rec.status, time.Since(start)) }()
	defer g.recoverPanic(rec, r)
	rec.Header()["X-Content-Type-Options"] = noSniff
	body := g.limitBodyTime(w, r)
	r.Body = body
	err := g.guard.checkBrowser(r)
	if err == nil {
		r, err = g.asAgent(r)
	}
	if err != nil {
		g.fail(rec, r, err)
	} else if !g.guard.allowOrigin(rec, r) {
		g.routes.ServeHTTP(rec, r)
	}
	if !isInProcess(r) {
		discardBody(body)
	}
}

// asAgent returns r with the principal of the agent with a key of its own for which the sender calls, by the header Lmos-Agent: an agent at this
// node, and a sender that may attach agents.
func (g *Gateway) asAgent(r *http.Request) (*http.Request, error) {
	agent := did.DID(r.Header.Get(api.AgentHeader))
	if agent == "" {
		return r, nil
	}
	if err := g.guard.authorize(r, admin); err != nil {
		return r, err
	}
	if grant := grantOf(r); grant != nil && !grant.Allows(accessrules.Manage, nil) { // who manages the Thing in the path attaches no agents
		return r, &scopeError{interact.Errorf(interact.Forbidden, "create a token with the scope manage", "the token %s may not call for agents", grant.Name), "manage"}
	}
	if err := g.o.Publisher.AwaitLoad(r.Context()); err != nil {
		return r, err
	}
	p := did.PrincipalOf(r.Context())
	if p == nil || !g.o.Publisher.IsAgent(agent) {
		return r, interact.Errorf(interact.Forbidden, "attach it first; only its node calls for it", "no agent with the key %s is at this node", interact.Excerpt(string(agent), 80))
	}
	return r.WithContext(did.WithPrincipal(r.Context(), p.WithAgent(agent, nil, time.Time{}))), nil
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
	e := interact.AsError(err)
	if e.Code == interact.Internal {
		g.log.Error("request failed", "route", routeOf(r), "code", e.Code.String(), "err", err)
	}
	if challenge := g.challenge(r, err, e.Code); challenge != "" {
		w.Header().Set("Www-Authenticate", challenge)
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
	return interact.ShutdownError("try again when the node is back")
}

// A recorder records the status of a response; zero means that nothing was written.
type recorder struct {
	http.ResponseWriter
	request *http.Request // nil: the response is not compressed
	status  int
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

// writeJSON writes v as one JSON document, compressed if the client accepts that.
func writeJSON(w http.ResponseWriter, status int, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("encode the response: %w", err)
	}
	writeBody(w, status, b.Bytes())
	return nil
}
