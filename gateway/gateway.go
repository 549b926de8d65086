package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory/paging"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/rest/server"
	"github.com/lmosd/lmosd/td"
)

// DefaultListen is where a node serves its API if nobody says otherwise.
const DefaultListen = "127.0.0.1:4668"

// None as Listen or Socket in [Options] serves nothing there.
const None = "none"

// CallbacksPath is where agents post what this node subscribed to by webhook; one segment follows.
const CallbacksPath = "/callbacks/"

// Limits of a request, in bytes. Each route bounds its body.
const (
	maxHeader  = 64 << 10 // all headers
	maxIgnored = 32 << 20 // of a body, after the answer
)

// A patience says how long the server waits for what.
type timeouts struct {
	header time.Duration // from a connection to all headers of a request
	body   time.Duration // from the first read of a body to its end; a request stream has its own (see serve.Server)
	write  time.Duration // for a part of an answer, 64 KiB at most, to be taken
	idle   time.Duration // for the next request on a connection
	drain  time.Duration // for calls that run when the node stops
	close  time.Duration // for answers that are being written after that
}

var defaultTimeouts = timeouts{header: 5 * time.Second, body: time.Minute, write: 30 * time.Second, idle: 2 * time.Minute,
	drain: 8 * time.Second, close: time.Second}

// Options say what a gateway serves, where, and to whom.
type Options struct {
	// Node is what is served. It is needed.
	Node Node
	// Listen is the TCP address and port. Empty means [DefaultListen], [None] serves the socket only. An address that other
	// hosts reach needs Token.
	Listen string
	// Explicit says that somebody asked for Listen: if its port is busy, New fails. Otherwise a free port is taken.
	Explicit bool
	// Socket is the path of the unix socket, at most 100 bytes, in a folder that only the user can enter. Whoever opens it
	// has all rights. Empty or [None] makes no socket.
	Socket string
	// Token is what a caller over TCP shows to change the node (RFC 6750). Empty means that no caller over TCP may.
	Token string
	// TokenFile is the file that holds Token; only to tell people.
	TokenFile string
	// NoAuth lets every caller over TCP change the node. It is refused beyond loopback.
	NoAuth bool
	// OpenDirectory lets callers elsewhere read the directory without the token: its lists, searches, events and TDs.
	OpenDirectory bool
	// Hosts are the names, beside literal addresses and localhost, under which the API may be addressed. A request with
	// another Host is refused, against DNS rebinding. Origins are the web origins ("https://console.example"), beside the
	// gateway's own, from which browsers may send more than GET and HEAD, and read what agents offer.
	Hosts, Origins []string
	// PublicURL is the address of the API as consumers reach it, "https://node.example", for the addresses in descriptions. Empty
	// means the scheme and Host of each request.
	PublicURL string
	// WS serves GET /ws; nil serves none. Its sockets are not the gateway's: Run does not wait for them, and whoever made WS closes
	// it after Run, for calls of peers that still run may be answered by agents behind them.
	WS WebSocket
	// Callbacks takes what agents post to addresses below CallbacksPath, which nobody else knows (rest.Callbacks); nil takes nothing.
	Callbacks http.Handler
	// CallbackDial connects to the addresses that consumers give for webhooks. Nil connects to addresses of the public internet
	// only, or to any with PrivateCallbacks.
	CallbackDial     func(ctx context.Context, network, addr string) (net.Conn, error)
	PrivateCallbacks bool
	// Bridges serve clients of other protocols, to whoever may call. Run ends their requests; they are their makers' to close.
	Bridges []Bridge
	// MaxTD bounds a TD that is published, in bytes; zero or more than [td.MaxTD] means td.MaxTD.
	MaxTD int
	// MaxConns bounds the connections over TCP and over the socket, each; more wait. Zero means 1024.
	MaxConns int
	// Metrics is what the node counts; nil counts only what the gateway does. HideMetrics serves no /metrics.
	Metrics     *Metrics
	HideMetrics bool
	// Counters returns what the parts of the node counted, for /metrics; it is called at every scrape, maybe concurrently.
	Counters func() []Counter
	// Log tells of requests that failed here; nil discards.
	Log *slog.Logger

	timeouts timeouts // zero means defaultTimeouts
}

