// Package gateway is the HTTP server of a node: directory, interactions, well-known resources, administration and metrics.
//
// mux.go lists the routes, auth.go decides who may use them, and serve.go runs each handler. The handlers are in the files of their
// resources: node.go, find.go, publish.go, hosting.go, policy.go, trust.go, groups.go, accesstokens.go, paths.go, tasks.go, route.go (POST /v1/route),
// things.go (interactions); reload.go (the configuration that is read again); agents.go, topology.go, events.go and calls.go (what the console shows), operator.go, logs.go and doctor.go (for operators),
// console.go (the page and its sessions).
package gateway

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory/paging"
	"github.com/lmosd/lmosd/gateway/sessions"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/rest/server"
	"github.com/lmosd/lmosd/journal"
	"github.com/lmosd/lmosd/policy"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/telemetry/recentlog"
)

// defaultListen is the default address of the API.
const defaultListen = "127.0.0.1:4668"

// None as Listen or Socket in [Options] disables the listener.
const None = "none"

// callbacksPath is the prefix of the URLs to which agents post webhook events for this node; one segment follows.
const callbacksPath = "/callbacks/"

// Limits of a request, in bytes. Each route bounds its body.
const (
	maxHeader  = 64 << 10 // all headers of a request
	maxIgnored = 32 << 20 // of a body that no handler read
)

// timeouts are the timeouts of the server.
type timeouts struct {
	header time.Duration // from a connection to all headers of a request
	body   time.Duration // from the first read of a body to its end; a request stream has its own (see server.Server)
	write  time.Duration // for a peer to receive at most 64 KiB of a response
	idle   time.Duration // for the next request on a connection
	drain  time.Duration // for running calls when the node stops
	close  time.Duration // for responses that are being written after that
}

var defaultTimeouts = timeouts{header: 5 * time.Second, body: time.Minute, write: 30 * time.Second, idle: 2 * time.Minute,
	drain: 8 * time.Second, close: time.Second}

// Options are the settings of a gateway.
type Options struct {
	// Mesh is the Thing that reaches all Things, here or at other hosts, through tracing, policy and limits. This and the following parts of
	// the node are required.
	Mesh      interact.Thing
	Directory Directory
	Router    Router
	Presence  Presence
	Publisher Publisher
	Status    Status
	Peers     Peers
	// Policy are the access rules; nil for a node without.
	Policy *policy.Policy
	// Describe returns the signed TD of the node, with more members: those of the directory, if the gateway listens (tdd.Self).
	Describe func(more map[string]any) ([]byte, error)
	// Tasks are the tasks of the node; nil for a node without tasks.
	Tasks Tasks
	// Trust is the organization of the node with its partners; nil for a node that keeps none, as in simulations.
	Trust Trust
	// Groups are the groups of the node; nil for a node that keeps none.
	Groups Groups
	// Delegations are what its consumers lend; nil: nothing can be delegated.
	Delegations Delegations
	// Listen is the TCP address and port. Empty means [defaultListen]; [None] serves only the socket. An address beyond loopback requires
	// Tokens, and IsEncrypted or OpenDirectory: without encryption it accepts no tokens.
	Listen string
	// Shared has the connections of a port that other protocols share; nil: the gateway opens Listen, of which it is the address. With a
	// certificate the connections are TLS. The rules for the address are the same.
	Shared net.Listener
	// Upgrade serves a request over TCP that opens a connection of another protocol, which has its own authentication. It returns false for
	// others, without an answer. Nil: there are none.
	Upgrade func(http.ResponseWriter, *http.Request) bool
	// Explicit makes New fail if the port of Listen is busy. Otherwise New uses a free port.
	Explicit bool
	// Socket is the path of the unix socket, at most 100 bytes, in a folder that only the user can enter. Its callers have all rights.
	// Empty or [None]: no socket.
	Socket string
	// CertFile and KeyFile are the certificate with its chain and its private key, in PEM. With them Listen serves HTTPS only. They are read
	// again when they change.
	CertFile, KeyFile string
	// Proxy permits plain HTTP beyond loopback: a proxy, or a network that only authorized hosts reach, protects the connections. Requests
	// without a token are then unproven.
	Proxy bool
	// Tokens authorize callers over TCP (RFC 6750). Nil: no caller over TCP may change the node.
	Tokens Tokens
	// TokenFile is the file with the token of the operator, for hints.
	TokenFile string
	// NoAuth permits every caller over TCP to change the node. It is rejected beyond loopback.
	NoAuth bool
	Operation
	// WS serves GET /ws; nil: no WebSocket endpoint. Run does not wait for its sockets: their owner closes WS after Run, because agents
	// attached to them may still reply to calls of peers.
	WS WebSocket
	// LocalName is the host name by which other hosts find the API on the local network; empty means none.
	LocalName string
	// Callbacks receives the webhook events below callbacksPath (rest.Callbacks); nil: no webhooks.
	Callbacks Callbacks
	// PrivateCallbacks permits webhook URLs of consumers with addresses that are not public.
	PrivateCallbacks bool
	// Bridges serve clients of other protocols. Run ends their requests; their owner closes them.
	Bridges []Bridge
	// MaxTD limits a published TD, in bytes; zero or more than [td.MaxTD] means td.MaxTD.
	MaxTD int
	// MaxConns limits the connections over TCP and over the socket, each; further ones wait. Zero means 1024. One address may have a quarter
	// over TCP, except loopback, and the proxy of Proxy.
	MaxConns int
	// Metrics are the metrics of the node; nil means those of the gateway only.
	Metrics *Metrics
	// Counters returns the counters of the parts of the node, for /metrics. Scrapes call it concurrently.
	Counters func() []Counter
	// Events numbers the events of the node, for lists that events follow; nil: those of the journal and of the directory.
	Events Sequence
	// Topology maps the mesh; nil for a node without a map.
	Topology Topology
	// Log receives requests that failed at this node; nil discards.
	Log *slog.Logger

	timeouts timeouts // zero means defaultTimeouts
}

