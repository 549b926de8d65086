package ws

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/ws/frame"
	"github.com/lmosd/lmosd/td"
)

// ServerOptions are the settings of a [Server]. Mesh and Find are required.
type ServerOptions struct {
	// Mesh handles the messages; their Thing is the exact reference of a description (td.Description.Ref).
	Mesh interact.Thing
	// Find returns the description of ref: an id, a short name or an exact reference. Its error is sent unchanged if it is an
	// [*interact.Error], else as "internal error".
	Find func(ctx context.Context, ref string) (*td.Description, error)
	// Register registers a Thing of an agent over its connection: raw is its description, which may be a draft (td.Draft), and agent
	// calls it, or ends its connection (agent has a method Evict). It returns the id of the Thing. release is called once: when the agent unregisters the Thing (over), registers it again
	// over the same connection, or disconnects. It ends only that registration, not a later one of the same id. agent serves calls only
	// after Register has returned. Nil rejects all agents.
	Register func(ctx context.Context, raw []byte, agent interact.Thing) (id string, release func(over bool), err error)
	// Capability reads the delegations that a consumer presents; nil refuses them. Its error is an [*interact.Error].
	Capability func(from *did.Principal, text string) (*interact.Capability, error)
	// Gate holds the requests until their responses are sent; nil holds none.
	Gate *interact.Gate
	// Log receives log records; nil discards them.
	Log *slog.Logger
	// MaxMessage is the limit of a frame in bytes, in both directions; 0 means 4 MiB. A larger one ends the
	// connection.
	MaxMessage int64
	// MaxPending limits the concurrent requests of a connection; 0 means 256. Further requests are rejected.
	MaxPending int
	// MaxSubscriptions limits the subscriptions and observations of a connection; 0 means 1000.
	MaxSubscriptions int
	// Rate limits the frames that a connection may send per second; 0 means 50,000. Further requests are rejected.
	Rate float64
	// Keep is how long the final state of an action is kept for queries over the connection that started it, if it is not a task of its
	// host; 0 means 10 min. A connection keeps at most 1 MiB of outputs.
	Keep time.Duration
}

// A Server serves the Things of the mesh over WebSockets, in all dialects, and accepts the Things of attached agents. It is
// safe for concurrent use.
//
// Requests of a connection run concurrently; only writes to one property keep their order. A consumer that does not read is disconnected
// (1013). The end of a connection ends its subscriptions and its attached actions.
type Server struct {
	o        ServerOptions
	settings settings

	mu     sync.Mutex // guards the rest
	conns  map[*conn]bool
	closed bool
	work   sync.WaitGroup // incremented with mu held
}

// NewServer returns a server with options o. Close it when it is done.
func NewServer(o ServerOptions) *Server {
	s := &Server{o: o, conns: map[*conn]bool{}}
	s.settings = settings{log: o.Log, maxMessage: o.MaxMessage, maxPending: o.MaxPending, maxSubscriptions: o.MaxSubscriptions,
		rate: o.Rate, keep: o.Keep}.withDefaults()
	return s
}

// Close ends all connections (1001) and waits for their goroutines.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		c.end(goingAway)
	}
	s.mu.Unlock()
	s.work.Wait()
}

// Serve upgrades r and serves the connection until it ends. The caller has authorized r: Serve does not check
// Origin and credentials; the principal is in the context of r (did.PrincipalOf). With mayRegister the peer may register Things; without
// it, registrations get an error of code Unauthenticated.
func (s *Server) Serve(w http.ResponseWriter, r *http.Request, mayRegister bool) {
	offer := frame.Negotiate(r.Header)
	o := &websocket.AcceptOptions{InsecureSkipVerify: true} // the caller has checked the Origin
	if offer != "" {
		o.Subprotocols = []string{offer}
	}
	tap := &tap{ResponseWriter: w}
	ws, err := websocket.Accept(tap, r, o)
	if err != nil {
		return // the response was written
	}
	ctx := context.WithoutCancel(r.Context()) // the end of r ends the connection below, with a close frame
	assumed, _ := frame.Subprotocol(offer)
	c := newConn(ctx, socket{ws, tap.raw}, r.RemoteAddr, s.settings, assumed, s.host(r, mayRegister))
	if s.add(c) {
		defer s.remove(c)
	} else {
		c.end(goingAway)
	}
	defer context.AfterFunc(r.Context(), func() { c.end(goingAway) })()
	err = c.run()
	s.settings.log.Debug("connection ended", "peer", c.name, "err", err)
}

func (s *Server) add(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.conns[c] = true
		s.work.Add(1)
	}
	return !s.closed
}

func (s *Server) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	s.work.Done()
}

// host returns the host for r.
func (s *Server) host(r *http.Request, mayRegister bool) *host {
	h := &host{detaches: true, gate: s.o.Gate, from: did.PrincipalOf(r.Context()), capability: s.o.Capability}
	h.parent, h.state = interact.TraceContext(r.Header.Get("Traceparent"), strings.Join(r.Header.Values("Tracestate"), ","))
	h.find = func(ctx context.Context, ref string) (target, error) {
		d, err := s.o.Find(ctx, ref)
		switch {
		case err != nil:
			return target{}, err
		case d == nil || d.Thing == nil:
			return target{}, interact.NoAgent(ref)
		}
		return target{d.Ref(), s.o.Mesh, d.Thing}, nil
	}
	switch {
	case s.o.Register == nil:
		h.refusal = interact.Errorf(interact.Forbidden, "publish its description",
			"this node does not accept agents over WebSockets").Then(interact.StepPublish)
	case !mayRegister:
		h.refusal = interact.Errorf(interact.Unauthenticated, "connect with Authorization: Bearer and the node's token",
			"the registration of agents requires the token of the node")
	default:
		h.register = s.o.Register
	}
	return h
}

// A tap keeps the connection that is hijacked from the HTTP server.
type tap struct {
	http.ResponseWriter
	raw io.Closer
}

// Hijack implements [http.Hijacker].
func (t *tap) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(t.ResponseWriter).Hijack()
	t.raw = c
	return c, rw, err
}