// A WebSocket is what serves the WebSocket endpoint (interact/ws).
type WebSocket interface {
	// Serve upgrades r and serves its socket until that ends. mayRegister tells whether the caller may
	// offer agents of its own; what it may ask as a consumer is for the mesh to say. What is no upgrade it refuses.
	Serve(w http.ResponseWriter, r *http.Request, mayRegister bool)
}

// A Bridge is what serves clients of another protocol (bridge.Handler).
type Bridge interface {
	http.Handler
	// Paths are what it serves: patterns of [http.ServeMux] without a method.
	Paths() []string
}

// A Gateway is the HTTP server of a node. [New] opens it, [Gateway.Run] serves, [Gateway.Close] closes. Its methods are
// safe for concurrent use.
type Gateway struct {
	o         Options
	log       *slog.Logger
	metrics   *Metrics
	guard     guard
	gate      interact.Gate
	things    *server.Server
	directory *tdd.Server
	pages     *paging.Pages // of searches
	routes    http.Handler
	tcp       net.Listener // nil: none
	socket    net.Listener // nil: none
	servers   []httpServer
	// alive ends when running requests must end; every request's context comes from it.
	alive context.Context
	kill  context.CancelFunc
	// opened ends with Close. WebSockets live until then: agents attached over them answer calls of peers while the node drains.
	opened context.Context
	close  context.CancelFunc
	// ending ends when those who watch must end, which is sooner.
	ending  context.Context
	end     context.CancelFunc
	finders atomic.Int64 // who watch what is found
}

// A server serves one listener.
type httpServer struct {
	*http.Server
	listener net.Listener
}

// New opens the listeners of o; nobody is served before Run. The error is an [*interact.Error]: PortBusy (a port or socket
// that another process answers on), WildcardBind, or ConfigInvalid.
func New(o Options) (*Gateway, error) {
	o = o.withDefaults()
	g := &Gateway{o: o, log: o.Log, metrics: o.Metrics, pages: paging.New()}
	g.opened, g.close = context.WithCancel(context.Background())
	g.alive, g.kill = context.WithCancel(g.opened)
	g.ending, g.end = context.WithCancel(g.alive)
	if err := g.open(); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	g.guard = newGuard(o, g.tcp)
	g.things = g.newThings()
	g.directory = g.newDirectory()
	g.routes = g.newRoutes()
	if g.tcp != nil {
		g.serveOn(g.tcp, who(g.guard.loopback))
	}
	if g.socket != nil {
		g.serveOn(g.socket, did.Consumer(did.Socket, ""))
	}
	return g, nil
}