// An Operation has the settings of the API that a node passes on as they are: who may reach it, and what an operator sees.
type Operation struct {
	// OpenDirectory permits callers on other hosts to read the directory without the token: lists, searches, events and TDs.
	OpenDirectory bool
	// Hosts are the names, besides IP addresses and localhost, that a request may have as its Host (against DNS rebinding). Origins are the
	// web origins ("https://console.example"), besides the gateway's own, whose pages may use the API in a browser.
	Hosts, Origins []string
	// PublicURL is the URL of the API as consumers reach it, "https://node.example", for the forms in TDs. Empty means the scheme and Host
	// of each request.
	PublicURL string
	// LinksFor states which nodes receive the connections of this node: mesh, organization or none (topology.Options.For).
	LinksFor string
	// HideMetrics disables /metrics.
	HideMetrics bool
	// NoConsole disables the console, and with it sessions of browsers. ConsoleDir is a folder whose files are served in place of those of
	// the program, for work on the console; empty: there is none.
	NoConsole  bool
	ConsoleDir string
	// Logs are the newest log records and the levels of the loggers; nil for a process that keeps none.
	Logs *recentlog.Log
	// Config returns the configuration without secrets; nil for a node without one.
	Config func() []api.ConfigItem
	// Reload reads the configuration again; nil for a node without one.
	Reload Reloader
	// AuditDir is the folder of the audit log; empty: there is none.
	AuditDir string
}

// Callbacks receive events by webhook.
type Callbacks interface {
	http.Handler
	// Listen sets the URL below which agents of this node reach the handler. New calls it if the gateway listens.
	Listen(url string)
}

// A WebSocket serves the WebSocket endpoint (interact/ws).
type WebSocket interface {
	// Serve upgrades r and serves its socket until that ends; it rejects other requests. mayRegister permits the caller to attach agents.
	// Policy in the mesh authorizes its calls as a consumer.
	Serve(w http.ResponseWriter, r *http.Request, mayRegister bool)
}

// A Bridge serves clients of another protocol (bridge.Handler).
type Bridge interface {
	http.Handler
	// Paths returns the patterns of [http.ServeMux], without a method, that it serves.
	Paths() []string
}

// A Gateway is the HTTP server of a node. [New] opens it, [Gateway.Run] serves, [Gateway.Close] closes. Its methods are safe for concurrent
// use.
type Gateway struct {
	o         Options
	log       *slog.Logger
	sessions  *sessions.Store // nil: no console
	index     api.Index
	metrics   *Metrics
	guard     guard
	gate      interact.Gate
	things    *server.Server
	directory *tdd.Server
	pages     *paging.Pages // of searches
	facts     factsCache    // of lists
	self      []byte        // the signed TD of the node
	routes    http.Handler
	tcp       net.Listener // nil: none
	socket    net.Listener // nil: none
	cert      *certificate // of tcp; nil: plain HTTP
	servers   []httpServer
	// requestCtx is the parent of the contexts of all requests. It ends when running requests must end.
	requestCtx     context.Context
	cancelRequests context.CancelFunc
	// lifeCtx ends with Close. WebSockets live until then: attached agents reply to calls of peers while the node drains.
	lifeCtx context.Context
	endLife context.CancelFunc
	// streamCtx ends when the streams of changes must end, before requestCtx.
	streamCtx     context.Context
	cancelStreams context.CancelFunc
	searchStreams atomic.Int64 // open streams of search results
	eventStreams  atomic.Int64 // open streams of events
	journal       *journal.Journal
	endRecording  func()         // of events of peers
	logStreams    atomic.Int64   // open streams of log records
	bridgeUses    []*bridgeUse   // by the index of a bridge
	restart       *restartNeeded // is o.Status
	auditCheck    chan struct{}  // holds one check of the audit log
	checks        sync.WaitGroup // of such checks
	noChecks      sync.Once      // the end of them
}

// An httpServer serves one listener.
type httpServer struct {
	*http.Server
	listener net.Listener
}

// New opens the listeners of o; Run serves them. The error is an [*interact.Error]: PortBusy (another process listens on the port or
// socket), WildcardBind, or ConfigInvalid.
func New(o Options) (*Gateway, error) {
	o = o.withDefaults()
	g := &Gateway{o: o, log: o.Log, metrics: o.Metrics, journal: o.Metrics.Journal(), pages: paging.New(), auditCheck: make(chan struct{}, 1),
		restart: &restartNeeded{baseStatus: o.Status}}
	g.o.Status = g.restart
	g.endRecording = g.recordActivity()
	g.lifeCtx, g.endLife = context.WithCancel(context.Background())
	g.requestCtx, g.cancelRequests = context.WithCancel(g.lifeCtx)
	g.streamCtx, g.cancelStreams = context.WithCancel(g.requestCtx)
	if err := g.open(); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	g.guard = newGuard(o, g.tcp)
	g.sessions = g.guard.sessions
	if err := g.signDescription(); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	if url := g.callbackURL(); g.o.Callbacks != nil && url != "" {
		g.o.Callbacks.Listen(url + callbacksPath)
	}
	g.things = g.newThings()
	g.directory = g.newDirectory()
	g.routes = g.newRoutes()
	if g.tcp != nil {
		g.addServer(g.tcp, listenerPrincipal(g.guard.loopback), g.cert)
	}
	if g.socket != nil {
		g.addServer(g.socket, did.Consumer(did.Socket, ""), nil)
	}
	return g, nil
}