func (o Options) withDefaults() Options {
	if o.Listen == "" {
		o.Listen = DefaultListen
	}
	if o.MaxTD <= 0 || o.MaxTD > td.MaxTD {
		o.MaxTD = td.MaxTD
	}
	if o.MaxConns <= 0 {
		o.MaxConns = 1024
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.timeouts == (timeouts{}) {
		o.timeouts = defaultTimeouts
	}
	return o
}

func (g *Gateway) open() (err error) {
	if g.o.Listen != None {
		if g.tcp, err = listenTCP(g.o); err != nil {
			return err
		}
	}
	if g.o.Socket != "" && g.o.Socket != None {
		if g.socket, err = listenUnix(g.o.Socket); err != nil {
			return err
		}
	}
	return nil
}

// who is what a TCP listener proves of those who come by it.
func who(loopback bool) *did.Principal {
	if loopback {
		return did.Consumer(did.Loopback, "")
	}
	return did.Consumer(did.Unproven, "")
}

// serveOn prepares a server for l, which proves p of all who come by it. Callers of the unix socket have all rights.
func (g *Gateway) serveOn(l net.Listener, p *did.Principal) {
	base := did.WithPrincipal(g.alive, p)
	g.servers = append(g.servers, httpServer{listener: limit(l, g.o.MaxConns, g.o.timeouts.write), Server: &http.Server{
		Handler:           http.HandlerFunc(g.serve),
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnContext:       named,
		ReadHeaderTimeout: g.o.timeouts.header,
		IdleTimeout:       g.o.timeouts.idle,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(g.log.Handler(), slog.LevelDebug),
		// No WriteTimeout: an answer may take as long as its agent. The connection bounds each write.
	}})
}

// named is the context of a connection: that to the unix socket names the user at its other end.
func named(ctx context.Context, c net.Conn) context.Context {
	l, ok := c.(*limitedConn)
	if !ok || did.PrincipalOf(ctx).Via != did.Socket {
		return ctx
	}
	return did.WithPrincipal(ctx, did.Consumer(did.Socket, userOf(l.Conn)))
}

// Addr returns the TCP address that is listened on, or nil.
func (g *Gateway) Addr() net.Addr {
	if g.tcp == nil {
		return nil
	}
	return g.tcp.Addr()
}

// URL returns the address of the API without a trailing slash, or "" if only a socket is served. For a wildcard address it
// names loopback.
func (g *Gateway) URL() string {
	addr, ok := g.Addr().(*net.TCPAddr)
	if !ok {
		return ""
	}
	shown := *addr
	if shown.IP.IsUnspecified() {
		shown.IP = net.IPv4(127, 0, 0, 1)
	}
	return "http://" + shown.String()
}

// Run serves until ctx ends, then drains: /healthz is red at once, new calls get [interact.ShuttingDown], streams of events, long
// polls and webhooks end, running calls have eight seconds to finish and are cancelled then. It returns when its last goroutine
// has, but for those of WebSockets; a stop by ctx is no error. What the calls need (the mesh) must live until Run returns. It is
// called once.
func (g *Gateway) Run(ctx context.Context) error {
	group, gctx := errgroup.WithContext(ctx)
	for _, s := range g.servers {
		group.Go(func() error {
			if err := s.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
				return &interact.Error{Code: interact.Internal, Title: "the HTTP server stopped", Next: interact.Next(interact.StepRun),
					Err: err}
			}
			return nil
		})
	}
	group.Go(func() error {
		g.directory.Run(gctx)
		return nil
	})
	group.Go(func() error {
		<-gctx.Done()
		g.drain()
		return nil
	})
	return group.Wait()
}

// drain ends the servers. The listeners stay open until the running calls are done, so that health checks see why.
func (g *Gateway) drain() {
	start, idle := time.Now(), g.gate.Close()
	g.things.Drain() // what would never be idle
	g.directory.Drain()
	g.end()
	select {
	case <-idle:
	case <-time.After(g.o.timeouts.drain):
		g.log.Warn("cancelled calls that did not finish", "after", g.o.timeouts.drain)
	}
	g.kill()
	ctx, cancel := context.WithTimeout(context.Background(), g.o.timeouts.close)
	defer cancel()
	for _, s := range g.servers {
		if s.Shutdown(ctx) != nil {
			s.Server.Close() // what is left had its time
		}
	}
	g.things.Close()
	g.log.Debug("gateway closed", "took", time.Since(start))
}

// Close closes the listeners and every connection at once. After Run it does nothing more.
func (g *Gateway) Close() error {
	g.close()
	if g.things != nil {
		g.things.Close()
		g.directory.Drain()
	}
	for _, s := range g.servers {
		s.Server.Close() // its listener is closed below, whether it was served or not
	}
	for _, l := range []net.Listener{g.tcp, g.socket} {
		if l == nil {
			continue
		}
		if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
	}
	return nil
}