func (o Options) withDefaults() Options {
	o.Listen = cmp.Or(o.Listen, defaultListen)
	if o.MaxTD <= 0 || o.MaxTD > td.MaxTD {
		o.MaxTD = td.MaxTD
	}
	o.MaxConns = cmp.Or(max(o.MaxConns, 0), 1024)
	if o.Metrics == nil {
		o.Metrics = NewMetrics()
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.timeouts == (timeouts{}) {
		o.timeouts = defaultTimeouts
	}
	return o
}

// hosts returns the names of the API: those of the configuration, and that on the local network.
func (o *Options) hosts(configured []string) []string {
	if o.LocalName != "" && o.OpenDirectory {
		return append(slices.Clone(configured), o.LocalName)
	}
	return configured
}

func (g *Gateway) open() (err error) {
	if g.o.Listen != None {
		if g.o.CertFile != "" || g.o.KeyFile != "" {
			if g.cert, err = openCertificate(g.o.CertFile, g.o.KeyFile, g.log); err != nil {
				return err
			}
		}
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

// listenerPrincipal returns the principal of the clients of a TCP listener.
func listenerPrincipal(loopback bool) *did.Principal {
	if loopback {
		return did.Consumer(did.Loopback, "")
	}
	return did.Consumer(did.Unproven, "")
}

// addServer adds a server for l, whose callers have the principal p. With a certificate it serves HTTPS.
func (g *Gateway) addServer(l net.Listener, p *did.Principal, cert *certificate) {
	perAddress := max(g.o.MaxConns/4, 1)
	if g.o.Proxy {
		perAddress = g.o.MaxConns
	}
	l = limitListener(l, g.o.MaxConns, perAddress, g.o.timeouts.write)
	if cert != nil {
		l = tls.NewListener(l, cert.config())
	}
	base := did.WithPrincipal(g.requestCtx, p)
	g.servers = append(g.servers, httpServer{listener: l, Server: &http.Server{
		Handler:           http.HandlerFunc(g.upgradeOrServe),
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnContext:       connContext,
		ReadHeaderTimeout: g.o.timeouts.header,
		IdleTimeout:       g.o.timeouts.idle,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(g.log.Handler(), slog.LevelDebug),
		// No WriteTimeout: a response takes as long as its agent. The connection limits each write.
	}})
}

// upgradeOrServe serves a request of a listener: by Options.Upgrade or by the routes.
func (g *Gateway) upgradeOrServe(w http.ResponseWriter, r *http.Request) {
	if g.o.Upgrade == nil || isTrusted(r) || !g.o.Upgrade(w, r) {
		g.serve(w, r)
	}
}

// connContext returns the context of a connection; for the unix socket it has the user of the peer.
func connContext(ctx context.Context, c net.Conn) context.Context {
	l, ok := c.(*limitedConn)
	if !ok || did.PrincipalOf(ctx).Via != did.Socket {
		return ctx
	}
	return did.WithPrincipal(ctx, did.Consumer(did.Socket, userOf(l.Conn)))
}

// Addr returns the TCP address of the listener, or nil.
func (g *Gateway) Addr() net.Addr {
	if g.tcp == nil {
		return nil
	}
	return g.tcp.Addr()
}

// URL returns the URL of the API without a trailing slash, or "" without a TCP listener. A wildcard address is shown as loopback.
func (g *Gateway) URL() string {
	addr, ok := g.Addr().(*net.TCPAddr)
	if !ok {
		return ""
	}
	shown := *addr
	if shown.IP.IsUnspecified() {
		shown.IP = net.IPv4(127, 0, 0, 1)
	}
	return g.o.scheme() + "://" + shown.String()
}

// IsEncrypted reports whether the connections of consumers on other hosts are encrypted: by a certificate, or by a proxy in front of the node.
func (o *Options) IsEncrypted() bool {
	return o.CertFile != "" || o.Proxy || strings.HasPrefix(strings.ToLower(o.PublicURL), "https://")
}

// scheme returns the URI scheme of the TCP listener.
func (o *Options) scheme() string {
	if o.CertFile != "" && o.Listen != None {
		return "https"
	}
	return "http"
}

// callbackURL returns the URL by which agents send events to the node, or "" if there is none: with TLS, agents must trust the name in it.
func (g *Gateway) callbackURL() string {
	if g.cert == nil || g.URL() == "" {
		return g.URL()
	}
	if g.o.PublicURL != "" {
		return strings.TrimSuffix(g.o.PublicURL, "/")
	}
	u, err := url.Parse(g.URL())
	if err != nil || g.cert.current.Leaf.VerifyHostname(u.Hostname()) != nil {
		g.log.Warn("webhooks disabled", "reason", "the address of the API is not in its certificate", "url", g.URL(), "hint", "set http.public_url")
		return ""
	}
	return g.URL()
}

// Run serves until ctx ends, then drains: /healthz fails at once, new calls get [interact.ShuttingDown], event streams, long polls and
// webhooks end, and running calls are cancelled after 8 s. It returns when its last goroutine has ended, except those of WebSockets; a stop
// by ctx is not an error. The mesh must live until Run returns. Run is called once.
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
	if len(g.servers) > 0 { // in-process, a node is one of many
		group.Go(func() error { g.watchState(gctx); return nil })
	}
	group.Go(func() error {
		<-gctx.Done()
		g.drain()
		return nil
	})
	return group.Wait()
}

// drain ends the servers. The listeners stay open until the running calls have ended, so that health checks see the state.
func (g *Gateway) drain() {
	start, idle := time.Now(), g.gate.Close()
	g.things.Drain() // streams do not end by themselves
	g.directory.Drain()
	g.cancelStreams()
	select {
	case <-idle:
	case <-time.After(g.o.timeouts.drain):
		g.log.Warn("cancelled calls that did not finish", "after", g.o.timeouts.drain)
	}
	g.cancelRequests()
	ctx, cancel := context.WithTimeout(context.Background(), g.o.timeouts.close)
	defer cancel()
	for _, s := range g.servers {
		if s.Shutdown(ctx) != nil {
			s.Server.Close() // after the timeout
		}
	}
	g.things.Close()
	g.log.Debug("gateway closed", "took", time.Since(start))
}

// Close closes the listeners and all connections at once.
func (g *Gateway) Close() error {
	g.endLife()
	g.endRecording()
	if g.sessions != nil {
		g.sessions.Close()
	}
	if g.things != nil {
		g.things.Close()
		g.directory.Drain()
	}
	for _, s := range g.servers {
		s.Server.Close() // the listener is closed below
	}
	g.noChecks.Do(func() { g.auditCheck <- struct{}{} }) // after the one that runs, none begins
	g.checks.Wait()
	var errs []error
	for _, l := range []net.Listener{g.tcp, g.socket} {
		if l == nil {
			continue
		}
		if err := l.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
